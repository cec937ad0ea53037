use manx_objects::contents::Contents;

use super::*;
use crate::peers::peers;

fn net(text: &str) -> IpNet {
    text.parse().unwrap()
}

/// The node's address in a session, by the family of its routes.
const HERE: [&str; 2] = ["10.0.0.1", "fd00::1"];

/// A node, a router of another autonomous system, and a filter that accepts a part of a pool.
const OBJECTS: &str = "
{apiVersion: v1, kind: Node, metadata: {name: n1}, status: {addresses: [{type: InternalIP, address: 10.0.0.1}]}}
---
{apiVersion: v1, kind: Node, metadata: {name: n2}, status: {addresses: [{type: InternalIP, address: 10.0.0.2}]}}
---
apiVersion: projectcalico.org/v3
kind: BGPPeer
metadata: {name: rack}
spec: {peerIP: 10.0.0.9, asNumber: 65001, filters: [some]}
---
apiVersion: projectcalico.org/v3
kind: BGPFilter
metadata: {name: some}
spec: {exportV4: [{cidr: 10.65.3.0/24, matchOperator: In, action: Accept}]}
---
";

/// The communities and the `LOCAL_PREF` with which the node announces one of its own routes to a peer, with these settings.
fn announced(settings: &str, peer: &str, prefix: &str) -> (Vec<u32>, Vec<[u32; 3]>, Option<u32>) {
    let text = format!("{OBJECTS}{settings}");
    let contents = Contents::from_texts([("objects.yaml", text.as_str())]);
    assert!(contents.problems.is_empty(), "{:?}", contents.problems);
    let peering = peers(&contents, "n1");
    let exports = Exports {
        own: BTreeMap::from([(net(prefix), OwnRoute::Block)]),
        advertisements: peering.advertisements,
        priorities: peering.priorities,
        ..Exports::NONE
    };
    let peer = peering.peers.iter().find(|it| it.address.to_string() == peer).unwrap();
    let (filters, _) = Filters::new(&contents, &peer.filters, &peer.name);
    let route = (net(prefix), Route::Own(OwnRoute::Block));
    let here = HERE[usize::from(net(prefix).addr().is_ipv6())].parse().unwrap();
    let found = advertised(&exports, route, (peer, &filters), here).unwrap();
    (found.communities, found.large_communities, found.local_pref)
}

fn configuration(name: &str, spec: &str) -> String {
    format!(
        "{{apiVersion: projectcalico.org/v3, kind: BGPConfiguration, metadata: {{name: {name}}}, spec: {{{spec}}}}}\n---\n"
    )
}

const RACK: &str = "10.0.0.9";
const NODE: &str = "10.0.0.2";

#[test]
fn routes_in_a_net_get_its_communities_unless_a_filter_has_accepted_them() {
    let all = configuration(
        "default",
        "communities: [{name: near, value: '65000:7'}], prefixAdvertisements: [{cidr: 10.65.0.0/16, communities: ['65000:1:2', near]}, {cidr: 10.65.1.0/24, communities: [near, '65000:3']}]",
    );
    let (near, three) = ((65000 << 16) + 7, (65000 << 16) + 3);
    let of = |prefix: &str| {
        let (communities, large, _) = announced(&all, RACK, prefix);
        (communities, large)
    };
    assert_eq!(of("10.65.0.64/26"), (vec![near], vec![[65000, 1, 2]]));
    assert_eq!(of("10.65.1.64/26"), (vec![three, near], vec![[65000, 1, 2]]));
    assert_eq!(of("10.65.0.0/16").0, [near]);
    assert_eq!(of("10.64.0.0/15"), (vec![], vec![]), "wider than the net");
    assert_eq!(of("10.65.3.0/26"), (vec![], vec![]), "accepted by the filter");
    assert_eq!(announced(&all, NODE, "10.65.3.0/26").0, [near], "that peer has no filter");

    let own = all.clone()
        + &configuration(
            "node.n1",
            "prefixAdvertisements: [{cidr: 10.65.0.0/24, communities: ['1:1']}]",
        );
    assert_eq!(announced(&own, RACK, "10.65.0.64/26").0, [0x1_0001]);
    assert_eq!(announced(&own, RACK, "10.65.1.64/26").0, [0; 0]);
    let others = all
        + &configuration(
            "node.n2",
            "prefixAdvertisements: [{cidr: 10.65.0.0/24, communities: ['1:1']}]",
        );
    assert_eq!(announced(&others, RACK, "10.65.0.64/26").0, [near]);
}

#[test]
fn a_nodes_own_routes_have_the_priority_of_the_settings() {
    let local_pref = |settings: &str, peer: &str, prefix: &str| announced(settings, peer, prefix).2;
    assert_eq!(local_pref("", NODE, "10.65.0.64/26"), Some(2_147_482_623));
    let settings =
        configuration("default", "ipv4NormalRoutePriority: 512, ipv6NormalRoutePriority: 2000");
    assert_eq!(local_pref(&settings, NODE, "10.65.0.64/26"), Some(2_147_483_135));
    assert_eq!(local_pref(&settings, NODE, "fd00::/64"), Some(2_147_481_647));
    assert_eq!(local_pref(&settings, RACK, "10.65.0.64/26"), None, "of another system");
}
