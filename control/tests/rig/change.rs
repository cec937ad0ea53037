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

    let apply = |from: &str| {
        let file = bench.folder.path().join("web.yaml");
        let policy = format!(
            "apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {{name: web, namespace: demo}}\n\
             spec: {{podSelector: {{matchLabels: {{app: web}}}}, policyTypes: [Ingress], ingress: {from}}}\n"
        );
        fs::write(&file, policy).unwrap();
        let output = bench.manx(&["rig", "apply", file.to_str().unwrap(), "--output", "json"]);
        let report = json(&output);
        assert_eq!(output.status.code(), Some(0), "{:?}", deviations(&report));
    };
    apply("[]");
    assert_silent(&[both(&near), both(&far)].concat());
    apply("[{from: [{podSelector: {matchLabels: {app: client}}}]}]");
    assert_flows(&both(&far));
    assert_silent(&both(&near));
    apply("[{}]");
    assert_flows(&[both(&near), both(&far)].concat());
    // The same connections as before.
    assert_eq!((near.heard("lost"), far.heard("lost")), (0, 0));
}
