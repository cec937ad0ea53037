//! Wire objects: the contents of manifests in the words of the Kubernetes and Calico APIs, checked but not interpreted.
//!
//! No defaults are applied here: an absent `policyTypes` is `None`. The import and the oracle apply the defaults
//! independently, so that each can show the other's mistake.

pub mod calico;
pub mod cluster;
mod created;
mod pairs;
mod workload;

use std::collections::BTreeSet;
use std::fmt;
use std::net::IpAddr;

use ipnet::IpNet;

pub use cluster::ClusterNetworkPolicy;
pub use created::Created;
pub use pairs::{Pairs, PairsIter};
pub use workload::{Controller, Numbers, Workload, kind_and_group};

/// The API versions of Calico's kinds.
const CALICO: &[&str] = &["projectcalico.org/v3", "crd.projectcalico.org/v1"];

/// The kinds of object that define policy and routing.
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
    /// `v1` Endpoints.
    Endpoints,
    /// `discovery.k8s.io/v1` `EndpointSlice`.
    EndpointSlice,
    /// A workload: its controller makes pods.
    Workload(Controller),
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
    /// All that are read. [`Controller::Other`] stands for kinds that are not.
    pub const ALL: [Self; 30] = [
        Self::Namespace,
        Self::Node,
        Self::Pod,
        Self::ServiceAccount,
        Self::Service,
        Self::Endpoints,
        Self::EndpointSlice,
        Self::Workload(Controller::Deployment),
        Self::Workload(Controller::StatefulSet),
        Self::Workload(Controller::DaemonSet),
        Self::Workload(Controller::ReplicaSet),
        Self::Workload(Controller::ReplicationController),
        Self::Workload(Controller::Job),
        Self::Workload(Controller::CronJob),
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

    /// The name as manifests write it. Calico's NetworkPolicy has the same name as Kubernetes'; the API version tells
    /// them apart.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Namespace => "Namespace",
            Self::Node => "Node",
            Self::Pod => "Pod",
            Self::ServiceAccount => "ServiceAccount",
            Self::Service => "Service",
            Self::Endpoints => "Endpoints",
            Self::EndpointSlice => "EndpointSlice",
            Self::Workload(controller) => controller.name(),
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
            Self::Namespace
            | Self::Node
            | Self::Pod
            | Self::ServiceAccount
            | Self::Service
            | Self::Endpoints => &["v1"],
            Self::EndpointSlice => &["discovery.k8s.io/v1"],
            Self::Workload(controller) => controller.api_versions(),
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

    /// Whether policies may allow more if an object of the kind is missing.
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

    /// What happens to an object of the kind, or because of it, while it is not valid.
    pub const fn when_invalid(self) -> &'static str {
        match self {
            Self::Namespace => "until it is valid, nothing passes the pods of this namespace",
            Self::Node => "until it is valid, this node is unknown: nothing is routed to its pods",
            Self::Pod => "until it is valid, nothing passes to or from this pod's addresses",
            Self::ServiceAccount => {
                "until it is valid, nothing passes the pods that run as this service account"
            }
            Self::Service => "policy reads a service's endpoints from its EndpointSlices only",
            Self::Endpoints => "until it is valid, the endpoints of its service are not known",
            Self::EndpointSlice => {
                "until it is valid, policies that name a service of its namespace deny all traffic of what they select"
            }
            Self::Workload(_) => "until it is valid, no pods are made of it",
            Self::NetworkPolicy => {
                "until it is valid, the pods that it may select are isolated both ways, and it allows nothing"
            }
            Self::ClusterNetworkPolicy
            | Self::AdminNetworkPolicy
            | Self::BaselineAdminNetworkPolicy
            | Self::CalicoNetworkPolicy
            | Self::GlobalNetworkPolicy => {
                "until it is valid, all traffic of what it may select is denied, before all tiers"
            }
            Self::StagedNetworkPolicy
            | Self::StagedGlobalNetworkPolicy
            | Self::StagedKubernetesNetworkPolicy => "until it is valid, nothing is reported of it",
            Self::IpPool => "until it is valid, no packet to another node's pods is sent",
            Self::Tier => {
                "until it is valid, the policies of this tier deny all traffic of what they select; built-in tiers stay as they are"
            }
            Self::NetworkSet | Self::GlobalNetworkSet => {
                "until it is valid, policies whose rules may refer to it deny all traffic of what they select"
            }
            Self::HostEndpoint => {
                "until it is valid, an interface without a valid host endpoint passes no forwarded traffic that a policy may deny, and of the node's own traffic only failsafe ports"
            }
            Self::Profile => "until it is valid, endpoints that need it are denied",
            Self::FelixConfiguration => {
                "until it is valid, pods do not reach their node, and the failsafe ports are Calico's own"
            }
        }
    }

    /// Whether objects of the kind belong to a namespace.
    pub const fn namespaced(self) -> bool {
        match self {
            Self::Pod
            | Self::ServiceAccount
            | Self::Service
            | Self::Endpoints
            | Self::EndpointSlice
            | Self::Workload(_)
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

/// The unique key of an object.
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
    Node(Box<Node>),
    /// A pod.
    Pod(Box<Pod>),
    /// A service account.
    ServiceAccount(ServiceAccount),
    /// A service.
    Service(Box<Service>),
    /// A service's endpoints, in the older form.
    Endpoints(Box<Endpoints>),
    /// Some of a service's endpoints.
    EndpointSlice(Box<EndpointSlice>),
    /// A controller's template of pods; the key's kind says whose.
    Workload(Box<Workload>),
    /// A Kubernetes policy, also a staged one.
    NetworkPolicy(Box<NetworkPolicy>),
    /// A cluster-wide policy of Kubernetes, of any of its three kinds.
    ClusterNetworkPolicy(Box<ClusterNetworkPolicy>),
    /// A Calico policy: namespaced, global, or staged; the key's kind says which.
    CalicoPolicy(Box<calico::Policy>),
    /// A tier.
    Tier(calico::Tier),
    /// A network set, namespaced or global.
    NetworkSet(Box<calico::NetworkSet>),
    /// A node's interface.
    HostEndpoint(Box<calico::HostEndpoint>),
    /// A profile.
    Profile(Box<calico::Profile>),
    /// Felix's settings.
    FelixConfiguration(Box<calico::FelixConfiguration>),
    /// A pool of pod addresses.
    IpPool(Box<IpPool>),
}

/// A namespace. Its labels always contain `kubernetes.io/metadata.name`, as the API server ensures, whatever the
/// manifest says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Namespace {
    /// The labels.
    pub labels: Pairs,
}

/// A node, the part that routing needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Node {
    /// The labels.
    pub labels: Pairs,
    /// `spec.podCIDRs`; `spec.podCIDR` comes first if the list does not contain it. Without host bits.
    pub pod_cidrs: Vec<IpNet>,
    /// `status.addresses` of type `InternalIP`, in order.
    pub internal_ips: Vec<IpAddr>,
    /// `status.addresses` of type `ExternalIP`, in order.
    pub external_ips: Vec<IpAddr>,
    /// The annotation `projectcalico.org/IPv4Address` with its prefix length (32 if it has none); the address keeps its
    /// host bits.
    pub calico_address: Option<IpNet>,
    /// The annotation `projectcalico.org/VXLANTunnelMACAddr`.
    pub vxlan_mac: Option<[u8; 6]>,
}

/// A pod, the part that networking needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pod {
    /// The labels.
    pub labels: Pairs,
    /// `metadata.creationTimestamp`.
    pub created: Option<Created>,
    /// Whether `metadata.deletionTimestamp` is set.
    pub deleting: bool,
    /// The object that controls it: the reference in `metadata.ownerReferences` whose `controller` is true.
    pub owner: Option<Owner>,
    /// `spec.serviceAccountName`; `default` if absent.
    pub service_account: Option<String>,
    /// `spec.nodeName`.
    pub node_name: Option<String>,
    /// `spec.nodeSelector`: the labels of the nodes on which it may run.
    pub node_selector: Pairs,
    /// `spec.hostNetwork`.
    pub host_network: bool,
    /// `spec.containers`' ports.
    pub containers: Vec<Vec<ContainerPort>>,
    /// `spec.initContainers`' ports.
    pub init_containers: Vec<Vec<ContainerPort>>,
    /// `status.phase`.
    pub phase: Option<Phase>,
    /// `status.hostIP`: its node's address.
    pub host_ip: Option<IpAddr>,
    /// `status.podIP`.
    pub pod_ip: Option<IpAddr>,
    /// `status.podIPs`.
    pub pod_ips: Vec<IpAddr>,
    /// The addresses in its annotations.
    pub annotated_ips: AnnotatedIps,
    /// The annotations that ask for what Manx does not do: each row's name in the table of settings, and what is not
    /// done.
    pub not_done: Vec<(&'static str, &'static str)>,
}

/// The annotations in which CNI plugins store the addresses of a pod. `None`: the annotation is absent, or no address
/// in it can be read. Empty: it is there and empty.
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
    /// The addresses of all these annotations.
    pub fn every(&self) -> impl Iterator<Item = IpAddr> + '_ {
        let lists = [&self.pod_ips, &self.pod_ip, &self.aws_pod_ips];
        lists.into_iter().flatten().flatten().copied()
    }
}

impl Pod {
    /// The addresses in its status, which kubelet writes and no user of the cluster.
    pub fn reported_addresses(&self) -> impl Iterator<Item = IpAddr> + '_ {
        let has_any = !self.host_network;
        self.pod_ips.iter().chain(&self.pod_ip).copied().filter(move |_| has_any)
    }

    /// Every address that the manifest gives the pod, in any field. A pod on the host's network has none of its own.
    pub fn every_address(&self) -> BTreeSet<IpAddr> {
        if self.host_network {
            return BTreeSet::new();
        }
        self.reported_addresses().chain(self.annotated_ips.every()).collect()
    }
}

/// A service account.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServiceAccount {
    /// The labels.
    pub labels: Pairs,
}

/// The object that controls another one.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Owner {
    /// `kind`.
    pub kind: String,
    /// `name`, in the namespace of the object that is controlled.
    pub name: String,
}

/// A service. Policy reads its endpoints from `EndpointSlices`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Service {
    /// `metadata.labels`: its own, which say nothing of its endpoints.
    pub labels: Pairs,
    /// `spec.selector`: the labels of the pods that are its endpoints. Empty: the endpoints come from elsewhere.
    pub selector: Pairs,
    /// `spec.ports`.
    pub ports: Vec<ServicePort>,
    /// `spec.clusterIP` and `clusterIPs`.
    pub cluster_ips: BTreeSet<IpAddr>,
    /// The addresses at which clients reach it (`spec.clusterIPs`, `externalIPs`, `loadBalancer` addresses).
    pub addresses: BTreeSet<IpAddr>,
    /// `spec.externalTrafficPolicy: Local`: what comes to other addresses than its cluster IPs, and to its node ports, goes
    /// to endpoints of the same node, with the client's own address.
    pub keeps_clients: bool,
    /// `spec.clusterIP: None`: clients reach its endpoints at their own addresses and ports.
    pub headless: bool,
    /// `spec.externalName` if `spec.type` is `ExternalName`: DNS answers with this name, and there are no endpoints.
    pub external_name: Option<String>,
}

/// `spec.ports[]` of a service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServicePort {
    /// `name`.
    pub name: Option<String>,
    /// `protocol`; TCP if absent.
    pub protocol: Option<Protocol>,
    /// `port`, 1-65535.
    pub port: u16,
    /// `targetPort`: a number without an end, or a name; the same as `port` if absent.
    pub target: Option<PortNumber>,
    /// `nodePort`: the port of each node by which it is reached, too.
    pub node_port: Option<u16>,
}

/// `discovery.k8s.io/v1` `EndpointSlice`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EndpointSlice {
    /// The label `kubernetes.io/service-name`: the service it belongs to, in its own namespace.
    pub service: Option<String>,
    /// `endpoints[].addresses`. As in Calico, an endpoint's conditions do not matter.
    pub addresses: BTreeSet<IpAddr>,
    /// `ports[]`. An entry without a number is left out, as in Calico.
    pub ports: Vec<EndpointPort>,
}

/// `v1` Endpoints, as the cluster copies them if the service of this name has no selector.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Endpoints {
    /// The slices that are made of them: none of those that say that they are no service's.
    pub slices: Vec<EndpointSlice>,
}

/// `ports[]` of an `EndpointSlice`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EndpointPort {
    /// `name`: that of the service's port.
    pub name: Option<String>,
    /// `protocol`; TCP if absent.
    pub protocol: Protocol,
    /// `port`, 1-65535.
    pub port: u16,
}

/// One port of a container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ContainerPort {
    /// The name, if it has one.
    pub name: Option<String>,
    /// The number, 1-65535.
    pub port: u16,
    /// The protocol; TCP if absent.
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

/// A transport protocol of the API.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protocol {
    /// `TCP`.
    Tcp,
    /// `UDP`.
    Udp,
    /// `SCTP`.
    Sctp,
}

/// `networking.k8s.io/v1` NetworkPolicy, and Calico's StagedKubernetesNetworkPolicy; the key's kind says which.
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
    /// `from` of an ingress rule, `to` of an egress rule; every peer if absent or empty.
    pub peers: Option<Vec<Peer>>,
    /// `ports`; every port if absent or empty.
    pub ports: Option<Vec<Port>>,
}

/// A peer: either a block or selectors, never both and never neither.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Peer {
    /// `ipBlock`.
    IpBlock(IpBlock),
    /// `podSelector`, `namespaceSelector` or both.
    Selectors {
        /// By the pod's labels; all pods if absent.
        pods: Option<LabelSelector>,
        /// By the namespace's labels; the policy's own namespace if absent.
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
    /// `protocol`; TCP if absent.
    pub protocol: Option<Protocol>,
    /// `port` with `endPort`; every port of the protocol if absent.
    pub port: Option<PortNumber>,
}

/// `port` and `endPort`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PortNumber {
    /// A number, and perhaps the end of a range, which is not below the number.
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
    /// `spec.ipipMode`; Never if absent.
    pub ipip_mode: Option<EncapsulationMode>,
    /// `spec.vxlanMode`; Never if absent, and also if `ipipMode` is not Never.
    pub vxlan_mode: Option<EncapsulationMode>,
    /// `metadata.creationTimestamp`.
    pub created: Option<Created>,
}

/// `spec.ipipMode` and `spec.vxlanMode` of an [`IpPool`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EncapsulationMode {
    /// Every packet between nodes is encapsulated.
    Always,
    /// Only between nodes whose subnets differ.
    CrossSubnet,
    /// No packet is encapsulated.
    Never,
}

/// The endpoints that a policy selects, in the words of its API.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Subject {
    /// Pods of the policy's namespace.
    Kubernetes(LabelSelector),
    /// The endpoints that Calico's selectors match.
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
