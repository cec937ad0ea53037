//! The truth table of a rig: what changed since the run before, ports that no container declares, and pods on the
//! host's network.

use std::fs;

use serde_json::Value;

use crate::bench::{Bench, deviations, json};

/// A policy that replaces the template's: every pod of the namespace accepts connections.
const OPEN: &str = "
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: web, namespace: demo}
spec: {podSelector: {}, ingress: [{}]}
";

#[test]
fn apply_prints_what_changed_in_the_table_and_then_that_nothing_did() {
    let Some(bench) = Bench::new() else { return };
    let output = bench.run(&["--keep", "--ttl", "5m"]);
    assert_eq!(output.status.code(), Some(0));
    let first = String::from_utf8(output.stdout).unwrap();
    assert!(!first.contains("changed") && first.contains("to demo/web"), "{first}");
    let open = bench.folder.path().join("open.yaml");
    fs::write(&open, OPEN).unwrap();
    let apply = |more: &[&str]| {
        let all = [&["rig", "apply", "--rig", "demo", open.to_str().unwrap()], more].concat();
        let output = bench.manx(&all);
        assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
        output
    };
    let said = String::from_utf8(apply(&[]).stdout).unwrap();
    assert!(said.contains("8 cells of 58 changed in the truth table"), "{said}");
    assert!(said.contains("denied -> allowed") && said.contains("denied -> refused"), "{said}");
    assert!(!said.contains("to its own node") && !said.contains("to outside"), "{said}");
    let said = String::from_utf8(apply(&[]).stdout).unwrap();
    assert!(said.starts_with("nothing changed in the truth table of 58 cells\n"), "{said}");
    assert!(!said.contains("to demo/web"), "{said}");
    let said = String::from_utf8(apply(&["--table"]).stdout).unwrap();
    assert!(said.contains("nothing changed") && said.contains("to demo/web"), "{said}");
    fs::copy(bench.rig().join("policies.yaml"), &open).unwrap();
    let report = json(&apply(&["--output", "json"]));
    let changes = report["changes"].as_array().unwrap();
    assert_eq!(changes.len(), 8);
    assert!(changes.iter().all(|it| it["destination"] == "demo/web"
        && it["after"]["expected"] == "denied"
        && it["before"]["expected"] != "denied"));
    assert_eq!(bench.manx(&["rig", "down", "demo"]).status.code(), Some(0));
    bench.assert_nothing_left();
}

/// The destinations' services that were probed, with whether something listens.
fn services(report: &Value, destination: &str) -> Vec<(String, bool)> {
    let probes = report["probes"].as_array().unwrap().iter();
    let mut services: Vec<(String, bool)> = probes
        .filter(|probe| probe["destination"] == destination)
        .map(|probe| {
            let port = &probe["service"]["port"];
            let name = match port["number"].as_u64() {
                Some(number) => format!("{} {number}", port["protocol"].as_str().unwrap()),
                None => "echo".to_owned(),
            };
            (name, probe["listening"] == true)
        })
        .collect();
    services.sort();
    services.dedup();
    services
}

#[test]
fn ports_of_rig_yaml_listen_and_those_that_policies_name_are_probed() {
    let Some(bench) = Bench::new() else { return };
    fs::write(
        bench.rig().join("rig.yaml"),
        "ports:\n- {workload: demo/web, ports: [53/UDP]}\n- {selector: {app: stranger}, ports: [81]}\n",
    )
    .unwrap();
    fs::write(
        bench.rig().join("more.yaml"),
        "{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: more, namespace: demo}, \
         spec: {podSelector: {matchLabels: {app: web}}, ingress: [{ports: [{port: 90, endPort: 95}]}]}}",
    )
    .unwrap();
    let output = bench.run(&["--output", "json"]);
    let report = json(&output);
    assert_eq!(deviations(&report), Vec::<String>::new());
    let of = |all: &[(&str, bool)]| -> Vec<(String, bool)> {
        all.iter().map(|(name, open)| ((*name).to_owned(), *open)).collect()
    };
    let web = [
        ("TCP 8080", true),
        ("TCP 9", false),
        ("TCP 90", false),
        ("TCP 95", false),
        ("UDP 53", true),
        ("UDP 9", false),
        ("echo", true),
    ];
    assert_eq!(services(&report, "demo/web"), of(&web));
    let stranger = [("TCP 81", true), ("TCP 9", false), ("echo", true)];
    assert_eq!(services(&report, "demo/stranger"), of(&stranger));

    fs::write(bench.rig().join("rig.yaml"), "ports:\n- {workload: demo/nobody, ports: [80]}\n")
        .unwrap();
    let output = bench.run(&[]);
    assert_eq!(output.status.code(), Some(2));
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains("rig.yaml:2:3: no pod matches workload demo/nobody"), "{said}");
    bench.assert_nothing_left();
}

/// A pod on each node's network, a second one with the same port, and a policy that lets in only
/// the address with which the other node sends through the tunnel.
const HOST_PODS: &str = "
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: exporter, namespace: demo}
spec:
  selector: {matchLabels: {app: exporter}}
  template:
    metadata: {labels: {app: exporter}}
    spec: {hostNetwork: true, containers: [{name: e, image: none, ports: [{containerPort: 9100}]}]}
---
apiVersion: v1
kind: Pod
metadata: {name: second, namespace: demo}
spec:
  hostNetwork: true
  nodeName: node-1
  containers: [{name: e, image: none, ports: [{containerPort: 9100}, {containerPort: 8080}]}]
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: client, namespace: demo}
spec: {podSelector: {matchLabels: {app: client}}, ingress: [{from: [{ipBlock: {cidr: ADDRESS/32}}]}]}
";

#[test]
fn pods_on_the_hosts_network_are_probed_as_their_node() {
    let Some(bench) = Bench::new() else { return };
    let nodes = fs::read_to_string(bench.rig().join("nodes.yaml")).unwrap();
    // Through a tunnel a node sends from the second address of its pods' range, otherwise from its
    // own address.
    for (mode, address) in [("Always", "10.244.1.1"), ("Never", "172.18.0.2")] {
        fs::write(bench.rig().join("host.yaml"), HOST_PODS.replace("ADDRESS", address)).unwrap();
        let nodes = nodes.replace("ipipMode: Always", &format!("ipipMode: {mode}"));
        fs::write(bench.rig().join("nodes.yaml"), nodes).unwrap();
        let report = json(&bench.run(&["--output", "json"]));
        assert_eq!(deviations(&report), Vec::<String>::new(), "{mode}");
        let probes = report["probes"].as_array().unwrap();
        let seen = |from: &str, to: &str| -> Vec<&Value> {
            let of = probes.iter().filter(|it| it["source"] == from && it["destination"] == to);
            of.map(|it| &it["observed"]["clear"]).collect()
        };
        // The policy lets in the other node's pod by its address.
        assert_eq!(seen("demo/exporter-node-1", "demo/client"), ["refused", "allowed"], "{mode}");
        assert_eq!(seen("demo/stranger", "demo/client"), ["denied", "denied"], "{mode}");
        let across = seen("demo/client", "demo/exporter-node-1").len();
        assert_eq!(across, if mode == "Never" { 3 } else { 0 }, "{mode}");
        assert_eq!(
            services(&report, "demo/second"),
            [("TCP 8080", true), ("TCP 9", false), ("echo", true)]
                .map(|(name, open)| (name.to_owned(), open))
        );
        let notes = report["notes"].as_array().unwrap();
        let note = notes[0].as_str().unwrap();
        assert!(
            note.ends_with("TCP 9100 of demo/second on node/node-1: demo/exporter-node-1 listens"),
            "{note}"
        );
        assert_eq!(notes.len(), if mode == "Never" { 1 } else { 2 }, "{notes:?}");
    }
    bench.assert_nothing_left();
}
