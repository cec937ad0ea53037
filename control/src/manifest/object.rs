//! Wire objects: what manifests say, in the words of the Kubernetes and Calico APIs, checked but not interpreted.
//!
//! Nothing is defaulted here: an absent `policyTypes` is `None`. Import and the oracle each apply the defaults
//! themselves, so that one can catch the other's mistake.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;

use ipnet::IpNet;

/// The kinds of object that Manx reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// `v1` Namespace.
    Namespace,
    /// `v1` Node.
    Node,
    /// `v1` Pod.
    Pod,
    /// `networking.k8s.io/v1` NetworkPolicy.
    NetworkPolicy,
    /// `projectcalico.org/v3` (or `crd.projectcalico.org/v1`) `IPPool`.
    IpPool,
}

impl Kind {
    /// All of them.
    pub const ALL: [Self; 5] =
        [Self::Namespace, Self::Node, Self::Pod, Self::NetworkPolicy, Self::IpPool];

    /// The name as manifests write it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Namespace => "Namespace",
            Self::Node => "Node",
            Self::Pod => "Pod",
            Self::NetworkPolicy => "NetworkPolicy",
            Self::IpPool => "IPPool",
        }
    }

    /// The API versions that are read.
    pub const fn api_versions(self) -> &'static [&'static str] {
        match self {
            Self::Namespace | Self::Node | Self::Pod => &["v1"],
            Self::NetworkPolicy => &["networking.k8s.io/v1"],
            Self::IpPool => &["projectcalico.org/v3", "crd.projectcalico.org/v1"],
        }
    }

    /// Whether objects of the kind live in namespaces.
    pub const fn namespaced(self) -> bool {
        match self {
            Self::Pod | Self::NetworkPolicy => true,
            Self::Namespace | Self::Node | Self::IpPool => false,
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// What tells one object from every other.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectKey {
    /// The kind.
    pub kind: Kind,
    /// The namespace; empty for kinds that have none.
    pub namespace: String,
    /// The name.
    pub name: String,
}

impl fmt::Display for ObjectKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.namespace.is_empty() {
            write!(f, "{} {}", self.kind, self.name)
        } else {
            write!(f, "{} {}/{}", self.kind, self.namespace, self.name)
        }
    }
}

/// A valid object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Object {
    /// A namespace.
    Namespace(Namespace),
    /// A node.
    Node(Node),
    /// A pod.
    Pod(Box<Pod>),
    /// A policy.
    NetworkPolicy(Box<NetworkPolicy>),
    /// A pool of pod addresses.
    IpPool(IpPool),
}

/// Labels or annotations.
pub type Pairs = BTreeMap<String, String>;

/// A namespace. `kubernetes.io/metadata.name` is among its labels whatever the manifest says, as the API server sees to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Namespace {
    /// The labels.
    pub labels: Pairs,
}

/// A node, as far as routing needs it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Node {
    /// `spec.podCIDRs`, with `spec.podCIDR` first where the list does not have it. Host bits are cut off.
    pub pod_cidrs: Vec<IpNet>,
    /// `status.addresses` of type `InternalIP`, in order.
    pub internal_ips: Vec<IpAddr>,
    /// The annotation `projectcalico.org/IPv4Address` with its prefix length (32 where it has none); the address's host
    /// bits are kept.
    pub calico_address: Option<IpNet>,
}

/// A pod, as far as networking needs it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pod {
    /// The labels.
    pub labels: Pairs,
    /// Whether `metadata.deletionTimestamp` is there.
    pub deleting: bool,
    /// `spec.nodeName`.
    pub node_name: Option<String>,
    /// `spec.hostNetwork`.
    pub host_network: bool,
    /// `spec.containers`' ports.
    pub containers: Vec<Vec<ContainerPort>>,
    /// `spec.initContainers`' ports.
    pub init_containers: Vec<Vec<ContainerPort>>,
    /// `status.phase`.
    pub phase: Option<Phase>,
    /// `status.podIP`.
    pub pod_ip: Option<IpAddr>,
    /// `status.podIPs`.
    pub pod_ips: Vec<IpAddr>,
    /// The annotation `cni.projectcalico.org/podIPs`. There but empty: Calico has released the addresses.
    pub annotated_ips: Option<Vec<IpAddr>>,
}

/// One port of a container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ContainerPort {
    /// The name, if it has one.
    pub name: Option<String>,
    /// The number, 1-65535.
    pub port: u16,
    /// The protocol; TCP where absent.
    pub protocol: Option<Protocol>,
}

/// `status.phase` of a pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// Accepted, not running yet.
    Pending,
    /// At least one container runs.
    Running,
    /// All containers ended well.
    Succeeded,
    /// All containers ended, one of them badly.
    Failed,
    /// Its node does not answer.
    Unknown,
}

/// A transport protocol as the API spells it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protocol {
    /// `TCP`.
    Tcp,
    /// `UDP`.
    Udp,
    /// `SCTP`.
    Sctp,
}

/// `networking.k8s.io/v1` NetworkPolicy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NetworkPolicy {
    /// `spec.podSelector`; absent is the empty selector.
    pub pod_selector: LabelSelector,
    /// `spec.policyTypes`.
    pub policy_types: Option<Vec<PolicyType>>,
    /// `spec.ingress`.
    pub ingress: Option<Vec<Rule>>,
    /// `spec.egress`.
    pub egress: Option<Vec<Rule>>,
}

/// `spec.policyTypes[]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PolicyType {
    /// `Ingress`.
    Ingress,
    /// `Egress`.
    Egress,
}

/// A rule of either direction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rule {
    /// `from` of an ingress rule, `to` of an egress rule; absent or empty is everybody.
    pub peers: Option<Vec<Peer>>,
    /// `ports`; absent or empty is everything.
    pub ports: Option<Vec<Port>>,
}

/// A peer: either a block or selectors, never both, never nothing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Peer {
    /// `ipBlock`.
    IpBlock(IpBlock),
    /// `podSelector`, `namespaceSelector` or both.
    Selectors {
        /// Over the pod's labels; absent selects all.
        pods: Option<LabelSelector>,
        /// Over the namespace's labels; absent is the policy's own namespace.
        namespaces: Option<LabelSelector>,
    },
}

/// `ipBlock`. Host bits are kept as written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IpBlock {
    /// `cidr`.
    pub cidr: IpNet,
    /// `except`, each strictly inside `cidr`.
    pub except: Vec<IpNet>,
}

/// One of a rule's `ports`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Port {
    /// `protocol`; TCP where absent.
    pub protocol: Option<Protocol>,
    /// `port` with `endPort`; absent is every port of the protocol.
    pub port: Option<PortNumber>,
}

/// `port` and `endPort`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PortNumber {
    /// A number and perhaps the end of its range, which is not below it.
    Number {
        /// `port`.
        port: u16,
        /// `endPort`.
        end: Option<u16>,
    },
    /// A name.
    Name(String),
}

/// A label selector.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct LabelSelector {
    /// `matchLabels`.
    pub match_labels: Pairs,
    /// `matchExpressions`.
    pub match_expressions: Vec<Expression>,
}

/// `matchExpressions[]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Expression {
    /// `key`.
    pub key: String,
    /// `operator`.
    pub operator: Operator,
    /// `values`: at least one for In and `NotIn`, none for the others.
    pub values: Vec<String>,
}

/// `matchExpressions[].operator`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operator {
    /// `In`.
    In,
    /// `NotIn`.
    NotIn,
    /// `Exists`.
    Exists,
    /// `DoesNotExist`.
    DoesNotExist,
}

/// Calico's `IPPool`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IpPool {
    /// `spec.cidr`, host bits cut off.
    pub cidr: IpNet,
    /// `spec.ipipMode`; Never where absent.
    pub ipip_mode: Option<IpipMode>,
    /// `spec.natOutgoing`.
    pub nat_outgoing: bool,
    /// `spec.disabled`.
    pub disabled: bool,
}

/// `spec.ipipMode` of an [`IpPool`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IpipMode {
    /// Every packet between nodes is encapsulated.
    Always,
    /// Only between nodes whose subnets differ.
    CrossSubnet,
    /// None.
    Never,
}

impl Object {
    /// The pods that a policy selects; `None` for other kinds.
    pub fn pod_selector(&self) -> Option<&LabelSelector> {
        match self {
            Self::NetworkPolicy(policy) => Some(&policy.pod_selector),
            Self::Namespace(_) | Self::Node(_) | Self::Pod(_) | Self::IpPool(_) => None,
        }
    }
}
