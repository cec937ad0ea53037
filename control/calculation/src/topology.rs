//! Where every prefix leads, seen from one node. This is computed only from the Nodes and the pools. The worker's
//! routes and the kernel's routes are both made from it, so they cannot disagree.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::{IpAddr, Ipv4Addr};

use ipnet::{IpNet, Ipv4Net, Ipv6Net};

use crate::block;
use crate::import::{Cluster, Node, Overlap, Overlay, Pool};
use crate::interfaces::Interfaces;
use manx_objects::object::EncapsulationMode;

/// Where a prefix leads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Route {
    /// A block of this node: only its endpoints are reachable in it.
    Local,
    /// An address of this node itself.
    Node,
    /// Another node's block, unencapsulated, by that node's address.
    Direct(IpAddr),
    /// Another node's block, encapsulated to that node.
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
    /// Two nodes claim it.
    Contested,
    /// It belongs to a node and lies in no pool.
    Unpooled,
    /// Its node has no address of its family.
    NoAddress,
    /// Its pool requires a tunnel, and only IPv4 travels in tunnels.
    NoTunnel,
}

impl fmt::Display for Nowhere {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Unclaimed => "is part of an IPPool and of no node's pod CIDRs",
            Self::Contested => "is claimed by two nodes",
            Self::Unpooled => {
                "is a node's pod CIDR that lies in no IPPool, so it is not known whether it is behind a tunnel"
            }
            Self::NoAddress => "is a pod CIDR of a node that has no address of this family",
            Self::NoTunnel => "lies in an IPPool that asks for a tunnel, and only IPv4 travels in tunnels",
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

/// How the node itself reaches a block of pod addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum HostRoute {
    /// Through Manx: a block of this node, one behind a tunnel, or one that leads nowhere. For a tunnel `source` is the
    /// node's tunnel address, because the far node checks that the inner source is in one of this node's blocks.
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
    /// How each block is reached.
    pub blocks: Vec<(IpNet, HostRoute)>,
    /// The node's own addresses; no host beyond the uplink has them.
    pub own: BTreeSet<IpAddr>,
}

/// One node's view of the cluster.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Topology {
    /// Prefixes and where they lead.
    pub prefixes: BTreeMap<IpNet, Route>,
    /// This node's blocks, which contain its pods' addresses.
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
}

impl Topology {
    /// Whether another view differs only in [`Topology::prefixes`] and in what follows from these alone.
    pub(crate) fn differs_in_prefixes_alone(&self, other: &Self) -> bool {
        let Self { prefixes: _, unpooled: _, vxlan_macs, senders, .. } = self;
        let Self { blocks, tunnel_addresses, addresses, underlay, .. } = self;
        (vxlan_macs, senders, blocks) == (&other.vxlan_macs, &other.senders, &other.blocks)
            && (tunnel_addresses, addresses) == (&other.tunnel_addresses, &other.addresses)
            && *underlay == other.underlay
    }

    /// The longest prefix that contains an address, and where it leads.
    pub fn route(&self, address: IpAddr) -> (IpNet, Route) {
        let around = self.prefixes.iter().filter(|(prefix, _)| prefix.contains(&address));
        let longest = around.max_by_key(|(prefix, _)| prefix.prefix_len());
        longest.map_or((address.into(), Route::World), |(prefix, route)| (*prefix, *route))
    }

    /// The far ends of the tunnels by which packets leave, in order.
    pub fn receivers(&self) -> BTreeSet<Peer> {
        let tunnel = |route: &Route| match route {
            Route::Tunnel(peer) => Some(*peer),
            Route::Local | Route::Node | Route::Direct(_) | Route::Nowhere(_) | Route::World => {
                None
            }
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
        self.unpooled.iter().map(|(block, node)| {
            format!(
                "pod CIDR {block} of Node {node:?} lies in no IPPool, so it is not known whether it is behind a tunnel: \
                 not routed; make an IPPool around it (ipipMode: Never if it is not)"
            )
        })
    }

    /// What the node's own namespace must look like.
    pub fn host(&self) -> Desired {
        let source = |block: &IpNet| {
            self.tunnel_addresses.iter().copied().find(|ip| ip.is_ipv4() == block.addr().is_ipv4())
        };
        let way = |(block, route): (&IpNet, &Route)| match *route {
            Route::Local | Route::Nowhere(_) => Some((*block, HostRoute::Manx { source: None })),
            Route::Tunnel(_) => Some((*block, HostRoute::Manx { source: source(block) })),
            Route::Direct(address) => Some((*block, HostRoute::Node { address })),
            Route::Node | Route::World => None,
        };
        let own =
            |(prefix, route): (&IpNet, &Route)| (*route == Route::Node).then_some(prefix.addr());
        Desired {
            addresses: self.tunnel_addresses.clone(),
            blocks: self.prefixes.iter().filter_map(way).collect(),
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

/// The nodes that send tunnel packets to `here`, the node `name`: the destination's pool chooses the encapsulation.
fn senders(cluster: &Cluster, name: &str, here: &Node) -> BTreeSet<Peer> {
    let others = cluster.nodes.iter().filter(|(other, _)| *other != name);
    others
        .flat_map(|(_, remote)| here.pod_cidrs.iter().map(move |block| (remote, block)))
        .filter_map(|(remote, block)| match route_to(cluster, remote, here, block) {
            Route::Tunnel(to) => Some(Peer { address: underlay_address(remote)?, ..to }),
            Route::Local | Route::Node | Route::Direct(_) | Route::Nowhere(_) | Route::World => {
                None
            }
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

/// The topology as seen from node `name`.
pub fn topology(cluster: &Cluster, name: &str) -> Result<Topology, TopologyError> {
    let here = cluster.nodes.get(name).ok_or_else(|| TopologyError::UnknownNode {
        name: name.to_owned(),
        found: cluster.nodes.keys().cloned().collect(),
    })?;
    if here.pod_cidrs.is_empty() {
        return Err(TopologyError::NoBlock(name.to_owned()));
    }
    if !cluster.invalid_pools.is_empty() {
        return Err(TopologyError::InvalidPool(cluster.invalid_pools.clone()));
    }
    let contested = contested(cluster, name)?;
    let tunnel_addresses: Vec<IpAddr> =
        here.pod_cidrs.iter().copied().filter_map(block::tunnel_address).collect();
    let others = || cluster.nodes.iter().filter(|(other, _)| *other != name);
    let remote_blocks =
        || others().flat_map(|(name, node)| node.pod_cidrs.iter().map(move |it| (name, node, it)));
    // The sources of routes. If two have a route for one prefix, the later source counts. A longer prefix always wins.
    let world = [IpNet::V4(Ipv4Net::default()), IpNet::V6(Ipv6Net::default())];
    let world = world.map(|prefix| (prefix, Route::World));
    let pools = cluster.pools.iter().map(|pool| (pool.cidr, Route::Nowhere(Nowhere::Unclaimed)));
    let blocks_of_others =
        remote_blocks().map(|(_, remote, block)| (*block, route_to(cluster, here, remote, block)));
    let contested = contested.into_iter().map(|it| (it, Route::Nowhere(Nowhere::Contested)));
    let own_blocks = here.pod_cidrs.iter().map(|block| (*block, Route::Local));
    let own_addresses = here.internal_ips.iter().chain(&tunnel_addresses);
    let own_addresses = own_addresses.map(|ip| (IpNet::from(*ip), Route::Node));
    let sources = world.into_iter().chain(pools).chain(blocks_of_others);
    let sources = sources.chain(contested).chain(own_blocks).chain(own_addresses);
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
        senders: senders(cluster, name, here),
        vxlan_macs,
        unpooled,
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use manx_policy_compiler::model::{HostEndpoint, Interface};

    use super::*;

    fn node(ip: &str, subnet: &str, block: &str) -> Node {
        Node {
            internal_ips: vec![ip.parse().unwrap()],
            subnet: Some(subnet.parse::<IpNet>().unwrap().trunc()),
            pod_cidrs: vec![block.parse().unwrap()],
            vxlan_mac: [0; 6],
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
        let last = topology(&cluster, "a").unwrap();
        cluster.nodes.remove("a");
        assert!(topology(&cluster, "a").is_err());
        assert_eq!(last.interfaces("a", "eth0").native(&cluster.model), Some("uplink"));
    }

    fn route(ipip: EncapsulationMode, prefix: &str) -> Route {
        topology(&cluster(ipip), "a").unwrap().prefixes[&prefix.parse::<IpNet>().unwrap()]
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
        let a = topology(&cluster, "a").unwrap();
        let b: Ipv4Addr = "172.18.0.3".parse().unwrap();
        assert!(a.receivers().contains(&Peer { address: b, overlay: Overlay::Vxlan }));
        assert!(!a.receivers().contains(&Peer { address: b, overlay: Overlay::Ipip }));
        assert!(a.senders.iter().all(|peer| peer.overlay == Overlay::Ipip));
        let seen = topology(&cluster, "b").unwrap();
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
    }

    #[test]
    fn an_unknown_node_says_what_to_do() {
        assert!(
            topology(&cluster(EncapsulationMode::Never), "x")
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
            let route = topology(&cluster, "a").unwrap().prefixes[&block];
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
        let seen = topology(&cluster, "a").unwrap();
        let own: Vec<IpAddr> = ["10.244.1.1", "fd00:10:1::1"].map(|ip| ip.parse().unwrap()).into();
        assert_eq!(seen.tunnel_addresses, own);
        let anycast: IpNet = "fd00:10:1::/128".parse().unwrap();
        assert!(!seen.prefixes.contains_key(&anycast));
    }

    #[test]
    fn a_block_whose_pool_is_removed_leads_nowhere_until_a_pool_is_around_it_again() {
        let mut cluster = cluster(EncapsulationMode::Always);
        let pool = cluster.pools.pop().unwrap();
        let seen = topology(&cluster, "a").unwrap();
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
            topology(&cluster, "a").unwrap().prefixes[&block],
            Route::Nowhere(Nowhere::Unpooled)
        );
        cluster.pools.push(pool);
        let seen = topology(&cluster, "a").unwrap();
        assert_eq!(
            seen.prefixes[&block],
            Route::Tunnel(Peer { address: "172.18.0.3".parse().unwrap(), overlay: Overlay::Ipip })
        );
        assert_eq!(seen.problems().count(), 0);
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
            let error = topology(&of_nodes(blocks, &pools), "node-0").unwrap_err();
            assert_eq!(error, TopologyError::InvalidPool(vec!["p".to_owned()]), "{pools}");
        }
        assert!(topology(&of_nodes(blocks, POOL), "node-0").is_ok());
    }

    #[test]
    fn a_block_that_two_nodes_claim_is_neithers_and_this_nodes_own_is_an_error() {
        for claimed in ["10.244.1.0/24", "10.244.1.128/25", "10.244.0.0/23"] {
            let blocks = ["10.244.4.0/24", "10.244.1.0/24", claimed];
            let cluster = of_nodes(blocks, POOL);
            assert_eq!(cluster.problems.len(), 1, "{claimed}");
            let seen = topology(&cluster, "node-0").unwrap();
            for block in &blocks[1..] {
                let route = seen.prefixes[&block.parse::<IpNet>().unwrap()];
                assert_eq!(route, Route::Nowhere(Nowhere::Contested), "{block} of {claimed}");
            }
            for name in ["node-1", "node-2"] {
                let error = topology(&cluster, name).unwrap_err();
                assert!(matches!(error, TopologyError::BlockClaimed { .. }), "{error}");
            }
        }
    }
}
