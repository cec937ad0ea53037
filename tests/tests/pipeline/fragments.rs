//! Fragments: the first decides for the later ones.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::time::Duration;

use etherparse::SlicedPacket;
use etherparse::defrag::IpDefragPool;
use manx_dataplane::drop_reason::DropReason;
use manx_dataplane::worker::Command;
use manx_policy_compiler::model::ObjectName;
use manx_tests::fabric::{Delivery, Fabric, MTU, RAW, TUNNEL_MTU, UNDERLAY, pod, policy};
use manx_tests::packet::{Tuple, UDP, change_v4, payload, super_packet, tunnelled};

const A: &str = "10.1.0.1";
const B: &str = "10.1.0.2";
const FAR: &str = "10.2.0.1";

fn pods() -> String {
    pod("shop/a", 0, "{app: a}", &[A])
        + &pod("shop/b", 0, "{app: b}", &[B])
        + &pod("shop/far", 1, "{app: far}", &[FAR])
}

/// A datagram that may be fragmented.
pub(crate) fn datagram(tuple: Tuple, len: usize) -> Vec<u8> {
    let data: Vec<u8> = (0..len).map(|n| (n % 251) as u8).collect();
    let mut bytes = tuple.data(&data);
    change_v4(&mut bytes, |ip| (ip.dont_fragment, ip.identification) = (false, 77));
    bytes
}

/// The datagram that a receiver joins from fragments, without its IP header.
fn joined(deliveries: &[Delivery]) -> Vec<u8> {
    let mut pool = IpDefragPool::<(), ()>::new();
    let mut whole = None;
    for delivery in deliveries {
        let sliced = SlicedPacket::from_ip(&delivery.frame.bytes).unwrap();
        whole = whole.or(pool.process_sliced_packet(&sliced, (), ()).unwrap());
    }
    whole.unwrap().payload
}

fn joined_or_whole(deliveries: &[Delivery]) -> Vec<u8> {
    match deliveries {
        [whole] => payload(&whole.frame.bytes).to_vec(),
        pieces => joined(pieces),
    }
}

/// The fragments of at most `mtu` bytes that a sender's kernel would make of a datagram.
pub(crate) fn cut(bytes: &[u8], mtu: usize) -> Vec<Vec<u8>> {
    let room = (mtu - 20) / 8 * 8;
    let count = (bytes.len() - 20).div_ceil(room);
    bytes[20..]
        .chunks(room)
        .enumerate()
        .map(|(index, chunk)| {
            let mut piece = [&bytes[..20], chunk].concat();
            change_v4(&mut piece, |ip| {
                ip.total_len = 20 + chunk.len() as u16;
                ip.more_fragments = index + 1 < count;
                ip.fragment_offset =
                    etherparse::IpFragOffset::try_new((index * room / 8) as u16).unwrap();
            });
            piece
        })
        .collect()
}

#[test]
fn what_is_too_big_and_may_be_cut_arrives_in_pieces_that_reassemble() {
    for (to, len) in [(FAR, 1472), (FAR, 4000), (FAR, 20_000), (B, 3000)] {
        let mut fabric = Fabric::new(&pods());
        let whole = datagram(Tuple::new(A, to, UDP, 53), len);
        fabric.nodes[0].inject(fabric.port("shop/a").1, &whole);
        fabric.nodes[0].run();
        let frames = fabric.nodes[0].collect(RAW);
        let mtu = if to == FAR { TUNNEL_MTU } else { MTU } as usize;
        for frame in &frames {
            assert!(frame.bytes.len() <= MTU as usize, "what the underlay takes");
            fabric.nodes[1].inject(RAW, &frame.bytes);
        }
        let delivered = fabric.run_until_idle();
        assert!(delivered.len() > 1 && (to == B || delivered.len() == frames.len()));
        assert!(delivered.iter().all(|delivery| delivery.frame.bytes.len() <= mtu));
        assert_eq!(joined(&delivered), payload(&whole), "{to} {len}");
        let text = fabric.nodes[0].drops();
        assert!(text.is_empty() && fabric.nodes[1].drops().is_empty(), "{text:?}");
    }
}

#[test]
fn datagrams_of_a_super_packet_that_are_too_big_are_cut_one_by_one() {
    const SIZE: usize = 1472;
    let mut fabric = Fabric::new(&pods());
    let (_, a) = fabric.port("shop/a");
    let data: Vec<u8> = (0..5 * SIZE + 100).map(|n| (n % 251) as u8).collect();
    let (mut bytes, offload) = super_packet(Tuple::new(A, FAR, UDP, 53), &data, SIZE as u16);
    change_v4(&mut bytes, |ip| (ip.dont_fragment, ip.identification) = (false, 77));
    // This is repeated, so that a lost buffer would be noticed.
    for _ in 0..50 {
        fabric.nodes[0].inject_with(a, &bytes, offload);
        let delivered = fabric.run_until_idle();
        assert!(delivered.iter().all(|d| d.frame.bytes.len() <= TUNNEL_MTU as usize));
        let mut datagrams: BTreeMap<u16, Vec<Delivery>> = BTreeMap::new();
        for delivery in delivered {
            let id = [delivery.frame.bytes[4], delivery.frame.bytes[5]];
            datagrams.entry(u16::from_be_bytes(id)).or_default().push(delivery);
        }
        assert_eq!(datagrams.keys().copied().collect::<Vec<_>>(), [77, 78, 79, 80, 81, 82]);
        for (pieces, expected) in datagrams.values().zip(data.chunks(SIZE)) {
            assert_eq!(pieces.len(), if expected.len() == SIZE { 2 } else { 1 });
            let datagram = joined_or_whole(pieces);
            assert_eq!(datagram[8..], *expected);
            let udp = etherparse::UdpHeader::from_slice(&datagram).unwrap().0;
            let [source, destination] = [A, FAR].map(|ip| ip.parse::<Ipv4Addr>().unwrap().octets());
            let right = udp.calc_checksum_ipv4_raw(source, destination, expected).unwrap();
            assert_eq!(udp.checksum, right);
        }
    }
    assert_eq!(fabric.nodes[0].wires[&a].count(|it| &it.received_packets), 6 * 50);
    assert!(fabric.nodes.iter().all(|node| node.drops().is_empty()));
}

#[test]
fn datagrams_of_a_super_packet_that_are_too_big_and_may_not_be_cut_are_answered() {
    let yaml = pod("shop/a", 0, "{}", &[A, "fd00:1::1"])
        + &pod("shop/b", 0, "{}", &[B, "fd00:1::2"])
        + &pod("shop/far", 1, "{}", &[FAR]);
    for (source, destination, size) in [(A, FAR, 1472), ("fd00:1::1", "fd00:1::2", 1460)] {
        let mut fabric = Fabric::new(&yaml);
        let (_, a) = fabric.port("shop/a");
        // IPv4 packets of `Tuple` have DF set.
        let tuple = Tuple::new(source, destination, UDP, 53);
        let (bytes, offload) = super_packet(tuple, &[7; 3000], size);
        fabric.nodes[0].inject_with(a, &bytes, offload);
        let delivered = fabric.run_until_idle();
        assert_eq!((delivered.len(), delivered[0].port), (1, a), "an ICMP error");
        let error = payload(&delivered[0].frame.bytes);
        let (kind, mtu) = if destination == FAR { ([3, 4], TUNNEL_MTU) } else { ([2, 0], MTU) };
        assert_eq!((&error[..2], &error[4..8]), (&kind[..], &mtu.to_be_bytes()[..]));
        assert_eq!(fabric.nodes[0].dropped(a, DropReason::TooBig), 3);
    }
}

#[test]
fn later_fragments_follow_the_first_and_before_it_they_are_dropped() {
    let mut fabric = Fabric::new(&pods());
    let whole = datagram(Tuple::new(A, B, UDP, 53), 2000);
    let pieces = cut(&whole, 700);
    let (_, a) = fabric.port("shop/a");
    assert_eq!(fabric.send("shop/a", &pieces[1]), []);
    assert_eq!(fabric.nodes[0].dropped(a, DropReason::FragmentWithoutFirst), 1);
    let mut delivered = fabric.send("shop/a", &pieces[0]);
    delivered.extend(fabric.send("shop/a", &pieces[2]));
    delivered.extend(fabric.send("shop/a", &pieces[1]));
    assert_eq!(joined(&delivered), payload(&whole));
    assert_eq!(fabric.nodes[0].drops().len(), 1);
}

#[test]
fn a_first_fragment_carries_its_ports_and_later_ones_match_no_rule_with_ports() {
    let only_53 = policy(
        "shop/b",
        "{podSelector: {matchLabels: {app: b}}, ingress: [{ports: [{port: 53, protocol: UDP}]}]}",
    );
    let mut fabric = Fabric::new(&(pods() + &only_53));
    let (_, a) = fabric.port("shop/a");
    let whole = datagram(Tuple::new(A, B, UDP, 53), 2000);
    let delivered: Vec<Delivery> =
        cut(&whole, 700).iter().flat_map(|piece| fabric.send("shop/a", piece)).collect();
    assert_eq!(joined(&delivered), payload(&whole));
    let mut other = datagram(Tuple::new(A, B, UDP, 54), 2000);
    change_v4(&mut other, |ip| ip.identification = 78);
    for piece in cut(&other, 700) {
        assert_eq!(fabric.send("shop/a", &piece), []);
    }
    assert_eq!(fabric.nodes[0].dropped(a, DropReason::PolicyIngress), 3);
    // Without the first fragment nothing shows that it is for port 53.
    let mut alone = cut(&whole, 700).remove(1);
    change_v4(&mut alone, |ip| ip.identification = 79);
    assert_eq!(fabric.send("shop/a", &alone), []);
    assert_eq!(fabric.nodes[0].dropped(a, DropReason::FragmentWithoutFirst), 1);
}

#[test]
fn the_first_ones_denial_holds_for_the_later_ones() {
    let only_53 = policy(
        "shop/b",
        "{podSelector: {matchLabels: {app: b}}, ingress: [{ports: [{port: 53, protocol: UDP}]}]}",
    );
    let mut fabric = Fabric::new(&(pods() + &only_53));
    let (_, a) = fabric.port("shop/a");
    let denied = cut(&datagram(Tuple::new(A, B, UDP, 54), 2000), 700);
    for piece in &denied {
        assert_eq!(fabric.send("shop/a", piece), []);
    }
    assert_eq!(fabric.nodes[0].dropped(a, DropReason::PolicyIngress), 3);
    let mut allowed = datagram(Tuple::new(A, B, UDP, 53), 2000);
    change_v4(&mut allowed, |ip| ip.identification = 78);
    for piece in cut(&allowed, 700) {
        assert_eq!(fabric.send("shop/a", &piece).len(), 1);
    }
}

#[test]
fn two_first_fragments_that_are_judged_differently_leave_the_later_ones_nothing() {
    let only_53 = policy(
        "shop/b",
        "{podSelector: {matchLabels: {app: b}}, ingress: [{ports: [{port: 53, protocol: UDP}]}]}",
    );
    let mut fabric = Fabric::new(&(pods() + &only_53));
    let (_, a) = fabric.port("shop/a");
    let denied = cut(&datagram(Tuple::new(A, B, UDP, 54), 2000), 700);
    let allowed = cut(&datagram(Tuple::new(A, B, UDP, 53), 2000), 700);
    assert_eq!(fabric.send("shop/a", &denied[0]), []);
    assert_eq!(fabric.send("shop/a", &allowed[0]).len(), 1);
    assert_eq!(fabric.send("shop/a", &denied[1]), [], "or it would ride on the other's verdict");
    assert_eq!(fabric.nodes[0].dropped(a, DropReason::FragmentWithoutFirst), 1);
}

#[test]
fn nobodys_fragments_join_anothers_and_a_decision_expires() {
    let mut fabric = Fabric::new(&pods());
    let pieces = cut(&datagram(Tuple::new(A, FAR, UDP, 53), 2000), 700);
    let (_, b) = fabric.port("shop/b");
    assert_eq!(fabric.send("shop/a", &pieces[0]).len(), 1);
    assert_eq!(fabric.send("shop/b", &pieces[1]), [], "by another port");
    assert_eq!(fabric.nodes[0].dropped(b, DropReason::FragmentWithoutFirst), 1);
    let back = cut(&datagram(Tuple::new(FAR, A, UDP, 53), 2000), 700);
    assert_eq!(fabric.send("shop/far", &back[0]).len(), 1);
    assert_eq!(fabric.send_at(0, RAW, &back[1]), [], "not out of a tunnel");
    let outer = tunnelled(UNDERLAY[1], UNDERLAY[0], &back[1], 0);
    assert_eq!(fabric.send_at(0, RAW, &outer).len(), 1);
    fabric.nodes[0].now += Duration::from_secs(31);
    assert_eq!(fabric.send("shop/a", &pieces[1]), []);
    assert_eq!(fabric.send_at(0, RAW, &outer), []);
}

#[test]
fn new_tables_end_what_was_decided_of_first_fragments() {
    let nothing = policy("shop/b", "{podSelector: {matchLabels: {app: b}}, ingress: []}");
    let mut fabric = Fabric::new(&pods());
    let (_, a) = fabric.port("shop/a");
    let whole = datagram(Tuple::new(A, B, UDP, 53), 2000);
    let pieces = cut(&whole, 700);
    assert_eq!(fabric.send("shop/a", &pieces[0]).len(), 1);
    fabric.apply(&(pods() + &nothing));
    assert_eq!(fabric.send("shop/a", &pieces[1]), [], "the old policy let the first one pass");
    assert_eq!(fabric.nodes[0].dropped(a, DropReason::FragmentWithoutFirst), 1);
    for piece in &pieces {
        assert_eq!(fabric.send("shop/a", piece), []);
    }
    assert_eq!(fabric.nodes[0].dropped(a, DropReason::PolicyIngress), 3, "judged anew");
    fabric.apply(&pods());
    assert_eq!(fabric.send("shop/a", &pieces[1]), [], "nor does an old denial stand");
    assert_eq!(fabric.nodes[0].dropped(a, DropReason::FragmentWithoutFirst), 2);
    let delivered: Vec<Delivery> =
        pieces.iter().flat_map(|piece| fabric.send("shop/a", piece)).collect();
    assert_eq!(joined(&delivered), payload(&whole));
}

#[test]
fn whoever_gets_a_pods_index_gets_none_of_its_fragments() {
    let mut fabric = Fabric::new(&pods());
    let (_, a) = fabric.port("shop/a");
    let (_, b) = fabric.port("shop/b");
    let pieces = cut(&datagram(Tuple::new(A, B, UDP, 53), 2000), 700);
    assert_eq!(fabric.send("shop/a", &pieces[0]).len(), 1);
    fabric.nodes[0].send_command(|| Command::Detach(b, None));
    fabric.nodes[0].locals.remove(&ObjectName::new("shop", "b"));
    fabric.apply(
        &(pod("shop/a", 0, "{app: a}", &[A]) + &pod("shop/c", 0, "{app: c}", &["10.1.0.3"])),
    );
    assert_eq!(fabric.port("shop/c"), (0, b), "the same index and the same port");
    assert_eq!(fabric.send("shop/a", &pieces[1]), []);
    assert_eq!(fabric.nodes[0].dropped(a, DropReason::FragmentWithoutFirst), 1);
}
