//! Policy that changes while connections are open.

use std::fs;

use crate::bench::{Bench, deviations, json};
use crate::traffic::{Talker, assert_flows, assert_silent};

#[test]
fn a_change_of_policy_stops_an_open_connection_and_lets_it_go_on() {
    let Some(bench) = Bench::new() else { return };
    bench.keep_open(&[]);
    let web = bench.address(0, "demo/web");
    let _at_web = Talker::start(&bench, "demo/web", &[]);
    let near = Talker::start(&bench, "demo/stranger", &[web]);
    let far = Talker::start(&bench, "demo/client", &[web]);
    let both = |talker| ["tcp", "udp"].map(|transport| (talker, format!("back {transport} {web}")));
    assert_flows(&[both(&near), both(&far)].concat());

    let web_takes = |from: &str| {
        let policy = format!(
            "apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {{name: web, namespace: demo}}\n\
             spec: {{podSelector: {{matchLabels: {{app: web}}}}, policyTypes: [Ingress], ingress: {from}}}\n"
        );
        apply(&bench, &policy);
    };
    web_takes("[]");
    assert_silent(&[both(&near), both(&far)].concat());
    web_takes("[{from: [{podSelector: {matchLabels: {app: client}}}]}]");
    assert_flows(&both(&far));
    assert_silent(&both(&near));
    web_takes("[{}]");
    assert_flows(&[both(&near), both(&far)].concat());
    // The same connections as before.
    assert_eq!((near.heard("lost"), far.heard("lost")), (0, 0));
}

#[test]
fn a_pod_that_is_relabelled_loses_and_gets_back_its_open_connections() {
    let Some(bench) = Bench::new() else { return };
    // Beside the template's policy, which lets the client reach web's port only: everything from the client.
    let open = "apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {name: open, namespace: demo}\n\
                spec: {podSelector: {matchLabels: {app: web}}, ingress: [{from: [{podSelector: {matchLabels: {app: client}}}]}]}\n";
    fs::write(bench.rig().join("open.yaml"), open).unwrap();
    assert_eq!(bench.run(&["--keep", "--ttl", "5m"]).status.code(), Some(0));
    let web = bench.address(0, "demo/web");
    let _at_web = Talker::start(&bench, "demo/web", &[]);
    let near = Talker::start(&bench, "demo/stranger", &[web]);
    let far = Talker::start(&bench, "demo/client", &[web]);
    let both = |talker| ["tcp", "udp"].map(|transport| (talker, format!("back {transport} {web}")));
    assert_flows(&both(&far));
    assert_silent(&both(&near));

    let label = |pod: &str, node: &str, app: &str| {
        let ports = if pod == "web" { "[{name: http, containerPort: 8080}]" } else { "[]" };
        let pod = format!(
            "apiVersion: v1\nkind: Pod\nmetadata: {{name: {pod}, namespace: demo, labels: {{app: {app}}}}}\n\
             spec: {{nodeName: {node}, containers: [{{name: c, image: none, ports: {ports}}}]}}\n"
        );
        apply(&bench, &pod);
    };
    // At the other end of the connection, on another node.
    label("client", "node-2", "other");
    assert_silent(&[both(&far), both(&near)].concat());
    label("client", "node-2", "client");
    assert_flows(&both(&far));
    assert_silent(&both(&near));
    // At this end: no policy selects it any more.
    label("web", "node-1", "other");
    assert_flows(&[both(&far), both(&near)].concat());
    label("web", "node-1", "web");
    assert_flows(&both(&far));
    assert_silent(&both(&near));
    assert_eq!(far.heard("lost"), 0);
}

/// Takes objects into the rig; its probes must then be as the oracle says.
fn apply(bench: &Bench, objects: &str) {
    let file = bench.folder.path().join("change.yaml");
    fs::write(&file, objects).unwrap();
    let output = bench.manx(&["rig", "apply", file.to_str().unwrap(), "--output", "json"]);
    let report = json(&output);
    assert_eq!(output.status.code(), Some(0), "{:?}", deviations(&report));
}
