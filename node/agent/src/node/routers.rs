//! Decides which of the routes out of the cluster that routers announce the node's kernel gets.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ipnet::IpNet;
use manx_bgp::path::around;

/// The most prefixes of each family for which the node's kernel gets routes out of the cluster.
pub(super) const MOST_WAYS_OUT: usize = 1 << 12;

/// The routes out of the cluster that routers have announced: prefixes, each with the addresses of the routers whose routes
/// are equally good, in their order.
pub(super) type WaysOut = BTreeSet<(IpNet, IpAddr)>;

/// The number of prefixes with routes out of the cluster.
pub(super) fn count(ways_out: &WaysOut) -> usize {
    let mut last = None;
    ways_out.iter().filter(|(prefix, _)| last.replace(*prefix) != Some(*prefix)).count()
}

/// The gateways to BGP peers, by the peers' addresses (`reachableBy` of `BGPPeer`).
pub(super) type Gateways = BTreeMap<IpAddr, IpAddr>;

/// The addresses and nets that no announced route may affect.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Needed {
    /// The addresses of nodes, of the API server, of gateways and of DNS servers.
    pub(super) addresses: BTreeSet<IpAddr>,
    /// The nets on the node's links.
    pub(super) links: Vec<IpNet>,
}

/// The routes that the node's kernel gets, the shortest prefixes first, and those to one prefix together. An unusable
/// router does not affect the other routers.
///
/// No route lies in a net that Manx routes itself (`own`), and no router does. No route lies in a net on the node's links.
/// Except for default routes, no route contains an address that the node needs, because a longer prefix would replace the
/// route by which the node has reached that address.
pub(super) fn usable(
    ways_out: &WaysOut,
    own: &BTreeSet<IpNet>,
    Needed { addresses, links }: &Needed,
) -> Vec<(IpNet, IpAddr)> {
    let is_own = |prefix: IpNet| around(prefix).any(|net| own.contains(&net));
    let is_needed = |prefix: &IpNet| {
        let mut addresses = addresses.range(prefix.network()..=prefix.broadcast());
        prefix.prefix_len() > 0 && addresses.any(|it| prefix.contains(it))
    };
    let is_usable = |(prefix, router): &&(IpNet, IpAddr)| {
        !is_own(*prefix)
            && !is_own(IpNet::from(*router))
            && !links.iter().any(|link| link.contains(prefix))
            && !is_needed(prefix)
    };
    let mut usable: Vec<_> = ways_out.iter().filter(is_usable).copied().collect();
    // Prefixes of one length keep their order.
    usable.sort_by_key(|(prefix, _)| prefix.prefix_len());
    let (mut taken, mut last) = ([0; 2], None);
    usable.retain(|(prefix, _)| {
        let taken = &mut taken[usize::from(prefix.addr().is_ipv6())];
        *taken += usize::from(last.replace(*prefix) != Some(*prefix));
        *taken <= MOST_WAYS_OUT
    });
    usable
}

#[cfg(test)]
mod tests {
    use super::*;

    fn net(text: &str) -> IpNet {
        text.parse().unwrap()
    }

    #[test]
    fn routers_lead_to_nothing_that_manx_leads_to_and_to_no_address_that_is_needed() {
        let router: IpAddr = "10.0.0.1".parse().unwrap();
        let told = [
            ("0.0.0.0/0", true),
            // These lie in nets that Manx routes itself.
            ("10.244.1.0/24", false),
            ("10.244.0.0/16", false),
            // These lie in the net of the node's link.
            ("10.0.0.0/24", false),
            ("10.0.0.128/25", false),
            ("10.0.0.9/32", false),
            // These contain an address that the node needs, with different prefix lengths.
            ("10.0.0.0/8", false),
            ("0.0.0.0/1", false),
            ("172.18.5.6/31", false),
            ("172.18.5.0/24", false),
            ("172.18.6.0/24", true),
            ("198.51.100.0/24", true),
            ("fd00::/8", true),
        ];
        let mut ways_out: WaysOut = told.iter().map(|(to, _)| (net(to), router)).collect();
        ways_out.insert((net("203.0.113.0/24"), "10.244.3.4".parse().unwrap()));
        let own = BTreeSet::from([net("10.244.0.0/16")]);
        let addresses = ["10.0.0.9", "172.18.5.7"].map(|it| it.parse().unwrap()).into();
        let needed = Needed { addresses, links: vec![net("10.0.0.0/24")] };
        let found: BTreeSet<IpNet> =
            usable(&ways_out, &own, &needed).into_iter().map(|(to, _)| to).collect();
        let expected = told.iter().filter(|(_, is_usable)| *is_usable).map(|(to, _)| net(to));
        assert_eq!(found, expected.collect());
    }

    #[test]
    fn of_too_many_the_shortest_of_each_family_are_taken() {
        let router: IpAddr = "10.0.0.1".parse().unwrap();
        let address = |it: u32| IpAddr::from((0x0b00_0000 + it * 4).to_be_bytes());
        let all = (0..5000).map(|it| IpNet::new(address(it), 30).unwrap());
        let mut ways_out: WaysOut = all.map(|to: IpNet| (to, router)).collect();
        ways_out.insert((net("198.51.100.0/24"), router));
        ways_out.insert((net("fd00::/48"), "fd01::1".parse().unwrap()));
        assert_eq!(count(&ways_out), 5002);
        let taken = usable(&ways_out, &BTreeSet::new(), &Needed::default());
        assert_eq!(taken.len(), MOST_WAYS_OUT + 1);
        assert!(
            [net("198.51.100.0/24"), net("fd00::/48")]
                .iter()
                .all(|it| taken.iter().any(|(to, _)| to == it))
        );
        let second = "10.0.0.2".parse().unwrap();
        let twice: WaysOut =
            ways_out.iter().flat_map(|(to, router)| [(*to, *router), (*to, second)]).collect();
        assert_eq!(count(&twice), 5002, "prefixes are counted");
        let both = usable(&twice, &BTreeSet::new(), &Needed::default());
        assert_eq!(both.len(), 2 * taken.len());
        let prefixes: Vec<IpNet> = taken.into_iter().map(|(to, _)| to).collect();
        let pairs: Vec<IpNet> = both.chunks(2).map(|it| it[0].0).collect();
        assert_eq!(pairs, prefixes, "those to one prefix are together");
        assert!(both.chunks(2).all(|it| it[0].0 == it[1].0));
    }

    #[test]
    fn a_router_that_cannot_be_used_is_left_out_and_the_others_stay() {
        let routers = ["10.0.0.1", "10.0.0.2", "10.244.3.4"].map(|it| it.parse().unwrap());
        let to = net("198.51.100.0/24");
        let ways_out: WaysOut = routers.iter().map(|router| (to, *router)).collect();
        let own = BTreeSet::from([net("10.244.0.0/16")]);
        let found = usable(&ways_out, &own, &Needed::default());
        assert_eq!(found, [(to, routers[0]), (to, routers[1])]);
    }
}
