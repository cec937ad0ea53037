//! The next agent: the fate of the last agent's connections.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::os::unix::fs::FileExt;
use std::time::Duration;

use manx_dataplane::flow::Verdict;
use manx_dataplane::tables::TrackingSettings;
use manx_tests::fabric::{Fabric, HOST, RAW, SERVICE, SIZES, UNDERLAY, pod, policy};
use manx_tests::packet::{Segment, TCP, Tuple, UDP, tunnelled};
use proptest::prelude::*;

const CLIENT: &str = "10.1.0.1";
const SERVER: &str = "10.1.0.2";
const OTHER: &str = "10.1.0.3";
const FAR: &str = "10.2.0.1";
const WORLD: &str = "192.0.2.7";

/// Clients may reach the server, and the server opens no connections.
fn cluster(app: &str) -> String {
    let label = format!("{{app: {app}}}");
    pod("shop/server", 0, "{app: server}", &[SERVER])
        + &pod("shop/client", 0, &label, &[CLIENT])
        + &pod("shop/other", 0, "{app: other}", &[OTHER])
        + &pod("shop/far", 1, &label, &[FAR])
        + &policy(
            "shop/server",
            "{podSelector: {matchLabels: {app: server}}, policyTypes: [Ingress, Egress], \
             ingress: [{from: [{podSelector: {matchLabels: {app: client}}}]}]}",
        )
}

fn open(fabric: &mut Fabric, from: &str, tuple: Tuple) {
    assert_eq!(fabric.send(from, &tuple.opening()).len(), 1, "the first packet");
    assert_eq!(fabric.send("shop/server", &tuple.answer()).len(), 1, "its answer");
    assert_eq!(fabric.send(from, &tuple.data(b"more")).len(), 1, "more");
}

#[test]
fn a_connection_goes_on_whichever_side_speaks_first() {
    for (from, source) in [("shop/client", CLIENT), ("shop/far", FAR)] {
        for (protocol, before, after) in
            [TCP, UDP].into_iter().flat_map(|it| [(it, 1, 1), (it, 1, 3), (it, 3, 1), (it, 3, 2)])
        {
            let mut fabric = Fabric::closed_with(before, SIZES);
            fabric.connections =
                TrackingSettings { tcp_strict: true, ..TrackingSettings::default() };
            fabric.apply(&cluster("client"));
            let all: Vec<Tuple> = (1..40)
                .map(|port| Tuple::new(source, SERVER, protocol, 80).from_port(40_000 + port))
                .collect();
            all.iter().for_each(|tuple| open(&mut fabric, from, *tuple));
            for node in &mut fabric.nodes {
                let had = node.flows().len();
                let restored = node.replace_workers(after, SIZES, true);
                assert_eq!((restored.flows, restored.ended, restored.spoiled), (had, 0, 0));
                assert_eq!(node.flows().len(), had);
            }
            for tuple in &all {
                assert_eq!(fabric.send("shop/server", &tuple.reversed().data(b"x")).len(), 1);
                assert_eq!(fabric.send(from, &tuple.data(b"x")).len(), 1);
            }
            fabric.nodes[0].replace_workers(after, SIZES, false);
            for tuple in &all {
                let reply = tuple.reversed().data(b"x");
                assert!(
                    fabric.send("shop/server", &reply).is_empty(),
                    "nobody knows who opened it"
                );
            }
        }
    }
}

#[test]
fn what_policy_no_longer_allows_and_what_has_ended_do_not_go_on() {
    let mut fabric = Fabric::new(&cluster("client"));
    let tuple = Tuple::new(CLIENT, SERVER, TCP, 80);
    let closed = tuple.from_port(1);
    open(&mut fabric, "shop/client", tuple);
    open(&mut fabric, "shop/client", closed);
    for (from, tuple) in [("shop/client", closed), ("shop/server", closed.reversed())] {
        assert_eq!(fabric.send(from, &tuple.packet(Segment::Fin, b"")).len(), 1);
    }
    assert_eq!(fabric.send("shop/client", &closed.data(b"")).len(), 1);
    fabric.nodes[0].replace_workers(1, SIZES, true);
    let states = fabric.nodes[0].flows().into_iter().map(|flow| flow.state().name());
    assert_eq!(states.collect::<BTreeSet<_>>(), ["closed", "established"].into());
    fabric.apply(&cluster("stranger"));
    let restored = fabric.nodes[0].replace_workers(1, SIZES, true);
    assert_eq!((restored.flows, restored.ended), (0, 2));
    fabric.apply(&cluster("client"));
    assert!(fabric.send("shop/server", &tuple.reversed().data(b"x")).is_empty());
}

#[test]
fn a_connection_to_a_service_goes_on_in_both_its_parts() {
    let service = "apiVersion: v1\nkind: Service\nmetadata: {name: web, namespace: shop}\n\
         spec: {clusterIP: 10.96.0.7, ports: [{port: 80}]}\n---\n";
    let mut fabric = Fabric::with_services(&(cluster("client") + service));
    let asked = Tuple::new(CLIENT, "10.96.0.7", TCP, 80);
    let translated = Tuple::new(CLIENT, SERVER, TCP, 8080);
    let (_, client) = fabric.port("shop/client");
    let (_, server) = fabric.port("shop/server");
    let port = |fabric: &mut Fabric, from, packet: &[u8]| {
        let out = fabric.send_at(0, from, packet);
        assert!(out.len() <= 1);
        out.first().map(|it| it.port)
    };
    assert_eq!(port(&mut fabric, client, &asked.opening()), Some(SERVICE));
    assert_eq!(port(&mut fabric, SERVICE, &translated.opening()), Some(server));
    let restored = fabric.nodes[0].replace_workers(1, SIZES, true);
    assert_eq!((restored.flows, restored.ended), (2, 0));
    assert_eq!(port(&mut fabric, server, &translated.answer()), Some(SERVICE));
    assert_eq!(port(&mut fabric, SERVICE, &asked.answer()), Some(client));
}

#[test]
fn what_was_silent_for_too_long_while_there_was_no_agent_has_ended() {
    for (silence, goes_on) in [(85, true), (92, false)] {
        let mut fabric = Fabric::new(&cluster("client"));
        let tuple = Tuple::new(CLIENT, SERVER, UDP, 80);
        open(&mut fabric, "shop/client", tuple);
        fabric.nodes[0].now += Duration::from_secs(silence);
        let restored = fabric.nodes[0].replace_workers(1, SIZES, true);
        assert_eq!(restored.flows, usize::from(goes_on), "{silence} s");
        let reply = tuple.reversed().data(b"x");
        assert_eq!(fabric.send("shop/server", &reply).len(), usize::from(goes_on), "{silence} s");
    }
}

/// Sends a connection's first packet to the first node, at the port where it would come in. Returns
/// whether it passes.
fn opens(fabric: &mut Fabric, tuple: Tuple) -> bool {
    let ends: [IpAddr; 4] = [CLIENT, SERVER, OTHER, FAR].map(|it| it.parse().unwrap());
    let names = ["shop/client", "shop/server", "shop/other"];
    let packet = tuple.opening();
    let delivered = match ends.iter().position(|it| *it == tuple.source) {
        Some(3) => fabric.send_at(0, RAW, &tunnelled(UNDERLAY[1], UNDERLAY[0], &packet, 0)),
        Some(pod) => fabric.send(names[pod], &packet),
        None => fabric.send_at(0, HOST, &packet),
    };
    !delivered.is_empty()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// Another process may write anything into the records. They still open only flows that a
    /// packet could open, too.
    #[test]
    fn records_open_only_what_policy_lets_a_packet_open(
        connections in prop::collection::vec((0..5usize, 0..5usize, any::<bool>(), 0..4u16), 1..20),
        changes in prop::collection::vec((any::<prop::sample::Index>(), 0..48u64, any::<u8>()), 0..40),
        swaps in prop::collection::vec((any::<prop::sample::Index>(), any::<prop::sample::Index>()), 0..10),
    ) {
        let all = [CLIENT, SERVER, OTHER, FAR, WORLD];
        let without_policy = pod("shop/server", 0, "{app: server}", &[SERVER])
            + &pod("shop/client", 0, "{app: client}", &[CLIENT])
            + &pod("shop/other", 0, "{app: other}", &[OTHER])
            + &pod("shop/far", 1, "{app: client}", &[FAR]);
        let mut fabric = Fabric::new(&without_policy);
        for (from, to, is_tcp, port) in connections {
            let protocol = if is_tcp { TCP } else { UDP };
            opens(&mut fabric, Tuple::new(all[from], all[to], protocol, 80).from_port(port));
        }
        let count = fabric.nodes[0].flows().len() as u64;
        prop_assume!(count > 0);
        let file = fabric.nodes[0].records().remove(0);
        let place = |at: &prop::sample::Index| 48 * (1 + at.index(count as usize) as u64);
        for (at, byte, value) in changes {
            file.write_all_at(&[value], place(&at) + byte).unwrap();
        }
        for (one, other) in swaps {
            // The record consists of two halves of different records.
            let mut half = [0; 24];
            file.read_exact_at(&mut half, place(&one)).unwrap();
            file.write_all_at(&half, place(&other)).unwrap();
        }
        fabric.apply(&cluster("client"));
        let restored = fabric.nodes[0].replace_workers(1, SIZES, true);
        let flows = fabric.nodes[0].flows();
        prop_assert!(restored.flows >= flows.len());
        let mut fresh = Fabric::new(&cluster("client"));
        for flow in flows {
            let ((source, source_port), (destination, destination_port)) =
                (flow.key().source(flow.original()), flow.key().destination(flow.original()));
            let (source, destination) = (source.to_ip(), destination.to_ip());
            let protocol = flow.key().protocol();
            let tuple = Tuple { source, destination, protocol, source_port, destination_port };
            prop_assert_eq!(flow.verdict, Verdict::Allow);
            prop_assert!(opens(&mut fresh, tuple), "{:?}", tuple);
        }
    }
}
