//! The services that a node translates, and their endpoints that are hosts.

use super::*;
use crate::import::import_for;
use crate::topology::{Reserved, policy_only, topology};

const NODES: &str = "
{apiVersion: v1, kind: Node, metadata: {name: n1}, spec: {podCIDR: 10.244.1.0/24}, status: {addresses: [{type: InternalIP, address: 172.18.0.2}]}}
---
{apiVersion: v1, kind: Node, metadata: {name: n2}, spec: {podCIDR: 10.244.2.0/24}, status: {addresses: [{type: InternalIP, address: 172.18.0.3}]}}
---
{apiVersion: projectcalico.org/v3, kind: IPPool, metadata: {name: p}, spec: {cidr: 10.244.0.0/16, ipipMode: Always}}
";

fn service(name: &str, spec: &str) -> String {
    format!(
        "---\n{{apiVersion: v1, kind: Service, metadata: {{name: {name}, namespace: a}}, spec: {spec}}}\n"
    )
}

fn slice(name: &str, addresses: &str, ports: &str) -> String {
    format!(
        "---\n{{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {{name: {name}, namespace: a, labels: {{kubernetes.io/service-name: {name}}}}}, \
         addressType: IPv4, endpoints: [{{addresses: [{addresses}]}}], ports: [{ports}]}}\n"
    )
}

fn services(manifests: &[String]) -> KubeProxyServices {
    services_beside(manifests, &BTreeSet::new())
}

fn services_beside(manifests: &[String], own: &BTreeSet<IpAddr>) -> KubeProxyServices {
    let text = format!("{NODES}{}", manifests.concat());
    let contents = Contents::from_texts([("cluster.yaml", text.as_str())]);
    let topology = topology(&import_for(&contents, "n1"), "n1", &Reserved::new()).unwrap();
    KubeProxyServices::new(
        &contents,
        &topology,
        |it| own.contains(it),
        &KubeProxyServices::default(),
        |_| false,
    )
}

fn shown(services: &KubeProxyServices) -> String {
    format!("{:?} {:?}", services.addresses, services.hosts)
}

#[test]
fn cluster_ips_are_translated_and_hosts_are_endpoints_that_are_no_pods() {
    let found = services(&[
        service("web", "{clusterIP: 10.96.0.7, externalIPs: [192.0.2.1], ports: [{port: 80}]}"),
        slice("web", "10.244.1.5, 10.244.2.5, 172.18.0.3, 203.0.113.9", "{port: 8080}"),
        service(
            "api",
            "{clusterIP: 10.96.0.1, ports: [{name: s, port: 443}, {name: t, port: 80}, {name: s, port: 53, protocol: UDP}]}",
        ),
        slice(
            "api",
            "172.18.0.2",
            "{name: s, port: 6443}, {name: t, port: 8080}, {name: s, port: 5353, protocol: UDP}",
        ),
        service("headless", "{clusterIP: None, ports: [{port: 80}]}"),
    ]);
    assert_eq!(
        shown(&found),
        "{10.96.0.1, 10.96.0.7} {(10.96.0.1, 6, 80): [(172.18.0.2, 8080)], (10.96.0.1, 6, 443): [(172.18.0.2, 6443)], \
         (10.96.0.1, 17, 53): [(172.18.0.2, 5353)], (10.96.0.7, 6, 80): [(172.18.0.3, 8080), (203.0.113.9, 8080)]}"
    );
}

#[test]
fn what_is_not_fully_known_or_is_a_pods_or_a_nodes_address_is_not_translated() {
    let web = service("web", "{clusterIP: 10.96.0.7, ports: [{port: 80}]}");
    for wrong in [
        service("web", "{clusterIP: 10.244.1.5, ports: [{port: 80}]}"),
        service("web", "{clusterIP: 10.244.9.5, ports: [{port: 80}]}"),
        service("web", "{clusterIP: 172.18.0.2, ports: [{port: 80}]}"),
        service("web", "{clusterIP: 10.96.0.7, ports: [{port: 0}]}"),
        web.clone() + &slice("other", "10.0.0.300", "{port: 80}"),
    ] {
        let found = services(std::slice::from_ref(&wrong));
        assert!(found.has_same_translation(&KubeProxyServices::default()), "{wrong}: {found:?}");
    }
    // A process of the node may answer at this address: node-local DNS, or kube-proxy in the mode ipvs.
    let own = BTreeSet::from(["10.96.0.7".parse().unwrap()]);
    let none = KubeProxyServices::default();
    assert!(services_beside(std::slice::from_ref(&web), &own).has_same_translation(&none));
    let hosts: Vec<String> = (0..=MOST_HOSTS).map(|n| format!("192.0.2.{n}")).collect();
    let many =
        |hosts: &[String]| services(&[web.clone(), slice("web", &hosts.join(", "), "{port: 80}")]);
    assert!(many(&hosts).has_same_translation(&none));
    assert_eq!(many(&hosts[1..]).addresses.len(), 1);
}

#[test]
fn behind_another_plugin_its_pods_are_no_hosts_however_many() {
    let ninety: Vec<String> = (1..=90).map(|it| format!("10.77.0.{it}")).collect();
    let text = [
        NODES.to_owned(),
        service("web", "{clusterIP: 10.96.0.7, ports: [{port: 80}]}"),
        slice("web", &ninety.join(", "), "{port: 8080}"),
        service("api", "{clusterIP: 10.96.0.1, ports: [{port: 443}]}"),
        slice("api", "172.18.0.2, 172.18.0.3, 10.77.0.5", "{port: 6443}"),
    ];
    let contents = Contents::from_texts([("cluster.yaml", text.concat().as_str())]);
    let topology = policy_only(&import_for(&contents, "n1"), "n1").unwrap();
    let (own, none) = (|_: &IpAddr| false, KubeProxyServices::default());
    let is_pod = |address: &IpAddr| address.to_string().starts_with("10.77.");
    let found = KubeProxyServices::new(&contents, &topology, own, &none, is_pod);
    assert_eq!(
        shown(&found),
        "{10.96.0.1, 10.96.0.7} {(10.96.0.1, 6, 443): [(172.18.0.2, 6443), (172.18.0.3, 6443)]}"
    );
    // The pods that are not known yet are too many for one port, so policy decides about the address itself.
    let asked: Vec<IpAddr> = ["10.77.0.5", "172.18.0.3", "172.18.0.2", "10.77.0.99"]
        .map(|it| it.parse().unwrap())
        .to_vec();
    let known: Vec<_> = asked.iter().map(|it| found.is_pod(it)).collect();
    assert_eq!(known, [Some(true), Some(false), None, None], "a node's own, and nobody's");
    let closed = KubeProxyServices::new(&contents, &topology, own, &none, |_| false);
    assert!(!closed.has_same_translation(&found) && closed.has_same_translation(&closed.clone()));
    let (with_pods, found) = (found, closed);
    assert_eq!(
        shown(&found),
        "{10.96.0.1} {(10.96.0.1, 6, 443): [(10.77.0.5, 6443), (172.18.0.2, 6443), (172.18.0.3, 6443)]}"
    );
    // The pod is gone, but its slice still names it. The address counts as a pod's until no slice names it.
    let still = KubeProxyServices::new(&contents, &topology, own, &with_pods, |_| false);
    assert!(still.has_same_translation(&with_pods));
    let without = Contents::from_texts([("cluster.yaml", NODES)]);
    let gone = KubeProxyServices::new(&without, &topology, own, &still, |_| false);
    let back = KubeProxyServices::new(&contents, &topology, own, &gone, |_| false);
    assert!(back.has_same_translation(&found));
}

/// A pod's status may name any address. Other nodes' services must not break because of this.
#[test]
fn no_pod_takes_a_cluster_ip_from_the_nodes() {
    let web = [
        service("web", "{clusterIP: 10.96.0.7, ports: [{port: 80}]}"),
        slice("web", "203.0.113.9", "{port: 8080}"),
    ];
    let without = services(&web);
    assert_eq!(without.addresses.len(), 1);
    for node in ["n1", "n2"] {
        let of_pods = ["10.96.0.7", "203.0.113.9"].map(|ip| {
            format!(
                "---\n{{apiVersion: v1, kind: Pod, metadata: {{name: p{ip}, namespace: a}}, \
                 spec: {{nodeName: {node}, containers: [{{name: c, image: i}}]}}, status: {{podIP: {ip}}}}}\n"
            )
        });
        let found = services(&[&web[..], &of_pods[..]].concat());
        assert_eq!(shown(&found), shown(&without), "{node}");
    }
}
