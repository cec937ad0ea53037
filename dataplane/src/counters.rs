//! Counters: one worker writes them, any thread reads them at any time.
//!
//! A counter has one writer, so adding is a plain load and store, never a locked instruction. A reader may see a value
//! that is one batch old. It never sees an older value after a newer one.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use crate::drop_reason::DropReason;
use crate::flow::RuleCounters;
use crate::policy::NO_SLOT;
use crate::stage::Stage;

/// One counter with a single writer.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Adds `n` to the counter. Only the worker that owns the counter calls this.
    #[inline]
    pub fn add(&self, n: u64) {
        self.0.store(self.0.load(Relaxed).wrapping_add(n), Relaxed);
    }

    /// Sets the value of a gauge. Only the worker that owns the gauge calls this.
    #[inline]
    pub fn set(&self, n: u64) {
        self.0.store(n, Relaxed);
    }

    /// Returns the current value.
    #[inline]
    pub fn read(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

/// One port's traffic. Super-packets count as their segments, as on a wire.
#[derive(Debug, Default)]
pub struct PortCounters {
    /// Packets received.
    pub received_packets: Counter,
    /// Bytes received, from the IP header on.
    pub received_bytes: Counter,
    /// Packets that the device took.
    pub sent_packets: Counter,
    /// Bytes handed to the device, from the (outer) IP header on.
    pub sent_bytes: Counter,
    drops: Drops,
}

/// Drop counters, indexed by reason.
#[derive(Debug)]
struct Drops([Counter; DropReason::ALL.len()]);

impl Default for Drops {
    fn default() -> Self {
        Self(std::array::from_fn(|_| Counter::default()))
    }
}

impl PortCounters {
    /// Packets that arrived at this port and were dropped for `reason`. [`DropReason::TransmitRefused`] counts packets
    /// that were to leave by this port and that its device refused; a super-packet counts as its segments.
    #[inline]
    pub fn dropped(&self, reason: DropReason) -> &Counter {
        &self.drops.0[reason as usize]
    }
}

/// One worker's own figures.
#[derive(Debug, Default)]
pub struct WorkerCounters {
    /// The number of turns (rounds of the worker's loop), with packets or without. A sleeping worker makes one turn per
    /// second.
    pub turns: Counter,
    /// Turns that found packets.
    pub busy_turns: Counter,
    /// The number of times that the worker slept in epoll.
    pub parks: Counter,
    /// Packets handled; a super-packet counts as one.
    pub packets: Counter,
    /// Time-stamp counter cycles spent in turns that found packets.
    pub busy_cycles: Counter,
    /// Packets that this worker handed off, because another worker has their flow.
    pub handoffs: Counter,
    /// Packets handed off to this worker that it dropped, because it does not have their port, or no longer has it.
    pub portless: Counter,
    /// Flows in the table now.
    pub flows: Counter,
    /// The number of live flows that were evicted to make room. Expired flows do not count.
    pub evictions: Counter,
    /// The number of denied flows that were not reported because the reader was behind.
    pub reports_lost: Counter,
    /// Packets, counted at the slot of the rule that decided them.
    pub rules: SlotCounters,
    /// Cycles by stage, counted while measuring is enabled.
    pub stages: StageCounters,
}

/// Cycles of a worker by stage, counted while measuring is enabled. Cycles outside of the stages are not counted.
#[derive(Debug, Default)]
pub struct StageCounters {
    is_enabled: AtomicBool,
    cycles: [Counter; Stage::ALL.len()],
}

impl StageCounters {
    /// Starts or ends measuring with the worker's next batch.
    pub fn enable(&self, is_enabled: bool) {
        self.is_enabled.store(is_enabled, Relaxed);
    }

    #[inline]
    pub(crate) fn is_enabled(&self) -> bool {
        self.is_enabled.load(Relaxed)
    }

    /// Adds ticks to a stage. Only the worker that owns the counters calls this.
    pub(crate) fn add(&self, stage: Stage, ticks: u64) {
        self.cycles[stage as usize].add(ticks);
    }

    /// The [ticks](crate::sys::clock::ticks) that a stage has taken so far.
    pub fn read(&self, stage: Stage) -> u64 {
        self.cycles[stage as usize].read()
    }
}

const CHUNK: usize = 1024;
const CHUNKS: usize = 4096;

/// A counter for every slot in a classifier image (a rule, or the lack of one). The control loop adds up a slot's count
/// before it gives the slot to another rule, so a counter survives every recompilation. Memory is allocated in chunks,
/// when a slot of a chunk is first counted.
#[derive(Debug)]
pub struct SlotCounters(Box<[OnceLock<Box<[Counter]>>]>);

impl Default for SlotCounters {
    fn default() -> Self {
        Self((0..CHUNKS).map(|_| OnceLock::new()).collect())
    }
}

impl SlotCounters {
    /// Adds `n` to a slot. Slots past the last chunk (four million) are not counted.
    #[inline]
    pub fn add(&self, slot: u32, n: u64) {
        if let Some(chunk) = self.0.get(slot as usize / CHUNK) {
            let chunk = chunk.get_or_init(|| (0..CHUNK).map(|_| Counter::default()).collect());
            chunk[slot as usize % CHUNK].add(n);
        }
    }

    /// Counts `packets` at the rules that decided them.
    #[inline]
    pub fn decided(&self, rules: RuleCounters, packets: u64) {
        for slot in [rules.egress, rules.ingress] {
            if slot != NO_SLOT {
                self.add(slot, packets);
            }
        }
    }

    /// Returns the count of a slot.
    pub fn read(&self, slot: u32) -> u64 {
        let chunk = self.0.get(slot as usize / CHUNK).and_then(OnceLock::get);
        chunk.map_or(0, |chunk| chunk[slot as usize % CHUNK].read())
    }
}

/// Consecutive packets that the same rules decided and that are not counted yet.
#[derive(Debug, Default)]
pub struct Tally {
    rules: RuleCounters,
    packets: u64,
}

impl Tally {
    /// Adds packets that these rules decided. If the packets that were added before were decided by other rules, those
    /// packets are counted first.
    #[inline]
    pub fn add(&mut self, counters: &SlotCounters, rules: RuleCounters, packets: u64) {
        if rules != self.rules {
            if self.packets > 0 {
                self.count(counters);
            }
            self.rules = rules;
        }
        self.packets += packets;
    }

    /// Counts the packets that have been added.
    #[inline(never)]
    pub fn count(&mut self, counters: &SlotCounters) {
        let packets = std::mem::take(&mut self.packets);
        if packets > 0 {
            counters.decided(self.rules, packets);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_keeps_its_count_and_others_stay_zero() {
        let counters = SlotCounters::default();
        counters.add(5, 2);
        counters.add(5, 3);
        counters.add(CHUNK as u32 * 7 + 1, 9);
        counters.add(u32::MAX, 1);
        assert_eq!(
            (counters.read(5), counters.read(6), counters.read(CHUNK as u32 * 7 + 1)),
            (5, 0, 9)
        );
        assert_eq!(counters.read(u32::MAX), 0);
    }
}
