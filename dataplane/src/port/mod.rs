//! Ports: sources and sinks of packets. Above this trait, every packet is an IP packet: link framing, virtio headers
//! and system calls are handled here.

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

/// The size of the super-packets that were received together, by a port or from other workers.
#[derive(Debug, Default)]
pub(crate) struct Intake {
    bytes: usize,
    segments: usize,
}

impl Intake {
    /// The number of bytes after which no more packets are received for a batch. The bytes must still be in the core's
    /// own cache (1 MB or 2 MB) when they are summed up and sent.
    const BYTES: usize = 256 << 10;
    /// The number of segments after which no more packets are received for a batch. For a wire, each segment is cut and
    /// sent separately while other ports wait.
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

/// Which packets a socket of a tunnel or of ICMP receives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reception {
    /// Every packet that is for it.
    All,
    /// No packet: the socket only sends, while another socket receives.
    Quiet,
}

/// The result of [`PacketIo::receive`], besides the packets that it appended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[must_use]
pub struct Received {
    /// Whether the device had no more packets. Then sleep until its descriptor is readable. If false, receive again.
    pub drained: bool,
    /// Packets dropped because their metadata (virtio header, framing, length) contradicts their bytes. From a TAP
    /// device, this also counts frames to an address that begins with a zero byte.
    pub malformed: usize,
    /// Frames dropped because they are not for this port: they have another hardware address, a VLAN tag, or no IP
    /// inside, or are link messages that get no answer or may not be relayed.
    pub not_ours: usize,
    /// Link messages (ARP, neighbour discovery) that the port answered itself or relayed to the other side of a
    /// [relay]. No caller sees them.
    pub answered: usize,
}

/// What a port does with a packet that it has read.
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
    /// Appends the packet, or counts it and returns its buffer.
    #[inline]
    fn account(
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
    /// The number of packets that the device took. A super-packet counts as one, unless the port itself cuts it behind
    /// an outer header.
    pub sent: usize,
    /// The number of packets lost because the device refused them (queue full, interface down, peer gone) or because
    /// [`Capabilities`] does not allow their state. A super-packet counts as the number of packets on a wire that it
    /// stands for.
    pub refused: usize,
}

impl Transmitted {
    /// Counts a packet that the device took or refused.
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
/// After an error the port is unusable, and its owner detaches it. A refused packet is not an error.
pub trait PacketIo: Send {
    /// Appends up to `limit` packets to `into`. It appends fewer if the device is empty, if the pool is exhausted, or
    /// if further packets would push those that it has appended out of the cache.
    fn receive(
        &mut self,
        pool: &mut Pool,
        into: &mut Vec<Packet>,
        limit: usize,
    ) -> io::Result<Received>;

    /// Sends and empties `packets`, even on an error. Every buffer returns to `pool`.
    fn transmit(&mut self, pool: &mut Pool, packets: &mut Vec<Packet>) -> io::Result<Transmitted>;

    /// The packets that [`PacketIo::transmit`] accepts unchanged.
    fn capabilities(&self) -> Capabilities;

    /// The descriptor that is readable while there are packets, so that an idle worker can sleep on it. `None` for a
    /// port that must be polled.
    fn descriptor(&self) -> Option<RawFd>;

    /// Whether received packets lie in memory that is shared with the kernel. A check of that memory costs next to
    /// nothing, and the kernel wakes no thread unless one waits on the descriptor. So such a port is polled while it is
    /// active, and watched while it is quiet. Returns false once the memory has turned out to be unreliable. A wrapper
    /// must return the value of the port that it wraps.
    fn is_mapped(&self) -> bool {
        false
    }

    /// Returns the port without those wrappers that are no longer needed; a port that wraps nothing returns itself.
    fn unwrapped(self: Box<Self>) -> Box<dyn PacketIo>;
}
