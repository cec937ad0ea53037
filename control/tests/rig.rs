//! Whole rigs, as their users start them: the template passes, a policy that the agents do not see is found out by name,
//! a rig left running takes changes and commands, and nothing is left of any of them.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

/// A rig's directory, and a folder for its runtime files that no other rig uses.
struct Bench {
    folder: tempfile::TempDir,
}

impl Bench {
    /// A bench with the template rig, or `None` where no rig can run: with `MANX_REQUIRE_NETNS=1` that is a failure.
    fn new() -> Option<Self> {
        let bench = Self { folder: tempfile::tempdir().unwrap() };
        let doctor = bench.manx(&["doctor", "--output", "json"]);
        let report: Value = serde_json::from_slice(&doctor.stdout).unwrap();
        if report["rig"] != true {
            assert!(
                std::env::var_os("MANX_REQUIRE_NETNS").is_none_or(|value| value != "1"),
                "no rig can run here (MANX_REQUIRE_NETNS=1): {report:#}"
            );
            eprintln!("SKIPPED: no rig can run here: {report:#}");
            return None;
        }
        assert!(bench.manx(&["rig", "init", bench.rig().to_str().unwrap()]).status.success());
        Some(bench)
    }

    fn rig(&self) -> std::path::PathBuf {
        self.folder.path().join("demo")
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_manx"));
        // Exports go to TMPDIR.
        command
            .args(arguments)
            .env("XDG_RUNTIME_DIR", self.folder.path())
            .env("TMPDIR", self.folder.path());
        command
    }

    fn manx(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().unwrap()
    }

    fn run(&self, arguments: &[&str]) -> Output {
        let rig = self.rig();
        let mut all = vec!["rig", "run", rig.to_str().unwrap(), "--no-samples"];
        all.extend(arguments);
        self.manx(&all)
    }

    /// Waits until no process knows this bench's folder and no rig's folder is left.
    fn assert_nothing_left(&self) {
        let start = Instant::now();
        loop {
            // Who finds the folder of a killed supervisor removes it.
            self.manx(&["rig", "list"]);
            let processes = processes(self.folder.path());
            let rigs =
                fs::read_dir(self.folder.path().join("manx/rigs")).map_or(0, Iterator::count);
            if processes.is_empty() && rigs == 0 {
                return;
            }
            assert!(start.elapsed() < Duration::from_secs(5), "{rigs} folders, {processes:?}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        // A failed test leaves no rig running either.
        let _ = self.command(&["rig", "down", "demo"]).stderr(Stdio::null()).status();
    }
}

/// The command lines of all processes that name `folder`.
fn processes(folder: &Path) -> Vec<String> {
    let folder = folder.to_str().unwrap();
    fs::read_dir("/proc")
        .unwrap()
        .filter_map(|entry| fs::read(entry.ok()?.path().join("cmdline")).ok())
        .map(|line| String::from_utf8_lossy(&line).replace('\0', " "))
        .filter(|line| line.contains(folder))
        .collect()
}

fn json(output: &Output) -> Value {
    let error = String::from_utf8_lossy(&output.stderr);
    serde_json::from_slice(&output.stdout).unwrap_or_else(|_| unreachable!("{error}"))
}

/// Source, destination and service of every probe that was not as expected.
fn deviations(report: &Value) -> Vec<String> {
    let probes = report["probes"].as_array().unwrap().iter();
    probes
        .filter(|probe| probe["observed"]["clear"] != probe["expected"])
        .map(|probe| {
            format!("{} -> {} {}", probe["source"], probe["destination"], probe["service"])
        })
        .collect()
}

#[test]
fn the_template_passes_over_tun_and_veth_and_leaves_nothing() {
    let Some(bench) = Bench::new() else { return };
    for device in ["auto", "veth"] {
        let output = bench.run(&["--output", "json", "--pod-device", device]);
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
    // What the policy denies to those who are not meant now passes: each service of web, from each of them; of what it
    // allows nothing changes.
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

#[test]
fn a_rig_left_running_takes_commands_and_changes() {
    let Some(bench) = Bench::new() else { return };
    assert_eq!(bench.run(&["--keep", "--ttl", "5m"]).status.code(), Some(0));
    assert!(String::from_utf8_lossy(&bench.manx(&["rig", "list"]).stdout).contains("demo"));
    assert_eq!(bench.run(&[]).status.code(), Some(2), "a second rig of the name");
    let exec = bench.manx(&["rig", "exec", "demo/web", "--", "sh", "-c", "cat; exit 7"]);
    assert_eq!(exec.status.code(), Some(7));
    assert_eq!(bench.manx(&["rig", "exec", "demo/nobody", "--", "true"]).status.code(), Some(2));

    let open = bench.folder.path().join("open.yaml");
    fs::write(
        &open,
        "apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {name: web, namespace: demo}\n\
         spec: {podSelector: {}, ingress: [{}]}\n",
    )
    .unwrap();
    let applied = bench.manx(&["rig", "apply", open.to_str().unwrap(), "--output", "json"]);
    let report = json(&applied);
    assert_eq!(applied.status.code(), Some(0), "{:?}", deviations(&report));
    let denied = |probe: &&Value| probe["observed"]["clear"] == "denied";
    assert_eq!(report["probes"].as_array().unwrap().iter().filter(denied).count(), 0);

    fs::write(&open, "kind: NetworkPolicy\napiVersion: networking.k8s.io/v1\nspec: 3\n").unwrap();
    assert_eq!(bench.manx(&["rig", "apply", open.to_str().unwrap()]).status.code(), Some(2));
    assert_eq!(bench.manx(&["rig", "down"]).status.code(), Some(0));
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
        kill(bench.folder.path(), victim);
        assert!(!caller.wait().unwrap().success(), "{victim} was killed");
        bench.assert_nothing_left();
    }
}

/// Kills the process of this bench whose command line has `victim` in it.
fn kill(folder: &Path, victim: &str) {
    let folder = folder.to_str().unwrap();
    let pid = fs::read_dir("/proc").unwrap().find_map(|entry| {
        let path = entry.ok()?.path();
        let line =
            String::from_utf8_lossy(&fs::read(path.join("cmdline")).ok()?).replace('\0', " ");
        (line.contains(folder) && line.contains(victim)).then_some(path)
    });
    let pid = pid.unwrap().file_name().unwrap().to_str().unwrap().to_owned();
    assert!(Command::new("kill").args(["-KILL", &pid]).status().unwrap().success());
}
