//! Pods keep the addresses that their objects give them, in any block or none.

use std::fs;

use crate::bench::{Bench, deviations, json};

/// A rig that chose addresses would give `a` the address of `b`, and `b` that of `a`. The address
/// of `web` lies in no block, and that of `far` in a block of the other node.
const PODS: &str = "
{apiVersion: v1, kind: Node, metadata: {name: node-1}, spec: {podCIDR: 10.244.1.0/24}, status: {addresses: [{type: InternalIP, address: 172.18.0.2}]}}
---
{apiVersion: v1, kind: Node, metadata: {name: node-2}, spec: {podCIDR: 10.244.2.0/24}, status: {addresses: [{type: InternalIP, address: 172.18.0.3}]}}
---
{apiVersion: projectcalico.org/v3, kind: IPPool, metadata: {name: blocks}, spec: {cidr: 10.244.0.0/16, ipipMode: Always}}
---
{apiVersion: projectcalico.org/v3, kind: IPPool, metadata: {name: none}, spec: {cidr: 192.168.0.0/16, ipipMode: Always}}
---
{apiVersion: v1, kind: Pod, metadata: {name: a, namespace: demo}, spec: {nodeName: node-1, containers: [{name: c}]}, status: {podIP: 10.244.1.3}}
---
{apiVersion: v1, kind: Pod, metadata: {name: b, namespace: demo}, spec: {nodeName: node-1, containers: [{name: c}]}, status: {podIP: 10.244.1.2}}
---
{apiVersion: v1, kind: Pod, metadata: {name: far, namespace: demo}, spec: {nodeName: node-2, containers: [{name: c}]}, status: {podIP: 10.244.1.9}}
---
{apiVersion: v1, kind: Pod, metadata: {name: new, namespace: demo}, spec: {nodeName: node-1, containers: [{name: c}]}}
---
{apiVersion: v1, kind: Pod, metadata: {name: web, namespace: demo, labels: {app: web}}, spec: {nodeName: node-2, containers: [{name: c, ports: [{containerPort: 80}]}]}, status: {podIP: 192.168.7.9}}
---
{apiVersion: v1, kind: Pod, metadata: {name: near, namespace: demo, labels: {app: web}}, spec: {nodeName: node-1, containers: [{name: c, ports: [{containerPort: 80}]}]}, status: {podIP: 192.168.7.10}}
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: only-a, namespace: demo}
spec:
  podSelector: {matchLabels: {app: web}}
  ingress: [{from: [{ipBlock: {cidr: 10.244.1.3/32}}, {ipBlock: {cidr: 10.244.1.9/32}}]}]
";

/// A rig with these manifests.
fn of(bench: &Bench, text: &str) {
    for entry in fs::read_dir(bench.rig()).unwrap() {
        fs::remove_file(entry.unwrap().path()).unwrap();
    }
    fs::write(bench.rig().join("all.yaml"), text).unwrap();
}

#[test]
fn a_policy_that_names_a_pod_by_address_is_about_that_pod() {
    let Some(bench) = Bench::new() else { return };
    of(&bench, PODS);
    let output = bench.run(&["--output", "json"]);
    let report = json(&output);
    assert_eq!(deviations(&report), Vec::<String>::new());
    assert_eq!(output.status.code(), Some(0));
    let addresses = |pod: &str| report["parties"][pod]["addresses"].clone();
    for (pod, address) in [
        ("demo/a", "10.244.1.3"),
        ("demo/b", "10.244.1.2"),
        ("demo/far", "10.244.1.9"),
        ("demo/new", "10.244.1.4"),
        ("demo/web", "192.168.7.9"),
        ("demo/near", "192.168.7.10"),
    ] {
        assert_eq!(addresses(pod), serde_json::json!([address]), "{pod}");
    }
    // Real packets are sent within a node and across nodes.
    for server in ["demo/web", "demo/near"] {
        let probes = report["probes"].as_array().unwrap();
        let mut allowed: Vec<&str> = probes
            .iter()
            .filter(|probe| {
                probe["destination"] == server && probe["service"].to_string().contains("80")
            })
            .filter(|probe| probe["observed"]["clear"] == "allowed")
            .map(|probe| probe["source"].as_str().unwrap())
            .filter(|source| source.starts_with("demo/"))
            .collect();
        allowed.sort_unstable();
        assert_eq!(allowed, ["demo/a", "demo/far"], "{server}: {probes:#?}");
    }
    bench.assert_nothing_left();
}

#[test]
fn an_address_that_cannot_be_kept_is_refused_before_anything_is_built() {
    let Some(bench) = Bench::new() else { return };
    of(&bench, &PODS.replace("podIP: 192.168.7.10", "podIP: 10.244.1.9"));
    let output = bench.run(&[]);
    assert_eq!(output.status.code(), Some(2));
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    for part in [
        "Pod demo/near cannot keep its address 10.244.1.9",
        "Pod demo/far has it, too",
        "status.podIPs",
    ] {
        assert!(said.contains(part), "{said}");
    }
    bench.assert_nothing_left();
}

#[test]
fn a_running_rig_does_not_renumber_a_pod() {
    let Some(bench) = Bench::new() else { return };
    of(&bench, PODS);
    assert_eq!(bench.run(&["--keep", "--ttl", "5m"]).status.code(), Some(0));
    let pod = |address: &str| {
        let path = bench.folder.path().join("a.yaml");
        let text = "{apiVersion: v1, kind: Pod, metadata: {name: a, namespace: demo, labels: {new: x}}, spec: {nodeName: node-1, containers: [{name: c}]}, status: {podIP: ADDRESS}}";
        fs::write(&path, text.replace("ADDRESS", address)).unwrap();
        bench.manx(&["rig", "apply", "--rig", "demo", path.to_str().unwrap()])
    };
    let output = pod("10.244.1.77");
    assert_eq!(output.status.code(), Some(2));
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        said.contains("Pod demo/a has the address 10.244.1.77 now, and runs with 10.244.1.3"),
        "{said}"
    );
    assert_eq!(pod("10.244.1.3").status.code(), Some(0));
    assert_eq!(bench.addresses(0, "demo/a"), ["10.244.1.3".parse::<std::net::IpAddr>().unwrap()]);
}
