//! The routes of addresses, for nodes, pools and borrowed addresses of all kinds.

use std::sync::Arc;

use manx_policy_compiler::model::{HostEndpoint, Interface, ObjectName};
use proptest::prelude::*;

use super::*;
use crate::import::Pool;
use manx_ipam::plan::Plan;
use manx_objects::object::EncapsulationMode;

fn node(ip: &str, subnet: &str, block: &str) -> Node {
    let (ip, plan) = (ip.parse().unwrap(), Plan::host_local([block.parse().unwrap()]));
    Node {
        internal_ips: vec![ip],
        addresses: [ip].iter().chain(plan.tunnel_addresses()).copied().collect(),
        subnet: Some(subnet.parse::<IpNet>().unwrap().trunc()),
        plan,
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
            nat_outgoing: false,
            holds_nodes: false,
        }],
        ..Cluster::default()
    }
}

/// The agent keeps its last topology while its own Node cannot be used. So a host endpoint that was matched with the
/// uplink by its addresses stays matched.
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
    assert_eq!(last.interfaces("a", "eth0").uplink_host_endpoint(&cluster.model), Some("uplink"));
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
    assert_eq!(route(EncapsulationMode::CrossSubnet, "10.244.2.0/24"), Route::Direct(near.into()));
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
        Route::NoRoute(NoRoute::Unclaimed)
    );
    assert_eq!(route(EncapsulationMode::Always, "10.244.1.0/24"), Route::Local);
    assert_eq!(route(EncapsulationMode::Always, "10.244.1.1/32"), Route::Node);
    assert_eq!(route(EncapsulationMode::Always, "172.18.0.2/32"), Route::Node);
    assert_eq!(route(EncapsulationMode::Always, "10.244.1.0/32"), Route::Masquerade);
    let desired = topology(&cluster(EncapsulationMode::Always), "a", &Reserved::new())
        .unwrap()
        .host_network();
    let masquerade: IpAddr = "10.244.1.0".parse().unwrap();
    assert_eq!(desired.masquerade_addresses, [masquerade]);
    assert!(desired.own.contains(&masquerade), "no host beyond the uplink has it");
}

#[test]
fn where_another_plugin_connects_pods_only_the_node_itself_is_not_the_world() {
    let mut cluster = cluster(EncapsulationMode::Always);
    // Manx does not need this node's blocks here, so it does not matter whether there are any.
    cluster.nodes.get_mut("a").unwrap().plan = Plan::default();
    let found = policy_only(&cluster, "a").unwrap();
    let expected =
        [("0.0.0.0/0", Route::World), ("::/0", Route::World), ("172.18.0.2/32", Route::Node)];
    assert_eq!(found.prefixes, expected.map(|(net, route)| (net.parse().unwrap(), route)).into());
    let own: IpAddr = "172.18.0.2".parse().unwrap();
    assert_eq!(
        found,
        Topology { prefixes: found.prefixes.clone(), addresses: vec![own], ..Topology::default() }
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
            Route::Tunnel(Peer { address: "172.18.0.3".parse().unwrap(), overlay: Overlay::Ipip })
        );
        cluster.pools.reverse();
    }
}

#[test]
fn the_nodes_own_address_is_the_second_of_each_block() {
    let mut cluster = cluster(EncapsulationMode::Never);
    let here = cluster.nodes.get_mut("a").unwrap();
    here.plan = Plan::host_local(["10.244.1.0/24", "fd00:10:1::/64"].map(|it| it.parse().unwrap()));
    let seen = topology(&cluster, "a", &Reserved::new()).unwrap();
    let own: Vec<IpAddr> = ["10.244.1.1", "fd00:10:1::1"].map(|ip| ip.parse().unwrap()).into();
    assert_eq!(seen.tunnel_addresses, own);
    // The node masquerades with the first address.
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
    assert_eq!(seen.prefixes[&block], Route::NoRoute(NoRoute::Unpooled));
    // The node's kernel has no route to it either.
    assert!(seen.host_network().blocks.contains(&(block, HostRoute::Manx { source: None })));
    let problems: Vec<String> = seen.problems().collect();
    assert_eq!(problems.len(), 2, "{problems:?}");
    assert!(problems[0].contains("10.244.2.0/24 of Node \"b\" lies in no IPPool"));

    let half = Pool { cidr: "10.244.2.0/25".parse().unwrap(), ..pool.clone() };
    cluster.pools.push(half);
    assert_eq!(
        topology(&cluster, "a", &Reserved::new()).unwrap().prefixes[&block],
        Route::NoRoute(NoRoute::Unpooled)
    );
    cluster.pools.push(pool);
    let seen = topology(&cluster, "a", &Reserved::new()).unwrap();
    assert_eq!(
        seen.prefixes[&block],
        Route::Tunnel(Peer { address: "172.18.0.3".parse().unwrap(), overlay: Overlay::Ipip })
    );
    assert_eq!(seen.problems().count(), 0);
}

/// Returns the cluster with pods that borrow these addresses, each on its node.
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
        // The addresses are: in no block; in the block of c; in a pool without tunnels; in no pool; of this node.
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
        nat_outgoing: false,
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
        ("192.0.2.1", Route::NoRoute(NoRoute::Unpooled)),
        ("192.0.2.2", Route::Local),
    ] {
        let address: IpAddr = address.parse().unwrap();
        assert_eq!(seen.route(address), (address.into(), route));
    }
    let problems: Vec<String> = seen.problems().collect();
    assert_eq!(problems.len(), 1, "{problems:?}");
    insta::assert_snapshot!(problems[0], @"addresses not routed, because they lie in no pod CIDR of the pod's node and in no IPPool, so it is not known whether they are behind a tunnel: 192.0.2.1 of Pod default/3; make an IPPool around them (ipipMode: Never if they are not)");
    // On the node whose block contains it, the address leads to the other node.
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
    // This is an ExternalIP.
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
        assert_eq!(route(reserved), Route::NoRoute(NoRoute::Unclaimed));
        let prefix: IpNet = reserved.parse::<IpAddr>().unwrap().into();
        assert!(seen.host_network().blocks.iter().all(|(block, _)| *block != prefix));
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
    let host = topology(&cluster, "a", &Reserved::new()).unwrap().host_network();
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
        nat_outgoing: false,
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
        let status = format!("{{addresses: [{{type: InternalIP, address: 172.18.0.{number}}}]}}");
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
        let error = topology(&of_nodes(blocks, &pools), "node-0", &Reserved::new()).unwrap_err();
        assert_eq!(error, TopologyError::InvalidPool(vec!["p".to_owned()]), "{pools}");
    }
    assert!(topology(&of_nodes(blocks, POOL), "node-0", &Reserved::new()).is_ok());
}

#[test]
fn an_agent_that_starts_without_all_pools_reaches_its_own_pods_and_no_others() {
    let blocks = ["10.244.0.0/24", "10.244.1.0/24", "10.244.2.0/24"];
    let twice = format!("{POOL}{}", POOL.replace("name: p", "name: q").replace("Always", "Never"));
    for pools in [POOL.replace("Always", "Perhaps"), twice] {
        let cluster = of_nodes(blocks, &pools);
        assert!(topology(&cluster, "node-0", &Reserved::new()).is_err());
        let seen = closed_topology(&cluster, "node-0", &Reserved::new()).unwrap();
        let route = |address: &str| seen.route(address.parse().unwrap()).1;
        assert_eq!(route("10.244.0.9"), Route::Local);
        assert_eq!(route("10.244.1.9"), Route::NoRoute(NoRoute::UnknownPools));
        assert_eq!(seen.senders, BTreeSet::new());
        assert_eq!(seen.receivers(), BTreeSet::new());
    }
}

#[test]
fn a_later_pool_that_overlaps_changes_no_route() {
    let blocks = ["10.244.0.0/24", "10.244.1.0/24", "10.244.2.0/24"];
    let dated = |second: u8, name: &str, pool: &str| {
        let stamp = format!("{{name: {name}, creationTimestamp: '2026-11-26T10:00:0{second}Z'}}");
        pool.replace("{name: p}", &stamp)
    };
    let first = dated(1, "p", POOL);
    let before = topology(&of_nodes(blocks, &first), "node-0", &Reserved::new()).unwrap();
    for cidr in ["10.244.0.0/16", "10.244.1.0/24", "0.0.0.0/1"] {
        let later = dated(2, "a", &POOL.replace("10.244.0.0/16", cidr).replace("Always", "Never"));
        let cluster = of_nodes(blocks, &(first.clone() + &later));
        assert_eq!(cluster.problems.len(), 1, "{cidr}");
        assert_eq!(topology(&cluster, "node-0", &Reserved::new()).unwrap(), before, "{cidr}");
    }
}

#[test]
fn a_pool_around_nodes_takes_no_host_from_the_nodes_own_table() {
    // The nodes have the addresses 172.18.0.0 to 172.18.0.2. One block is in this pool.
    let blocks = ["10.244.0.0/24", "10.244.1.0/24", "172.18.9.0/24"];
    let around = POOL.replace("name: p", "name: q").replace("10.244.0.0/16", "172.18.0.0/16");
    let cluster = of_nodes(blocks, &format!("{POOL}{around}"));
    assert_eq!(cluster.problems.len(), 1, "{:?}", cluster.problems);
    let seen = topology(&cluster, "node-0", &Reserved::new()).unwrap();
    let route = |address: &str| seen.route(address.parse().unwrap()).1;
    assert_eq!(route("172.18.0.0"), Route::Node);
    assert_eq!(route("172.18.0.1"), Route::World);
    assert_eq!(route("172.18.7.7"), Route::NoRoute(NoRoute::HoldsNodes));
    let to = Peer { address: [172, 18, 0, 2].into(), overlay: Overlay::Ipip };
    assert_eq!(route("172.18.9.3"), Route::Tunnel(to));
    let of_host: Vec<IpNet> =
        seen.host_network().blocks.into_iter().map(|(block, _)| block).collect();
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
            assert_eq!(route, Route::NoRoute(NoRoute::Contested), "{block} of {claimed}");
        }
        for name in ["node-1", "node-2"] {
            let error = topology(&cluster, name, &Reserved::new()).unwrap_err();
            assert!(matches!(error, TopologyError::BlockClaimed { .. }), "{error}");
        }
    }
}

/// Returns a cluster of three nodes with Calico's IPAM: `a` has two blocks, `b` has one, and `c` has none. Each node
/// has a tunnel address: `a` in its own block, `b` in a block of `a`, and `c` in no block.
fn of_calico(more: &str) -> Cluster {
    let node = |(name, ip, tunnel): (&str, &str, &str)| {
        format!(
            "---\n{{apiVersion: v1, kind: Node, metadata: {{name: {name}, annotations: {{projectcalico.org/IPv4IPIPTunnelAddr: {tunnel}}}}}, \
             spec: {{podCIDR: 10.99.0.0/24}}, status: {{addresses: [{{type: InternalIP, address: {ip}}}]}}}}\n"
        )
    };
    let nodes = [
        ("a", "172.18.0.2", "10.244.1.9"),
        ("b", "172.18.0.3", "10.244.1.70"),
        ("c", "172.18.0.4", "10.244.9.9"),
    ];
    let blocks = [("a", "10.244.1.0/26"), ("a", "10.244.1.64/26"), ("b", "10.244.2.0/26")];
    let affinities = blocks.map(|(node, block)| affinity(node, block, "confirmed"));
    let text = nodes.map(node).concat() + &affinities.concat() + POOL + more;
    let contents = manx_objects::contents::Contents::from_texts([("all.yaml", &*text)]);
    crate::import::import_as(&contents, Ipam::Calico, None)
}

fn affinity(node: &str, block: &str, state: &str) -> String {
    let name = format!("{node}-{}", block.replace(['.', '/'], "-"));
    format!(
        "---\n{{apiVersion: crd.projectcalico.org/v1, kind: BlockAffinity, metadata: {{name: {name}}}, spec: {{node: {node}, cidr: {block}, state: {state}}}}}\n"
    )
}

fn to(address: [u8; 4]) -> Route {
    Route::Tunnel(Peer { address: address.into(), overlay: Overlay::Ipip })
}

const A: [u8; 4] = [172, 18, 0, 2];
const B: [u8; 4] = [172, 18, 0, 3];
const C: [u8; 4] = [172, 18, 0, 4];

#[test]
fn calicos_blocks_are_routed_as_pod_cidrs_are_and_every_address_of_them_is_for_pods() {
    let cluster = of_calico(&affinity("b", "10.244.2.64/26", "pending"));
    assert_eq!(cluster.problems, []);
    let a = topology(&cluster, "a", &Reserved::new()).unwrap();
    let route = |address: &str| a.route(address.parse().unwrap()).1;
    for address in ["10.244.1.0", "10.244.1.1", "10.244.1.63", "10.244.1.64"] {
        assert_eq!(route(address), Route::Local, "{address}");
    }
    assert_eq!(route("10.244.1.9"), Route::Node);
    assert_eq!(route("10.244.2.0"), to(B));
    assert_eq!(route("10.244.2.63"), to(B));
    // These are a block that no node has yet, and the podCIDR that is not used.
    assert_eq!(route("10.244.2.64"), Route::NoRoute(NoRoute::Unclaimed));
    assert_eq!(route("10.99.0.9"), Route::World);
    assert_eq!(a.masquerade_addresses().count(), 0);
    assert_eq!(a.blocks.len(), 2);
    assert_eq!(a.problems().collect::<Vec<_>>(), [] as [String; 0]);
}

#[test]
fn with_calicos_ipam_a_node_without_a_block_reaches_all_others() {
    let cluster = of_calico("");
    let c = topology(&cluster, "c", &Reserved::new()).unwrap();
    assert_eq!((c.blocks.len(), c.ipam), (0, Ipam::Calico));
    let route = |address: &str| c.route(address.parse().unwrap()).1;
    assert_eq!(route("10.244.1.1"), to(A));
    assert_eq!(route("10.244.9.9"), Route::Node);
    // The node's own processes use its tunnel address as source, and the replies come through tunnels.
    assert_eq!(c.senders.len(), 2);
    let source = Some("10.244.9.9".parse().unwrap());
    let block = "10.244.1.0/26".parse().unwrap();
    assert!(c.host_network().blocks.contains(&(block, HostRoute::Manx { source })));
    // Without a tunnel address, the kernel chooses the source.
    let mut cluster = cluster;
    let node = cluster.nodes.get_mut("c").unwrap();
    (node.plan, node.addresses) =
        (Plan::calico([], []), node.internal_ips.iter().copied().collect());
    let c = topology(&cluster, "c", &Reserved::new()).unwrap();
    assert_eq!((c.senders.len(), &c.tunnel_addresses[..]), (0, &[][..]));
    assert!(c.host_network().blocks.contains(&(block, HostRoute::Manx { source: None })));
}

/// A far node accepts a packet from a tunnel only if its own route to the inner source leads back through the tunnel.
#[test]
fn a_tunnel_address_outside_of_its_nodes_blocks_has_a_route_of_its_own() {
    let cluster = of_calico("");
    let seen = ["a", "b", "c"].map(|name| topology(&cluster, name, &Reserved::new()).unwrap());
    for (address, routes) in [
        ("10.244.1.9", [Route::Node, to(A), to(A)]),
        // This address is in a block of a.
        ("10.244.1.70", [to(B), Route::Node, to(B)]),
        ("10.244.9.9", [to(C), to(C), Route::Node]),
    ] {
        let routes_of = seen.each_ref().map(|it| it.route(address.parse().unwrap()).1);
        assert_eq!(routes_of, routes, "{address}");
    }
    let lent = (
        "10.244.1.70/32".parse().unwrap(),
        HostRoute::Manx { source: Some("10.244.1.9".parse().unwrap()) },
    );
    assert!(seen[0].host_network().blocks.contains(&lent));
    let named: Vec<_> = contributions(&cluster, "a", &Reserved::new())
        .unwrap()
        .into_iter()
        .filter(|it| it.source == RouteSource::TunnelAddress)
        .filter_map(|it| it.object)
        .collect();
    assert_eq!(named, ["node b", "node c"]);
}

/// Every kubelet may write any tunnel address to its own Node.
#[test]
fn a_tunnel_address_takes_nothing_that_is_somebodys() {
    let with = |tunnel: &str, more: &str| {
        let liar = format!(
            "---\n{{apiVersion: v1, kind: Node, metadata: {{name: liar, annotations: {{projectcalico.org/IPv4IPIPTunnelAddr: {tunnel}}}}}, \
             status: {{addresses: [{{type: InternalIP, address: 172.18.0.9}}]}}}}\n"
        );
        of_calico(&(liar + more))
    };
    let pod = |node: &str, address: &str| {
        format!(
            "---\n{{apiVersion: v1, kind: Pod, metadata: {{name: p, namespace: a}}, spec: {{nodeName: {node}, containers: [{{name: c}}]}}, status: {{podIP: {address}}}}}\n"
        )
    };
    let liar = [172, 18, 0, 9];
    let reserved = Reserved::from([("10.244.7.7".parse().unwrap(), ReservedFor::DnsServer)]);
    for (tunnel, more, expected) in [
        ("10.244.8.8", String::new(), to(liar)),
        ("10.244.2.9", String::new(), to(liar)),
        // A pod has the address in a block of the pod's own node.
        ("10.244.2.9", pod("b", "10.244.2.9"), to(B)),
        // A pod that would borrow the address does not get it.
        ("10.244.8.8", pod("b", "10.244.8.8"), to(liar)),
        // Another node already has the address.
        ("10.244.9.9", String::new(), Route::NoRoute(NoRoute::Unclaimed)),
        ("10.244.1.70", String::new(), Route::Local),
        ("172.18.0.3", String::new(), Route::World),
        ("172.18.0.2", String::new(), Route::Node),
        // The first address is in no pool. This node needs the second one.
        ("198.51.100.1", String::new(), Route::World),
        ("10.244.7.7", String::new(), Route::NoRoute(NoRoute::Unclaimed)),
    ] {
        let cluster = with(tunnel, &more);
        let a = topology(&cluster, "a", &reserved).unwrap();
        assert_eq!(a.route(tunnel.parse().unwrap()).1, expected, "{tunnel} {more}");
    }
}

#[test]
fn a_block_of_calicos_that_two_nodes_claim_is_neithers() {
    let cluster = of_calico(&affinity("c", "10.244.2.0/26", "confirmed"));
    assert_eq!(cluster.problems.len(), 1);
    let a = topology(&cluster, "a", &Reserved::new()).unwrap();
    let block: IpNet = "10.244.2.0/26".parse().unwrap();
    assert_eq!(a.prefixes[&block], Route::NoRoute(NoRoute::Contested));
    let error = topology(&cluster, "b", &Reserved::new()).unwrap_err();
    insta::assert_snapshot!(error, @r#"block 10.244.2.0/26 of Node "b" overlaps 10.244.2.0/26 of Node "c": give each node a block of its own"#);
}
