//! Generated clusters with services, as text. The sets of names, addresses and ports are small, so
//! that they often meet.

use proptest::prelude::*;
use proptest::sample::{select, subsequence};

/// The nodes. The last one has no Node object, and the third one no zone.
pub const NODES: [&str; 4] = ["n1", "n2", "n3", "n4"];
/// Every address that a service may name, and one that no service names.
pub const ADDRESSES: [&str; 14] = [
    "10.96.0.1",
    "10.96.0.2",
    "fd02::1",
    "198.51.100.1",
    "198.51.100.2",
    "fd01::1",
    "198.51.100.9",
    "203.0.113.1",
    "203.0.113.9",
    // Addresses of pods or nodes.
    "10.0.1.9",
    "10.8.0.9",
    "172.18.0.1",
    "10.0.1.1",
    "10.0.1.5",
];
/// The networks in which `externalIPs` count. They include some addresses of other kinds.
pub const EXTERNAL: [&str; 5] =
    ["203.0.113.0/29", "198.51.100.1/32", "fd01::/64", "10.96.0.2/32", "10.0.1.0/24"];
/// The blocks, the pool, and the nodes' addresses.
pub const OF_PODS_OR_NODES: [&str; 5] =
    ["10.0.1.0/24", "10.0.2.0/24", "10.8.0.0/16", "172.18.0.1/32", "172.18.0.2/32"];
/// Addresses of no single host.
pub const SPECIAL_IPV4: [&str; 7] =
    ["127.0.0.1", "169.254.1.1", "224.0.0.1", "0.0.0.0", "0.1.2.3", "240.0.0.1", "255.255.255.255"];
const SPECIAL_IPV6: [&str; 4] = ["::1", "fe80::1", "ff0e::1", "::"];
pub const PROTOCOLS: [u8; 3] = [6, 17, 132];
pub const PORTS: [u16; 3] = [80, 81, 82];

/// The objects that every cluster has, without the Node `n1`.
const OBJECTS: &str = "
{apiVersion: v1, kind: Node, metadata: {name: n2, labels: {topology.kubernetes.io/zone: b}}, spec: {podCIDR: 10.0.2.0/24}, status: {addresses: [{type: InternalIP, address: 172.18.0.2}]}}
---
{apiVersion: v1, kind: Node, metadata: {name: n3}}
---
{apiVersion: projectcalico.org/v3, kind: IPPool, metadata: {name: pool}, spec: {cidr: 10.8.0.0/16}}
";
const NAMESPACES: [&str; 2] = ["shop", "lab"];
const SERVICES: [&str; 2] = ["web", "db"];

/// A cluster: nodes, a pool, and the services and slices of four names.
pub fn cluster() -> impl Strategy<Value = String> {
    let names = NAMESPACES.map(|namespace| SERVICES.map(|name| (namespace, name)));
    let services: Vec<_> =
        names.concat().into_iter().map(|(in_, name)| of_name(in_, name)).collect();
    let broken = prop::bool::weighted(0.2).prop_map(|is_broken| match is_broken {
        true => slice_text("shop", "broken", "web", "IPv4", "", "{port: 0}"),
        false => String::new(),
    });
    let zones = vec![
        "",
        "topology.kubernetes.io/zone: a",
        "topology.kubernetes.io/zone: a",
        "topology.kubernetes.io/zone: b",
    ];
    (services, broken, select(zones)).prop_map(|(services, broken, zone)| {
        format!(
            "{OBJECTS}---\n{{apiVersion: v1, kind: Node, metadata: {{name: n1, labels: {{{zone}}}}}, spec: {{podCIDR: 10.0.1.0/24}}, \
             status: {{addresses: [{{type: InternalIP, address: 172.18.0.1}}]}}}}\n---\n{}{broken}",
            services.concat()
        )
    })
}

/// A service, which may be missing, and its slices.
fn of_name(namespace: &'static str, name: &'static str) -> impl Strategy<Value = String> {
    let service = prop::option::weighted(0.8, service(namespace, name));
    let slices = hints().prop_flat_map(|hints| prop::collection::vec(slice(hints), 0..4));
    (service, slices).prop_map(move |(service, slices)| {
        let mut text = service.unwrap_or_default();
        for (index, (family, endpoints, ports)) in slices.into_iter().enumerate() {
            let of = format!("{name}-{index}");
            text += &slice_text(namespace, &of, name, family, &endpoints, &ports);
        }
        text
    })
}

fn service(namespace: &'static str, name: &'static str) -> impl Strategy<Value = String> {
    let created = select(
        &[
            "",
            "creationTimestamp: '2026-01-01T00:00:01Z', ",
            "creationTimestamp: '2026-01-01T00:00:02Z', ",
            "creationTimestamp: '2026-01-01T00:00:03Z', ",
        ][..],
    );
    let annotations = prop_oneof![
        2 => Just(""),
        1 => Just("lb.projectcalico.org/external-traffic-strategy: maglev"),
    ];
    let labels = prop_oneof![
        12 => Just(""),
        1 => Just("service.kubernetes.io/service-proxy-name: other"),
        1 => Just("service.kubernetes.io/headless: ''"),
    ];
    let kinds = prop_oneof![
        3 => Just("ClusterIP"),
        1 => Just("NodePort"),
        5 => Just("LoadBalancer"),
        1 => Just("ExternalName, externalName: example.com"),
    ];
    let cluster_ips = prop_oneof![
        12 => select(&["10.96.0.1", "10.96.0.2", "10.96.0.1, 'fd02::1'", "'fd02::1'"][..]),
        // Addresses of pods or nodes.
        3 => select(&["10.0.1.9", "10.8.0.9", "172.18.0.1", "10.0.1.1"][..]),
        1 => Just("None"),
        1 => Just("''"),
    ];
    let vips = [
        "{ip: 198.51.100.1}",
        "{ip: 198.51.100.2, ipMode: Proxy}",
        "{ip: 198.51.100.2, ipMode: VIP}",
        "{ip: 'fd01::1', ipMode: VIP}",
        "{ip: 10.96.0.1}",
        "{ip: 10.0.1.5}",
    ];
    let vips = subsequence(vips.to_vec(), 0..3);
    let external = [
        "203.0.113.1",
        "203.0.113.1",
        // This address is outside the networks.
        "203.0.113.9",
        "198.51.100.2",
        "'fd01::1'",
        "198.51.100.1",
        "10.96.0.2",
        "10.0.1.5",
    ];
    let external = prop_oneof![2 => Just(Vec::new()), 3 => subsequence(external.to_vec(), 1..3)];
    let traffic = (
        select(&["Cluster", "Cluster", "Local"][..]),
        select(&["Cluster", "Local"][..]),
        select(
            &[
                "None",
                "ClientIP",
                "ClientIP, sessionAffinityConfig: {clientIP: {timeoutSeconds: 60}}",
            ][..],
        ),
    );
    let labels = (labels, annotations);
    (created, labels, kinds, cluster_ips, (vips, external), traffic, service_ports()).prop_map(
        move |(created, (labels, annotations), kind, ips, (vips, external_ips), (internal, external, affinity), ports)| {
            let cluster_ip = ips.split(", ").next().unwrap_or_default();
            // The API server sets this policy only if it has an effect.
            let external = match kind {
                "ClusterIP" if !external_ips.is_empty() => format!("externalTrafficPolicy: {external}, "),
                "NodePort" | "LoadBalancer" => format!("externalTrafficPolicy: {external}, "),
                _ => String::new(),
            };
            format!(
                "{{apiVersion: v1, kind: Service, metadata: {{name: {name}, namespace: {namespace}, {created}\
                 labels: {{{labels}}}, annotations: {{{annotations}}}}}, \
                 spec: {{type: {kind}, clusterIP: {cluster_ip}, clusterIPs: [{ips}], externalIPs: [{}], \
                 internalTrafficPolicy: {internal}, {external}sessionAffinity: {affinity}, ports: [{ports}]}}, \
                 status: {{loadBalancer: {{ingress: [{}]}}}}}}\n---\n",
                external_ips.join(", "),
                vips.join(", ")
            )
        },
    )
}

/// Ports: at most one of each protocol and number, and names if there are several.
fn service_ports() -> impl Strategy<Value = String> {
    let named = [
        "{name: a, port: 80}",
        "{name: b, port: 80, protocol: UDP}",
        "{name: c, port: 80, protocol: SCTP}",
        "{name: b, port: 81}",
        "{name: a, port: 81, protocol: UDP}",
    ];
    let several = subsequence(named.to_vec(), 1..=4).prop_map(|ports| ports.join(", "));
    prop_oneof![1 => Just("{port: 80}".to_owned()), 4 => several]
}

/// Family, endpoints and ports of a slice.
fn slice(hints: [&'static str; 3]) -> impl Strategy<Value = (&'static str, String, String)> {
    let ports = [
        "{name: a, port: 8080}",
        "{name: a, port: 8081}",
        "{name: a, port: 8080, protocol: UDP}",
        "{name: b, port: 8080}",
        "{name: b, port: 8082, protocol: UDP}",
        "{name: c, port: 8080, protocol: SCTP}",
        "{port: 8080}",
        "{name: a}",
    ];
    let ports = subsequence(ports.to_vec(), 4..=7).prop_map(|ports| ports.join(", "));
    let family = prop_oneof![4 => Just(true), 1 => Just(false)];
    let endpoints =
        family.prop_flat_map(|v4| (Just(v4), prop::collection::vec(endpoint(v4), 0..5)));
    (endpoints, ports).prop_map(move |((v4, endpoints), ports)| {
        let endpoints: Vec<_> = endpoints
            .into_iter()
            .map(|(endpoint, hint)| format!("{endpoint}{}}}", hints[hint]))
            .collect();
        (if v4 { "IPv4" } else { "IPv6" }, endpoints.join(", "), ports)
    })
}

/// The hints of a service's endpoints. Usually all endpoints have hints.
fn hints() -> impl Strategy<Value = [&'static str; 3]> {
    const NONE: &str = "";
    const NODES: [&str; 3] = [
        ", hints: {forNodes: [{name: n1}], forZones: [{name: a}]}",
        ", hints: {forNodes: [{name: n2}, {name: n1}], forZones: [{name: b}]}",
        ", hints: {forNodes: [{name: n2}, {name: n3}]}",
    ];
    const ZONES: [&str; 3] = [
        ", hints: {forZones: [{name: a}]}",
        ", hints: {forZones: [{name: b}, {name: a}]}",
        ", hints: {forZones: [{name: b}], forNodes: []}",
    ];
    const MIXED: [&str; 3] = [NODES[0], ZONES[1], ZONES[0]];
    const NO_NODE: [&str; 3] = [NODES[0], NONE, NODES[1]];
    const NO_ZONE: [&str; 3] = [ZONES[0], NONE, ZONES[0]];
    let zones = [ZONES, ZONES, ZONES, ZONES, ZONES, NO_ZONE, NO_ZONE];
    let all = [&[NODES, NODES, NODES, [NONE; 3], MIXED, NO_NODE][..], &zones].concat();
    select(all)
}

/// An endpoint without the end of its text, and the number of its hint.
fn endpoint(v4: bool) -> impl Strategy<Value = (String, usize)> {
    let (ordinary, special) = match v4 {
        true => (["10.0.1.5", "10.0.1.6", "10.0.2.5", "192.0.2.1"], &SPECIAL_IPV4[..]),
        false => (["fd00::5", "fd00::6", "fd00::7", "2001:db8::1"], &SPECIAL_IPV6[..]),
    };
    let address = prop_oneof![14 => select(ordinary.to_vec()), 1 => select(special)];
    let conditions = prop_oneof![
        8 => Just(""),
        1 => Just(", conditions: {ready: true, terminating: true, serving: false}"),
        2 => Just(", conditions: {ready: false}"),
        4 => Just(", conditions: {ready: false, serving: true, terminating: true}"),
        1 => Just(", conditions: {ready: false, serving: true}"),
        1 => Just(", conditions: {ready: false, terminating: true}"),
    ];
    let node = select(&["", ", nodeName: n1", ", nodeName: n2", ", nodeName: n4"][..]);
    (address, conditions, node, 0_usize..3).prop_map(|(address, conditions, node, hint)| {
        (format!("{{addresses: ['{address}']{conditions}{node}"), hint)
    })
}

fn slice_text(
    namespace: &str,
    name: &str,
    service: &str,
    family: &str,
    endpoints: &str,
    ports: &str,
) -> String {
    format!(
        "{{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {{name: {name}, namespace: {namespace}, \
         labels: {{kubernetes.io/service-name: {service}}}}}, addressType: {family}, endpoints: [{endpoints}], \
         ports: [{ports}]}}\n---\n"
    )
}
