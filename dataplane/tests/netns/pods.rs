//! Two pods, and the traffic between them.

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::time::Duration;

use etherparse::PacketBuilder;
use manx_dataplane::offload::coalesce::coalesce;
use manx_dataplane::packet::{Packet, Pool};
use manx_dataplane::port::PacketIo;
use nix::sys::socket::{setsockopt, sockopt};

use crate::namespaces::Netns;

/// The addresses of a test's two pods.
pub(crate) const A4: Ipv4Addr = Ipv4Addr::new(10, 1, 0, 1);
pub(crate) const B4: Ipv4Addr = Ipv4Addr::new(10, 1, 0, 2);
pub(crate) const A6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 1);
pub(crate) const B6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 2);
/// The number of bytes of a stream, which is enough for several hundred super-packets.
const STREAM: usize = 8 << 20;

/// Bytes whose values show their positions.
pub(crate) fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i % 251) as u8).collect()
}

/// Streams the same bytes in both directions at once, and checks every byte.
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

/// Sends one datagram in each direction, then thirty in one super-packet.
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

/// Exchanges TCP and UDP between the pods, in both families.
pub(crate) fn exchange_all(a: &Netns, b: &Netns) {
    for (from, to) in [(IpAddr::V4(A4), IpAddr::V4(B4)), (IpAddr::V6(A6), IpAddr::V6(B6))] {
        exchange_udp(a, b, from, to);
        exchange_tcp(a, b, from, to);
    }
}

/// Coalesces datagrams to B, and checks that B's sockets get them as requested: one by one, or whole.
pub(crate) fn takes_datagrams_that_were_put_together(b: &Netns, port: &mut dyn PacketIo) {
    const COUNT: u8 = 41;
    let payload = |tag: u8| vec![tag; if tag + 1 == COUNT { 7 } else { 200 }];
    for address in [IpAddr::V4(B4), IpAddr::V6(B6)] {
        let alone = b.udp(SocketAddr::new(address, 7001));
        let whole = b.udp(SocketAddr::new(address, 7002));
        setsockopt(&whole, sockopt::UdpGroSegment, &true).unwrap();
        let mut pool = Pool::new(COUNT.into());
        for to in [7001, 7002] {
            let datagram = |tag: u8| {
                let mut bytes = Vec::new();
                let ip = match address {
                    IpAddr::V4(b) => PacketBuilder::ipv4(A4.octets(), b.octets(), 64),
                    IpAddr::V6(b) => PacketBuilder::ipv6(A6.octets(), b.octets(), 64),
                };
                ip.udp(7000, to).write(&mut bytes, &payload(tag)).unwrap();
                pool.take_filled(&bytes).unwrap()
            };
            let mut packets: Vec<Packet> = (0..COUNT).map(datagram).collect();
            coalesce(&mut packets, port.capabilities(), &mut pool);
            assert!(packets.len() == 1 || !port.capabilities().udp_segmentation);
            let done = port.transmit(&mut pool, &mut packets).unwrap();
            assert_eq!(done.refused, 0);
        }
        let mut buffer = vec![0; 65_535];
        for tag in 0..COUNT {
            let received = alone.recv(&mut buffer);
            assert!(received.is_ok(), "datagram {tag} to {address}: {received:?}");
            let len = received.unwrap();
            assert!(buffer[..len] == payload(tag), "datagram {tag} has {len} bytes, or other ones");
        }
        if port.capabilities().udp_segmentation {
            let len = whole.recv(&mut buffer).unwrap();
            assert!(buffer[..len] == (0..COUNT).flat_map(payload).collect::<Vec<u8>>());
        }
    }
}
