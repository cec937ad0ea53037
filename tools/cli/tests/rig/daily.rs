//! The commands for a rig that is left running.

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Output, Stdio};
use std::time::{Duration, Instant};

use crate::bench::{Bench, deviations, json};

/// The standard output of a command.
fn out(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// The standard error of a command.
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

    // A pod is captured on its own node; for a port that every node has, the node must be named.
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

#[test]
fn an_agent_that_has_ended_is_told_with_its_status_and_its_last_words() {
    let Some(bench) = Bench::new() else { return };
    assert_eq!(out(&bench.manx(&["rig", "list"])), "");
    assert_eq!(bench.run(&["--keep", "--ttl", "5m"]).status.code(), Some(0));
    let list = json(&bench.manx(&["rig", "list", "-o", "json"]));
    assert_eq!((&list["schemaVersion"], &list["rigs"][0]["phase"]), (&1.into(), &"running".into()));
    assert_eq!(list["rigs"][0]["name"], "demo");
    let status = || json(&bench.manx(&["rig", "status", "-o", "json"]));
    let before = status();
    assert_eq!(before["schemaVersion"], 1);
    assert_eq!(before["pods"].as_array().unwrap().len(), 3);
    for node in before["nodes"].as_array().unwrap() {
        assert_eq!(node["agent"]["phase"], "running", "{node}");
    }
    assert!(!out(&bench.manx(&["rig", "status"])).contains("ENDED"));

    bench.signal("KILL", "node --name node-2");
    let start = Instant::now();
    let after = loop {
        let after = status();
        if after["nodes"][1]["agent"]["phase"] != "running" {
            break after;
        }
        assert!(start.elapsed() < Duration::from_secs(5), "{after}");
    };
    assert_eq!(after["nodes"][0]["agent"]["phase"], "running");
    let agent = &after["nodes"][1]["agent"];
    assert_eq!(agent["phase"], "ended");
    assert_eq!(agent["status"], "signal: 9 (SIGKILL)");
    let last = agent["log"].as_array().unwrap().last().unwrap().as_str().unwrap();
    for command in [["rig", "status"], ["rig", "list"]] {
        let text = out(&bench.manx(&command));
        assert!(text.contains("THE AGENT OF node-2 HAS ENDED (signal: 9 (SIGKILL))"), "{text}");
        assert!(text.contains(last) && !text.contains("THE AGENT OF node-1"), "{text}");
    }
    let silent = bench.manx(&["status", "--rig", "demo"]);
    assert_eq!(silent.status.code(), Some(1));
    assert!(out(&silent).contains("node node-1,"), "{}", out(&silent));
    assert!(said(&silent).contains("manx: node node-2: no agent listens"), "{}", said(&silent));

    let down = bench.manx(&["rig", "down", "demo"]);
    let since = before["since"].as_str().unwrap();
    let expected = format!("rig demo is ended: 2 nodes, 3 pods, up since {since} (");
    assert!(out(&down).starts_with(&expected), "{}", out(&down));
    bench.assert_nothing_left();
}

#[test]
fn one_of_several_rigs_has_to_be_named() {
    let Some(bench) = Bench::new() else { return };
    for name in ["one", "two"] {
        assert_eq!(bench.run(&["--keep", "--ttl", "5m", "--name", name]).status.code(), Some(0));
    }
    for command in ["down", "status"] {
        let output = bench.manx(&["rig", command]);
        assert_eq!(output.status.code(), Some(2), "{command}");
        assert!(said(&output).contains("one, two"), "{command}: {}", said(&output));
    }
    let names = |list: &serde_json::Value| {
        let rigs = list["rigs"].as_array().unwrap().iter();
        rigs.map(|rig| rig["name"].as_str().unwrap().to_owned()).collect::<Vec<String>>()
    };
    let list = || json(&bench.manx(&["rig", "list", "-o", "json"]));
    assert_eq!(names(&list()), ["one", "two"]);
    assert_eq!(bench.manx(&["rig", "down", "one"]).status.code(), Some(0));
    assert_eq!(names(&list()), ["two"]);
    assert_eq!(bench.manx(&["rig", "down", "two"]).status.code(), Some(0));
    bench.assert_nothing_left();
}

#[test]
fn logs_are_the_agents_and_are_followed_until_the_rig_ends() {
    let Some(bench) = Bench::new() else { return };
    assert_eq!(bench.run(&["--keep", "--ttl", "5m"]).status.code(), Some(0));
    let logs = |more: &[&str]| bench.manx(&[&["rig", "logs", "--rig", "demo"], more].concat());
    let one = out(&logs(&["node-2"]));
    for line in one.lines() {
        let line: serde_json::Value = serde_json::from_str(line).unwrap();
        assert!(line["timestamp"].is_string(), "{line}");
    }
    assert_eq!(out(&logs(&["node/node-2"])), one);
    let all = out(&logs(&[]));
    assert!(all.lines().all(|line| line.starts_with("node-")), "{all}");
    let of = |node: &str| all.lines().filter(|line| line.starts_with(node)).count();
    assert!(of("node-1: ") > 1 && of("node-2: ") == one.lines().count(), "{all}");
    assert_eq!(out(&logs(&["node-2", "--tail", "1"])).trim_end(), one.lines().last().unwrap());
    let unknown = logs(&["node-9"]);
    assert_eq!(unknown.status.code(), Some(2));
    assert!(said(&unknown).contains("expected one of node-1, node-2"), "{}", said(&unknown));

    let mut follower = bench
        .command(&["rig", "logs", "-f", "--tail", "0", "node-1"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(follower.stdout.take().unwrap()).lines();
    // The rig's probes are denied again, and the agent logs that.
    let change = bench.folder.path().join("change.yaml");
    std::fs::write(&change, "{apiVersion: v1, kind: Namespace, metadata: {name: new}}").unwrap();
    let apply = ["rig", "apply", "--rig", "demo", change.to_str().unwrap()];
    assert_eq!(bench.manx(&apply).status.code(), Some(0));
    let line = lines.next().unwrap().unwrap();
    assert!(line.contains("\"denied\""), "{line}");
    assert_eq!(bench.manx(&["rig", "down", "demo"]).status.code(), Some(0));
    lines.for_each(drop);
    assert!(follower.wait().unwrap().success());
}

/// Allows everything to web.
const OPEN: &str = "
{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: open, namespace: demo}, spec: {podSelector: {}, ingress: [{}]}}
---
{apiVersion: v1, kind: Service, metadata: {name: front, namespace: demo}, spec: {selector: {app: web}, ports: [{port: 80}]}}
";

#[test]
fn what_standard_input_applies_is_deleted_again_all_or_none() {
    let Some(bench) = Bench::new() else { return };
    assert_eq!(bench.run(&["--keep", "--ttl", "5m"]).status.code(), Some(0));
    let with_input = |command: &str, more: &[&str], input: &str| {
        let mut child = bench
            .command(&[&["rig", command, "--rig", "demo", "-o", "json"], more].concat())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
        child.wait_with_output().unwrap()
    };
    let delete = |what: &[&str]| with_input("delete", what, "");
    let reaches = |output: &Output| {
        let report = json(output);
        assert_eq!(output.status.code(), Some(0), "{:?}", deviations(&report));
        let of = |probe: &&serde_json::Value| {
            probe["source"] == "demo/stranger" && probe["destination"] == "demo/web"
        };
        let probes = report["probes"].as_array().unwrap();
        probes.iter().filter(of).any(|probe| probe["observed"]["clear"] == "allowed")
    };
    let refused = |output: &Output, text: &str| {
        assert_eq!(output.status.code(), Some(2), "{}", said(output));
        assert!(said(output).contains(text), "{}", said(output));
    };
    assert!(reaches(&with_input("apply", &["-"], OPEN)));
    refused(&with_input("apply", &["-"], "# nothing"), "no object of a kind that Manx reads");

    // The message names the missing object, and the other object stays.
    refused(
        &delete(&["NetworkPolicy/demo/open", "NetworkPolicy/demo/opne", "Service/shop/front"]),
        "there is no NetworkPolicy/demo/opne; there is no Service/shop/front; nothing is deleted",
    );
    refused(&delete(&["demo/open"]), "expected KIND/NAME");
    refused(&delete(&["NetworkPolicy/demo/open", "Pod/demo/web"]), "keeps its nodes, pods");
    let manifests = bench.folder.path().join("manx/rigs/demo/manifests");
    let there = |part: &str| {
        let mut names = std::fs::read_dir(&manifests).unwrap().map(|it| it.unwrap().file_name());
        names.any(|name| name.to_string_lossy().contains(part))
    };
    assert!(there("networkpolicy.demo.open.json"));

    let deleted = delete(&["networkpolicy/open"]);
    assert!(!reaches(&deleted));
    assert!(said(&deleted).contains("deleted NetworkPolicy demo/open"), "{}", said(&deleted));
    assert!(!there("networkpolicy.demo.open.json"));
    // The command deletes all objects of a file, and one of them does not exist any more.
    refused(
        &with_input("delete", &["-"], OPEN),
        "there is no NetworkPolicy.networking.k8s.io/demo/open;",
    );
    assert!(there("service.demo.front") && there("endpointslice.demo.front"));
    assert!(reaches(&with_input("apply", &["-"], OPEN)));
    assert!(!reaches(&with_input("delete", &["-"], OPEN)));
    // The endpoints are deleted with their service.
    assert!(!there("demo.front"));
}

#[test]
fn flows_are_watched_with_the_rules_that_decide() {
    let Some(bench) = Bench::new() else { return };
    assert_eq!(bench.run(&["--keep", "--ttl", "5m"]).status.code(), Some(0));
    let watch = |form: &str| {
        let mut child = bench
            .command(&["rig", "watch", "--rig", "demo", "-o", form])
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut begun = String::new();
        BufReader::new(child.stderr.take().unwrap()).read_line(&mut begun).unwrap();
        assert!(begun.contains("from now on"), "{begun}");
        child
    };
    let watchers = ["text", "json"].map(watch);
    // The rig's probes are the traffic: client (on the other node) and stranger (on web's node) to web's port.
    let change = bench.folder.path().join("change.yaml");
    std::fs::write(&change, "{apiVersion: v1, kind: Namespace, metadata: {name: new}}").unwrap();
    let apply = ["rig", "apply", "--rig", "demo", change.to_str().unwrap()];
    assert_eq!(bench.manx(&apply).status.code(), Some(0));
    std::thread::sleep(Duration::from_secs(1));
    assert_eq!(bench.manx(&["rig", "down", "demo"]).status.code(), Some(0));
    let [text, lines] = watchers.map(|watcher| {
        let output = watcher.wait_with_output().unwrap();
        assert!(output.status.success());
        out(&output)
    });
    let of = |source: &str| {
        let wanted = format!("{source} -> demo/web tcp/8080 ");
        let found: Vec<&str> = text.lines().filter(|line| line.contains(&wanted)).collect();
        assert_eq!(found.len(), 1, "{source}: {text}");
        found[0].to_owned()
    };
    let (allowed, denied) = (of("demo/client"), of("demo/stranger"));
    assert!(allowed.contains(" allowed "), "{allowed}");
    assert!(
        allowed.ends_with("by no policy selects it for egress; demo/web ingress[0]"),
        "{allowed}"
    );
    assert!(denied.contains(" DENIED  "), "{denied}");
    assert!(denied.ends_with("by isolated by demo/web for ingress, no rule allows"), "{denied}");
    let lines: Vec<serde_json::Value> =
        lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert!(lines.iter().all(|line| line["schemaVersion"] == 1));
    let found = |verdict: &str, source: &str| {
        lines.iter().any(|line| {
            line["verdict"] == verdict
                && line["source"]["name"] == source
                && line["destination"]["name"] == "demo/web"
                && line["destination"]["port"] == 8080
                && line["protocol"] == "tcp"
        })
    };
    assert!(found("allowed", "demo/client") && found("denied", "demo/stranger"), "{lines:#?}");
}
