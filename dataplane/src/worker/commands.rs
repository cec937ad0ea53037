//! The commands by which control speaks with a worker.

use std::sync::Arc;

use crossbeam::channel::Sender;
use mio::Waker;

use crate::counters::PortCounters;
use crate::flow::FlowEntry;
use crate::port::PacketIo;
use crate::tables::{PortId, Tables};

/// Puts a wrapper round a port, or takes it off again.
pub type Wrap = Box<dyn FnOnce(Box<dyn PacketIo>) -> Box<dyn PacketIo> + Send>;

/// What control tells a worker.
pub enum Command {
    /// Judge by these tables from the next batch on.
    Publish(Arc<Tables>),
    /// Serve a port. What comes by it is dropped until tables name it.
    Attach(PortId, Box<dyn PacketIo>, Arc<PortCounters>),
    /// Let go of a port.
    Detach(PortId),
    /// Put something round a port, or take it off again.
    Wrap(PortId, Wrap),
    /// Send a copy of up to this many flows.
    Flows(usize, Sender<Vec<FlowEntry>>),
    /// End.
    Stop,
}

/// The way to tell a worker something; clones reach the same worker.
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
