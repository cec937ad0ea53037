//! The answers of a node's agent to kubelet's probes and Prometheus, over HTTP in the node's own namespace.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use crate::bench::Bench;

/// Asks the agent of node-1, and returns the whole answer.
fn get(bench: &Bench, port: u16, path: &str) -> String {
    let request = format!("GET {path} HTTP/1.1\\r\\nHost: x\\r\\n\\r\\n");
    let script = format!("exec 3<>/dev/tcp/127.0.0.1/{port} && printf '{request}' >&3 && cat <&3");
    let exec = ["rig", "exec", "--rig", "demo", "node/node-1", "--", "bash", "-c", &script];
    let output = bench.manx(&exec);
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// The series of a page, of whole numbers; the fractions of times are cut off.
fn series(page: &str) -> BTreeMap<&str, u64> {
    let text = page.split_once("\r\n\r\n").map(|(_, text)| text).unwrap_or_default();
    let samples = text.lines().filter(|line| !line.starts_with('#'));
    let samples = samples.filter_map(|line| line.rsplit_once(' '));
    let whole = |value: &str| value.split('.').next().unwrap().parse().unwrap();
    let all: BTreeMap<_, _> = samples.map(|(name, value)| (name, whole(value))).collect();
    assert!(!all.is_empty(), "no page: {page}");
    all
}

#[test]
fn probes_and_prometheus_are_answered_on_loopback_with_what_the_agent_does() {
    let Some(bench) = Bench::new() else { return };
    let rig = bench.rig();
    let arguments = ["rig", "run", rig.to_str().unwrap(), "--no-samples", "--keep", "--ttl", "5m"];
    let mut command = bench.command(&arguments);
    command.env("FELIX_HEALTHENABLED", "true").env("FELIX_PROMETHEUSMETRICSENABLED", "true");
    let output = command.output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));

    let alive = get(&bench, 9099, "/liveness");
    assert!(alive.starts_with("HTTP/1.1 200"), "{alive}");
    let ready = get(&bench, 9099, "/readiness");
    assert!(ready.starts_with("HTTP/1.1 200") && ready.ends_with("\r\n\r\nready\n"), "{ready}");
    let page = get(&bench, 9091, "/metrics");
    let before = series(&page);
    assert_eq!(before["manx_datastore_in_sync"], 1);
    assert_eq!(before["manx_attached_pods{state=\"closed\"}"], 0);
    let pods = before["manx_attached_pods{state=\"enforced\"}"];
    assert!(pods >= 2, "{page}");
    assert_eq!(before["manx_leases"], pods);
    let received = before["manx_received_packets_total{port=\"pod\"}"];
    assert!(received > 0, "{page}");
    let decided = |page: &BTreeMap<&str, u64>| -> u64 {
        let rules = page.iter().filter(|(name, _)| name.starts_with("manx_rule_packets_total"));
        rules.map(|(_, packets)| packets).sum()
    };
    assert!(decided(&before) > 0, "{page}");
    assert!(before["manx_publish_duration_seconds_count"] > 0);

    // A change of policy reaches the workers, and its latency is in the metrics.
    let changes = before["manx_change_to_workers_seconds_count"];
    let policies = rig.join("policies.yaml");
    let deleted = bench.manx(&["rig", "delete", "--rig", "demo", policies.to_str().unwrap()]);
    assert!(deleted.status.success(), "{}", String::from_utf8_lossy(&deleted.stderr));
    let start = Instant::now();
    loop {
        let page = get(&bench, 9091, "/metrics");
        let now = series(&page);
        assert!(now["manx_received_packets_total{port=\"pod\"}"] >= received, "it goes back");
        if now["manx_cluster_policies"] < before["manx_cluster_policies"]
            && now["manx_change_to_workers_seconds_count"] > changes
        {
            break;
        }
        assert!(start.elapsed() < Duration::from_secs(10), "{page}");
        std::thread::sleep(Duration::from_millis(200));
    }
}
