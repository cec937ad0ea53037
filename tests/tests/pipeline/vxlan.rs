//! VXLAN between the nodes: the laws of IPIP also hold for it.

use etherparse::{Ethernet2Slice, PacketBuilder, SlicedPacket, TransportSlice};
use manx_calculation::overlay::Overlay;
use manx_dataplane::drop_reason::DropReason;
use manx_dataplane::packet::Offload;
use manx_tests::fabric::{Fabric, MTU, RAW, UNDERLAY, pod, vxlan_mac};
use manx_tests::packet::{
    TCP, Tuple, UDP, addresses, assert_whole, change_v4, super_packet, tunnelled,
};

const A: &str = "10.1.0.1";
const FAR: &str = "10.2.0.1";
const VNI: u32 = 4096;
/// Outer IPv4, UDP, VXLAN and Ethernet headers.
const HEADERS: usize = 20 + 8 + 8 + 14;
const MSS: u16 = MTU as u16 - HEADERS as u16 - 40;

fn fabric() -> Fabric {
    let mut fabric = Fabric::closed();
    fabric.overlay = Overlay::Vxlan;
    fabric.apply(&(pod("shop/a", 0, "{app: a}", &[A]) + &pod("shop/far", 1, "{app: far}", &[FAR])));
    fabric
}

/// The packet that node 1 would send to node 0 around `frame`.
fn around(frame: &[u8], vni: u32) -> Vec<u8> {
    let [_, a, b, c] = vni.to_be_bytes();
    let payload = [&[8, 0, 0, 0, a, b, c, 0][..], frame].concat();
    let mut bytes = Vec::new();
    PacketBuilder::ipv4(UNDERLAY[1].octets(), UNDERLAY[0].octets(), 64)
        .udp(50_000, 4789)
        .write(&mut bytes, &payload)
        .unwrap();
    bytes
}

fn framed(inner: &[u8], ethertype: [u8; 2]) -> Vec<u8> {
    [&vxlan_mac(0)[..], &vxlan_mac(1), &ethertype, inner].concat()
}

fn vxlan(inner: &[u8]) -> Vec<u8> {
    around(&framed(inner, [8, 0]), VNI)
}

fn is_dropped(fabric: &mut Fabric, bytes: &[u8], reason: DropReason) {
    let before = fabric.nodes[0].dropped(RAW, reason);
    assert_eq!(fabric.send_at(0, RAW, bytes), []);
    assert_eq!(fabric.nodes[0].dropped(RAW, reason), before + 1, "{reason:?}");
}

#[test]
fn a_super_packet_enters_in_segments_that_somebody_else_can_read_and_leaves_as_it_was() {
    let mut fabric = fabric();
    let tuple = Tuple::new(A, FAR, TCP, 5001);
    assert_eq!(fabric.send("shop/a", &tuple.opening()).len(), 1);
    let data: Vec<u8> = (0..64_000).map(|n| (n * 31 % 253) as u8).collect();
    let (bytes, offload) = super_packet(tuple, &data, MSS);
    let (_, a) = fabric.port("shop/a");
    fabric.nodes[0].inject_with(a, &bytes, offload);
    fabric.nodes[0].run();
    let frames = fabric.nodes[0].collect(RAW);
    assert_eq!(frames.len(), data.len().div_ceil(usize::from(MSS)));
    let mut carried = Vec::new();
    for frame in &frames {
        assert!(frame.bytes.len() <= MTU as usize);
        assert_eq!(addresses(&frame.bytes), (UNDERLAY[0].into(), UNDERLAY[1].into()));
        let outer = SlicedPacket::from_ip(&frame.bytes).unwrap();
        let Some(TransportSlice::Udp(udp)) = outer.transport else { panic!("no UDP") };
        assert_eq!((udp.destination_port(), udp.checksum()), (4789, 0));
        let (header, rest) = udp.payload().split_at(8);
        assert_eq!(header, [8, 0, 0, 0, 0, 0x10, 0, 0], "network 4096");
        let inside = Ethernet2Slice::from_slice_without_fcs(rest).unwrap();
        assert_eq!((inside.source(), inside.destination()), (vxlan_mac(0), vxlan_mac(1)));
        assert_whole(inside.payload().payload);
        carried.extend_from_slice(&inside.payload().payload[40..]);
    }
    assert_eq!(carried, data);
    for frame in &frames {
        fabric.nodes[1].inject(RAW, &frame.bytes);
    }
    fabric.nodes[1].run();
    let (_, far) = fabric.port("shop/far");
    let arrived = fabric.nodes[1].collect(far);
    assert!(arrived.len() <= 3, "super-packets: {}", arrived.len());
    let joined: Vec<u8> = arrived.iter().flat_map(|frame| frame.bytes[40..].to_vec()).collect();
    assert_eq!(joined, data);
}

#[test]
fn only_the_network_and_the_peers_of_the_tables_and_only_ipv4_inside() {
    let mut fabric = fabric();
    let inner = Tuple::new(FAR, A, UDP, 53).opening();
    let frame = framed(&inner, [8, 0]);
    is_dropped(&mut fabric, &around(&frame, 4097), DropReason::UnknownTunnelPeer);
    let mut stranger = vxlan(&inner);
    change_v4(&mut stranger, |ip| ip.source = [172, 18, 0, 77]);
    is_dropped(&mut fabric, &stranger, DropReason::UnknownTunnelPeer);
    let mut elsewhere = vxlan(&inner);
    change_v4(&mut elsewhere, |ip| ip.destination = [172, 18, 0, 77]);
    is_dropped(&mut fabric, &elsewhere, DropReason::UnknownTunnelPeer);
    // The packet comes from the same node, with another encapsulation than its pool says.
    let ipip = tunnelled(UNDERLAY[1], UNDERLAY[0], &inner, 0);
    is_dropped(&mut fabric, &ipip, DropReason::UnknownTunnelPeer);
    is_dropped(&mut fabric, &around(&framed(&inner, [0x86, 0xdd]), VNI), DropReason::Malformed);
    is_dropped(&mut fabric, &around(&frame[..12], VNI), DropReason::Malformed);
    let mut without_network = vxlan(&inner);
    without_network[28] = 0;
    is_dropped(&mut fabric, &without_network, DropReason::Malformed);
    let mut another_port = vxlan(&inner);
    another_port[23] = 1;
    is_dropped(&mut fabric, &another_port, DropReason::Malformed);
    let own = Tuple::new(A, A, UDP, 53).opening();
    is_dropped(&mut fabric, &vxlan(&own), DropReason::TunnelSourceMismatch);
    assert_eq!(fabric.send_at(0, RAW, &vxlan(&inner)).len(), 1);
}

#[test]
fn a_mark_on_the_way_reaches_the_pod_or_the_packet_dies() {
    let mut fabric = fabric();
    for (inner_mark, leaves) in [(0, None), (1, Some(3)), (2, Some(3)), (3, Some(3))] {
        let mut inner = Tuple::new(FAR, A, UDP, 53).opening();
        change_v4(&mut inner, |ip| ip.ecn = etherparse::IpEcn::try_new(inner_mark).unwrap());
        let mut outer = vxlan(&inner);
        change_v4(&mut outer, |ip| ip.ecn = etherparse::IpEcn::try_new(3).unwrap());
        let delivered = fabric.send_at(0, RAW, &outer);
        let marks: Vec<u8> = delivered.iter().map(|to| to.frame.bytes[1] & 3).collect();
        assert_eq!(marks, leaves.into_iter().collect::<Vec<_>>(), "inner mark {inner_mark}");
    }
}

#[test]
fn what_a_kernel_left_for_a_device_to_finish_is_finished() {
    let mut fabric = fabric();
    for protocol in [TCP, UDP] {
        let whole = Tuple::new(FAR, A, protocol, 8000).opening();
        let at = 20 + if protocol == TCP { 16 } else { 6 };
        let len = (whole.len() - 20) as u16;
        let words = whole[12..20].chunks(2).map(|word| u16::from_be_bytes([word[0], word[1]]));
        let sum: u32 = words.map(u32::from).sum::<u32>() + u32::from(protocol) + u32::from(len);
        let folded = ((sum & 0xffff) + (sum >> 16)) as u16;
        let mut unfinished = whole.clone();
        unfinished[at..at + 2].copy_from_slice(&folded.to_be_bytes());
        let (_, a) = fabric.port("shop/a");
        fabric.nodes[0].inject(RAW, &vxlan(&unfinished));
        fabric.nodes[0].run();
        let arrived = fabric.nodes[0].collect(a);
        assert_eq!(arrived.len(), 1);
        assert_ne!(arrived[0].offload, Offload::default(), "the pod's kernel is told");
        // A wrong checksum stays wrong; the node must not correct it.
        let mut wrong = whole.clone();
        wrong[at] ^= 1;
        fabric.nodes[0].inject(RAW, &vxlan(&wrong));
        fabric.nodes[0].run();
        let arrived = fabric.nodes[0].collect(a);
        assert_eq!((arrived.len(), arrived[0].offload), (1, Offload::default()));
        assert_eq!(arrived[0].bytes[at..at + 2], wrong[at..at + 2]);
    }
}

#[test]
fn what_does_not_fit_is_answered_with_the_tunnels_mtu() {
    let mut fabric = fabric();
    let mut big = Tuple::new(A, FAR, UDP, 53).data(&[0; 1500 - HEADERS - 28 + 1]);
    change_v4(&mut big, |ip| ip.dont_fragment = true);
    let delivered = fabric.send("shop/a", &big);
    assert_eq!(delivered.len(), 1);
    let answer = &delivered[0].frame.bytes;
    assert_eq!((answer[20], answer[21]), (3, 4), "fragmentation needed");
    assert_eq!(u16::from_be_bytes([answer[26], answer[27]]), 1450);
}
