//! The headers of a TCP or UDP packet, and their length. Segmentation repeats these headers in each segment.

use crate::checksum::{finish, is_right, sum};
use crate::packet::SegmentKind;
use crate::wire::{Malformed, extension, ipv4, ipv6, tcp, udp};

pub(super) use crate::wire::protocol::{TCP, UDP};
pub(super) use crate::wire::tcp::flag::{ACK, CWR, FIN, PSH};

/// The layout of an unfragmented TCP or UDP packet. Every offset lies within the packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Headers {
    pub(super) v6: bool,
    pub(super) protocol: u8,
    /// The offset of the first byte of the transport header.
    pub(super) transport: usize,
    /// The offset of the first byte of the payload.
    pub(super) payload: usize,
}

/// The kind of a packet for segmentation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Shape {
    /// A whole TCP or UDP packet.
    Whole(Headers),
    /// A whole, well-formed packet of another protocol.
    Other,
    /// A fragment, or a packet that is authenticated, cut short, padded or contradictory: its flow is unknown.
    Unknown,
}

impl Shape {
    pub(super) fn classify(bytes: &[u8]) -> Self {
        Self::parse(bytes).unwrap_or(Self::Unknown)
    }

    /// Reads the packet by the same views as [`parse`](crate::parse::parse). `parse` itself is not used: it would sum
    /// the IPv4 header again, and it does not report an authentication header, which must not be repeated.
    fn parse(bytes: &[u8]) -> Result<Self, Malformed> {
        let (v6, protocol, transport) = match bytes.first().ok_or(Malformed)? >> 4 {
            4 => ipv4(bytes)?,
            _ => ipv6(bytes)?,
        };
        let header = bytes.get(transport..).ok_or(Malformed)?;
        let len = match protocol {
            TCP => tcp::View::new_checked(header)?.header_len(),
            UDP => udp::View::new_quoted(header).map(|_| udp::HEADER_LEN)?,
            _ => return Ok(Self::Other),
        };
        Ok(Self::Whole(Headers { v6, protocol, transport, payload: transport + len }))
    }
}

fn ipv4(bytes: &[u8]) -> Result<(bool, u8, usize), Malformed> {
    let ip = ipv4::View::new_checked(bytes)?;
    if ip.is_fragment() || usize::from(ip.total_len.get()) != bytes.len() {
        return Err(Malformed);
    }
    Ok((false, ip.protocol, ip.header_len()))
}

fn ipv6(bytes: &[u8]) -> Result<(bool, u8, usize), Malformed> {
    let ip = ipv6::View::new_checked(bytes)?;
    if ip.total_len() != bytes.len() {
        return Err(Malformed);
    }
    let walked = extension::walk(ip.next_header, ip.payload())?;
    if walked.fragment.is_some() || walked.authenticated {
        return Err(Malformed);
    }
    Ok((true, walked.protocol, ipv6::HEADER_LEN + walked.offset))
}

impl Headers {
    /// The source and destination address.
    pub(super) fn addresses<'a>(&self, bytes: &'a [u8]) -> &'a [u8] {
        if self.v6 { &bytes[8..40] } else { &bytes[12..20] }
    }

    /// The source and destination port.
    pub(super) fn ports<'a>(&self, bytes: &'a [u8]) -> &'a [u8] {
        &bytes[self.transport..self.transport + 4]
    }

    /// The checksum's offset in the transport header.
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

    /// The sum of the pseudo-header for a packet of `len` bytes with these headers.
    pub(super) fn pseudo_header(&self, headers: &[u8], len: usize) -> u32 {
        let len = (len - self.transport) as u32;
        sum(self.addresses(headers)) + u32::from(self.protocol) + (len & 0xffff) + (len >> 16)
    }

    /// Whether the transport checksum in the packet is right. UDP over IPv4 may have no checksum (RFC 768), which
    /// counts as right.
    pub(super) fn verify(&self, bytes: &[u8]) -> bool {
        let at = self.transport + self.checksum_offset();
        if self.protocol == UDP && bytes[at..at + 2] == [0; 2] {
            return !self.v6;
        }
        let (headers, payload) = bytes.split_at(self.payload);
        self.verify_apart(headers, payload)
    }

    /// Like [`Self::verify`], for a packet that has a checksum and whose payload may lie elsewhere.
    pub(super) fn verify_apart(&self, headers: &[u8], payload: &[u8]) -> bool {
        let pseudo = self.pseudo_header(headers, headers.len() + payload.len());
        // A transport header has an even length, so the two sums can simply be added.
        is_right(pseudo + sum(&headers[self.transport..]) + sum(payload))
    }

    /// Whether the IP header gives this length for the packet.
    pub(super) fn tell_length(&self, headers: &[u8], len: usize) -> bool {
        let (at, len) = if self.v6 { (4, len - ipv6::HEADER_LEN) } else { (2, len) };
        usize::from(u16::from_be_bytes([headers[at], headers[at + 1]])) == len
    }

    /// Writes a new transport checksum into a packet whose payload may lie elsewhere.
    pub(super) fn write_checksum(&self, headers: &mut [u8], payload: &[u8]) {
        let at = self.transport + self.checksum_offset();
        headers[at..at + 2].fill(0);
        let pseudo = self.pseudo_header(headers, headers.len() + payload.len());
        // A transport header has an even length, so the two sums can simply be added.
        let mut checksum = finish(pseudo + sum(&headers[self.transport..]) + sum(payload));
        // RFC 768: a computed zero is sent as all ones, because zero means that there is no checksum.
        if self.protocol == UDP && checksum == 0 {
            checksum = 0xffff;
        }
        headers[at..at + 2].copy_from_slice(&checksum.to_be_bytes());
    }

    /// Writes the length of the packet into the length fields, and for IPv4 the header checksum.
    pub(super) fn write_lengths(&self, headers: &mut [u8], len: usize) {
        if self.v6 {
            headers[4..6].copy_from_slice(&((len - 40) as u16).to_be_bytes());
        } else {
            headers[2..4].copy_from_slice(&(len as u16).to_be_bytes());
            headers[10..12].fill(0);
            let checksum = finish(sum(&headers[..self.transport]));
            headers[10..12].copy_from_slice(&checksum.to_be_bytes());
        }
        if self.protocol == UDP {
            let at = self.transport + 4;
            headers[at..at + 2].copy_from_slice(&((len - self.transport) as u16).to_be_bytes());
        }
    }

    /// Whether a datagram fills its packet and has a checksum, finished or not.
    pub(super) fn is_full_datagram(&self, bytes: &[u8]) -> bool {
        let header = &bytes[self.transport..];
        let len = u16::from_be_bytes([header[4], header[5]]);
        usize::from(len) == header.len() && header[6..8] != [0; 2]
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
