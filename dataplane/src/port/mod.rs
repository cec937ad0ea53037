//! Ports: where packets come from and go to. Above this trait everything is an IP packet; link framing, virtio headers
//! and system calls end here.

pub mod capture;
pub mod ipip_raw;
pub mod link;
pub mod memory;
pub mod packet;
pub mod pcap;
pub mod tun;

use std::io;
use std::os::fd::RawFd;

use crate::packet::{Packet, Pool};

/// What a port's far side takes without help.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Capabilities {
    /// Packets whose layer-4 checksum is still partial.
    pub partial_checksum: bool,
    /// TCP super-packets.
    pub tcp_segmentation: bool,
    /// UDP super-packets.
    pub udp_segmentation: bool,
}

/// What became of a batch handed to [`PacketIo::transmit`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[must_use]
pub struct Transmitted {
    /// Packets the device took.
    pub sent: usize,
    /// Packets the device refused (queue full, interface down, peer gone); they are gone.
    pub refused: usize,
}

/// A device's queue of one worker. Receives and transmits whole batches; never blocks.
///
/// After an error the port is unusable and its owner detaches it; a refused packet is not an error.
pub trait PacketIo: Send {
    /// Appends up to `limit` packets to `into`, fewer when the device is empty or the pool exhausted. Less than `limit`
    /// with buffers left in the pool means that the device has been drained and readiness will be signalled anew.
    fn receive(&mut self, pool: &mut Pool, into: &mut Vec<Packet>, limit: usize) -> io::Result<()>;

    /// Sends and empties `packets`; every buffer returns to `pool`.
    fn transmit(&mut self, pool: &mut Pool, packets: &mut Vec<Packet>) -> io::Result<Transmitted>;

    /// What may be handed to [`PacketIo::transmit`].
    fn capabilities(&self) -> Capabilities;

    /// The descriptor whose readability means packets, for an idle worker to sleep on; `None` for ports that must be
    /// polled.
    fn descriptor(&self) -> Option<RawFd>;
}
