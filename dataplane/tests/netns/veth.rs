//! Pods with veths whose other end is read by a packet socket or a ring.

use std::io::Write;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::Duration;

use etherparse::PacketBuilder;
use manx_dataplane::packet::{Checksum, Pool};
use manx_dataplane::port::PacketIo;
use manx_dataplane::port::link::{Link, Mac};
use manx_dataplane::port::packet::{PacketPort, Receipt};
use manx_dataplane::port::tuntap::{Kind, Queue};
use manx_dataplane::port::uplink::{PacketUplink, UplinkOptions};
use manx_dataplane::sys::capabilities::{CapabilitySet, keep_only};
use nix::sys::socket::{MsgFlags, send};

use crate::namespaces::{
    Need, Netns, Pump, boxed, eventually, inside, ip, lacking, output, receive,
};
use crate::pods::{A4, A6, B4, B6, exchange_all, takes_datagrams_that_were_put_together};

const HOST_MAC: Mac = [0xee; 6];
const A_MAC: Mac = [2, 0, 0, 0, 0, 0xa];
const B_MAC: Mac = [2, 0, 0, 0, 0, 0xb];

/// A pod as Calico creates it: its end is `eth0`, with a gateway address that no host has. The other end is in this
/// namespace.
fn veth_pod(
    host: &str,
    mac: Mac,
    address4: Ipv4Addr,
    address6: Ipv6Addr,
    queues: usize,
    receipt: Receipt,
) -> (Netns, Vec<PacketPort>) {
    let pod = Netns::new();
    let text = |mac: Mac| mac.map(|b| format!("{b:02x}")).join(":");
    ip(&format!(
        "link add {host} address {} type veth peer name eth0 address {} netns {}",
        text(HOST_MAC),
        text(mac),
        pod.path()
    ));
    std::fs::write(format!("/proc/sys/net/ipv6/conf/{host}/disable_ipv6"), "1").unwrap();
    ip(&format!("link set {host} up"));
    pod.ip("link set eth0 up");
    pod.ip(&format!("addr add {address4}/32 dev eth0"));
    pod.ip("route add 169.254.1.1 dev eth0 scope link");
    pod.ip("route add default via 169.254.1.1 dev eth0");
    pod.ip(&format!("addr add {address6}/128 dev eth0"));
    pod.ip("-6 route add default via fe80::ecee:eeff:feee:eeee dev eth0");
    let index = nix::net::if_::if_nametoindex(host).unwrap();
    let link = Link { own: HOST_MAC, peer: mac, addresses: vec![address4.into(), address6.into()] };
    (pod, PacketPort::open(index, &link, queues, receipt).unwrap())
}

#[test]
fn packet_ports_carry_super_packets_and_nothing_passes_without_them() {
    inside("veth::packet_ports_carry_super_packets_and_nothing_passes_without_them", || {
        carries_super_packets(Receipt::Calls);
    });
}

#[test]
fn rings_carry_super_packets_and_nothing_passes_without_them() {
    inside("veth::rings_carry_super_packets_and_nothing_passes_without_them", || {
        carries_super_packets(Receipt::Ring);
    });
}

fn carries_super_packets(receipt: Receipt) {
    let (a, a_port) = veth_pod("hosta", A_MAC, A4, A6, 1, receipt);
    let (b, b_port) = veth_pod("hostb", B_MAC, B4, B6, 1, receipt);
    let pump = Pump::start(boxed(a_port), boxed(b_port));
    for pod in [&a, &b] {
        eventually("duplicate address detection finds the address free", || {
            let addresses = pod.run(|| output("ip", "-6 addr show dev eth0"));
            assert!(!addresses.contains("dadfailed"), "{addresses}");
            addresses.contains("fd00::") && !addresses.contains("tentative")
        });
    }
    exchange_all(&a, &b);
    let neighbours = a.run(|| output("ip", "neigh show dev eth0"));
    for gateway in ["169.254.1.1", "fe80::ecee:eeff:feee:eeee"] {
        let line = neighbours.lines().find(|l| l.starts_with(gateway)).unwrap_or_default();
        assert!(
            line.contains("ee:ee:ee:ee:ee:ee"),
            "{gateway} resolves to the host's end: {neighbours}"
        );
    }
    for crossed in pump.stop() {
        assert!(crossed.tcp4 > 50 && crossed.tcp6 > 50 && crossed.longest > 20_000, "{crossed:?}");
        assert!(crossed.answered >= 2, "ARP and NDP: {crossed:?}");
        assert_eq!((crossed.malformed, crossed.refused), (0, 0), "{crossed:?}");
    }
    let b_socket = b.udp(SocketAddr::new(B4.into(), 7003));
    b_socket.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
    let a_socket = a.udp(SocketAddr::new(A4.into(), 7003));
    a_socket.send_to(b"?", (B4, 7003)).unwrap();
    assert!(
        b_socket.recv(&mut [0; 8]).is_err(),
        "without its port the host's end forwards nothing"
    );
}

#[test]
fn datagrams_that_leave_by_a_packet_port_as_one_arrive_as_they_were() {
    inside("veth::datagrams_that_leave_by_a_packet_port_as_one_arrive_as_they_were", || {
        let (b, mut ports) = veth_pod("hostb", B_MAC, B4, B6, 1, Receipt::Calls);
        eventually("duplicate address detection ends", || {
            !b.run(|| output("ip", "-6 addr show dev eth0")).contains("tentative")
        });
        takes_datagrams_that_were_put_together(&b, &mut ports[0]);
    });
}

#[test]
fn packet_port_queues_share_the_flows_and_survive_being_passed_on() {
    inside("veth::packet_port_queues_share_the_flows_and_survive_being_passed_on", || {
        shares_the_flows(Receipt::Calls);
    });
}

#[test]
fn rings_share_the_flows_and_survive_being_passed_on() {
    inside("veth::rings_share_the_flows_and_survive_being_passed_on", || {
        shares_the_flows(Receipt::Ring);
    });
}

fn shares_the_flows(receipt: Receipt) {
    let (a, a_port) = veth_pod("hosta", A_MAC, A4, A6, 2, receipt);
    let (b, b_port) = veth_pod("hostb", B_MAC, B4, B6, 2, receipt);
    let link = Link { own: HOST_MAC, peer: A_MAC, addresses: vec![A4.into(), A6.into()] };
    let passed: Vec<PacketPort> =
        a_port.into_iter().map(|p| PacketPort::from_fd(p.into(), link.clone()).unwrap()).collect();
    let pump = Pump::start(boxed(passed), boxed(b_port));
    eventually("IPv6 addresses are usable", || {
        [&a, &b]
            .iter()
            .all(|pod| !pod.run(|| output("ip", "-6 addr show dev eth0")).contains("tentative"))
    });
    exchange_all(&a, &b);
    for crossed in pump.stop() {
        assert_eq!((crossed.malformed, crossed.refused), (0, 0), "{crossed:?}");
    }
    let unbound = UdpSocket::bind("127.0.0.1:0").unwrap();
    assert!(PacketPort::from_fd(unbound.into(), link).is_err(), "not a packet socket");
}

#[test]
fn a_packet_port_survives_its_interface_going_down_and_not_its_deletion() {
    inside("veth::a_packet_port_survives_its_interface_going_down_and_not_its_deletion", || {
        survives_going_down(Receipt::Calls);
    });
}

#[test]
fn a_ring_survives_its_interface_going_down_and_not_its_deletion() {
    inside("veth::a_ring_survives_its_interface_going_down_and_not_its_deletion", || {
        survives_going_down(Receipt::Ring);
    });
}

fn survives_going_down(receipt: Receipt) {
    let (pod, mut ports) = veth_pod("hosta", A_MAC, A4, A6, 1, receipt);
    let mut pool = Pool::new(8);
    let mut packets = Vec::new();
    ip("link set hosta down");
    drop(receive(&mut ports[0], &mut pool, 0));
    assert!(ports[0].receive(&mut pool, &mut packets, 4).is_ok(), "down is not the end");
    packets.push(pool.take_filled(&[0x45; 40]).unwrap());
    assert_eq!(ports[0].transmit(&mut pool, &mut packets).unwrap().refused, 1);
    ip("link set hosta up");
    pod.ip("link set eth0 up");
    let socket = pod.udp(SocketAddr::new(A4.into(), 7004));
    eventually("packets come again", || {
        drop(socket.send_to(b"x", (B4, 7004)));
        let received = ports[0].receive(&mut pool, &mut packets, 4).unwrap();
        received.answered + packets.len() > 0
    });
    ip("link del hosta");
    eventually("deleted is", || {
        (0..1000).any(|_| ports[0].receive(&mut pool, &mut packets, 4).is_err())
    });
    packets.truncate(0);
    packets.push(pool.take_filled(&[0x45; 40]).unwrap());
    assert!(ports[0].transmit(&mut pool, &mut packets).is_err());
    assert!(packets.is_empty());
}

#[test]
fn a_quiet_ring_learns_of_its_interfaces_deletion_at_the_first_question() {
    inside("veth::a_quiet_ring_learns_of_its_interfaces_deletion_at_the_first_question", || {
        for went_down in [false, true] {
            let (_pod, mut ports) = veth_pod("hosta", A_MAC, A4, A6, 1, Receipt::Ring);
            let mut pool = Pool::new(64);
            let mut later = || {
                std::thread::sleep(Duration::from_millis(5));
                let mut packets = Vec::new();
                let received = ports[0].receive(&mut pool, &mut packets, 64);
                packets.drain(..).for_each(|packet| pool.put(packet));
                received
            };
            if went_down {
                ip("link set hosta down");
                // The socket reports only once that the device is down.
                assert!((0..5).all(|_| later().is_ok()), "down is not the end");
            } else {
                while later().unwrap().not_ours > 0 {}
            }
            ip("link del hosta");
            // Packets that arrived before the end are read first.
            let quiet =
                (0..100).map(|_| later()).find(|it| !matches!(it, Ok(it) if it.not_ours > 0));
            assert!(quiet.is_some_and(|it| it.is_err()), "went down before: {went_down}");
        }
    });
}

/// The same frame serves for both, because the kernel reads it from TUN as IPv4 by its first four bits, and a packet
/// socket reads it as Ethernet.
#[test]
fn a_ring_that_a_frame_has_stopped_is_taken_away() {
    const OWN: Mac = [0x46, 0, 0, 0, 0, 1];
    // This is UDP to be fragmented (UFO). TUN accepts it, but no virtio header of a packet socket can describe it. The
    // same is true of super-packets of SCTP.
    const FRAGMENTS: [u8; 10] = [1, 3, 42, 0, 0xe8, 3, 34, 0, 6, 0];
    inside("veth::a_ring_that_a_frame_has_stopped_is_taken_away", || {
        let queue = match Queue::create(Kind::Tun, "tun0", 1) {
            Ok(mut queues) => OwnedFd::from(queues.remove(0)),
            Err(e) => return lacking(Need::Tun, &format!("/dev/net/tun: {e}")),
        };
        ip("link set tun0 up");
        let index = nix::net::if_::if_nametoindex("tun0").unwrap();
        let link = Link { own: OWN, peer: A_MAC, addresses: vec![A4.into()] };
        let mut ports = PacketPort::open(index, &link, 1, Receipt::Ring).unwrap();
        assert!(ports[0].is_mapped());
        // A worker has no capabilities when it detaches the ring.
        keep_only(CapabilitySet::empty()).unwrap();
        let mut queue = std::fs::File::from(queue);
        let mut send = |header: [u8; 10], len: usize| {
            let mut bytes = [&header[..], &OWN, &A_MAC, &[8, 0]].concat();
            let packet = PacketBuilder::ipv4(A4.octets(), B4.octets(), 64).udp(7001, 7002);
            packet.write(&mut bytes, &vec![7; len]).unwrap();
            assert_eq!(queue.write(&bytes).unwrap(), bytes.len());
        };
        let mut pool = Pool::new(64);
        send([0; 10], 10);
        assert_eq!(receive(&mut ports[0], &mut pool, 1).len(), 1);
        send(FRAGMENTS, 3000);
        send([0; 10], 10);
        let mut packets = Vec::new();
        drop(ports[0].receive(&mut pool, &mut packets, 1));
        let is_stopped = packets.is_empty();
        eventually("packets come again", || {
            send([0; 10], 10);
            let received = ports[0].receive(&mut pool, &mut packets, 64).unwrap();
            assert_eq!((received.malformed, received.not_ours), (0, 0));
            !packets.is_empty()
        });
        assert_eq!(ports[0].is_mapped(), !is_stopped, "a kernel that goes on keeps its ring");
        let before = packets.len();
        (0..10).for_each(|_| send([0; 10], 1000));
        packets.extend(receive(&mut ports[0], &mut pool, 10));
        assert_eq!(packets.len(), before + 10);
    });
}

#[test]
fn a_packet_port_finishes_sctp_and_keeps_tagged_frames_out() {
    inside("veth::a_packet_port_finishes_sctp_and_keeps_tagged_frames_out", || {
        finishes_sctp(Receipt::Calls);
    });
}

#[test]
fn a_ring_finishes_sctp_and_keeps_tagged_frames_out() {
    inside("veth::a_ring_finishes_sctp_and_keeps_tagged_frames_out", || {
        finishes_sctp(Receipt::Ring);
    });
}

fn finishes_sctp(receipt: Receipt) {
    let (pod, mut ports) = veth_pod("hosta", A_MAC, A4, A6, 1, receipt);
    let mut message = vec![0; 40];
    message[..4].copy_from_slice(&[0x1b, 0x58, 0x1b, 0x59]);
    let mut packet = Vec::new();
    etherparse::Ipv4Header::new(40, 64, etherparse::IpNumber::SCTP, A4.octets(), B4.octets())
        .unwrap()
        .write(&mut packet)
        .unwrap();
    packet.extend(&message);
    let frame = [&HOST_MAC[..], &A_MAC, &[8, 0], &packet].concat();
    let mut tagged = frame.clone();
    tagged.splice(12..12, [0x81, 0, 0, 7]);
    // The pod's kernel sends its own SCTP packets in this way: the checksum covers the bytes from 34 on and is stored
    // at 8 (virtio's NEEDS_CSUM).
    let mut partial = [0; 10];
    partial[0] = 1;
    partial[6..8].copy_from_slice(&34u16.to_ne_bytes());
    partial[8..].copy_from_slice(&8u16.to_ne_bytes());
    let descriptor = pod.run(|| {
        let index = nix::net::if_::if_nametoindex("eth0").unwrap();
        OwnedFd::from(PacketUplink::open(index, UplinkOptions::default(), 1).unwrap().remove(0))
    });
    for bytes in [[&[0; 10][..], &tagged].concat(), [&partial[..], &frame].concat()] {
        assert!(send(descriptor.as_raw_fd(), &bytes, MsgFlags::empty()).is_ok());
    }
    let mut pool = Pool::new(8);
    let received = receive(&mut ports[0], &mut pool, 1);
    let sctp: Vec<_> = received.iter().filter(|p| p.bytes()[9] == 132).collect();
    assert_eq!(sctp.len(), 1, "the tagged one is not there: {received:?}");
    assert_eq!(sctp[0].offload.checksum, Checksum::Verified);
    // This is the CRC32c of the message, from an independent implementation.
    assert_eq!(sctp[0].bytes()[28..32], [0x9a, 0xec, 0x95, 0x12]);
}

#[test]
fn a_ring_hands_on_small_and_large_packets_in_their_order() {
    inside("veth::a_ring_hands_on_small_and_large_packets_in_their_order", || {
        let (pod, mut ports) = veth_pod("hosta", A_MAC, A4, A6, 1, Receipt::Ring);
        assert!(ports[0].is_mapped());
        let socket = pod.udp(SocketAddr::new(A4.into(), 7001));
        let mut pool = Pool::new(16);
        // The pod must know its gateway before it can send at its own pace.
        socket.send_to(b"?", (B4, 7002)).unwrap();
        for packet in receive(&mut ports[0], &mut pool, 1) {
            pool.put(packet);
        }
        // Some lengths fit into a slot and some do not. Those near the limit grow by one each time.
        let lens: Vec<usize> = (0..300).map(|i| [10, 1400, 120 + i / 4, 1][i % 4]).collect();
        let mut heard = Vec::new();
        for (lens, first) in lens.chunks(30).zip((0..).step_by(30)) {
            for (len, tag) in lens.iter().zip(first..) {
                socket.send_to(&vec![tag as u8; *len], (B4, 7002)).unwrap();
            }
            while heard.len() < first + lens.len() {
                let mut packets = Vec::new();
                let received = ports[0].receive(&mut pool, &mut packets, 7).unwrap();
                assert!(received.malformed == 0 && packets.len() <= 7);
                assert!(!packets.is_empty() || received.answered + received.not_ours > 0);
                for packet in packets {
                    let udp = &packet.bytes()[20..];
                    if packet.bytes()[9] == 17 && udp[..4] == [27, 89, 27, 90] {
                        heard.push((udp.len() - 8, udp[8]));
                        assert!(udp[8..].iter().all(|byte| *byte == udp[8]));
                    }
                    pool.put(packet);
                }
            }
        }
        let sent: Vec<_> = lens.iter().zip(0_usize..).map(|(len, tag)| (*len, tag as u8)).collect();
        assert_eq!(heard, sent);
        assert_eq!(pool.available(), 16);
    });
}

#[test]
fn a_full_ring_loses_what_comes_and_goes_on() {
    inside("veth::a_full_ring_loses_what_comes_and_goes_on", || {
        let (pod, mut ports) = veth_pod("hosta", A_MAC, A4, A6, 1, Receipt::Ring);
        let socket = pod.udp(SocketAddr::new(A4.into(), 7001));
        let mut pool = Pool::new(4000);
        socket.send_to(b"?", (B4, 7002)).unwrap();
        receive(&mut ports[0], &mut pool, 1);
        for _ in 0..3 {
            for len in (0..1500).map(|i| if i % 2 == 0 { 20 } else { 1000 }) {
                socket.send_to(&vec![0; len], (B4, 7002)).unwrap();
            }
            let mut packets = Vec::new();
            while !ports[0].receive(&mut pool, &mut packets, 1000).unwrap().drained {}
            assert!((400..=512).contains(&packets.len()), "{}", packets.len());
            let long = packets.iter().filter(|packet| packet.len() > 1000).count();
            assert!(long.abs_diff(packets.len() / 2) < 10, "{long}");
            packets.drain(..).for_each(|packet| pool.put(packet));
            for _ in 0..3 {
                std::thread::sleep(Duration::from_millis(5));
                drop(ports[0].receive(&mut pool, &mut packets, 1));
            }
            assert!(ports[0].is_mapped(), "to have been full is not to be stuck");
        }
    });
}
