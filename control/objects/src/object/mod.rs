//! Wire objects: what manifests say, in the words of the Kubernetes and Calico APIs, checked but not interpreted.
//!
//! Nothing is defaulted here: an absent `policyTypes` is `None`. Import and the oracle each apply the defaults
//! themselves, so that one can catch the other's mistake.

pub mod calico;
pub mod cluster;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::IpAddr;

use ipnet::IpNet;

pub use cluster::ClusterNetworkPolicy;

/// The API versions of Calico's kinds.
const CALICO: &[&str] = &["projectcalico.org/v3", "crd.projectcalico.org/v1"];

/// The kinds of object that policy and routing are written in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// `v1` Namespace.
    Namespace,
    /// `v1` Node.
    Node,
    /// `v1` Pod.
    Pod,
    /// `v1` `ServiceAccount`.
    ServiceAccount,
    /// `v1` Service.
    Service,
    /// `discovery.k8s.io/v1` `EndpointSlice`.
    EndpointSlice,
    /// `networking.k8s.io/v1` NetworkPolicy.
    NetworkPolicy,
    /// `policy.networking.k8s.io/v1alpha2` and `v1beta1` ClusterNetworkPolicy.
    ClusterNetworkPolicy,
    /// `policy.networking.k8s.io/v1alpha1` AdminNetworkPolicy.
    AdminNetworkPolicy,
    /// `policy.networking.k8s.io/v1alpha1` BaselineAdminNetworkPolicy.
    BaselineAdminNetworkPolicy,
    /// Calico's `IPPool`.
    IpPool,
    /// Calico's NetworkPolicy.
    CalicoNetworkPolicy,
    /// Calico's GlobalNetworkPolicy.
    GlobalNetworkPolicy,
    /// Calico's StagedNetworkPolicy.
    StagedNetworkPolicy,
    /// Calico's StagedGlobalNetworkPolicy.
    StagedGlobalNetworkPolicy,
    /// Calico's StagedKubernetesNetworkPolicy.
    StagedKubernetesNetworkPolicy,
    /// Calico's Tier.
    Tier,
    /// Calico's `NetworkSet`.
    NetworkSet,
    /// Calico's `GlobalNetworkSet`.
    GlobalNetworkSet,
    /// Calico's `HostEndpoint`.
    HostEndpoint,
    /// Calico's Profile.
    Profile,
    /// Calico's `FelixConfiguration`.
    FelixConfiguration,
}

impl Kind {
    /// All of them.
    pub const ALL: [Self; 22] = [
        Self::Namespace,
        Self::Node,
        Self::Pod,
        Self::ServiceAccount,
        Self::Service,
        Self::EndpointSlice,
        Self::NetworkPolicy,
        Self::ClusterNetworkPolicy,
        Self::AdminNetworkPolicy,
        Self::BaselineAdminNetworkPolicy,
        Self::IpPool,
        Self::CalicoNetworkPolicy,
        Self::GlobalNetworkPolicy,
        Self::StagedNetworkPolicy,
        Self::StagedGlobalNetworkPolicy,
        Self::StagedKubernetesNetworkPolicy,
        Self::Tier,
        Self::NetworkSet,
        Self::GlobalNetworkSet,
        Self::HostEndpoint,
        Self::Profile,
        Self::FelixConfiguration,
    ];

    /// The name as manifests write it. Calico's NetworkPolicy has the name of Kubernetes': the API version tells them apart.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Namespace => "Namespace",
            Self::Node => "Node",
            Self::Pod => "Pod",
            Self::ServiceAccount => "ServiceAccount",
            Self::Service => "Service",
            Self::EndpointSlice => "EndpointSlice",
            Self::NetworkPolicy | Self::CalicoNetworkPolicy => "NetworkPolicy",
            Self::ClusterNetworkPolicy => "ClusterNetworkPolicy",
            Self::AdminNetworkPolicy => "AdminNetworkPolicy",
            Self::BaselineAdminNetworkPolicy => "BaselineAdminNetworkPolicy",
            Self::IpPool => "IPPool",
            Self::GlobalNetworkPolicy => "GlobalNetworkPolicy",
            Self::StagedNetworkPolicy => "StagedNetworkPolicy",
            Self::StagedGlobalNetworkPolicy => "StagedGlobalNetworkPolicy",
            Self::StagedKubernetesNetworkPolicy => "StagedKubernetesNetworkPolicy",
            Self::Tier => "Tier",
            Self::NetworkSet => "NetworkSet",
            Self::GlobalNetworkSet => "GlobalNetworkSet",
            Self::HostEndpoint => "HostEndpoint",
            Self::Profile => "Profile",
            Self::FelixConfiguration => "FelixConfiguration",
        }
    }

    /// The API versions that are read.
    pub const fn api_versions(self) -> &'static [&'static str] {
        match self {
            Self::Namespace | Self::Node | Self::Pod | Self::ServiceAccount | Self::Service => {
                &["v1"]
            }
            Self::EndpointSlice => &["discovery.k8s.io/v1"],
            Self::NetworkPolicy => &["networking.k8s.io/v1"],
            Self::ClusterNetworkPolicy => {
                &["policy.networking.k8s.io/v1alpha2", "policy.networking.k8s.io/v1beta1"]
            }
            Self::AdminNetworkPolicy | Self::BaselineAdminNetworkPolicy => {
                &["policy.networking.k8s.io/v1alpha1"]
            }
            Self::IpPool
            | Self::CalicoNetworkPolicy
            | Self::GlobalNetworkPolicy
            | Self::StagedNetworkPolicy
            | Self::StagedGlobalNetworkPolicy
            | Self::StagedKubernetesNetworkPolicy
            | Self::Tier
            | Self::NetworkSet
            | Self::GlobalNetworkSet
            | Self::HostEndpoint
            | Self::Profile
            | Self::FelixConfiguration => CALICO,
        }
    }

    /// Whether objects of the kind are policies that are evaluated for reporting only.
    pub const fn staged(self) -> bool {
        matches!(
            self,
            Self::StagedNetworkPolicy
                | Self::StagedGlobalNetworkPolicy
                | Self::StagedKubernetesNetworkPolicy
        )
    }

    /// Whether objects of the kind are policies that are enforced.
    pub const fn enforced_policy(self) -> bool {
        matches!(
            self,
            Self::NetworkPolicy
                | Self::ClusterNetworkPolicy
                | Self::AdminNetworkPolicy
                | Self::BaselineAdminNetworkPolicy
                | Self::CalicoNetworkPolicy
                | Self::GlobalNetworkPolicy
        )
    }

    /// Whether policy that stands elsewhere may allow more for want of an object of the kind.
    pub const fn opens_if_absent(self) -> bool {
        matches!(
            self,
            Self::Tier
                | Self::NetworkSet
                | Self::GlobalNetworkSet
                | Self::HostEndpoint
                | Self::FelixConfiguration
        )
    }

    /// What becomes of an object of the kind while it is not valid.
    pub const fn when_invalid(self) -> &'static str {
        match self {
            Self::Namespace => "until it is valid, nothing passes the pods of this namespace",
            Self::Node => "until it is valid, this node is unknown: nothing is routed to its pods",
            Self::Pod => "until it is valid, nothing passes to or from this pod's addresses",
            Self::ServiceAccount => {
                "until it is valid, nothing passes the pods that run as this service account"
            }
            Self::Service => "policy reads a service's endpoints from its EndpointSlices only",
            Self::EndpointSlice => {
                "until it is valid, policies that name a service of its namespace deny everything of what they select"
            }
            Self::NetworkPolicy => {
                "until it is valid, the pods that it may select are isolated both ways, and it allows nothing"
            }
            Self::ClusterNetworkPolicy
            | Self::AdminNetworkPolicy
            | Self::BaselineAdminNetworkPolicy
            | Self::CalicoNetworkPolicy
            | Self::GlobalNetworkPolicy => {
                "until it is valid, everything of what it may select is denied, ahead of all tiers"
            }
            Self::StagedNetworkPolicy
            | Self::StagedGlobalNetworkPolicy
            | Self::StagedKubernetesNetworkPolicy => "until it is valid, nothing is reported of it",
            Self::IpPool => "until it is valid, no packet to another node's pods is sent",
            Self::Tier => {
                "until it is valid, the policies of this tier deny everything of what they select; built-in tiers stay as they are"
            }
            Self::NetworkSet | Self::GlobalNetworkSet => {
                "until it is valid, policies whose rules may mean it deny everything of what they select"
            }
            Self::HostEndpoint => {
                "until it is valid, interfaces that no valid one is for pass nothing that a policy for forwarded traffic may deny, and of the node's own traffic only failsafe ports"
            }
            Self::Profile => "until it is valid, endpoints that need it are denied",
            Self::FelixConfiguration => {
                "until it is valid, pods do not reach their node, and the failsafe ports are Calico's own"
            }
        }
    }

    /// Whether objects of the kind live in namespaces.
    pub const fn namespaced(self) -> bool {
        match self {
            Self::Pod
            | Self::ServiceAccount
            | Self::Service
            | Self::EndpointSlice
            | Self::NetworkPolicy
            | Self::CalicoNetworkPolicy
            | Self::StagedNetworkPolicy
            | Self::StagedKubernetesNetworkPolicy
            | Self::NetworkSet => true,
            Self::Namespace
            | Self::Node
            | Self::ClusterNetworkPolicy
            | Self::AdminNetworkPolicy
            | Self::BaselineAdminNetworkPolicy
            | Self::IpPool
            | Self::GlobalNetworkPolicy
            | Self::StagedGlobalNetworkPolicy
            | Self::Tier
            | Self::GlobalNetworkSet
            | Self::HostEndpoint
            | Self::Profile
            | Self::FelixConfiguration => false,
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
    /// A service account.
    ServiceAccount(ServiceAccount),
    /// A service.
    Service(Service),
    /// Some of a service's endpoints.
    EndpointSlice(EndpointSlice),
    /// A Kubernetes policy, also a staged one.
    NetworkPolicy(Box<NetworkPolicy>),
    /// A cluster-wide policy of Kubernetes', in whichever of its three kinds.
    ClusterNetworkPolicy(Box<ClusterNetworkPolicy>),
    /// A policy of Calico's, namespaced, global, and staged either way: the key's kind tells.
    CalicoPolicy(Box<calico::Policy>),
    /// A tier.
    Tier(calico::Tier),
    /// A set of networks, of a namespace or global.
    NetworkSet(Box<calico::NetworkSet>),
    /// A node's interface.
    HostEndpoint(Box<calico::HostEndpoint>),
    /// A profile.
    Profile(Box<calico::Profile>),
    /// Felix's settings.
    FelixConfiguration(Box<calico::FelixConfiguration>),
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
    /// The annotation `projectcalico.org/VXLANTunnelMACAddr`.
    pub vxlan_mac: Option<[u8; 6]>,
}

/// A pod, as far as networking needs it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pod {
    /// The labels.
    pub labels: Pairs,
    /// Whether `metadata.deletionTimestamp` is there.
    pub deleting: bool,
    /// `spec.serviceAccountName`; absent is `default`.
    pub service_account: Option<String>,
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
    /// What its annotations say of addresses.
    pub annotated_ips: AnnotatedIps,
}

/// Where CNI plugins note the addresses that they gave a pod. `None`: the annotation is not there, or no address can be read
/// of it; empty: it is there, and is empty.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct AnnotatedIps {
    /// `cni.projectcalico.org/podIPs`.
    pub pod_ips: Option<Vec<IpAddr>>,
    /// `cni.projectcalico.org/podIP`: one address. Calico empties it when it has released the addresses.
    pub pod_ip: Option<Vec<IpAddr>>,
    /// `vpc.amazonaws.com/pod-ips`. Amazon's plugin empties it when it has released the addresses.
    pub aws_pod_ips: Option<Vec<IpAddr>>,
}

impl AnnotatedIps {
    /// Every address that any of them names.
    pub fn every(&self) -> impl Iterator<Item = IpAddr> + '_ {
        let lists = [&self.pod_ips, &self.pod_ip, &self.aws_pod_ips];
        lists.into_iter().flatten().flatten().copied()
    }
}

impl Pod {
    /// Every address that the manifest says the pod has, wherever it says so. A pod on the host's network has none of its
    /// own.
    pub fn every_address(&self) -> BTreeSet<IpAddr> {
        if self.host_network {
            return BTreeSet::new();
        }
        let of_status = self.pod_ips.iter().chain(&self.pod_ip).copied();
        of_status.chain(self.annotated_ips.every()).collect()
    }
}

/// A service account.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServiceAccount {
    /// The labels.
    pub labels: Pairs,
}

/// A service. Its endpoints are in `EndpointSlices`; what policy knows of the service itself is that it exists.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Service {
    /// The addresses under which clients know it (`spec.clusterIPs`, `externalIPs`, `loadBalancer` addresses).
    pub addresses: BTreeSet<IpAddr>,
}

/// `discovery.k8s.io/v1` `EndpointSlice`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EndpointSlice {
    /// The label `kubernetes.io/service-name`: the service it belongs to, in its own namespace.
    pub service: Option<String>,
    /// `endpoints[].addresses`. As in Calico, an endpoint's conditions do not matter.
    pub addresses: BTreeSet<IpAddr>,
    /// `ports[]`: protocol (TCP where absent) and number. An entry without a number is none, as in Calico.
    pub ports: Vec<(Protocol, u16)>,
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

/// `networking.k8s.io/v1` NetworkPolicy, and Calico's StagedKubernetesNetworkPolicy: the key's kind tells.
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
    /// `spec.stagedAction` of a StagedKubernetesNetworkPolicy; Set where absent.
    pub staged_action: Option<calico::StagedAction>,
}

/// `spec.policyTypes[]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
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
    /// `spec.cidr`, which has no host bits.
    pub cidr: IpNet,
    /// `spec.ipipMode`; Never where absent.
    pub ipip_mode: Option<EncapsulationMode>,
    /// `spec.vxlanMode`; Never where absent, and where `ipipMode` is not Never.
    pub vxlan_mode: Option<EncapsulationMode>,
}

/// `spec.ipipMode` and `spec.vxlanMode` of an [`IpPool`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EncapsulationMode {
    /// Every packet between nodes is encapsulated.
    Always,
    /// Only between nodes whose subnets differ.
    CrossSubnet,
    /// None.
    Never,
}

/// The endpoints that a policy selects, in the words of its API.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Subject {
    /// Pods of the policy's namespace.
    Kubernetes(LabelSelector),
    /// By Calico's selectors.
    Calico(calico::Subject),
    /// Pods of all namespaces.
    Cluster(cluster::Pods),
}

impl Object {
    /// The endpoints that a policy selects; `None` for other kinds.
    pub fn subject(&self) -> Option<Subject> {
        match self {
            Self::NetworkPolicy(policy) => Some(Subject::Kubernetes(policy.pod_selector.clone())),
            Self::ClusterNetworkPolicy(policy) => Some(Subject::Cluster(policy.subject.clone())),
            Self::CalicoPolicy(policy) => Some(Subject::Calico(policy.subject.clone())),
            _ => None,
        }
    }
}
