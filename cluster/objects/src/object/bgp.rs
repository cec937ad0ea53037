//! Calico's kinds of BGP, of `projectcalico.org/v3` and `crd.projectcalico.org/v1`, in one form.
//!
//! Autonomous systems are numbers, also where they were written in two parts (`1.10`). Selectors are texts that are known
//! to parse and are never empty. Nothing is defaulted.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use ipnet::IpNet;

/// `BGPConfiguration`: the settings of all nodes (`default`), or some of one node's (`node.NAME`).
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct BgpConfiguration {
    /// `spec.asNumber`.
    pub system: Option<u32>,
    /// `spec.nodeToNodeMeshEnabled`; true if absent.
    pub mesh: Option<bool>,
    /// `spec.nodeMeshPassword`.
    pub mesh_password: Option<SecretKey>,
    /// `spec.nodeMeshMaxRestartTime`.
    pub mesh_restart_time: Option<Duration>,
    /// `spec.listenPort`; also in a node's settings.
    pub listen_port: Option<u16>,
    /// `spec.bindMode` is `NodeIP`: nodes listen at their own address only.
    pub listens_at_node_address: bool,
    /// `spec.serviceClusterIPs`, without host bits.
    pub cluster_ips: Vec<IpNet>,
    /// `spec.serviceExternalIPs`, without host bits.
    pub external_ips: Vec<IpNet>,
    /// `spec.serviceLoadBalancerIPs`, without host bits.
    pub load_balancer_ips: Vec<IpNet>,
    /// `spec.serviceLoadBalancerAggregation` is `Disabled`: single addresses of load balancers are announced.
    pub single_load_balancer_ips: bool,
    /// `spec.prefixAdvertisements`, with the communities that they name; also in a node's settings.
    pub advertisements: Vec<Advertisement>,
    /// `spec.ipv4NormalRoutePriority`; 1024 if absent.
    pub normal_priority_v4: Option<u32>,
    /// `spec.ipv6NormalRoutePriority`; 1024 if absent.
    pub normal_priority_v6: Option<u32>,
}

/// An item of `prefixAdvertisements`: routes in `cidr` get these communities.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Advertisement {
    /// Without host bits.
    pub cidr: IpNet,
    /// In the order of the object.
    pub communities: Vec<Community>,
}

/// A community.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Community {
    /// RFC 1997: two numbers of 16 bits.
    Standard(u32),
    /// RFC 8092: three numbers of 32 bits.
    Large([u32; 3]),
}

impl fmt::Display for Community {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Standard(number) => write!(f, "{}:{}", number >> 16, number & 0xffff),
            Self::Large([a, b, c]) => write!(f, "{a}:{b}:{c}"),
        }
    }
}

/// A key of a Secret.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SecretKey {
    /// The Secret, in the agents' namespace.
    pub name: String,
    /// The key in it.
    pub key: String,
}

/// `BGPPeer`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BgpPeer {
    /// Which nodes the peer is for.
    pub nodes: PeeringNodes,
    /// Who it is.
    pub remote: Remote,
    /// `spec.asNumber`. 0 counts as absent.
    pub system: Option<u32>,
    /// `spec.localASNumber`. 0 counts as absent.
    pub local_system: Option<u32>,
    /// `spec.nextHopMode`.
    pub next_hop: Option<NextHop>,
    /// `spec.keepOriginalNextHop`, the older form of `nextHopMode: Keep`, which counts for another system's peers only.
    pub keeps_next_hop: bool,
    /// `spec.password`.
    pub password: Option<SecretKey>,
    /// `spec.sourceAddress` is `None`: the kernel chooses the node's address.
    pub any_source: bool,
    /// `spec.maxRestartTime`.
    pub restart_time: Option<Duration>,
    /// `spec.numAllowedLocalASNumbers`. What is below 0 counts as 0.
    pub own_system_allowed: u32,
    /// `spec.ttlSecurity`: how many hops away the peer is. 0 counts as absent.
    pub hops: Option<u8>,
    /// `spec.reachableBy`: the gateway to the peer.
    pub reachable_by: Option<IpAddr>,
    /// `spec.filters`, in order.
    pub filters: Vec<String>,
    /// `spec.reversePeering` is `Manual`: the nodes that `peerSelector` selects get no peer by this object.
    pub is_one_way: bool,
}

/// The nodes that have a peer by a `BGPPeer`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PeeringNodes {
    /// All: neither `spec.node` nor `spec.nodeSelector` is written.
    All,
    /// `spec.node`.
    Named(String),
    /// `spec.nodeSelector`.
    Selected(String),
}

/// Whom a `BGPPeer` makes a peer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Remote {
    /// `spec.peerIP`.
    Address {
        address: IpAddr,
        /// The port, if one is written.
        port: Option<u16>,
    },
    /// `spec.peerSelector`: nodes.
    Nodes(String),
    /// `spec.localWorkloadSelector`: the node's own pods.
    Workloads(String),
}

/// `spec.nextHopMode` of a `BGPPeer`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NextHop {
    /// As BGP says.
    Auto,
    /// This node.
    Own,
    /// As it came.
    Keep,
}

/// `BGPFilter`: rules in order, by direction and family.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct BgpFilter {
    /// `spec.exportV4`.
    pub export_v4: Vec<FilterRule>,
    /// `spec.exportV6`.
    pub export_v6: Vec<FilterRule>,
    /// `spec.importV4`.
    pub import_v4: Vec<FilterRule>,
    /// `spec.importV6`.
    pub import_v6: Vec<FilterRule>,
}

/// A rule of a `BGPFilter`. It matches what meets all of its conditions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FilterRule {
    /// `cidr`, `matchOperator` and `prefixLength`.
    pub net: Option<NetMatch>,
    /// `source` is `RemotePeers`: routes that a peer brought.
    pub from_peers: bool,
    /// `interface`: a pattern with `*`.
    pub interface: Option<String>,
    /// `peerType` is `iBGP` (true) or `eBGP` (false).
    pub internal_peer: Option<bool>,
    /// The only item of `communities.values`.
    pub community: Option<Community>,
    /// `asPathPrefix`: how the path begins.
    pub path_begins: Vec<u32>,
    /// `priority`.
    pub priority: Option<u32>,
    /// `action` is `Accept`.
    pub accepts: bool,
    /// `operations`, in order; only with `Accept`.
    pub operations: Vec<Operation>,
}

/// `cidr`, `matchOperator` and `prefixLength` of a rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NetMatch {
    /// Without host bits; of the family of the rule.
    pub cidr: IpNet,
    /// `matchOperator`.
    pub operator: NetOperator,
    /// `prefixLength.min`.
    pub shortest: Option<u8>,
    /// `prefixLength.max`.
    pub longest: Option<u8>,
}

/// `matchOperator` of a rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NetOperator {
    Equal,
    NotEqual,
    In,
    NotIn,
}

/// An item of `operations` of a rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Operation {
    /// `addCommunity`.
    AddCommunity(Community),
    /// `prependASPath`: the path begins with these, in this order.
    PrependPath(Vec<u32>),
    /// `setPriority`.
    SetPriority(u32),
}

/// What a Node's annotations say about BGP.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct NodeBgp {
    /// `projectcalico.org/ASNumber`: the node's own autonomous system.
    pub system: Option<u32>,
    /// `projectcalico.org/RouteReflectorClusterID`: the node is a route reflector.
    pub cluster: Option<Ipv4Addr>,
    /// `projectcalico.org/IPv6Address` with its prefix length (128 if it has none); the address keeps its host bits.
    pub ipv6_address: Option<IpNet>,
}
