//! Super-packets: cut into segments for links that cannot do it, put together from segments that arrived one by one.
//!
//! [`segment::segment`] is what a device does with `VIRTIO_NET_HDR_GSO_*`, [`coalesce::coalesce`] what the kernel's GRO does. Each undoes
//! the other: segment then coalesce gives the super-packet again (its checksum in partial form), and coalesce then segment
//! gives the packets that came.
//!
//! A datagram's boundary is part of its meaning. It is kept: all datagrams of a super-packet but the last are of one length, which stands
//! beside it, and for a socket that has not asked for super-packets (`UDP_GRO`) its kernel cuts them again.

use crate::packet::{Packet, SegmentKind};

pub mod coalesce;
mod headers;
pub(crate) mod join;
pub mod segment;
#[cfg(test)]
mod tests;

/// The least MTU that an IPv4 link may have (RFC 791, section 3.2), in bytes; of IPv6 it is larger (RFC 8200, section 5).
const LEAST_MTU: u32 = 68;

/// The most segments that a super-packet may fall into whose longest one is `unit` bytes on a wire.
///
/// One packet costs as much as its segments do, and the sender chooses their size. What no sender's kernel makes is refused:
/// - UDP: `UDP_SEGMENT` takes 128 datagrams at once (Linux 6.11; 64 before).
/// - TCP with segments that are shorter than the least MTU: Linux cuts to no less than 48 bytes behind the basic TCP header
///   (`TCP_MIN_SND_MSS`), which is 88 bytes on a wire. What was received so short (a terminal's key strokes) may have been
///   coalesced by GRO, and then of the 64 packets of one poll.
/// - Other TCP: 512, which is 64 KB in segments of 128 bytes. Linux's own least path MTU is 552
///   (`net.ipv4.route.min_pmtu`), which gives 128 segments.
pub(crate) fn most_segments(kind: SegmentKind, unit: u32) -> u32 {
    match kind {
        SegmentKind::Udp => 128,
        SegmentKind::Tcp4 | SegmentKind::Tcp6 if unit < LEAST_MTU => 64,
        SegmentKind::Tcp4 | SegmentKind::Tcp6 => 512,
    }
}

/// How many packets a wire would carry for a packet whose headers nobody has read.
#[cold]
pub(crate) fn segments(packet: &Packet) -> usize {
    match headers::Shape::classify(packet.bytes()) {
        headers::Shape::Whole(headers) => packet.segments(headers.payload) as usize,
        headers::Shape::Other | headers::Shape::Unknown => 1,
    }
}
