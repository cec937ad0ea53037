//! Agents that prove their tables before they publish them, and that report the loaded objects and
//! the counters.

use std::fs;

use crate::bench::{Bench, deviations, json};

#[test]
fn agents_prove_their_tables_and_explain_by_what_they_have_loaded() {
    let Some(bench) = Bench::new() else { return };
    let rig = bench.rig();
    let run = ["rig", "run", rig.to_str().unwrap(), "--no-samples", "--keep", "--output", "json"];
    let output = bench.command(&run).env("MANX_VERIFY_TABLES", "true").output().unwrap();
    let report = json(&output);
    assert_eq!(deviations(&report), Vec::<String>::new());
    assert_eq!(output.status.code(), Some(0));
    for node in 0..2 {
        let status =
            json(&bench.manx(&["status", "--output", "json", "--socket", &bench.socket(node)]));
        let proved = &status["verification"]["proved"];
        assert!(proved["questions"].as_u64().unwrap() > 0, "{status:#}");
        assert!(status["policy"]["chains"].as_u64().unwrap() > 0, "{status:#}");
    }
    for (from, code) in [("demo/client", 0), ("demo/stranger", 1), ("demo/nobody", 2)] {
        let port = "tcp/8080";
        let question = ["policy", "explain", "--from", from, "--to", "demo/web", "--port", port];
        let mut explain = bench.command(&question);
        let told = explain.args(["--output", "json", "--socket", &bench.socket(0)]);
        let told = told.output().unwrap();
        assert_eq!(told.status.code(), Some(code), "{from}: {told:?}");
        if code < 2 {
            let story = json(&told);
            assert_eq!(story["allowed"], code == 0);
            let policy = &story["ingress"]["tiers"][0]["policies"][0]["name"];
            assert_eq!(policy, "demo/web");
        }
    }
    assert_eq!(bench.manx(&["rig", "down", "demo"]).status.code(), Some(0));
    bench.assert_nothing_left();
}

/// A policy without rules, which would isolate its pods if it were enforced.
const STAGED: &str = "
apiVersion: projectcalico.org/v3
kind: StagedNetworkPolicy
metadata: {name: silent, namespace: demo}
spec: {selector: app == 'stranger', types: [Egress]}
";

#[test]
fn what_the_end_of_a_tier_of_staged_policies_would_deny_is_counted_and_explained() {
    let Some(bench) = Bench::new() else { return };
    fs::write(bench.rig().join("staged.yaml"), STAGED).unwrap();
    let output = bench.run(&["--keep", "--ttl", "5m", "--output", "json"]);
    assert_eq!(deviations(&json(&output)), Vec::<String>::new());
    let socket = bench.socket(0);
    let status = json(&bench.manx(&["status", "--output", "json", "--socket", &socket]));
    let [counted] = status["noted"].as_array().unwrap().as_slice() else { panic!("{status:#}") };
    assert_eq!(counted["rule"], "StagedNetworkPolicy demo/silent egress[end of tier]");
    assert_eq!((&counted["action"], &counted["staged"]), (&"deny".into(), &true.into()));
    assert!(counted["packets"].as_u64().unwrap() > 0, "{status:#}");
    let question = ["policy", "explain", "--from", "demo/stranger", "--to", "demo/client"];
    let from_agent = ["--port", "tcp/80", "--output", "json", "--socket", &socket];
    let told = bench.manx(&[&question[..], &from_agent].concat());
    assert_eq!(told.status.code(), Some(0), "{told:?}");
    let would = serde_json::json!(["Deny by StagedNetworkPolicy demo/silent egress[end of tier]"]);
    assert_eq!(json(&told)["staged"], would);
}
