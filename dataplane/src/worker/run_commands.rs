//! Runs a worker's commands: new tables, attached and detached ports, flows of the last process, copies of its flows.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crossbeam::channel::{Sender, TryRecvError};

use super::clock::POLL_EVERY;
use super::commands::{Command, Restoration, Wrap};
use super::turn::Worker;
use crate::counters::PortCounters;
use crate::port::PacketIo;
use crate::port_table::ports::Slot;
use crate::report::Report;
use crate::tables::PortId;

impl Worker {
    /// Runs the commands that the control loop has sent. Returns false if the worker ends. `now` is the same as for
    /// [`Worker::step`]: packets that other workers have handed off are decided before a port is attached.
    #[inline]
    pub fn run_commands(&mut self, now: Duration) -> bool {
        // A test for emptiness costs less than a receive, but only a receive shows that the control loop is gone.
        let is_asked = !self.commands.is_empty() || self.turns.is_multiple_of(POLL_EVERY);
        !is_asked || self.run_queued_commands(now)
    }

    #[inline(never)]
    pub(super) fn run_queued_commands(&mut self, now: Duration) -> bool {
        self.now = now;
        loop {
            match self.commands.try_recv() {
                Err(TryRecvError::Empty) => return true,
                Err(TryRecvError::Disconnected) | Ok(Command::Stop) => return false,
                Ok(Command::Publish(tables)) => {
                    let old = std::mem::replace(&mut self.tables, tables);
                    self.report(Report::Retired(old, Instant::now()));
                }
                Ok(Command::Attach(id, io, counters)) => self.attach(id, io, counters),
                Ok(Command::Detach(id, told)) => {
                    self.detach(id, told);
                }
                Ok(Command::Wrap(id, wrap)) => self.wrap(id, wrap),
                Ok(Command::Restore(pass, all)) => {
                    let Restoration { tables, files, barrier, reply } = &*all;
                    let _ = reply.send(self.pipeline.restore(tables, files, pass, &self.mesh, now));
                    barrier.wait();
                }
                Ok(Command::TellEnds(to)) => self.pipeline.tell_ends(to),
                Ok(Command::Flows(limit, reply)) => {
                    let _ = reply.send(self.pipeline.flows().take(limit).collect());
                }
            }
        }
    }

    pub(super) fn attach(
        &mut self,
        id: PortId,
        io: Box<dyn PacketIo>,
        counters: Arc<PortCounters>,
    ) {
        // The number may have belonged to another port, and packets of that port may still wait in the mailbox.
        self.process_handoffs(self.mesh.pending(), u64::MAX);
        self.start_serving(id, io, counters);
    }

    /// Begins to serve a port.
    pub(super) fn start_serving(
        &mut self,
        id: PortId,
        io: Box<dyn PacketIo>,
        counters: Arc<PortCounters>,
    ) {
        let slot = self.ports.attach(id, io, counters);
        if !slot.io.is_mapped()
            && let Err(error) = slot.watch(&self.poller)
        {
            self.ports.detach(id, &mut self.pool);
            self.report(Report::PortLost(id, error));
            return;
        }
        self.time.join(&mut slot.account);
        self.hot.push(id);
    }

    /// Stops serving a port.
    pub(super) fn stop_serving(&mut self, id: PortId) -> Option<Slot> {
        self.hot.retain(|hot| *hot != id);
        self.awaited.retain(|awaited| *awaited != id);
        let mut slot = self.ports.detach(id, &mut self.pool)?;
        if let Err(error) = slot.unwatch(&self.poller) {
            self.report_poll_error(error);
        }
        Some(slot)
    }

    /// Detaches a port, and drops `told` when the port is closed. Returns false if there is no such port.
    pub(super) fn detach(&mut self, id: PortId, told: Option<Sender<()>>) -> bool {
        self.lost.retain(|(lost, _)| *lost != id);
        let Some(slot) = self.stop_serving(id) else { return false };
        self.closer.close(slot.io, told);
        true
    }

    pub(super) fn wrap(&mut self, id: PortId, wrap: Wrap) {
        if let Some(slot) = self.stop_serving(id) {
            self.start_serving(id, wrap(slot.io), slot.counters);
        }
    }
}
