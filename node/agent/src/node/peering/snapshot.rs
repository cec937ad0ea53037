//! The node's BGP state for `CalicoNodeStatus` objects.

use std::net::IpAddr;

use manx_bgp::export::OwnRoute;
use manx_bgp::peer::PeerType;

use super::Peering;
use crate::interfaces;
use crate::node::node_statuses::{Daemon, KnownRoute, MOST_ROUTES, Origin, Snapshot, Used};

impl Peering {
    /// The current BGP state of the node. Routes are read only if an object requests them.
    pub(in crate::node) fn snapshot(
        &self,
        wants_routes: bool,
        used: impl FnOnce() -> Used,
        interface_to: impl Fn(IpAddr) -> Option<String>,
    ) -> Snapshot {
        let mut snapshot = Snapshot {
            daemon: Some(Daemon {
                identifier: self.configured.as_ref().map(|it| it.table.identifier),
                began: self.began,
                configured: self.configured_at,
            }),
            sessions: self.speaker.sessions(),
            ..Snapshot::default()
        };
        if wants_routes {
            let (used, learned) = (used(), self.speaker.first_learned(MOST_ROUTES + 1));
            let own = self.own_routes();
            let learned = learned
                .into_iter()
                .flat_map(|(prefix, routes)| routes.into_iter().map(move |route| (prefix, route)));
            let learned = learned.map(|(prefix, route)| KnownRoute {
                prefix,
                gateway: Some(route.next_hop),
                interface: interface_to(route.next_hop),
                origin: Origin::Peer(self.kind_of(route.peer), route.peer),
                is_used: used.contains(&(prefix, route.next_hop)),
            });
            let (routes, more) = first(own.chain(learned));
            (snapshot.routes, snapshot.more_routes) = (routes, Some(more));
        }
        snapshot
    }

    /// The node's own routes.
    fn own_routes(&self) -> impl Iterator<Item = KnownRoute> + '_ {
        let own = self.configured.iter().flat_map(|it| &it.table.exports.own);
        own.map(|(prefix, kind)| {
            let (origin, interface) = match kind {
                OwnRoute::Block => (Origin::Static, Some(interfaces::HOST)),
                OwnRoute::Borrowed => (Origin::Direct, Some(interfaces::HOST)),
                OwnRoute::Service => (Origin::Static, None),
            };
            let interface = interface.map(str::to_owned);
            KnownRoute { prefix: *prefix, gateway: None, interface, origin, is_used: true }
        })
    }

    fn kind_of(&self, peer: IpAddr) -> PeerType {
        let known = self.configured.as_ref().and_then(|it| it.table.peers.get(&peer));
        known.map_or(PeerType::Global, |it| it.kind)
    }
}

/// The first routes of each family, and whether there are more.
fn first(routes: impl Iterator<Item = KnownRoute>) -> (Vec<KnownRoute>, [bool; 2]) {
    let (mut counts, mut taken) = ([0; 2], Vec::new());
    for route in routes {
        let count = &mut counts[usize::from(route.prefix.addr().is_ipv6())];
        *count += 1;
        if *count <= MOST_ROUTES {
            taken.push(route);
        }
    }
    (taken, counts.map(|count| count > MOST_ROUTES))
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use ipnet::IpNet;

    use super::*;

    #[test]
    fn the_first_routes_of_each_family_are_taken_and_more_are_told() {
        let route = |prefix: IpNet| KnownRoute {
            prefix,
            gateway: None,
            interface: None,
            origin: Origin::Static,
            is_used: true,
        };
        let v4 = |count: u32| {
            let hosts = (0..count).map(|at| IpAddr::from(Ipv4Addr::from(0x0a00_0000 + at)));
            hosts.map(|host| route(IpNet::from(host)))
        };
        let v6 = route("fd00::/64".parse().unwrap());
        let (taken, more) = first(v4(600).chain([v6]));
        assert_eq!((taken.len(), more), (MOST_ROUTES + 1, [true, false]));
        assert_eq!(taken[0].prefix.to_string(), "10.0.0.0/32");
        assert!(taken[MOST_ROUTES].prefix.addr().is_ipv6());
        let (taken, more) = first(v4(512));
        assert_eq!((taken.len(), more), (MOST_ROUTES, [false; 2]));
    }
}
