//! The way out: packets to the world get the node's address and a port of the node. Also the other
//! direction: packets to ports of the node's address that belong to Manx.

use std::sync::Arc;
use std::time::Duration;

use etherparse::{PacketBuilder, SlicedPacket, TransportSlice};
use manx_dataplane::drop_reason::DropReason;
use manx_dataplane::report::{PortRefused, Report};
use manx_dataplane::services::{Backend, Frontend, FrontendKey, ServiceTable};
use manx_dataplane::tables::{ManxPorts, Tables};
use manx_tests::fabric::{
    Delivery, FORWARDED, Fabric, HOST, MANX, RAW, ROUTER, SIZES, UNDERLAY, pod, policy, workers,
};
use manx_tests::packet::{ICMP, Segment, TCP, Tuple, UDP, addresses, assert_whole, tunnelled};

pub(super) const CLIENT: &str = "10.1.0.1";
const CLIENT6: &str = "fd00:1::1";
pub(super) const OTHER: &str = "10.1.0.2";
pub(super) const FAR: &str = "10.2.0.1";
pub(super) const WORLD: &str = "192.0.2.7";
const WORLD6: &str = "2001:db8::7";
pub(super) const PORTS: (u16, u16) = (61_000, 65_534);
const POOLS: [&str; 2] = ["10.0.0.0/8", "fd00::/16"];
pub(super) const NODE_PORT: u16 = 30_080;

pub(super) fn cluster(policies: &str) -> String {
    pod("shop/client", 0, "{app: client}", &[CLIENT, CLIENT6])
        + &pod("shop/other", 0, "{app: other}", &[OTHER])
        + &pod("shop/far", 1, "{app: far}", &[FAR])
        + "apiVersion: v1\nkind: Service\nmetadata: {name: web, namespace: shop}\nspec: {clusterIP: 10.96.0.7, ports: [{port: 80}]}\n---\n"
        + policies
}

pub(super) fn services(frontends: &[(&str, u16, &str, u16)]) -> ServiceTable {
    let mut table = ServiceTable::default();
    for ((address, port, backend, behind), id) in frontends.iter().zip(1..) {
        let [address, backend] =
            [address, backend].map(|it| it.parse::<std::net::IpAddr>().unwrap());
        let backend = Backend { address: backend.into(), port: *behind };
        table.set_address(backend.address, true);
        for protocol in [TCP, UDP] {
            let key = FrontendKey { address: address.into(), protocol, port: *port };
            let frontend = Frontend {
                id,
                backends: [backend].into(),
                all_backends: [backend].into(),
                ..Frontend::default()
            };
            table.set_frontend(key, Some(Arc::new(frontend)));
        }
    }
    table
}

pub(super) fn fabric_of(policies: &str, table: ServiceTable, ports: (u16, u16)) -> Fabric {
    Fabric::with_manx_ports(&cluster(policies), table, ports, (&POOLS, &POOLS))
}

fn fabric() -> Fabric {
    fabric_of("", ServiceTable::default(), PORTS)
}

pub(super) fn node() -> String {
    UNDERLAY[0].to_string()
}

pub(super) fn only(out: Vec<Delivery>) -> Delivery {
    assert_eq!(out.len(), 1, "{out:?}");
    let only = out.into_iter().next().unwrap();
    assert_whole(&only.frame.bytes);
    only
}

/// Source and destination with ports; an echo's identifier is used as both ports.
pub(super) fn ends(bytes: &[u8]) -> [(String, u16); 2] {
    let (source, destination) = addresses(bytes);
    let ports = match SlicedPacket::from_ip(bytes).unwrap().transport.unwrap() {
        TransportSlice::Tcp(tcp) => (tcp.source_port(), tcp.destination_port()),
        TransportSlice::Udp(udp) => (udp.source_port(), udp.destination_port()),
        TransportSlice::Icmpv4(icmp) => {
            let id = u16::from_be_bytes([icmp.bytes5to8()[0], icmp.bytes5to8()[1]]);
            (id, id)
        }
        other => panic!("{other:?}"),
    };
    [(source.to_string(), ports.0), (destination.to_string(), ports.1)]
}

/// Sends a packet of a pod to the world. Returns the packet as it leaves, as a connection.
fn leaves(fabric: &mut Fabric, pod: &str, asked: Tuple) -> Tuple {
    let out = only(fabric.send(pod, &asked.opening()));
    assert_eq!((out.node, out.port), (0, MANX), "{:?}", fabric.nodes[0].drops());
    let [(source, port), (destination, _)] = ends(&out.frame.bytes);
    assert_eq!(destination, asked.destination.to_string());
    Tuple { source: source.parse().unwrap(), source_port: port, ..asked }
}

fn dropped(fabric: &Fabric, port: manx_dataplane::tables::PortId, reason: DropReason) -> u64 {
    fabric.nodes[0].dropped(port, reason)
}

#[test]
fn the_world_sees_the_node_and_its_answers_find_the_pod() {
    for protocol in [TCP, UDP, ICMP] {
        let mut fabric = fabric();
        let asked = Tuple::new(CLIENT, WORLD, protocol, 443);
        let behind = leaves(&mut fabric, "shop/client", asked);
        assert_eq!(behind.source.to_string(), node());
        assert!((PORTS.0..=PORTS.1).contains(&behind.source_port), "{behind:?}");
        for (packet, answer) in
            [(asked.opening(), behind.answer()), (asked.opening(), behind.answer())]
        {
            let out = only(fabric.send("shop/client", &packet));
            assert_eq!(ends(&out.frame.bytes)[0], (node(), behind.source_port));
            let out = only(fabric.send_at(0, MANX, &answer));
            assert_eq!((out.node, out.port), fabric.port("shop/client"));
            let [from, to] = ends(&out.frame.bytes);
            assert_eq!(from.0, WORLD);
            assert_eq!(to, (CLIENT.to_owned(), asked.source_port));
        }
    }
    let mut fabric = fabric();
    let out = only(fabric.send("shop/client", &Tuple::new(CLIENT6, WORLD6, TCP, 443).opening()));
    assert_eq!((out.port, ends(&out.frame.bytes)[0].0.as_str()), (MANX, "fd18::2"));
}

/// The times follow RFC 4787 and RFC 5508, and for TCP kube-proxy (docs/services.md).
#[test]
fn a_translated_connection_may_be_silent_for_longer_than_others() {
    for (protocol, seconds) in [(TCP, 86_400), (UDP, 120), (ICMP, 60)] {
        for (silence, passes) in [(seconds, true), (seconds + 1, false)] {
            let mut fabric = fabric();
            let asked = Tuple::new(CLIENT, WORLD, protocol, 443);
            let behind = leaves(&mut fabric, "shop/client", asked);
            if protocol == TCP {
                let answer = behind.reversed().packet(Segment::SynAck, b"");
                assert_eq!(fabric.send_at(0, MANX, &answer).len(), 1);
                assert_eq!(fabric.send("shop/client", &asked.packet(Segment::Data, b"x")).len(), 1);
            }
            fabric.nodes[0].now += Duration::from_secs(silence);
            let said = match protocol {
                TCP => behind.reversed().packet(Segment::Data, b"x"),
                _ => behind.answer(),
            };
            let delivered = fabric.send_at(0, MANX, &said);
            let at_pod = delivered.iter().filter(|it| it.port != MANX).count();
            assert_eq!(at_pod == 1, passes, "protocol {protocol}, after {silence} s");
        }
    }
}

#[test]
fn only_what_a_pool_asks_for_is_translated() {
    for (pools, stays) in [(&[][..], &[][..]), (&["10.0.0.0/8"], &["10.0.0.0/8", "192.0.2.0/24"])] {
        let mut fabric =
            Fabric::with_manx_ports(&cluster(""), ServiceTable::default(), PORTS, (pools, stays));
        let out = only(fabric.send("shop/client", &Tuple::new(CLIENT, WORLD, TCP, 443).opening()));
        assert_eq!((out.port, ends(&out.frame.bytes)[0].0.as_str()), (HOST, CLIENT));
    }
    let mut fabric = fabric();
    let out = only(fabric.send("shop/client", &Tuple::new(CLIENT, FAR, TCP, 443).opening()));
    assert_eq!(ends(&out.frame.bytes)[0].0, CLIENT);
    // Packets that another node's tunnel brings go no further. Neither do packets that the world
    // sends through this node.
    let transit = Tuple::new(FAR, WORLD, TCP, 443).opening();
    assert_eq!(fabric.send_at(0, RAW, &tunnelled(UNDERLAY[1], UNDERLAY[0], &transit, 0)).len(), 0);
    assert_eq!(dropped(&fabric, RAW, DropReason::NoRoute), 1);
    let through = Tuple::new(WORLD, "192.0.2.8", TCP, 443).opening();
    for port in [HOST, FORWARDED] {
        assert_eq!(fabric.send_at(0, port, &through).len(), 0);
    }
}

#[test]
fn policy_judges_the_pod_and_not_the_node() {
    let spec = |net| {
        format!(
            "{{podSelector: {{}}, policyTypes: [Egress], egress: [{{to: [{{ipBlock: {{cidr: {net}}}}}]}}]}}"
        )
    };
    for (net, passes) in [("192.0.2.0/24", true), ("172.18.0.0/16", false)] {
        let policies = policy("shop/p", &spec(net));
        let mut fabric = fabric_of(&policies, ServiceTable::default(), PORTS);
        let out = fabric.send("shop/client", &Tuple::new(CLIENT, WORLD, UDP, 53).opening());
        assert_eq!(out.len(), usize::from(passes), "{net}");
    }
}

#[test]
fn a_port_serves_one_flow_to_each_destination_and_a_full_range_refuses() {
    let mut fabric = fabric_of("", ServiceTable::default(), (61_000, 61_001));
    let asked = |from: &str, port| Tuple::new(from, WORLD, UDP, 53).from_port(port);
    let mut ports: Vec<u16> = [("shop/client", CLIENT), ("shop/other", OTHER)]
        .into_iter()
        .map(|(pod, from)| leaves(&mut fabric, pod, asked(from, 1000)).source_port)
        .collect();
    let answers = [("shop/client", ports[0]), ("shop/other", ports[1])];
    for (pod, port) in answers {
        let behind = Tuple::new(&node(), WORLD, UDP, 53).from_port(port);
        let out = only(fabric.send_at(0, MANX, &behind.answer()));
        assert_eq!((out.node, out.port), fabric.port(pod));
    }
    ports.sort_unstable();
    assert_eq!(ports, [61_000, 61_001]);
    assert_eq!(fabric.send("shop/client", &asked(CLIENT, 1001).opening()).len(), 0);
    let (_, client) = fabric.port("shop/client");
    assert_eq!(dropped(&fabric, client, DropReason::NoFreePort), 1);
    // Another destination may have the same ports.
    let elsewhere = Tuple::new(CLIENT, "192.0.2.8", UDP, 53).from_port(1000);
    leaves(&mut fabric, "shop/client", elsewhere);
    // A flow that has expired gives its port back.
    fabric.nodes[0].now += std::time::Duration::from_secs(1000);
    leaves(&mut fabric, "shop/client", asked(CLIENT, 1001));
}

/// The world knows such a connection by another port, or not at all.
#[test]
fn a_connection_to_the_world_that_nobody_knows_is_reset() {
    let mut fabric = fabric();
    let asked = Tuple::new(CLIENT, WORLD, TCP, 443);
    let out = only(fabric.send("shop/client", &asked.data(b"x")));
    assert_eq!((out.node, out.port), fabric.port("shop/client"));
    assert_eq!(ends(&out.frame.bytes)[0], (WORLD.to_owned(), 443));
    let (_, client) = fabric.port("shop/client");
    assert_eq!(dropped(&fabric, client, DropReason::TcpWithoutFlow), 1);
    assert_eq!(fabric.nodes[0].flows().len(), 0);
}

/// One pod has taken all ports to one destination.
#[test]
fn a_pod_that_takes_every_port_leaves_others_their_share() {
    const COUNT: u16 = 16;
    let mut fabric = fabric_of("", ServiceTable::default(), (61_000, 61_000 + COUNT - 1));
    let asked = |from: &str, port| Tuple::new(from, WORLD, UDP, 53).from_port(port);
    for port in 0..10 * COUNT {
        fabric.send("shop/client", &asked(CLIENT, 1000 + port).opening());
    }
    let owned = |fabric: &mut Fabric, from: &str| {
        let from: std::net::IpAddr = from.parse().unwrap();
        let of_pod = |flow: &manx_dataplane::flow::FlowEntry| {
            flow.key().source(flow.original()).0 == from.into()
        };
        fabric.nodes[0].flows().iter().filter(|flow| of_pod(flow)).count()
    };
    assert!(owned(&mut fabric, CLIENT) >= usize::from(COUNT) - 2);
    let reports = fabric.nodes[0].reports.try_iter();
    let told: Vec<PortRefused> = reports
        .filter_map(|report| match report {
            Report::PortRefused(refused) => Some(refused),
            _ => None,
        })
        .collect();
    assert!((1..=workers()).contains(&told.len()), "one a second, of each worker: {told:?}");
    for refused in told {
        let PortRefused { owner, destination, destination_port, holders, most, .. } = refused;
        assert_eq!((destination.to_string(), destination_port), (WORLD.to_owned(), 53));
        assert!(holders > 0 && most == Some((owner, holders)), "{refused:?}");
    }
    // Packets under way have arrived by now, so a UDP flow gives up its port.
    assert_eq!(fabric.send("shop/other", &asked(OTHER, 999).opening()).len(), 0);
    fabric.nodes[0].now += Duration::from_secs(5);
    // Each of several workers has its own ports, and shares only those.
    let least = if workers() == 1 { 5 } else { 3 };
    for port in 0..10 * COUNT {
        let before = owned(&mut fabric, OTHER);
        let out = fabric.send("shop/other", &asked(OTHER, 1000 + port).opening());
        assert!(before >= least || out.len() == 1, "with {before} ports it is refused none");
    }
    let shares = [CLIENT, OTHER].map(|pod| owned(&mut fabric, pod));
    assert!(shares.iter().all(|it| *it >= least), "{shares:?}");
}

#[test]
fn nobody_reaches_a_port_of_the_way_out_without_a_flow() {
    let mut fabric = fabric();
    let behind = leaves(&mut fabric, "shop/client", Tuple::new(CLIENT, WORLD, UDP, 53));
    let stranger = Tuple { destination: "192.0.2.8".parse().unwrap(), ..behind };
    for protocol in [TCP, UDP] {
        let unsolicited = Tuple { protocol, ..stranger }.reversed();
        assert_eq!(fabric.send_at(0, MANX, &unsolicited.opening()).len(), 0, "nor an answer");
    }
    assert_eq!(dropped(&fabric, MANX, DropReason::UnknownPort), 2);
    // A port without a service is refused as one of the kernel's would be.
    let out = only(fabric.send_at(0, MANX, &Tuple::new(WORLD, &node(), TCP, NODE_PORT).opening()));
    assert_eq!((out.port, ends(&out.frame.bytes)[0].clone()), (MANX, (node(), NODE_PORT)));
    // Packets from outside with a pod's address, and messages that belong to the kernel.
    let forged = Tuple::new(OTHER, &node(), TCP, NODE_PORT).opening();
    assert_eq!(fabric.send_at(0, MANX, &forged).len(), 0);
    assert_eq!(dropped(&fabric, MANX, DropReason::SourceSpoofed), 1);
    let ping = Tuple::new(WORLD, &node(), ICMP, 0).opening();
    assert_eq!(fabric.send_at(0, MANX, &ping).len(), 0);
    assert_eq!(dropped(&fabric, MANX, DropReason::NotOurs), 1);
}

#[test]
fn a_node_port_leads_to_a_pod_that_sees_the_client() {
    let table = || services(&[(&node(), NODE_PORT, OTHER, 8080)]);
    let rule = format!("{{from: [{{ipBlock: {{cidr: {WORLD}/32}}}}], ports: [{{port: 8080}}]}}");
    let policies = policy("shop/p", &format!("{{podSelector: {{}}, ingress: [{rule}]}}"));
    let mut fabric = fabric_of(&policies, table(), PORTS);
    for (source, passes) in [(WORLD, true), ("192.0.2.8", false)] {
        let asked = Tuple::new(source, &node(), TCP, NODE_PORT);
        let out = fabric.send_at(0, MANX, &asked.opening());
        assert_eq!(out.len(), usize::from(passes), "{source}");
        if !passes {
            continue;
        }
        let out = only(out);
        assert_eq!((out.node, out.port), fabric.port("shop/other"));
        assert_eq!(ends(&out.frame.bytes)[0], (source.to_owned(), asked.source_port));
        let behind = Tuple::new(source, OTHER, TCP, 8080);
        let out = only(fabric.send("shop/other", &behind.answer()));
        assert_eq!(
            (out.node, out.port),
            (0, MANX),
            "the kernel sends nothing from its address else"
        );
        assert_eq!(ends(&out.frame.bytes)[0], (node(), NODE_PORT));
        only(fabric.send_at(0, MANX, &asked.data(b"x")));
    }
    // A pod of the node, and the node's own processes.
    let mut fabric = fabric_of("", table(), PORTS);
    let asked = Tuple::new(CLIENT, &node(), TCP, NODE_PORT);
    let out = only(fabric.send("shop/client", &asked.opening()));
    assert_eq!((out.node, out.port), fabric.port("shop/other"));
    let own = Tuple::new(&node(), &node(), TCP, NODE_PORT);
    let out = only(fabric.send_at(0, MANX, &own.opening()));
    assert_eq!((out.node, out.port), fabric.port("shop/other"));
    let out = only(fabric.send("shop/other", &Tuple::new(&node(), OTHER, TCP, 8080).answer()));
    assert_eq!((out.port, ends(&out.frame.bytes)[0].clone()), (MANX, (node(), NODE_PORT)));
    // All other ports belong to the node itself.
    let out = only(fabric.send("shop/client", &Tuple::new(CLIENT, &node(), TCP, 22).opening()));
    assert_eq!((out.port, ends(&out.frame.bytes)[1].clone()), (HOST, (node(), 22)));
}

/// This corresponds to `--nodeport-addresses`. The first address then has no node ports.
#[test]
fn a_node_port_at_another_address_of_the_node_answers_from_there() {
    const SECOND: &str = "198.51.100.2";
    for backend in [OTHER, FAR] {
        let mut fabric = fabric();
        fabric.own_addresses.insert("198.51.100.2/32".parse().unwrap());
        fabric =
            fabric.into_translating(&cluster(""), services(&[(SECOND, NODE_PORT, backend, 8080)]));
        let pod = if backend == FAR { "shop/far" } else { "shop/other" };
        let asked = Tuple::new(CLIENT, SECOND, TCP, NODE_PORT);
        let out = only(fabric.send("shop/client", &asked.opening()));
        assert_eq!((out.node, out.port), fabric.port(pod));
        let own = Tuple::new(SECOND, SECOND, TCP, NODE_PORT).from_port(1000);
        assert_eq!(fabric.port(pod), {
            let out = only(fabric.send_at(0, MANX, &own.opening()));
            (out.node, out.port)
        });
        let at_first = Tuple::new(WORLD, &node(), TCP, NODE_PORT);
        let out = only(fabric.send_at(0, MANX, &at_first.opening()));
        assert_eq!(ends(&out.frame.bytes)[1].0, WORLD, "refused");
        if backend == FAR {
            continue;
        }
        let asked = Tuple::new(WORLD, SECOND, TCP, NODE_PORT);
        let out = only(fabric.send_at(0, MANX, &asked.opening()));
        assert_eq!(ends(&out.frame.bytes)[0], (WORLD.to_owned(), asked.source_port));
        let out = only(fabric.send(pod, &Tuple::new(WORLD, OTHER, TCP, 8080).answer()));
        assert_eq!((out.node, out.port), (0, MANX));
        assert_eq!(ends(&out.frame.bytes)[0], (SECOND.to_owned(), NODE_PORT));
    }
}

/// Only the node's own processes may use 127.0.0.1.
#[test]
fn a_port_at_loopback_leads_the_nodes_own_processes_to_a_pod() {
    const LOOPBACK: &str = "127.0.0.1";
    for (protocol, backend) in [(TCP, OTHER), (UDP, OTHER), (TCP, FAR)] {
        let mut fabric = fabric();
        fabric.own_addresses.insert("127.0.0.0/8".parse().unwrap());
        fabric = fabric.into_translating(&cluster(""), services(&[(LOOPBACK, 8080, backend, 80)]));
        let asked = Tuple::new(&node(), LOOPBACK, protocol, 8080);
        let out = only(fabric.send_at(0, MANX, &asked.opening()));
        let pod = if backend == FAR { "shop/far" } else { "shop/other" };
        assert_eq!((out.node, out.port), fabric.port(pod));
        let [(source, source_port), to] = ends(&out.frame.bytes);
        assert_eq!(to, (backend.to_owned(), 80));
        let behind = Tuple::new(&source, backend, protocol, 80).from_port(source_port);
        let out = only(fabric.send(pod, &behind.answer()));
        assert_eq!((out.node, out.port), (0, MANX));
        let (from, to) = ((LOOPBACK.to_owned(), 8080), (node(), asked.source_port));
        assert_eq!(ends(&out.frame.bytes), [from, to]);
        let restored = fabric.nodes[0].replace_workers(1, SIZES, true);
        assert_eq!((restored.flows, restored.ended), (1, 0));
        only(fabric.send_at(0, MANX, &asked.data(b"x")));
        // An unused port is refused, and does not reach the node.
        let unknown = Tuple::new(&node(), LOOPBACK, TCP, 8081);
        let out = only(fabric.send_at(0, MANX, &unknown.opening()));
        assert_eq!((out.port, &ends(&out.frame.bytes)[0].0[..]), (MANX, LOOPBACK));
        assert_eq!(dropped(&fabric, MANX, DropReason::UnknownPort), 1);
        // The packets come from a pod, and from the world by a way that the node does not allow.
        for (port, from) in [(fabric.port("shop/client").1, CLIENT), (HOST, WORLD)] {
            let forged = Tuple::new(from, LOOPBACK, TCP, 8080);
            assert_eq!(fabric.send_at(0, port, &forged.opening()).len(), 0);
            assert_eq!(dropped(&fabric, port, DropReason::NotForwardable), 1);
        }
    }
}

/// The other node's tunnel brings packets of this node's process with this node's address.
#[test]
fn the_nodes_own_process_reaches_a_pod_of_another_node_by_a_node_port() {
    let mut fabric = fabric_of("", services(&[(&node(), NODE_PORT, FAR, 8080)]), PORTS);
    let own = Tuple::new(&node(), &node(), TCP, NODE_PORT).from_port(777);
    let out = only(fabric.send_at(0, MANX, &own.opening()));
    assert_eq!((out.node, out.port), fabric.port("shop/far"));
    assert_eq!(ends(&out.frame.bytes)[0], (ROUTER[0].to_string(), 777));
}

/// A service whose backends are hosts: this node, and another host.
#[test]
fn a_backend_that_is_a_host_answers_to_the_node_unless_a_pod_asks_its_own() {
    let api = UNDERLAY[1].to_string();
    for (backend, from_pod) in [(node(), CLIENT.to_owned()), (api, node())] {
        let table = services(&[("10.96.0.7", 80, &backend, 6443)]);
        let mut fabric = fabric_of("", table, PORTS);
        let asked = Tuple::new(CLIENT, "10.96.0.7", TCP, 80);
        let out = only(fabric.send("shop/client", &asked.opening()));
        let [(source, port), to] = ends(&out.frame.bytes);
        assert_eq!((&source, &to), (&from_pod, &(backend.clone(), 6443)));
        let way = if source == CLIENT { HOST } else { MANX };
        assert_eq!(out.port, way);
        let answer = Tuple::new(&source, &backend, TCP, 6443).from_port(port).answer();
        let out = only(fabric.send_at(0, way, &answer));
        assert_eq!((out.node, out.port), fabric.port("shop/client"));
        assert_eq!(ends(&out.frame.bytes)[0], ("10.96.0.7".to_owned(), 80));
        // The node's own processes send from the address of its port, and from the address that
        // others see.
        let own = [ROUTER[0].to_string(), node()];
        let open = own.map(|own| {
            let asked = Tuple::new(&own, "10.96.0.7", TCP, 80);
            let out = only(fabric.send_at(0, HOST, &asked.opening()));
            let [(source, port), to] = ends(&out.frame.bytes);
            assert_eq!((out.port, source, to), (MANX, node(), (backend.clone(), 6443)));
            (asked, Tuple::new(&node(), &backend, TCP, 6443).from_port(port))
        });
        let talk = |fabric: &mut Fabric| {
            for (asked, behind) in open {
                let out = only(fabric.send_at(0, MANX, &behind.answer()));
                assert_eq!(out.port, HOST);
                let [from, to] = ends(&out.frame.bytes);
                assert_eq!(from, ("10.96.0.7".to_owned(), 80));
                assert_eq!(to, (asked.source.to_string(), asked.source_port));
                assert_eq!(only(fabric.send_at(0, HOST, &asked.data(b"x"))).port, MANX);
            }
        };
        talk(&mut fabric);
        // New tables and a new agent do not change that.
        fabric.publish();
        talk(&mut fabric);
        let restored = fabric.nodes[0].replace_workers(1, SIZES, true);
        assert_eq!((restored.flows, restored.ended), (3, 0));
        talk(&mut fabric);
    }
}

#[test]
fn an_error_about_what_left_reaches_the_pod_as_one_about_what_it_sent() {
    use etherparse::Icmpv4Type;
    use etherparse::icmpv4::DestUnreachableHeader::Port;
    for protocol in [TCP, UDP, ICMP] {
        let mut fabric = fabric();
        let asked = Tuple::new(CLIENT, WORLD, protocol, 443);
        let behind = leaves(&mut fabric, "shop/client", asked);
        for router in ["198.51.100.9", WORLD] {
            let router: std::net::Ipv4Addr = router.parse().unwrap();
            let mut error = Vec::new();
            PacketBuilder::ipv4(router.octets(), UNDERLAY[0].octets(), 64)
                .icmpv4(Icmpv4Type::DestinationUnreachable(Port))
                .write(&mut error, &behind.opening()[..28])
                .unwrap();
            let out = only(fabric.send_at(0, MANX, &error));
            assert_eq!((out.node, out.port), fabric.port("shop/client"));
            let (source, destination) = addresses(&out.frame.bytes);
            assert_eq!((source, destination), (router.into(), asked.source));
            let quote = &out.frame.bytes[28..];
            assert_eq!(quote[12..28], asked.opening()[12..28], "addresses, ports, identifier");
        }
    }
}

/// Otherwise the world would answer to an address that the node does not have.
#[test]
fn a_flow_ends_when_the_node_loses_the_address_that_the_world_sees() {
    let mut fabric = fabric();
    let asked = Tuple::new(CLIENT, WORLD, UDP, 53);
    leaves(&mut fabric, "shop/client", asked);
    let ports = fabric.nodes[0].tables.manx_ports.clone().unwrap();
    let addresses = [Some(std::net::IpAddr::from([172, 18, 0, 9]).into()), None];
    let tables = Tables::clone(&fabric.nodes[0].tables);
    let manx_ports = Some(ManxPorts { addresses, outgoing: addresses, ..ports });
    fabric.nodes[0].publish(Tables { manx_ports, ..tables });
    let out = only(fabric.send("shop/client", &asked.data(b"x")));
    assert_eq!((out.port, ends(&out.frame.bytes)[0].0.as_str()), (MANX, "172.18.0.9"));
}

/// The address of `natOutgoingAddress` is set, changed, set to an address that the node does not
/// have, and removed.
#[test]
fn a_flow_keeps_its_address_as_long_as_that_is_the_nodes_first_or_the_named_one() {
    for protocol in [TCP, UDP] {
        let mut fabric = fabric();
        let [first, second] = ["172.18.0.8", "172.18.0.9"];
        let named = |address: &str| Some([address.parse().ok(), None]);
        let asked = |port| Tuple::new(CLIENT, WORLD, protocol, 443).from_port(port);
        let by = |fabric: &mut Fabric, port| {
            let behind = leaves(fabric, "shop/client", asked(port));
            only(fabric.send_at(0, MANX, &behind.answer()));
            behind.source.to_string()
        };
        let goes_on = |fabric: &mut Fabric, port| {
            let out = only(fabric.send("shop/client", &asked(port).data(b"x")));
            (out.port == MANX).then(|| ends(&out.frame.bytes)[0].0.clone())
        };
        assert_eq!(by(&mut fabric, 1), node());
        fabric.outgoing = named(first);
        fabric.publish();
        assert_eq!(goes_on(&mut fabric, 1), Some(node()), "it is still the node's");
        assert_eq!(by(&mut fabric, 2), first);
        fabric.outgoing = named(second);
        fabric.publish();
        // For TCP the pod gets a reset; other protocols start again.
        let expected = (protocol == UDP).then(|| second.to_owned());
        assert_eq!(goes_on(&mut fabric, 2), expected);
        assert_eq!(by(&mut fabric, 3), second);
        fabric.outgoing = Some([None; 2]);
        fabric.publish();
        assert_eq!(goes_on(&mut fabric, 1), Some(node()));
        assert_eq!(fabric.send("shop/client", &asked(4).opening()).len(), 0, "it is closed");
        let (_, client) = fabric.port("shop/client");
        assert_eq!(dropped(&fabric, client, DropReason::NoRoute), 1);
        fabric.outgoing = None;
        fabric.publish();
        assert_eq!(by(&mut fabric, 4), node());
    }
}

/// Another pod may have the address by then, and must not get packets that the world sends to the
/// port of the deleted pod.
#[test]
fn nothing_comes_back_to_a_pod_that_is_gone() {
    for protocol in [TCP, UDP, ICMP] {
        let mut fabric = fabric();
        let behind = leaves(&mut fabric, "shop/client", Tuple::new(CLIENT, WORLD, protocol, 443));
        fabric.nodes[0].locals.retain(|name, _| name.name.as_str() != "client");
        fabric.publish();
        let out = fabric.send_at(0, MANX, &behind.answer());
        assert_eq!(out, [], "protocol {protocol}");
    }
}

/// ICMP of the other family is a protocol without ports, and its bytes must not change.
#[test]
fn a_protocol_without_ports_leaves_as_it_was_but_for_its_source() {
    for (source, destination, protocol) in
        [(CLIENT, WORLD, 58), (CLIENT6, WORLD6, 1), (CLIENT, WORLD, 47)]
    {
        let mut fabric = fabric();
        let [from, to] = [source, destination].map(|it| it.parse::<std::net::IpAddr>().unwrap());
        let payload = [128, 0, 1, 2, 3, 4, 5, 6, 7, 8];
        let mut packet = Vec::new();
        match (from, to) {
            (std::net::IpAddr::V4(from), std::net::IpAddr::V4(to)) => {
                PacketBuilder::ipv4(from.octets(), to.octets(), 64)
                    .write(&mut packet, protocol.into(), &payload)
                    .unwrap();
            }
            (std::net::IpAddr::V6(from), std::net::IpAddr::V6(to)) => {
                PacketBuilder::ipv6(from.octets(), to.octets(), 64)
                    .write(&mut packet, protocol.into(), &payload)
                    .unwrap();
            }
            _ => panic!("{source} to {destination}"),
        }
        let out = fabric.send("shop/client", &packet);
        assert_eq!(out.len(), 1, "{:?}", fabric.nodes[0].drops());
        let bytes = &out[0].frame.bytes;
        assert_eq!(addresses(bytes).0.is_ipv4().then(node), from.is_ipv4().then(node));
        assert_ne!(addresses(bytes).0, from);
        assert_eq!(bytes[bytes.len() - payload.len()..], payload, "protocol {protocol}");
    }
}

/// Answers of backends that are hosts come to the node, whatever address the world sees for pods.
#[test]
fn a_named_address_is_for_pods_alone() {
    let table = services(&[(&node(), NODE_PORT, "172.18.0.77", 8080)]);
    for named in [None, "172.18.0.8".parse().ok()] {
        let mut fabric = fabric_of("", table.clone(), PORTS);
        fabric.outgoing = Some([named, None]);
        fabric.publish();
        let visit = Tuple::new(WORLD, &node(), TCP, NODE_PORT);
        let out = only(fabric.send_at(0, MANX, &visit.opening()));
        assert_eq!(ends(&out.frame.bytes)[0].0, node());
    }
}

#[test]
fn the_next_agent_keeps_the_ports_of_flows() {
    for protocol in [TCP, UDP] {
        let mut fabric = fabric();
        let asked = |n| Tuple::new(CLIENT, WORLD, protocol, 443).from_port(1000 + n);
        let behind: Vec<Tuple> =
            (0..20).map(|n| leaves(&mut fabric, "shop/client", asked(n))).collect();
        for tuple in &behind {
            only(fabric.send_at(0, MANX, &tuple.answer()));
        }
        let restored = fabric.nodes[0].replace_workers(2, SIZES, true);
        assert_eq!((restored.flows, restored.ended, restored.spoiled), (20, 0, 0));
        for (n, tuple) in (0..).zip(&behind) {
            let out = only(fabric.send_at(0, MANX, &tuple.reversed().data(b"y")));
            assert_eq!(ends(&out.frame.bytes)[1], (CLIENT.to_owned(), 1000 + n));
            let out = only(fabric.send("shop/client", &asked(n).data(b"x")));
            assert_eq!(ends(&out.frame.bytes)[0], (node(), tuple.source_port));
        }
    }
}
