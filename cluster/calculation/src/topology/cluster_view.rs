//! A cluster as one node sees it: the routes of each source, and the data that follows from them.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr};

use ipnet::IpNet;

use super::longest::longest;
use super::{
    Contribution, NoRoute, NoRouteToPod, Peer, Reserved, Route, RouteSource, TopologyError,
    UnroutedAddresses, WORLD, node,
};
use crate::import::{Cluster, Node, Overlap, Pool, reported_within};
use manx_ipam::plan::Ipam;
use manx_objects::object::EncapsulationMode;
use manx_policy_compiler::model::ObjectName;

/// One source's route for a prefix.
pub(super) struct SourceRoute<'a> {
    pub(super) prefix: IpNet,
    pub(super) source: RouteSource,
    object: Option<Named<'a>>,
    pub(super) route: Route,
}

/// The object from which a route comes.
#[derive(Clone, Copy)]
enum Named<'a> {
    Node(&'a str),
    Pod(&'a ObjectName),
}

impl From<SourceRoute<'_>> for Contribution {
    fn from(SourceRoute { prefix, source, object, route }: SourceRoute<'_>) -> Self {
        let object = object.map(|it| match it {
            Named::Node(name) => format!("node {name}"),
            Named::Pod(name) => format!("pod {name}"),
        });
        Self { prefix: prefix.trunc(), source, object, route }
    }
}

/// A cluster as one node sees it.
pub(super) struct ClusterView<'a> {
    cluster: &'a Cluster,
    /// The name of the node.
    name: &'a str,
    pub(super) here: &'a Node,
    pools: Pools<'a>,
    contested: BTreeSet<IpNet>,
    borrowed: Vec<BorrowedAddress<'a>>,
    tunnels: Vec<TunnelAddress<'a>>,
}

/// An address that a pod has outside of its node's blocks.
struct BorrowedAddress<'a> {
    address: IpAddr,
    pod: &'a ObjectName,
    /// The route to the pod. `None` if the pod does not get this address.
    route: Option<Route>,
    unrouted: Option<NoRouteToPod>,
}

/// An address that another node's tunnel has outside of that node's blocks.
struct TunnelAddress<'a> {
    address: IpAddr,
    node: &'a str,
    route: Route,
}

impl<'a> ClusterView<'a> {
    pub(super) fn new(
        cluster: &'a Cluster,
        name: &'a str,
        reserved: &Reserved,
    ) -> Result<Self, TopologyError> {
        let here = node(cluster, name)?;
        if cluster.ipam == Ipam::HostLocal && here.plan.blocks().is_empty() {
            return Err(TopologyError::NoBlock(name.to_owned()));
        }
        let (contested, pools) = (contested(cluster, name)?, Pools::new(cluster));
        let borrowed = borrowed((cluster, &pools), name, here, reserved);
        let tunnels = tunnels((cluster, &pools), name, here, reserved);
        Ok(Self { cluster, name, here, pools, contested, borrowed, tunnels })
    }

    /// Returns the routes of all sources.
    pub(super) fn routes(&self) -> impl Iterator<Item = SourceRoute<'_>> {
        let Self { cluster, name, here, pools, contested, borrowed, tunnels } = self;
        let route = |prefix, source, object, route| SourceRoute { prefix, source, object, route };
        let world = WORLD.map(|it| route(it, RouteSource::World, None, Route::World));
        let of_pools = cluster.pools.iter().map(move |pool| {
            let why = if pool.holds_nodes { NoRoute::HoldsNodes } else { NoRoute::Unclaimed };
            route(pool.cidr, RouteSource::Pool, None, Route::NoRoute(why))
        });
        let with_nodes = cluster.pools.iter().filter(|pool| pool.holds_nodes);
        let in_pools = with_nodes.flat_map(|pool| reported_within(&cluster.nodes, pool.cidr));
        let in_pools = in_pools.map(move |(node, address)| {
            let node = Some(Named::Node(node));
            route(IpNet::from(address), RouteSource::NodeInPool, node, Route::World)
        });
        let of_nodes = self.blocks_of_others().map(move |(name, remote, block)| {
            let to = route_to(pools, here, remote, block);
            route(*block, RouteSource::NodeBlock, Some(Named::Node(name)), to)
        });
        let contested = contested.iter().map(move |block| {
            route(*block, RouteSource::ContestedBlock, None, Route::NoRoute(NoRoute::Contested))
        });
        let this = Some(Named::Node(name));
        let own = here.plan.blocks().iter();
        let own = own.map(move |block| route(*block, RouteSource::OwnBlock, this, Route::Local));
        let tunnels = tunnels.iter().map(move |it| {
            let (prefix, node) = (IpNet::from(it.address), Some(Named::Node(it.node)));
            route(prefix, RouteSource::TunnelAddress, node, it.route)
        });
        let borrowed = borrowed.iter().filter_map(move |it| {
            let (prefix, pod) = (IpNet::from(it.address), Some(Named::Pod(it.pod)));
            Some(route(prefix, RouteSource::BorrowedAddress, pod, it.route?))
        });
        let masquerade = here.plan.masquerade_addresses().iter();
        let masquerade = masquerade.map(move |address| {
            let prefix = IpNet::from(*address);
            route(prefix, RouteSource::MasqueradeAddress, this, Route::Masquerade)
        });
        let addresses = here.internal_ips.iter().chain(here.plan.tunnel_addresses());
        let addresses = addresses.map(move |address| {
            route(IpNet::from(*address), RouteSource::NodeAddress, this, Route::Node)
        });
        let of_cluster = world.into_iter().chain(of_pools).chain(in_pools).chain(of_nodes);
        let of_addresses = tunnels.chain(borrowed).chain(masquerade).chain(addresses);
        of_cluster.chain(contested).chain(own).chain(of_addresses)
    }

    fn blocks_of_others(&self) -> impl Iterator<Item = (&'a str, &'a Node, &'a IpNet)> {
        let others = self.cluster.nodes.iter().filter(|(other, _)| *other != self.name);
        others.flat_map(|(name, node)| node.plan.blocks().iter().map(move |it| (&**name, node, it)))
    }

    /// Returns the blocks of other nodes that are in no pool, with the names of the nodes.
    pub(super) fn unpooled_blocks(&self) -> BTreeMap<IpNet, String> {
        let unpooled = self.blocks_of_others();
        let unpooled = unpooled.filter(|(.., block)| self.pools.around(block).is_none());
        unpooled.map(|(name, _, block)| (block.trunc(), name.to_owned())).collect()
    }

    /// Returns the borrowed addresses that are in no pool.
    pub(super) fn unpooled_borrowed(&self) -> BTreeSet<IpNet> {
        let routed = self.borrowed.iter().filter(|it| it.route.is_some());
        let prefixes = routed.map(|it| IpNet::from(it.address));
        prefixes.filter(|it| self.pools.around(it).is_none()).collect()
    }

    /// Returns the borrowed addresses that do not lead to their pods.
    pub(super) fn unrouted(&self) -> UnroutedAddresses {
        let unrouted = self.borrowed.iter();
        let unrouted =
            unrouted.filter_map(|it| Some(((it.address, it.pod.clone()), it.unrouted.clone()?)));
        unrouted.collect()
    }

    /// Returns the nodes that send tunnel packets to this node. The destination's pool determines the encapsulation, so
    /// one prefix stands for all prefixes of the same pool and family.
    pub(super) fn senders(&self) -> BTreeSet<Peer> {
        let borrowed = self.borrowed.iter().filter(|it| it.route == Some(Route::Local));
        let borrowed = borrowed.map(|it| IpNet::from(it.address));
        let tunnels = self.here.plan.borrowed_tunnel_addresses().map(IpNet::from);
        let own = self.here.plan.blocks().iter().copied().chain(borrowed).chain(tunnels);
        let by_pool = own.map(|prefix| {
            let cidr = self.pools.around(&prefix).map(|pool| pool.cidr);
            ((cidr, prefix.addr().is_ipv4()), prefix)
        });
        let own: BTreeMap<_, IpNet> = by_pool.collect();
        let others = self.cluster.nodes.iter().filter(|(other, _)| *other != self.name);
        others
            .flat_map(|(_, remote)| own.values().map(move |prefix| (remote, prefix)))
            .filter_map(|(remote, prefix)| {
                let to = route_to(&self.pools, remote, self.here, prefix).tunnel()?;
                Some(Peer { address: underlay_address(remote)?, ..to })
            })
            .collect()
    }
}

/// The pools, indexed so that the pool of a block is found quickly.
struct Pools<'a> {
    by_cidr: BTreeMap<IpNet, &'a Pool>,
    /// Whether all pools are known.
    are_known: bool,
}

impl<'a> Pools<'a> {
    fn new(cluster: &'a Cluster) -> Self {
        let by_cidr = cluster.pools.iter().map(|pool| (pool.cidr.trunc(), pool)).collect();
        Self { by_cidr, are_known: cluster.invalid_pools.is_empty() }
    }

    /// Returns the smallest pool that contains a block.
    fn around(&self, block: &IpNet) -> Option<&'a Pool> {
        longest(&self.by_cidr, block.trunc()).map(|(_, pool)| *pool)
    }
}

/// Returns the route from `here` to a `block` of `remote`, which the block's pool determines. A block outside all pools
/// cannot be reached. Calico would send packets to it without encapsulation. This would be unsafe: if a pool is removed
/// while its blocks are in use, the packets of its tunnels would be sent unencapsulated on the underlay, and hosts
/// there could send packets with its pods' addresses.
fn route_to(pools: &Pools<'_>, here: &Node, remote: &Node, block: &IpNet) -> Route {
    let address = |v4: bool| remote.internal_ips.iter().copied().find(|ip| ip.is_ipv4() == v4);
    let Some(next_hop) = address(block.addr().is_ipv4()) else {
        return Route::NoRoute(NoRoute::NoAddress);
    };
    if !pools.are_known {
        return Route::NoRoute(NoRoute::UnknownPools);
    }
    let Some(pool) = pools.around(block) else { return Route::NoRoute(NoRoute::Unpooled) };
    let encapsulate = match pool.mode {
        EncapsulationMode::Never => false,
        EncapsulationMode::Always => true,
        EncapsulationMode::CrossSubnet => {
            !here.subnet.is_some_and(|subnet| subnet.contains(&next_hop))
        }
    };
    match next_hop {
        IpAddr::V4(address) if encapsulate => {
            Route::Tunnel(Peer { address, overlay: pool.overlay })
        }
        // Manx has no VXLAN for IPv6, and the packets must not be sent without a tunnel.
        IpAddr::V6(_) if encapsulate => Route::NoRoute(NoRoute::NoTunnel),
        direct => Route::Direct(direct),
    }
}

/// Returns the blocks that two other nodes claim; neither node gets them. Returns an error if another node claims a
/// block of this node.
fn contested(cluster: &Cluster, name: &str) -> Result<BTreeSet<IpNet>, TopologyError> {
    let mut contested = BTreeSet::new();
    for Overlap { outer, inner } in &cluster.overlaps {
        for (own, other) in [(outer, inner), (inner, outer)] {
            if own.0 == name {
                return Err(TopologyError::BlockClaimed {
                    name: name.to_owned(),
                    own: own.1,
                    claimant: other.0.clone(),
                    other: other.1,
                    ipam: cluster.ipam,
                });
            }
            contested.insert(own.1);
        }
    }
    Ok(contested)
}

/// Returns the address to which other nodes send a node's tunnel packets.
pub(super) fn underlay_address(node: &Node) -> Option<Ipv4Addr> {
    node.internal_ips.iter().find_map(|ip| match ip {
        IpAddr::V4(v4) => Some(*v4),
        IpAddr::V6(_) => None,
    })
}

impl Cluster {
    /// Returns all addresses of the nodes ([`Node::addresses`]), with the nodes' names.
    pub fn node_addresses(&self) -> BTreeMap<IpAddr, &str> {
        let of_nodes = self.nodes.iter().flat_map(|(name, node)| {
            node.addresses.iter().map(move |address| (*address, name.as_str()))
        });
        of_nodes.collect()
    }
}

/// Returns the borrowed addresses as `here`, the node `name`, sees them. A pod gets neither an address of a node nor a
/// reserved address.
fn borrowed<'a>(
    (cluster, pools): (&'a Cluster, &Pools<'_>),
    name: &str,
    here: &Node,
    reserved: &Reserved,
) -> Vec<BorrowedAddress<'a>> {
    if cluster.borrowed.is_empty() {
        return Vec::new();
    }
    let of_nodes = cluster.node_addresses();
    let mut all = Vec::new();
    for (address, (pod, node)) in &cluster.borrowed {
        let Some(remote) = cluster.nodes.get(&**node) else { continue };
        let (route, unrouted) = match (of_nodes.get(address), reserved.get(address)) {
            (Some(node), _) => (None, Some(NoRouteToPod::IsOfNode((*node).to_owned()))),
            (None, Some(what)) => (None, Some(NoRouteToPod::Reserved(*what))),
            (None, None) if **node == *name => (Some(Route::Local), None),
            (None, None) => {
                let route = route_to(pools, here, remote, &IpNet::from(*address));
                let is_unpooled = route == Route::NoRoute(NoRoute::Unpooled);
                (Some(route), is_unpooled.then_some(NoRouteToPod::Unpooled))
            }
        };
        all.push(BorrowedAddress { address: *address, pod, route, unrouted });
    }
    all
}

/// Returns the addresses of other nodes' tunnels that are in no block of these nodes, each with the route to its node.
/// The addresses come from Node objects, and every kubelet may write its own Node object. So such an address gets no
/// route in four cases: it is in no pool, it is reserved, another node has it, or a pod has it in a block of the pod's
/// own node.
fn tunnels<'a>(
    (cluster, pools): (&'a Cluster, &Pools<'_>),
    name: &str,
    here: &Node,
    reserved: &Reserved,
) -> Vec<TunnelAddress<'a>> {
    if cluster.borrowed_tunnels.is_empty() {
        return Vec::new();
    }
    let mut nodes_with: BTreeMap<IpAddr, usize> = BTreeMap::new();
    for address in cluster.nodes.values().flat_map(|node| &node.addresses) {
        if cluster.borrowed_tunnels.contains(address) {
            *nodes_with.entry(*address).or_default() += 1;
        }
    }
    let others = cluster.nodes.iter().filter(|(other, _)| **other != *name);
    let all = others.flat_map(|(node, remote)| {
        remote.plan.borrowed_tunnel_addresses().map(move |address| (&**node, remote, address))
    });
    let routed = all.filter_map(|(node, remote, address)| {
        let is_free = nodes_with.get(&address) == Some(&1)
            && !reserved.contains_key(&address)
            && !cluster.is_of_pod_in_own_block(address);
        let route = route_to(pools, here, remote, &IpNet::from(address));
        (is_free && route != Route::NoRoute(NoRoute::Unpooled)).then_some(TunnelAddress {
            address,
            node,
            route,
        })
    });
    routed.collect()
}

/// Returns the addresses that pods name but do not have.
pub(super) fn unheld(cluster: &Cluster) -> UnroutedAddresses {
    let unheld = cluster.unheld().into_iter();
    unheld.map(|(of, why)| (of, NoRouteToPod::Unheld(why))).collect()
}
