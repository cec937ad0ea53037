//! The ports of a worker: which ones are polled, which ones epoll watches, and the packets that are queued on each.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use crate::counters::PortCounters;
use crate::packet::{Capabilities, Packet, Pool};
use crate::port::{PacketIo, Received};
use crate::port_table::fairness::Account;
use crate::port_table::poller::Poller;
use crate::port_table::rate_limit::SenderLimit;
use crate::tables::PortId;

/// After this time without packets, a port is watched instead of polled.
const QUIET: Duration = Duration::from_millis(1);

/// The largest number of packets of a port that are decided and sent together. It is so small that 64 KiB super-packets
/// stay in the cache.
pub(crate) const BATCH: usize = 32;
/// The largest number of ticks that a batch takes: about forty microseconds. A port that receives a packet in the
/// meantime waits for the end of the batch.
pub(crate) const BATCH_TICKS: u64 = 100_000;

/// The number of ICMP errors that a sender gets per second, and in a burst (RFC 1812, section 4.3.2.8).
const ERRORS: (u32, u32) = (100, 50);
/// The number of denied flows of a sender that are reported per second, and in a burst.
const DENIALS: (u32, u32) = (200, 256);

/// The limits on messages that senders behind a port make the worker send. Each sender has a limit of its own.
pub(crate) struct Budgets {
    /// "Packet too big" errors. Without them, a sender's path MTU is a black hole, so they have a limit of their own.
    pub(crate) too_big: SenderLimit,
    /// Other ICMP errors.
    pub(crate) errors: SenderLimit,
    /// Reports of denied flows to the control loop.
    pub(crate) denials: SenderLimit,
}

impl Budgets {
    fn new() -> Self {
        let limit = |(per_second, burst)| SenderLimit::new(per_second, burst);
        Self { too_big: limit(ERRORS), errors: limit(ERRORS), denials: limit(DENIALS) }
    }
}

/// A port that is attached to a worker.
pub(crate) struct Slot {
    pub(crate) id: PortId,
    pub(crate) io: Box<dyn PacketIo>,
    pub(crate) counters: Arc<PortCounters>,
    /// Whether it may hold packets. Then it is polled without epoll.
    pub(crate) hot: bool,
    /// The number of packets that are taken from it at once: as many as take `batch_ticks`, judged by the last batches.
    pub(crate) batch: usize,
    /// The largest number of ticks that a batch takes.
    batch_ticks: u64,
    /// Whether it was silent until now. Its first packet is then taken alone, so that this packet does not wait for
    /// others.
    pub(crate) awoken: bool,
    /// Whether epoll reports when it is readable.
    pub(crate) watched: bool,
    /// The time when it last delivered packets.
    last_received: Duration,
    /// The worker's time that its packets have used.
    pub(crate) account: Account,
    pub(crate) budgets: Box<Budgets>,
    /// The number of its packets that have been handed off and are not yet decided.
    pub(crate) handed_off: usize,
    pub(crate) capabilities: Capabilities,
    /// The packets to send next.
    pub(crate) queue: Vec<Packet>,
    /// The size of the queued packets on a wire: the number of packets there minus the number in the queue, and the
    /// number of bytes.
    pub(crate) further: u64,
    pub(crate) bytes: u64,
}

impl Slot {
    /// Marks the port as one that may hold packets after a silence. Returns false if it was already marked.
    pub(crate) fn wake(&mut self) -> bool {
        self.awoken |= !self.hot;
        !std::mem::replace(&mut self.hot, true)
    }

    /// Adapts the batch size to the last batch of `packets` packets, which took `ticks` ticks. If there were no
    /// packets, the size does not change.
    #[inline]
    pub(crate) fn adapt_batch(&mut self, packets: usize, ticks: u64) {
        if packets > 0 && (ticks > self.batch_ticks || self.batch < BATCH) {
            self.batch = next_batch(self.batch, self.batch_ticks, packets, ticks);
        }
    }

    /// Whether the port delivered packets a short time ago.
    pub(crate) fn is_active(&self, now: Duration) -> bool {
        now.saturating_sub(self.last_received) < QUIET
    }

    /// Whether to receive again in the next turn, given the result of this turn's receive.
    #[inline]
    pub(crate) fn stays_hot(&mut self, received: Received, packets: usize, now: Duration) -> bool {
        if packets > 0 {
            self.last_received = now;
        }
        let is_active = self.is_active(now) && self.io.is_mapped();
        self.hot = is_active || !received.drained || self.io.descriptor().is_none();
        self.hot
    }

    /// Makes epoll watch the port.
    pub(crate) fn watch(&mut self, poller: &Poller) -> io::Result<()> {
        if !self.watched
            && let Some(descriptor) = self.io.descriptor()
        {
            poller.watch(descriptor, self.id)?;
            self.watched = true;
        }
        Ok(())
    }

    /// Stops epoll from watching the port.
    pub(crate) fn unwatch(&mut self, poller: &Poller) -> io::Result<()> {
        if std::mem::take(&mut self.watched)
            && let Some(descriptor) = self.io.descriptor()
        {
            poller.unwatch(descriptor)?;
        }
        Ok(())
    }

    /// Queues a packet that stands for this many packets and bytes on a wire.
    #[inline]
    pub(crate) fn push(&mut self, packet: Packet, segments: u64, bytes: u64) {
        self.further += segments - 1;
        self.bytes += bytes;
        self.queue.push(packet);
    }
}

/// The batch size after a batch of `packets` packets that took `ticks` ticks: halfway to the size that takes
/// `batch_ticks`.
fn next_batch(batch: usize, batch_ticks: u64, packets: usize, ticks: u64) -> usize {
    let fitting = batch_ticks.saturating_mul(packets as u64) / ticks.max(1);
    let fitting = fitting.clamp(1, BATCH as u64) as usize;
    if fitting < batch { batch.midpoint(fitting) } else { (batch + fitting).div_ceil(2) }
}

/// A worker's ports by number.
pub(crate) struct Ports {
    slots: Vec<Option<Slot>>,
    /// The largest number of ticks that a batch takes.
    batch_ticks: u64,
}

impl Default for Ports {
    fn default() -> Self {
        Self { slots: Vec::new(), batch_ticks: BATCH_TICKS }
    }
}

impl Ports {
    /// Adds a port, which epoll does not watch yet.
    pub(crate) fn attach(
        &mut self,
        id: PortId,
        io: Box<dyn PacketIo>,
        counters: Arc<PortCounters>,
    ) -> &mut Slot {
        let at = id.0 as usize;
        if self.slots.len() <= at {
            self.slots.resize_with(at + 1, || None);
        }
        let capabilities = io.capabilities();
        self.slots[at].insert(Slot {
            id,
            io,
            counters,
            hot: true,
            batch: BATCH,
            batch_ticks: self.batch_ticks,
            awoken: false,
            watched: false,
            last_received: Duration::ZERO,
            account: Account::default(),
            budgets: Box::new(Budgets::new()),
            handed_off: 0,
            capabilities,
            queue: Vec::new(),
            further: 0,
            bytes: 0,
        })
    }

    /// Calls `wake` for each mapped port that is not hot, with its account.
    pub(crate) fn wake_mapped(&mut self, mut wake: impl FnMut(PortId, &mut Account)) {
        for (slot, id) in self.slots.iter_mut().zip(0..) {
            if let Some(slot) = slot.as_mut().filter(|slot| slot.io.is_mapped())
                && slot.wake()
            {
                wake(PortId(id), &mut slot.account);
            }
        }
    }

    /// Removes a port. The packets queued on it return to the pool.
    pub(crate) fn detach(&mut self, id: PortId, pool: &mut Pool) -> Option<Slot> {
        let mut slot = self.slots.get_mut(id.0 as usize)?.take()?;
        slot.queue.drain(..).for_each(|packet| pool.put(packet));
        Some(slot)
    }

    /// All ports. The packets that were queued on them are lost.
    pub(crate) fn into_all(self) -> impl Iterator<Item = Box<dyn PacketIo>> {
        self.slots.into_iter().flatten().map(|slot| slot.io)
    }

    /// Sets the largest number of ticks that a batch takes. Each port starts with a full batch again.
    pub(crate) fn set_batch_ticks(&mut self, ticks: u64) {
        self.batch_ticks = ticks;
        for slot in self.slots.iter_mut().flatten() {
            (slot.batch, slot.batch_ticks) = (BATCH, ticks);
        }
    }

    #[inline]
    pub(crate) fn slot(&mut self, id: PortId) -> Option<&mut Slot> {
        self.slots.get_mut(id.0 as usize)?.as_mut()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batches_are_as_large_as_their_time_allows() {
        let parts = [(1000, BATCH), (20, 20), (2, 2), (1, 1)];
        for (cost, expected) in parts.map(|(part, expected)| (BATCH_TICKS / part, expected)) {
            for start in [1, BATCH] {
                let batch = (0..10).fold(start, |batch, _| {
                    next_batch(batch, BATCH_TICKS, batch, cost * batch as u64)
                });
                assert_eq!(batch, expected, "{cost} ticks a packet, from {start}");
            }
        }
    }
}
