//! Runs `manx controllers` with an API server, with only the rights of `deploy/controllers.yaml`.
//! Services of type `LoadBalancer` get addresses, and release them.

use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::{ROOT, Server, rights};

/// The time in which a change must have its effect.
const PATIENCE: Duration = Duration::from_mins(1);

/// The process. It ends when this is dropped.
struct Controllers(Child);

impl Drop for Controllers {
    fn drop(&mut self) {
        let ended = self.0.kill().and_then(|()| self.0.wait());
        assert!(ended.is_ok() || std::thread::panicking(), "{ended:?}");
    }
}

impl Controllers {
    fn start(kubeconfig: &std::path::Path) -> Self {
        let child = Command::new(env!("CARGO_BIN_EXE_manx"))
            .args(["controllers", "--kubeconfig"])
            .arg(kubeconfig)
            .stderr(Stdio::inherit())
            .spawn();
        Self(child.unwrap())
    }
}

/// Waits until a Service's status names these addresses.
fn until_named(server: &Server, service: &str, expected: &str) {
    let ips = "jsonpath={.status.loadBalancer.ingress[*].ip}";
    until(expected, || server.kubectl(&["-n", "shop", "get", "service", service, "-o", ips], ""));
}

fn until(expected: &str, mut found: impl FnMut() -> String) {
    let start = Instant::now();
    loop {
        let found = found();
        if found.contains(expected) && (!expected.is_empty() || found.trim().is_empty()) {
            return;
        }
        assert!(start.elapsed() < PATIENCE, "found {found:?}, expected {expected:?}");
        std::thread::sleep(Duration::from_millis(200));
    }
}

fn service(name: &str, annotations: &Value) -> String {
    json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": { "namespace": "shop", "name": name, "annotations": annotations },
        "spec": { "type": "LoadBalancer", "ports": [{ "port": 80 }] },
    })
    .to_string()
}

pub(super) fn check(server: &Server) {
    let manifest = std::fs::read_to_string(format!("{ROOT}/deploy/controllers.yaml")).unwrap();
    server.kubectl(&["create", "-f", "-"], &manifest);
    let kubeconfig = rights::as_account(server, "manx-controllers", &[]);
    server.kubectl(&["create", "namespace", "shop"], "");
    let make = |text: &str| drop(server.kubectl(&["create", "-f", "-"], text));
    let pool = |name: &str, cidr: &str| {
        json!({
            "apiVersion": "projectcalico.org/v3", "kind": "IPPool", "metadata": { "name": name },
            "spec": { "cidr": cidr, "blockSize": 30, "allowedUses": ["LoadBalancer"] },
        })
        .to_string()
    };
    make(&service("first", &json!({})));
    let leader = Controllers::start(&kubeconfig);
    // A Service that waits for a pool gets its address when a pool exists.
    std::thread::sleep(Duration::from_secs(2));
    make(&pool("balanced", "198.51.100.16/30"));
    until_named(server, "first", "198.51.100.16");
    let annotation = json!({ "projectcalico.org/loadBalancerIPs": "[\"198.51.100.16\"]" });
    make(&service("second", &annotation));
    let events = ["-n", "shop", "get", "events", "-o", "jsonpath={.items[*].message}"];
    until("address 198.51.100.16 is taken by Service shop/first", || server.kubectl(&events, ""));
    make(&service("third", &json!({})));
    until_named(server, "third", "198.51.100.17");
    let checked =
        ["ipam", "check", "--kubeconfig", server.kubeconfig().to_str().unwrap()].map(str::to_owned);
    let is_sound = || {
        let output = Command::new(env!("CARGO_BIN_EXE_manx")).args(&checked).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    };
    is_sound();
    server.kubectl(&["-n", "shop", "delete", "service", "first"], "");
    until_named(server, "second", "198.51.100.16");
    // Changes while no process leads are found by the next leader.
    drop(leader);
    server.kubectl(&["-n", "shop", "delete", "service", "second"], "");
    let to_cluster_ip =
        ["-n", "shop", "patch", "service", "third", "-p", "{\"spec\":{\"type\":\"ClusterIP\"}}"];
    server.kubectl(&to_cluster_ip, "");
    make(&service("fourth", &annotation));
    let _leader = Controllers::start(&kubeconfig);
    until_named(server, "fourth", "198.51.100.16");
    until_named(server, "third", "");
    server.kubectl(&["-n", "shop", "delete", "service", "fourth"], "");
    until("", || server.kubectl(&["get", "ipamhandles", "-o", "name"], ""));
    is_sound();
    server.kubectl(&["delete", "ippools.projectcalico.org", "balanced"], "");
    until("", || server.kubectl(&["get", "ipamblocks", "-o", "name"], ""));
}
