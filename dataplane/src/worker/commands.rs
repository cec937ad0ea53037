//! The commands that control sends to a worker.

use std::io;
use std::sync::Arc;

use crossbeam::channel::Sender;
use mio::Waker;

use crate::counters::PortCounters;
use crate::flow::{FlowEntry, FlowRecordFile};
use crate::pipeline::Restored;
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
    /// Detach a port.
    Detach(PortId),
    /// Put a wrapper round a port, or remove it.
    Wrap(PortId, Wrap),
    /// Send a copy of up to this many flows.
    Flows(usize, Sender<Vec<FlowEntry>>),
    /// Open the flows of the last process again that the tables in use allow, and send how many there were. The files
    /// are those of all its workers, in order.
    Restore(Arc<[FlowRecordFile]>, Sender<io::Result<Restored>>),
    /// End.
    Stop,
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
