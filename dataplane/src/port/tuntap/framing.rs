//! The headers in front of a packet that is read from a queue, or written to it.

use crate::packet::Packet;
use crate::port::Disposition;
use crate::port::gateway::Gateway;
use crate::port::link::Link;
use crate::port::virtio::{self, HEADER_LEN};
use crate::sys::batch::{HEAD_LEN, Head};

/// The virtio header and any further header in front of the packet: `HEAD` bytes together.
pub(super) trait Framing<const HEAD: usize>: Send + 'static {
    /// Turns the bytes that were read into a packet. They are given as its head and the rest. `answer` gets a whole
    /// frame that answers a request.
    fn accept(
        &self,
        head: &[u8; HEAD],
        packet: &mut Packet,
        answer: impl FnOnce(&[u8]),
    ) -> Disposition;

    /// The bytes to write in front of a packet.
    fn head(&self, packet: &Packet) -> [u8; HEAD];
}

/// The framing of TUN: only the virtio header.
#[derive(Debug)]
pub(super) struct Ip;

impl Framing<HEADER_LEN> for Ip {
    #[inline]
    fn accept(
        &self,
        head: &virtio::Header,
        packet: &mut Packet,
        _: impl FnOnce(&[u8]),
    ) -> Disposition {
        let is_ip = packet.bytes().first().is_some_and(|first| matches!(first >> 4, 4 | 6));
        if is_ip && virtio::mark(packet, head, 0).is_ok() {
            Disposition::Ours
        } else {
            Disposition::Malformed
        }
    }

    #[inline]
    fn head(&self, packet: &Packet) -> virtio::Header {
        virtio::encode(packet.offload, packet.bytes(), 0)
    }
}

/// The framing of TAP: the virtio header and an Ethernet header.
#[derive(Debug)]
pub(super) struct Ethernet(Gateway);

impl Ethernet {
    /// Creates the framing for a pod whose gateway is at this end.
    pub(super) fn new(link: Link) -> Self {
        debug_assert!(link.own[0] != 0, "a longer header is told by this byte");
        Self(Gateway(link))
    }
}

impl Framing<HEAD_LEN> for Ethernet {
    #[inline]
    fn accept(&self, head: &Head, packet: &mut Packet, answer: impl FnOnce(&[u8])) -> Disposition {
        // The first byte of the destination's hardware address. It is zero if the device's header is longer than ours.
        // It is never zero in a frame for us: neither our address nor a group address begins with zero.
        if head[HEADER_LEN] == 0 {
            return Disposition::Malformed;
        }
        self.0.accept(head, packet, answer)
    }

    #[inline]
    fn head(&self, packet: &Packet) -> Head {
        // The pipeline sends only IP packets. A pod's kernel drops a frame to the address of zeros.
        self.0.head(packet).unwrap_or([0; HEAD_LEN])
    }
}
