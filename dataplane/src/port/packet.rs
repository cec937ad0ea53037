//! A port that is an AF_PACKET socket on the host end of a veth pair, for a pod that keeps its kernel's own device. If
//! another plugin has created the pair, two such sockets are the two sides of a [relay](super::relay).
//!
//! A packet socket receives copies, and the kernel also handles every frame. So the host end lies in a network
//! namespace without addresses, IPv6 and forwarding, where the kernel can do nothing with the frames.
//!
//! Packets cross with a virtio header, so that the pod's TCP and UDP can send super-packets and partial checksums.
//!
//! For a worker that never sleeps, the kernel puts small packets into a ring. The worker reads them without a system
//! call, and the kernel wakes no thread. Packets that are too long for a slot, and all packets for a worker that
//! sleeps, are queued on the socket.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd, RawFd};
use std::time::Instant;

use super::allowance::Allowance;
use super::datagram::{Datagrams, HeadLen, Route};
use super::gateway::{self, Gateway};
use super::link::{ETHERNET_LEN, Frame, Link, REPLY_MAX};
use super::relay::{Ends, MESSAGE_MAX, Relay, Side};
use super::ring::Ring;
use super::virtio::HEADER_LEN;
use super::{Disposition, PacketIo, Received, Transmitted, filter};
use crate::packet::{Capabilities, Packet, Pool};
use crate::sys;
use crate::sys::batch::{HEAD_LEN, Head};
use crate::sys::socket;

/// The buffer size that is requested for each direction, in bytes: about sixty super-packets. Without privilege,
/// `net.core.rmem_max` limits it.
const BUFFER: i32 = 8 << 20;
/// Every ethertype.
const ANY: u16 = libc::ETH_P_ALL as u16;

/// How packets are taken from a queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Receipt {
    /// By system calls, when its descriptor is readable.
    #[default]
    Calls,
    /// Small packets are read from memory that is shared with the kernel, 128 KiB per queue. System calls are used
    /// instead if the kernel provides no such memory, or if it turns out to lose packets.
    Ring,
}

/// The first kernel version whose packet sockets accept UDP super-packets; earlier ones refuse each with `EINVAL`.
const UDP_SEGMENTATION: (u32, u32) = (6, 2);

/// The conversion between frames and packets.
#[derive(Debug)]
enum Framing {
    /// The port is the pod's gateway.
    Gateway(Gateway),
    /// The port is one side of a relay.
    Relay {
        relay: Relay,
        /// The queue with the same number on the other side.
        other: OwnedFd,
        /// The limit on relayed link messages, if there is one.
        allowance: Option<Allowance>,
    },
}

/// One queue of a link to a pod.
#[derive(Debug)]
pub struct PacketPort {
    datagrams: Datagrams,
    ring: Option<Ring>,
    framing: Framing,
    capabilities: Capabilities,
}

impl PacketPort {
    /// Opens `queues` queues (at least one) on the interface `index` of the caller's network namespace; the kernel
    /// spreads flows over them in order.
    ///
    /// Fails with `PermissionDenied` without `CAP_NET_RAW` over the namespace, and with `ENODEV` if there is no such
    /// interface.
    pub fn open(index: u32, link: &Link, queues: usize, receipt: Receipt) -> io::Result<Vec<Self>> {
        let sockets = open_with_rings(index, queues, receipt)?;
        let gateway = || Framing::Gateway(Gateway(link.clone()));
        Ok(sockets.into_iter().map(|(fd, ring)| Self::new(fd, ring, gateway())).collect())
    }

    /// Opens `queues` queues on each side of a pod that another plugin has connected: on the interface that leads to
    /// the pod, and on the interface that leads to the node. Both interfaces are in the caller's network namespace. The
    /// errors are those of [`PacketPort::open`].
    pub fn open_relay(
        [pod, node]: [u32; 2],
        ends: &Ends,
        queues: usize,
        receipt: Receipt,
    ) -> io::Result<[Vec<Self>; 2]> {
        let pod_side = open_with_rings(pod, queues, receipt)?;
        let node_side = open_with_rings(node, queues, receipt)?;
        let mut ports = [Vec::new(), Vec::new()];
        for (to_pod, to_node) in pod_side.into_iter().zip(node_side) {
            let others = [to_node.0.try_clone()?, to_pod.0.try_clone()?];
            let framings = Relay::sides(ends).into_iter().zip(others);
            for ((into, (fd, ring)), (relay, other)) in
                ports.iter_mut().zip([to_pod, to_node]).zip(framings)
            {
                // The node is trusted and has no limit, because its bridge carries the messages of many pods.
                let is_pods = relay.side() == Side::Pod;
                let allowance = is_pods.then(|| Allowance::new(Instant::now()));
                into.push(Self::new(fd, ring, Framing::Relay { relay, other, allowance }));
            }
        }
        Ok(ports)
    }

    /// Turns a queue that another [`PacketPort`] gave up into a port.
    ///
    /// Fails with `InvalidInput` unless the descriptor is a packet socket with virtio headers that is bound to an
    /// interface.
    pub fn from_fd(fd: OwnedFd, link: Link) -> io::Result<Self> {
        check_socket(fd.as_fd())?;
        Ok(Self::new(fd, None, Framing::Gateway(Gateway(link))))
    }

    fn new(fd: OwnedFd, ring: Option<Ring>, framing: Framing) -> Self {
        let heads = HeadLen { receive: HEAD_LEN, transmit: HEAD_LEN };
        let udp_segmentation = sys::kernel() >= UDP_SEGMENTATION;
        let capabilities = Capabilities { udp_segmentation, ..Capabilities::ALL };
        Self { datagrams: Datagrams::new(fd, heads), ring, framing, capabilities }
    }
}

impl From<PacketPort> for OwnedFd {
    /// Returns the queue's descriptor, to pass it on. From then on, the queue is read by system calls.
    fn from(port: PacketPort) -> Self {
        if let Some(ring) = port.ring {
            // Detaching fails only if the kernel is out of memory. Then the remaining queue receives nothing.
            drop(ring.detach(port.datagrams.fd()));
        }
        port.datagrams.into_fd()
    }
}

impl PacketIo for PacketPort {
    fn receive(
        &mut self,
        pool: &mut Pool,
        into: &mut Vec<Packet>,
        limit: usize,
    ) -> io::Result<Received> {
        let framing = &self.framing;
        let accept =
            |head: &Head, packet: &mut Packet, fd: BorrowedFd<'_>| framing.accept(head, packet, fd);
        let Some(ring) = &mut self.ring else {
            return self.datagrams.receive(pool, into, limit, accept);
        };
        let mut received = ring.receive(&mut self.datagrams, pool, into, limit, accept)?;
        if let Some(ring) = self.ring.take_if(|ring| ring.is_stuck()) {
            // The ring is detached permanently: a pod that sends such frames will send more, and a new ring would cost
            // the other ports time.
            ring.detach(self.datagrams.fd())?;
            received.drained = false;
        }
        Ok(received)
    }

    fn transmit(&mut self, pool: &mut Pool, packets: &mut Vec<Packet>) -> io::Result<Transmitted> {
        let framing = &self.framing;
        let prepare = |packet: &mut Packet, head: &mut Head| {
            *head = framing.head(packet)?;
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

    fn is_mapped(&self) -> bool {
        self.ring.is_some()
    }

    fn unwrapped(self: Box<Self>) -> Box<dyn PacketIo> {
        self
    }
}

impl Framing {
    fn accept(&self, head: &Head, packet: &mut Packet, fd: BorrowedFd<'_>) -> Disposition {
        let (relay, other, allowance) = match self {
            Self::Gateway(gateway) => {
                return gateway.accept(head, packet, |reply| send_message(fd, [reply, &[]]));
            }
            Self::Relay { relay, other, allowance } => (relay, other, allowance),
        };
        let (Some(virtio), Some(ethernet)) = (head.first_chunk(), head.last_chunk()) else {
            return Disposition::Malformed;
        };
        match relay.sort(ethernet, packet.bytes()) {
            Frame::Packet(len) => {
                if relay.side() == Side::Pod
                    && let Some(destination) = ethernet.first_chunk()
                {
                    packet.neighbour = *destination;
                }
                gateway::unframe(packet, virtio, len)
            }
            Frame::Message(len) if allowance.as_ref().is_none_or(|it| it.take(Instant::now())) => {
                let message = packet.bytes().get(..len).unwrap_or_default();
                send_message(other.as_fd(), [ethernet, message]);
                Disposition::Answered
            }
            Frame::Question(_) | Frame::Message(_) | Frame::NotOurs => Disposition::NotOurs,
            Frame::Malformed => Disposition::Malformed,
        }
    }

    #[inline]
    fn head(&self, packet: &Packet) -> Option<Head> {
        match self {
            Self::Gateway(gateway) => gateway.head(packet),
            Self::Relay { relay, .. } => {
                let ethernet = relay.header(packet.bytes(), packet.neighbour)?;
                Some(gateway::head(packet, &ethernet))
            }
        }
    }
}

/// Sends a link message that is given in two parts. If it is lost, its sender asks again.
fn send_message(fd: BorrowedFd<'_>, [head, rest]: [&[u8]; 2]) {
    const { assert!(REPLY_MAX <= ETHERNET_LEN + MESSAGE_MAX) };
    let mut buffer = [0; HEADER_LEN + ETHERNET_LEN + MESSAGE_MAX];
    let end = HEADER_LEN + head.len() + rest.len();
    let Some(frame) = buffer.get_mut(..end) else { return };
    let (first, second) = frame[HEADER_LEN..].split_at_mut(head.len());
    first.copy_from_slice(head);
    second.copy_from_slice(rest);
    drop(socket::send(fd, frame));
}

fn open_with_rings(
    index: u32,
    queues: usize,
    receipt: Receipt,
) -> io::Result<Vec<(OwnedFd, Option<Ring>)>> {
    let mut rings = Vec::new();
    let prepare = |fd: BorrowedFd<'_>| {
        let wanted = receipt == Receipt::Ring;
        rings.push(if wanted { Ring::attach(fd)? } else { None });
        Ok(())
    };
    let sockets = open_sockets(index, ANY, &filter::UNTAGGED, queues, prepare)?;
    Ok(sockets.into_iter().zip(rings).collect())
}

/// Opens packet sockets with virtio headers on the interface `index`. If there are several, they form one fanout group.
///
/// A socket without a protocol receives nothing. A socket that is bound but not yet in its group receives the frames of
/// every queue. So each starts with a filter that passes nothing, and gets its own filter when all are in the group.
/// `prepare` runs on each socket before it is bound.
pub(super) fn open_sockets(
    index: u32,
    ethertype: u16,
    program: &[socket::Instruction],
    queues: usize,
    mut prepare: impl FnMut(BorrowedFd<'_>) -> io::Result<()>,
) -> io::Result<Vec<OwnedFd>> {
    let queues = queues.max(1);
    let mut sockets = Vec::with_capacity(queues);
    let mut group = None;
    for _ in 0..queues {
        let owned = socket::open(libc::AF_PACKET, libc::SOCK_RAW, 0)?;
        let fd = owned.as_fd();
        socket::set_option(fd, libc::SOL_PACKET, libc::PACKET_VNET_HDR, 1)?;
        socket::set_option(fd, libc::SOL_PACKET, libc::PACKET_IGNORE_OUTGOING, 1)?;
        socket::enlarge_buffers(fd, BUFFER)?;
        socket::attach_filter(fd, &filter::NOTHING)?;
        prepare(fd)?;
        socket::bind_link(fd, index, ethertype)?;
        if queues > 1 {
            let value = match group {
                // The kernel chooses a group that is not in use.
                None => (libc::PACKET_FANOUT_HASH | libc::PACKET_FANOUT_FLAG_UNIQUEID) << 16,
                Some(group) => libc::PACKET_FANOUT_HASH << 16 | group,
            };
            socket::set_option(fd, libc::SOL_PACKET, libc::PACKET_FANOUT, value.cast_signed())?;
            if group.is_none() {
                group = Some(
                    socket::option(fd, libc::SOL_PACKET, libc::PACKET_FANOUT)?.cast_unsigned()
                        & 0xffff,
                );
            }
        }
        sockets.push(owned);
    }
    for fd in &sockets {
        socket::attach_filter(fd.as_fd(), program)?;
    }
    Ok(sockets)
}

/// Checks that `fd` is a socket like those from [`open_sockets`].
pub(super) fn check_socket(fd: BorrowedFd<'_>) -> io::Result<()> {
    let bound = socket::bound_link(fd)?.is_some();
    if bound && socket::option(fd, libc::SOL_PACKET, libc::PACKET_VNET_HDR)? != 0 {
        return Ok(());
    }
    Err(io::Error::new(
        io::ErrorKind::InvalidInput,
        "the descriptor is not a bound packet socket with virtio headers",
    ))
}

/// Whether a transmission failed because the interface has been deleted.
pub(super) fn is_gone(e: &io::Error) -> bool {
    matches!(e.raw_os_error(), Some(libc::ENXIO | libc::ENODEV))
}
