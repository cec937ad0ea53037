//! Tables that the proof refutes: the tables in use stay, and the status describes them.

use super::*;

/// The tables are calculated from the cluster before this object, and compared with the objects after it.
const LATER: &str = "{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: p, namespace: a}, spec: {podSelector: {}, policyTypes: [Ingress]}}";

#[test]
fn the_routes_that_are_told_are_those_in_use_and_not_those_of_refuted_tables() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let _entered = runtime.enter();
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    let objects = [("node-1", NODE), ("pool", text("pool", 0)), ("here-0", text("here-0", 0))];
    for (name, text) in objects {
        write(directory, name, Some(text));
    }
    let mut node = Node::new(directory, true, &ServiceTranslator::KubeProxy);
    node.happen(directory, &Event::Pod(0, true));
    node.settle();
    let (tables, routes) = (Arc::clone(&node.calculated.tables), node.calculated.routes());
    assert!(tables.version > 0 && !routes.is_empty());
    write(directory, "later", Some(LATER));
    node.inputs.source.refresh().into_iter().for_each(|it| node.inputs.add_changes(it));
    for refuted in 1..=2 {
        node.view.own_addresses.insert(IpNet::from(IpAddr::from([192, 0, 2, refuted])));
        let Node { inputs, view, calculated, locals, .. } = &mut node;
        assert!(calculated.calculate_tables(inputs, view, &locals.iter().collect()).is_none());
        assert!(calculated.is_refuted() && Arc::ptr_eq(&calculated.tables, &tables));
        assert_eq!(calculated.routes(), routes);
    }
    node.settle();
    assert!(!node.calculated.is_refuted());
    assert_eq!(
        node.calculated.routes().len(),
        node.calculated.calculation.current_routes().count()
    );
}
