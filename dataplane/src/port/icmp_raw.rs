//! A raw ICMP socket (RFC 792). It receives copies of ICMP errors about packets with the node's own address as their
//! source, and of echo replies.
//!
//! Such messages contain no port of their own, so no routing rule leads them to Manx. The kernel gives each raw socket
//! a copy and also handles the message itself: it finds no socket of its own for a port that belongs to Manx, and does
//! nothing.
//!
//! This is for IPv4 only; [`icmpv6_raw`](super::icmpv6_raw) is for IPv6.

use std::io;
use std::os::fd::{AsFd, RawFd};

use super::datagram::{Datagrams, HeadLen};
use super::link::trim_ipv4;
use super::{Disposition, PacketIo, Received, Reception, Transmitted};
use crate::checksum::{fold, sum};
use crate::packet::{Capabilities, Offload, Packet, Pool};
use crate::sys::socket;

/// The size of the receive buffer that is requested, in bytes. Messages are short, and nodes limit the rate at which
/// they send them.
const BUFFER: i32 = 1 << 20;

/// The socket option with the types that a raw ICMP socket does not receive: one bit for each type (raw(7)).
const ICMP_FILTER: i32 = 1;

/// The types that are received: echo reply, destination unreachable, time exceeded, parameter problem.
const TYPES: [u8; 4] = [0, 3, 11, 12];

/// A raw socket of ICMP. Packets start at the IPv4 header. The socket sends nothing.
#[derive(Debug)]
pub struct IcmpRaw {
    datagrams: Datagrams,
}

impl IcmpRaw {
    /// Opens a socket in the caller's network namespace.
    ///
    /// Fails with `PermissionDenied` without `CAP_NET_RAW` over the namespace.
    pub fn open(reception: Reception) -> io::Result<Self> {
        let owned = socket::open(libc::AF_INET, libc::SOCK_RAW, libc::IPPROTO_ICMP)?;
        let passed = match reception {
            Reception::All => TYPES.into_iter().fold(0_u32, |bits, of| bits | 1 << of),
            Reception::Quiet => 0,
        };
        let refused = (!passed).cast_signed();
        socket::set_option(owned.as_fd(), libc::SOL_RAW, ICMP_FILTER, refused)?;
        socket::enlarge_buffers(owned.as_fd(), BUFFER)?;
        let heads = HeadLen { receive: 0, transmit: 0 };
        Ok(Self { datagrams: Datagrams::new(owned, heads) })
    }
}

impl PacketIo for IcmpRaw {
    fn receive(
        &mut self,
        pool: &mut Pool,
        into: &mut Vec<Packet>,
        limit: usize,
    ) -> io::Result<Received> {
        self.datagrams.receive(pool, into, limit, |_, packet, _| {
            if !trim_ipv4(packet) {
                return Disposition::Malformed;
            }
            packet.offload = Offload::default();
            // The kernel copies a message before it verifies the checksum.
            if is_intact(packet.bytes()) { Disposition::Ours } else { Disposition::Malformed }
        })
    }

    fn transmit(&mut self, pool: &mut Pool, packets: &mut Vec<Packet>) -> io::Result<Transmitted> {
        self.datagrams.transmit(pool, packets, |_, _| None, |_| false)
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::default()
    }

    fn descriptor(&self) -> Option<RawFd> {
        Some(self.datagrams.raw_fd())
    }

    fn unwrapped(self: Box<Self>) -> Box<dyn PacketIo> {
        self
    }
}

/// Whether the checksum of the message after the IPv4 header is right (RFC 1071).
fn is_intact(packet: &[u8]) -> bool {
    let header_len = packet.first().map_or(0, |first| usize::from(first & 0x0f) * 4);
    packet.get(header_len..).is_some_and(|message| fold(sum(message)) == u16::MAX)
}
