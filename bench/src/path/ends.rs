//! The two ends of a path, and the trait of all paths.

use std::fmt::Debug;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;

use tempfile::TempDir;

use super::constants::PORT;
use super::way::Way;
use crate::error::Error;
use crate::host::process::Process;

/// One end of a path.
#[derive(Debug)]
pub struct PathEnd {
    /// The network namespace in which its sockets are opened.
    pub netns: OwnedFd,
    pub address: IpAddr,
}

/// Both ends of a path.
#[derive(Debug)]
pub struct PathEnds {
    /// The end that sends.
    pub sender: PathEnd,
    /// The end that receives.
    pub receiver: PathEnd,
    /// The address and port to which the sender sends. They lead to [`PORT`] of the receiver.
    pub target: SocketAddr,
}

impl PathEnds {
    /// Creates two ends. The sender sends to the receiver's own address.
    pub const fn new(sender: PathEnd, receiver: PathEnd) -> Self {
        let target = SocketAddr::new(receiver.address, PORT);
        Self { sender, receiver, target }
    }

    /// The same ends, but the sender sends to the Service of this way, if the way has one.
    #[must_use]
    pub fn by(self, way: Way) -> Self {
        let target = way.service().unwrap_or(self.target);
        Self { target, ..self }
    }

    /// The address and port to which the receiver's sockets are bound.
    pub const fn bound(&self) -> SocketAddr {
        SocketAddr::new(self.receiver.address, PORT)
    }
}

/// Two ends, and everything that carries packets between them. It is removed when this value is dropped.
pub trait Path: Debug {
    fn ends(&self) -> &PathEnds;

    /// Lets the processes that carry the path run, or halts them so that they take no time from another measurement.
    ///
    /// # Errors
    /// Returns an error if a process has ended.
    fn set_running(&self, running: bool) -> Result<(), Error>;
}

/// A path that the kernel carries. It has no processes, so it always runs.
#[derive(Debug)]
pub struct KernelPath {
    pub ends: PathEnds,
    /// The namespaces between the ends. They live as long as the path.
    pub between: Vec<OwnedFd>,
}

impl Path for KernelPath {
    fn ends(&self) -> &PathEnds {
        &self.ends
    }

    fn set_running(&self, _: bool) -> Result<(), Error> {
        Ok(())
    }
}

/// A path that is carried by processes.
#[derive(Debug)]
pub struct ProcessPath {
    pub ends: PathEnds,
    pub processes: Vec<Process>,
    /// The folder of their files and of the names of their namespaces.
    pub folder: TempDir,
}

impl Path for ProcessPath {
    fn ends(&self) -> &PathEnds {
        &self.ends
    }

    fn set_running(&self, running: bool) -> Result<(), Error> {
        self.processes.iter().try_for_each(|process| process.set_running(running))
    }
}
