//! Manx's speakers in one process. They are driven as an agent drives its speaker.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use clap::Parser;
use ipnet::{IpNet, Ipv4Net};
use manx_bgp::export::Exports;
use manx_bgp::peer::{NextHopMode, Peer, PeerType};
use manx_bgp::table;
use manx_speaker::{Configuration, Speaker};
use tokio::sync::Notify;

use crate::host::process;
use crate::sections::bgp::scenario::{self, SYSTEM, Scenario, Shape};

/// The first argument with which this program starts itself as BGP speakers.
pub const SPEAKERS: &str = "speakers";
/// The port of BGP.
const PORT: u16 = 179;
/// The time between two reads of the learned routes. It is the same as in an agent.
const LOOKS: Duration = Duration::from_secs(1);
/// The largest number of prefixes that a speaker accepts from a router; below, from a node. They are the same as in an
/// agent.
const PREFIXES: usize = 1 << 20;
const PREFIXES_OF_NODE: usize = 1 << 15;

/// The command line of the speakers.
#[derive(Debug, Parser)]
#[command(name = SPEAKERS)]
struct Arguments {
    shape: Shape,
    peers: u32,
    prefixes: usize,
}

/// The arguments with which this program becomes the speakers of a scenario.
pub(super) fn arguments(scenario: &Scenario) -> Vec<String> {
    let Scenario { shape, peers, prefixes } = scenario;
    vec![SPEAKERS.to_owned(), shape.word().to_owned(), peers.to_string(), prefixes.to_string()]
}

/// Runs as the speakers of a scenario until it is killed. The caller must have a single thread.
///
/// # Errors
/// Returns an error if a speaker cannot listen.
pub fn run(arguments: impl Iterator<Item = String>) -> Result<(), String> {
    let Arguments { shape, peers, prefixes } = Arguments::parse_from(arguments);
    process::end_with_parent().map_err(|error| error.to_string())?;
    let scenario = Scenario { shape, peers, prefixes };
    let changed = Arc::new(Notify::new());
    let mut speakers = Vec::new();
    for address in scenario.speakers() {
        let wake = Arc::clone(&changed);
        let listen = [SocketAddr::new(address.into(), PORT)];
        let speaker = Speaker::start(&listen, || Ok(()), move || wake.notify_one());
        let speaker = speaker.map_err(|error| format!("{address}: {error}"))?;
        speaker.configure(configuration(&scenario, address));
        speakers.push(speaker);
    }
    let runtime = tokio::runtime::Builder::new_current_thread().build();
    let runtime = runtime.map_err(|error| error.to_string())?;
    loop {
        runtime.block_on(changed.notified());
        // An agent reads the routes that routers have announced once per second.
        for speaker in &speakers {
            let learned = speaker.next_hops(|peer| !peer.is_node).into_iter();
            let used: BTreeSet<IpNet> =
                learned.map(|(prefix, _)| prefix).filter(|it| !pool().contains(it)).collect();
            drop(used);
        }
        thread::sleep(LOOKS);
    }
}

/// The pool of the scenario's prefixes. Prefixes inside the pool are announced.
fn pool() -> IpNet {
    IpNet::V4(Ipv4Net::default())
}

fn configuration(scenario: &Scenario, speaker: Ipv4Addr) -> Configuration {
    let own = scenario.peers().into_iter().filter(|it| it.speaker == speaker);
    let peers = own.map(|it| peer(scenario, speaker, &it));
    let others = scenario.speakers().into_iter().filter(|it| *it != speaker);
    let all = peers.chain(others.map(|it| node(speaker, it)));
    let pools = BTreeMap::from([(pool(), scenario.shape != Shape::Table)]);
    Configuration {
        table: table::Configuration {
            identifier: speaker,
            cluster: scenario.reflects().then_some(speaker),
            addresses: BTreeSet::from([IpAddr::V4(speaker)]),
            peers: all.map(|it| (it.address, it)).collect(),
            filters: BTreeMap::new(),
            exports: Exports { pools, ..Exports::NONE },
            prefixes: PREFIXES,
            prefixes_of_node: PREFIXES_OF_NODE,
        },
        passwords: BTreeMap::new(),
        restarted: false,
    }
}

/// Another speaker of the mesh. The speaker with the lower address of two only listens, and the other one connects, as
/// in the files of the other programs.
fn node(speaker: Ipv4Addr, address: Ipv4Addr) -> Peer {
    Peer {
        address: address.into(),
        port: PORT,
        kind: PeerType::Mesh,
        name: format!("node-{address}"),
        system: SYSTEM,
        own_system: SYSTEM,
        source: Some(speaker.into()),
        is_node: true,
        is_passive: address > speaker,
        reflected_as: None,
        next_hop: NextHopMode::Auto,
        own_system_allowed: 0,
        filters: Vec::new(),
        password: None,
        hops: None,
        restart_time: Duration::from_mins(2),
        hold_time: Duration::from_mins(4),
    }
}

/// A peer that is not a speaker. The peer connects to the speaker.
fn peer(scenario: &Scenario, speaker: Ipv4Addr, peer: &scenario::Peer) -> Peer {
    Peer {
        kind: PeerType::Global,
        system: peer.system,
        is_node: peer.system == SYSTEM,
        is_passive: true,
        reflected_as: scenario.reflects().then_some(speaker),
        ..node(speaker, peer.address)
    }
}
