//! `manx policy explain` and real packets agree about the addresses of pods that are not valid.

use std::collections::BTreeMap;

use manx_analysis::explain::explain;
use manx_api::explain::{ExplainRequest, PacketSpec};
use manx_dataplane::packet::Capabilities;
use manx_dataplane::tables::PortId;
use manx_policy_compiler::model::ObjectName;
use manx_tests::fabric::{Fabric, HOST, RAW, UNDERLAY, pod};
use manx_tests::packet::{TCP, Tuple, tunnelled};

const A: &str = "10.1.0.1";
const FAR: &str = "10.2.0.1";
const OUTSIDE: &str = "192.0.2.1";
const NODE: &str = "172.18.0.2";
/// An attached pod that is not valid.
const BROKEN: &str = "10.1.0.9";
/// An attached, valid pod in a namespace that is not valid.
const NOWHERE: &str = "10.1.0.8";

const OBJECTS: &str = "
{apiVersion: v1, kind: Pod, metadata: {name: broken, namespace: shop}, spec: {nodeName: node-1, hostNetwork: 5}, status: {podIP: 10.1.0.9}}
---
{apiVersion: v1, kind: Namespace, metadata: {name: nowhere, labels: 5}}
---
{apiVersion: v1, kind: Node, metadata: {name: node-1}, status: {addresses: [{type: InternalIP, address: 172.18.0.2}]}}
---
{apiVersion: v1, kind: Node, metadata: {name: node-2}, status: {addresses: [{type: InternalIP, address: 172.18.0.3}]}}
";

fn attached() -> Fabric {
    let pods = pod("shop/a", 0, "{}", &[A])
        + &pod("shop/far", 1, "{}", &[FAR])
        + &pod("nowhere/it", 0, "{}", &[NOWHERE]);
    let mut fabric = Fabric::new(&format!("{pods}{OBJECTS}"));
    for (name, address) in [("shop/broken", BROKEN), ("nowhere/it", NOWHERE)] {
        let (namespace, name) = name.split_once('/').unwrap();
        let name = ObjectName::new(namespace, name);
        assert!(!fabric.nodes[0].locals.contains_key(&name), "it is no endpoint");
        fabric.nodes[0].attach_pod(&name, vec![address.parse().unwrap()], Capabilities::ALL);
    }
    fabric.publish();
    fabric
}

/// The port of node 1 for packets from and to this address.
fn port(fabric: &Fabric, address: &str) -> PortId {
    match address {
        A => fabric.port("shop/a").1,
        BROKEN => fabric.port("shop/broken").1,
        NOWHERE => fabric.port("nowhere/it").1,
        FAR => RAW,
        _ => HOST,
    }
}

/// Whether a packet comes out at its receiver.
fn arrives(fabric: &mut Fabric, from: &str, to: &str) -> bool {
    let opening = Tuple::new(from, to, TCP, 80).opening();
    let bytes =
        if from == FAR { tunnelled(UNDERLAY[1], UNDERLAY[0], &opening, 0) } else { opening };
    let sender = port(fabric, from);
    let receiver = if to == FAR { fabric.port("shop/far") } else { (0, port(fabric, to)) };
    let out = fabric.send_at(0, sender, &bytes);
    // A packet that comes out at the sender is an error message.
    receiver != (0, sender) && out.iter().any(|it| (it.node, it.port) == receiver)
}

#[test]
fn explain_says_of_a_closed_pods_addresses_what_becomes_of_their_packets() {
    let mut fabric = attached();
    let others = [A, FAR, OUTSIDE, NODE];
    let closed = [BROKEN, NOWHERE];
    let mut pairs: Vec<(&str, &str, bool)> = Vec::new();
    for one in closed {
        pairs.extend(others.iter().flat_map(|other| [(*other, one, false), (one, *other, false)]));
    }
    pairs.extend([(BROKEN, NOWHERE, false), (NOWHERE, BROKEN, false)]);
    pairs.extend(
        [(A, FAR), (FAR, A), (A, OUTSIDE), (OUTSIDE, A), (NODE, A), (A, NODE)]
            .map(|(from, to)| (from, to, true)),
    );
    for (from, to, passes) in pairs {
        let request = ExplainRequest {
            routes: true,
            from: from.to_owned(),
            to: to.to_owned(),
            packet: PacketSpec::Protocol(6, Some(80)),
            source_port: 49152,
            ipv6: false,
            uplink: None,
        };
        let told = explain(&request, &fabric.contents, &BTreeMap::new(), "eth0").unwrap();
        assert_eq!(told.story.allowed, passes, "{told}");
        assert_eq!(arrives(&mut fabric, from, to), passes, "{told}");
    }
}
