//! An AF_PACKET socket on the node's own interface, which receives and sends tunnel packets. Other traffic stays with
//! the kernel.
//!
//! When packets are received, the kernel may have coalesced those of one inner TCP stream, because its GRO looks into
//! protocol 4. A packet of up to 64 KB then arrives, and its [`Segmentation`](crate::packet::Segmentation) and partial
//! checksum describe the inner headers. Super-packets cannot be sent: the kernel refuses an IPIP super-packet.
//!
//! The kernel sees the same packets. If no socket or device handles protocol 4, it answers each with "protocol
//! unreachable". A quiet [`IpipRaw`](super::ipip_raw::IpipRaw) socket that is kept open together with this port
//! prevents that.

use std::io;
use std::os::fd::{AsFd, OwnedFd, RawFd};

use super::datagram::{Datagrams, HeadLen, Route};
use super::link::{ETHERNET_LEN, ethertype, trim_ipv4};
use super::packet::{check_socket, is_gone, open_sockets};
use super::virtio::{self, HEADER_LEN};
use super::{Disposition, PacketIo, Received, Transmitted, filter};
use crate::packet::{Capabilities, Packet, Pool};
use crate::sys::batch::{HEAD_LEN, Head};
use crate::sys::socket;

/// The options of an uplink.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct UplinkOptions {
    /// Accepts packets with a partial (inner) checksum, which the kernel or the device completes.
    ///
    /// This is off by default. Over a veth the checksum stays partial, and a receiver without metadata, such as a raw
    /// socket, gets it unfinished. If there is a wire behind the device, the checksum is always complete at the far
    /// end.
    pub partial_checksum: bool,
    /// Hands frames to the driver without the queueing discipline (`PACKET_QDISC_BYPASS`). This costs fewer cycles per
    /// frame, but there is no shaping, and a full device drops frames.
    pub qdisc_bypass: bool,
}

/// One queue of tunnel packets on an interface that the node shares with its kernel.
///
/// A received packet starts at the outer IPv4 header. A transmitted packet is IPv4 and starts at the Ethernet header,
/// which the tunnel has prebuilt.
#[derive(Debug)]
pub struct PacketUplink {
    datagrams: Datagrams,
    capabilities: Capabilities,
}

impl PacketUplink {
    /// Opens `queues` queues (at least one) on the interface `index` of the caller's network namespace; the kernel
    /// spreads tunnelled flows over them in order.
    ///
    /// It receives only whole, untagged IPv4 packets of protocol 4 that are addressed to the interface's own hardware
    /// address.
    ///
    /// Fails with `PermissionDenied` without `CAP_NET_RAW` over the namespace, and with `ENODEV` if there is no such
    /// interface.
    pub fn open(index: u32, options: UplinkOptions, queues: usize) -> io::Result<Vec<Self>> {
        open_sockets(index, ethertype::IPV4, &filter::TUNNEL, queues, |_| Ok(()))?
            .into_iter()
            .map(|fd| Self::new(fd, options))
            .collect()
    }

    /// Turns a queue that another [`PacketUplink`] gave up into a port.
    ///
    /// Fails with `InvalidInput` unless the descriptor is a packet socket with virtio headers that is bound to an
    /// interface.
    pub fn from_fd(fd: OwnedFd, options: UplinkOptions) -> io::Result<Self> {
        check_socket(fd.as_fd())?;
        Self::new(fd, options)
    }

    fn new(fd: OwnedFd, options: UplinkOptions) -> io::Result<Self> {
        let datagrams = Datagrams::new(fd, HeadLen { receive: HEAD_LEN, transmit: HEADER_LEN });
        if options.qdisc_bypass {
            socket::set_option(datagrams.fd(), libc::SOL_PACKET, libc::PACKET_QDISC_BYPASS, 1)?;
        }
        let capabilities =
            Capabilities { partial_checksum: options.partial_checksum, ..Capabilities::default() };
        Ok(Self { datagrams, capabilities })
    }
}

impl From<PacketUplink> for OwnedFd {
    /// Returns the queue's descriptor, to pass it on.
    fn from(port: PacketUplink) -> Self {
        port.datagrams.into_fd()
    }
}

impl PacketIo for PacketUplink {
    fn receive(
        &mut self,
        pool: &mut Pool,
        into: &mut Vec<Packet>,
        limit: usize,
    ) -> io::Result<Received> {
        self.datagrams.receive(pool, into, limit, |head, packet, _| accept(head, packet))
    }

    fn transmit(&mut self, pool: &mut Pool, packets: &mut Vec<Packet>) -> io::Result<Transmitted> {
        let capabilities = self.capabilities;
        let prepare = |packet: &mut Packet, head: &mut Head| {
            let framed = packet.bytes().get(12..ETHERNET_LEN)? == ethertype::IPV4.to_be_bytes();
            if !framed || !capabilities.take(packet.offload) {
                return None;
            }
            let virtio = virtio::encode(packet.offload, packet.bytes(), 0);
            head[..HEADER_LEN].copy_from_slice(&virtio);
            Some(Route::Bound)
        };
        self.datagrams.transmit(pool, packets, prepare, is_gone)
    }

    fn capabilities(&self) -> Capabilities {
        self.capabilities
    }

    fn descriptor(&self) -> Option<RawFd> {
        Some(self.datagrams.raw_fd())
    }

    fn unwrapped(self: Box<Self>) -> Box<dyn PacketIo> {
        self
    }
}

fn accept(head: &Head, packet: &mut Packet) -> Disposition {
    let Some(header) = head.first_chunk() else { return Disposition::Malformed };
    if !trim_ipv4(packet) {
        return Disposition::Malformed;
    }
    virtio::mark(packet, header, ETHERNET_LEN)
        .map_or(Disposition::Malformed, |()| Disposition::Ours)
}
