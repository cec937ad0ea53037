//! Two pods, and what they say to each other.

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::time::Duration;

use nix::sys::socket::{setsockopt, sockopt};

use crate::namespaces::Netns;

/// The two pods of a test.
pub(crate) const A4: Ipv4Addr = Ipv4Addr::new(10, 1, 0, 1);
pub(crate) const B4: Ipv4Addr = Ipv4Addr::new(10, 1, 0, 2);
pub(crate) const A6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 1);
pub(crate) const B6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 2);
/// Enough for several hundred super-packets.
const STREAM: usize = 8 << 20;

/// Bytes that tell where they stand.
pub(crate) fn pattern(len: usize) -> Vec<u8> {
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

/// What pods say to each other, both families.
pub(crate) fn exchange_all(a: &Netns, b: &Netns) {
    for (from, to) in [(IpAddr::V4(A4), IpAddr::V4(B4)), (IpAddr::V6(A6), IpAddr::V6(B6))] {
        exchange_udp(a, b, from, to);
        exchange_tcp(a, b, from, to);
    }
}
