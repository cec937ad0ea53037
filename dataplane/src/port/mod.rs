//! Ports: sources and sinks of packets. Above this trait everything is an IP packet; link framing, virtio headers
//! and system calls end here.

mod allowance;
pub mod capture;
mod datagram;
mod filter;
mod gateway;
pub mod icmp_raw;
pub mod icmpv6_raw;
pub mod ipip_raw;
pub mod link;
pub mod memory;
pub mod packet;
pub mod relay;
mod ring;
mod sctp;
pub mod tuntap;
pub mod udp_tunnel;
pub mod uplink;
pub mod virtio;

use std::io;
use std::os::fd::RawFd;

use crate::offload::segments;
use crate::packet::{Capabilities, Packet, Pool};

/// The size of the super-packets that were received at once, by a port or from other workers.
#[derive(Debug, Default)]
pub(crate) struct Intake {
    bytes: usize,
    segments: usize,
}

impl Intake {
    /// After this many bytes it takes no more. They must still be in the core's own cache (1 MB or 2) when they are
    /// summed up and sent.
    const BYTES: usize = 256 << 10;
    /// After this many segments it takes no more: for a wire each is cut and sent by itself, while other ports wait.
    const SEGMENTS: usize = 256;

    /// Adds a packet.
    #[inline]
    pub(crate) fn add(&mut self, packet: &Packet) {
        self.bytes += packet.len();
        if let Some(segmentation) = packet.offload.segmentation {
            self.segments += packet.len() / usize::from(segmentation.size).max(1);
        }
    }

    /// Whether the packets so far are enough for one batch.
    #[inline]
    pub(crate) fn is_enough(&self) -> bool {
        self.bytes >= Self::BYTES || self.segments >= Self::SEGMENTS
    }
}

/// The packets that a socket of a tunnel or of ICMP receives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reception {
    /// Every packet that is for it.
    All,
    /// None: it only sends, while another socket receives.
    Quiet,
}

/// The result of a call of [`PacketIo::receive`], besides the packets that it appended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[must_use]
pub struct Received {
    /// The device had no more packets: sleep until its descriptor is readable. If false, receive again.
    pub drained: bool,
    /// Packets dropped because their metadata (virtio header, framing, length) contradicts their bytes. From a TAP
    /// device also frames to an address that begins with a zero byte.
    pub malformed: usize,
    /// Frames dropped because they are not for this port: another's hardware address, a VLAN tag, no IP inside, a link
    /// message without an answer, or one that may not be passed on.
    pub not_ours: usize,
    /// Link messages (ARP, neighbour discovery) that the port answered itself, or passed on to the other side of a
    /// [relay]. No caller sees them.
    pub answered: usize,
}

/// The treatment of a packet that a port has read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Disposition {
    /// It is appended.
    Ours,
    /// See [`Received::malformed`].
    Malformed,
    /// See [`Received::not_ours`].
    NotOurs,
    /// See [`Received::answered`].
    Answered,
}

impl Disposition {
    /// Appends the packet, or counts it and gives its buffer back.
    #[inline]
    fn settle(
        self,
        packet: Packet,
        received: &mut Received,
        pool: &mut Pool,
        into: &mut Vec<Packet>,
    ) {
        match self {
            Self::Ours => {
                into.push(packet);
                return;
            }
            Self::Malformed => received.malformed += 1,
            Self::NotOurs => received.not_ours += 1,
            Self::Answered => received.answered += 1,
        }
        pool.put(packet);
    }
}

/// The result of a call of [`PacketIo::transmit`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[must_use]
pub struct Transmitted {
    /// Packets the device took. A super-packet counts as one, unless the port cuts it itself behind an outer header.
    pub sent: usize,
    /// Packets lost because the device refused them (queue full, interface down, peer gone) or [`Capabilities`] does
    /// not allow their state. A super-packet counts as the packets that a wire would have carried.
    pub refused: usize,
}

impl Transmitted {
    /// Counts a packet that the device took, or refused.
    #[inline]
    fn count(&mut self, packet: &Packet, taken: bool) {
        if taken {
            self.sent += 1;
        } else {
            self.refused += segments(packet);
        }
    }
}

/// One worker's queue of a device. It receives and transmits whole batches and never blocks.
///
/// After an error the port is unusable and its owner detaches it; a refused packet is not an error.
pub trait PacketIo: Send {
    /// Appends up to `limit` packets to `into`. It appends fewer if the device is empty, the pool is exhausted, or more
    /// bytes would push what was taken out of the cache.
    fn receive(
        &mut self,
        pool: &mut Pool,
        into: &mut Vec<Packet>,
        limit: usize,
    ) -> io::Result<Received>;

    /// Sends and empties `packets`, also on an error. Every buffer returns to `pool`.
    fn transmit(&mut self, pool: &mut Pool, packets: &mut Vec<Packet>) -> io::Result<Transmitted>;

    /// The packets that [`PacketIo::transmit`] accepts unchanged.
    fn capabilities(&self) -> Capabilities;

    /// The descriptor that is readable when there are packets, so that an idle worker can sleep on it. `None` for a
    /// port that must be polled.
    fn descriptor(&self) -> Option<RawFd>;

    /// Whether received packets lie in memory that is shared with the kernel. Testing that memory costs next to
    /// nothing, and the kernel wakes no thread while none waits on the descriptor. So such a port is polled while it is
    /// active, and watched while it is quiet. False as soon as the memory has turned out to be unreliable. A wrapper
    /// must return what its port does.
    fn is_mapped(&self) -> bool {
        false
    }

    /// The port without those wrappers that have nothing more to do; a port that wraps nothing returns itself.
    fn unwrapped(self: Box<Self>) -> Box<dyn PacketIo>;
}
