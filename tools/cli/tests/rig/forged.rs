//! Packets from outside the cluster with this node's address as their source.

use std::fs;
use std::net::IpAddr;
use std::path::Path;

use crate::bench::Bench;
use crate::traffic::{Talker, assert_flows, assert_silent};

const NODE: &str = "fd00:18::2";
/// The node's source address for remote pods.
const ROUTER: &str = "fd00:10:244:1::1";
const STRANGER: &str = "fd00:18::99";

#[test]
fn whoever_forges_an_ipv6_address_of_the_node_does_not_pass_as_the_node() {
    let Some(bench) = Bench::new() else { return };
    dual_stack(&bench);
    bench.keep_open(&[]);
    let pods = ["six/client-1", "six/server-1"];
    let [client, server] = pods.map(|pod| bench.addresses(0, pod)[1]);
    let at_server = Talker::start(&bench, "six/server-1", &[]);
    let forge = |source: IpAddr| Talker::forger(&bench, "outside", source, server);
    let heard = |source: IpAddr| (&at_server, format!("in udp {source}"));
    let forged = [NODE, ROUTER].map(|ip| ip.parse().unwrap()).into_iter().chain([client]);
    for source in forged {
        let forger = forge(source);
        assert_flows(&[(&forger, "forged".to_owned())]);
        assert_silent(&[heard(source)]);
        assert_eq!(at_server.heard(&heard(source).1), 0);
    }
    let stranger = STRANGER.parse().unwrap();
    let _forger = forge(stranger);
    assert_flows(&[heard(stranger)]);
}

/// Replaces the template by the fixture of this name.
fn dual_stack(bench: &Bench) {
    fs::remove_dir_all(bench.rig()).unwrap();
    fs::create_dir(bench.rig()).unwrap();
    let fixture = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/rigs/dual-stack");
    for entry in fs::read_dir(fixture).unwrap() {
        let file = entry.unwrap();
        fs::copy(file.path(), bench.rig().join(file.file_name())).unwrap();
    }
}
