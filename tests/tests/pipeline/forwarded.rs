//! Packets that a node forwards for others. The node's kernel has masqueraded some of them. None
//! comes from the node itself.

use std::collections::BTreeMap;

use manx_analysis::explain::Explainer;
use manx_analysis::services::Translates;
use manx_api::explain::{ExplainRequest, PacketSpec};
use manx_dataplane::drop_reason::DropReason;
use manx_dataplane::tables::PortId;
use manx_tests::fabric::{FORWARDED, Fabric, HOST, ROUTER, SIZES, UNDERLAY, pod, policy};
use manx_tests::packet::{ICMP, SCTP, TCP, Tuple, UDP, addresses};

use crate::errors::error_v4;

const A: &str = "10.244.1.7";
const FAR: &str = "10.244.2.7";
const WORLD: &str = "192.0.2.1";
/// The address with which the first node masquerades.
const MASQUERADE: &str = "10.244.1.0";

const NODES: &str = "
{apiVersion: v1, kind: Node, metadata: {name: node-1}, spec: {podCIDRs: [10.244.1.0/24]}, status: {addresses: [{type: InternalIP, address: 172.18.0.2}]}}
---
{apiVersion: v1, kind: Node, metadata: {name: node-2}, spec: {podCIDRs: [10.244.2.0/24]}, status: {addresses: [{type: InternalIP, address: 172.18.0.3}]}}
---
{apiVersion: projectcalico.org/v3, kind: IPPool, metadata: {name: p}, spec: {cidr: 10.244.0.0/16, ipipMode: Always}}
---
";

fn cluster(policies: &str) -> String {
    NODES.to_owned()
        + &pod("shop/a", 0, "{app: a}", &[A])
        + &pod("shop/far", 1, "{app: far}", &[FAR])
        + policies
}

/// A policy by which only these peers reach the pods.
fn only(peers: &str) -> String {
    policy("shop/p", &format!("{{podSelector: {{}}, ingress: [{{from: [{peers}]}}]}}"))
}

/// Sends a packet to a port of the first node; returns where it came out.
fn send(fabric: &mut Fabric, port: PortId, packet: &[u8]) -> Option<(usize, PortId)> {
    let out = fabric.send_at(0, port, packet);
    assert!(out.len() <= 1, "{out:?}");
    out.first().map(|it| (it.node, it.port))
}

fn own() -> [String; 3] {
    [UNDERLAY[0].to_string(), ROUTER[0].to_string(), MASQUERADE.to_owned()]
}

#[test]
fn what_the_node_forwards_has_none_of_its_rights_whatever_its_source() {
    let mut fabric = Fabric::new(&cluster(&policy("shop/closed", "{podSelector: {}}")));
    let a = fabric.port("shop/a");
    for source in own() {
        for protocol in [TCP, UDP, ICMP, SCTP] {
            let packet = Tuple::new(&source, A, protocol, 80).from_port(1000).opening();
            let before = fabric.nodes[0].dropped(FORWARDED, DropReason::PolicyIngress);
            assert_eq!(send(&mut fabric, FORWARDED, &packet), None, "{source} {protocol}");
            let after = fabric.nodes[0].dropped(FORWARDED, DropReason::PolicyIngress);
            assert_eq!(after, before + 1, "{source} {protocol}: {:?}", fabric.nodes[0].drops());
            let packet = Tuple::new(&source, A, protocol, 80).opening();
            assert_eq!(send(&mut fabric, HOST, &packet), Some(a), "{source} {protocol}");
        }
    }
}

#[test]
fn whom_the_node_masquerades_is_judged_by_that_address_on_both_nodes_and_answered() {
    for (name, to) in [("shop/a", A), ("shop/far", FAR)] {
        for (peers, passes) in [
            ("{ipBlock: {cidr: 0.0.0.0/0}}", true),
            ("{ipBlock: {cidr: 10.244.1.0/32}}", true),
            ("{ipBlock: {cidr: 0.0.0.0/0, except: [10.244.0.0/16]}}", false),
            ("{ipBlock: {cidr: 172.18.0.0/16}}, {ipBlock: {cidr: 10.244.1.1/32}}", false),
            ("{podSelector: {}}, {namespaceSelector: {}}", false),
        ] {
            let mut fabric = Fabric::new(&cluster(&only(peers)));
            let tuple = Tuple::new(MASQUERADE, to, TCP, 80);
            let there = fabric.port(name);
            let came = send(&mut fabric, FORWARDED, &tuple.opening());
            assert_eq!(came, passes.then_some(there), "{to} from {peers}");
            if !passes {
                continue;
            }
            let there_and_back = |fabric: &mut Fabric, what: &str| {
                let answer = fabric.send(name, &tuple.answer());
                let answer: Vec<_> = answer.iter().map(|it| (it.node, it.port)).collect();
                assert_eq!(answer, [(0, HOST)], "{what}: the kernel knows whose it is");
                assert_eq!(send(fabric, FORWARDED, &tuple.data(b"x")), Some(there), "{what}");
            };
            there_and_back(&mut fabric, "first");
            fabric.publish();
            there_and_back(&mut fabric, "published");
            let restored = fabric.nodes[0].replace_workers(1, SIZES, true);
            assert_eq!((restored.flows, restored.ended), (1, 0));
            there_and_back(&mut fabric, "restored");
            let error = error_v4(to, MASQUERADE, &tuple.opening());
            let error = fabric.send(name, &error);
            assert_eq!((error[0].node, error[0].port), (0, HOST));
            fabric.apply(&cluster(&policy("shop/p", "{podSelector: {}}")));
            assert_eq!(send(&mut fabric, FORWARDED, &tuple.data(b"y")), None, "{to}");
        }
    }
}

/// The kernel sends such errors if the link to the client is too narrow for a pod's answer, or if
/// the client does not exist.
#[test]
fn the_node_tells_pods_about_answers_to_whom_it_masquerades() {
    let own = ROUTER[0].to_string();
    for (name, to, ttl) in [("shop/a", A, 64), ("shop/far", FAR, 63)] {
        let mut fabric = Fabric::new(&cluster(&only("{ipBlock: {cidr: 10.244.1.0/32}}")));
        let there = fabric.port(name);
        let tuple = Tuple::new(MASQUERADE, to, UDP, 80);
        let error = error_v4(&own, to, &tuple.answer());
        assert_eq!(send(&mut fabric, HOST, &error), None, "nobody has asked");
        assert_eq!(fabric.nodes[0].dropped(HOST, DropReason::IcmpErrorUnmatched), 1);
        assert_eq!(send(&mut fabric, FORWARDED, &tuple.opening()), Some(there));
        assert_eq!(fabric.send(name, &tuple.answer()).len(), 1);
        let told = fabric.send_at(0, HOST, &error);
        assert_eq!(told.len(), 1, "{to}: {:?}", fabric.nodes[0].drops());
        assert_eq!((told[0].node, told[0].port), there);
        let bytes = &told[0].frame.bytes;
        assert_eq!((bytes[8], &bytes[20..]), (ttl, &error[20..]), "the node is no hop of its own");
        // The node's own packets still do not count as packets of the client.
        assert_eq!(send(&mut fabric, FORWARDED, &tuple.data(b"x")), Some(there), "{to}");
    }
}

#[test]
fn what_the_node_sends_and_what_it_forwards_may_be_alike_and_neither_rides_on_the_other() {
    for source in own() {
        for protocol in [TCP, UDP] {
            let mut fabric = Fabric::new(&cluster(&policy("shop/closed", "{podSelector: {}}")));
            let a = fabric.port("shop/a");
            let tuple = Tuple::new(&source, A, protocol, 80).from_port(1000);
            for packet in [tuple.opening(), tuple.data(b"x")] {
                assert_eq!(send(&mut fabric, HOST, &packet), Some(a), "{source}");
                assert_eq!(send(&mut fabric, FORWARDED, &packet), None, "{source}");
                assert_eq!(send(&mut fabric, HOST, &packet), Some(a), "{source}");
            }
            let answers = fabric.send("shop/a", &tuple.answer());
            assert_eq!((answers[0].node, answers[0].port), (0, HOST));
            // If policy allows both, each goes on after the other.
            fabric.apply(&cluster(""));
            for port in [FORWARDED, HOST, FORWARDED] {
                assert_eq!(send(&mut fabric, port, &tuple.data(b"y")), Some(a), "{source}");
                let answers = fabric.send("shop/a", &tuple.answer());
                assert_eq!((answers[0].node, answers[0].port), (0, HOST));
            }
        }
    }
}

#[test]
fn the_kernel_takes_translations_back_and_the_pod_that_asked_gets_its_answers() {
    let mut fabric = Fabric::new(&cluster(""));
    let (_, a) = fabric.port("shop/a");
    for other in [UNDERLAY[0].to_string(), WORLD.to_owned()] {
        for protocol in [TCP, UDP] {
            let asked = Tuple::new(A, &other, protocol, 30080);
            assert_eq!(send(&mut fabric, a, &asked.opening()), Some((0, HOST)));
            assert_eq!(send(&mut fabric, FORWARDED, &asked.answer()), Some((0, a)), "{other}");
            assert_eq!(send(&mut fabric, a, &asked.data(b"x")), Some((0, HOST)));
        }
    }
}

#[test]
fn no_pods_address_comes_from_the_node_and_it_carries_no_transit() {
    let mut fabric = Fabric::new(&cluster(""));
    for (source, to, reason) in [
        (A, A, DropReason::SourceSpoofed),
        (FAR, A, DropReason::SourceSpoofed),
        ("10.244.1.8", A, DropReason::SourceSpoofed),
        (WORLD, FAR, DropReason::NoRoute),
        (WORLD, "192.0.2.2", DropReason::NoRoute),
        (MASQUERADE, WORLD, DropReason::NoRoute),
        (MASQUERADE, "172.18.0.2", DropReason::NoRoute),
    ] {
        let before = fabric.nodes[0].dropped(FORWARDED, reason);
        let packet = Tuple::new(source, to, UDP, 80).opening();
        assert_eq!(send(&mut fabric, FORWARDED, &packet), None, "{source} to {to}");
        let drops = fabric.nodes[0].drops();
        let after = fabric.nodes[0].dropped(FORWARDED, reason);
        assert_eq!(after, before + 1, "{source} to {to}: {drops:?}");
    }
}

/// The packet does not show by which interface of the node it came in.
#[test]
fn policy_for_forwarded_traffic_of_the_uplink_holds_for_whom_the_node_masquerades() {
    let host = "---\n{apiVersion: projectcalico.org/v3, kind: HostEndpoint, metadata: {name: h, labels: {role: node}}, spec: {node: node-1, interfaceName: eth0}}\n\
        ---\n{apiVersion: projectcalico.org/v3, kind: GlobalNetworkPolicy, metadata: {name: f}, spec: {selector: role == 'node', applyOnForward: true, types: [Ingress], \
        ingress: [{action: Allow, protocol: TCP, destination: {ports: [80]}}]}}\n---\n";
    let mut fabric = Fabric::new(&cluster(host));
    let a = fabric.port("shop/a");
    for source in [MASQUERADE, WORLD] {
        for (port, passes) in [(80, true), (81, false)] {
            let packet = Tuple::new(source, A, TCP, port).opening();
            let came = send(&mut fabric, FORWARDED, &packet);
            let drops = fabric.nodes[0].drops();
            assert_eq!(came, passes.then_some(a), "{source} {port}: {drops:?}");
            assert_eq!(explained(&fabric, source, A, port), passes, "{source} {port}");
        }
    }
}

fn explained(fabric: &Fabric, from: &str, to: &str, port: u16) -> bool {
    let assumed = BTreeMap::new();
    let explainer = Explainer::new(&fabric.contents, &assumed, "eth0");
    explained_by(&explainer, from, to, PacketSpec::Protocol(TCP, Some(port)))
}

fn explained_by(explainer: &Explainer<'_>, from: &str, to: &str, packet: PacketSpec) -> bool {
    let request = ExplainRequest {
        routes: true,
        from: from.to_owned(),
        to: to.to_owned(),
        packet,
        source_port: 49152,
        ipv6: false,
        uplink: None,
    };
    explainer.explain(&request).unwrap().story.allowed
}

#[test]
fn explain_says_of_the_masquerade_address_what_becomes_of_its_packets() {
    let mut count = [0; 2];
    for peers in [
        "{podSelector: {matchLabels: {app: nobody}}}",
        "{ipBlock: {cidr: 0.0.0.0/0}}",
        "{ipBlock: {cidr: 10.244.1.0/32}}",
        "{ipBlock: {cidr: 0.0.0.0/0, except: [10.244.0.0/16]}}",
        "{ipBlock: {cidr: 172.18.0.2/32}}",
        "{ipBlock: {cidr: 192.0.2.0/24}}",
        "{namespaceSelector: {}}",
    ] {
        let mut fabric = Fabric::new(&cluster(&only(peers)));
        for (name, to) in [("shop/a", A), ("shop/far", FAR)] {
            for (source, port) in
                [(MASQUERADE, FORWARDED), (WORLD, FORWARDED), ("172.18.0.2", HOST)]
            {
                if (source, to) != (MASQUERADE, FAR) && to == FAR {
                    continue;
                }
                let there = fabric.port(name);
                let came = send(&mut fabric, port, &Tuple::new(source, to, TCP, 80).opening());
                let passes = explained(&fabric, source, to, 80);
                assert_eq!(came, passes.then_some(there), "{source} to {to} from {peers}");
                count[usize::from(passes)] += 1;
            }
        }
    }
    assert!(count.iter().all(|verdicts| *verdicts > 5), "{count:?}");
}

/// In this test, the test itself acts as kube-proxy.
#[test]
fn explain_and_packets_agree_about_services_however_they_are_reached() {
    const SERVER: &str = "10.244.1.8";
    let service = |name: &str, traffic: &str, external: &str, node_port: u16| {
        format!(
            "---\n{{apiVersion: v1, kind: Service, metadata: {{name: {name}, namespace: shop}}, spec: {{clusterIP: 10.96.0.7, externalIPs: [{external}], \
             externalTrafficPolicy: {traffic}, ports: [{{port: 80, targetPort: 8080, nodePort: {node_port}}}]}}}}\n\
             ---\n{{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {{name: {name}-1, namespace: shop, labels: {{kubernetes.io/service-name: {name}}}}}, \
             addressType: IPv4, endpoints: [{{addresses: [{SERVER}]}}], ports: [{{port: 8080}}]}}\n---\n"
        )
    };
    let objects = pod("shop/b", 0, "{app: b}", &[SERVER])
        + &service("cluster", "Cluster", "203.0.113.1", 30080)
        + &service("local", "Local", "203.0.113.2", 30081);
    let egress = |to: &str| {
        policy(
            "shop/e",
            &format!(
                "{{podSelector: {{matchLabels: {{app: a}}}}, policyTypes: [Egress], egress: [{{to: [{to}]}}]}}"
            ),
        )
    };
    let mut count = [0; 2];
    for policies in [
        String::new(),
        only("{podSelector: {matchLabels: {app: nobody}}}"),
        only("{podSelector: {}}"),
        only("{ipBlock: {cidr: 192.0.2.0/24}}"),
        only("{ipBlock: {cidr: 10.244.1.0/32}}"),
        only("{ipBlock: {cidr: 172.18.0.2/32}}"),
        only("{ipBlock: {cidr: 0.0.0.0/0}}"),
        egress("{podSelector: {}}"),
        egress("{ipBlock: {cidr: 172.18.0.2/32}}"),
        egress("{ipBlock: {cidr: 203.0.113.0/24}}"),
    ] {
        let mut fabric = Fabric::new(&cluster(&(objects.clone() + &policies)));
        let [a, b] = ["shop/a", "shop/b"].map(|name| fabric.port(name));
        for (to, port, is_local) in [
            ("172.18.0.2", 30080, false),
            ("203.0.113.1", 80, false),
            ("172.18.0.2", 30081, true),
            ("203.0.113.2", 80, true),
        ] {
            for client in ["shop/a", WORLD, "node/node-1"] {
                let assumed = BTreeMap::new();
                let contents = fabric.contents.clone();
                let explainer = Explainer::new(&contents, &assumed, "eth0");
                let explainer = explainer.translated_by(Translates::KubeProxy);
                let packet = PacketSpec::Protocol(TCP, Some(port));
                let found = explainer.connections(client, to, packet).unwrap();
                let told = found.asked.iter().all(|it| {
                    it.dropped.is_none() && explained_by(&explainer, &it.from, &it.to, it.packet)
                });
                let mut asks = || match client {
                    "shop/a" => {
                        let asked = Tuple::new(A, to, TCP, port).opening();
                        send(&mut fabric, a.1, &asked) == Some((0, HOST))
                    }
                    _ => true,
                };
                let passes = asks() && {
                    // The packet as kube-proxy translates it, and the port by which it comes in.
                    let (source, by) = match (client, is_local) {
                        ("node/node-1", false) => (ROUTER[0].to_string(), HOST),
                        ("node/node-1", true) => (UNDERLAY[0].to_string(), HOST),
                        (_, false) => (MASQUERADE.to_owned(), FORWARDED),
                        ("shop/a", true) => (A.to_owned(), FORWARDED),
                        (_, true) => (WORLD.to_owned(), FORWARDED),
                    };
                    let translated = Tuple::new(&source, SERVER, TCP, 8080).opening();
                    send(&mut fabric, by, &translated) == Some(b)
                };
                assert_eq!(told, passes, "{client} to {to}:{port}, {policies}: {found:?}");
                count[usize::from(passes)] += 1;
            }
        }
    }
    assert!(count.iter().all(|verdicts| *verdicts > 30), "{count:?}");
}

/// `defaultEndpointToHostAction`: the addresses of all interfaces are the node's.
#[test]
fn a_node_that_takes_nothing_from_pods_takes_it_at_none_of_its_addresses() {
    let drops = "---\n{apiVersion: projectcalico.org/v3, kind: FelixConfiguration, metadata: {name: default}, spec: {defaultEndpointToHostAction: Drop}}\n---\n";
    let bridge = "172.17.0.1";
    let others = [bridge, "172.17.255.255", "203.0.113.9"];
    for (more, passes) in [("", true), (drops, false)] {
        let mut fabric = Fabric::new(&cluster(more));
        fabric.own_addresses = ["172.17.0.1/32", "172.17.255.255/32", "203.0.113.0/24"]
            .map(|net| net.parse().unwrap())
            .into();
        fabric.publish();
        let (_, a) = fabric.port("shop/a");
        for to in own().iter().map(String::as_str).chain(others) {
            let out = send(&mut fabric, a, &Tuple::new(A, to, UDP, 53).opening());
            assert_eq!(out, passes.then_some((0, HOST)), "to {to}: {:?}", fabric.nodes[0].drops());
        }
        let out = send(&mut fabric, a, &Tuple::new(A, WORLD, UDP, 53).opening());
        assert_eq!(out, Some((0, HOST)), "beyond the node");
        // A pod's packets never reach these addresses.
        for to in ["255.255.255.255", "224.0.0.1", "127.0.0.1", "0.0.0.0"] {
            let before = fabric.nodes[0].dropped(a, DropReason::NotForwardable);
            assert_eq!(send(&mut fabric, a, &Tuple::new(A, to, UDP, 53).opening()), None);
            let after = fabric.nodes[0].dropped(a, DropReason::NotForwardable);
            assert_eq!(after, before + 1, "{to}");
        }
    }
    // Policy sees the original address.
    let egress = policy(
        "shop/e",
        "{podSelector: {}, policyTypes: [Egress], egress: [{to: [{ipBlock: {cidr: 172.17.0.0/16}}]}]}",
    );
    let mut fabric = Fabric::new(&cluster(&egress));
    fabric.own_addresses = [format!("{bridge}/32"), "203.0.113.9/32".to_owned()]
        .map(|net| net.parse().unwrap())
        .into();
    fabric.publish();
    let (_, a) = fabric.port("shop/a");
    assert_eq!(send(&mut fabric, a, &Tuple::new(A, bridge, UDP, 53).opening()), Some((0, HOST)));
    assert_eq!(send(&mut fabric, a, &Tuple::new(A, "203.0.113.9", UDP, 53).opening()), None);
    let reply = Tuple::new(A, bridge, UDP, 53).answer();
    let out = fabric.send_at(0, HOST, &reply);
    assert_eq!(addresses(&out[0].frame.bytes).1.to_string(), A);
}
