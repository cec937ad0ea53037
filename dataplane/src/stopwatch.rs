//! Measures the cycles that each stage of a batch takes. It measures only while a reader asks for it, because reading
//! the cycle counter twice per stage costs as much as a packet.

use std::sync::Arc;

use crate::counters::WorkerCounters;
use crate::stage::Stage;
use crate::sys::clock::ticks;

/// A worker's stopwatch, which adds the cycles of each stage to the worker's counters.
pub(crate) struct Stopwatch {
    counters: Arc<WorkerCounters>,
    /// The time when the previous stage ended, if a reader asks for the figures.
    last: Option<u64>,
}

impl Stopwatch {
    pub(crate) const fn new(counters: Arc<WorkerCounters>) -> Self {
        Self { counters, last: None }
    }

    /// Starts to measure a batch.
    #[inline]
    pub(crate) fn start(&mut self) {
        self.last = self.counters.stages.is_enabled().then(ticks);
    }

    /// Ends a stage: the cycles since the previous stage, or since the start, are counted for it.
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
        self.counters.stages.add(stage, spent);
    }
}
