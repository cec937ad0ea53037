//! Super-packets: they are cut into segments for links that cannot cut them, and are merged from segments that arrive
//! one by one.
//!
//! [`segment::segment`] does what a device does with `VIRTIO_NET_HDR_GSO_*`; [`coalesce::coalesce`] does what the
//! kernel's GRO does. Each undoes the other: segment then coalesce gives the super-packet again (with a partial
//! checksum), and coalesce then segment gives the packets that arrived.
//!
//! The boundaries of datagrams are kept, because they are part of the meaning of the data. All datagrams of a
//! super-packet except the last have the same length, which its metadata holds. For a socket that has not requested
//! super-packets (`UDP_GRO`), the kernel cuts them again.

use crate::packet::{Packet, SegmentKind};

pub mod coalesce;
mod headers;
pub(crate) mod join;
pub mod segment;
#[cfg(test)]
mod tests;

/// The least MTU of an IPv4 link (RFC 791, section 3.2), in bytes. The least MTU of IPv6 is larger (RFC 8200, section
/// 5).
const LEAST_MTU: u32 = 68;

/// The largest number of segments in a super-packet whose longest segment is `unit` bytes on a wire.
///
/// A packet costs as much work as its segments, and the sender chooses their size. A super-packet is refused if no
/// sender's kernel builds it. The limits are:
/// - UDP: `UDP_SEGMENT` accepts 128 datagrams at once (Linux 6.9, and stable releases of older kernels such as 6.8.8;
///   64 before).
/// - TCP with segments shorter than the least MTU: Linux sends at least 48 bytes after the basic TCP header
///   (`TCP_MIN_SND_MSS`), which is 88 bytes on a wire. GRO may have merged shorter segments that were received (the key
///   strokes of a terminal). It takes them from the 64 packets of one poll.
/// - Other TCP: 512 segments, which is 64 KB in segments of 128 bytes. Linux's own least path MTU is 552
///   (`net.ipv4.route.min_pmtu`), which gives 128 segments.
pub(crate) fn most_segments(kind: SegmentKind, unit: u32) -> u32 {
    match kind {
        SegmentKind::Udp => 128,
        SegmentKind::Tcp4 | SegmentKind::Tcp6 if unit < LEAST_MTU => 64,
        SegmentKind::Tcp4 | SegmentKind::Tcp6 => 512,
    }
}

/// The number of packets on a wire that a packet stands for. Its headers have not been read.
#[cold]
pub(crate) fn segments(packet: &Packet) -> usize {
    match headers::Shape::classify(packet.bytes()) {
        headers::Shape::Whole(headers) => packet.segments(headers.payload) as usize,
        headers::Shape::Other | headers::Shape::Unknown => 1,
    }
}
