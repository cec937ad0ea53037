//! Flows of the last process: a worker reads their records and opens those again that its tables allow.
//!
//! There is a file of records for each worker of the last process, and perhaps another number of workers now. Each
//! worker first takes the files that are its own. Two flows of different files may share a shard now, and then the
//! worker that came second leaves its flow. So each worker reads the other files, too, after its own, and takes what
//! lies in its shards: no flow is left out.

use std::io;
use std::iter::Sum;
use std::time::Duration;

use super::handoff::WorkerMesh;
use super::passes::Pipeline;
use crate::decide::{self, Restored as Outcome};
use crate::flow::FlowRecordFile;
use crate::tables::Tables;

/// What has become of flows of the last process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Restored {
    /// They go on.
    pub flows: usize,
    /// The tables do not allow them, their ends are not where they were, or their time is over.
    pub ended: usize,
    /// Records that no table writes.
    pub spoiled: usize,
}

impl Sum for Restored {
    fn sum<I: Iterator<Item = Self>>(all: I) -> Self {
        all.fold(Self::default(), |sum, it| Self {
            flows: sum.flows + it.flows,
            ended: sum.ended + it.ended,
            spoiled: sum.spoiled + it.spoiled,
        })
    }
}

impl Pipeline {
    /// Opens the flows again that belong to this worker. `files` are those of all workers of the last process, in order.
    pub(crate) fn restore(
        &mut self,
        tables: &Tables,
        files: &[FlowRecordFile],
        mesh: &WorkerMesh,
        now: Duration,
    ) -> io::Result<Restored> {
        let (own, workers) = (usize::from(mesh.own().0), usize::from(mesh.next_worker().1) + 1);
        let slots = self.state.flows.capacity();
        let now = now.as_secs() as u32;
        let mut restored = Restored::default();
        for is_own in [true, false] {
            for (number, file) in files.iter().enumerate() {
                if (number % workers == own) != is_own {
                    continue;
                }
                let spoiled = file.read(slots, |record| {
                    match decide::restore(tables, &mut self.state, &record, is_own, now) {
                        Outcome::Here => restored.flows += 1,
                        Outcome::Ended if is_own => restored.ended += 1,
                        Outcome::Ended | Outcome::Elsewhere => {}
                    }
                })?;
                restored.spoiled += if is_own { spoiled } else { 0 };
            }
        }
        self.counters.flows.set(self.state.flows.len() as u64);
        self.counters.evictions.set(self.state.evictions);
        Ok(restored)
    }
}
