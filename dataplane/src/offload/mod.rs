//! Super-packets: cut into segments for links that cannot do it, put together from segments that arrived one by one.
//!
//! [`segment::segment`] is what a device does with `VIRTIO_NET_HDR_GSO_*`, [`coalesce::coalesce`] what the kernel's GRO does. Each undoes
//! the other: segment then coalesce gives the super-packet again (its checksum in partial form), and coalesce then segment
//! gives the packets that came.
//!
//! UDP is segmented but never coalesced: a datagram's boundary is part of its meaning, and a receiver that gets a
//! super-packet must have asked for it.

pub mod coalesce;
mod headers;
pub(crate) mod join;
pub mod segment;
#[cfg(test)]
mod tests;
