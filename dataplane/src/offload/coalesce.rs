//! Segments put together into super-packets, by the rules of the kernel's GRO.

use super::headers::{ACK, CWR, FIN, FLAGS, Headers, PSH, Shape, TCP, ipv4_id, sequence};
use crate::packet::{Checksum, Packet, Pool, Segmentation};

/// The longest IP packet that a super-packet may be (RFC 791: 16 bits of length).
const MAX_LEN: usize = 65_535;
/// Streams followed at once in a batch; with more, one after the other is closed.
const RUNS: usize = 8;

/// Merges TCP segments of a batch, in place: each run of consecutive segments becomes one super-packet in the buffer and
/// at the place of its first segment, and the other buffers return to `pool`.
///
/// Beside each packet stands where it came from (the tunnel, say): packets of different origins never merge.
///
/// Segments merge when every byte of their headers is equal, but for what segmentation derives: the sequence number
/// follows on; the IPv4 identification counts up by one, or stays the same where Don't Fragment makes it meaningless (RFC
/// 6864, section 4.1); the lengths are equal, and a shorter segment ends the run, as do PSH and FIN; CWR may stand on
/// the first only. SYN, RST, URG, pure acknowledgements, fragments and packets that are super-packets already never merge.
/// A checksum must be verified, or is verified here; a packet with a wrong one passes alone and untouched.
///
/// Packets of one connection never change their order; those of different connections may.
pub fn coalesce<T: Copy + Eq>(batch: &mut Vec<(Packet, T)>, pool: &mut Pool) {
    let mut runs: [Option<Run<T>>; RUNS] = [const { None }; RUNS];
    let mut turn = 0;
    let mut kept = 0;
    for index in 0..batch.len() {
        let shape = Shape::of(batch[index].0.bytes());
        let merged = match shape {
            Shape::Whole(headers) if headers.protocol == TCP => {
                let (before, rest) = batch.split_at_mut(index);
                let (packet, origin) = &mut rest[0];
                let mut merged = false;
                let whole = is_whole(packet, &headers);
                for open in &mut runs {
                    let Some(run) = open else { continue };
                    let head = &mut before[run.head].0;
                    if !run.same_connection(head.bytes(), packet.bytes(), &headers) {
                        continue;
                    }
                    merged = whole
                        && run.origin == *origin
                        && run.continues(head.bytes(), packet.bytes(), &headers)
                        && run.append(head, packet.bytes());
                    if !merged || run.ended {
                        close(open, before);
                    }
                }
                if !merged && whole && opens(packet.bytes(), &headers) {
                    let free = runs.iter().position(Option::is_none).unwrap_or_else(|| {
                        turn += 1;
                        turn % RUNS
                    });
                    let slot = &mut runs[free];
                    close(slot, before);
                    *slot = Some(Run::new(kept, packet.bytes(), headers, *origin));
                }
                merged
            }
            Shape::Whole(_) | Shape::Other => false,
            Shape::Unknown => {
                for run in &mut runs {
                    close(run, batch);
                }
                false
            }
        };
        if !merged {
            batch.swap(kept, index);
            kept += 1;
        }
    }
    for run in &mut runs {
        close(run, batch);
    }
    for (packet, _) in batch.drain(kept..) {
        pool.put(packet);
    }
}

fn close<T: Copy>(run: &mut Option<Run<T>>, batch: &mut [(Packet, T)]) {
    if let Some(run) = run.take() {
        run.close(&mut batch[run.head].0);
    }
}

/// Whether nothing is wrong with a TCP packet and it may be part of a run at all.
fn is_whole(packet: &mut Packet, headers: &Headers) -> bool {
    if packet.offload.segmentation.is_some() || !headers.verify_ip(packet.bytes()) {
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

/// Whether a segment can be the first of a run: it carries data, and no flag that means the end of one or more than data.
fn opens(bytes: &[u8], headers: &Headers) -> bool {
    const ECE: u8 = 0x40;
    bytes.len() > headers.payload && bytes[headers.transport + FLAGS] & !(CWR | ECE) == ACK
}

/// How the IPv4 identifications of a run go.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Identification {
    /// One segment so far, or IPv6.
    Open,
    Counting,
    Fixed,
}

/// A super-packet in the making.
struct Run<T> {
    /// Index of the first segment in the batch.
    head: usize,
    headers: Headers,
    origin: T,
    /// Payload bytes of the first segment.
    size: usize,
    segments: u16,
    /// The sequence number that follows on.
    next: u32,
    identification: Identification,
    ended: bool,
}

impl<T> Run<T> {
    fn new(head: usize, bytes: &[u8], headers: Headers, origin: T) -> Self {
        let size = bytes.len() - headers.payload;
        Self {
            head,
            headers,
            origin,
            size,
            segments: 1,
            next: sequence(bytes, headers.transport).wrapping_add(size as u32),
            identification: Identification::Open,
            ended: false,
        }
    }

    /// Same addresses and ports, in the same direction.
    fn same_connection(&self, head: &[u8], bytes: &[u8], headers: &Headers) -> bool {
        let ports = |bytes: &[u8], headers: &Headers| {
            let at = headers.transport;
            [bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]
        };
        self.headers.v6 == headers.v6
            && self.headers.addresses(head) == headers.addresses(bytes)
            && ports(head, &self.headers) == ports(bytes, headers)
    }

    /// Whether a segment of the same connection follows on.
    fn continues(&self, head: &[u8], bytes: &[u8], headers: &Headers) -> bool {
        if self.headers != *headers {
            return false;
        }
        let Headers { v6, transport, payload, .. } = *headers;
        let len = bytes.len() - payload;
        if len == 0 || len > self.size || sequence(bytes, transport) != self.next {
            return false;
        }
        let equal = |from: usize, to: usize| head[from..to] == bytes[from..to];
        let network = if v6 {
            equal(0, 4) && equal(6, transport)
        } else {
            equal(0, 2)
                && equal(6, 10)
                && equal(12, transport)
                && self.follow_id(head, bytes).is_some()
        };
        let flags = bytes[transport + FLAGS];
        network
            // Acknowledgement, data offset and reserved bits; window; urgent pointer and options.
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

    /// Appends a segment that follows on. False, and nothing done, if there is no room.
    fn append(&mut self, head: &mut Packet, bytes: &[u8]) -> bool {
        let Headers { v6, transport, payload, .. } = self.headers;
        let data = &bytes[payload..];
        let len = head.len();
        let end = len + data.len();
        if end > MAX_LEN || head.room_mut().len() < end {
            return false;
        }
        if !v6 && let Some(identification) = self.follow_id(head.bytes(), bytes) {
            self.identification = identification;
        }
        head.room_mut()[len..end].copy_from_slice(data);
        head.set_len(end);
        let last = bytes[transport + FLAGS] & (FIN | PSH);
        head.bytes_mut()[transport + FLAGS] |= last;
        self.segments += 1;
        self.next = self.next.wrapping_add(data.len() as u32);
        self.ended = last != 0 || data.len() < self.size;
        true
    }

    /// Makes a super-packet of the first segment's buffer, if anything was appended.
    fn close(&self, head: &mut Packet) {
        if self.segments == 1 {
            return;
        }
        let headers = &self.headers;
        let bytes = head.bytes_mut();
        headers.write_lengths(bytes);
        let at = headers.transport + headers.checksum_offset();
        let partial = headers.pseudo_header(bytes).folded();
        bytes[at..at + 2].copy_from_slice(&partial);
        let ecn = bytes[headers.transport + FLAGS] & CWR != 0;
        head.offload.checksum = Checksum::Partial {
            start: headers.transport as u16,
            offset: headers.checksum_offset() as u16,
        };
        head.offload.segmentation =
            Some(Segmentation { kind: headers.kind(), size: self.size as u16, ecn });
    }
}
