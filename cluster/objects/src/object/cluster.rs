//! Policies of `policy.networking.k8s.io`: ClusterNetworkPolicy (v1alpha2). AdminNetworkPolicy and
//! BaselineAdminNetworkPolicy (v1alpha1) have the same form here: the decoder translates them.

use ipnet::IpNet;

use super::label_selector::LabelSelector;
use super::port::Protocol;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClusterNetworkPolicy {
    /// `spec.tier`.
    pub tier: ClusterTier,
    /// `spec.priority`, 0-1000, lower first. A BaselineAdminNetworkPolicy has no priority; it is 0 here.
    pub priority: u16,
    /// `spec.subject`.
    pub subject: Pods,
    /// `spec.ingress`.
    pub ingress: Vec<ClusterRule>,
    /// `spec.egress`.
    pub egress: Vec<ClusterRule>,
}

/// `spec.tier`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ClusterTier {
    /// Before every other policy: Calico's tier `kube-admin`.
    Admin,
    /// After every other policy: Calico's tier `kube-baseline`.
    Baseline,
}

/// Pods, by the labels of their namespaces and their own labels.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pods {
    /// `namespaceSelector`.
    pub namespaces: LabelSelector,
    /// `podSelector`; all pods of these namespaces if the policy selects namespaces only.
    pub pods: LabelSelector,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClusterRule {
    pub name: Option<String>,
    pub action: ClusterAction,
    pub matches: ClusterMatch,
}

/// `action`. The action `Allow` of v1alpha1 is `Accept` here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClusterAction {
    /// Allows the packet and ends the evaluation.
    Accept,
    /// Denies the packet and ends the evaluation.
    Deny,
    /// Continues with the next tier.
    Pass,
}

/// The packets that a rule matches.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ClusterMatch {
    /// Packets that match one of the peers and one of the protocols.
    Of {
        /// `from` or `to`: at least one.
        peers: Vec<ClusterPeer>,
        /// `protocols` (`ports` in v1alpha1); `None` is every packet.
        protocols: Option<Vec<ClusterProtocol>>,
    },
    /// The rule contains something that Manx cannot evaluate (domain names, or anything newer than this reader). An
    /// Accept then counts as absent, and a Deny or a Pass counts as a Deny of everything.
    Unsupported,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ClusterPeer {
    /// `namespaces` or `pods`.
    Pods(Pods),
    /// `networks` of an egress rule: the address is in one of them.
    Networks(Vec<IpNet>),
    /// `nodes` of an egress rule: the nodes that have these labels.
    Nodes(LabelSelector),
}

/// One entry of `protocols`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ClusterProtocol {
    /// `tcp`, `udp` or `sctp`.
    Ports {
        protocol: Protocol,
        /// `destinationPort`, both ends included; `None` is every packet of the protocol.
        ports: Option<(u16, u16)>,
    },
    /// `destinationNamedPort`: the pod's port of this name, with whatever protocol that port has.
    Named(String),
}
