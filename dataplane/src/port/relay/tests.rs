use etherparse::PacketBuilder;
use proptest::prelude::*;

use super::*;
use crate::port::link::ETHERNET_LEN;

const POD: Mac = [2, 0, 0, 0, 0, 2];
const NODE: Mac = [2, 0, 0, 0, 0, 1];
const OTHER: Mac = [2, 0, 0, 0, 0, 9];
const ALL_NODES: Mac = [0x33, 0x33, 0, 0, 0, 1];
const POD4: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);
const OTHER4: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 9);
const POD6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 2);
const OTHER6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 9);
/// The link-local address from [`POD`]'s bytes: the second lowest bit of the first byte is inverted.
const POD_LOCAL: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0xff, 0xfe00, 2);
const OTHER_LOCAL: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0xff, 0xfe00, 9);
const REQUEST: u8 = 1;
const REPLY: u8 = 2;

fn relay(side: Side) -> Relay {
    let ends = Ends { pod: POD, node: NODE, addresses: vec![POD4.into(), POD6.into()] };
    let [pod, node] = Relay::sides(&ends);
    if side == Side::Pod { pod } else { node }
}

fn sort(side: Side, frame: &[u8]) -> Frame {
    relay(side).sort(frame.first_chunk().unwrap(), &frame[ETHERNET_LEN..])
}

/// Checks for each frame whether it goes to the other side, and that a frame that does not is dropped.
fn assert_messages(side: Side, frames: Vec<(&str, bool, Vec<u8>)>) {
    for (what, relayed, frame) in frames {
        let whole = Frame::Message(frame.len() - ETHERNET_LEN);
        let expected = if relayed { whole } else { Frame::NotOurs };
        assert_eq!(sort(side, &frame), expected, "{side:?}: {what}");
    }
}

fn arp([to, from]: [Mac; 2], operation: u8, sender: (Mac, Ipv4Addr), target: Ipv4Addr) -> Vec<u8> {
    let mut frame = [to, from].concat();
    frame.extend([8, 6, 0, 1, 8, 0, 6, 4, 0, operation]);
    frame.extend(sender.0);
    frame.extend(sender.1.octets());
    frame.extend([0; 6]);
    frame.extend(target.octets());
    frame
}

fn discovery(
    [to, from]: [Mac; 2],
    kind: u8,
    source: Ipv6Addr,
    target: Ipv6Addr,
    hop_limit: u8,
) -> Vec<u8> {
    let builder =
        PacketBuilder::ethernet2(from, to).ipv6(source.octets(), POD6.octets(), hop_limit);
    let mut frame = Vec::new();
    builder.icmpv6_raw(kind, 0, [0; 4]).write(&mut frame, &target.octets()).unwrap();
    frame
}

#[test]
fn a_pod_asks_and_answers_for_itself_alone() {
    let own = (POD, POD4);
    let all = [BROADCAST, POD];
    let asks = |from, source| discovery(from, kind::NEIGHBOUR_SOLICITATION, source, OTHER6, 255);
    let tests = |target| {
        let none = Ipv6Addr::UNSPECIFIED;
        discovery([ALL_NODES, POD], kind::NEIGHBOUR_SOLICITATION, none, target, 255)
    };
    let probes = |target| arp(all, REQUEST, (POD, Ipv4Addr::UNSPECIFIED), target);
    let tells =
        |source, target| discovery([NODE, POD], kind::NEIGHBOUR_ADVERTISEMENT, source, target, 255);
    let mut corrupt = asks([ALL_NODES, POD], POD6);
    *corrupt.last_mut().unwrap() ^= 1;
    assert_messages(
        Side::Pod,
        vec![
            ("asks for another", true, arp(all, REQUEST, own, OTHER4)),
            ("polls another", true, arp([OTHER, POD], REQUEST, own, OTHER4)),
            ("answers", true, arp([OTHER, POD], REPLY, own, OTHER4)),
            ("announces itself", true, arp(all, REQUEST, own, POD4)),
            ("tests its address", true, probes(POD4)),
            ("says that another's is taken", false, probes(OTHER4)),
            ("tells from nowhere", false, arp(all, REPLY, (POD, Ipv4Addr::UNSPECIFIED), POD4)),
            ("neither asks nor answers", false, arp([OTHER, POD], 3, own, OTHER4)),
            ("answers for another", false, arp([NODE, POD], REPLY, (POD, OTHER4), OTHER4)),
            ("announces another", false, arp(all, REQUEST, (POD, OTHER4), OTHER4)),
            ("gives its address to another", false, arp(all, REQUEST, (OTHER, POD4), POD4)),
            ("sends as another", false, arp([BROADCAST, OTHER], REQUEST, own, OTHER4)),
            ("ARP, cut short", false, arp(all, REQUEST, own, OTHER4)[..40].to_vec()),
            ("asks for a neighbour", true, asks([ALL_NODES, POD], POD6)),
            ("asks by its link-local address", true, asks([ALL_NODES, POD], POD_LOCAL)),
            ("tests an address", true, tests(POD6)),
            ("tests its link-local one", true, tests(POD_LOCAL)),
            ("says that another's is taken", false, tests(OTHER6)),
            ("asks as another address", false, asks([ALL_NODES, POD], OTHER6)),
            ("asks as another's link-local one", false, asks([ALL_NODES, POD], OTHER_LOCAL)),
            ("asks from another's hardware", false, asks([ALL_NODES, OTHER], POD6)),
            ("a wrong checksum", false, corrupt),
            ("tells where it is", true, tells(POD6, POD6)),
            ("tells of its link-local address", true, tells(POD_LOCAL, POD_LOCAL)),
            ("tells of another", false, tells(POD6, OTHER6)),
            ("tells as another", false, tells(OTHER6, POD6)),
        ],
    );
    let beyond = discovery([ALL_NODES, POD], kind::NEIGHBOUR_SOLICITATION, POD6, OTHER6, 254);
    assert_eq!(sort(Side::Pod, &beyond), Frame::NotOurs, "multicast, and no link message");
}

/// Like [`discovery`], with options.
fn with_options(kind: u8, target: Ipv6Addr, options: &[u8]) -> Vec<u8> {
    let to = if kind == kind::NEIGHBOUR_ADVERTISEMENT { NODE } else { ALL_NODES };
    let builder = PacketBuilder::ethernet2(POD, to).ipv6(POD6.octets(), POD6.octets(), 255);
    let mut frame = Vec::new();
    let behind = [&target.octets(), options].concat();
    builder.icmpv6_raw(kind, 0, [0; 4]).write(&mut frame, &behind).unwrap();
    frame
}

/// Kernels believe any hardware address in there, even that of another host or of a group.
#[test]
fn a_pod_tells_its_own_hardware_address_and_nothing_more() {
    let link_address = |kind, mac: Mac| [&[kind, 1][..], &mac].concat();
    let (source, target) = (link_address(1, POD), link_address(2, POD));
    let nonce = [14, 1, 1, 2, 3, 4, 5, 6];
    let asks = |options: &[u8]| with_options(kind::NEIGHBOUR_SOLICITATION, OTHER6, options);
    let tells = |options: &[u8]| with_options(kind::NEIGHBOUR_ADVERTISEMENT, POD6, options);
    assert_messages(
        Side::Pod,
        vec![
            ("asks from its own", true, asks(&source)),
            ("asks with a nonce", true, asks(&[&source[..], &nonce].concat())),
            ("tells its own", true, tells(&target)),
            ("asks from another's", false, asks(&link_address(1, OTHER))),
            ("asks from everybody's", false, asks(&link_address(1, BROADCAST))),
            ("tells another's", false, tells(&link_address(2, OTHER))),
            ("tells everybody's", false, tells(&link_address(2, ALL_NODES))),
            ("says more", false, asks(&[5, 1, 0, 0, 0, 0, 5, 220])),
            ("says much", false, asks(&[&source[..], &target, &nonce, &nonce].concat())),
            ("a long option", false, asks(&[14, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0])),
            ("an option without a length", false, asks(&[1, 0, 0, 0, 0, 0, 0, 0])),
            ("an option that is cut short", false, asks(&source[..6])),
        ],
    );
}

/// Data after a link message is cut off, because policy has not judged it.
#[test]
fn nothing_crosses_behind_a_message() {
    let ask = arp([OTHER, POD], REQUEST, (POD, POD4), OTHER4);
    let answer = arp([POD, OTHER], REPLY, (OTHER, OTHER4), POD4);
    let test = discovery([ALL_NODES, POD], kind::NEIGHBOUR_SOLICITATION, POD6, OTHER6, 255);
    let tell = discovery([POD, OTHER], kind::NEIGHBOUR_ADVERTISEMENT, OTHER6, OTHER6, 255);
    for (side, frame) in
        [(Side::Pod, ask), (Side::Node, answer), (Side::Pod, test), (Side::Node, tell)]
    {
        let longer = [&frame[..], &[0x55; 900]].concat();
        assert_eq!(sort(side, &longer), Frame::Message(frame.len() - ETHERNET_LEN), "{side:?}");
    }
}

#[test]
fn a_pod_is_no_router() {
    let from_pod = |kind| discovery([ALL_NODES, POD], kind, POD_LOCAL, POD6, 255);
    let looks = |options: &[u8]| {
        let builder =
            PacketBuilder::ethernet2(POD, ALL_NODES).ipv6(POD6.octets(), OTHER6.octets(), 255);
        let mut frame = Vec::new();
        builder
            .icmpv6_raw(kind::ROUTER_SOLICITATION, 0, [0; 4])
            .write(&mut frame, options)
            .unwrap();
        frame
    };
    assert_messages(
        Side::Pod,
        vec![
            ("looks for a router", true, looks(&[])),
            ("and says where it is", true, looks(&[&[1, 1][..], &POD].concat())),
            ("and says more", false, looks(&[3; 8])),
            ("says that it is a router", false, from_pod(kind::ROUTER_ADVERTISEMENT)),
            ("sends others elsewhere", false, from_pod(kind::REDIRECT)),
        ],
    );
}

/// A neighbour would believe it, because its hop limit is still 255.
#[test]
fn a_link_message_behind_extension_headers_goes_nowhere() {
    let told = discovery([OTHER, POD], kind::NEIGHBOUR_ADVERTISEMENT, POD6, OTHER6, 255);
    let hidden = |chain: &[u8], first: u8, icmp: u8| {
        let mut frame = told.clone();
        frame.splice(ETHERNET_LEN + 40..ETHERNET_LEN + 40, chain.iter().copied());
        let len = u16::from_be_bytes([frame[18], frame[19]]) + chain.len() as u16;
        frame[18..20].copy_from_slice(&len.to_be_bytes());
        frame[20] = first;
        frame[ETHERNET_LEN + 40 + chain.len()] = icmp;
        frame
    };
    let options = [protocol::ICMPV6, 0, 1, 4, 0, 0, 0, 0];
    let whole = [protocol::ICMPV6, 0, 0, 0, 0, 0, 0, 1];
    let both = [[protocol::FRAGMENT, 0, 1, 4, 0, 0, 0, 0], whole].concat();
    let (advertises, echoes) = (kind::NEIGHBOUR_ADVERTISEMENT, 128);
    for (chain, first) in [
        (&options[..], protocol::DESTINATION_OPTIONS),
        (&options, protocol::HOP_BY_HOP),
        (&whole, protocol::FRAGMENT),
        (&both, protocol::DESTINATION_OPTIONS),
    ] {
        let mut frame = hidden(chain, first, advertises);
        assert_eq!(sort(Side::Pod, &frame), Frame::NotOurs, "{first}");
        frame[21] = 254;
        assert!(matches!(sort(Side::Pod, &frame), Frame::Packet(_)), "no neighbour believes it");
        let frame = hidden(chain, first, echoes);
        assert!(matches!(sort(Side::Pod, &frame), Frame::Packet(_)), "{first}: no link message");
    }
    let later = [protocol::ICMPV6, 0, 0, 8, 0, 0, 0, 1];
    let frame = hidden(&later, protocol::FRAGMENT, advertises);
    assert!(matches!(sort(Side::Pod, &frame), Frame::Packet(_)), "the middle of a packet");
}

#[test]
fn of_what_a_bridge_floods_the_pod_gets_what_is_about_it() {
    let other = (OTHER, OTHER4);
    let all = [BROADCAST, OTHER];
    let message = |to, kind, target| discovery([to, OTHER], kind, OTHER_LOCAL, target, 255);
    let asks = |to, target| message(to, kind::NEIGHBOUR_SOLICITATION, target);
    assert_messages(
        Side::Node,
        vec![
            ("asks for the pod", true, arp(all, REQUEST, other, POD4)),
            ("answers the pod", true, arp([POD, OTHER], REPLY, other, POD4)),
            ("announces where it is", true, arp(all, REPLY, other, OTHER4)),
            ("asks for a third", false, arp(all, REQUEST, other, Ipv4Addr::new(10, 0, 0, 7))),
            ("answers a third", false, arp([NODE, OTHER], REPLY, other, POD4)),
            ("answers whoever tests", true, arp([POD, OTHER], REPLY, other, Ipv4Addr::UNSPECIFIED)),
            ("tells the pod about a third", false, arp([POD, OTHER], REPLY, other, OTHER4)),
            ("asks for the pod's address", true, asks(ALL_NODES, POD6)),
            ("asks for its link-local one", true, asks(POD, POD_LOCAL)),
            ("asks for a third's", false, asks(ALL_NODES, OTHER6)),
            ("asks a third", false, asks(NODE, POD6)),
            ("tells the pod", true, message(POD, kind::NEIGHBOUR_ADVERTISEMENT, OTHER6)),
            ("tells all", true, message(ALL_NODES, kind::NEIGHBOUR_ADVERTISEMENT, OTHER6)),
            ("a router tells all", true, message(ALL_NODES, kind::ROUTER_ADVERTISEMENT, OTHER6)),
            ("a router sends elsewhere", false, message(POD, kind::REDIRECT, OTHER6)),
            ("looks for a router", false, message(ALL_NODES, kind::ROUTER_SOLICITATION, OTHER6)),
        ],
    );
    for (to, expected) in [(POD, Frame::Packet(29)), (OTHER, Frame::NotOurs)] {
        let mut frame = Vec::new();
        let builder = PacketBuilder::ethernet2(NODE, to).ipv4([10, 0, 0, 1], POD4.octets(), 64);
        builder.udp(1, 2).write(&mut frame, b"x").unwrap();
        assert_eq!(sort(Side::Node, &frame), expected, "flooded because nobody knows {to:02x?}");
    }
}

#[test]
fn a_packet_goes_on_to_the_neighbour_that_the_pod_chose() {
    let [to_pod, to_node] = [Side::Pod, Side::Node].map(|side| relay(side).header(&[0x45], OTHER));
    assert_eq!(to_pod, Some(ethernet::header(POD, NODE, ethertype::IPV4)));
    assert_eq!(to_node, Some(ethernet::header(OTHER, POD, ethertype::IPV4)));
    let node = relay(Side::Node);
    assert_eq!(node.header(&[0x60], OTHER).unwrap()[12..], [0x86, 0xdd]);
    let to_own = Some(ethernet::header(NODE, POD, ethertype::IPV4));
    assert_eq!(node.header(&[0x45], NO_MAC), to_own, "it did not come by the pod's link");
    assert_eq!(node.header(&[0x45], BROADCAST), None);
    assert_eq!(node.header(&[0x50], OTHER), None);
}

proptest! {
    /// A frame that policy has not judged crosses only as a link message, and a link message is never long.
    #[test]
    fn a_frame_is_a_packet_or_a_message_or_is_dropped(
        mut header: EthernetHeader,
        to in prop::sample::select(vec![POD, NODE, BROADCAST, ALL_NODES]),
        kind in prop::sample::select(vec![ethertype::IPV4, ethertype::IPV6, ethertype::ARP, 0x8100]),
        side in prop::sample::select(vec![Side::Pod, Side::Node]),
        mut payload in prop::collection::vec(any::<u8>(), 0..1700),
        is_message: bool,
    ) {
        header[..6].copy_from_slice(&to);
        header[12..].copy_from_slice(&kind.to_be_bytes());
        if is_message && kind == ethertype::ARP && payload.len() >= 28 {
            payload[..6].copy_from_slice(&[0, 1, 8, 0, 6, 4]);
        }
        match relay(side).sort(&header, &payload) {
            Frame::Packet(len) => {
                prop_assert!(len <= payload.len() && is_unicast(to) && kind != ethertype::ARP);
                prop_assert!(!is_neighbour_discovery(&payload) && !hides_neighbour_discovery(&payload));
            }
            Frame::Message(len) => {
                prop_assert!(len <= payload.len().min(MESSAGE_MAX));
                prop_assert!(kind == ethertype::IPV6 || len == 28, "nothing hides behind it");
                prop_assert!(kind == ethertype::ARP || is_neighbour_discovery(&payload));
            }
            Frame::NotOurs | Frame::Malformed => {}
            Frame::Question(_) => prop_assert!(false, "Manx has no address there"),
        }
    }
}
