//! Where the headers of a TCP or UDP packet end: what segmentation repeats.

use crate::checksum::{finish, is_right, sum};
use crate::packet::SegmentKind;

pub(super) const TCP: u8 = 6;
pub(super) const UDP: u8 = 17;

/// Extension headers that may stand before the transport header, walked at most this far (RFC 8200, section 4.1 knows no
/// more that could be repeated in front of each segment).
const MAX_EXTENSIONS: usize = 4;

/// The shape of an unfragmented TCP or UDP packet; every offset lies within the packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Headers {
    pub(super) v6: bool,
    pub(super) protocol: u8,
    /// First byte of the transport header.
    pub(super) transport: usize,
    /// First byte of the payload.
    pub(super) payload: usize,
}

/// What a packet is to this module.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Shape {
    /// Whole TCP or UDP.
    Whole(Headers),
    /// Whole, well-formed, and of another protocol.
    Other,
    /// A fragment, cut short, padded, contradictory, or too deep: no telling which flow it belongs to.
    Unknown,
}

impl Shape {
    pub(super) fn of(bytes: &[u8]) -> Self {
        Self::parse(bytes).unwrap_or(Self::Unknown)
    }

    fn parse(bytes: &[u8]) -> Option<Self> {
        let (v6, protocol, transport) = match bytes.first()? >> 4 {
            4 => ipv4(bytes)?,
            6 => ipv6(bytes)?,
            _ => return None,
        };
        let header = bytes.get(transport..)?;
        let len = match protocol {
            TCP => usize::from(header.get(12)? >> 4) * 4,
            UDP => 8,
            _ => return Some(Self::Other),
        };
        let least = if protocol == TCP { 20 } else { 8 };
        if len < least || header.len() < len {
            return None;
        }
        Some(Self::Whole(Headers { v6, protocol, transport, payload: transport + len }))
    }
}

fn ipv4(bytes: &[u8]) -> Option<(bool, u8, usize)> {
    let header = usize::from(bytes.first()? & 0xf) * 4;
    if header < 20 || bytes.len() < header {
        return None;
    }
    let fragment = u16::from_be_bytes([bytes[6], bytes[7]]) & 0x3fff;
    let total = usize::from(u16::from_be_bytes([bytes[2], bytes[3]]));
    (fragment == 0 && total == bytes.len()).then_some((false, bytes[9], header))
}

fn ipv6(bytes: &[u8]) -> Option<(bool, u8, usize)> {
    if bytes.len() < 40 || usize::from(u16::from_be_bytes([bytes[4], bytes[5]])) + 40 != bytes.len()
    {
        return None;
    }
    let (mut next, mut offset) = (bytes[6], 40);
    for _ in 0..=MAX_EXTENSIONS {
        match next {
            // Hop-by-hop, routing, destination options: RFC 8200, sections 4.3, 4.4, 4.6.
            0 | 43 | 60 => {
                let header = bytes.get(offset..offset + 2)?;
                next = header[0];
                offset += (usize::from(header[1]) + 1) * 8;
            }
            // Fragment header: RFC 8200, section 4.5.
            44 => return None,
            protocol => return Some((true, protocol, offset)),
        }
    }
    None
}

impl Headers {
    /// Source and destination address.
    pub(super) fn addresses<'a>(&self, bytes: &'a [u8]) -> &'a [u8] {
        if self.v6 { &bytes[8..40] } else { &bytes[12..20] }
    }

    /// Where the checksum stands within the transport header.
    pub(super) fn checksum_offset(&self) -> usize {
        if self.protocol == TCP { 16 } else { 6 }
    }

    pub(super) fn kind(&self) -> SegmentKind {
        match (self.protocol, self.v6) {
            (TCP, false) => SegmentKind::Tcp4,
            (TCP, true) => SegmentKind::Tcp6,
            _ => SegmentKind::Udp,
        }
    }

    /// The pseudo-header's sum for the packet as long as it is now.
    pub(super) fn pseudo_header(&self, bytes: &[u8]) -> u32 {
        let len = (bytes.len() - self.transport) as u32;
        sum(self.addresses(bytes)) + u32::from(self.protocol) + (len & 0xffff) + (len >> 16)
    }

    /// Whether the transport checksum in the packet is right. UDP over IPv4 may have none (RFC 768): that is right.
    pub(super) fn verify(&self, bytes: &[u8]) -> bool {
        let at = self.transport + self.checksum_offset();
        if self.protocol == UDP && bytes[at..at + 2] == [0; 2] {
            return !self.v6;
        }
        is_right(self.pseudo_header(bytes) + sum(&bytes[self.transport..]))
    }

    /// Writes the transport checksum anew.
    pub(super) fn write_checksum(&self, bytes: &mut [u8]) {
        let at = self.transport + self.checksum_offset();
        bytes[at..at + 2].fill(0);
        let mut checksum = finish(self.pseudo_header(bytes) + sum(&bytes[self.transport..]));
        // RFC 768: a computed zero is sent as all ones, for zero says that there is none.
        if self.protocol == UDP && checksum == 0 {
            checksum = 0xffff;
        }
        bytes[at..at + 2].copy_from_slice(&checksum.to_be_bytes());
    }

    /// Makes the lengths and, for IPv4, the header checksum tell the packet's length.
    pub(super) fn write_lengths(&self, bytes: &mut [u8]) {
        let len = bytes.len();
        if self.v6 {
            bytes[4..6].copy_from_slice(&((len - 40) as u16).to_be_bytes());
        } else {
            bytes[2..4].copy_from_slice(&(len as u16).to_be_bytes());
            bytes[10..12].fill(0);
            let checksum = finish(sum(&bytes[..self.transport]));
            bytes[10..12].copy_from_slice(&checksum.to_be_bytes());
        }
        if self.protocol == UDP {
            let at = self.transport + 4;
            bytes[at..at + 2].copy_from_slice(&((len - self.transport) as u16).to_be_bytes());
        }
    }

    /// Whether the IPv4 header's checksum is right; IPv6 has none.
    pub(super) fn verify_ip(&self, bytes: &[u8]) -> bool {
        self.v6 || is_right(sum(&bytes[..self.transport]))
    }
}

/// The IPv4 identification.
pub(super) fn ipv4_id(bytes: &[u8]) -> u16 {
    u16::from_be_bytes([bytes[4], bytes[5]])
}

/// TCP's sequence number in the header that starts at `transport`.
pub(super) fn sequence(bytes: &[u8], transport: usize) -> u32 {
    let at = transport + 4;
    u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

/// TCP's flags byte (RFC 9293, section 3.1) in the header that starts at `transport`.
pub(super) const FLAGS: usize = 13;
pub(super) const FIN: u8 = 0x01;
pub(super) const PSH: u8 = 0x08;
pub(super) const ACK: u8 = 0x10;
pub(super) const CWR: u8 = 0x80;
