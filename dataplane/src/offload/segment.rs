//! Cuts a super-packet into packets that a link accepts.

use super::headers::{CWR, FIN, FLAGS, Headers, PSH, Shape, TCP, UDP, ipv4_id, sequence};
use crate::drop_reason::DropReason;
use crate::packet::{Checksum, Packet, Pool, Segmentation};

/// Cuts a packet into segments of at most `mtu` bytes, and appends them to `out` in order, each with complete
/// checksums. A packet that is no super-packet passes whole, and its checksum is completed. Segment before
/// encapsulation: this function does not look behind tunnel headers, and `mtu` is the tunnel's.
///
/// Every segment repeats all headers with their options. IPv4 identifications count up from that of the packet. FIN and
/// PSH of TCP stay with the last segment, CWR with the first (RFC 3168, section 6.1.2). TCP segments become shorter if
/// `mtu` requires it; datagrams cannot become shorter. An unverified checksum is verified first, because a new checksum
/// would hide an error.
///
/// An error returns the packet and appends nothing. The errors are [`DropReason::TooBig`] (it does not fit `mtu`; send
/// an ICMP error), [`DropReason::Malformed`] (it does not match its metadata, or has a wrong checksum) and
/// [`DropReason::NoBuffer`].
pub fn segment(
    mut packet: Packet,
    mtu: usize,
    pool: &mut Pool,
    out: &mut Vec<Packet>,
) -> Result<(), (Packet, DropReason)> {
    let Some(segmentation) = packet.offload.segmentation else {
        if packet.len() > mtu {
            return Err((packet, DropReason::TooBig));
        }
        if packet.complete_checksum().is_err() {
            return Err((packet, DropReason::Malformed));
        }
        out.push(packet);
        return Ok(());
    };
    let cut = match Cut::plan(packet.bytes(), segmentation, packet.offload.checksum, mtu) {
        Ok(cut) => cut,
        Err(reason) => return Err((packet, reason)),
    };
    // The first segment keeps the packet's own buffer.
    if pool.available() < cut.count - 1 {
        return Err((packet, DropReason::NoBuffer));
    }
    let source = out.len();
    out.push(packet);
    for index in 1..cut.count {
        let Some(mut segment) = pool.take() else {
            for segment in out.drain(source + 1..) {
                pool.put(segment);
            }
            return match out.pop() {
                Some(packet) => Err((packet, DropReason::NoBuffer)),
                None => Ok(()),
            };
        };
        cut.copy(out[source].bytes(), index, &mut segment);
        segment.neighbour = out[source].neighbour;
        out.push(segment);
    }
    cut.finish(&mut out[source], 0);
    Ok(())
}

/// A plan for cutting a super-packet.
#[derive(Debug)]
pub(crate) struct Cut {
    headers: Headers,
    /// The number of payload bytes in a segment.
    size: usize,
    /// The number of segments, at least 1.
    count: usize,
    /// The number of payload bytes in the super-packet.
    payload: usize,
    id: u16,
    sequence: u32,
    flags: u8,
    /// Whether the segments get no checksum, because the packet is UDP over IPv4 without one.
    unchecked: bool,
}

impl Cut {
    /// Plans how to cut a super-packet into segments of at most `mtu` bytes. The errors are those of [`segment`].
    pub(crate) fn plan(
        bytes: &[u8],
        Segmentation { kind, size, .. }: Segmentation,
        checksum: Checksum,
        mtu: usize,
    ) -> Result<Self, DropReason> {
        let size = usize::from(size);
        let Shape::Whole(headers) = Shape::classify(bytes) else {
            return Err(DropReason::Malformed);
        };
        if headers.kind() != kind || size == 0 {
            return Err(DropReason::Malformed);
        }
        let at = headers.transport + headers.checksum_offset();
        let mut unchecked = false;
        match checksum {
            Checksum::Partial { start, offset } => {
                if usize::from(start) != headers.transport
                    || usize::from(offset) != headers.checksum_offset()
                {
                    return Err(DropReason::Malformed);
                }
            }
            Checksum::Verified | Checksum::Unverified => {
                unchecked = headers.protocol == UDP && bytes[at..at + 2] == [0; 2];
                if checksum == Checksum::Unverified && !headers.verify(bytes) {
                    return Err(DropReason::Malformed);
                }
            }
        }
        let room = mtu.checked_sub(headers.payload).filter(|&room| room > 0);
        let Some(room) = room else { return Err(DropReason::TooBig) };
        let payload = bytes.len() - headers.payload;
        let tcp = headers.protocol == TCP;
        if !tcp && size.min(payload) > room {
            return Err(DropReason::TooBig);
        }
        let size = size.min(room);
        Ok(Self {
            headers,
            size,
            count: payload.div_ceil(size).max(1),
            payload,
            id: if headers.v6 { 0 } else { ipv4_id(bytes) },
            sequence: if tcp { sequence(bytes, headers.transport) } else { 0 },
            flags: if tcp { bytes[headers.transport + FLAGS] } else { 0 },
            unchecked,
        })
    }

    /// The number of segments.
    pub(crate) fn count(&self) -> usize {
        self.count
    }

    /// The length of the headers that each segment repeats, in bytes.
    pub(crate) fn header_len(&self) -> usize {
        self.headers.payload
    }

    /// The number of payload bytes in a segment.
    fn len(&self, index: usize) -> usize {
        self.size.min(self.payload - index * self.size)
    }

    /// The payload of the `index`-th segment, in the super-packet.
    pub(crate) fn payload<'b>(&self, bytes: &'b [u8], index: usize) -> &'b [u8] {
        let start = self.headers.payload + index * self.size;
        &bytes[start..start + self.len(index)]
    }

    /// Writes the `index`-th segment of the super-packet `from` into `to`.
    fn copy(&self, from: &[u8], index: usize, to: &mut Packet) {
        let (start, payload) = (self.headers.payload, self.payload(from, index));
        let room = to.room_mut();
        room[..start].copy_from_slice(&from[..start]);
        room[start..start + payload.len()].copy_from_slice(payload);
        self.finish(to, index);
    }

    /// Turns a copy of the super-packet's headers, followed by the segment's payload, into the segment.
    fn finish(&self, segment: &mut Packet, index: usize) {
        segment.set_len(self.headers.payload + self.len(index));
        let (headers, payload) = segment.bytes_mut().split_at_mut(self.headers.payload);
        self.write_headers(headers, payload, index);
        segment.offload.checksum = Checksum::Verified;
        segment.offload.segmentation = None;
    }

    /// Turns a copy of the super-packet's headers into those of the `index`-th segment, whose payload may lie
    /// elsewhere.
    pub(crate) fn write_headers(&self, bytes: &mut [u8], payload: &[u8], index: usize) {
        let Headers { v6, protocol, transport, .. } = self.headers;
        if !v6 {
            let id = self.id.wrapping_add(index as u16);
            bytes[4..6].copy_from_slice(&id.to_be_bytes());
        }
        if protocol == TCP {
            let sequence = self.sequence.wrapping_add((index * self.size) as u32);
            bytes[transport + 4..transport + 8].copy_from_slice(&sequence.to_be_bytes());
            let mut flags = self.flags;
            if index > 0 {
                flags &= !CWR;
            }
            if index + 1 < self.count {
                flags &= !(FIN | PSH);
            }
            bytes[transport + FLAGS] = flags;
        }
        self.headers.write_lengths(bytes, bytes.len() + payload.len());
        if !self.unchecked {
            self.headers.write_checksum(bytes, payload);
        }
    }
}
