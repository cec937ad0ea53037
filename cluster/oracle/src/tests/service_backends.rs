//! The backends of services.

use std::fmt::Write as _;

use super::cluster::{Cluster, SCTP, TCP, UDP, ip};
use crate::ServiceBackends::{Dropped, NotAService, OneOf, Refused};
use crate::{ServiceBackends, ServiceOracle};

const CLUSTER_IP: &str = "10.96.0.1";
const VIP: &str = "198.51.100.1";
const NODES: &str = "
{apiVersion: v1, kind: Node, metadata: {name: n1, labels: {topology.kubernetes.io/zone: a}}, spec: {podCIDR: 10.0.1.0/24}, status: {addresses: [{type: InternalIP, address: 172.18.0.1}]}}
---
{apiVersion: v1, kind: Node, metadata: {name: n2, labels: {topology.kubernetes.io/zone: b}}, spec: {podCIDR: 10.0.2.0/24}}
---
{apiVersion: v1, kind: Node, metadata: {name: n3}, spec: {podCIDR: 10.0.3.0/24}}
";
const IPV4: &str = "clusterIPs: [10.96.0.1]";
const PORT: &str = "ports: [{port: 80}]";

/// Returns a service of the namespace `shop`. `spec` contains everything except its ports.
fn service(name: &str, metadata: &str, spec: &str, ports: &str) -> String {
    format!(
        "{{apiVersion: v1, kind: Service, metadata: {{name: {name}, namespace: shop{metadata}}}, spec: {{{spec}, {ports}}}, \
         status: {{loadBalancer: {{ingress: [{{ip: {VIP}}}, {{ip: 198.51.100.2, ipMode: Proxy}}, {{ip: 'fd01::1'}}]}}}}}}\n---\n"
    )
}

/// Returns a slice of the service `web` with these endpoints: address and other fields.
fn slice(name: &str, ports: &str, endpoints: &[(&str, &str)]) -> String {
    let mut text = String::new();
    for (address, rest) in endpoints {
        let _ = write!(text, "{{addresses: ['{address}']{rest}}}, ");
    }
    let family = if text.contains("::") { "IPv6" } else { "IPv4" };
    format!(
        "{{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {{name: {name}, namespace: shop, \
         labels: {{kubernetes.io/service-name: web}}}}, addressType: {family}, endpoints: [{text}], {ports}}}\n---\n"
    )
}

fn judge(text: &str, node: &str, address: &str, protocol: u8, port: u16) -> ServiceBackends {
    let cluster = Cluster::of(&[&format!("{NODES}\n---\n{text}")]);
    ServiceOracle::new(&cluster.0).backends((node, false), ip(address), protocol, port)
}

fn one_of(backends: &[(&str, u16)]) -> ServiceBackends {
    let backends = backends.iter().map(|(address, port)| (ip(address), *port)).collect();
    OneOf { backends, affinity: None }
}

/// Returns the backends at the cluster IP of a service with one port, for a client on a node.
fn at_cluster_ip(spec: &str, endpoints: &[(&str, &str)], node: &str) -> ServiceBackends {
    let text = service("web", "", &format!("{IPV4}{spec}"), PORT)
        + &slice("web-1", "ports: [{port: 8080}]", endpoints);
    judge(&text, node, CLUSTER_IP, TCP, 80)
}

#[test]
fn a_cluster_ip_and_a_load_balancers_vip_lead_to_the_ready_endpoints() {
    let endpoints = [("10.0.1.5", ""), ("10.0.2.5", ", conditions: {ready: false, serving: true}")];
    let slice = slice("web-1", "ports: [{port: 8080}]", &endpoints);
    let balanced = service("web", "", &format!("type: LoadBalancer, {IPV4}"), PORT) + &slice;
    let backends = one_of(&[("10.0.1.5", 8080)]);
    assert_eq!(judge(&balanced, "n1", CLUSTER_IP, TCP, 80), backends);
    assert_eq!(judge(&balanced, "n1", VIP, TCP, 80), backends);
    // The first address belongs to the load balancer. The second one is of a family in which the
    // service has no cluster IP.
    for other in ["198.51.100.2", "fd01::1"] {
        assert_eq!(judge(&balanced, "n1", other, TCP, 80), NotAService, "{other}");
    }
    // No endpoint serves this port.
    assert_eq!(judge(&balanced, "n1", CLUSTER_IP, UDP, 80), Refused);
    assert_eq!(judge(&balanced, "n1", VIP, TCP, 81), NotAService);
    let plain = service("web", "", IPV4, PORT) + &slice;
    assert_eq!(judge(&plain, "n1", VIP, TCP, 80), NotAService, "not of the type LoadBalancer");
}

#[test]
fn services_of_others_have_no_addresses() {
    let endpoints = slice("web-1", "ports: [{port: 8080}]", &[("10.0.1.5", "")]);
    for (metadata, spec) in [
        ("", "clusterIP: None"),
        ("", "type: ExternalName, externalName: example.com, clusterIP: 10.96.0.1"),
        (", labels: {service.kubernetes.io/service-proxy-name: ''}", IPV4),
        (", labels: {service.kubernetes.io/headless: ''}", IPV4),
        // These are addresses of pods and of nodes.
        ("", "clusterIP: 10.0.1.5"),
        ("", "clusterIP: 172.18.0.1"),
    ] {
        let text = service("web", metadata, spec, PORT) + &endpoints;
        for address in [CLUSTER_IP, VIP, "10.0.1.5", "172.18.0.1"] {
            let found = judge(&text, "n1", address, TCP, 80);
            assert_eq!(found, NotAService, "{metadata}{spec}: {address}");
        }
    }
    let pool = "{apiVersion: projectcalico.org/v3, kind: IPPool, metadata: {name: p}, spec: {cidr: 10.96.0.0/16}}\n---\n";
    let text = service("web", "", IPV4, PORT) + &endpoints;
    assert_eq!(judge(&text, "n1", CLUSTER_IP, TCP, 80), one_of(&[("10.0.1.5", 8080)]));
    assert_eq!(judge(&(text + pool), "n1", CLUSTER_IP, TCP, 80), NotAService);
}

#[test]
fn a_port_is_found_by_its_name_and_protocol() {
    let ports = "ports: [{name: dns, port: 53, protocol: UDP}, {name: dns-tcp, port: 53}, {name: s, port: 53, protocol: SCTP}]";
    let text = service("web", "", IPV4, ports)
        + &slice(
            "web-1",
            "ports: [{name: dns, port: 5353, protocol: UDP}, {name: dns-tcp, port: 5354}, {name: s, port: 1}]",
            &[("10.0.1.5", "")],
        )
        + &slice("web-2", "ports: [{name: dns-tcp, port: 53}]", &[("10.0.2.5", "")]);
    let found = |protocol| judge(&text, "n1", CLUSTER_IP, protocol, 53);
    assert_eq!(found(UDP), one_of(&[("10.0.1.5", 5353)]));
    assert_eq!(found(TCP), one_of(&[("10.0.1.5", 5354), ("10.0.2.5", 53)]));
    assert_eq!(found(SCTP), Refused, "the slice's port of this name is of another protocol");
}

#[test]
fn an_address_leads_to_endpoints_of_its_family() {
    let spec = "clusterIPs: [10.96.0.1, 'fd02::1']";
    let text = service("web", "", spec, PORT)
        + &slice("web-4", "ports: [{port: 8080}]", &[("10.0.1.5", "")])
        + &slice("web-6", "ports: [{port: 8080}]", &[("fd00::5", ""), ("fe80::5", "")]);
    assert_eq!(judge(&text, "n1", CLUSTER_IP, TCP, 80), one_of(&[("10.0.1.5", 8080)]));
    assert_eq!(judge(&text, "n1", "fd02::1", TCP, 80), one_of(&[("fd00::5", 8080)]));
}

#[test]
fn endpoints_that_terminate_are_the_last_resort() {
    let ending = ", conditions: {ready: false, serving: true, terminating: true}";
    let ended = ", conditions: {ready: false, serving: false, terminating: true}";
    let all = [("10.0.1.5", ""), ("10.0.1.6", ending), ("10.0.1.7", ended)];
    assert_eq!(at_cluster_ip("", &all, "n1"), one_of(&[("10.0.1.5", 8080)]));
    assert_eq!(at_cluster_ip("", &all[1..], "n1"), one_of(&[("10.0.1.6", 8080)]));
    assert_eq!(at_cluster_ip("", &all[2..], "n1"), Refused);
    assert_eq!(at_cluster_ip("", &[], "n1"), Refused);
}

#[test]
fn an_internal_policy_of_local_leads_to_this_nodes_endpoints_only() {
    let endpoints = [
        ("10.0.1.5", ", nodeName: n1"),
        (
            "10.0.2.5",
            ", nodeName: n2, conditions: {ready: false, serving: true, terminating: true}",
        ),
        ("10.0.4.5", ""),
    ];
    let found = |node| at_cluster_ip(", internalTrafficPolicy: Local", &endpoints, node);
    assert_eq!(found("n1"), one_of(&[("10.0.1.5", 8080)]));
    assert_eq!(found("n2"), one_of(&[("10.0.2.5", 8080)]), "each node has a last resort");
    assert_eq!(found("n3"), Dropped);
    // kube-proxy refuses connections while no node has an endpoint.
    assert_eq!(at_cluster_ip(", internalTrafficPolicy: Local", &[], "n3"), Refused);
    let spec = format!("type: LoadBalancer, internalTrafficPolicy: Local, {IPV4}");
    let text =
        service("web", "", &spec, PORT) + &slice("web-1", "ports: [{port: 8080}]", &endpoints);
    let all_ready = one_of(&[("10.0.1.5", 8080), ("10.0.4.5", 8080)]);
    assert_eq!(judge(&text, "n3", VIP, TCP, 80), all_ready, "it is about cluster IPs");
}

#[test]
fn hints_count_if_every_ready_endpoint_has_one_and_one_is_for_the_client() {
    let one = ("10.0.1.5", ", hints: {forNodes: [{name: n1}], forZones: [{name: a}]}");
    let two = ("10.0.2.5", ", hints: {forNodes: [{name: n2}], forZones: [{name: b}, {name: a}]}");
    let zone_only = ("10.0.2.6", ", hints: {forZones: [{name: b}]}");
    let none = ("10.0.2.7", "");
    let not_ready = ("10.0.2.8", ", conditions: {ready: false}");
    let found = |endpoints: &[_], node| at_cluster_ip("", endpoints, node);
    assert_eq!(found(&[one, two, not_ready], "n1"), one_of(&[("10.0.1.5", 8080)]));
    assert_eq!(found(&[one, two], "n3"), one_of(&[("10.0.1.5", 8080), ("10.0.2.5", 8080)]));
    let by_zone = one_of(&[("10.0.1.5", 8080), ("10.0.2.5", 8080)]);
    assert_eq!(found(&[one, two, zone_only], "n1"), by_zone, "one is for no node");
    let all = one_of(&[("10.0.1.5", 8080), ("10.0.2.5", 8080), ("10.0.2.7", 8080)]);
    assert_eq!(found(&[one, two, none], "n1"), all, "one is for nobody");
    let local = at_cluster_ip(
        ", internalTrafficPolicy: Local",
        &[("10.0.1.5", ", nodeName: n1, hints: {forNodes: [{name: n2}]}")],
        "n1",
    );
    assert_eq!(local, one_of(&[("10.0.1.5", 8080)]), "a policy of Local heeds no hints");
}

#[test]
fn endpoints_that_are_no_single_host_are_none() {
    for address in ["127.0.0.1", "169.254.1.1", "224.0.0.1", "0.0.0.0", "0.1.2.3", "240.0.0.1"] {
        assert_eq!(at_cluster_ip("", &[(address, "")], "n1"), Refused, "{address}");
    }
}

#[test]
fn an_address_and_port_of_two_services_is_the_older_ones() {
    let dated = |second: u8| format!(", creationTimestamp: '2026-01-01T00:00:0{second}Z'");
    let ports = "ports: [{port: 80}, {name: x, port: 81}]";
    let endpoints =
        slice("web-1", "ports: [{port: 8080}, {name: x, port: 8081}]", &[("10.0.1.5", "")]);
    let found = |web: &str, other: &str, port| {
        let text =
            service("other", other, IPV4, PORT) + &service("web", web, IPV4, ports) + &endpoints;
        judge(&text, "n1", CLUSTER_IP, TCP, port)
    };
    let web = one_of(&[("10.0.1.5", 8080)]);
    assert_eq!(found(&dated(1), &dated(2), 80), web);
    assert_eq!(found(&dated(1), "", 80), web);
    assert_eq!(found(&dated(2), &dated(1), 80), Refused);
    assert_eq!(found(&dated(1), &dated(1), 80), Refused, "by name");
    assert_eq!(found("", "", 80), Refused, "by name");
    assert_eq!(found("", "", 81), one_of(&[("10.0.1.5", 8081)]), "the other has no such port");
}

#[test]
fn a_client_keeps_its_backend_for_three_hours_unless_the_service_says_otherwise() {
    let affinity = |spec: &str| match at_cluster_ip(spec, &[("10.0.1.5", "")], "n1") {
        OneOf { affinity, .. } => affinity,
        other => panic!("{other:?}"),
    };
    assert_eq!(affinity(""), None);
    assert_eq!(affinity(", sessionAffinity: ClientIP"), Some(10_800));
    let spec =
        ", sessionAffinity: ClientIP, sessionAffinityConfig: {clientIP: {timeoutSeconds: 7}}";
    assert_eq!(affinity(spec), Some(7));
}

#[test]
fn a_slice_that_is_not_valid_may_be_any_services_of_its_namespace() {
    let text = service("web", "", IPV4, PORT)
        + &slice("web-1", "ports: [{port: 8080}]", &[("10.0.1.5", "")])
        + &slice("any", "ports: [{port: 0}]", &[]);
    assert_eq!(judge(&text, "n1", CLUSTER_IP, TCP, 80), Refused);
    let elsewhere = text.replace("name: any, namespace: shop", "name: any, namespace: lab");
    assert_eq!(judge(&elsewhere, "n1", CLUSTER_IP, TCP, 80), one_of(&[("10.0.1.5", 8080)]));
}
