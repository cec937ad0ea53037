//! Tunnels over UDP, such as VXLAN, with an ordinary socket. The socket needs no privilege on the underlay. One system
//! call carries a super-datagram of up to 64 KB, which the kernel cuts and coalesces.
//!
//! Packets of this port start at the outer IPv4 header, like those of every tunnel port. The kernel writes the headers
//! that are actually sent. It takes the destination, DSCP and ECN from a packet's outer IPv4 header, and nothing from
//! its UDP header. When a packet is received, both headers are built from the information that the socket reports.

mod headers;
mod inbox;

use std::io;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};

use headers::{HEADERS, OuterHeaders};
use inbox::Inbox;
use zerocopy::FromBytes;

use super::{Intake, PacketIo, Received, Reception, Transmitted, filter};
use crate::encapsulation::UDP_TUNNEL_HEADER_LEN as OUTER;
use crate::offload::segment::Cut;
use crate::packet::{Capabilities, Checksum, Packet, Pool, Segmentation};
use crate::sys::socket::{self, set_option};
use crate::sys::udp_gso::{self, SEGMENTS, Vectors};

/// The buffer size that is requested for each direction, in bytes: about sixty super-datagrams. Without privilege,
/// `net.core.rmem_max` limits it.
pub const BUFFER: i32 = 8 << 20;
/// The length of the longest super-datagram, in bytes: the most that one UDP datagram can hold.
const SUPER_DATAGRAM_MAX: usize = 65_535 - HEADERS;
/// The number of times that a call yields the processor because of a full queue before a super-datagram is refused.
const RETRIES: usize = 2;

/// The number of segments of a super-packet that the socket sends in one call, if each is an inner packet of `mtu`
/// bytes. Pods should build super-packets of at most that many; for a longer one a second call sends the rest.
pub fn segments_at_once(mtu: u32) -> u32 {
    let datagram = mtu as usize + OUTER - HEADERS;
    SEGMENTS.min(SUPER_DATAGRAM_MAX / datagram).max(1) as u32
}

/// A node's socket for tunnels over UDP: the one bound to their port, or a quiet one of another worker.
pub struct UdpTunnel {
    fd: OwnedFd,
    /// The node's underlay address, and the tunnels' port on every node.
    local: SocketAddrV4,
    inbox: Inbox,
    vectors: Vectors,
    /// The headers of a super-datagram's segments.
    headers: Vec<u8>,
    /// Whether the kernel cuts super-datagrams. If not, each datagram is sent separately.
    cuts: bool,
}

impl UdpTunnel {
    /// Opens a socket on an underlay address of the caller's network namespace and on the [port of an
    /// encapsulation](crate::encapsulation::Encapsulation::udp_port). It sends to the same port of other nodes. A quiet
    /// socket sends from a port that the kernel chooses, as VXLAN allows (RFC 7348, section 5).
    ///
    /// Fails with `AddrInUse` if another socket has the port, such as a tunnel device of the kernel, and with
    /// `AddrNotAvailable` if the namespace does not have the address.
    pub fn open(local: SocketAddrV4, reception: Reception) -> io::Result<Self> {
        let owned = socket::open(libc::AF_INET, libc::SOCK_DGRAM, libc::IPPROTO_UDP)?;
        let fd = owned.as_fd();
        // Sends without DF, as the kernel's own tunnel devices do by default.
        set_option(fd, libc::IPPROTO_IP, libc::IP_MTU_DISCOVER, libc::IP_PMTUDISC_DONT)?;
        set_option(fd, libc::IPPROTO_IP, libc::IP_RECVTOS, 1)?;
        set_option(fd, libc::SOL_UDP, libc::UDP_GRO, 1)?;
        socket::enlarge_buffers(fd, BUFFER)?;
        match reception {
            Reception::All => udp_gso::bind(fd, *local.ip(), local.port())?,
            Reception::Quiet => {
                socket::attach_filter(fd, &filter::NOTHING)?;
                udp_gso::bind(fd, *local.ip(), 0)?;
            }
        }
        Ok(Self {
            fd: owned,
            local,
            inbox: Inbox::new(),
            vectors: Vectors::default(),
            headers: Vec::new(),
            cuts: true,
        })
    }

    /// Sends `packets`, which form one super-datagram.
    fn send(&mut self, packets: &[Packet]) -> io::Result<()> {
        let Some(first) = packets.first() else { return Ok(()) };
        let Some(envelope) = envelope(first.bytes()) else {
            return Err(io::ErrorKind::InvalidInput.into());
        };
        let segments = packets.iter().filter_map(|packet| packet.bytes().get(HEADERS..));
        let segment = first.len() - HEADERS;
        let port = self.local.port();
        retried(|| self.vectors.send(self.fd.as_fd(), envelope, port, segment, segments.clone()))
    }

    /// Cuts a super-packet and sends its segments. Their headers are written into `headers`; their payload is not
    /// copied. Returns the number of segments that were sent, and the number that were not.
    fn send_cut(&mut self, packet: &Packet, segmentation: Segmentation) -> (usize, usize) {
        let bytes = packet.bytes();
        let nothing = (0, packet.segments(OUTER) as usize);
        let (Some(envelope), Some(inner)) = (envelope(bytes), bytes.get(OUTER..)) else {
            return nothing;
        };
        let checksum = match packet.offload.checksum {
            Checksum::Partial { start, offset } => {
                Checksum::Partial { start: start.saturating_sub(OUTER as u16), offset }
            }
            checksum => checksum,
        };
        let Ok(cut) = Cut::plan(inner, segmentation, checksum, inner.len()) else { return nothing };
        let repeated = OUTER - HEADERS + cut.header_len();
        let segment = repeated + cut.payload(inner, 0).len();
        let template = &bytes[HEADERS..HEADERS + repeated];
        let port = self.local.port();
        let (mut sent, mut doubted) = (0, false);
        while sent < cut.count() {
            let most = SEGMENTS.min(SUPER_DATAGRAM_MAX / segment).max(1);
            let most = if self.cuts && !doubted { most } else { 1 };
            let part = sent..cut.count().min(sent + most);
            self.headers.clear();
            for index in part.clone() {
                let at = self.headers.len();
                self.headers.extend_from_slice(template);
                let headers = &mut self.headers[at + OUTER - HEADERS..];
                cut.write_headers(headers, cut.payload(inner, index), index);
            }
            let headers = self.headers.chunks_exact(repeated);
            let payloads = part.clone().map(|index| cut.payload(inner, index));
            let pieces = headers.zip(payloads).flat_map(|(headers, payload)| [headers, payload]);
            let outcome = retried(|| {
                self.vectors.send(self.fd.as_fd(), envelope, port, segment, pieces.clone())
            });
            match outcome {
                Ok(()) => {
                    self.cuts &= !doubted;
                    sent = part.end;
                }
                Err(e) if part.len() > 1 && cannot_cut(&e) => doubted = true,
                Err(_) => break,
            }
        }
        (sent, cut.count() - sent)
    }
}

/// Whether the error may say that the device cannot cut, or that the kernel is older than its version claims. If a
/// datagram that is sent separately fails, too, the error has another cause.
fn cannot_cut(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EIO | libc::EINVAL))
}

/// Sends, and yields the processor a few times if the queue is full.
fn retried(mut send: impl FnMut() -> io::Result<()>) -> io::Result<()> {
    let mut retries = RETRIES;
    loop {
        match send() {
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e)
                if retries > 0
                    && matches!(e.raw_os_error(), Some(libc::EAGAIN | libc::ENOBUFS)) =>
            {
                retries -= 1;
                std::thread::yield_now();
            }
            result => return result,
        }
    }
}

impl PacketIo for UdpTunnel {
    fn receive(
        &mut self,
        pool: &mut Pool,
        into: &mut Vec<Packet>,
        limit: usize,
    ) -> io::Result<Received> {
        let mut received = Received::default();
        // There is at most one call for each wanted packet, even if calls return none.
        let mut calls = limit;
        let limit = into.len() + limit;
        let mut intake = Intake::default();
        while !intake.is_enough()
            && self.inbox.unload(self.local, pool, into, limit)
            && into.len() < limit
            && calls > 0
        {
            calls -= 1;
            let before = into.len();
            match self.inbox.receive(self.fd.as_fd(), self.local, pool, into) {
                Ok(()) => into[before..].iter().for_each(|packet| intake.add(packet)),
                Err(e) if e.kind() == io::ErrorKind::InvalidData => received.malformed += 1,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                    received.drained = true;
                    break;
                }
                Err(e) => return Err(e),
            }
        }
        Ok(received)
    }

    fn transmit(&mut self, pool: &mut Pool, packets: &mut Vec<Packet>) -> io::Result<Transmitted> {
        let mut transmitted = Transmitted::default();
        let (mut at, mut doubted) = (0, false);
        while let Some(packet) = packets.get(at) {
            if let Some(segmentation) = packet.offload.segmentation {
                let (sent, refused) = self.send_cut(packet, segmentation);
                transmitted.sent += sent;
                transmitted.refused += refused;
                at += 1;
                continue;
            }
            let whole = self.cuts && !doubted;
            let count = if whole { super_datagram_of(&packets[at..]) } else { 1 };
            match self.send(&packets[at..at + count]) {
                Ok(()) => {
                    self.cuts &= !doubted;
                    transmitted.sent += count;
                }
                Err(e) if count > 1 && cannot_cut(&e) => {
                    doubted = true;
                    continue;
                }
                Err(_) => transmitted.refused += count,
            }
            at += count;
        }
        packets.drain(..).for_each(|packet| pool.put(packet));
        Ok(transmitted)
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities { tunnel_segmentation: true, ..Capabilities::default() }
    }

    fn descriptor(&self) -> Option<RawFd> {
        Some(self.fd.as_raw_fd())
    }

    fn unwrapped(self: Box<Self>) -> Box<dyn PacketIo> {
        self
    }
}

/// The number of `packets` (at least one) that form a super-datagram: they go to one peer, with one DSCP and ECN, and
/// have one length, except that the last may be shorter.
fn super_datagram_of(packets: &[Packet]) -> usize {
    let Some(first) = packets.first() else { return 0 };
    let (len, to) = (first.len(), envelope(first.bytes()));
    let payload = len.saturating_sub(HEADERS).max(1);
    let most = packets.len().min(SEGMENTS).min(SUPER_DATAGRAM_MAX / payload).max(1);
    let mut count = 1;
    while count < most {
        let next = &packets[count];
        if next.offload.segmentation.is_some() || next.len() > len || envelope(next.bytes()) != to {
            break;
        }
        count += 1;
        if next.len() < len {
            break;
        }
    }
    count
}

/// A packet's destination, DSCP and ECN. `None` if it is not a tunnel packet.
fn envelope(bytes: &[u8]) -> Option<(Ipv4Addr, u8)> {
    let (headers, inner) = OuterHeaders::ref_from_prefix(bytes).ok()?;
    (!inner.is_empty()).then_some((headers.ip.destination.into(), headers.ip.dscp_ecn))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pods_are_told_of_as_many_segments_as_one_call_takes() {
        assert_eq!([1450, 8950, 500].map(segments_at_once), [44, 7, 64]);
        for mtu in 68..=65_000 {
            let (segments, datagram) = (segments_at_once(mtu) as usize, mtu as usize + 22);
            assert!(segments * datagram <= SUPER_DATAGRAM_MAX, "{mtu}");
            let more = (segments + 1) * datagram > SUPER_DATAGRAM_MAX;
            assert!(more || segments == SEGMENTS, "{mtu}");
        }
    }
}
