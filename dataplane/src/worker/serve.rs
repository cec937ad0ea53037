//! Serves one port: receives a batch, takes it through the pipeline, sends, and charges the port for the time.

use super::turn::{Served, Worker};
use crate::drop_reason::DropReason;
use crate::pipeline::Context;
use crate::port_table::ports::BATCH;
use crate::stage::Stage;
use crate::sys;
use crate::tables::PortId;

/// The number of packets that are taken from a port that was silent: the first packet must not wait for the receive of
/// a second one.
pub(super) const FIRST_BATCH: usize = 1;

impl Worker {
    /// Serves one port: receives, decides, sends. Packets that other workers have handed off are processed in the same
    /// batch.
    #[inline(always)]
    #[expect(
        clippy::inline_always,
        reason = "a turn with one packet is to cost little more than the packet"
    )]
    pub(super) fn serve(&mut self, id: PortId) -> Served {
        let Some(slot) = self.ports.slot(id) else { return Served::GONE };
        let most = if std::mem::take(&mut slot.awoken) { FIRST_BATCH } else { slot.batch };
        let received = match slot.io.receive(&mut self.pool, &mut self.batch, most) {
            Ok(received) => received,
            Err(error) => {
                slot.hot = false;
                self.lost.push((id, error));
                // The port's packets must not be decided as packets of another port.
                self.batch.drain(..).for_each(|packet| self.pool.put(packet));
                return Served::GONE;
            }
        };
        let stays_hot = slot.stays_hot(received, self.batch.len(), self.now);
        if !stays_hot && let Err(error) = slot.watch(&self.poller) {
            self.lost.push((id, error));
        }
        for (packets, reason) in
            [(received.malformed, DropReason::Malformed), (received.not_ours, DropReason::NotOurs)]
        {
            if packets > 0 {
                slot.counters.received_packets.add(packets as u64);
                slot.counters.dropped(reason).add(packets as u64);
            }
        }
        let kept_back = received.malformed + received.not_ours + received.answered;
        if self.batch.is_empty() {
            let brought = kept_back > 0;
            if !brought {
                self.time.join(&mut slot.account);
            }
            return Served { found: 0, timed: kept_back, brought, stays_hot };
        }
        let own = self.batch.len();
        let found = self.process_batch(Some(id), BATCH, kept_back);
        // If the batch contained packets that other workers have handed off, its time is already charged.
        let timed = if found == own { own + kept_back } else { 0 };
        Served { found, timed, brought: true, stays_hot }
    }

    /// Decides up to `limit` packets that other workers have handed off, for up to `ticks` ticks. Returns the number of
    /// packets that it decided.
    pub(super) fn process_handoffs(&mut self, limit: usize, ticks: u64) -> usize {
        if self.mesh.pending() == 0 {
            return 0;
        }
        let began = self.charge();
        let mut found = 0;
        while found < limit && self.charged.wrapping_sub(began) < ticks {
            match self.process_batch(None, (limit - found).min(BATCH), 0) {
                0 => break,
                taken => found += taken,
            }
        }
        found
    }

    /// Takes the batch of the port `from` through the pipeline and sends. `from` is `None` if the batch is empty. Up to
    /// `limit` packets that other workers have handed off are added. Returns the total number of packets. `kept_back`
    /// is the number of frames that the port dropped or answered itself.
    pub(super) fn process_batch(
        &mut self,
        from: Option<PortId>,
        limit: usize,
        kept_back: usize,
    ) -> usize {
        self.watch.start();
        let mut context = Context {
            tables: &self.tables,
            ports: &mut self.ports,
            outbox: &mut self.outbox,
            pool: &mut self.pool,
            mesh: &self.mesh,
            lost: &mut self.lost,
            watch: &mut self.watch,
            now: self.now,
        };
        let own = self.batch.len();
        let handoffs = self.pipeline.process(&mut context, &mut self.batch, from, limit);
        let found = own + handoffs;
        if found > 0 {
            self.outbox.send(&mut self.ports, &mut self.pool, &mut self.lost);
            self.watch.lap(Stage::Send);
        }
        if handoffs > 0 {
            self.charge_each(from, found, kept_back);
        }
        found
    }

    /// Charges the port that was served last for the time since the last charge. Returns the tick of this charge.
    #[inline]
    pub(super) fn charge(&mut self) -> u64 {
        let spent = self.take_ticks();
        if let Some((id, packets)) = self.uncharged.take() {
            self.counters.busy_cycles.add(spent);
            if let Some(slot) = self.ports.slot(id) {
                slot.account.charge(spent);
                slot.adapt_batch(packets, spent);
            }
        }
        self.charged
    }

    /// Returns the ticks since the last call.
    #[inline]
    pub(super) fn take_ticks(&mut self) -> u64 {
        let now = match self.fixed_charge {
            None => sys::clock::ticks(),
            Some(ticks) => self.charged.wrapping_add(ticks),
        };
        now.wrapping_sub(std::mem::replace(&mut self.charged, now))
    }

    /// Charges the ports of a batch that has packets handed off by other workers. Each port pays in proportion to the
    /// packets on a wire that arrived at it.
    #[inline(never)]
    pub(super) fn charge_each(&mut self, from: Option<PortId>, found: usize, kept_back: usize) {
        let spent = self.take_ticks();
        self.counters.busy_cycles.add(spent);
        if let Some(slot) = from.and_then(|port| self.ports.slot(port)) {
            slot.adapt_batch(found + kept_back, spent);
        }
        // Packets that were refused before they were parsed most likely arrived at the batch's own port.
        let refused = found.saturating_sub(self.pipeline.packets_by_port().count());
        let besides = from.map(|port| (port, (refused + kept_back) as u64));
        let brought = self.pipeline.packets_by_port().chain(besides);
        let all = brought.clone().map(|(_, packets)| packets).sum::<u64>().max(1);
        for (port, packets) in brought {
            if let Some(slot) = self.ports.slot(port) {
                self.time.join(&mut slot.account);
                slot.account.charge(spent * packets / all);
            }
        }
    }
}
