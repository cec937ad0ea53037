//! The oracle's results.

use std::fmt;

use super::built_in::DEFAULT;
use super::direction::Direction;
use manx_objects::object::{Kind, ObjectKey};

/// A rule of a policy or profile.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RuleName {
    /// The policy or profile.
    pub policy: ObjectKey,
    /// The list of rules, ingress or egress.
    pub direction: Direction,
    /// The index in the list.
    pub index: usize,
}

impl fmt::Display for RuleName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}[{}]", name(&self.policy), self.direction, self.index)
    }
}

/// Returns the name for users. Kubernetes' own policies are named without their kind, and all others with it. Counters,
/// denials in the log and `manx status` spell policies and rules in the same way.
pub fn name(key: &ObjectKey) -> String {
    match key.kind {
        Kind::NetworkPolicy => format!("{}/{}", key.namespace, key.name),
        Kind::CalicoNetworkPolicy => format!("Calico {key}"),
        Kind::Profile => format!("profile {}", key.name),
        _ => key.to_string(),
    }
}

/// The verdicts of both sides.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Judgement {
    /// The source's side.
    pub egress: Verdict,
    /// The destination's side.
    pub ingress: Verdict,
}

impl Judgement {
    /// Returns whether the connection passes.
    pub fn allowed(&self) -> bool {
        self.egress.allows() && self.ingress.allows()
    }
}

impl fmt::Display for Judgement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verdict = if self.allowed() { "allowed" } else { "denied" };
        write!(f, "{verdict}: egress: {}; ingress: {}", self.egress, self.ingress)
    }
}

/// The verdict of one side.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verdict {
    /// The reason for the verdict.
    pub why: VerdictReason,
    /// The Log and Pass rules that matched before the verdict was reached, in order.
    pub through: Vec<RuleName>,
}

impl Verdict {
    /// Returns whether this side allows the connection.
    pub fn allows(&self) -> bool {
        self.why.allows()
    }
}

impl From<VerdictReason> for Verdict {
    fn from(why: VerdictReason) -> Self {
        Self { why, through: Vec::new() }
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.why.fmt(f)?;
        for (index, rule) in self.through.iter().enumerate() {
            write!(f, "{}{rule}", if index == 0 { " (after " } else { ", " })?;
        }
        if self.through.is_empty() { Ok(()) } else { f.write_str(")") }
    }
}

/// The reason why one side allows a connection or denies it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum VerdictReason {
    /// The party is not a pod of the cluster, so no policy applies.
    NoPod,
    /// The pod connects to itself, which is always allowed.
    Itself,
    /// The node connects to one of its own pods, which is always allowed.
    OwnNode,
    /// The pod is not in the manifests, is invalid, does not have this address, or is finished. Nothing passes.
    NoEndpoint,
    /// The peer's address belongs to an invalid pod, so it is not known which rules match it.
    InvalidPeer,
    /// These policies select the endpoint and are invalid. They deny all traffic of the endpoint, before all tiers.
    InvalidPolicies(Vec<ObjectKey>),
    /// A rule of a policy or of a profile decided.
    Rule {
        rule: RuleName,
        /// Whether the rule allows the packet. A Pass in a profile denies.
        allowed: bool,
    },
    /// These policies of a tier select the endpoint in this direction, none of their rules decided, and the tier's
    /// default action is Deny.
    TierEnd {
        tier: String,
        /// The policies, at least one, in the tier's order.
        policies: Vec<ObjectKey>,
    },
    /// No policy decided, and this profile, which needs no object, allows everything (`kns.<namespace>`).
    DefaultProfile(String),
    /// No policy decided, and the endpoint's profile does not exist or is invalid.
    MissingProfile(String),
    /// No policy decided, and no rule of the endpoint's profiles matched.
    NoProfile,
    /// The node's setting for packets from its own pods to the node decided (`defaultEndpointToHostAction`).
    EndpointToHost {
        /// True if the action is Accept or Return, and false if it is Drop.
        accepted: bool,
    },
    /// The interface has no host endpoint, so no policy applies there.
    NoHostEndpoint,
    /// There is no valid host endpoint, but there are these invalid ones, and the interface may belong to any of them.
    InvalidHostEndpoints(Vec<String>),
    /// The port is a failsafe port, which host endpoint policy never closes.
    Failsafe,
    /// The packet is forwarded, and no policy with `applyOnForward` selects the host endpoint in this direction.
    NoForwardPolicy,
    /// The packet is forwarded, and some policies with `applyOnForward` select the host endpoint, but none of them
    /// allowed the packet.
    NotForwarded,
}

impl VerdictReason {
    /// Returns whether this reason allows the connection.
    pub fn allows(&self) -> bool {
        match self {
            Self::NoPod
            | Self::Itself
            | Self::OwnNode
            | Self::DefaultProfile(_)
            | Self::NoHostEndpoint
            | Self::Failsafe
            | Self::NoForwardPolicy => true,
            Self::Rule { allowed, .. } | Self::EndpointToHost { accepted: allowed } => *allowed,
            Self::NoEndpoint
            | Self::InvalidPeer
            | Self::InvalidPolicies(_)
            | Self::TierEnd { .. }
            | Self::MissingProfile(_)
            | Self::NoProfile
            | Self::InvalidHostEndpoints(_)
            | Self::NotForwarded => false,
        }
    }
}

impl fmt::Display for VerdictReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = |keys: &[ObjectKey]| keys.iter().map(name).collect::<Vec<_>>().join(", ");
        match self {
            Self::NoPod => f.write_str("no pod, no policy"),
            Self::Itself => f.write_str("a pod always reaches itself"),
            Self::OwnNode => f.write_str("a node always reaches its own pods"),
            Self::NoEndpoint => f.write_str("no such endpoint"),
            Self::InvalidPeer => f.write_str("the peer is a pod that is not valid"),
            Self::InvalidPolicies(policies) => {
                write!(f, "denied by {}, which cannot be evaluated", names(policies))
            }
            Self::Rule { rule, allowed } => {
                write!(f, "{} by {rule}", if *allowed { "allowed" } else { "denied" })
            }
            Self::TierEnd { tier, policies } if tier == DEFAULT => {
                write!(f, "isolated by {}, and no rule allows it", names(policies))
            }
            Self::TierEnd { tier, policies } => {
                write!(
                    f,
                    "denied at the end of tier {tier}: no rule of {} decides",
                    names(policies)
                )
            }
            Self::DefaultProfile(profile) => {
                write!(f, "no policy decides, and profile {profile} allows everything")
            }
            Self::MissingProfile(profile) => {
                write!(f, "no policy decides, and there is no valid profile {profile}")
            }
            Self::NoProfile => f.write_str("neither a policy nor a profile allows it"),
            Self::EndpointToHost { accepted: true } => {
                f.write_str("the node accepts its own pods' traffic")
            }
            Self::EndpointToHost { accepted: false } => {
                f.write_str("the node drops its own pods' traffic")
            }
            Self::NoHostEndpoint => f.write_str("no host endpoint, no policy"),
            Self::InvalidHostEndpoints(names) => {
                write!(f, "it may be host endpoint {}, not valid", names.join(", "))
            }
            Self::Failsafe => f.write_str("a failsafe port is never closed"),
            Self::NoForwardPolicy => f.write_str("no policy applies to forwarded traffic here"),
            Self::NotForwarded => f.write_str("no policy for forwarded traffic allows it"),
        }
    }
}
