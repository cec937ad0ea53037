//! `fixtures/dumps`: one cluster, whose pods ran on real kubelets, saved in the forms that people
//! use. Every command reads every form unchanged, and gives the same result for all of them.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::process::Output;

use serde_json::Value;

use crate::bench::{Bench, deviations, json};

/// The folders, each with the options that are needed to read it.
const FORMS: [(&str, &[&str]); 5] =
    [("yaml", &[]), ("json", &[]), ("per-kind", &[]), ("raw", &[]), ("cluster-info", &["-R"])];

/// Source, destination, packet, exit code and output. A pod's name may lack its random end.
const ASKED: [(&str, &str, &str, i32, &str); 15] = [
    ("shop/web-", "shop/api-", "tcp/8080", 0, "allowed by shop/api ingress[0]"),
    ("shop/web-", "shop/api-", "tcp/9113", 1, "isolated by shop/default-deny"),
    ("shop/db-0", "shop/api-", "tcp/8080", 1, "isolated by shop/db"),
    ("shop/db-0", "shop/db-1", "tcp/5432", 0, "allowed by shop/db ingress[0]"),
    // The policy names the source by its address.
    ("monitoring/prometheus-0", "shop/api-", "tcp/9113", 0, "allowed by shop/api ingress[1]"),
    ("ingress/controller-", "shop/api-", "tcp/9113", 1, "isolated by shop/api"),
    // A policy selects the namespace by its name.
    ("ingress/controller-", "shop/web-", "tcp/8080", 0, "allowed by shop/web ingress[0]"),
    ("outside", "shop/web-", "tcp/8080", 1, "isolated by shop/default-deny, shop/web"),
    ("shop/api-", "outside", "tcp/443", 0, "allowed by shop/api egress[1]"),
    ("shop/web-", "svc/shop/api", "tcp/80", 0, "port 80 of Service shop/api is port 8080 of its"),
    ("shop/web-", "10.96.0.10", "udp/53", 0, "is an address of Service kube-system/kube-dns"),
    // This pod waits, and has no address yet.
    ("shop/recommend-", "kube-system/coredns-", "udp/53", 0, "assumed: shop/recommend-"),
    ("monitoring/prometheus-0", "monitoring/node-exporter-", "tcp/9100", 0, "judged as node"),
    ("shop/migrate-", "shop/db-0", "tcp/5432", 2, "it is finished"),
    ("shop/report", "shop/db-0", "tcp/5432", 2, "it is finished"),
];

/// A pod of the dump that has not ended.
#[derive(Debug, PartialEq, Eq)]
struct Pod {
    /// The addresses that the cluster gave it.
    addresses: BTreeSet<String>,
    node: Option<String>,
    host_network: bool,
}

fn folder(form: &str) -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/dumps");
    root.join(form).to_str().unwrap().to_owned()
}

fn name(of: &Value) -> String {
    let part = |key: &str| of[key].as_str().unwrap();
    format!("{}/{}", part("namespace"), part("name"))
}

fn texts<'v>(list: &'v Value, key: &str) -> BTreeSet<String> {
    let items = list.as_array().map_or(&[][..], Vec::as_slice);
    let text = |item: &'v Value| if key.is_empty() { item } else { &item[key] };
    items.iter().map(|item| text(item).as_str().unwrap().to_owned()).collect()
}

/// The names of all pods, and the pods that have not ended, read without any code of Manx.
fn dumped() -> (BTreeSet<String>, BTreeMap<String, Pod>) {
    let text = fs::read_to_string(folder("json") + "/cluster.json").unwrap();
    let list: Value = serde_json::from_str(&text).unwrap();
    let all = list["items"].as_array().unwrap().iter().filter(|item| item["kind"] == "Pod");
    let all: Vec<&Value> = all.collect();
    let ended =
        |pod: &&&Value| matches!(pod["status"]["phase"].as_str(), Some("Succeeded" | "Failed"));
    let pods = all.iter().filter(|pod| !ended(pod)).map(|pod| {
        let told = Pod {
            addresses: texts(&pod["status"]["podIPs"], "ip"),
            node: pod["spec"]["nodeName"].as_str().map(str::to_owned),
            host_network: pod["spec"]["hostNetwork"] == true,
        };
        (name(&pod["metadata"]), told)
    });
    (all.iter().map(|pod| name(&pod["metadata"])).collect(), pods.collect())
}

fn said(output: &Output) -> String {
    String::from_utf8([&output.stdout[..], &output.stderr[..]].concat()).unwrap()
}

/// Runs a command on a form. It ends with `code`.
fn run(bench: &Bench, command: &[&str], form: (&str, &[&str]), code: i32) -> Output {
    let folder = folder(form.0);
    let output = bench.manx(&[command, form.1, &[&folder]].concat());
    assert_eq!(output.status.code(), Some(code), "{command:?} {}: {}", form.0, said(&output));
    output
}

/// An output as JSON, without the fields that hold times.
fn lasting(output: &Output) -> Value {
    let mut value = json(output);
    for node in value["nodes"].as_array_mut().into_iter().flatten() {
        node["milliseconds"].take();
    }
    value
}

#[test]
fn a_dump_is_checked_without_a_word_and_answered_alike_in_every_form() {
    let Some(bench) = Bench::new() else { return };
    let (names, _) = dumped();
    let full = |end: &str| -> String {
        let found = names.iter().find(|name| name.starts_with(end));
        found.cloned().unwrap_or_else(|| end.to_owned())
    };
    let mut first = None;
    for form in FORMS {
        let checked = json(&run(&bench, &["policy", "check", "--strict", "-o", "json"], form, 0));
        assert_eq!(checked["problems"], Value::Array(Vec::new()), "{}", form.0);
        for (from, to, port, code, told) in ASKED {
            let (from, to) = (full(from), full(to));
            let asked = ["policy", "explain", "--from", &from, "--to", &to, "--port", port];
            let answer = said(&run(&bench, &asked, form, code));
            assert!(answer.contains(told), "{}: {from} {to} {port}: {answer}", form.0);
        }
        let proved = lasting(&run(&bench, &["policy", "prove", "-o", "json"], form, 0));
        let matrix = lasting(&run(&bench, &["policy", "matrix", "-o", "json"], form, 0));
        let endpoints = proved["nodes"].as_array().unwrap().iter().map(|it| &it["endpoints"]);
        assert_eq!(endpoints.filter_map(Value::as_u64).sum::<u64>(), 11, "{proved:#}");
        let all = (proved, matrix);
        assert_eq!(first.get_or_insert_with(|| all.clone()), &all, "{}", form.0);
    }
}

#[test]
fn a_rig_of_a_dump_has_its_pods_at_their_nodes_with_their_addresses() {
    let Some(bench) = Bench::new() else { return };
    let (_, dumped) = dumped();
    let mut first = None;
    for form in FORMS {
        let command =
            ["rig", "run", "--no-samples", "--keep", "--ttl", "5m", "--name", "demo", "-o", "json"];
        let report = json(&run(&bench, &command, form, 0));
        assert_eq!(deviations(&report), Vec::<String>::new(), "{}", form.0);
        let part = |probe: &Value| {
            let text = |key: &str| probe[key].to_string();
            let packet = ["source", "destination", "service"].map(text);
            (packet, probe["observed"]["clear"].to_string())
        };
        let probes: BTreeMap<_, _> =
            report["probes"].as_array().unwrap().iter().map(part).collect();
        assert!(probes.len() > 700, "{}: {}", form.0, probes.len());
        assert_eq!(first.get_or_insert_with(|| probes.clone()), &probes, "{}", form.0);

        let status = json(&bench.manx(&["rig", "status", "-o", "json"]));
        let of = |list: &str, host_network: bool| {
            let pods = status[list].as_array().unwrap().clone().into_iter();
            pods.map(move |pod| {
                let addresses = texts(&pod["addresses"], "");
                let node = pod["node"].as_str().map(str::to_owned);
                (name(&pod["name"]), Pod { addresses, node, host_network })
            })
        };
        let mut rig: BTreeMap<String, Pod> =
            of("pods", false).chain(of("host_pods", true)).collect();
        let node_of = |name: &str| {
            let mut nodes = status["nodes"].as_array().unwrap().iter();
            nodes.find(|node| node["name"] == name).unwrap()
        };
        for pod in rig.values_mut().filter(|pod| pod.host_network) {
            pod.addresses = texts(&node_of(pod.node.as_ref().unwrap())["addresses"], "");
        }
        assert_eq!(rig.len(), dumped.len(), "{}: {:?}", form.0, rig.keys());
        for (name, pod) in &dumped {
            // The waiting pod gets a node and an address, as if there were room for it.
            let waits = pod.node.is_none();
            assert_eq!(pod.addresses.is_empty(), waits, "{name}");
            assert!(rig[name] == *pod || waits, "{}: {name}: {:?} {pod:?}", form.0, rig[name]);
        }

        let host = dumped.iter().find(|(_, pod)| pod.host_network).unwrap();
        let status = said(&bench.manx(&["rig", "status"]));
        let shown =
            format!("  {}: {} (the node's network)\n", host.0, host.1.addresses.first().unwrap());
        assert!(status.contains(&shown), "{status}");
        let exec = bench.manx(&[
            "rig",
            "exec",
            "--rig",
            "demo",
            host.0,
            "--",
            "cat",
            "/proc/net/fib_trie",
        ]);
        let exec = said(&exec);
        assert!(exec.contains(host.1.addresses.first().unwrap()), "{exec}");
        let node = host.1.node.as_ref().unwrap();
        assert!(exec.contains(&format!("{} is on the network of node/{node}", host.0)), "{exec}");
        assert!(bench.manx(&["rig", "down", "demo"]).status.success());
    }
    bench.assert_nothing_left();
}

/// `cluster-info dump` has a folder for each namespace.
#[test]
fn folders_of_a_dump_that_are_not_entered_are_told() {
    let Some(bench) = Bench::new() else { return };
    let flat = ("cluster-info", &[][..]);
    let checked = json(&run(&bench, &["policy", "check", "-o", "json"], flat, 0));
    assert_eq!(texts(&checked["problems"], "code"), ["skipped-folder".to_owned()].into());
    run(&bench, &["policy", "check", "--strict"], flat, 2);
    for command in ["prove", "matrix"] {
        let output = bench.manx(&["policy", command, &folder("cluster-info")]);
        let told = "found manifests in default/, ingress/, kube-node-lease/ and 4 more, which are read with --recursive (-R) only";
        assert!(said(&output).contains(told), "{command}: {}", said(&output));
    }
}
