//! Packets in the form in which hosts send them.

use std::net::{IpAddr, Ipv4Addr};

use etherparse::{
    IpDscp, IpEcn, IpFragOffset, IpNumber, IpPayloadSlice, Ipv4Header, Ipv4HeaderSlice, NetSlice,
    PacketBuilder, PacketBuilderStep, SlicedPacket, TransportSlice,
};
use manx_dataplane::packet::{Checksum, Offload, SegmentKind, Segmentation};

/// IANA's protocol numbers.
pub const ICMP: u8 = 1;
pub const TCP: u8 = 6;
pub const UDP: u8 = 17;
pub const ICMPV6: u8 = 58;
pub const SCTP: u8 = 132;
/// The time to live of hosts' packets.
pub const TTL: u8 = 64;

/// A connection, from the side that opens it. An echo's identifier is its source port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tuple {
    pub source: IpAddr,
    pub destination: IpAddr,
    pub protocol: u8,
    pub source_port: u16,
    pub destination_port: u16,
}

/// The kind of a TCP segment; other protocols ignore it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Segment {
    Syn,
    SynAck,
    Data,
    Fin,
    Rst,
}

impl Tuple {
    pub fn new(source: &str, destination: &str, protocol: u8, port: u16) -> Self {
        let (source, destination) = (source.parse().unwrap(), destination.parse().unwrap());
        Self { source, destination, protocol, source_port: 40_000, destination_port: port }
    }

    pub fn from_port(self, source_port: u16) -> Self {
        Self { source_port, ..self }
    }

    /// The same connection opened from the other side.
    pub fn reversed(self) -> Self {
        Self {
            source: self.destination,
            destination: self.source,
            source_port: self.destination_port,
            destination_port: self.source_port,
            ..self
        }
    }

    /// The first packet of the connection.
    pub fn opening(self) -> Vec<u8> {
        self.packet(Segment::Syn, b"hello")
    }

    /// The first answer to the first packet.
    pub fn answer(self) -> Vec<u8> {
        match self.protocol {
            ICMP | ICMPV6 => self.echo(self.destination, self.source, false),
            _ => self.reversed().packet(Segment::SynAck, b"hello yourself"),
        }
    }

    /// A later packet of the connection.
    pub fn data(self, payload: &[u8]) -> Vec<u8> {
        self.packet(Segment::Data, payload)
    }

    /// A packet from the opening side.
    pub fn packet(self, segment: Segment, payload: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::new();
        let step = ip(self.source, self.destination, TTL);
        match self.protocol {
            TCP => {
                let step = step.tcp(self.source_port, self.destination_port, 1, 1024);
                match segment {
                    Segment::Syn => step.syn().write(&mut bytes, &[]),
                    Segment::SynAck => step.syn().ack(1).write(&mut bytes, &[]),
                    Segment::Data => step.ack(1).write(&mut bytes, payload),
                    Segment::Fin => step.fin().ack(1).write(&mut bytes, payload),
                    Segment::Rst => step.rst().ack(1).write(&mut bytes, &[]),
                }
                .unwrap();
            }
            UDP => step
                .udp(self.source_port, self.destination_port)
                .write(&mut bytes, payload)
                .unwrap(),
            ICMP | ICMPV6 => return self.echo(self.source, self.destination, true),
            SCTP => {
                let mut init = Vec::new();
                init.extend(self.source_port.to_be_bytes());
                init.extend(self.destination_port.to_be_bytes());
                init.extend([0; 24]);
                raw(&mut bytes, self.source, self.destination, SCTP, &init);
            }
            protocol => raw(&mut bytes, self.source, self.destination, protocol, &[0; 16]),
        }
        bytes
    }

    fn echo(self, source: IpAddr, destination: IpAddr, request: bool) -> Vec<u8> {
        let mut bytes = Vec::new();
        let (step, id) = (ip(source, destination, TTL), self.source_port);
        match (self.protocol == ICMP, source.is_ipv4(), request) {
            (true, true, true) => step.icmpv4_echo_request(id, 1).write(&mut bytes, b"ping"),
            (true, true, false) => step.icmpv4_echo_reply(id, 1).write(&mut bytes, b"ping"),
            (false, false, true) => step.icmpv6_echo_request(id, 1).write(&mut bytes, b"ping"),
            (false, false, false) => step.icmpv6_echo_reply(id, 1).write(&mut bytes, b"ping"),
            // This family has no such echo, so the protocol number is that of the other family.
            _ => {
                raw(&mut bytes, source, destination, self.protocol, &[0; 16]);
                Ok(())
            }
        }
        .unwrap();
        bytes
    }
}

fn ip(source: IpAddr, destination: IpAddr, ttl: u8) -> PacketBuilderStep<etherparse::IpHeaders> {
    PacketBuilder::ip(match (source, destination) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => {
            let header =
                Ipv4Header::new(0, ttl, IpNumber::UDP, source.octets(), destination.octets());
            etherparse::IpHeaders::Ipv4(header.unwrap(), etherparse::Ipv4Extensions::default())
        }
        (IpAddr::V6(source), IpAddr::V6(destination)) => etherparse::IpHeaders::Ipv6(
            etherparse::Ipv6Header {
                hop_limit: ttl,
                source: source.octets(),
                destination: destination.octets(),
                ..etherparse::Ipv6Header::default()
            },
            etherparse::Ipv6Extensions::default(),
        ),
        _ => panic!("no packet goes from one family to the other"),
    })
}

fn raw(bytes: &mut Vec<u8>, source: IpAddr, destination: IpAddr, protocol: u8, payload: &[u8]) {
    ip(source, destination, TTL).write(bytes, IpNumber(protocol), payload).unwrap();
}

/// Changes the IPv4 header of a packet, and recomputes its checksum.
pub fn change_v4(bytes: &mut [u8], change: impl FnOnce(&mut Ipv4Header)) {
    let mut header = Ipv4HeaderSlice::from_slice(bytes).unwrap().to_header();
    change(&mut header);
    header.header_checksum = header.calc_header_checksum();
    bytes[..20].copy_from_slice(&header.to_bytes());
}

/// A packet with this time to live (hop limit).
pub fn with_ttl(mut bytes: Vec<u8>, ttl: u8) -> Vec<u8> {
    if bytes[0] >> 4 == 4 {
        change_v4(&mut bytes, |header| header.time_to_live = ttl);
    } else {
        bytes[7] = ttl;
    }
    bytes
}

/// The time to live (hop limit) of a packet.
pub fn ttl(bytes: &[u8]) -> u8 {
    if bytes[0] >> 4 == 4 { bytes[8] } else { bytes[7] }
}

/// A packet in a tunnel from one node to another.
pub fn tunnelled(from: Ipv4Addr, to: Ipv4Addr, inner: &[u8], ecn: u8) -> Vec<u8> {
    let mut header =
        Ipv4Header::new(inner.len() as u16, TTL, IpNumber::IPV4, from.octets(), to.octets())
            .unwrap();
    header.dscp = IpDscp::ZERO;
    header.ecn = IpEcn::try_new(ecn).unwrap();
    header.fragment_offset = IpFragOffset::ZERO;
    header.header_checksum = header.calc_header_checksum();
    [&header.to_bytes()[..], inner].concat()
}

/// A TCP or UDP super-packet as a kernel passes it on: its checksum is only the sum of the
/// pseudo-header, and it must be cut into segments of `size` bytes of payload.
pub fn super_packet(tuple: Tuple, payload: &[u8], size: u16) -> (Vec<u8>, Offload) {
    let mut bytes = tuple.data(payload);
    let v4 = tuple.source.is_ipv4();
    let (start, from) = if v4 { (20, 12) } else { (40, 8) };
    let (kind, offset) = match (tuple.protocol, v4) {
        (TCP, true) => (SegmentKind::Tcp4, 16),
        (TCP, false) => (SegmentKind::Tcp6, 16),
        (UDP, _) => (SegmentKind::Udp, 6),
        (protocol, _) => panic!("no super-packets of protocol {protocol}"),
    };
    let len = (bytes.len() - start) as u32;
    let words =
        bytes[from..start].chunks(2).map(|pair| u32::from(pair[0]) << 8 | u32::from(pair[1]));
    let mut sum = words.sum::<u32>() + u32::from(tuple.protocol) + len;
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    bytes[start + offset..start + offset + 2].copy_from_slice(&(sum as u16).to_be_bytes());
    let offload = Offload {
        checksum: Checksum::Partial { start: start as u16, offset: offset as u16 },
        segmentation: Some(Segmentation { kind, size, ecn: false }),
    };
    (bytes, offload)
}

/// The source and destination of a packet.
pub fn addresses(bytes: &[u8]) -> (IpAddr, IpAddr) {
    match SlicedPacket::from_ip(bytes).unwrap().net.unwrap() {
        NetSlice::Ipv4(ip) => {
            (ip.header().source_addr().into(), ip.header().destination_addr().into())
        }
        NetSlice::Ipv6(ip) => {
            (ip.header().source_addr().into(), ip.header().destination_addr().into())
        }
        NetSlice::Arp(_) => panic!("not IP"),
    }
}

/// Panics unless all lengths and checksums of a packet are correct.
pub fn assert_whole(bytes: &[u8]) {
    let sliced = SlicedPacket::from_ip(bytes).unwrap();
    let net = sliced.net.as_ref().unwrap();
    if let NetSlice::Ipv4(ip) = net {
        let header = ip.header().to_header();
        assert_eq!(header.header_checksum, header.calc_header_checksum(), "IPv4's checksum");
        assert_eq!(usize::from(header.total_len), bytes.len(), "IPv4's length");
    }
    let (written, computed) = match (net, sliced.transport.as_ref()) {
        (NetSlice::Ipv4(ip), Some(TransportSlice::Tcp(tcp))) => {
            let ip = ip.header().to_header();
            (tcp.checksum(), tcp.to_header().calc_checksum_ipv4(&ip, tcp.payload()).unwrap())
        }
        (NetSlice::Ipv6(ip), Some(TransportSlice::Tcp(tcp))) => {
            let ip = ip.header().to_header();
            (tcp.checksum(), tcp.to_header().calc_checksum_ipv6(&ip, tcp.payload()).unwrap())
        }
        (NetSlice::Ipv4(ip), Some(TransportSlice::Udp(udp))) => {
            let ip = ip.header().to_header();
            (udp.checksum(), udp.to_header().calc_checksum_ipv4(&ip, udp.payload()).unwrap())
        }
        (NetSlice::Ipv6(ip), Some(TransportSlice::Udp(udp))) => {
            let ip = ip.header().to_header();
            (udp.checksum(), udp.to_header().calc_checksum_ipv6(&ip, udp.payload()).unwrap())
        }
        (_, Some(TransportSlice::Icmpv4(icmp))) => {
            (icmp.checksum(), icmp.icmp_type().calc_checksum(icmp.payload()))
        }
        (NetSlice::Ipv6(ip), Some(TransportSlice::Icmpv6(icmp))) => {
            let ip = ip.header();
            let computed =
                icmp.icmp_type().calc_checksum(ip.source(), ip.destination(), icmp.payload());
            (icmp.checksum(), computed.unwrap())
        }
        _ => return,
    };
    assert_eq!(written, computed, "layer 4's checksum");
}

/// The payload of an IP packet.
pub fn payload(bytes: &[u8]) -> Vec<u8> {
    let sliced = SlicedPacket::from_ip(bytes).unwrap();
    let payload: &IpPayloadSlice<'_> = sliced.ip_payload().unwrap();
    payload.payload.to_vec()
}
