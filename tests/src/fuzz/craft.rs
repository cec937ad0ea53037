//! Packets written byte by byte, with everything about them to be chosen.

use std::net::{IpAddr, Ipv4Addr};

use etherparse::checksum::u64_16bit_word as sums;
use manx_dataplane::packet::{Checksum, Offload, SegmentKind, Segmentation};

use super::read::{Speech, Words, checksum_offset, complement, pseudo, sum};
use crate::packet::{ICMP, SCTP, TCP, UDP};

/// In the place of an extension header's type.
pub const NO_HEADER: u8 = 0xff;

/// What stands between the IP header and the upper layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Extra {
    Nothing,
    /// IPv4 options, so many words of them.
    Options(u8),
    /// IPv6 extension headers of these types, of which [`NO_HEADER`] are none.
    Extensions([u8; 3]),
}

/// All that is said of a packet beside who speaks to whom.
#[derive(Debug, Clone, Copy)]
pub struct Style {
    pub ttl: u8,
    pub id: u16,
    pub ecn: u8,
    pub may_be_cut: bool,
    pub extra: Extra,
    pub flags: u8,
    pub sequence: u32,
    /// Bytes of payload.
    pub payload: usize,
    pub serial: u64,
}

/// Writes a packet with right lengths and checksums. `into` is emptied before.
pub fn write(into: &mut Vec<u8>, speech: &Speech, style: &Style) {
    into.clear();
    write_ip(into, speech, style);
    let at = into.len();
    write_upper(into, speech, style);
    close(into, speech, at);
}

/// The same, around an upper layer that is there.
pub fn write_around(into: &mut Vec<u8>, speech: &Speech, style: &Style, upper: &[u8]) {
    into.clear();
    write_ip(into, speech, style);
    into.extend_from_slice(upper);
    close_ip(into);
}

fn write_ip(into: &mut Vec<u8>, speech: &Speech, style: &Style) {
    match (speech.source, speech.destination) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => {
            let words = if let Extra::Options(words) = style.extra { words } else { 0 };
            let df = if style.may_be_cut { 0 } else { 0x40 };
            into.extend_from_slice(&[0x45 + words, style.ecn, 0, 0]);
            into.extend_from_slice(&style.id.to_be_bytes());
            into.extend_from_slice(&[df, 0, style.ttl, speech.upper, 0, 0]);
            into.extend_from_slice(&source.octets());
            into.extend_from_slice(&destination.octets());
            // Router alert, which fragments repeat; then nothing.
            let options =
                (0..usize::from(words) * 4).map(|at| [0x94, 4, 0, 0].get(at).copied().unwrap_or(1));
            into.extend(options);
        }
        (source, destination) => {
            into.extend_from_slice(&[0x60, style.ecn << 4, 0, 0, 0, 0, speech.upper, style.ttl]);
            for address in [source, destination] {
                match address {
                    IpAddr::V6(v6) => into.extend_from_slice(&v6.octets()),
                    // Of two families there is no packet; what comes of it is a lie.
                    IpAddr::V4(v4) => into.extend_from_slice(&v4.to_ipv6_mapped().octets()),
                }
            }
            if let Extra::Extensions(kinds) = style.extra {
                let mut named_at = 6;
                for kind in kinds.into_iter().filter(|kind| *kind != NO_HEADER) {
                    into[named_at] = kind;
                    named_at = into.len();
                    // An authentication header counts words; this one has three.
                    let len = if kind == 51 { 1 } else { 0 };
                    into.extend_from_slice(&[speech.upper, len, 0, 0, 0, 0, 0, 1]);
                    if kind == 51 {
                        into.extend_from_slice(&[0; 4]);
                    }
                }
            }
        }
    }
}

fn write_upper(into: &mut Vec<u8>, speech: &Speech, style: &Style) {
    let [mut source, mut destination] = [[0; 2]; 2];
    if let Words::Ports(from, to) = speech.words {
        (source, destination) = (from.to_be_bytes(), to.to_be_bytes());
    }
    match (speech.upper, speech.words) {
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
        (_, words) => {
            let (kind, code) = speech.icmp().unwrap_or_default();
            let id = if let Words::Query { id, .. } = words { id } else { 0 };
            into.extend_from_slice(&[kind, code, 0, 0]);
            into.extend_from_slice(&id.to_be_bytes());
            into.extend_from_slice(&[0, 1]);
        }
    }
    // Each word of the payload is nowhere else.
    let end = into.len() + style.payload;
    for word in 0..style.payload.div_ceil(8) as u64 {
        let word = (style.serial << 16 | word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        into.extend_from_slice(&word.to_be_bytes());
    }
    into.truncate(end);
}

/// Puts lengths and checksums right in a packet whose upper layer begins at `at`.
pub fn close(bytes: &mut [u8], speech: &Speech, at: usize) {
    if let Some(offset) = checksum_offset(speech.upper, speech.is_v4())
        && bytes.len() >= at + offset + 2
    {
        bytes[at + offset..at + offset + 2].fill(0);
        let segment = &bytes[at..];
        let sum = sum(speech.source, speech.destination, speech.upper, segment.len(), segment);
        let written = match complement(sum) {
            [0, 0] if speech.upper == UDP => [0xff; 2],
            written => written,
        };
        bytes[at + offset..at + offset + 2].copy_from_slice(&written);
    }
    close_ip(bytes);
}

/// Puts the length and the checksum of the IP header right.
pub fn close_ip(bytes: &mut [u8]) {
    let len = bytes.len();
    if bytes[0] >> 4 == 4 {
        bytes[2..4].copy_from_slice(&(len as u16).to_be_bytes());
        mend(bytes);
    } else {
        bytes[4..6].copy_from_slice(&((len - 40) as u16).to_be_bytes());
    }
}

/// Puts the checksum of an IPv4 header right, whatever the header says; of anything else nothing.
pub fn mend(bytes: &mut [u8]) {
    let Some(first) = bytes.first() else { return };
    let header = usize::from(first & 15) * 4;
    if first >> 4 == 4 && header >= 20 && bytes.len() >= header {
        bytes[10..12].fill(0);
        let written = complement(sums::add_slice(0, &bytes[..header]));
        bytes[10..12].copy_from_slice(&written);
    }
}

/// Leaves only the pseudo-header's sum in a packet that [`write`] made, as kernels hand over what devices are to finish.
pub fn unfinish(bytes: &mut [u8], speech: &Speech, at: usize) -> Checksum {
    let Some(offset) = checksum_offset(speech.upper, speech.is_v4()) else {
        return Checksum::Unverified;
    };
    let sum = match speech.upper {
        ICMP => 0,
        upper => pseudo(speech.source, speech.destination, upper, bytes.len() - at),
    };
    let [high, low] = complement(sum);
    bytes[at + offset..at + offset + 2].copy_from_slice(&[!high, !low]);
    Checksum::Partial { start: at as u16, offset: offset as u16 }
}

/// What a kernel says of a super-packet of TCP or UDP.
pub fn super_packet(bytes: &mut [u8], speech: &Speech, at: usize, size: u16) -> Offload {
    let checksum = unfinish(bytes, speech, at);
    let kind = match (speech.upper, speech.is_v4()) {
        (UDP, _) => SegmentKind::Udp,
        (_, true) => SegmentKind::Tcp4,
        (_, false) => SegmentKind::Tcp6,
    };
    Offload { checksum, segmentation: Some(Segmentation { kind, size, ecn: false }) }
}

/// A super-packet of somebody to himself, of so many segments of so many bytes.
pub fn of_segments(own: IpAddr, count: usize, size: u16) -> (Vec<u8>, Offload) {
    let speech = Speech { source: own, destination: own, upper: UDP, words: Words::Ports(7, 7) };
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
    write(&mut bytes, &speech, &style);
    let offload = super_packet(&mut bytes, &speech, 20, size);
    (bytes, offload)
}

/// The ends of a tunnel and what it is.
#[derive(Debug, Clone, Copy)]
pub struct Outer {
    pub from: Ipv4Addr,
    pub to: Ipv4Addr,
    /// The network; `None`: IPIP.
    pub vxlan: Option<u32>,
    pub ecn: u8,
    pub options: bool,
}

/// Puts an outer header around a packet.
pub fn wrap(outer: &Outer, inner: &[u8]) -> Vec<u8> {
    let words = u8::from(outer.options);
    let mut bytes = vec![0x45 + words, outer.ecn, 0, 0, 0, 7, 0, 0, 64, 4, 0, 0];
    bytes.extend_from_slice(&outer.from.octets());
    bytes.extend_from_slice(&outer.to.octets());
    bytes.resize(20 + usize::from(words) * 4, 1);
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
        close_ip(&mut bytes);
    }
    bytes
}
