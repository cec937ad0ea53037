//! What becomes of a packet.

use crate::drop_reason::DropReason;
use crate::flow::WorkerId;
use crate::icmp::ErrorKind;
use crate::tables::Link;

/// What becomes of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub enum Fate<'a> {
    /// It goes on.
    Forward {
        /// Where to.
        link: &'a Link,
        /// The hop limit (TTL) goes down by one.
        decrements_ttl: bool,
    },
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
