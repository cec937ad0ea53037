//! Calico's kinds of BGP, of `projectcalico.org/v3` and `crd.projectcalico.org/v1`, in one form.
//!
//! Numbers of autonomous systems are plain numbers, even if they were written in two parts (`1.10`). Selectors are
//! texts that are known to parse and are never empty. No defaults are applied.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use ipnet::IpNet;

/// `BGPConfiguration`: the settings of all nodes (`default`), or some settings of one node (`node.NAME`).
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
    /// `spec.bindMode` is `NodeIP`: each node listens on its own address only.
    pub listens_at_node_address: bool,
    /// `spec.serviceClusterIPs`, without host bits.
    pub cluster_ips: Vec<IpNet>,
    /// `spec.serviceExternalIPs`, without host bits.
    pub external_ips: Vec<IpNet>,
    /// `spec.serviceLoadBalancerIPs`, without host bits.
    pub load_balancer_ips: Vec<IpNet>,
    /// `spec.serviceLoadBalancerAggregation` is `Disabled`: each load balancer address is announced by itself.
    pub single_load_balancer_ips: bool,
    /// `spec.prefixAdvertisements`; the names of communities are already replaced by the communities. It may also be in
    /// a node's settings.
    pub advertisements: Vec<Advertisement>,
    /// `spec.ipv4NormalRoutePriority`; 1024 if absent.
    pub normal_priority_v4: Option<u32>,
    /// `spec.ipv6NormalRoutePriority`; 1024 if absent.
    pub normal_priority_v6: Option<u32>,
}

/// An item of `prefixAdvertisements`: routes within `cidr` get these communities.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Advertisement {
    /// The net, without host bits.
    pub cidr: IpNet,
    /// The communities, in the order of the object.
    pub communities: Vec<Community>,
}

/// A BGP community.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Community {
    /// A standard community (RFC 1997): two numbers of 16 bits.
    Standard(u32),
    /// A large community (RFC 8092): three numbers of 32 bits.
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

/// A reference to a key of a Secret.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SecretKey {
    /// The name of the Secret, which is in the agents' namespace.
    pub name: String,
    /// The key within the Secret.
    pub key: String,
}

/// `BGPPeer`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BgpPeer {
    /// The nodes that the peer is for.
    pub nodes: PeeringNodes,
    /// The peer itself.
    pub remote: Remote,
    /// `spec.asNumber`. 0 counts as absent.
    pub system: Option<u32>,
    /// `spec.localASNumber`. 0 counts as absent.
    pub local_system: Option<u32>,
    /// `spec.nextHopMode`.
    pub next_hop: Option<NextHop>,
    /// `spec.keepOriginalNextHop`, the older form of `nextHopMode: Keep`. It counts only for peers of another
    /// autonomous system.
    pub keeps_next_hop: bool,
    /// `spec.password`.
    pub password: Option<SecretKey>,
    /// `spec.sourceAddress` is `None`: the kernel chooses the source address.
    pub any_source: bool,
    /// `spec.maxRestartTime`.
    pub restart_time: Option<Duration>,
    /// `spec.numAllowedLocalASNumbers`. A negative number counts as 0.
    pub own_system_allowed: u32,
    /// `spec.ttlSecurity`: the number of hops to the peer. 0 counts as absent.
    pub hops: Option<u8>,
    /// `spec.reachableBy`: the gateway to the peer.
    pub reachable_by: Option<IpAddr>,
    /// `spec.filters`, in order.
    pub filters: Vec<String>,
    /// `spec.reversePeering` is `Manual`: the nodes that `peerSelector` selects do not get a peer from this object.
    pub is_one_way: bool,
}

/// The nodes to which a `BGPPeer` gives a peer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PeeringNodes {
    /// All nodes: both `spec.node` and `spec.nodeSelector` are absent.
    All,
    /// `spec.node`.
    Named(String),
    /// `spec.nodeSelector`.
    Selected(String),
}

/// The peers that a `BGPPeer` defines.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Remote {
    /// `spec.peerIP`.
    Address {
        address: IpAddr,
        /// The port, if `peerIP` contains one.
        port: Option<u16>,
    },
    /// `spec.peerSelector`: the peers are nodes.
    Nodes(String),
    /// `spec.localWorkloadSelector`: the peers are the node's own pods.
    Workloads(String),
}

/// `spec.nextHopMode` of a `BGPPeer`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NextHop {
    /// The next hop follows BGP's own rules.
    Auto,
    /// The next hop is this node.
    Own,
    /// The next hop stays as it was received.
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

/// A rule of a `BGPFilter`. It matches a route that meets all of its conditions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FilterRule {
    /// `cidr`, `matchOperator` and `prefixLength`.
    pub net: Option<NetMatch>,
    /// `source` is `RemotePeers`: the route was received from a peer.
    pub from_peers: bool,
    /// `interface`: a pattern for the interface's name, in which `*` stands for any text.
    pub interface: Option<String>,
    /// `peerType` is `iBGP` (true) or `eBGP` (false).
    pub internal_peer: Option<bool>,
    /// The only item of `communities.values`.
    pub community: Option<Community>,
    /// `asPathPrefix`: the AS path begins with these numbers.
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
    /// The net, without host bits and of the rule's address family.
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
    /// `prependASPath`: these numbers are put before the path, in this order.
    PrependPath(Vec<u32>),
    /// `setPriority`.
    SetPriority(u32),
}

/// The annotations of a Node that concern BGP.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct NodeBgp {
    /// `projectcalico.org/ASNumber`: the node's own autonomous system.
    pub system: Option<u32>,
    /// `projectcalico.org/RouteReflectorClusterID`: the node is a route reflector.
    pub cluster: Option<Ipv4Addr>,
    /// `projectcalico.org/IPv6Address` with its prefix length (128 if it has none); the address keeps its host bits.
    pub ipv6_address: Option<IpNet>,
}
