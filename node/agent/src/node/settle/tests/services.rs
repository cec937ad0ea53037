//! Services that Manx translates: the work that a change of them needs, and the delay that it causes for others.

use super::*;

/// The Service `s` of namespace `a`, at 10.96.0.9.
const SERVICE: usize = 0;
/// The number of external IPs that the tenant's Service has, one after the other.
const EXTERNAL_IPS: usize = 100;
/// The number of changes of the tenant's Service before the next turn.
const CHURN: u32 = 1000;

fn slice(namespace: &str, service: &str, address: Ipv4Addr) -> String {
    format!(
        "{{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {{name: {service}-1, namespace: {namespace}, labels: \
         {{kubernetes.io/service-name: {service}}}}}, addressType: IPv4, endpoints: [{{addresses: [{address}]}}], ports: [{{port: 80}}]}}"
    )
}

/// The only backend at an address of a service.
fn backend(node: &Node, address: &str) -> Option<Address> {
    let address = address.parse::<IpAddr>().unwrap().into();
    let key = FrontendKey { address, protocol: 6, port: 80 };
    let services = node.calculated.tables.services.as_ref()?;
    services.frontend(&key)?.backends.first().map(|it| it.address)
}

/// Tests a node whose directory has these objects.
fn with_node(objects: &[(&str, &str)], test: impl FnOnce(&mut Node, &Path)) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let _entered = runtime.enter();
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    let all = [("node-1", NODE), ("pool", text("pool", 0)), ("node-2", text("node-2", 0))];
    for (name, text) in all.iter().chain(objects) {
        write(directory, name, Some(text));
    }
    let mut node = Node::new(directory, false, &manx());
    node.settle();
    test(&mut node, directory);
}

fn store(node: &mut Node, directory: &Path, name: &str, text: Option<&str>) {
    write(directory, name, text);
    node.inputs.source.refresh().into_iter().for_each(|it| node.inputs.add_changes(it));
}

/// However often a tenant's Service changes between two turns, one turn takes all changes, and a neighbour's change with
/// them. That change waits only for the previous turn and its own turn, not for each of the tenant's changes.
#[test]
fn a_neighbours_change_waits_for_one_turn_however_often_a_service_changes() {
    let neighbour = "{apiVersion: v1, kind: Service, metadata: {name: web, namespace: b}, spec: {clusterIP: 10.96.0.8, ports: [{port: 80}]}}";
    let objects = [("service", text("service", SERVICE)), ("neighbour", neighbour)];
    with_node(&objects, |node, directory| {
        let at = |n: u32| Ipv4Addr::from_bits(0x0a02_0001 + n % 200);
        for n in 0..=CHURN {
            store(node, directory, "slice", Some(&slice("a", "s", at(n))));
        }
        store(node, directory, "neighbours", Some(&slice("b", "web", at(7))));
        let before = Arc::clone(&node.calculated.tables);
        let published = node.settle().tables.unwrap();
        assert_eq!(published.version, before.version);
        assert_eq!(backend(node, "10.96.0.9"), Some(IpAddr::from(at(CHURN)).into()));
        assert_eq!(backend(node, "10.96.0.8"), Some(IpAddr::from(at(7)).into()));
        assert!(node.settle().tables.is_none());
    });
}

/// The range has a route, so a Service in it needs no other route, and the routes of all Services are not even read.
#[test]
fn a_service_that_comes_in_a_range_changes_no_route() {
    with_node(&[], |node, directory| {
        for version in [Some(text("service", SERVICE)), None] {
            let before = Arc::clone(&node.calculated.tables);
            store(node, directory, "service", version);
            let unsettled = node.inputs.contents().objects.len();
            let Unsettled { objects, .. } = node.inputs.take_unsettled();
            let change = node.view.update_services(&node.inputs, objects.as_ref(), false);
            assert_eq!((change, unsettled > 0), (ServiceChange::None, true));
            let tables = node.calculated.replace_services(&node.view).unwrap();
            assert!(Arc::ptr_eq(&tables.routes, &before.routes));
            assert_eq!(tables.next_hop(IpAddr::from([10, 96, 0, 9]).into()), NextHop::Service);
        }
    });
}

/// An author of Services who may name external IPs changes only the routes to these, even with very many writes. The node
/// makes no other route again, and no tables.
#[test]
fn an_external_ip_changes_its_own_route_and_no_other() {
    let namespace = "{apiVersion: v1, kind: Namespace, metadata: {name: b}}";
    with_node(&[("namespace-b", namespace)], |node, directory| {
        let (version, updates) = (node.calculated.tables.version, node.host_updates);
        let address = |n: usize| IpAddr::from([192, 0, 2, n as u8]);
        let next_hop = |node: &Node, n: usize| node.calculated.tables.next_hop(address(n).into());
        let world = next_hop(node, 0);
        for n in 1..=EXTERNAL_IPS {
            let service = format!(
                "{{apiVersion: v1, kind: Service, metadata: {{name: e, namespace: b}}, spec: {{clusterIP: 10.96.0.7, externalIPs: [{}], \
             ports: [{{port: 80}}]}}}}",
                address(n)
            );
            store(node, directory, "external", Some(&service));
            node.settle();
            assert_eq!(node.calculated.tables.version, version, "{n}");
            let found = [n, n - 1].map(|n| next_hop(node, n));
            assert_eq!(found, [NextHop::Service, world]);
        }
        store(node, directory, "external", None);
        node.settle();
        assert_eq!(next_hop(node, EXTERNAL_IPS), world);
        let [all, single] = [0, 1].map(|at| node.host_updates[at] - updates[at]);
        assert_eq!((all, single), (0, 2 * EXTERNAL_IPS), "each is set once and removed once");
    });
}

/// In either order, a pod outside of pools whose object names a cluster IP in a range gets no packets of the Service.
#[test]
fn a_pod_takes_no_cluster_ip_of_a_range() {
    let pod = "{apiVersion: v1, kind: Pod, metadata: {name: q, namespace: a}, spec: {nodeName: n2, containers: [{name: c}]}, status: {podIP: 10.96.0.9}}";
    let mut both = [("there", pod), ("service", text("service", SERVICE))];
    for _ in 0..2 {
        with_node(&[], |node, directory| {
            let mut next_hops = Vec::new();
            for (name, text) in both {
                store(node, directory, name, Some(text));
                node.settle();
                next_hops
                    .push(node.calculated.tables.next_hop(IpAddr::from([10, 96, 0, 9]).into()));
            }
            assert_eq!(next_hops[1], NextHop::Service, "{both:?}");
            let is_first = both[0].0 == "there";
            assert_eq!(
                next_hops[0] != NextHop::Service,
                is_first,
                "the pod has it without a Service"
            );
        });
        both.reverse();
    }
}
