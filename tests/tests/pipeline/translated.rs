//! Services that Manx translates itself.

use std::sync::Arc;

use etherparse::{SlicedPacket, TransportSlice};
use manx_dataplane::drop_reason::DropReason;
use manx_dataplane::services::{
    Backend, Clients, Frontend, FrontendKey, ServiceTable, WithoutBackend,
};
use manx_dataplane::tables::Established;
use manx_tests::fabric::{Delivery, FORWARDED, Fabric, HOST, ROUTER, SIZES, pod, policy};
use manx_tests::packet::{
    ICMP, SCTP, Segment, TCP, Tuple, UDP, addresses, assert_whole, change_v4, payload, super_packet,
};

const CLIENT: &str = "10.1.0.1";
const CLIENT6: &str = "fd00:1::1";
const SERVER: &str = "10.1.0.2";
const SERVER6: &str = "fd00:1::2";
const FAR: &str = "10.2.0.1";
const FAR6: &str = "fd00:2::1";
const WEB: &str = "10.96.0.7";
const WEB6: &str = "fd96::7";
const OTHER: &str = "10.96.0.8";
/// The service's port. The backends' port is next.
const PORT: u16 = 80;
const BEHIND: u16 = 8080;

fn service(name: &str, addresses: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Service\nmetadata: {{name: {name}, namespace: shop}}\n\
         spec: {{clusterIPs: [{addresses}], ports: [{{port: 80}}]}}\n---\n"
    )
}

fn cluster(policies: &str) -> String {
    pod("shop/client", 0, "{app: client}", &[CLIENT, CLIENT6])
        + &pod("shop/server", 0, "{app: server}", &[SERVER, SERVER6])
        + &pod("shop/far", 1, "{app: far}", &[FAR, FAR6])
        + &service("web", &format!("{WEB}, \"{WEB6}\""))
        + &service("other", OTHER)
        + policies
}

fn key(address: &str, protocol: u8) -> FrontendKey {
    let address: std::net::IpAddr = address.parse().unwrap();
    FrontendKey { address: address.into(), protocol, port: PORT }
}

fn backend(address: &str) -> Backend {
    let address: std::net::IpAddr = address.parse().unwrap();
    Backend { address: address.into(), port: BEHIND }
}

fn frontend(id: u64, backends: &[&str]) -> Frontend {
    let backends: Box<[Backend]> = backends.iter().map(|it| backend(it)).collect();
    let mut all_backends = backends.clone();
    all_backends.sort_unstable();
    Frontend { id, backends, all_backends, ..Frontend::default() }
}

/// Gives the service at `address` these backends, for each protocol. All pods' addresses exist.
fn set(table: &mut ServiceTable, address: &str, frontend: &Frontend) {
    for protocol in [TCP, UDP, SCTP] {
        table.set_frontend(key(address, protocol), Some(Arc::new(frontend.clone())));
    }
    for existing in [CLIENT, CLIENT6, SERVER, SERVER6, FAR, FAR6] {
        table.set_address(backend(existing).address, true);
    }
}

fn services(address: &str, backends: &[&str]) -> ServiceTable {
    let mut table = ServiceTable::default();
    set(&mut table, address, &frontend(1, backends));
    table
}

/// A table by which new connections go to the far server; the other server keeps its connections.
fn with_server_unready() -> ServiceTable {
    let mut table = ServiceTable::default();
    let backends = [backend(FAR)].into();
    set(&mut table, WEB, &Frontend { backends, ..frontend(1, &[SERVER, FAR]) });
    table
}

/// A table without the server: for TCP its address is gone, for UDP the service no longer has it.
fn without_server(fabric: &Fabric, protocol: u8) -> ServiceTable {
    let mut table = ServiceTable::clone(fabric.services.as_ref().unwrap());
    table.set_address(backend(SERVER).address, protocol == UDP);
    table.set_frontend(key(WEB, protocol), Some(Arc::new(frontend(1, &[FAR]))));
    table
}

fn fabric(address: &str, backends: &[&str]) -> Fabric {
    Fabric::translating(&cluster(""), services(address, backends))
}

/// Source and destination of a packet, with ports.
fn ends(bytes: &[u8]) -> [(String, u16); 2] {
    let (source, destination) = addresses(bytes);
    let ports = match SlicedPacket::from_ip(bytes).unwrap().transport {
        Some(TransportSlice::Tcp(tcp)) => (tcp.source_port(), tcp.destination_port()),
        Some(TransportSlice::Udp(udp)) => (udp.source_port(), udp.destination_port()),
        _ => {
            let upper = payload(bytes);
            (u16::from_be_bytes([upper[0], upper[1]]), u16::from_be_bytes([upper[2], upper[3]]))
        }
    };
    [(source.to_string(), ports.0), (destination.to_string(), ports.1)]
}

fn end(address: &str, port: u16) -> (String, u16) {
    (address.to_owned(), port)
}

fn only(out: Vec<Delivery>) -> Delivery {
    assert_eq!(out.len(), 1, "{out:?}");
    let only = out.into_iter().next().unwrap();
    if only.frame.offload.segmentation.is_none() && !only.frame.offload.checksum.is_partial() {
        assert_whole(&only.frame.bytes);
    }
    only
}

/// Sends a packet from a pod and expects one packet at another pod. Returns that packet's ends.
fn passes(fabric: &mut Fabric, from: &str, bytes: &[u8], to: &str) -> [(String, u16); 2] {
    let out = only(fabric.send(from, bytes));
    assert_eq!((out.node, out.port), fabric.port(to), "{:?}", ends(&out.frame.bytes));
    ends(&out.frame.bytes)
}

fn dropped(fabric: &Fabric, pod: &str, reason: DropReason) -> u64 {
    let (node, port) = fabric.port(pod);
    fabric.nodes[node].dropped(port, reason)
}

/// The connection of the client to the service, and its form behind the translation.
fn both(address: &str, protocol: u8, backend: &str) -> (Tuple, Tuple) {
    let client = if address.contains(':') { CLIENT6 } else { CLIENT };
    (Tuple::new(client, address, protocol, PORT), Tuple::new(client, backend, protocol, BEHIND))
}

#[test]
fn a_connection_reaches_its_backend_and_the_answers_come_from_the_service() {
    for protocol in [TCP, UDP, SCTP] {
        for (address, server, backend) in [
            (WEB, "shop/server", SERVER),
            (WEB, "shop/far", FAR),
            (WEB6, "shop/server", SERVER6),
            (WEB6, "shop/far", FAR6),
        ] {
            let mut fabric = fabric(address, &[backend]);
            let (asked, behind) = both(address, protocol, backend);
            let client = asked.source.to_string();
            for (packet, answer) in [
                (asked.opening(), behind.answer()),
                (asked.data(b"x"), behind.reversed().data(b"yz")),
                (asked.data(b"more"), behind.reversed().data(b"y")),
            ] {
                let found = passes(&mut fabric, "shop/client", &packet, server);
                assert_eq!(found, [end(&client, asked.source_port), end(backend, BEHIND)]);
                let found = passes(&mut fabric, server, &answer, "shop/client");
                assert_eq!(found, [end(address, PORT), end(&client, asked.source_port)]);
            }
            assert_eq!(fabric.nodes[0].flows().len(), 1, "one flow has both keys");
        }
    }
}

#[test]
fn a_super_packet_is_translated_whole() {
    for (address, backend) in [(WEB, SERVER), (WEB6, SERVER6)] {
        let mut fabric = fabric(address, &[backend]);
        let (asked, behind) = both(address, TCP, backend);
        passes(&mut fabric, "shop/client", &asked.opening(), "shop/server");
        passes(&mut fabric, "shop/server", &behind.answer(), "shop/client");
        let bytes = vec![7; 20_000];
        for (from, to, tuple, expected) in [
            ("shop/client", "shop/server", asked, behind),
            ("shop/server", "shop/client", behind.reversed(), asked.reversed()),
        ] {
            let (packet, offload) = super_packet(tuple, &bytes, 1400);
            let (node, port) = fabric.port(from);
            fabric.nodes[node].inject_with(port, &packet, offload);
            let out = only(fabric.run_until_idle());
            let (expected, expected_offload) = super_packet(expected, &bytes, 1400);
            assert_eq!((out.node, out.port), fabric.port(to));
            assert_eq!(out.frame.offload, expected_offload);
            let header = if address.contains(':') { 40..60 } else { 20..40 };
            assert_eq!(out.frame.bytes[header.clone()], expected[header]);
        }
    }
}

#[test]
fn policy_judges_the_backend_and_its_port_and_sees_the_client() {
    let ingress = |port| {
        format!(
            "{{podSelector: {{matchLabels: {{app: server}}}}, ingress: [{{from: [{{podSelector: {{matchLabels: {{app: client}}}}}}], ports: [{{port: {port}}}]}}]}}"
        )
    };
    let egress = |app| {
        format!(
            "{{podSelector: {{matchLabels: {{app: client}}}}, policyTypes: [Egress], egress: [{{to: [{{podSelector: {{matchLabels: {{app: {app}}}}}}}]}}]}}"
        )
    };
    for (spec, denied) in [
        (ingress(BEHIND), None),
        (ingress(PORT), Some(DropReason::PolicyIngress)),
        (egress("server"), None),
        (egress("far"), Some(DropReason::PolicyEgress)),
    ] {
        let policies = policy("shop/p", &spec);
        let mut fabric = Fabric::translating(&cluster(&policies), services(WEB, &[SERVER]));
        let (asked, _) = both(WEB, TCP, SERVER);
        let out = fabric.send("shop/client", &asked.opening());
        assert_eq!(out.len(), usize::from(denied.is_none()), "{spec}");
        if let Some(reason) = denied {
            assert_eq!(dropped(&fabric, "shop/client", reason), 1, "{spec}");
        }
    }
}

#[test]
fn a_change_of_policy_judges_a_translated_flow_again() {
    let mut fabric = fabric(WEB, &[SERVER, FAR]);
    let (asked, _) = both(WEB, TCP, SERVER);
    let out = only(fabric.send("shop/client", &asked.opening()));
    let backend = addresses(&out.frame.bytes).1.to_string();
    let (server, app) =
        if backend == FAR { ("shop/far", "far") } else { ("shop/server", "server") };
    let (_, behind) = both(WEB, TCP, &backend);
    passes(&mut fabric, server, &behind.answer(), "shop/client");
    let spec = format!("{{podSelector: {{matchLabels: {{app: {app}}}}}}}");
    fabric.apply(&cluster(&policy("shop/p", &spec)));
    assert_eq!(fabric.send("shop/client", &asked.data(b"x")).len(), 0);
    fabric.apply(&cluster(""));
    for _ in 0..3 {
        passes(&mut fabric, "shop/client", &asked.data(b"x"), server);
        passes(&mut fabric, server, &behind.reversed().data(b"x"), "shop/client");
    }
}

#[test]
fn who_finds_nobody_is_told() {
    let mut fabric = fabric(WEB, &[]);
    let answer = |fabric: &mut Fabric, tuple: Tuple| {
        let out = fabric.send("shop/client", &tuple.opening());
        let port = fabric.port("shop/client");
        out.into_iter().next().map(|out| {
            assert_eq!((out.node, out.port), port);
            out.frame.bytes
        })
    };
    let is_reset = |bytes: &[u8], tuple: Tuple| {
        assert_whole(bytes);
        let Some(TransportSlice::Tcp(tcp)) = SlicedPacket::from_ip(bytes).unwrap().transport else {
            panic!("no TCP")
        };
        let there = end(&tuple.destination.to_string(), tuple.destination_port);
        assert_eq!(ends(bytes)[0], there);
        tcp.rst() && tcp.acknowledgment_number() == 2
    };
    let is_unreachable = |bytes: &[u8]| {
        assert_whole(bytes);
        match SlicedPacket::from_ip(bytes).unwrap().transport {
            Some(TransportSlice::Icmpv4(icmp)) => (icmp.type_u8(), icmp.code_u8()) == (3, 3),
            _ => false,
        }
    };
    for (port, reason) in
        [(PORT, DropReason::ServiceWithoutBackend), (PORT + 1, DropReason::ServiceWithoutPort)]
    {
        let tuple = |protocol| Tuple::new(CLIENT, WEB, protocol, port);
        assert!(is_reset(&answer(&mut fabric, tuple(TCP)).unwrap(), tuple(TCP)));
        assert!(is_unreachable(&answer(&mut fabric, tuple(UDP)).unwrap()));
        assert!(is_unreachable(&answer(&mut fabric, tuple(SCTP)).unwrap()));
        assert_eq!(dropped(&fabric, "shop/client", reason), 3);
    }
    // If a traffic policy keeps packets on the node, the client gets no refusal.
    let mut table = ServiceTable::default();
    let without_backend = WithoutBackend::Drop;
    set(&mut table, WEB, &Frontend { without_backend, ..frontend(1, &[]) });
    fabric.set_services(table);
    assert_eq!(answer(&mut fabric, Tuple::new(CLIENT, WEB, TCP, PORT)), None);
    // A segment of an unknown connection, and a reset, which is never answered.
    fabric.set_services(services(WEB, &[SERVER]));
    let unknown = Tuple::new(CLIENT, WEB, TCP, PORT);
    let out = only(fabric.send("shop/client", &unknown.data(b"x")));
    assert_eq!(ends(&out.frame.bytes), [end(WEB, PORT), end(CLIENT, unknown.source_port)]);
    assert_eq!(fabric.send("shop/client", &unknown.packet(Segment::Rst, &[])).len(), 0);
    assert_eq!(dropped(&fabric, "shop/client", DropReason::TcpWithoutFlow), 2);
}

#[test]
fn a_flow_lives_as_long_as_its_backend() {
    for protocol in [TCP, UDP] {
        let mut fabric = fabric(WEB, &[SERVER]);
        let (asked, behind) = both(WEB, protocol, SERVER);
        let later = |bytes: &[u8]| asked.data(bytes);
        passes(&mut fabric, "shop/client", &asked.opening(), "shop/server");
        passes(&mut fabric, "shop/server", &behind.answer(), "shop/client");
        // The server is no longer an endpoint for new connections.
        fabric.set_services(with_server_unready());
        passes(&mut fabric, "shop/client", &later(b"x"), "shop/server");
        fabric.publish();
        passes(&mut fabric, "shop/client", &later(b"x"), "shop/server");
        let another = asked.from_port(50_000);
        passes(&mut fabric, "shop/client", &another.opening(), "shop/far");
        // The server is removed.
        fabric.set_services(without_server(&fabric, protocol));
        assert_eq!(fabric.send("shop/server", &behind.reversed().data(b"x")).len(), 0);
        assert_eq!(dropped(&fabric, "shop/server", DropReason::BackendGone), 1);
        if protocol == TCP {
            let out = only(fabric.send("shop/client", &later(b"x")));
            assert_eq!((out.node, out.port), fabric.port("shop/client"), "a reset");
            assert_eq!(dropped(&fabric, "shop/client", DropReason::BackendGone), 1);
            passes(&mut fabric, "shop/client", &asked.opening(), "shop/far");
        } else {
            passes(&mut fabric, "shop/client", &later(b"x"), "shop/far");
            let (_, behind) = both(WEB, protocol, FAR);
            let found = passes(&mut fabric, "shop/far", &behind.answer(), "shop/client");
            assert_eq!(found[0], end(WEB, PORT));
        }
        // The other connection never had that backend.
        passes(&mut fabric, "shop/client", &another.data(b"x"), "shop/far");
    }
}

#[test]
fn a_client_outside_of_the_source_ranges_gets_no_answer() {
    for protocol in [TCP, UDP] {
        for (ranges, passes_) in
            [("10.1.0.0/24", true), ("198.51.100.0/24", false), ("fd00::/8", false)]
        {
            let mut fabric = fabric(WEB, &[SERVER]);
            let clients = Clients::of(&[ranges.parse().unwrap()]);
            let mut table = ServiceTable::default();
            set(&mut table, WEB, &Frontend { clients, ..frontend(1, &[SERVER]) });
            fabric.set_services(table);
            let (asked, _) = both(WEB, protocol, SERVER);
            let out = fabric.send("shop/client", &asked.opening());
            assert_eq!(out.len(), usize::from(passes_), "{ranges}");
            let drops = dropped(&fabric, "shop/client", DropReason::ServiceSourceRanges);
            assert_eq!(drops, u64::from(!passes_));
        }
    }
}

#[test]
fn a_client_of_udp_follows_its_service_to_another_port() {
    let mut fabric = fabric(WEB, &[SERVER]);
    let (asked, mut behind) = both(WEB, UDP, SERVER);
    passes(&mut fabric, "shop/client", &asked.opening(), "shop/server");
    let moved = Backend { port: BEHIND + 1, ..backend(SERVER) };
    let mut table = ServiceTable::clone(fabric.services.as_ref().unwrap());
    let frontend =
        Frontend { backends: [moved].into(), all_backends: [moved].into(), ..frontend(1, &[]) };
    table.set_frontend(key(WEB, UDP), Some(Arc::new(frontend)));
    fabric.set_services(table);
    let found = passes(&mut fabric, "shop/client", &asked.data(b"x"), "shop/server");
    assert_eq!(found[1], end(SERVER, BEHIND + 1));
    behind.destination_port = BEHIND + 1;
    passes(&mut fabric, "shop/server", &behind.answer(), "shop/client");
    // The table has no service, and so no backend.
    let mut table = ServiceTable::clone(fabric.services.as_ref().unwrap());
    table.set_frontend(key(WEB, UDP), None);
    fabric.set_services(table);
    fabric.send("shop/client", &asked.data(b"x"));
    assert_eq!(dropped(&fabric, "shop/client", DropReason::ServiceWithoutPort), 1);
}

#[test]
fn a_pod_reaches_itself_through_a_service_behind_its_gateway() {
    for (address, backend, gateway) in [(WEB, CLIENT, "169.254.1.1"), (WEB6, CLIENT6, "fe80::1")] {
        let closed = policy("shop/p", "{podSelector: {}, policyTypes: [Ingress, Egress]}");
        let mut fabric = Fabric::translating(&cluster(&closed), services(address, &[backend]));
        let (asked, _) = both(address, TCP, backend);
        let behind = Tuple::new(gateway, backend, TCP, BEHIND);
        for (packet, answer) in
            [(asked.opening(), behind.answer()), (asked.data(b"x"), behind.reversed().data(b"y"))]
        {
            let found = passes(&mut fabric, "shop/client", &packet, "shop/client");
            assert_eq!(found, [end(gateway, asked.source_port), end(backend, BEHIND)]);
            let found = passes(&mut fabric, "shop/client", &answer, "shop/client");
            assert_eq!(found, [end(address, PORT), end(backend, asked.source_port)]);
        }
    }
}

/// A fabric in which the client's connection to the service has lost its backend.
fn fabric_without_backend(asked: Tuple, behind: Tuple) -> Fabric {
    let mut fabric = fabric(WEB, &[SERVER]);
    passes(&mut fabric, "shop/client", &asked.opening(), "shop/server");
    passes(&mut fabric, "shop/server", &behind.answer(), "shop/client");
    passes(&mut fabric, "shop/client", &asked.data(b"x"), "shop/server");
    let mut gone = ServiceTable::clone(fabric.services.as_ref().unwrap());
    gone.set_address(backend(SERVER).address, false);
    fabric.set_services(gone);
    fabric
}

/// The deletion of a pod ends the connections to it, even if another tenant's slices name its
/// address.
#[test]
fn a_slice_holds_the_connections_of_its_own_namespace_alone() {
    for (namespace, end) in [(1, "shop/server"), (2, "shop/client")] {
        let (asked, behind) = both(WEB, TCP, SERVER);
        let mut table = ServiceTable::default();
        set(&mut table, WEB, &Frontend { namespace: 1, ..frontend(1, &[SERVER]) });
        let mut fabric = Fabric::translating(&cluster(""), table);
        passes(&mut fabric, "shop/client", &asked.opening(), "shop/server");
        passes(&mut fabric, "shop/server", &behind.answer(), "shop/client");
        let mut gone = ServiceTable::clone(fabric.services.as_ref().unwrap());
        gone.set_address(backend(SERVER).address, false);
        gone.set_named(namespace, backend(SERVER).address, true);
        fabric.set_services(gone);
        passes(&mut fabric, "shop/client", &asked.data(b"x"), end);
    }
}

/// If several packets arrive together, the first one ends the flow, and the others find nothing
/// left of it.
#[test]
fn nothing_goes_on_untranslated_when_a_backend_is_gone() {
    let (asked, behind) = both(WEB, TCP, SERVER);
    let mut fabric = fabric_without_backend(asked, behind);
    let client = fabric.port("shop/client");
    for _ in 0..4 {
        fabric.nodes[client.0].inject(client.1, &asked.data(b"x"));
    }
    let out = fabric.run_until_idle();
    assert!(!out.is_empty() && out.iter().all(|it| (it.node, it.port) == client), "{out:?}");
}

#[test]
fn nobody_is_answered_for_another_pod_whose_backend_is_gone() {
    let (asked, behind) = both(WEB, TCP, SERVER);
    let mut fabric = fabric_without_backend(asked, behind);
    assert_eq!(fabric.send("shop/server", &asked.data(b"x")).len(), 0);
    assert_eq!(dropped(&fabric, "shop/server", DropReason::SourceSpoofed), 1);
    only(fabric.send("shop/client", &asked.data(b"x")));
    assert_eq!(dropped(&fabric, "shop/client", DropReason::BackendGone), 1);
}

/// A connection is kept, but no other one may begin in its place.
#[test]
fn a_kept_connection_carries_no_new_one_that_policy_denies() {
    let mut fabric = Fabric::closed();
    fabric.connections.established = Established::Keep;
    fabric = fabric.into_translating(&cluster(""), services(WEB, &[SERVER]));
    let (asked, behind) = both(WEB, TCP, SERVER);
    passes(&mut fabric, "shop/client", &asked.opening(), "shop/server");
    passes(&mut fabric, "shop/server", &behind.answer(), "shop/client");
    passes(&mut fabric, "shop/client", &asked.data(b"x"), "shop/server");
    let closed = policy("shop/p", "{podSelector: {matchLabels: {app: server}}}");
    fabric.apply(&cluster(&closed));
    assert_eq!(fabric.send("shop/client", &asked.opening()).len(), 0);
    assert_eq!(dropped(&fabric, "shop/client", DropReason::PolicyIngress), 1);
    passes(&mut fabric, "shop/client", &asked.data(b"x"), "shop/server");
    fabric.apply(&cluster(""));
    passes(&mut fabric, "shop/client", &asked.opening(), "shop/server");
}

/// The pod's IPv6 gateway address is link-local. Nothing else from or to such an address is
/// forwarded.
#[test]
fn a_pod_that_reaches_itself_may_answer_in_fragments() {
    let mut fabric = fabric(WEB6, &[CLIENT6]);
    let (asked, _) = both(WEB6, UDP, CLIENT6);
    let behind = Tuple::new("fe80::1", CLIENT6, UDP, BEHIND);
    let fragments = |tuple: Tuple, id: u8| {
        let whole = tuple.data(&[9; 24]);
        // The fragment header of RFC 8200, section 4.5.
        [(0, 24, 1), (24, 8, 0)].map(|(offset, len, more)| {
            let header = [UDP, 0, 0, offset | more, 0, 0, 0, id];
            let upper = 40 + usize::from(offset);
            let mut bytes = [&whole[..40], &header, &whole[upper..upper + len]].concat();
            (bytes[5], bytes[6]) = (8 + len as u8, 44);
            bytes
        })
    };
    for fragment in fragments(behind.reversed(), 7) {
        assert_eq!(fabric.send("shop/client", &fragment).len(), 0, "there is no connection");
    }
    passes(&mut fabric, "shop/client", &asked.opening(), "shop/client");
    for (fragment, mut expected) in
        fragments(behind.reversed(), 8).into_iter().zip(fragments(asked.reversed(), 8))
    {
        let out = fabric.send("shop/client", &fragment);
        assert_eq!(out.len(), 1, "{:?}", fabric.nodes[0].drops());
        expected[7] -= 1;
        assert_eq!(out[0].frame.bytes, expected);
    }
}

#[test]
fn two_connections_that_would_become_one_get_different_source_ports() {
    let mut table = services(WEB, &[SERVER]);
    set(&mut table, OTHER, &frontend(2, &[SERVER]));
    let mut fabric = Fabric::translating(&cluster(""), table);
    let (first, behind) = both(WEB, TCP, SERVER);
    let (second, _) = both(OTHER, TCP, SERVER);
    let found = passes(&mut fabric, "shop/client", &first.opening(), "shop/server");
    assert_eq!(found[0], end(CLIENT, first.source_port));
    let found = passes(&mut fabric, "shop/client", &second.opening(), "shop/server");
    let port = found[0].1;
    assert!(found[0].0 == CLIENT && port != first.source_port && port >= 1024, "{found:?}");
    for (source_port, address) in [(first.source_port, WEB), (port, OTHER)] {
        let answer = behind.from_port(source_port).answer();
        let found = passes(&mut fabric, "shop/server", &answer, "shop/client");
        assert_eq!(found, [end(address, PORT), end(CLIENT, first.source_port)]);
    }
    // A direct connection from the same port cannot get another port.
    assert_eq!(fabric.send("shop/client", &behind.opening()).len(), 0);
    assert_eq!(dropped(&fabric, "shop/client", DropReason::ConnectionTaken), 1);
    let found = passes(&mut fabric, "shop/client", &behind.from_port(7).opening(), "shop/server");
    assert_eq!(found[0], end(CLIENT, 7));
    // A direct connection that existed first keeps its port.
    let direct = Tuple::new(CLIENT, SERVER, UDP, BEHIND);
    passes(&mut fabric, "shop/client", &direct.opening(), "shop/server");
    let (asked, _) = both(WEB, UDP, SERVER);
    let found = passes(&mut fabric, "shop/client", &asked.opening(), "shop/server");
    assert!(found[0].1 != direct.source_port);
    passes(&mut fabric, "shop/server", &direct.answer(), "shop/client");
}

#[test]
fn nobody_passes_as_a_service() {
    let mut fabric = fabric(WEB, &[SERVER]);
    let (asked, behind) = both(WEB, UDP, SERVER);
    passes(&mut fabric, "shop/client", &asked.opening(), "shop/server");
    for pod in ["shop/server", "shop/far"] {
        assert_eq!(fabric.send(pod, &asked.answer()).len(), 0);
        assert_eq!(dropped(&fabric, pod, DropReason::SourceSpoofed), 1, "{pod}");
    }
    for port in [HOST, FORWARDED] {
        assert_eq!(fabric.send_at(0, port, &asked.answer()).len(), 0);
        // The answer comes from another sender that uses the backend's address.
        assert_eq!(fabric.send_at(0, port, &behind.answer()).len(), 0);
    }
    let found = passes(&mut fabric, "shop/server", &behind.answer(), "shop/client");
    assert_eq!(found[0], end(WEB, PORT));
}

/// The fragments of a UDP packet of 48 bytes of payload.
fn fragments(tuple: Tuple) -> [Vec<u8>; 2] {
    let whole = tuple.data(&[9; 48]);
    let cut = |offset: usize, len: usize, more: bool| {
        let mut bytes = [&whole[..20], &whole[20 + offset..20 + offset + len]].concat();
        change_v4(&mut bytes, |header| {
            header.total_len = 20 + len as u16;
            header.identification = 7;
            header.dont_fragment = false;
            header.more_fragments = more;
            header.fragment_offset = etherparse::IpFragOffset::try_new(offset as u16 / 8).unwrap();
        });
        bytes
    };
    [cut(0, 32, true), cut(32, whole.len() - 52, false)]
}

#[test]
fn later_fragments_follow_the_first_one() {
    let mut fabric = fabric(WEB, &[SERVER]);
    let (asked, behind) = both(WEB, UDP, SERVER);
    for (from, to, tuple, expected) in [
        ("shop/client", "shop/server", asked, behind),
        ("shop/server", "shop/client", behind.reversed(), asked.reversed()),
    ] {
        let whole: Vec<Vec<u8>> = fragments(tuple)
            .iter()
            .map(|fragment| {
                let out = fabric.send(from, fragment);
                assert_eq!(out.len(), 1, "{:?}", fabric.nodes[0].drops());
                assert_eq!((out[0].node, out[0].port), fabric.port(to));
                out[0].frame.bytes.clone()
            })
            .collect();
        let expected = fragments(expected);
        for (found, expected) in whole.iter().zip(&expected) {
            assert_eq!(addresses(found), addresses(expected));
            assert_eq!(found[20..], expected[20..], "ports, checksum and payload");
        }
    }
    // SCTP's checksum cannot be computed from a part of the packet.
    let (asked, _) = both(WEB, SCTP, SERVER);
    let mut first = asked.opening();
    first.truncate(36);
    change_v4(&mut first, |header| (header.total_len, header.more_fragments) = (36, true));
    assert_eq!(fabric.send("shop/client", &first).len(), 0);
    assert_eq!(dropped(&fabric, "shop/client", DropReason::SctpFragment), 1);
}

/// An ICMP error about a packet, from this address to the packet's sender.
fn error_about(packet: &[u8], from: &str) -> Vec<u8> {
    use etherparse::icmpv4::DestUnreachableHeader::FragmentationNeeded;
    use etherparse::{Icmpv4Type, PacketBuilder};
    let std::net::IpAddr::V4(to) = addresses(packet).0 else { panic!("IPv4") };
    let from: std::net::Ipv4Addr = from.parse().unwrap();
    let kind = Icmpv4Type::DestinationUnreachable(FragmentationNeeded { next_hop_mtu: 1400 });
    let mut bytes = Vec::new();
    let step = PacketBuilder::ipv4(from.octets(), to.octets(), 64).icmpv4(kind);
    step.write(&mut bytes, &packet[..packet.len().min(28)]).unwrap();
    bytes
}

#[test]
fn an_error_is_about_the_packet_that_its_receiver_has_sent() {
    for protocol in [TCP, UDP, SCTP] {
        let mut fabric = fabric(WEB, &[SERVER]);
        let (asked, behind) = both(WEB, protocol, SERVER);
        passes(&mut fabric, "shop/client", &asked.opening(), "shop/server");
        passes(&mut fabric, "shop/server", &behind.answer(), "shop/client");
        for (from, to, got, sent, by, as_by) in [
            ("shop/server", "shop/client", behind, asked, SERVER, WEB),
            ("shop/client", "shop/server", asked.reversed(), behind.reversed(), CLIENT, CLIENT),
        ] {
            let error = error_about(&got.data(b"12345678"), by);
            let out = only(fabric.send(from, &error));
            assert_eq!((out.node, out.port), fabric.port(to));
            let (source, destination) = addresses(&out.frame.bytes);
            assert_eq!((source.to_string(), destination), (as_by.to_owned(), sent.source));
            let quote = &out.frame.bytes[28..];
            assert_eq!(addresses_of_quote(quote), (sent.source, sent.destination));
            assert_eq!(quote[20..24], sent.data(b"12345678")[20..24], "the ports");
        }
        // The error is about a packet that this side has never received.
        let stranger = error_about(&behind.from_port(7).data(b"12345678"), SERVER);
        assert_eq!(fabric.send("shop/server", &stranger).len(), 0);
        let untranslated = error_about(&asked.data(b"12345678"), SERVER);
        assert_eq!(fabric.send("shop/server", &untranslated).len(), 0);
        assert_eq!(dropped(&fabric, "shop/server", DropReason::IcmpErrorUnmatched), 2);
    }
}

/// This is the same as in [`crate::forwarded`] without translation: the node is a hop on the way to
/// the client.
#[test]
fn the_node_tells_backends_about_answers_to_whom_it_masquerades() {
    let mut fabric = fabric(WEB, &[SERVER]);
    let node = ROUTER[0].to_string();
    for port in [FORWARDED, HOST] {
        let asked = Tuple::new(&node, WEB, UDP, PORT);
        let behind = Tuple::new(&node, SERVER, UDP, BEHIND);
        assert_eq!(fabric.send_at(0, port, &asked.opening()).len(), 1);
        let got = only(fabric.send("shop/server", &behind.answer()));
        assert_eq!((got.node, got.port), (0, HOST));
        let out = only(fabric.send_at(0, HOST, &error_about(&got.frame.bytes, &node)));
        assert_eq!((out.node, out.port), fabric.port("shop/server"));
        let quote = &out.frame.bytes[28..];
        assert_eq!(addresses_of_quote(quote), (behind.destination, behind.source));
        assert_eq!(out.frame.bytes[8], 64, "the node is no hop of its own");
    }
}

fn addresses_of_quote(quote: &[u8]) -> (std::net::IpAddr, std::net::IpAddr) {
    let at = |from: usize| {
        let bytes: [u8; 4] = quote[from..from + 4].try_into().unwrap();
        std::net::IpAddr::from(bytes)
    };
    (at(12), at(16))
}

#[test]
fn the_next_agent_gives_no_connection_another_backend() {
    for workers in [1, 2] {
        for protocol in [TCP, UDP] {
            let mut fabric = fabric(WEB, &[SERVER]);
            let asked: Vec<Tuple> =
                (0..20).map(|n| both(WEB, protocol, SERVER).0.from_port(1000 + n)).collect();
            let behind = |tuple: &Tuple| both(WEB, protocol, SERVER).1.from_port(tuple.source_port);
            for tuple in &asked {
                passes(&mut fabric, "shop/client", &tuple.opening(), "shop/server");
                passes(&mut fabric, "shop/server", &behind(tuple).answer(), "shop/client");
            }
            fabric.set_services(with_server_unready());
            let restored = fabric.nodes[0].replace_workers(workers, SIZES, true);
            assert_eq!((restored.flows, restored.ended, restored.spoiled), (20, 0, 0));
            for tuple in &asked {
                let answer = behind(tuple).reversed().data(b"y");
                let found = passes(&mut fabric, "shop/server", &answer, "shop/client");
                assert_eq!(found[0], end(WEB, PORT));
                passes(&mut fabric, "shop/client", &tuple.data(b"x"), "shop/server");
            }
            // If the backend is gone meanwhile, the flow is not restored.
            fabric.set_services(without_server(&fabric, protocol));
            let restored = fabric.nodes[0].replace_workers(workers, SIZES, true);
            assert_eq!((restored.flows, restored.ended), (0, 20));
        }
    }
}

#[test]
fn workers_find_a_flow_by_both_keys_wherever_its_packets_arrive() {
    for arrival in 0..8 {
        let at = |bit: usize| arrival >> bit & 1;
        let mut fabric = Fabric::closed_with(2, SIZES);
        fabric = fabric.into_translating(&cluster(""), services(WEB, &[SERVER]));
        let (client, server) = (fabric.port("shop/client").1, fabric.port("shop/server").1);
        for n in 0..50 {
            let (asked, behind) = both(WEB, UDP, SERVER);
            let (asked, behind) = (asked.from_port(1000 + n), behind.from_port(1000 + n));
            let mut sends = |worker: usize, port, bytes: &[u8], to| {
                let wire = &fabric.nodes[0].wires[&port];
                assert!(wire.inject_at(worker, bytes, Default::default()));
                let out = only(fabric.run_until_idle());
                assert_eq!(out.port, to);
                ends(&out.frame.bytes)
            };
            let found = sends(at(0), client, &asked.opening(), server);
            let port = found[0].1;
            let answer = behind.from_port(port).answer();
            let found = sends(at(1), server, &answer, client);
            assert_eq!(found, [end(WEB, PORT), end(CLIENT, 1000 + n)]);
            let found = sends(at(2), client, &asked.data(b"x"), server);
            assert_eq!(found, [end(CLIENT, port), end(SERVER, BEHIND)]);
        }
    }
}

#[test]
fn a_client_with_an_affinity_keeps_its_backend() {
    let mut table = ServiceTable::default();
    set(&mut table, WEB, &Frontend { affinity: Some(100), ..frontend(1, &[SERVER, FAR]) });
    let mut fabric = Fabric::translating(&cluster(""), table);
    let mut backends = |n: u16| {
        let tuple = Tuple::new(CLIENT, WEB, TCP, PORT).from_port(2000 + n);
        let out = only(fabric.send("shop/client", &tuple.opening()));
        fabric.nodes[0].now += std::time::Duration::from_secs(if n % 32 == 31 { 101 } else { 10 });
        addresses(&out.frame.bytes).1
    };
    let all: Vec<_> = (0..10 * 32).map(&mut backends).collect();
    let rounds: Vec<_> = all.chunks(32).collect();
    assert!(rounds.iter().all(|round| round.iter().all(|it| *it == round[0])));
    assert!(rounds.iter().any(|round| round[0] != rounds[0][0]), "1 in 512 that all are the same");
}

#[test]
fn a_ping_of_a_service_finds_nobody() {
    let mut fabric = fabric(WEB, &[SERVER]);
    fabric.send("shop/client", &Tuple::new(CLIENT, WEB, ICMP, 0).opening());
    assert_eq!(dropped(&fabric, "shop/client", DropReason::ServiceWithoutPort), 1);
}

/// The backend's policy sees the outside host's own address.
#[test]
fn an_outside_host_that_asks_a_service_is_judged_as_itself() {
    let allows = |net: &str| {
        let rule = format!("{{from: [{{ipBlock: {{cidr: {net}}}}}], ports: [{{port: {BEHIND}}}]}}");
        policy("shop/p", &format!("{{podSelector: {{}}, ingress: [{rule}]}}"))
    };
    let asked = Tuple::new("192.0.2.7", WEB, TCP, PORT);
    for (net, passes) in [("192.0.2.0/24", true), ("10.0.0.0/8", false)] {
        let mut fabric = Fabric::translating(&cluster(&allows(net)), services(WEB, &[SERVER]));
        let out = fabric.send_at(0, FORWARDED, &asked.opening());
        assert_eq!(out.len(), usize::from(passes), "{net}");
        if passes {
            assert_eq!(addresses(&out[0].frame.bytes).0, asked.source);
            let behind = Tuple::new("192.0.2.7", SERVER, TCP, BEHIND);
            let out = only(fabric.send("shop/server", &behind.answer()));
            assert_eq!((out.node, out.port), (0, HOST));
            assert_eq!(ends(&out.frame.bytes)[0], end(WEB, PORT));
        }
    }
}

/// The node's own processes connect in the same way as pods.
#[test]
fn the_node_itself_reaches_services() {
    let mut fabric = fabric(WEB, &[FAR]);
    let node = ROUTER[0].to_string();
    let asked = Tuple::new(&node, WEB, TCP, PORT);
    let out = only(fabric.send_at(0, HOST, &asked.opening()));
    assert_eq!((out.node, out.port), fabric.port("shop/far"));
    let behind = Tuple::new(&node, FAR, TCP, BEHIND);
    let out = only(fabric.send("shop/far", &behind.answer()));
    assert_eq!((out.node, out.port), (0, HOST));
    assert_eq!(ends(&out.frame.bytes), [end(WEB, PORT), end(&node, asked.source_port)]);
}
