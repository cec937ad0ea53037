//! The work and memory that one pod can cost a worker, and what its neighbours keep in spite of
//! that.

use std::time::Duration;

use manx_dataplane::drop_reason::DropReason;
use manx_dataplane::flow::FlowKey;
use manx_dataplane::packet::Offload;
use manx_dataplane::tables::TrackingSettings;
use manx_tests::fabric::{Delivery, Fabric, pod};
use manx_tests::packet::{TCP, Tuple, UDP, addresses, super_packet, with_ttl};

use crate::errors::error_v4;

const A: &str = "10.1.0.1";
const B: &str = "10.1.0.2";
const B2: &str = "10.1.0.3";
const C: &str = "10.1.0.4";
const FAR: &str = "10.2.0.1";

fn fabric() -> Fabric {
    Fabric::new(
        &(pod("shop/a", 0, "{app: a}", &[A])
            + &pod("shop/b", 0, "{app: b}", &[B, B2])
            + &pod("shop/c", 0, "{app: c}", &[C])
            + &pod("shop/far", 1, "{app: far}", &[FAR])),
    )
}

fn send(fabric: &mut Fabric, pod: &str, bytes: &[u8], offload: Offload) -> Vec<Delivery> {
    let (node, port) = fabric.port(pod);
    fabric.nodes[node].inject_with(port, bytes, offload);
    fabric.run_until_idle()
}

#[test]
fn a_super_packet_that_no_mtu_explains_is_refused() {
    let mut fabric = fabric();
    let (_, a) = fabric.port("shop/a");
    let tcp = Tuple::new(A, FAR, TCP, 80);
    let udp = Tuple::new(A, FAR, UDP, 53);
    for tuple in [tcp, udp] {
        assert_eq!(fabric.send("shop/a", &tuple.opening()).len(), 1);
    }
    // The headers of `super_packet` are 20 bytes of IPv4 and 20 of TCP.
    for (what, tuple, payload, size, passes) in [
        ("the attack: 480 segments of one byte", tcp, 480, 1, false),
        ("one segment more than GRO coalesces of short ones", tcp, 65, 1, false),
        ("as many short ones as one poll may have brought", tcp, 64, 1, true),
        ("the longest that are short", tcp, 65 * 27, 27, false),
        ("as long as the least MTU", tcp, 65 * 28, 28, true),
        ("as small as Linux makes them", tcp, 200 * 48, 48, true),
        ("short, and not as many as may be", tcp, 200 * 120, 120, true),
        ("one more than may be", tcp, 513 * 120, 120, false),
        ("the size of this wire", tcp, 60_000, 1440, true),
        ("datagrams of one byte, as many as UDP_SEGMENT takes", udp, 128, 1, true),
        ("one datagram more", udp, 129, 1, false),
    ] {
        let (bytes, offload) = super_packet(tuple, &vec![7; payload], size);
        let before = fabric.nodes[0].dropped(a, DropReason::TooManySegments);
        let delivered = send(&mut fabric, "shop/a", &bytes, offload);
        let refused = fabric.nodes[0].dropped(a, DropReason::TooManySegments) - before;
        assert_eq!((delivered.is_empty(), refused), (!passes, u64::from(!passes)), "{what}");
    }
}

#[test]
fn traffic_of_a_pod_with_itself_passes_and_makes_no_flow() {
    for tcp_strict in [false, true] {
        let mut fabric = fabric();
        fabric.connections = TrackingSettings { tcp_strict, ..TrackingSettings::default() };
        fabric.publish();
        let (_, b) = fabric.port("shop/b");
        let alone = |source, destination, protocol| Tuple::new(source, destination, protocol, 80);
        for tuple in [alone(B, B, TCP), alone(B, B2, TCP), alone(B, B, UDP), alone(B2, B, UDP)] {
            for bytes in
                [tuple.opening(), tuple.answer(), tuple.data(b"x"), tuple.reversed().data(b"y")]
            {
                let delivered = fabric.send("shop/b", &bytes);
                assert_eq!(delivered.len(), 1, "{tuple:?}");
                assert_eq!((delivered[0].node, delivered[0].port), (0, b));
            }
        }
        let about = alone(B, B2, UDP).opening();
        assert_eq!(fabric.send("shop/b", &error_v4(B2, B, &about)).len(), 1, "an error about it");
        assert_eq!(fabric.send("shop/a", &error_v4(A, B, &about)), [], "a neighbour's");
        assert!(fabric.nodes[0].flows().is_empty());
    }
}

#[test]
fn pods_that_fill_the_flow_table_leave_their_neighbours_flows_alone() {
    let mut fabric = fabric();
    let answered = |fabric: &mut Fabric, pods: [&str; 2], tuple: Tuple| {
        assert_eq!(fabric.send(pods[0], &tuple.opening()).len(), 1);
        assert_eq!(fabric.send(pods[1], &tuple.answer()).len(), 1);
    };
    // The neighbour opens connections to a pod on another node and to one here, and is then silent.
    let mine: Vec<Tuple> = (0..20)
        .map(|n| Tuple::new(C, if n % 2 == 0 { FAR } else { A }, TCP, 80).from_port(2000 + n))
        .collect();
    for (n, tuple) in mine.iter().enumerate() {
        answered(&mut fabric, ["shop/c", if n % 2 == 0 { "shop/far" } else { "shop/a" }], *tuple);
    }
    fabric.nodes[0].now += Duration::from_secs(100);
    // Two cooperating pods play both ends of twice as many established flows as the table holds.
    for n in 0..8192u32 {
        let (low, high) = ((n % 4096) as u16, (n / 4096) as u16);
        let tuple = Tuple::new(A, B, UDP, 7 + high).from_port(10_000 + low);
        answered(&mut fabric, ["shop/a", "shop/b"], tuple);
    }
    let flows = fabric.nodes[0].flows();
    assert!(flows.len() > 4000, "the table is full: {}", flows.len());
    for tuple in &mine {
        let (key, _) = FlowKey::new(
            tuple.source.into(),
            tuple.destination.into(),
            tuple.source_port,
            tuple.destination_port,
            tuple.protocol,
        );
        assert!(flows.iter().any(|flow| flow.key() == key), "{tuple:?} was evicted");
    }
}

#[test]
fn one_senders_icmp_errors_leave_the_others_theirs() {
    let mut fabric = fabric();
    fabric.nodes[0].now = Duration::from_secs(10);
    let [(_, a), (_, c)] = ["shop/a", "shop/c"].map(|pod| fabric.port(pod));
    let expired = |source| with_ttl(Tuple::new(source, B, UDP, 53).opening(), 1);
    let too_big = |source| Tuple::new(source, FAR, UDP, 53).data(&[0; 1480]);
    let told = |fabric: &mut Fabric, port, bytes: &[u8], times| {
        (0..times).for_each(|_| fabric.nodes[0].inject(port, bytes));
        let answers = fabric.run_until_idle();
        for answer in &answers {
            assert_eq!((answer.node, answer.port), (0, port));
            let (_, to) = addresses(&answer.frame.bytes);
            assert_eq!(to, addresses(bytes).0);
        }
        answers.len()
    };
    assert_eq!(told(&mut fabric, a, &expired(A), 500), 50, "the attacker's own burst");
    assert_eq!(told(&mut fabric, c, &expired(C), 20), 20, "a neighbour's traceroute");
    assert_eq!(told(&mut fabric, a, &too_big(A), 20), 20, "its own path MTU");
    assert_eq!(told(&mut fabric, a, &too_big(A), 500), 30, "has a budget, too");
    assert_eq!(told(&mut fabric, c, &too_big(C), 20), 20, "a neighbour's path MTU");
}
