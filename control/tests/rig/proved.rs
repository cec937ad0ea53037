//! Agents that prove their tables before they publish them, and tell what they have loaded.

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
    assert_eq!(bench.manx(&["rig", "down"]).status.code(), Some(0));
    bench.assert_nothing_left();
}
