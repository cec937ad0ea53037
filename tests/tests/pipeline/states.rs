//! The states of a connection, as packets show them.

use std::time::Duration;

use manx_dataplane::flow::FlowState;
use manx_tests::fabric::{Fabric, pod, policy};
use manx_tests::packet::{ICMP, SCTP, Segment, TCP, Tuple, UDP};

const CLIENT: &str = "10.1.0.1";
const SERVER: &str = "10.1.0.2";

/// A client, and a server that opens no connections.
fn fabric() -> Fabric {
    let quiet = policy(
        "shop/server",
        "{podSelector: {matchLabels: {app: server}}, policyTypes: [Ingress, Egress], ingress: [{}]}",
    );
    Fabric::new(
        &(pod("shop/client", 0, "{app: client}", &[CLIENT])
            + &pod("shop/server", 0, "{app: server}", &[SERVER])
            + &quiet),
    )
}

fn tuple(protocol: u8) -> Tuple {
    Tuple::new(CLIENT, SERVER, protocol, 80)
}

/// The sender and the kind of a TCP segment.
#[derive(Debug, Clone, Copy)]
enum Sent {
    Client(Segment),
    Server(Segment),
}

use Segment::{Data, Fin, Rst, Syn, SynAck};
use Sent::{Client, Server};

fn passes(fabric: &mut Fabric, sent: Sent) -> bool {
    let tuple = tuple(TCP);
    let delivered = match sent {
        Client(segment) => fabric.send("shop/client", &tuple.packet(segment, b"x")),
        Server(segment) => fabric.send("shop/server", &tuple.reversed().packet(segment, b"x")),
    };
    !delivered.is_empty()
}

/// A connection after these segments, which all pass.
fn after(segments: &[Sent]) -> Fabric {
    let mut fabric = fabric();
    for sent in segments {
        assert!(passes(&mut fabric, *sent), "{sent:?} of {segments:?}");
    }
    fabric
}

fn state(fabric: &mut Fabric) -> FlowState {
    let flows = fabric.nodes[0].flows();
    assert_eq!(flows.len(), 1, "one connection");
    flows[0].state()
}

const OPEN: [Sent; 3] = [Client(Syn), Server(SynAck), Client(Data)];
const CLOSED: [Sent; 6] =
    [Client(Syn), Server(SynAck), Client(Data), Client(Fin), Server(Fin), Client(Data)];
const RESET: [Sent; 4] = [Client(Syn), Server(SynAck), Client(Data), Server(Rst)];

/// Checks that the server's next packet passes after this many seconds of silence, and does not
/// after one more.
fn ends_after(seconds: u64, what: &str, open: impl Fn() -> Fabric, reply: &[u8]) {
    for (silence, passes) in [(seconds, true), (seconds + 1, false)] {
        let mut fabric = open();
        fabric.nodes[0].now += Duration::from_secs(silence);
        let delivered = fabric.send("shop/server", reply).len();
        assert_eq!(delivered == 1, passes, "{what}, after {silence} s");
    }
}

#[test]
fn idle_timeouts_are_syn_20_established_3600_fin_30_rst_40_udp_60_icmp_5_and_others_600_seconds() {
    let word = tuple(TCP).reversed().packet(Data, b"x");
    let answer = tuple(TCP).answer();
    ends_after(20, "SYN", || after(&[Client(Syn)]), &answer);
    ends_after(20, "SYN answered", || after(&OPEN[..2]), &word);
    ends_after(20, "met in the middle", || after(&[Client(Data)]), &word);
    ends_after(3600, "established", || after(&OPEN), &word);
    ends_after(3600, "half closed", || after(&CLOSED[..4]), &word);
    ends_after(30, "both halves closed", || after(&CLOSED[..5]), &word);
    ends_after(30, "and acknowledged", || after(&CLOSED), &word);
    ends_after(40, "reset", || after(&RESET), &word);
    ends_after(40, "refused", || after(&[Client(Syn), Server(Rst)]), &answer);
    for (protocol, seconds) in [(UDP, 60), (ICMP, 5), (SCTP, 600), (47, 600)] {
        let asked = tuple(protocol);
        let open = || {
            let mut fabric = fabric();
            assert_eq!(fabric.send("shop/client", &asked.opening()).len(), 1);
            fabric
        };
        ends_after(seconds, &format!("protocol {protocol}"), open, &asked.answer());
    }
}

#[test]
fn a_reset_marks_closing_and_is_undone_by_later_traffic() {
    let mut fabric = after(&RESET);
    assert_eq!(state(&mut fabric), FlowState::ResetEstablished);
    assert!(passes(&mut fabric, Server(Data)), "a forged reset ends nothing");
    assert_eq!(state(&mut fabric), FlowState::Established);
    // It has its long timeout again.
    fabric.nodes[0].now += Duration::from_secs(3000);
    assert!(passes(&mut fabric, Server(Data)));
}

#[test]
fn a_syn_on_a_closed_connection_recycles_its_entry() {
    for closing in [&CLOSED[..5], &CLOSED, &RESET] {
        let mut fabric = after(closing);
        assert!(passes(&mut fabric, Client(Syn)));
        assert_eq!(state(&mut fabric), FlowState::SynSent, "opened anew after {closing:?}");
        assert!(passes(&mut fabric, Server(SynAck)) && passes(&mut fabric, Client(Data)));
        assert_eq!(state(&mut fabric), FlowState::Established);
    }
    // The server may not open a connection, not even with the tuple of a closed one.
    let mut fabric = after(&CLOSED);
    assert!(!passes(&mut fabric, Server(Syn)));
    assert_eq!(state(&mut fabric), FlowState::Closed);
}

#[test]
fn a_syn_is_always_judged() {
    let mut fabric = after(&OPEN);
    assert!(!passes(&mut fabric, Server(Syn)), "the connection does not carry it");
    assert!(passes(&mut fabric, Server(Data)));
    assert!(passes(&mut fabric, Client(Syn)));
    assert_eq!(state(&mut fabric), FlowState::Established, "and a live one is not moved by it");
}

#[test]
fn a_packet_that_is_no_syn_and_has_no_flow_is_judged_as_a_new_flow() {
    let mut fabric = fabric();
    assert!(!passes(&mut fabric, Server(Data)), "its egress is denied");
    assert!(fabric.nodes[0].flows().is_empty(), "what is denied creates no state");
    assert!(passes(&mut fabric, Client(Data)));
    assert_eq!(state(&mut fabric), FlowState::PickedUp);
    assert!(passes(&mut fabric, Server(Data)));
    assert_eq!(state(&mut fabric), FlowState::Established);
}
