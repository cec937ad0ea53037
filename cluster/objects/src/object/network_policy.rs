//! Kubernetes' NetworkPolicy.

use ipnet::IpNet;

use super::calico;
use super::label_selector::LabelSelector;
use super::policy_type::PolicyType;
use super::port::{PortNumber, Protocol};

/// `networking.k8s.io/v1` NetworkPolicy, and Calico's StagedKubernetesNetworkPolicy. The kind in
/// the object's key says which.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NetworkPolicy {
    /// `spec.podSelector`; the empty selector if absent.
    pub pod_selector: LabelSelector,
    /// `spec.policyTypes`.
    pub policy_types: Option<Vec<PolicyType>>,
    /// `spec.ingress`.
    pub ingress: Option<Vec<Rule>>,
    /// `spec.egress`.
    pub egress: Option<Vec<Rule>>,
    /// `spec.stagedAction` of a StagedKubernetesNetworkPolicy; Set if absent.
    pub staged_action: Option<calico::StagedAction>,
}

/// A rule of either direction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rule {
    /// `from` of an ingress rule, or `to` of an egress rule; every peer matches if it is absent or
    /// empty.
    pub peers: Option<Vec<Peer>>,
    /// `ports`; every port matches if it is absent or empty.
    pub ports: Option<Vec<Port>>,
}

/// A peer: either an IP block or selectors.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Peer {
    IpBlock(IpBlock),
    /// `podSelector`, `namespaceSelector` or both.
    Selectors {
        /// Selects by the pod's labels; all pods if absent.
        pods: Option<LabelSelector>,
        /// Selects by the namespace's labels; the policy's own namespace if absent.
        namespaces: Option<LabelSelector>,
    },
}

/// `ipBlock`. Host bits are kept as written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IpBlock {
    pub cidr: IpNet,
    /// `except`, each strictly inside `cidr`.
    pub except: Vec<IpNet>,
}

/// One of a rule's `ports`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Port {
    /// `protocol`; TCP if absent.
    pub protocol: Option<Protocol>,
    /// `port` with `endPort`; every port of the protocol if absent.
    pub port: Option<PortNumber>,
}
