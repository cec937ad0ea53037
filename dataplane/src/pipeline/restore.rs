//! Flows of the last process: a worker reads their records and opens those again that its tables allow.
//!
//! There is a file of records for each worker of the last process, and perhaps another number of workers now. Each
//! worker first takes the files that are its own. Two flows of different files may share a shard now, and then the
//! worker that comes second leaves its flow. So when all workers have done this, each reads the other files, too, and
//! takes what lies in its shards.

use std::io;
use std::iter::Sum;
use std::time::Duration;

use super::handoff::WorkerMesh;
use super::passes::Pipeline;
use crate::decide::{self, RestoreOutcome};
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

/// Which files of records a worker reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RestorePass {
    /// Its own.
    Own,
    /// Those of the other workers, when each has read its own.
    Others,
}

impl RestorePass {
    /// Both, in order.
    pub const ALL: [Self; 2] = [Self::Own, Self::Others];
}

impl Pipeline {
    /// Opens the flows again that belong to this worker. `files` are those of all workers of the last process, in order.
    pub(crate) fn restore(
        &mut self,
        tables: &Tables,
        files: &[FlowRecordFile],
        pass: RestorePass,
        mesh: &WorkerMesh,
        now: Duration,
    ) -> io::Result<Restored> {
        let (own, workers) = (usize::from(mesh.own().0), usize::from(mesh.next_worker().1) + 1);
        let slots = self.state.flows.capacity();
        let now = now.as_secs() as u32;
        let mut restored = Restored::default();
        let is_own = pass == RestorePass::Own;
        for (number, file) in files.iter().enumerate() {
            if (number % workers == own) != is_own {
                continue;
            }
            let spoiled = file.read(slots, |record| {
                match decide::restore(tables, &mut self.state, &record, is_own, now) {
                    RestoreOutcome::Here => restored.flows += 1,
                    RestoreOutcome::Ended if is_own => restored.ended += 1,
                    RestoreOutcome::Ended | RestoreOutcome::Elsewhere => {}
                }
            })?;
            restored.spoiled += if is_own { spoiled } else { 0 };
        }
        self.counters.flows.set(self.state.flows.len() as u64);
        self.counters.evictions.set(self.state.evictions);
        Ok(restored)
    }
}
