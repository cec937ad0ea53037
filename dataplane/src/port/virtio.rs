//! The virtio-net header that TUN, TAP and AF_PACKET put in front of a packet (virtio 1.2, section 5.1.6). It is
//! translated from and to [`Offload`], which has the same meaning.
//!
//! The field offsets are `flags` 0, `gso_type` 1, `hdr_len` 2, `gso_size` 4, `csum_start` 6, `csum_offset` 8. All
//! integers are in the machine's byte order (the kernel's "legacy" default for both devices).

use super::sctp;
use crate::packet::{Checksum, Offload, Packet, SegmentKind, Segmentation};
use crate::wire::{ipv4, ipv6, protocol, tcp, udp};

/// The length of the header without `num_buffers`, in bytes.
pub const HEADER_LEN: usize = 10;
/// The header as it crosses the system call.
pub type Header = [u8; HEADER_LEN];

const F_NEEDS_CSUM: u8 = 1;
const F_DATA_VALID: u8 = 2;
const GSO_NONE: u8 = 0;
const GSO_TCPV4: u8 = 1;
const GSO_TCPV6: u8 = 4;
const GSO_UDP_L4: u8 = 5;
const GSO_ECN: u8 = 0x80;

/// The reason why a header contradicts its packet. The packet is dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Malformed {
    /// The checksum would start before the end of the IP header, or be stored after the end of the packet.
    ChecksumOutside,
    /// A segmentation type that was not negotiated, or the ECN bit without TCP.
    UnknownSegmentation,
    /// The segments have no bytes.
    EmptySegments,
    /// The super-packet has another IP version than the virtio header says, or is too short for its layer-4 header.
    SegmentationContradicts,
}

/// Reads `header`, which arrived with `packet` (the bytes from its IP header on). The device counts `csum_start` from
/// `link_len` bytes of link header in front of the packet: 0 for TUN, 14 for TAP and AF_PACKET.
///
/// After `Ok`, a partial checksum lies inside the packet, after at least an IPv4 header, and a segment size is not 0.
/// Unknown flags are ignored, as the specification says.
#[inline]
pub fn decode(header: &Header, packet: &[u8], link_len: usize) -> Result<Offload, Malformed> {
    let checksum = if header[0] & F_NEEDS_CSUM != 0 {
        let start = field(header, 6) as usize;
        let offset = field(header, 8);
        let start = start.checked_sub(link_len).ok_or(Malformed::ChecksumOutside)?;
        if start < ipv4::HEADER_LEN || start + offset as usize + 2 > packet.len() {
            return Err(Malformed::ChecksumOutside);
        }
        Checksum::Partial { start: start as u16, offset }
    } else if header[0] & F_DATA_VALID != 0 {
        Checksum::Verified
    } else {
        Checksum::Unverified
    };
    if header[1] == GSO_NONE {
        return Ok(Offload { checksum, segmentation: None });
    }
    let segmentation = segmentation(header)?;
    match transport(packet) {
        Some((version, start))
            if version_of(segmentation.kind).is_none_or(|v| v == version)
                && start + transport_min(segmentation.kind) <= packet.len() =>
        {
            Ok(Offload { checksum, segmentation: Some(segmentation) })
        }
        _ => Err(Malformed::SegmentationContradicts),
    }
}

/// [`decode`]s a packet's header and stores the result in the packet. The partial checksum of SCTP, which is not the
/// Internet checksum, is completed at once.
#[inline]
pub fn mark(packet: &mut Packet, header: &Header, link_len: usize) -> Result<(), Malformed> {
    packet.offload = decode(header, packet.bytes(), link_len)?;
    sctp::finish(packet);
    Ok(())
}

/// Writes the header that describes `offload` of `packet` (the bytes from its IP header on). The device counts
/// `link_len` bytes of link header in front of the packet.
///
/// [`Checksum::Verified`] is not written: a driver must not set `DATA_VALID` on transmission (5.1.6.2.1).
#[inline]
pub fn encode(offload: Offload, packet: &[u8], link_len: usize) -> Header {
    let mut header = [0; HEADER_LEN];
    if let Checksum::Partial { start, offset } = offload.checksum {
        header[0] = F_NEEDS_CSUM;
        put(&mut header, 6, (start as usize + link_len) as u16);
        put(&mut header, 8, offset);
    }
    if let Some(s) = offload.segmentation {
        header[1] = match s.kind {
            SegmentKind::Tcp4 => GSO_TCPV4,
            SegmentKind::Tcp6 => GSO_TCPV6,
            SegmentKind::Udp => GSO_UDP_L4,
        } | if s.ecn { GSO_ECN } else { 0 };
        put(&mut header, 2, (link_len + headers_len(offload, s.kind, packet)) as u16);
        put(&mut header, 4, s.size);
    }
    header
}

fn segmentation(header: &Header) -> Result<Segmentation, Malformed> {
    let ecn = header[1] & GSO_ECN != 0;
    let kind = match header[1] & !GSO_ECN {
        GSO_TCPV4 => SegmentKind::Tcp4,
        GSO_TCPV6 => SegmentKind::Tcp6,
        GSO_UDP_L4 if !ecn => SegmentKind::Udp,
        _ => return Err(Malformed::UnknownSegmentation),
    };
    match field(header, 4) {
        0 => Err(Malformed::EmptySegments),
        size => Ok(Segmentation { kind, size, ecn }),
    }
}

/// The number of bytes in front of a super-packet's payload: `hdr_len`, which the kernel makes linear.
fn headers_len(offload: Offload, kind: SegmentKind, packet: &[u8]) -> usize {
    let start = match offload.checksum {
        Checksum::Partial { start, .. } => start as usize,
        Checksum::Unverified | Checksum::Verified => {
            transport(packet).map_or(0, |(_, start)| start)
        }
    };
    let len = match kind {
        SegmentKind::Udp => udp::HEADER_LEN,
        SegmentKind::Tcp4 | SegmentKind::Tcp6 => packet
            .get(start + 12)
            .map_or(tcp::HEADER_LEN, |b| usize::from(b >> 4) * 4)
            .max(tcp::HEADER_LEN),
    };
    (start + len).min(packet.len())
}

/// The version of the innermost IP header, and the offset of the layer after it (extension headers are not skipped).
/// One IPIP header is skipped, because the kernel coalesces tunnelled packets and then describes the inner headers.
fn transport(packet: &[u8]) -> Option<(u8, usize)> {
    let (version, len) = ip_header(packet)?;
    if version == 4 && packet[9] == protocol::IPIP {
        let (inner, inner_len) = ip_header(&packet[len..])?;
        return Some((inner, len + inner_len));
    }
    Some((version, len))
}

fn ip_header(packet: &[u8]) -> Option<(u8, usize)> {
    let first = *packet.first()?;
    let len = match first >> 4 {
        4 => usize::from(first & 15) * 4,
        6 => ipv6::HEADER_LEN,
        _ => return None,
    };
    (len >= ipv4::HEADER_LEN && len <= packet.len()).then_some((first >> 4, len))
}

fn version_of(kind: SegmentKind) -> Option<u8> {
    match kind {
        SegmentKind::Tcp4 => Some(4),
        SegmentKind::Tcp6 => Some(6),
        SegmentKind::Udp => None,
    }
}

fn transport_min(kind: SegmentKind) -> usize {
    match kind {
        SegmentKind::Tcp4 | SegmentKind::Tcp6 => tcp::HEADER_LEN,
        SegmentKind::Udp => udp::HEADER_LEN,
    }
}

#[inline]
fn field(header: &Header, at: usize) -> u16 {
    u16::from_ne_bytes([header[at], header[at + 1]])
}

#[inline]
fn put(header: &mut Header, at: usize, value: u16) {
    header[at..at + 2].copy_from_slice(&value.to_ne_bytes());
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A packet of the kind's version, with room for every header and with TCP's data offset 5.
    fn packet(kind: SegmentKind, v6: bool, tunnelled: bool, payload: usize) -> (Vec<u8>, usize) {
        let v6 = match kind {
            SegmentKind::Tcp4 => false,
            SegmentKind::Tcp6 => true,
            SegmentKind::Udp => v6,
        };
        let mut bytes = Vec::new();
        if tunnelled {
            bytes.extend([0x45, 0, 0, 0, 0, 0, 0, 0, 64, protocol::IPIP]);
            bytes.resize(20, 0);
        }
        let inner = bytes.len();
        bytes.push(if v6 { 0x60 } else { 0x45 });
        bytes.resize(inner + if v6 { 40 } else { 20 }, 0);
        let start = bytes.len();
        bytes.resize(start + 20 + payload, 0);
        bytes[start + 12] = 0x50;
        (bytes, start)
    }

    fn kinds() -> impl Strategy<Value = SegmentKind> {
        prop_oneof![Just(SegmentKind::Tcp4), Just(SegmentKind::Tcp6), Just(SegmentKind::Udp)]
    }

    proptest! {
        #[test]
        fn decoding_reverses_encoding(
            kind in kinds(), v6: bool, tunnelled: bool, payload in 0usize..3000, link_len in prop_oneof![Just(0usize), Just(14)],
            partial: bool, segmented: bool, size in 1u16.., ecn: bool, offset in 0u16..18,
        ) {
            let (bytes, start) = packet(kind, v6, tunnelled, payload);
            let offload = Offload {
                checksum: if partial { Checksum::Partial { start: start as u16, offset } } else { Checksum::Unverified },
                segmentation: segmented.then_some(Segmentation { kind, size, ecn: ecn && kind != SegmentKind::Udp }),
            };
            let header = encode(offload, &bytes, link_len);
            prop_assert_eq!(decode(&header, &bytes, link_len), Ok(offload));
            if segmented {
                let expected = link_len + start + if kind == SegmentKind::Udp { 8 } else { 20 };
                prop_assert_eq!(field(&header, 2) as usize, expected);
            }
        }

        #[test]
        fn every_device_header_gives_a_checksum_inside_the_packet_and_segments_that_are_not_empty(
            header: Header, bytes in proptest::collection::vec(any::<u8>(), 0..200), link_len in 0usize..20,
        ) {
            if let Ok(offload) = decode(&header, &bytes, link_len) {
                if let Checksum::Partial { start, offset } = offload.checksum {
                    prop_assert!(start as usize >= ipv4::HEADER_LEN);
                    prop_assert!(start as usize + offset as usize + 2 <= bytes.len());
                }
                if let Some(s) = offload.segmentation {
                    prop_assert!(s.size > 0);
                }
            }
        }
    }

    #[test]
    fn contradictions_are_named() {
        let (bytes, start) = packet(SegmentKind::Tcp4, false, false, 100);
        let good = Offload {
            checksum: Checksum::Partial { start: start as u16, offset: 16 },
            segmentation: Some(Segmentation { kind: SegmentKind::Tcp4, size: 50, ecn: false }),
        };
        let header = encode(good, &bytes, 0);
        let with = |at: usize, value: u16| {
            let mut header = header;
            put(&mut header, at, value);
            header
        };
        assert_eq!(
            decode(&with(6, 119), &bytes, 0),
            Ok(Offload { checksum: Checksum::Partial { start: 119, offset: 16 }, ..good })
        );
        assert_eq!(decode(&with(6, 123), &bytes, 0), Err(Malformed::ChecksumOutside));
        assert_eq!(decode(&with(6, 19), &bytes, 0), Err(Malformed::ChecksumOutside));
        assert_eq!(decode(&with(6, 13), &bytes, 14), Err(Malformed::ChecksumOutside));
        assert_eq!(decode(&with(4, 0), &bytes, 0), Err(Malformed::EmptySegments));
        let kind = |value: u8| {
            let mut header = header;
            header[1] = value;
            decode(&header, &bytes, 0)
        };
        assert_eq!(kind(3), Err(Malformed::UnknownSegmentation), "UFO was never asked for");
        assert_eq!(kind(GSO_UDP_L4 | GSO_ECN), Err(Malformed::UnknownSegmentation));
        assert_eq!(kind(GSO_TCPV6), Err(Malformed::SegmentationContradicts));
        assert_eq!(decode(&with(6, 20), &bytes[..38], 0), Err(Malformed::SegmentationContradicts));
    }
}
