//! The template passes; a policy that is hidden from the agents is found by name; a rig that is left running accepts
//! changes and commands; and nothing is left of any of them.

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::bench::{Bench, deviations, json};

#[test]
fn the_template_passes_over_every_kind_of_port_and_leaves_nothing() {
    let Some(bench) = Bench::new() else { return };
    for (device, uplink, workers) in [
        ("auto", "packet", "1"),
        ("veth", "packet", "1"),
        ("auto", "raw", "1"),
        ("veth", "raw", "1"),
        ("auto", "packet", "2"),
        ("veth", "packet", "3"),
        ("auto", "raw", "2"),
        ("tap", "packet", "1"),
        ("tap", "raw", "2"),
    ] {
        if !bench.has(device) {
            continue;
        }
        let kind = ["--pod-device", device, "--uplink-mode", uplink, "--workers", workers];
        let output = bench.run(&[&["--output", "json"], &kind[..]].concat());
        let report = json(&output);
        assert_eq!(deviations(&report), Vec::<String>::new());
        assert_eq!(output.status.code(), Some(0));
        let probes = report["probes"].as_array().unwrap();
        for outcome in ["allowed", "denied", "refused"] {
            assert!(probes.iter().any(|probe| probe["observed"]["clear"] == outcome), "{outcome}");
        }
        bench.assert_nothing_left();
    }
}

#[test]
fn a_policy_that_the_agents_do_not_see_is_found_out_by_name() {
    let Some(bench) = Bench::new() else { return };
    let output = bench.run(&["--output", "json", "--sabotage", "demo/web"]);
    assert_eq!(output.status.code(), Some(1));
    let report = json(&output);
    let deviations = deviations(&report);
    // Without the policy, each service of web is open to each other pod. The traffic that the
    // policy allows does not change.
    assert_eq!(deviations.len(), 8, "{deviations:#?}");
    assert!(deviations.iter().all(|deviation| deviation.contains("-> \"demo/web\"")));
    let export = Path::new(report["export"].as_str().unwrap());
    let names: Vec<String> = fs::read_dir(export)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned())
        .collect();
    for wanted in ["report.json", "node-1.log", "node-1.status.json", "manifests"] {
        assert!(names.iter().any(|name| name == wanted), "{wanted} in {names:?}");
    }
    let captured = names.iter().find(|name| name.ends_with(".pcapng")).unwrap();
    assert!(fs::metadata(export.join(captured)).unwrap().len() > 100, "packets in {captured}");
    bench.assert_nothing_left();
}

/// A policy in addition to the template's: only the endpoints of a service may be reached, and web
/// is otherwise closed.
const ONLY_THE_SERVICE: &str = "
apiVersion: projectcalico.org/v3
kind: GlobalNetworkPolicy
metadata: {name: web}
spec:
  order: 1
  selector: app == 'web'
  ingress:
  - {action: Allow, source: {services: {name: friends, namespace: demo}}}
  - {action: Deny}
---
apiVersion: v1
kind: Service
metadata: {name: friends, namespace: demo}
spec: {selector: {app: stranger}, ports: [{port: 80}]}
";

#[test]
fn policies_of_every_kind_are_hidden_by_a_name_that_is_theirs_alone_and_taken_in_by_a_living_rig() {
    let Some(bench) = Bench::new() else { return };
    let global = bench.rig().join("global.yaml");
    fs::write(&global, ONLY_THE_SERVICE).unwrap();
    for word in ["web", "nobody"] {
        let output = bench.run(&["--sabotage", word]);
        assert_eq!(output.status.code(), Some(2), "{word}");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        for policy in ["GlobalNetworkPolicy/web", "NetworkPolicy.networking.k8s.io/demo/web"] {
            assert!(said.contains(policy), "{policy}: {said}");
        }
    }
    let output = bench.run(&["--output", "json", "--sabotage", "GlobalNetworkPolicy/web"]);
    assert_eq!(output.status.code(), Some(1));
    let deviations = deviations(&json(&output));
    assert!(!deviations.is_empty());
    assert!(deviations.iter().all(|it| it.contains("-> \"demo/web\"")), "{deviations:#?}");
    fs::remove_file(global).unwrap();

    assert_eq!(bench.run(&["--keep", "--ttl", "5m"]).status.code(), Some(0));
    let file = bench.folder.path().join("change.yaml");
    // The service's endpoints follow its selector.
    for selected in ["stranger", "client"] {
        fs::write(
            &file,
            ONLY_THE_SERVICE.replace("{app: stranger}", &format!("{{app: {selected}}}")),
        )
        .unwrap();
        let applied = bench.manx(&[
            "rig",
            "apply",
            "--rig",
            "demo",
            file.to_str().unwrap(),
            "--output",
            "json",
        ]);
        let report = json(&applied);
        assert_eq!(applied.status.code(), Some(0), "{:?}", crate::bench::deviations(&report));
        let reach = |probe: &&Value| {
            probe["destination"] == "demo/web" && probe["observed"]["clear"] == "allowed"
        };
        let mut from: Vec<&str> = report["probes"]
            .as_array()
            .unwrap()
            .iter()
            .filter(reach)
            .map(|it| it["source"].as_str().unwrap())
            .collect();
        from.dedup();
        assert!(from.contains(&format!("demo/{selected}").as_str()), "{selected}: {from:?}");
        assert_eq!(from.len(), 2, "and its node: {from:?}");
    }
    assert_eq!(bench.manx(&["rig", "down", "demo"]).status.code(), Some(0));
    bench.assert_nothing_left();
}

#[test]
fn a_rig_left_running_takes_commands_and_changes() {
    let Some(bench) = Bench::new() else { return };
    assert_eq!(bench.run(&["--keep", "--ttl", "5m"]).status.code(), Some(0));
    assert!(String::from_utf8_lossy(&bench.manx(&["rig", "list"]).stdout).contains("demo"));
    assert_eq!(bench.run(&[]).status.code(), Some(2), "a second rig of the name");
    let exec =
        bench.manx(&["rig", "exec", "--rig", "demo", "demo/web", "--", "sh", "-c", "cat; exit 7"]);
    assert_eq!(exec.status.code(), Some(7));
    assert_eq!(
        bench.manx(&["rig", "exec", "--rig", "demo", "demo/nobody", "--", "true"]).status.code(),
        Some(2)
    );

    let open = bench.folder.path().join("open.yaml");
    fs::write(
        &open,
        "apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {name: web, namespace: demo}\n\
         spec: {podSelector: {}, ingress: [{}]}\n",
    )
    .unwrap();
    let applied =
        bench.manx(&["rig", "apply", "--rig", "demo", open.to_str().unwrap(), "--output", "json"]);
    let report = json(&applied);
    assert_eq!(applied.status.code(), Some(0), "{:?}", deviations(&report));
    let denied = |probe: &&Value| probe["observed"]["clear"] == "denied";
    assert_eq!(report["probes"].as_array().unwrap().iter().filter(denied).count(), 0);

    fs::write(&open, "kind: NetworkPolicy\napiVersion: networking.k8s.io/v1\nspec: 3\n").unwrap();
    assert_eq!(
        bench.manx(&["rig", "apply", "--rig", "demo", open.to_str().unwrap()]).status.code(),
        Some(2)
    );
    assert_eq!(bench.manx(&["rig", "down", "demo"]).status.code(), Some(0));
    bench.assert_nothing_left();
}

#[test]
fn whatever_is_killed_nothing_is_left() {
    let Some(bench) = Bench::new() else { return };
    for (victim, after) in
        [("rig run", 300), ("rig-supervisor", 300), ("rig-init", 600), ("rig-cluster", 900)]
    {
        let mut caller: Child = bench
            .command(&["rig", "run", bench.rig().to_str().unwrap()])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        std::thread::sleep(Duration::from_millis(after));
        bench.signal("KILL", victim);
        assert!(!caller.wait().unwrap().success(), "{victim} was killed");
        bench.assert_nothing_left();
    }
}

#[test]
fn interrupted_at_any_time_nothing_is_left() {
    let Some(bench) = Bench::new() else { return };
    for after in [20, 150, 400, 700] {
        // The test's parent process may ignore SIGINT, as shells do for background commands.
        let program = bench.command(&["rig", "run", bench.rig().to_str().unwrap()]);
        let mut caller = Command::new("env")
            .arg("--default-signal=INT")
            .arg(program.get_program())
            .args(program.get_args())
            .envs(program.get_envs().filter_map(|(name, value)| Some((name, value?))))
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        std::thread::sleep(Duration::from_millis(after));
        let pid = caller.id().to_string();
        assert!(Command::new("kill").args(["-INT", &pid]).status().unwrap().success());
        let start = Instant::now();
        let status = caller.wait().unwrap();
        assert!(!status.success(), "interrupted after {after} ms");
        assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
        bench.assert_nothing_left();
    }
}
