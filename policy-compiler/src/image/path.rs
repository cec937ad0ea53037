//! Paths: the decisions at the end of a lookup, each with its counter.

use std::sync::Arc;

use crate::model::{Decision, Direction, Reason, Verdict};

/// A decision, with its counter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Path {
    /// The reason for the verdict, and the rules that were noted before it.
    pub decision: Arc<Decision>,
    /// The verdict of the decision.
    pub verdict: Verdict,
    /// Whether the decision leaves the verdict to later chains ([`Reason::passes_on`]).
    pub passes_on: bool,
    /// Its counter slot, below [`Image::slots`](super::Image::slots). The same decision has the same slot in every
    /// image of one compiler, until the slot is released.
    pub slot: u32,
}

impl Path {
    pub(crate) fn new(decision: Arc<Decision>, slot: u32) -> Self {
        let reason = &decision.reason;
        Self { verdict: reason.verdict(), passes_on: reason.passes_on(), decision, slot }
    }

    /// The path of unknown ends. Its counter slot is the number of the direction.
    pub(crate) fn unknown(direction: Direction) -> Self {
        Self::new(Arc::new(Reason::Unknown(direction).into()), direction as u32)
    }
}
