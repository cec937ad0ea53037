//! Wire objects: the contents of manifests in the terms of the Kubernetes and Calico APIs, checked but not interpreted.
//!
//! No defaults are applied here: an absent `policyTypes` is `None`. The import and the oracle apply the defaults
//! independently, so that each can reveal a mistake of the other. Protocols, actions, orders and ICMP types are the
//! policy compiler's types, because the APIs and the compiler's model define them alike.

pub mod bgp;
mod block_affinity;
pub mod calico;
pub mod cluster;
mod controller;
mod created;
mod kind;
mod label_selector;
mod namespace;
mod network_policy;
mod node;
mod pairs;
mod pod;
mod policy_type;
mod pool;
mod port;
mod service;
mod workload;

pub use bgp::{BgpConfiguration, BgpFilter, BgpPeer, NodeBgp};
pub use block_affinity::{AffinityState, AffinityType, BlockAffinity};
pub use cluster::ClusterNetworkPolicy;
pub use controller::Controller;
pub use created::Created;
pub use kind::{Kind, ObjectKey};
pub use label_selector::{Expression, LabelSelector, Operator};
pub use namespace::{Namespace, ServiceAccount};
pub use network_policy::{IpBlock, NetworkPolicy, Peer, Port, Rule};
pub use node::{NODE_ADDRESSES, Node, TO_BE_DELETED, TUNNEL_ADDRESSES};
pub use pairs::{Pairs, PairsIter};
pub use pod::{AnnotatedIps, ContainerPort, HostPort, Owner, Phase, Pod};
pub use policy_type::PolicyType;
pub use pool::{AssignmentMode, EncapsulationMode, IpPool, PoolUse};
pub use port::{PortNumber, Protocol};
pub use service::{
    ClientAffinity, EndpointPort, EndpointSlice, Endpoints, Hints, Service, ServiceCidr,
    ServicePort, ServiceType, SliceEndpoint,
};
pub use workload::{Numbers, Workload, kind_and_group};

/// A valid object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Object {
    Namespace(Namespace),
    Node(Box<Node>),
    Pod(Box<Pod>),
    ServiceAccount(ServiceAccount),
    Service(Box<Service>),
    /// A service's endpoints, in the older form.
    Endpoints(Box<Endpoints>),
    /// Some of a service's endpoints.
    EndpointSlice(Box<EndpointSlice>),
    /// Ranges of services' addresses.
    ServiceCidr(ServiceCidr),
    /// A controller's template of pods. The kind in the object's key names the controller.
    Workload(Box<Workload>),
    /// A Kubernetes policy, enforced or staged.
    NetworkPolicy(Box<NetworkPolicy>),
    /// A cluster-wide policy of Kubernetes, of any of its three kinds.
    ClusterNetworkPolicy(Box<ClusterNetworkPolicy>),
    /// A Calico policy: namespaced, global, or staged. The kind in the object's key says which.
    CalicoPolicy(Box<calico::Policy>),
    Tier(calico::Tier),
    /// A network set, namespaced or global.
    NetworkSet(Box<calico::NetworkSet>),
    /// A node's interface.
    HostEndpoint(Box<calico::HostEndpoint>),
    Profile(Box<calico::Profile>),
    /// Felix's settings.
    FelixConfiguration(Box<calico::FelixConfiguration>),
    /// A pool of pod addresses.
    IpPool(Box<IpPool>),
    /// A node's claim to a block of pod addresses.
    BlockAffinity(Box<BlockAffinity>),
    /// The settings of BGP, for all nodes or for one node.
    BgpConfiguration(Box<BgpConfiguration>),
    /// The peers with which nodes speak BGP.
    BgpPeer(Box<BgpPeer>),
    /// The routes that nodes send to peers and accept from them.
    BgpFilter(Box<BgpFilter>),
}

/// The endpoints that a policy selects, in the terms of its API.
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
    /// Returns the endpoints that a policy selects, or `None` for other kinds.
    pub fn subject(&self) -> Option<Subject> {
        match self {
            Self::NetworkPolicy(policy) => Some(Subject::Kubernetes(policy.pod_selector.clone())),
            Self::ClusterNetworkPolicy(policy) => Some(Subject::Cluster(policy.subject.clone())),
            Self::CalicoPolicy(policy) => Some(Subject::Calico(policy.subject.clone())),
            _ => None,
        }
    }
}
