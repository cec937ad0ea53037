//! Merges segments into super-packets, by the rules of the kernel's GRO.

use super::headers::{ACK, CWR, FIN, FLAGS, Headers, PSH, Shape, TCP, UDP, ipv4_id, sequence};
use crate::checksum::fold;
use crate::packet::Capabilities;
use crate::packet::{Checksum, Offload, Packet, Pool, Segmentation};

/// The length of the longest IP packet, in bytes (RFC 791: 16 bits of length).
const MAX_LEN: usize = 65_535;
/// The number of super-packets under construction at once in a batch, at most one for each connection. If all are in
/// use, the next connection closes one of them.
const RUNS: usize = 8;
/// The largest number of datagrams in a super-packet that a socket accepts (the kernel's `UDP_GRO_CNT_MAX`).
const DATAGRAMS: u16 = 64;

/// Merges the TCP segments and UDP datagrams of a batch in place. A run of packets of one connection that continue one
/// another becomes one super-packet, in the buffer and at the position of its first packet. The other buffers return to
/// `pool`.
///
/// Segments merge if their headers are equal in every byte that segmentation does not compute. The sequence number must
/// continue that of the segment before. The IPv4 identification must count up by one, or may stay the same if Don't
/// Fragment makes it meaningless (RFC 6864, section 4.1). The lengths must be equal. A shorter segment ends the run,
/// and so do PSH and FIN. Only the first segment may have CWR. These are never merged: SYN, RST, URG, pure
/// acknowledgments, empty datagrams, datagrams without a checksum, fragments, and packets that are already
/// super-packets. A checksum that is not yet verified is verified here. A packet with a wrong checksum stays alone and
/// unchanged.
///
/// Packets of one connection keep their order; packets of different connections may change theirs. Only kinds of
/// super-packets that the port `takes` are built. If the port takes any, its packets begin with their IP header.
pub fn coalesce(batch: &mut Vec<Packet>, takes: Capabilities, pool: &mut Pool) {
    let mut runs = Runs { takes, open: Default::default(), turn: 0 };
    let mut kept = 0;
    for index in 0..batch.len() {
        let (before, rest) = batch.split_at_mut(index);
        if !rest.first_mut().is_some_and(|packet| runs.append_or_prepare(before, kept, packet)) {
            if kept != index {
                batch.swap(kept, index);
            }
            kept += 1;
        }
    }
    runs.close_all(batch);
    batch.drain(kept..).for_each(|packet| pool.put(packet));
}

/// Whether [`coalesce`] may merge packets of the batch, judged by its first two packets and its last two. One TCP
/// segment among them suffices, or two neighbours that are datagrams of one flow, as in a batch of many datagrams. If a
/// sender sends few datagrams, merging them saves less than it costs to test each packet.
#[inline]
pub fn may_coalesce(batch: &[Packet]) -> bool {
    match batch {
        [first, second, .., before, last] => may_merge(first, second) || may_merge(before, last),
        [first, second, ..] => may_merge(first, second),
        [] | [_] => false,
    }
}

#[inline]
fn may_merge(one: &Packet, other: &Packet) -> bool {
    /// The protocol, and the bytes of addresses and ports in a header without options. In a header with options, these
    /// bytes may hold something else.
    fn flow_bytes(packet: &Packet) -> Option<(u8, &[u8])> {
        let bytes = packet.bytes();
        let (protocol, ends) = if bytes.first()? >> 4 == 4 { (9, 12..24) } else { (6, 8..44) };
        Some((*bytes.get(protocol)?, bytes.get(ends)?))
    }
    let is_one = |packet: &Packet| packet.offload.segmentation.is_none();
    match (flow_bytes(one), flow_bytes(other)) {
        (Some((TCP, _)), _) if is_one(one) => true,
        (_, Some((TCP, _))) if is_one(other) => true,
        (Some((UDP, ends)), Some((UDP, others))) => ends == others && is_one(one) && is_one(other),
        _ => false,
    }
}

/// The super-packets under construction, at most one for each connection.
struct Runs {
    takes: Capabilities,
    open: [Option<Run>; RUNS],
    turn: usize,
}

impl Runs {
    /// Appends a packet to the run of its connection and returns `true`. If that is not possible, returns `false`: the
    /// packet stays in the batch at `place`, after the packets `before`, and begins a run of its own if it may.
    fn append_or_prepare(
        &mut self,
        before: &mut [Packet],
        place: usize,
        packet: &mut Packet,
    ) -> bool {
        let headers = match Shape::classify(packet.bytes()) {
            Shape::Whole(headers) if self.takes.segment(headers.kind()) => headers,
            Shape::Whole(_) | Shape::Other => return false,
            Shape::Unknown => {
                self.close_all(before);
                return false;
            }
        };
        let whole = is_whole(packet, &headers);
        let bytes = packet.bytes();
        // A connection has at most one run.
        for open in &mut self.open {
            let Some(run) = open else { continue };
            let head = &mut before[run.head];
            if !run.same_connection(head.bytes(), bytes, &headers) {
                continue;
            }
            let merged = whole
                && run.headers == headers
                && run.continues(head.bytes(), bytes, bytes.len() - headers.payload)
                && run.append(head, bytes);
            if !merged || run.ended {
                close(open, before);
            }
            if merged {
                return true;
            }
            break;
        }
        if whole && opens(bytes, &headers) {
            let slot = self.vacate(before);
            self.open[slot] = Some(Run::new(place, bytes, headers));
        }
        false
    }

    /// Returns a slot without a run: a free one, or the next one in turn, whose run is closed.
    fn vacate(&mut self, batch: &mut [Packet]) -> usize {
        if let Some(free) = self.open.iter().position(Option::is_none) {
            return free;
        }
        self.turn = (self.turn + 1) % RUNS;
        close(&mut self.open[self.turn], batch);
        self.turn
    }

    fn close_all(&mut self, batch: &mut [Packet]) {
        for open in &mut self.open {
            close(open, batch);
        }
    }
}

fn close(open: &mut Option<Run>, batch: &mut [Packet]) {
    if let Some(run) = open.take()
        && run.segments > 1
    {
        let head = &mut batch[run.head];
        head.offload = run.close(head.bytes_mut());
    }
}

/// Whether a packet is intact and may be part of any run.
fn is_whole(packet: &mut Packet, headers: &Headers) -> bool {
    if packet.offload.segmentation.is_some()
        || !headers.verify_ip(packet.bytes())
        || headers.protocol == UDP && !headers.is_full_datagram(packet.bytes())
    {
        return false;
    }
    match packet.offload.checksum {
        Checksum::Verified => true,
        Checksum::Unverified => {
            let valid = headers.verify(packet.bytes());
            if valid {
                packet.offload.checksum = Checksum::Verified;
            }
            valid
        }
        Checksum::Partial { start, offset } => {
            usize::from(start) == headers.transport
                && usize::from(offset) == headers.checksum_offset()
        }
    }
}

/// Whether a segment or datagram can be the first of a run: it carries data, and a segment has the flag ACK and no
/// others except CWR and ECE.
pub(super) fn opens(bytes: &[u8], headers: &Headers) -> bool {
    const ECE: u8 = 0x40;
    let only_data =
        headers.protocol == UDP || bytes[headers.transport + FLAGS] & !(CWR | ECE) == ACK;
    bytes.len() > headers.payload && only_data
}

/// How the IPv4 identifications of a run continue.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Identification {
    /// There is one segment so far, or the packets are IPv6.
    Open,
    Counting,
    Fixed,
}

/// A super-packet under construction.
pub(super) struct Run {
    /// The index of its first segment in the batch.
    head: usize,
    pub(super) headers: Headers,
    /// The number of payload bytes of the first segment.
    size: usize,
    pub(super) segments: u16,
    /// The sequence number of the next segment; 0 for UDP.
    next: u32,
    identification: Identification,
    /// FIN and PSH of the last segment; the super-packet gets them, too.
    last: u8,
    /// Whether no further segment can follow.
    pub(super) ended: bool,
}

impl Run {
    pub(super) fn new(head: usize, bytes: &[u8], headers: Headers) -> Self {
        let size = bytes.len() - headers.payload;
        Self {
            head,
            headers,
            size,
            segments: 1,
            next: match headers.protocol {
                TCP => sequence(bytes, headers.transport).wrapping_add(size as u32),
                _ => 0,
            },
            identification: Identification::Open,
            last: 0,
            ended: false,
        }
    }

    /// Whether protocol, addresses and ports are the same, in the same direction.
    fn same_connection(&self, head: &[u8], bytes: &[u8], headers: &Headers) -> bool {
        (self.headers.v6, self.headers.protocol) == (headers.v6, headers.protocol)
            && self.headers.addresses(head) == headers.addresses(bytes)
            && self.headers.ports(head) == headers.ports(bytes)
    }

    /// Like `same_connection`, for a header of the same shape.
    pub(super) fn is_connected(&self, head: &[u8], header: &[u8]) -> bool {
        self.same_connection(head, header, &self.headers)
    }

    /// Whether a segment of the same connection continues the run. Its headers, at the start of `header`, have the same
    /// shape, and its payload has `len` bytes.
    pub(super) fn continues(&self, head: &[u8], header: &[u8], len: usize) -> bool {
        let Headers { v6, protocol, transport, payload } = self.headers;
        if len == 0 || len > self.size {
            return false;
        }
        let equal = |from: usize, to: usize| head[from..to] == header[from..to];
        let network = if v6 {
            equal(0, 4) && equal(6, transport)
        } else {
            equal(0, 2)
                && equal(6, 10)
                && equal(12, transport)
                && self.follow_id(head, header).is_some()
        };
        if protocol == UDP {
            return network && self.segments < DATAGRAMS;
        }
        let flags = header[transport + FLAGS];
        network
            && sequence(header, transport) == self.next
            // Compares acknowledgment number, data offset and reserved bits; then window; then urgent pointer and
            // options.
            && equal(transport + 8, transport + FLAGS)
            && equal(transport + 14, transport + 16)
            && equal(transport + 18, payload)
            && flags & CWR == 0
            && (flags ^ head[transport + FLAGS]) & !(CWR | FIN | PSH) == 0
    }

    fn follow_id(&self, head: &[u8], bytes: &[u8]) -> Option<Identification> {
        const DONT_FRAGMENT: u8 = 0x40;
        let distance = ipv4_id(bytes).wrapping_sub(ipv4_id(head));
        let counting = distance == self.segments;
        let fixed = distance == 0 && head[6] & DONT_FRAGMENT != 0;
        match self.identification {
            Identification::Open | Identification::Counting if counting => {
                Some(Identification::Counting)
            }
            Identification::Open | Identification::Fixed if fixed => Some(Identification::Fixed),
            _ => None,
        }
    }

    /// Appends a segment that continues the run. Returns `false` and changes nothing if there is no room.
    fn append(&mut self, head: &mut Packet, bytes: &[u8]) -> bool {
        let data = &bytes[self.headers.payload..];
        let len = head.len();
        let end = len + data.len();
        if end > MAX_LEN || head.room_mut().len() < end {
            return false;
        }
        self.count(head.bytes(), bytes, data.len());
        head.room_mut()[len..end].copy_from_slice(data);
        head.set_len(end);
        true
    }

    /// Records that a segment with this `header` and this many bytes of payload follows.
    pub(super) fn count(&mut self, head: &[u8], header: &[u8], len: usize) {
        let Headers { v6, protocol, transport, .. } = self.headers;
        if !v6 && let Some(identification) = self.follow_id(head, header) {
            self.identification = identification;
        }
        if protocol == TCP {
            self.last = header[transport + FLAGS] & (FIN | PSH);
            self.next = self.next.wrapping_add(len as u32);
        }
        self.segments += 1;
        self.ended = self.last != 0 || len < self.size;
    }

    /// Turns the first segment's headers into those of the super-packet. The whole payload is already behind them.
    pub(super) fn close(&self, bytes: &mut [u8]) -> Offload {
        let headers = &self.headers;
        let flags = headers.transport + FLAGS;
        let ecn = headers.protocol == TCP && bytes[flags] & CWR != 0;
        if headers.protocol == TCP {
            bytes[flags] |= self.last;
        }
        headers.write_lengths(bytes, bytes.len());
        let at = headers.transport + headers.checksum_offset();
        let partial = fold(headers.pseudo_header(bytes, bytes.len())).to_be_bytes();
        bytes[at..at + 2].copy_from_slice(&partial);
        Offload {
            checksum: Checksum::Partial {
                start: headers.transport as u16,
                offset: headers.checksum_offset() as u16,
            },
            segmentation: Some(Segmentation { kind: headers.kind(), size: self.size as u16, ecn }),
        }
    }
}
