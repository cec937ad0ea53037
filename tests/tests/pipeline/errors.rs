//! ICMP errors that a node sends itself, and errors that pass.

use std::net::IpAddr;
use std::time::Duration;

use etherparse::icmpv4::DestUnreachableHeader;
use etherparse::icmpv6::DestUnreachableCode;
use etherparse::{Icmpv4Type, Icmpv6Type, PacketBuilder, SlicedPacket, TransportSlice};
use manx_dataplane::drop_reason::DropReason;
use manx_dataplane::tables::PortId;
use manx_tests::fabric::{Fabric, HOST, RAW, UNDERLAY, pod, policy};
use manx_tests::packet::{
    ICMP, ICMPV6, TCP, Tuple, UDP, addresses, assert_whole, change_v4, tunnelled, with_ttl,
};

const A: &str = "10.1.0.1";
const B: &str = "10.1.0.2";
const FAR: &str = "10.2.0.1";
const A6: &str = "fd00:1::1";
const B6: &str = "fd00:1::2";
const WORLD: &str = "192.0.2.1";
const WORLD6: &str = "2001:db8::1";

fn pods() -> String {
    pod("shop/a", 0, "{app: a}", &[A, A6])
        + &pod("shop/b", 0, "{app: b}", &[B, B6])
        + &pod("shop/far", 1, "{app: far}", &[FAR])
}

/// The error in a packet, and the packet that it is about.
fn error(bytes: &[u8]) -> (String, Vec<u8>) {
    assert_whole(bytes);
    match SlicedPacket::from_ip(bytes).unwrap().transport.unwrap() {
        TransportSlice::Icmpv4(icmp) => {
            (format!("{:?}", icmp.icmp_type()), icmp.payload().to_vec())
        }
        TransportSlice::Icmpv6(icmp) => {
            (format!("{:?}", icmp.icmp_type()), icmp.payload().to_vec())
        }
        other => panic!("no ICMP: {other:?}"),
    }
}

#[test]
fn a_sender_is_told_why_its_packet_died() {
    let unreachable4 =
        format!("{:?}", Icmpv4Type::DestinationUnreachable(DestUnreachableHeader::Host));
    let unreachable6 =
        format!("{:?}", Icmpv6Type::DestinationUnreachable(DestUnreachableCode::Address));
    let exceeded4 = format!(
        "{:?}",
        Icmpv4Type::TimeExceeded(etherparse::icmpv4::TimeExceededCode::TtlExceededInTransit)
    );
    let exceeded6 = format!(
        "{:?}",
        Icmpv6Type::TimeExceeded(etherparse::icmpv6::TimeExceededCode::HopLimitExceeded)
    );
    let needed = |mtu| {
        let header = DestUnreachableHeader::FragmentationNeeded { next_hop_mtu: mtu };
        format!("{:?}", Icmpv4Type::DestinationUnreachable(header))
    };
    let too_big = |mtu| format!("{:?}", Icmpv6Type::PacketTooBig { mtu });
    let to = |destination: &str| {
        let source = if destination.contains(':') { A6 } else { A };
        Tuple::new(source, destination, UDP, 53)
    };
    let big = |destination: &str, len: usize| to(destination).data(&vec![0; len]);
    let cases = [
        (with_ttl(to(B).opening(), 1), DropReason::TtlExceeded, exceeded4.clone()),
        (with_ttl(to(FAR).opening(), 1), DropReason::TtlExceeded, exceeded4.clone()),
        (with_ttl(to(WORLD).opening(), 0), DropReason::TtlExceeded, exceeded4),
        (with_ttl(to(B6).opening(), 1), DropReason::TtlExceeded, exceeded6),
        (to("10.244.1.77").opening(), DropReason::HostUnreachable, unreachable4.clone()),
        (to("fd44:1::77").opening(), DropReason::HostUnreachable, unreachable6),
        (to("10.244.9.9").opening(), DropReason::NoRoute, unreachable4),
        (big(FAR, 1480 - 28 + 1), DropReason::TooBig, needed(1480)),
        (big(B, 1500 - 28 + 1), DropReason::TooBig, needed(1500)),
        (big(WORLD, 3000), DropReason::TooBig, needed(1500)),
        (big(B6, 1500 - 48 + 1), DropReason::TooBig, too_big(1500)),
        (big(WORLD6, 3000), DropReason::TooBig, too_big(1500)),
    ];
    let mut fabric = Fabric::new(&pods());
    let (_, a) = fabric.port("shop/a");
    for (offending, reason, message) in cases {
        let dropped = fabric.nodes[0].dropped(a, reason);
        let delivered = fabric.send("shop/a", &offending);
        assert_eq!(delivered.len(), 1, "{message}: {delivered:?}");
        assert_eq!((delivered[0].node, delivered[0].port), (0, a), "{message}");
        let bytes = &delivered[0].frame.bytes;
        let (told, quote) = error(bytes);
        assert_eq!(told, message);
        assert_eq!(quote, offending[..quote.len()], "as it was sent");
        assert!(bytes.len() <= if bytes[0] >> 4 == 4 { 576 } else { 1280 });
        let tables = &fabric.nodes[0].tables;
        let router: IpAddr = match bytes[0] >> 4 {
            4 => tables.router_v4.unwrap().into(),
            _ => tables.router_v6.unwrap().into(),
        };
        assert_eq!(addresses(bytes), (router, addresses(&offending).0));
        assert_eq!(fabric.nodes[0].dropped(a, reason), dropped + 1, "{message}");
    }
    for fits in [big(FAR, 1480 - 28), big(B, 1500 - 28), big(B6, 1500 - 48)] {
        let delivered = fabric.send("shop/a", &fits);
        assert_ne!((delivered[0].node, delivered[0].port), (0, a), "what just fits passes");
    }
}

#[test]
fn what_dies_on_the_other_node_is_told_through_the_tunnel() {
    let mut fabric = Fabric::new(&pods());
    let (_, a) = fabric.port("shop/a");
    let delivered = fabric.send("shop/a", &Tuple::new(A, "10.244.2.77", UDP, 53).opening());
    assert_eq!(delivered.len(), 1);
    assert_eq!((delivered[0].node, delivered[0].port), (0, a));
    let (source, _) = addresses(&delivered[0].frame.bytes);
    assert_eq!(source, IpAddr::from([10, 244, 2, 1]), "the other node says so");
    assert_eq!(fabric.nodes[1].dropped(RAW, DropReason::HostUnreachable), 1);
    let delivered = fabric.send("shop/a", &with_ttl(Tuple::new(A, FAR, UDP, 9).opening(), 2));
    assert_eq!((delivered.len(), delivered[0].port), (1, a));
    assert_eq!(fabric.nodes[1].dropped(RAW, DropReason::TtlExceeded), 1);
}

#[test]
fn errors_are_rate_limited_and_every_drop_is_still_counted() {
    let mut fabric = Fabric::new(&pods());
    let (_, a) = fabric.port("shop/a");
    let expired = with_ttl(Tuple::new(A, B, UDP, 53).opening(), 1);
    let mut round = |now: u64| {
        fabric.nodes[0].now = Duration::from_secs(now);
        (0..200).for_each(|_| fabric.nodes[0].inject(a, &expired));
        let answers = fabric.run_until_idle().len();
        (answers, fabric.nodes[0].dropped(a, DropReason::TtlExceeded))
    };
    assert_eq!(round(10), (50, 200));
    assert_eq!(round(10), (0, 400));
    assert_eq!(round(20), (50, 600));
    assert_eq!(fabric.nodes[0].traffic(), (600, 100), "received, and sent: the answers");
}

#[test]
fn no_error_about_an_error_or_a_later_fragment() {
    let mut fabric = Fabric::new(&pods());
    let (_, a) = fabric.port("shop/a");
    assert_eq!(fabric.send("shop/b", &Tuple::new(B, A, UDP, 53).opening()).len(), 1);
    let about = Tuple::new(B, A, UDP, 53).opening();
    let passing = with_ttl(error_v4(A, B, &about), 1);
    assert_eq!(fabric.send("shop/a", &passing), []);
    assert_eq!(fabric.nodes[0].dropped(a, DropReason::TtlExceeded), 1);
    let mut first = Tuple::new(A, B, UDP, 53).data(&[0; 24]);
    let mut later = first.clone();
    change_v4(&mut first, |ip| (ip.more_fragments, ip.dont_fragment) = (true, false));
    change_v4(&mut later, |ip| {
        ip.fragment_offset = etherparse::IpFragOffset::try_new(4).unwrap();
        (ip.dont_fragment, ip.time_to_live) = (false, 1);
    });
    assert_eq!(fabric.send("shop/a", &first).len(), 1);
    assert_eq!(fabric.send("shop/a", &later), []);
    assert_eq!(fabric.nodes[0].dropped(a, DropReason::TtlExceeded), 2);
}

/// A port-unreachable about a packet.
pub(crate) fn error_v4(source: &str, destination: &str, about: &[u8]) -> Vec<u8> {
    let octets = |text: &str| text.parse::<std::net::Ipv4Addr>().unwrap().octets();
    let mut bytes = Vec::new();
    PacketBuilder::ipv4(octets(source), octets(destination), 64)
        .icmpv4(Icmpv4Type::DestinationUnreachable(DestUnreachableHeader::Port))
        .write(&mut bytes, &about[..about.len().min(28)])
        .unwrap();
    bytes
}

fn error_v6(source: &str, destination: &str, about: &[u8]) -> Vec<u8> {
    let octets = |text: &str| text.parse::<std::net::Ipv6Addr>().unwrap().octets();
    let mut bytes = Vec::new();
    PacketBuilder::ipv6(octets(source), octets(destination), 64)
        .icmpv6(Icmpv6Type::PacketTooBig { mtu: 1280 })
        .write(&mut bytes, about)
        .unwrap();
    bytes
}

fn dies(fabric: &mut Fabric, node: usize, port: PortId, bytes: &[u8], reason: DropReason) {
    let before = fabric.nodes[node].dropped(port, reason);
    assert_eq!(fabric.send_at(node, port, bytes), []);
    assert_eq!(
        fabric.nodes[node].dropped(port, reason),
        before + 1,
        "{:?}",
        fabric.nodes[node].drops()
    );
}

#[test]
fn an_error_passes_with_its_flow_and_without_one_it_is_dropped() {
    // No pod may send or receive anything, except for requests from a to the world and from the
    // world to b.
    let isolated = policy(
        "shop/a",
        &format!(
            "{{podSelector: {{matchLabels: {{app: a}}}}, policyTypes: [Ingress, Egress], \
             egress: [{{to: [{{ipBlock: {{cidr: {WORLD}/32}}}}, {{ipBlock: {{cidr: \"{WORLD6}/128\"}}}}]}}]}}"
        ),
    ) + &policy(
        "shop/b",
        &format!(
            "{{podSelector: {{matchLabels: {{app: b}}}}, policyTypes: [Ingress, Egress], \
             ingress: [{{from: [{{ipBlock: {{cidr: {WORLD}/32}}}}]}}]}}"
        ),
    );
    let mut fabric = Fabric::new(&(pods() + &isolated));
    let (_, a) = fabric.port("shop/a");
    let (_, b) = fabric.port("shop/b");
    let unmatched = DropReason::IcmpErrorUnmatched;
    let asked = Tuple::new(A, WORLD, UDP, 53);
    let router = "198.51.100.1";
    let about_it = error_v4(router, A, &asked.opening());
    dies(&mut fabric, 0, HOST, &about_it, unmatched);
    assert_eq!(fabric.send("shop/a", &asked.opening()).len(), 1);
    let delivered = fabric.send_at(0, HOST, &about_it);
    assert_eq!((delivered.len(), delivered[0].port), (1, a), "from any router on the way");
    dies(&mut fabric, 0, HOST, &error_v4(router, A, &asked.from_port(9).opening()), unmatched);
    dies(&mut fabric, 0, HOST, &error_v4(router, B, &asked.opening()), unmatched);
    dies(&mut fabric, 0, b, &error_v4(B, A, &asked.opening()), unmatched);
    dies(&mut fabric, 0, b, &error_v4(router, A, &asked.opening()), DropReason::SourceSpoofed);
    let outer = tunnelled(UNDERLAY[1], UNDERLAY[0], &error_v4(FAR, A, &asked.opening()), 0);
    dies(&mut fabric, 0, RAW, &outer, unmatched);

    let asked6 = Tuple::new(A6, WORLD6, TCP, 443);
    let about_it = error_v6("2001:db8::fe", A6, &asked6.opening());
    dies(&mut fabric, 0, HOST, &about_it, unmatched);
    assert_eq!(fabric.send("shop/a", &asked6.opening()).len(), 1);
    assert_eq!(fabric.send_at(0, HOST, &about_it).len(), 1);

    // The responder sends an error: its own egress policy does not apply to it.
    let asked = Tuple::new(WORLD, B, UDP, 53);
    assert_eq!(fabric.send_at(0, HOST, &asked.opening()).len(), 1);
    let delivered = fabric.send("shop/b", &error_v4(B, WORLD, &asked.opening()));
    assert_eq!((delivered.len(), delivered[0].port), (1, HOST));

    // When the flow ends, its errors no longer pass.
    fabric.apply(
        &(pods() + &policy("shop/all", "{podSelector: {}, policyTypes: [Ingress, Egress]}")),
    );
    dies(&mut fabric, 0, b, &error_v4(B, WORLD, &asked.opening()), DropReason::PolicyIngress);
}

#[test]
fn an_echo_request_of_the_responder_with_the_same_identifier_is_judged_by_itself() {
    let quiet = policy(
        "shop/b",
        "{podSelector: {matchLabels: {app: b}}, policyTypes: [Ingress, Egress], ingress: [{}]}",
    );
    let mut fabric = Fabric::new(&(pods() + &quiet));
    let (_, b) = fabric.port("shop/b");
    for (protocol, source, destination) in [(ICMP, A, B), (ICMPV6, A6, B6)] {
        let ping = Tuple::new(source, destination, protocol, 0).from_port(7);
        let asked_back = Tuple { source: ping.destination, destination: ping.source, ..ping };
        assert_eq!(fabric.send("shop/a", &ping.opening()).len(), 1);
        dies(&mut fabric, 0, b, &asked_back.opening(), DropReason::PolicyEgress);
        assert_eq!(fabric.send("shop/b", &ping.answer()).len(), 1, "the reply passes");
        dies(&mut fabric, 0, b, &ping.from_port(8).answer(), DropReason::PolicyEgress);
    }
}

#[test]
fn an_error_in_fragments_belongs_to_a_flow_as_a_whole_one_does() {
    let mut fabric = Fabric::new(&pods());
    let (_, a) = fabric.port("shop/a");
    let asked = Tuple::new(A, WORLD, UDP, 53);
    let router = "198.51.100.1";
    // The first fragment of two: the 36 bytes of message and quote would not be a multiple of
    // eight.
    let fragment = |about: Tuple, id: u16| {
        let mut bytes = error_v4(router, A, &about.opening());
        bytes.resize(20 + 40, 0);
        change_v4(&mut bytes, |ip| {
            (ip.more_fragments, ip.dont_fragment, ip.total_len) = (true, false, 60);
            ip.identification = id;
        });
        bytes
    };
    assert_eq!(fabric.send("shop/a", &asked.opening()).len(), 1);
    let unmatched = fragment(asked.from_port(9), 1);
    dies(&mut fabric, 0, HOST, &unmatched, DropReason::IcmpErrorUnmatched);
    let delivered = fabric.send_at(0, HOST, &fragment(asked, 2));
    assert_eq!((delivered.len(), delivered[0].port), (1, a));
}
