//! The commands that control sends to a worker.

use std::io;
use std::sync::{Arc, Barrier};

use crossbeam::channel::Sender;
use mio::Waker;

use crate::counters::PortCounters;
use crate::flow::{FlowEnd, FlowEntry, FlowRecordFile};
use crate::pipeline::{RestorePass, Restored};
use crate::port::PacketIo;
use crate::tables::{PortId, Tables};

/// Puts a wrapper round a port, or removes it.
pub type Wrap = Box<dyn FnOnce(Box<dyn PacketIo>) -> Box<dyn PacketIo> + Send>;

/// A command of control to a worker.
pub enum Command {
    /// Decide by these tables from the next batch on.
    Publish(Arc<Tables>),
    /// Serve a port. Packets that come by it are dropped until tables name it.
    Attach(PortId, Box<dyn PacketIo>, Arc<PortCounters>),
    /// Detach a port. The sender is dropped when it is closed.
    Detach(PortId, Option<Sender<()>>),
    /// Put a wrapper round a port, or remove it.
    Wrap(PortId, Wrap),
    /// Send a copy of up to this many flows.
    Flows(usize, Sender<Vec<FlowEntry>>),
    /// Tell of the end of each allowed flow, until the receiver is dropped or another one is named.
    TellEnds(Sender<FlowEnd>),
    /// Open flows of the last process again, and wait until every worker has done so.
    Restore(RestorePass, Arc<Restoration>),
    /// End.
    Stop,
}

/// The flows of the last process, which all workers open again before one of them handles a packet.
pub struct Restoration {
    /// The tables that judge the flows. They are published afterwards, so no packet comes in between.
    pub tables: Arc<Tables>,
    /// The files of all workers of the last process, in order.
    pub files: Vec<FlowRecordFile>,
    /// The workers wait here for each other.
    pub barrier: Barrier,
    /// Each worker sends its numbers of flows here after each pass.
    pub reply: Sender<io::Result<Restored>>,
}

/// Sends commands to a worker; clones send to the same worker.
#[derive(Clone)]
pub struct Commands {
    pub(super) queue: Sender<Command>,
    pub(super) waker: Arc<Waker>,
}

impl Commands {
    /// Sends a command. False: the worker is gone.
    pub fn send(&self, command: Command) -> bool {
        self.queue.send(command).is_ok() && self.waker.wake().is_ok()
    }
}
