//! The commands that the control loop sends to a worker.

use std::io;
use std::sync::{Arc, Barrier};

use crossbeam::channel::Sender;
use mio::Waker;

use crate::counters::PortCounters;
use crate::flow::{FlowEnd, FlowEntry, FlowRecordFile};
use crate::pipeline::{RestorePass, Restored};
use crate::port::PacketIo;
use crate::tables::{PortId, Tables};

/// Puts a wrapper around a port, or removes it.
pub type Wrap = Box<dyn FnOnce(Box<dyn PacketIo>) -> Box<dyn PacketIo> + Send>;

/// A command of the control loop to a worker.
pub enum Command {
    /// Use these tables from the next batch on.
    Publish(Arc<Tables>),
    /// Serve a port. Packets from it are dropped until tables contain the port.
    Attach(PortId, Box<dyn PacketIo>, Arc<PortCounters>),
    /// Detach a port. The sender is dropped when the port is closed.
    Detach(PortId, Option<Sender<()>>),
    /// Put a wrapper around a port, or remove it.
    Wrap(PortId, Wrap),
    /// Send a copy of up to this many flows.
    Flows(usize, Sender<Vec<FlowEntry>>),
    /// Report the end of each allowed flow, until the receiver is dropped or another one is set.
    TellEnds(Sender<FlowEnd>),
    /// Open flows of the last process again, and wait until every worker has done so.
    Restore(RestorePass, Arc<Restoration>),
    /// End the worker.
    Stop,
}

/// The flows of the last process, which all workers open again before one of them handles a packet.
pub struct Restoration {
    /// The tables that judge the flows. They are published afterwards, so no packet comes in between.
    pub tables: Arc<Tables>,
    /// The files of all workers of the last process, in order.
    pub files: Vec<FlowRecordFile>,
    /// The barrier where the workers wait for each other.
    pub barrier: Barrier,
    /// The sender for the numbers of flows: each worker sends its numbers after each pass.
    pub reply: Sender<io::Result<Restored>>,
}

/// A sender of commands to a worker; its clones send to the same worker.
#[derive(Clone)]
pub struct Commands {
    pub(super) queue: Sender<Command>,
    pub(super) waker: Arc<Waker>,
}

impl Commands {
    /// Sends a command. Returns false if the worker is gone.
    pub fn send(&self, command: Command) -> bool {
        self.queue.send(command).is_ok() && self.waker.wake().is_ok()
    }
}
