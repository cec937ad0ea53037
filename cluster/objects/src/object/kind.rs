//! The kinds of object that are read, and the key that identifies an object.

use std::fmt;

use manx_policy_compiler::model::PolicyKind;

use super::controller::Controller;

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
    /// `networking.k8s.io/v1` `ServiceCIDR`.
    ServiceCidr,
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
    /// Calico's `BlockAffinity`.
    BlockAffinity,
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
    /// Calico's `BGPConfiguration`.
    BgpConfiguration,
    /// Calico's `BGPPeer`.
    BgpPeer,
    /// Calico's `BGPFilter`.
    BgpFilter,
}

impl Kind {
    /// All kinds that are read. [`Controller::Other`] stands for kinds that are not.
    pub const ALL: [Self; 35] = [
        Self::Namespace,
        Self::Node,
        Self::Pod,
        Self::ServiceAccount,
        Self::Service,
        Self::Endpoints,
        Self::EndpointSlice,
        Self::ServiceCidr,
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
        Self::BlockAffinity,
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
        Self::BgpConfiguration,
        Self::BgpPeer,
        Self::BgpFilter,
    ];

    /// Returns the name as written in manifests. Calico's NetworkPolicy has the same name as Kubernetes' NetworkPolicy;
    /// the API version distinguishes them.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Namespace => "Namespace",
            Self::Node => "Node",
            Self::Pod => "Pod",
            Self::ServiceAccount => "ServiceAccount",
            Self::Service => "Service",
            Self::Endpoints => "Endpoints",
            Self::EndpointSlice => "EndpointSlice",
            Self::ServiceCidr => "ServiceCIDR",
            Self::Workload(controller) => controller.name(),
            Self::NetworkPolicy | Self::CalicoNetworkPolicy => "NetworkPolicy",
            Self::ClusterNetworkPolicy => "ClusterNetworkPolicy",
            Self::AdminNetworkPolicy => "AdminNetworkPolicy",
            Self::BaselineAdminNetworkPolicy => "BaselineAdminNetworkPolicy",
            Self::IpPool => "IPPool",
            Self::BlockAffinity => "BlockAffinity",
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
            Self::BgpConfiguration => "BGPConfiguration",
            Self::BgpPeer => "BGPPeer",
            Self::BgpFilter => "BGPFilter",
        }
    }

    /// Returns the API versions that are read.
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
            Self::ServiceCidr | Self::NetworkPolicy => &["networking.k8s.io/v1"],
            Self::ClusterNetworkPolicy => {
                &["policy.networking.k8s.io/v1alpha2", "policy.networking.k8s.io/v1beta1"]
            }
            Self::AdminNetworkPolicy | Self::BaselineAdminNetworkPolicy => {
                &["policy.networking.k8s.io/v1alpha1"]
            }
            Self::IpPool
            | Self::BlockAffinity
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
            | Self::FelixConfiguration
            | Self::BgpConfiguration
            | Self::BgpPeer
            | Self::BgpFilter => CALICO,
        }
    }

    /// Returns whether the kind is Calico's. Calico's client may store such an object under a name other than the
    /// object's own.
    pub fn is_calicos(self) -> bool {
        self.api_versions() == CALICO
    }

    /// Returns whether objects of the kind are policies that are evaluated for reporting only.
    pub const fn staged(self) -> bool {
        matches!(
            self,
            Self::StagedNetworkPolicy
                | Self::StagedGlobalNetworkPolicy
                | Self::StagedKubernetesNetworkPolicy
        )
    }

    /// Returns which kind of policy the objects of this kind are, or `None` if they are not policies.
    pub const fn policy_kind(self) -> Option<PolicyKind> {
        match self {
            Self::NetworkPolicy => Some(PolicyKind::Kubernetes),
            Self::ClusterNetworkPolicy => Some(PolicyKind::Cluster),
            Self::AdminNetworkPolicy => Some(PolicyKind::Admin),
            Self::BaselineAdminNetworkPolicy => Some(PolicyKind::BaselineAdmin),
            Self::CalicoNetworkPolicy => Some(PolicyKind::Calico),
            Self::GlobalNetworkPolicy => Some(PolicyKind::Global),
            Self::StagedNetworkPolicy => Some(PolicyKind::StagedCalico),
            Self::StagedGlobalNetworkPolicy => Some(PolicyKind::StagedGlobal),
            Self::StagedKubernetesNetworkPolicy => Some(PolicyKind::StagedKubernetes),
            Self::Namespace
            | Self::Node
            | Self::Pod
            | Self::ServiceAccount
            | Self::Service
            | Self::Endpoints
            | Self::EndpointSlice
            | Self::ServiceCidr
            | Self::Workload(_)
            | Self::IpPool
            | Self::BlockAffinity
            | Self::Tier
            | Self::NetworkSet
            | Self::GlobalNetworkSet
            | Self::HostEndpoint
            | Self::Profile
            | Self::FelixConfiguration
            | Self::BgpConfiguration
            | Self::BgpPeer
            | Self::BgpFilter => None,
        }
    }

    /// Returns whether objects of the kind are policies that are enforced.
    pub const fn enforced_policy(self) -> bool {
        self.policy_kind().is_some() && !self.staged()
    }

    /// Returns whether an agent follows the kind at an API server. All kinds are followed except those from which the
    /// cluster makes other objects: it makes pods from workloads, and `EndpointSlices` from `Endpoints`.
    pub const fn is_followed(self) -> bool {
        !matches!(self, Self::Endpoints | Self::Workload(_))
    }

    /// Returns whether policies may allow more if an object of the kind is missing.
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

    /// Returns the effect of an object of the kind while it is not valid.
    pub const fn when_invalid(self) -> &'static str {
        match self {
            Self::Namespace => "until it is valid, nothing passes the pods of this namespace",
            Self::Node => "until it is valid, this node is unknown: nothing is routed to its pods",
            Self::Pod => "until it is valid, nothing passes to or from this pod's addresses",
            Self::ServiceAccount => {
                "until it is valid, nothing passes the pods that run as this service account"
            }
            Self::Service => {
                "until it is valid, it is not translated; policy reads a service's endpoints from its EndpointSlices only"
            }
            Self::Endpoints => "until it is valid, the endpoints of its service are not known",
            Self::EndpointSlice => {
                "until it is valid, policies that name a service of its namespace deny all traffic of what they select, and where Manx translates services those of its namespace are refused"
            }
            Self::ServiceCidr => {
                "until it is valid, nodes that translate services have no routes to its ranges"
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
            Self::BlockAffinity => {
                "until it is valid, agents with Calico's IPAM route its block to no node: of its addresses those are reached that pods have"
            }
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
            Self::BgpConfiguration => {
                "until it is valid, the nodes that it is for have no BGP peers"
            }
            Self::BgpPeer => "until it is valid, nobody is a BGP peer by it",
            Self::BgpFilter => {
                "until it is valid, BGP peers whose filter it is are told no route, and none is taken from them"
            }
        }
    }

    /// Returns whether objects of the kind belong to a namespace.
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
            | Self::ServiceCidr
            | Self::ClusterNetworkPolicy
            | Self::AdminNetworkPolicy
            | Self::BaselineAdminNetworkPolicy
            | Self::IpPool
            | Self::BlockAffinity
            | Self::GlobalNetworkPolicy
            | Self::StagedGlobalNetworkPolicy
            | Self::Tier
            | Self::GlobalNetworkSet
            | Self::HostEndpoint
            | Self::Profile
            | Self::FelixConfiguration
            | Self::BgpConfiguration
            | Self::BgpPeer
            | Self::BgpFilter => false,
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
    pub kind: Kind,
    /// The namespace; empty for kinds that have none.
    pub namespace: String,
    pub name: String,
}

impl ObjectKey {
    /// Builds the key. `namespace` must be empty for a kind that has none.
    pub fn new(kind: Kind, namespace: &str, name: &str) -> Self {
        Self { kind, namespace: namespace.to_owned(), name: name.to_owned() }
    }
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
