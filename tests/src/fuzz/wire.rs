//! Packets that came out, in the form on a wire, and the check whether one came from a given input.

use std::ops::Range;

use etherparse::checksum::u64_16bit_word as sums;
use manx_dataplane::packet::{Checksum, Offload, SegmentKind, Segmentation};

use super::input::Input;
use super::read::{
    IPIP, Part, Read, checksum_offset, complement, flag, pseudo, read, sum, sums_up,
};
use super::writer::fix_ipv4_checksum;
use crate::packet::{TCP, UDP};

/// The flag "more fragments" in the seventh byte of an IPv4 header.
const MORE: u8 = 0x20;

/// A packet in the form on a wire. Its checksum may be partial.
#[derive(Debug, Clone, Copy)]
pub struct Wire<'a> {
    pub bytes: &'a [u8],
    pub read: Read,
    pub is_partial: bool,
}

/// The reason why a packet is wrong, whatever input it came from.
pub type Fault = &'static str;
/// The reason why a packet should not have come out, and the input that it probably came from.
pub type Refusal = (String, Option<usize>);

impl<'a> Wire<'a> {
    /// Reads a packet that is no super-packet.
    pub fn new(bytes: &'a [u8], checksum: Checksum) -> Result<Self, Fault> {
        let read = read(bytes).ok_or("its headers cannot be read, or are not right")?;
        if read.total != bytes.len() {
            return Err("its length is not what its header says");
        }
        let is_partial = checksum.is_partial();
        if let Checksum::Partial { start, offset } = checksum {
            let own = checksum_offset(read.tuple.upper, read.tuple.is_v4());
            let is_own = usize::from(start) == read.at && own == Some(offset.into());
            if !is_own && usize::from(start) + usize::from(offset) + 2 > bytes.len() {
                return Err("its unfinished checksum lies outside of it");
            }
        }
        Ok(Self { bytes, read, is_partial })
    }

    fn checksum(&self) -> Option<[u8; 2]> {
        let at = self.read.checksum_at()?;
        self.bytes[at..].first_chunk().copied()
    }

    /// Checks the transport checksum.
    fn is_right(&self) -> bool {
        let tuple = &self.read.tuple;
        if tuple.upper == UDP && tuple.is_v4() && self.checksum() == Some([0; 2]) {
            return true;
        }
        // IP payload after the datagram does not belong to it.
        let mut segment = &self.bytes[self.read.at..];
        if tuple.upper == UDP
            && let Some(len) =
                segment.get(4..6).map(|it| usize::from(u16::from_be_bytes([it[0], it[1]])))
        {
            segment = segment.get(..len).unwrap_or(segment);
        }
        sums_up(sum(tuple.source, tuple.destination, tuple.upper, segment.len(), segment))
    }

    /// Checks the rest of a packet that has the [key](super::input::key) of an input.
    pub fn is_unharmed(&self, input: &Input) -> Result<(), Fault> {
        let Some(at) = self.read.checksum_at() else { return Ok(()) };
        let before = &input.packet()[at..at + 2];
        let after = &self.bytes[at..at + 2];
        let was_partial = input.offload.checksum.is_partial();
        match (was_partial, self.is_partial) {
            // The device has reported the checksum of the input as right, so the worker may have written a checksum
            // that is right.
            (false, false) if before != after => {
                let is_believed = input.offload.checksum == Checksum::Verified && self.is_right();
                if is_believed { Ok(()) } else { Err("its checksum was changed") }
            }
            (true, true) if before != after => Err("its unfinished checksum was changed"),
            (false, true) => Err("its finished checksum counts as unfinished"),
            (true, false) if input.is_honest && !self.is_right() => {
                Err("its checksum was finished, and is wrong")
            }
            _ => Ok(()),
        }
    }

    /// The number of bytes of an input that the packet contains, if it is a fragment or segment of the input, or the
    /// input itself with its offload done.
    pub fn is_piece(&self, input: &Input) -> Option<usize> {
        let (from, whole) = (input.read?, input.packet());
        let (ours, theirs) = (&self.read.tuple, &from.tuple);
        if (ours.source, ours.destination, ours.upper)
            != (theirs.source, theirs.destination, theirs.upper)
        {
            return None;
        }
        match (input.offload.segmentation, self.read.part) {
            (Some(segmentation), Part::Whole) => self.is_segment(whole, &from, segmentation),
            (Some(segmentation), _) => {
                // The packet is a fragment of a segment that was longer than the MTU.
                let headers = from.headers(whole);
                if !from.has_segments() || headers > whole.len() {
                    return None;
                }
                let size = usize::from(segmentation.size);
                let nth =
                    u16::from_be_bytes([self.bytes[4], self.bytes[5]]).wrapping_sub(id(whole));
                let start = headers + usize::from(nth) * size;
                let payload = whole.get(start..(start + size).min(whole.len()))?;
                let mut datagram = whole[from.at..headers].to_vec();
                datagram.extend_from_slice(payload);
                let len = self.is_fragment(whole, &from, &datagram, 4..8)?;
                // Each segment has its own copy of the headers.
                let is_first = matches!(self.read.part, Part::First { .. });
                Some(if is_first { len.saturating_sub(headers - from.at) } else { len })
            }
            (None, Part::Whole) if from.part == Part::Whole => {
                let (start, offset) = match input.offload.checksum {
                    Checksum::Partial { start, offset } => (start.into(), offset.into()),
                    _ => (0, 0),
                };
                is_equal_but(self.bytes, whole, start + offset).then_some(whole.len() - from.at)
            }
            (None, _) => {
                if from.tuple.is_v4() && id(self.bytes) != id(whole) {
                    return None;
                }
                let Checksum::Partial { start, offset } = input.offload.checksum else {
                    return self.is_fragment(whole, &from, &whole[from.at..], 0..0);
                };
                let at = usize::from(start).checked_sub(from.at)? + usize::from(offset);
                if !input.is_honest {
                    return self.is_fragment(whole, &from, &whole[from.at..], at..at + 2);
                }
                let mut finished = whole[from.at..].to_vec();
                let checksum = written(from.tuple.upper, sums::add_slice(0, &finished));
                finished[at..at + 2].copy_from_slice(&checksum);
                self.is_fragment(whole, &from, &finished, 0..0)
            }
        }
    }

    /// Whether the packet is a fragment of an input. The bytes in the range `open` are not compared.
    fn is_fragment(
        &self,
        whole: &[u8],
        from: &Read,
        carried: &[u8],
        open: Range<usize>,
    ) -> Option<usize> {
        let offset = |part| match part {
            Part::Later { offset, .. } => offset,
            Part::Whole | Part::First { .. } => 0,
        };
        let start = offset(self.read.part).checked_sub(offset(from.part))?;
        let piece = &self.bytes[self.read.at..];
        let before = carried.get(start..start + piece.len())?;
        let differs =
            |(at, (one, other)): (usize, (&u8, &u8))| one != other && !open.contains(&(start + at));
        let is_equal = !piece.iter().zip(before).enumerate().any(differs);
        // The header fields that all fragments share.
        let (ours, theirs) = (self.bytes, whole);
        let more = if start + piece.len() < carried.len() { MORE } else { theirs[6] & MORE };
        let header = ours[0] >> 4 != 4
            || (ours[1] ^ theirs[1]) & !3 == 0 && ours[6] & MORE == more && ours[9] == theirs[9];
        (is_equal && header).then_some(piece.len())
    }

    /// Whether the packet is a segment of a super-packet.
    fn is_segment(&self, whole: &[u8], from: &Read, segmentation: Segmentation) -> Option<usize> {
        let headers = from.headers(whole);
        let is_like = self.read.headers(self.bytes) == headers && self.read.at == from.at;
        if !from.has_segments() || headers > whole.len() || !is_like || headers > self.bytes.len() {
            return None;
        }
        let payload = &self.bytes[headers..];
        let all = &whole[headers..];
        let is_there = |start: &usize| all.get(*start..start + payload.len()) == Some(payload);
        let start = if from.tuple.upper == TCP {
            let distance = sequence(self.bytes, from.at).wrapping_sub(sequence(whole, from.at));
            Some(distance as usize).filter(is_there)
        } else {
            // A datagram must have the length that its place in the super-packet has.
            let size = usize::from(segmentation.size.max(1));
            let fits = |start: &usize| {
                payload.len() == size.min(all.len().saturating_sub(*start)) && is_there(start)
            };
            if from.tuple.is_v4() {
                let nth = usize::from(id(self.bytes).wrapping_sub(id(whole)));
                Some(nth * size).filter(fits)
            } else {
                (0..all.len().max(1)).step_by(size).find(fits)
            }
        };
        // The first segment has the flags of the beginning, the last one those of the end.
        let mut flags = from.flags;
        if start? > 0 {
            flags &= !flag::CWR;
        }
        if start? + payload.len() < all.len() {
            flags &= !(flag::FIN | flag::PSH);
        }
        let is_right = self.read.flags == flags && (self.is_partial || self.is_right());
        (is_right && self.repeats(whole, from, headers)).then_some(payload.len())
    }

    /// Whether the packet's headers are those of a super-packet, except for fields that differ by segment.
    fn repeats(&self, whole: &[u8], from: &Read, headers: usize) -> bool {
        let (ours, theirs) = (self.bytes, whole);
        let is_equal = |range: Range<usize>| ours[range.clone()] == theirs[range];
        let at = from.at;
        let network = if from.tuple.is_v4() {
            (ours[1] ^ theirs[1]) & !3 == 0 && is_equal(6..8) && is_equal(9..10) && is_equal(12..at)
        } else {
            ours[0] == theirs[0]
                && (ours[1] ^ theirs[1]) & !0x30 == 0
                && is_equal(2..4)
                && is_equal(6..7)
                && is_equal(8..at)
        };
        let upper = if from.tuple.upper == TCP {
            is_equal(at..at + 4)
                && is_equal(at + 8..at + 13)
                && is_equal(at + 14..at + 16)
                && is_equal(at + 18..headers)
        } else {
            is_equal(at..at + 4)
        };
        network && upper
    }
}

/// Whether packets are equal except for the fields that a hop changes, the checksum and two bytes at `open`.
fn is_equal_but(ours: &[u8], theirs: &[u8], open: usize) -> bool {
    if ours.len() != theirs.len() {
        return false;
    }
    let differs = |at: usize| {
        let hop = if theirs[0] >> 4 == 4 { at == 8 || at == 10 || at == 11 } else { at == 7 };
        !hop && !(open..open + 2).contains(&at) && at != 1
    };
    (0..ours.len()).all(|at| ours[at] == theirs[at] || !differs(at))
}

/// A checksum as it is written. The checksum of UDP is never 0, because 0 means that there is none.
fn written(upper: u8, sum: u64) -> [u8; 2] {
    match complement(sum) {
        [0, 0] if upper == UDP => [0xff; 2],
        written => written,
    }
}

fn id(bytes: &[u8]) -> u16 {
    u16::from_be_bytes([bytes[4], bytes[5]])
}

fn sequence(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at + 4..).and_then(<[u8]>::first_chunk).map_or(0, |bytes| u32::from_be_bytes(*bytes))
}

/// Whether a super-packet came out unchanged. Its segments may be shorter.
pub fn is_same_super(input: &Input, bytes: &[u8], offload: Offload) -> bool {
    let Some(read) = input.read else { return false };
    let (Some(before), Some(after)) = (input.offload.segmentation, offload.segmentation) else {
        return false;
    };
    before.kind == after.kind
        // A tunnel leaves less room, so segments may be shorter.
        && after.size <= before.size
        && input.offload.checksum.is_partial() == offload.checksum.is_partial()
        && is_equal_but(bytes, input.packet(), read.checksum_at().unwrap_or_default())
}

/// Checks that a super-packet has the kind that its virtio header says. For a tunnel packet, which pods may not send,
/// that is the inner packet's kind.
pub fn is_of_kind(bytes: &[u8], kind: SegmentKind) -> Result<(), Fault> {
    let tuple = read(bytes).ok_or("a super-packet that cannot be read")?.tuple;
    let upper = if kind == SegmentKind::Udp { UDP } else { TCP };
    let is_family = match kind {
        SegmentKind::Tcp4 => tuple.is_v4(),
        SegmentKind::Tcp6 => !tuple.is_v4(),
        SegmentKind::Udp => true,
    };
    let is_so = tuple.upper == upper && is_family || tuple.upper == IPIP;
    if is_so {
        Ok(())
    } else {
        Err("a super-packet that is of another kind than its virtio header says")
    }
}

/// Cuts a super-packet as the device behind the port would, each segment with its checksum; returns their number.
pub fn cut(
    bytes: &[u8],
    offload: Offload,
    scratch: &mut Vec<u8>,
    mut each: impl FnMut(&[u8]) -> Result<(), Fault>,
) -> Result<u64, Fault> {
    let (Some(read), Some(segmentation)) = (read(bytes), offload.segmentation) else {
        return Err("a super-packet that cannot be read");
    };
    let headers = read.headers(bytes);
    if !read.has_segments() || headers > bytes.len() {
        return Err("a super-packet of a protocol that has none");
    }
    let (tuple, at) = (&read.tuple, read.at);
    let partial_at = match offload.checksum {
        Checksum::Partial { start, offset } => usize::from(start) + usize::from(offset),
        _ => 0,
    };
    let whole_sum = pseudo(tuple.source, tuple.destination, tuple.upper, bytes.len() - at);
    let own = read.checksum_at().filter(|own| *own == partial_at);
    let is_partial = own.is_some_and(|at| bytes[at..at + 2] == complement(whole_sum).map(|it| !it));
    if !is_partial {
        return Err("a super-packet whose checksum is not the pseudo-header's sum");
    }
    let (payload, size) = (&bytes[headers..], usize::from(segmentation.size));
    let count = payload.len().div_ceil(size).max(1);
    for nth in 0..count {
        let from = nth * size;
        let part = &payload[from..(from + size).min(payload.len())];
        scratch.clear();
        scratch.extend_from_slice(&bytes[..headers]);
        scratch.extend_from_slice(part);
        let total = scratch.len();
        if tuple.is_v4() {
            scratch[2..4].copy_from_slice(&(total as u16).to_be_bytes());
            let id = id(bytes).wrapping_add(nth as u16);
            scratch[4..6].copy_from_slice(&id.to_be_bytes());
            fix_ipv4_checksum(scratch);
        } else {
            scratch[4..6].copy_from_slice(&((total - 40) as u16).to_be_bytes());
        }
        if tuple.upper == TCP {
            let sequence = sequence(bytes, at).wrapping_add(from as u32);
            scratch[at + 4..at + 8].copy_from_slice(&sequence.to_be_bytes());
            if nth + 1 < count {
                scratch[at + 13] &= !(flag::FIN | flag::PSH);
            }
            if nth > 0 {
                scratch[at + 13] &= !flag::CWR;
            }
        } else {
            scratch[at + 4..at + 6].copy_from_slice(&((total - at) as u16).to_be_bytes());
        }
        let field = partial_at..partial_at + 2;
        scratch[field.clone()].fill(0);
        let sum = sum(tuple.source, tuple.destination, tuple.upper, total - at, &scratch[at..]);
        scratch[field].copy_from_slice(&written(tuple.upper, sum));
        each(scratch)?;
    }
    Ok(count as u64)
}

#[cfg(test)]
mod tests;
