//! Verdicts on packets, the reasons for them, and decisions.

use std::fmt;
use std::sync::Arc;

use super::name::{PolicyName, RuleName};
use super::policy::Action;
use super::traffic::Direction;

/// Allow or deny.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Verdict {
    /// Let it pass.
    Allow,
    /// Drop it.
    Deny,
}

/// The reason for a verdict, in one direction.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Reason {
    /// No policy applies to the pod in this direction: the profile of its namespace allows everything.
    NotIsolated(Direction),
    /// The first rule that allows or denies.
    Rule(RuleName, Verdict),
    /// The end of a tier denies the packets that no rule decides. Contains the first policy of the tier that selects
    /// the endpoint.
    Isolated(Direction, PolicyName),
    /// A policy that is not valid denies.
    Broken(Direction, PolicyName),
    /// A host endpoint that is not valid, and that may belong to this interface, denies.
    BrokenHost(Direction, String),
    /// A rule of a profile decides. Contains the profile's name and the rule's index.
    Profile(Direction, String, u32, Verdict),
    /// A profile that the endpoint names does not exist, so the packet is denied.
    MissingProfile(Direction, String),
    /// No rule of any profile matches: denied.
    NoProfile(Direction),
    /// The packet uses a failsafe port: a port that host endpoint policy never closes.
    Failsafe(Direction),
    /// No policy for the host endpoint applies here: the evaluation continues.
    NoHostPolicy(Direction),
    /// The peer's identity is not known to these tables, so the packet is denied.
    Unknown(Direction),
}

impl Reason {
    /// The verdict that follows from the reason.
    pub const fn verdict(&self) -> Verdict {
        match self {
            Self::Rule(_, verdict) | Self::Profile(_, _, _, verdict) => *verdict,
            Self::NotIsolated(_) | Self::Failsafe(_) | Self::NoHostPolicy(_) => Verdict::Allow,
            Self::Isolated(..)
            | Self::Broken(..)
            | Self::BrokenHost(..)
            | Self::MissingProfile(..)
            | Self::NoProfile(_)
            | Self::Unknown(_) => Verdict::Deny,
        }
    }

    /// Whether the host endpoint's policies leave the decision to the evaluations that follow.
    pub const fn passes_on(&self) -> bool {
        matches!(self, Self::Failsafe(_) | Self::NoHostPolicy(_))
    }

    /// The rule of a policy that decided, if one did.
    pub const fn rule(&self) -> Option<&RuleName> {
        match self {
            Self::Rule(rule, _) => Some(rule),
            _ => None,
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotIsolated(direction) => write!(f, "no policy selects it for {direction}"),
            Self::Rule(rule, _) => rule.fmt(f),
            Self::Isolated(direction, policy) => {
                write!(f, "isolated by {policy} for {direction}, no rule allows")
            }
            Self::Broken(direction, policy) => {
                write!(f, "{policy} is not valid and denies {direction}")
            }
            Self::BrokenHost(direction, host) => {
                write!(f, "host endpoint {host} is not valid and denies {direction}")
            }
            Self::Profile(direction, profile, index, _) => {
                write!(f, "profile {profile} {direction}[{index}]")
            }
            Self::MissingProfile(direction, profile) => {
                write!(f, "profile {profile} does not exist, {direction}")
            }
            Self::NoProfile(direction) => write!(f, "no profile allows {direction}"),
            Self::Failsafe(direction) => write!(f, "failsafe port, {direction}"),
            Self::NoHostPolicy(direction) => write!(f, "no host policy for {direction}"),
            Self::Unknown(direction) => write!(f, "unknown peer, {direction}"),
        }
    }
}

/// A step of the evaluation that did not decide: a rule, or the end of a tier. It is reported together with the
/// decision that came later.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Noted {
    /// A rule and what it did ([`Action::Pass`] or [`Action::Log`]), or what it would have done in a staged policy.
    Rule(RuleName, Action),
    /// The end of a tier, with a staged policy of the tier. No rule of the policy would have decided, and then the end
    /// of the tier would have denied, if the policy were enforced. This is noted if the tier's default action is Deny
    /// and all policies of the tier that apply here are staged.
    TierEnd(Direction, Arc<PolicyName>),
}

impl Noted {
    /// The policy.
    pub const fn policy(&self) -> &Arc<PolicyName> {
        match self {
            Self::Rule(rule, _) => &rule.policy,
            Self::TierEnd(_, policy) => policy,
        }
    }

    /// The rule, unless this is the end of a tier.
    pub const fn rule(&self) -> Option<&RuleName> {
        match self {
            Self::Rule(rule, _) => Some(rule),
            Self::TierEnd(..) => None,
        }
    }

    /// The action that was taken or, in a staged policy, not taken.
    pub const fn action(&self) -> Action {
        match self {
            Self::Rule(_, action) => *action,
            Self::TierEnd(..) => Action::Deny,
        }
    }
}

impl fmt::Display for Noted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Rule(rule, _) => rule.fmt(f),
            Self::TierEnd(direction, policy) => write!(f, "{policy} {direction}[end of tier]"),
        }
    }
}

/// The reason for a verdict, and the rules that were noted before it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Decision {
    /// The reason for the verdict.
    pub reason: Reason,
    /// The rules and tier ends that were noted before the decision, in order.
    pub noted: Vec<Noted>,
}

impl From<Reason> for Decision {
    fn from(reason: Reason) -> Self {
        Self { reason, noted: Vec::new() }
    }
}
