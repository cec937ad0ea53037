//! Packets that are too big for the tunnel are reported to their senders.

use serde_json::Value;

use crate::bench::{Bench, json};
use crate::traffic::{Talker, assert_flows};

/// A length that fits `manx0`, with the underlay's MTU of 1500, but not the tunnel behind it.
const LEN: usize = 1490;

#[test]
fn the_node_is_told_the_tunnels_mtu_by_an_error_that_bears_its_own_address() {
    let Some(bench) = Bench::new() else { return };
    bench.keep_open(&[]);
    let client = bench.address(1, "demo/client");
    let at_client = Talker::start(&bench, "demo/client", &[]);
    let node = Talker::oversized(&bench, "node/node-1", client, LEN);
    node.await_heard("too big, path mtu 1480", 1);
    assert!(dropped(&bench, "host", "too-big") > 0);
    // From now on the kernel fragments the socket's packets, and they arrive.
    assert_flows(&[(&at_client, "in udp 10.244.1.".to_owned())]);
}

#[test]
fn a_pods_interface_has_the_tunnels_mtu_so_that_nothing_need_be_told() {
    let Some(bench) = Bench::new() else { return };
    bench.keep_open(&[]);
    let client = bench.address(1, "demo/client");
    let at_client = Talker::start(&bench, "demo/client", &[]);
    let web = Talker::oversized(&bench, "demo/web", client, LEN);
    assert_flows(&[(&at_client, format!("in udp {}", bench.address(0, "demo/web")))]);
    assert_eq!(web.heard("too big"), 0);
    assert_eq!(dropped(&bench, "pod:demo/web", "too-big"), 0);
}

/// Packets that were dropped at a port of the first node for a reason.
fn dropped(bench: &Bench, port: &str, reason: &str) -> u64 {
    let socket = bench.socket(0);
    let status = json(&bench.manx(&["status", "--output", "json", "--socket", &socket]));
    let ports = status["ports"].as_array().unwrap();
    let port = ports.iter().find(|candidate| candidate["name"] == port).unwrap();
    port["drops"].get(reason).map_or(0, |count: &Value| count.as_u64().unwrap())
}
