//! The views of Services. They must agree with the table about every frontend and backend, and give a reason for all
//! others.

use manx_dataplane::services::Clients;

use super::*;
use crate::services::frontends::view::{ChoiceView, EndpointView, PortView, ServiceView};

/// Returns the view of every valid Service from a node.
pub(super) fn views(
    frontends: &Frontends,
    contents: &Contents,
    node: (&str, &NodePorts),
    admits: impl Fn(IpAddr) -> bool,
) -> Vec<ServiceView> {
    let services = contents.of_kind(Kind::Service);
    let names = services.map(|(key, _)| ObjectName::new(&key.namespace, &key.name));
    names.filter_map(|name| frontends.view(contents, &name, node, &admits)).collect()
}

/// Returns the answers of a node on the health-check ports of all valid Services.
pub(super) fn checks_seen_in(
    frontends: &Frontends,
    contents: &Contents,
    node: (&str, &NodePorts),
) -> HealthChecks {
    let services = contents.of_kind(Kind::Service);
    let of_service = |(key, _): (&ObjectKey, _)| {
        let name = ObjectName::new(&key.namespace, &key.name);
        let (port, endpoints) = frontends.health_check_view(contents, &name, node)?.ok()?;
        Some((port, HealthCheck { service: Arc::new(key.clone()), endpoints }))
    };
    services.filter_map(of_service).collect()
}

/// The backends of a frontend, the seconds of affinity, the treatment if there is no backend, and whether only some
/// clients are served.
type Viewed = (BTreeSet<Backend>, Option<u32>, WithoutBackend, bool);

/// An address and port, and whether the frontend is only for clients outside the cluster.
type Place = (FrontendKey, bool);

/// Returns the frontend at each address and port of Services, from a table.
pub(super) fn of_services(frontends: &Frontends) -> BTreeMap<Place, Viewed> {
    let is_services = |key: &FrontendKey| {
        let is_asked = !key.address.to_ip().is_unspecified();
        is_asked && !frontends.claims.first(key).unwrap().0.rank.is_pod
    };
    let mut all = BTreeMap::new();
    for (key, seen) in seen(frontends).into_iter().filter(|(key, _)| is_services(key)) {
        let (backends, affinity, without, _, _, outside) = seen;
        let frontend = frontends.table().frontend(&key).unwrap();
        let has_ranges = |it: &Frontend| it.clients != Clients::All;
        all.insert((key, false), (backends, affinity, without, has_ranges(frontend)));
        if let Some((backends, without)) = outside {
            let has_ranges = frontend.for_outside.as_deref().is_some_and(has_ranges);
            all.insert((key, true), (backends, affinity, without, has_ranges));
        }
    }
    all
}

/// Returns the frontend at each address and port, from views.
pub(super) fn seen_in(views: &[ServiceView]) -> BTreeMap<Place, Viewed> {
    let mut all = BTreeMap::new();
    for service in views {
        for (port, choice) in
            service.ports.iter().flat_map(|port| port.choices.iter().map(move |it| (port, it)))
        {
            let backends = choice
                .backends()
                .map(|it| Backend { address: it.address.into(), port: it.port.unwrap() });
            let backends: BTreeSet<Backend> = backends.collect();
            for frontend in choice.frontends.iter().filter(|it| it.taken_by.is_none()) {
                let key = FrontendKey {
                    address: frontend.address.into(),
                    protocol: port.protocol.number(),
                    port: frontend.port,
                };
                // Two ports of one Service may have the same number; the first one counts.
                let is_outside = frontend.kind.is_outside_alone();
                let has_ranges = frontend.has_source_ranges;
                all.entry((key, is_outside)).or_insert_with(|| {
                    (backends.clone(), service.affinity, choice.without_backend, has_ranges)
                });
            }
        }
    }
    all
}

const SLICE: &str = "{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, addressType: IPv4, ports: [{port: 80}], \
                     metadata: {labels: {kubernetes.io/service-name: s}, name: ";

fn told(spec: &str, endpoints: &[&str]) -> String {
    let objects = format!(
        "{{apiVersion: v1, kind: Node, metadata: {{name: n1, labels: {{{ZONE}: za}}}}}}\n---\n\
         {{apiVersion: v1, kind: Service, metadata: {{name: s}}, spec: {{{spec}}}}}\n"
    );
    let slice = |(index, endpoint): (usize, &&str)| {
        format!("---\n{SLICE}s{index}}}, endpoints: [{{{endpoint}}}]}}\n")
    };
    let text = endpoints.iter().enumerate().map(slice).fold(objects, |text, slice| text + &slice);
    let contents = Contents::from_texts([("a.yaml", text.as_str())]);
    let mut frontends = seen_from("n1", node_ports());
    frontends.follow(&contents, &Changes::Everything, |_| true);
    let found = views(&frontends, &contents, ("n1", &node_ports()), |_| true);
    let [ServiceView { ports, .. }] = found.as_slice() else { panic!("{found:?}") };
    let [PortView { choices, .. }] = ports.as_slice() else { panic!("{ports:?}") };
    let lines = choices.iter().flat_map(|choice: &ChoiceView| {
        choice.endpoints.iter().map(|EndpointView { address, left_out, .. }| {
            let why = left_out.map_or("a backend".to_owned(), |it| it.to_string());
            format!("{address}: {why}")
        })
    });
    lines.collect::<Vec<_>>().join("\n")
}

#[test]
fn each_endpoint_that_is_left_out_has_its_reason() {
    const IP: &str = "clusterIP: 10.96.0.1, ports: [{port: 80}]";
    let local = format!("{IP}, internalTrafficPolicy: Local");
    let leaving = "conditions: {ready: false, serving: true, terminating: true}";
    let four = |at: &str, last: &str| format!("addresses: [10.0.0.{at}], {last}");
    let not_ready = four("3", "conditions: {ready: false}");
    let (ready, leaves) = (four("1", "nodeName: n1"), four("2", leaving));
    let loopback = "addresses: [127.0.0.1]";
    insta::assert_snapshot!(told(IP, &[&ready, &leaves, &not_ready, loopback]), @"
    10.0.0.1: a backend
    10.0.0.2: it terminates, and others are ready
    10.0.0.3: not ready
    127.0.0.1: its address is loopback, link-local, multicast or reserved
    ");
    insta::assert_snapshot!(told(IP, &[&leaves, &not_ready]), @"
    10.0.0.2: a backend
    10.0.0.3: not ready
    ");
    let (here, there) = (four("4", "nodeName: n1"), four("5", "nodeName: n2"));
    insta::assert_snapshot!(told(&local, &[&here, &there]), @"
    10.0.0.4: a backend
    10.0.0.5: it is on another node, and the traffic policy is Local
    ");
    let zones = ["za", "zb"].map(|zone| format!("hints: {{forZones: [{{name: {zone}}}]}}"));
    let [near, far] = [four("6", &zones[0]), four("7", &zones[1])];
    insta::assert_snapshot!(told(IP, &[&near, &far]), @"
    10.0.0.6: a backend
    10.0.0.7: hints mean it for other zones
    ");
    let nodes = ["n1", "n2"].map(|node| format!("hints: {{forNodes: [{{name: {node}}}]}}"));
    let [near, far] = [four("8", &nodes[0]), four("9", &nodes[1])];
    insta::assert_snapshot!(told(IP, &[&near, &far]), @"
    10.0.0.8: a backend
    10.0.0.9: hints mean it for other nodes
    ");
    let named = IP.replace("port: 80", "name: web, port: 80");
    insta::assert_snapshot!(told(&named, &[&ready]), @"10.0.0.1: its slice has no port of this name and protocol");
    // This Service has no address yet.
    insta::assert_snapshot!(told("ports: [{port: 80}]", &[&ready, &not_ready]), @"
    10.0.0.1: a backend
    10.0.0.3: not ready
    ");
}
