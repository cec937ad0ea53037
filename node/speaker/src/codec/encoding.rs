//! The encoding of UPDATEs that the two ends of a session have negotiated.

use std::net::IpAddr;

use rustbgpd_wire::{Afi, Safi};

/// The family of a session's prefixes. It is the family of the peer's address: a session carries one family, as Calico's
/// sessions do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Family {
    V4,
    V6,
}

impl Family {
    /// The family of a session with the peer at this address.
    pub(crate) const fn of(peer: IpAddr) -> Self {
        if peer.is_ipv4() { Self::V4 } else { Self::V6 }
    }

    /// The AFI and SAFI of the family.
    pub(crate) const fn on_wire(self) -> (Afi, Safi) {
        match self {
            Self::V4 => (Afi::Ipv4, Safi::Unicast),
            Self::V6 => (Afi::Ipv6, Safi::Unicast),
        }
    }
}

/// The rules for encoding and decoding the UPDATEs of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Encoding {
    pub(crate) family: Family,
    /// Whether the peer supports four-octet autonomous systems (RFC 6793).
    pub(crate) is_four_octet: bool,
    /// Whether the peer is in the same autonomous system.
    pub(crate) is_internal: bool,
    /// The most bytes of a message (RFC 4271, 4.1; RFC 8654).
    pub(crate) limit: u16,
}
