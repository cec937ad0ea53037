//! Super-packets: cut into segments for links that cannot do it, put together from segments that arrived one by one.
//!
//! [`segment::segment`] is what a device does with `VIRTIO_NET_HDR_GSO_*`, [`coalesce::coalesce`] what the kernel's GRO does. Each undoes
//! the other: segment then coalesce gives the super-packet again (its checksum in partial form), and coalesce then segment
//! gives the packets that came.
//!
//! A datagram's boundary is part of its meaning. It is kept: all datagrams of a super-packet but the last are of one length, which stands
//! beside it, and for a socket that has not asked for super-packets (`UDP_GRO`) its kernel cuts them again.

use crate::packet::Packet;

pub mod coalesce;
mod headers;
pub(crate) mod join;
pub mod segment;
#[cfg(test)]
mod tests;

/// How many packets a wire would carry for a packet whose headers nobody has read.
#[cold]
pub(crate) fn segments(packet: &Packet) -> usize {
    match headers::Shape::of(packet.bytes()) {
        headers::Shape::Whole(headers) => packet.segments(headers.payload) as usize,
        headers::Shape::Other | headers::Shape::Unknown => 1,
    }
}
