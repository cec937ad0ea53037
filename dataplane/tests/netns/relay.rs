//! A pod that another plugin has connected. Both ends of its link are in this namespace, and the two sides of a relay
//! read them.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use manx_dataplane::port::link::Mac;
use manx_dataplane::port::packet::{PacketPort, Receipt};
use manx_dataplane::port::relay::Ends;
use nix::net::if_::if_nametoindex;

use crate::namespaces::{Netns, Pump, boxed, eventually, inside, ip, output};
use crate::pods::{A4, A6, B4, B6, exchange_all};

const POD_MAC: Mac = [2, 0, 0, 0, 0, 0xa];
const NODE_MAC: Mac = [2, 0, 0, 0, 0, 0xb];

/// A pod and a node on one link, with `queues` queues of a relay between them.
fn relayed_pod(queues: usize, receipt: Receipt) -> ([Netns; 2], [Vec<PacketPort>; 2]) {
    let ends = [("pod", POD_MAC, A4, A6), ("node", NODE_MAC, B4, B6)];
    let namespaces = ends.map(|(name, mac, address4, address6)| {
        let namespace = Netns::new();
        let mac = mac.map(|byte| format!("{byte:02x}")).join(":");
        let path = namespace.path();
        ip(&format!("link add {name} type veth peer name eth0 address {mac} netns {path}"));
        std::fs::write(format!("/proc/sys/net/ipv6/conf/{name}/disable_ipv6"), "1").unwrap();
        ip(&format!("link set {name} up"));
        namespace.ip("link set eth0 up");
        namespace.ip(&format!("addr add {address4}/24 dev eth0"));
        namespace.ip(&format!("addr add {address6}/64 dev eth0"));
        namespace
    });
    let ends = Ends { pod: POD_MAC, node: NODE_MAC, addresses: vec![A4.into(), A6.into()] };
    let indices = ["pod", "node"].map(|name| if_nametoindex(name).unwrap());
    (namespaces, PacketPort::open_relay(indices, &ends, queues, receipt).unwrap())
}

fn wait_for_addresses(namespaces: &[Netns]) {
    eventually("duplicate address detection finds the addresses free", || {
        namespaces.iter().all(|namespace| {
            let addresses = namespace.run(|| output("ip", "-6 addr show dev eth0"));
            assert!(!addresses.contains("dadfailed"), "{addresses}");
            addresses.contains("fd00::") && !addresses.contains("tentative")
        })
    });
}

#[test]
fn two_sides_carry_super_packets_and_nothing_passes_without_them() {
    inside("relay::two_sides_carry_super_packets_and_nothing_passes_without_them", || {
        carries_super_packets(Receipt::Calls);
    });
}

#[test]
fn two_rings_carry_super_packets_and_nothing_passes_without_them() {
    inside("relay::two_rings_carry_super_packets_and_nothing_passes_without_them", || {
        carries_super_packets(Receipt::Ring);
    });
}

fn carries_super_packets(receipt: Receipt) {
    let (namespaces, [to_pod, to_node]) = relayed_pod(1, receipt);
    let [pod, node] = &namespaces;
    let pump = Pump::start(boxed(to_pod), boxed(to_node));
    wait_for_addresses(&namespaces);
    exchange_all(pod, node);
    for (namespace, others, mac) in [
        (pod, [B4.to_string(), B6.to_string()], NODE_MAC),
        (node, [A4.to_string(), A6.to_string()], POD_MAC),
    ] {
        let neighbours = namespace.run(|| output("ip", "neigh show dev eth0"));
        let mac = mac.map(|byte| format!("{byte:02x}")).join(":");
        for other in others {
            let line = neighbours.lines().find(|l| l.starts_with(&format!("{other} ")));
            assert!(line.is_some_and(|l| l.contains(&mac)), "{other} is at {mac}: {neighbours}");
        }
    }
    for crossed in pump.stop() {
        assert!(crossed.tcp4 > 50 && crossed.tcp6 > 50 && crossed.longest > 20_000, "{crossed:?}");
        assert!(crossed.answered >= 2, "ARP and neighbour discovery: {crossed:?}");
        assert_eq!((crossed.malformed, crossed.refused), (0, 0), "{crossed:?}");
    }
    for (from, to) in [(pod, node), (node, pod)] {
        let [from_ip, to_ip]: [IpAddr; 2] =
            if std::ptr::eq(from, pod) { [A4.into(), B4.into()] } else { [B4.into(), A4.into()] };
        let receiver = to.udp(SocketAddr::new(to_ip, 7003));
        receiver.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
        from.udp(SocketAddr::new(from_ip, 7003)).send_to(b"?", (to_ip, 7003)).unwrap();
        assert!(
            receiver.recv(&mut [0; 8]).is_err(),
            "without the relay, {from_ip} reaches {to_ip}"
        );
    }
}

#[test]
fn each_queue_of_one_side_has_its_own_of_the_other() {
    inside("relay::each_queue_of_one_side_has_its_own_of_the_other", || {
        let (namespaces, [to_pod, to_node]) = relayed_pod(2, Receipt::Calls);
        assert_eq!([to_pod.len(), to_node.len()], [2, 2]);
        let pump = Pump::start(boxed(to_pod), boxed(to_node));
        wait_for_addresses(&namespaces);
        exchange_all(&namespaces[0], &namespaces[1]);
        for crossed in pump.stop() {
            assert_eq!((crossed.malformed, crossed.refused), (0, 0), "{crossed:?}");
        }
    });
}

#[test]
fn a_pod_that_sends_as_another_reaches_no_neighbour_table() {
    inside("relay::a_pod_that_sends_as_another_reaches_no_neighbour_table", || {
        let ([pod, node], [to_pod, to_node]) = relayed_pod(1, Receipt::Calls);
        let pump = Pump::start(boxed(to_pod), boxed(to_node));
        pod.ip("addr add 10.1.0.77/24 dev eth0");
        let sees = |address: &'static str| {
            drop(node.udp(SocketAddr::new(B4.into(), 7005)).send_to(b"?", (address, 7005)));
            let neighbours = node.run(|| output("ip", "neigh show dev eth0"));
            neighbours
                .lines()
                .any(|l| l.starts_with(&format!("{address} ")) && l.contains("lladdr"))
        };
        eventually("the node learns the pod's own address", || sees("10.1.0.1"));
        assert!(!sees("10.1.0.77"), "asked for the first time");
        std::thread::sleep(Duration::from_millis(300));
        assert!(!sees("10.1.0.77"), "the pod has answered for an address that is not its own");
        pump.stop();
    });
}
