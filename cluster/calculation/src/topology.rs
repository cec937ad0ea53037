//! The route of every prefix, as one node sees it. Routes depend only on the Nodes, the pools, and the addresses that
//! pods have outside of their nodes' blocks. Both the workers' routes and the kernel's routes are made from these
//! routes, so they cannot disagree.

mod cluster_view;
mod longest;
mod no_route;
mod source;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use manx_ipam::plan::Ipam;

use self::cluster_view::{ClusterView, underlay_address, unheld};
use self::longest::longest;
use self::no_route::lines;
pub use self::no_route::{NoRoute, NoRouteToPod, UnroutedAddresses};
pub use self::source::{RouteSource, routes};
use crate::import::{Cluster, Node};
use crate::interfaces::Interfaces;
use crate::overlay::Overlay;

/// All addresses.
const WORLD: [IpNet; 2] = [
    IpNet::V4(Ipv4Net::new_assert(Ipv4Addr::UNSPECIFIED, 0)),
    IpNet::V6(Ipv6Net::new_assert(Ipv6Addr::UNSPECIFIED, 0)),
];

/// The route of a prefix: where packets to its addresses go, and how.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Route {
    /// A block of this node, or an address that a pod of this node borrows. Packets to it reach only endpoints of this
    /// node.
    Local,
    /// An address of this node itself.
    Node,
    /// An address by which this node masquerades other addresses ([`Plan`](manx_ipam::plan::Plan)). Packets to it are
    /// treated like packets to the node's own addresses. Packets from it are treated like packets from an unknown
    /// address.
    Masquerade,
    /// A block, borrowed address or tunnel address of another node. It is reached without encapsulation, through that
    /// node's address.
    Direct(IpAddr),
    /// A block, borrowed address or tunnel address of another node. It is reached through a tunnel to that node.
    Tunnel(Peer),
    /// An address that cannot be reached. Packets to it must never leave by the default route.
    NoRoute(NoRoute),
    /// Any other address, which is outside the cluster.
    World,
}

impl Route {
    /// Returns the far end of the tunnel, if the route uses one.
    pub const fn tunnel(self) -> Option<Peer> {
        match self {
            Self::Tunnel(peer) => Some(peer),
            Self::Local
            | Self::Node
            | Self::Masquerade
            | Self::Direct(_)
            | Self::NoRoute(_)
            | Self::World => None,
        }
    }
}

/// One source's route for a prefix.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Contribution {
    /// The prefix.
    pub prefix: IpNet,
    /// The source.
    pub source: RouteSource,
    /// The object from which the route comes: a node or a pod.
    pub object: Option<String>,
    /// The route that this source has for the prefix.
    pub route: Route,
}

/// The far end of a tunnel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Peer {
    /// The node's address.
    pub address: Ipv4Addr,
    /// The encapsulation.
    pub overlay: Overlay,
}

/// How the node itself reaches a block of pod addresses, or an address that a pod borrows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum HostRoute {
    /// The route leads through Manx. This is so for addresses that belong to this node, that need a tunnel, or that
    /// cannot be reached. For a tunnel, `source` is the node's tunnel address, because the far node checks that its
    /// route to the inner source leads to this node.
    Manx {
        /// The source address that the node uses. If it is `None`, the kernel chooses the address. A node without a
        /// tunnel address gets no replies through a tunnel.
        source: Option<IpAddr>,
    },
    /// The route leads to another node without encapsulation, by the node's own routes.
    Node {
        /// The other node's address.
        address: IpAddr,
    },
    /// The route leads out of the cluster to a router that has announced the prefix with BGP. Several routers may lead to
    /// the same prefix. A route of another program to the same prefix takes precedence.
    Router {
        /// The router's address.
        address: IpAddr,
    },
}

/// The desired state of the node's own network namespace.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct HostNetwork {
    /// The node's tunnel addresses.
    pub addresses: Vec<IpAddr>,
    /// The addresses by which the node masquerades other addresses.
    pub masquerade_addresses: Vec<IpAddr>,
    /// The route to each block, and to each borrowed address of pods and tunnels. A prefix has one route, or one for each
    /// of several routers.
    pub blocks: Vec<(IpNet, HostRoute)>,
    /// The node's own addresses. No host beyond the uplink has one of these addresses.
    pub own: BTreeSet<IpAddr>,
    /// Whether the routes through routers ([`HostRoute::Router`]) are not known yet. The routes of the last agent then
    /// stay.
    pub keeps_routers: bool,
}

/// One node's view of the cluster.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Topology {
    /// The IPAM that assigns pods' addresses.
    pub ipam: Ipam,
    /// The route of each prefix.
    pub prefixes: BTreeMap<IpNet, Route>,
    /// This node's blocks, from which its pods get addresses. With Calico's IPAM the node may have no block yet.
    pub blocks: Vec<IpNet>,
    /// The source addresses of the node's own packets to remote pods. They are in the node's blocks, except addresses
    /// that Calico's IPAM has assigned to the node's tunnels from elsewhere.
    pub tunnel_addresses: Vec<IpAddr>,
    /// The node's own addresses. They are compared with the `expectedIPs` of a host endpoint to find the host endpoint
    /// of the uplink.
    pub addresses: Vec<IpAddr>,
    /// The address to which other nodes send tunnel packets for this node.
    pub underlay: Option<Ipv4Addr>,
    /// The nodes that send tunnel packets to this node, each with the overlay. The pools of this node's own blocks
    /// determine the overlay.
    pub senders: BTreeSet<Peer>,
    /// The MAC address of each node in the inner frames of VXLAN, by the node's address.
    pub vxlan_macs: BTreeMap<Ipv4Addr, [u8; 6]>,
    /// The blocks of other nodes that are in no pool, with the names of the nodes. These blocks cannot be reached.
    pub unpooled_blocks: BTreeMap<IpNet, String>,
    /// Borrowed addresses that are in no pool. Pods can reach such an address if a pod of this node borrows it. The
    /// node itself cannot reach any of them: its kernel has no route for them, because the node may need the address
    /// for another destination.
    pub unpooled_borrowed: BTreeSet<IpNet>,
    /// The addresses whose routes do not lead to the pods that name them.
    pub unrouted: UnroutedAddresses,
    /// Whether Manx connects this node's pods. If another plugin connects them, that plugin also handles packets that
    /// leave the cluster, and pools do not apply.
    pub connects_pods: bool,
}

/// The reason why a node needs an address. No pod may have such an address, whatever pool or block contains it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum ReservedFor {
    /// The API server.
    ApiServer,
    /// The next hop of a default route.
    Gateway,
    /// A server in the node's resolv.conf.
    DnsServer,
    /// An interface of the node.
    Interface,
}

impl fmt::Display for ReservedFor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::ApiServer => "the API server",
            Self::Gateway => "a gateway of this node",
            Self::DnsServer => "a DNS server of this node",
            Self::Interface => "an interface of this node",
        })
    }
}

/// The addresses that no pod may have, with the reason for each.
pub type Reserved = BTreeMap<IpAddr, ReservedFor>;

impl Topology {
    /// Returns whether another view differs only in [`Topology::prefixes`] and in fields that follow from them.
    pub(crate) fn differs_in_prefixes_alone(&self, other: &Self) -> bool {
        let Self { prefixes: _, unpooled_blocks: _, unpooled_borrowed: _, unrouted: _, .. } = self;
        let Self { vxlan_macs, senders, .. } = self;
        let Self { blocks, tunnel_addresses, addresses, underlay, .. } = self;
        (vxlan_macs, senders, blocks) == (&other.vxlan_macs, &other.senders, &other.blocks)
            && (tunnel_addresses, addresses) == (&other.tunnel_addresses, &other.addresses)
            && *underlay == other.underlay
    }

    /// Returns the longest prefix that contains an address, and the route of this prefix.
    pub fn route(&self, address: IpAddr) -> (IpNet, Route) {
        let address = IpNet::from(address);
        let found = longest(&self.prefixes, address);
        found.map_or((address, Route::World), |(prefix, route)| (prefix, *route))
    }

    /// Returns whether an address is outside the cluster. An address in no pool counts as outside, even if a pod has
    /// it.
    pub fn is_of_world(&self, address: IpAddr) -> bool {
        let (prefix, route) = self.route(address);
        let is_borrowed = || match route {
            Route::NoRoute(NoRoute::Unpooled) => !self.unpooled_blocks.contains_key(&prefix),
            _ => self.unpooled_borrowed.contains(&prefix),
        };
        route == Route::World || is_borrowed()
    }

    /// Returns the addresses by which this node masquerades other addresses.
    pub fn masquerade_addresses(&self) -> impl Iterator<Item = IpAddr> {
        self.prefixes
            .iter()
            .filter(|(_, route)| **route == Route::Masquerade)
            .map(|(net, _)| net.addr())
    }

    /// Returns the far ends of the tunnels to which packets are sent, in order.
    pub fn receivers(&self) -> BTreeSet<Peer> {
        self.prefixes.values().filter_map(|route| route.tunnel()).collect()
    }

    /// Returns the far ends of all tunnels, in order.
    pub fn peers(&self) -> BTreeSet<Peer> {
        self.receivers().union(&self.senders).copied().collect()
    }

    /// Returns the interfaces of this node to which host endpoints may apply. `node` is the node's name.
    pub fn interfaces<'a>(&'a self, node: &'a str, uplink: &'a str) -> Interfaces<'a> {
        Interfaces { node, uplink: Some(uplink), addresses: &self.addresses }
    }

    /// Returns the problems of the cluster as this node sees it.
    pub fn problems(&self) -> impl Iterator<Item = String> {
        let name = self.ipam.block();
        let blocks = self.unpooled_blocks.iter().map(move |(block, node)| {
            format!(
                "{name} {block} of Node {node:?} lies in no IPPool, so it is not known whether it is behind a tunnel: \
                 not routed; make an IPPool around it (ipipMode: Never if it is not)"
            )
        });
        blocks.chain(lines(&self.unrouted, self.ipam))
    }

    /// Returns the desired state of the node's own network namespace.
    pub fn host_network(&self) -> HostNetwork {
        let source = |block: &IpNet| {
            self.tunnel_addresses.iter().copied().find(|ip| ip.is_ipv4() == block.addr().is_ipv4())
        };
        let way = |(block, route): (&IpNet, &Route)| match *route {
            Route::NoRoute(NoRoute::HoldsNodes)
            | Route::Node
            | Route::Masquerade
            | Route::World => None,
            Route::Local | Route::NoRoute(_) => Some((*block, HostRoute::Manx { source: None })),
            Route::Tunnel(_) => Some((*block, HostRoute::Manx { source: source(block) })),
            Route::Direct(address) => Some((*block, HostRoute::Node { address })),
        };
        let own = |(prefix, route): (&IpNet, &Route)| {
            matches!(route, Route::Node | Route::Masquerade).then_some(prefix.addr())
        };
        let in_pools =
            self.prefixes.iter().filter(|(prefix, _)| !self.unpooled_borrowed.contains(prefix));
        HostNetwork {
            addresses: self.tunnel_addresses.clone(),
            masquerade_addresses: self.masquerade_addresses().collect(),
            blocks: in_pools.filter_map(way).collect(),
            own: self.prefixes.iter().filter_map(own).collect(),
            keeps_routers: false,
        }
    }
}

/// The reason why there is no topology: the node is not in the cluster, or cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TopologyError {
    /// The datastore has no Node object of that name.
    #[error(
        "no Node named {name:?} in the datastore, which holds {}: create it, or start the agent with --name of one that exists",
        list(.found, "no Node at all")
    )]
    UnknownNode {
        /// The name.
        name: String,
        /// The Nodes that exist.
        found: Vec<String>,
    },
    /// The Node has no block, so there are no addresses for its pods. (With Calico's IPAM this is not an error, because
    /// a node gets a block with its first pod.)
    #[error(
        "Node {0:?} has no spec.podCIDR and no spec.podCIDRs: expected at least one block for its pods"
    )]
    NoBlock(String),
    /// Not all pools are valid, so it is not known which blocks need a tunnel. If such a block were treated as direct,
    /// hosts outside the cluster could send packets with its pods' addresses.
    #[error(
        "not valid, defined twice or overlapping: IPPool {}; until it is corrected or removed, it is not known which blocks are behind tunnels",
        .0.join(", ")
    )]
    InvalidPool(Vec<String>),
    /// Another node claims addresses of this one.
    #[error(
        "{} {own} of Node {name:?} overlaps {other} of Node {claimant:?}: give each node a block of its own",
        .ipam.block()
    )]
    BlockClaimed {
        /// This node.
        name: String,
        /// The block of this node.
        own: IpNet,
        /// The other node.
        claimant: String,
        /// The block of the other node.
        other: IpNet,
        /// The IPAM that assigned the blocks.
        ipam: Ipam,
    },
}

fn list(names: &[String], none: &str) -> String {
    if names.is_empty() { none.to_owned() } else { names.join(", ") }
}

/// Returns the topology as the node `name` sees it.
pub fn topology(
    cluster: &Cluster,
    name: &str,
    reserved: &Reserved,
) -> Result<Topology, TopologyError> {
    let closed = closed_topology(cluster, name, reserved)?;
    if cluster.invalid_pools.is_empty() {
        Ok(closed)
    } else {
        Err(TopologyError::InvalidPool(cluster.invalid_pools.clone()))
    }
}

/// Returns the topology for an agent that starts and has no earlier topology. While not all pools are known, pods of
/// other nodes cannot be reached, and no packets from them are accepted.
pub fn closed_topology(
    cluster: &Cluster,
    name: &str,
    reserved: &Reserved,
) -> Result<Topology, TopologyError> {
    let view = ClusterView::new(cluster, name, reserved)?;
    let mut unrouted = view.unrouted();
    unrouted.extend(unheld(cluster));
    let here = view.here;
    let vxlan_macs = cluster
        .nodes
        .values()
        .filter_map(|node| Some((underlay_address(node)?, node.vxlan_mac)))
        .collect();
    Ok(Topology {
        connects_pods: true,
        ipam: cluster.ipam,
        prefixes: routes(view.routes().map(|it| (it.prefix, it.source, it.route))),
        blocks: here.plan.blocks().to_vec(),
        tunnel_addresses: here.plan.tunnel_addresses().to_vec(),
        addresses: here.internal_ips.clone(),
        underlay: underlay_address(here),
        senders: view.senders(),
        vxlan_macs,
        unpooled_blocks: view.unpooled_blocks(),
        unpooled_borrowed: view.unpooled_borrowed(),
        unrouted,
    })
}

/// Returns the routes of all sources as the node `name` sees them. [`Topology::prefixes`] is made from these.
pub fn contributions(
    cluster: &Cluster,
    name: &str,
    reserved: &Reserved,
) -> Result<Vec<Contribution>, TopologyError> {
    let view = ClusterView::new(cluster, name, reserved)?;
    Ok(view.routes().map(Contribution::from).collect())
}

/// Returns the topology for a node on which another CNI plugin connects the pods. All addresses count as outside the
/// cluster, except those of the node itself and of its attached pods. Blocks and pools do not matter.
pub fn policy_only(cluster: &Cluster, name: &str) -> Result<Topology, TopologyError> {
    let here = node(cluster, name)?;
    let all = policy_only_contributions(cluster, name)?;
    Ok(Topology {
        prefixes: routes(all.into_iter().map(|it| (it.prefix, it.source, it.route))),
        addresses: here.internal_ips.clone(),
        unrouted: unheld(cluster),
        ..Topology::default()
    })
}

/// Returns the routes of all sources if another CNI plugin connects the pods. The prefixes of [`policy_only`] are made
/// from these.
pub fn policy_only_contributions(
    cluster: &Cluster,
    name: &str,
) -> Result<Vec<Contribution>, TopologyError> {
    let route = |prefix, source, object, route| Contribution { prefix, source, object, route };
    let world = WORLD.map(|prefix| route(prefix, RouteSource::World, None, Route::World));
    let own = node(cluster, name)?.internal_ips.iter().map(|ip| {
        let this = Some(format!("node {name}"));
        route(IpNet::from(*ip), RouteSource::NodeAddress, this, Route::Node)
    });
    Ok(world.into_iter().chain(own).collect())
}

fn node<'a>(cluster: &'a Cluster, name: &str) -> Result<&'a Node, TopologyError> {
    cluster.nodes.get(name).ok_or_else(|| TopologyError::UnknownNode {
        name: name.to_owned(),
        found: cluster.nodes.keys().cloned().collect(),
    })
}

#[cfg(test)]
mod tests;
