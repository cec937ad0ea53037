//! The effects that staged policies would have.

use std::fmt;

use super::decide::Watch;
use super::direction::Direction;
use super::oracle::Oracle;
use super::packet::Packet;
use super::party::{Party, is_same_pod};
use super::policies::Policy;
use super::rules::{Mismatch, Rule};
use super::verdict::{RuleName, name};
use manx_objects::object::ObjectKey;
use manx_objects::object::calico::Action;

/// The effect that a staged policy would have had if it were enforced and the evaluation reached it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Staged {
    /// One of its rules would have decided or logged.
    Rule(RuleName, Action),
    /// None of its rules would have decided, and the end of its tier would have denied. This is reported only if no
    /// enforced policy of the tier applies, because otherwise the end of the tier denies anyway.
    TierEnd(Direction, ObjectKey),
}

impl fmt::Display for Staged {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Rule(rule, action) => write!(f, "{action:?} by {rule}"),
            Self::TierEnd(direction, policy) => {
                write!(f, "Deny by {} {direction}[end of tier]", name(policy))
            }
        }
    }
}

impl Oracle {
    /// Returns the effects that staged policies would have had on a packet, in the order of evaluation. The evaluation
    /// ends at the enforced rule that decides.
    pub fn staged(&self, from: &Party, to: &Party, packet: Packet) -> Vec<Staged> {
        let mut found = Vec::new();
        if is_same_pod(from, to) {
            return found;
        }
        for (direction, local, peer) in
            [(Direction::Egress, from, to), (Direction::Ingress, to, from)]
        {
            let mut watch = Collector::new(direction, &mut found);
            self.side(direction, local, peer, packet, &mut watch);
        }
        found
    }
}

/// Collects the effects that staged policies would have had.
pub(super) struct Collector<'a> {
    direction: Direction,
    /// The staged policy that is being evaluated and has not decided yet.
    asked: Option<ObjectKey>,
    found: &'a mut Vec<Staged>,
}

impl<'a> Collector<'a> {
    pub(super) fn new(direction: Direction, found: &'a mut Vec<Staged>) -> Self {
        Self { direction, asked: None, found }
    }
}

impl Watch for Collector<'_> {
    fn policy(&mut self, policy: &Policy) {
        self.asked = policy.staged.then(|| policy.key.clone());
    }

    fn rule(&mut self, rule: &Rule, mismatch: Option<Mismatch>) {
        if mismatch.is_none()
            && let Some(policy) = &self.asked
        {
            let policy = policy.clone();
            let name = RuleName { policy, direction: self.direction, index: rule.index };
            self.found.push(Staged::Rule(name, rule.action));
            if rule.action != Action::Log {
                self.asked = None;
            }
        }
    }

    fn staged_tier_end(&mut self, policy: &Policy) {
        self.found.push(Staged::TierEnd(self.direction, policy.key.clone()));
    }

    fn profile(&mut self, _name: &str) {
        self.asked = None;
    }
}
