//! Where every prefix leads, seen from one node. This is computed only from the Nodes, the pools, and the addresses
//! that pods have outside of their nodes' blocks. The worker's routes and the kernel's routes are both made from it, so
//! they cannot disagree.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use manx_policy_compiler::model::ObjectName;

use crate::block;
use crate::import::{Cluster, Node, Overlap, Overlay, Pool, Unheld, reported_within};
use crate::interfaces::Interfaces;
use manx_objects::object::EncapsulationMode;

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
    /// An address of this node by which it masquerades others ([`block::masquerade_address`]): a destination like the
    /// node's own, and a source of which nothing is known.
    Masquerade,
    /// Another node's block or borrowed address, unencapsulated, by that node's address.
    Direct(IpAddr),
    /// Another node's block or borrowed address, encapsulated to that node.
    Tunnel(Peer),
    /// Nowhere: such packets must never leave by the default route.
    Nowhere(Nowhere),
    /// Everything else.
    World,
}

/// Why a prefix leads nowhere.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Nowhere {
    /// It belongs to a pool and to no node.
    Unclaimed,
    /// Two nodes claim it as a block.
    Contested,
    /// It belongs to a node and lies in no pool.
    Unpooled,
    /// Its node has no address of its family.
    NoAddress,
    /// Its pool requires a tunnel, and only IPv4 travels in tunnels.
    NoTunnel,
    /// It belongs to a pool that holds addresses of nodes, and to no node. The node's own table has no such route.
    HoldsNodes,
    /// It belongs to another node, and not all pools are known.
    UnknownPools,
}

impl fmt::Display for Nowhere {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Unclaimed => "is part of an IPPool and of no node's pod CIDRs",
            Self::Contested => "is claimed by two nodes",
            Self::Unpooled => {
                "belongs to a node and lies in no IPPool, so it is not known whether it is behind a tunnel"
            }
            Self::NoAddress => "belongs to a node that has no address of this family",
            Self::NoTunnel => "lies in an IPPool that asks for a tunnel, and only IPv4 travels in tunnels",
            Self::HoldsNodes => "is part of an IPPool that holds addresses of nodes, and of no node's pod CIDRs",
            Self::UnknownPools => "belongs to a node, and an IPPool is not valid, so it is not known whether it is behind a tunnel",
        })
    }
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
pub struct Desired {
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
    /// The node's own address of each block ([`block::tunnel_address`]), for its traffic to remote pods.
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
    pub unrouted: Unroutables,
}

/// Addresses that pods name and that do not lead to them, with the pods.
pub type Unroutables = BTreeMap<(IpAddr, ObjectName), Unrouted>;

/// Why an address does not lead to a pod that names it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Unrouted {
    /// The pod does not have it.
    Unheld(Unheld),
    /// It is an address of this node.
    IsOfNode(String),
    /// It is needed for this, and so no pod's.
    Reserved(ReservedFor),
    /// It lies in no pool.
    Unpooled,
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

    /// The longest prefix that contains an address, and where it leads. It takes a few lookups, however many prefixes
    /// there are: of two prefixes that both contain the address, the longer sorts after the shorter. So the last one up
    /// to the address either contains it, or lies in every one that does, and these are no longer than what both have
    /// in common.
    pub fn route(&self, address: IpAddr) -> (IpNet, Route) {
        let mut bound = IpNet::from(address);
        while let Some((prefix, route)) = self.prefixes.range(..=bound).next_back() {
            if prefix.contains(&address) {
                return (*prefix, *route);
            }
            let Some(shorter) = common_prefix(*prefix, bound) else { break };
            bound = shorter;
        }
        (address.into(), Route::World)
    }

    /// Whether an address is of the world beyond the cluster. A pod that has it in no pool does not change that.
    pub fn is_of_world(&self, address: IpAddr) -> bool {
        let (prefix, route) = self.route(address);
        let is_borrowed = || match route {
            Route::Nowhere(Nowhere::Unpooled) => !self.unpooled.contains_key(&prefix),
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
        let tunnel = |route: &Route| match route {
            Route::Tunnel(peer) => Some(*peer),
            Route::Local
            | Route::Node
            | Route::Masquerade
            | Route::Direct(_)
            | Route::Nowhere(_)
            | Route::World => None,
        };
        self.prefixes.values().filter_map(tunnel).collect()
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
        blocks.chain(unrouted_lines(&self.unrouted))
    }

    /// What the node's own namespace must look like.
    pub fn host(&self) -> Desired {
        let source = |block: &IpNet| {
            self.tunnel_addresses.iter().copied().find(|ip| ip.is_ipv4() == block.addr().is_ipv4())
        };
        let way = |(block, route): (&IpNet, &Route)| match *route {
            Route::Nowhere(Nowhere::HoldsNodes)
            | Route::Node
            | Route::Masquerade
            | Route::World => None,
            Route::Local | Route::Nowhere(_) => Some((*block, HostRoute::Manx { source: None })),
            Route::Tunnel(_) => Some((*block, HostRoute::Manx { source: source(block) })),
            Route::Direct(address) => Some((*block, HostRoute::Node { address })),
        };
        let own = |(prefix, route): (&IpNet, &Route)| {
            matches!(route, Route::Node | Route::Masquerade).then_some(prefix.addr())
        };
        let in_pools = self.prefixes.iter().filter(|(prefix, _)| !self.of_no_pool.contains(prefix));
        Desired {
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

/// One line for each cause, however many addresses it concerns: all pods of a cluster may have the same one.
fn unrouted_lines(unrouted: &Unroutables) -> Vec<String> {
    const SHOWN: usize = 5;
    let mut causes: BTreeMap<(String, &str), Vec<String>> = BTreeMap::new();
    for ((address, pod), why) in unrouted {
        let of_pod = format!("{address} of Pod {pod}");
        let (cause, remedy, of) = match why {
            Unrouted::Unheld(Unheld::Held(other)) => (
                "because other pods have them".to_owned(),
                "give each pod its own",
                format!("{of_pod} (Pod {other} has it)"),
            ),
            Unrouted::Unheld(Unheld::OutOfPlace) => (
                "because only annotations name them, and they lie in no pod CIDR of the pod's node and in no IPPool, or are \
                 a node's"
                    .to_owned(),
                "remove the annotation, which is the CNI plugin's to write",
                of_pod,
            ),
            Unrouted::IsOfNode(node) => (
                format!("because they are addresses of Node {node:?}"),
                "give the pods other ones",
                of_pod,
            ),
            Unrouted::Reserved(what) => {
                (format!("because {what} has them"), "give the pods other ones", of_pod)
            }
            Unrouted::Unpooled => (
                "because they lie in no pod CIDR of the pod's node and in no IPPool, so it is not known whether they are \
                 behind a tunnel"
                    .to_owned(),
                "make an IPPool around them (ipipMode: Never if they are not)",
                of_pod,
            ),
        };
        causes.entry((cause, remedy)).or_default().push(of);
    }
    let line = |((cause, remedy), all): ((String, &str), Vec<String>)| {
        let more = all.len().saturating_sub(SHOWN);
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        let shown = all.into_iter().take(SHOWN).collect::<Vec<_>>().join(", ");
        format!("addresses not routed, {cause}: {shown}{more}; {remedy}")
    };
    causes.into_iter().map(line).collect()
}

/// The longest prefix that contains two others. `None`: they are of two families.
fn common_prefix(one: IpNet, other: IpNet) -> Option<IpNet> {
    let most = one.prefix_len().min(other.prefix_len());
    let (alike, address) = match (one.addr(), other.addr()) {
        (IpAddr::V4(a), IpAddr::V4(b)) => ((a.to_bits() ^ b.to_bits()).leading_zeros(), other),
        (IpAddr::V6(a), IpAddr::V6(b)) => ((a.to_bits() ^ b.to_bits()).leading_zeros(), other),
        _ => return None,
    };
    let length = most.min(alike as u8);
    IpNet::new(address.addr(), length).ok().map(|net| net.trunc())
}

fn list(names: &[String], none: &str) -> String {
    if names.is_empty() { none.to_owned() } else { names.join(", ") }
}

/// The smallest pool that contains `block`.
fn pool<'a>(cluster: &'a Cluster, block: &IpNet) -> Option<&'a Pool> {
    let around = cluster.pools.iter().filter(|pool| pool.cidr.contains(block));
    around.max_by_key(|pool| pool.cidr.prefix_len())
}

/// How `remote`'s `block` is reached from `here`, as its pool says. A block outside all pools leads nowhere. Calico
/// would send it unencapsulated; but then, if a pool is removed while its blocks are in use, the traffic of its tunnels
/// would go over the bare underlay, and hosts there could send with its pods' addresses.
fn route_to(cluster: &Cluster, here: &Node, remote: &Node, block: &IpNet) -> Route {
    let address = |v4: bool| remote.internal_ips.iter().copied().find(|ip| ip.is_ipv4() == v4);
    let Some(next_hop) = address(block.addr().is_ipv4()) else {
        return Route::Nowhere(Nowhere::NoAddress);
    };
    if !cluster.invalid_pools.is_empty() {
        return Route::Nowhere(Nowhere::UnknownPools);
    }
    let Some(pool) = pool(cluster, block) else { return Route::Nowhere(Nowhere::Unpooled) };
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
        // Manx has no VXLAN for IPv6, and the traffic must not go without a tunnel.
        IpAddr::V6(_) if encapsulate => Route::Nowhere(Nowhere::NoTunnel),
        direct => Route::Direct(direct),
    }
}

/// The blocks that two other nodes claim: neither gets them. This node's own blocks are not included: a claim to these
/// is an error.
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
                });
            }
            contested.insert(own.1);
        }
    }
    Ok(contested)
}

/// The nodes that send tunnel packets to `here`, the node `name`, which has the prefixes `own`: the destination's pool
/// chooses the encapsulation, so one prefix stands for all of a pool and family.
fn senders(
    cluster: &Cluster,
    name: &str,
    here: &Node,
    own: impl Iterator<Item = IpNet>,
) -> BTreeSet<Peer> {
    let by_pool = own.map(|prefix| {
        let cidr = pool(cluster, &prefix).map(|pool| pool.cidr);
        ((cidr, prefix.addr().is_ipv4()), prefix)
    });
    let own: BTreeMap<_, IpNet> = by_pool.collect();
    let others = cluster.nodes.iter().filter(|(other, _)| *other != name);
    others
        .flat_map(|(_, remote)| own.values().map(move |prefix| (remote, prefix)))
        .filter_map(|(remote, prefix)| match route_to(cluster, remote, here, prefix) {
            Route::Tunnel(to) => Some(Peer { address: underlay_address(remote)?, ..to }),
            Route::Local
            | Route::Node
            | Route::Masquerade
            | Route::Direct(_)
            | Route::Nowhere(_)
            | Route::World => None,
        })
        .collect()
}

/// The address to which other nodes send a node's tunnel packets.
fn underlay_address(node: &Node) -> Option<Ipv4Addr> {
    node.internal_ips.iter().find_map(|ip| match ip {
        IpAddr::V4(v4) => Some(*v4),
        IpAddr::V6(_) => None,
    })
}

impl Cluster {
    /// All addresses of the nodes ([`Node::addresses`]), with the nodes' names.
    pub fn node_addresses(&self) -> BTreeMap<IpAddr, &str> {
        let of_nodes = self.nodes.iter().flat_map(|(name, node)| {
            node.addresses.iter().map(move |address| (*address, name.as_str()))
        });
        of_nodes.collect()
    }
}

/// The routes of the borrowed addresses as seen from `here`, the node `name`, and those that have none to their pod. No
/// pod takes an address of a node, or a reserved one.
fn borrowed(
    cluster: &Cluster,
    name: &str,
    here: &Node,
    reserved: &Reserved,
) -> (Vec<(IpNet, Route)>, Unroutables) {
    let (mut routes, mut unrouted) = (Vec::new(), Unroutables::new());
    if cluster.borrowed.is_empty() {
        return (routes, unrouted);
    }
    let of_nodes = cluster.node_addresses();
    for (address, (pod, node)) in &cluster.borrowed {
        let prefix = IpNet::from(*address);
        let Some(remote) = cluster.nodes.get(&**node) else { continue };
        let (route, why) = match (of_nodes.get(address), reserved.get(address)) {
            (Some(node), _) => (None, Some(Unrouted::IsOfNode((*node).to_owned()))),
            (None, Some(what)) => (None, Some(Unrouted::Reserved(*what))),
            (None, None) if **node == *name => (Some(Route::Local), None),
            (None, None) => {
                let route = route_to(cluster, here, remote, &prefix);
                let is_unpooled = route == Route::Nowhere(Nowhere::Unpooled);
                (Some(route), is_unpooled.then_some(Unrouted::Unpooled))
            }
        };
        routes.extend(route.map(|route| (prefix, route)));
        unrouted.extend(why.map(|why| ((*address, pod.clone()), why)));
    }
    (routes, unrouted)
}

/// The addresses that pods name and do not have.
fn unheld(cluster: &Cluster) -> Unroutables {
    let unheld = cluster.unheld().into_iter();
    unheld.map(|(of, why)| (of, Unrouted::Unheld(why))).collect()
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
    let here = node(cluster, name)?;
    if here.pod_cidrs.is_empty() {
        return Err(TopologyError::NoBlock(name.to_owned()));
    }
    let contested = contested(cluster, name)?;
    let tunnel_addresses: Vec<IpAddr> =
        here.pod_cidrs.iter().copied().filter_map(block::tunnel_address).collect();
    let others = || cluster.nodes.iter().filter(|(other, _)| *other != name);
    let remote_blocks =
        || others().flat_map(|(name, node)| node.pod_cidrs.iter().map(move |it| (name, node, it)));
    // The sources of routes. If two have a route for one prefix, the later source counts. A longer prefix always wins.
    let world = WORLD.map(|prefix| (prefix, Route::World));
    let unclaimed =
        |pool: &Pool| if pool.holds_nodes { Nowhere::HoldsNodes } else { Nowhere::Unclaimed };
    let pools = cluster.pools.iter().map(|pool| (pool.cidr, Route::Nowhere(unclaimed(pool))));
    let with_nodes = cluster.pools.iter().filter(|pool| pool.holds_nodes);
    let nodes_in_pools = with_nodes
        .flat_map(|pool| reported_within(&cluster.nodes, pool.cidr))
        .map(|(_, address)| (IpNet::from(address), Route::World));
    let blocks_of_others =
        remote_blocks().map(|(_, remote, block)| (*block, route_to(cluster, here, remote, block)));
    let contested = contested.into_iter().map(|it| (it, Route::Nowhere(Nowhere::Contested)));
    let own_blocks = here.pod_cidrs.iter().map(|block| (*block, Route::Local));
    let (borrowed, mut unrouted) = borrowed(cluster, name, here, reserved);
    unrouted.extend(unheld(cluster));
    let unpooled_here =
        borrowed.iter().map(|(prefix, _)| *prefix).filter(|it| pool(cluster, it).is_none());
    let of_no_pool = unpooled_here.collect();
    let borrowed_here = borrowed.iter().filter(|(_, route)| *route == Route::Local);
    let own = here.pod_cidrs.iter().chain(borrowed_here.map(|(prefix, _)| prefix)).copied();
    let senders = senders(cluster, name, here, own);
    let own_addresses = here.internal_ips.iter().chain(&tunnel_addresses);
    let own_addresses = own_addresses.map(|ip| (IpNet::from(*ip), Route::Node));
    let masquerade = here.pod_cidrs.iter().copied().filter_map(block::masquerade_address);
    let masquerade = masquerade.map(|ip| (IpNet::from(ip), Route::Masquerade));
    let sources = world.into_iter().chain(pools).chain(nodes_in_pools).chain(blocks_of_others);
    let sources = sources.chain(contested).chain(own_blocks).chain(borrowed).chain(masquerade);
    let sources = sources.chain(own_addresses);
    let prefixes = sources.map(|(prefix, route)| (prefix.trunc(), route)).collect();
    let unpooled = remote_blocks()
        .filter(|(.., block)| pool(cluster, block).is_none())
        .map(|(name, _, block)| (block.trunc(), name.clone()))
        .collect();
    let vxlan_macs = cluster
        .nodes
        .values()
        .filter_map(|node| Some((underlay_address(node)?, node.vxlan_mac)))
        .collect();
    Ok(Topology {
        prefixes,
        blocks: here.pod_cidrs.clone(),
        tunnel_addresses,
        addresses: here.internal_ips.clone(),
        underlay: underlay_address(here),
        senders,
        vxlan_macs,
        unpooled,
        of_no_pool,
        unrouted,
    })
}

/// The same where another CNI plugin connects the pods: all but the node itself and its attached pods is the world's, and
/// no block or pool matters.
pub fn policy_only(cluster: &Cluster, name: &str) -> Result<Topology, TopologyError> {
    let here = node(cluster, name)?;
    let world = WORLD.map(|prefix| (prefix, Route::World));
    let own = here.internal_ips.iter().map(|ip| (IpNet::from(*ip), Route::Node));
    Ok(Topology {
        prefixes: world.into_iter().chain(own).collect(),
        addresses: here.internal_ips.clone(),
        unrouted: unheld(cluster),
        ..Topology::default()
    })
}

fn node<'a>(cluster: &'a Cluster, name: &str) -> Result<&'a Node, TopologyError> {
    cluster.nodes.get(name).ok_or_else(|| TopologyError::UnknownNode {
        name: name.to_owned(),
        found: cluster.nodes.keys().cloned().collect(),
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use manx_policy_compiler::model::{HostEndpoint, Interface};
    use proptest::prelude::*;

    use super::*;

    fn node(ip: &str, subnet: &str, block: &str) -> Node {
        let (ip, block) = (ip.parse().unwrap(), block.parse().unwrap());
        Node {
            internal_ips: vec![ip],
            addresses: [Some(ip), block::tunnel_address(block)].into_iter().flatten().collect(),
            subnet: Some(subnet.parse::<IpNet>().unwrap().trunc()),
            pod_cidrs: vec![block],
            ..Node::default()
        }
    }

    fn cluster(ipip: EncapsulationMode) -> Cluster {
        Cluster {
            nodes: BTreeMap::from([
                ("a".to_owned(), node("172.18.0.2", "172.18.0.2/24", "10.244.1.0/24")),
                ("b".to_owned(), node("172.18.0.3", "172.18.0.3/24", "10.244.2.0/24")),
                ("c".to_owned(), node("172.19.0.4", "172.19.0.4/24", "10.244.3.0/24")),
            ]),
            pools: vec![Pool {
                cidr: "10.244.0.0/16".parse().unwrap(),
                overlay: Overlay::Ipip,
                mode: ipip,
                holds_nodes: false,
            }],
            ..Cluster::default()
        }
    }

    /// The agent keeps its last topology while its own Node cannot be used: host endpoints that found the uplink by its
    /// addresses keep it.
    #[test]
    fn a_host_endpoint_found_by_address_outlives_the_node_object() {
        let mut cluster = cluster(EncapsulationMode::Always);
        let host = HostEndpoint {
            node: "a".to_owned(),
            interface: Interface::OfAddresses,
            addresses: ["172.18.0.2".parse().unwrap()].into(),
            ..HostEndpoint::broken()
        };
        let host = HostEndpoint { broken: false, ..host };
        cluster.model.host_endpoints.insert("uplink".to_owned(), Arc::new(host));
        let last = topology(&cluster, "a", &Reserved::new()).unwrap();
        cluster.nodes.remove("a");
        assert!(topology(&cluster, "a", &Reserved::new()).is_err());
        assert_eq!(last.interfaces("a", "eth0").native(&cluster.model), Some("uplink"));
    }

    fn route(ipip: EncapsulationMode, prefix: &str) -> Route {
        topology(&cluster(ipip), "a", &Reserved::new()).unwrap().prefixes
            [&prefix.parse::<IpNet>().unwrap()]
    }

    #[test]
    fn the_mode_of_the_pool_decides_how_a_remote_block_is_reached() {
        let near: Ipv4Addr = "172.18.0.3".parse().unwrap();
        let far: Ipv4Addr = "172.19.0.4".parse().unwrap();
        let by_ipip = |address| Route::Tunnel(Peer { address, overlay: Overlay::Ipip });
        assert_eq!(route(EncapsulationMode::Always, "10.244.2.0/24"), by_ipip(near));
        assert_eq!(route(EncapsulationMode::Never, "10.244.3.0/24"), Route::Direct(far.into()));
        assert_eq!(
            route(EncapsulationMode::CrossSubnet, "10.244.2.0/24"),
            Route::Direct(near.into())
        );
        assert_eq!(route(EncapsulationMode::CrossSubnet, "10.244.3.0/24"), by_ipip(far));
    }

    #[test]
    fn the_pool_of_the_destination_chooses_the_encapsulation_either_way() {
        let mut cluster = cluster(EncapsulationMode::Always);
        let mut vxlan = cluster.pools[0].clone();
        (vxlan.cidr, vxlan.overlay) = ("10.244.2.0/24".parse().unwrap(), Overlay::Vxlan);
        cluster.pools.push(vxlan);
        let a = topology(&cluster, "a", &Reserved::new()).unwrap();
        let b: Ipv4Addr = "172.18.0.3".parse().unwrap();
        assert!(a.receivers().contains(&Peer { address: b, overlay: Overlay::Vxlan }));
        assert!(!a.receivers().contains(&Peer { address: b, overlay: Overlay::Ipip }));
        assert!(a.senders.iter().all(|peer| peer.overlay == Overlay::Ipip));
        let seen = topology(&cluster, "b", &Reserved::new()).unwrap();
        assert!(seen.receivers().iter().all(|peer| peer.overlay == Overlay::Ipip));
        assert_eq!(seen.senders.len(), 2);
        assert!(seen.senders.iter().all(|peer| peer.overlay == Overlay::Vxlan));
    }

    #[test]
    fn what_no_node_has_of_a_pool_leads_nowhere_and_own_addresses_to_the_node() {
        assert_eq!(
            route(EncapsulationMode::Always, "10.244.0.0/16"),
            Route::Nowhere(Nowhere::Unclaimed)
        );
        assert_eq!(route(EncapsulationMode::Always, "10.244.1.0/24"), Route::Local);
        assert_eq!(route(EncapsulationMode::Always, "10.244.1.1/32"), Route::Node);
        assert_eq!(route(EncapsulationMode::Always, "172.18.0.2/32"), Route::Node);
        assert_eq!(route(EncapsulationMode::Always, "10.244.1.0/32"), Route::Masquerade);
        let desired =
            topology(&cluster(EncapsulationMode::Always), "a", &Reserved::new()).unwrap().host();
        let masquerade: IpAddr = "10.244.1.0".parse().unwrap();
        assert_eq!(desired.masquerade_addresses, [masquerade]);
        assert!(desired.own.contains(&masquerade), "no host beyond the uplink has it");
    }

    #[test]
    fn where_another_plugin_connects_pods_only_the_node_itself_is_not_the_world() {
        let mut cluster = cluster(EncapsulationMode::Always);
        // What this node has of blocks, or that it has none, is no concern of Manx.
        cluster.nodes.get_mut("a").unwrap().pod_cidrs.clear();
        let found = policy_only(&cluster, "a").unwrap();
        let expected =
            [("0.0.0.0/0", Route::World), ("::/0", Route::World), ("172.18.0.2/32", Route::Node)];
        assert_eq!(
            found.prefixes,
            expected.map(|(net, route)| (net.parse().unwrap(), route)).into()
        );
        let own: IpAddr = "172.18.0.2".parse().unwrap();
        assert_eq!(
            found,
            Topology {
                prefixes: found.prefixes.clone(),
                addresses: vec![own],
                ..Topology::default()
            }
        );
        assert!(matches!(policy_only(&cluster, "x"), Err(TopologyError::UnknownNode { .. })));
    }

    #[test]
    fn an_unknown_node_says_what_to_do() {
        assert!(
            topology(&cluster(EncapsulationMode::Never), "x", &Reserved::new())
                .unwrap_err()
                .to_string()
                .contains("--name")
        );
    }

    #[test]
    fn the_smallest_pool_around_a_block_decides() {
        let mut cluster = cluster(EncapsulationMode::Never);
        let mut inner = cluster.pools[0].clone();
        inner.cidr = "10.244.2.0/23".parse().unwrap();
        inner.mode = EncapsulationMode::Always;
        cluster.pools.push(inner);
        let block: IpNet = "10.244.2.0/24".parse().unwrap();
        for _ in 0..2 {
            let route = topology(&cluster, "a", &Reserved::new()).unwrap().prefixes[&block];
            assert_eq!(
                route,
                Route::Tunnel(Peer {
                    address: "172.18.0.3".parse().unwrap(),
                    overlay: Overlay::Ipip
                })
            );
            cluster.pools.reverse();
        }
    }

    #[test]
    fn the_nodes_own_address_is_the_second_of_each_block() {
        let mut cluster = cluster(EncapsulationMode::Never);
        let here = cluster.nodes.get_mut("a").unwrap();
        here.pod_cidrs.push("fd00:10:1::/64".parse().unwrap());
        let seen = topology(&cluster, "a", &Reserved::new()).unwrap();
        let own: Vec<IpAddr> = ["10.244.1.1", "fd00:10:1::1"].map(|ip| ip.parse().unwrap()).into();
        assert_eq!(seen.tunnel_addresses, own);
        // By the first one it masquerades.
        for first in ["10.244.1.0/32", "fd00:10:1::/128"] {
            assert_eq!(seen.prefixes[&first.parse::<IpNet>().unwrap()], Route::Masquerade);
        }
    }

    #[test]
    fn a_block_whose_pool_is_removed_leads_nowhere_until_a_pool_is_around_it_again() {
        let mut cluster = cluster(EncapsulationMode::Always);
        let pool = cluster.pools.pop().unwrap();
        let seen = topology(&cluster, "a", &Reserved::new()).unwrap();
        let block: IpNet = "10.244.2.0/24".parse().unwrap();
        assert_eq!(seen.prefixes[&block], Route::Nowhere(Nowhere::Unpooled));
        // The node's own routes do not reach it either.
        assert!(seen.host().blocks.contains(&(block, HostRoute::Manx { source: None })));
        let problems: Vec<String> = seen.problems().collect();
        assert_eq!(problems.len(), 2, "{problems:?}");
        assert!(problems[0].contains("10.244.2.0/24 of Node \"b\" lies in no IPPool"));

        let half = Pool { cidr: "10.244.2.0/25".parse().unwrap(), ..pool.clone() };
        cluster.pools.push(half);
        assert_eq!(
            topology(&cluster, "a", &Reserved::new()).unwrap().prefixes[&block],
            Route::Nowhere(Nowhere::Unpooled)
        );
        cluster.pools.push(pool);
        let seen = topology(&cluster, "a", &Reserved::new()).unwrap();
        assert_eq!(
            seen.prefixes[&block],
            Route::Tunnel(Peer { address: "172.18.0.3".parse().unwrap(), overlay: Overlay::Ipip })
        );
        assert_eq!(seen.problems().count(), 0);
    }

    /// The cluster, with pods that borrow these addresses, each on its node.
    fn with_borrowed(pods: &[(&str, &str)]) -> Cluster {
        let mut cluster = cluster(EncapsulationMode::Always);
        for (number, (address, node)) in pods.iter().enumerate() {
            let pod = ObjectName::new("default", number.to_string());
            cluster.borrowed.insert(address.parse().unwrap(), (pod, Arc::from(*node)));
        }
        cluster
    }

    #[test]
    fn a_borrowed_address_leads_to_its_pods_node_as_its_own_pool_says() {
        let mut cluster = with_borrowed(&[
            // Of no block; of the block of c; of a pool without tunnels; of no pool; of this node.
            ("10.244.9.1", "b"),
            ("10.244.3.9", "b"),
            ("10.7.0.1", "b"),
            ("192.0.2.1", "b"),
            ("192.0.2.2", "a"),
        ]);
        let plain = Pool {
            cidr: "10.7.0.0/16".parse().unwrap(),
            overlay: Overlay::Ipip,
            mode: EncapsulationMode::Never,
            holds_nodes: false,
        };
        cluster.pools.push(plain);
        let seen = topology(&cluster, "a", &Reserved::new()).unwrap();
        let b: Ipv4Addr = "172.18.0.3".parse().unwrap();
        let by_ipip = Route::Tunnel(Peer { address: b, overlay: Overlay::Ipip });
        for (address, route) in [
            ("10.244.9.1", by_ipip),
            ("10.244.3.9", by_ipip),
            ("10.7.0.1", Route::Direct(b.into())),
            ("192.0.2.1", Route::Nowhere(Nowhere::Unpooled)),
            ("192.0.2.2", Route::Local),
        ] {
            let address: IpAddr = address.parse().unwrap();
            assert_eq!(seen.route(address), (address.into(), route));
        }
        let problems: Vec<String> = seen.problems().collect();
        assert_eq!(problems.len(), 1, "{problems:?}");
        insta::assert_snapshot!(problems[0], @"addresses not routed, because they lie in no pod CIDR of the pod's node and in no IPPool, so it is not known whether they are behind a tunnel: 192.0.2.1 of Pod default/3; make an IPPool around them (ipipMode: Never if they are not)");
        // On the node that lends it, it leads away.
        let lender = topology(&cluster, "c", &Reserved::new()).unwrap();
        assert_eq!(lender.route("10.244.3.9".parse().unwrap()).1, by_ipip);
        assert_eq!(lender.route("10.244.3.10".parse().unwrap()).1, Route::Local);
    }

    #[test]
    fn an_address_of_a_node_or_one_that_is_reserved_is_never_a_pods() {
        let mut cluster = with_borrowed(&[
            ("10.244.9.1", "b"),
            ("172.19.0.4", "b"),
            ("172.18.0.2", "b"),
            ("10.244.3.1", "b"),
            ("10.244.1.1", "b"),
            ("198.51.100.7", "c"),
            ("10.244.9.53", "b"),
            ("10.244.9.54", "a"),
        ]);
        // An ExternalIP.
        cluster.nodes.get_mut("b").unwrap().addresses.insert("198.51.100.7".parse().unwrap());
        let reserved =
            ["10.244.9.53", "10.244.9.54"].map(|ip| (ip.parse().unwrap(), ReservedFor::DnsServer));
        let seen = topology(&cluster, "a", &reserved.into()).unwrap();
        let route = |address: &str| seen.route(address.parse().unwrap()).1;
        let to = |address: &str| {
            Route::Tunnel(Peer { address: address.parse().unwrap(), overlay: Overlay::Ipip })
        };
        assert_eq!(route("10.244.9.1"), to("172.18.0.3"));
        assert_eq!(route("172.19.0.4"), Route::World);
        assert_eq!(route("172.18.0.2"), Route::Node);
        assert_eq!(route("10.244.3.1"), to("172.19.0.4"));
        assert_eq!(route("10.244.1.1"), Route::Node);
        for reserved in ["10.244.9.53", "10.244.9.54"] {
            assert_eq!(route(reserved), Route::Nowhere(Nowhere::Unclaimed));
            let prefix: IpNet = reserved.parse::<IpAddr>().unwrap().into();
            assert!(seen.host().blocks.iter().all(|(block, _)| *block != prefix));
        }
        assert_eq!(seen.unrouted.len(), 7, "{:?}", seen.unrouted);
        insta::assert_snapshot!(seen.problems().collect::<Vec<_>>().join("\n"), @r#"
        addresses not routed, because a DNS server of this node has them: 10.244.9.53 of Pod default/6, 10.244.9.54 of Pod default/7; give the pods other ones
        addresses not routed, because they are addresses of Node "a": 10.244.1.1 of Pod default/4, 172.18.0.2 of Pod default/2; give the pods other ones
        addresses not routed, because they are addresses of Node "b": 198.51.100.7 of Pod default/5; give the pods other ones
        addresses not routed, because they are addresses of Node "c": 10.244.3.1 of Pod default/3, 172.19.0.4 of Pod default/1; give the pods other ones
        "#);
    }

    #[test]
    fn the_nodes_own_table_has_no_route_for_an_address_outside_of_pools() {
        let cluster = with_borrowed(&[
            ("192.0.2.53", "a"),
            ("192.0.2.54", "b"),
            ("10.244.9.1", "a"),
            ("10.244.9.2", "b"),
        ]);
        let host = topology(&cluster, "a", &Reserved::new()).unwrap().host();
        let prefixes: Vec<String> = host.blocks.iter().map(|(net, _)| net.to_string()).collect();
        assert!(!prefixes.iter().any(|net| net.starts_with("192.0.2.")), "{prefixes:?}");
        for inside in ["10.244.9.1/32", "10.244.9.2/32"] {
            assert!(prefixes.iter().any(|net| net == inside), "{prefixes:?}");
        }
    }

    #[test]
    fn many_addresses_without_a_route_are_one_line_for_each_cause() {
        let of_b: Vec<String> = (1..=7).map(|last| format!("192.0.2.{last}")).collect();
        let of_b: Vec<(&str, &str)> = of_b.iter().map(|address| (address.as_str(), "b")).collect();
        let seen = topology(&with_borrowed(&of_b), "a", &Reserved::new()).unwrap();
        assert_eq!(seen.unrouted.len(), 7);
        insta::assert_snapshot!(seen.problems().collect::<Vec<_>>().join("\n"), @"addresses not routed, because they lie in no pod CIDR of the pod's node and in no IPPool, so it is not known whether they are behind a tunnel: 192.0.2.1 of Pod default/0, 192.0.2.2 of Pod default/1, 192.0.2.3 of Pod default/2, 192.0.2.4 of Pod default/3, 192.0.2.5 of Pod default/4 and 2 more; make an IPPool around them (ipipMode: Never if they are not)");
    }

    #[test]
    fn a_borrowed_address_in_a_tunnels_pool_makes_other_nodes_senders() {
        let mut cluster = with_borrowed(&[("10.7.0.1", "a")]);
        cluster.pools[0].mode = EncapsulationMode::Never;
        assert_eq!(topology(&cluster, "a", &Reserved::new()).unwrap().senders, BTreeSet::new());
        let tunnels = Pool {
            cidr: "10.7.0.0/16".parse().unwrap(),
            overlay: Overlay::Vxlan,
            mode: EncapsulationMode::Always,
            holds_nodes: false,
        };
        cluster.pools.push(tunnels);
        let senders = topology(&cluster, "a", &Reserved::new()).unwrap().senders;
        assert_eq!(senders.len(), 2);
        assert!(senders.iter().all(|peer| peer.overlay == Overlay::Vxlan));
    }

    proptest! {
        #[test]
        fn a_route_is_the_longest_prefix_of_a_scan(
            prefixes in prop::collection::btree_set((0_u32..1 << 12, 0_u8..=32, any::<bool>()), 0..40),
            hosts in prop::collection::vec(0_u32..1 << 12, 20),
        ) {
            let address = |host: u32, v4: bool| -> IpAddr {
                if v4 {
                    Ipv4Addr::from_bits(0x0a00_0000 | host).into()
                } else {
                    Ipv6Addr::from_bits(0xfd << 120 | u128::from(host)).into()
                }
            };
            let prefixes = prefixes.into_iter().map(|(host, length, v4)| {
                let length = if v4 { length } else { length * 4 };
                (IpNet::new(address(host, v4), length).unwrap().trunc(), Route::Local)
            });
            let seen = Topology { prefixes: prefixes.collect(), ..Topology::default() };
            for address in hosts.iter().flat_map(|host| [true, false].map(|v4| address(*host, v4))) {
                let around = seen.prefixes.keys().filter(|prefix| prefix.contains(&address));
                let longest = around.max_by_key(|prefix| prefix.prefix_len());
                let expected = longest
                    .map_or((address.into(), Route::World), |prefix| (*prefix, Route::Local));
                prop_assert_eq!(seen.route(address), expected);
            }
        }
    }

    const POOL: &str = "---\napiVersion: projectcalico.org/v3\nkind: IPPool\nmetadata: {name: p}\nspec: {cidr: 10.244.0.0/16, ipipMode: Always}\n";

    fn of_nodes(blocks: [&str; 3], more: &str) -> Cluster {
        let node = |(number, block): (usize, &str)| {
            let status =
                format!("{{addresses: [{{type: InternalIP, address: 172.18.0.{number}}}]}}");
            format!(
                "---\napiVersion: v1\nkind: Node\nmetadata: {{name: node-{number}}}\nspec: {{podCIDR: {block}}}\nstatus: {status}\n"
            )
        };
        let mut text = blocks.into_iter().enumerate().map(node).collect::<Vec<String>>().concat();
        text += more;
        crate::import::import(&manx_objects::contents::Contents::from_texts([(
            "all.yaml",
            text.as_str(),
        )]))
    }

    #[test]
    fn without_all_pools_there_is_no_topology() {
        let blocks = ["10.244.0.0/24", "10.244.1.0/24", "10.244.2.0/24"];
        let twice = format!("{POOL}{}", POOL.replace("Always", "Never"));
        for pools in [POOL.replace("Always", "Perhaps"), twice] {
            let error =
                topology(&of_nodes(blocks, &pools), "node-0", &Reserved::new()).unwrap_err();
            assert_eq!(error, TopologyError::InvalidPool(vec!["p".to_owned()]), "{pools}");
        }
        assert!(topology(&of_nodes(blocks, POOL), "node-0", &Reserved::new()).is_ok());
    }

    #[test]
    fn an_agent_that_starts_without_all_pools_reaches_its_own_pods_and_no_others() {
        let blocks = ["10.244.0.0/24", "10.244.1.0/24", "10.244.2.0/24"];
        let twice =
            format!("{POOL}{}", POOL.replace("name: p", "name: q").replace("Always", "Never"));
        for pools in [POOL.replace("Always", "Perhaps"), twice] {
            let cluster = of_nodes(blocks, &pools);
            assert!(topology(&cluster, "node-0", &Reserved::new()).is_err());
            let seen = closed_topology(&cluster, "node-0", &Reserved::new()).unwrap();
            let route = |address: &str| seen.route(address.parse().unwrap()).1;
            assert_eq!(route("10.244.0.9"), Route::Local);
            assert_eq!(route("10.244.1.9"), Route::Nowhere(Nowhere::UnknownPools));
            assert_eq!(seen.senders, BTreeSet::new());
            assert_eq!(seen.receivers(), BTreeSet::new());
        }
    }

    #[test]
    fn a_later_pool_that_overlaps_changes_no_route() {
        let blocks = ["10.244.0.0/24", "10.244.1.0/24", "10.244.2.0/24"];
        let dated = |second: u8, name: &str, pool: &str| {
            let stamp =
                format!("{{name: {name}, creationTimestamp: '2026-11-26T10:00:0{second}Z'}}");
            pool.replace("{name: p}", &stamp)
        };
        let first = dated(1, "p", POOL);
        let before = topology(&of_nodes(blocks, &first), "node-0", &Reserved::new()).unwrap();
        for cidr in ["10.244.0.0/16", "10.244.1.0/24", "0.0.0.0/1"] {
            let later =
                dated(2, "a", &POOL.replace("10.244.0.0/16", cidr).replace("Always", "Never"));
            let cluster = of_nodes(blocks, &(first.clone() + &later));
            assert_eq!(cluster.problems.len(), 1, "{cidr}");
            assert_eq!(topology(&cluster, "node-0", &Reserved::new()).unwrap(), before, "{cidr}");
        }
    }

    #[test]
    fn a_pool_around_nodes_takes_no_host_from_the_nodes_own_table() {
        // The nodes have 172.18.0.0 to 172.18.0.2; one block lies in this pool.
        let blocks = ["10.244.0.0/24", "10.244.1.0/24", "172.18.9.0/24"];
        let around = POOL.replace("name: p", "name: q").replace("10.244.0.0/16", "172.18.0.0/16");
        let cluster = of_nodes(blocks, &format!("{POOL}{around}"));
        assert_eq!(cluster.problems.len(), 1, "{:?}", cluster.problems);
        let seen = topology(&cluster, "node-0", &Reserved::new()).unwrap();
        let route = |address: &str| seen.route(address.parse().unwrap()).1;
        assert_eq!(route("172.18.0.0"), Route::Node);
        assert_eq!(route("172.18.0.1"), Route::World);
        assert_eq!(route("172.18.7.7"), Route::Nowhere(Nowhere::HoldsNodes));
        let to = Peer { address: [172, 18, 0, 2].into(), overlay: Overlay::Ipip };
        assert_eq!(route("172.18.9.3"), Route::Tunnel(to));
        let of_host: Vec<IpNet> = seen.host().blocks.into_iter().map(|(block, _)| block).collect();
        let expected = ["10.244.0.0/16", "10.244.0.0/24", "10.244.1.0/24", "172.18.9.0/24"];
        assert_eq!(of_host, expected.map(|block| block.parse().unwrap()));
    }

    /// Every kubelet may report any address for its own node.
    #[test]
    fn a_node_that_lies_about_its_address_costs_no_other_node_its_routes() {
        let blocks = ["10.244.0.0/24", "10.244.1.0/24", "10.244.2.0/24"];
        let before = topology(&of_nodes(blocks, POOL), "node-0", &Reserved::new()).unwrap();
        for lie in ["10.244.1.7", "10.244.77.7"] {
            let liar = format!("{{type: ExternalIP, address: {lie}}}");
            let node = format!(
                "---\napiVersion: v1\nkind: Node\nmetadata: {{name: liar}}\nstatus: {{addresses: [{liar}]}}\n"
            );
            let seen =
                topology(&of_nodes(blocks, &(POOL.to_owned() + &node)), "node-0", &Reserved::new())
                    .unwrap();
            for block in blocks {
                let block: IpNet = block.parse().unwrap();
                assert_eq!(seen.prefixes[&block], before.prefixes[&block], "{lie} {block}");
            }
            assert_eq!(
                seen.route("10.244.1.7".parse().unwrap()),
                before.route("10.244.1.7".parse().unwrap())
            );
            assert_eq!(seen.senders, before.senders);
        }
    }

    #[test]
    fn a_block_that_two_nodes_claim_is_neithers_and_this_nodes_own_is_an_error() {
        for claimed in ["10.244.1.0/24", "10.244.1.128/25", "10.244.0.0/23"] {
            let blocks = ["10.244.4.0/24", "10.244.1.0/24", claimed];
            let cluster = of_nodes(blocks, POOL);
            assert_eq!(cluster.problems.len(), 1, "{claimed}");
            let seen = topology(&cluster, "node-0", &Reserved::new()).unwrap();
            for block in &blocks[1..] {
                let route = seen.prefixes[&block.parse::<IpNet>().unwrap()];
                assert_eq!(route, Route::Nowhere(Nowhere::Contested), "{block} of {claimed}");
            }
            for name in ["node-1", "node-2"] {
                let error = topology(&cluster, name, &Reserved::new()).unwrap_err();
                assert!(matches!(error, TopologyError::BlockClaimed { .. }), "{error}");
            }
        }
    }
}
