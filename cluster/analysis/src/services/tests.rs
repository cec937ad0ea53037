//! The list examines only some nodes. The result must be the same as for all nodes.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};

use proptest::collection::{btree_set, vec};
use proptest::option::of;
use proptest::prelude::*;
use proptest::sample::select as one_of;
use proptest::test_runner::{Config, TestRunner};

use super::*;

/// Returns six nodes, of which two have no zone.
fn nodes() -> String {
    let zones = ["a", "a", "b", "b", "", ""];
    let node = |(index, zone): (usize, &&str)| {
        let labels = if zone.is_empty() { String::new() } else { format!("{ZONE}: {zone}") };
        format!(
            "{{apiVersion: v1, kind: Node, metadata: {{name: n{index}, labels: {{{labels}}}}}, spec: {{podCIDR: 10.1.{index}.0/24}}, \
             status: {{addresses: [{{type: InternalIP, address: 172.18.0.{index}}}]}}}}\n---\n"
        )
    };
    zones.iter().enumerate().map(node).collect()
}

const ZONE: &str = "topology.kubernetes.io/zone";
const NODES: &[&str] = &["n0", "n1", "n2", "n4", "n9"];

fn endpoint() -> impl Strategy<Value = String> {
    let names = |of: &'static [&'static str]| {
        btree_set(one_of(of), 1..3).prop_map(|names| {
            let names = names.into_iter().map(|name| format!("{{name: {name}}}"));
            names.collect::<Vec<_>>().join(", ")
        })
    };
    let conditions = one_of(vec![
        "",
        "",
        "conditions: {ready: false}, ",
        "conditions: {ready: false, serving: true, terminating: true}, ",
    ]);
    let node = of(one_of(NODES));
    (1..9u8, conditions, node, of(names(NODES)), of(names(&["a", "b", "c"]))).prop_map(
        |(address, conditions, node, for_nodes, for_zones)| {
            let node = node.map(|it| format!("nodeName: {it}, ")).unwrap_or_default();
            let hints = [("forNodes", for_nodes), ("forZones", for_zones)]
                .map(|(key, names)| format!("{key}: [{}]", names.unwrap_or_default()));
            format!(
                "{{{conditions}{node}hints: {{{}}}, addresses: [10.9.0.{address}]}}",
                hints.join(", ")
            )
        },
    )
}

#[test]
fn the_list_says_of_all_nodes_what_asking_each_of_them_says() {
    let (alike, different) = (Cell::new(0), Cell::new(0));
    let services = (vec(endpoint(), 0..6), any::<bool>());
    let config = Config { cases: 300, failure_persistence: None, ..Config::default() };
    let run = |(endpoints, is_local): (Vec<String>, bool)| {
        let policy = if is_local { "Local" } else { "Cluster" };
        let text = format!(
            "{}{{apiVersion: v1, kind: Service, metadata: {{name: s}}, \
             spec: {{clusterIP: 10.96.0.7, internalTrafficPolicy: {policy}, ports: [{{port: 80}}]}}}}\n---\n\
             {{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {{name: s1, labels: {{kubernetes.io/service-name: s}}}}, \
             addressType: IPv4, ports: [{{port: 80}}], endpoints: [{}]}}\n",
            nodes(),
            endpoints.join(", ")
        );
        let contents = Contents::from_texts([("a.yaml", text.as_str())]);
        prop_assert!(contents.problems.is_empty(), "{:?}", contents.problems);
        let tables = ServiceTables::new(&contents, AgentSettings::default(), None).unwrap();
        let [row] = tables.rows(&[]).unwrap().try_into().unwrap();
        let shown = tables.shown(&ObjectName::new("default", "s")).unwrap();
        prop_assert_eq!(shown.nodes.len(), 6);
        let ends = shown.ports[0].groups.iter().flat_map(|it| it.endpoints.iter());
        // The nodes whose clients get each address.
        let mut nodes: BTreeMap<IpAddr, BTreeSet<usize>> = BTreeMap::new();
        for ((address, ..), fate) in ends {
            nodes.entry(*address).or_default().extend(&fate.backend_for);
        }
        prop_assert_eq!(row.backends, nodes.values().filter(|it| !it.is_empty()).count());
        prop_assert_eq!(row.endpoints, nodes.len());
        let differs = nodes.values().any(|it| !matches!(it.len(), 0 | 6));
        let told = row.notes.iter().any(|it| it == "nodes have different backends");
        prop_assert_eq!(told, differs);
        let count = if differs { &different } else { &alike };
        count.set(count.get() + 1);
        Ok(())
    };
    TestRunner::new(config).run(&services, run).unwrap();
    assert!(alike.get() > 30 && different.get() > 30, "{alike:?} {different:?}");
}
