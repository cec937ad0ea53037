//! ICMP for IPv6 (RFC 4443). Every assigned message type has at least eight bytes.

use std::mem::offset_of;

use zerocopy::network_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The header, with the four bytes that depend on the type.
#[derive(Debug, Clone, Copy, Default, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Header {
    /// The type, see [`kind`].
    pub kind: u8,
    /// The code.
    pub code: u8,
    /// The checksum.
    pub checksum: U16,
    /// The MTU of the next hop, in a "packet too big" message (RFC 4443, section 3.2). For other types see
    /// [`Header::id`].
    pub mtu: U32,
}

/// The length of the header, in bytes.
pub const HEADER_LEN: usize = size_of::<Header>();
/// The checksum's offset in the header.
pub const CHECKSUM_OFFSET: usize = offset_of!(Header, checksum);

/// A message. The payload of an error is the beginning of the packet that it is about.
pub type View = super::view::View<Header>;

impl super::view::Header for Header {}

impl Header {
    /// The identifier of a query, meaningful if [`kind::has_id`].
    #[inline]
    pub fn id(&self) -> u16 {
        (self.mtu.get() >> 16) as u16
    }
}

/// Types of messages.
pub mod kind {
    /// Destination unreachable. Code 0: there is no route; code 3: the address is unreachable.
    pub const UNREACHABLE: u8 = 1;
    /// Packet too big.
    pub const PACKET_TOO_BIG: u8 = 2;
    /// Time exceeded.
    pub const TIME_EXCEEDED: u8 = 3;
    /// Parameter problem.
    pub const PARAMETER_PROBLEM: u8 = 4;
    /// Echo request.
    pub const ECHO_REQUEST: u8 = 128;
    /// Echo reply.
    pub const ECHO_REPLY: u8 = 129;
    /// Router solicitation: the first message of neighbour discovery.
    pub const ROUTER_SOLICITATION: u8 = 133;
    /// Router advertisement.
    pub const ROUTER_ADVERTISEMENT: u8 = 134;
    /// Neighbour solicitation ([`crate::wire::ndp`]).
    pub const NEIGHBOUR_SOLICITATION: u8 = 135;
    /// Neighbour advertisement ([`crate::wire::ndp`]).
    pub const NEIGHBOUR_ADVERTISEMENT: u8 = 136;
    /// Redirect.
    pub const REDIRECT: u8 = 137;

    /// Whether a message is about another packet and quotes it (RFC 4443, section 2.1).
    #[inline]
    pub const fn is_error(kind: u8) -> bool {
        kind < 128
    }

    /// Whether a message belongs to the link: no router forwards it (RFC 4861, section 4).
    #[inline]
    pub const fn is_neighbour_discovery(kind: u8) -> bool {
        kind >= ROUTER_SOLICITATION && kind <= REDIRECT
    }

    /// For a query, the type of its reply, and true. For a reply, the type of its query, and false.
    #[inline]
    pub const fn query(kind: u8) -> Option<(u8, bool)> {
        match kind {
            ECHO_REQUEST => Some((ECHO_REPLY, true)),
            ECHO_REPLY => Some((ECHO_REQUEST, false)),
            _ => None,
        }
    }

    /// Whether a message has an identifier, which is the same in a query and its reply.
    #[inline]
    pub const fn has_id(kind: u8) -> bool {
        query(kind).is_some()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn no_accessor_panics(bytes: Vec<u8>) {
            if let Ok(view) = View::new_checked(&bytes) {
                let _ = (view.kind, view.code, view.checksum.get(), view.id(), view.mtu.get(), view.payload());
            }
        }

        #[test]
        fn etherparse_reads_the_same(mut bytes: [u8; 24], named in prop::sample::select(&[(1, 0), (1, 3), (2, 0), (3, 0), (128, 0), (129, 0)][..])) {
            (bytes[0], bytes[1]) = named;
            let view = View::new_checked(&bytes).unwrap();
            let theirs = etherparse::Icmpv6Slice::from_slice(&bytes).unwrap();
            prop_assert_eq!(view.kind, theirs.type_u8());
            prop_assert_eq!(view.code, theirs.code_u8());
            prop_assert_eq!(view.checksum.get(), theirs.checksum());
            match theirs.icmp_type() {
                etherparse::Icmpv6Type::EchoRequest(echo) | etherparse::Icmpv6Type::EchoReply(echo) => {
                    prop_assert!(kind::has_id(named.0));
                    prop_assert_eq!(view.id(), echo.id);
                }
                etherparse::Icmpv6Type::PacketTooBig { mtu } => prop_assert_eq!(view.mtu.get(), mtu),
                _ => prop_assert!(kind::is_error(named.0)),
            }
        }
    }
}
