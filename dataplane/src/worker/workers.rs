//! All workers of a node. Each has a queue of every port, all get the same commands, and their counters are summed up.

use std::io;
use std::sync::{Arc, Barrier};

use crossbeam::channel::{Receiver, Sender, unbounded};

use super::closer::{Closer, Closing};
use super::commands::{Command, Restoration};
use super::settings::{Settings, SharedState};
use super::thread::{Handle, spawn};
use crate::counters::{PortCounters, WorkerCounters};
use crate::flow::{FlowEntry, FlowRecordFile};
use crate::pipeline::{RestorePass, Restored};
use crate::port::PacketIo;
use crate::report::Report;
use crate::tables::{PortId, Tables};

/// The workers of a node, at least one. Dropping them ends them, and closes their ports.
pub struct Workers {
    handles: Vec<Handle>,
    /// It is dropped after the workers, because they give it their ports.
    _closing: Closing,
}

impl Workers {
    /// Starts a worker for each of `cores`. Each is pinned to its core unless that is `None`. They wait for
    /// [`Workers::begin`]. The errors are those of [`spawn`].
    pub fn spawn(
        settings: Settings,
        cores: &[Option<usize>],
        reports: &Sender<Report>,
    ) -> io::Result<Self> {
        let shares = SharedState::for_workers(cores.len(), settings.sizes)?;
        // Only the workers have handles of the thread, and they drop them when they end.
        let (closer, closing) = Closer::start()?;
        let workers =
            shares.into_iter().zip(cores).enumerate().map(move |(number, (share, core))| {
                let settings = Settings { core: *core, ..settings };
                let share = SharedState { closer: closer.clone(), ..share };
                spawn(&format!("worker-{number}"), settings, share, reports.clone())
            });
        let handles = workers.collect::<io::Result<_>>()?;
        Ok(Self { handles, _closing: closing })
    }

    /// Lets the workers run. Each first runs the commands that were sent so far.
    pub fn begin(&mut self) {
        self.handles.iter_mut().for_each(Handle::begin);
    }

    /// The number of workers.
    #[expect(clippy::len_without_is_empty, reason = "there is at least one")]
    pub fn len(&self) -> usize {
        self.handles.len()
    }

    /// The workers in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &Handle> {
        self.handles.iter()
    }

    /// Whether all workers run.
    pub fn are_alive(&self) -> bool {
        self.iter().all(Handle::is_alive)
    }

    /// Sends a command to each worker. Returns false if a worker is gone; then the workers after it get no command.
    pub fn send_all(&self, mut command: impl FnMut() -> Command) -> bool {
        self.iter().all(|worker| worker.commands().send(command()))
    }

    /// Publishes tables to all workers; each uses them from its next batch on. Returns false as [`Workers::send_all`]
    /// does.
    pub fn publish(&self, tables: &Arc<Tables>) -> bool {
        self.send_all(|| Command::Publish(Arc::clone(tables)))
    }

    /// Gives each worker its queue of a port; there are as many queues as workers. Returns the counters of each queue,
    /// or `None` if a worker is gone.
    pub fn attach(
        &self,
        id: PortId,
        queues: Vec<Box<dyn PacketIo>>,
    ) -> Option<Vec<Arc<PortCounters>>> {
        debug_assert_eq!(queues.len(), self.len());
        let attach = |(worker, queue): (&Handle, _)| {
            let counters = Arc::new(PortCounters::default());
            let command = Command::Attach(id, queue, Arc::clone(&counters));
            worker.commands().send(command).then_some(counters)
        };
        self.iter().zip(queues).map(attach).collect()
    }

    /// The sum of a counter over all workers.
    pub fn sum(&self, figure: impl Fn(&WorkerCounters) -> u64) -> u64 {
        self.iter().map(|worker| figure(worker.counters())).sum()
    }

    /// The count of a rule's slot, summed over all workers.
    pub fn rule_count(&self, slot: u32) -> u64 {
        self.sum(|counters| counters.rules.read(slot))
    }

    /// Makes the workers restore the flows of the last process that these tables allow. The tables are not published
    /// here, and should be published next. Returns the outcome of the flows: [`RestorePass::ALL`] answers from each
    /// worker. If there are fewer answers, a worker is gone.
    pub fn restore(
        &self,
        tables: &Arc<Tables>,
        files: Vec<FlowRecordFile>,
    ) -> Receiver<io::Result<Restored>> {
        let (reply, restored) = unbounded();
        let (tables, barrier) = (Arc::clone(tables), Barrier::new(self.len()));
        let all = Arc::new(Restoration { tables, files, barrier, reply });
        for pass in RestorePass::ALL {
            self.send_all(|| Command::Restore(pass, Arc::clone(&all)));
        }
        restored
    }

    /// Makes each worker send copies of up to `limit` flows.
    pub fn flows(&self, limit: usize, reply: &Sender<Vec<FlowEntry>>) {
        self.send_all(|| Command::Flows(limit, reply.clone()));
    }
}
