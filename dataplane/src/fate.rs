//! What becomes of a packet.

use crate::drop_reason::DropReason;
use crate::flow::WorkerId;
use crate::icmp::ErrorKind;
use crate::rewrite::Rewrite;
use crate::tables::Link;

/// How a packet goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Forwarding<'a> {
    /// Where to.
    pub link: &'a Link,
    /// What is changed in it.
    pub rewrite: Rewrite,
}

/// What becomes of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub enum Fate<'a> {
    /// It goes on.
    Forward(Forwarding<'a>),
    /// It is dropped, and its sender is not told.
    Drop(DropReason),
    /// It is dropped, and its sender is told.
    Answer {
        /// What it is counted as.
        reason: DropReason,
        /// What the sender is told.
        error: ErrorKind,
    },
    /// Another worker has its flow and decides.
    Handoff(WorkerId),
}
