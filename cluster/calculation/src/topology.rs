//! Where every prefix leads, seen from one node. This is computed only from the Nodes, the pools, and the addresses
//! that pods have outside of their nodes' blocks. The worker's routes and the kernel's routes are both made from it, so
//! they cannot disagree.

mod longest;
mod no_route;
mod seen;
mod source;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::{IpNet, Ipv4Net, Ipv6Net};

use self::longest::longest;
use self::no_route::lines;
pub use self::no_route::{NoRoute, NoRouteToPod, UnroutedAddresses};
use self::seen::{ClusterView, underlay_address, unheld};
pub use self::source::{RouteSource, routes};
use crate::import::{Cluster, Node};
use crate::interfaces::Interfaces;
use crate::overlay::Overlay;

/// All addresses.
const WORLD: [IpNet; 2] = [
    IpNet::V4(Ipv4Net::new_assert(Ipv4Addr::UNSPECIFIED, 0)),
    IpNet::V6(Ipv6Net::new_assert(Ipv6Addr::UNSPECIFIED, 0)),
];

/// Where a prefix leads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Route {
    /// A block of this node, or an address that a pod of this node borrows: only its endpoints are reachable in it.
    Local,
    /// An address of this node itself.
    Node,
    /// An address of this node by which it masquerades others ([`Plan`](manx_ipam::plan::Plan)). As a destination it is
    /// like the node's own. As a source it is unknown.
    Masquerade,
    /// Another node's block or borrowed address, unencapsulated, by that node's address.
    Direct(IpAddr),
    /// Another node's block or borrowed address, encapsulated to that node.
    Tunnel(Peer),
    /// Nowhere: such packets must never leave by the default route.
    NoRoute(NoRoute),
    /// Everything else.
    World,
}

impl Route {
    /// The far end of the tunnel that it leads through, if it does.
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
    /// The object that says so: a node or a pod.
    pub object: Option<String>,
    /// Where the prefix leads by it.
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

/// How the node itself reaches a block of pod addresses, or one that a pod borrows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum HostRoute {
    /// Through Manx: what is of this node, behind a tunnel, or leads nowhere. For a tunnel `source` is the node's
    /// tunnel address, because the far node checks that the inner source is in one of this node's blocks.
    Manx {
        /// The node's source address; the kernel chooses if absent.
        source: Option<IpAddr>,
    },
    /// Unencapsulated, by the node's own routes to another node.
    Node {
        /// The other node's address.
        address: IpAddr,
    },
}

/// The desired state of the node's namespace.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct HostNetwork {
    /// The node's tunnel addresses.
    pub addresses: Vec<IpAddr>,
    /// The addresses by which it masquerades others.
    pub masquerade_addresses: Vec<IpAddr>,
    /// How each block and each borrowed address is reached.
    pub blocks: Vec<(IpNet, HostRoute)>,
    /// The node's own addresses; no host beyond the uplink has them.
    pub own: BTreeSet<IpAddr>,
}

/// One node's view of the cluster.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Topology {
    /// Prefixes and where they lead.
    pub prefixes: BTreeMap<IpNet, Route>,
    /// This node's blocks, from which its pods get addresses.
    pub blocks: Vec<IpNet>,
    /// The node's own addresses of its blocks, for its traffic to remote pods.
    pub tunnel_addresses: Vec<IpAddr>,
    /// The node's own addresses, by which a host endpoint with `expectedIPs` finds the uplink.
    pub addresses: Vec<IpAddr>,
    /// The address to which other nodes send tunnel packets.
    pub underlay: Option<Ipv4Addr>,
    /// The nodes that send here, and by which overlay: the pools of this node's own blocks decide.
    pub senders: BTreeSet<Peer>,
    /// The hardware addresses of the nodes in VXLAN's inner frames, by the address of each node.
    pub vxlan_macs: BTreeMap<Ipv4Addr, [u8; 6]>,
    /// Other nodes' blocks that lie in no pool, with the nodes. These blocks lead nowhere.
    pub unpooled: BTreeMap<IpNet, String>,
    /// Borrowed addresses that lie in no pool. Pods reach those of this node, and the node itself none: its own table has
    /// no route for them, because it may need the address elsewhere.
    pub of_no_pool: BTreeSet<IpNet>,
    /// The addresses that do not lead to pods that name them.
    pub unrouted: UnroutedAddresses,
}

/// What a node needs an address for that is no pod's, wherever it lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum ReservedFor {
    /// The API server.
    ApiServer,
    /// The next hop of a default route.
    Gateway,
    /// A server in the node's resolv.conf.
    DnsServer,
    /// An interface of the node's own.
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

/// Addresses that are no pod's, and what for.
pub type Reserved = BTreeMap<IpAddr, ReservedFor>;

impl Topology {
    /// Whether another view differs only in [`Topology::prefixes`] and in what follows from these alone.
    pub(crate) fn differs_in_prefixes_alone(&self, other: &Self) -> bool {
        let Self { prefixes: _, unpooled: _, of_no_pool: _, unrouted: _, .. } = self;
        let Self { vxlan_macs, senders, .. } = self;
        let Self { blocks, tunnel_addresses, addresses, underlay, .. } = self;
        (vxlan_macs, senders, blocks) == (&other.vxlan_macs, &other.senders, &other.blocks)
            && (tunnel_addresses, addresses) == (&other.tunnel_addresses, &other.addresses)
            && *underlay == other.underlay
    }

    /// The longest prefix that contains an address, and where it leads.
    pub fn route(&self, address: IpAddr) -> (IpNet, Route) {
        let address = IpNet::from(address);
        let found = longest(&self.prefixes, address);
        found.map_or((address, Route::World), |(prefix, route)| (prefix, *route))
    }

    /// Whether an address is of the world beyond the cluster. A pod that has it in no pool does not change that.
    pub fn is_of_world(&self, address: IpAddr) -> bool {
        let (prefix, route) = self.route(address);
        let is_borrowed = || match route {
            Route::NoRoute(NoRoute::Unpooled) => !self.unpooled.contains_key(&prefix),
            _ => self.of_no_pool.contains(&prefix),
        };
        route == Route::World || is_borrowed()
    }

    /// The addresses by which this node masquerades others.
    pub fn masquerade_addresses(&self) -> impl Iterator<Item = IpAddr> {
        self.prefixes
            .iter()
            .filter(|(_, route)| **route == Route::Masquerade)
            .map(|(net, _)| net.addr())
    }

    /// The far ends of the tunnels by which packets leave, in order.
    pub fn receivers(&self) -> BTreeSet<Peer> {
        self.prefixes.values().filter_map(|route| route.tunnel()).collect()
    }

    /// The far ends of all tunnels, in order.
    pub fn peers(&self) -> BTreeSet<Peer> {
        self.receivers().union(&self.senders).copied().collect()
    }

    /// The interfaces of this node, called `node`, that host endpoints may govern.
    pub fn interfaces<'a>(&'a self, node: &'a str, uplink: &'a str) -> Interfaces<'a> {
        Interfaces { node, uplink: Some(uplink), addresses: &self.addresses }
    }

    /// What is wrong with the cluster as this node sees it.
    pub fn problems(&self) -> impl Iterator<Item = String> {
        let blocks = self.unpooled.iter().map(|(block, node)| {
            format!(
                "pod CIDR {block} of Node {node:?} lies in no IPPool, so it is not known whether it is behind a tunnel: \
                 not routed; make an IPPool around it (ipipMode: Never if it is not)"
            )
        });
        blocks.chain(lines(&self.unrouted))
    }

    /// What the node's own namespace must look like.
    pub fn host(&self) -> HostNetwork {
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
        let in_pools = self.prefixes.iter().filter(|(prefix, _)| !self.of_no_pool.contains(prefix));
        HostNetwork {
            addresses: self.tunnel_addresses.clone(),
            masquerade_addresses: self.masquerade_addresses().collect(),
            blocks: in_pools.filter_map(way).collect(),
            own: self.prefixes.iter().filter_map(own).collect(),
        }
    }
}

/// Why there is no topology: the node is not in the cluster, or cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TopologyError {
    /// No Node object of that name.
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
    /// A Node without a block has no addresses for pods.
    #[error(
        "Node {0:?} has no spec.podCIDR and no spec.podCIDRs: expected at least one block for its pods"
    )]
    NoBlock(String),
    /// Without all pools it is not known which blocks are behind tunnels. If such a block were taken for a direct one,
    /// hosts outside could send with its pods' addresses.
    #[error(
        "not valid, defined twice or overlapping: IPPool {}; until it is corrected or removed, it is not known which blocks are behind tunnels",
        .0.join(", ")
    )]
    InvalidPool(Vec<String>),
    /// Another node claims addresses of this one.
    #[error(
        "pod CIDR {own} of Node {name:?} overlaps {other} of Node {claimant:?}: give each node a block of its own"
    )]
    BlockClaimed {
        /// This node.
        name: String,
        /// Its block.
        own: IpNet,
        /// The other node.
        claimant: String,
        /// The other's block.
        other: IpNet,
    },
}

fn list(names: &[String], none: &str) -> String {
    if names.is_empty() { none.to_owned() } else { names.join(", ") }
}

/// The topology as seen from node `name`.
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

/// The same for an agent that starts, and has no earlier topology: while not all pools are known, nothing leads to other
/// nodes' pods, and nothing is accepted from them.
pub fn closed_topology(
    cluster: &Cluster,
    name: &str,
    reserved: &Reserved,
) -> Result<Topology, TopologyError> {
    let seen = ClusterView::new(cluster, name, reserved)?;
    let mut unrouted = seen.unrouted();
    unrouted.extend(unheld(cluster));
    let here = seen.here;
    let vxlan_macs = cluster
        .nodes
        .values()
        .filter_map(|node| Some((underlay_address(node)?, node.vxlan_mac)))
        .collect();
    Ok(Topology {
        prefixes: routes(seen.routes().map(|it| (it.prefix, it.source, it.route))),
        blocks: here.plan.blocks().to_vec(),
        tunnel_addresses: here.plan.tunnel_addresses().to_vec(),
        addresses: here.internal_ips.clone(),
        underlay: underlay_address(here),
        senders: seen.senders(),
        vxlan_macs,
        unpooled: seen.unpooled(),
        of_no_pool: seen.of_no_pool(),
        unrouted,
    })
}

/// The routes of all sources as seen from node `name`: what [`Topology::prefixes`] is made of.
pub fn contributions(
    cluster: &Cluster,
    name: &str,
    reserved: &Reserved,
) -> Result<Vec<Contribution>, TopologyError> {
    let seen = ClusterView::new(cluster, name, reserved)?;
    Ok(seen.routes().map(Contribution::from).collect())
}

/// The same where another CNI plugin connects the pods: all but the node itself and its attached pods is the world's, and
/// no block or pool matters.
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

/// What [`contributions`] is to [`topology`].
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
