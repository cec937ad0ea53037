//! The decision for a flow: its next hops and the changes to its packets, or the reason why they are not forwarded.

use crate::drop_reason::DropReason;
use crate::flow::{RuleCounters, WorkerId};
use crate::policy::{NO_SLOT, PolicyVerdict};
use crate::rewrite::Translation;
use crate::tables::NextHopPair;

/// The decision for a flow, and the counter slots of the rules that gave it. The later fragments of a packet follow the
/// decision on its first fragment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FlowDecision {
    pub(super) outcome: Outcome,
    pub(super) rules: RuleCounters,
}

/// The fate that all packets of a flow have in common.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Outcome {
    /// They are forwarded between these next hops.
    Forward(NextHopPair),
    /// They are translated and forwarded.
    Translate(NextHopPair, Translation),
    Drop(DropReason),
    /// They are dropped, and the sender gets a RST or an ICMP error.
    Refuse(DropReason),
    /// Another worker has the flow and decides.
    Handoff(WorkerId),
}

impl FlowDecision {
    const fn without_rules(outcome: Outcome) -> Self {
        Self { outcome, rules: RuleCounters { egress: NO_SLOT, ingress: NO_SLOT } }
    }

    pub(super) const fn drop(reason: DropReason) -> Self {
        Self::without_rules(Outcome::Drop(reason))
    }

    pub(super) const fn refuse(reason: DropReason) -> Self {
        Self::without_rules(Outcome::Refuse(reason))
    }

    pub(super) const fn hand_off(to: WorkerId) -> Self {
        Self::without_rules(Outcome::Handoff(to))
    }

    /// The decision for packets between two next hops, from the verdict of policy.
    #[inline]
    pub(super) fn from_verdict(pair: NextHopPair, verdict: &PolicyVerdict) -> Self {
        let outcome = match verdict.denied {
            None => Outcome::Forward(pair),
            Some(reason) => Outcome::Drop(reason),
        };
        Self { outcome, rules: verdict.rules }
    }

    /// The same decision, with a translation of the packets that are forwarded.
    #[inline]
    pub(super) fn translated(self, translation: Translation) -> Self {
        let outcome = match self.outcome {
            Outcome::Forward(pair) => Outcome::Translate(pair, translation),
            other => other,
        };
        Self { outcome, ..self }
    }

    /// Whether the packets are forwarded.
    #[inline]
    pub(super) const fn forwards(&self) -> bool {
        matches!(self.outcome, Outcome::Forward(_) | Outcome::Translate(..))
    }
}
