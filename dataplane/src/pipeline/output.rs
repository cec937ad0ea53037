//! Output: prepares a packet for its port and queues it. The queues are sent once per turn, and packets of one flow
//! that can be coalesced leave as one packet.

use std::io;

use crate::drop_reason::DropReason;
use crate::encapsulation::encapsulate;
use crate::fragment::fragment;
use crate::offload::coalesce::{coalesce, may_coalesce};
use crate::offload::segment::{Cut, segment};
use crate::packet::{MAX_PACKET, Packet, Pool, SegmentKind};
use crate::port_table::ports::{Ports, Slot};
use crate::tables::{PortId, Tunnel};

/// If this many packets wait, they are sent before the end of the batch: the number that one system call takes.
const FULL: usize = 64;
/// The length of the longest IP packet, in bytes (RFC 791: 16 bits of length).
const MAX_TOTAL_LEN: usize = 65_535;

/// Packets that have been decided and wait for the end of the turn.
#[derive(Default)]
pub(crate) struct Outbox {
    waiting: Vec<PortId>,
    pieces: Vec<Packet>,
    segments: Vec<Packet>,
    queued: usize,
    next_id: u16,
}

impl Outbox {
    /// Queues a packet that is finished, fits the link, and needs no tunnel. Such packets can wait for the end of the
    /// batch, so they do not count towards an early send.
    #[inline(always)]
    #[expect(clippy::inline_always, reason = "what most packets need, and little")]
    pub(crate) fn queue(&mut self, slot: &mut Slot, packet: Packet) {
        let bytes = packet.len() as u64;
        self.push(slot, packet, 0, 1, bytes);
    }

    /// Queues a packet. `segments` and `bytes` are its size on a wire. `room` is added to the count that triggers an
    /// early send at [`FULL`].
    #[inline(always)]
    #[expect(clippy::inline_always, reason = "as `queue`")]
    fn push(&mut self, slot: &mut Slot, packet: Packet, room: usize, segments: u64, bytes: u64) {
        if slot.queue.is_empty() {
            self.waiting.push(slot.id);
        }
        self.queued += room;
        slot.push(packet, segments, bytes);
    }

    /// Prepares a packet for its port (cuts segments or fragments, completes checksums, adds the outer header of a
    /// `tunnel`) and queues it. The hop limit has already been changed, and policy has been evaluated. `header_len` is
    /// the number of bytes that each segment repeats.
    #[inline(never)]
    pub(crate) fn prepare_and_queue(
        &mut self,
        slot: &mut Slot,
        pool: &mut Pool,
        mut packet: Packet,
        header_len: usize,
        mtu: usize,
        tunnel: Option<&Tunnel>,
    ) -> Result<(), DropReason> {
        let is_whole = packet.offload.segmentation.is_none();
        let as_it_is = match tunnel {
            None => slot.capabilities.take(packet.offload) && (packet.len() <= mtu || !is_whole),
            Some(_) if is_whole => packet.len() <= mtu && !packet.offload.checksum.is_partial(),
            Some(tunnel) => {
                slot.capabilities.tunnel_segmentation
                    && packet.len() + tunnel.outer.added() <= MAX_TOTAL_LEN
                    && can_segment(&mut packet, header_len, mtu)
            }
        };
        if as_it_is {
            // A super-packet that the kernel cuts is sent early: its receiver can work in the meantime, and its payload
            // is still in the cache.
            let segments = packet.segments(header_len);
            return self.encapsulate_and_queue(slot, pool, packet, segments, header_len, tunnel);
        }
        self.split(packet, header_len, mtu, pool)?;
        let mut outcome = Ok(());
        let mut pieces = std::mem::take(&mut self.pieces);
        for piece in pieces.drain(..) {
            outcome =
                outcome.and(self.encapsulate_and_queue(slot, pool, piece, 1, header_len, tunnel));
        }
        self.pieces = pieces;
        outcome
    }

    /// Adds the outer header of a tunnel, if there is one, and queues the packet.
    #[inline(always)]
    #[expect(clippy::inline_always, reason = "most callers know that the packet is one segment")]
    fn encapsulate_and_queue(
        &mut self,
        slot: &mut Slot,
        pool: &mut Pool,
        packet: Packet,
        segments: u64,
        header_len: usize,
        tunnel: Option<&Tunnel>,
    ) -> Result<(), DropReason> {
        let Some(tunnel) = tunnel else {
            let bytes = packet.len() as u64;
            self.push(slot, packet, 1, segments, bytes);
            return Ok(());
        };
        let repeated = (segments - 1) * header_len as u64;
        self.encapsulate_and_push(tunnel, slot, packet, segments as usize, segments, repeated)
            .map_err(|packet| discard(pool, packet, DropReason::Malformed))
    }

    /// Queues a packet into a tunnel. [`Outbox::queue`] does the same without a tunnel. Returns the packet as an error
    /// if it has no room for the outer header.
    #[inline(never)]
    pub(crate) fn queue_encapsulated(
        &mut self,
        tunnel: &Tunnel,
        slot: &mut Slot,
        packet: Packet,
    ) -> Result<(), Packet> {
        self.encapsulate_and_push(tunnel, slot, packet, 0, 1, 0)
    }

    /// Adds the outer header of a tunnel and queues the packet, as [`Outbox::push`] does. `repeated` is the difference
    /// in bytes between all its segments together and the packet. Returns the packet as an error if it has no room for
    /// the outer header.
    #[inline(always)]
    #[expect(clippy::inline_always, reason = "as `encapsulate_and_queue`")]
    fn encapsulate_and_push(
        &mut self,
        tunnel: &Tunnel,
        slot: &mut Slot,
        mut packet: Packet,
        room: usize,
        segments: u64,
        repeated: u64,
    ) -> Result<(), Packet> {
        let bytes = packet.len() as u64;
        self.next_id = self.next_id.wrapping_add(1);
        if !encapsulate(&mut packet, &tunnel.outer, self.next_id) {
            return Err(packet);
        }
        // Each segment repeats the outer header, too.
        let added = segments * tunnel.outer.added() as u64 + repeated;
        self.push(slot, packet, room, segments, bytes + added);
        Ok(())
    }

    /// Puts into `pieces` the packets that a wire of this MTU would carry: the packet itself, its segments, its
    /// fragments, or the fragments of its segments. (A datagram that is too long is fragmented, not shortened.) A
    /// packet that must not be cut has already been answered by an ICMP error.
    #[inline(never)]
    fn split(
        &mut self,
        packet: Packet,
        header_len: usize,
        mtu: usize,
        pool: &mut Pool,
    ) -> Result<(), DropReason> {
        let longest = match packet.offload.segmentation {
            None if packet.len() > mtu => return fragment(packet, mtu, pool, &mut self.pieces),
            Some(s) if s.kind == SegmentKind::Udp => {
                packet.len().min(header_len + usize::from(s.size))
            }
            None | Some(_) => 0,
        };
        if longest <= mtu {
            return segment(packet, mtu, pool, &mut self.pieces)
                .map_err(|(packet, reason)| discard(pool, packet, reason));
        }
        segment(packet, MAX_PACKET, pool, &mut self.segments)
            .map_err(|(packet, reason)| discard(pool, packet, reason))?;
        let mut outcome = Ok(());
        for segment in self.segments.drain(..) {
            outcome = match outcome {
                Ok(()) => fragment(segment, mtu, pool, &mut self.pieces),
                Err(reason) => Err(discard(pool, segment, reason)),
            };
        }
        if outcome.is_err() {
            self.pieces.drain(..).for_each(|piece| pool.put(piece));
        }
        outcome
    }

    /// Whether the queues must be sent now.
    #[inline]
    pub(crate) fn is_full(&self) -> bool {
        self.queued >= FULL
    }

    /// Sends every queue. Adds the ports whose device failed to `lost`.
    #[inline(never)]
    pub(crate) fn send(
        &mut self,
        ports: &mut Ports,
        pool: &mut Pool,
        lost: &mut Vec<(PortId, io::Error)>,
    ) {
        self.queued = 0;
        for port in self.waiting.drain(..) {
            let Some(slot) = ports.slot(port) else { continue };
            let segments = slot.queue.len() as u64 + std::mem::take(&mut slot.further);
            // Each packet was decided separately. A super-packet costs the device little more than one packet.
            let takes = slot.capabilities;
            if (takes.tcp_segmentation || takes.udp_segmentation) && may_coalesce(&slot.queue) {
                coalesce(&mut slot.queue, takes, pool);
            }
            let refused = match slot.io.transmit(pool, &mut slot.queue) {
                Ok(done) => done.refused as u64,
                Err(error) => {
                    lost.push((port, error));
                    segments
                }
            };
            slot.counters.sent_bytes.add(std::mem::take(&mut slot.bytes));
            slot.counters.sent_packets.add(segments.saturating_sub(refused));
            if refused > 0 {
                slot.counters.dropped(DropReason::TransmitRefused).add(refused);
            }
        }
    }
}

/// Returns the buffer of a packet that is dropped for `reason` to the pool.
pub(crate) fn discard(pool: &mut Pool, packet: Packet, reason: DropReason) -> DropReason {
    pool.put(packet);
    reason
}

/// Whether the port can cut a super-packet itself, into segments that fit. TCP segments that would not fit are
/// shortened. The sender chooses the number of segments; with more than `SEGMENTS` the kernel would take too long.
fn can_segment(packet: &mut Packet, header_len: usize, mtu: usize) -> bool {
    const SEGMENTS: u64 = 512;
    let Some(segmentation) = &mut packet.offload.segmentation else { return false };
    if segmentation.kind != SegmentKind::Udp {
        let room = mtu.saturating_sub(header_len).clamp(1, usize::from(u16::MAX)) as u16;
        segmentation.size = segmentation.size.min(room);
    }
    let segmentation = *segmentation;
    packet.segments(header_len) <= SEGMENTS
        && Cut::plan(packet.bytes(), segmentation, packet.offload.checksum, mtu).is_ok()
}
