//! Paths: how a packet was decided, with the counter of that decision.

use std::sync::Arc;

use crate::model::{Decision, Direction, Reason, Verdict};

/// How a packet was decided.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Path {
    /// What decided, and the rules that were met on the way there.
    pub decision: Arc<Decision>,
    /// What follows from it.
    pub verdict: Verdict,
    /// Whether it leaves the verdict to the chains behind it ([`Reason::passes_on`]).
    pub passes_on: bool,
    /// Its counter, below [`Image::slots`](super::Image::slots): the same for the same decision in every image of one compiler, until the slot is
    /// released.
    pub slot: u32,
}

impl Path {
    pub(crate) fn new(decision: Arc<Decision>, slot: u32) -> Self {
        let reason = &decision.reason;
        Self { verdict: reason.verdict(), passes_on: reason.passes_on(), decision, slot }
    }

    /// The path of what is unknown. Its slot is the number of the direction.
    pub(crate) fn unknown(direction: Direction) -> Self {
        Self::new(Arc::new(Reason::Unknown(direction).into()), direction as u32)
    }
}
