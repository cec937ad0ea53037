//! Ports: where packets come from and go to. Above this trait everything is an IP packet; link framing, virtio headers
//! and system calls end here.

pub mod capture;
mod datagram;
mod filter;
pub mod ipip_raw;
pub mod link;
pub mod memory;
pub mod packet;
pub mod pcap;
mod ring;
mod sctp;
pub mod tun;
pub mod uplink;
pub mod virtio;
pub mod vxlan;

use std::io;
use std::os::fd::RawFd;

use crate::offload::segments;
use crate::packet::{Capabilities, Packet, Pool};

/// How much of super-packets was received at once, by a port or from other workers.
#[derive(Debug, Default)]
pub(crate) struct Intake {
    bytes: usize,
    segments: usize,
}

impl Intake {
    /// Bytes after which it takes no more: they are to be in the core's own cache still (1 MB or 2) when they are summed up and
    /// sent.
    const BYTES: usize = 256 << 10;
    /// Segments after which it takes no more: for a wire each of them is cut and sent by itself, and other ports wait meanwhile.
    const SEGMENTS: usize = 256;

    /// Adds a packet.
    #[inline]
    pub(crate) fn add(&mut self, packet: &Packet) {
        self.bytes += packet.len();
        if let Some(segmentation) = packet.offload.segmentation {
            self.segments += packet.len() / usize::from(segmentation.size).max(1);
        }
    }

    /// Whether it is enough for one batch.
    #[inline]
    pub(crate) fn is_enough(&self) -> bool {
        self.bytes >= Self::BYTES || self.segments >= Self::SEGMENTS
    }
}

/// What a tunnel's socket receives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reception {
    /// Every packet of its tunnels.
    All,
    /// Nothing: it only sends, beside another that receives.
    Quiet,
}

/// What one call of [`PacketIo::receive`] did beside the packets that it appended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[must_use]
pub struct Received {
    /// The device had no more to give: sleep until its descriptor is readable. Otherwise ask again.
    pub drained: bool,
    /// Packets dropped because what the device says of them (virtio header, framing, length) contradicts their bytes.
    pub malformed: usize,
    /// Frames dropped because they are not for this port: another's hardware address, a VLAN tag, no IP inside,
    /// talk of the link without an answer.
    pub not_ours: usize,
    /// Frames that the port answered itself (ARP, neighbour solicitations) and that nobody above sees.
    pub answered: usize,
}

/// What became of a batch handed to [`PacketIo::transmit`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[must_use]
pub struct Transmitted {
    /// Packets the device took. A super-packet counts as one, unless the port cuts it itself behind an outer header.
    pub sent: usize,
    /// Packets the device refused (queue full, interface down, peer gone) or whose state [`Capabilities`] does not
    /// allow; they are gone. A super-packet counts as what a wire would have carried.
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

/// A device's queue of one worker. Receives and transmits whole batches; never blocks.
///
/// After an error the port is unusable and its owner detaches it; a refused packet is not an error.
pub trait PacketIo: Send {
    /// Appends up to `limit` packets to `into`, fewer when the device is empty, the pool exhausted, or what was taken is so much
    /// that more would push it out of the cache.
    fn receive(
        &mut self,
        pool: &mut Pool,
        into: &mut Vec<Packet>,
        limit: usize,
    ) -> io::Result<Received>;

    /// Sends and empties `packets`, also when it fails; every buffer returns to `pool`.
    fn transmit(&mut self, pool: &mut Pool, packets: &mut Vec<Packet>) -> io::Result<Transmitted>;

    /// What may be handed to [`PacketIo::transmit`].
    fn capabilities(&self) -> Capabilities;

    /// The descriptor whose readability means packets, for an idle worker to sleep on; `None` for ports that must be
    /// polled.
    fn descriptor(&self) -> Option<RawFd>;

    /// Whether what comes lies in memory that is shared with the kernel. To find that empty costs next to nothing, and as long as
    /// nobody waits on the descriptor the kernel wakes nobody: such a port is polled while it talks, and watched while it is quiet.
    /// No longer, once it has turned out that the memory cannot be relied on.
    fn is_mapped(&self) -> bool;

    /// The port without the wrappers that have nothing to do any more; a port that wraps nothing is itself.
    fn unwrapped(self: Box<Self>) -> Box<dyn PacketIo>;
}
