//! The inbox of the socket, for single datagrams and super-datagrams.
//!
//! A super-datagram of one TCP stream becomes one super-packet without a copy. The kernel writes the headers of its
//! datagrams into an array here, and their payload into a packet, one payload after the other. The header length must
//! be known before the receive, so the receive expects the layout of the last super-datagram. A super-datagram with
//! another layout, or with datagrams that do not belong together, is copied into one piece and delivered as single
//! datagrams.

use std::io;
use std::iter::once;
use std::net::SocketAddrV4;
use std::os::fd::BorrowedFd;

use zerocopy::IntoBytes;

use super::headers::{HEADERS, OuterHeaders};
use crate::encapsulation::UDP_TUNNEL_HEADER_LEN as OUTER;
use crate::offload::join::{self, Joined, join};
use crate::packet::{Checksum, MAX_PACKET, Offload, Packet, Pool};
use crate::sys::udp_gso::{SEGMENTS, SuperDatagram, Vectors};

/// The length of the tunnel's own header and the inner Ethernet header, in bytes.
const TUNNEL: usize = OUTER - HEADERS;
/// The length of the longest headers that are received apart from their payload, including the tunnel's, in bytes.
const REPEATED_MAX: usize = 256;
/// After this many single datagrams, the next one is expected to be single, too. To expect a super-datagram costs more:
/// the call gives the kernel about ninety pieces.
const ALONE: u8 = 4;

/// The memory that receives the socket's datagrams.
pub(super) struct Inbox {
    vectors: Vectors,
    /// Holds a super-datagram in one piece.
    room: Box<[u8]>,
    /// The super-datagram in `room`, and how many of its bytes have been delivered.
    left: Option<(SuperDatagram, usize)>,
    /// The headers of all its datagrams except the first.
    apart: Box<[u8]>,
    /// The expected layout of the next super-datagram.
    expected: Option<Layout>,
    /// The number of single datagrams since the last super-datagram.
    alone: u8,
}

/// The layout of a super-datagram; its last datagram may be shorter.
#[derive(Debug, Clone, Copy)]
struct Layout {
    /// The number of bytes of headers, starting with the tunnel's, at most [`REPEATED_MAX`].
    repeated: usize,
    /// The number of bytes of payload after them, not 0.
    size: usize,
}

impl Inbox {
    pub(super) fn new() -> Self {
        Self {
            vectors: Vectors::default(),
            room: vec![0; MAX_PACKET].into_boxed_slice(),
            left: None,
            apart: vec![0; REPEATED_MAX * (SEGMENTS - 1)].into_boxed_slice(),
            expected: None,
            alone: 0,
        }
    }

    /// Delivers the rest of the super-datagram, until `into` holds `limit` packets. Returns false if the pool is
    /// exhausted.
    pub(super) fn unload(
        &mut self,
        local: SocketAddrV4,
        pool: &mut Pool,
        into: &mut Vec<Packet>,
        limit: usize,
    ) -> bool {
        while let Some((super_datagram, at)) = self.left
            && into.len() < limit
        {
            let Some(mut packet) = pool.take() else { return false };
            let end = (at + super_datagram.segment).min(super_datagram.len);
            let payload = &self.room[at..end];
            packet.room_mut()[HEADERS..HEADERS + payload.len()].copy_from_slice(payload);
            finish(&mut packet, &super_datagram, local, payload.len(), Offload::default());
            into.push(packet);
            self.left = (end < super_datagram.len).then_some((super_datagram, end));
        }
        true
    }

    /// Receives once, when nothing is left to deliver: a packet for `into`, a super-datagram to unload, or both.
    /// Receives nothing if a packet is needed and the pool is exhausted.
    ///
    /// Fails with `WouldBlock` if nothing has arrived, and with `InvalidData` for a datagram that no tunnel sends: it
    /// is empty, too long, or not from IPv4.
    pub(super) fn receive(
        &mut self,
        fd: BorrowedFd<'_>,
        local: SocketAddrV4,
        pool: &mut Pool,
        into: &mut Vec<Packet>,
    ) -> io::Result<()> {
        let Some(layout) = self.expected else {
            let super_datagram = self.vectors.receive(fd, once(&mut self.room[..]))?;
            if super_datagram.len == 0 {
                return Err(io::ErrorKind::InvalidData.into());
            }
            let first = &self.room[..super_datagram.segment.min(super_datagram.len)];
            if first.len() < super_datagram.len {
                self.expected = Layout::from_first(first);
                self.alone = 0;
            }
            self.left = Some((super_datagram, 0));
            return Ok(());
        };
        let Some(mut packet) = pool.take() else { return Ok(()) };
        match self.receive_apart(fd, layout, &mut packet) {
            Ok((super_datagram, Some((len, offload)))) => {
                finish(&mut packet, &super_datagram, local, len, offload);
                into.push(packet);
                Ok(())
            }
            Ok((_, None)) => {
                pool.put(packet);
                Ok(())
            }
            Err(error) => {
                pool.put(packet);
                Err(error)
            }
        }
    }

    /// Receives into `packet`, using a layout. If the packet holds the received datagram or its beginning, returns the
    /// bytes after the outer headers and their offload. The rest stays in `room`.
    fn receive_apart(
        &mut self,
        fd: BorrowedFd<'_>,
        layout: Layout,
        packet: &mut Packet,
    ) -> io::Result<(SuperDatagram, Option<(usize, Offload)>)> {
        let body = &mut packet.room_mut()[HEADERS..];
        let before = layout.pieces(body, &mut self.apart).map(|piece| piece.len()).sum();
        // A longer super-datagram continues at the offset where it would lie in one piece.
        let beyond = self.room.get_mut(before..).unwrap_or_default();
        let pieces = layout.pieces(body, &mut self.apart).chain(once(beyond));
        let super_datagram = self.vectors.receive(fd, pieces)?;
        let SuperDatagram { len, segment, .. } = super_datagram;
        if len == 0 {
            return Err(io::ErrorKind::InvalidData.into());
        }
        if len <= segment && len <= layout.segment() {
            self.alone += 1;
            if self.alone == ALONE {
                self.expected = None;
            }
            return Ok((super_datagram, Some((len, Offload::default()))));
        }
        self.alone = 0;
        let count = len.div_ceil(segment);
        let joined = layout.join(&super_datagram, body, &self.apart);
        let segments = joined.map_or(0, |joined| joined.segments);
        if segments < count {
            self.put_in_one_piece(body, layout, len);
            self.left = Some((super_datagram, segments * segment));
        }
        if segments == 0 {
            self.expected = None;
        }
        let joined = joined.map(|it| (TUNNEL + it.len, moved(it.offload, OUTER as u16)));
        Ok((super_datagram, joined))
    }

    fn put_in_one_piece(&mut self, body: &mut [u8], layout: Layout, len: usize) {
        let mut room = &mut self.room[..len];
        for piece in layout.pieces(body, &mut self.apart) {
            let (to, behind) = room.split_at_mut(piece.len().min(room.len()));
            to.copy_from_slice(&piece[..to.len()]);
            room = behind;
        }
    }
}

impl Layout {
    /// The layout, from the first datagram. `None`: it holds no TCP segments, or its headers are longer than
    /// [`REPEATED_MAX`].
    fn from_first(first: &[u8]) -> Option<Self> {
        let repeated = TUNNEL + join::header_len(first.get(TUNNEL..)?)?;
        let size = first.len().checked_sub(repeated).filter(|&size| size > 0)?;
        (repeated <= REPEATED_MAX).then_some(Self { repeated, size })
    }

    /// The length of each datagram except the last, in bytes.
    const fn segment(self) -> usize {
        self.repeated + self.size
    }

    /// Turns a super-datagram in the order of [`Layout::pieces`], or its beginning, into one packet. `None`: it has
    /// another layout, or its datagrams do not belong together.
    fn join(
        self,
        &SuperDatagram { len, segment, .. }: &SuperDatagram,
        body: &mut [u8],
        apart: &[u8],
    ) -> Option<Joined> {
        let others = len.div_ceil(segment).checked_sub(1)?;
        // The last datagram must hold all headers: after a shorter one, the array has bytes of an earlier receive.
        let last = len - others * segment;
        if segment != self.segment() || others >= SEGMENTS || last < self.repeated {
            return None;
        }
        let body = body.get_mut(..len - others * self.repeated)?;
        let (tunnel, inner) = body.split_first_chunk_mut::<TUNNEL>()?;
        let headers = apart.chunks_exact(self.repeated).take(others);
        join(inner, segment - TUNNEL, headers.map_while(|it| it.strip_prefix(&tunnel[..])))
    }

    /// The places for the bytes of a super-datagram, in order: the first datagram and then the payload of the others go
    /// to `body`, the headers of the others to `apart`.
    fn pieces<'a>(
        self,
        body: &'a mut [u8],
        apart: &'a mut [u8],
    ) -> impl Iterator<Item = &'a mut [u8]> {
        let (first, payloads) = body.split_at_mut(self.segment().min(body.len()));
        let headers = apart.chunks_exact_mut(self.repeated).take(SEGMENTS - 1);
        let others = headers.zip(payloads.chunks_mut(self.size));
        once(first).chain(others.flat_map(|(headers, payload)| [headers, payload]))
    }
}

/// Writes the outer headers for the `len` bytes after them.
fn finish(
    packet: &mut Packet,
    super_datagram: &SuperDatagram,
    local: SocketAddrV4,
    len: usize,
    offload: Offload,
) {
    let headers = OuterHeaders::new(super_datagram, local, len);
    packet.room_mut()[..HEADERS].copy_from_slice(headers.as_bytes());
    packet.set_len(HEADERS + len);
    packet.offload = offload;
}

/// The offload of a packet that now begins `by` bytes earlier, so that its checksum starts that much later.
fn moved(offload: Offload, by: u16) -> Offload {
    match offload.checksum {
        Checksum::Partial { start, offset } => {
            Offload { checksum: Checksum::Partial { start: start + by, offset }, ..offload }
        }
        Checksum::Unverified | Checksum::Verified => offload,
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    /// A TCP datagram within a tunnel, with this sequence number and payload.
    fn datagram(sequence: u32, payload: &[u8]) -> Vec<u8> {
        let mut inner = Vec::new();
        let ip = etherparse::PacketBuilder::ipv4([10, 0, 0, 1], [10, 0, 0, 2], 64);
        ip.tcp(1, 2, sequence, 100).ack(9).write(&mut inner, payload).unwrap();
        [&[7; TUNNEL][..], &inner].concat()
    }

    #[test]
    fn a_last_datagram_of_any_length_is_handed_up_as_it_is_or_joined() {
        const SIZE: usize = 5;
        let first = datagram(0, &[1; SIZE]);
        let layout = Layout::from_first(&first).unwrap();
        assert_eq!((layout.repeated, layout.size), (TUNNEL + 40, SIZE));
        let last = datagram(SIZE as u32, &[2; SIZE]);
        for cut in 1..=last.len() {
            let bytes = [&first[..], &last[..cut]].concat();
            let (mut body, mut inbox) = (vec![9; MAX_PACKET], Inbox::new());
            let mut rest = &bytes[..];
            for piece in layout.pieces(&mut body, &mut inbox.apart) {
                let (now, behind) = rest.split_at(piece.len().min(rest.len()));
                piece[..now.len()].copy_from_slice(now);
                rest = behind;
            }
            let super_datagram = SuperDatagram {
                source: Ipv4Addr::LOCALHOST,
                source_port: 1,
                len: bytes.len(),
                segment: first.len(),
                tos: 0,
            };
            let joined = layout.join(&super_datagram, &mut body.clone(), &inbox.apart);
            let segments = joined.map_or(0, |joined| joined.segments);
            assert_eq!(segments, if cut == last.len() { 2 } else { 0 }, "{cut} bytes");
            inbox.put_in_one_piece(&mut body, layout, bytes.len());
            assert!(inbox.room[..bytes.len()] == bytes, "{cut} bytes");
        }
    }
}
