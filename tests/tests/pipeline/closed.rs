//! Fail closed: an unknown address, port or peer passes nothing.

use manx_dataplane::drop_reason::DropReason;
use manx_dataplane::packet::Capabilities;
use manx_dataplane::packet::{Checksum, Offload};
use manx_dataplane::tables::PortId;
use manx_policy_compiler::model::ObjectName;
use manx_tests::fabric::{Fabric, HOST, RAW, UNDERLAY, pod, workers};
use manx_tests::packet::{TCP, Tuple, UDP, tunnelled};
use proptest::prelude::*;

const A: &str = "10.1.0.1";
const B: &str = "10.1.0.2";
const FAR: &str = "10.2.0.1";
const A6: &str = "fd00:1::1";
const B6: &str = "fd00:1::2";

/// No policies: all known pods may send to each other.
fn open_cluster() -> String {
    pod("shop/a", 0, "{}", &[A, A6])
        + &pod("shop/b", 0, "{}", &[B, B6])
        + &pod("shop/far", 1, "{}", &[FAR, "fd00:2::1"])
}

/// Sends one packet and checks that it is dropped for this reason, counted at the port by which it came, and that
/// nothing else happens.
fn is_dropped(fabric: &mut Fabric, node: usize, port: PortId, bytes: &[u8], reason: DropReason) {
    let before = fabric.nodes[node].drops();
    let (received, sent) = fabric.nodes[node].traffic();
    let delivered = fabric.send_at(node, port, bytes);
    assert_eq!(delivered, [], "nothing comes out");
    let mut expected = before;
    *expected.entry((port, reason.name())).or_default() += 1;
    assert_eq!(fabric.nodes[node].drops(), expected);
    assert_eq!(fabric.nodes[node].traffic(), (received + 1, sent));
}

fn a_to_b() -> Vec<u8> {
    Tuple::new(A, B, UDP, 53).opening()
}

#[test]
fn before_the_first_tables_nothing_passes() {
    let mut fabric = Fabric::closed();
    let name = ObjectName::new("shop", "a");
    fabric.nodes[0].attach_pod(&name, vec![A.parse().unwrap()], Capabilities::ALL);
    let tunnel = tunnelled(UNDERLAY[1], UNDERLAY[0], &Tuple::new(FAR, A, UDP, 53).opening(), 0);
    for port in [HOST, RAW, PortId(2)] {
        for bytes in [&a_to_b(), &tunnel, &vec![0; 20]] {
            is_dropped(&mut fabric, 0, port, bytes, DropReason::NoTables);
        }
    }
}

#[test]
fn a_port_that_the_tables_do_not_name_passes_nothing() {
    let mut fabric = Fabric::new(&open_cluster());
    let stray = PortId(40);
    fabric.nodes[0].attach(stray, Capabilities::ALL);
    is_dropped(&mut fabric, 0, stray, &a_to_b(), DropReason::NoTables);
    let between = PortId(7);
    fabric.nodes[0].attach(between, Capabilities::ALL);
    is_dropped(&mut fabric, 0, between, &a_to_b(), DropReason::NoTables);
}

#[test]
fn an_attached_pod_that_the_cluster_does_not_know_passes_nothing_in_or_out() {
    let mut fabric = Fabric::new(&open_cluster());
    let name = ObjectName::new("shop", "unknown");
    let address = "10.1.0.9";
    fabric.nodes[0].attach_pod(&name, vec![address.parse().unwrap()], Capabilities::ALL);
    fabric.publish();
    let (_, port) = fabric.port("shop/unknown");
    let (_, a) = fabric.port("shop/a");
    for peer in [A, FAR, "192.0.2.1", "172.18.0.2"] {
        let out = Tuple::new(address, peer, TCP, 80).opening();
        is_dropped(&mut fabric, 0, port, &out, DropReason::NoTables);
    }
    is_dropped(&mut fabric, 0, a, &Tuple::new(A, address, TCP, 80).opening(), DropReason::NoTables);
    let outside = Tuple::new("192.0.2.1", address, TCP, 80).opening();
    is_dropped(&mut fabric, 0, HOST, &outside, DropReason::NoTables);
    let far = tunnelled(UNDERLAY[1], UNDERLAY[0], &Tuple::new(FAR, address, TCP, 80).opening(), 0);
    is_dropped(&mut fabric, 0, RAW, &far, DropReason::NoTables);
    // The node may reach its own pods, but there is no such pod: the node gets an error, and the pod gets nothing.
    let node = Tuple::new("172.18.0.2", address, TCP, 80).opening();
    let delivered = fabric.send_at(0, HOST, &node);
    assert!(delivered.iter().all(|delivery| delivery.port == HOST), "{delivered:?}");
    assert_eq!(fabric.nodes[0].dropped(HOST, DropReason::HostUnreachable), 1);
    // It may not send to itself either.
    let itself = Tuple::new(address, address, UDP, 1).opening();
    assert_eq!(fabric.send_at(0, port, &itself), []);
}

/// Anybody who may change a pod may write an address into its annotations. Nodes that trust it
/// would treat the pod's own address as an unknown one, and a policy that denies this pod would not
/// match.
#[test]
fn an_attached_pod_whose_object_names_other_addresses_passes_nothing_in_or_out() {
    let mut fabric = Fabric::new(&open_cluster());
    let (_, a) = fabric.port("shop/a");
    let out = Tuple::new(A, B, TCP, 80).opening();
    assert_eq!(fabric.send("shop/a", &out).len(), 1);
    let others = pod("shop/b", 0, "{}", &[B, B6]);
    for changed in [&["10.1.0.77"][..], &["10.1.0.77", A6], &[A]] {
        fabric.read(&(pod("shop/a", 0, "{}", changed) + &others));
        fabric.publish();
        is_dropped(&mut fabric, 0, a, &Tuple::new(A, B, TCP, 81).opening(), DropReason::NoTables);
        let more = Tuple::new(A, B, TCP, 80).data(b"more");
        is_dropped(&mut fabric, 0, a, &more, DropReason::NoTables);
        let (_, b) = fabric.port("shop/b");
        let inward = Tuple::new(B, A, TCP, 80).opening();
        is_dropped(&mut fabric, 0, b, &inward, DropReason::NoTables);
    }
    fabric.apply(&(pod("shop/a", 0, "{}", &[A, A6]) + &others));
    assert_eq!(fabric.send("shop/a", &Tuple::new(A, B, TCP, 82).opening()).len(), 1);
}

#[test]
fn an_attached_pod_that_the_cluster_knows_no_more_answers_nobody_not_even_its_node() {
    let mut fabric = Fabric::new(&open_cluster());
    let (_, a) = fabric.port("shop/a");
    let asked = [("172.18.0.2", UDP), ("172.18.0.2", TCP), ("192.0.2.1", UDP)];
    for (from, protocol) in asked {
        let tuple = Tuple::new(from, A, protocol, 80);
        assert_eq!(fabric.send_at(0, HOST, &tuple.opening()).len(), 1);
        assert_eq!(fabric.send("shop/a", &tuple.answer()).len(), 1);
    }
    // It is still attached and still has its address.
    fabric.apply(&pod("shop/b", 0, "{}", &[B, B6]));
    for (from, protocol) in asked {
        let more = Tuple::new(from, A, protocol, 80).reversed().data(b"more");
        is_dropped(&mut fabric, 0, a, &more, DropReason::NoTables);
    }
}

#[test]
fn an_unfinished_checksum_behind_the_packets_end_is_no_packets() {
    let mut fabric = Fabric::new(&open_cluster());
    let (_, a) = fabric.port("shop/a");
    let mut padded = a_to_b();
    let end = padded.len() as u16;
    padded.extend([0; 40]);
    for (start, passes) in [(end - 2, true), (end - 1, false), (end, false), (end + 8, false)] {
        let checksum = Checksum::Partial { start, offset: 0 };
        let offload = Offload { checksum, segmentation: None };
        let before = fabric.nodes[0].dropped(a, DropReason::Malformed);
        fabric.nodes[0].inject_with(a, &padded, offload);
        assert_eq!(fabric.run_until_idle().len(), usize::from(passes), "{start} of {end}");
        let dropped = fabric.nodes[0].dropped(a, DropReason::Malformed) - before;
        assert_eq!(dropped, u64::from(!passes), "{start} of {end}");
    }
}

#[test]
fn a_tunnel_packet_is_taken_only_from_a_known_node_and_only_for_this_one() {
    let mut fabric = Fabric::new(&open_cluster());
    let inner = Tuple::new(FAR, A, UDP, 53).opening();
    let reason = DropReason::UnknownTunnelPeer;
    let stranger = "172.18.0.77".parse().unwrap();
    is_dropped(&mut fabric, 0, RAW, &tunnelled(stranger, UNDERLAY[0], &inner, 0), reason);
    is_dropped(&mut fabric, 0, RAW, &tunnelled(UNDERLAY[0], UNDERLAY[0], &inner, 0), reason);
    is_dropped(&mut fabric, 0, RAW, &tunnelled(UNDERLAY[1], stranger, &inner, 0), reason);
    is_dropped(&mut fabric, 0, RAW, &inner, DropReason::Malformed);
    let known = tunnelled(UNDERLAY[1], UNDERLAY[0], &inner, 0);
    assert_eq!(fabric.send_at(0, RAW, &known).len(), 1);
}

#[test]
fn what_comes_out_of_a_tunnel_must_belong_to_its_node() {
    let mut fabric = Fabric::new(&open_cluster());
    // Addresses of this node's pods, its block, the node itself, the world, and the other node.
    let own = [A, B, "10.244.1.77", "10.244.1.1", "172.18.0.2"];
    for source in own.into_iter().chain(["192.0.2.1", "172.18.0.3"]) {
        let inner = Tuple::new(source, A, UDP, 53).opening();
        let outer = tunnelled(UNDERLAY[1], UNDERLAY[0], &inner, 0);
        is_dropped(&mut fabric, 0, RAW, &outer, DropReason::TunnelSourceMismatch);
    }
    for source in [A6, "fd44:1::77", "fd18::2", "fd00:2::1"] {
        let inner = Tuple::new(source, A6, UDP, 53).opening();
        let outer = tunnelled(UNDERLAY[1], UNDERLAY[0], &inner, 0);
        // No tunnel carries IPv6, from any node.
        is_dropped(&mut fabric, 0, RAW, &outer, DropReason::Malformed);
    }
    let inner = Tuple::new("10.244.2.1", A, UDP, 53).opening();
    let outer = tunnelled(UNDERLAY[1], UNDERLAY[0], &inner, 0);
    assert_eq!(fabric.send_at(0, RAW, &outer).len(), 1, "the node's own tunnel address");
}

#[test]
fn protocol_4_and_the_vxlan_port_from_pods_are_dropped() {
    let mut fabric = Fabric::new(&open_cluster());
    let (_, a) = fabric.port("shop/a");
    let inner = Tuple::new(FAR, B, UDP, 53).opening();
    let ipip = tunnelled(A.parse().unwrap(), UNDERLAY[1], &inner, 0);
    is_dropped(&mut fabric, 0, a, &ipip, DropReason::TunnelFromPod);
    let vxlan = Tuple::new(A, "172.18.0.3", UDP, 4789).opening();
    is_dropped(&mut fabric, 0, a, &vxlan, DropReason::TunnelFromPod);
    let v6 = Tuple::new(A6, "fd18::3", UDP, 4789).opening();
    is_dropped(&mut fabric, 0, a, &v6, DropReason::TunnelFromPod);
}

#[test]
fn a_pod_speaks_with_its_own_addresses_only() {
    let mut fabric = Fabric::new(&open_cluster());
    let (_, a) = fabric.port("shop/a");
    for source in [B, FAR, "192.0.2.1", "172.18.0.2", "10.244.1.1", "10.244.1.77", "169.254.0.1"] {
        let bytes = Tuple::new(source, B, UDP, 53).opening();
        is_dropped(&mut fabric, 0, a, &bytes, DropReason::SourceSpoofed);
    }
    for source in [B6, "fd00:2::1", "2001:db8::1", "fd18::2"] {
        let bytes = Tuple::new(source, B6, TCP, 80).opening();
        is_dropped(&mut fabric, 0, a, &bytes, DropReason::SourceSpoofed);
    }
    for source in ["127.0.0.1", "0.0.0.0", "224.0.0.1", "255.255.255.255"] {
        let bytes = Tuple::new(source, B, UDP, 53).opening();
        is_dropped(&mut fabric, 0, a, &bytes, DropReason::NotForwardable);
    }
}

#[test]
fn of_addresses_that_are_no_single_hosts_beyond_the_link_only_ipv4s_link_local_ones_are_forwarded()
{
    let mut fabric = Fabric::new(&open_cluster());
    let (_, a) = fabric.port("shop/a");
    // These are addresses of metadata services.
    for metadata in ["169.254.169.254", "169.254.0.1"] {
        let delivered = fabric.send("shop/a", &Tuple::new(A, metadata, TCP, 80).opening());
        assert_eq!((delivered.len(), delivered[0].port), (1, HOST), "{metadata}");
    }
    for destination in
        ["224.0.0.1", "255.255.255.255", "127.0.0.1", "0.0.0.0", "0.1.2.3", "240.0.0.1"]
    {
        let bytes = Tuple::new(A, destination, UDP, 53).opening();
        is_dropped(&mut fabric, 0, a, &bytes, DropReason::NotForwardable);
    }
    for destination in ["fe80::1", "ff02::1", "ff0e::1", "::1", "::"] {
        let bytes = Tuple::new(A6, destination, UDP, 53).opening();
        is_dropped(&mut fabric, 0, a, &bytes, DropReason::NotForwardable);
    }
}

#[test]
fn a_spoofed_packet_does_not_join_the_flow_whose_addresses_it_bears() {
    let mut fabric = Fabric::new(&open_cluster());
    let tuple = Tuple::new(A, B, UDP, 53);
    assert_eq!(fabric.send("shop/a", &tuple.opening()).len(), 1);
    let (_, b) = fabric.port("shop/b");
    is_dropped(&mut fabric, 0, b, &tuple.data(b"forged"), DropReason::SourceSpoofed);
    is_dropped(&mut fabric, 0, HOST, &tuple.answer(), DropReason::SourceSpoofed);
    let outer = tunnelled(UNDERLAY[1], UNDERLAY[0], &tuple.answer(), 0);
    is_dropped(&mut fabric, 0, RAW, &outer, DropReason::TunnelSourceMismatch);
}

#[test]
fn the_host_port_brings_no_pods_address() {
    let mut fabric = Fabric::new(&open_cluster());
    for source in [A, FAR, "10.244.1.77", "10.244.2.1"] {
        let bytes = Tuple::new(source, B, UDP, 53).opening();
        is_dropped(&mut fabric, 0, HOST, &bytes, DropReason::SourceSpoofed);
    }
    for source in [A6, "fd44:1::77"] {
        let bytes = Tuple::new(source, B6, UDP, 53).opening();
        is_dropped(&mut fabric, 0, HOST, &bytes, DropReason::SourceSpoofed);
    }
}

#[test]
fn nobodys_transit_is_carried() {
    let mut fabric = Fabric::new(&open_cluster());
    for (source, destination) in [
        ("192.0.2.1", "198.51.100.1"),
        ("192.0.2.1", "172.18.0.2"),
        ("172.18.0.2", "192.0.2.1"),
        ("192.0.2.1", FAR),
        ("172.18.0.2", "10.244.1.1"),
    ] {
        let bytes = Tuple::new(source, destination, UDP, 53).opening();
        is_dropped(&mut fabric, 0, HOST, &bytes, DropReason::NoRoute);
    }
    for destination in ["192.0.2.1", "172.18.0.9", FAR] {
        let inner = Tuple::new(FAR, destination, UDP, 53).opening();
        let outer = tunnelled(UNDERLAY[1], UNDERLAY[0], &inner, 0);
        is_dropped(&mut fabric, 0, RAW, &outer, DropReason::NoRoute);
    }
}

#[test]
fn a_detached_port_takes_nothing_and_a_new_one_in_its_place_works() {
    use manx_dataplane::worker::Command;
    let mut fabric = Fabric::new(&open_cluster());
    let (_, b) = fabric.port("shop/b");
    let (_, a) = fabric.port("shop/a");
    fabric.nodes[0].send_command(|| Command::Detach(b, None));
    is_dropped(&mut fabric, 0, a, &a_to_b(), DropReason::TransmitRefused);
    fabric.nodes[0].attach(b, Capabilities::ALL);
    assert_eq!(fabric.send("shop/a", &a_to_b()).len(), 1);
}

#[test]
fn a_port_that_fails_is_let_go_of_and_reported_and_the_others_go_on() {
    use manx_dataplane::report::Report;
    let mut fabric = Fabric::new(&open_cluster());
    let (_, a) = fabric.port("shop/a");
    let (_, b) = fabric.port("shop/b");
    while fabric.nodes[0].reports.try_recv().is_ok() {}
    // The device first fails when packets are sent to it, again and again, and then when it is
    // read.
    for _ in 0..200 {
        fabric.nodes[0].inject(a, &a_to_b());
    }
    fabric.nodes[0].wires[&b].unplug();
    fabric.nodes[0].run();
    let reports: Vec<Report> = fabric.nodes[0].reports.try_iter().collect();
    // Each worker that meets the failure reports it once.
    let lost = |report: &Report| matches!(report, Report::PortLost(port, _) if *port == b);
    assert!((1..=workers()).contains(&reports.len()) && reports.iter().all(lost), "{reports:?}");
    let (refused, gone) =
        [b, a].map(|at| fabric.nodes[0].dropped(at, DropReason::TransmitRefused)).into();
    assert_eq!(refused + gone, 200);
    is_dropped(&mut fabric, 0, a, &a_to_b(), DropReason::TransmitRefused);
    let far = fabric.send("shop/a", &Tuple::new(A, FAR, UDP, 53).opening());
    assert_eq!(far.len(), 1);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_bytes_at_any_port_are_forwarded_dropped_or_answered(
        packets in prop::collection::vec((0u16..5, arbitrary_packet()), 1..60),
    ) {
        let mut fabric = Fabric::new(&open_cluster());
        // ICMP errors need an address of the node, so without one every packet is forwarded or dropped.
        let mut tables = fabric.tables(0);
        (tables.router_v4, tables.router_v6) = (None, None);
        fabric.nodes[0].publish(tables);
        for (port, bytes) in &packets {
            fabric.nodes[0].inject_with(PortId(*port.min(&3)), bytes, Offload::default());
        }
        fabric.nodes[0].run();
        let (received, sent) = fabric.nodes[0].traffic();
        let dropped: u64 = fabric.nodes[0].drops().values().sum();
        prop_assert_eq!(received, packets.len() as u64);
        prop_assert_eq!(received, sent + dropped);
    }
}

/// Random bytes; a packet with a few changed bytes, and perhaps a corrected header checksum; and
/// one of those in a tunnel.
fn arbitrary_packet() -> impl Strategy<Value = Vec<u8>> {
    let addresses = prop::sample::select(vec![
        (A, B),
        (B, A),
        (A, FAR),
        (FAR, A),
        ("192.0.2.1", A),
        (A, "192.0.2.1"),
        (A6, B6),
        (B6, A6),
        (A6, "2001:db8::1"),
        ("10.244.1.1", A),
        ("10.244.2.1", B),
    ]);
    let protocol = prop::sample::select(vec![1u8, 6, 17, 58, 132, 4, 44]);
    let changes = prop::collection::vec((0usize..60, any::<u8>()), 0..3);
    let valid = (addresses, protocol, changes, any::<bool>(), any::<bool>()).prop_map(
        |((source, destination), protocol, changes, mend, tunnel)| {
            let mut bytes = Tuple::new(source, destination, protocol, 80).opening();
            for (at, value) in changes {
                if let Some(byte) = bytes.get_mut(at) {
                    *byte = value;
                }
            }
            if mend && bytes[0] == 0x45 {
                manx_tests::packet::change_v4(&mut bytes, |_| {});
            }
            if tunnel { tunnelled(UNDERLAY[1], UNDERLAY[0], &bytes, 0) } else { bytes }
        },
    );
    prop_oneof![1 => prop::collection::vec(any::<u8>(), 1..80), 6 => valid]
}
