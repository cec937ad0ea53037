//! JSON outputs have a version, and no field that docs/json.md does not name.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use serde_json::Value;

use crate::bench::{Bench, json};

/// Objects whose keys are names of the user or of the dataplane, and not fields.
const BY_NAME: [&str; 2] = ["parties", "drops"];

/// A Service with an address, an endpoint and a port that are all left out.
const SERVICES: &str = "
{apiVersion: v1, kind: Node, metadata: {name: n1}, spec: {podCIDR: 10.244.1.0/24}, status: {addresses: [{type: InternalIP, address: 172.18.0.2}]}}
---
{apiVersion: v1, kind: Service, metadata: {name: web}, spec: {type: NodePort, clusterIP: 10.96.0.7, externalIPs: [192.0.2.7], ports: [{name: http, port: 80, nodePort: 30080}, {name: ssh, port: 22, nodePort: 22}]}}
---
{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {name: web-1, labels: {kubernetes.io/service-name: web}}, addressType: IPv4, endpoints: [{addresses: [10.244.1.2], conditions: {ready: false}}], ports: [{name: http, port: 80}]}
";

/// The names of all fields within a value.
fn fields(value: &Value, found: &mut BTreeSet<String>) {
    match value {
        Value::Array(values) => values.iter().for_each(|value| fields(value, found)),
        Value::Object(members) => {
            for (name, value) in members {
                found.insert(name.clone());
                match value {
                    Value::Object(named) if BY_NAME.contains(&name.as_str()) => {
                        named.values().for_each(|value| fields(value, found));
                    }
                    other => fields(other, found),
                }
            }
        }
        _ => {}
    }
}

#[test]
fn every_field_of_every_output_is_documented() {
    let Some(bench) = Bench::new() else { return };
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let page = fs::read_to_string(root.join("docs/json.md")).unwrap()
        + &fs::read_to_string(root.join("docs/matrix.md")).unwrap();
    let started = bench.run(&["--keep", "--ttl", "5m", "--output", "json"]);
    let rig = bench.rig();
    let bad = bench.folder.path().join("bad.yaml");
    let pod = "{apiVersion: v1, kind: Pod, metadata: {name: x}, spec: {nodeName: 5}}";
    fs::write(&bad, pod).unwrap();
    let services = bench.folder.path().join("services.yaml");
    fs::write(&services, SERVICES).unwrap();
    let [rig, bad, services] = [&rig, &bad, &services].map(|path| path.to_str().unwrap());
    let asked = ["policy", "explain", "--port", "tcp/80", "--to", "demo/web", "--from"];
    let outputs = [
        ("rig run", started),
        (
            "rig apply",
            bench.manx(&[
                "rig",
                "apply",
                "--rig",
                "demo",
                "-o",
                "json",
                &format!("{rig}/policies.yaml"),
            ]),
        ),
        ("status", bench.manx(&["status", "-o", "json", "--socket", &bench.socket(0)])),
        (
            "node status",
            bench.manx(&["node", "status", "-o", "json", "--socket", &bench.socket(0)]),
        ),
        ("routes", bench.manx(&["routes", "-o", "json", "--socket", &bench.socket(0)])),
        ("status of a rig", bench.manx(&["status", "-o", "json", "--rig", "demo"])),
        ("rig list", bench.manx(&["rig", "list", "-o", "json"])),
        ("rig status", bench.manx(&["rig", "status", "-o", "json"])),
        ("doctor", bench.manx(&["doctor", "-o", "json"])),
        ("check", bench.manx(&["policy", "check", "-o", "json", bad, rig])),
        ("explain", bench.manx(&[&asked[..], &["demo/client", "-o", "json", rig]].concat())),
        ("explain", bench.manx(&[&asked[..], &["demo/*", "-o", "json", rig]].concat())),
        ("prove", bench.manx(&["policy", "prove", "-o", "json", rig])),
        ("service list", bench.manx(&["service", "list", "-o", "json", services])),
        ("service show", bench.manx(&["service", "show", "-o", "json", "web", services])),
        ("matrix", bench.manx(&["policy", "matrix", "-o", "json", rig])),
    ];
    let mut missing = BTreeSet::new();
    for (command, output) in &outputs {
        let value = json(output);
        assert_eq!(value["schemaVersion"], 1, "{command}");
        let mut found = BTreeSet::new();
        fields(&value, &mut found);
        assert!(found.len() > 2, "{command}: {value:#}");
        let named = |field: &str| {
            [
                format!("`{field}`"),
                format!("`{field}[]`"),
                format!(".{field}`"),
                format!(".{field}[]`"),
            ]
            .iter()
            .any(|text| page.contains(text))
        };
        missing
            .extend(found.into_iter().filter(|it| !named(it)).map(|it| format!("{command}: {it}")));
    }
    assert!(missing.is_empty(), "not in docs/json.md: {missing:#?}");
}
