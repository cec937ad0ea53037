//! Packets that went in: their content, read once, and their outcome.

use std::net::Ipv4Addr;

use ahash::RandomState;
use etherparse::Ipv4HeaderSlice;
use etherparse::checksum::u64_16bit_word as sums;
use manx_calculation::overlay::Overlay;
use manx_dataplane::packet::{Checksum, Offload, SegmentKind, Segmentation};
use manx_dataplane::tables::PortId;

use super::coverage::Kind;
use super::epoch::Entry;
use super::read::{IPIP, Part, Read, complement, pseudo, read, sums_up};
use crate::fabric::{FORWARDED, HOST, MANX, RAW, UNDERLAY};
use crate::packet::{SCTP, TCP, UDP};

/// Packets longer than this may be cut on their way out.
const UNCUT: usize = 1400;

/// An injected packet.
#[derive(Debug, Clone)]
pub struct Injected {
    pub node: usize,
    pub port: PortId,
    pub worker: usize,
    pub bytes: Vec<u8>,
    pub offload: Offload,
    pub kind: Kind,
    /// Whether it is an ordinary packet: it arrives if policy allows it.
    pub is_clean: bool,
}

/// The outcome of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    Unknown,
    CameOut,
    Answered,
}

/// A packet that went in.
#[derive(Debug)]
pub struct Input {
    pub sent: Injected,
    /// The port by which it came in; `None` if it came by an unknown tunnel.
    pub entry: Option<Entry>,
    /// The offset of the packet after the outer header.
    pub start: usize,
    /// The packet's content; `None` if it cannot be read, so that it must not come out.
    pub read: Option<Read>,
    /// The ECN mark with which it must leave a tunnel (RFC 6040); `None` if it must not leave.
    pub ecn: Option<u8>,
    /// The packet's offload, with offsets from the end of the outer header. For a super-packet without metadata, the
    /// offload that it must have had.
    pub offload: Offload,
    /// Whether its partial checksum is the sum of its own pseudo-header.
    pub is_honest: bool,
    pub outcome: Outcome,
    /// The number of bytes after the IP header that have come out in pieces.
    pub pieces: usize,
    /// Whether the packet came in at the place of its source.
    pub entered: bool,
    /// Whether there was no connection with its tuple when it came in.
    pub is_fresh: bool,
    /// Whether it came out translated.
    pub translated: bool,
    /// The index of the previous input with the same [`key`].
    pub same: Option<usize>,
}

impl Input {
    /// The packet, without its outer header and without padding.
    pub fn packet(&self) -> &[u8] {
        let end = self.read.map_or(self.sent.bytes.len(), |read| self.start + read.total);
        &self.sent.bytes[self.start..end]
    }

    /// The input for the report of a violation.
    pub fn found(&self) -> (Injected, usize) {
        (self.sent.clone(), self.start)
    }

    /// The number of packets that a wire would carry for it.
    pub fn units(&self) -> u64 {
        let Some(segmentation) = self.offload.segmentation else { return 1 };
        let headers = self.read.map(|read| read.headers(self.packet()));
        let payload = self.packet().len().saturating_sub(headers.unwrap_or_default());
        payload.div_ceil(segmentation.size.max(1).into()).max(1) as u64
    }

    /// Whether it has more segments than a kernel makes (docs/decisions.md, "Fairness"): 128 of UDP, 512 of TCP, and 64
    /// that are shorter than any IPv4 link's MTU (RFC 791, section 3.2).
    pub fn is_cut_too_small(&self) -> bool {
        let (Some(segmentation), Some(read)) = (self.offload.segmentation, &self.read) else {
            return false;
        };
        let segment = read.headers(self.packet()) + usize::from(segmentation.size);
        let most = match segmentation.kind {
            SegmentKind::Udp => 128,
            _ if segment < 68 => 64,
            SegmentKind::Tcp4 | SegmentKind::Tcp6 => 512,
        };
        self.units() > most
    }

    /// The number of bytes that come out if it comes out in pieces: those after all headers of a super-packet,
    /// otherwise those after the IP header.
    pub fn carried(&self) -> usize {
        let Some(read) = &self.read else { return 0 };
        let headers = match self.offload.segmentation {
            Some(_) => read.headers(self.packet()),
            None => read.at,
        };
        read.total.saturating_sub(headers)
    }

    /// Whether it may come out in pieces, or with more changes than a hop makes.
    pub fn may_change(&self) -> bool {
        let is_partial = self.offload.checksum.is_partial();
        self.offload.segmentation.is_some()
            || (is_partial && !self.is_honest)
            || self.read.is_some_and(|read| read.total > UNCUT)
    }

    pub fn new(sent: Injected, overlay: Overlay, tunnel_mtu: u32) -> Self {
        let (entry, start, outer_ecn) = match sent.port {
            HOST => (Some(Entry::Host), 0, None),
            FORWARDED => (Some(Entry::Forwarded), 0, None),
            MANX => (Some(Entry::Manx), 0, None),
            RAW => match unwrap(sent.node, &sent.bytes, overlay) {
                Some((start, ecn)) => (Some(Entry::Tunnel), start, Some(ecn)),
                None => (None, 0, None),
            },
            port => (Some(Entry::Port(port)), 0, None),
        };
        let read = entry.and_then(|_| read(&sent.bytes[start..]));
        let inner_ecn = read.map(|read| read.ecn);
        let ecn = match (outer_ecn, inner_ecn) {
            (Some(outer), Some(inner)) => combine(outer, inner),
            (None, inner) => inner,
            (Some(_), None) => None,
        };
        let mut input = Self {
            entry,
            start,
            read,
            ecn,
            offload: offload_within(sent.offload, start),
            is_honest: true,
            outcome: Outcome::Unknown,
            pieces: 0,
            entered: false,
            is_fresh: false,
            translated: false,
            same: None,
            sent,
        };
        if input.entry == Some(Entry::Tunnel) && input.offload == Offload::default() {
            input.restore(tunnel_mtu as usize);
        }
        input.is_honest = input.is_honest();
        input
    }

    /// Changes the port by which the packet counts as having come in.
    pub fn misattribute(&mut self) {
        if let Some(Entry::Port(port)) = &mut self.entry {
            port.0 ^= 1;
        }
    }

    /// The offload that a packet from a tunnel must have had, because the socket does not report partial checksums.
    fn restore(&mut self, tunnel_mtu: usize) {
        let Some((read, at)) = self.read.and_then(|read| Some((read, read.checksum_at()?))) else {
            return;
        };
        if !matches!(read.tuple.upper, TCP | UDP) || self.packet()[at..at + 2] != self.pseudo(&read)
        {
            return;
        }
        self.offload.checksum =
            Checksum::Partial { start: read.at as u16, offset: (at - read.at) as u16 };
        let headers = read.headers(self.packet());
        if read.tuple.upper == TCP && read.total > tunnel_mtu && headers < tunnel_mtu {
            let size = (tunnel_mtu - headers) as u16;
            self.offload.segmentation =
                Some(Segmentation { kind: SegmentKind::Tcp4, size, ecn: false });
        }
    }

    /// The sum of the pseudo-header, in the form of a partial checksum.
    fn pseudo(&self, read: &Read) -> [u8; 2] {
        let tuple = &read.tuple;
        let sum = if tuple.upper == crate::packet::ICMP {
            0
        } else {
            pseudo(tuple.source, tuple.destination, tuple.upper, read.total - read.at)
        };
        complement(sum).map(|byte| !byte)
    }

    pub(super) fn is_honest(&self) -> bool {
        let Checksum::Partial { start, offset } = self.offload.checksum else { return true };
        let Some((read, at)) = self.read.and_then(|read| Some((read, read.checksum_at()?))) else {
            return false;
        };
        // A device does not fill in the checksum of a UDP datagram that is shorter than the IP payload.
        let len = self.packet().get(read.at + 4..read.at + 6);
        let ends = len.is_some_and(|it| {
            usize::from(u16::from_be_bytes([it[0], it[1]])) == read.total - read.at
        });
        (read.tuple.upper != UDP || ends)
            && usize::from(start) == read.at
            && usize::from(start) + usize::from(offset) == at
            && self.packet()[at..at + 2] == self.pseudo(&read)
    }
}

/// An offload with offsets from the end of an outer header.
pub fn offload_within(offload: Offload, start: usize) -> Offload {
    let checksum = match offload.checksum {
        Checksum::Partial { start: at, offset } => {
            Checksum::Partial { start: at.saturating_sub(start as u16), offset }
        }
        other => other,
    };
    Offload { checksum, ..offload }
}

/// The offset of the inner packet in a tunnel packet from the other node to this one, and the outer ECN mark.
fn unwrap(node: usize, bytes: &[u8], overlay: Overlay) -> Option<(usize, u8)> {
    let (from, to, start, ecn) = outer(bytes, overlay)?;
    let ends = (UNDERLAY[1 - node], UNDERLAY[node]);
    ((from, to) == ends).then_some((start, ecn))
}

/// The ends of a tunnel packet, the offset of the inner packet, and the outer ECN mark.
pub fn outer(bytes: &[u8], overlay: Overlay) -> Option<(Ipv4Addr, Ipv4Addr, usize, u8)> {
    let ip = Ipv4HeaderSlice::from_slice(bytes).ok()?;
    let len = ip.slice().len();
    let total = usize::from(ip.total_len());
    if ip.is_fragmenting_payload()
        || total > bytes.len()
        || !sums_up(sums::add_slice(0, ip.slice()))
    {
        return None;
    }
    let start = match overlay {
        Overlay::Ipip => (ip.protocol().0 == IPIP).then_some(len)?,
        Overlay::Vxlan => {
            let udp = bytes.get(len..len + 30).filter(|_| ip.protocol().0 == UDP)?;
            let is_vxlan =
                udp[2..4] == [0x12, 0xb5] && udp[8] & 8 != 0 && udp[12..15] == [0, 16, 0];
            (is_vxlan && udp[28..30] == [8, 0]).then_some(len + 30)?
        }
    };
    (start < total).then_some((ip.source_addr(), ip.destination_addr(), start, ip.ecn().value()))
}

/// The ECN mark of a packet that leaves a tunnel, from the outer and the inner mark (RFC 6040, figure 4): 0 not
/// capable, 1 ECT(1), 2 ECT(0), 3 congestion.
fn combine(outer: u8, inner: u8) -> Option<u8> {
    match (inner, outer) {
        (0, 3) => None,
        (1 | 2, 3) => Some(3),
        (2, 1) => Some(1),
        (inner, _) => Some(inner),
    }
}

/// The length of the beginning of a packet in which a [`key`] leaves out fields.
const FRONT: usize = 128;

/// A hash of everything in a packet except checksums and the fields that a hop changes.
pub fn key(hasher: &RandomState, packet: &[u8], read: &Read) -> u64 {
    let (front, len) = without_hops(packet, read);
    hash(hasher, &front[..len], &packet[len..])
}

/// The same as [`key`], but without everything that a translation changes: addresses, ports, and
/// checksums.
pub fn content_key(hasher: &RandomState, packet: &[u8], read: &Read) -> u64 {
    let (mut front, len) = without_hops(packet, read);
    let addresses = if read.tuple.is_v4() { 12..20 } else { 8..40 };
    front[addresses].fill(0);
    if !read.is_later() {
        let fields = match read.tuple.upper {
            TCP => [0..4, 16..18],
            UDP => [0..4, 6..8],
            SCTP => [0..4, 8..12],
            _ => [2..6, 0..0],
        };
        for field in fields {
            if let Some(bytes) = front.get_mut(read.at + field.start..read.at + field.end) {
                bytes.fill(0);
            }
        }
    }
    hash(hasher, &front[..len], &packet[len..])
}

fn hash(hasher: &RandomState, front: &[u8], rest: &[u8]) -> u64 {
    use std::hash::{BuildHasher, Hasher};
    let mut state = hasher.build_hasher();
    state.write(front);
    state.write(rest);
    state.finish()
}

/// The beginning of a packet without checksums and the fields that a hop changes, and its length.
fn without_hops(packet: &[u8], read: &Read) -> ([u8; FRONT], usize) {
    let mut front = [0; FRONT];
    let len = packet.len().min(FRONT);
    front[..len].copy_from_slice(&packet[..len]);
    if packet[0] >> 4 == 4 {
        front[1] &= !3;
        front[8] = 0;
        front[10..12].fill(0);
        if read.part == Part::Whole && !read.may_be_cut {
            // The identification of a packet that must not be fragmented has no meaning (RFC 6864, section 4.1).
            front[4..6].fill(0);
        }
    } else {
        front[1] &= !0x30;
        front[7] = 0;
    }
    if let Some(at) = read.checksum_at()
        && read.part == Part::Whole
        && at + 2 <= FRONT
    {
        front[at..at + 2].fill(0);
    }
    (front, len)
}
