//! A small cluster for tests of packets and not of policy, with two pods on the first node and one
//! on the other. Only `a` may send to `b`, and `b` may send to no other pod.

use manx_dataplane::tables::PortId;

use crate::fabric::{Fabric, pod, policy};

/// `shop/a`, on the first node.
pub const A: &str = "10.1.0.1";
pub const A6: &str = "fd00:1::1";
/// `shop/b`, on the same node.
pub const B: &str = "10.1.0.2";
pub const B6: &str = "fd00:1::2";
/// `shop/far`, on the other node.
pub const FAR: &str = "10.2.0.1";

/// The cluster, and the ports of `a` and `b`.
pub fn fabric() -> (Fabric, PortId, PortId) {
    let yaml = pod("shop/a", 0, "{app: a}", &[A, A6])
        + &pod("shop/b", 0, "{app: b}", &[B, B6])
        + &pod("shop/far", 1, "{app: far}", &[FAR])
        + &policy(
            "shop/b",
            "{podSelector: {matchLabels: {app: b}}, policyTypes: [Ingress, Egress], \
             ingress: [{from: [{podSelector: {matchLabels: {app: a}}}]}]}",
        );
    let fabric = Fabric::new(&yaml);
    let (_, a) = fabric.port("shop/a");
    let (_, b) = fabric.port("shop/b");
    (fabric, a, b)
}
