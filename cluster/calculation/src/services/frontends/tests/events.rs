//! Generated changes of a cluster's objects.

use manx_objects::object::{ClientAffinity, ContainerPort, EndpointPort, HostPort, NodeBgp, Phase};
use proptest::collection::{btree_set, vec};
use proptest::option::{of, weighted};
use proptest::sample::select as one_of;

use super::*;

const NODES: &[&str] = &["n1", "n2"];
const ZONES: &[&str] = &["za", "zb"];
const NAMESPACES: &[&str] = &["a", "a", "a", "b"];
const NAMES: &[&str] = &["s", "t"];

/// Returns a pod in the form of the reader, without an address.
fn empty_pod() -> Pod {
    let text = "{apiVersion: v1, kind: Pod, metadata: {name: p}, spec: {containers: []}}";
    let manifest = manx_objects::read("a.yaml", text).unwrap();
    let Some(Object::Pod(pod)) = manifest.entries[0].state.valid() else { panic!("a pod") };
    (**pod).clone()
}

fn pod() -> impl Strategy<Value = Pod> {
    let port = |protocol, port, address: Option<&str>| {
        let host = Some(HostPort { port, address: address.map(ip) });
        ContainerPort { name: None, port: 8080, protocol, host }
    };
    let without = ContainerPort { name: None, port: 8080, protocol: None, host: None };
    let ports = vec(
        one_of(vec![
            without,
            port(None, 80, None),
            port(None, 80, Some("127.0.0.1")),
            port(Some(Protocol::Udp), 53, Some("172.18.0.2")),
            port(Some(Protocol::Tcp), 30_080, None),
            port(None, 31_000, None),
            port(None, 81, Some("172.18.0.9")),
            port(None, 65_535, None),
        ]),
        0..3,
    );
    let phase = one_of(vec![None, None, None, Some(Phase::Running), Some(Phase::Failed)]);
    let created = one_of(vec!["", "2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z"]);
    (btree_set(one_of(ENDS), 0..3), ports, one_of(&["n1", "n1", "n2"][..]), phase, created)
        .prop_map(|(addresses, ports, node, phase, created)| Pod {
            pod_ips: ips(&addresses).into_iter().collect(),
            node_name: Some(node.to_owned()),
            created: Created::parse(created),
            phase,
            containers: vec![ports],
            ..empty_pod()
        })
}

fn port() -> impl Strategy<Value = ServicePort> {
    let port = |name: Option<&str>, protocol, port, node_port| ServicePort {
        name: name.map(str::to_owned),
        protocol,
        port,
        target: None,
        node_port,
    };
    one_of(vec![
        port(None, None, 80, None),
        port(Some("http"), Some(Protocol::Tcp), 80, Some(30_080)),
        port(Some("dns"), Some(Protocol::Udp), 53, Some(30_080)),
        port(Some("sctp"), Some(Protocol::Sctp), 80, Some(22)),
    ])
}

fn service() -> impl Strategy<Value = Service> {
    let kind = one_of(vec![
        None,
        Some(ServiceType::LoadBalancer),
        Some(ServiceType::LoadBalancer),
        Some(ServiceType::ExternalName),
    ]);
    let created = one_of(vec!["", "2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z"]);
    let labels = one_of(vec!["", "", "", "", OTHER_PROXY, HEADLESS]);
    let several = || btree_set(one_of(ADDRESSES), 1..3);
    let external = prop_oneof![2 => Just(BTreeSet::new()), 1 => several()];
    let addresses = ([several(), several()], external);
    let nets = |texts: &'static [&'static str]| -> Vec<IpNet> {
        texts.iter().map(|it| it.parse().unwrap()).collect()
    };
    let ranges =
        one_of(vec![nets(&[]), nets(&["192.0.2.0/24", "10.0.0.0/32"]), nets(&["fd00::/8"])]);
    let health = one_of(vec![None, Some(31_000), Some(31_000), Some(30_080), Some(22)]);
    let maglev = prop::bool::weighted(0.3);
    let rest =
        (any::<bool>(), of(of(1..9u32)), prop::bool::weighted(0.1), any::<bool>(), ranges, health);
    (kind, created, labels, vec(port(), 1..3), addresses, maglev, rest).prop_map(
        |(service_type, created, label, ports, addresses, maglev, rest)| {
            let ([cluster_ips, vips], external_ips) = addresses;
            let (internal_local, affinity, headless, keeps_clients, source_ranges, health) = rest;
            let labels = Some((label.to_owned(), String::new())).filter(|_| !label.is_empty());
            Service {
                labels: labels.into_iter().collect(),
                created: Created::parse(created),
                service_type,
                ports,
                cluster_ips: ips(&cluster_ips),
                external_ips: ips(&external_ips),
                maglev,
                addresses: ips(&external_ips),
                load_balancer_vips: ips(&vips),
                internal_local,
                keeps_clients,
                source_ranges,
                health_check_port: health,
                client_affinity: affinity.map(|timeout| ClientAffinity { timeout }),
                headless,
                ..Service::default()
            }
        },
    )
}

fn names(of: &'static [&'static str]) -> impl Strategy<Value = Box<[Box<str>]>> {
    btree_set(one_of(of), 0..=2).prop_map(|it| it.into_iter().map(Box::from).collect())
}

fn endpoint(hinted: f64) -> impl Strategy<Value = SliceEndpoint> {
    let conditions = one_of(vec![
        [true, true, false],
        [true, true, false],
        [false, true, true],
        [false, false, true],
        [false, false, false],
    ]);
    let hints = weighted(hinted, (names(NODES), names(ZONES)));
    (one_of(ENDS), conditions, of(one_of(NODES)), hints).prop_map(
        |(address, [ready, serving, terminating], node, hints)| {
            let hints = hints.map(|(nodes, zones)| Arc::new(Hints { nodes, zones }));
            let node = node.map(Arc::from);
            SliceEndpoint { address: ip(address), ready, serving, terminating, node, hints }
        },
    )
}

fn slice() -> impl Strategy<Value = EndpointSlice> {
    let ports = vec(port(), 2..5).prop_map(|all| {
        let number = |it: &ServicePort| 8000 + it.port;
        let port = |it: ServicePort| EndpointPort {
            port: number(&it),
            name: it.name,
            protocol: it.protocol.unwrap_or(Protocol::Tcp),
        };
        all.into_iter().map(port).collect()
    });
    let endpoints = prop_oneof![vec(endpoint(0.3), 0..6), vec(endpoint(0.95), 1..4)];
    (weighted(0.9, one_of(NAMES)), endpoints, ports).prop_map(|(service, mut endpoints, ports)| {
        // All endpoints must be of one family, as the `addressType` requires.
        let is_v4 = endpoints.first().is_some_and(|it| it.address.is_ipv4());
        endpoints.retain(|it| it.address.is_ipv4() == is_v4);
        EndpointSlice {
            service: service.map(str::to_owned),
            addresses: endpoints.iter().map(|it| it.address).collect(),
            endpoints: endpoints.into(),
            ports,
        }
    })
}

fn node() -> impl Strategy<Value = Node> {
    (of(one_of(ZONES)), btree_set(one_of(ENDS), 0..2)).prop_map(|(zone, addresses)| Node {
        labels: zone.map(|zone| (ZONE.to_owned(), zone.to_owned())).into_iter().collect(),
        pod_cidrs: Vec::new(),
        internal_ips: ips(&addresses).into_iter().collect(),
        external_ips: Vec::new(),
        calico_address: None,
        tunnel_addresses: Vec::new(),
        vxlan_mac: None,
        bgp: NodeBgp::default(),
        is_leaving: false,
    })
}

/// A change of an object, or of the addresses that may not be a service's.
#[derive(Debug, Clone)]
pub(in crate::services) enum Event {
    Object(ObjectKey, Option<State>),
    NotAdmitted(BTreeSet<&'static str>),
}

pub(in crate::services) fn event() -> impl Strategy<Value = Event> {
    let state = |object: BoxedStrategy<Object>| {
        prop_oneof![
            24 => object.prop_map(|it| Some(valid(it))),
            4 => Just(None),
            1 => Just(Some(State::Invalid(Box::default()))),
        ]
    };
    let key = |kind, namespaces: &'static [&'static str], names: &'static [&'static str]| {
        (one_of(namespaces), one_of(names))
            .prop_map(move |(namespace, name): (&str, &str)| ObjectKey::new(kind, namespace, name))
    };
    let services = service().prop_map(|it| Object::Service(Box::new(it))).boxed();
    let slices = slice().prop_map(|it| Object::EndpointSlice(Box::new(it))).boxed();
    let nodes = node().prop_map(|it| Object::Node(Box::new(it))).boxed();
    let pods = pod().prop_map(|it| Object::Pod(Box::new(it))).boxed();
    let object = |(key, state)| Event::Object(key, state);
    prop_oneof![
        5 => (key(Kind::Service, NAMESPACES, NAMES), state(services)).prop_map(object),
        8 => (key(Kind::EndpointSlice, NAMESPACES, &["x", "y", "z", "s"]), state(slices)).prop_map(object),
        2 => (key(Kind::Node, &[""], NODES), state(nodes)).prop_map(object),
        2 => (key(Kind::Pod, NAMESPACES, NAMES), state(pods)).prop_map(object),
        1 => btree_set(one_of(ADDRESSES), 0..2).prop_map(Event::NotAdmitted),
    ]
}
