//! Laws: any order and any batches of changes lead to the same table as all changes at once. This table equals the
//! result of a second, simple implementation of the rules.

use std::cell::RefCell;
use std::collections::BTreeMap;

use ipnet::IpNet;
use manx_dataplane::services::{Backend, Frontend, WithoutBackend};
use manx_dataplane::wire::protocol;
use manx_objects::contents::Stored;
use manx_objects::object::{
    Created, EndpointSlice, Hints, Node, Pod, Protocol, Service, ServicePort, ServiceType,
    SliceEndpoint,
};
use manx_objects::problem::Place;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use super::*;
use crate::services::addresses::{HEADLESS, OTHER_PROXY};
use crate::services::backends::ZONE;
use crate::services::bounds::{
    MOST_BACKENDS, MOST_HEALTH_CHECKS, MOST_HOST_PORTS, MOST_OF_NAMESPACE, MOST_PORTS,
};
use crate::services::numbers;
use crate::services::{GrantedPorts, HealthCheck, HealthChecks, LeftAlone};
use events::{Event, event};
use reference::{Seen, expected, expected_checks, is_held, is_named};
use viewed::{checks_seen_in, of_services, seen_in, views};

pub(in crate::services) mod events;
mod external_ips;
mod reference;
mod viewed;

/// The addresses of services.
const ADDRESSES: &[&str] = &["10.96.0.1", "10.96.0.2", "192.0.2.9", "fd00:96::1"];
/// The nets in which an address of `externalIPs` takes effect. They contain all of these addresses except 10.96.0.1.
const EXTERNAL: [&str; 3] = ["10.96.0.2/32", "192.0.2.0/28", "fd00:96::/64"];
/// The net of cluster IPs that routers outside the cluster send to any node.
const ANNOUNCED: &str = "10.96.0.0/31";
/// The addresses of endpoints, pods and nodes.
const ENDS: &[&str] = &["10.0.0.1", "10.0.0.2", "10.0.0.3", "172.18.0.2", "127.0.0.1", "fd00::1"];
/// The addresses of clients.
const CLIENTS: [&str; 3] = ["10.0.0.1", "192.0.2.1", "fd00::1"];

/// Returns the node ports of node n1.
fn node_ports() -> NodePorts {
    let addresses = [ip("172.18.0.2"), ip("127.0.0.1")].into();
    NodePorts { range: (30_000, 32_767), addresses, of_pods: true }
}

/// Returns the addresses at which Services have node ports: addresses of the node, and the unspecified address of a
/// family in which the node has none.
fn node_port_places() -> BTreeSet<IpAddr> {
    node_ports().addresses.into_iter().chain([ip("::")]).collect()
}

/// Returns the frontends of a cluster with some nets for `externalIPs`.
fn seen_from(node: &str, node_ports: NodePorts) -> Frontends {
    let external = EXTERNAL.map(|net| net.parse().unwrap());
    let announced = [ANNOUNCED.parse().unwrap()];
    Frontends::new(node, node_ports).with_external_ips(&external).with_announced(&announced)
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn ips(texts: &BTreeSet<&'static str>) -> BTreeSet<IpAddr> {
    texts.iter().map(|it| ip(it)).collect()
}

fn stored(state: State) -> Stored {
    let place = Place { file: "".into(), document: 0, at: None };
    Stored { state, place: Arc::new(place) }
}

fn valid(object: Object) -> State {
    State::Valid(Arc::new(object))
}

fn seen(frontends: &Frontends) -> BTreeMap<FrontendKey, Seen> {
    let table = frontends.table().frontends();
    let of = |it: &Frontend| {
        let backends: BTreeSet<Backend> = it.backends.iter().copied().collect();
        assert_eq!(backends.len(), it.backends.len(), "each once");
        assert!(it.all_backends.is_sorted());
        let all = it.all_backends.iter().copied().collect();
        let clients = CLIENTS.map(|client| it.clients.has(ip(client).into()));
        let outside = it.for_outside.as_ref();
        let outside = outside.map(|it| (it.backends.iter().copied().collect(), it.without_backend));
        (backends, it.affinity, it.without_backend, (all, it.takes_visitors), clients, outside)
    };
    table.map(|(key, frontend)| (*key, of(frontend))).collect()
}

fn apply(contents: &mut Contents, key: &ObjectKey, state: Option<&State>) -> Option<Stored> {
    match state {
        Some(state) => contents.objects.insert(key.clone(), stored(state.clone())),
        None => contents.objects.remove(key),
    }
}

#[test]
fn any_order_and_any_batches_of_changes_lead_to_the_table_that_the_rules_say() {
    let counts = RefCell::new(BTreeMap::new());
    let config = Config { cases: 400, failure_persistence: None, ..Config::default() };
    let batches =
        (vec(event(), 0..60), vec((vec(event(), 1..5), prop::bool::weighted(0.1)), 1..10));
    let run = |(begin, batches): (Vec<Event>, Vec<(Vec<Event>, bool)>)| {
        let (mut contents, mut closed) = (Contents::default(), BTreeSet::new());
        let mut frontends = seen_from("n1", node_ports());
        let begin = std::iter::once((begin, true));
        for (batch, everything) in begin.chain(batches) {
            let (gone, was) = (frontends.table().gone(), seen(&frontends));
            let of = namespaces(&frontends);
            let before = named(&contents);
            let mut changes = Changes::Objects(BTreeMap::new());
            let mut readmits = false;
            for event in batch {
                match event {
                    Event::Object(key, state) => {
                        let before = apply(&mut contents, &key, state.as_ref());
                        changes = changes.then(Changes::Objects(BTreeMap::from([(key, before)])));
                    }
                    Event::NotAdmitted(all) => (closed, readmits) = (ips(&all), true),
                }
            }
            let admits = |address| !closed.contains(&address);
            let had = frontends.addresses().clone();
            let mut told =
                if readmits { frontends.readmit(&contents, admits) } else { BTreeSet::new() };
            let changes = if everything { Changes::Everything } else { changes };
            told.extend(frontends.follow(&contents, &changes, admits));
            let asked = frontends.asked_ports();
            frontends.grant(&contents, &asked, admits);
            let mut differing = had.symmetric_difference(frontends.addresses());
            prop_assert!(differing.all(|it| told.contains(it)));

            let now = seen(&frontends);
            let (expected, rules): (BTreeMap<_, _>, Vec<_>) = expected(&contents, admits)
                .into_iter()
                .map(|(key, (seen, rule))| ((key, seen), rule))
                .unzip();
            prop_assert_eq!(&now, &expected);
            let checks = frontends.health_checks();
            prop_assert_eq!(&checks, &expected_checks(&contents));
            let viewed = views(&frontends, &contents, ("n1", &node_ports()), admits);
            prop_assert_eq!(seen_in(&viewed), of_services(&frontends));
            prop_assert_eq!(&checks_seen_in(&frontends, &contents, ("n1", &node_ports())), &checks);
            let ports = NodePorts { addresses: [ip("172.18.0.3")].into(), ..node_ports() };
            let mut other = seen_from("n2", ports.clone());
            other.follow(&contents, &Changes::Everything, admits);
            let [from_here, from_there] =
                [&frontends, &other].map(|it| views(it, &contents, ("n2", &ports), admits));
            prop_assert_eq!(&from_here, &from_there);
            prop_assert_eq!(seen_in(&from_there), of_services(&other));
            let told = [&frontends, &other].map(|it| checks_seen_in(it, &contents, ("n2", &ports)));
            prop_assert_eq!(told, [other.health_checks(), other.health_checks()]);
            let of_node = node_port_places();
            let addresses: BTreeSet<IpAddr> = now
                .keys()
                .map(|it| it.address.to_ip())
                .filter(|it| !of_node.contains(it))
                .collect();
            prop_assert_eq!(frontends.addresses(), &addresses);
            let now_named = named(&contents);
            prop_assert_eq!(&named_in(frontends.table()), &now_named);
            let lost = before.difference(&now_named).count() as u32;
            let now_of = namespaces(&frontends);
            let lost = lost + given_away(&of, &now_of);
            // A UDP frontend that has lost a backend counts, too.
            let has_lost = |(key, was): (&FrontendKey, &Seen)| {
                let is_udp = key.protocol == protocol::UDP;
                is_udp
                    && !now.get(key).is_some_and(|it| was.3.0.is_subset(&it.3.0))
                    && !was.3.0.is_empty()
            };
            let lost = lost + was.iter().filter(|it| has_lost(*it)).count() as u32;
            let counted = frontends.table().gone() - gone;
            // If addresses are admitted again, or if a pod gets a port that another pod had, a frontend may lose
            // backends twice.
            let twice = readmits || of.values().chain(now_of.values()).any(|it| *it == 0);
            prop_assert!(counted == lost || twice && counted > lost, "{} {}", counted, lost);
            let mut fresh = seen_from("n1", node_ports());
            fresh.follow(&contents, &Changes::Everything, admits);
            fresh.grant(&contents, &fresh.asked_ports(), admits);
            prop_assert_eq!(&now, &seen(&fresh));
            let all =
                |it: &Frontends| it.omissions().map(|(name, it)| (name.clone(), it)).collect();
            let [omitted, of_fresh]: [Vec<_>; 2] = [all(&frontends), all(&fresh)];
            prop_assert_eq!(&omitted, &of_fresh);
            let of_check =
                |it: &HealthCheck| format!("checked: {:?}", it.endpoints[0].map(|it| it > 0));
            let of_frontend =
                |it: &Seen| [format!("{:?}", it.2), format!("{} backends", it.0.len().min(2))];
            let all = rules.iter().map(|rule| format!("{rule:?}"));
            let all = all.chain(now.values().flat_map(of_frontend));
            let all = all.chain(checks.values().map(of_check));
            for what in all.chain(omitted.iter().map(|(_, it)| kind(it))) {
                *counts.borrow_mut().entry(what).or_insert(0) += 1;
            }
        }
        Ok(())
    };
    TestRunner::new(config).run(&batches, run).unwrap();
    let counts = counts.into_inner();
    assert!(counts.len() == 28 && counts.values().all(|count| *count > 5), "{counts:?}");
}

/// Returns the namespace of each frontend, by its number. 0 means that the frontend is a pod's.
fn namespaces(frontends: &Frontends) -> BTreeMap<FrontendKey, u64> {
    frontends.table().frontends().map(|(key, it)| (*key, it.namespace)).collect()
}

/// Returns the number of frontends, except UDP, that now belong to another namespace or to nothing. Connections through
/// such a frontend belong to its earlier Service.
fn given_away(before: &BTreeMap<FrontendKey, u64>, now: &BTreeMap<FrontendKey, u64>) -> u32 {
    let is_others = |(key, namespace): &(&FrontendKey, &u64)| {
        key.protocol != protocol::UDP && now.get(key) != Some(namespace)
    };
    before.iter().filter(is_others).count() as u32
}

/// Returns the addresses that keep connections alive, from a table.
fn named_in(table: &ServiceTable) -> BTreeSet<(IpAddr, Option<u64>)> {
    let named = |address: IpAddr| {
        let namespaces = ["a", "b"].map(numbers::of_namespace).into_iter();
        let of = namespaces.filter(move |it| table.is_named(*it, address.into())).map(Some);
        let held = table.has_address(address.into()).then_some(None);
        of.chain(held).map(move |it| (address, it))
    };
    ENDS.iter().flat_map(|it| named(ip(it))).collect()
}

/// Returns the addresses that keep connections alive: those of all namespaces, or those of one namespace.
fn named(contents: &Contents) -> BTreeSet<(IpAddr, Option<u64>)> {
    let named = |address: IpAddr| {
        if is_held(contents, address) {
            return vec![(address, None)];
        }
        let namespaces = ["a", "b"].into_iter().filter(|it| is_named(contents, it, address));
        namespaces.map(|it| (address, Some(numbers::of_namespace(it)))).collect()
    };
    ENDS.iter().flat_map(|it| named(ip(it))).collect()
}

/// Returns the name of an omission's variant.
fn kind(omission: &Omission) -> String {
    format!("{omission:?}").chars().take_while(char::is_ascii_alphabetic).collect()
}

/// Compiles a cluster of manifests, as node `n1` sees it.
fn compiled(text: &str) -> Frontends {
    let contents = Contents::from_texts([("a.yaml", text)]);
    let mut frontends = seen_from("n1", node_ports());
    let admits = |address: IpAddr| !address.to_string().starts_with("10.244.");
    frontends.follow(&contents, &Changes::Everything, admits);
    frontends.grant(&contents, &frontends.asked_ports(), admits);
    frontends
}

/// With `--nodeport-addresses`, clients reach node ports only on some nodes, but the backends are on all nodes.
#[test]
fn a_node_at_which_nobody_asks_takes_the_visitors_of_node_ports() {
    let text = "
{apiVersion: v1, kind: Service, metadata: {name: web, namespace: a},
 spec: {type: NodePort, clusterIPs: [10.96.0.7, 'fd00::7'], clusterIP: 10.96.0.7, ports: [{name: http, port: 80, nodePort: 30080}]}}
---
{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {name: web-1, namespace: a, labels: {kubernetes.io/service-name: web}},
 addressType: IPv4, endpoints: [{addresses: [10.0.0.2]}], ports: [{name: http, port: 8080}]}
";
    let contents = Contents::from_texts([("a.yaml", text)]);
    let ports = NodePorts { addresses: BTreeSet::new(), ..node_ports() };
    let mut frontends = seen_from("n1", ports);
    frontends.follow(&contents, &Changes::Everything, |_| true);
    let at = |address: &str, port| FrontendKey { address: ip(address).into(), protocol: 6, port };
    let table = frontends.table();
    assert!(table.leads_visitors_to(&at("10.0.0.2", 8080)));
    assert!(!table.leads_visitors_to(&at("10.0.0.2", 8081)));
    let mut keys: Vec<&FrontendKey> = table.frontends().map(|(key, _)| key).collect();
    keys.sort_unstable();
    let cluster_ips = [at("10.96.0.7", 80), at("fd00::7", 80)];
    let nowhere = [at("0.0.0.0", 30080), at("::", 30080)];
    let mut expected: Vec<&FrontendKey> = cluster_ips.iter().chain(&nowhere).collect();
    expected.sort_unstable();
    assert_eq!(keys, expected);
}

#[test]
fn a_service_of_manifests_has_its_frontends_and_what_is_left_out_is_told() {
    let found = compiled(
        "
{apiVersion: v1, kind: Service, metadata: {name: web, namespace: a, creationTimestamp: '2026-01-01T00:00:00Z'},
 spec: {type: LoadBalancer, clusterIPs: [10.96.0.7, 'fd00::7'], clusterIP: 10.96.0.7, externalIPs: [198.51.100.7], sessionAffinity: ClientIP,
        ports: [{name: http, port: 80, targetPort: 8080}, {name: dns, port: 53, protocol: UDP}]},
 status: {loadBalancer: {ingress: [{ip: 192.0.2.7}, {ip: 192.0.2.8, ipMode: Proxy}]}}}
---
{apiVersion: v1, kind: Service, metadata: {name: thief, namespace: b}, spec: {clusterIP: 10.96.0.7, ports: [{port: 80}, {port: 81}]}}
---
{apiVersion: v1, kind: Service, metadata: {name: pods, namespace: b}, spec: {clusterIP: 10.244.0.7, ports: [{port: 80}]}}
---
{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {name: web-1, namespace: a, labels: {kubernetes.io/service-name: web}},
 addressType: IPv4, endpoints: [{addresses: [10.0.0.2]}, {addresses: [10.0.0.1]}, {addresses: [10.0.0.3], conditions: {ready: false}},
 {addresses: [169.254.169.254]}], ports: [{name: http, port: 8080}]}
",
    );
    let mut lines: Vec<String> = found
        .table()
        .frontends()
        .map(|(FrontendKey { address, protocol, port }, it)| {
            let backends: Vec<_> =
                it.backends.iter().map(|it| format!("{}:{}", it.address, it.port)).collect();
            let affinity = it.affinity.map(|seconds| format!(" for {seconds} s"));
            let id = it.id >> 48;
            format!(
                "{address} {protocol}/{port}: {backends:?}{} {id:04x}",
                affinity.unwrap_or_default()
            )
        })
        .collect();
    lines.sort();
    insta::assert_snapshot!(lines.join("\n"), @r#"
    10.96.0.7 17/53: [] for 10800 s 78e6
    10.96.0.7 6/80: ["10.0.0.1:8080", "10.0.0.2:8080"] for 10800 s 72cd
    10.96.0.7 6/81: [] 4773
    192.0.2.7 17/53: [] for 10800 s 78e6
    192.0.2.7 6/80: ["10.0.0.1:8080", "10.0.0.2:8080"] for 10800 s 72cd
    fd00::7 17/53: [] for 10800 s 78e6
    fd00::7 6/80: [] for 10800 s 72cd
    "#);
    let told: Vec<_> = found.omissions().map(|(of, it)| format!("{of}: {it}")).collect();
    insta::assert_snapshot!(told.join("\n"), @"
    Service a/web: its external IP 198.51.100.7 is not translated, because it lies in no net that the cluster leaves to externalIPs: expected one of --external-ips (MANX_EXTERNAL_IPS), or none
    Service a/web: its endpoint 169.254.169.254 gets no connections, because it is loopback, link-local, multicast or reserved: correct the EndpointSlice
    Service b/pods: its address 10.244.0.7 is a node's or lies in a pool of pods, so it is not translated: give it one of the service range
    Service b/thief: Service a/web, which comes first, has 10.96.0.7 with TCP port 80, too, and gets the connections: give one of them another address or port
    ");
    let of = numbers::of_namespace("a");
    let is_named = |address: &str| found.table().is_named(of, ip(address).into());
    assert!(is_named("10.0.0.3") && !is_named("169.254.169.254"));
}

/// Returns whether connections through a Service of namespace `a`, and of namespace `b`, keep a backend with this
/// address.
fn kept(address: &str, objects: &[&str]) -> [bool; 2] {
    let service = |namespace: &str, ip: &str| {
        format!(
            "{{apiVersion: v1, kind: Service, metadata: {{name: s, namespace: {namespace}}}, spec: {{clusterIP: {ip}, ports: [{{port: 80}}]}}}}\n---\n"
        )
    };
    let services = [service("a", "10.96.0.1"), service("b", "10.96.0.2")].concat();
    let found = compiled(&(services + &objects.join("\n---\n")));
    let backend = Backend { address: ip(address).into(), port: 80 };
    let at =
        |address| FrontendKey { address: ip(address).into(), protocol: protocol::TCP, port: 80 };
    ["10.96.0.1", "10.96.0.2"].map(|it| found.table().keeps(&at(it), backend))
}

#[test]
fn who_names_an_address_holds_connections_of_his_own_namespace_alone() {
    let slice = |namespace: &str, address: &str| {
        format!(
            "{{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {{name: s-1, namespace: {namespace}, labels: {{kubernetes.io/service-name: s}}}}, \
             addressType: IPv4, endpoints: [{{addresses: [{address}]}}], ports: [{{port: 80}}]}}"
        )
    };
    let pod = "{apiVersion: v1, kind: Pod, metadata: {name: p, namespace: a}, spec: {nodeName: n2, containers: [{name: c}]}, status: {podIP: 10.0.0.1}}";
    let node = "{apiVersion: v1, kind: Node, metadata: {name: n9}, status: {addresses: [{type: InternalIP, address: 172.18.0.9}]}}";
    let annotated = "{apiVersion: v1, kind: Pod, metadata: {name: q, namespace: b, annotations: {cni.projectcalico.org/podIP: 10.0.0.1/32}}, spec: {containers: [{name: c}]}}";
    let [own, others] = ["a", "b"].map(|it| slice(it, "10.0.0.1"));
    let outside = slice("a", "198.51.100.1");

    let cases: [(&str, &str, &[&str], [bool; 2]); 8] = [
        ("a slice comes before its pod", "10.0.0.1", &[&own], [true, false]),
        ("then the pod comes", "10.0.0.1", &[&own, pod], [true, true]),
        ("its slice goes first", "10.0.0.1", &[pod], [true, true]),
        ("another tenant's slice names it", "10.0.0.1", &[pod, &others], [true, true]),
        ("and the pod goes", "10.0.0.1", &[&others], [false, true]),
        ("or his pod names it in an annotation", "10.0.0.1", &[annotated], [false, true]),
        ("a slice by hand names an outside host", "198.51.100.1", &[&outside], [true, false]),
        ("a host has its Node", "172.18.0.9", &[node], [true, true]),
    ];
    for (what, address, objects, expected) in cases {
        assert_eq!(kept(address, objects), expected, "{what}");
    }
}

#[test]
fn a_node_gives_its_ports_to_its_pods_and_tells_what_it_does_not_give() {
    let pod = |name: &str, spec: &str, ports: &str, ips: &str| {
        format!(
            "---\n{{apiVersion: v1, kind: Pod, metadata: {{name: {name}, namespace: a}}, spec: {{{spec}, containers: [{{name: c, ports: [{ports}]}}]}}, \
             status: {{podIPs: [{ips}]}}}}\n"
        )
    };
    let found = compiled(
        &[
            pod("web", "nodeName: n1", "{containerPort: 80, hostPort: 8080}", "{ip: 10.0.0.1}, {ip: 'fd00::1'}"),
            pod("dns", "nodeName: n1", "{containerPort: 53, hostPort: 8080, protocol: UDP, hostIP: 127.0.0.1}", "{ip: 10.0.0.2}"),
            pod("zlate", "nodeName: n1", "{containerPort: 81, hostPort: 8080, hostIP: 172.18.0.2}", "{ip: 10.0.0.3}"),
            pod("lost", "nodeName: n1", "{containerPort: 81, hostPort: 81, hostIP: 172.18.0.3}, {containerPort: 1, hostPort: 65535}", "{ip: 10.0.0.3}"),
            pod("far", "nodeName: n2", "{containerPort: 80, hostPort: 8081}", "{ip: 10.0.0.4}"),
            pod("own", "nodeName: n1, hostNetwork: true", "{containerPort: 82, hostPort: 82}", "{ip: 172.18.0.2}"),
            pod("new", "nodeName: n1", "{containerPort: 80, hostPort: 8082}", ""),
            pod("kubelet", "nodeName: n1", "{containerPort: 1, hostPort: 10250}", "{ip: 10.0.0.5}"),
        ]
        .concat(),
    );
    let frontends: BTreeMap<_, _> = found.table().frontends().collect();
    let of = |key: &FrontendKey| format!("{} {}/{}", key.address, key.protocol, key.port);
    let lines: Vec<_> = frontends
        .iter()
        .map(|(key, it)| format!("{}: {}:{}", of(key), it.backends[0].address, it.backends[0].port))
        .collect();
    insta::assert_snapshot!(lines.join("\n"), @"
    127.0.0.1 6/8080: 10.0.0.1:80
    127.0.0.1 17/8080: 10.0.0.2:53
    172.18.0.2 6/8080: 10.0.0.1:80
    ");
    assert!(found.asked_ports().into_keys().eq(frontends.into_keys().copied()));
    let told: Vec<_> = found.omissions().map(|(of, it)| format!("{of}: {it}")).collect();
    insta::assert_snapshot!(told.join("\n"), @"
    Pod a/kubelet: its hostPort 10250 leads nowhere, because that port is for a program of nodes (SSH, BGP, etcd, the control plane, DHCP, VXLAN): choose another
    Pod a/lost: its hostPort 81 leads nowhere at 172.18.0.3, its hostIP: expected none, 127.0.0.1, or the node's first address of a family (InternalIP), if its kernel has it
    Pod a/lost: its hostPort 65535 leads nowhere, because no routing rule can name that port: expected one from 1 to 65534
    Pod a/zlate: Pod a/web, which comes first, has 172.18.0.2 with TCP port 8080, too, and gets the connections: give one of them another address or port
    ");
    assert!(found.addresses().is_empty(), "no address but the node's");
}

#[test]
fn what_a_service_makes_every_node_do_is_bounded() {
    let ports = |count: usize| {
        let port = |it| format!("{{name: p{it}, port: {}}}", it + 1);
        (0..count).map(port).collect::<Vec<_>>().join(", ")
    };
    let service = |count: usize| {
        format!(
            "{{apiVersion: v1, kind: Service, metadata: {{name: s, namespace: a}}, spec: {{clusterIP: 10.96.0.7, ports: [{}]}}}}\n",
            ports(count)
        )
    };
    let slice = |count: usize, ready: bool| {
        let endpoint = |it: usize| {
            format!(
                "{{addresses: [10.1.{}.{}], conditions: {{ready: {ready}}}}}",
                it / 250,
                it % 250
            )
        };
        let endpoints: Vec<_> = (0..500).map(endpoint).collect();
        format!(
            "---\n{{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {{name: s1, namespace: a, labels: \
             {{kubernetes.io/service-name: s}}}}, addressType: IPv4, endpoints: [{}], ports: [{}]}}\n",
            endpoints.join(", "),
            ports(count)
        )
    };
    let found = compiled(&service(MOST_PORTS + 1));
    assert_eq!(found.table().frontends().count(), MOST_PORTS);
    assert!(found.omissions().any(|(_, it)| it == Omission::TooManyPorts));
    let found = compiled(&[service(300), slice(300, true)].concat());
    let backends = |found: &Frontends| {
        found.table().frontends().map(|(_, it)| it.backends.len()).sum::<usize>()
    };
    assert_eq!(backends(&found), MOST_BACKENDS / 500 * 500);
    assert!(found.omissions().any(|(_, it)| it == Omission::TooManyBackends));
    let found = compiled(&[service(200), slice(200, true)].concat());
    assert_eq!((backends(&found), found.omissions().count()), (100_000, 0));
    // Endpoints that no client gets count, too.
    let found = compiled(&[service(300), slice(300, false)].concat());
    assert_eq!(backends(&found), 0);
    assert!(found.omissions().any(|(_, it)| it == Omission::TooManyBackends));
}

/// Returns a Service of a namespace that was created on this day of January and has the maximum number of backends,
/// with its slice.
fn greedy(namespace: &str, name: &str, day: u8) -> String {
    let list =
        |text: fn(usize) -> String, count| (0..count).map(text).collect::<Vec<_>>().join(", ");
    let ports = list(|it| format!("{{name: p{it}, port: {}}}", it + 1), 300);
    let endpoints = list(|it| format!("{{addresses: [10.1.{}.{}]}}", it / 250, it % 250), 500);
    format!(
        "---\n{{apiVersion: v1, kind: Service, metadata: {{name: {name}, namespace: {namespace}, creationTimestamp: \
         '2026-01-{day:02}T00:00:00Z'}}, spec: {{clusterIP: 10.96.{}.{day}, ports: [{ports}]}}}}\n\
         ---\n{{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {{name: {name}, namespace: {namespace}, labels: \
         {{kubernetes.io/service-name: {name}}}}}, addressType: IPv4, endpoints: [{endpoints}], ports: [{ports}]}}\n",
        namespace.len()
    )
}

#[test]
fn a_namespace_that_asks_too_much_has_its_oldest_services_and_its_neighbour_all() {
    const FIT: u8 = (MOST_OF_NAMESPACE / MOST_BACKENDS) as u8;
    let mut texts: Vec<String> =
        (1..=FIT + 2).map(|day| greedy("a", &format!("s{day}"), day)).collect();
    texts.push(greedy("bb", "s", 28));
    let text = texts.concat();
    let mut contents = Contents::from_texts([("a.yaml", text.as_str())]);
    let mut frontends = Frontends::new("n1", node_ports());
    frontends.follow(&contents, &Changes::Everything, |_| true);
    let addresses =
        |it: &Frontends| it.addresses().iter().map(ToString::to_string).collect::<Vec<_>>();
    let left_out = |it: &Frontends| {
        let all = it.omissions().filter(|(_, it)| *it == Omission::Namespace);
        all.map(|(key, _)| key.to_string()).collect::<Vec<_>>()
    };
    assert_eq!(
        addresses(&frontends),
        ["10.96.1.1", "10.96.1.2", "10.96.1.3", "10.96.1.4", "10.96.2.28"]
    );
    assert_eq!(left_out(&frontends), ["Service a/s5", "Service a/s6"]);
    let name = ObjectName::new("a", "s6");
    let view = frontends.view(&contents, &name, ("n1", &node_ports()), |_| true).unwrap();
    assert_eq!(view.left_alone, Some(LeftAlone::Namespace));
    // An older Service is removed, and the next one takes its place.
    let key = ObjectKey::new(Kind::Service, "a", "s2");
    let before = contents.objects.remove(&key);
    let changes = Changes::Objects(BTreeMap::from([(key, before)]));
    let changed = frontends.follow(&contents, &changes, |_| true);
    assert_eq!(changed, ips(&["10.96.1.2", "10.96.1.5"].into()));
    assert_eq!(left_out(&frontends), ["Service a/s6"]);
}

/// Returns a Service of type `LoadBalancer` with a port for health checks.
fn checked(name: &str, created: &str, port: u16) -> String {
    format!(
        "---\n{{apiVersion: v1, kind: Service, metadata: {{name: {name}, namespace: a, creationTimestamp: '{created}'}}, spec: \
         {{type: LoadBalancer, externalTrafficPolicy: Local, clusterIP: 10.96.0.7, healthCheckNodePort: {port}, ports: [{{port: 80}}]}}}}\n"
    )
}

#[test]
fn a_balancer_is_told_of_the_ready_endpoints_of_the_node_and_what_is_not_served_is_told() {
    let slice = "---\n{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {name: web-1, namespace: a, labels: \
        {kubernetes.io/service-name: web}}, addressType: IPv4, ports: [{port: 8080}, {port: 8081}], endpoints: [\
        {addresses: [10.0.0.1], nodeName: n1}, {addresses: [10.0.0.2], nodeName: n2},\
        {addresses: [10.0.0.3], nodeName: n1, conditions: {ready: false, serving: true, terminating: true}},\
        {addresses: [127.0.0.1], nodeName: n1}, {addresses: [10.0.0.4]}]}\n";
    let node_port = "---\n{apiVersion: v1, kind: Service, metadata: {name: port, namespace: b}, spec: \
        {type: NodePort, clusterIP: 10.96.0.8, ports: [{port: 80, nodePort: 30090}]}}\n";
    let at = |port| checked("web", "2026-01-02T00:00:00Z", port);
    let older = checked("older", "2026-01-01T00:00:00Z", 31_000);
    let seen = |manifests: &[&str]| {
        let found = compiled(&manifests.concat());
        let checks = found.health_checks();
        let checks =
            checks.iter().map(|(port, it)| format!("{port} {}: {:?}", it.service, it.endpoints));
        let told = found.omissions().filter(|(_, it)| !matches!(it, Omission::Backend(_)));
        let told =
            told.filter(|(_, it)| !matches!(it, Omission::Taken { key, .. } if key.port == 80));
        checks.chain(told.map(|(of, it)| format!("{of}: {it}"))).collect::<Vec<_>>().join("\n")
    };
    insta::assert_snapshot!(seen(&[&at(31_000), slice]), @"31000 Service a/web: [Some(1), None]");
    insta::assert_snapshot!(seen(&[&at(31_000), slice, &older]), @"
    31000 Service a/older: [Some(0), None]
    Service a/web: its healthCheckNodePort 31000 is a port of Service a/older, which comes first, so it is not served: give one of them another
    ");
    insta::assert_snapshot!(seen(&[&at(30_090), slice, node_port]), @"Service a/web: its healthCheckNodePort 30090 is a port of Service b/port, which comes first, so it is not served: give one of them another");
    insta::assert_snapshot!(seen(&[&at(10_250), slice]), @"Service a/web: its healthCheckNodePort 10250 is not served, because it lies outside of the nodes' range for services: expected one of --node-ports (MANX_NODE_PORTS)");
    let cluster = at(31_000).replace("Policy: Local", "Policy: Cluster");
    assert_eq!(seen(&[&cluster, slice]), "");
    let broken = slice.replace("10.0.0.2", "10.0.0.300").replace("web", "other");
    insta::assert_snapshot!(seen(&[&at(31_000), slice, &broken]), @"
    31000 Service a/web: [Some(0), None]
    Service a/web: connections to it are refused, because an EndpointSlice of its namespace is not valid and may be its: correct that one
    ");
}

#[test]
fn a_node_serves_a_bounded_number_of_health_checks_to_the_oldest_services() {
    let many = |count: u16| -> String {
        // The names are in the opposite order of the ages.
        let created = |it| format!("2026-01-01T00:{:02}:{:02}Z", it / 60, it % 60);
        (0..count).map(|it| checked(&format!("s{}", 999 - it), &created(it), 31_000 + it)).collect()
    };
    let most = MOST_HEALTH_CHECKS as u16;
    let found = compiled(&many(most + 2));
    assert!(found.health_checks().into_keys().eq(31_000..31_000 + most));
    let told = |found: &Frontends| {
        found.omissions().filter(|(_, it)| *it == Omission::TooManyHealthChecks).count()
    };
    assert_eq!((told(&found), told(&compiled(&many(most)))), (2, 0));
}

#[test]
fn a_port_leads_to_no_pod_before_it_is_granted() {
    let text = "{apiVersion: v1, kind: Pod, metadata: {name: p, namespace: a}, spec: {nodeName: n1, containers: [{name: c, ports: \
                [{containerPort: 80, hostPort: 8080}]}]}, status: {podIP: 10.0.0.1}}";
    let contents = Contents::from_texts([("a.yaml", text)]);
    let mut frontends = seen_from("n1", node_ports());
    frontends.follow(&contents, &Changes::Everything, |_| true);
    assert_eq!(frontends.table().frontends().count(), 0);
    let asked = frontends.asked_ports();
    assert_eq!((asked.len(), frontends.omissions().count()), (2, 2));
    assert!(frontends.grant(&contents, &asked, |_| true));
    assert_eq!((frontends.table().frontends().count(), frontends.omissions().count()), (2, 0));
    assert!(!frontends.grant(&contents, &asked, |_| true), "nothing has changed");
    assert!(frontends.grant(&contents, &GrantedPorts::new(), |_| true));
    assert_eq!(frontends.table().frontends().count(), 0);
}

#[test]
fn a_node_gives_a_bounded_number_of_its_ports_to_its_oldest_pods() {
    let pod = |name: &str, created: &str, first: u16| {
        let port = |port| format!("{{containerPort: {port}, hostPort: {port}}}");
        let ports: Vec<_> = (first..first + 200).map(port).collect();
        format!(
            "---\n{{apiVersion: v1, kind: Pod, metadata: {{name: {name}, namespace: a, creationTimestamp: '{created}'}}, \
             spec: {{nodeName: n1, containers: [{{name: c, ports: [{}]}}]}}, status: {{podIP: 10.0.0.1}}}}\n",
            ports.join(", ")
        )
    };
    let (old, new) = (pod("z", "2026-01-01T00:00:00Z", 300), pod("a", "2026-01-02T00:00:00Z", 600));
    let asked = compiled(&[&old, &new[..]].concat()).asked_ports();
    // Each port is on two addresses.
    let of = |name: &str| asked.values().filter(|it| it.name == name).count();
    assert_eq!((of("z"), of("a")), (400, 2 * (MOST_HOST_PORTS - 200)));
    let told = |found: &Frontends| {
        found.omissions().filter(|(_, it)| *it == Omission::TooManyHostPorts).count()
    };
    assert_eq!(told(&compiled(&[&old, &new[..]].concat())), 1, "each once");
    assert_eq!(told(&compiled(&old)), 0);
}
