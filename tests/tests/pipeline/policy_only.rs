//! Pods that another plugin connects: Manx is between each pod and the node. The test acts as the
//! node's kernel.

use manx_dataplane::drop_reason::DropReason;
use manx_dataplane::tables::PortId;
use manx_tests::fabric::{Fabric, GATEWAY, HOST, SIZES, UNDERLAY, pod, policy};
use manx_tests::packet::{TCP, Tuple, UDP, ttl, with_ttl};

use crate::errors::error_v4;

const CLIENT: &str = "10.1.0.1";
const SERVER: &str = "10.1.0.2";
const FAR: &str = "10.2.0.1";
const WORLD: &str = "192.0.2.7";
const SERVICE_IP: &str = "10.96.0.7";

fn cluster(policies: &str) -> String {
    pod("shop/client", 0, "{app: client}", &[CLIENT, "fd00::1"])
        + &pod("shop/server", 0, "{app: server}", &[SERVER, "fd00::2"])
        + &pod("shop/far", 1, "{app: far}", &[FAR])
        + policies
}

/// Both ports of a pod: its own, and the port towards its node.
fn sides(fabric: &Fabric, pod: &str) -> [PortId; 2] {
    [fabric.port(pod).1, fabric.host_side(pod)]
}

/// Sends a packet to a port of the first node. Returns the port where it came out. It must come out
/// at most once, and unchanged.
#[track_caller]
fn send(fabric: &mut Fabric, port: PortId, packet: &[u8]) -> Option<PortId> {
    let out = fabric.send_at(0, port, packet);
    assert!(out.len() <= 1, "{out:?}");
    let only = out.first()?;
    assert!(only.frame.bytes == packet, "Manx makes no hop, and changes nothing");
    Some(only.port)
}

#[test]
fn what_a_pod_exchanges_with_the_node_and_beyond_passes_its_own_host_side_unchanged() {
    let mut fabric = Fabric::policy_only(&cluster(""));
    let [client, host_side] = sides(&fabric, "shop/client");
    let node = UNDERLAY[0].to_string();
    for (other, protocol) in [(WORLD, TCP), (FAR, UDP), (&node, TCP), (SERVICE_IP, UDP)] {
        let tuple = Tuple::new(CLIENT, other, protocol, 80);
        for packet in [tuple.opening(), tuple.data(b"x"), with_ttl(tuple.data(b"y"), 1)] {
            assert_eq!(send(&mut fabric, client, &packet), Some(host_side), "to {other}");
        }
        for packet in [tuple.answer(), with_ttl(tuple.reversed().data(b"x"), 1)] {
            assert_eq!(send(&mut fabric, host_side, &packet), Some(client), "from {other}");
        }
        let tuple = Tuple::new(other, CLIENT, protocol, 81).from_port(1234);
        assert_eq!(send(&mut fabric, host_side, &tuple.opening()), Some(client), "from {other}");
        assert_eq!(send(&mut fabric, client, &tuple.answer()), Some(host_side), "to {other}");
    }
    let v6 = Tuple::new("fd00::1", "2001:db8::7", UDP, 80);
    assert_eq!(send(&mut fabric, client, &v6.opening()), Some(host_side));
    assert_eq!(send(&mut fabric, host_side, &v6.answer()), Some(client));
}

#[test]
fn pods_of_a_node_reach_each_other_past_the_node() {
    let mut fabric = Fabric::policy_only(&cluster(""));
    let [client, _] = sides(&fabric, "shop/client");
    let [server, _] = sides(&fabric, "shop/server");
    let tuple = Tuple::new(CLIENT, SERVER, TCP, 80);
    for (pod, packet, to) in
        [("shop/client", tuple.opening(), server), ("shop/server", tuple.answer(), client)]
    {
        let out = fabric.send(pod, &packet);
        assert_eq!((out.len(), out[0].port), (1, to));
        assert_eq!(ttl(&out[0].frame.bytes), ttl(&packet) - 1, "one hop");
    }
}

#[test]
fn both_sides_are_judged() {
    let server = "{podSelector: {matchLabels: {app: server}}, ingress: [{from: [{podSelector: {matchLabels: {app: far}}}]}]}";
    let client = "{podSelector: {matchLabels: {app: client}}, policyTypes: [Egress], egress: [{to: [{podSelector: {matchLabels: {app: far}}}]}]}";
    let policies = policy("shop/server", server) + &policy("shop/client", client);
    let mut fabric = Fabric::policy_only(&cluster(&policies));
    let [client, client_host] = sides(&fabric, "shop/client");
    let [_, server_host] = sides(&fabric, "shop/server");
    for (port, source, destination, expected) in [
        (server_host, FAR, SERVER, Ok(())),
        (server_host, WORLD, SERVER, Err(DropReason::PolicyIngress)),
        // A node always reaches its own pods, from any of its addresses.
        (server_host, &GATEWAY.to_string(), SERVER, Ok(())),
        (server_host, &UNDERLAY[0].to_string(), SERVER, Ok(())),
        (client, CLIENT, FAR, Ok(())),
        (client, CLIENT, WORLD, Err(DropReason::PolicyEgress)),
        (client, CLIENT, SERVER, Err(DropReason::PolicyEgress)),
        // This is how a pod's packet arrives after the node has forwarded it.
        (server_host, CLIENT, SERVER, Err(DropReason::PolicyEgress)),
        // A pod may only use its own address as the source, and no other port may use an address of
        // the world.
        (client, SERVER, FAR, Err(DropReason::SourceSpoofed)),
        (client, WORLD, FAR, Err(DropReason::SourceSpoofed)),
        (HOST, CLIENT, SERVER, Err(DropReason::SourceSpoofed)),
        // A host side leads only to its own endpoint.
        (client_host, WORLD, FAR, Err(DropReason::SourceSpoofed)),
        (client_host, WORLD, SERVER, Err(DropReason::SourceSpoofed)),
        (client_host, CLIENT, SERVER, Err(DropReason::SourceSpoofed)),
    ] {
        let packet = Tuple::new(source, destination, UDP, 80).opening();
        let count = |fabric: &Fabric| expected.err().map(|it| fabric.nodes[0].dropped(port, it));
        let before = count(&fabric);
        let passed = send(&mut fabric, port, &packet).is_some();
        assert_eq!(passed, expected.is_ok(), "{source} > {destination} by {port:?}");
        let drops = fabric.nodes[0].drops();
        assert_eq!(count(&fabric), before.map(|it| it + 1), "{source} > {destination}: {drops:?}");
    }
}

/// The test acts as kube-proxy: the pod's packet leaves for the service, and comes back for the
/// endpoint.
#[test]
fn a_pods_packet_that_the_node_forwards_to_a_neighbour_is_judged_and_answered_through_the_node() {
    let mut fabric = Fabric::policy_only(&cluster(""));
    let [client, client_host] = sides(&fabric, "shop/client");
    let [server, server_host] = sides(&fabric, "shop/server");
    let asked = Tuple::new(CLIENT, SERVICE_IP, TCP, 80);
    let forwarded = Tuple::new(CLIENT, SERVER, TCP, 8080);
    let back_and_forth = |fabric: &mut Fabric| {
        let [there, back] = [[asked, forwarded], [forwarded, asked].map(Tuple::reversed)];
        let [to_service, to_server] = there.map(|tuple| tuple.data(b"x"));
        assert_eq!(send(fabric, client, &to_service), Some(client_host));
        assert_eq!(send(fabric, server_host, &to_server), Some(server));
        let [from_server, from_service] = back.map(|tuple| tuple.data(b"y"));
        assert_eq!(send(fabric, server, &from_server), Some(server_host));
        assert_eq!(send(fabric, client_host, &from_service), Some(client));
    };
    assert_eq!(send(&mut fabric, client, &asked.opening()), Some(client_host));
    assert_eq!(send(&mut fabric, server_host, &forwarded.opening()), Some(server));
    assert_eq!(send(&mut fabric, server, &forwarded.answer()), Some(server_host));
    assert_eq!(send(&mut fabric, client_host, &asked.answer()), Some(client));
    back_and_forth(&mut fabric);
    // The same tuple at the client's own port is another way.
    assert_eq!(send(&mut fabric, client, &forwarded.data(b"x")), None);
    // Equal tables, and a new agent.
    fabric.publish();
    back_and_forth(&mut fabric);
    let restored = fabric.nodes[0].replace_workers(1, SIZES, true);
    assert_eq!((restored.flows, restored.ended), (2, 0));
    back_and_forth(&mut fabric);
    let error = error_v4(SERVER, CLIENT, &forwarded.data(b"x"));
    assert_eq!(send(&mut fabric, server, &error), Some(server_host));
    fabric.apply(&cluster(&policy("shop/p", "{podSelector: {matchLabels: {app: server}}}")));
    assert_eq!(send(&mut fabric, server_host, &forwarded.data(b"x")), None);
    assert_eq!(send(&mut fabric, server, &forwarded.reversed().data(b"x")), None);
}

#[test]
fn a_pod_reaches_itself_through_the_node_whatever_policy_says() {
    let deny = policy("shop/p", "{podSelector: {}, policyTypes: [Ingress, Egress]}");
    let mut fabric = Fabric::policy_only(&cluster(&deny));
    let [client, host_side] = sides(&fabric, "shop/client");
    let tuple = Tuple::new(CLIENT, CLIENT, TCP, 8080);
    assert_eq!(send(&mut fabric, host_side, &tuple.opening()), Some(client));
    assert_eq!(send(&mut fabric, client, &tuple.answer()), Some(host_side));
}

#[test]
fn a_host_side_whose_pod_is_gone_or_unknown_is_closed() {
    let mut fabric = Fabric::policy_only(&cluster(""));
    let [client, host_side] = sides(&fabric, "shop/client");
    fabric.apply(&pod("shop/server", 0, "{app: server}", &[SERVER]));
    let tuple = Tuple::new(WORLD, CLIENT, UDP, 80);
    assert_eq!(send(&mut fabric, host_side, &tuple.opening()), None);
    assert_eq!(fabric.nodes[0].dropped(host_side, DropReason::NoTables), 1);
    assert_eq!(send(&mut fabric, client, &tuple.reversed().opening()), None);
    assert_eq!(fabric.nodes[0].dropped(client, DropReason::NoTables), 1);
}
