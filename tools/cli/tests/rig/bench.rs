//! A rig of its own for a test.

use std::fs;
use std::net::IpAddr;
use std::path::Path;
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use manx_fixtures::skip::{Need, skip};
use serde_json::Value;

/// A rig's directory, and a folder for its runtime files that no other rig uses.
pub(crate) struct Bench {
    pub(crate) folder: tempfile::TempDir,
    /// The report of `manx doctor`.
    doctor: Value,
}

impl Bench {
    /// A bench with the template rig, or `None` if no rig can run and that is allowed.
    pub(crate) fn new() -> Option<Self> {
        let mut bench = Self { folder: tempfile::tempdir().unwrap(), doctor: Value::Null };
        let doctor = bench.manx(&["doctor", "--output", "json"]);
        bench.doctor = serde_json::from_slice(&doctor.stdout).unwrap();
        if bench.doctor["rig"] != true {
            skip(Need::Namespaces, "a rig", &format!("{:#}", bench.doctor));
            return None;
        }
        assert!(bench.manx(&["rig", "init", bench.rig().to_str().unwrap()]).status.success());
        Some(bench)
    }

    /// The same as [`Self::new`] for pods with this device. Returns `None` also if a rig cannot
    /// have the device and that is allowed.
    pub(crate) fn with_device(device: &str) -> Option<Self> {
        Self::new().filter(|bench| bench.has(device))
    }

    /// Whether pods of a rig can have this device. If not, that part of the test is skipped.
    pub(crate) fn has(&self, device: &str) -> bool {
        if !["tun", "tap"].contains(&device) {
            return true;
        }
        let checks = self.doctor["checks"].as_array().unwrap();
        let tun = checks.iter().find(|check| check["capability"] == "tun").unwrap();
        if tun["allowed"] != true {
            skip(Need::Tun, &format!("pods with {device} devices"), tun["found"].as_str().unwrap());
        }
        tun["allowed"] == true
    }

    pub(crate) fn rig(&self) -> std::path::PathBuf {
        self.folder.path().join("demo")
    }

    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_manx"));
        // Exports go to TMPDIR.
        command
            .args(arguments)
            .env("XDG_RUNTIME_DIR", self.folder.path())
            .env("TMPDIR", self.folder.path());
        command
    }

    pub(crate) fn manx(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().unwrap()
    }

    pub(crate) fn run(&self, arguments: &[&str]) -> Output {
        let rig = self.rig();
        let mut all = vec!["rig", "run", rig.to_str().unwrap(), "--no-samples"];
        all.extend(arguments);
        self.manx(&all)
    }

    /// The template without its policies, left running: all pods may talk to each other.
    pub(crate) fn keep_open(&self, arguments: &[&str]) {
        fs::remove_file(self.rig().join("policies.yaml")).unwrap();
        let output = self.run(&[&["--keep", "--ttl", "5m"], arguments].concat());
        assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    }

    /// The socket of the agent of the node with this index.
    pub(crate) fn socket(&self, node: usize) -> String {
        self.folder
            .path()
            .join(format!("manx/rigs/demo/nodes/{node}/agent.sock"))
            .display()
            .to_string()
    }

    /// The first address of a pod of the node with this index, from its agent.
    pub(crate) fn address(&self, node: usize, pod: &str) -> IpAddr {
        self.addresses(node, pod)[0]
    }

    /// All addresses of the pod.
    pub(crate) fn addresses(&self, node: usize, pod: &str) -> Vec<IpAddr> {
        let status =
            json(&self.manx(&["status", "--output", "json", "--socket", &self.socket(node)]));
        let endpoints = status["endpoints"].as_array().unwrap();
        let name = |endpoint: &Value| {
            let part = |key: &str| endpoint["pod"][key].as_str().unwrap().to_owned();
            format!("{}/{}", part("namespace"), part("name"))
        };
        let endpoint = endpoints.iter().find(|endpoint| name(endpoint) == pod).unwrap();
        let addresses = endpoint["addresses"].as_array().unwrap().iter();
        addresses.map(|address| address.as_str().unwrap().parse().unwrap()).collect()
    }

    /// The process of this bench whose command line contains `part`. Waits for the process, because
    /// a killed one is started again.
    pub(crate) fn process(&self, part: &str) -> String {
        let folder = self.folder.path().to_str().unwrap();
        let find = || {
            fs::read_dir("/proc").unwrap().find_map(|entry| {
                let path = entry.ok()?.path();
                let line = fs::read(path.join("cmdline")).ok()?;
                let line = String::from_utf8_lossy(&line).replace('\0', " ");
                (line.contains(folder) && line.contains(part)).then_some(path)
            })
        };
        let start = Instant::now();
        loop {
            if let Some(path) = find() {
                return path.file_name().unwrap().to_str().unwrap().to_owned();
            }
            assert!(start.elapsed() < Duration::from_secs(10), "no process has {part:?}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Sends a signal to the process of this bench whose command line contains `victim`.
    pub(crate) fn signal(&self, signal: &str, victim: &str) {
        let pid = self.process(victim);
        assert!(
            Command::new("kill").args([&format!("-{signal}"), &pid]).status().unwrap().success()
        );
    }

    /// Waits for a line in the log of the first node's agent.
    pub(crate) fn await_log(&self, line: &str) {
        let folder = self.folder.path().join("manx/rigs/demo/nodes/0");
        let start = Instant::now();
        loop {
            let log = fs::read_to_string(folder.join("agent.log")).unwrap();
            if log.contains(line) {
                return;
            }
            assert!(start.elapsed() < Duration::from_secs(5), "no {line:?} in:\n{log}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Waits until no process uses this bench's folder and no rig's folder is left.
    pub(crate) fn assert_nothing_left(&self) {
        let start = Instant::now();
        loop {
            // The command that finds the folder of a killed supervisor removes it.
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
        // A failed test must not leave a rig running either.
        let _ = self.command(&["rig", "down", "demo"]).output();
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

pub(crate) fn json(output: &Output) -> Value {
    let error = String::from_utf8_lossy(&output.stderr);
    serde_json::from_slice(&output.stdout).unwrap_or_else(|_| unreachable!("{error}"))
}

/// Source, destination and service of every probe that was not as expected.
pub(crate) fn deviations(report: &Value) -> Vec<String> {
    let probes = report["probes"].as_array().unwrap().iter();
    probes
        .filter(|probe| probe["observed"]["clear"] != probe["expected"])
        .map(|probe| {
            format!("{} -> {} {}", probe["source"], probe["destination"], probe["service"])
        })
        .collect()
}
