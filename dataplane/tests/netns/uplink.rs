//! Tunnel packets, by a packet socket on the underlay's interface and by a raw socket.

use std::net::{Ipv4Addr, UdpSocket};
use std::os::fd::{AsRawFd, OwnedFd};
use std::process::Command;

use etherparse::PacketBuilder;
use manx_dataplane::packet::{Checksum, Offload, Packet, Pool, SegmentKind};
use manx_dataplane::port::ipip_raw::IpipRaw;
use manx_dataplane::port::link::Mac;
use manx_dataplane::port::uplink::{PacketUplink, UplinkOptions};
use manx_dataplane::port::{PacketIo, Reception};
use nix::sys::socket::{MsgFlags, send};

use crate::namespaces::{Need, Netns, eventually, inside, lacking, output, receive};
use crate::pods::{A4, B4, pattern};

const A_MAC: Mac = [2, 0, 0, 0, 0, 0xa];
const B_MAC: Mac = [2, 0, 0, 0, 0, 0xb];
const NODE1: Ipv4Addr = Ipv4Addr::new(192, 168, 7, 1);
const NODE2: Ipv4Addr = Ipv4Addr::new(192, 168, 7, 2);

/// Two nodes on one underlay, each with the interface `up0`.
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
        // Until the kernel has noticed that the other end is up, it silently drops packets.
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

/// An IPIP packet from node 1 to node 2 around a UDP datagram, with a correct inner checksum and its own `tag`.
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

/// Receives packets and sorts them by tag. A veth keeps the order of packets from one processor only, and the sender
/// may have moved.
fn receive_sorted(port: &mut impl PacketIo, pool: &mut Pool, count: usize) -> Vec<Packet> {
    let mut packets = receive(port, pool, count);
    packets.sort_by_key(tag);
    packets
}

#[test]
fn the_uplink_receives_whole_tunnel_packets_to_this_host_and_nothing_else() {
    inside(
        "uplink::the_uplink_receives_whole_tunnel_packets_to_this_host_and_nothing_else",
        || {
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
        },
    );
}

#[test]
fn uplink_queues_share_the_tunnelled_flows_without_copies() {
    inside("uplink::uplink_queues_share_the_tunnelled_flows_without_copies", || {
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
    inside("uplink::a_partial_inner_checksum_crosses_a_veth_unfinished", || {
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
    inside("uplink::a_quiet_raw_socket_receives_nothing_and_keeps_the_kernel_quiet", || {
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
    inside(
        "uplink::a_raw_socket_carries_tunnel_packets_unchanged_and_refuses_what_it_cannot",
        || {
            let (one, two) = nodes();
            let mut sender = one.run(|| IpipRaw::open(Reception::All).unwrap());
            let mut receiver = two
                .run(|| IpipRaw::from_fd(IpipRaw::open(Reception::All).unwrap().into()).unwrap());
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
        },
    );
}

/// The segments of one TCP stream inside IPIP. Each is full, they are in order, and their checksums are correct.
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
        // Don't Fragment is set inside, too, because only then does a kernel coalesce datagrams with the same
        // identification.
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

/// Receives until this many bytes of payload have arrived, each time after 60 bytes of headers, in any number of
/// packets.
fn whole(port: &mut impl PacketIo, pool: &mut Pool, bytes: usize) -> Vec<Packet> {
    let mut packets = Vec::new();
    eventually("all of it comes", || {
        packets.append(&mut receive(port, pool, 1));
        packets.iter().map(|packet| packet.len() - 60).sum::<usize>() >= bytes
    });
    packets
}

#[test]
fn coalesced_packets_arrive_with_their_segment_size() {
    inside("uplink::coalesced_packets_arrive_with_their_segment_size", || {
        const SIZE: usize = 1400;
        if Command::new("ethtool").arg("--version").output().is_err() {
            return lacking(Need::Namespaces, "no ethtool");
        }
        let (one, two) = nodes();
        // A veth with GRO coalesces if the sender has TSO off. It coalesces the packets that one poll of its thread
        // finds; without the thread, it polls for each packet.
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
