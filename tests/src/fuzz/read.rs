//! A second reader of packets that shares no code with the dataplane: headers by `etherparse`, the rest by hand.
//!
//! It rejects as little as possible, because the tests do not allow a packet that it rejects to come out.

use std::net::IpAddr;

use etherparse::checksum::u64_16bit_word as sums;
use etherparse::{Ipv4HeaderSlice, Ipv6HeaderSlice};

use crate::packet::{ICMP, ICMPV6, SCTP, TCP, UDP};

pub const IPIP: u8 = 4;
const HOP_BY_HOP: u8 = 0;
const ROUTING: u8 = 43;
const FRAGMENT: u8 = 44;
const AUTHENTICATION: u8 = 51;
const DESTINATION_OPTIONS: u8 = 60;

pub mod flag {
    pub const FIN: u8 = 1;
    pub const SYN: u8 = 2;
    pub const RST: u8 = 4;
    pub const PSH: u8 = 8;
    pub const ACK: u8 = 16;
    pub const CWR: u8 = 128;
}

/// The flow tuple of a packet: addresses, protocol, and ports or the ICMP query. It identifies a connection in one
/// direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct FlowTuple {
    pub source: IpAddr,
    pub destination: IpAddr,
    pub upper: u8,
    pub transport: TransportKey,
}

/// The part of a flow tuple in the transport header.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum TransportKey {
    /// Source and destination port.
    Ports(u16, u16),
    /// A query of ICMP, or its answer: the query's type, whether it is the query and not the answer, and its
    /// identifier.
    Query {
        kind: u8,
        asks: bool,
        id: u16,
    },
    /// Another message of ICMP: type and code.
    Message(u8, u8),
    Nothing,
}

impl FlowTuple {
    /// The tuple of the other direction.
    pub fn reversed(self) -> Self {
        let transport = match self.transport {
            TransportKey::Ports(source, destination) => TransportKey::Ports(destination, source),
            TransportKey::Query { kind, asks, id } => TransportKey::Query { kind, asks: !asks, id },
            transport => transport,
        };
        Self { source: self.destination, destination: self.source, transport, ..self }
    }

    pub fn is_v4(&self) -> bool {
        self.source.is_ipv4()
    }

    /// Type and code on the wire.
    pub fn icmp(&self) -> Option<(u8, u8)> {
        match self.transport {
            TransportKey::Query { kind, asks: true, .. } => Some((kind, 0)),
            TransportKey::Query { kind, asks: false, .. } => Some((answer_to(kind), 0)),
            TransportKey::Message(kind, code) => Some((kind, code)),
            TransportKey::Ports(..) | TransportKey::Nothing => None,
        }
    }

    /// The tuple of an echo request.
    pub fn echo(source: IpAddr, destination: IpAddr, id: u16) -> Self {
        let (upper, kind) = if source.is_ipv4() { (ICMP, 8) } else { (ICMPV6, 128) };
        Self { source, destination, upper, transport: TransportKey::Query { kind, asks: true, id } }
    }
}

/// The ICMP type of the answer to a query of this type (RFC 792, RFC 4443).
fn answer_to(query: u8) -> u8 {
    match query {
        8 => 0,
        other => other + 1,
    }
}

/// Whether bytes are a whole packet, or which fragment of a packet they are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    Whole,
    First { id: u32 },
    Later { id: u32, offset: usize },
}

/// The content of a packet.
#[derive(Debug, Clone, Copy)]
pub struct Read {
    pub tuple: FlowTuple,
    pub ttl: u8,
    pub ecn: u8,
    pub may_be_cut: bool,
    /// The packet's length according to its header.
    pub total: usize,
    /// The offset of the upper layer.
    pub at: usize,
    pub part: Part,
    /// The TCP flags.
    pub flags: u8,
}

impl Read {
    pub fn opens(&self) -> bool {
        self.flags & (flag::SYN | flag::ACK | flag::RST) == flag::SYN
    }

    /// A message of ICMP about another packet (RFC 1122, section 3.2.2; RFC 4443, section 2.1).
    pub fn is_error(&self) -> bool {
        match (self.tuple.icmp(), self.tuple.upper, self.tuple.is_v4()) {
            (Some((kind, _)), ICMP, true) => matches!(kind, 3 | 4 | 5 | 11 | 12),
            (Some((kind, _)), ICMPV6, false) => kind < 128,
            _ => false,
        }
    }

    pub fn is_later(&self) -> bool {
        matches!(self.part, Part::Later { .. })
    }

    /// The offset of the transport checksum in the packet.
    pub fn checksum_at(&self) -> Option<usize> {
        let offset = checksum_offset(self.tuple.upper, self.tuple.is_v4())?;
        (self.part == Part::Whole && self.at + offset + 2 <= self.total).then_some(self.at + offset)
    }

    /// The length of all headers. Each segment of a super-packet repeats them.
    pub fn headers(&self, bytes: &[u8]) -> usize {
        if self.is_later() {
            return self.at;
        }
        let upper = match self.tuple.upper {
            TCP => bytes.get(self.at + 12).map_or(0, |it| usize::from(it >> 4) * 4),
            UDP => 8,
            SCTP => 12,
            ICMP if self.tuple.is_v4() => 8,
            ICMPV6 if !self.tuple.is_v4() => 8,
            _ => 0,
        };
        self.at + upper
    }

    /// Whether its protocol has super-packets.
    pub fn has_segments(&self) -> bool {
        matches!(self.tuple.upper, TCP | UDP)
    }
}

/// The offset of the checksum in a transport header.
pub fn checksum_offset(upper: u8, v4: bool) -> Option<usize> {
    match upper {
        TCP => Some(16),
        UDP => Some(6),
        ICMP if v4 => Some(2),
        ICMPV6 if !v4 => Some(2),
        _ => None,
    }
}

/// The sum of the pseudo-header and of the bytes; for ICMP over IPv4 of the bytes alone.
pub fn sum(source: IpAddr, destination: IpAddr, upper: u8, len: usize, bytes: &[u8]) -> u64 {
    let sum = if upper == ICMP { 0 } else { pseudo(source, destination, upper, len) };
    sums::add_slice(sum, bytes)
}

/// The sum of the pseudo-header for a transport layer of this length.
pub fn pseudo(source: IpAddr, destination: IpAddr, upper: u8, len: usize) -> u64 {
    let mut sum = sums::add_4bytes(0, (len as u32).to_be_bytes());
    sum = sums::add_2bytes(sum, [0, upper]);
    for address in [source, destination] {
        sum = match address {
            IpAddr::V4(v4) => sums::add_slice(sum, &v4.octets()),
            IpAddr::V6(v6) => sums::add_slice(sum, &v6.octets()),
        };
    }
    sum
}

/// The complement of a sum, as on the wire.
pub fn complement(sum: u64) -> [u8; 2] {
    sums::ones_complement(sum).to_ne_bytes()
}

/// Whether the sum of bytes and their checksum is right.
pub fn sums_up(sum: u64) -> bool {
    sums::ones_complement(sum) == 0
}

/// Reads a packet. `None` if its IP header is not complete and correct, if the packet is shorter than its header says,
/// or if its transport header is too short for ports or a type.
pub fn read(bytes: &[u8]) -> Option<Read> {
    read_as(bytes, false)
}

/// Reads the beginning of a packet that an error quotes. Its length and the checksum of its header are not checked.
pub fn read_quoted(bytes: &[u8]) -> Option<Read> {
    read_as(bytes, true)
}

/// The packet that an ICMP error quotes.
pub fn read_about(error: &[u8], read: &Read) -> Option<Read> {
    error.get(read.at + 8..).filter(|_| read.is_error()).and_then(read_quoted)
}

fn read_as(bytes: &[u8], quoted: bool) -> Option<Read> {
    match bytes.first()? >> 4 {
        4 => read_v4(bytes, quoted),
        6 => read_v6(bytes, quoted),
        _ => None,
    }
}

fn read_v4(bytes: &[u8], quoted: bool) -> Option<Read> {
    let ip = Ipv4HeaderSlice::from_slice(bytes).ok()?;
    let at = ip.slice().len();
    let total = if quoted { bytes.len() } else { usize::from(ip.total_len()) };
    if total < at || total > bytes.len() {
        return None;
    }
    if !quoted && !sums_up(sums::add_slice(0, ip.slice())) {
        return None;
    }
    let (id, offset) = (ip.identification().into(), usize::from(ip.fragments_offset().value()) * 8);
    let part = match (offset, ip.more_fragments()) {
        (0, false) => Part::Whole,
        (0, true) => Part::First { id },
        (offset, _) => Part::Later { id, offset },
    };
    let upper = ip.protocol().0;
    let ends = (ip.source_addr().into(), ip.destination_addr().into());
    let read = Read {
        tuple: FlowTuple {
            source: ends.0,
            destination: ends.1,
            upper,
            transport: TransportKey::Nothing,
        },
        ttl: ip.ttl(),
        ecn: ip.ecn().value(),
        may_be_cut: !ip.dont_fragment(),
        total,
        at,
        part,
        flags: 0,
    };
    read_upper(read, &bytes[..total])
}

fn read_v6(bytes: &[u8], quoted: bool) -> Option<Read> {
    let ip = Ipv6HeaderSlice::from_slice(bytes).ok()?;
    let total = if quoted { bytes.len() } else { 40 + usize::from(ip.payload_length()) };
    if total > bytes.len() {
        return None;
    }
    let (mut upper, mut at, mut part) = (ip.next_header().0, 40, Part::Whole);
    let mut headers = 0;
    while matches!(upper, HOP_BY_HOP | ROUTING | FRAGMENT | AUTHENTICATION | DESTINATION_OPTIONS) {
        let &[next, len, high, low, a, b, c, d] = bytes[..total].get(at..)?.first_chunk()?;
        at += match upper {
            FRAGMENT => 8,
            AUTHENTICATION => (usize::from(len) + 2) * 4,
            _ => (usize::from(len) + 1) * 8,
        };
        headers += 1;
        if at > total || headers > 16 {
            return None;
        }
        if upper == FRAGMENT {
            let (id, word) = (u32::from_be_bytes([a, b, c, d]), u16::from_be_bytes([high, low]));
            part = match (usize::from(word & !7), word & 1 != 0) {
                (0, false) => Part::Whole,
                (0, true) => Part::First { id },
                (offset, _) => Part::Later { id, offset },
            };
        }
        upper = next;
        if matches!(part, Part::Later { .. }) {
            break;
        }
    }
    let ends = (ip.source_addr().into(), ip.destination_addr().into());
    let read = Read {
        tuple: FlowTuple {
            source: ends.0,
            destination: ends.1,
            upper,
            transport: TransportKey::Nothing,
        },
        ttl: ip.hop_limit(),
        ecn: ip.traffic_class() & 3,
        may_be_cut: false,
        total,
        at,
        part,
        flags: 0,
    };
    read_upper(read, &bytes[..total])
}

fn read_upper(mut read: Read, bytes: &[u8]) -> Option<Read> {
    if read.is_later() {
        return Some(read);
    }
    let segment = &bytes[read.at..];
    let FlowTuple { upper, .. } = read.tuple;
    match upper {
        TCP | UDP | SCTP => {
            let &[a, b, c, d] = segment.first_chunk()?;
            let ports = [u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d])];
            read.tuple.transport = TransportKey::Ports(ports[0], ports[1]);
            if upper == TCP {
                read.flags = segment.get(13).copied().unwrap_or_default();
            }
        }
        ICMP | ICMPV6 if (upper == ICMP) == read.tuple.is_v4() => {
            let &[kind, code, _, _, a, b, _, _] = segment.first_chunk()?;
            read.tuple.transport = icmp_words(upper, kind, code, u16::from_be_bytes([a, b]));
        }
        _ => {}
    }
    Some(read)
}

fn icmp_words(upper: u8, kind: u8, code: u8, id: u16) -> TransportKey {
    let query = match (upper, kind) {
        _ if code != 0 => None,
        (ICMP, 8 | 13) | (ICMPV6, 128) => Some((kind, true)),
        (ICMP, 0) => Some((8, false)),
        (ICMP, 14) => Some((13, false)),
        (ICMPV6, 129) => Some((128, false)),
        _ => None,
    };
    match query {
        Some((kind, asks)) => TransportKey::Query { kind, asks, id },
        None => TransportKey::Message(kind, code),
    }
}
