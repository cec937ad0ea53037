//! Names of policies and rules, and what decides a packet.

use std::fmt;
use std::sync::Arc;

use super::{Action, Direction};

/// The kinds of policy, by the API that a policy was written in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PolicyKind {
    /// Kubernetes' NetworkPolicy.
    Kubernetes,
    /// Kubernetes' ClusterNetworkPolicy.
    Cluster,
    /// Kubernetes' AdminNetworkPolicy.
    Admin,
    /// Kubernetes' BaselineAdminNetworkPolicy.
    BaselineAdmin,
    /// Calico's NetworkPolicy.
    Calico,
    /// Calico's GlobalNetworkPolicy.
    Global,
    /// A staged Kubernetes NetworkPolicy.
    StagedKubernetes,
    /// A staged NetworkPolicy of Calico's.
    StagedCalico,
    /// A staged GlobalNetworkPolicy.
    StagedGlobal,
}

impl PolicyKind {
    /// The kind as Calico's own keys spell it; it takes part in the order of policies.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Kubernetes => "KubernetesNetworkPolicy",
            Self::Cluster => "KubernetesClusterNetworkPolicy",
            Self::Admin => "KubernetesAdminNetworkPolicy",
            Self::BaselineAdmin => "KubernetesBaselineAdminNetworkPolicy",
            Self::Calico => "NetworkPolicy",
            Self::Global => "GlobalNetworkPolicy",
            Self::StagedKubernetes => "StagedKubernetesNetworkPolicy",
            Self::StagedCalico => "StagedNetworkPolicy",
            Self::StagedGlobal => "StagedGlobalNetworkPolicy",
        }
    }

    /// The kind as its author writes it; Calico's NetworkPolicy is told from Kubernetes'.
    const fn written(self) -> &'static str {
        match self {
            Self::Kubernetes => "NetworkPolicy",
            Self::Cluster => "ClusterNetworkPolicy",
            Self::Admin => "AdminNetworkPolicy",
            Self::BaselineAdmin => "BaselineAdminNetworkPolicy",
            Self::Calico => "Calico NetworkPolicy",
            Self::Global | Self::StagedKubernetes | Self::StagedCalico | Self::StagedGlobal => {
                self.name()
            }
        }
    }

    /// Whether policies of the kind are evaluated and counted, and never enforced.
    pub const fn staged(self) -> bool {
        matches!(self, Self::StagedKubernetes | Self::StagedCalico | Self::StagedGlobal)
    }
}

/// What tells one policy from every other.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PolicyName {
    /// The kind.
    pub kind: PolicyKind,
    /// The namespace; empty for a cluster-wide policy.
    pub namespace: String,
    /// The name.
    pub name: String,
}

impl PolicyName {
    /// A policy's name.
    pub fn new(kind: PolicyKind, namespace: impl Into<String>, name: impl Into<String>) -> Self {
        Self { kind, namespace: namespace.into(), name: name.into() }
    }

    /// What decides between policies of equal order.
    pub fn sort_key(&self) -> String {
        [&self.name, "/", &self.namespace, "/", self.kind.name()].concat()
    }
}

impl fmt::Display for PolicyName {
    /// `namespace/name` for Kubernetes' own NetworkPolicy, the kind before it for every other.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.kind != PolicyKind::Kubernetes {
            write!(f, "{} ", self.kind.written())?;
        }
        if !self.namespace.is_empty() {
            write!(f, "{}/", self.namespace)?;
        }
        f.write_str(&self.name)
    }
}

/// Names a rule for counters, logs and `explain`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RuleName {
    /// The policy; all of its rules share it.
    pub policy: Arc<PolicyName>,
    /// The direction.
    pub direction: Direction,
    /// The index in the policy's list of that direction.
    pub index: u32,
}

impl fmt::Display for RuleName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}[{}]", self.policy, self.direction, self.index)
    }
}

/// Allow or deny.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Verdict {
    /// Let it pass.
    Allow,
    /// Drop it.
    Deny,
}

/// What decided, in one direction.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Reason {
    /// No policy decides about the pod in this direction: the profile of its namespace allows everything.
    NotIsolated(Direction),
    /// The first rule that allows or denies.
    Rule(RuleName, Verdict),
    /// The end of a tier that denies what no rule decides. Carries the first policy of the tier that selects the endpoint.
    Isolated(Direction, PolicyName),
    /// A policy that is not valid denies.
    Broken(Direction, PolicyName),
    /// A host endpoint that is not valid, and may be the interface's, denies.
    BrokenHost(Direction, String),
    /// A rule of a profile: its name and the rule's index.
    Profile(Direction, String, u32, Verdict),
    /// A profile that the endpoint names does not exist: denied.
    MissingProfile(Direction, String),
    /// No rule of any profile matches: denied.
    NoProfile(Direction),
    /// A port that host endpoint policy never closes.
    Failsafe(Direction),
    /// No policy for the host endpoint speaks here: passed on.
    NoHostPolicy(Direction),
    /// The peer's identity is not known to these tables: denied.
    Unknown(Direction),
}

impl Reason {
    /// The verdict that follows from it.
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

    /// Whether a host endpoint's policy says nothing of it, so that others which are asked behind it decide.
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

/// What was met on the way to what decided.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Noted {
    /// A rule, and what it did ([`Action::Pass`] or [`Action::Log`]) or, of a staged policy, would have done.
    Rule(RuleName, Action),
    /// A staged policy of which no rule would have decided. The end of its tier would have denied: the tier's default action is
    /// Deny, and only staged policies of it are asked here.
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

    /// The rule, if it is one.
    pub const fn rule(&self) -> Option<&RuleName> {
        match self {
            Self::Rule(rule, _) => Some(rule),
            Self::TierEnd(..) => None,
        }
    }

    /// What it did or would have done.
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

/// What decided and what was met on the way there.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Decision {
    /// What decided.
    pub reason: Reason,
    /// In the order in which they were met.
    pub noted: Vec<Noted>,
}

impl From<Reason> for Decision {
    fn from(reason: Reason) -> Self {
        Self { reason, noted: Vec::new() }
    }
}
