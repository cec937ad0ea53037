//! A packet in flight: one owned buffer, the packet's place in it, and its offload metadata.
//!
//! A packet always starts at its outermost IP header, or at the Ethernet header while a link port frames it. Buffers
//! come from a worker's [`Pool`] and return to it; a packet that moves to another worker takes its buffer along.

use std::ops::{Deref, DerefMut};

use crate::checksum::{finish, sum};
use crate::sys::memory::prefetch;
use crate::wire::{Malformed, udp};

/// The free bytes in front of every received packet: more than an Ethernet header and an outer IPv4 header need.
pub const HEADROOM: usize = 128;
/// The longest IP packet (RFC 791, RFC 8200 without jumbograms) plus an Ethernet header, in bytes.
pub const MAX_PACKET: usize = 65_535 + 14;
/// Headers of packets whose buffers lie 64 KiB apart would share one cache set. So each buffer starts its packets at
/// one of this many cache lines.
const COLOURS: usize = 16;
const LINE: usize = 64;
const CAPACITY: usize = HEADROOM + COLOURS * LINE + MAX_PACKET + 1;

/// The state of a packet's layer-4 checksum.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Checksum {
    /// The packet holds the checksum as the sender wrote it; it has not been verified.
    #[default]
    Unverified,
    /// The packet holds the checksum, and the device or this program has verified it.
    Verified,
    /// The packet holds only the pseudo-header's sum. The sum from `start` to the packet's end completes it and is
    /// stored at `start + offset`. `start` counts from the packet's first byte (virtio 1.2, 5.1.6.2
    /// `VIRTIO_NET_HDR_F_NEEDS_CSUM`).
    Partial {
        /// The offset of the layer-4 header from the packet's first byte.
        start: u16,
        /// The offset of the checksum in the layer-4 header.
        offset: u16,
    },
}

impl Checksum {
    /// Whether the checksum is still partial.
    #[inline]
    pub const fn is_partial(self) -> bool {
        matches!(self, Self::Partial { .. })
    }
}

/// How a super-packet is cut into segments.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SegmentKind {
    /// TCP over IPv4.
    Tcp4,
    /// TCP over IPv6.
    Tcp6,
    /// UDP datagrams of equal size (the last may be shorter), over either family (`VIRTIO_NET_HDR_GSO_UDP_L4`).
    Udp,
}

/// How a super-packet is segmented: it has one header and the payload of many segments.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Segmentation {
    /// The kind of the segments: their protocol and, for TCP, their IP version.
    pub kind: SegmentKind,
    /// The number of payload bytes in a segment (the last may hold fewer); never 0.
    pub size: u16,
    /// Whether CWR of TCP is set: only the first segment carries it (`VIRTIO_NET_HDR_GSO_ECN`).
    pub ecn: bool,
}

/// The state of a packet that its bytes do not hold. A virtio-net header carries it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Offload {
    /// The layer-4 checksum's state.
    pub checksum: Checksum,
    /// `Some` for a super-packet.
    pub segmentation: Option<Segmentation>,
}

/// The kinds of packets that the device behind a port accepts unchanged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[expect(clippy::struct_excessive_bools, reason = "each is had or not by itself")]
pub struct Capabilities {
    /// Packets whose layer-4 checksum is partial.
    pub partial_checksum: bool,
    /// TCP super-packets.
    pub tcp_segmentation: bool,
    /// UDP super-packets.
    pub udp_segmentation: bool,
    /// Super-packets with one outer header, which is repeated together with their own headers.
    pub tunnel_segmentation: bool,
}

impl Capabilities {
    /// The capabilities of TUN, TAP, and AF_PACKET on a veth with a recent kernel.
    pub const ALL: Self = Self {
        partial_checksum: true,
        tcp_segmentation: true,
        udp_segmentation: true,
        tunnel_segmentation: false,
    };

    /// Whether [`PacketIo::transmit`](crate::port::PacketIo::transmit) accepts a packet in this state.
    #[inline]
    pub fn take(self, offload: Offload) -> bool {
        let checksum =
            self.partial_checksum || !matches!(offload.checksum, Checksum::Partial { .. });
        checksum && offload.segmentation.is_none_or(|it| self.segment(it.kind))
    }

    /// Whether super-packets of this kind are accepted.
    #[inline]
    pub fn segment(self, kind: SegmentKind) -> bool {
        match kind {
            SegmentKind::Tcp4 | SegmentKind::Tcp6 => self.tcp_segmentation,
            SegmentKind::Udp => self.udp_segmentation,
        }
    }
}

/// One packet and its buffer. It is a single pointer, because it changes hands often.
#[derive(Debug)]
pub struct Packet(Box<Body>);

/// The content of a [`Packet`]. It fills whole cache lines, so that it shares no line with another packet, which
/// another worker may use at the same time.
#[repr(align(64))]
pub struct Body {
    buffer: Box<[u8]>,
    start: u32,
    len: u32,
    /// Checksum and segmentation state; offsets count from the packet's first byte.
    pub offload: Offload,
    /// The hardware address to which an endpoint sent the packet, if the packet continues through another plugin's
    /// network ([`crate::port::relay`]); else zero.
    pub neighbour: [u8; 6],
}

impl Deref for Packet {
    type Target = Body;

    #[inline]
    fn deref(&self) -> &Body {
        &self.0
    }
}

impl DerefMut for Packet {
    #[inline]
    fn deref_mut(&mut self) -> &mut Body {
        &mut self.0
    }
}

impl std::fmt::Debug for Body {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Body")
            .field("len", &self.len)
            .field("offload", &self.offload)
            .finish_non_exhaustive()
    }
}

impl Body {
    /// The packet's bytes.
    #[inline]
    pub fn bytes(&self) -> &[u8] {
        let (start, len) = (self.start as usize, self.len as usize);
        &self.buffer[start..start + len]
    }

    /// The packet's bytes, mutable.
    #[inline]
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        let (start, len) = (self.start as usize, self.len as usize);
        &mut self.buffer[start..start + len]
    }

    /// Prefetches the cache line of its first bytes.
    #[inline]
    pub fn prefetch(&self) {
        prefetch(self.buffer.as_ptr().wrapping_add(self.start as usize));
    }

    /// The length in bytes.
    #[inline]
    pub fn len(&self) -> usize {
        self.len as usize
    }

    /// Whether the packet holds no bytes.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The number of free bytes in front of the packet.
    #[inline]
    pub fn headroom(&self) -> usize {
        self.start as usize
    }

    /// All bytes from the packet's first byte to the end of the buffer, for writing; call [`Body::set_len`] afterwards.
    #[inline]
    pub fn room_mut(&mut self) -> &mut [u8] {
        &mut self.buffer[self.start as usize..]
    }

    /// Sets the length. It is clamped to the room after the first byte.
    #[inline]
    pub fn set_len(&mut self, len: usize) {
        self.len = len.min(self.buffer.len() - self.start as usize) as u32;
    }

    /// Cuts the packet to this length if it is longer.
    #[inline]
    pub fn truncate(&mut self, len: u32) {
        self.len = self.len.min(len);
    }

    /// Puts `header` in front of the packet and moves the checksum's start accordingly. Returns false and changes
    /// nothing if there is not enough headroom.
    #[inline]
    #[must_use]
    pub fn push_front(&mut self, header: &[u8]) -> bool {
        let Some(start) = (self.start as usize).checked_sub(header.len()) else { return false };
        self.buffer[start..start + header.len()].copy_from_slice(header);
        self.grow_front(header.len());
        true
    }

    /// Like [`Body::push_front`], with the last `len` bytes (at most all) of a block whose length the compiler knows.
    /// The whole block is copied with a few instructions, so there must be headroom for all of it. Returns the block at
    /// its new place, mutable.
    #[inline]
    #[must_use]
    pub fn push_front_end<const N: usize>(
        &mut self,
        block: &[u8; N],
        len: usize,
    ) -> Option<&mut [u8; N]> {
        let front = self.start as usize;
        *self.buffer.get_mut(..front)?.last_chunk_mut()? = *block;
        self.grow_front(len.min(N));
        self.buffer.get_mut(..front)?.last_chunk_mut()
    }

    #[inline]
    fn grow_front(&mut self, len: usize) {
        self.start -= len as u32;
        self.len += len as u32;
        if let Checksum::Partial { start, .. } = &mut self.offload.checksum {
            *start += len as u16;
        }
    }

    /// Removes `n` bytes from the front (at most all) and moves the checksum's start accordingly.
    #[inline]
    pub fn pull_front(&mut self, n: usize) {
        let n = n.min(self.len());
        self.start += n as u32;
        self.len -= n as u32;
        if let Checksum::Partial { start, .. } = &mut self.offload.checksum {
            *start = start.saturating_sub(n as u16);
        }
    }

    /// Completes a [partial](Checksum::Partial) checksum over everything from the layer-4 header to the packet's end.
    /// Writes a UDP checksum of 0 as 0xffff, because 0 means that there is none (RFC 768). Leaves a checksum in any
    /// other state unchanged.
    ///
    /// Use this for packets without segmentation: the segments of a super-packet get their checksums when it is cut.
    /// Returns an error if the checksum lies outside of the packet.
    #[inline]
    pub fn complete_checksum(&mut self) -> Result<(), Malformed> {
        let Checksum::Partial { start, offset } = self.offload.checksum else { return Ok(()) };
        let (start, offset) = (usize::from(start), usize::from(offset));
        let covered = self.bytes_mut().get_mut(start..).ok_or(Malformed)?;
        let complete = match finish(sum(covered)) {
            0 if offset == udp::CHECKSUM_OFFSET => 0xffff,
            other => other,
        };
        let field = covered.get_mut(offset..offset + 2).ok_or(Malformed)?;
        field.copy_from_slice(&complete.to_be_bytes());
        self.offload.checksum = Checksum::Verified;
        Ok(())
    }

    /// Whether a wire could carry the packet: its checksum is complete, and it is not a super-packet.
    #[inline]
    pub fn is_finished(&self) -> bool {
        self.offload.segmentation.is_none() && !self.offload.checksum.is_partial()
    }

    /// The number of packets on a wire that it stands for, and the length of the longest, given `header_len` bytes of
    /// headers.
    #[inline]
    pub fn on_a_wire(&self, header_len: usize) -> (u32, u32) {
        let Some(segmentation) = self.offload.segmentation else { return (1, self.len) };
        let (header_len, size) = (header_len as u32, u32::from(segmentation.size).max(1));
        let segments = self.len.saturating_sub(header_len).div_ceil(size).max(1);
        (segments, self.len.min(header_len + size))
    }

    /// The number of packets on a wire that it stands for.
    #[inline]
    pub fn segments(&self, header_len: usize) -> u64 {
        self.on_a_wire(header_len).0.into()
    }
}

/// A worker's free buffers. The pool grows on demand up to its limit; a buffer that was never used costs no memory.
pub struct Pool {
    free: Vec<Packet>,
    made: usize,
    limit: usize,
}

impl Pool {
    /// A pool of at most `limit` buffers.
    pub fn new(limit: usize) -> Self {
        Self { free: Vec::with_capacity(limit), made: 0, limit }
    }

    /// An empty packet with [`HEADROOM`], or `None` if all buffers are in use.
    #[inline]
    pub fn take(&mut self) -> Option<Packet> {
        let mut packet = match self.free.pop() {
            Some(packet) => packet,
            None => self.make()?,
        };
        let colour = (packet.buffer.as_ptr() as usize / CAPACITY.next_power_of_two()) % COLOURS;
        packet.start = (HEADROOM + colour * LINE) as u32;
        packet.len = 0;
        packet.offload = Offload::default();
        packet.neighbour = [0; 6];
        Some(packet)
    }

    #[cold]
    #[inline(never)]
    fn make(&mut self) -> Option<Packet> {
        if self.made == self.limit {
            return None;
        }
        self.made += 1;
        let buffer = vec![0; CAPACITY].into_boxed_slice();
        Some(Packet(Box::new(Body {
            buffer,
            start: 0,
            len: 0,
            offload: Offload::default(),
            neighbour: [0; 6],
        })))
    }

    /// A packet that holds `bytes` (cut at [`MAX_PACKET`]).
    pub fn take_filled(&mut self, bytes: &[u8]) -> Option<Packet> {
        let mut packet = self.take()?;
        let len = bytes.len().min(MAX_PACKET);
        packet.room_mut()[..len].copy_from_slice(&bytes[..len]);
        packet.set_len(len);
        Some(packet)
    }

    /// A packet of these parts in this order, cut at [`MAX_PACKET`].
    pub fn concatenate(&mut self, parts: &[&[u8]]) -> Option<Packet> {
        let mut packet = self.take()?;
        let mut end = 0;
        for part in parts {
            packet.room_mut()[end..end + part.len()].copy_from_slice(part);
            end += part.len();
        }
        packet.set_len(end);
        Some(packet)
    }

    /// Gives a packet's buffer back.
    #[inline]
    pub fn put(&mut self, packet: Packet) {
        if self.free.len() < self.limit {
            self.free.push(packet);
        }
    }

    /// The number of buffers that may be given to other workers: a quarter of all buffers stays here.
    pub fn spare(&self) -> usize {
        self.available().saturating_sub(self.limit / 4)
    }

    /// The number of packets that can still be taken.
    pub fn available(&self) -> usize {
        self.free.len() + (self.limit - self.made)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_move_the_checksum_start_along() {
        let mut pool = Pool::new(1);
        let mut packet = pool.take_filled(&[9; 40]).unwrap();
        packet.offload.checksum = Checksum::Partial { start: 20, offset: 6 };
        assert!(packet.push_front(&[1; 20]));
        assert_eq!(packet.offload.checksum, Checksum::Partial { start: 40, offset: 6 });
        packet.pull_front(20);
        assert_eq!(packet.offload.checksum, Checksum::Partial { start: 20, offset: 6 });
        assert_eq!(packet.bytes(), [9; 40]);
        assert!(!packet.push_front(&[0; 4096]), "more than the headroom is refused");
    }

    #[test]
    fn a_pool_never_makes_more_than_its_limit_and_reuses_what_returns() {
        let mut pool = Pool::new(2);
        let first = pool.take().unwrap();
        let _second = pool.take().unwrap();
        assert!(pool.take().is_none());
        pool.put(first);
        assert_eq!(pool.available(), 1);
        let again = pool.take().unwrap();
        assert!(again.is_empty());
        assert!(again.headroom() >= HEADROOM);
    }

    #[test]
    fn a_super_packet_counts_its_segments() {
        let mut pool = Pool::new(1);
        let mut packet = pool.take_filled(&[0; 40 + 3001]).unwrap();
        assert_eq!(packet.segments(40), 1);
        packet.offload.segmentation =
            Some(Segmentation { kind: SegmentKind::Tcp4, size: 1000, ecn: false });
        assert_eq!(packet.segments(40), 4);
    }
}
