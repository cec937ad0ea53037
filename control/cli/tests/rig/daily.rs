//! The commands for a rig that is left running.

use std::process::Output;

use crate::bench::{Bench, json};

/// What a command prints on standard output.
fn out(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// What a command prints on standard error.
fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn the_commands_of_an_agent_find_it_by_the_name_of_the_rig() {
    let Some(bench) = Bench::new() else { return };
    assert_eq!(bench.run(&["--keep", "--ttl", "5m"]).status.code(), Some(0));

    let all = json(&bench.manx(&["status", "--rig", "demo", "--output", "json"]));
    assert_eq!(all["schemaVersion"], 1);
    let nodes: Vec<&str> =
        all["agents"].as_array().unwrap().iter().map(|it| it["node"].as_str().unwrap()).collect();
    assert_eq!(nodes, ["node-1", "node-2"]);
    let text = out(&bench.manx(&["status", "--rig", "demo"]));
    assert!(text.contains("node node-1,") && text.contains("\n\nnode node-2,"), "{text}");
    let one = json(&bench.manx(&["status", "--rig", "demo", "--node", "node-2", "-o", "json"]));
    assert_eq!(one["node"], "node-2");

    let explain = |from: &str, more: &[&str]| {
        let question =
            ["policy", "explain", "--from", from, "--to", "demo/web", "--port", "tcp/8080"];
        bench.manx(&[&question[..], &["--rig", "demo"], more].concat())
    };
    let allowed = explain("demo/client", &[]);
    assert_eq!(allowed.status.code(), Some(0), "{}", said(&allowed));
    assert!(out(&allowed).contains("ALLOWED"), "{}", out(&allowed));
    assert_eq!(explain("demo/stranger", &["--node", "node-2"]).status.code(), Some(1));
    let both = explain("demo/client", &[bench.rig().to_str().unwrap()]);
    assert_eq!(both.status.code(), Some(2));
    assert!(said(&both).contains("leave one of them out"), "{}", said(&both));

    // A pod is captured where it is; a port that every node has wants the node's name.
    let file = bench.folder.path().join("captured.pcapng");
    let capture = |port: &str, more: &[&str]| {
        let fixed = ["capture", port, "--rig", "demo", "--duration", "0.2", "-w"];
        bench.manx(&[&fixed[..], &[file.to_str().unwrap()], more].concat())
    };
    for pod in ["demo/web", "demo/client"] {
        let captured = capture(pod, &[]);
        assert_eq!(captured.status.code(), Some(0), "{pod}: {}", said(&captured));
    }
    let host = capture("host", &[]);
    assert_eq!(host.status.code(), Some(2));
    assert!(said(&host).contains("choose one by --node (node-1, node-2)"), "{}", said(&host));
    assert_eq!(capture("host", &["--node", "node-2"]).status.code(), Some(0));

    let unknown = bench.manx(&["status", "--rig", "nobody"]);
    assert_eq!(unknown.status.code(), Some(2));
    assert!(said(&unknown).contains("no rig named nobody is running"), "{}", said(&unknown));
}
