//! Pods that another plugin connects, on nodes where Manx translates services.

use manx_dataplane::drop_reason::DropReason;
use manx_dataplane::tables::PortId;
use manx_tests::fabric::{Delivery, FORWARDED, Fabric, HOST, MANX, SIZES, pod, policy};
use manx_tests::packet::{TCP, Tuple, UDP};

use crate::egress::{CLIENT, FAR, NODE_PORT, OTHER, PORTS, WORLD, ends, node, only, services};

const LOCAL: &str = "10.96.0.7";
const REMOTE: &str = "10.96.0.8";
const OWN: &str = "10.96.0.9";
const BEHIND: u16 = 8080;
const REMOTE_PORT: u16 = NODE_PORT + 1;

fn fabric(policies: &str) -> Fabric {
    let node = node();
    let table = services(&[
        (LOCAL, 80, OTHER, BEHIND),
        (REMOTE, 80, FAR, BEHIND),
        (OWN, 80, CLIENT, BEHIND),
        (&node, NODE_PORT, OTHER, BEHIND),
        (&node, REMOTE_PORT, FAR, BEHIND),
    ]);
    let service = |name: &str, address: &str| {
        format!(
            "apiVersion: v1\nkind: Service\nmetadata: {{name: {name}, namespace: shop}}\n\
             spec: {{clusterIP: {address}, ports: [{{port: 80}}]}}\n---\n"
        )
    };
    let cluster = pod("shop/client", 0, "{app: client}", &[CLIENT])
        + &pod("shop/other", 0, "{app: other}", &[OTHER])
        + &pod("shop/far", 1, "{app: far}", &[FAR])
        + &service("local", LOCAL)
        + &service("remote", REMOTE)
        + &service("own", OWN)
        + policies;
    Fabric::policy_only_translating(&cluster, table, PORTS)
}

/// A connection as one end sees it, with the port by which its packets come in.
#[derive(Debug, Clone, Copy)]
struct End {
    port: PortId,
    seen: Tuple,
}

impl End {
    /// The port by which packets to this end leave. Senders behind the node's forwarding get their
    /// answers by the node's own port.
    fn back(self) -> PortId {
        if self.port == FORWARDED { HOST } else { self.port }
    }
}

/// Opens a connection, which must come out at `at`. Returns the server's end.
#[track_caller]
fn open(fabric: &mut Fabric, client: End, at: PortId) -> End {
    let out = only(fabric.send_at(0, client.port, &client.seen.opening()));
    assert_eq!((out.node, out.port), (0, at), "{:?}", fabric.nodes[0].drops());
    End { port: at, seen: seen(&out, client.seen) }
}

/// The connection of a packet, of the same protocol as this one.
fn seen(delivery: &Delivery, like: Tuple) -> Tuple {
    let [from, to] = ends(&delivery.frame.bytes);
    Tuple {
        source: from.0.parse().unwrap(),
        source_port: from.1,
        destination: to.0.parse().unwrap(),
        destination_port: to.1,
        ..like
    }
}

/// Checks that both ends can send, and that each sees the other end with the address that it knows.
#[track_caller]
fn talk(fabric: &mut Fabric, client: End, server: End) {
    for (from, to) in [
        (
            End { seen: server.seen.reversed(), ..server },
            End { seen: client.seen.reversed(), ..client },
        ),
        (client, server),
    ] {
        let out = fabric.send_at(0, from.port, &from.seen.data(b"x"));
        assert_eq!(out.len(), 1, "{from:?} to {to:?}: {:?}", fabric.nodes[0].drops());
        let out = only(out);
        assert_eq!((out.node, out.port), (0, to.back()), "{:?}", fabric.nodes[0].drops());
        assert_eq!(seen(&out, to.seen), to.seen);
    }
}

/// A client's request, and the way of its packets.
struct Way {
    client: End,
    /// The port by which the packets leave.
    leaves_by: PortId,
    backend: &'static str,
    /// Whether the backend sees the node, and not the client.
    sees_node: bool,
}

fn ways(fabric: &Fabric, protocol: u8) -> Vec<Way> {
    let port = |pod| fabric.port(pod).1;
    let (client, other, node) = (port("shop/client"), port("shop/other"), &*node());
    let own_side = fabric.host_side("shop/client");
    let all = [
        (client, CLIENT, (LOCAL, 80), other, OTHER, false),
        (client, CLIENT, (REMOTE, 80), own_side, FAR, false),
        (client, CLIENT, (node, NODE_PORT), other, OTHER, false),
        (client, CLIENT, (node, REMOTE_PORT), own_side, FAR, false),
        (HOST, node, (LOCAL, 80), other, OTHER, false),
        (HOST, node, (REMOTE, 80), MANX, FAR, true),
        (FORWARDED, WORLD, (LOCAL, 80), other, OTHER, false),
        (MANX, WORLD, (node, NODE_PORT), other, OTHER, false),
        (MANX, WORLD, (node, REMOTE_PORT), MANX, FAR, true),
    ];
    let way = |((port, source, (address, at), leaves_by, backend, sees_node), from_port)| {
        let seen = Tuple::new(source, address, protocol, at).from_port(from_port);
        Way { client: End { port, seen }, leaves_by, backend, sees_node }
    };
    all.into_iter().zip(5000..).map(way).collect()
}

#[test]
fn services_lead_each_client_to_pods_here_and_by_the_nodes_kernel_to_pods_elsewhere() {
    for protocol in [TCP, UDP] {
        let mut fabric = fabric("");
        let mut connections = Vec::new();
        for Way { client, leaves_by, backend, sees_node } in ways(&fabric, protocol) {
            let server = open(&mut fabric, client, leaves_by);
            only(fabric.send_at(0, server.port, &server.seen.answer()));
            let Tuple { source, source_port, destination, destination_port, .. } = server.seen;
            assert_eq!((destination.to_string(), destination_port), (backend.to_owned(), BEHIND));
            if sees_node {
                assert_eq!(source.to_string(), node());
                assert!((PORTS.0..=PORTS.1).contains(&source_port), "{server:?}");
            } else {
                assert_eq!((source, source_port), (client.seen.source, client.seen.source_port));
            }
            connections.push((client, server));
        }
        for _ in 0..2 {
            for (client, server) in &connections {
                talk(&mut fabric, *client, *server);
            }
            fabric.publish();
        }
        let restored = fabric.nodes[0].replace_workers(1, SIZES, true);
        assert_eq!((restored.flows, restored.ended), (connections.len(), 0));
        for (client, server) in &connections {
            talk(&mut fabric, *client, *server);
        }
    }
}

#[test]
fn a_pod_reaches_itself_through_a_service() {
    let mut fabric = fabric(&policy("shop/p", "{podSelector: {}, policyTypes: [Ingress, Egress]}"));
    let (_, port) = fabric.port("shop/client");
    let client = End { port, seen: Tuple::new(CLIENT, OWN, TCP, 80) };
    let server = open(&mut fabric, client, port);
    assert_eq!(ends(&server.seen.opening())[0].0, "169.254.1.1");
    talk(&mut fabric, client, server);
}

/// The node reaches its own pods under any policy. A sender that its kernel masquerades does not.
#[test]
fn policy_judges_who_asks_a_service_and_a_masqueraded_sender_is_not_the_node() {
    let mut fabric = fabric(&policy("shop/p", "{podSelector: {matchLabels: {app: other}}}"));
    let (_, other) = fabric.port("shop/other");
    let node = node();
    let by_node = End { port: HOST, seen: Tuple::new(&node, LOCAL, TCP, 80) };
    let server = open(&mut fabric, by_node, other);
    talk(&mut fabric, by_node, server);
    for (port, source, asked) in [
        (FORWARDED, &*node, (LOCAL, 80)),
        (FORWARDED, WORLD, (LOCAL, 80)),
        (MANX, WORLD, (&*node, NODE_PORT)),
        (fabric.port("shop/client").1, CLIENT, (LOCAL, 80)),
    ] {
        let asks = Tuple::new(source, asked.0, TCP, asked.1).from_port(4321);
        assert_eq!(fabric.send_at(0, port, &asks.opening()).len(), 0, "{source} by {port:?}");
        let denied = fabric.nodes[0].dropped(port, DropReason::PolicyIngress);
        assert!(denied > 0, "{source} by {port:?}: {:?}", fabric.nodes[0].drops());
    }
}
