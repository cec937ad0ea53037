//! The interfaces of nodes that a packet passes on its way between two parties.
//!
//! The packet leaves the source's node and arrives at the destination's node on the uplink or in a tunnel. The
//! topologies of the nodes decide which of the two; the agents use the same topologies for their routes. A packet
//! between pods of one node, or between a node and its own pods, passes no interface. If a node has no object or no
//! block, its routes are not known, and its packets are assumed to pass its uplink.

use std::net::IpAddr;

use ipnet::IpNet;

use manx_calculation::topology::Route;
use manx_oracle::{Crossing, Direction, Packet, Party};

use super::Explainer;
use crate::routes::Routes;

/// The name that explanations use for the tunnels as an interface. No host endpoint can have this name.
const TUNNELS: &str = "its tunnels";

/// See the module.
#[derive(Debug)]
pub(super) struct Traversal {
    from: IpAddr,
    to: IpAddr,
    no_route: Option<String>,
    leaving: Option<TraversedInterface>,
    arriving: Option<TraversedInterface>,
}

/// An interface on the path.
#[derive(Debug)]
struct TraversedInterface {
    node: String,
    interface: String,
    addresses: Vec<IpAddr>,
    forwarded: bool,
}

/// The route of one node to the address at the other end.
struct NodeRoute<'a> {
    node: &'a str,
    other: IpAddr,
    prefix: IpNet,
    route: Route,
}

impl Traversal {
    /// Finds the interfaces between two parties. `uplink` is the name of the nodes' uplink. `brought_by` is the node
    /// through whose tunnel the packet comes, if the first party is a client outside the cluster. Returns `Err`, with
    /// the reason, if the routes are not known.
    pub(super) fn new(
        Explainer { oracle, parties, routes, .. }: &Explainer<'_>,
        [from, to]: [&Party; 2],
        uplink: &str,
        brought_by: Option<&str>,
    ) -> Result<Self, String> {
        let (leaves, arrives) = (oracle.node(from), oracle.node(to));
        let mut traversal = Self {
            from: from.address(),
            to: to.address(),
            no_route: None,
            leaving: None,
            arriving: None,
        };
        if brought_by.is_some() {
            [traversal.leaving, traversal.arriving] =
                [brought_by, arrives].map(|it| it.map(TraversedInterface::tunnels));
            return Ok(traversal);
        }
        if leaves == arrives {
            return Ok(traversal);
        }
        let is_placeless = |party: &Party, node: Option<&str>| {
            node.is_none() && matches!(party, Party::Pod { .. })
        };
        let there = leaves.filter(|_| !is_placeless(to, arrives));
        let there =
            there.map(|node| NodeRoute::new(routes, node, traversal.to)).transpose()?.flatten();
        let back = arrives.filter(|_| !is_placeless(from, leaves));
        let back =
            back.map(|node| NodeRoute::new(routes, node, traversal.from)).transpose()?.flatten();
        let is_between_pods = matches!((from, to), (Party::Pod { .. }, Party::Pod { .. }));
        traversal.no_route = refusal(there.as_ref(), back.as_ref(), is_between_pods);
        let interface = if traversal.no_route.is_some() {
            // Packets that follow a route of another plugin pass the uplink.
            Some(uplink)
        } else {
            interface(there.or(back).map(|end| end.route), uplink)
        };
        let Some(interface) = interface else { return Ok(traversal) };
        let passed = |party: &Party, node: &str| {
            let addresses = parties.node(node).iter().filter(|_| interface != TUNNELS);
            TraversedInterface {
                node: node.to_owned(),
                interface: interface.to_owned(),
                addresses: addresses.map(Party::address).collect(),
                forwarded: matches!(party, Party::Pod { .. }),
            }
        };
        traversal.leaving = leaves.map(|node| passed(from, node));
        traversal.arriving = arrives.map(|node| passed(to, node));
        Ok(traversal)
    }

    /// Returns the reason why the packet does not arrive, or why the reply does not come back, if there is no route.
    pub(super) fn no_route(&self) -> Option<&str> {
        self.no_route.as_deref()
    }

    /// Returns the interfaces that a packet passes: first the interface where it leaves, then the interface where it
    /// arrives.
    pub(super) fn crossings(&self, packet: Packet) -> [Option<Crossing<'_>>; 2] {
        let ends = [(&self.leaving, Direction::Egress), (&self.arriving, Direction::Ingress)];
        ends.map(|(passed, direction)| {
            let passed = passed.as_ref()?;
            Some(Crossing {
                node: &passed.node,
                interface: &passed.interface,
                addresses: &passed.addresses,
                direction,
                forwarded: passed.forwarded,
                source: self.from,
                destination: self.to,
                packet,
                original: None,
            })
        })
    }
}

impl TraversedInterface {
    /// The tunnels of a node.
    fn tunnels(node: &str) -> Self {
        Self {
            node: node.to_owned(),
            interface: TUNNELS.to_owned(),
            addresses: Vec::new(),
            forwarded: true,
        }
    }
}

impl<'a> NodeRoute<'a> {
    /// Returns the route of `node` to the other end. Returns `None` if there is no such node, or if it has no pods.
    fn new(routes: &Routes<'_>, node: &'a str, other: IpAddr) -> Result<Option<Self>, String> {
        let found = routes.route(node, other)?;
        Ok(found.map(|(prefix, route)| Self { node, other, prefix, route }))
    }

    /// Returns the reason why packets to the other end are refused, if they are. Packets from the other end are then
    /// refused, too, by the strict reverse-path check.
    fn refusal(&self, way: &str) -> Option<String> {
        let Self { node, other, prefix, .. } = self;
        let why = match self.route {
            Route::NoRoute(why) => why.to_string(),
            Route::Local => "is its own, and none of its pods has the address".to_owned(),
            Route::Node
            | Route::Masquerade
            | Route::Direct(_)
            | Route::Tunnel(_)
            | Route::World => return None,
        };
        Some(format!("node {node} has no route {way} {other}: {prefix} {why}"))
    }
}

/// Returns the reason why a packet or its reply does not arrive, if it does not. `there` is the route to the
/// destination, and `back` is the route of the reply.
fn refusal(
    there: Option<&NodeRoute<'_>>,
    back: Option<&NodeRoute<'_>>,
    is_between_pods: bool,
) -> Option<String> {
    there
        .and_then(|there| there.refusal("to"))
        .or_else(|| back?.refusal("back to"))
        .or_else(|| if is_between_pods { mismatch(there?, back?) } else { None })
}

/// Returns the reason why a packet between pods is refused on arrival, if only one of the two directions uses a tunnel.
/// The strict reverse-path check refuses it, because the reply would take another path.
fn mismatch(there: &NodeRoute<'_>, back: &NodeRoute<'_>) -> Option<String> {
    let in_tunnel = |end: &NodeRoute<'_>| matches!(end.route, Route::Tunnel(_));
    let how = |end: &NodeRoute<'_>| if in_tunnel(end) { "in a tunnel" } else { "without one" };
    (in_tunnel(there) != in_tunnel(back)).then(|| {
        format!(
            "node {} sends to {} {}, and node {} back to {} {}: neither takes what comes another way than it would answer",
            there.node,
            there.other,
            how(there),
            back.node,
            back.other,
            how(back)
        )
    })
}

/// Returns the interface that a packet on this route passes, or `None` if it passes none. Without a route, it is the
/// uplink.
const fn interface(route: Option<Route>, uplink: &str) -> Option<&str> {
    match route {
        Some(Route::Node) => None,
        Some(Route::Tunnel(_)) => Some(TUNNELS),
        // A packet that the node masquerades may have arrived on the uplink.
        Some(
            Route::Masquerade | Route::Local | Route::Direct(_) | Route::NoRoute(_) | Route::World,
        )
        | None => Some(uplink),
    }
}
