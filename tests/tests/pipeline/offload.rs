//! Super-packets: they are judged once, cut at the beginning of a wire, joined at its end, and
//! counted in segments.

use manx_dataplane::drop_reason::DropReason;
use manx_dataplane::packet::Capabilities;
use manx_dataplane::packet::{Checksum, Offload, SegmentKind, Segmentation};
use manx_dataplane::port::memory::Frame;
use manx_policy_compiler::model::ObjectName;
use manx_tests::fabric::{Delivery, Fabric, HOST, MTU, RAW, UNDERLAY, pod, policy, workers};
use manx_tests::packet::{
    ICMP, ICMPV6, SCTP, TCP, Tuple, UDP, addresses, assert_whole, change_v4, super_packet,
    tunnelled, with_ttl,
};

const A: &str = "10.1.0.1";
const A6: &str = "fd00:1::1";
const B: &str = "10.1.0.3";
const B6: &str = "fd00:1::3";
const PLAIN: &str = "10.1.0.2";
const PLAIN6: &str = "fd00:1::2";
const FAR: &str = "10.2.0.1";
const FAR_PLAIN: &str = "10.2.0.2";
/// The segment size of a pod behind a tunnel: the tunnel's MTU without the headers.
const MSS: u16 = 1440;

fn pods() -> String {
    pod("shop/a", 0, "{app: a}", &[A, A6])
        + &pod("shop/plain", 0, "{app: b}", &[PLAIN, PLAIN6])
        + &pod("shop/far", 1, "{app: far}", &[FAR])
        + &pod("shop/far-plain", 1, "{app: far}", &[FAR_PLAIN])
}

/// The ports of pods called "plain" take only finished packets.
fn fabric(yaml: &str) -> Fabric {
    let offload = |name: &ObjectName| {
        if name.name.contains("plain") { Capabilities::default() } else { Capabilities::ALL }
    };
    Fabric::with_offload(yaml, offload)
}

fn noise(len: usize) -> Vec<u8> {
    (0..len).map(|n| (n * 31 % 253) as u8).collect()
}

/// The TCP payload of a packet.
fn carried(bytes: &[u8]) -> &[u8] {
    let ip = if bytes[0] >> 4 == 4 { 20 } else { 40 };
    &bytes[ip + usize::from(bytes[ip + 12] >> 4) * 4..]
}

fn sequence(bytes: &[u8]) -> u32 {
    let ip = if bytes[0] >> 4 == 4 { 20 } else { 40 };
    u32::from_be_bytes(bytes[ip + 4..ip + 8].try_into().unwrap())
}

/// Panics unless these are finished packets that carry `data` in order, in packets of at most `mtu` bytes.
fn assert_stream<'a>(packets: impl Iterator<Item = &'a [u8]>, data: &[u8], mtu: usize) {
    let mut next = 1;
    let mut joined = Vec::new();
    for bytes in packets {
        assert!(bytes.len() <= mtu);
        assert_whole(bytes);
        assert_eq!(sequence(bytes), next, "in order");
        next += carried(bytes).len() as u32;
        joined.extend_from_slice(carried(bytes));
    }
    assert_eq!(joined, data);
}

#[test]
fn a_super_packet_of_another_protocol_than_its_device_says_is_malformed() {
    let kinds = [SegmentKind::Tcp4, SegmentKind::Tcp6, SegmentKind::Udp];
    let cases = [
        (Tuple::new(A, B, TCP, 80), Some(SegmentKind::Tcp4)),
        (Tuple::new(A, B, UDP, 80), Some(SegmentKind::Udp)),
        (Tuple::new(A, B, ICMP, 80), None),
        (Tuple::new(A, B, SCTP, 80), None),
        (Tuple::new(A6, B6, TCP, 80), Some(SegmentKind::Tcp6)),
        (Tuple::new(A6, B6, UDP, 80), Some(SegmentKind::Udp)),
        (Tuple::new(A6, B6, ICMPV6, 80), None),
    ];
    let b = pod("shop/b", 0, "{}", &[B, B6]);
    for (tuple, own) in cases {
        for kind in kinds {
            let mut fabric = fabric(&(pods() + &b));
            let (_, a) = fabric.port("shop/a");
            let segmentation = Some(Segmentation { kind, size: 600, ecn: false });
            let offload = Offload { checksum: Checksum::Verified, segmentation };
            fabric.nodes[0].inject_with(a, &tuple.data(&noise(1200)), offload);
            let passes = usize::from(own == Some(kind));
            assert_eq!(fabric.run_until_idle().len(), passes, "{tuple:?} as {kind:?}");
            let malformed = fabric.nodes[0].dropped(a, DropReason::Malformed);
            assert_eq!(malformed, 1 - passes as u64, "{tuple:?} as {kind:?}");
        }
    }
}

fn open(fabric: &mut Fabric, from: &str, tuple: Tuple) {
    assert_eq!(fabric.send(from, &tuple.opening()).len(), 1);
}

#[test]
fn a_super_packet_enters_a_tunnel_in_segments_and_leaves_it_in_super_packets() {
    let data = noise(64_000);
    let segments = data.len().div_ceil(usize::from(MSS)) as u64;
    let tuple = Tuple::new(A, FAR, TCP, 5001);
    let mut fabric = fabric(&pods());
    open(&mut fabric, "shop/a", tuple);
    let (before, sent_before) = {
        let node = &fabric.nodes[0];
        let (_, a) = fabric.port("shop/a");
        (
            node.wires[&a].count(|counters| &counters.received_packets),
            node.wires[&RAW].count(|counters| &counters.sent_packets),
        )
    };
    let (bytes, offload) = super_packet(tuple, &data, MSS);
    let (_, a) = fabric.port("shop/a");
    fabric.nodes[0].inject_with(a, &bytes, offload);
    fabric.nodes[0].run();
    let frames = fabric.nodes[0].collect(RAW);
    assert_eq!(frames.len() as u64, segments);
    let mut ids = std::collections::BTreeSet::new();
    for frame in &frames {
        assert!(frame.bytes.len() <= MTU as usize);
        assert_whole(&frame.bytes);
        assert_eq!(addresses(&frame.bytes), (UNDERLAY[0].into(), UNDERLAY[1].into()));
        assert_eq!((frame.bytes[8], frame.bytes[9], frame.bytes[1]), (64, 4, 0));
        assert!(ids.insert([frame.bytes[4], frame.bytes[5]]), "each has an id of its own");
    }
    assert_stream(frames.iter().map(|frame| &frame.bytes[20..]), &data, MTU as usize - 20);
    let wire = |node: usize, port| &fabric.nodes[node].wires[&port];
    assert_eq!(wire(0, a).count(|it| &it.received_packets) - before, segments);
    assert_eq!(wire(0, RAW).count(|it| &it.sent_packets) - sent_before, segments);
    let wire_bytes: usize = frames.iter().map(|frame| frame.bytes.len()).sum();
    assert!(wire(0, RAW).count(|it| &it.sent_bytes) >= wire_bytes as u64);

    let (_, far) = fabric.port("shop/far");
    let received = wire(1, RAW).count(|it| &it.received_packets);
    let sent = wire(1, far).count(|it| &it.sent_packets);
    for frame in &frames {
        fabric.nodes[1].inject(RAW, &frame.bytes);
    }
    fabric.nodes[1].run();
    let out = fabric.nodes[1].collect(far);
    assert!(out.len() <= 3, "a batch becomes one packet: {}", out.len());
    let joined: Vec<u8> = out.iter().flat_map(|frame| carried(&frame.bytes).to_vec()).collect();
    assert_eq!(joined, data);
    for frame in &out {
        let segmentation = frame.offload.segmentation.unwrap();
        assert_eq!(segmentation.size, MSS);
        assert_eq!(frame.offload.checksum, Checksum::Partial { start: 20, offset: 16 });
    }
    let wire = |port| &fabric.nodes[1].wires[&port];
    assert_eq!(wire(RAW).count(|it| &it.received_packets) - received, segments);
    assert_eq!(wire(far).count(|it| &it.sent_packets) - sent, segments);
    assert!(fabric.nodes.iter().all(|node| node.drops().is_empty()));
}

/// A sender chooses where a partial checksum is written. It must not be able to choose bytes that
/// policy has read.
#[test]
fn a_checksum_cannot_be_written_over_what_was_judged() {
    let tuple = Tuple::new(A, FAR, TCP, 5001);
    let syn = tuple.opening();
    let over = [(20, 0), (20, 2), (20, 4), (20, 14), (0, 16), (12, 24), (24, 12), (36, 0)];
    for (start, offset) in over {
        let mut fabric = fabric(&pods());
        let (_, port) = fabric.port("shop/a");
        let checksum = Checksum::Partial { start, offset };
        fabric.nodes[0].inject_with(port, &syn, Offload { checksum, ..Offload::default() });
        fabric.nodes[0].run();
        assert_eq!(fabric.nodes[0].collect(RAW), [], "{start}+{offset}");
        assert_eq!(fabric.nodes[0].dropped(port, DropReason::Malformed), 1, "{start}+{offset}");
    }
    // The packet's own checksum, and the checksum of a tunnel's inner packet, which is behind the
    // header and is not read.
    let within = Tuple::new(A, FAR, UDP, 6081).data(&[0; 60]);
    for (bytes, start, offset) in [(&syn, 20, 16), (&within, 20, 6), (&within, 58, 6)] {
        let mut fabric = fabric(&pods());
        let (_, port) = fabric.port("shop/a");
        let checksum = Checksum::Partial { start, offset };
        fabric.nodes[0].inject_with(port, bytes, Offload { checksum, ..Offload::default() });
        fabric.nodes[0].run();
        let sent = fabric.nodes[0].collect(RAW).len();
        assert_eq!(sent, 1, "{start}+{offset}: {:?}", fabric.nodes[0].drops());
    }
}

#[test]
fn a_port_without_offload_gets_finished_segments() {
    let data = noise(30_000);
    for (from, to, source, destination) in [
        ("shop/a", "shop/plain", A, PLAIN),
        ("shop/a", "shop/plain", A6, PLAIN6),
        ("shop/a", "shop/far-plain", A, FAR_PLAIN),
    ] {
        let tuple = Tuple::new(source, destination, TCP, 5001);
        let mut fabric = fabric(&pods());
        open(&mut fabric, from, tuple);
        let mss = if destination == PLAIN6 { 1400 } else { MSS };
        let (bytes, offload) = super_packet(tuple, &data, mss);
        let (_, port) = fabric.port(from);
        fabric.nodes[0].inject_with(port, &bytes, offload);
        let delivered = fabric.run_until_idle();
        let segments = data.len().div_ceil(usize::from(mss));
        assert_eq!(delivered.len(), segments);
        let (node, to) = fabric.port(to);
        assert!(delivered.iter().all(|d| (d.node, d.port) == (node, to)));
        assert!(
            delivered.iter().all(|d| !matches!(d.frame.offload.checksum, Checksum::Partial { .. }))
        );
        assert_stream(delivered.iter().map(|d| &d.frame.bytes[..]), &data, MTU as usize);
        assert_eq!(fabric.nodes[node].wires[&to].count(|it| &it.sent_packets), segments as u64 + 1);
    }
}

#[test]
fn between_ports_with_offload_a_super_packet_stays_whole() {
    let yaml = pods();
    for (source, destination) in [(A, "192.0.2.1"), (A6, "2001:db8::1")] {
        let mut fabric = fabric(&yaml);
        let tuple = Tuple::new(source, destination, TCP, 443);
        open(&mut fabric, "shop/a", tuple);
        let (bytes, offload) = super_packet(tuple, &noise(60_000), 1420);
        let (_, a) = fabric.port("shop/a");
        fabric.nodes[0].inject_with(a, &bytes, offload);
        let delivered = fabric.run_until_idle();
        let expected = Frame { bytes: manx_tests::packet::with_ttl(bytes, 63), offload };
        assert_eq!(delivered.len(), 1);
        assert_eq!((delivered[0].port, &delivered[0].frame), (HOST, &expected));
        let sent = fabric.nodes[0].wires[&HOST].count(|it| &it.sent_packets);
        assert_eq!(sent, 1 + 60_000_u64.div_ceil(1420));
    }
}

#[test]
fn a_denied_super_packet_is_judged_once_and_counted_in_segments() {
    let closed = policy("shop/a", "{podSelector: {matchLabels: {app: a}}, policyTypes: [Egress]}");
    let mut fabric = fabric(&(pods() + &closed));
    let (bytes, offload) = super_packet(Tuple::new(A, FAR, TCP, 1), &noise(14_400), MSS);
    let (_, a) = fabric.port("shop/a");
    fabric.nodes[0].inject_with(a, &bytes, offload);
    assert_eq!(fabric.run_until_idle(), []);
    assert_eq!(fabric.nodes[0].dropped(a, DropReason::PolicyEgress), 10);
    assert_eq!(fabric.nodes[0].decisions().values().sum::<u64>(), 10);
    assert_eq!(fabric.nodes[0].traffic(), (10, 0));
}

#[test]
fn datagrams_of_one_flow_leave_as_one_and_each_is_decided_by_itself() {
    let to = |pod, ttl| with_ttl(Tuple::new(A, pod, UDP, 53).data(&noise(100)), ttl);
    let mut fabric = fabric(&(pods() + &pod("shop/b", 0, "{app: c}", &[B])));
    let (_, a) = fabric.port("shop/a");
    // One packet in the middle is dropped on the way, and its sender gets an error.
    for ttl in [64, 64, 64, 1, 64, 64, 64, 64, 64, 64] {
        fabric.nodes[0].inject(a, &to(B, ttl));
    }
    let delivered = fabric.run_until_idle();
    let (told, arrived): (Vec<_>, Vec<_>) = delivered.into_iter().partition(|it| it.port == a);
    assert_eq!(told.len(), 1);
    assert_eq!(fabric.nodes[0].dropped(a, DropReason::TtlExceeded), 1);
    if workers() == 1 {
        assert_eq!(arrived.len(), 1);
    }
    let mut datagrams = 0;
    for Delivery { frame, .. } in &arrived {
        let payload = &frame.bytes[28..];
        assert!(payload.chunks(100).all(|one| one == noise(100)));
        assert_eq!(frame.offload.segmentation.is_some(), payload.len() > 100);
        datagrams += payload.len() / 100;
    }
    assert_eq!(datagrams, 9);
    assert_eq!(fabric.nodes[0].traffic(), (10, 10), "nine, and what was told");
    // If a port takes only finished packets, each packet is sent alone.
    (0..10).for_each(|_| fabric.nodes[0].inject(a, &to(PLAIN, 64)));
    let delivered = fabric.run_until_idle();
    assert_eq!(delivered.len(), 10);
    delivered.iter().for_each(|it| assert_whole(&it.frame.bytes));
}

#[test]
fn segments_too_big_for_the_tunnel_are_answered_with_its_mtu() {
    let mut fabric = fabric(&pods());
    let (bytes, offload) = super_packet(Tuple::new(A, FAR, TCP, 1), &noise(14_600), 1460);
    let (_, a) = fabric.port("shop/a");
    fabric.nodes[0].inject_with(a, &bytes, offload);
    let delivered = fabric.run_until_idle();
    assert_eq!((delivered.len(), delivered[0].port), (1, a), "an ICMP error");
    assert_eq!(delivered[0].frame.bytes[20..28][6..], 1480_u16.to_be_bytes());
    assert_eq!(fabric.nodes[0].dropped(a, DropReason::TooBig), 10);
}

#[test]
fn what_the_kernel_coalesced_without_saying_so_is_cut_again() {
    // A raw socket delivers one long packet: without a segment size, and with only the sum of the pseudo-header as its
    // checksum.
    let data = noise(MSS as usize * 10);
    let tuple = Tuple::new(A, FAR_PLAIN, TCP, 5001);
    let mut fabric = fabric(&pods());
    open(&mut fabric, "shop/a", tuple);
    let (bytes, _) = super_packet(tuple, &data, MSS);
    fabric.nodes[1].inject_with(
        RAW,
        &tunnelled(UNDERLAY[0], UNDERLAY[1], &bytes, 0),
        Offload::default(),
    );
    let delivered = fabric.run_until_idle();
    assert_eq!(delivered.len(), 10);
    assert_stream(delivered.iter().map(|d| &d.frame.bytes[..]), &data, 1480);
    assert_eq!(fabric.nodes[1].wires[&RAW].count(|it| &it.received_packets), 11);
}

#[test]
fn a_segment_with_a_wrong_checksum_passes_alone_and_as_wrong_as_it_was() {
    let tuple = Tuple::new(A, FAR, TCP, 5001);
    let mut fabric = fabric(&pods());
    open(&mut fabric, "shop/a", tuple);
    let mut packets: Vec<Vec<u8>> = (0..3)
        .map(|n| {
            let mut bytes = tuple.data(&[n; 100]);
            bytes[24..28].copy_from_slice(&(1 + u32::from(n) * 100).to_be_bytes());
            bytes
        })
        .collect();
    for bytes in &mut packets {
        // The sequence numbers do not fit the checksums, so all checksums are wrong.
        change_v4(bytes, |_| {});
    }
    for bytes in &packets[1..] {
        fabric.nodes[1].inject(RAW, &tunnelled(UNDERLAY[0], UNDERLAY[1], bytes, 0));
    }
    let delivered = fabric.run_until_idle();
    assert_eq!(delivered.len(), 2);
    for (delivery, sent) in delivered.iter().zip(&packets[1..]) {
        assert_eq!(delivery.frame.bytes[20..], sent[20..]);
        assert_eq!(delivery.frame.offload, Offload::default());
    }
}

#[test]
fn a_partial_checksum_stays_partial_where_the_port_takes_it_and_is_finished_elsewhere() {
    let mut fabric = fabric(&pods());
    for (destination, finished) in [("192.0.2.1", false), (PLAIN, true), (FAR_PLAIN, true)] {
        let tuple = Tuple::new(A, destination, TCP, 80);
        let (bytes, mut offload) = super_packet(tuple, b"little", MSS);
        offload.segmentation = None;
        let (_, a) = fabric.port("shop/a");
        fabric.nodes[0].inject_with(a, &bytes, offload);
        let delivered = fabric.run_until_idle();
        assert_eq!(delivered.len(), 1);
        if finished {
            assert_whole(&delivered[0].frame.bytes);
            assert!(!matches!(delivered[0].frame.offload.checksum, Checksum::Partial { .. }));
        } else {
            assert_eq!(delivered[0].frame.offload, offload);
        }
    }
}
