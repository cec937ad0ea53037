//! A pod's gateway on its Ethernet link, for ports with virtio headers: the common part of a packet socket on a veth
//! and a TAP device.

use super::Disposition;
use super::link::{ETHERNET_LEN, Frame, Link};
use super::virtio::{self, HEADER_LEN};
use crate::packet::Packet;
use crate::sys::batch::{HEAD_LEN, Head};

/// The gateway's end of the link.
#[derive(Debug)]
pub(super) struct Gateway(pub(super) Link);

impl Gateway {
    /// Turns a received frame into a packet. The frame is given as its head and the bytes after it. `answer` gets a
    /// whole frame that answers a request.
    #[inline]
    pub(super) fn accept(
        &self,
        head: &Head,
        packet: &mut Packet,
        answer: impl FnOnce(&[u8]),
    ) -> Disposition {
        let (Some(virtio), Some(ethernet)) = (head.first_chunk(), head.last_chunk()) else {
            return Disposition::Malformed;
        };
        match self.0.sort(ethernet, packet.bytes()) {
            Frame::Packet(len) => unframe(packet, virtio, len),
            Frame::Question(reply) => {
                answer(reply.bytes());
                Disposition::Answered
            }
            Frame::Message(_) | Frame::NotOurs => Disposition::NotOurs,
            Frame::Malformed => Disposition::Malformed,
        }
    }

    /// The head of a frame to the pod; `None` for a packet that is neither IPv4 nor IPv6.
    #[inline]
    pub(super) fn head(&self, packet: &Packet) -> Option<Head> {
        let ethernet = self.0.header(packet.bytes())?;
        Some(head(packet, &ethernet))
    }
}

/// Turns a frame's payload, which holds an IP packet of this length, into the packet.
#[inline]
pub(super) fn unframe(packet: &mut Packet, header: &virtio::Header, len: usize) -> Disposition {
    packet.set_len(len);
    virtio::mark(packet, header, ETHERNET_LEN)
        .map_or(Disposition::Malformed, |()| Disposition::Ours)
}

/// The head of a frame with this Ethernet header.
#[inline]
pub(super) fn head(packet: &Packet, ethernet: &[u8; ETHERNET_LEN]) -> Head {
    let mut head = [0; HEAD_LEN];
    let (virtio, rest) = head.split_at_mut(HEADER_LEN);
    virtio.copy_from_slice(&virtio::encode(packet.offload, packet.bytes(), ETHERNET_LEN));
    rest.copy_from_slice(ethernet);
    head
}
