//! The ports of a worker: which of them are polled and which epoll watches, and the packets that wait to leave by
//! each.

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

/// A port is watched, and not polled, after it has been quiet for so long.
const QUIET: Duration = Duration::from_millis(1);

/// Packets taken from a port before they are decided and sent: few enough that 64 KiB super-packets stay in the cache.
pub(crate) const BATCH: usize = 32;
/// Ticks that a batch takes at most, some forty microseconds: a port that sends one packet meanwhile waits for it.
pub(crate) const BATCH_TICKS: u64 = 100_000;

/// ICMP errors a second, and at once, that a sender is told (RFC 1812, section 4.3.2.8).
const ERRORS: (u32, u32) = (100, 50);
/// Denied flows of a sender that are reported a second, and at once.
const DENIALS: (u32, u32) = (200, 256);

/// How much the senders behind a port may make the worker say, each sender by itself.
pub(crate) struct Budgets {
    /// Packets that are too big: without these a sender's path MTU is a black hole, so nothing else takes from them.
    pub(crate) too_big: SenderLimit,
    /// Other ICMP errors.
    pub(crate) errors: SenderLimit,
    /// Denied flows that control is told of.
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
    /// May hold packets: receive without asking epoll.
    pub(crate) hot: bool,
    /// Packets that are taken from it at once: as many as take `batch_ticks`, by what the last ones took.
    pub(crate) batch: usize,
    /// Ticks that a batch takes at most.
    batch_ticks: u64,
    /// It was silent until now. Its first packet is taken alone, so that it does not wait for others.
    pub(crate) awoken: bool,
    /// Epoll tells when it is readable.
    pub(crate) watched: bool,
    /// When it last brought something; counts from the worker's start.
    last_received: Duration,
    /// What its packets have cost the worker.
    pub(crate) account: Account,
    pub(crate) budgets: Box<Budgets>,
    /// How many of its packets other workers have.
    pub(crate) handed_off: usize,
    pub(crate) capabilities: Capabilities,
    /// What is sent next.
    pub(crate) queue: Vec<Packet>,
    /// What the queue stands for on a wire: packets beyond one for each of its own, and bytes.
    pub(crate) further: u64,
    pub(crate) bytes: u64,
}

impl Slot {
    /// It may hold packets from now on, after a silence. False: it was known.
    pub(crate) fn wake(&mut self) -> bool {
        self.awoken |= !self.hot;
        !std::mem::replace(&mut self.hot, true)
    }

    /// Fits the batch size to the last batch, of so many packets, which took so many ticks. A batch of no packets
    /// says nothing.
    #[inline]
    pub(crate) fn adapt_batch(&mut self, packets: usize, ticks: u64) {
        if packets > 0 && (ticks > self.batch_ticks || self.batch < BATCH) {
            self.batch = next_batch(self.batch, self.batch_ticks, packets, ticks);
        }
    }

    /// Whether it has brought something not long ago.
    pub(crate) fn is_active(&self, now: Duration) -> bool {
        now.saturating_sub(self.last_received) < QUIET
    }

    /// Whether to receive again in the next turn, after what this one's receive brought.
    #[inline]
    pub(crate) fn stays_hot(&mut self, received: Received, packets: usize, now: Duration) -> bool {
        if packets > 0 {
            self.last_received = now;
        }
        let is_active = self.is_active(now) && self.io.is_mapped();
        self.hot = is_active || !received.drained || self.io.descriptor().is_none();
        self.hot
    }

    /// Has epoll watch it.
    pub(crate) fn watch(&mut self, poller: &Poller) -> io::Result<()> {
        if !self.watched
            && let Some(descriptor) = self.io.descriptor()
        {
            poller.watch(descriptor, self.id)?;
            self.watched = true;
        }
        Ok(())
    }

    /// Has epoll watch it no longer.
    pub(crate) fn unwatch(&mut self, poller: &Poller) -> io::Result<()> {
        if std::mem::take(&mut self.watched)
            && let Some(descriptor) = self.io.descriptor()
        {
            poller.unwatch(descriptor)?;
        }
        Ok(())
    }

    /// Queues a packet that stands for so many packets and bytes on a wire.
    #[inline]
    pub(crate) fn push(&mut self, packet: Packet, segments: u64, bytes: u64) {
        self.further += segments - 1;
        self.bytes += bytes;
        self.queue.push(packet);
    }
}

/// How many packets to take after a batch of so many, which took so many ticks: half of the way to what takes
/// `batch_ticks`.
fn next_batch(batch: usize, batch_ticks: u64, packets: usize, ticks: u64) -> usize {
    let fitting = batch_ticks.saturating_mul(packets as u64) / ticks.max(1);
    let fitting = fitting.clamp(1, BATCH as u64) as usize;
    if fitting < batch { batch.midpoint(fitting) } else { (batch + fitting).div_ceil(2) }
}

/// A worker's ports by number.
pub(crate) struct Ports {
    slots: Vec<Option<Slot>>,
    /// Ticks that a batch takes at most.
    batch_ticks: u64,
}

impl Default for Ports {
    fn default() -> Self {
        Self { slots: Vec::new(), batch_ticks: BATCH_TICKS }
    }
}

impl Ports {
    /// Puts a port in, which epoll does not watch yet.
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

    /// Takes a port out; what was queued on it returns to the pool.
    pub(crate) fn detach(&mut self, id: PortId, pool: &mut Pool) -> Option<Slot> {
        let mut slot = self.slots.get_mut(id.0 as usize)?.take()?;
        slot.queue.drain(..).for_each(|packet| pool.put(packet));
        Some(slot)
    }

    /// Sets how many ticks a batch takes at most; each port begins with a full batch again.
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
