//! Finds the ports to poll: hot ports without epoll, other ports when epoll reports them. It sleeps when nothing
//! arrives.
//!
//! Readiness is edge-triggered (mio), so a port that becomes ready stays hot until a receive has drained it. The cost
//! of a turn depends on the number of active ports, not on the number of attached ones.

use std::io;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::time::Duration;

use mio::unix::SourceFd;
use mio::{Events, Interest, Poll, Token, Waker};

use crate::tables::PortId;

const WAKE: Token = Token(usize::MAX);
const EVENTS: usize = 256;

/// An epoll instance over a worker's ports.
pub struct Poller {
    poll: Poll,
    events: Events,
    waker: Arc<Waker>,
}

impl Poller {
    /// Creates an instance without ports.
    pub fn new() -> io::Result<Self> {
        let poll = Poll::new()?;
        let waker = Arc::new(Waker::new(poll.registry(), WAKE)?);
        Ok(Self { poll, events: Events::with_capacity(EVENTS), waker })
    }

    /// Ends a sleep from another thread.
    pub fn waker(&self) -> Arc<Waker> {
        Arc::clone(&self.waker)
    }

    /// Begins to watch a port's descriptor.
    pub fn watch(&self, descriptor: RawFd, port: PortId) -> io::Result<()> {
        self.poll.registry().register(
            &mut SourceFd(&descriptor),
            Token(port.0 as usize),
            Interest::READABLE,
        )
    }

    /// Stops watching a descriptor.
    pub fn unwatch(&self, descriptor: RawFd) -> io::Result<()> {
        self.poll.registry().deregister(&mut SourceFd(&descriptor))
    }

    /// Waits up to `timeout` (zero: not at all), and calls `ready` for each port that has become readable.
    pub fn wait(&mut self, timeout: Duration, mut ready: impl FnMut(PortId)) -> io::Result<()> {
        match self.poll.poll(&mut self.events, Some(timeout)) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => return Ok(()),
            other => other?,
        }
        for event in &self.events {
            if event.token() != WAKE {
                ready(PortId(event.token().0 as u16));
            }
        }
        Ok(())
    }
}
