//! The VXLAN socket, tested with real kernels and with the kernel's own VXLAN device.

use std::io;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::time::{Duration, Instant};

use manx_dataplane::checksum::{finish, sum};
use manx_dataplane::encapsulation::{
    Encapsulation, LinkAddresses, Outer, decapsulate, encapsulate, parse_outer,
};
use manx_dataplane::offload::segment::segment;
use manx_dataplane::packet::{Checksum, Offload, Packet, Pool, SegmentKind, Segmentation};
use manx_dataplane::port::udp_tunnel::UdpTunnel;
use manx_dataplane::port::{PacketIo, Reception};

use crate::namespaces::{Netns, inside, receive};

const NODE1: Ipv4Addr = Ipv4Addr::new(192, 168, 7, 1);
const NODE2: Ipv4Addr = Ipv4Addr::new(192, 168, 7, 2);
/// Addresses inside the tunnel.
const IN1: Ipv4Addr = Ipv4Addr::new(10, 9, 9, 1);
const IN2: Ipv4Addr = Ipv4Addr::new(10, 9, 9, 2);
const MAC1: [u8; 6] = [0x66, 0, 0, 0, 0, 1];
const MAC2: [u8; 6] = [0x66, 0, 0, 0, 0, 2];
const VNI: u32 = 4096;
/// The length of the VXLAN header and the inner Ethernet header, in bytes, and then the same with the outer headers.
const TUNNEL: usize = 22;
const OUTER: usize = 28 + TUNNEL;

/// Two nodes on one underlay, each with the interface `up0`.
fn nodes() -> (Netns, Netns) {
    // A veth keeps the order of packets from one core only.
    let cores = core_affinity::get_core_ids().unwrap();
    assert!(core_affinity::set_for_current(cores[0]));
    let (one, two) = (Netns::new(), Netns::new());
    one.ip(&format!("link add up0 type veth peer name up0 netns {}", two.path()));
    for (node, address) in [(&one, NODE1), (&two, NODE2)] {
        node.ip("link set up0 up");
        node.ip(&format!("addr add {address}/24 dev up0"));
        // The queue for an unresolved neighbour is bounded and loses its first packets when it is full.
        let waiting = "/proc/sys/net/ipv4/neigh/up0/unres_qlen_bytes";
        node.run(move || std::fs::write(waiting, "16777216").unwrap());
    }
    (one, two)
}

fn open(local: Ipv4Addr, reception: Reception) -> io::Result<UdpTunnel> {
    UdpTunnel::open(SocketAddrV4::new(local, 4789), reception)
}

fn socket(node: &Netns, local: Ipv4Addr) -> UdpTunnel {
    node.run(move || open(local, Reception::All).unwrap())
}

/// The kernel's VXLAN device on node 2, which sends everything to node 1.
fn kernel_device(node: &Netns) {
    // Without IPv6, the device sends nothing on its own. A kernel without IPv6 has no such file.
    node.run(|| drop(std::fs::write("/proc/sys/net/ipv6/conf/default/disable_ipv6", "1")));
    node.ip(&format!(
        "link add vxlan0 address 66:00:00:00:00:02 type vxlan id {VNI} dstport 4789 local {NODE2} remote {NODE1} dev up0 nolearning"
    ));
    node.ip("link set vxlan0 mtu 1450 up");
    node.ip(&format!("addr add {IN2}/24 dev vxlan0"));
    node.ip(&format!("neigh add {IN1} lladdr 66:00:00:00:00:01 dev vxlan0"));
}

fn outer() -> Outer {
    Outer::vxlan(NODE1, NODE2, VNI, LinkAddresses { source: MAC1, destination: MAC2 })
}

/// A datagram from node 1's inner address, in the form in which it leaves for node 2.
fn datagram(pool: &mut Pool, payload: &[u8]) -> Packet {
    let mut inner = Vec::new();
    etherparse::PacketBuilder::ipv4(IN1.octets(), IN2.octets(), 64)
        .udp(7001, 7002)
        .write(&mut inner, payload)
        .unwrap();
    let mut packet = pool.take_filled(&inner).unwrap();
    assert!(encapsulate(&mut packet, &outer(), 1));
    packet
}

/// The `n`th segment of a TCP stream with segments of this length, in the form in which it leaves for node 2.
fn tcp(pool: &mut Pool, n: u16, len: u16) -> Packet {
    let mut inner = Vec::new();
    etherparse::PacketBuilder::ipv4(IN1.octets(), IN2.octets(), 64)
        .tcp(7001, 7002, u32::from(n) * u32::from(len), 100)
        .ack(9)
        .write(&mut inner, &numbered(n as u8, len.into()))
        .unwrap();
    let mut packet = pool.take_filled(&inner).unwrap();
    assert!(encapsulate(&mut packet, &outer(), 1));
    identify(&mut packet, n);
    packet
}

fn flip(packet: &mut Packet, at: usize) {
    packet.bytes_mut()[at] ^= 1;
}

/// Gives the inner packet another identification.
fn identify(packet: &mut Packet, id: u16) {
    let header = &mut packet.bytes_mut()[OUTER..OUTER + 20];
    header[4..6].copy_from_slice(&id.to_be_bytes());
    header[10..12].fill(0);
    let checksum = finish(sum(header));
    header[10..12].copy_from_slice(&checksum.to_be_bytes());
}

/// Receives packets for `count` datagrams. Returns the number of packets that arrived, and each datagram's payload.
fn datagrams(port: &mut UdpTunnel, pool: &mut Pool, count: usize) -> (usize, Vec<Vec<u8>>) {
    let start = Instant::now();
    let (mut packets, mut bytes) = (0, Vec::new());
    while bytes.len() < count && start.elapsed() < Duration::from_secs(2) {
        let mut received = Vec::new();
        if port.receive(pool, &mut received, 64).unwrap().drained {
            std::thread::sleep(Duration::from_micros(200));
        }
        packets += received.len();
        for mut packet in received {
            let tunnel = packet.bytes()[28..OUTER].to_vec();
            packet.pull_front(OUTER);
            let mut segments = vec![packet];
            if segments[0].offload.segmentation.is_some() {
                segment(segments.remove(0), 1450, pool, &mut segments).unwrap();
            }
            for packet in segments {
                bytes.push([&tunnel, packet.bytes()].concat());
                pool.put(packet);
            }
        }
    }
    (packets, bytes)
}

/// The inner packet. Panics unless it came from `source` in our network.
fn inner(packet: &mut Packet, source: Ipv4Addr) -> Vec<u8> {
    let arrived = parse_outer(packet.bytes()).unwrap();
    assert_eq!(arrived.encapsulation, Encapsulation::Vxlan { vni: VNI });
    assert_eq!(arrived.source, source);
    decapsulate(packet, &arrived).unwrap();
    packet.bytes().to_vec()
}

fn numbered(n: u8, len: usize) -> Vec<u8> {
    vec![n; len]
}

#[test]
fn super_datagrams_of_every_shape_arrive_whole_and_in_order() {
    inside("vxlan::super_datagrams_of_every_shape_arrive_whole_and_in_order", || {
        let (one, two) = nodes();
        let (mut sender, mut port) = (socket(&one, NODE1), socket(&two, NODE2));
        let mut pool = Pool::new(512);
        // The lengths give one single datagram, a long super-datagram with a short end, growing datagrams that form
        // none, and more datagrams than one super-datagram holds.
        let lens: Vec<usize> = [200, 1400, 1400, 1400, 90, 91, 92, 93]
            .into_iter()
            .chain([1400; 150])
            .chain([100; 70])
            .collect();
        let mut packets: Vec<Packet> =
            (0u8..).zip(&lens).map(|(n, len)| datagram(&mut pool, &numbered(n, *len))).collect();
        let sent: Vec<Vec<u8>> =
            packets.iter().map(|packet| packet.bytes()[50..].to_vec()).collect();
        let done = sender.transmit(&mut pool, &mut packets).unwrap();
        assert_eq!((done.sent, done.refused), (lens.len(), 0));
        let mut received = receive(&mut port, &mut pool, lens.len());
        let received: Vec<_> = received.iter_mut().map(|packet| inner(packet, NODE1)).collect();
        assert!(received == sent, "{} packets, other ones or in another order", received.len());
    });
}

#[test]
fn a_super_packet_arrives_as_segmentation_cuts_it() {
    inside("vxlan::a_super_packet_arrives_as_segmentation_cuts_it", || {
        let (one, two) = nodes();
        let (mut sender, mut port) = (socket(&one, NODE1), socket(&two, NODE2));
        let mut pool = Pool::new(512);
        let ip = || etherparse::PacketBuilder::ipv4(IN1.octets(), IN2.octets(), 64);
        let (mut tcp, mut udp) = (Vec::new(), Vec::new());
        let payload: Vec<u8> = (0..60_000u32).map(|at| (at * 7 / 3) as u8).collect();
        ip().tcp(7001, 7002, 5, 100).ack(9).psh().write(&mut tcp, &payload).unwrap();
        ip().udp(7001, 7002).write(&mut udp, &payload).unwrap();
        let kinds = [(&tcp, SegmentKind::Tcp4), (&udp, SegmentKind::Udp)];
        // The stream has a shorter last segment, segments of one length, or more segments than one super-datagram
        // holds.
        for (size, segments) in [(1390, 44), (1000, 60), (250, 240)] {
            for (bytes, kind) in kinds {
                let super_packet = |pool: &mut Pool| {
                    let mut packet = pool.take_filled(bytes).unwrap();
                    packet.offload = Offload {
                        checksum: Checksum::Verified,
                        segmentation: Some(Segmentation { kind, size, ecn: false }),
                    };
                    packet
                };
                let mut expected = Vec::new();
                let cut = super_packet(&mut pool);
                segment(cut, 1450, &mut pool, &mut expected).unwrap();
                // In the second round, the inbox knows their layout.
                for _ in 0..2 {
                    let mut packet = super_packet(&mut pool);
                    assert!(encapsulate(&mut packet, &outer(), 1));
                    let done = sender.transmit(&mut pool, &mut vec![packet]).unwrap();
                    assert_eq!((done.sent, done.refused), (segments, 0));
                    let (_, received) = datagrams(&mut port, &mut pool, segments);
                    assert_eq!((received.len(), expected.len()), (segments, segments));
                    for (bytes, expected) in received.iter().zip(&expected) {
                        assert!(bytes[TUNNEL..] == *expected.bytes());
                    }
                }
                for packet in expected {
                    pool.put(packet);
                }
            }
        }
    });
}

/// The number of datagrams in a train, and the datagram that is changed.
const SEGMENTS: usize = 20;
const ODD: usize = 7;
/// A name, a change of a packet in the middle, and the number of packets in which the train arrives.
type Case = (&'static str, fn(&mut Packet), usize);

#[test]
fn datagrams_that_belong_together_arrive_joined_and_others_as_sent() {
    inside("vxlan::datagrams_that_belong_together_arrive_joined_and_others_as_sent", || {
        let (one, two) = nodes();
        let (mut sender, mut port) = (socket(&one, NODE1), socket(&two, NODE2));
        let mut pool = Pool::new(512);
        let odd_one_out = 1 + SEGMENTS - ODD;
        let cases: [Case; 6] = [
            ("nothing", |_| {}, 1),
            ("a payload that the checksum does not fit", |it| flip(it, OUTER + 40), odd_one_out),
            ("another network", |it| flip(it, 28 + 6), odd_one_out),
            ("an identification out of turn", |it| identify(it, 900), odd_one_out),
            ("another length in its header", |it| flip(it, OUTER + 3), odd_one_out),
            ("a wrong header checksum", |it| flip(it, OUTER + 10), odd_one_out),
        ];
        let mut train = |pool: &mut Pool, change: fn(&mut Packet)| {
            let mut packets: Vec<_> = (0..SEGMENTS as u16).map(|n| tcp(pool, n, 1000)).collect();
            change(&mut packets[ODD]);
            let sent: Vec<_> = packets.iter().map(|packet| packet.bytes()[28..].to_vec()).collect();
            assert_eq!(sender.transmit(pool, &mut packets).unwrap().sent, SEGMENTS);
            let (count, received) = datagrams(&mut port, pool, SEGMENTS);
            assert!(received == sent, "{} packets, other ones or in another order", received.len());
            count
        };
        assert_eq!(
            train(&mut pool, |_| {}),
            SEGMENTS,
            "the first train arrives as single datagrams"
        );
        for (what, change, expected) in cases {
            assert_eq!(train(&mut pool, change), expected, "{what}");
        }
        // Shorter, longer and other datagrams arrive between the trains.
        for lens in
            [vec![10], (10..20).collect(), vec![1400], vec![700; 30], vec![1012; 30], vec![1400; 3]]
        {
            let mut packets: Vec<_> =
                lens.iter().map(|len| datagram(&mut pool, &numbered(9, *len))).collect();
            let sent: Vec<_> = packets.iter().map(|packet| packet.bytes()[28..].to_vec()).collect();
            assert_eq!(sender.transmit(&mut pool, &mut packets).unwrap().sent, lens.len());
            let (count, received) = datagrams(&mut port, &mut pool, lens.len());
            assert!(received == sent && count == lens.len(), "{lens:?}");
            let mut clean: Vec<_> = (0..40).map(|n| tcp(&mut pool, n, 1000)).collect();
            assert_eq!(sender.transmit(&mut pool, &mut clean).unwrap().sent, 40);
            let (_, received) = datagrams(&mut port, &mut pool, 40);
            assert_eq!(received.len(), 40);
        }
        assert_eq!(pool.available(), 512, "every buffer is back");
    });
}

#[test]
fn a_call_takes_no_more_than_it_was_asked_for_and_the_next_goes_on() {
    inside("vxlan::a_call_takes_no_more_than_it_was_asked_for_and_the_next_goes_on", || {
        let (one, two) = nodes();
        let (mut sender, mut port) = (socket(&one, NODE1), socket(&two, NODE2));
        let mut pool = Pool::new(64);
        let mut packets: Vec<_> =
            (0..40).map(|n| datagram(&mut pool, &numbered(n, 1000))).collect();
        assert_eq!(sender.transmit(&mut pool, &mut packets).unwrap().sent, 40);
        let (mut got, mut drained) = (Vec::new(), false);
        // They may arrive some time after they were sent.
        let start = Instant::now();
        while got.len() < 40 || !drained {
            assert!(start.elapsed() < Duration::from_secs(10), "{} came", got.len());
            let before = got.len();
            let received = port.receive(&mut pool, &mut got, 16).unwrap();
            assert!(got.len() - before <= 16);
            drained = received.drained;
        }
        let tags: Vec<u8> = got.iter_mut().map(|packet| inner(packet, NODE1)[28]).collect();
        assert_eq!(tags, (0..40).collect::<Vec<u8>>());
    });
}

#[test]
fn marks_cross_and_packets_of_no_tunnel_are_refused() {
    inside("vxlan::marks_cross_and_packets_of_no_tunnel_are_refused", || {
        let (one, two) = nodes();
        let (mut sender, mut port) = (socket(&one, NODE1), socket(&two, NODE2));
        let mut pool = Pool::new(16);
        let mut marked = datagram(&mut pool, b"marked");
        marked.bytes_mut()[1] = 3;
        let mut packets = vec![
            datagram(&mut pool, b"before"),
            marked,
            pool.take_filled(&[0x45; 20]).unwrap(),
            datagram(&mut pool, b"behind"),
        ];
        let done = sender.transmit(&mut pool, &mut packets).unwrap();
        assert_eq!((done.sent, done.refused), (3, 1));
        let received = receive(&mut port, &mut pool, 3);
        let marks: Vec<_> = received
            .iter()
            .map(|packet| (parse_outer(packet.bytes()).unwrap().ecn as u8, packet.bytes()[1]))
            .collect();
        assert_eq!(marks, [(0, 0), (3, 3), (0, 0)]);
        let taken = two.run(|| open(NODE2, Reception::All).map(drop).unwrap_err().kind());
        assert_eq!(taken, io::ErrorKind::AddrInUse);
    });
}

#[test]
fn packets_cross_to_and_from_the_kernels_own_device() {
    inside("vxlan::packets_cross_to_and_from_the_kernels_own_device", || {
        let (one, two) = nodes();
        kernel_device(&two);
        let mut port = socket(&one, NODE1);
        let mut pool = Pool::new(128);
        let far = two.udp(SocketAddr::new(IN2.into(), 7002));
        let mut packets: Vec<_> =
            (0..45).map(|n| datagram(&mut pool, &numbered(n, 1300))).collect();
        assert_eq!(port.transmit(&mut pool, &mut packets).unwrap().sent, 45);
        let mut buffer = [0; 2000];
        for n in 0..45 {
            let (len, from) = far.recv_from(&mut buffer).unwrap();
            assert_eq!((len, from), (1300, SocketAddr::new(IN1.into(), 7001)));
            assert!(buffer[..1300].iter().all(|byte| *byte == n));
        }
        for n in 0..45 {
            far.send_to(&numbered(n, 700), (IN1, 7001)).unwrap();
        }
        let mut received = receive(&mut port, &mut pool, 45);
        let tags: Vec<u8> = received
            .iter_mut()
            .map(|packet| {
                let inner = inner(packet, NODE2);
                assert_eq!(inner.len(), 728);
                inner[28]
            })
            .collect();
        assert_eq!(tags, (0..45).collect::<Vec<u8>>());
    });
}

#[test]
fn a_quiet_socket_sends_beside_the_one_that_receives_and_gets_nothing() {
    inside("vxlan::a_quiet_socket_sends_beside_the_one_that_receives_and_gets_nothing", || {
        let (one, two) = nodes();
        kernel_device(&two);
        let mut port = socket(&one, NODE1);
        let mut quiet = one.run(|| open(NODE1, Reception::Quiet).unwrap());
        let mut pool = Pool::new(128);
        let far = two.udp(SocketAddr::new(IN2.into(), 7002));
        let mut buffer = [0; 2000];
        for round in 0..10 {
            let mut packets: Vec<_> =
                (0..3).map(|n| datagram(&mut pool, &numbered(n, 1300))).collect();
            assert_eq!(quiet.transmit(&mut pool, &mut packets).unwrap().sent, 3);
            for n in 0..3 {
                let (len, from) = far.recv_from(&mut buffer).unwrap();
                assert_eq!((len, from), (1300, SocketAddr::new(IN1.into(), 7001)));
                assert!(buffer[..1300].iter().all(|byte| *byte == n));
            }
            far.send_to(&numbered(round, 700), (IN1, 7001)).unwrap();
            let mut received = receive(&mut port, &mut pool, 1);
            assert_eq!(inner(&mut received[0], NODE2)[28], round);
            let mut none = Vec::new();
            assert!(quiet.receive(&mut pool, &mut none, 8).unwrap().drained);
            assert!(none.is_empty());
            received.drain(..).for_each(|packet| pool.put(packet));
        }
    });
}
