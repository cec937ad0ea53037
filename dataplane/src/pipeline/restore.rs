//! Restores flows of the last process: a worker reads their records and opens those again that its tables allow.
//!
//! There is a file of records for each worker of the last process. The number of workers may be different now. Each
//! worker first reads the files whose number, modulo the number of workers now, is its own. Two flows of different
//! files may now share a shard. Then the worker that comes second does not restore its flow. So after all workers have
//! done this, each worker also reads the other files and restores the flows in its own shards.

use std::io;
use std::iter::Sum;
use std::time::Duration;

use super::handoff::WorkerMesh;
use super::passes::Pipeline;
use crate::decide::{self, RestoreOutcome};
use crate::flow::FlowRecordFile;
use crate::tables::Tables;

/// The numbers of flows of the agent's last process, by outcome.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Restored {
    /// Flows that continue.
    pub flows: usize,
    /// Flows that the tables do not allow, whose ends have changed, or whose timeout has passed.
    pub ended: usize,
    /// Records that no table can have written.
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

/// The record files that a worker reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RestorePass {
    /// The worker's own files.
    Own,
    /// The files of the other workers, after each worker has read its own.
    Others,
}

impl RestorePass {
    /// Both passes, in order.
    pub const ALL: [Self; 2] = [Self::Own, Self::Others];
}

impl Pipeline {
    /// Restores the flows that belong to this worker. `files` are the files of all workers of the last process, in
    /// order.
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
