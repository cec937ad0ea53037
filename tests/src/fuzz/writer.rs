//! Writes packets byte by byte, so that every part of them can be chosen.

use std::net::{IpAddr, Ipv4Addr};

use etherparse::checksum::u64_16bit_word as sums;
use manx_dataplane::packet::{Checksum, Offload, SegmentKind, Segmentation};

use super::read::{FlowTuple, TransportKey, checksum_offset, complement, pseudo, sum};
use crate::packet::{ICMP, SCTP, TCP, UDP};

/// A value for the absence of an extension header.
pub const NO_HEADER: u8 = 0xff;

/// The part between the IP header and the upper layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Extra {
    Nothing,
    /// IPv4 options, this many words.
    Options(u8),
    /// IPv6 extension headers of these types; [`NO_HEADER`] entries are left out.
    Extensions([u8; 3]),
}

/// Everything about a packet except its flow tuple.
#[derive(Debug, Clone, Copy)]
pub struct Style {
    pub ttl: u8,
    pub id: u16,
    pub ecn: u8,
    pub may_be_cut: bool,
    pub extra: Extra,
    pub flags: u8,
    pub sequence: u32,
    /// The number of bytes of payload.
    pub payload: usize,
    pub serial: u64,
}

/// Writes a packet with correct lengths and checksums. `into` is cleared first.
pub fn write(into: &mut Vec<u8>, tuple: &FlowTuple, style: &Style) {
    into.clear();
    write_ip(into, tuple, style);
    let at = into.len();
    write_upper(into, tuple, style);
    fix_headers(into, tuple, at);
}

/// Writes a packet around an existing upper layer. `into` is cleared first.
pub fn write_around(into: &mut Vec<u8>, tuple: &FlowTuple, style: &Style, upper: &[u8]) {
    into.clear();
    write_ip(into, tuple, style);
    into.extend_from_slice(upper);
    fix_ip_header(into);
}

fn write_ip(into: &mut Vec<u8>, tuple: &FlowTuple, style: &Style) {
    match (tuple.source, tuple.destination) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => {
            let transport = if let Extra::Options(transport) = style.extra { transport } else { 0 };
            let df = if style.may_be_cut { 0 } else { 0x40 };
            into.extend_from_slice(&[0x45 + transport, style.ecn, 0, 0]);
            into.extend_from_slice(&style.id.to_be_bytes());
            into.extend_from_slice(&[df, 0, style.ttl, tuple.upper, 0, 0]);
            into.extend_from_slice(&source.octets());
            into.extend_from_slice(&destination.octets());
            // The options are a router alert, which fragments repeat, and then no-operations.
            let options = (0..usize::from(transport) * 4)
                .map(|at| [0x94, 4, 0, 0].get(at).copied().unwrap_or(1));
            into.extend(options);
        }
        (source, destination) => {
            into.extend_from_slice(&[0x60, style.ecn << 4, 0, 0, 0, 0, tuple.upper, style.ttl]);
            for address in [source, destination] {
                match address {
                    IpAddr::V6(v6) => into.extend_from_slice(&v6.octets()),
                    // There is no packet with two families; this one is deliberately wrong.
                    IpAddr::V4(v4) => into.extend_from_slice(&v4.to_ipv6_mapped().octets()),
                }
            }
            if let Extra::Extensions(kinds) = style.extra {
                let mut named_at = 6;
                for kind in kinds.into_iter().filter(|kind| *kind != NO_HEADER) {
                    into[named_at] = kind;
                    named_at = into.len();
                    // The length field of an authentication header is the number of 4-byte words
                    // minus 2 (RFC 4302, section 2.2). This header has three words.
                    let len = if kind == 51 { 1 } else { 0 };
                    into.extend_from_slice(&[tuple.upper, len, 0, 0, 0, 0, 0, 1]);
                    if kind == 51 {
                        into.extend_from_slice(&[0; 4]);
                    }
                }
            }
        }
    }
}

fn write_upper(into: &mut Vec<u8>, tuple: &FlowTuple, style: &Style) {
    let [mut source, mut destination] = [[0; 2]; 2];
    if let TransportKey::Ports(from, to) = tuple.transport {
        (source, destination) = (from.to_be_bytes(), to.to_be_bytes());
    }
    match (tuple.upper, tuple.transport) {
        (TCP, _) => {
            into.extend_from_slice(&source);
            into.extend_from_slice(&destination);
            into.extend_from_slice(&style.sequence.to_be_bytes());
            into.extend_from_slice(&[0, 0, 0, 1, 0x50, style.flags, 0xff, 0xff, 0, 0, 0, 0]);
        }
        (UDP, _) => {
            let len = (8 + style.payload.min(0xffff - 8)) as u16;
            into.extend_from_slice(&source);
            into.extend_from_slice(&destination);
            into.extend_from_slice(&len.to_be_bytes());
            into.extend_from_slice(&[0, 0]);
        }
        (SCTP, _) => {
            into.extend_from_slice(&source);
            into.extend_from_slice(&destination);
            into.extend_from_slice(&[0; 8]);
        }
        (_, transport) => {
            let (kind, code) = tuple.icmp().unwrap_or_default();
            let id = if let TransportKey::Query { id, .. } = transport { id } else { 0 };
            into.extend_from_slice(&[kind, code, 0, 0]);
            into.extend_from_slice(&id.to_be_bytes());
            into.extend_from_slice(&[0, 1]);
        }
    }
    // Each word of the payload is unique.
    let end = into.len() + style.payload;
    for word in 0..style.payload.div_ceil(8) as u64 {
        let word = (style.serial << 16 | word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        into.extend_from_slice(&word.to_be_bytes());
    }
    into.truncate(end);
}

/// Sets the lengths and checksums of a packet whose transport header begins at `at`.
pub fn fix_headers(bytes: &mut [u8], tuple: &FlowTuple, at: usize) {
    if let Some(offset) = checksum_offset(tuple.upper, tuple.is_v4())
        && bytes.len() >= at + offset + 2
    {
        bytes[at + offset..at + offset + 2].fill(0);
        let segment = &bytes[at..];
        let sum = sum(tuple.source, tuple.destination, tuple.upper, segment.len(), segment);
        let written = match complement(sum) {
            [0, 0] if tuple.upper == UDP => [0xff; 2],
            written => written,
        };
        bytes[at + offset..at + offset + 2].copy_from_slice(&written);
    }
    fix_ip_header(bytes);
}

/// Sets the length and the checksum of the IP header.
pub fn fix_ip_header(bytes: &mut [u8]) {
    let len = bytes.len();
    if bytes[0] >> 4 == 4 {
        bytes[2..4].copy_from_slice(&(len as u16).to_be_bytes());
        fix_ipv4_checksum(bytes);
    } else {
        bytes[4..6].copy_from_slice(&((len - 40) as u16).to_be_bytes());
    }
}

/// Sets the checksum of an IPv4 header, whatever else it contains. Other packets stay as they are.
pub fn fix_ipv4_checksum(bytes: &mut [u8]) {
    let Some(first) = bytes.first() else { return };
    let header = usize::from(first & 15) * 4;
    if first >> 4 == 4 && header >= 20 && bytes.len() >= header {
        bytes[10..12].fill(0);
        let written = complement(sums::add_slice(0, &bytes[..header]));
        bytes[10..12].copy_from_slice(&written);
    }
}

/// Leaves only the sum of the pseudo-header as the checksum of a packet that [`write()`] made, as a
/// kernel does for devices.
pub fn make_checksum_partial(bytes: &mut [u8], tuple: &FlowTuple, at: usize) -> Checksum {
    let Some(offset) = checksum_offset(tuple.upper, tuple.is_v4()) else {
        return Checksum::Unverified;
    };
    let sum = match tuple.upper {
        ICMP => 0,
        upper => pseudo(tuple.source, tuple.destination, upper, bytes.len() - at),
    };
    let [high, low] = complement(sum);
    bytes[at + offset..at + offset + 2].copy_from_slice(&[!high, !low]);
    Checksum::Partial { start: at as u16, offset: offset as u16 }
}

/// Makes a packet of TCP or UDP a super-packet; returns its offload.
pub fn super_packet(bytes: &mut [u8], tuple: &FlowTuple, at: usize, size: u16) -> Offload {
    let checksum = make_checksum_partial(bytes, tuple, at);
    let kind = match (tuple.upper, tuple.is_v4()) {
        (UDP, _) => SegmentKind::Udp,
        (_, true) => SegmentKind::Tcp4,
        (_, false) => SegmentKind::Tcp6,
    };
    Offload { checksum, segmentation: Some(Segmentation { kind, size, ecn: false }) }
}

/// A super-packet of an address to itself, with `count` segments of `size` bytes.
pub fn super_packet_of(own: IpAddr, count: usize, size: u16) -> (Vec<u8>, Offload) {
    let tuple = FlowTuple {
        source: own,
        destination: own,
        upper: UDP,
        transport: TransportKey::Ports(7, 7),
    };
    let style = Style {
        ttl: 64,
        id: 1,
        ecn: 0,
        may_be_cut: false,
        extra: Extra::Nothing,
        flags: 0,
        sequence: 0,
        payload: count * usize::from(size),
        serial: 0,
    };
    let mut bytes = Vec::new();
    write(&mut bytes, &tuple, &style);
    let offload = super_packet(&mut bytes, &tuple, 20, size);
    (bytes, offload)
}

#[derive(Debug, Clone, Copy)]
pub struct Outer {
    pub from: Ipv4Addr,
    pub to: Ipv4Addr,
    /// The VXLAN network; `None`: IPIP.
    pub vxlan: Option<u32>,
    pub ecn: u8,
    pub options: bool,
}

/// Puts an outer header before a packet.
pub fn encapsulate(outer: &Outer, inner: &[u8]) -> Vec<u8> {
    let transport = u8::from(outer.options);
    let mut bytes = vec![0x45 + transport, outer.ecn, 0, 0, 0, 7, 0, 0, 64, 4, 0, 0];
    bytes.extend_from_slice(&outer.from.octets());
    bytes.extend_from_slice(&outer.to.octets());
    bytes.resize(20 + usize::from(transport) * 4, 1);
    if let Some(vni) = outer.vxlan {
        bytes[9] = UDP;
        let len = (8 + 8 + 14 + inner.len()) as u16;
        bytes.extend_from_slice(&[0xc0, 0, 0x12, 0xb5]);
        bytes.extend_from_slice(&len.to_be_bytes());
        bytes.extend_from_slice(&[0, 0, 8, 0, 0, 0]);
        bytes.extend_from_slice(&(vni << 8).to_be_bytes());
        let ethertype =
            if inner.first().is_some_and(|it| it >> 4 == 6) { [0x86, 0xdd] } else { [8, 0] };
        bytes.extend_from_slice(&[2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2]);
        bytes.extend_from_slice(&ethertype);
    }
    bytes.extend_from_slice(inner);
    if bytes.len() <= 0xffff {
        fix_ip_header(&mut bytes);
    }
    bytes
}
