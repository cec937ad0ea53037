//! Topologies as tables: the objects, a node, and its peers. Topologies of Calico's own tests have their names; the
//! expected peers are those in its nodes' configuration.

use std::fmt::Write as _;

use manx_objects::contents::Contents;

use super::settings::SYSTEM;
use super::*;
use crate::peer::SecretKey;

/// `name 10.0.0.1 [fd00::1] [key=value ...]`: a Node with these addresses. `as=` and `rr=` are annotations, and all other
/// keys are labels.
fn node(text: &str) -> String {
    let mut words = text.split_whitespace();
    let name = words.next().unwrap();
    let (mut annotations, mut labels) = (String::new(), String::new());
    for word in words {
        match word.split_once('=') {
            Some(("as", number)) => {
                write!(annotations, "projectcalico.org/ASNumber: '{number}', ").unwrap();
            }
            Some(("rr", id)) => {
                write!(annotations, "projectcalico.org/RouteReflectorClusterID: {id}, ").unwrap();
            }
            Some((key, value)) => write!(labels, "{key}: '{value}', ").unwrap(),
            None if word.contains(':') => {
                write!(annotations, "projectcalico.org/IPv6Address: '{word}/64', ").unwrap();
            }
            None => write!(annotations, "projectcalico.org/IPv4Address: {word}/16, ").unwrap(),
        }
    }
    format!(
        "{{apiVersion: v1, kind: Node, metadata: {{name: {name}, labels: {{{labels}}}, annotations: {{{annotations}}}}}}}\n---\n"
    )
}

fn calico(kind: &str, name: &str, spec: &str) -> String {
    format!(
        "{{apiVersion: projectcalico.org/v3, kind: {kind}, metadata: {{name: {name}}}, spec: {{{spec}}}}}\n---\n"
    )
}

/// `default: SPEC` and `node.NAME: SPEC` are settings. `BGPPeer NAME: SPEC` is a peer. All other texts are nodes.
fn contents(objects: &[&str]) -> Contents {
    let texts = objects.iter().map(|text| match text.split_once(": ") {
        Some((name, spec)) => match name.strip_prefix("BGPPeer ") {
            Some(name) => calico("BGPPeer", name, spec),
            None => calico("BGPConfiguration", name, spec),
        },
        None => node(text),
    });
    let text: String = texts.collect();
    Contents::from_texts([("objects.yaml", text.as_str())])
}

fn peering(objects: &[&str], node: &str) -> Peering {
    let contents = contents(objects);
    // The reader reports that this field has no effect.
    let others = contents.problems.iter().filter(|it| it.field != "spec.bindMode");
    assert!(others.clone().next().is_none(), "{:?}", others.collect::<Vec<_>>());
    peers(&contents, node)
}

/// A peer as text, without default values.
fn words(peer: &Peer) -> String {
    let kind = match peer.kind {
        PeerType::Global => "global",
        PeerType::Node => "node",
        PeerType::Mesh => "mesh",
    };
    let mut text = format!("{kind} {}", peer.address);
    if peer.port != PORT {
        write!(text, " port {}", peer.port).unwrap();
    }
    write!(text, " as {}", peer.system).unwrap();
    if !peer.is_internal() || peer.own_system != SYSTEM {
        write!(text, " own {}", peer.own_system).unwrap();
    }
    match peer.source {
        Some(source) => assert_eq!(source.is_ipv4(), peer.address.is_ipv4()),
        None => text.push_str(" any source"),
    }
    if peer.is_passive {
        text.push_str(" passive");
    }
    if let Some(cluster) = peer.reflected_as {
        write!(text, " client of {cluster}").unwrap();
    }
    match peer.next_hop {
        NextHopMode::Auto => {}
        NextHopMode::Own => text.push_str(" next hop self"),
        NextHopMode::Keep => text.push_str(" next hop keep"),
    }
    if peer.own_system_allowed > 0 {
        write!(text, " allows {}", peer.own_system_allowed).unwrap();
    }
    if !peer.filters.is_empty() {
        write!(text, " filters {}", peer.filters.join(" ")).unwrap();
    }
    if let Some(SecretKey { name, key }) = &peer.password {
        write!(text, " password {name}/{key}").unwrap();
    }
    if let Some(hops) = peer.hops {
        write!(text, " hops {hops}").unwrap();
    }
    if peer.restart_time != RESTART_TIME {
        write!(text, " restart {}", peer.restart_time.as_secs()).unwrap();
    }
    assert_eq!(peer.hold_time, HOLD_TIME);
    text
}

/// The peers of a node, as text.
fn told(objects: &[&str], node: &str) -> Vec<String> {
    let peering = peering(objects, node);
    assert!(peering.problems.is_empty(), "{:?}", peering.problems);
    peering.peers.iter().map(words).collect()
}

fn problems(objects: &[&str], node: &str) -> Vec<String> {
    peering(objects, node).problems
}

const MASTER: &str = "kube-master";
const OFF: &str = "default: nodeToNodeMeshEnabled: false";
/// Three nodes with both families, as in most topologies.
const DUAL: [&str; 3] = [
    "kube-master 10.192.0.2 2001::103",
    "kube-node-1 10.192.0.3 2001::102",
    "kube-node-2 10.192.0.4 2001::104",
];
const SINGLE: [&str; 3] =
    ["kube-master 10.192.0.2", "kube-node-1 10.192.0.3", "kube-node-2 10.192.0.4"];

/// Checks a topology: its name, the objects, and the peers of the node that each line names.
fn check(name: &str, nodes: &[&str], objects: &[&str], node: &str, expected: &[&str]) {
    let all: Vec<&str> = nodes.iter().chain(objects).copied().collect();
    assert_eq!(told(&all, node), expected, "{name}, {node}");
}

#[test]
fn calicos_mesh() {
    check(
        "mesh/restart-time",
        &DUAL,
        &["default: nodeMeshMaxRestartTime: 10s"],
        MASTER,
        &[
            "mesh 10.192.0.3 as 64512 passive restart 10",
            "mesh 10.192.0.4 as 64512 passive restart 10",
            "mesh 2001::102 as 64512 restart 10",
            "mesh 2001::104 as 64512 passive restart 10",
        ],
    );
    check(
        "mesh/hash",
        &SINGLE,
        &[],
        MASTER,
        &["mesh 10.192.0.3 as 64512 passive", "mesh 10.192.0.4 as 64512 passive"],
    );
    check(
        "mesh_password",
        &SINGLE,
        &["default: nodeMeshPassword: {secretKeyRef: {name: my-secrets-1, key: a}}"],
        "kube-node-2",
        &[
            "mesh 10.192.0.2 as 64512 password my-secrets-1/a",
            "mesh 10.192.0.3 as 64512 password my-secrets-1/a",
        ],
    );
    let reflector = [
        "kube-master 10.192.0.2 fe0a::2",
        "kube-node-1 10.192.0.3 fe0a::4",
        "kube-node-2 10.192.0.4 fe0a::6 rr=10.0.0.1 routeReflector=true",
    ];
    let objects = [
        "default: asNumber: 64532, nodeToNodeMeshEnabled: true",
        "BGPPeer bgppeer-1: peerIP: 172.19.4.87, asNumber: 64533, nodeSelector: has(routeReflector)",
        "BGPPeer bgppeer-v6: peerIP: '[ac13::57]:50', asNumber: 64533, nodeSelector: has(routeReflector)",
        "BGPPeer other-nodes: nodeSelector: has(routeReflector), peerSelector: '!has(routeReflector)'",
    ];
    check(
        "mesh/route-reflector-mesh-enabled",
        &reflector,
        &objects,
        MASTER,
        &[
            "mesh 10.192.0.3 as 64532 own 64532 passive",
            "node 10.192.0.4 as 64532 own 64532",
            "mesh fe0a::4 as 64532 own 64532 passive",
            "node fe0a::6 as 64532 own 64532",
        ],
    );
    check(
        "mesh/route-reflector-mesh-enabled",
        &reflector,
        &objects,
        "kube-node-2",
        &[
            "node 10.192.0.2 as 64532 own 64532 client of 10.0.0.1",
            "node 10.192.0.3 as 64532 own 64532 client of 10.0.0.1",
            "node 172.19.4.87 as 64533 own 64532",
            "node ac13::57 port 50 as 64533 own 64532",
            "node fe0a::2 as 64532 own 64532 client of 10.0.0.1",
            "node fe0a::4 as 64532 own 64532 client of 10.0.0.1",
        ],
    );
}

#[test]
fn calicos_peers_of_all_nodes() {
    // The original topology also has 10.192.0.1 at port 166. That is a problem here: see the test of two ports.
    let nodes = ["kube-master 10.192.0.2", "kube-node-1 10.192.0.3", "kube-node-2 10.192.0.1"];
    let objects = [
        "default: nodeToNodeMeshEnabled: false, asNumber: 64567, listenPort: 150, bindMode: NodeIP",
        "BGPPeer bgppeer-1: peerIP: 10.192.0.3, asNumber: 64567, sourceAddress: None",
        "BGPPeer bgppeer-3: peerIP: 10.192.0.1, asNumber: 64567",
    ];
    check(
        "explicit_peering/global",
        &nodes,
        &objects,
        MASTER,
        &[
            "global 10.192.0.1 port 150 as 64567 own 64567",
            "global 10.192.0.3 port 150 as 64567 own 64567 any source passive",
        ],
    );
    // The other end of the peering above.
    check(
        "explicit_peering/global",
        &nodes,
        &objects,
        "kube-node-1",
        &[
            "global 10.192.0.1 port 150 as 64567 own 64567",
            "node 10.192.0.2 port 150 as 64567 own 64567 any source",
        ],
    );
    let reflector = [
        "kube-master 10.192.0.2 fe0a::2 rr=10.0.0.1 routeReflector=true",
        "kube-node-1 10.192.0.3",
        "kube-node-2 10.192.0.4",
    ];
    check(
        "explicit_peering/keepnexthop-global",
        &reflector,
        &[
            "default: asNumber: 64532, nodeToNodeMeshEnabled: false",
            "BGPPeer bgppeer-1: peerIP: 172.19.4.87, asNumber: 64533, keepOriginalNextHop: true",
            "BGPPeer bgppeer-v6: peerIP: '[ac13::57]:50', asNumber: 64533, keepOriginalNextHop: true",
        ],
        MASTER,
        &[
            "global 172.19.4.87 as 64533 own 64532 next hop keep",
            "global ac13::57 port 50 as 64533 own 64532 next hop keep",
        ],
    );
    let labelled =
        ["kube-master 10.192.0.2 global-peer=yes", "kube-node-1 10.192.0.3 global-peer=yes"];
    check(
        "bgpfilter/as_path_and_priority",
        &labelled,
        &[OFF, "BGPPeer a: peerSelector: has(global-peer), filters: [one, two]"],
        MASTER,
        &["global 10.192.0.3 as 64512 filters one two"],
    );
}

#[test]
fn calicos_peers_of_some_nodes() {
    check(
        "explicit_peering/selectors",
        &[
            "kube-master 10.192.0.2 fd5f::2 group=one",
            "kube-node-1 10.192.0.3 fd5f::3 group=two",
            "kube-node-2 10.192.0.4 fd5f::4 group=two",
        ],
        &[
            OFF,
            "node.kube-node-1: listenPort: 500",
            "BGPPeer bgppeer-1: nodeSelector: group=='one', peerSelector: group=='two'",
        ],
        MASTER,
        &[
            "node 10.192.0.3 port 500 as 64512",
            "node 10.192.0.4 as 64512",
            "node fd5f::3 port 500 as 64512",
            "node fd5f::4 as 64512",
        ],
    );
    check(
        "explicit_peering/specific_node",
        &SINGLE,
        &[
            OFF,
            "BGPPeer one: peerIP: 10.192.0.3, asNumber: 64512, node: kube-master",
            "BGPPeer two: peerIP: 10.192.0.4, asNumber: 64566, node: kube-master",
        ],
        MASTER,
        &["node 10.192.0.3 as 64512", "node 10.192.0.4 as 64566 own 64512"],
    );
    check(
        "explicit_peering/local-as",
        &SINGLE,
        &[
            OFF,
            "BGPPeer one: peerIP: 10.192.0.3, asNumber: 64512, node: kube-master, numAllowedLocalASNumbers: 1, localASNumber: 64512",
            "BGPPeer two: peerIP: 10.192.0.4, asNumber: 64566, node: kube-master, localASNumber: 65001",
        ],
        MASTER,
        &["node 10.192.0.3 as 64512 allows 1", "node 10.192.0.4 as 64566 own 65001"],
    );
    let two = ["node1 172.17.0.5", "node2 172.17.0.6"];
    for (source, expected) in [("UseNodeIP", ""), ("None", " any source")] {
        for (node, other) in [("node1", "172.17.0.6"), ("node2", "172.17.0.5")] {
            check(
                "sourceaddr_gracefulrestart",
                &two,
                &[
                    OFF,
                    &format!(
                        "BGPPeer p: node: node1, peerIP: 172.17.0.6, asNumber: 64512, sourceAddress: {source}, maxRestartTime: 10s"
                    ),
                ],
                node,
                &[&format!("node {other} as 64512{expected} restart 10")],
            );
        }
    }
    check(
        "ttl_security/peer_selector",
        &[
            DUAL[0],
            "kube-node-1 10.192.0.3 2001::102 t=yes",
            "kube-node-2 10.192.0.4 2001::104 t=yes",
        ],
        &[OFF, "BGPPeer p: node: kube-master, peerSelector: has(t), ttlSecurity: 1"],
        MASTER,
        &[
            "node 10.192.0.3 as 64512 hops 1",
            "node 10.192.0.4 as 64512 hops 1",
            "node 2001::102 as 64512 hops 1",
            "node 2001::104 as 64512 hops 1",
        ],
    );
}

#[test]
fn calicos_route_reflectors() {
    let nodes = [
        "kube-master 10.192.0.2 fe0a::2 rr=10.0.0.1 routeReflector=true",
        "kube-node-1 10.192.0.3 fe0a::3",
        "kube-node-2 10.192.0.4 fe0a::4",
    ];
    let outside = [
        "default: asNumber: 64532, nodeToNodeMeshEnabled: false",
        "BGPPeer bgppeer-1: peerIP: 172.19.4.87, asNumber: 64533, nodeSelector: has(routeReflector)",
        "BGPPeer bgppeer-v6: peerIP: '[ac13::57]:50', asNumber: 64533, nodeSelector: has(routeReflector)",
    ];
    let inside = "BGPPeer other-nodes: nodeSelector: has(routeReflector), peerSelector: '!has(routeReflector)'";
    check(
        "explicit_peering/route_reflector",
        &nodes,
        &[&outside[..], &[inside]].concat(),
        MASTER,
        &[
            "node 10.192.0.3 as 64532 own 64532 client of 10.0.0.1",
            "node 10.192.0.4 as 64532 own 64532 client of 10.0.0.1",
            "node 172.19.4.87 as 64533 own 64532",
            "node ac13::57 port 50 as 64533 own 64532",
            "node fe0a::3 as 64532 own 64532 client of 10.0.0.1",
            "node fe0a::4 as 64532 own 64532 client of 10.0.0.1",
        ],
    );
    // An IPv6 address makes the reflector a peer of all nodes over IPv6 only.
    let by_address = "BGPPeer other-nodes: peerIP: 'fe0a::2'";
    check(
        "explicit_peering/route_reflector_v6_by_ip",
        &nodes,
        &[&outside[..], &[by_address]].concat(),
        MASTER,
        &[
            "node 172.19.4.87 as 64533 own 64532",
            "node ac13::57 port 50 as 64533 own 64532",
            "node fe0a::3 as 64532 own 64532 client of 10.0.0.1",
            "node fe0a::4 as 64532 own 64532 client of 10.0.0.1",
        ],
    );
    let labelled = [
        "kube-master 10.192.0.2 route-reflector=true",
        "kube-node-1 10.192.0.3",
        "kube-node-2 10.192.0.4",
    ];
    let to_reflectors = |reverse: &str| {
        format!(
            "BGPPeer peer-with-route-reflectors: nodeSelector: all(), peerSelector: route-reflector == 'true', reversePeering: {reverse}"
        )
    };
    check(
        "reverse_peering/auto",
        &labelled,
        &[OFF, &to_reflectors("Auto")],
        MASTER,
        &["node 10.192.0.3 as 64512", "node 10.192.0.4 as 64512"],
    );
    check("reverse_peering/manual", &labelled, &[OFF, &to_reflectors("Manual")], MASTER, &[]);
    for reverse in ["Auto", "Manual"] {
        check(
            "reverse_peering",
            &labelled,
            &[OFF, &to_reflectors(reverse)],
            "kube-node-1",
            &["node 10.192.0.2 as 64512"],
        );
    }
    check(
        "next_hop_mode/route_reflectors",
        &labelled,
        &[
            OFF,
            &to_reflectors("Auto"),
            "BGPPeer a: peerIP: 10.225.0.4, asNumber: 65515, nextHopMode: Keep, nodeSelector: route-reflector == 'true'",
            "BGPPeer b: peerIP: 10.225.0.5, asNumber: 64512, nextHopMode: Self, nodeSelector: route-reflector == 'true'",
        ],
        MASTER,
        &[
            "node 10.192.0.3 as 64512",
            "node 10.192.0.4 as 64512",
            "node 10.225.0.4 as 65515 own 64512 next hop keep",
            "node 10.225.0.5 as 64512 next hop self",
        ],
    );
}

#[test]
fn reflectors_of_one_cluster_are_ordinary_peers() {
    let nodes = [
        "a 10.0.0.1 rr=244.0.0.1 rr-label=1",
        "b 10.0.0.2 rr=244.0.0.1 rr-label=1",
        "c 10.0.0.3 rr=244.0.0.2 rr-label=1",
        "d 10.0.0.4",
    ];
    let object = "BGPPeer p: nodeSelector: all(), peerSelector: has(rr-label)";
    check(
        "one cluster",
        &nodes,
        &[object],
        "a",
        &[
            "node 10.0.0.2 as 64512",
            "node 10.0.0.3 as 64512 client of 244.0.0.1",
            "node 10.0.0.4 as 64512 client of 244.0.0.1",
        ],
    );
    // The mesh is on, but has one node only.
    check(
        "one cluster",
        &nodes,
        &[object],
        "d",
        &["node 10.0.0.1 as 64512", "node 10.0.0.2 as 64512", "node 10.0.0.3 as 64512"],
    );
}

#[test]
fn of_two_nodes_of_the_mesh_the_one_with_the_lower_text_only_listens() {
    let nodes = ["a 10.0.0.9 fd00::9", "b 10.0.0.10 fd00::10"];
    check("text", &nodes, &[], "a", &["mesh 10.0.0.10 as 64512", "mesh fd00::10 as 64512"]);
    check(
        "text",
        &nodes,
        &[],
        "b",
        &["mesh 10.0.0.9 as 64512 passive", "mesh fd00::9 as 64512 passive"],
    );
}

#[test]
fn systems_of_nodes_and_of_one_peer() {
    let nodes = ["a 10.0.0.1 as=65001", "b 10.0.0.2", "c 10.0.0.3 as=65003"];
    let objects = [
        "default: asNumber: 65000",
        "BGPPeer p: peerIP: 192.0.2.1, asNumber: 65001, node: a, localASNumber: 64999",
    ];
    check(
        "systems",
        &nodes,
        &objects,
        "a",
        &[
            "mesh 10.0.0.2 as 65000 own 65001 passive",
            "mesh 10.0.0.3 as 65003 own 65001 passive",
            "node 192.0.2.1 as 65001 own 64999",
        ],
    );
    check(
        "systems",
        &nodes,
        &objects,
        "b",
        &["mesh 10.0.0.1 as 65001 own 65000", "mesh 10.0.0.3 as 65003 own 65000 passive"],
    );
    // If a peering has its own `localASNumber`, both ends use it.
    let selected = [OFF, "BGPPeer p: node: a, peerSelector: all(), localASNumber: 64999"];
    check("a", &nodes[..2], &selected, "a", &["node 10.0.0.2 as 64512 own 64999"]);
    check("b", &nodes[..2], &selected, "b", &["node 10.0.0.1 as 64999 own 64512"]);
}

#[test]
fn what_an_object_of_all_nodes_says_counts_before_one_of_some_and_before_the_mesh() {
    let nodes = ["a 10.0.0.1", "b 10.0.0.2"];
    let global = "BGPPeer z: peerIP: 10.0.0.2, asNumber: 64512, filters: [of-all]";
    let some = "BGPPeer a: peerIP: 10.0.0.2, asNumber: 64512, node: a, filters: [of-some]";
    check("a", &nodes, &[global, some], "a", &["global 10.0.0.2 as 64512 passive filters of-all"]);
    check("b", &nodes, &[some], "a", &["node 10.0.0.2 as 64512 filters of-some"]);
    check("c", &nodes, &[some], "b", &["node 10.0.0.1 as 64512 filters of-some"]);
    check("d", &nodes, &[], "a", &["mesh 10.0.0.2 as 64512 passive"]);
}

#[test]
fn a_gateway_belongs_to_the_object_that_makes_the_peer() {
    let nodes = ["a 10.0.0.1", "b 10.0.0.2"];
    let far = "BGPPeer far: peerIP: 192.0.2.1, asNumber: 65001, reachableBy: 10.0.0.9";
    let also = "BGPPeer some: peerIP: 192.0.2.1, asNumber: 65001, node: a, reachableBy: 10.0.0.8";
    // This object makes no peer of node a, whose mesh has a peer with this name and address.
    let of_b = "BGPPeer b: peerIP: 10.0.0.2, asNumber: 64512, node: b, reachableBy: 10.0.0.7";
    let found = |objects: &[&str], node: &str| {
        let all = [&nodes[..], objects].concat();
        peering(&all, node).gateways.into_iter().map(|it| format!("{it:?}")).collect::<Vec<_>>()
    };
    assert_eq!(found(&[far, also, of_b], "a"), ["(192.0.2.1, 10.0.0.9)"]);
    assert_eq!(found(&[also, of_b], "a"), ["(192.0.2.1, 10.0.0.8)"]);
    assert_eq!(found(&[also, of_b], "b"), [""; 0]);
    // A peer that a selector makes has the name of its node, too.
    let selected = "BGPPeer all: peerSelector: all()";
    assert_eq!(found(&[selected, of_b], "a"), [""; 0]);
}

#[test]
fn the_node_itself() {
    let settings = [
        "default: listenPort: 1790, asNumber: 65000, bindMode: NodeIP",
        "node.a: listenPort: 1791",
    ];
    let nodes = ["a 10.0.0.1 fd00::1 as=65001 rr=244.0.0.1", "b 10.0.0.2"];
    let all = [&settings[..], &nodes[..]].concat();
    let own = peering(&all, "a");
    assert_eq!((own.system, own.port, own.router_id), (65001, 1791, Ipv4Addr::new(10, 0, 0, 1)));
    assert_eq!(own.cluster, Some(Ipv4Addr::new(244, 0, 0, 1)));
    assert_eq!(own.addresses.len(), 2);
    assert!(own.listens_at_addresses);
    let own = peering(&all, "b");
    assert_eq!((own.system, own.port, own.cluster), (65000, 1790, None));
    // The value is from Calico's topology mesh/hash.
    assert_eq!(hashed("kube-master"), Ipv4Addr::new(25, 79, 212, 8));
    assert_eq!(peering(&["kube-master fd00::1"], "kube-master").router_id, hashed("kube-master"));
    let own = peering(&["a 10.0.0.1"], "a");
    assert_eq!((own.system, own.port), (64512, 179));
}

#[test]
fn without_annotations_a_nodes_internal_ips_are_its_addresses() {
    let node = |name: &str, number: u8| {
        format!(
            "{{apiVersion: v1, kind: Node, metadata: {{name: {name}}}, status: {{addresses: [{{type: InternalIP, address: 10.0.0.{number}}}, {{type: InternalIP, address: 'fd00::{number}'}}]}}}}\n---\n"
        )
    };
    let text = node("a", 1) + &node("b", 2);
    let peering = peers(&Contents::from_texts([("nodes.yaml", text.as_str())]), "a");
    let told: Vec<String> = peering.peers.iter().map(words).collect();
    assert_eq!(told, ["mesh 10.0.0.2 as 64512 passive", "mesh fd00::2 as 64512 passive"]);
}

#[test]
fn an_address_that_two_nodes_claim_is_nobodys() {
    let nodes = ["a 10.0.0.1", "b 10.0.0.2 fd00::2", "thief 10.0.0.2", "d 10.0.0.4"];
    let problem =
        "Nodes b, thief: found 10.0.0.2 as the address of each, expected it at one of them";
    let seen = |node: &str| {
        let peering = peering(&nodes, node);
        assert!(peering.problems[0].starts_with(problem), "{:?}", peering.problems);
        assert_eq!(peering.problems.len(), 1);
        peering.peers.iter().map(|peer| peer.address.to_string()).collect::<Vec<_>>()
    };
    assert_eq!(seen("a"), ["10.0.0.4"]);
    // Node b keeps the sessions that other nodes accept.
    assert_eq!(seen("b"), ["10.0.0.1", "10.0.0.4"]);
    // An object that names the address means whatever host has it, so the other node does not matter.
    let by_address = ["BGPPeer p: peerIP: 10.0.0.2, asNumber: 64512"];
    let peering = peering(&[&nodes[..], &by_address].concat(), "d");
    let told: Vec<String> = peering.peers.iter().map(words).collect();
    assert_eq!(told, ["mesh 10.0.0.1 as 64512", "global 10.0.0.2 as 64512"]);
}

#[test]
fn an_address_that_is_no_hosts_is_no_nodes() {
    for address in [
        "127.0.0.1",
        "0.0.0.0",
        "224.0.0.5",
        "255.255.255.255",
        "169.254.0.1",
        "::1",
        "fe80::1",
        "ff02::1",
    ] {
        let other = format!("b {address}");
        assert_eq!(told(&["a 10.0.0.1 fd00::1", &other], "a"), [""; 0], "{address}");
    }
}

#[test]
fn settings_that_are_not_valid_make_no_peers() {
    let nodes = ["a 10.0.0.1", "b 10.0.0.2", "c 10.0.0.3"];
    let seen = |settings: &str, node: &str| {
        let contents = contents(&[&nodes[..], &[settings]].concat());
        assert!(!contents.problems.is_empty());
        let Peering { peers, problems, .. } = peers(&contents, node);
        (peers.iter().map(|peer| peer.name.clone()).collect::<Vec<_>>(), problems.len())
    };
    let broken = "asNumber: none";
    assert_eq!(seen(&format!("default: {broken}"), "a"), (vec![], 1));
    assert_eq!(seen(&format!("node.a: {broken}"), "a"), (vec![], 1));
    // The port at which that node listens is not known.
    assert_eq!(seen(&format!("node.a: {broken}"), "b"), (vec!["c".to_owned()], 0));
}

#[test]
fn what_is_wrong_is_told() {
    let nodes = ["a 10.0.0.1", "b 10.0.0.2"];
    for (object, begin) in [
        (
            "BGPPeer p: peerIP: 192.0.2.1",
            "BGPPeer p: found no asNumber for 192.0.2.1, which is no node's address",
        ),
        (
            "BGPPeer p: peerIP: 'fd00::9', asNumber: 64512",
            "BGPPeer p: found fd00::9 as the peer of Node a, which has no IPv6 address",
        ),
    ] {
        let told = problems(&[&nodes[..], &[object]].concat(), "a");
        assert!(told.len() == 1 && told[0].starts_with(begin), "{told:?}");
    }
    let two_ports = [
        "BGPPeer p: peerIP: '192.0.2.1:1790', asNumber: 64512",
        "BGPPeer q: peerIP: 192.0.2.1, asNumber: 64512",
    ];
    let peering = peering(&[&nodes[..1], &two_ports[..]].concat(), "a");
    assert_eq!(
        peering.peers.iter().map(words).collect::<Vec<_>>(),
        ["global 192.0.2.1 port 1790 as 64512"]
    );
    assert_eq!(
        peering.problems,
        [
            "BGPPeer q: found 192.0.2.1 with port 179, which is a peer with port 1790 by p, so the latter counts: have one BGPPeer for each address"
        ]
    );
    let told = problems(&nodes, "c");
    assert!(told.len() == 1 && told[0].starts_with("Node c: found no valid object"), "{told:?}");
    // A node's own pods are not peers here; the reader reports that.
    let workloads =
        contents(&["a 10.0.0.1", "BGPPeer p: localWorkloadSelector: all(), asNumber: 64512"]);
    assert_eq!(workloads.problems.len(), 1);
    assert_eq!(peers(&workloads, "a").peers, []);
}

#[test]
fn the_addresses_of_a_node_are_the_annotations_or_without_any_the_internal_ips() {
    let internal = "{apiVersion: v1, kind: Node, metadata: {name: n3}, status: {addresses: [{type: InternalIP, address: 10.0.0.3}, {type: InternalIP, address: 10.0.0.4}]}}\n---\n";
    let text = [node("n1 10.0.0.1 fd00::1"), node("n2 fd00::2"), internal.to_owned()];
    let contents = Contents::from_texts([("nodes.yaml", text.concat().as_str())]);
    let of = |name: &str| {
        let (addresses, source) = addresses(&contents, name)?;
        Some((addresses.iter().map(ToString::to_string).collect::<Vec<_>>().join(" "), source))
    };
    let annotation = AddressSource::Annotation;
    assert_eq!(of("n1"), Some(("10.0.0.1 fd00::1".to_owned(), annotation)));
    assert_eq!(of("n2"), Some(("fd00::2".to_owned(), annotation)));
    assert_eq!(of("n3"), Some(("10.0.0.3".to_owned(), AddressSource::InternalIp)));
    assert_eq!(of("n4"), None);
    for name in ["n1", "n2", "n3"] {
        let peering = peers(&contents, name);
        assert_eq!(Some(peering.addresses), addresses(&contents, name).map(|it| it.0), "{name}");
    }
}
