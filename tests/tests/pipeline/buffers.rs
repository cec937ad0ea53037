//! Whatever happens to a packet, its buffer returns to the pool and the packet is counted once.

use manx_dataplane::drop_reason::DropReason;
use manx_dataplane::packet::Capabilities;
use manx_dataplane::packet::Offload;
use manx_dataplane::tables::PortId;
use manx_dataplane::worker::Command;
use manx_tests::fabric::{Fabric, HOST, Node, RAW, UNDERLAY, workers};
use manx_tests::packet::{TCP, Tuple, UDP, change_v4, super_packet, tunnelled, with_ttl};
use manx_tests::shop::{self, A, B, FAR};

/// A number that exceeds a worker's buffers.
const TIMES: u64 = 300;

/// A packet, the port by which it comes in, and its drop reason, if it is dropped.
type Case = (&'static str, PortId, Vec<u8>, Offload, Option<DropReason>);

fn cases(a: PortId, b: PortId) -> Vec<Case> {
    let plain = Offload::default();
    let to = |destination: &str, protocol| Tuple::new(A, destination, protocol, 80);
    let forward = to(B, TCP).from_port(7).opening();
    let mut cut = to(FAR, UDP).data(&[0; 4000]);
    let mut longest = to(FAR, UDP).data(&[0; 65_535 - 28]);
    for bytes in [&mut cut, &mut longest] {
        change_v4(bytes, |ip| ip.dont_fragment = false);
    }
    let mut later = to(B, UDP).opening();
    change_v4(&mut later, |ip| ip.fragment_offset = etherparse::IpFragOffset::try_new(9).unwrap());
    let (bulk, offload) = super_packet(to(FAR, TCP), &[3; 20_000], 1440);
    let (lie, mut false_offload) = super_packet(to(FAR, TCP), &[3; 20_000], 1440);
    false_offload.checksum = manx_dataplane::packet::Checksum::Unverified;
    let outer = |inner: &[u8], ecn| tunnelled(UNDERLAY[1], UNDERLAY[0], inner, ecn);
    let inward = Tuple::new(FAR, A, TCP, 80).opening();
    vec![
        ("forwarded", a, forward, plain, None),
        ("encapsulated", a, to(FAR, TCP).opening(), plain, None),
        ("decapsulated", RAW, outer(&inward, 0), plain, None),
        ("cut into fragments", a, cut, plain, None),
        ("cut into many fragments", a, longest, plain, None),
        ("cut into segments", a, bulk, offload, None),
        ("noise", a, vec![0; 33], plain, Some(DropReason::Malformed)),
        ("noise from a tunnel", RAW, vec![0x45; 33], plain, Some(DropReason::Malformed)),
        ("nothing in the tunnel", RAW, outer(&[0x45; 10], 0), plain, Some(DropReason::Malformed)),
        (
            "a stranger's tunnel",
            RAW,
            tunnelled([9; 4].into(), UNDERLAY[0], &inward, 0),
            plain,
            Some(DropReason::UnknownTunnelPeer),
        ),
        (
            "not the peer's",
            RAW,
            outer(&to(B, UDP).opening(), 0),
            plain,
            Some(DropReason::TunnelSourceMismatch),
        ),
        ("deaf to congestion", RAW, outer(&inward, 3), plain, Some(DropReason::EcnInconsistent)),
        ("spoofed", b, to(B, UDP).opening(), plain, Some(DropReason::SourceSpoofed)),
        (
            "denied going out",
            b,
            Tuple::new(B, A, UDP, 1).opening(),
            plain,
            Some(DropReason::PolicyEgress),
        ),
        (
            "denied coming in",
            HOST,
            Tuple::new("192.0.2.1", B, UDP, 1).opening(),
            plain,
            Some(DropReason::PolicyIngress),
        ),
        (
            "from nowhere to nowhere",
            HOST,
            Tuple::new("192.0.2.1", "192.0.2.2", UDP, 1).opening(),
            plain,
            Some(DropReason::NoRoute),
        ),
        ("answered", a, with_ttl(to(B, UDP).opening(), 1), plain, Some(DropReason::TtlExceeded)),
        ("answered, too big", a, to(B, UDP).data(&[0; 3000]), plain, Some(DropReason::TooBig)),
        (
            "no such address",
            a,
            to("10.244.1.9", UDP).opening(),
            plain,
            Some(DropReason::HostUnreachable),
        ),
        ("later fragment", a, later, plain, Some(DropReason::FragmentWithoutFirst)),
        ("to many", a, to("224.0.0.1", UDP).opening(), plain, Some(DropReason::NotForwardable)),
        (
            "a tunnel of a pod's",
            a,
            tunnelled(A.parse().unwrap(), UNDERLAY[1], &inward, 0),
            plain,
            Some(DropReason::TunnelFromPod),
        ),
        ("super-packet with a wrong checksum", a, lie, false_offload, Some(DropReason::Malformed)),
        ("unknown port", PortId(50), inward, plain, Some(DropReason::NoTables)),
    ]
}

#[test]
fn every_buffer_comes_back_and_every_packet_is_forwarded_or_dropped_once() {
    let (mut fabric, a, b) = shop::fabric();
    fabric.nodes[0].attach(PortId(50), Capabilities::ALL);
    let node = &mut fabric.nodes[0];
    for (name, port, bytes, offload, reason) in cases(a, b) {
        let (received, _) = node.traffic();
        let dropped: u64 = node.drops().values().sum();
        let for_reason = |node: &Node| reason.map(|r| node.dropped(port, r));
        let before = for_reason(node);
        let mut came_out = 0;
        for _ in 0..TIMES {
            node.inject_with(port, &bytes, offload);
            node.run();
            let ports: Vec<PortId> = node.wires.keys().copied().collect();
            came_out +=
                ports.into_iter().map(|port| node.collect(port).len()).sum::<usize>() as u64;
        }
        let received = node.traffic().0 - received;
        let dropped = node.drops().values().sum::<u64>() - dropped;
        match before {
            Some(before) => {
                assert_eq!(dropped, received, "{name}: {:?}", node.drops());
                assert_eq!(for_reason(node), Some(before + received), "{name}: {:?}", node.drops());
            }
            None => {
                assert_eq!(dropped, 0, "{name}: {:?}", node.drops());
                assert!(came_out >= received && received >= TIMES, "{name}");
            }
        }
    }
}

/// The ports of A and B; the queue of B's device is full after this many packets.
fn crowded(room: usize) -> (Fabric, PortId, PortId) {
    let (mut fabric, a, b) = shop::fabric();
    let node = &mut fabric.nodes[0];
    node.send_command(|| Command::Detach(b, None));
    node.attach_with(b, Capabilities::ALL, room);
    (fabric, a, b)
}

#[test]
fn what_a_device_refuses_is_counted_at_its_port_and_not_as_sent() {
    let (mut fabric, a, b) = crowded(2);
    let node = &mut fabric.nodes[0];
    // Packets of growing length, which are not joined with those before them.
    for len in 0..5 {
        node.inject(a, &Tuple::new(A, B, UDP, 53).data(&[7; 20][..10 + len]));
    }
    node.run();
    assert_eq!(node.collect(b).len(), 2);
    assert_eq!(node.dropped(b, DropReason::TransmitRefused), 3);
    assert_eq!(node.traffic(), (5, 2), "received is sent and dropped");
}

#[test]
fn what_left_as_one_is_refused_as_what_it_was_put_together_from() {
    let (mut fabric, a, b) = crowded(1);
    let node = &mut fabric.nodes[0];
    for len in [10, 10, 10, 10, 10, 20, 20, 20, 20, 20] {
        node.inject(a, &Tuple::new(A, B, UDP, 53).data(&[7; 20][..len]));
    }
    node.run();
    let taken = node.collect(b);
    assert_eq!(taken.len(), 1);
    let sent = (taken[0].bytes.len() as u64 - 28) / 10;
    assert!(sent == 5 || workers() > 1, "{sent}");
    assert_eq!(node.dropped(b, DropReason::TransmitRefused), 10 - sent);
    assert_eq!(node.traffic(), (10, sent));
}
