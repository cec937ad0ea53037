//! The path of packets, and the result if there is no route.

use manx_api::trace::Trace;

use crate::services::{AgentSettings, NODE_PORTS};

use super::*;

/// Pods `a` and `c` on two nodes, each with an address of each family.
const PODS: &str = "
{apiVersion: v1, kind: Pod, metadata: {name: a}, spec: {nodeName: n1, containers: [{name: c}]}, status: {podIPs: [{ip: 10.1.1.2}, {ip: 'fd00:1::2'}]}}
---
{apiVersion: v1, kind: Pod, metadata: {name: c}, spec: {nodeName: n2, containers: [{name: c}]}, status: {podIPs: [{ip: 10.1.2.2}, {ip: 'fd00:2::2'}]}}
---
{apiVersion: v1, kind: Pod, metadata: {name: unplaced}, status: {podIPs: [{ip: 10.1.1.3}, {ip: 'fd00:1::3'}]}}
---
{apiVersion: projectcalico.org/v3, kind: HostEndpoint, metadata: {name: h, labels: {role: node}}, spec: {node: n1, interfaceName: eth0}}
---
{apiVersion: projectcalico.org/v3, kind: GlobalNetworkPolicy, metadata: {name: closed}, spec: {selector: role == 'node', applyOnForward: true, ingress: [{action: Deny}]}}
";

const NODES: &str = "
---
{apiVersion: v1, kind: Node, metadata: {name: n1}, spec: {podCIDRs: [10.1.1.0/24, 'fd00:1::/64']}, status: {addresses: [{type: InternalIP, address: 172.18.0.2}, {type: InternalIP, address: 'fc00::2'}]}}
---
{apiVersion: v1, kind: Node, metadata: {name: n2}, spec: {podCIDRs: [10.1.2.0/24, 'fd00:2::/64']}, status: {addresses: [{type: InternalIP, address: 172.18.0.3}, {type: InternalIP, address: 'fc00::3'}]}}
";

fn pool(name: &str, cidr: &str, mode: &str) -> String {
    format!(
        "---\n{{apiVersion: projectcalico.org/v3, kind: IPPool, metadata: {{name: {name}}}, spec: {{cidr: '{cidr}', {mode}}}}}\n"
    )
}

fn asked(more: &str, from: &str, to: &str, ipv6: bool) -> Result<Trace, String> {
    let text = format!("{PODS}{more}");
    let contents = Contents::from_texts([("objects.yaml", text.as_str())]);
    let packet = PacketSpec::Protocol(6, Some(80));
    let (from, to) = (from.to_owned(), to.to_owned());
    let request =
        ExplainRequest { from, to, packet, source_port: 49152, ipv6, uplink: None, routes: true };
    Ok(explain(&request, &contents, &BTreeMap::new(), "eth0")?.story)
}

/// Returns the interface at the destination's node, or the reason why there is no route.
fn way(more: &str, from: &str, to: &str, ipv6: bool) -> String {
    let story = asked(more, from, to, ipv6).unwrap();
    assert!(story.no_route.is_none() || !(story.allowed || story.intended), "{story}");
    let arriving = story.arriving.map(|interface| interface.interface);
    story.no_route.or(arriving).unwrap_or_else(|| "nothing".to_owned())
}

#[test]
fn ipv6_behind_a_pool_that_asks_for_a_tunnel_is_not_allowed() {
    for mode in ["vxlanMode: Always", "vxlanMode: CrossSubnet"] {
        let objects = format!("{NODES}{}", pool("six", "fd00::/16", mode));
        let story = asked(&objects, "c", "a", true).unwrap();
        assert!(!story.allowed && !story.intended, "{story}");
        let json = serde_json::to_value(&story).unwrap();
        assert_eq!(json["allowed"], false);
        assert_eq!(
            json["no_route"],
            "node n2 has no route to fd00:1::2: fd00:1::/64 lies in an IPPool that asks for a tunnel, and only IPv4 travels in tunnels"
        );
        let told = story.to_string();
        assert!(told.lines().next().unwrap().ends_with(": DENIED"), "{told}");
        assert!(told.contains("\nno route: node n2 has no route to fd00:1::2: "), "{told}");
    }
    let never = format!("{NODES}{}", pool("six", "fd00::/16", "vxlanMode: Never"));
    assert_eq!(way(&never, "c", "a", true), "eth0");
}

#[test]
fn the_way_is_the_one_that_the_nodes_route_by() {
    let pools = |mode| format!("{NODES}{}", pool("four", "10.1.0.0/16", mode));
    assert_eq!(way(&pools("ipipMode: Never"), "c", "a", false), "eth0");
    assert_eq!(way(&pools("ipipMode: Always"), "c", "a", false), "its tunnels");
    assert_eq!(way(&pools("vxlanMode: Always"), "c", "a", false), "its tunnels");
    assert_eq!(way(&pools("ipipMode: Always"), "192.0.2.1", "a", false), "eth0");
    let tunnels = pools("ipipMode: Always");
    assert_eq!(way(&tunnels, "10.1.2.1", "a", false), "its tunnels", "the node's own address");
    assert_eq!(
        way(&tunnels, "c", "10.1.9.9", false),
        "node n2 has no route to 10.1.9.9: 10.1.0.0/16 is part of an IPPool and of no node's blocks"
    );
    assert_eq!(
        way(&tunnels, "10.1.9.9", "a", false),
        "node n1 has no route back to 10.1.9.9: 10.1.0.0/16 is part of an IPPool and of no node's blocks"
    );
    assert_eq!(
        way(&tunnels, "c", "10.1.2.9", false),
        "node n2 has no route to 10.1.2.9: 10.1.2.0/24 is its own, and none of its pods has the address"
    );
    assert_eq!(
        way(NODES, "c", "a", false),
        "node n2 has no route to 10.1.1.2: 10.1.1.0/24 belongs to a node and lies in no IPPool, so it is not known whether \
         it is behind a tunnel"
    );
    let halves = pool("one", "10.1.1.0/24", "ipipMode: Always")
        + &pool("two", "10.1.2.0/24", "ipipMode: Never");
    assert_eq!(
        way(&format!("{NODES}{halves}"), "c", "a", false),
        "node n2 sends to 10.1.1.2 in a tunnel, and node n1 back to 10.1.2.2 without one: neither takes what comes another way \
         than it would answer"
    );
}

#[test]
fn where_nothing_is_known_of_a_node_nothing_is_said_of_its_routes() {
    assert_eq!(way("", "c", "a", false), "eth0", "no Node");
    let pools = pool("four", "10.1.0.0/16", "ipipMode: Always");
    assert_eq!(way(&pools, "c", "a", false), "eth0", "no Node");
    let nodes = NODES.replace("podCIDRs", "unread");
    assert_eq!(way(&format!("{nodes}{pools}"), "c", "a", false), "eth0", "no block");
    let story = asked(&format!("{NODES}{pools}"), "c", "unplaced", false).unwrap();
    assert_eq!((story.allowed, story.no_route), (true, None));
}

#[test]
fn while_a_pool_is_not_valid_nobody_can_tell() {
    let objects = format!("{NODES}{}", pool("four", "10.1.0.0/16", "ipipMode: Perhaps"));
    let told = asked(&objects, "c", "a", false).unwrap_err();
    assert!(told.starts_with("the routes of node n2 are not known: not valid"), "{told}");
    assert!(told.contains("IPPool four"), "{told}");
}

#[test]
fn nothing_passes_to_or_from_the_addresses_of_a_pod_that_is_not_valid() {
    let broken = "---\n{apiVersion: v1, kind: Pod, metadata: {name: broken}, spec: {nodeName: n1, hostNetwork: 5}, \
                  status: {podIP: 10.1.1.9, podIPs: [{ip: 10.1.1.9}, {ip: 'fd00:1::9'}]}}\n";
    let objects = format!("{broken}{NODES}{}", pool("four", "10.1.0.0/16", "ipipMode: Always"));
    for more in [broken, &objects] {
        for (other, closed, ipv6) in [
            ("192.0.2.1", "10.1.1.9", false),
            ("2001:db8::1", "fd00:1::9", true),
            ("10.1.1.2", "10.1.1.9", false),
            ("c", "10.1.1.9", false),
        ] {
            for (from, to) in [(other, closed), (closed, other)] {
                let story = asked(more, from, to, ipv6).unwrap();
                assert!(!story.allowed && !story.intended, "{story}");
                assert!(story.to_string().lines().next().unwrap().ends_with(": DENIED"), "{story}");
            }
        }
        assert!(asked(more, "192.0.2.1", "198.51.100.1", false).unwrap().allowed);
    }
    let story = asked(&objects, "node/n1", "10.1.1.9", false).unwrap();
    assert!(!story.allowed && story.ingress.why == "no such endpoint", "{story}");
    let told = asked(broken, "c", "broken", false).unwrap_err();
    assert_eq!(told, "Pod default/broken is not valid, so it is no endpoint and nothing passes");
}

/// Returns the connections that result from a connection if kube-proxy translates it, in the form of requests: source,
/// destination and port.
fn connections(services: &str, from: &str, to: &str, port: u16) -> String {
    let objects = format!("{}{services}", pool("four", "10.1.0.0/16", "ipipMode: Always"));
    connections_by(Translates::KubeProxy, &objects, (from, to, port))
}

/// Like [`connections`], if Manx translates.
fn by_manx(objects: &str, from: &str, to: &str, port: u16) -> String {
    let external_ips = vec!["203.0.113.0/28".parse().unwrap()];
    let settings = AgentSettings { node_ports: NODE_PORTS, external_ips };
    connections_by(Translates::Manx(settings), objects, (from, to, port))
}

fn connections_by(
    translates: Translates,
    objects: &str,
    (from, to, port): (&str, &str, u16),
) -> String {
    let text = format!(
        "{PODS}{NODES}{}{objects}",
        "---\n{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {name: web-1, labels: {kubernetes.io/service-name: web}}, addressType: IPv4, \
         endpoints: [{addresses: [10.1.1.2], nodeName: n1}, {addresses: [10.1.2.2], nodeName: n2}], ports: [{port: 8080}]}\n"
    );
    let contents = Contents::from_texts([("objects.yaml", text.as_str())]);
    let assumed = BTreeMap::new();
    let explainer = Explainer::new(&contents, &assumed, "eth0").translated_by(translates);
    let found = explainer.connections(from, to, PacketSpec::Protocol(6, Some(port)));
    let asked = |it: &Asked| {
        let PacketSpec::Protocol(6, Some(port)) = it.packet else { panic!("{it:?}") };
        let visitor = it.brought_by.as_ref().map(|it| format!(" by {it}")).unwrap_or_default();
        let dropped = if it.dropped.is_some() { " (dropped)" } else { "" };
        format!("{}{visitor} to {} {port}{dropped}", it.from, it.to)
    };
    let connections = match found {
        Ok(found) => found,
        Err(error) => return error,
    };
    let all: Vec<String> = connections.asked.iter().map(asked).collect();
    let why = connections.asked.into_iter().filter_map(|it| it.dropped);
    let notes = connections.notes.into_iter().chain(why);
    let said: Vec<String> = [all.join(", ")].into_iter().chain(notes).collect();
    said.join("; ")
}

#[test]
fn a_published_port_is_two_steps_and_the_second_is_of_whom_the_node_masquerades() {
    let service = |traffic: &str| {
        format!(
            "---\n{{apiVersion: v1, kind: Service, metadata: {{name: web}}, spec: {{clusterIP: 10.96.0.7, externalIPs: [203.0.113.1], \
             externalTrafficPolicy: {traffic}, ports: [{{port: 80, targetPort: 8080, nodePort: 30080}}]}}}}\n"
        )
    };
    let (cluster, local) = (service("Cluster"), service("Local"));
    let lines: Vec<String> = [
        (&cluster, "default/a", "10.96.0.7", 80),
        (&cluster, "default/a", "node/n1", 30080),
        (&cluster, "default/a", "172.18.0.3", 30080),
        (&cluster, "default/a", "203.0.113.1", 80),
        (&cluster, "default/a", "203.0.113.1", 81),
        (&cluster, "default/a", "node/n1", 30081),
        (&cluster, "192.0.2.1", "node/n1", 30080),
        (&cluster, "192.0.2.1", "203.0.113.1", 80),
        (&cluster, "node/n1", "node/n1", 30080),
        (&cluster, "node/n1", "node/n2", 30080),
        (&local, "default/a", "node/n1", 30080),
        (&local, "192.0.2.1", "node/n2", 30080),
        (&local, "192.0.2.1", "203.0.113.1", 80),
    ]
    .into_iter()
    .map(|(services, from, to, port)| connections(services, from, to, port))
    .collect();
    insta::assert_snapshot!(lines.join("\n"), @r"
    default/a to default/a 8080, default/a to default/c 8080; 10.96.0.7 is an address of Service default/web: judged at its endpoints; port 80 of Service default/web is port 8080 of its endpoints
    default/a to node/n1 30080, 10.1.1.0 to default/a 8080, 10.1.1.0 to default/c 8080; port 80 of Service default/web is port 8080 of its endpoints; node/n1 leads to Service default/web: node n1 masquerades the client as 10.1.1.0
    default/a to 172.18.0.3 30080, 10.1.2.0 to default/a 8080, 10.1.2.0 to default/c 8080; port 80 of Service default/web is port 8080 of its endpoints; 172.18.0.3 leads to Service default/web: node n2 masquerades the client as 10.1.2.0
    default/a to 203.0.113.1 80, 10.1.1.0 to default/a 8080, 10.1.1.0 to default/c 8080; port 80 of Service default/web is port 8080 of its endpoints; 203.0.113.1 leads to Service default/web: node n1 masquerades the client as 10.1.1.0
    default/a to 203.0.113.1 81
    default/a to node/n1 30081
    10.1.1.0 to default/a 8080, 10.1.1.0 to default/c 8080; port 80 of Service default/web is port 8080 of its endpoints; node/n1 leads to Service default/web: node n1 masquerades the client as 10.1.1.0
    10.1.1.0 to default/a 8080, 10.1.2.0 to default/c 8080; port 80 of Service default/web is port 8080 of its endpoints; 203.0.113.1 leads to Service default/web: node n1 masquerades the client as 10.1.1.0; 203.0.113.1 leads to Service default/web: node n2 masquerades the client as 10.1.2.0
    node/n1 to default/a 8080, node/n1 to default/c 8080; port 80 of Service default/web is port 8080 of its endpoints
    10.1.2.0 to default/a 8080, 10.1.2.0 to default/c 8080; port 80 of Service default/web is port 8080 of its endpoints; node/n2 leads to Service default/web: node n2 masquerades the client as 10.1.2.0
    default/a to node/n1 30080 (dropped); port 80 of Service default/web is port 8080 of its endpoints; node/n1 leads to Service default/web, whose externalTrafficPolicy is Local: the client's address is kept; what comes back from the node with a pod's address is taken for forged
    192.0.2.1 to default/c 8080; port 80 of Service default/web is port 8080 of its endpoints; node/n2 leads to Service default/web, whose externalTrafficPolicy is Local: the client's address is kept
    192.0.2.1 to default/a 8080, 192.0.2.1 to default/c 8080; port 80 of Service default/web is port 8080 of its endpoints; 203.0.113.1 leads to Service default/web, whose externalTrafficPolicy is Local: the client's address is kept
    ");
}

/// Returns a pool with these fields (`mode`), and these services.
fn with_pool(mode: &str, services: &str) -> String {
    pool("four", "10.1.0.0/16", mode) + services
}

fn published(traffic: &str, more: &str) -> String {
    format!(
        "---\n{{apiVersion: v1, kind: Service, metadata: {{name: web}}, spec: {{type: LoadBalancer, clusterIP: 10.96.0.7, \
         externalIPs: [203.0.113.1, 203.0.113.99], externalTrafficPolicy: {traffic}, {more} \
         ports: [{{port: 80, targetPort: 8080, nodePort: 30080}}, {{port: 90, targetPort: 9090, nodePort: 22}}]}}, \
         status: {{loadBalancer: {{ingress: [{{ip: 198.51.100.1}}]}}}}}}\n"
    )
}

#[test]
fn where_manx_translates_backends_see_the_client_and_policy_sees_both() {
    let cluster = published("Cluster", "");
    let tunnels = with_pool("ipipMode: Always, natOutgoing: true", &cluster);
    let lines = [
        ("default/a", "node/n1", 30080),
        ("default/a", "198.51.100.1", 80),
        ("default/a", "203.0.113.1", 80),
        ("default/a", "172.18.0.3", 30080),
        ("192.0.2.1", "node/n1", 30080),
        ("192.0.2.1", "198.51.100.1", 80),
        ("outside", "203.0.113.1", 80),
        ("node/n1", "node/n1", 30080),
        ("node/n1", "10.96.0.7", 80),
        ("node/n1", "node/n2", 30080),
    ]
    .map(|(from, to, port)| by_manx(&tunnels, from, to, port));
    insta::assert_snapshot!(lines.join("\n"), @r"
    default/a to default/a 8080, default/a to default/c 8080; node/n1 leads to Service default/web
    default/a to default/a 8080, default/a to default/c 8080; 198.51.100.1 leads to Service default/web
    default/a to default/a 8080, default/a to default/c 8080; 203.0.113.1 leads to Service default/web
    default/a to 172.18.0.3 30080, 172.18.0.2 by n2 to default/a 8080, 172.18.0.2 to default/c 8080; node n1 sends what the pod asks node n2 with its own address 172.18.0.2 (natOutgoing); 172.18.0.3 leads to Service default/web
    192.0.2.1 to default/a 8080, 192.0.2.1 by n1 to default/c 8080; node/n1 leads to Service default/web
    192.0.2.1 to default/a 8080, 192.0.2.1 to default/c 8080; 198.51.100.1 leads to Service default/web
    outside to default/a 8080, outside to default/c 8080; 203.0.113.1 leads to Service default/web
    node/n1 to default/a 8080, 10.1.1.1 to default/c 8080; node/n1 leads to Service default/web; default/c sees the client as node n1 (10.1.1.1)
    node/n1 to default/a 8080, 10.1.1.1 to default/c 8080; 10.96.0.7 is an address of Service default/web: judged at its endpoints; port 80 of Service default/web is port 8080 of its endpoints
    node/n1 by n2 to default/a 8080, node/n1 to default/c 8080; node/n2 leads to Service default/web
    ");
}

#[test]
fn where_no_tunnel_leads_to_a_backend_it_sees_the_node() {
    let cluster = published("Cluster", "");
    let plain = with_pool("ipipMode: Never, natOutgoing: true", &cluster);
    let lines = [
        ("default/a", "node/n1", 30080),
        ("192.0.2.1", "node/n1", 30080),
        ("192.0.2.1", "198.51.100.1", 80),
        ("node/n1", "node/n1", 30080),
        ("node/n1", "10.96.0.7", 80),
    ]
    .map(|(from, to, port)| by_manx(&plain, from, to, port));
    insta::assert_snapshot!(lines.join("\n"), @r"
    default/a to default/a 8080, default/a to default/c 8080; node/n1 leads to Service default/web
    192.0.2.1 to default/a 8080, 172.18.0.2 to default/c 8080; node/n1 leads to Service default/web; default/c sees the client as node n1 (172.18.0.2)
    192.0.2.1 to default/a 8080, 192.0.2.1 to default/c 8080; 198.51.100.1 leads to Service default/web; clients who come in by another node are seen as that node, such as n2 (172.18.0.3): no tunnel leads to 10.1.1.2; clients who come in by another node are seen as that node, such as n1 (172.18.0.2): no tunnel leads to 10.1.2.2
    node/n1 to default/a 8080, node/n1 to default/c 8080; node/n1 leads to Service default/web
    node/n1 to default/a 8080, node/n1 to default/c 8080; 10.96.0.7 is an address of Service default/web: judged at its endpoints; port 80 of Service default/web is port 8080 of its endpoints
    ");
}

/// Without `natOutgoing`, the other node sees the pod's address.
#[test]
fn a_pod_asks_another_node_with_its_own_address_where_no_pool_asks_for_the_nodes() {
    let cluster = published("Cluster", "");
    let lines = ["ipipMode: Always", "ipipMode: Never"]
        .map(|mode| by_manx(&with_pool(mode, &cluster), "default/a", "node/n2", 30080));
    insta::assert_snapshot!(lines.join("\n"), @r"
    default/a to node/n2 30080 (dropped); dropped (source-spoofed): it comes to the other node with a pod's address, and not in a tunnel
    default/a to node/n2 30080, 172.18.0.3 to default/a 8080, default/a to default/c 8080; node/n2 leads to Service default/web; default/a sees the client as node n2 (172.18.0.3)
    ");
}

#[test]
fn the_policy_local_is_for_clients_from_outside() {
    let local = with_pool("ipipMode: Always, natOutgoing: true", &published("Local", ""));
    let lines = [
        ("default/a", "198.51.100.1", 80),
        ("node/n1", "203.0.113.1", 80),
        ("default/a", "node/n1", 30080),
        ("192.0.2.1", "node/n2", 30080),
        ("192.0.2.1", "198.51.100.1", 80),
    ]
    .map(|(from, to, port)| by_manx(&local, from, to, port));
    insta::assert_snapshot!(lines.join("\n"), @r"
    default/a to default/a 8080, default/a to default/c 8080; 198.51.100.1 leads to Service default/web
    node/n1 to default/a 8080, 10.1.1.1 to default/c 8080; 203.0.113.1 leads to Service default/web; default/c sees the client as node n1 (10.1.1.1)
    default/a to default/a 8080; node/n1 leads to Service default/web; default/c is left out for clients of node n1: it is on another node, and the traffic policy is Local
    192.0.2.1 to default/c 8080; node/n2 leads to Service default/web; default/a is left out for clients of node n2: it is on another node, and the traffic policy is Local
    192.0.2.1 to default/a 8080, 192.0.2.1 to default/c 8080; 198.51.100.1 leads to Service default/web
    ");
}

#[test]
fn what_a_node_drops_or_refuses_is_denied_with_its_reason() {
    let tunnels = |service: &str| with_pool("ipipMode: Always, natOutgoing: true", service);
    let ranges = "loadBalancerSourceRanges: [192.0.2.0/24, 10.1.1.2/32],";
    let ranged = tunnels(&published("Cluster", ranges));
    let far = "---\n{apiVersion: v1, kind: Service, metadata: {name: far}, spec: {type: NodePort, clusterIP: 10.96.0.8, externalTrafficPolicy: Local, \
         ports: [{port: 80, nodePort: 30081}]}}\n\
         ---\n{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {name: far-1, labels: {kubernetes.io/service-name: far}}, addressType: IPv4, \
         endpoints: [{addresses: [10.1.2.2], nodeName: n2}], ports: [{port: 80}]}\n";
    let all = tunnels(&(published("Cluster", "") + far));
    let lines = [
        (&ranged, "192.0.2.1", "198.51.100.1", 80),
        (&ranged, "192.0.3.1", "198.51.100.1", 80),
        (&ranged, "192.0.3.1", "203.0.113.1", 80),
        (&ranged, "default/a", "198.51.100.1", 80),
        (&ranged, "default/c", "198.51.100.1", 80),
        (&all, "192.0.2.1", "node/n1", 30081),
        (&all, "192.0.2.1", "node/n2", 30081),
        (&all, "default/a", "svc/default/web", 81),
        (&all, "default/a", "10.96.0.7", 81),
        (&all, "default/a", "198.51.100.1", 81),
        (&all, "default/a", "203.0.113.99", 80),
        (&all, "default/a", "node/n1", 22),
        (&all, "default/a", "node/n1", 30082),
    ]
    .map(|(objects, from, to, port)| by_manx(objects, from, to, port));
    insta::assert_snapshot!(lines.join("\n"), @r"
    192.0.2.1 to default/a 8080, 192.0.2.1 to default/c 8080; 198.51.100.1 leads to Service default/web
    192.0.3.1 to 198.51.100.1 80 (dropped); 198.51.100.1 leads to Service default/web; dropped (service-source-ranges): 192.0.3.1 is in none of loadBalancerSourceRanges of Service default/web
    192.0.3.1 to default/a 8080, 192.0.3.1 to default/c 8080; 203.0.113.1 leads to Service default/web
    default/a to default/a 8080, default/a to default/c 8080; 198.51.100.1 leads to Service default/web
    default/c to 198.51.100.1 80 (dropped); 198.51.100.1 leads to Service default/web; dropped (service-source-ranges): 10.1.2.2 is in none of loadBalancerSourceRanges of Service default/web
    192.0.2.1 to node/n1 30081 (dropped); node/n1 leads to Service default/far; dropped (service-without-backend): Service default/far has no endpoint for clients of node n1; default/c is left out for clients of node n1: it is on another node, and the traffic policy is Local
    192.0.2.1 to default/c 80; node/n2 leads to Service default/far
    default/a to default/a 81 (dropped), default/a to default/c 81 (dropped); refused (service-without-port): Service default/web has no port TCP 81; found TCP 80, TCP 90; refused (service-without-port): Service default/web has no port TCP 81; found TCP 80, TCP 90
    default/a to default/a 81 (dropped), default/a to default/c 81 (dropped); refused (service-without-port): Service default/web has no port TCP 81; found TCP 80, TCP 90; refused (service-without-port): Service default/web has no port TCP 81; found TCP 80, TCP 90
    default/a to 198.51.100.1 81 (dropped); refused (service-without-port): Service default/web has no port TCP 81; found TCP 80, TCP 90
    default/a to 203.0.113.99 80; no node translates 203.0.113.99, an address of Service default/web: it is one of externalIPs, and lies in no net of --external-ips (MANX_EXTERNAL_IPS)
    default/a to node/n1 22; Service default/web: its nodePort 22 is not translated, because it lies outside of the nodes' range for services: expected one of --node-ports (MANX_NODE_PORTS)
    default/a to node/n1 30082 (dropped); refused (unknown-port): the nodes' ports 30000 to 32767 are services' (--node-ports), and none has this one at 172.18.0.2 of node n1
    ");
}

/// Each endpoint's hint names the other node.
#[test]
fn an_endpoint_that_hints_mean_for_other_nodes_is_asked_about_at_one_of_these() {
    let crossed = "---\n{apiVersion: v1, kind: Service, metadata: {name: x}, spec: {type: LoadBalancer, clusterIP: 10.96.0.9, ports: [{port: 80}]}, \
         status: {loadBalancer: {ingress: [{ip: 198.51.100.9}]}}}\n\
         ---\n{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {name: x-1, labels: {kubernetes.io/service-name: x}}, addressType: IPv4, \
         endpoints: [{addresses: [10.1.1.2], nodeName: n1, hints: {forNodes: [{name: n2}]}}, \
         {addresses: [10.1.2.2], nodeName: n2, hints: {forNodes: [{name: n1}]}}], ports: [{port: 80}]}\n";
    let objects = with_pool("ipipMode: Always, natOutgoing: true", crossed);
    let told = by_manx(&objects, "192.0.2.1", "198.51.100.9", 80);
    assert_eq!(
        told,
        "192.0.2.1 by n1 to default/c 80, 192.0.2.1 by n2 to default/a 80; 198.51.100.9 leads to Service default/x"
    );
}

#[test]
fn a_host_port_leads_to_its_pod() {
    let pod = "---\n{apiVersion: v1, kind: Pod, metadata: {name: h}, spec: {nodeName: n2, containers: [{name: c, ports: [{containerPort: 53, hostPort: 8053}]}]}, \
         status: {podIPs: [{ip: 10.1.2.9}]}}\n";
    let objects = with_pool("ipipMode: Always, natOutgoing: true", pod);
    let lines = [
        ("192.0.2.1", "node/n2", 8053),
        ("default/c", "node/n2", 8053),
        ("default/a", "172.18.0.3", 8053),
        ("192.0.2.1", "node/n1", 8053),
    ]
    .map(|(from, to, port)| by_manx(&objects, from, to, port));
    insta::assert_snapshot!(lines.join("\n"), @r"
    192.0.2.1 to default/h 53; node/n2 leads to Pod default/h, whose hostPort it is
    default/c to default/h 53; node/n2 leads to Pod default/h, whose hostPort it is
    default/a to 172.18.0.3 8053, 172.18.0.2 to default/h 53; node n1 sends what the pod asks node n2 with its own address 172.18.0.2 (natOutgoing); 172.18.0.3 leads to Pod default/h, whose hostPort it is
    192.0.2.1 to node/n1 8053
    ");
}

#[test]
fn a_service_that_is_only_a_name_says_what_to_ask_instead() {
    let named = |name: &str| {
        let service = format!(
            "---\n{{apiVersion: v1, kind: Service, metadata: {{name: ext, namespace: hub}}, spec: {{type: ExternalName, externalName: {name}}}}}\n"
        );
        connections(&service, "default/a", "svc/hub/ext", 443)
    };
    insta::assert_snapshot!(named("hub.example.org"), @"Service hub/ext is of type ExternalName: DNS answers with the name hub.example.org, and there is no address that policy sees; ask with an address that the name has, and write the rule with an ipBlock");
    insta::assert_snapshot!(named("web.default.svc.cluster.local"), @"Service hub/ext is of type ExternalName: DNS answers with the name web.default.svc.cluster.local, and there is no address that policy sees; ask with svc/default/web, which it names");
}

#[test]
fn many_questions_are_answered_with_one_import_and_one_topology_of_each_node() {
    let text = format!("{PODS}{NODES}{}", pool("four", "10.1.0.0/16", "ipipMode: Always"));
    let contents = Contents::from_texts([("objects.yaml", text.as_str())]);
    let assumed = BTreeMap::new();
    let explainer = Explainer::new(&contents, &assumed, "eth0");
    let request = |from: &str, to: &str, ipv6| ExplainRequest {
        from: from.to_owned(),
        to: to.to_owned(),
        packet: PacketSpec::Protocol(6, Some(80)),
        source_port: 49152,
        ipv6,
        uplink: None,
        routes: true,
    };
    let seen = ["n1", "n2"].map(|node| explainer.routes.topology(node).unwrap().unwrap());
    for (from, to) in [("a", "c"), ("c", "a"), ("a", "node/n2"), ("192.0.2.1", "c")] {
        explainer.explain(&request(from, to, false)).unwrap();
    }
    explainer.connections("192.0.2.1", "c", PacketSpec::Protocol(6, Some(80))).unwrap();
    for (node, seen) in ["n1", "n2"].iter().zip(seen) {
        let known = explainer.routes.topology(node).unwrap().unwrap();
        assert!(Rc::ptr_eq(&known, &seen), "{node}");
        // The three references are `known`, `seen` and the cache.
        assert_eq!(Rc::strong_count(&known), 3, "{node}");
    }
}
