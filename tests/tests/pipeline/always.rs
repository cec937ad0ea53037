//! Laws that hold with any policies: traffic between a node and its own pods, traffic of a pod to
//! itself, replies to allowed traffic, and ICMP errors about it.

use etherparse::{Icmpv4Type, Icmpv6Type, PacketBuilder};
use manx_dataplane::drop_reason::DropReason;
use manx_dataplane::tables::PortId;
use manx_tests::fabric::{Fabric, HOST, ROUTER, UNDERLAY, pod, policy};
use manx_tests::packet::{ICMP, ICMPV6, SCTP, TCP, Tuple, UDP};

const A: &str = "10.1.0.1";
const A6: &str = "fd00:1::1";
const B: &str = "10.1.0.2";
const FAR: &str = "10.2.0.1";
const FAR6: &str = "fd00:2::1";
const WORLD: &str = "192.0.2.1";
/// IANA's number of GRE, which has no ports.
const GRE: u8 = 47;

fn pods() -> String {
    pod("shop/a", 0, "{app: a}", &[A, A6])
        + &pod("shop/b", 0, "{app: b}", &[B])
        + &pod("shop/far", 1, "{app: far}", &[FAR, FAR6])
}

/// Policies by which no pod may send or receive anything.
fn closed() -> String {
    policy("shop/all", "{podSelector: {}, policyTypes: [Ingress, Egress]}")
}

fn node(of: usize) -> String {
    UNDERLAY[of].to_string()
}

fn dies(fabric: &mut Fabric, port: PortId, bytes: &[u8], reason: DropReason) {
    let before = fabric.nodes[0].dropped(port, reason);
    assert_eq!(fabric.send_at(0, port, bytes), []);
    let drops = fabric.nodes[0].drops();
    assert_eq!(fabric.nodes[0].dropped(port, reason), before + 1, "{drops:?}");
}

#[test]
fn a_node_always_reaches_its_own_pods_and_other_nodes_as_ingress_policy_allows() {
    let mut fabric = Fabric::new(&(pods() + &closed()));
    let (_, a) = fabric.port("shop/a");
    for own in [node(0), ROUTER[0].to_string()] {
        for protocol in [TCP, UDP, ICMP, SCTP] {
            let probe = Tuple::new(&own, A, protocol, 80);
            let delivered = fabric.send_at(0, HOST, &probe.opening());
            assert_eq!((delivered.len(), delivered[0].port), (1, a), "{probe:?}");
            assert_eq!(fabric.send("shop/a", &probe.answer()).len(), 1, "and hears of it");
        }
    }
    let other = |port| Tuple::new(&node(1), A, TCP, port).opening();
    dies(&mut fabric, HOST, &other(80), DropReason::PolicyIngress);
    let from_the_other = policy(
        "shop/a",
        &format!(
            "{{podSelector: {{matchLabels: {{app: a}}}}, \
             ingress: [{{from: [{{ipBlock: {{cidr: {}/32}}}}], ports: [{{port: 80}}]}}]}}",
            node(1)
        ),
    );
    fabric.apply(&(pods() + &closed() + &from_the_other));
    assert_eq!(fabric.send_at(0, HOST, &other(80)).len(), 1);
    dies(&mut fabric, HOST, &other(81), DropReason::PolicyIngress);
}

#[test]
fn a_pod_always_reaches_itself() {
    let mut fabric = Fabric::new(&(pods() + &closed()));
    let (_, a) = fabric.port("shop/a");
    for (own, protocol) in [(A, TCP), (A, UDP), (A, ICMP), (A6, TCP), (A6, ICMPV6)] {
        let itself = Tuple::new(own, own, protocol, 80).opening();
        let delivered = fabric.send("shop/a", &itself);
        assert_eq!((delivered.len(), delivered[0].port), (1, a), "{own} {protocol}");
    }
    dies(&mut fabric, a, &Tuple::new(A, B, TCP, 80).opening(), DropReason::PolicyEgress);
}

#[test]
fn what_a_pod_sends_to_its_node_is_subject_to_its_egress_policy() {
    let only_80 = policy(
        "shop/a",
        "{podSelector: {matchLabels: {app: a}}, policyTypes: [Egress], egress: [{ports: [{port: 80}]}]}",
    );
    let mut fabric = Fabric::new(&(pods() + &only_80));
    let (_, a) = fabric.port("shop/a");
    for own in [node(0), ROUTER[0].to_string()] {
        let to = |port| Tuple::new(A, &own, TCP, port).opening();
        assert_eq!(fabric.send("shop/a", &to(80)).len(), 1);
        dies(&mut fabric, a, &to(81), DropReason::PolicyEgress);
    }
}

#[test]
fn host_endpoint_policy_does_not_apply_to_what_a_pod_sends_to_its_node() {
    // Without a policy that allows it, no pod reaches the node's own processes.
    let host = "---\napiVersion: projectcalico.org/v3\nkind: HostEndpoint\nmetadata: {name: all}\n\
        spec: {node: node-1, interfaceName: '*'}\n";
    let mut fabric = Fabric::with_uplinks(&(pods() + host));
    let to_node = Tuple::new(A, &node(0), TCP, 80);
    let delivered = fabric.send("shop/a", &to_node.opening());
    assert_eq!((delivered.len(), delivered[0].port), (1, HOST));
    assert_eq!(fabric.send_at(0, HOST, &to_node.answer()).len(), 1);
    let outside = Tuple::new(WORLD, &node(0), TCP, 80).opening();
    dies(&mut fabric, manx_tests::fabric::UPLINK, &outside, DropReason::PolicyIngress);
}

#[test]
fn replies_to_an_allowed_connection_are_allowed() {
    // Every pod may send to a, and a may send to no pod.
    let asked = policy(
        "shop/a",
        "{podSelector: {matchLabels: {app: a}}, policyTypes: [Ingress, Egress], ingress: [{}]}",
    );
    let mut fabric = Fabric::new(&(pods() + &asked));
    let (_, a) = fabric.port("shop/a");
    for (from, source, own) in
        [("shop/b", B, A), ("shop/far", FAR, A), ("shop/far", FAR6, A6), ("", WORLD, A)]
    {
        for protocol in [TCP, UDP, if own == A { ICMP } else { ICMPV6 }, SCTP, GRE] {
            let tuple = Tuple::new(source, own, protocol, 80);
            let own_words = tuple.reversed().from_port(9).opening();
            dies(&mut fabric, a, &tuple.answer(), DropReason::PolicyEgress);
            let arrived = match from {
                "" => fabric.send_at(0, HOST, &tuple.opening()),
                from => fabric.send(from, &tuple.opening()),
            };
            assert_eq!((arrived.len(), arrived[0].port), (1, a), "{tuple:?}");
            assert_eq!(fabric.send("shop/a", &tuple.answer()).len(), 1, "{tuple:?}");
            if protocol != GRE {
                dies(&mut fabric, a, &own_words, DropReason::PolicyEgress);
            }
        }
    }
}

/// An ICMP message of this type that quotes a packet.
fn error(source: &str, destination: &str, kind: u8, about: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    match (source.parse().unwrap(), destination.parse().unwrap()) {
        (std::net::IpAddr::V4(from), std::net::IpAddr::V4(to)) => {
            let message = Icmpv4Type::Unknown { type_u8: kind, code_u8: 0, bytes5to8: [0; 4] };
            PacketBuilder::ipv4(from.octets(), to.octets(), 64)
                .icmpv4(message)
                .write(&mut bytes, &about[..28])
                .unwrap();
        }
        (std::net::IpAddr::V6(from), std::net::IpAddr::V6(to)) => {
            let message = Icmpv6Type::Unknown { type_u8: kind, code_u8: 0, bytes5to8: [0; 4] };
            PacketBuilder::ipv6(from.octets(), to.octets(), 64)
                .icmpv6(message)
                .write(&mut bytes, &about[..48])
                .unwrap();
        }
        _ => panic!("no packet goes from one family to the other"),
    }
    bytes
}

#[test]
fn icmp_errors_that_belong_to_an_allowed_connection_are_allowed_and_no_other_messages() {
    // a may send to far; no other packet may reach a or leave far.
    let asks = policy(
        "shop/a",
        "{podSelector: {matchLabels: {app: a}}, policyTypes: [Ingress, Egress], \
         egress: [{to: [{podSelector: {matchLabels: {app: far}}}]}]}",
    ) + &policy(
        "shop/far",
        "{podSelector: {matchLabels: {app: far}}, policyTypes: [Ingress, Egress], ingress: [{}]}",
    );
    let mut fabric = Fabric::new(&(pods() + &asks));
    let (_, a) = fabric.port("shop/a");
    for (own, peer, errors, others) in [
        (A, FAR, &[3u8, 4, 11, 12][..], &[5u8, 8, 9, 10, 13, 17, 30, 42][..]),
        (A6, FAR6, &[1, 2, 3, 4], &[0, 5, 100, 127, 128, 130, 160]),
    ] {
        let asked = Tuple::new(own, peer, UDP, 53);
        for kind in errors {
            let told = error(peer, own, *kind, &asked.opening());
            assert_eq!(fabric.send("shop/far", &told), [], "there is no connection yet: {kind}");
        }
        assert_eq!(fabric.send("shop/a", &asked.opening()).len(), 1);
        for kind in errors {
            let told = error(peer, own, *kind, &asked.opening());
            let delivered = fabric.send("shop/far", &told);
            assert_eq!((delivered.len(), delivered[0].port), (1, a), "type {kind} from {peer}");
            let back = error(own, peer, *kind, &asked.answer());
            let delivered = fabric.send("shop/a", &back);
            assert_eq!((delivered.len(), delivered[0].node), (1, 1), "to the responder: {kind}");
            let other = error(peer, own, *kind, &asked.from_port(9).opening());
            assert_eq!(fabric.send("shop/far", &other), [], "about another connection: {kind}");
        }
        // The error goes to a pod that is not one of the two ends.
        let third = if own == A { error(FAR, B, 3, &asked.opening()) } else { continue };
        assert_eq!(fabric.send("shop/far", &third), []);
        for kind in others {
            let message = error(peer, own, *kind, &asked.opening());
            assert_eq!(fabric.send("shop/far", &message), [], "type {kind} is no error");
        }
    }
}
