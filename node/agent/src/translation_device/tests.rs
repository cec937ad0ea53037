//! A node and an outside host, joined by a veth: packets at `manx1`, and sockets at both ends.

mod place;
mod traffic;

use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::process::Command;
use std::time::{Duration, Instant};

use manx_dataplane::packet::Pool;
use manx_dataplane::port::icmp_raw::IcmpRaw;
use manx_dataplane::port::icmpv6_raw::Icmpv6Raw;
use manx_dataplane::port::{PacketIo, Reception};
use manx_linux::netlink::{Action, MAIN, PortRange, Transport};
use manx_linux::testing::{namespaces_allowed, tun_allowed};

use super::*;
use crate::port_rules::Step;
use place::{Place, in_node, in_world};
use traffic::{
    arrive, checksum, connect, datagram, ends, heard, hears_nothing, is_served, octets, packet,
    send, udp, waits_in_vain,
};

/// A wait that is long enough for a packet that arrives.
const SHORT: Duration = Duration::from_millis(200);
/// A wait that is long enough for everything that arrives at all.
const LONG: Duration = Duration::from_secs(5);

const NODE: [&str; 2] = ["192.0.2.1", "2001:db8::1"];
const WORLD: [&str; 2] = ["192.0.2.2", "2001:db8::2"];

const ICMP: u8 = 1;
const ICMPV6: u8 = 58;
const UDP: u8 = 17;
const TCP: u8 = 6;

fn range(first: u16, last: u16) -> PortRange {
    PortRange::new(first, last).unwrap()
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// The ranges of service addresses.
const RANGES: [&str; 2] = ["10.96.0.0/12", "fd96::/112"];

fn desired() -> Desired {
    let all: BTreeSet<IpAddr> = NODE.map(ip).into();
    let ranges = RANGES.map(|it| it.parse().unwrap()).into();
    Desired { egress: all.clone(), node_ports: all, ranges, ..Desired::default() }
}

#[test]
fn ports_of_manx_go_to_manx_and_the_nodes_own_connections_are_left_alone() {
    if !namespaces_allowed() || !tun_allowed() {
        return;
    }
    let place = Place::new();
    let before = place.state();
    // An existing connection of the node, like that of ssh.
    let ssh = in_node(&place, || TcpListener::bind((ip(NODE[0]), 22)).unwrap());
    let standing = in_world(&place, || connect((NODE[0], 22)));
    let (device, mut queues) = place.attach().unwrap();
    device.reconcile(&desired()).unwrap();
    assert_eq!(device.reconcile(&desired()).unwrap(), Findings::default(), "again changes nothing");
    assert!(is_served(&ssh, standing));

    for (node, world) in NODE.into_iter().zip(WORLD) {
        let address = |text: &str, port: u16| SocketAddr::from((ip(text), port));
        let server = in_world(&place, || udp(world, 53));
        // Packets go out with the node's address as the source, and answers come back.
        send(&mut queues, &datagram((node, 61000), (world, 53), b"out"));
        assert_eq!(heard(&server), Some((b"out".to_vec(), address(node, 61000))));
        for port in [61000, 65534, 30000, 32767] {
            server.send_to(b"back", (ip(node), port)).unwrap();
            let there = vec![(UDP, address(world, 53), address(node, port))];
            assert_eq!(arrive(&mut queues, LONG), there);
        }
        // The kernel answers neither of them: the client waits, and is not refused.
        for port in [61000, 30080] {
            assert!(in_world(&place, || waits_in_vain((node, port))), "{node} {port}");
            let (protocol, _, to) = arrive(&mut queues, LONG)[0];
            assert_eq!((protocol, to), (TCP, address(node, port)));
        }
        // A socket of the node at such a port gets no packets.
        let shadowed = in_node(&place, || udp(node, 30081));
        server.send_to(b"?", (ip(node), 30081)).unwrap();
        assert_eq!(arrive(&mut queues, LONG).len(), 1);
        assert!(hears_nothing(&shadowed));

        // A process of the node uses its own node port.
        let own = in_node(&place, || udp(node, 0));
        own.send_to(b"own", (ip(node), 30080)).unwrap();
        let from = own.local_addr().unwrap();
        assert_eq!(arrive(&mut queues, LONG), [(UDP, from, address(node, 30080))]);
        send(&mut queues, &datagram((node, 30080), (node, from.port()), b"answer"));
        assert_eq!(heard(&own), Some((b"answer".to_vec(), address(node, 30080))));
        // The kernel chooses the requested address as the source of the answer.
        let unbound = in_node(&place, || {
            let socket = UdpSocket::bind(if node.contains(':') { "[::]:0" } else { "0.0.0.0:0" });
            let socket = socket.unwrap();
            socket.connect((ip(node), 30080)).unwrap();
            socket
        });
        assert_eq!(unbound.local_addr().unwrap().ip(), ip(node));

        // The backend is on this node. One client is a pod, which has the node's address as its source, and the other is
        // outside.
        let backend = in_node(&place, || udp(node, 8080));
        for (client, port) in [(node, 61001), (world, 999)] {
            send(&mut queues, &datagram((client, port), (node, 8080), b"ask"));
            assert_eq!(heard(&backend), Some((b"ask".to_vec(), address(client, port))));
        }
        backend.send_to(b"tell", (ip(node), 61001)).unwrap();
        let answer = [(UDP, address(node, 8080), address(node, 61001))];
        assert_eq!(arrive(&mut queues, LONG), answer);

        // The node's own connections: outgoing, incoming, and to itself.
        let listener = in_node(&place, || TcpListener::bind((ip(node), 2222)).unwrap());
        assert!(is_served(&listener, in_world(&place, || connect((node, 2222)))));
        assert!(is_served(&listener, in_node(&place, || connect((node, 2222)))));
        let listener = in_world(&place, || TcpListener::bind((ip(world), 443)).unwrap());
        assert!(is_served(&listener, in_node(&place, || connect((world, 443)))));
        assert_eq!(arrive(&mut queues, SHORT), []);
    }

    // Another process removes everything.
    drop(queues);
    for _ in 0..2 {
        in_node(&place, || remove(&place.settings.record).unwrap());
        let after = place.state();
        for (key, value) in &before {
            assert_eq!(after.get(key), Some(value), "{key}");
        }
        assert_eq!(after.len(), before.len());
    }
}

/// A pod's host port is routed to Manx at the node's address, and at 127.0.0.1 for the node's own processes.
#[test]
fn host_ports_lead_to_manx_also_at_loopback() {
    if !namespaces_allowed() || !tun_allowed() {
        return;
    }
    let (place, node, loopback) = (Place::new(), ip(NODE[0]), Ipv4Addr::LOCALHOST.into());
    let port = |address, transport, port| GrantedPort { address, transport, port };
    let host_ports = [port(node, Transport::Udp, 8080), port(loopback, Transport::Udp, 8080)];
    let mut desired = Desired { host_ports: host_ports.into(), ..desired() };
    desired.node_ports.insert(loopback);
    let (device, mut queues) = place.attach().unwrap();
    device.reconcile(&desired).unwrap();
    assert_eq!(device.reconcile(&desired).unwrap(), Findings::default());
    let reserved = || in_node(&place, || sysctl::read("ipv4/ip_local_reserved_ports").unwrap());
    assert_eq!(reserved(), "8080,30000-32767,61000-65534");

    let address = |text: &str, port: u16| SocketAddr::from((ip(text), port));
    let server = in_world(&place, || udp(WORLD[0], 53));
    server.send_to(b"?", (node, 8080)).unwrap();
    assert_eq!(arrive(&mut queues, LONG), [(UDP, address(WORLD[0], 53), address(NODE[0], 8080))]);
    // For a packet to 127.0.0.1, the kernel sets the node's address as the source, and accepts answers from 127.0.0.1.
    for port in [8080, 30080] {
        let own = in_node(&place, || UdpSocket::bind("0.0.0.0:0").unwrap());
        own.set_read_timeout(Some(LONG)).unwrap();
        own.connect((loopback, port)).unwrap();
        own.send(b"own").unwrap();
        let from = own.local_addr().unwrap();
        assert_eq!(from.ip(), node);
        assert_eq!(arrive(&mut queues, LONG), [(UDP, from, (loopback, port).into())]);
        let answer = datagram(("127.0.0.1", port), (NODE[0], from.port()), b"answer");
        send(&mut queues, &answer);
        assert_eq!(heard(&own), Some((b"answer".to_vec(), (loopback, port).into())));
    }
    // Processes keep the other ports of 127.0.0.1.
    let listener = in_node(&place, || TcpListener::bind("127.0.0.1:10248").unwrap());
    assert!(is_served(&listener, in_node(&place, || connect(("127.0.0.1", 10248)))));

    // The pod is removed.
    desired.host_ports.clear();
    let findings = device.reconcile(&desired).unwrap();
    assert_eq!(findings.removed.len(), 2, "{findings:?}");
    assert_eq!(reserved(), "30000-32767,61000-65534");
    drop(queues);
    in_node(&place, || remove(&place.settings.record).unwrap());
    assert_eq!(reserved(), "");
}

/// `--nodeport-addresses` requests such addresses.
#[test]
fn node_ports_may_be_those_of_other_addresses_than_the_way_out_has() {
    const SECOND: &str = "198.51.100.1";
    if !namespaces_allowed() || !tun_allowed() {
        return;
    }
    let place = Place::new();
    netlink::in_netns(&place.node, async |netlink| {
        let link = netlink.existing("eth0").await?;
        netlink.add_address(link.index, "198.51.100.1/32".parse().unwrap()).await
    })
    .unwrap();
    let to_second = ["route", "add", "198.51.100.1/32", "via", NODE[0]];
    in_world(&place, || assert!(Command::new("ip").args(to_second).status().unwrap().success()));
    let (device, mut queues) = place.attach().unwrap();
    let desired = Desired {
        egress: [ip(NODE[0])].into(),
        node_ports: [ip(SECOND), ip("127.0.0.1")].into(),
        ..Desired::default()
    };
    device.reconcile(&desired).unwrap();
    assert_eq!(device.reconcile(&desired).unwrap(), Findings::default());
    let client = in_world(&place, || udp(WORLD[0], 999));
    let from = SocketAddr::from((ip(WORLD[0]), 999));
    for (address, port, is_manx) in [
        (SECOND, 30080, true),
        (SECOND, 61000, false),
        (NODE[0], 30080, false),
        (NODE[0], 61000, true),
    ] {
        let socket = in_node(&place, || udp(address, port));
        client.send_to(b"?", (ip(address), port)).unwrap();
        if is_manx {
            let there = [(UDP, from, (ip(address), port).into())];
            assert_eq!(arrive(&mut queues, LONG), there);
        } else {
            assert!(heard(&socket).is_some(), "{address} {port}");
        }
    }
    send(&mut queues, &datagram((SECOND, 30080), (WORLD[0], 999), b"answer"));
    assert_eq!(heard(&client), Some((b"answer".to_vec(), (ip(SECOND), 30080).into())));
    // A client of 127.0.0.1 has the node's address as its source there.
    let own = in_node(&place, || UdpSocket::bind("0.0.0.0:0").unwrap());
    own.connect(("127.0.0.1", 30080)).unwrap();
    assert_eq!(own.local_addr().unwrap().ip(), ip(SECOND));
}

/// A load balancer queries the agent at a port within the range of node ports.
#[test]
fn a_health_check_comes_to_the_agent_and_the_ports_beside_it_to_manx() {
    if !namespaces_allowed() || !tun_allowed() {
        return;
    }
    let place = Place::new();
    let at = ["192.0.2.1", "2001:db8::1", "127.0.0.1"].map(|it| SocketAddr::new(ip(it), 31000));
    let mut desired = Desired { health_checks: at.into(), ..desired() };
    desired.node_ports.insert(ip("127.0.0.1"));
    let (device, mut queues) = place.attach().unwrap();
    device.reconcile(&desired).unwrap();
    assert_eq!(device.reconcile(&desired).unwrap(), Findings::default());
    for check in at {
        let listen = |port| in_node(&place, || TcpListener::bind((check.ip(), port)).unwrap());
        let (checked, beside) = (listen(31000), listen(31001));
        let address = check.ip().to_string();
        assert!(is_served(&checked, in_node(&place, || connect((&address, 31000)))), "{check}");
        if !check.ip().is_loopback() {
            assert!(
                is_served(&checked, in_world(&place, || connect((&address, 31000)))),
                "{check}"
            );
        }
        beside.set_nonblocking(true).unwrap();
        in_node(&place, || assert!(waits_in_vain((&address, 31001)), "{check}"));
        assert!(beside.accept().is_err(), "{check}");
        assert!(!arrive(&mut queues, LONG).is_empty(), "{check}");
    }
    // The Service is deleted: no process of the node answers at the port any more.
    desired.health_checks.clear();
    assert_eq!(device.reconcile(&desired).unwrap().removed.len(), at.len());
    let _other = in_node(&place, || TcpListener::bind(at[0]).unwrap());
    in_world(&place, || assert!(waits_in_vain((NODE[0], 31000))));
    drop(queues);
    in_node(&place, || remove(&place.settings.record).unwrap());
}

#[test]
fn nobody_outside_sends_as_the_node() {
    if !namespaces_allowed() || !tun_allowed() {
        return;
    }
    let place = Place::new();
    let (device, mut queues) = place.attach().unwrap();
    device.reconcile(&desired()).unwrap();
    // The outside host also has a `manx1`, which forges packets: they arrive at the node's eth0.
    let forger = Place { node: place.world.try_clone().unwrap(), ..Place::new() };
    let (_forging, mut forgers) = forger.attach().unwrap();
    for (node, world) in NODE.into_iter().zip(WORLD) {
        let socket = in_node(&place, || udp(node, 53));
        send(&mut forgers, &datagram((world, 1), (node, 53), b"right"));
        assert!(heard(&socket).is_some(), "the way is open");
        for port in [1, 61000, 30000] {
            send(&mut forgers, &datagram((node, port), (node, 53), b"forged"));
            assert!(hears_nothing(&socket), "{node} {port}");
            send(&mut forgers, &datagram((node, port), (node, 30080), b"forged"));
            assert_eq!(arrive(&mut queues, SHORT), [], "{node} {port}");
        }
    }
}

#[test]
fn what_an_agent_leaves_behind_is_closed_and_the_next_one_goes_on() {
    if !namespaces_allowed() || !tun_allowed() {
        return;
    }
    let place = Place::new();
    let (device, queues) = place.attach().unwrap();
    device.reconcile(&desired()).unwrap();
    // The agent was killed: its queues are closed, and nothing was cleaned up.
    drop(queues);
    for node in NODE {
        let socket = in_node(&place, || udp(node, 30081));
        in_world(&place, || {
            assert!(waits_in_vain((node, 30080)), "{node}");
            let client = UdpSocket::bind(if node.contains(':') { "[::]:0" } else { "0.0.0.0:0" });
            client.unwrap().send_to(b"?", (ip(node), 30081)).unwrap();
        });
        assert!(hears_nothing(&socket));
        assert!(in_node(&place, || TcpStream::connect((ip(node), 30080))).is_err());
        let listener = in_node(&place, || TcpListener::bind((ip(node), 22)).unwrap());
        assert!(is_served(&listener, in_world(&place, || connect((node, 22)))));
    }
    // Packets of the node's processes to services do not leave by the default route.
    for (service, from) in [("10.96.0.10", "0.0.0.0:0"), ("fd96::a", "[::]:0")] {
        let asked = in_node(&place, || {
            let client = UdpSocket::bind(from).unwrap();
            client.send_to(b"?", (ip(service), 53)).map_err(|error| error.kind())
        });
        assert_eq!(asked, Err(io::ErrorKind::HostUnreachable), "{service}");
    }
    let (device, mut queues) = place.attach().unwrap();
    let findings = device.reconcile(&desired()).unwrap();
    assert_eq!(
        (findings.set.len(), &findings.removed[..]),
        (2, &[][..]),
        "two routes: {findings:?}"
    );
    let server = in_world(&place, || udp(WORLD[0], 53));
    server.send_to(b"back", (ip(NODE[0]), 61000)).unwrap();
    assert_eq!(arrive(&mut queues, LONG).len(), 1);
    // The node loses an address.
    let only = [ip(NODE[1])].into();
    device.reconcile(&Desired { egress: only, ..Desired::default() }).unwrap();
    server.send_to(b"back", (ip(NODE[0]), 61000)).unwrap();
    assert_eq!(arrive(&mut queues, SHORT), []);
    let local = place.rules().into_iter().filter(|it| it.contains("lookup local proto 2"));
    assert_eq!(
        local.collect::<Vec<String>>(),
        ["ip rule pref 0 lookup local proto 2", "ip -6 rule pref 4 lookup local proto 2"]
    );
    drop(queues);
    device.detach(&place.agent).unwrap();
}

#[test]
fn what_others_have_removed_is_set_again_and_what_they_have_added_is_told() {
    if !namespaces_allowed() || !tun_allowed() {
        return;
    }
    let place = Place::new();
    let (device, _queues) = place.attach().unwrap();
    device.reconcile(&desired()).unwrap();
    let all = place.rules();
    let foreign = Rule { made_by: 4, ..Rule::new(3, Family::V4, Action::Lookup(99)) };
    netlink::in_netns(&place.node, async |netlink| {
        // A network manager deletes rules that it does not know, in the same way.
        for rule in netlink.rules(Family::V4).await?.into_iter().filter_map(|it| it.rule) {
            if rule.preference < MOVED_LOCAL {
                netlink.delete_rule(&rule).await?;
            }
        }
        for route in netlink.table_routes(PORTS_TABLE, Family::V4).await? {
            netlink.delete_listed(&route).await?;
        }
        sysctl::set("ipv4/conf/manx1/rp_filter", "2")?;
        sysctl::set("ipv4/conf/all/rp_filter", "1")?;
        sysctl::set("ipv4/ip_local_reserved_ports", "\n")?;
        netlink.add_rule(&foreign).await
    })
    .unwrap();
    netlink::in_netns(&place.node, async |netlink| {
        let all = netlink.table_routes(MAIN, Family::V6).await?;
        let ours = all.iter().find(|it| it.last_resort().is_some()).unwrap();
        netlink.delete_listed(ours).await
    })
    .unwrap();
    let state = place.state();
    let (looked, done) = device.look(&desired());
    done.unwrap();
    assert_eq!(place.state(), state, "a look changes nothing");
    let findings = device.reconcile(&desired()).unwrap();
    assert_eq!((&looked.findings.set, &findings.set_back), (&findings.set, &findings.set));
    insta::assert_snapshot!(findings.set.join("\n"), @r"
    30000-32767,61000-65534 in net.ipv4.ip_local_reserved_ports
    net.ipv4.conf.manx1.rp_filter = 0
    ip route table 79 blackhole default (V4)
    ip route table 79 192.0.2.1/32 dev manx1 src 192.0.2.1
    ip rule pref 1 from 192.0.2.1/32 iif eth0 blackhole proto 77
    ip rule pref 1 iif manx1 lookup local proto 77
    ip rule pref 3 to 192.0.2.1/32 ipproto tcp dport 30000-32767 lookup 79 proto 77
    ip rule pref 3 to 192.0.2.1/32 ipproto tcp dport 61000-65534 lookup 79 proto 77
    ip rule pref 3 to 192.0.2.1/32 ipproto udp dport 30000-32767 lookup 79 proto 77
    ip rule pref 3 to 192.0.2.1/32 ipproto udp dport 61000-65534 lookup 79 proto 77
    ip rule pref 3 to 192.0.2.1/32 ipproto sctp dport 30000-32767 lookup 79 proto 77
    ip rule pref 3 to 192.0.2.1/32 ipproto sctp dport 61000-65534 lookup 79 proto 77
    ip route unreachable fd96::/112
    ");
    let strict = Error::StrictReversePath.to_string();
    assert_eq!(findings.foreign, ["ip rule pref 3 lookup 99 proto 4", &strict]);
    let now = place.rules().into_iter().filter(|rule| !findings.foreign.contains(rule));
    assert_eq!(now.collect::<Vec<String>>(), all);
    let (looked, _) = device.look(&desired());
    assert_eq!((&looked.findings.set[..], &looked.findings.removed[..]), (&[][..], &[][..]));
    let rules = looked.wanted.iter().filter(|it| it.contains(" rule ")).cloned();
    assert_eq!(rules.collect::<BTreeSet<String>>(), own_rules(&all));

    // If Manx itself now wants other rules, or a rule for a new interface, that does not count as a change by another
    // program.
    let mut other = desired();
    other.node_ports.clear();
    let dummy = ["link", "add", "eth7", "type", "veth", "peer", "name", "eth8"];
    in_node(&place, || assert!(Command::new("ip").args(dummy).status().unwrap().success()));
    let findings = device.reconcile(&other).unwrap();
    assert!(!findings.set.is_empty() && !findings.removed.is_empty(), "{findings:?}");
    assert_eq!(findings.set_back, [""; 0]);
    // A rule with Manx's protocol number that this agent has not made.
    let stale = Rule::new(3, Family::V4, Action::Lookup(PORTS_TABLE));
    netlink::in_netns(&place.node, async |netlink| netlink.add_rule(&stale).await).unwrap();
    let findings = device.reconcile(&other).unwrap();
    assert_eq!(findings.set_back, [format!("removed ({stale})")]);
}

/// Among these rules, Manx's own, and the one for the table `local`.
fn own_rules(all: &[String]) -> BTreeSet<String> {
    let preference = |rule: &str| {
        rule.split(' ').nth(if rule.contains(" -6 ") { 4 } else { 3 })?.parse::<u32>().ok()
    };
    all.iter().filter(|it| preference(it).is_some_and(|it| it <= MOVED_LOCAL)).cloned().collect()
}

#[test]
fn what_another_program_has_is_refused_and_left_alone() {
    if !namespaces_allowed() || !tun_allowed() {
        return;
    }
    let place = Place::new();
    let mut told = Vec::new();
    let mut refused = |prepare: &(dyn Fn() + Sync)| {
        in_node(&place, prepare);
        let before = place.state();
        told.push(place.attach().map(|_| ()).unwrap_err().to_string());
        assert_eq!(place.state(), before);
    };
    let change = |steps: &[Step]| {
        netlink::in_netns(&place.node, async |netlink| {
            for step in steps {
                match step {
                    Step::Add(rule) => netlink.add_rule(rule).await?,
                    Step::Delete(rule) => netlink.delete_rule(rule).await?,
                }
            }
            Ok(())
        })
        .unwrap();
    };
    let foreign = Rule {
        made_by: 4,
        interface: Some("eth7".to_owned()),
        ..Rule::new(2, Family::V6, Action::Lookup(99))
    };
    refused(&|| change(&[Step::Add(foreign.clone())]));
    let moved = |preference| Rule::of_local(preference, Family::V4);
    refused(&|| {
        let moves = [Step::Add(moved(100)), Step::Delete(moved(0))];
        change(&[&[Step::Delete(foreign.clone())][..], &moves].concat());
    });
    let route = |verb: &str| {
        let arguments = ["route", verb, "blackhole", "default", "table", "79", "proto", "static"];
        assert!(Command::new("ip").args(arguments).status().unwrap().success());
    };
    refused(&|| {
        change(&[Step::Add(moved(0)), Step::Delete(moved(100))]);
        route("add");
    });
    refused(&|| {
        route("delete");
        sysctl::set("ipv4/conf/all/rp_filter", "1").unwrap();
    });
    refused(&|| {
        sysctl::set("ipv4/conf/all/rp_filter", "0").unwrap();
        sysctl::set("ipv4/ip_local_port_range", "1024 65000").unwrap();
    });
    insta::assert_snapshot!(told.join("\n"), @r#"
    another program has a routing rule at a preference of Manx's (0 to 4): found (ip -6 rule pref 2 iif eth7 lookup 99 proto 4), expected none but pref 0 lookup local; delete it (ip rule del …), or give it a preference above 4
    the routing rule for the node's own addresses is not in its place: found (ip rule pref 100 lookup local proto 2), expected (ip rule pref 0 lookup local); stop the program that has moved it, and set it back (ip rule add pref 0 lookup local)
    another program uses routing table 79, which is Manx's: found (ip route table 79 BlackHole default proto 4), expected nothing; delete it (ip route flush table 79)
    net.ipv4.conf.all.rp_filter is 1, so the kernel would drop what Manx has translated: expected 0 or 2 for --services manx; sysctl -w net.ipv4.conf.all.rp_filter=2
    the ports for the way out, 61000-65534 (--egress-ports), are also for the node's own processes (net.ipv4.ip_local_port_range is "1024 65000"): expected ranges without a common port; choose others by --egress-ports, or sysctl -w net.ipv4.ip_local_port_range="32768 60999"
    "#);
}

#[test]
fn a_loose_check_of_sources_lets_translated_packets_pass() {
    if !namespaces_allowed() || !tun_allowed() {
        return;
    }
    let place = Place::new();
    in_node(&place, || sysctl::set("ipv4/conf/all/rp_filter", "2").unwrap());
    let (device, mut queues) = place.attach().unwrap();
    device.reconcile(&desired()).unwrap();
    let backend = in_node(&place, || udp(NODE[0], 8080));
    send(&mut queues, &datagram((WORLD[0], 999), (NODE[0], 8080), b"ask"));
    assert!(heard(&backend).is_some());
    let server = in_world(&place, || udp(WORLD[0], 53));
    send(&mut queues, &datagram((NODE[0], 61000), (WORLD[0], 53), b"out"));
    assert!(heard(&server).is_some());
}

#[test]
fn what_the_world_reports_about_translated_packets_is_copied() {
    if !namespaces_allowed() || !tun_allowed() {
        return;
    }
    let place = Place::new();
    let (device, mut queues) = place.attach().unwrap();
    device.reconcile(&desired()).unwrap();
    let v4: Box<dyn PacketIo> =
        Box::new(in_node(&place, || IcmpRaw::open(Reception::All).unwrap()));
    let v6: Box<dyn PacketIo> =
        Box::new(in_node(&place, || Icmpv6Raw::open(Reception::All).unwrap()));
    let kinds = [(v4, ICMP, 20, [3, 3], [8, 0]), (v6, ICMPV6, 40, [1, 4], [128, 129])];
    for (at, (mut reports, protocol, header_len, unreachable, [request, reply])) in
        kinds.into_iter().enumerate()
    {
        let (node, world) = (NODE[at], WORLD[at]);
        let mut next = || {
            let (mut pool, mut batch) = (Pool::new(8), Vec::new());
            let end = Instant::now() + LONG;
            while batch.is_empty() && Instant::now() < end {
                let _ = reports.receive(&mut pool, &mut batch, 8).unwrap();
            }
            let packet = batch.remove(0);
            let addresses = [octets(world), octets(node)].concat();
            assert_eq!(packet.bytes()[..header_len][header_len - addresses.len()..], addresses);
            packet.bytes()[header_len..].to_vec()
        };
        // No socket of the outside host listens there.
        let sent = datagram((node, 61000), (world, 9), b"out");
        send(&mut queues, &sent);
        let report = next();
        assert_eq!(report[..2], unreachable, "port unreachable");
        assert_eq!(ends(&report[8..]), ends(&sent));
        // The identifier of an echo request identifies the pod that gets the answer.
        let mut echo = vec![request, 0, 0, 0, 0xee, 0x48, 0, 1];
        let pseudo_header = [octets(node), octets(world), vec![0, 8, 0, protocol]].concat();
        let covered = if protocol == ICMPV6 { pseudo_header } else { Vec::new() };
        let check = checksum(&[covered, echo.clone()].concat());
        echo[2..4].copy_from_slice(&check);
        send(&mut queues, &packet(protocol, node, world, &echo));
        let answer = next();
        assert_eq!((answer[0], &answer[4..]), (reply, &echo[4..]));
        assert_eq!(arrive(&mut queues, SHORT), []);
    }
}

#[test]
fn an_address_that_the_node_does_not_have_is_an_error_and_keeps_nothing_else_back() {
    if !namespaces_allowed() || !tun_allowed() {
        return;
    }
    let place = Place::new();
    let (device, mut queues) = place.attach().unwrap();
    device.reconcile(&desired()).unwrap();
    netlink::in_netns(&place.node, async |netlink| {
        // This is the worst that another program can do to the node.
        for family in Family::ALL {
            netlink.delete_rule(&Rule::of_local(MOVED_LOCAL, family)).await?;
        }
        Ok(())
    })
    .unwrap();
    let node_ports = ["192.0.2.9", NODE[0], NODE[1]].map(ip).into();
    let wrong = Desired { node_ports, ..desired() };
    assert!(device.reconcile(&wrong).unwrap_err().to_string().contains("192.0.2.9"));
    let local = Family::ALL.map(|family| Rule::of_local(MOVED_LOCAL, family).to_string());
    assert!(local.iter().all(|rule| place.rules().contains(rule)));
    for (node, world) in NODE.into_iter().zip(WORLD) {
        let server = in_world(&place, || udp(world, 53));
        server.send_to(b"back", (ip(node), 61000)).unwrap();
        assert_eq!(arrive(&mut queues, LONG).len(), 1);
    }
}
