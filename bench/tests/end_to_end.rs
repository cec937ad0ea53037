//! The whole program, as a user starts it.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use manx_fixtures::skip::{Need, skip};
use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

/// Cheap rows with their units: one on one node, and one on two.
const ROWS: [(&str, &str); 2] = [("latency", "us"), ("bare-vxlan", "Gbit/s")];

fn bench(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_manx-bench"));
    command.args(arguments).stdin(Stdio::null()).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// Whether the run has reported that namespaces are not available here.
fn skips(test: &str, stderr: &str) -> bool {
    let refused = stderr.contains("no namespaces can be made here");
    if refused {
        skip(Need::Namespaces, test, stderr);
    }
    refused
}

#[test]
fn rows_are_measured_and_written_as_json_table_and_chart() {
    let folder = tempfile::tempdir().unwrap();
    let results = folder.path().join("a/b");
    let results_text = results.display().to_string();
    let [one, other] = ROWS.map(|(row, _)| row);
    let output =
        bench(&["--quick", "--only", one, other, "--rounds", "1", "--output", &results_text]);
    let (stdout, stderr) = (text(&output.stdout), text(&output.stderr));
    if skips("rows_are_measured_and_written_as_json_table_and_chart", &stderr) {
        return;
    }
    assert!(output.status.success(), "{stdout}\n{stderr}");
    let read = |name: &str| fs::read_to_string(results.join(name)).unwrap();
    let report: Value = serde_json::from_str(&read("results.json")).unwrap();
    let figures = report["figures"].as_array().unwrap();
    assert_eq!(figures.len(), ROWS.len(), "{report:#}");
    for (figure, (row, unit)) in figures.iter().zip(ROWS) {
        assert_eq!((&figure["row"], &figure["unit"]), (&row.into(), &unit.into()));
        for side in ["beside", "manx", "ratio"] {
            let median = figure[side]["median"].as_f64().unwrap();
            assert!(median > 0.0, "{side} in {report:#}");
        }
        assert!(read("results.md").contains(&format!("| `{row}` |")), "{}", read("results.md"));
    }
    assert_eq!(report["missing"].as_array().unwrap().len(), 0, "{report:#}");
    assert!(stdout.contains(&read("results.md")), "{stdout}");
    assert!(read("results.svg").starts_with("<svg ") && read("results.svg").ends_with("</svg>\n"));
}

/// This covers every way by which agents translate. Rows that are compared with nftables are not measured without it.
#[test]
fn translated_connections_arrive() {
    let folder = tempfile::tempdir().unwrap();
    let results = folder.path().display().to_string();
    let rows =
        ["service-straight-vxlan", "service-connections", "node-port-connections", "out-inward"];
    let (quick, output) = (["--quick", "--rounds", "1", "--only"], ["--output", &results]);
    let output = bench(&[&quick[..], &rows, &output].concat());
    let (stdout, stderr) = (text(&output.stdout), text(&output.stderr));
    if skips("translated_connections_arrive", &stderr) {
        return;
    }
    assert!(output.status.success(), "{stdout}\n{stderr}");
    let report = fs::read_to_string(folder.path().join("results.json")).unwrap();
    let report: Value = serde_json::from_str(&report).unwrap();
    let (figures, missing) = (&report["figures"], &report["missing"]);
    let reported: Vec<&Value> =
        [figures, missing].iter().flat_map(|it| it.as_array().unwrap()).collect();
    assert_eq!(reported.len(), rows.len(), "{report:#}");
    for row in reported {
        let without_program = row["row"] != rows[0]
            && row["why"].as_str().is_some_and(|why| why.contains("nft not found"));
        let arrived = row["manx"]["median"].as_f64().is_some_and(|median| median > 0.0);
        assert!(without_program || arrived, "{report:#}");
    }
}

#[test]
fn a_hundred_pods_are_attached_at_once_while_the_agent_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    let results = folder.path().display().to_string();
    let output = bench(&["--only", "attach", "--rounds", "1", "--output", &results]);
    let (stdout, stderr) = (text(&output.stdout), text(&output.stderr));
    if skips("a_hundred_pods_are_attached_at_once_while_the_agent_goes_on", &stderr) {
        return;
    }
    assert!(output.status.success(), "{stdout}\n{stderr}");
    let report = fs::read_to_string(folder.path().join("results.json")).unwrap();
    let report: Value = serde_json::from_str(&report).unwrap();
    let figures = report["figures"].as_array().unwrap();
    assert_eq!((figures.len(), &figures[0]["unit"]), (3, &"ms".into()), "{report:#}");
    // The row fails if nothing was published or answered in the meantime, and the gaps are parts of the whole time.
    assert_eq!(report["missing"].as_array().unwrap().len(), 0, "{report:#}");
    for side in ["beside", "manx"] {
        let [whole, publication, answer] =
            [0, 1, 2].map(|at: usize| figures[at][side]["median"].as_f64().unwrap());
        assert!(publication > 0.0 && answer > 0.0 && answer < whole, "{side} in {report:#}");
    }
}

#[test]
fn an_attacker_is_measured_beside_a_loop_and_its_packets_come_in() {
    let folder = tempfile::tempdir().unwrap();
    let results = folder.path().display().to_string();
    // One attacker sends to a pod on its node, and the other one to another node. Both use a virtio header with offload
    // metadata.
    let rows = ["fair-denied", "fair-two-too-big"];
    let arguments = ["--quick", "--rounds", "1", "--seconds", "0.5", "--output", &results];
    let output = bench(&[&arguments[..], &["--only"], &rows].concat());
    let (stdout, stderr) = (text(&output.stdout), text(&output.stderr));
    if skips("an_attacker_is_measured_beside_a_loop_and_its_packets_come_in", &stderr) {
        return;
    }
    assert!(output.status.success(), "{stdout}\n{stderr}");
    let report = fs::read_to_string(folder.path().join("results.json")).unwrap();
    let report: Value = serde_json::from_str(&report).unwrap();
    let figures = report["figures"].as_array().unwrap();
    let expected = rows.iter().flat_map(|row| ["Gbit/s", "Gbit/s", "us"].map(|unit| (*row, unit)));
    let found =
        figures.iter().map(|it| (it["row"].as_str().unwrap(), it["unit"].as_str().unwrap()));
    assert!(found.eq(expected), "{report:#}");
    for figure in figures {
        let [beside, manx, ratio] =
            ["beside", "manx", "ratio"].map(|side| figure[side]["median"].as_f64().unwrap());
        assert!(beside > 0.0 && manx >= 0.0, "{figure:#}");
        assert!((ratio - manx / beside).abs() < 1e-9, "{figure:#}");
    }
    let remarks = report["remarks"].as_array().unwrap();
    for (row, reason) in rows.into_iter().zip(["policy-egress", "too-big"]) {
        let of_row = remarks.iter().filter_map(Value::as_str).find(|it| it.starts_with(row));
        let dropped = of_row.unwrap().contains(&format!("dropped: {{\"{reason}\": "));
        assert!(dropped, "{row} is to send what is dropped as {reason}: {remarks:?}");
    }
}

#[test]
fn a_packet_in_memory_is_told_apart_by_stage() {
    let folder = tempfile::tempdir().unwrap();
    let results = folder.path().display().to_string();
    let only = ["--only", "flows-1k", "--rounds", "1", "--quick", "--output", &results];
    let output = bench(&only);
    let stdout = text(&output.stdout);
    assert!(output.status.success(), "{stdout}\n{}", text(&output.stderr));
    let report = fs::read_to_string(folder.path().join("results.json")).unwrap();
    let report: Value = serde_json::from_str(&report).unwrap();
    let parts = report["breakdowns"][0]["parts"].as_array().unwrap();
    let names: Vec<&str> = parts.iter().map(|part| part[0].as_str().unwrap()).collect();
    assert_eq!(
        names,
        ["Mpps", "batch", "decapsulate", "read", "guess", "forward", "send", "turns"]
    );
    for (part, name) in parts.iter().zip(names) {
        let (value, tunnelled) = (part[1].as_f64().unwrap(), name == "decapsulate");
        // All are differences of times, so on a busy machine one may be negative.
        assert!(value != 0.0 || name != "Mpps", "{report:#}");
        assert!(!tunnelled || value == 0.0, "nothing came by a tunnel: {report:#}");
    }
    assert!(
        stdout.contains(
            "| row | Mpps | batch | decapsulate | read | guess | forward | send | turns |"
        )
    );
}

#[test]
fn a_worker_s_time_in_memory_is_told_apart_by_port() {
    let folder = tempfile::tempdir().unwrap();
    let results = folder.path().display().to_string();
    let output =
        bench(&["--only", "fair-memory", "--rounds", "1", "--quick", "--output", &results]);
    let stdout = text(&output.stdout);
    assert!(output.status.success(), "{stdout}\n{}", text(&output.stderr));
    let report = fs::read_to_string(folder.path().join("results.json")).unwrap();
    let report: Value = serde_json::from_str(&report).unwrap();
    let figure = &report["figures"][0];
    let [beside, manx] = ["beside", "manx"].map(|side| figure[side]["median"].as_f64().unwrap());
    assert!(beside.to_bits() == 0.5f64.to_bits() && manx > 0.0 && manx < 1.0, "{figure:#}");
    assert!(stdout.contains("dropped: {}"), "both ports' packets come through: {stdout}");
}

#[test]
fn without_what_counts_instructions_none_are_counted() {
    let folder = tempfile::tempdir().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_manx-bench"));
    command.args(["--only", "instructions", "--output"]).arg(folder.path());
    let output = command.env("PATH", folder.path()).stdin(Stdio::null()).output().unwrap();
    let told = "`instructions`: valgrind not found: on Debian and Ubuntu, apt-get install valgrind";
    assert!(text(&output.stdout).contains(told), "{}", text(&output.stdout));
    assert_eq!(output.status.code(), Some(3));
}

#[test]
fn what_can_be_measured_is_listed_each_row_once() {
    let output = bench(&["--list"]);
    assert!(output.status.success());
    let stdout = text(&output.stdout);
    let rows: Vec<&str> = stdout
        .lines()
        .filter(|line| line.starts_with("  "))
        .filter_map(|line| line.split_whitespace().next())
        .collect();
    assert_eq!(rows.iter().collect::<BTreeSet<_>>().len(), rows.len(), "{stdout}");
    for row in [
        "latency",
        "bare-busy-p99",
        "ovs-stream",
        "dpdk-packets",
        "fair-super",
        "flows-1k",
        "cluster",
        "change",
        "matrix",
        "check",
    ] {
        assert!(rows.contains(&row), "{row} in {stdout}");
    }
}

#[test]
fn wrong_arguments_are_told_and_nothing_is_measured() {
    for (arguments, told) in [
        (&["--only", "latence"][..], "latency"),
        (&["--rounds", "0"], "0 is not in 1.."),
        (&["--seconds", "0"], "expected seconds from 0.05 to 3600"),
        (&["--agent-core", "x"], "\"x\" is no core"),
        (&["instructions", "nonsense"], "expected one of flows-1k"),
        (&["nonsense"], "nonsense"),
    ] {
        let output = bench(arguments);
        let stderr = text(&output.stderr);
        assert!(!output.status.success() && stderr.contains(told), "{arguments:?}: {stderr}");
        assert!(output.stdout.is_empty(), "{arguments:?}: {}", text(&output.stdout));
    }
}

/// The child processes of a process, and their child processes.
fn offspring(of: u32) -> Vec<u32> {
    let tasks = fs::read_dir(format!("/proc/{of}/task")).into_iter().flatten().flatten();
    let children = tasks.filter_map(|task| fs::read_to_string(task.path().join("children")).ok());
    let children: Vec<u32> = children
        .flat_map(|text| text.split_whitespace().map(|id| id.parse().unwrap()).collect::<Vec<_>>())
        .collect();
    children.into_iter().flat_map(|id| [vec![id], offspring(id)].concat()).collect()
}

#[test]
fn an_interrupt_leaves_no_process_and_no_file_behind() {
    let path = std::env::var_os("PATH").unwrap();
    interrupt(&["--only", ROWS[0].0, "--seconds", "20", "--output", "."], &path);
    let programs = tempfile::tempdir().unwrap();
    let valgrind = programs.path().join("valgrind");
    fs::write(&valgrind, "#!/bin/sh\nexec sleep 20\n").unwrap();
    fs::set_permissions(&valgrind, fs::Permissions::from_mode(0o755)).unwrap();
    let folders = [programs.path().to_owned()].into_iter().chain(std::env::split_paths(&path));
    let path = std::env::join_paths(folders).unwrap();
    interrupt(&["--only", "instructions", "--output", "."], &path);
}

fn interrupt(arguments: &[&str], path: &OsStr) {
    let folder = tempfile::tempdir().unwrap();
    let mut child = Command::new(env!("CARGO_BIN_EXE_manx-bench"))
        .args(arguments)
        .env("PATH", path)
        .current_dir(folder.path())
        .env("TMPDIR", folder.path())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let start = Instant::now();
    let mut started = Vec::new();
    while started.is_empty() && start.elapsed() < Duration::from_secs(30) {
        if child.try_wait().unwrap().is_some() {
            let stderr = text(&child.wait_with_output().unwrap().stderr);
            let skipped = skips("an_interrupt_leaves_no_process_and_no_file_behind", &stderr);
            assert!(skipped, "it ended by itself: {stderr}");
            return;
        }
        thread::sleep(Duration::from_millis(50));
        started = offspring(child.id());
    }
    assert!(!started.is_empty(), "nothing was started");
    // SIGINT is not used, because the process that started the tests may have set it to be ignored.
    kill(Pid::from_raw(child.id().cast_signed()), Signal::SIGTERM).unwrap();
    child.wait().unwrap();
    let alive = |id: &u32| {
        let status = fs::read_to_string(format!("/proc/{id}/stat")).unwrap_or_default();
        // A process in state Z is dead, even if its parent has not waited for it.
        !status.is_empty() && !status.contains(") Z ")
    };
    let start = Instant::now();
    while started.iter().any(alive) && start.elapsed() < Duration::from_secs(5) {
        thread::sleep(Duration::from_millis(20));
    }
    assert!(!started.iter().any(alive), "{started:?} live on");
    let left: Vec<_> = fs::read_dir(folder.path()).unwrap().flatten().map(|it| it.path()).collect();
    let results = |path: &Path| path.file_stem().is_some_and(|stem| stem == "results");
    assert!(left.iter().all(|path| results(path)), "{left:?}");
}
