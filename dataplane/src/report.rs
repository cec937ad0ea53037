//! Reports of a worker to the control loop.

use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Instant;

use crate::drop_reason::DropReason;
use crate::flow::Owner;
use crate::tables::{PortId, Tables};

/// The first packet of a flow that was denied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Denied {
    /// Source address.
    pub source: IpAddr,
    /// Destination address.
    pub destination: IpAddr,
    /// IP protocol number.
    pub protocol: u8,
    /// Source port, or 0.
    pub source_port: u16,
    /// Destination port, or 0.
    pub destination_port: u16,
    /// The reason why it was denied.
    pub reason: DropReason,
    /// Counter slot of the rule that decided, or [`crate::policy::NO_SLOT`].
    pub slot: u32,
}

/// A new masqueraded flow for which no port was free, and the owners of the ports that were tried.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PortRefused {
    /// The flow's owner.
    pub owner: Owner,
    /// IP protocol number.
    pub protocol: u8,
    /// Destination address.
    pub destination: IpAddr,
    /// Destination port, or 0.
    pub destination_port: u16,
    /// The number of flows of this worker that use any of the ports that were tried.
    pub holders: u8,
    /// The owner that has the largest number of these flows, and that number. `None`: other workers have all of these
    /// ports.
    pub most: Option<(Owner, u8)>,
}

/// One report.
#[derive(Debug)]
pub enum Report {
    /// A flow was denied. The number of waiting reports is bounded: while the control loop does not keep up, further
    /// ones are lost and counted.
    Denied(Denied),
    /// No port was free for a masqueraded flow. This is sent at most once per second.
    PortRefused(PortRefused),
    /// A port's device failed, and the worker has detached the port.
    PortLost(PortId, io::Error),
    /// A call of epoll failed. This is sent at most once per second, because the call may fail in each turn.
    PollFailed(io::Error),
    /// Tables that this worker no longer uses. The control loop frees them, because that takes too long on the packet
    /// path. The worker has used newer ones since the given time.
    Retired(Arc<Tables>, Instant),
}
