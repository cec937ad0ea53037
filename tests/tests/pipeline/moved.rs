//! Connections whose packets arrive at another node than before, because a router chooses another
//! path. The other node chooses the same backend, and the connection goes on there.

use std::time::Duration;

use manx_calculation::import::{Node, Plan};
use manx_dataplane::drop_reason::DropReason;
use manx_dataplane::services::{Backend, Frontend, ServiceTable};
use manx_dataplane::tables::Established;
use manx_tests::fabric::{FORWARDED, Fabric, HOST, MANX, RAW, UNDERLAY, policy};
use manx_tests::packet::{Segment, TCP, Tuple, UDP, tunnelled};

use crate::egress::{
    FAR, NODE_PORT, OTHER, PORTS, WORLD, cluster, ends, fabric_of, node, only, services,
};

const BALANCER: &str = "198.51.100.7";
const BEHIND: u16 = 8080;
/// The address of a node that has only a tunnel.
const THIRD: [u8; 4] = [172, 18, 0, 4];

/// A table by which these addresses and ports lead to these pods, on both nodes.
fn leading_to(backends: &[&str], frontends: &[(&str, u16)]) -> ServiceTable {
    let mut table = ServiceTable::default();
    let backends: Vec<Backend> = backends
        .iter()
        .map(|it| Backend { address: it.parse::<std::net::IpAddr>().unwrap().into(), port: BEHIND })
        .collect();
    backends.iter().for_each(|it| table.set_address(it.address, true));
    for (address, port) in frontends {
        for (key, frontend) in services(&[(address, *port, FAR, BEHIND)]).frontends() {
            let frontend = Frontend {
                backends: backends.as_slice().into(),
                all_backends: backends.as_slice().into(),
                takes_visitors: true,
                ..Frontend::clone(frontend)
            };
            table.set_frontend(*key, Some(frontend.into()));
        }
    }
    table
}

/// A fabric in which the load balancer's address leads to these pods.
fn fabric(backends: &[&str], policies: &str) -> Fabric {
    with_frontends(backends, &[(BALANCER, 80)], policies)
}

/// The same fabric, in which a port of both nodes also leads there.
fn with_node_ports(backends: &[&str]) -> Fabric {
    let [first, second] = UNDERLAY.map(|it| it.to_string());
    with_frontends(backends, &[(BALANCER, 80), (&first, NODE_PORT), (&second, NODE_PORT)], "")
}

fn with_frontends(backends: &[&str], frontends: &[(&str, u16)], policies: &str) -> Fabric {
    fabric_of(&(service() + policies), leading_to(backends, frontends), PORTS)
}

/// A manifest by which the nodes of these tests learn the addresses of services, as cluster IPs.
fn service() -> String {
    format!(
        "apiVersion: v1\nkind: Service\nmetadata: {{name: balanced, namespace: shop}}\n\
         spec: {{clusterIP: {BALANCER}, ports: [{{port: 80}}]}}\n---\n"
    )
}

/// The connection as the pod sees it.
fn behind(asked: Tuple, pod: &str) -> Tuple {
    let seen = Tuple::new(&asked.source.to_string(), pod, asked.protocol, BEHIND);
    seen.from_port(asked.source_port)
}

/// Checks that a client's packet that arrives at a node reaches the pod with the client's own
/// address and port.
fn arrives(fabric: &mut Fabric, at: usize, packet: &[u8], asked: Tuple) {
    let out = only(fabric.send_at(at, FORWARDED, packet));
    let drops = fabric.nodes.each_ref().map(|it| it.drops());
    assert_eq!((out.node, out.port), fabric.port("shop/far"), "{drops:?}");
    let client = (asked.source.to_string(), asked.source_port);
    assert_eq!(ends(&out.frame.bytes), [client, (FAR.to_owned(), BEHIND)]);
}

/// Checks that the pod's answer comes out at this node, with the service's address as its source.
fn is_answered(fabric: &mut Fabric, at: usize, packet: &[u8], asked: Tuple) {
    let out = only(fabric.send("shop/far", packet));
    let drops = fabric.nodes.each_ref().map(|it| it.drops());
    assert_eq!((out.node, out.port), (at, HOST), "{drops:?}");
    let client = (asked.source.to_string(), asked.source_port);
    assert_eq!(ends(&out.frame.bytes), [(BALANCER.to_owned(), 80), client]);
}

/// Opens a connection through a node.
fn opened(fabric: &mut Fabric, at: usize, asked: Tuple) -> Tuple {
    let behind = behind(asked, FAR);
    arrives(fabric, at, &asked.opening(), asked);
    is_answered(fabric, at, &behind.answer(), asked);
    arrives(fabric, at, &asked.data(b"a"), asked);
    behind
}

#[test]
fn a_connection_that_comes_by_another_node_goes_on_there_and_back_again() {
    for (protocol, first) in [(TCP, 0), (UDP, 0), (TCP, 1), (UDP, 1)] {
        let mut fabric = fabric(&[FAR], "");
        let asked = Tuple::new(WORLD, BALANCER, protocol, 80);
        let behind = opened(&mut fabric, first, asked);
        for at in [1 - first, first, 1 - first] {
            arrives(&mut fabric, at, &asked.data(b"b"), asked);
            is_answered(&mut fabric, at, &behind.reversed().data(b"c"), asked);
            arrives(&mut fabric, at, &asked.data(b"d"), asked);
        }
    }
}

/// Neither node knows the connection: the first node's agent is new, and has no records.
#[test]
fn a_node_that_knows_nothing_of_a_connection_leads_it_to_its_backend() {
    let mut fabric = fabric(&[FAR], "");
    let asked = Tuple::new(WORLD, BALANCER, TCP, 80);
    arrives(&mut fabric, 0, &asked.data(b"a"), asked);
    is_answered(&mut fabric, 0, &behind(asked, FAR).reversed().data(b"b"), asked);
}

#[test]
fn both_nodes_choose_the_same_backend() {
    let mut by_pod = [0; 2];
    for port in 5000..5064 {
        let mut fabric = fabric(&[OTHER, FAR], "");
        let asked = Tuple::new(WORLD, BALANCER, TCP, 80).from_port(port);
        let chosen = [0, 1].map(|at| {
            let out = only(fabric.send_at(at, FORWARDED, &asked.data(b"a")));
            ends(&out.frame.bytes)[1].0.clone()
        });
        assert_eq!(chosen[0], chosen[1]);
        by_pod[usize::from(chosen[0] == FAR)] += 1;
    }
    assert!(by_pod.iter().all(|it| *it > 16), "{by_pod:?}");
}

/// A third node brings a client that the first node brought before.
#[test]
fn a_third_node_takes_a_connection_on() {
    for protocol in [TCP, UDP] {
        let mut fabric = fabric(&[FAR], "");
        let third = Node {
            internal_ips: vec![THIRD.into()],
            plan: Plan::host_local(["10.244.3.0/24".parse().unwrap()]),
            ..Node::default()
        };
        fabric.cluster.nodes.insert("third".to_owned(), third);
        fabric.publish();
        let asked = Tuple::new(WORLD, BALANCER, protocol, 80);
        let behind = opened(&mut fabric, 0, asked);
        // The packet does not replace an existing connection.
        let by_third = |inner: &[u8]| tunnelled(THIRD.into(), UNDERLAY[1], inner, 0);
        if protocol == TCP {
            assert_eq!(fabric.send_at(1, RAW, &by_third(&behind.opening())).len(), 0);
            assert_eq!(fabric.nodes[1].dropped(RAW, DropReason::TunnelSourceMismatch), 1);
            is_answered(&mut fabric, 0, &behind.reversed().data(b"b"), asked);
        }
        let out = only(fabric.send_at(1, RAW, &by_third(&behind.data(b"c"))));
        assert_eq!((out.node, out.port), fabric.port("shop/far"));
        let out = only(fabric.send("shop/far", &behind.reversed().data(b"d")));
        let (_, to) = manx_tests::packet::addresses(&out.frame.bytes);
        assert_eq!((out.node, out.port, to), (1, RAW, std::net::IpAddr::from(THIRD)));
        // The client's packets arrive at the first node again.
        arrives(&mut fabric, 0, &asked.data(b"e"), asked);
        is_answered(&mut fabric, 0, &behind.reversed().data(b"f"), asked);
    }
}

/// Policy judges the client, even if the client claims to continue a connection.
#[test]
fn policy_denies_a_connection_that_claims_to_have_moved() {
    let policies = policy("shop/p", "{podSelector: {}, policyTypes: [Ingress]}");
    let mut fabric = fabric(&[FAR], &policies);
    for at in [0, 1] {
        let asked = Tuple::new(WORLD, BALANCER, TCP, 80);
        assert_eq!(fabric.send_at(at, FORWARDED, &asked.data(b"a")).len(), 0);
    }
    let dropped = |port| fabric.nodes[1].dropped(port, DropReason::PolicyIngress);
    assert_eq!((dropped(RAW), dropped(FORWARDED)), (1, 1));
}

/// A node port belongs to one node, so nothing moves from or to it. Clients in the cluster never
/// move. And if the settings do not let a connection begin in the middle, none does.
#[test]
fn what_does_not_move_is_refused_as_ever() {
    let mut fabric = with_node_ports(&[FAR]);
    let at_port = Tuple::new(WORLD, &node(), TCP, NODE_PORT);
    let out = only(fabric.send_at(0, MANX, &at_port.data(b"a")));
    assert_eq!((out.node, out.port), (0, MANX), "a reset");
    let of_pod = Tuple::new(crate::egress::CLIENT, BALANCER, TCP, 80);
    let out = only(fabric.send("shop/client", &of_pod.data(b"a")));
    assert_eq!((out.node, out.port), fabric.port("shop/client"), "a reset");
    assert_eq!(fabric.nodes[0].dropped(MANX, DropReason::TcpWithoutFlow), 1);
    let asked = Tuple::new(WORLD, BALANCER, TCP, 80);
    only(fabric.send_at(0, FORWARDED, &asked.data(b"a")));
    assert_eq!(fabric.nodes[0].dropped(FORWARDED, DropReason::TcpWithoutFlow), 1, "two ways");

    let mut fabric = self::fabric(&[FAR], "");
    fabric.connections.tcp_strict = true;
    fabric.publish();
    let asked = Tuple::new(WORLD, BALANCER, TCP, 80);
    only(fabric.send_at(0, FORWARDED, &asked.data(b"a")));
    assert_eq!(fabric.nodes[0].dropped(FORWARDED, DropReason::TcpWithoutFlow), 1);
}

/// Another node claims to bring the client of a connection to the first node's port. The connection
/// stays.
#[test]
fn another_node_takes_no_connection_that_a_node_port_has_led_to_an_own_pod() {
    for protocol in [TCP, UDP] {
        let mut fabric = with_node_ports(&[OTHER]);
        let asked = Tuple::new(WORLD, &node(), protocol, NODE_PORT);
        let out = only(fabric.send_at(0, MANX, &asked.opening()));
        assert_eq!((out.node, out.port), fabric.port("shop/other"));
        let behind = behind(asked, OTHER);
        let brought = tunnelled(UNDERLAY[1], UNDERLAY[0], &behind.data(b"a"), 0);
        assert_eq!(fabric.send_at(0, RAW, &brought).len(), 0);
        assert_eq!(fabric.nodes[0].dropped(RAW, DropReason::ConnectionTaken), 1);
        let out = only(fabric.send("shop/other", &behind.answer()));
        assert_eq!((out.node, out.port), (0, MANX));
    }
}

/// Another node claims to bring the client of a connection whose backend is gone. The claim gets no
/// reset, and ends nothing.
#[test]
fn a_connection_without_backend_is_ended_by_its_own_client_alone() {
    let mut fabric = fabric(&[OTHER], "");
    let asked = Tuple::new(WORLD, BALANCER, TCP, 80);
    only(fabric.send_at(0, FORWARDED, &asked.opening()));
    let mut without = ServiceTable::clone(fabric.services.as_ref().unwrap());
    without.set_address(OTHER.parse::<std::net::IpAddr>().unwrap().into(), false);
    fabric.set_services(without);
    let forged = tunnelled(UNDERLAY[1], UNDERLAY[0], &asked.data(b"a"), 0);
    assert_eq!(fabric.send_at(0, RAW, &forged).len(), 0);
    assert_eq!(fabric.nodes[0].dropped(RAW, DropReason::TunnelSourceMismatch), 1);
    only(fabric.send_at(0, FORWARDED, &asked.data(b"a")));
    assert_eq!(fabric.nodes[0].dropped(FORWARDED, DropReason::BackendGone), 1, "a reset");
}

/// The client may use one port for connections to two nodes, one after the other, that lead to the
/// same pod.
#[test]
fn another_node_brings_a_client_whose_connection_from_that_port_is_over() {
    let mut fabric = with_node_ports(&[OTHER]);
    let asked = Tuple::new(WORLD, &node(), TCP, NODE_PORT);
    let seen = behind(asked, OTHER);
    let next = Tuple::new(WORLD, &UNDERLAY[1].to_string(), TCP, NODE_PORT);
    let of_client = |segment| (MANX, asked.packet(segment, b""));
    let of_pod = |segment| (fabric.port("shop/other").1, seen.reversed().packet(segment, b""));
    let sent = [
        of_client(Segment::Syn),
        of_pod(Segment::SynAck),
        of_client(Segment::Fin),
        of_pod(Segment::Fin),
        of_client(Segment::Data),
    ];
    let (last, open) = sent.split_last().unwrap();
    for (port, packet) in open {
        only(fabric.send_at(0, *port, packet));
        assert_eq!(fabric.send_at(1, MANX, &next.opening()).len(), 0);
    }
    let refused = fabric.nodes[0].dropped(RAW, DropReason::ConnectionTaken);
    assert_eq!(refused, open.len() as u64);
    only(fabric.send_at(0, last.0, &last.1));
    let out = only(fabric.send_at(1, MANX, &next.opening()));
    assert_eq!((out.node, out.port), fabric.port("shop/other"));
    let out = only(fabric.send("shop/other", &seen.answer()));
    assert_eq!((out.node, out.port), (1, MANX), "the node that has brought the client answers him");
}

/// An attacker uses the client's address and port, and connects to the same pod by another way: a
/// node port, or the load balancer's address, also some time after a forged reset. If that worked,
/// the client would get the pod's answers from there, and would reset them.
#[test]
fn a_stranger_turns_no_connection_to_another_address() {
    let [first, second] = UNDERLAY.map(|it| it.to_string());
    for (protocol, resets) in [(TCP, false), (TCP, true), (UDP, false)] {
        let by = |address: &str, port| Tuple::new(WORLD, address, protocol, port);
        let ports = [(0, MANX, by(&first, NODE_PORT)), (1, MANX, by(&second, NODE_PORT))];
        let balanced = [(0, FORWARDED, by(BALANCER, 80)), (1, FORWARDED, by(BALANCER, 80))];
        let all = [ports, balanced].concat();
        for (at, port, asked) in &all {
            let mut fabric = with_node_ports(&[FAR]);
            assert_eq!(fabric.send_at(*at, *port, &asked.opening()).len(), 1);
            let seen = behind(*asked, FAR);
            let answered = only(fabric.send("shop/far", &seen.answer()));
            assert_eq!(fabric.send_at(*at, *port, &asked.data(b"a")).len(), 1);
            for (other, by, forged) in all.iter().filter(|it| (it.0, it.1) != (*at, *port)) {
                for packet in [forged.data(b"x"), forged.opening(), forged.data(b"y")] {
                    if resets {
                        only(fabric.send_at(*at, *port, &asked.packet(Segment::Rst, b"")));
                        fabric.nodes.iter_mut().for_each(|it| it.now += Duration::from_secs(3));
                    }
                    fabric.send_at(*other, *by, &packet);
                    let out = only(fabric.send("shop/far", &seen.reversed().data(b"b")));
                    assert_eq!((out.node, out.port), (answered.node, answered.port));
                    assert_eq!(ends(&out.frame.bytes), ends(&answered.frame.bytes));
                }
            }
        }
    }
}

/// A packet that may not open a connection here may not end one, either.
#[test]
fn a_connection_stays_where_the_one_that_claims_to_be_it_is_refused() {
    let policies = policy("shop/p", "{podSelector: {}, policyTypes: [Ingress]}");
    for is_strict in [true, false] {
        let mut fabric = fabric(&[OTHER], "");
        let asked = Tuple::new(WORLD, BALANCER, TCP, 80);
        let seen = behind(asked, OTHER);
        only(fabric.send_at(0, FORWARDED, &asked.opening()));
        only(fabric.send("shop/other", &seen.answer()));
        only(fabric.send_at(0, FORWARDED, &asked.data(b"a")));
        if is_strict {
            fabric.connections.tcp_strict = true;
        } else {
            fabric.connections.established = Established::Keep;
            fabric.load(&cluster(&(service() + &policies)));
        }
        fabric.publish();
        let brought = tunnelled(UNDERLAY[1], UNDERLAY[0], &seen.data(b"x"), 0);
        assert_eq!(fabric.send_at(0, RAW, &brought).len(), 0);
        only(fabric.send_at(0, FORWARDED, &asked.data(b"b")));
        only(fabric.send("shop/other", &seen.reversed().data(b"c")));
    }
}
