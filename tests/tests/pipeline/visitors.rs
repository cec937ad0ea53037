//! Outside clients that one node's port leads to a pod of the other node. The pod and its policy
//! see the clients' addresses, and the pod's answers go back through the node that brought the
//! clients.

use manx_dataplane::drop_reason::DropReason;
use manx_dataplane::services::{Backend, Frontend, FrontendKey, ServiceTable};
use manx_dataplane::tables::PortId;
use manx_tests::fabric::{FORWARDED, Fabric, HOST, MANX, RAW, SIZES, UNDERLAY, policy};
use manx_tests::packet::{ICMP, SCTP, TCP, Tuple, UDP, addresses, tunnelled};

use crate::egress::{
    CLIENT, FAR, NODE_PORT, OTHER, PORTS, WORLD, ends, fabric_of, node, only, services,
};
use crate::errors::error_v4;
use crate::fragments::datagram;

const BEHIND: u16 = 8080;

/// A table by which the node's port leads to this pod. Both nodes have it.
fn leading_to(backend: &str) -> ServiceTable {
    let of_one_node = services(&[(&node(), NODE_PORT, backend, BEHIND)]);
    let mut table = of_one_node.clone();
    for (key, frontend) in of_one_node.frontends() {
        let frontend = Frontend { takes_visitors: true, ..Frontend::clone(frontend) };
        table.set_frontend(*key, Some(frontend.into()));
    }
    table
}

fn fabric(policies: &str) -> Fabric {
    fabric_of(policies, leading_to(FAR), PORTS)
}

/// A client's connection to the node's port.
fn asked(protocol: u8) -> Tuple {
    Tuple::new(WORLD, &node(), protocol, NODE_PORT)
}

/// The same connection as the pod sees it.
fn behind(asked: Tuple) -> Tuple {
    let seen = Tuple::new(&asked.source.to_string(), FAR, asked.protocol, BEHIND);
    seen.from_port(asked.source_port)
}

/// Checks that a client's packet reaches the pod with the client's own address.
fn arrives(fabric: &mut Fabric, asked: Tuple, packet: &[u8]) {
    let out = only(fabric.send_at(0, MANX, packet));
    assert_eq!((out.node, out.port), fabric.port("shop/far"), "{:?}", fabric.nodes[1].drops());
    let client = (asked.source.to_string(), asked.source_port);
    assert_eq!(ends(&out.frame.bytes), [client, (FAR.to_owned(), BEHIND)]);
}

/// Checks that the pod's answer reaches the client through the node to which the client connected.
fn is_answered(fabric: &mut Fabric, asked: Tuple, packet: &[u8]) {
    let out = only(fabric.send("shop/far", packet));
    assert_eq!(
        (out.node, out.port),
        (0, MANX),
        "{:?}",
        fabric.nodes.each_ref().map(|it| it.drops())
    );
    let client = (asked.source.to_string(), asked.source_port);
    assert_eq!(ends(&out.frame.bytes), [(node(), NODE_PORT), client]);
}

/// Checks that the second node drops a packet that the first node's tunnel brings.
fn is_refused(fabric: &mut Fabric, inner: &[u8], reason: DropReason) {
    let before = dropped(fabric, RAW, reason);
    let packet = tunnelled(UNDERLAY[0], UNDERLAY[1], inner, 0);
    assert_eq!(fabric.send_at(1, RAW, &packet).len(), 0, "{inner:?}");
    assert_eq!(dropped(fabric, RAW, reason), before + 1, "{:?}", fabric.nodes[1].drops());
}

fn dropped(fabric: &Fabric, port: PortId, reason: DropReason) -> u64 {
    fabric.nodes[1].dropped(port, reason)
}

#[test]
fn a_pod_of_another_node_sees_the_client_and_policy_judges_him() {
    for (protocol, source) in [(TCP, WORLD), (UDP, WORLD), (TCP, "192.0.2.8")] {
        let peer = format!("{{from: [{{ipBlock: {{cidr: {WORLD}/32}}}}]}}");
        let policies = policy("shop/p", &format!("{{podSelector: {{}}, ingress: [{peer}]}}"));
        let mut fabric = fabric(&policies);
        let asked = Tuple::new(source, &node(), protocol, NODE_PORT);
        if source != WORLD {
            assert_eq!(fabric.send_at(0, MANX, &asked.opening()).len(), 0);
            assert_eq!(dropped(&fabric, RAW, DropReason::PolicyIngress), 1);
            continue;
        }
        arrives(&mut fabric, asked, &asked.opening());
        is_answered(&mut fabric, asked, &behind(asked).answer());
        arrives(&mut fabric, asked, &asked.data(b"x"));
        is_answered(&mut fabric, asked, &behind(asked).reversed().data(b"y"));
        // A change of policy judges the connection again.
        fabric.apply(&policy("shop/p", "{podSelector: {}, policyTypes: [Ingress]}"));
        assert_eq!(fabric.send_at(0, MANX, &asked.data(b"z")).len(), 0);
        assert_eq!(fabric.send("shop/far", &behind(asked).reversed().data(b"z")).len(), 0);
    }
}

/// Clients of a node port may have equal source ports, and the pod's node may be a client, too.
#[test]
fn clients_of_both_nodes_are_told_apart() {
    let mut fabric = fabric("");
    let clients = [WORLD, "192.0.2.8", "172.18.0.3"].map(|from| {
        let asked = Tuple::new(from, &node(), TCP, NODE_PORT).from_port(5000);
        arrives(&mut fabric, asked, &asked.opening());
        asked
    });
    for asked in clients {
        is_answered(&mut fabric, asked, &behind(asked).answer());
    }
}

/// The other node's address gives no rights: a policy that denies everybody denies it, although a
/// node reaches its own pods.
#[test]
fn a_visitor_with_the_nodes_own_address_has_none_of_its_rights() {
    let policies = policy("shop/p", "{podSelector: {}, policyTypes: [Ingress]}");
    let mut fabric = fabric(&policies);
    let own = Tuple::new(&UNDERLAY[1].to_string(), FAR, TCP, BEHIND);
    only(fabric.send_at(1, HOST, &own.opening()));
    is_refused(&mut fabric, &own.from_port(5001).opening(), DropReason::PolicyIngress);
}

/// The kernel, which has a route to the load balancer's address, brings the packet. Clients in the
/// cluster may be led elsewhere.
#[test]
fn an_outside_host_reaches_a_load_balancers_address_through_what_the_node_forwards() {
    const BALANCER: &str = "198.51.100.7";
    // In these tests, the nodes learn the addresses of services from cluster IPs.
    const SERVICE: &str = "apiVersion: v1\nkind: Service\nmetadata: {name: balanced, namespace: shop}\n\
        spec: {clusterIP: 198.51.100.7, ports: [{port: 80}]}\n";
    for (backend, pod, is_local) in [(FAR, "shop/far", false), (OTHER, "shop/other", true)] {
        let of_balancer = services(&[(BALANCER, 80, backend, BEHIND)]);
        let mut table = services(&[(BALANCER, 80, FAR, BEHIND)]);
        for (key, frontend) in of_balancer.frontends() {
            let frontend = Frontend { takes_visitors: !is_local, ..Frontend::clone(frontend) };
            let frontend = if is_local {
                let for_cluster = Frontend::clone(table.frontend(key).unwrap());
                Frontend { for_outside: Some(frontend.into()), ..for_cluster }
            } else {
                frontend
            };
            table.set_frontend(*key, Some(frontend.into()));
        }
        let mut fabric = fabric_of(SERVICE, table, PORTS);
        let asked = Tuple::new(WORLD, BALANCER, TCP, 80);
        for (packet, at) in [(asked.opening(), FORWARDED), (asked.data(b"x"), FORWARDED)] {
            let out = only(fabric.send_at(0, at, &packet));
            assert_eq!((out.node, out.port), fabric.port(pod), "{:?}", fabric.nodes[0].drops());
            assert_eq!(ends(&out.frame.bytes)[0], (WORLD.to_owned(), asked.source_port));
            let behind = Tuple::new(WORLD, backend, TCP, BEHIND);
            let out = only(fabric.send(pod, &behind.answer()));
            assert_eq!((out.node, out.port), (0, HOST));
            assert_eq!(ends(&out.frame.bytes)[0], (BALANCER.to_owned(), 80));
        }
        let asked = Tuple::new(CLIENT, BALANCER, TCP, 80);
        let out = only(fabric.send("shop/client", &asked.opening()));
        assert_eq!((out.node, out.port), fabric.port("shop/far"));
    }
}

#[test]
fn a_tunnel_brings_visitors_to_backends_of_node_ports_alone() {
    let mut fabric = fabric("");
    let led = Tuple::new(WORLD, FAR, TCP, BEHIND);
    let elsewhere = [
        Tuple::new(WORLD, FAR, TCP, BEHIND + 1),
        Tuple::new(WORLD, FAR, SCTP, BEHIND),
        Tuple::new(WORLD, FAR, ICMP, BEHIND),
        Tuple::new(WORLD, "10.2.0.9", TCP, BEHIND),
        Tuple::new(WORLD, &UNDERLAY[1].to_string(), TCP, BEHIND),
        Tuple::new(WORLD, "10.96.0.7", TCP, 80),
        // A pod of the node itself, an unused address of the other node, and an answer that no
        // connection expects.
        Tuple::new(FAR, FAR, TCP, BEHIND),
        Tuple::new("10.244.2.9", FAR, TCP, BEHIND),
        Tuple::new(WORLD, FAR, TCP, 9).from_port(BEHIND),
    ];
    for stray in elsewhere {
        is_refused(&mut fabric, &stray.opening(), DropReason::TunnelSourceMismatch);
    }
    let packet = tunnelled(UNDERLAY[0], UNDERLAY[1], &led.opening(), 0);
    only(fabric.send_at(1, RAW, &packet));
    // The packet does not pass by another way than the first one, either.
    assert_eq!(fabric.send_at(1, MANX, &led.data(b"x")).len(), 0);
    assert_eq!(dropped(&fabric, MANX, DropReason::SourceSpoofed), 1);
    // No node port leads to this service.
    let mut fabric = fabric_of("", services(&[(&node(), NODE_PORT, FAR, BEHIND)]), PORTS);
    is_refused(&mut fabric, &led.opening(), DropReason::TunnelSourceMismatch);
}

/// The other node would not accept them.
#[test]
fn an_outside_host_is_led_to_another_node_by_node_ports_alone() {
    let mut fabric = fabric_of("", services(&[("10.96.0.7", 80, FAR, BEHIND)]), PORTS);
    let asked = Tuple::new(WORLD, "10.96.0.7", TCP, 80);
    assert_eq!(fabric.send_at(0, FORWARDED, &asked.opening()).len(), 0);
    assert_eq!(fabric.nodes[0].dropped(FORWARDED, DropReason::NoRoute), 1);
}

#[test]
fn a_visitors_connection_outlives_the_service_and_nobody_opens_another() {
    let mut fabric = fabric("");
    arrives(&mut fabric, asked(TCP), &asked(TCP).opening());
    is_answered(&mut fabric, asked(TCP), &behind(asked(TCP)).answer());
    let mut without = leading_to(FAR);
    let keys: Vec<FrontendKey> = without.frontends().map(|(key, _)| *key).collect();
    keys.into_iter().for_each(|key| without.set_frontend(key, None));
    fabric.set_services(without);
    fabric.publish();
    arrives(&mut fabric, asked(TCP), &asked(TCP).data(b"x"));
    is_answered(&mut fabric, asked(TCP), &behind(asked(TCP)).reversed().data(b"y"));
    let another = Tuple::new(WORLD, FAR, TCP, BEHIND).from_port(5001);
    is_refused(&mut fabric, &another.opening(), DropReason::TunnelSourceMismatch);
}

/// The pod sends first after its node has got a new agent, so no packet shows that agent the way.
#[test]
fn the_next_agent_answers_visitors_by_the_node_that_brought_them() {
    for protocol in [TCP, UDP] {
        let mut fabric = fabric("");
        arrives(&mut fabric, asked(protocol), &asked(protocol).opening());
        is_answered(&mut fabric, asked(protocol), &behind(asked(protocol)).answer());
        for at in [1, 0] {
            let restored = fabric.nodes[at].replace_workers(1, SIZES, true);
            assert_eq!((restored.flows, restored.ended, restored.spoiled), (1, 0, 0));
        }
        is_answered(&mut fabric, asked(protocol), &behind(asked(protocol)).reversed().data(b"y"));
        arrives(&mut fabric, asked(protocol), &asked(protocol).data(b"x"));
    }
}

#[test]
fn errors_about_a_visitors_connection_pass_both_ways_and_others_do_not() {
    let mut fabric = fabric("");
    let asked = asked(UDP);
    arrives(&mut fabric, asked, &asked.opening());
    let answer = behind(asked).reversed().data(b"y");
    is_answered(&mut fabric, asked, &answer);
    // The errors come from the client and from a router on the way to it, about the pod's answer.
    let about = Tuple::new(&node(), WORLD, UDP, asked.source_port).from_port(NODE_PORT);
    for from in [WORLD, "198.51.100.9"] {
        let error = error_v4(from, &node(), &about.data(b"y"));
        let out = only(fabric.send_at(0, MANX, &error));
        assert_eq!((out.node, out.port), fabric.port("shop/far"));
        let (source, to) = addresses(&out.frame.bytes);
        assert_eq!((source.to_string(), to.to_string()), (from.to_owned(), FAR.to_owned()));
    }
    // The error comes from the pod, about the client's packet.
    let error = error_v4(FAR, WORLD, &behind(asked).opening());
    let out = only(fabric.send("shop/far", &error));
    assert_eq!((out.node, out.port), (0, MANX));
    let (from, to) = addresses(&out.frame.bytes);
    assert_eq!((from.to_string(), to.to_string()), (node(), WORLD.to_owned()));
    // The error comes from outside, about a connection of the other node's pod, which is no
    // visitor.
    let of_pods = Tuple::new(CLIENT, FAR, UDP, 53);
    only(fabric.send("shop/client", &of_pods.opening()));
    let error = error_v4(WORLD, FAR, &of_pods.answer());
    is_refused(&mut fabric, &error, DropReason::IcmpErrorUnmatched);
}

#[test]
fn a_visitors_datagram_that_is_cut_on_the_way_arrives_whole() {
    let mut fabric = fabric("");
    let out = fabric.send_at(0, MANX, &datagram(asked(UDP), 1472));
    assert_eq!(out.len(), 2);
    let (at, port) = fabric.port("shop/far");
    for piece in &out {
        assert_eq!((piece.node, piece.port), (at, port));
        let (from, to) = addresses(&piece.frame.bytes);
        assert_eq!((from.to_string(), to.to_string()), (WORLD.to_owned(), FAR.to_owned()));
    }
}

/// Each backend depends on its own frontends: another service's frontend is removed, and this one
/// still leads there.
#[test]
fn a_backend_takes_visitors_while_some_frontend_leads_to_it() {
    let address = |it: &str| it.parse::<std::net::IpAddr>().unwrap().into();
    let backends = [FAR, OTHER].map(|it| Backend { address: address(it), port: BEHIND });
    let key = |port| FrontendKey { address: UNDERLAY[0].into(), protocol: TCP, port };
    let at = |n: usize| FrontendKey { address: backends[n].address, protocol: TCP, port: BEHIND };
    let leads = |all: &[Backend]| {
        let mut all_backends = all.to_vec();
        all_backends.sort_unstable();
        let all_backends = all_backends.into();
        Some(Frontend { all_backends, takes_visitors: true, ..Frontend::default() }.into())
    };
    let mut table = ServiceTable::default();
    let taken = |table: &ServiceTable| [0, 1].map(|n| table.leads_visitors_to(&at(n)));
    table.set_frontend(key(1), leads(&backends));
    table.set_frontend(key(2), leads(&backends[..1]));
    assert_eq!(taken(&table), [true, true]);
    table.set_frontend(key(1), leads(&backends[1..]));
    assert_eq!(taken(&table), [true, true]);
    table.set_frontend(key(2), None);
    assert_eq!(taken(&table), [false, true]);
    table.set_frontend(key(1), Some(Frontend::default().into()));
    assert_eq!(taken(&table), [false, false]);
}
