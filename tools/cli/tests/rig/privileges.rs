//! The privileges of a running agent.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use crate::bench::Bench;
use crate::traffic::{Talker, assert_flows};
use manx_api::client::Client;
use manx_api::{Attach, PodName};

/// `CAP_NET_ADMIN` (12), `CAP_NET_RAW` (13) and `CAP_SYS_ADMIN` (21): the capabilities that docs/agent.md says are
/// kept.
const KEPT: u64 = 1 << 12 | 1 << 13 | 1 << 21;

#[test]
fn an_agent_keeps_three_capabilities_and_its_workers_none_over_tun() {
    an_agent_keeps_three_capabilities_and_its_workers_none("auto");
}

#[test]
fn an_agent_keeps_three_capabilities_and_its_workers_none_over_veth() {
    an_agent_keeps_three_capabilities_and_its_workers_none("veth");
}

#[test]
fn an_agent_keeps_three_capabilities_and_its_workers_none_over_tap() {
    an_agent_keeps_three_capabilities_and_its_workers_none("tap");
}

fn an_agent_keeps_three_capabilities_and_its_workers_none(device: &str) {
    let Some(bench) = Bench::with_device(device) else { return };
    bench.keep_open(&["--pod-device", device, "--workers", "2"]);
    // Its pods are attached, it has explained a request, and packets pass, also in batches.
    let web = bench.address(0, "demo/web");
    let _at_web = Talker::start(&bench, "demo/web", &[]);
    let talker = Talker::start(&bench, "demo/client", &[web]);
    assert_flows(&["tcp", "udp"].map(|transport| (&talker, format!("back {transport} {web}"))));
    let bulk = Talker::bulk(&bench, "demo/stranger", web, 8 << 20);
    bulk.await_heard("bulk", 1);
    bench.await_log("of root's capabilities kept: CAP_SYS_ADMIN to enter the pods' network namespaces, CAP_NET_ADMIN to make devices, addresses and routes, CAP_NET_RAW to open the packet sockets of veth pods; by the workers none");

    let tasks = format!("/proc/{}/task", bench.process("node --name node-1"));
    let mut names = BTreeSet::new();
    for task in fs::read_dir(tasks).unwrap() {
        let status = fs::read_to_string(task.unwrap().path().join("status")).unwrap();
        let fields: BTreeMap<&str, &str> = status
            .lines()
            .filter_map(|line| line.split_once(':'))
            .map(|(name, value)| (name, value.trim()))
            .collect();
        let set = |name| u64::from_str_radix(fields[name], 16).unwrap();
        // The thread that answers probes reads bytes from other processes, as the workers do.
        let has_none = fields["Name"].starts_with("worker-") || fields["Name"] == "observe";
        let kept = if has_none { 0 } else { KEPT };
        assert_eq!(
            (set("CapPrm"), set("CapEff"), set("CapInh"), set("CapAmb"), fields["NoNewPrivs"]),
            (kept, kept, 0, 0, "1"),
            "{status}"
        );
        names.insert(fields["Name"].to_owned());
    }
    // The agent must not be able to read other processes.
    let mut agent = Client::connect(Path::new(&bench.socket(0))).unwrap();
    let pod = PodName { namespace: "demo".to_owned(), name: "new".to_owned() };
    let attach = Attach::new(pod, "/proc/1/ns/net", "eth0");
    let error = agent.attach(attach).unwrap_err().to_string();
    assert!(error.contains("takes CAP_SYS_PTRACE, which the agent does not keep"), "{error}");
    let workers = ["worker-0", "worker-1"].map(str::to_owned);
    assert!(workers.iter().all(|name| names.contains(name)) && names.len() > 2, "{names:?}");
}
