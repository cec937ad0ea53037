//! The ports of connections that are over. On the way out, other connections get them if no port is
//! free.

use std::time::Duration;

use etherparse::{SlicedPacket, TransportSlice};
use manx_dataplane::services::ServiceTable;
use manx_tests::fabric::{Fabric, MANX, policy, workers};
use manx_tests::packet::{Segment, TCP, Tuple, UDP};
use proptest::prelude::*;

use super::egress::{CLIENT, OTHER, WORLD, cluster, ends, fabric_of, node, only, services};

const WEB: &str = "10.96.0.7";

/// A pod's connection to one server of the world.
#[derive(Debug, Clone, Copy)]
struct Connection {
    pod: &'static str,
    asked: Tuple,
    behind: Tuple,
}

/// A segment and its sender. `Data` without data is an acknowledgement.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Sent {
    Pod(Segment),
    Server(Segment),
}

use Segment::{Data, Fin, Rst, Syn, SynAck};
use Sent::{Pod, Server};

const OPEN: [Sent; 2] = [Server(SynAck), Pod(Data)];
const POD_CLOSES: [Sent; 3] = [Pod(Fin), Server(Fin), Pod(Data)];
const SERVER_CLOSES: [Sent; 3] = [Server(Fin), Pod(Fin), Server(Data)];

fn fabric(ports: u16) -> Fabric {
    fabric_of("", ServiceTable::default(), (61_000, 61_000 + ports - 1))
}

impl Connection {
    /// Sends the first SYN. `None`: the connection is refused.
    fn open(fabric: &mut Fabric, address: &str, port: u16) -> Option<Self> {
        let pod = if address == CLIENT { "shop/client" } else { "shop/other" };
        let asked = Tuple::new(address, WORLD, TCP, 443).from_port(port);
        let mut out = fabric.send(pod, &asked.opening());
        let [(source, source_port), _] = ends(&out.pop()?.frame.bytes);
        assert_eq!(source, node());
        let behind = Tuple { source: source.parse().unwrap(), source_port, ..asked };
        Some(Self { pod, asked, behind })
    }

    /// Sends segments, and checks that each comes out at the other side with this connection's
    /// tuple.
    fn send(&self, fabric: &mut Fabric, segments: &[Sent]) {
        for sent in segments {
            let (out, at, expected) = match sent {
                Pod(segment) => {
                    let out = fabric.send(self.pod, &self.asked.packet(*segment, b""));
                    (out, (0, MANX), (node(), self.behind.source_port))
                }
                Server(segment) => {
                    let answer = self.behind.reversed().packet(*segment, b"");
                    let expected = (self.asked.source.to_string(), self.asked.source_port);
                    (fabric.send_at(0, MANX, &answer), fabric.port(self.pod), expected)
                }
            };
            let out = only(out);
            let [from, to] = ends(&out.frame.bytes);
            let seen = if matches!(sent, Pod(_)) { from } else { to };
            assert_eq!(((out.node, out.port), seen), (at, expected), "{sent:?} of {self:?}");
        }
    }
}

fn evictions(fabric: &Fabric) -> u64 {
    fabric.nodes[0].counters.iter().map(|it| it.evictions.read()).sum()
}

#[test]
fn thousands_of_short_connections_to_one_server_need_no_more_than_a_few_ports() {
    let mut fabric = fabric(16);
    for n in 0..5000 {
        let connection = Connection::open(&mut fabric, CLIENT, 1024 + n);
        let connection = connection.unwrap_or_else(|| panic!("connection {n} is refused"));
        connection.send(&mut fabric, &OPEN);
        connection.send(&mut fabric, if n % 2 == 0 { &POD_CLOSES } else { &SERVER_CLOSES });
    }
    assert_eq!(evictions(&fabric), 0);
}

/// A peer whose last FIN is not acknowledged may send data again.
#[test]
fn a_connection_keeps_its_port_until_the_last_acknowledgement() {
    for closing in [POD_CLOSES, SERVER_CLOSES] {
        let mut fabric = fabric(1);
        let first = Connection::open(&mut fabric, CLIENT, 1024).unwrap();
        first.send(&mut fabric, &OPEN);
        for sent in closing {
            assert!(Connection::open(&mut fabric, CLIENT, 1025).is_none(), "before {sent:?}");
            first.send(&mut fabric, &[sent]);
        }
        let second = Connection::open(&mut fabric, CLIENT, 1025).unwrap();
        second.send(&mut fabric, &OPEN);
        // A late packet of the first connection's pod finds no connection.
        let late = only(fabric.send("shop/client", &first.asked.packet(Data, b"")));
        assert_eq!(ends(&late.frame.bytes)[0], (WORLD.to_owned(), 443), "a reset");
    }
}

/// Anybody can forge a reset.
#[test]
fn a_reset_frees_a_port_after_two_seconds_of_silence() {
    for (opening, after) in [(&OPEN[..], Data), (&[][..], SynAck)] {
        let mut fabric = fabric(1);
        let first = Connection::open(&mut fabric, CLIENT, 1024).unwrap();
        first.send(&mut fabric, opening);
        first.send(&mut fabric, &[Server(Rst)]);
        fabric.nodes[0].now += Duration::from_secs(1);
        assert!(Connection::open(&mut fabric, CLIENT, 1025).is_none());
        first.send(&mut fabric, &[Server(after)]);
        fabric.nodes[0].now += Duration::from_secs(3);
        assert!(Connection::open(&mut fabric, CLIENT, 1025).is_none(), "it goes on");
        first.send(&mut fabric, &[Server(Rst)]);
        fabric.nodes[0].now += Duration::from_secs(2);
        assert!(Connection::open(&mut fabric, CLIENT, 1025).is_some());
    }
}

/// The other pod has both ports. One of its connections is over, the other is not.
#[test]
fn a_pod_without_a_port_gets_that_of_anothers_connection_that_is_over() {
    // Each of several workers checks only its own ports.
    if workers() > 1 {
        return;
    }
    let mut fabric = fabric(2);
    let [over, lives] = [1024, 1025].map(|port| {
        let it = Connection::open(&mut fabric, CLIENT, port).unwrap();
        it.send(&mut fabric, &OPEN);
        it
    });
    over.send(&mut fabric, &POD_CLOSES);
    let own = Connection::open(&mut fabric, OTHER, 1024).unwrap();
    own.send(&mut fabric, &OPEN);
    assert_eq!(own.behind.source_port, over.behind.source_port);
    assert_eq!(evictions(&fabric), 0);
    lives.send(&mut fabric, &[Server(Data), Pod(Data)]);
    // The pod's own connection comes first.
    own.send(&mut fabric, &SERVER_CLOSES);
    lives.send(&mut fabric, &POD_CLOSES);
    fabric.nodes[0].now += Duration::from_secs(5);
    own.send(&mut fabric, &[Server(Fin)]);
    let next = Connection::open(&mut fabric, OTHER, 1026).unwrap();
    assert_eq!(next.behind.source_port, own.behind.source_port);
}

/// The server does not know that the earlier connection has lost its port. It still sends on it,
/// and answers the next SYN with an acknowledgement that has the old sequence numbers (RFC 5961,
/// section 4). No such packet reaches the next pod. Only the SYN of the next pod passes, until the
/// server has got a reset and answers that SYN.
#[test]
fn a_pod_that_gets_the_port_of_a_live_connection_hears_nothing_of_it() {
    if workers() > 1 {
        return;
    }
    let mut fabric = fabric(2);
    let taken = [1024, 1025].map(|port| {
        let it = Connection::open(&mut fabric, CLIENT, port).unwrap();
        it.send(&mut fabric, &OPEN);
        it
    });
    let next = Connection::open(&mut fabric, OTHER, 1024).unwrap();
    assert_eq!(evictions(&fabric), 1);
    let port = next.behind.source_port;
    assert!(taken.iter().any(|it| it.behind.source_port == port), "{next:?}");
    for from_server in [Data, Fin] {
        let packet = next.behind.reversed().packet(from_server, b"secret");
        let out = only(fabric.send_at(0, MANX, &packet));
        let told = (out.node, out.port, ends(&out.frame.bytes));
        let expected = [(node(), port), (WORLD.to_owned(), 443)];
        assert_eq!(told, (0, MANX, expected), "{from_server:?}: the server is told");
        assert!(is_reset(&out.frame.bytes), "{from_server:?}");
    }
    for from_pod in [Data, Fin, Rst, SynAck] {
        let out = fabric.send(next.pod, &next.asked.packet(from_pod, b"guessed"));
        assert_eq!(out.len(), 0, "{from_pod:?}");
    }
    next.send(&mut fabric, &[Pod(Syn), Server(SynAck), Pod(Data), Server(Data)]);
}

fn is_reset(packet: &[u8]) -> bool {
    let transport = SlicedPacket::from_ip(packet).unwrap().transport;
    matches!(transport, Some(TransportSlice::Tcp(tcp)) if tcp.rst())
}

/// UDP answers that are under way reach no other pod. If there is no other port, another connection
/// gets the flow's port when the flow has been silent for a moment.
#[test]
fn a_flow_of_udp_keeps_its_port_until_it_is_quiet() {
    if workers() > 1 {
        return;
    }
    let asked = |from: &str, port| Tuple::new(from, WORLD, UDP, 443).from_port(port);
    for (pod, address) in [("shop/client", CLIENT), ("shop/other", OTHER)] {
        let mut fabric = fabric(2);
        let behind = [1024, 1025].map(|port| {
            let out = only(fabric.send("shop/client", &asked(CLIENT, port).opening()));
            let [(source, source_port), _] = ends(&out.frame.bytes);
            Tuple { source: source.parse().unwrap(), source_port, ..asked(CLIENT, port) }
        });
        for it in behind {
            only(fabric.send_at(0, MANX, &it.answer()));
        }
        for _ in 0..5 {
            assert_eq!(fabric.send(pod, &asked(address, 2000).opening()).len(), 0);
            for it in behind {
                let out = only(fabric.send_at(0, MANX, &it.answer()));
                assert_eq!((out.node, out.port), fabric.port("shop/client"));
            }
            fabric.nodes[0].now += Duration::from_secs(4);
        }
        fabric.nodes[0].now += Duration::from_secs(1);
        only(fabric.send(pod, &asked(address, 2000).opening()));
    }
}

/// A pod's resolver sends thousands of queries to its server in a minute, each from another source
/// port.
#[test]
fn a_pod_takes_the_ports_of_its_own_quiet_flows_of_udp() {
    let mut fabric = fabric(64);
    for n in 0..5000_u16 {
        let asked = Tuple::new(CLIENT, WORLD, UDP, 53).from_port(1024 + n);
        let out = only(fabric.send("shop/client", &asked.opening()));
        let [(source, source_port), _] = ends(&out.frame.bytes);
        let behind = Tuple { source: source.parse().unwrap(), source_port, ..asked };
        let out = only(fabric.send_at(0, MANX, &behind.answer()));
        assert_eq!((out.node, out.port), fabric.port("shop/client"), "{n}");
        if n % 4 == 3 {
            fabric.nodes[0].now += Duration::from_secs(1);
        }
    }
}

/// A client chooses the source port of each connection without regard to its connections to other
/// addresses.
#[test]
fn a_backend_is_asked_from_the_port_of_a_connection_through_the_service_that_is_over() {
    let table = services(&[(WEB, 80, OTHER, 8080)]);
    let denied =
        policy("shop/p", "{podSelector: {matchLabels: {app: other}}, policyTypes: [Ingress]}");
    let mut fabric = fabric_of("", table, (61_000, 61_010));
    let asked = Tuple::new(CLIENT, WEB, TCP, 80);
    let direct = Tuple { destination: OTHER.parse().unwrap(), destination_port: 8080, ..asked };
    let opens = |fabric: &mut Fabric| fabric.send("shop/client", &direct.opening()).len();
    let script = [&[Pod(Syn)], &OPEN[..], &POD_CLOSES].concat();
    for sent in &script {
        let (from, packet) = match sent {
            Pod(segment) => ("shop/client", asked.packet(*segment, b"")),
            Server(segment) => ("shop/other", direct.reversed().packet(*segment, b"")),
        };
        assert_eq!(only(fabric.send(from, &packet)).node, 0, "{sent:?}");
        if sent != script.last().unwrap() {
            assert_eq!(opens(&mut fabric), 0, "after {sent:?}");
        }
    }
    // A packet that may not open a connection does not end one, either.
    fabric.apply(&cluster(&denied));
    assert_eq!(opens(&mut fabric), 0);
    assert_eq!(fabric.nodes[0].flows().len(), 1);
    fabric.apply(&cluster(""));
    assert_eq!(opens(&mut fabric), 1);
    let answer = only(fabric.send("shop/other", &direct.answer()));
    assert_eq!(ends(&answer.frame.bytes)[0], (OTHER.to_owned(), 8080), "not the service's answer");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// One pod and two ports. The pod gets a connection if and only if fewer than two connections
    /// are live, and each segment of a live connection finds its connection, whatever the pod
    /// opens.
    #[test]
    fn no_live_connection_loses_its_port(
        steps in prop::collection::vec((any::<prop::sample::Index>(), 0..5u8), 1..80),
    ) {
        let mut fabric = fabric(2);
        let reset_and_on = [&[Server(Rst), Pod(Data), Server(Data)][..], &POD_CLOSES].concat();
        let scripts = [&POD_CLOSES[..], &SERVER_CLOSES, &reset_and_on];
        // The connections that are not over, each with the segments still to be sent.
        let mut live: Vec<(Connection, Vec<Sent>)> = Vec::new();
        for (n, (which, action)) in (0..).zip(steps) {
            if action == 0 {
                let opened = Connection::open(&mut fabric, CLIENT, 1024 + n);
                prop_assert!(opened.is_none() || live.len() < 2, "{live:?}");
                // A packet is handed over once, so of several workers only two are asked for a
                // port.
                prop_assert!(opened.is_some() || live.len() == 2 || workers() > 1, "{live:?}");
                let script = [&OPEN, scripts[which.index(scripts.len())]].concat();
                live.extend(opened.map(|it| (it, script)));
            } else if !live.is_empty() {
                let at = which.index(live.len());
                let (connection, script) = &mut live[at];
                connection.send(&mut fabric, &[script.remove(0)]);
                if script.is_empty() {
                    live.remove(at);
                }
            }
        }
        for (connection, rest) in live {
            connection.send(&mut fabric, &rest);
        }
    }
}
