//! Header views: each is a checked borrow of bytes. There is one protocol per file.
//!
//! Each file begins with the header's layout: a struct of big-endian fields. [`new_checked`](view::View::new_checked)
//! checks the bytes against it. No method of the view that it returns panics, and its results lie within the lengths
//! that the header gives. A view over mutable bytes changes them in place; no header is taken apart and built again.
//! Views check structure only: checksums, policy and plausibility are checked elsewhere.

pub mod address;
#[cfg(test)]
pub(crate) mod arbitrary;
pub mod arp;
pub mod ethernet;
pub mod extension;
pub mod icmpv4;
pub mod icmpv6;
pub mod ipv4;
pub mod ipv6;
pub mod ndp;
pub mod sctp;
pub mod tcp;
pub mod udp;
pub mod view;
pub mod vxlan;

#[cfg(test)]
use std::ops::Range;

/// A header is cut short, or contradicts itself or the bytes that follow it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("malformed header")]
pub struct Malformed;

/// Numbers of the protocols and IPv6 extension headers that are read (IANA, Assigned Internet Protocol Numbers).
pub mod protocol {
    /// IPv6: hop-by-hop options.
    pub const HOP_BY_HOP: u8 = 0;
    /// ICMP for IPv4.
    pub const ICMPV4: u8 = 1;
    /// IPv4 in IPv4: IPIP (RFC 2003).
    pub const IPIP: u8 = 4;
    /// TCP.
    pub const TCP: u8 = 6;
    /// UDP.
    pub const UDP: u8 = 17;
    /// IPv6: routing header.
    pub const ROUTING: u8 = 43;
    /// IPv6: fragment header.
    pub const FRAGMENT: u8 = 44;
    /// IPv6: authentication header.
    pub const AUTHENTICATION: u8 = 51;
    /// ICMP for IPv6.
    pub const ICMPV6: u8 = 58;
    /// IPv6: destination options.
    pub const DESTINATION_OPTIONS: u8 = 60;
    /// SCTP.
    pub const SCTP: u8 = 132;
}

/// The two bits of explicit congestion notification in an IP header (RFC 3168, section 5).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Ecn {
    /// The transport does not support ECN.
    NotEct = 0,
    /// ECN-capable, 01.
    Ect1 = 1,
    /// ECN-capable, 10.
    Ect0 = 2,
    /// Congestion experienced.
    Ce = 3,
}

impl Ecn {
    /// The mark that is encoded in the two low bits.
    #[inline]
    pub const fn from_bits(bits: u8) -> Self {
        match bits & 3 {
            0 => Self::NotEct,
            1 => Self::Ect1,
            2 => Self::Ect0,
            _ => Self::Ce,
        }
    }
}

#[cfg(test)]
pub(crate) fn put(bytes: &mut [u8], field: Range<usize>, value: &[u8]) {
    bytes[field].copy_from_slice(value);
}
