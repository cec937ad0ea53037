//! What a worker tells control.

use std::io;
use std::net::IpAddr;
use std::sync::Arc;

use crate::drop_reason::DropReason;
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
    /// Why.
    pub reason: DropReason,
    /// Counter slot of what decided, or [`crate::policy::NO_SLOT`].
    pub slot: u32,
}

/// One message.
#[derive(Debug)]
pub enum Report {
    /// A flow was denied. Bounded: when control is behind, these are lost and counted.
    Denied(Denied),
    /// A port's device failed; the worker has let go of it.
    PortLost(PortId, io::Error),
    /// Asking epoll failed. At most one a second: what fails once may fail each turn.
    PollFailed(io::Error),
    /// Tables that this worker uses no longer: control frees them, not the packet path.
    Retired(Arc<Tables>),
}
