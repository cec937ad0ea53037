//! What each stage of a batch takes, measured only where somebody asks: two readings of the cycle counter a stage are as dear as
//! a packet.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use crate::counters::{Counter, WorkerCounters};
use crate::sys::clock::ticks;

/// A stage that a batch passes through, when a port has brought it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// Out of the tunnels.
    Decapsulate,
    /// Headers read, flows named, their buckets asked for.
    Read,
    /// Where the flows are; the first of them asked for.
    Guess,
    /// Decided, changed, and into the queue of its port.
    Forward,
    /// Into the ports.
    Send,
}

impl Stage {
    /// All, in the order of a batch.
    pub const ALL: [Self; 5] =
        [Self::Decapsulate, Self::Read, Self::Guess, Self::Forward, Self::Send];

    /// What it is called.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Decapsulate => "unwrap",
            Self::Read => "read",
            Self::Guess => "guess",
            Self::Forward => "forward",
            Self::Send => "send",
        }
    }
}

/// Cycles of a worker by stage, while they are asked for. What a batch takes outside of them is nobody's.
#[derive(Debug, Default)]
pub struct StageCounters {
    is_enabled: AtomicBool,
    cycles: [Counter; Stage::ALL.len()],
}

impl StageCounters {
    /// From the worker's next batch on they are measured, or not any more.
    pub fn enable(&self, is_enabled: bool) {
        self.is_enabled.store(is_enabled, Relaxed);
    }

    /// [Ticks](ticks) until now.
    pub fn read(&self, stage: Stage) -> u64 {
        self.cycles[stage as usize].read()
    }
}

/// A worker's: tells its stages' cycles apart.
pub(crate) struct Stopwatch {
    counters: Arc<WorkerCounters>,
    /// When the stage before ended, if somebody asks.
    last: Option<u64>,
}

impl Stopwatch {
    pub(crate) const fn new(counters: Arc<WorkerCounters>) -> Self {
        Self { counters, last: None }
    }

    /// A batch begins.
    #[inline]
    pub(crate) fn start(&mut self) {
        self.last = self.counters.stages.is_enabled.load(Relaxed).then(ticks);
    }

    /// What has passed since the last stage, or since the start, is this one's.
    #[inline]
    pub(crate) fn lap(&mut self, stage: Stage) {
        if self.last.is_some() {
            self.note(stage);
        }
    }

    #[cold]
    #[inline(never)]
    fn note(&mut self, stage: Stage) {
        let now = ticks();
        let spent = now.wrapping_sub(self.last.replace(now).unwrap_or(now));
        self.counters.stages.cycles[stage as usize].add(spent);
    }
}
