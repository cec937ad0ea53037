//! Packets at the queues of `manx1`, and sockets at both ends.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::time::{Duration, Instant};

use manx_dataplane::checksum::{fold, sum};
use manx_dataplane::packet::{Packet, Pool};
use manx_devices::device::Queues;

use super::*;

pub(super) fn udp(address: &str, port: u16) -> UdpSocket {
    let socket = UdpSocket::bind((ip(address), port)).unwrap();
    socket.set_read_timeout(Some(LONG)).unwrap();
    socket
}

/// Whether the socket receives nothing for a while.
pub(super) fn hears_nothing(socket: &UdpSocket) -> bool {
    socket.set_read_timeout(Some(SHORT)).unwrap();
    let nothing = heard(socket).is_none();
    socket.set_read_timeout(Some(LONG)).unwrap();
    nothing
}

/// The datagram that a socket receives, and its sender.
pub(super) fn heard(socket: &UdpSocket) -> Option<(Vec<u8>, SocketAddr)> {
    let mut bytes = [0; 64];
    let (len, from) = socket.recv_from(&mut bytes).ok()?;
    Some((bytes[..len].to_vec(), from))
}

/// The protocol and the ends of a packet.
pub(super) type Ends = (u8, SocketAddr, SocketAddr);

pub(super) fn ends(packet: &[u8]) -> Option<Ends> {
    let word = |at: usize| u16::from_be_bytes([packet[at], packet[at + 1]]);
    let (protocol, from, to, at) = if packet[0] >> 4 == 4 {
        let address = |at: usize| IpAddr::from(*packet[at..].first_chunk::<4>().unwrap());
        (packet[9], address(12), address(16), usize::from(packet[0] & 15) * 4)
    } else {
        let address = |at: usize| IpAddr::from(*packet[at..].first_chunk::<16>().unwrap());
        (packet[6], address(8), address(24), 40)
    };
    let has_ports = [TCP, UDP].contains(&protocol);
    has_ports.then(|| (protocol, (from, word(at)).into(), (to, word(at + 2)).into()))
}

/// The TCP and UDP packets that arrive at the queue within `patience`. It waits for the first one for at most [`LONG`].
pub(super) fn arrive(queues: &mut Queues, patience: Duration) -> Vec<Ends> {
    let mut pool = Pool::new(64);
    let mut batch = Vec::new();
    let end = Instant::now() + patience;
    let mut all = Vec::new();
    while Instant::now() < end && all.is_empty() {
        let _ = queues[0].receive(&mut pool, &mut batch, 32).unwrap();
        all.extend(batch.drain(..).filter_map(|packet: Packet| ends(packet.bytes())));
        std::thread::sleep(Duration::from_millis(1));
    }
    all
}

pub(super) fn octets(address: &str) -> Vec<u8> {
    match ip(address) {
        IpAddr::V4(it) => it.octets().to_vec(),
        IpAddr::V6(it) => it.octets().to_vec(),
    }
}

/// A checksum that the receiver accepts (RFC 1071).
pub(super) fn checksum(bytes: &[u8]) -> [u8; 2] {
    (!fold(sum(bytes))).to_be_bytes()
}

/// An IP packet.
pub(super) fn packet(protocol: u8, from: &str, to: &str, payload: &[u8]) -> Vec<u8> {
    let ends = [octets(from), octets(to)].concat();
    let len = payload.len() as u16;
    let header = if ends.len() == 8 {
        let [high, low] = (20 + len).to_be_bytes();
        let mut header = vec![0x45, 0, high, low, 0, 1, 0, 0, 64, protocol, 0, 0];
        header.extend(&ends);
        let check = checksum(&header);
        header[10..12].copy_from_slice(&check);
        header
    } else {
        let [high, low] = len.to_be_bytes();
        [vec![0x60, 0, 0, 0, high, low, protocol, 64], ends].concat()
    };
    [&header, payload].concat()
}

pub(super) fn datagram(from: (&str, u16), to: (&str, u16), data: &[u8]) -> Vec<u8> {
    let len = 8 + data.len() as u16;
    let mut segment = [from.1, to.1, len, 0].map(u16::to_be_bytes).concat();
    segment.extend(data);
    let pseudo_header =
        [octets(from.0), octets(to.0), len.to_be_bytes().to_vec(), vec![0, UDP]].concat();
    let check = checksum(&[&pseudo_header[..], &segment].concat());
    segment[6..8].copy_from_slice(&check);
    packet(UDP, from.0, to.0, &segment)
}

pub(super) fn send(queues: &mut Queues, bytes: &[u8]) {
    let mut pool = Pool::new(1);
    let packet = pool.take_filled(bytes).unwrap();
    let _ = queues[0].transmit(&mut pool, &mut vec![packet]).unwrap();
}

pub(super) fn connect(to: (&str, u16)) -> TcpStream {
    TcpStream::connect_timeout(&(ip(to.0), to.1).into(), LONG).unwrap()
}

/// Whether a connection gets no answer at all.
pub(super) fn waits_in_vain(to: (&str, u16)) -> bool {
    let tried = TcpStream::connect_timeout(&(ip(to.0), to.1).into(), SHORT);
    tried.is_err_and(|error| error.kind() == io::ErrorKind::TimedOut)
}

/// Whether a line that is sent over a new connection comes back.
pub(super) fn is_served(listener: &TcpListener, client: TcpStream) -> bool {
    let (mut server, mut client) = (listener.accept().unwrap().0, client);
    let mut bytes = [0; 4];
    client.write_all(b"ping").unwrap();
    server.read_exact(&mut bytes).unwrap();
    server.write_all(b"pong").unwrap();
    client.read_exact(&mut bytes).unwrap();
    &bytes == b"pong"
}
