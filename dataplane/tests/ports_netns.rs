//! The ports against real kernels: every test builds namespaces of its own, sends bounded traffic and leaves nothing.
#![expect(
    clippy::unwrap_used,
    reason = "these are tests; their helpers stand outside test functions"
)]

mod netns;

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsRawFd, OwnedFd};
use std::process::Command;
use std::time::Duration;

use etherparse::PacketBuilder;
use manx_dataplane::packet::{Checksum, Offload, Packet, Pool, SegmentKind};
use manx_dataplane::port::ipip_raw::IpipRaw;
use manx_dataplane::port::link::{Link, Mac};
use manx_dataplane::port::packet::{PacketPort, Receipt};
use manx_dataplane::port::tun::Tun;
use manx_dataplane::port::uplink::{PacketUplink, UplinkOptions};
use manx_dataplane::port::{PacketIo, Reception};
use netns::{Need, Netns, Pump, eventually, inside, ip, lacking, output, receive};
use nix::sys::socket::{MsgFlags, send, setsockopt, sockopt};

const A4: Ipv4Addr = Ipv4Addr::new(10, 1, 0, 1);
const B4: Ipv4Addr = Ipv4Addr::new(10, 1, 0, 2);
const A6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 1);
const B6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 2);
const HOST_MAC: Mac = [0xee; 6];
const A_MAC: Mac = [2, 0, 0, 0, 0, 0xa];
const B_MAC: Mac = [2, 0, 0, 0, 0, 0xb];
/// Enough for several hundred super-packets.
const STREAM: usize = 8 << 20;

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i % 251) as u8).collect()
}

/// Streams the same bytes both ways at once and checks every one.
fn exchange_tcp(client: &Netns, server: &Netns, from: IpAddr, to: IpAddr) {
    fn talk(mut stream: TcpStream) {
        stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        let mut writer = stream.try_clone().unwrap();
        let writing = std::thread::spawn(move || {
            writer.write_all(&pattern(STREAM)).unwrap();
            writer.shutdown(std::net::Shutdown::Write).unwrap();
        });
        let mut heard = Vec::new();
        stream.read_to_end(&mut heard).unwrap();
        writing.join().unwrap();
        assert!(heard == pattern(STREAM), "{} bytes arrived, or other ones", heard.len());
    }
    let listener = server.run(move || TcpListener::bind((to, 7000)).unwrap());
    let serving = std::thread::spawn(move || talk(listener.accept().unwrap().0));
    client.run(move || {
        let stream =
            TcpStream::connect_timeout(&SocketAddr::new(to, 7000), Duration::from_secs(5)).unwrap();
        assert_eq!(stream.local_addr().unwrap().ip(), from);
        talk(stream);
    });
    serving.join().unwrap();
}

/// One datagram each way, then thirty in one super-packet.
fn exchange_udp(client: &Netns, server: &Netns, from: IpAddr, to: IpAddr) {
    let a = client.udp(SocketAddr::new(from, 7001));
    let b = server.udp(SocketAddr::new(to, 7002));
    let mut buffer = [0; 2000];
    a.send_to(b"ping", (to, 7002)).unwrap();
    assert_eq!(b.recv_from(&mut buffer).unwrap(), (4, SocketAddr::new(from, 7001)));
    b.send_to(b"pong", (from, 7001)).unwrap();
    assert_eq!(a.recv_from(&mut buffer).unwrap(), (4, SocketAddr::new(to, 7002)));
    let segmented: UdpSocket = a;
    setsockopt(&segmented, sockopt::UdpGsoSegment, &1000).unwrap();
    let bytes = pattern(30_000);
    segmented.send_to(&bytes, (to, 7002)).unwrap();
    for part in bytes.chunks(1000) {
        assert_eq!(b.recv(&mut buffer).unwrap(), 1000);
        assert!(buffer[..1000] == *part);
    }
}

fn exchange_all(a: &Netns, b: &Netns) {
    for (from, to) in [(IpAddr::V4(A4), IpAddr::V4(B4)), (IpAddr::V6(A6), IpAddr::V6(B6))] {
        exchange_udp(a, b, from, to);
        exchange_tcp(a, b, from, to);
    }
}

/// A pod and the queues of its device.
type TunPod = (Netns, Vec<Tun>);

fn tun_pod(address4: Ipv4Addr, address6: Ipv6Addr, queues: usize) -> std::io::Result<TunPod> {
    let pod = Netns::new();
    let tuns = pod.run(move || Tun::open("eth0", queues))?;
    pod.ip("link set eth0 mtu 1500 up");
    pod.ip(&format!("addr add {address4}/32 dev eth0"));
    pod.ip(&format!("addr add {address6}/128 dev eth0 nodad"));
    pod.ip("route add default dev eth0");
    pod.ip("-6 route add default dev eth0");
    Ok((pod, tuns))
}

fn two_tun_pods(queues: usize) -> Option<(TunPod, TunPod)> {
    match (tun_pod(A4, A6, queues), tun_pod(B4, B6, queues)) {
        (Ok(a), Ok(b)) => Some((a, b)),
        (Err(e), _) | (_, Err(e)) => {
            assert!(
                matches!(
                    e.kind(),
                    std::io::ErrorKind::PermissionDenied | std::io::ErrorKind::NotFound
                ),
                "TUN fails for another reason than the environment: {e}"
            );
            lacking(Need::Tun, &format!("/dev/net/tun: {e}"));
            None
        }
    }
}

#[test]
fn tun_carries_super_packets_both_ways() {
    inside("tun_carries_super_packets_both_ways", || {
        let Some(((a, a_tun), (b, b_tun))) = two_tun_pods(1) else { return };
        let udp = a_tun[0].capabilities().udp_segmentation;
        let pump = Pump::start(a_tun, b_tun);
        exchange_all(&a, &b);
        for crossed in pump.stop() {
            assert!(
                crossed.tcp4 > 50 && crossed.tcp6 > 50 && crossed.longest > 20_000,
                "{crossed:?}"
            );
            assert_eq!((crossed.malformed, crossed.refused), (0, 0), "{crossed:?}");
        }
        assert!(udp || output("uname", "-r").starts_with("5."), "USO is there since 6.2");
    });
}

#[test]
fn tun_queues_share_the_flows_and_survive_being_passed_on() {
    inside("tun_queues_share_the_flows_and_survive_being_passed_on", || {
        let Some(((a, a_tun), (b, b_tun))) = two_tun_pods(2) else { return };
        assert_eq!((a_tun[0].name(), a_tun.len()), ("eth0", 2));
        let passed: Vec<Tun> =
            a_tun.into_iter().map(|tun| Tun::from_fd(OwnedFd::from(tun)).unwrap()).collect();
        assert_eq!(passed[1].name(), "eth0");
        let pump = Pump::start(passed, b_tun);
        exchange_all(&a, &b);
        let crossed = pump.stop();
        assert_eq!(crossed[0].malformed + crossed[1].malformed, 0);
    });
}

#[test]
fn many_packets_arrive_at_once_and_in_order() {
    inside("many_packets_arrive_at_once_and_in_order", || {
        let Some((_a, (b, mut tuns))) = two_tun_pods(1) else { return };
        let socket = b.udp(SocketAddr::new(B4.into(), 7002));
        let mut pool = Pool::new(200);
        let mut packets: Vec<Packet> = (0..150u8)
            .map(|tag| {
                let builder = PacketBuilder::ipv4(A4.octets(), B4.octets(), 64).udp(7001, 7002);
                let mut bytes = Vec::new();
                builder.write(&mut bytes, &[tag; 20]).unwrap();
                pool.take_filled(&bytes).unwrap()
            })
            .collect();
        packets[77].offload.checksum = Checksum::Partial { start: 20, offset: 2000 };
        let done = tuns[0].transmit(&mut pool, &mut packets).unwrap();
        assert_eq!((done.sent, done.refused), (149, 1), "one contradicts itself");
        let mut buffer = [0; 100];
        for tag in (0..150).filter(|tag| *tag != 77) {
            assert_eq!(socket.recv(&mut buffer).unwrap(), 20);
            assert_eq!(buffer[0], tag);
        }
        assert_eq!(pool.available(), 200);
    });
}

#[test]
fn a_tun_that_is_down_refuses_and_a_deleted_one_fails() {
    inside("a_tun_that_is_down_refuses_and_a_deleted_one_fails", || {
        for many in [1, 100] {
            let Some(((pod, mut tuns), _other)) = two_tun_pods(1) else { return };
            let mut pool = Pool::new(many);
            let fill = |pool: &mut Pool| -> Vec<Packet> {
                (0..many).map(|_| pool.take_filled(&[0x45; 40]).unwrap()).collect()
            };
            let mut packets = fill(&mut pool);
            pod.ip("link set eth0 down");
            let down = tuns[0].transmit(&mut pool, &mut packets).unwrap();
            assert_eq!((down.sent, down.refused), (0, many));
            pod.ip("link del eth0");
            let mut packets = fill(&mut pool);
            assert!(tuns[0].transmit(&mut pool, &mut packets).is_err());
            assert!(tuns[0].receive(&mut pool, &mut packets, 1).is_err());
            assert_eq!(pool.available(), many);
        }
    });
}

/// A pod as Calico makes it: its end is `eth0` with a gateway that nobody has, the other end lies here.
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
    inside("packet_ports_carry_super_packets_and_nothing_passes_without_them", || {
        carries_super_packets(Receipt::Calls);
    });
}

#[test]
fn rings_carry_super_packets_and_nothing_passes_without_them() {
    inside("rings_carry_super_packets_and_nothing_passes_without_them", || {
        carries_super_packets(Receipt::Ring);
    });
}

fn carries_super_packets(receipt: Receipt) {
    let (a, a_port) = veth_pod("hosta", A_MAC, A4, A6, 1, receipt);
    let (b, b_port) = veth_pod("hostb", B_MAC, B4, B6, 1, receipt);
    let pump = Pump::start(a_port, b_port);
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
fn packet_port_queues_share_the_flows_and_survive_being_passed_on() {
    inside("packet_port_queues_share_the_flows_and_survive_being_passed_on", || {
        shares_the_flows(Receipt::Calls);
    });
}

#[test]
fn rings_share_the_flows_and_survive_being_passed_on() {
    inside("rings_share_the_flows_and_survive_being_passed_on", || shares_the_flows(Receipt::Ring));
}

fn shares_the_flows(receipt: Receipt) {
    let (a, a_port) = veth_pod("hosta", A_MAC, A4, A6, 2, receipt);
    let (b, b_port) = veth_pod("hostb", B_MAC, B4, B6, 2, receipt);
    let link = Link { own: HOST_MAC, peer: A_MAC, addresses: vec![A4.into(), A6.into()] };
    let passed: Vec<PacketPort> =
        a_port.into_iter().map(|p| PacketPort::from_fd(p.into(), link.clone()).unwrap()).collect();
    let pump = Pump::start(passed, b_port);
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
    inside("a_packet_port_survives_its_interface_going_down_and_not_its_deletion", || {
        survives_going_down(Receipt::Calls);
    });
}

#[test]
fn a_ring_survives_its_interface_going_down_and_not_its_deletion() {
    inside("a_ring_survives_its_interface_going_down_and_not_its_deletion", || {
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
    inside("a_quiet_ring_learns_of_its_interfaces_deletion_at_the_first_question", || {
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
                // The socket tells once that it is down.
                assert!((0..5).all(|_| later().is_ok()), "down is not the end");
            } else {
                while later().unwrap().not_ours > 0 {}
            }
            ip("link del hosta");
            assert!(later().is_err(), "went down before: {went_down}");
        }
    });
}

/// What a TUN device gets is IPv4 to the kernel by its first four bits, and Ethernet to a packet socket: so one frame is both.
#[test]
fn a_ring_that_a_frame_has_stopped_is_taken_away() {
    const OWN: Mac = [0x46, 0, 0, 0, 0, 1];
    // UDP to be fragmented (UFO), which TUN takes and no packet socket's virtio header knows; as SCTP's super-packets.
    const FRAGMENTS: [u8; 10] = [1, 3, 42, 0, 0xe8, 3, 34, 0, 6, 0];
    inside("a_ring_that_a_frame_has_stopped_is_taken_away", || {
        let queue = match Tun::open("tun0", 1) {
            Ok(mut tuns) => OwnedFd::from(tuns.remove(0)),
            Err(e) => return lacking(Need::Tun, &format!("/dev/net/tun: {e}")),
        };
        ip("link set tun0 up");
        let index = nix::net::if_::if_nametoindex("tun0").unwrap();
        let link = Link { own: OWN, peer: A_MAC, addresses: vec![A4.into()] };
        let mut ports = PacketPort::open(index, &link, 1, Receipt::Ring).unwrap();
        assert!(ports[0].is_mapped());
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
    inside("a_packet_port_finishes_sctp_and_keeps_tagged_frames_out", || {
        finishes_sctp(Receipt::Calls);
    });
}

#[test]
fn a_ring_finishes_sctp_and_keeps_tagged_frames_out() {
    inside("a_ring_finishes_sctp_and_keeps_tagged_frames_out", || finishes_sctp(Receipt::Ring));
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
    // What the pod's kernel does with its own SCTP: checksum from 34 on, stored at 8 (virtio's NEEDS_CSUM).
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
    // CRC32c of the message, by an independent implementation.
    assert_eq!(sctp[0].bytes()[28..32], [0x9a, 0xec, 0x95, 0x12]);
}

#[test]
fn a_ring_hands_on_small_and_large_packets_in_their_order() {
    inside("a_ring_hands_on_small_and_large_packets_in_their_order", || {
        let (pod, mut ports) = veth_pod("hosta", A_MAC, A4, A6, 1, Receipt::Ring);
        assert!(ports[0].is_mapped());
        let socket = pod.udp(SocketAddr::new(A4.into(), 7001));
        let mut pool = Pool::new(16);
        // The pod has to know its gateway before it sends at its own pace.
        socket.send_to(b"?", (B4, 7002)).unwrap();
        for packet in receive(&mut ports[0], &mut pool, 1) {
            pool.put(packet);
        }
        // Some fit into a slot, some do not, and those around the border are longer by one each.
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
    inside("a_full_ring_loses_what_comes_and_goes_on", || {
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

const NODE1: Ipv4Addr = Ipv4Addr::new(192, 168, 7, 1);
const NODE2: Ipv4Addr = Ipv4Addr::new(192, 168, 7, 2);

/// Two nodes on one underlay, interface `up0` each.
fn nodes() -> (Netns, Netns) {
    let (one, two) = (Netns::new(), Netns::new());
    one.ip(&format!(
        "link add up0 address 02:00:00:00:00:0a type veth peer name up0 address 02:00:00:00:00:0b netns {}",
        two.path()
    ));
    for (node, address) in [(&one, NODE1), (&two, NODE2)] {
        node.ip("link set up0 up");
        node.ip(&format!("addr add {address}/24 dev up0"));
    }
    for node in [&one, &two] {
        // Until the kernel has noticed that the other end is up too it drops what is sent, and says nothing.
        eventually("the link carries", || {
            node.run(|| output("ip", "link show up0")).contains("state UP")
        });
    }
    (one, two)
}

fn uplink(node: &Netns, options: UplinkOptions) -> PacketUplink {
    node.run(move || {
        let index = nix::net::if_::if_nametoindex("up0").unwrap();
        PacketUplink::open(index, options, 1).unwrap().remove(0)
    })
}

/// An IPIP packet from node 1 to node 2 around a UDP datagram, with a right inner checksum; `tag` tells it from others.
fn tunnelled(tag: u8) -> Vec<u8> {
    let mut inner = Vec::new();
    PacketBuilder::ipv4(A4.octets(), B4.octets(), 64)
        .udp(7000, 7001)
        .write(&mut inner, &[tag; 100])
        .unwrap();
    let mut outer = etherparse::Ipv4Header::new(
        inner.len() as u16,
        64,
        etherparse::IpNumber::IPV4,
        NODE1.octets(),
        NODE2.octets(),
    )
    .unwrap();
    outer.dont_fragment = true;
    outer.identification = 0x1234;
    outer.header_checksum = outer.calc_header_checksum();
    let mut bytes = Vec::new();
    outer.write(&mut bytes).unwrap();
    bytes.extend(inner);
    bytes
}

fn framed(to: Mac, packet: &[u8]) -> Vec<u8> {
    [&to[..], &A_MAC, &[8, 0], packet].concat()
}

fn transmit(port: &mut impl PacketIo, pool: &mut Pool, frames: &[Vec<u8>]) -> (usize, usize) {
    let mut packets: Vec<Packet> = frames.iter().map(|f| pool.take_filled(f).unwrap()).collect();
    let done = port.transmit(pool, &mut packets).unwrap();
    (done.sent, done.refused)
}

fn tag(packet: &Packet) -> Option<u8> {
    packet.bytes().get(48).copied()
}

/// By tag: a veth keeps the order of what one processor sends, and the sender may have been moved in between.
fn receive_sorted(port: &mut impl PacketIo, pool: &mut Pool, count: usize) -> Vec<Packet> {
    let mut packets = receive(port, pool, count);
    packets.sort_by_key(tag);
    packets
}

#[test]
fn the_uplink_receives_whole_tunnel_packets_to_this_host_and_nothing_else() {
    inside("the_uplink_receives_whole_tunnel_packets_to_this_host_and_nothing_else", || {
        let (one, two) = nodes();
        let mut sender = uplink(&one, UplinkOptions::default());
        let mut port = uplink(&two, UplinkOptions::default());
        let mut pool = Pool::new(64);
        let good = tunnelled(1);
        let with = |change: &dyn Fn(&mut Vec<u8>)| {
            let mut packet = tunnelled(2);
            change(&mut packet);
            framed(B_MAC, &packet)
        };
        let mut vlan = framed(B_MAC, &tunnelled(2));
        vlan.splice(12..12, [0x81, 0, 0, 7]);
        let frames = [
            with(&|p| p[9] = 17),
            with(&|p| p[6] = 0x20),
            with(&|p| p[7] = 1),
            framed([0xff; 6], &tunnelled(2)),
            framed([1, 0, 0x5e, 0, 0, 1], &tunnelled(2)),
            framed([2, 0, 0, 0, 0, 0xc], &tunnelled(2)),
            framed(B_MAC, &good),
        ];
        assert_eq!(transmit(&mut sender, &mut pool, &frames), (frames.len(), 0));
        assert_eq!(
            transmit(&mut sender, &mut pool, &[vlan.clone()]),
            (0, 1),
            "frames must be IPv4"
        );
        let descriptor = OwnedFd::from(uplink(&one, UplinkOptions::default()));
        let with_virtio_header = [&[0; 10][..], &vlan].concat();
        assert!(send(descriptor.as_raw_fd(), &with_virtio_header, MsgFlags::empty()).is_ok());
        assert_eq!(transmit(&mut sender, &mut pool, &[framed(B_MAC, &tunnelled(3))]), (1, 0));
        let received = receive_sorted(&mut port, &mut pool, 2);
        assert_eq!(received.iter().map(tag).collect::<Vec<_>>(), [Some(1), Some(3)]);
        assert_eq!(received[0].bytes(), good, "from the outer header on, unchanged");
        assert_eq!(receive(&mut port, &mut pool, 0).len(), 0);
    });
}

#[test]
fn uplink_queues_share_the_tunnelled_flows_without_copies() {
    inside("uplink_queues_share_the_tunnelled_flows_without_copies", || {
        let (one, two) = nodes();
        let mut sender =
            uplink(&one, UplinkOptions { qdisc_bypass: true, ..UplinkOptions::default() });
        let mut ports = two.run(|| {
            let index = nix::net::if_::if_nametoindex("up0").unwrap();
            PacketUplink::open(index, UplinkOptions::default(), 2).unwrap()
        });
        let mut pool = Pool::new(256);
        let frames: Vec<_> = (0..100)
            .map(|flow| {
                let mut frame = framed(B_MAC, &tunnelled(flow));
                frame[14 + 20 + 20] = flow;
                frame
            })
            .collect();
        assert_eq!(transmit(&mut sender, &mut pool, &frames), (100, 0));
        let mut seen: Vec<usize> = Vec::new();
        let mut tags = Vec::new();
        for port in &mut ports {
            let packets = receive(port, &mut pool, 101);
            seen.push(packets.len());
            tags.extend(packets.iter().filter_map(tag));
        }
        tags.sort_unstable();
        assert_eq!(tags, (0..100).collect::<Vec<_>>(), "each once");
        assert!(seen.iter().all(|&n| n > 10), "both queues work: {seen:?}");
    });
}

#[test]
fn a_partial_inner_checksum_crosses_a_veth_unfinished() {
    inside("a_partial_inner_checksum_crosses_a_veth_unfinished", || {
        let (one, two) = nodes();
        let mut plain = uplink(&one, UplinkOptions::default());
        let mut sender =
            uplink(&one, UplinkOptions { partial_checksum: true, ..UplinkOptions::default() });
        let mut port = uplink(&two, UplinkOptions::default());
        let mut raw = two.run(|| IpipRaw::open(Reception::All).unwrap());
        let mut pool = Pool::new(64);
        let partial = Checksum::Partial { start: 20 + 20, offset: 6 };
        let mut packet = pool.take_filled(&tunnelled(9)).unwrap();
        packet.offload = Offload { checksum: partial, segmentation: None };
        assert!(packet.push_front(&framed(B_MAC, &[])));
        let mut packets = vec![packet];
        assert_eq!(plain.transmit(&mut pool, &mut packets).unwrap().refused, 1, "off by default");
        let mut packet = pool.take_filled(&tunnelled(9)).unwrap();
        packet.offload = Offload { checksum: partial, segmentation: None };
        assert!(packet.push_front(&framed(B_MAC, &[])));
        let mut packets = vec![packet];
        assert_eq!(sender.transmit(&mut pool, &mut packets).unwrap().sent, 1);
        let received = receive(&mut port, &mut pool, 1);
        assert_eq!(received[0].offload.checksum, partial);
        let unfinished = receive(&mut raw, &mut pool, 1);
        assert_eq!(unfinished[0].offload.checksum, Checksum::Unverified);
        assert_eq!(
            unfinished[0].bytes(),
            received[0].bytes(),
            "the same bytes, and no word about the checksum"
        );
    });
}

fn unreachables(node: &Netns) -> u64 {
    let snmp = node.run(|| std::fs::read_to_string("/proc/thread-self/net/snmp").unwrap());
    let mut lines = snmp.lines().filter(|l| l.starts_with("Icmp:"));
    let (names, values) = (lines.next().unwrap(), lines.next().unwrap());
    let column = names.split_whitespace().position(|n| n == "OutDestUnreachs").unwrap();
    values.split_whitespace().nth(column).unwrap().parse().unwrap()
}

#[test]
fn a_quiet_raw_socket_receives_nothing_and_keeps_the_kernel_quiet() {
    inside("a_quiet_raw_socket_receives_nothing_and_keeps_the_kernel_quiet", || {
        let (one, two) = nodes();
        let mut sender = one.run(|| IpipRaw::open(Reception::Quiet).unwrap());
        let mut port = uplink(&two, UplinkOptions::default());
        let mut pool = Pool::new(64);
        assert_eq!(transmit(&mut sender, &mut pool, &[tunnelled(1)]), (1, 0));
        assert_eq!(receive(&mut port, &mut pool, 1).len(), 1);
        eventually("alone, the kernel answers protocol unreachable", || unreachables(&two) == 1);
        let mut quiet = two.run(|| IpipRaw::open(Reception::Quiet).unwrap());
        for n in 0..20 {
            assert_eq!(transmit(&mut sender, &mut pool, &[tunnelled(n)]), (1, 0));
        }
        assert_eq!(receive(&mut port, &mut pool, 20).len(), 20);
        assert_eq!(unreachables(&two), 1, "no more answers");
        let mut packets = Vec::new();
        assert!(quiet.receive(&mut pool, &mut packets, 64).unwrap().drained);
        assert!(packets.is_empty());
    });
}

#[test]
fn a_raw_socket_carries_tunnel_packets_unchanged_and_refuses_what_it_cannot() {
    inside("a_raw_socket_carries_tunnel_packets_unchanged_and_refuses_what_it_cannot", || {
        let (one, two) = nodes();
        let mut sender = one.run(|| IpipRaw::open(Reception::All).unwrap());
        let mut receiver =
            two.run(|| IpipRaw::from_fd(IpipRaw::open(Reception::All).unwrap().into()).unwrap());
        let mut pool = Pool::new(256);
        let packets: Vec<_> = (0..150).map(tunnelled).collect();
        assert_eq!(transmit(&mut sender, &mut pool, &packets), (150, 0));
        let received = receive_sorted(&mut receiver, &mut pool, 150);
        assert_eq!(received.len(), 150);
        for (sent, got) in packets.iter().zip(&received) {
            assert_eq!(got.bytes(), sent, "DF, identification and all");
        }
        let mut long = tunnelled(1);
        long.resize(1501, 0);
        let mut lost = tunnelled(2);
        lost[16..20].copy_from_slice(&[203, 0, 113, 1]);
        let mut packets = vec![pool.take_filled(&tunnelled(4)).unwrap()];
        packets[0].offload.checksum = Checksum::Partial { start: 40, offset: 6 };
        assert_eq!(
            sender.transmit(&mut pool, &mut packets).unwrap().refused,
            1,
            "an unfinished checksum"
        );
        assert_eq!(
            transmit(&mut sender, &mut pool, &[long, lost, tunnelled(3)]),
            (1, 2),
            "too long, no route"
        );
        assert_eq!(
            receive(&mut receiver, &mut pool, 1).iter().map(tag).collect::<Vec<_>>(),
            [Some(3)]
        );
        let other = UdpSocket::bind("127.0.0.1:0").unwrap();
        assert!(IpipRaw::from_fd(other.into()).is_err());
    });
}

/// Segments of one TCP stream inside IPIP, each full, in order; checksums right.
fn tunnelled_stream(segments: usize, size: usize) -> Vec<Vec<u8>> {
    let bytes = pattern(segments * size);
    let tunnelled = bytes.chunks(size).enumerate().map(|(n, payload)| {
        let mut inner = Vec::new();
        PacketBuilder::ipv4(A4.octets(), B4.octets(), 64)
            .tcp(7000, 7001, 1000 + (n * size) as u32, 65_000)
            .ack(1)
            .write(&mut inner, payload)
            .unwrap();
        let mut packet = tunnelled(0);
        packet.truncate(20);
        packet.extend(inner);
        let len = (packet.len() as u16).to_be_bytes();
        packet[2..4].copy_from_slice(&len);
        // Don't-fragment inside as well: a kernel coalesces datagrams of one identification only then.
        packet[26] = 0x40;
        for header in [0, 20] {
            let ip =
                etherparse::Ipv4HeaderSlice::from_slice(&packet[header..]).unwrap().to_header();
            let checksum = ip.calc_header_checksum().to_be_bytes();
            packet[header + 10..header + 12].copy_from_slice(&checksum);
        }
        packet
    });
    tunnelled.collect()
}

/// Receives until there are so many bytes of payload behind 60 of headers, in however many packets.
fn whole(port: &mut impl PacketIo, pool: &mut Pool, bytes: usize) -> Vec<Packet> {
    let mut packets = Vec::new();
    eventually("all of it comes", || {
        packets.append(&mut receive(port, pool, 1));
        packets.iter().map(|packet| packet.len() - 60).sum::<usize>() >= bytes
    });
    packets
}

#[test]
fn what_the_kernel_coalesces_comes_with_its_segment_size() {
    inside("what_the_kernel_coalesces_comes_with_its_segment_size", || {
        const SIZE: usize = 1400;
        if Command::new("ethtool").arg("--version").output().is_err() {
            return lacking(Need::Namespaces, "no ethtool");
        }
        let (one, two) = nodes();
        // A veth coalesces with GRO on if the sender has TSO off, and then what one poll of its thread finds; without the
        // thread it polls for each packet.
        one.run(|| output("ethtool", "-K up0 tso off"));
        let coalescing = two.run(|| {
            output("ethtool", "-K up0 gro on");
            nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNS)?;
            nix::mount::mount(
                Some("sysfs"),
                "/sys",
                Some("sysfs"),
                nix::mount::MsFlags::empty(),
                None::<&str>,
            )?;
            std::fs::write("/sys/class/net/up0/threaded", "1")
        });
        if let Err(e) = coalescing {
            return lacking(Need::Namespaces, &format!("a veth's NAPI thread: {e}"));
        }
        let mut sender = uplink(&one, UplinkOptions::default());
        let mut port = uplink(&two, UplinkOptions::default());
        let mut raw = two.run(|| IpipRaw::open(Reception::All).unwrap());
        let mut pool = Pool::new(256);
        let frames: Vec<_> = tunnelled_stream(40, SIZE).iter().map(|p| framed(B_MAC, p)).collect();
        eventually("the kernel coalesces", || {
            assert_eq!(transmit(&mut sender, &mut pool, &frames).0, 40);
            let packets = whole(&mut port, &mut pool, 40 * SIZE);
            let copies = whole(&mut raw, &mut pool, 40 * SIZE);
            let mut heard = Vec::new();
            let mut coalesced = false;
            assert_eq!(packets.len(), copies.len());
            for (packet, copy) in packets.iter().zip(&copies) {
                let bytes = packet.bytes();
                assert_eq!(
                    u16::from_be_bytes([bytes[2], bytes[3]]) as usize,
                    bytes.len(),
                    "the outer length"
                );
                assert_eq!(
                    u16::from_be_bytes([bytes[22], bytes[23]]) as usize,
                    bytes.len() - 20,
                    "the inner length"
                );
                assert_eq!((copy.bytes(), copy.offload), (bytes, Offload::default()));
                if let Some(segmentation) = packet.offload.segmentation {
                    coalesced = true;
                    assert_eq!(
                        (segmentation.kind, segmentation.size as usize),
                        (SegmentKind::Tcp4, SIZE)
                    );
                    assert_eq!(
                        packet.offload.checksum,
                        Checksum::Partial { start: 40, offset: 16 }
                    );
                }
                heard.extend_from_slice(&bytes[60..]);
            }
            assert!(heard == pattern(40 * SIZE));
            for packet in packets.into_iter().chain(copies) {
                pool.put(packet);
            }
            coalesced
        });
    });
}
