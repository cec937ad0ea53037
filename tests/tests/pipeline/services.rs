//! Service addresses that the node's kernel translates (kube-proxy). Here the test acts as that
//! kernel.

use manx_dataplane::drop_reason::DropReason;
use manx_dataplane::tables::PortId;
use manx_tests::fabric::{Fabric, HOST, RAW, ROUTER, SERVICE, SIZES, UNDERLAY, pod, policy};
use manx_tests::packet::{SCTP, TCP, Tuple, UDP, addresses, tunnelled};

use crate::errors::error_v4;

const CLIENT: &str = "10.1.0.1";
const SERVER: &str = "10.1.0.2";
const FAR: &str = "10.2.0.1";
const WORLD: &str = "192.0.2.7";
const SERVICE_IP: &str = "10.96.0.7";
/// The service's address. The node itself and another host serve its port 443.
const HOSTS: &str = "10.96.0.1";

fn service(name: &str, ip: &str, port: u16) -> String {
    format!(
        "apiVersion: v1\nkind: Service\nmetadata: {{name: {name}, namespace: shop}}\n\
         spec: {{clusterIP: {ip}, externalIPs: [192.0.2.9], ports: [{{name: a, port: {port}}}, {{name: b, port: 81}}]}}\n---\n"
    )
}

fn slice(name: &str, addresses: &str) -> String {
    format!(
        "apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\n\
         metadata: {{name: {name}-1, namespace: shop, labels: {{kubernetes.io/service-name: {name}}}}}\n\
         addressType: IPv4\nendpoints: [{{addresses: [{addresses}]}}]\n\
         ports: [{{name: a, port: 6443}}, {{name: b, port: 8081}}]\n---\n"
    )
}

fn cluster(policies: &str) -> String {
    let pods = pod("shop/client", 0, "{app: client}", &[CLIENT])
        + &pod("shop/server", 0, "{app: server}", &[SERVER])
        + &pod("shop/far", 1, "{app: far}", &[FAR]);
    let hosts = format!("{}, {}", UNDERLAY[0], UNDERLAY[1]);
    let services = service("web", SERVICE_IP, 80)
        + &slice("web", &format!("{SERVER}, {FAR}"))
        + &service("kubernetes", HOSTS, 443)
        + &slice("kubernetes", &hosts);
    pods + &services + policies
}

fn client_port(fabric: &Fabric) -> PortId {
    fabric.port("shop/client").1
}

fn dropped(fabric: &Fabric, port: PortId, reason: DropReason) -> u64 {
    fabric.nodes[0].dropped(port, reason)
}

/// Sends a packet to a port of the first node; returns where it came out, and to which address.
fn send(fabric: &mut Fabric, port: PortId, packet: &[u8]) -> Option<(usize, PortId, String)> {
    let out = fabric.send_at(0, port, packet);
    assert!(out.len() <= 1, "{out:?}");
    let only = out.first()?;
    Some((only.node, only.port, addresses(&only.frame.bytes).1.to_string()))
}

/// A connection from the client to the service, and its form after the kernel's translation.
fn both(protocol: u8, endpoint: &str) -> (Tuple, Tuple) {
    (Tuple::new(CLIENT, SERVICE_IP, protocol, 80), Tuple::new(CLIENT, endpoint, protocol, 8080))
}

#[test]
fn a_connection_goes_to_the_node_and_back_both_ways() {
    for protocol in [TCP, UDP, SCTP] {
        for (name, endpoint) in [("shop/server", SERVER), ("shop/far", FAR)] {
            let mut fabric = Fabric::with_services(&cluster(""));
            let (asked, translated) = both(protocol, endpoint);
            let client = client_port(&fabric);
            let (node, server) = fabric.port(name);
            for (to_service, to_endpoint) in
                [(asked.opening(), translated.opening()), (asked.data(b"x"), translated.data(b"x"))]
            {
                let out = send(&mut fabric, client, &to_service);
                assert_eq!(out, Some((0, SERVICE, SERVICE_IP.to_owned())));
                let out = send(&mut fabric, SERVICE, &to_endpoint);
                assert_eq!(out, Some((node, server, endpoint.to_owned())));
                let answer = fabric.send(name, &translated.answer());
                assert_eq!((answer.len(), answer[0].node, answer[0].port), (1, 0, SERVICE));
                let out = send(&mut fabric, SERVICE, &asked.answer());
                assert_eq!(out, Some((0, client, CLIENT.to_owned())));
            }
        }
    }
}

#[test]
fn policy_judges_what_comes_back_as_a_direct_connection() {
    let ingress = "{podSelector: {matchLabels: {app: server}}, ingress: [{from: [{podSelector: {matchLabels: {app: friend}}}]}]}";
    let egress = "{podSelector: {matchLabels: {app: client}}, policyTypes: [Egress], egress: [{to: [{podSelector: {matchLabels: {app: far}}}]}]}";
    for (spec, reason) in [(ingress, DropReason::PolicyIngress), (egress, DropReason::PolicyEgress)]
    {
        let mut fabric = Fabric::with_services(&cluster(&policy("shop/p", spec)));
        let client = client_port(&fabric);
        let (asked, translated) = both(TCP, SERVER);
        assert!(send(&mut fabric, client, &asked.opening()).is_some(), "not judged yet");
        assert_eq!(send(&mut fabric, SERVICE, &translated.opening()), None);
        assert_eq!(dropped(&fabric, SERVICE, reason), 1, "{:?}", fabric.nodes[0].drops());
        let (_, translated) = both(TCP, FAR);
        assert!(send(&mut fabric, SERVICE, &translated.opening()).is_some(), "it allows this one");
    }
}

#[test]
fn a_change_of_policy_ends_a_connection_by_a_service_address() {
    let mut fabric = Fabric::with_services(&cluster(""));
    let (asked, translated) = both(TCP, SERVER);
    let client = client_port(&fabric);
    send(&mut fabric, client, &asked.opening()).unwrap();
    send(&mut fabric, SERVICE, &translated.opening()).unwrap();
    assert_eq!(fabric.send("shop/server", &translated.answer()).len(), 1);
    let deny = policy("shop/p", "{podSelector: {matchLabels: {app: server}}}");
    fabric.apply(&cluster(&deny));
    assert_eq!(send(&mut fabric, SERVICE, &translated.data(b"x")), None);
    assert_eq!(fabric.send("shop/server", &translated.reversed().data(b"x")).len(), 0);
    fabric.apply(&cluster(""));
    assert!(send(&mut fabric, SERVICE, &translated.data(b"x")).is_some());
    let answer = fabric.send("shop/server", &translated.reversed().data(b"x"));
    assert_eq!(answer[0].port, SERVICE, "a renewed flow is still a translated one");
}

/// A packet that the kernel has translated goes on to another node by the pod's own link, and the
/// answers come back by it, because another plugin's rules expect the pod there.
#[test]
fn where_another_plugin_connects_pods_their_translated_packets_leave_by_their_own_links() {
    let policies =
        policy("shop/p", "{podSelector: {matchLabels: {app: client}}, policyTypes: [Egress]}");
    for (endpoint, is_here) in [(SERVER, true), (FAR, false), (WORLD, false)] {
        let mut fabric = Fabric::policy_only_with_services(&cluster(""));
        let (asked, translated) = both(TCP, endpoint);
        let (client, host_side) = (client_port(&fabric), fabric.host_side("shop/client"));
        let beyond = if is_here { fabric.port("shop/server").1 } else { host_side };
        let through = |fabric: &mut Fabric, port, packet: &[u8]| {
            send(fabric, port, packet).map(|(_, port, _)| port)
        };
        assert_eq!(through(&mut fabric, client, &asked.opening()), Some(SERVICE));
        assert_eq!(through(&mut fabric, SERVICE, &translated.opening()), Some(beyond));
        let there_and_back = |fabric: &mut Fabric| {
            assert_eq!(through(fabric, beyond, &translated.answer()), Some(SERVICE), "{endpoint}");
            assert_eq!(through(fabric, SERVICE, &asked.answer()), Some(client), "{endpoint}");
            let [asked, translated] = [asked.data(b"x"), translated.data(b"x")];
            assert_eq!(through(fabric, client, &asked), Some(SERVICE), "{endpoint}");
            assert_eq!(through(fabric, SERVICE, &translated), Some(beyond), "{endpoint}");
        };
        there_and_back(&mut fabric);
        fabric.publish();
        there_and_back(&mut fabric);
        let restored = fabric.nodes[0].replace_workers(1, SIZES, true);
        assert_eq!((restored.flows, restored.ended), (2, 0), "{endpoint}");
        there_and_back(&mut fabric);
        fabric.apply(&cluster(&policies));
        assert_eq!(send(&mut fabric, SERVICE, &translated.data(b"y")), None, "{endpoint}");
    }
}

#[test]
fn what_the_node_does_not_translate_is_dropped() {
    let mut fabric = Fabric::with_services(&cluster(""));
    let (asked, translated) = both(UDP, SERVER);
    let client = client_port(&fabric);
    assert!(send(&mut fabric, client, &asked.opening()).is_some());
    assert_eq!(send(&mut fabric, SERVICE, &asked.opening()), None, "as it went there");
    assert_eq!(dropped(&fabric, SERVICE, DropReason::ServiceUntranslated), 1);
    assert!(send(&mut fabric, SERVICE, &translated.opening()).is_some());
    for masqueraded in [&ROUTER[0].to_string(), &UNDERLAY[0].to_string(), "192.0.2.1", FAR] {
        let tuple = Tuple::new(masqueraded, SERVER, UDP, 8080);
        assert_eq!(send(&mut fabric, SERVICE, &tuple.opening()), None, "{masqueraded}");
    }
    assert_eq!(dropped(&fabric, SERVICE, DropReason::ServiceSource), 4);
    // A reply that comes back untranslated is not sent round again, from here or from the other
    // node.
    assert_eq!(fabric.send("shop/server", &translated.answer())[0].port, SERVICE);
    assert_eq!(send(&mut fabric, SERVICE, &translated.answer()), None);
    let (_, remote) = both(UDP, FAR);
    assert!(send(&mut fabric, SERVICE, &remote.opening()).is_some());
    assert_eq!(fabric.send("shop/far", &remote.answer())[0].port, SERVICE);
    assert_eq!(send(&mut fabric, SERVICE, &remote.answer()), None);
    assert_eq!(dropped(&fabric, SERVICE, DropReason::ServiceSource), 6);
}

#[test]
fn nobody_else_passes_as_a_service_or_as_translated() {
    let mut fabric = Fabric::with_services(&cluster(""));
    let (asked, translated) = both(UDP, SERVER);
    let (client, server) = (client_port(&fabric), fabric.port("shop/server").1);
    for port in [HOST, SERVICE] {
        assert_eq!(send(&mut fabric, port, &asked.answer()), None);
        assert_eq!(dropped(&fabric, port, DropReason::ServiceWithoutFlow), 1);
    }
    assert!(send(&mut fabric, client, &asked.opening()).is_some());
    assert!(send(&mut fabric, SERVICE, &translated.opening()).is_some());
    for (port, packet, reason) in [
        (server, asked.answer(), DropReason::SourceSpoofed),
        (HOST, translated.data(b"x"), DropReason::SourceSpoofed),
        // These packets have the ports of the translated connection, but do not come from the
        // service.
        (client, translated.data(b"x"), DropReason::SourceSpoofed),
        (
            RAW,
            tunnelled(UNDERLAY[1], UNDERLAY[0], &asked.answer(), 0),
            DropReason::TunnelSourceMismatch,
        ),
        (
            RAW,
            tunnelled(UNDERLAY[1], UNDERLAY[0], &Tuple::new(FAR, SERVICE_IP, UDP, 80).opening(), 0),
            DropReason::NoRoute,
        ),
        (HOST, Tuple::new("192.0.2.1", SERVICE_IP, UDP, 80).opening(), DropReason::NoRoute),
    ] {
        let before = dropped(&fabric, port, reason);
        assert_eq!(send(&mut fabric, port, &packet), None, "{reason:?}");
        assert_eq!(dropped(&fabric, port, reason), before + 1, "{:?}", fabric.nodes[0].drops());
    }
    // A process of the node answers through the host port.
    assert!(send(&mut fabric, HOST, &asked.answer()).is_some());
}

#[test]
fn errors_find_their_way_back_through_the_translation() {
    let mut fabric = Fabric::with_services(&cluster(""));
    let (asked, translated) = both(UDP, SERVER);
    let client = client_port(&fabric);
    send(&mut fabric, client, &asked.opening()).unwrap();
    send(&mut fabric, SERVICE, &translated.opening()).unwrap();
    let error = error_v4(SERVER, CLIENT, &translated.opening());
    assert_eq!(fabric.send("shop/server", &error)[0].port, SERVICE);
    let error = error_v4(SERVICE_IP, CLIENT, &asked.opening());
    assert_eq!(send(&mut fabric, SERVICE, &error).unwrap().1, client);
    // The client has closed its port meanwhile.
    let error = error_v4(CLIENT, SERVICE_IP, &asked.answer());
    assert_eq!(send(&mut fabric, client, &error).unwrap().1, SERVICE);
    let error = error_v4(CLIENT, SERVER, &translated.answer());
    assert_eq!(send(&mut fabric, SERVICE, &error).unwrap().2, SERVER);
}

/// The node accepts such packets itself, or forwards them, so they may not come back.
#[test]
fn endpoints_that_are_hosts_are_judged_before_the_translation() {
    let allow = |to: &str| {
        let spec = format!(
            "{{podSelector: {{matchLabels: {{app: client}}}}, policyTypes: [Egress], egress: [{to}]}}"
        );
        policy("shop/p", &spec)
    };
    let both = "{to: [{ipBlock: {cidr: 172.18.0.0/30}}], ports: [{port: 6443}]}";
    let first = "{to: [{ipBlock: {cidr: 172.18.0.2/32}}]}";
    let cluster_ip = "{to: [{ipBlock: {cidr: 10.96.0.0/16}}]}";
    let other_port = "{to: [{ipBlock: {cidr: 172.18.0.0/30}}], ports: [{port: 8081}]}";
    let api = Tuple::new(CLIENT, HOSTS, TCP, 443);
    for (policies, passes) in [
        (String::new(), true),
        (allow(both), true),
        (allow(first), false),
        (allow(cluster_ip), false),
        (allow(other_port), false),
    ] {
        let mut fabric = Fabric::with_services(&cluster(&policies));
        let client = client_port(&fabric);
        assert_eq!(send(&mut fabric, client, &api.opening()).is_some(), passes, "{policies}");
        assert_eq!(dropped(&fabric, client, DropReason::PolicyEgress), u64::from(!passes));
    }
    let mut fabric = Fabric::with_services(&cluster(&allow(both)));
    let client = client_port(&fabric);
    assert!(send(&mut fabric, client, &api.opening()).is_some());
    assert!(send(&mut fabric, HOST, &api.answer()).is_some());
    assert!(send(&mut fabric, client, &api.data(b"x")).is_some());
    // From now on the host is an endpoint, and counts for connections that are already open.
    fabric.apply(&cluster(&allow(both)).replace("172.18.0.3]", "172.18.0.9]"));
    assert_eq!(send(&mut fabric, client, &api.data(b"x")), None);
}

#[test]
fn without_the_translation_a_cluster_ip_is_an_address_of_the_world() {
    let mut fabric = Fabric::new(&cluster(""));
    let client = client_port(&fabric);
    let (asked, translated) = both(TCP, SERVER);
    assert_eq!(send(&mut fabric, client, &asked.opening()).unwrap().1, HOST);
    assert_eq!(send(&mut fabric, HOST, &translated.opening()), None);
    assert_eq!(dropped(&fabric, HOST, DropReason::SourceSpoofed), 1);
    let mut fabric = Fabric::with_services(&cluster(""));
    let client = client_port(&fabric);
    let external = Tuple::new(CLIENT, "192.0.2.9", TCP, 80);
    assert_eq!(send(&mut fabric, client, &external.opening()).unwrap().1, HOST);
}

/// Each connection costs an entry in the kernel's connection table, which belongs to the node and
/// not to the pod.
#[test]
fn a_pod_that_policy_confines_opens_few_connections_to_services() {
    let egress = "{podSelector: {matchLabels: {app: client}}, policyTypes: [Egress]}";
    for (policies, is_confined) in [(policy("shop/p", egress), true), (String::new(), false)] {
        let mut fabric = Fabric::with_services(&cluster(&policies));
        let (client, neighbour) = (client_port(&fabric), fabric.port("shop/server").1);
        let mut left = 0;
        for source_port in 1..=10_000 {
            let asked = Tuple::new(CLIENT, SERVICE_IP, UDP, 80).from_port(source_port);
            if send(&mut fabric, client, &asked.opening()).is_some() {
                left += 1;
                let translated = Tuple::new(CLIENT, FAR, UDP, 8080).from_port(source_port);
                let passed = send(&mut fabric, SERVICE, &translated.opening()).is_some();
                assert_eq!(passed, !is_confined);
            }
        }
        let excess = dropped(&fabric, client, DropReason::ServiceExcess);
        assert_eq!((left + excess, left == 10_000), (10_000, !is_confined), "{left} {excess}");
        let most = 1_100 * fabric.nodes[0].workers() as u64;
        assert!(!is_confined || left < most, "{left}");
        // The limit concerns only the client: its neighbour's connection passes.
        let asked = Tuple::new(SERVER, SERVICE_IP, UDP, 80);
        assert!(send(&mut fabric, neighbour, &asked.opening()).is_some());
        fabric.nodes[0].now += std::time::Duration::from_secs(1);
        let asked = Tuple::new(CLIENT, SERVICE_IP, UDP, 80).from_port(20_000);
        assert!(send(&mut fabric, client, &asked.opening()).is_some());
    }
}
