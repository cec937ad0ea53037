//! Shared parts of the tests of sessions: a namespace, peers, configurations, waiting.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::net::{IpAddr, SocketAddr};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use ipnet::IpNet;
use manx_bgp::export::{Exports, OwnRoute};
use manx_bgp::peer::{NextHopMode, Peer, PeerType};
use manx_linux::netns;
use manx_linux::testing::namespaces_allowed;

use crate::session::Timing;
use crate::status::{SessionState, SessionStatus};
use crate::{Configuration, Speaker};

pub(crate) const A: &str = "10.0.0.1";
pub(crate) const B: &str = "10.0.0.2";
pub(super) const A6: &str = "fd00::1";
pub(super) const B6: &str = "fd00::2";

/// Calico's intervals, shortened.
const QUICK: Timing = Timing {
    delay: Duration::from_millis(50),
    retry: Duration::from_millis(300),
    error_wait: (Duration::from_millis(200), Duration::from_millis(800)),
};

/// Runs a test in a namespace that has the addresses of this file.
pub(super) fn in_namespace(test: impl FnOnce() + Send) {
    if !namespaces_allowed() {
        return;
    }
    netns::run_in(netns::create().unwrap(), || {
        ip("link set lo up");
        for address in [A, B] {
            ip(&format!("address add {address}/32 dev lo"));
        }
        for address in [A6, B6] {
            ip(&format!("address add {address}/128 dev lo nodad"));
        }
        test();
    })
    .unwrap();
}

pub(super) fn ip(arguments: &str) {
    assert!(Command::new("ip").args(arguments.split(' ')).status().unwrap().success());
}

pub(crate) fn address(text: &str) -> IpAddr {
    text.parse().unwrap()
}

pub(super) fn net(text: &str) -> IpNet {
    text.parse().unwrap()
}

/// A peer like a node of the mesh.
pub(crate) fn peer(source: &str, at: &str) -> Peer {
    Peer {
        address: address(at),
        port: 179,
        kind: PeerType::Mesh,
        name: format!("node-at-{at}"),
        system: 64512,
        own_system: 64512,
        source: Some(address(source)),
        is_node: false,
        is_passive: false,
        reflected_as: None,
        next_hop: NextHopMode::Auto,
        own_system_allowed: 0,
        filters: Vec::new(),
        password: None,
        hops: None,
        restart_time: Duration::from_mins(2),
        hold_time: Duration::from_secs(90),
    }
}

/// The configuration of a node with an identifier, peers, and its own blocks.
pub(super) fn configuration(identifier: &str, peers: &[Peer], blocks: &[&str]) -> Configuration {
    Configuration {
        table: manx_bgp::table::Configuration {
            identifier: identifier.parse().unwrap(),
            cluster: None,
            addresses: BTreeSet::new(),
            peers: peers.iter().map(|it| (it.address, it.clone())).collect(),
            exports: Exports {
                own: blocks.iter().map(|it| (net(it), OwnRoute::Block)).collect(),
                pools: BTreeMap::from([(net("10.96.0.0/12"), true), (net("fd10::/16"), true)]),
                ..Exports::NONE
            },
            filters: BTreeMap::new(),
            prefixes: 100_000,
            prefixes_of_node: 100_000,
        },
        passwords: BTreeMap::new(),
        restarted: false,
    }
}

/// A speaker that listens at port 179 of these addresses.
pub(super) fn speaker(addresses: &[&str]) -> Speaker {
    let listen: Vec<_> = addresses.iter().map(|it| SocketAddr::new(address(it), 179)).collect();
    start(&listen)
}

/// A speaker that listens at these addresses and ports.
pub(super) fn speaker_at(addresses: &[&str]) -> Speaker {
    start(&addresses.iter().map(|it| it.parse().unwrap()).collect::<Vec<_>>())
}

fn start(listen: &[SocketAddr]) -> Speaker {
    Speaker::start_with(listen, QUICK, || Ok(()), || {}).unwrap()
}

/// The status of the session with a peer.
pub(super) fn status(speaker: &Speaker, peer: &str) -> SessionStatus {
    // The configuration takes effect a moment after the call.
    let mut found = None;
    wait_for("a session of the peer", &true, || {
        found = speaker.sessions().into_iter().find(|it| it.peer == address(peer));
        found.is_some()
    });
    found.unwrap()
}

pub(super) fn is_established(speaker: &Speaker, peer: &str) -> bool {
    status(speaker, peer).state == SessionState::Established
}

/// The learned prefixes, each with its next hops.
pub(super) fn learned(speaker: &Speaker) -> Vec<String> {
    let mut all = speaker.next_hops(|_| true);
    all.sort_unstable();
    all.iter().map(|(prefix, next_hop)| format!("{prefix} via {next_hop}")).collect()
}

/// Waits until `look` returns the expected value. Panics with the last value if that takes too long.
pub(super) fn wait_for<T: PartialEq + Debug>(
    what: &str,
    expected: &T,
    mut look: impl FnMut() -> T,
) {
    let end = Instant::now() + Duration::from_secs(20);
    loop {
        let seen = look();
        if seen == *expected {
            return;
        }
        assert!(Instant::now() < end, "{what}: expected {expected:?}, and there is {seen:?}");
        thread::sleep(Duration::from_millis(10));
    }
}

/// Checks for a while that `look` always returns the expected value.
pub(super) fn stays<T: PartialEq + Debug>(what: &str, expected: &T, mut look: impl FnMut() -> T) {
    let end = Instant::now() + Duration::from_millis(500);
    while Instant::now() < end {
        assert_eq!(look(), *expected, "{what}");
        thread::sleep(Duration::from_millis(10));
    }
}
