//! Derives the peers of a node from the objects.
//!
//! The rules are Calico's (`BGPConfiguration`, `BGPPeer`, the annotations of Nodes):
//! - A `BGPPeer` names a peer by its address, or nodes by a selector. The `BGPPeer` applies to all nodes, to one node, or
//!   to the nodes that a selector selects.
//! - If a `BGPPeer` names a node as a peer, that node also gets the nodes to which the `BGPPeer` applies as its peers,
//!   unless the object has `reversePeering: Manual`.
//! - All nodes are each other's peers (the mesh), unless the settings disable that. Route reflectors are not in the mesh.
//! - If two peers have one address, the first counts, in this order: a `BGPPeer` of all nodes, a `BGPPeer` of some nodes,
//!   the mesh.
//! - A session over IPv4 carries IPv4 routes only, and a session over IPv6 carries IPv6 routes only. So a dual-stack node
//!   is two peers.
//!
//! This is what a compromised node can do. Tenants cannot write these objects. A kubelet can write the labels and
//! annotations of its own Node, and nothing else here:
//! - It can claim another node's address. So if two Nodes have one address, neither is a peer at this address, and a
//!   problem is reported. The node itself keeps the sessions that other nodes accept.
//! - If it claims the address of a router that a `BGPPeer` of all nodes names, it can make nodes only wait for that router
//!   to connect. The router stays a peer, as in the `BGPPeer`.
//! - By its labels it can become a peer wherever a selector selects it, such as the route reflector of all nodes. It cannot
//!   set labels below `node-restriction.kubernetes.io/`.
//! - By its AS number or cluster ID it can break its own sessions, or leave the mesh.
//!
//! So a peer that is a node is marked ([`Peer::is_node`]), and is trusted less. This module does not decide which routes a
//! peer may announce.
//!
//! Not supported: `localWorkloadSelector`, `keepaliveTime` (the reader of the objects reports them).
//!
//! Source: Calico's API reference and documentation, "Configure BGP peering". The tests contain Calico's topologies.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use manx_objects::contents::Contents;
use manx_objects::object::bgp::{Advertisement, BgpPeer, NextHop, PeeringNodes, Remote};
use manx_objects::object::{Kind, Node, Object};
use manx_policy_compiler::selector::{Labels, Selector};
use sha2::{Digest, Sha256};

use self::settings::Settings;
use crate::export::Priorities;
use crate::peer::{NextHopMode, Peer, PeerType};

mod settings;
#[cfg(test)]
mod tests;

/// The port of BGP.
const PORT: u16 = 179;
/// The hold time: BIRD's default, which Calico's nodes use.
const HOLD_TIME: Duration = Duration::from_mins(4);
/// The restart time: BIRD's default, which Calico's nodes use.
const RESTART_TIME: Duration = Duration::from_mins(2);
/// The longest restart time that the capability can contain, in seconds (RFC 4724, 3: 12 bits).
const MOST_RESTART_TIME: u64 = 4095;

/// A node's parameters as a BGP speaker, and its peers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Peering {
    /// The node's autonomous system. A session may use another one ([`Peer::own_system`]).
    pub system: u32,
    /// The node's BGP identifier: its IPv4 address. If it has none, the identifier is a hash of its name, as Calico
    /// computes it.
    pub router_id: Ipv4Addr,
    /// The node's cluster ID, if it is a route reflector.
    pub cluster: Option<Ipv4Addr>,
    /// The node's addresses, at most one of each family.
    pub addresses: Vec<IpAddr>,
    /// The TCP port at which the node listens.
    pub port: u16,
    /// Whether the node listens at its own addresses only (`bindMode: NodeIP`).
    pub listens_at_addresses: bool,
    /// The peers, in the order of their addresses. No two have the same address.
    pub peers: Vec<Peer>,
    /// The gateway to each peer for which an object names one (`reachableBy`).
    pub gateways: BTreeMap<IpAddr, IpAddr>,
    /// The communities of the routes that the node announces.
    pub advertisements: Vec<Advertisement>,
    /// The priorities of the node's own routes.
    pub priorities: Priorities,
    /// The problems, each with what was found, what was expected, where, and what to do. Objects that are not valid are
    /// reported by their reader.
    pub problems: Vec<String>,
}

/// Derives the peers of a node. A node without a valid object or with invalid settings has none.
pub fn peers(contents: &Contents, node: &str) -> Peering {
    let mut problems = Vec::new();
    let settings = Settings::new(contents);
    let nodes = nodes(contents, node, &mut problems);
    let own = nodes.iter().find(|it| it.name == node);
    let system = own.map_or(settings.system(), |own| settings.system_of(own));
    let v4 = own.and_then(|own| own.addresses.into_iter().flatten().find_map(ipv4));
    let mut peering = Peering {
        system,
        router_id: v4.unwrap_or_else(|| hashed(node)),
        cluster: own.and_then(|own| own.node.bgp.cluster),
        addresses: own.map(|own| own.addresses.into_iter().flatten().collect()).unwrap_or_default(),
        port: settings.port_of(node).unwrap_or(PORT),
        listens_at_addresses: settings.default.is_some_and(|it| it.listens_at_node_address),
        advertisements: settings.advertisements_of(node).to_vec(),
        priorities: settings.priorities(),
        peers: Vec::new(),
        gateways: BTreeMap::new(),
        problems: Vec::new(),
    };
    match own {
        None => problems.push(format!(
            "Node {node}: found no valid object of this name, expected one, so this node has no BGP peers: correct the Node, or the name of the agent's node"
        )),
        Some(_) if settings.is_broken_for(node) => problems.push(format!(
            "BGPConfiguration default or node.{node}: found one that is not valid, so this node has no BGP peers: correct it"
        )),
        Some(own) => {
            let cluster = Cluster { settings: &settings, nodes: &nodes, own, contents };
            peering.peers = cluster.peers(&mut problems);
            peering.gateways = cluster.gateways(&peering.peers);
        }
    }
    peering.problems = problems;
    peering
}

fn ipv4(address: IpAddr) -> Option<Ipv4Addr> {
    match address {
        IpAddr::V4(address) => Some(address),
        IpAddr::V6(_) => None,
    }
}

/// The BGP identifier of a node without an IPv4 address: the first four bytes of its name's SHA-256, with a first byte
/// below 224.
fn hashed(node: &str) -> Ipv4Addr {
    let hash = Sha256::digest(node);
    let first = if hash[0] > 223 { hash[0] - 32 } else { hash[0] };
    Ipv4Addr::new(first, hash[1], hash[2], hash[3])
}

/// A node as a BGP speaker.
struct PeeringNode<'a> {
    name: &'a str,
    node: &'a Node,
    labels: Labels,
    /// The node's address of each family. An address that several nodes claim is left out, except if this is the node
    /// whose peers are derived.
    addresses: [Option<IpAddr>; 2],
}

impl PeeringNode<'_> {
    fn is_selected_by(&self, selector: &str) -> bool {
        Selector::parse(selector).is_ok_and(|selector| selector.matches(&self.labels))
    }

    fn is_of(&self, nodes: &PeeringNodes) -> bool {
        match nodes {
            PeeringNodes::All => true,
            PeeringNodes::Named(name) => name == self.name,
            PeeringNodes::Selected(selector) => self.is_selected_by(selector),
        }
    }

    fn has(&self, address: IpAddr) -> bool {
        self.addresses.contains(&Some(address))
    }
}

/// The field of the Node that contains its BGP addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AddressSource {
    /// Calico's annotations of the Node, which `calico/node` or a person has written.
    Annotation,
    /// The Node's first `InternalIP` of the family. The Node does not have Calico's annotations.
    InternalIp,
}

/// The addresses by which a node speaks BGP, and their source. Returns `None` if there is no valid Node of this name.
/// All addresses are from one source. An address that another node also claims is included, although other nodes
/// then have no peer at that address.
pub fn addresses(contents: &Contents, node: &str) -> Option<(Vec<IpAddr>, AddressSource)> {
    let (_, stored) = contents.of_kind(Kind::Node).find(|(key, _)| key.name == node)?;
    let Object::Node(node) = stored.state.valid()? else { return None };
    let (addresses, source) = addresses_of(node);
    Some((addresses.into_iter().flatten().collect(), source))
}

/// The addresses by which a node speaks BGP, one of each family. They are the addresses in Calico's annotations. A node
/// without these annotations uses its first `InternalIP` of each family. (If Calico has annotated only one family, the
/// node has no session over the other.)
fn addresses_of(node: &Node) -> ([Option<IpAddr>; 2], AddressSource) {
    let annotated = [node.calico_address, node.bgp.ipv6_address].map(|net| Some(net?.addr()));
    let (addresses, source) = if annotated.iter().any(Option::is_some) {
        (annotated, AddressSource::Annotation)
    } else {
        let first = |is_v4| node.internal_ips.iter().find(|it| it.is_ipv4() == is_v4).copied();
        ([true, false].map(first), AddressSource::InternalIp)
    };
    (addresses.map(|address| address.filter(is_of_one_host)), source)
}

/// Whether an address can be a node's address on its network.
fn is_of_one_host(address: &IpAddr) -> bool {
    let is_local = match address {
        IpAddr::V4(address) => address.is_broadcast() || address.is_link_local(),
        IpAddr::V6(address) => address.is_unicast_link_local(),
    };
    !(is_local || address.is_loopback() || address.is_unspecified() || address.is_multicast())
}

/// The valid nodes, by name. An address that several nodes claim is removed from all of them, except from the node `own`.
fn nodes<'a>(
    contents: &'a Contents,
    own: &str,
    problems: &mut Vec<String>,
) -> Vec<PeeringNode<'a>> {
    let mut nodes = Vec::new();
    for (key, stored) in contents.of_kind(Kind::Node) {
        let Some(Object::Node(node)) = stored.state.valid() else { continue };
        let (labels, (addresses, _)) = (node.labels.to_map(), addresses_of(node));
        nodes.push(PeeringNode { name: &key.name, node, labels, addresses });
    }
    let mut claims: BTreeMap<IpAddr, Vec<&str>> = BTreeMap::new();
    for node in &nodes {
        for address in node.addresses.into_iter().flatten() {
            claims.entry(address).or_default().push(node.name);
        }
    }
    claims.retain(|_, names| names.len() > 1);
    for (address, names) in &claims {
        let names = names.join(", ");
        problems.push(format!(
            "Nodes {names}: found {address} as the address of each, expected it at one of them, so none of them is a BGP peer there: correct their annotations projectcalico.org/IPv4Address and IPv6Address, or their InternalIPs"
        ));
    }
    for node in nodes.iter_mut().filter(|node| node.name != own) {
        node.addresses = node.addresses.map(|it| it.filter(|it| !claims.contains_key(it)));
    }
    nodes
}

/// The objects, as seen from one node.
struct Cluster<'a> {
    settings: &'a Settings<'a>,
    nodes: &'a [PeeringNode<'a>],
    own: &'a PeeringNode<'a>,
    contents: &'a Contents,
}

/// The peers that were found so far. If two have the same address and port, the first counts.
#[derive(Default)]
struct Found(Vec<Peer>);

impl Found {
    fn add(&mut self, peer: Peer) {
        let is_same = |it: &Peer| (it.address, it.port) == (peer.address, peer.port);
        if !self.0.iter().any(is_same) {
            self.0.push(peer);
        }
    }
}

impl Cluster<'_> {
    /// The valid objects, by name.
    fn objects(&self) -> impl Iterator<Item = (&str, &BgpPeer)> {
        self.contents.of_kind(Kind::BgpPeer).filter_map(|(key, stored)| {
            match stored.state.valid() {
                Some(Object::BgpPeer(peer)) => Some((&*key.name, &**peer)),
                _ => None,
            }
        })
    }

    /// The gateways of these peers. A gateway comes from the `BGPPeer` that applies to this node and names the peer by
    /// its address.
    fn gateways(&self, peers: &[Peer]) -> BTreeMap<IpAddr, IpAddr> {
        let objects = self.objects().filter(|(_, it)| self.own.is_of(&it.nodes));
        let objects: BTreeMap<&str, &BgpPeer> = objects.collect();
        let gateway = |peer: &Peer| {
            // A peer of the mesh has the name of a Node, which a `BGPPeer` may also have.
            if peer.kind == PeerType::Mesh {
                return None;
            }
            let object = objects.get(&*peer.name)?;
            match object.remote {
                Remote::Address { address, .. } if address == peer.address => {
                    Some((address, object.reachable_by?))
                }
                _ => None,
            }
        };
        peers.iter().filter_map(gateway).collect()
    }

    fn peers(&self, problems: &mut Vec<String>) -> Vec<Peer> {
        let mut found = Found::default();
        let objects: Vec<(&str, &BgpPeer)> = self.objects().collect();
        for kind in [PeerType::Global, PeerType::Node] {
            let is_of_kind = |it: &BgpPeer| {
                (it.nodes == PeeringNodes::All) == (kind == PeerType::Global)
                    && self.own.is_of(&it.nodes)
            };
            for (name, object) in objects.iter().filter(|(_, object)| is_of_kind(object)) {
                self.add_named(name, object, kind, &mut found, problems);
            }
        }
        // The other ends come after the peers that objects name, because the first peer with an address counts. So what
        // an object says about a peer takes precedence.
        for (_, object) in objects.iter().filter(|(_, object)| !object.is_one_way) {
            self.add_other_ends(object, &mut found);
        }
        self.add_mesh(&mut found);
        let mut peers = one_of_each_address(found, problems);
        for peer in &mut peers {
            peer.is_node = self.nodes.iter().any(|it| it.has(peer.address));
        }
        peers
    }

    /// Adds the peers that an object names. The object applies to this node.
    fn add_named(
        &self,
        name: &str,
        object: &BgpPeer,
        kind: PeerType,
        found: &mut Found,
        problems: &mut Vec<String>,
    ) {
        match &object.remote {
            Remote::Address { address, port } => {
                let peer = self.by_address(name, object, kind, (*address, *port), problems);
                if let Some(peer) = peer {
                    found.add(peer);
                }
            }
            Remote::Nodes(selector) => {
                for node in self.nodes.iter().filter(|node| node.is_selected_by(selector)) {
                    for address in node.addresses.into_iter().flatten() {
                        if let Some(peer) = self.by_node(object, kind, node, address) {
                            found.add(peer);
                        }
                    }
                }
            }
            Remote::Workloads(_) => {}
        }
    }

    /// The peer with an address that an object names. If the address is a node's, that affects three things: the port, the
    /// autonomous system, and which of the two nodes connects.
    fn by_address(
        &self,
        name: &str,
        object: &BgpPeer,
        kind: PeerType,
        (address, port): (IpAddr, Option<u16>),
        problems: &mut Vec<String>,
    ) -> Option<Peer> {
        if self.own.has(address) {
            return None;
        }
        let Some(own_address) = self.own_address(address) else {
            let family = if address.is_ipv4() { "IPv4" } else { "IPv6" };
            problems.push(format!(
                "BGPPeer {name}: found {address} as the peer of Node {}, which has no {family} address, so it is no peer of this node: give the node one (annotation projectcalico.org/{family}Address), or have the BGPPeer select other nodes",
                self.own.name
            ));
            return None;
        };
        let node = self.nodes.iter().find(|node| node.has(address));
        let system = object.system.or_else(|| Some(self.settings.system_of(node?)));
        let Some(system) = system else {
            problems.push(format!(
                "BGPPeer {name}: found no asNumber for {address}, which is no node's address, so it is no peer: write spec.asNumber"
            ));
            return None;
        };
        let of_node = node.filter(|node| self.settings.system_of(node) == system);
        let port = port.or_else(|| self.settings.port_of(of_node?.name)).unwrap_or(PORT);
        let peer = self.of_object(object, kind, address, own_address, system);
        Some(Peer {
            port,
            name: name.to_owned(),
            is_node: false,
            is_passive: kind == PeerType::Global
                && node.is_some()
                && is_passive(address, own_address),
            next_hop: match object.next_hop {
                None if object.keeps_next_hop && !peer.is_internal() => NextHopMode::Keep,
                _ => peer.next_hop,
            },
            own_system_allowed: u8::try_from(object.own_system_allowed).unwrap_or(u8::MAX),
            reflected_as: self.own.node.bgp.cluster.filter(|_| peer.is_internal()),
            ..peer
        })
    }

    /// The peer for a node that an object names. Returns `None` if it is this node, if this node has no address of the
    /// family, or if that node's settings are not valid.
    fn by_node(
        &self,
        object: &BgpPeer,
        kind: PeerType,
        node: &PeeringNode<'_>,
        address: IpAddr,
    ) -> Option<Peer> {
        if node.name == self.own.name || self.settings.is_broken_for(node.name) {
            return None;
        }
        let own_address = self.own_address(address)?;
        let system = self.settings.system_of(node);
        let peer = self.of_object(object, kind, address, own_address, system);
        Some(Peer {
            port: self.settings.port_of(node.name).unwrap_or(PORT),
            name: node.name.to_owned(),
            reflected_as: self.reflected_as(node, &peer),
            ..peer
        })
    }

    /// If an object names this node as a peer, adds the nodes to which the object applies.
    fn add_other_ends(&self, object: &BgpPeer, found: &mut Found) {
        let families = match &object.remote {
            Remote::Nodes(selector) if self.own.is_selected_by(selector) => [true, true],
            Remote::Address { address, port } if self.is_at(object, *address, *port) => {
                [address.is_ipv4(), address.is_ipv6()]
            }
            _ => return,
        };
        for node in self.nodes.iter().filter(|node| node.is_of(&object.nodes)) {
            for (address, is_meant) in node.addresses.into_iter().zip(families) {
                let Some(address) = address.filter(|_| is_meant) else { continue };
                let Some(mut peer) = self.by_node(object, PeerType::Node, node, address) else {
                    continue;
                };
                // `localASNumber` of the object applies to the other end, not to this one.
                peer.own_system = self.settings.system_of(self.own);
                peer.system = object.local_system.unwrap_or(peer.system);
                peer.reflected_as = self.reflected_as(node, &peer);
                found.add(peer);
            }
        }
    }

    /// Whether an address that an object names is this node's.
    fn is_at(&self, object: &BgpPeer, address: IpAddr, port: Option<u16>) -> bool {
        let system = object.system.unwrap_or(self.settings.system());
        let own = self.settings.port_of(self.own.name);
        let is_port = port.is_none_or(|port| own.is_none_or(|own| own == port));
        self.own.has(address) && self.settings.system_of(self.own) == system && is_port
    }

    /// Adds the mesh: all nodes except route reflectors.
    fn add_mesh(&self, found: &mut Found) {
        let settings = self.settings.default;
        let is_off = settings.and_then(|it| it.mesh) == Some(false);
        if is_off || self.own.node.bgp.cluster.is_some() {
            return;
        }
        let is_in = |node: &&PeeringNode<'_>| {
            node.name != self.own.name
                && node.node.bgp.cluster.is_none()
                && !self.settings.is_broken_for(node.name)
        };
        let password = settings.and_then(|it| it.mesh_password.as_ref());
        for node in self.nodes.iter().filter(is_in) {
            for address in node.addresses.into_iter().flatten() {
                let Some(own_address) = self.own_address(address) else { continue };
                found.add(Peer {
                    address,
                    port: self.settings.port_of(node.name).unwrap_or(PORT),
                    kind: PeerType::Mesh,
                    name: node.name.to_owned(),
                    system: self.settings.system_of(node),
                    own_system: self.settings.system_of(self.own),
                    source: Some(own_address),
                    is_node: true,
                    is_passive: is_passive(address, own_address),
                    reflected_as: None,
                    next_hop: NextHopMode::Auto,
                    own_system_allowed: 0,
                    filters: Vec::new(),
                    password: password.cloned(),
                    hops: None,
                    restart_time: restart_time(settings.and_then(|it| it.mesh_restart_time)),
                    hold_time: HOLD_TIME,
                });
            }
        }
    }

    /// The parameters that an object gives to each of its peers.
    fn of_object(
        &self,
        object: &BgpPeer,
        kind: PeerType,
        address: IpAddr,
        own_address: IpAddr,
        system: u32,
    ) -> Peer {
        Peer {
            address,
            port: PORT,
            kind,
            name: String::new(),
            system,
            own_system: object.local_system.unwrap_or(self.settings.system_of(self.own)),
            source: (!object.any_source).then_some(own_address),
            is_node: false,
            is_passive: false,
            reflected_as: None,
            next_hop: match object.next_hop {
                Some(NextHop::Own) => NextHopMode::Own,
                Some(NextHop::Keep) => NextHopMode::Keep,
                Some(NextHop::Auto) | None => NextHopMode::Auto,
            },
            own_system_allowed: 0,
            filters: object.filters.clone(),
            password: object.password.clone(),
            hops: object.hops,
            restart_time: restart_time(object.restart_time),
            hold_time: HOLD_TIME,
        }
    }

    /// This node's cluster ID, if this node is a route reflector and the other node is its client. A client has the
    /// same autonomous system, and has no cluster ID or another one. Reflectors of one cluster are ordinary peers of
    /// each other.
    fn reflected_as(&self, node: &PeeringNode<'_>, peer: &Peer) -> Option<Ipv4Addr> {
        let own = self.own.node.bgp.cluster?;
        (peer.is_internal() && node.node.bgp.cluster != Some(own)).then_some(own)
    }

    /// This node's address in the family of another address.
    fn own_address(&self, other: IpAddr) -> Option<IpAddr> {
        let mut own = self.own.addresses.into_iter().flatten();
        own.find(|it| it.is_ipv4() == other.is_ipv4())
    }
}

/// Whether the node with address `own` waits for the node with address `other` to connect. Calico compares the
/// addresses as text, so `10.0.0.9` is greater than `10.0.0.10`. Both ends must use the same comparison. (If both
/// connected at once, both connections would fail, which would end a graceful restart.)
fn is_passive(other: IpAddr, own: IpAddr) -> bool {
    other.to_string() > own.to_string()
}

fn restart_time(written: Option<Duration>) -> Duration {
    let Some(written) = written else { return RESTART_TIME };
    let seconds = written.as_secs() + u64::from(written.subsec_millis() >= 500);
    Duration::from_secs(seconds.min(MOST_RESTART_TIME))
}

/// Returns the first peer of each address, in the order of the addresses. A problem is reported if one address has two
/// ports, because a session is identified by its address.
fn one_of_each_address(found: Found, problems: &mut Vec<String>) -> Vec<Peer> {
    let mut peers: BTreeMap<IpAddr, Peer> = BTreeMap::new();
    for peer in found.0 {
        match peers.get(&peer.address) {
            None => {
                peers.insert(peer.address, peer);
            }
            // An object often names a node of the mesh, too, so that is no problem.
            Some(first) if peer.kind == PeerType::Mesh || first.port == peer.port => {}
            Some(first) => problems.push(format!(
                "BGPPeer {}: found {} with port {}, which is a peer with port {} by {}, so the latter counts: have one BGPPeer for each address",
                peer.name, peer.address, peer.port, first.port, first.name
            )),
        }
    }
    peers.into_values().collect()
}
