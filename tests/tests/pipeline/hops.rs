//! The changes that routing makes to a header: hop limits, ECN marks, Don't Fragment.

use etherparse::IpEcn;
use manx_dataplane::drop_reason::DropReason;
use manx_tests::fabric::{Fabric, HOST, RAW, ROUTER, UNDERLAY, pod};
use manx_tests::packet::{Tuple, UDP, assert_whole, change_v4, ttl, tunnelled, with_ttl};

const A: &str = "10.1.0.1";
const A6: &str = "fd00:1::1";
const B: &str = "10.1.0.2";
const FAR: &str = "10.2.0.1";

fn fabric() -> Fabric {
    Fabric::new(
        &(pod("shop/a", 0, "{}", &[A, A6])
            + &pod("shop/b", 0, "{}", &[B])
            + &pod("shop/far", 1, "{}", &[FAR])),
    )
}

/// Not-ECT, ECT(1), ECT(0), CE, by their bits.
const MARKS: [u8; 4] = [0, 1, 2, 3];

fn marked(tuple: Tuple, mark: u8) -> Vec<u8> {
    let mut bytes = tuple.opening();
    change_v4(&mut bytes, |ip| ip.ecn = IpEcn::try_new(mark).unwrap());
    bytes
}

#[test]
fn the_outer_header_has_its_own_ttl_the_inner_df_and_ecn_and_no_dscp() {
    let mut fabric = fabric();
    let (_, a) = fabric.port("shop/a");
    for mark in MARKS {
        for dont_fragment in [false, true] {
            let mut bytes = marked(Tuple::new(A, FAR, UDP, 53), mark);
            change_v4(&mut bytes, |ip| {
                ip.dont_fragment = dont_fragment;
                ip.dscp = etherparse::IpDscp::try_new(46).unwrap();
            });
            fabric.nodes[0].inject(a, &bytes);
            fabric.nodes[0].run();
            let frames = fabric.nodes[0].collect(RAW);
            let outer = &frames[0].bytes;
            assert_whole(outer);
            assert_eq!(outer[1], mark, "ECN, and DSCP 0");
            assert_eq!(outer[6] & 0x40 != 0, dont_fragment);
            assert_eq!(outer[8], 64, "its own count of hops");
            assert_eq!(outer[20..], with_ttl(bytes, 63));
        }
    }
}

#[test]
fn ecn_is_combined_and_outer_ce_over_not_ect_is_dropped() {
    // The mark of the packet that leaves the tunnel, by the inner and the outer mark (RFC 6040,
    // figure 4).
    let leaves = |inner: u8, outer: u8| match (inner, outer) {
        (0, 3) => None,
        (0, _) => Some(0),
        (3, _) | (_, 3) => Some(3),
        (2, 1) => Some(1),
        (inner, _) => Some(inner),
    };
    let mut fabric = fabric();
    let (_, a) = fabric.port("shop/a");
    for inner in MARKS {
        for outer in MARKS {
            let bytes = marked(Tuple::new(FAR, A, UDP, 53), inner);
            let delivered =
                fabric.send_at(0, RAW, &tunnelled(UNDERLAY[1], UNDERLAY[0], &bytes, outer));
            match leaves(inner, outer) {
                None => assert_eq!(delivered, []),
                Some(mark) => {
                    assert_eq!((delivered.len(), delivered[0].port), (1, a));
                    let bytes = &delivered[0].frame.bytes;
                    assert_eq!(bytes[1] & 3, mark, "inner {inner}, outer {outer}");
                    assert_whole(bytes);
                }
            }
        }
    }
    assert_eq!(fabric.nodes[0].dropped(RAW, DropReason::EcnInconsistent), 1);
}

#[test]
fn each_node_is_one_hop_and_a_node_and_its_own_pods_are_none_apart() {
    let mut fabric = fabric();
    let (_, a) = fabric.port("shop/a");
    let node = UNDERLAY[0].to_string();
    let router = ROUTER[0].to_string();
    let hops = |delivered: &[manx_tests::fabric::Delivery]| {
        assert_eq!(delivered.len(), 1);
        64 - ttl(&delivered[0].frame.bytes)
    };
    let from_a = |to: &str| Tuple::new(A, to, UDP, 53).opening();
    assert_eq!(hops(&fabric.send("shop/a", &from_a(B))), 1, "same node");
    assert_eq!(hops(&fabric.send("shop/a", &from_a(FAR))), 2, "two nodes");
    assert_eq!(hops(&fabric.send("shop/a", &from_a("192.0.2.1"))), 1, "outward");
    assert_eq!(hops(&fabric.send("shop/a", &Tuple::new(A6, "2001:db8::1", UDP, 5).opening())), 1);
    assert_eq!(hops(&fabric.send_at(0, HOST, &Tuple::new("192.0.2.1", A, UDP, 5).opening())), 1);
    for own in [&node, &router] {
        assert_eq!(hops(&fabric.send("shop/a", &from_a(own))), 0, "to the node");
        let probe = with_ttl(Tuple::new(own, A, UDP, 9).opening(), 1);
        let delivered = fabric.send_at(0, HOST, &probe);
        assert_eq!((delivered.len(), delivered[0].port), (1, a));
        assert_eq!(delivered[0].frame.bytes, probe, "a node's last hop reaches its pods");
        let last = with_ttl(from_a(own), 1);
        assert_eq!(fabric.send("shop/a", &last)[0].frame.bytes, last);
    }
    assert_eq!(hops(&fabric.send_at(0, HOST, &Tuple::new(&router, FAR, UDP, 5).opening())), 1);
}
