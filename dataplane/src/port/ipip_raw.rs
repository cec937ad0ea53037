//! A raw socket of protocol 4 (IP in IP, RFC 2003): receives and sends tunnel packets without an interface of its own.
//!
//! The kernel routes transmitted packets, resolves the neighbour, and reassembles received packets. The socket costs
//! about four times the system time of a packet socket. Every socket of this kind in a namespace receives every packet.
//!
//! The kernel may have coalesced the packets of one inner TCP stream. Unlike on a packet socket, the kernel does not
//! mark them: a packet of up to 64 KB arrives with right outer and inner lengths. Its inner checksum field holds only
//! the pseudo-header's sum, and its segment size is lost. Such a packet can be recognized only by its length; it is
//! delivered like any other packet. For the same reason, this socket cannot receive packets from a sender that leaves
//! checksums partial on a veth.

use std::io;
use std::net::Ipv4Addr;
use std::os::fd::{AsFd, OwnedFd, RawFd};

use super::datagram::{Datagrams, HeadLen, Route};
use super::link::trim_ipv4;
use super::{Disposition, PacketIo, Received, Reception, Transmitted, filter};
use crate::packet::{Capabilities, Offload, Packet, Pool};
use crate::sys::batch::Head;
use crate::sys::socket;

/// The buffer size that is requested for each direction, in bytes. Without privilege, `net.core.rmem_max` limits it.
const BUFFER: i32 = 8 << 20;

/// A raw socket of protocol 4. A [quiet](Reception::Quiet) socket only prevents the kernel from answering tunnel
/// packets with "protocol unreachable" while another socket receives them. Packets start at the outer IPv4 header, in
/// both directions.
///
/// The kernel fills in the outer header's checksum, its total length, and an identification if that is 0. It does not
/// change the don't-fragment bit, and refuses packets longer than the interface's MTU.
#[derive(Debug)]
pub struct IpipRaw {
    datagrams: Datagrams,
    reception: Reception,
}

impl IpipRaw {
    /// Opens a socket in the caller's network namespace.
    ///
    /// Fails with `PermissionDenied` without `CAP_NET_RAW` over the namespace.
    pub fn open(reception: Reception) -> io::Result<Self> {
        let owned = socket::open(libc::AF_INET, libc::SOCK_RAW, libc::IPPROTO_IPIP)?;
        let fd = owned.as_fd();
        if reception == Reception::Quiet {
            socket::attach_filter(fd, &filter::NOTHING)?;
        }
        socket::set_option(fd, libc::IPPROTO_IP, libc::IP_HDRINCL, 1)?;
        // The tunnel's MTU is configured; ICMP messages of others about the path must not change it.
        socket::set_option(fd, libc::IPPROTO_IP, libc::IP_MTU_DISCOVER, libc::IP_PMTUDISC_PROBE)?;
        socket::enlarge_buffers(fd, BUFFER)?;
        Ok(Self::new(owned, reception))
    }

    /// Turns a socket that another [`IpipRaw`] gave up into a port.
    ///
    /// Fails with `InvalidInput` unless the descriptor is a raw socket of protocol 4.
    pub fn from_fd(fd: OwnedFd) -> io::Result<Self> {
        let kind = socket::option(fd.as_fd(), libc::SOL_SOCKET, libc::SO_TYPE)?;
        let protocol = socket::option(fd.as_fd(), libc::SOL_SOCKET, libc::SO_PROTOCOL)?;
        if kind != libc::SOCK_RAW || protocol != libc::IPPROTO_IPIP {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "the descriptor is not a raw socket of protocol 4",
            ));
        }
        Ok(Self::new(fd, Reception::All))
    }

    fn new(fd: OwnedFd, reception: Reception) -> Self {
        Self { datagrams: Datagrams::new(fd, HeadLen { receive: 0, transmit: 0 }), reception }
    }
}

impl From<IpipRaw> for OwnedFd {
    /// Returns the descriptor, to pass it on.
    fn from(port: IpipRaw) -> Self {
        port.datagrams.into_fd()
    }
}

impl PacketIo for IpipRaw {
    fn receive(
        &mut self,
        pool: &mut Pool,
        into: &mut Vec<Packet>,
        limit: usize,
    ) -> io::Result<Received> {
        // A packet may have arrived before the filter was attached.
        if self.reception == Reception::Quiet {
            return Ok(Received { drained: true, ..Received::default() });
        }
        self.datagrams.receive(pool, into, limit, |_, packet, _| {
            packet.offload = Offload::default();
            if trim_ipv4(packet) { Disposition::Ours } else { Disposition::Malformed }
        })
    }

    fn transmit(&mut self, pool: &mut Pool, packets: &mut Vec<Packet>) -> io::Result<Transmitted> {
        let prepare = |packet: &mut Packet, _: &mut Head| {
            if !Capabilities::default().take(packet.offload) {
                return None;
            }
            let to: &[u8; 4] = packet.bytes().get(16..20)?.first_chunk()?;
            Some(Route::To(Ipv4Addr::from(*to)))
        };
        self.datagrams.transmit(pool, packets, prepare, |_| false)
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
