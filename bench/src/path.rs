//! Two ends that can reach each other.

use std::net::IpAddr;
use std::os::fd::OwnedFd;

use crate::agents::Cluster;

/// One end of a path.
#[derive(Debug)]
pub struct End {
    /// The network namespace in which its sockets are opened.
    pub netns: OwnedFd,
    /// Its address.
    pub address: IpAddr,
}

/// What lies between the ends, and is held as long as the path.
#[derive(Debug)]
pub enum Between {
    /// A namespace that forwards, between two veth pairs.
    KernelRouting(OwnedFd),
    /// A VXLAN device in each of the ends themselves, over a veth pair.
    KernelVxlan,
    /// Node agents that hold the ends as their pods.
    Manx(Box<Cluster>),
}

/// Two ends, and what lies between them.
#[derive(Debug)]
pub struct Path {
    /// Where traffic starts.
    pub from: End,
    /// Where it goes.
    pub to: End,
    /// What carries it.
    pub between: Between,
}
