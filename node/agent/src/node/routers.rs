//! Decides which of the routes out of the cluster that routers announce the node's kernel gets.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ipnet::IpNet;
use manx_bgp::path::around;

/// The most prefixes of each family for which the node's kernel gets routes out of the cluster.
pub(super) const MOST_WAYS_OUT: usize = 1 << 12;

/// The most prefixes of each family that the agent keeps: the node may not be able to use some of them.
const MOST_KEPT: usize = 4 * MOST_WAYS_OUT;

/// The routes out of the cluster that routers have announced: prefixes, each with the addresses of the routers whose routes
/// are equally good, the best one first.
pub(super) type WaysOut = BTreeMap<IpNet, Vec<IpAddr>>;

/// Collects announced routes, and returns the number of their prefixes, too. Keeps the [`MOST_KEPT`] shortest prefixes
/// of each family.
pub(super) fn collect(mut rows: Vec<(IpNet, IpAddr)>) -> (WaysOut, usize) {
    // The rows of one prefix keep their order.
    rows.sort_by_key(|(prefix, _)| (prefix.prefix_len(), *prefix));
    let (mut kept, mut count, mut left) = (WaysOut::new(), 0, [MOST_KEPT; 2]);
    for rows in rows.chunk_by(|(one, _), (other, _)| one == other) {
        let Some((prefix, _)) = rows.first() else { continue };
        count += 1;
        if takes_one(&mut left, *prefix) {
            kept.insert(*prefix, rows.iter().map(|(_, router)| *router).collect());
        }
    }
    (kept, count)
}

/// Takes one of the places that are left for a prefix's family. Returns whether there was one.
fn takes_one(left: &mut [usize; 2], prefix: IpNet) -> bool {
    let left = &mut left[usize::from(prefix.addr().is_ipv6())];
    let had_one = *left > 0;
    *left = left.saturating_sub(1);
    had_one
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

/// The routes that the node's kernel gets, the shortest prefixes first. An unusable router does not affect the other
/// routers of its prefix.
///
/// No route lies in a net that Manx routes itself (`own`), and no router does. No route lies in a net on the node's links.
/// Except for default routes, no route contains an address that the node needs, because a longer prefix would replace the
/// route by which the node has reached that address.
pub(super) fn usable(
    ways_out: &WaysOut,
    own: &BTreeSet<IpNet>,
    Needed { addresses, links }: &Needed,
) -> Vec<(IpNet, Vec<IpAddr>)> {
    let is_own = |prefix: IpNet| around(prefix).any(|net| own.contains(&net));
    let is_needed = |prefix: &IpNet| {
        let mut addresses = addresses.range(prefix.network()..=prefix.broadcast());
        prefix.prefix_len() > 0 && addresses.any(|it| prefix.contains(it))
    };
    let is_usable = |prefix: &IpNet| {
        !is_own(*prefix) && !links.iter().any(|link| link.contains(prefix)) && !is_needed(prefix)
    };
    // Many prefixes have few different routers.
    let mut routers: BTreeSet<IpAddr> = ways_out.values().flatten().copied().collect();
    routers.retain(|it| !is_own(IpNet::from(*it)));
    let with_routers = |(prefix, all): (&IpNet, &Vec<IpAddr>)| {
        let usable = all.iter().copied().filter(|it| routers.contains(it));
        (*prefix, usable.collect::<Vec<_>>())
    };
    let mut usable: Vec<_> = ways_out
        .iter()
        .filter(|(prefix, _)| is_usable(prefix))
        .map(with_routers)
        .filter(|(_, routers)| !routers.is_empty())
        .collect();
    // Prefixes of one length keep their order.
    usable.sort_by_key(|(prefix, _)| prefix.prefix_len());
    let mut left = [MOST_WAYS_OUT; 2];
    usable.retain(|(prefix, _)| takes_one(&mut left, *prefix));
    usable
}

/// The gateways that can lead to their peers. The others are problems: a gateway that is an address of this node, or a
/// peer or gateway in a net that Manx routes itself.
pub(super) fn usable_gateways(
    mut gateways: Gateways,
    is_of_node: impl Fn(&IpAddr) -> bool,
    is_own: impl Fn(IpAddr) -> bool,
    problems: &mut Vec<String>,
) -> Gateways {
    gateways.retain(|peer, gateway| {
        let problem = if is_of_node(gateway) {
            "an address of this node, expected a router's"
        } else if is_own(*gateway) {
            "an address in an IPPool or a range of services, expected a router's"
        } else if is_own(*peer) {
            "a gateway to an address in an IPPool or a range of services, which Manx routes itself"
        } else {
            return true;
        };
        problems.push(format!(
            "reachableBy of the BGPPeer {peer}: found {gateway}, {problem}; the node gets no route for it: correct or remove the field"
        ));
        false
    });
    gateways
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
        let mut ways_out: WaysOut = told.iter().map(|(to, _)| (net(to), vec![router])).collect();
        ways_out.insert(net("203.0.113.0/24"), vec!["10.244.3.4".parse().unwrap()]);
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
        let [first, second]: [IpAddr; 2] = ["10.0.0.1", "10.0.0.2"].map(|it| it.parse().unwrap());
        let address = |it: u32| IpAddr::from((0x0b00_0000 + it * 4).to_be_bytes());
        let long = (0..20_000).map(|it| IpNet::new(address(it), 30).unwrap());
        let short = ["198.51.100.0/24", "fd00::/48"].map(net);
        // The second router is the better one.
        let rows: Vec<_> = long.chain(short).flat_map(|to| [(to, second), (to, first)]).collect();
        let (ways_out, count) = collect(rows);
        assert_eq!(count, 20_002, "prefixes are counted");
        assert_eq!(ways_out.len(), MOST_KEPT + 1);
        let taken = usable(&ways_out, &BTreeSet::new(), &Needed::default());
        assert_eq!(taken.len(), MOST_WAYS_OUT + 1);
        assert!(short.iter().all(|it| taken.iter().any(|(to, _)| to == it)));
        assert!(taken.iter().all(|(_, routers)| *routers == [second, first]));
    }

    #[test]
    fn a_router_that_cannot_be_used_is_left_out_and_the_others_stay() {
        let routers = ["10.0.0.1", "10.0.0.2", "10.244.3.4"].map(|it| it.parse().unwrap());
        let to = net("198.51.100.0/24");
        let ways_out = WaysOut::from([(to, routers.to_vec())]);
        let own = BTreeSet::from([net("10.244.0.0/16")]);
        let found = usable(&ways_out, &own, &Needed::default());
        assert_eq!(found, [(to, routers[..2].to_vec())]);
    }

    #[test]
    fn a_gateway_is_a_routers_and_its_peer_is_outside_of_the_cluster() {
        let address = |text: &str| text.parse::<IpAddr>().unwrap();
        let all = [
            ("192.0.2.1", "10.0.0.1"),
            ("192.0.2.2", "10.0.0.9"),
            ("192.0.2.3", "10.244.1.1"),
            ("10.244.1.2", "10.0.0.1"),
        ];
        let gateways = all.map(|(peer, gateway)| (address(peer), address(gateway))).into();
        let (node, pool) = (address("10.0.0.9"), net("10.244.0.0/16"));
        let mut problems = Vec::new();
        let usable =
            usable_gateways(gateways, |it| *it == node, |it| pool.contains(&it), &mut problems);
        assert_eq!(usable, [(address(all[0].0), address(all[0].1))].into());
        insta::assert_snapshot!(problems.join("\n"), @"
        reachableBy of the BGPPeer 10.244.1.2: found 10.0.0.1, a gateway to an address in an IPPool or a range of services, which Manx routes itself; the node gets no route for it: correct or remove the field
        reachableBy of the BGPPeer 192.0.2.2: found 10.0.0.9, an address of this node, expected a router's; the node gets no route for it: correct or remove the field
        reachableBy of the BGPPeer 192.0.2.3: found 10.244.1.1, an address in an IPPool or a range of services, expected a router's; the node gets no route for it: correct or remove the field
        ");
    }
}
