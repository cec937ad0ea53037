//! Pods that are attached while the agent does other work.

use std::collections::BTreeSet;
use std::fs::{self, OpenOptions};
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use manx_api::client::Client;
use manx_api::{Attach, PodName};
use nix::sys::stat::Mode;
use serde_json::Value;

use crate::bench::{Bench, json};

fn pod(name: &str) -> PodName {
    PodName { namespace: "demo".to_owned(), name: name.to_owned() }
}

/// The names of the pods that the first node's agent has attached.
fn attached(bench: &Bench) -> BTreeSet<String> {
    let status = json(&bench.manx(&["status", "--output", "json", "--socket", &bench.socket(0)]));
    let endpoints = status["endpoints"].as_array().unwrap().iter();
    endpoints.map(|endpoint| endpoint["pod"]["name"].as_str().unwrap().to_owned()).collect()
}

/// The addresses that the first node's agent keeps as taken, by pod.
fn taken_addresses(bench: &Bench) -> Value {
    let kept = fs::read(Path::new(&bench.socket(0)).with_extension("addresses")).unwrap();
    serde_json::from_slice::<Value>(&kept).unwrap()["pods"].take()
}

/// The interfaces in these pods.
fn interfaces(bench: &Bench, pods: &BTreeSet<String>) -> BTreeSet<String> {
    let of_pod = |name: &String| {
        let pod = format!("demo/{name}");
        let list =
            bench.manx(&["rig", "exec", "--rig", "demo", &pod, "--", "cat", "/proc/net/dev"]);
        let list = String::from_utf8(list.stdout).unwrap();
        let names = list.lines().skip(2).map(|line| line.trim().split(':').next().unwrap());
        names.map(|interface| format!("{interface} in {pod}")).collect::<Vec<_>>()
    };
    pods.iter().flat_map(of_pod).collect()
}

/// A namespace whose path cannot be opened before a process writes to it: a FIFO (`fifo(7)`).
fn slow(bench: &Bench) -> PathBuf {
    let path = bench.folder.path().join("slow");
    nix::unistd::mkfifo(&path, Mode::S_IRWXU).unwrap();
    path
}

#[test]
fn an_attachment_that_waits_holds_up_nothing_and_leaves_nothing_when_it_fails() {
    let Some(bench) = Bench::new() else { return };
    bench.keep_open(&[]);
    let socket = bench.socket(0);
    let before = attached(&bench);
    let netns = slow(&bench);
    let taken = taken_addresses(&bench);
    let call = |name: &str, netns: &Path, interface: &str| {
        let attach = Attach::new(pod(name), netns, interface);
        let mut agent = Client::connect(Path::new(&socket)).unwrap();
        agent.attach(attach)
    };
    // Pods of the first node; their namespaces are numbered by their pods' names, and may hold many interfaces.
    let living = bench.folder.path().join("manx/rigs/demo/ns/pod-1");
    let found = interfaces(&bench, &before);
    let names: Vec<String> = (0..40).map(|number| format!("many-{number}")).collect();
    thread::scope(|scope| {
        let waiting = scope.spawn(|| call("waits", &netns, "eth0"));
        let (call, living) = (&call, &living);
        let many = names.iter().map(|name| scope.spawn(move || call(name, living, name)));
        let many: Vec<_> = many.collect();
        let addresses: BTreeSet<IpAddr> =
            many.into_iter().flat_map(|one| one.join().unwrap().unwrap().addresses).collect();
        assert!(addresses.len() >= names.len(), "each has its own: {addresses:?}");
        let expected: BTreeSet<String> = before.iter().chain(&names).cloned().collect();
        assert_eq!(attached(&bench), expected, "and one still waits");
        assert!(!waiting.is_finished());
        assert_eq!(interfaces(&bench, &before).len(), found.len() + names.len());
        assert_ne!(taken_addresses(&bench), taken);

        // A request for the same pod waits for the earlier one.
        let detaching = scope.spawn(|| {
            Client::connect(Path::new(&socket)).unwrap().detach(pod("waits")).unwrap();
        });
        let mut agent = Client::connect(Path::new(&socket)).unwrap();
        for name in &names {
            agent.detach(pod(name)).unwrap();
        }
        assert_eq!(attached(&bench), before);
        assert!(!detaching.is_finished() && !waiting.is_finished());

        drop(OpenOptions::new().write(true).open(&netns).unwrap());
        let failure = waiting.join().unwrap().unwrap_err().to_string();
        assert!(failure.contains("slow") && failure.contains("namespace"), "{failure}");
        detaching.join().unwrap();
    });
    assert_eq!(attached(&bench), before);
    assert_eq!(taken_addresses(&bench), taken, "no address stays taken");
    assert_eq!(interfaces(&bench, &before), found, "no interface stays");
}

#[test]
fn an_agent_stops_although_device_work_hangs() {
    let Some(bench) = Bench::new() else { return };
    bench.keep_open(&[]);
    let (socket, netns, before) = (bench.socket(0), slow(&bench), attached(&bench));
    let agent = PathBuf::from("/proc").join(bench.process("node --name node-1"));
    let mut client = Client::connect(Path::new(&socket)).unwrap();
    thread::scope(|scope| {
        let attach = Attach::new(pod("hangs"), netns, "eth0");
        let waiting = scope.spawn(move || client.attach(attach));
        // The address is taken before the work begins.
        let start = Instant::now();
        while !taken_addresses(&bench).to_string().contains("hangs") {
            assert!(start.elapsed() < Duration::from_secs(5) && !waiting.is_finished());
            thread::sleep(Duration::from_millis(20));
        }
        assert_eq!(attached(&bench), before);
        bench.signal("TERM", "node --name node-1");
        assert!(waiting.join().unwrap().is_err());
        let start = Instant::now();
        let is_over = || {
            let state = fs::read_to_string(agent.join("stat"));
            // A zombie has ended.
            state.map_or(true, |it| it.rsplit(')').next().unwrap().starts_with(" Z"))
        };
        while !is_over() {
            assert!(start.elapsed() < Duration::from_secs(10), "it waits for what hangs");
            thread::sleep(Duration::from_millis(20));
        }
    });
}

#[test]
fn the_routes_that_are_used_are_those_of_the_tables() {
    let Some(bench) = Bench::new() else { return };
    bench.keep_open(&[]);
    let asked = |command: &[&str]| {
        json(&bench.manx(&[command, &["-o", "json", "--socket", &bench.socket(0)]].concat()))
    };
    let all = asked(&["routes"])["routes"].take();
    let text = |route: &Value, field: &str| route[field].as_str().unwrap().to_owned();
    // Only `manx routes` adds the target of addresses without a pod, and the node by which the host sends.
    let plain = |via: String| match via.split_once(',') {
        Some((first, _)) => first.to_owned(),
        None => via,
    };
    let used = all.as_array().unwrap().iter().filter(|route| route["used"] == true);
    let used: Vec<_> = used.map(|it| (text(it, "prefix"), plain(text(it, "via")))).collect();
    let tables = asked(&["status"])["routes"].take();
    let tables = tables.as_array().unwrap().iter();
    let tables: Vec<_> = tables.map(|it| (text(it, "prefix"), text(it, "via"))).collect();
    assert_eq!(used, tables);
    // A rig has at least one route of each of these sources.
    let sources: BTreeSet<String> =
        all.as_array().unwrap().iter().map(|route| text(route, "source")).collect();
    for source in ["world", "pool", "block of a node", "own block", "attached pod"] {
        assert!(sources.contains(source), "{source}: {sources:?}");
    }
    let other =
        all.as_array().unwrap().iter().find(|it| it["source"] == "block of a node").unwrap();
    assert!(text(other, "via").starts_with("IPIP to "), "{other}");
    assert!(text(other, "object").starts_with("node "), "{other}");
    let address = text(other, "prefix").replace(".0/24", ".9");
    let found = asked(&["routes", &address])["routes"].take();
    assert_eq!(found.as_array().unwrap(), std::slice::from_ref(other));
}
