//! No agent, no packet: if no agent runs, the kernel passes nothing instead.

use crate::bench::Bench;
use crate::traffic::{Talker, assert_flows, assert_silent};

#[test]
fn nothing_passes_without_the_agent_over_tun() {
    nothing_passes_without_the_agent("auto");
}

#[test]
fn nothing_passes_without_the_agent_over_veth() {
    nothing_passes_without_the_agent("veth");
}

#[test]
fn nothing_passes_without_the_agent_over_tap() {
    nothing_passes_without_the_agent("tap");
}

fn nothing_passes_without_the_agent(device: &str) {
    let Some(bench) = Bench::with_device(device) else { return };
    bench.keep_open(&["--pod-device", device]);
    let [web, stranger] = ["demo/web", "demo/stranger"].map(|pod| bench.address(0, pod));
    let client = bench.address(1, "demo/client");
    // All send and listen, so that a packet that passes in only one direction is also noticed.
    let at_web = Talker::start(&bench, "demo/web", &[stranger, client]);
    let at_stranger = Talker::start(&bench, "demo/stranger", &[web]);
    let at_client = Talker::start(&bench, "demo/client", &[web]);
    let at_node = Talker::start(&bench, "node/node-1", &[web]);
    let mut echoes = Vec::new();
    let mut arrivals = Vec::new();
    for transport in ["tcp", "udp"] {
        for (talker, peer) in [
            (&at_web, stranger),
            (&at_web, client),
            (&at_stranger, web),
            (&at_client, web),
            (&at_node, web),
        ] {
            echoes.push((talker, format!("back {transport} {peer}")));
        }
        arrivals.push((&at_client, format!("in {transport}")));
        arrivals.push((&at_stranger, format!("in {transport}")));
        arrivals.push((&at_web, format!("in {transport}")));
    }
    let all = [&echoes[..], &arrivals[..]].concat();
    assert_flows(&all);

    bench.signal("STOP", "node --name node-1");
    assert_silent(&all);
    bench.signal("CONT", "node --name node-1");
    assert_flows(&all);

    bench.signal("KILL", "node --name node-1");
    assert_silent(&all);
    // The pods and the talkers in them are still there.
    let alive = [&at_web, &at_stranger, &at_client, &at_node]
        .map(|talker| talker.heard("in ") + talker.heard("back "));
    assert!(alive.iter().all(|heard| *heard > 0), "{alive:?}");
    for party in ["demo/web", "demo/stranger", "demo/client", "node/node-1"] {
        let listening =
            bench.manx(&["rig", "exec", "--rig", "demo", party, "--", "cat", "/proc/net/udp"]);
        // The port, 17171, in hexadecimal.
        assert!(String::from_utf8_lossy(&listening.stdout).contains(":4313"), "{party}");
    }
}
