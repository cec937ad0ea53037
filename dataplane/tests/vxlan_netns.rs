//! VXLAN's socket against real kernels, and against the kernel's own VXLAN device.
#![expect(
    clippy::unwrap_used,
    reason = "these are tests; their helpers stand outside test functions"
)]

#[expect(dead_code, reason = "shared with the other ports' tests")]
mod netns;

use std::net::{Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

use manx_dataplane::encapsulation::{
    Encapsulation, LinkAddresses, Outer, decapsulate, encapsulate, tunnelled,
};
use manx_dataplane::offload::segment::segment;
use manx_dataplane::packet::{Checksum, Offload, Packet, Pool, SegmentKind, Segmentation};
use manx_dataplane::port::vxlan::VxlanSocket;
use manx_dataplane::port::{PacketIo, Reception};
use netns::{Netns, inside, receive};

const NODE1: Ipv4Addr = Ipv4Addr::new(192, 168, 7, 1);
const NODE2: Ipv4Addr = Ipv4Addr::new(192, 168, 7, 2);
/// Addresses inside the tunnel.
const IN1: Ipv4Addr = Ipv4Addr::new(10, 9, 9, 1);
const IN2: Ipv4Addr = Ipv4Addr::new(10, 9, 9, 2);
const MAC1: [u8; 6] = [0x66, 0, 0, 0, 0, 1];
const MAC2: [u8; 6] = [0x66, 0, 0, 0, 0, 2];
const VNI: u32 = 4096;

/// Two nodes on one underlay, interface `up0` each.
fn nodes() -> (Netns, Netns) {
    // A veth keeps the order of what one core sends, not of what is sent here and there.
    let cores = core_affinity::get_core_ids().unwrap();
    assert!(core_affinity::set_for_current(cores[0]));
    let (one, two) = (Netns::new(), Netns::new());
    one.ip(&format!("link add up0 type veth peer name up0 netns {}", two.path()));
    for (node, address) in [(&one, NODE1), (&two, NODE2)] {
        node.ip("link set up0 up");
        node.ip(&format!("addr add {address}/24 dev up0"));
        // What waits for a neighbour to be found is bounded, and of more the first is lost.
        let waiting = "/proc/sys/net/ipv4/neigh/up0/unres_qlen_bytes";
        node.run(move || std::fs::write(waiting, "16777216").unwrap());
    }
    (one, two)
}

fn socket(node: &Netns, local: Ipv4Addr) -> VxlanSocket {
    node.run(move || VxlanSocket::open(local, Reception::All).unwrap())
}

/// The kernel's end on node 2: everything goes to node 1.
fn kernel_device(node: &Netns) {
    // Or it speaks IPv6 of its own accord, and what is counted here is not all that comes. A kernel without it has no such file.
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

/// A datagram of node 1's inner address, as it leaves for node 2.
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

/// The inner packet; panics unless it came from `source` in our network.
fn inner(packet: &mut Packet, source: Ipv4Addr) -> Vec<u8> {
    let arrived = tunnelled(packet.bytes()).unwrap();
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
    inside("super_datagrams_of_every_shape_arrive_whole_and_in_order", || {
        let (one, two) = nodes();
        let (mut sender, mut port) = (socket(&one, NODE1), socket(&two, NODE2));
        let mut pool = Pool::new(512);
        // One by itself, a long super-datagram with a short end, growing ones that make no super-datagram, more than one super-datagram can hold.
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
    inside("a_super_packet_arrives_as_segmentation_cuts_it", || {
        let (one, two) = nodes();
        let (mut sender, mut port) = (socket(&one, NODE1), socket(&two, NODE2));
        let mut pool = Pool::new(512);
        let ip = || etherparse::PacketBuilder::ipv4(IN1.octets(), IN2.octets(), 64);
        let (mut tcp, mut udp) = (Vec::new(), Vec::new());
        let payload: Vec<u8> = (0..60_000u32).map(|at| (at * 7 / 3) as u8).collect();
        ip().tcp(7001, 7002, 5, 100).ack(9).psh().write(&mut tcp, &payload).unwrap();
        ip().udp(7001, 7002).write(&mut udp, &payload).unwrap();
        let kinds = [(&tcp, SegmentKind::Tcp4), (&udp, SegmentKind::Udp)];
        // A last one that is shorter, all of one length, and more than one train.
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
                let mut packet = super_packet(&mut pool);
                assert!(encapsulate(&mut packet, &outer(), 1));
                let done = sender.transmit(&mut pool, &mut vec![packet]).unwrap();
                assert_eq!((done.sent, done.refused), (segments, 0));
                let mut received = receive(&mut port, &mut pool, segments);
                assert_eq!((received.len(), expected.len()), (segments, segments));
                for (packet, expected) in received.iter_mut().zip(&expected) {
                    assert_eq!(inner(packet, NODE1), expected.bytes());
                }
                received.into_iter().chain(expected).for_each(|packet| pool.put(packet));
            }
        }
    });
}

#[test]
fn a_call_takes_no_more_than_it_was_asked_for_and_the_next_goes_on() {
    inside("a_call_takes_no_more_than_it_was_asked_for_and_the_next_goes_on", || {
        let (one, two) = nodes();
        let (mut sender, mut port) = (socket(&one, NODE1), socket(&two, NODE2));
        let mut pool = Pool::new(64);
        let mut packets: Vec<_> =
            (0..40).map(|n| datagram(&mut pool, &numbered(n, 1000))).collect();
        assert_eq!(sender.transmit(&mut pool, &mut packets).unwrap().sent, 40);
        let (mut got, mut drained) = (Vec::new(), false);
        // They may come later than they were sent.
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
fn marks_cross_and_what_is_no_tunnel_packet_is_refused() {
    inside("marks_cross_and_what_is_no_tunnel_packet_is_refused", || {
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
            .map(|packet| (tunnelled(packet.bytes()).unwrap().ecn as u8, packet.bytes()[1]))
            .collect();
        assert_eq!(marks, [(0, 0), (3, 3), (0, 0)]);
        let taken =
            two.run(|| VxlanSocket::open(NODE2, Reception::All).map(drop).unwrap_err().kind());
        assert_eq!(taken, std::io::ErrorKind::AddrInUse);
    });
}

#[test]
fn the_kernels_own_device_understands_and_is_understood() {
    inside("the_kernels_own_device_understands_and_is_understood", || {
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
    inside("a_quiet_socket_sends_beside_the_one_that_receives_and_gets_nothing", || {
        let (one, two) = nodes();
        kernel_device(&two);
        let mut port = socket(&one, NODE1);
        let mut quiet = one.run(|| VxlanSocket::open(NODE1, Reception::Quiet).unwrap());
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
