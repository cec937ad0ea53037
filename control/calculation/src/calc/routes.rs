//! Routes and tunnels: made anew where a node, a block, an attachment or the underlay changed, and else those that stand.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use ipnet::IpNet;
use manx_dataplane::encapsulation::{LinkAddresses, Outer};
use manx_dataplane::tables::{Link, NextHop, Peers, PortId, TUNNELS_OF_A_NODE, Tunnel};
use manx_policy_compiler::prefix_map::PrefixMap;

use super::{Inputs, Underlay, VNI, encapsulation};
use crate::import::Overlay;
use crate::topology::{Peer, Route, Topology};

/// See the module.
#[derive(Debug)]
pub(super) struct RouteTables {
    /// The number of each node to which there has been a tunnel.
    nodes: BTreeMap<Ipv4Addr, u32>,
    inputs: Option<RouteInputs>,
    pub(super) routes: BTreeMap<IpNet, NextHop>,
    /// The same as numbers.
    pub(super) map: Arc<PrefixMap>,
    /// By index.
    pub(super) tunnels: Vec<Option<Tunnel>>,
    /// The index of each sender's tunnel.
    pub(super) peers: Peers,
}

/// What they rest on.
#[derive(Debug, PartialEq)]
struct RouteInputs {
    topology: Topology,
    underlay: Underlay,
    /// The index of each attached pod's address.
    attached: Vec<(IpAddr, u32)>,
}

impl Default for RouteTables {
    /// To nowhere.
    fn default() -> Self {
        Self {
            nodes: BTreeMap::new(),
            inputs: None,
            routes: BTreeMap::new(),
            map: Arc::new(PrefixMap::new(NextHop::NoRoute.encode().0)),
            tunnels: Vec::new(),
            peers: Peers::default(),
        }
    }
}

impl RouteTables {
    /// Makes routes and tunnels anew if an input has changed.
    pub(super) fn refresh(&mut self, inputs: &Inputs<'_>) {
        let attached = inputs
            .locals
            .values()
            .flat_map(|local| local.addresses.iter().map(|address| (*address, local.index)));
        let attached: Vec<(IpAddr, u32)> = attached.collect();
        let stand = self.inputs.as_ref().is_some_and(|of| {
            of.attached == attached
                && of.underlay == *inputs.underlay
                && of.topology == *inputs.topology
        });
        if stand {
            return;
        }
        self.tunnels = self.tunnels(inputs);
        self.routes = self.routes(inputs, &attached);
        let senders = inputs.topology.senders.iter().filter_map(|&peer| {
            let key = (peer.address, encapsulation(peer.overlay));
            Some((key, self.tunnel_index(peer)?))
        });
        self.peers = senders.collect();
        let routes = self.routes.iter().map(|(net, via)| (*net, via.encode().0));
        self.map = Arc::new(PrefixMap::build(NextHop::NoRoute.encode().0, routes));
        let (topology, underlay) = (inputs.topology.clone(), inputs.underlay.clone());
        self.inputs = Some(RouteInputs { topology, underlay, attached });
    }

    fn tunnels(&mut self, inputs: &Inputs<'_>) -> Vec<Option<Tunnel>> {
        let peers = inputs.topology.peers();
        for peer in &peers {
            let next = self.nodes.len() as u32;
            self.nodes.entry(peer.address).or_insert(next);
        }
        let Some(local) = inputs.topology.underlay else { return Vec::new() };
        let mut tunnels = vec![None; self.nodes.len() * TUNNELS_OF_A_NODE as usize];
        let underlay = inputs.underlay;
        for peer in peers {
            let made = match peer.overlay {
                Overlay::Ipip => Some(ipip(underlay, local, peer.address)),
                Overlay::Vxlan => vxlan(inputs, local, peer.address),
            };
            let headers = encapsulation(peer.overlay).header_len() as u32;
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
        let which = match peer.overlay {
            Overlay::Ipip => 0,
            Overlay::Vxlan => 1,
        };
        Some(node * TUNNELS_OF_A_NODE + which)
    }

    fn routes(&self, inputs: &Inputs<'_>, attached: &[(IpAddr, u32)]) -> BTreeMap<IpNet, NextHop> {
        let via = |route: &Route| match route {
            Route::Local => NextHop::Unreachable,
            Route::Node => NextHop::Node,
            Route::Direct(_) | Route::World => NextHop::Host,
            Route::Tunnel(peer) => {
                self.tunnel_index(*peer).map_or(NextHop::NoRoute, NextHop::Tunnel)
            }
            Route::Nowhere(_) => NextHop::NoRoute,
        };
        let mut routes: BTreeMap<_, _> =
            inputs.topology.prefixes.iter().map(|(net, route)| (*net, via(route))).collect();
        let attached = attached
            .iter()
            .map(|(address, index)| (IpNet::from(*address), NextHop::Endpoint(*index)));
        routes.extend(attached);
        routes
    }
}

/// By the packet socket where the next hop is known, else by the raw socket.
fn ipip(underlay: &Underlay, local: Ipv4Addr, peer: Ipv4Addr) -> (Outer, PortId) {
    match (underlay.packet_socket, underlay.next_hops.get(&peer)) {
        (Some((packet_socket, own)), Some(next_hop)) => {
            let link = LinkAddresses { source: own, destination: *next_hop };
            (Outer::ipip(local, peer, Some(link)), packet_socket)
        }
        _ => (Outer::ipip(local, peer, None), underlay.raw),
    }
}

/// `None` without the socket.
fn vxlan(inputs: &Inputs<'_>, local: Ipv4Addr, peer: Ipv4Addr) -> Option<(Outer, PortId)> {
    let macs = &inputs.topology.vxlan_macs;
    let inner = LinkAddresses { source: *macs.get(&local)?, destination: *macs.get(&peer)? };
    Some((Outer::vxlan(local, peer, VNI, inner), inputs.underlay.vxlan?))
}
