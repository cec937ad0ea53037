//! The decision for a flow: its next hops, or why its packets do not go on from here.

use crate::drop_reason::DropReason;
use crate::flow::{RuleCounters, WorkerId};
use crate::policy::{NO_SLOT, PolicyVerdict};
use crate::tables::NextHopPair;

/// The decision for a flow: its next hops, or why its packets do not go on. The later fragments of a packet follow
/// the decision on its first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FlowDecision {
    pub(super) verdict: Result<NextHopPair, Stop>,
    pub(super) rules: RuleCounters,
}

/// Why a packet does not go on from here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stop {
    Drop(DropReason),
    /// Another worker has its flow and decides.
    HandOver(WorkerId),
}

impl FlowDecision {
    const fn stopped(stop: Stop) -> Self {
        Self { verdict: Err(stop), rules: RuleCounters { egress: NO_SLOT, ingress: NO_SLOT } }
    }

    pub(super) const fn drop(reason: DropReason) -> Self {
        Self::stopped(Stop::Drop(reason))
    }

    pub(super) const fn hand_off(to: WorkerId) -> Self {
        Self::stopped(Stop::HandOver(to))
    }

    /// The decision for a flow on which policy has given its verdict.
    pub(super) fn from_verdict(pair: NextHopPair, verdict: &PolicyVerdict) -> Self {
        let rules = verdict.rules;
        let verdict = match verdict.denied {
            None => Ok(pair),
            Some(reason) => Err(Stop::Drop(reason)),
        };
        Self { verdict, rules }
    }
}
