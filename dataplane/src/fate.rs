//! The fate of a packet.

use crate::drop_reason::DropReason;
use crate::flow::WorkerId;
use crate::icmp::ErrorKind;
use crate::rewrite::{Rewrite, Translation};
use crate::tables::Link;

/// The forwarding of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Forwarding<'a> {
    /// The link that it leaves by.
    pub link: &'a Link,
    /// The changes to its header.
    pub rewrite: Rewrite,
}

/// The fate of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub enum Fate<'a> {
    /// It is forwarded.
    Forward(Forwarding<'a>),
    /// It is translated and forwarded.
    Translate(Forwarding<'a>, Translation),
    /// It is dropped without an ICMP error.
    Drop(DropReason),
    /// It is dropped, and an ICMP error is sent to its sender.
    Answer {
        /// The reason under which it is counted.
        reason: DropReason,
        /// The ICMP error to the sender.
        error: ErrorKind,
    },
    /// It is dropped, and its sender gets a refusal: RST for TCP, else "port unreachable".
    Refuse(DropReason),
    /// Another worker has its flow and decides.
    Handoff(WorkerId),
}
