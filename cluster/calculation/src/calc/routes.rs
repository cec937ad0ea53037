//! Routes and tunnels.
//!
//! They are calculated again if a node, a block, an attachment or the underlay has changed. If only some IPv4 routes
//! have changed, and their new next hops are already in the tables in use, the change is stored in these tables. No
//! tables are published then, and only flows from and to the addresses of those routes look up their next hops again.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use ipnet::{IpNet, Ipv4Net};
use manx_dataplane::tables::{
    EncodedNextHop, Link, NextHop, Peers, TUNNELS_PER_NODE, Tables, Tunnel,
};
use manx_policy_compiler::prefix_map::PrefixMap;

use super::{Inputs, ServiceMode};
use crate::overlay::Underlay;
use crate::topology::{self, Peer, Route, RouteSource, Topology};
use crate::way_out::values as way_out;

/// The prefix length of the blocks in which changed routes are stored in place.
const BLOCK: u8 = 24;
/// The length of the shortest prefix, which is the largest net, whose route can change in place.
const LARGEST_IN_PLACE: u8 = 18;
/// The maximum number of /24 blocks that one change stores in place.
const MOST_IN_PLACE: usize = 1 << (BLOCK - LARGEST_IN_PLACE);

/// The result of an attempt to store changed routes in tables that are in use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InPlace {
    /// No route differs.
    Unchanged,
    /// The changed routes are stored.
    Stored,
    /// The change cannot be stored in place, because too many routes or other things have changed. New tables are
    /// needed, even if some routes are already stored.
    Refused,
}

/// The routes and tunnels of the last tables, and the inputs from which they were made.
#[derive(Debug)]
pub(super) struct RouteTables {
    /// The number of each node to which a tunnel exists or has existed.
    nodes: BTreeMap<Ipv4Addr, u32>,
    inputs: Option<RouteInputs>,
    pub(super) routes: BTreeMap<IpNet, NextHop>,
    /// The same routes in the encoding that the dataplane looks up.
    pub(super) map: Arc<PrefixMap>,
    /// The tunnels, by index.
    pub(super) tunnels: Arc<[Option<Tunnel>]>,
    /// The index of the tunnel to each node from which tunnel packets are accepted.
    pub(super) peers: Peers,
    /// The sources whose packets to destinations outside the cluster get the node's address
    /// ([`ManxPorts::masquerade`](manx_dataplane::tables::ManxPorts::masquerade)).
    pub(super) masquerade: Arc<PrefixMap>,
}

/// The inputs from which routes and tunnels are made.
#[derive(Debug, PartialEq)]
struct RouteInputs {
    topology: Topology,
    underlay: Underlay,
    /// The next hops of the attached pods' addresses, and of the node's own addresses on their links.
    attached: Vec<(IpAddr, NextHop)>,
    own_addresses: BTreeSet<IpNet>,
    /// The service addresses that are translated.
    services: Vec<IpNet>,
    /// The pools and excluded hosts, with their values in the masquerade table.
    way_out: Vec<(IpNet, u32)>,
}

impl Default for RouteTables {
    /// Returns tables in which no address has a route.
    fn default() -> Self {
        Self {
            nodes: BTreeMap::new(),
            inputs: None,
            routes: BTreeMap::new(),
            map: Arc::new(PrefixMap::new(NextHop::NoRoute.encode().0)),
            tunnels: Arc::default(),
            peers: Peers::default(),
            masquerade: Arc::new(PrefixMap::new(0)),
        }
    }
}

impl RouteTables {
    /// Calculates routes and tunnels again if an input has changed.
    pub(super) fn refresh(&mut self, inputs: &Inputs<'_>) {
        let attached = attached(inputs);
        let stand = self.inputs.as_ref().is_some_and(|of| {
            of.attached == attached
                && of.underlay == *inputs.underlay
                && of.topology == *inputs.topology
                && of.own_addresses == *inputs.own_addresses
                && of.services.iter().copied().eq(services(inputs))
                && of.way_out.iter().copied().eq(way_out(inputs.cluster, inputs.topology))
        });
        if stand {
            return;
        }
        self.tunnels = self.tunnels(inputs).into();
        self.routes = self.routes(inputs, &attached, None);
        let senders = inputs.topology.senders.iter().filter_map(|&peer| {
            let key = (peer.address, peer.overlay.encapsulation());
            Some((key, self.tunnel_index(peer)?))
        });
        self.peers = senders.collect();
        let routes = self.routes.iter().map(|(net, via)| (*net, via.encode().0));
        self.map = Arc::new(PrefixMap::build(NextHop::NoRoute.encode().0, routes));
        let (topology, underlay) = (inputs.topology.clone(), inputs.underlay.clone());
        let own_addresses = inputs.own_addresses.clone();
        let way_out: Vec<_> = way_out(inputs.cluster, inputs.topology).collect();
        let services = services(inputs).collect();
        self.masquerade = Arc::new(PrefixMap::build(0, way_out.iter().copied()));
        self.inputs =
            Some(RouteInputs { topology, underlay, attached, own_addresses, services, way_out });
    }

    /// Stores the changed routes in `tables`, which are in use. If `only` is given, the only change is whether these
    /// addresses are services' addresses; only these prefixes are then compared.
    pub(super) fn change_in_place(
        &mut self,
        tables: &Tables,
        inputs: &Inputs<'_>,
        only: Option<&BTreeSet<IpAddr>>,
    ) -> InPlace {
        let Some(before) = self.inputs.take() else { return InPlace::Refused };
        let attached = attached(inputs);
        let is_alike = before.attached == attached
            && before.own_addresses == *inputs.own_addresses
            && Arc::ptr_eq(&self.map, &tables.routes)
            && (only.is_some() || self.differs_in_prefixes_alone(&before, inputs));
        if !is_alike {
            return InPlace::Refused;
        }
        let only: Option<BTreeSet<IpNet>> =
            only.map(|addresses| addresses.iter().map(|it| IpNet::from(*it)).collect());
        let now = self.routes(inputs, &attached, only.as_ref());
        let was = match &only {
            Some(only) => only.iter().filter_map(|it| self.routes.remove_entry(it)).collect(),
            None => std::mem::take(&mut self.routes),
        };
        let Some(blocks) = differing_blocks(&was, &now) else {
            self.routes.extend(was);
            return InPlace::Refused;
        };
        self.routes.extend(now);
        let made = if blocks.is_empty() { InPlace::Unchanged } else { InPlace::Stored };
        if !self.store(tables, blocks) {
            return InPlace::Refused;
        }
        let topology = if only.is_some() { before.topology } else { inputs.topology.clone() };
        let services = services(inputs).collect();
        self.inputs = Some(RouteInputs { topology, services, ..before });
        made
    }

    fn differs_in_prefixes_alone(&mut self, before: &RouteInputs, inputs: &Inputs<'_>) -> bool {
        before.underlay == *inputs.underlay
            && before.way_out.iter().copied().eq(way_out(inputs.cluster, inputs.topology))
            && before.topology.differs_in_prefixes_alone(inputs.topology)
            && self.tunnels(inputs)[..] == *self.tunnels
    }

    /// Stores the next hops of these blocks in `tables`.
    fn store(&self, tables: &Tables, blocks: BTreeSet<Ipv4Net>) -> bool {
        let store =
            |block: Ipv4Net| tables.store_next_hops(block.addr(), &next_hops(&self.routes, block));
        blocks.into_iter().all(store)
    }

    fn tunnels(&mut self, inputs: &Inputs<'_>) -> Vec<Option<Tunnel>> {
        let peers = inputs.topology.peers();
        for peer in &peers {
            let next = self.nodes.len() as u32;
            self.nodes.entry(peer.address).or_insert(next);
        }
        let Some(local) = inputs.topology.underlay else { return Vec::new() };
        let mut tunnels = vec![None; self.nodes.len() * TUNNELS_PER_NODE as usize];
        let (underlay, macs) = (inputs.underlay, &inputs.topology.vxlan_macs);
        for peer in peers {
            let made = peer.overlay.tunnel(underlay, macs, (local, peer.address));
            let headers = peer.overlay.encapsulation().header_len() as u32;
            let mtu = underlay.mtu.saturating_sub(headers);
            if let (Some((outer, port)), Some(index)) = (made, self.tunnel_index(peer)) {
                let link = Link { port, mtu, tunnel: Some(index) };
                tunnels[index as usize] = Some(Tunnel { remote: peer.address, outer, link });
            }
        }
        tunnels
    }

    fn tunnel_index(&self, peer: Peer) -> Option<u32> {
        let node = self.nodes.get(&peer.address)?;
        Some(node * TUNNELS_PER_NODE + peer.overlay.encapsulation().kind())
    }

    /// Returns all routes, or only the routes to the prefixes `only`.
    fn routes(
        &self,
        inputs: &Inputs<'_>,
        attached: &[(IpAddr, NextHop)],
        only: Option<&BTreeSet<IpNet>>,
    ) -> BTreeMap<IpNet, NextHop> {
        let via = |route: &Route| match route {
            Route::Local => NextHop::Unreachable,
            Route::Node | Route::Masquerade => NextHop::Node,
            Route::Direct(_) | Route::World => NextHop::World,
            Route::Tunnel(peer) => {
                self.tunnel_index(*peer).map_or(NextHop::NoRoute, NextHop::Tunnel)
            }
            Route::NoRoute(_) => NextHop::NoRoute,
        };
        let of_cluster =
            |(net, route): (&IpNet, &Route)| (*net, RouteSource::LAST_OF_CLUSTER, via(route));
        let prefixes = &inputs.topology.prefixes;
        let of_node = of_node(inputs, attached);
        let Some(only) = only else {
            return topology::routes(prefixes.iter().map(of_cluster).chain(of_node));
        };
        let prefixes = only.iter().filter_map(|net| prefixes.get_key_value(net));
        let of_node = of_node.filter(|(net, ..)| only.contains(net));
        topology::routes(prefixes.map(of_cluster).chain(of_node))
    }
}

/// Returns the routes that are local to the node: its kernel's addresses, the service addresses, and the attached
/// addresses.
fn of_node<'a>(
    inputs: &Inputs<'a>,
    attached: &'a [(IpAddr, NextHop)],
) -> impl Iterator<Item = (IpNet, RouteSource, NextHop)> + use<'a> {
    let kernel = inputs.own_addresses.iter();
    let kernel = kernel.map(|net| (*net, RouteSource::KernelAddress, NextHop::Node));
    let services = services(inputs).map(|it| (it, RouteSource::Service, NextHop::Service));
    let attached = attached.iter().map(|(address, via)| {
        let source = match via {
            NextHop::Endpoint(_) => RouteSource::Pod,
            _ => RouteSource::Gateway,
        };
        (IpNet::from(*address), source, *via)
    });
    kernel.chain(services).chain(attached)
}

/// Returns the routes for these inputs that are local to the node, with their sources. These sources take precedence
/// over those of the topology.
pub fn own_routes(inputs: &Inputs<'_>) -> Vec<(IpNet, RouteSource, NextHop)> {
    of_node(inputs, &attached(inputs)).collect()
}

/// Returns the ranges of service addresses, and the translated addresses outside of them. An address in a range uses
/// the range's route.
fn services<'a>(inputs: &Inputs<'a>) -> impl Iterator<Item = IpNet> + use<'a> {
    let (addresses, ranges) = match inputs.services {
        ServiceMode::Nobody => (None, None),
        ServiceMode::KubeProxy(services, _) => (Some(&services.addresses), None),
        ServiceMode::Manx(frontends, ranges, _) => (Some(frontends.addresses()), Some(ranges)),
    };
    let routed = ranges.map(|ranges| ranges.routed(inputs.topology));
    let is_outside = move |it: &&IpAddr| routed.as_ref().is_none_or(|routed| !routed.contain(it));
    let addresses = addresses.into_iter().flatten().filter(is_outside);
    let addresses = addresses.map(|it| IpNet::from(*it));
    addresses.chain(ranges.into_iter().flat_map(|ranges| &ranges.nets).copied())
}

/// Returns the node's addresses on the links of attached pods, followed by the addresses of these pods, each with its
/// next hop.
fn attached(inputs: &Inputs<'_>) -> Vec<(IpAddr, NextHop)> {
    let gateways = inputs.locals.values().filter_map(|local| local.host.as_ref());
    let gateways = gateways.flat_map(|host| &host.gateways).map(|it| (*it, NextHop::Node));
    let addresses = inputs
        .locals
        .values()
        .flat_map(|local| local.addresses.iter().map(|it| (*it, NextHop::Endpoint(local.index))));
    gateways.chain(addresses).collect()
}

/// Returns the /24 blocks in which routes differ. Returns `None` if an IPv6 route differs, or if more routes differ
/// than can be stored in place.
fn differing_blocks(
    before: &BTreeMap<IpNet, NextHop>,
    after: &BTreeMap<IpNet, NextHop>,
) -> Option<BTreeSet<Ipv4Net>> {
    let mut blocks = BTreeSet::new();
    let prefixes: BTreeSet<_> = before.keys().chain(after.keys()).collect();
    for prefix in prefixes.into_iter().filter(|prefix| before.get(prefix) != after.get(prefix)) {
        let IpNet::V4(prefix) = prefix else { return None };
        let around = Ipv4Net::new(prefix.addr(), prefix.prefix_len().min(BLOCK)).ok()?.trunc();
        if around.prefix_len() < LARGEST_IN_PLACE {
            return None;
        }
        blocks.extend(around.subnets(BLOCK).ok()?);
        if blocks.len() > MOST_IN_PLACE {
            return None;
        }
    }
    Some(blocks)
}

/// Returns the next hop of each address of a /24, found by longest-prefix match.
fn next_hops(routes: &BTreeMap<IpNet, NextHop>, block: Ipv4Net) -> [EncodedNextHop; 256] {
    let around = (0..=BLOCK).rev().find_map(|length| {
        let prefix = Ipv4Net::new(block.addr(), length).ok()?.trunc();
        routes.get(&IpNet::V4(prefix))
    });
    let mut next_hops = [around.copied().unwrap_or(NextHop::NoRoute).encode(); 256];
    let [first, last] = [(block.network(), BLOCK + 1), (block.broadcast(), 32)]
        .map(|(address, length)| IpNet::V4(Ipv4Net::new_assert(address, length)));
    // A prefix sorts before the prefixes within it.
    for (prefix, next_hop) in routes.range(first..=last) {
        let IpNet::V4(prefix) = prefix else { continue };
        let [from, to] = [prefix.network(), prefix.broadcast()].map(|at| at.octets()[3] as usize);
        next_hops[from..=to].fill(next_hop.encode());
    }
    next_hops
}

#[cfg(test)]
mod tests;
