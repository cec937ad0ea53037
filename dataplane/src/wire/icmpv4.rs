//! ICMP for IPv4 (RFC 792, RFC 1191).

use std::mem::offset_of;

use zerocopy::network_endian::U16;
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
    /// The identifier of a query, meaningful if [`kind::has_id`].
    pub id: U16,
    /// The MTU of the next hop, in a "fragmentation needed" message (RFC 1191, section 4).
    pub mtu: U16,
}

/// The length of the header, in bytes.
pub const HEADER_LEN: usize = size_of::<Header>();
/// The checksum's offset in the header.
pub const CHECKSUM_OFFSET: usize = offset_of!(Header, checksum);

/// A message. The payload of an error is the beginning of the packet that it is about.
pub type View = super::view::View<Header>;

impl super::view::Header for Header {}

/// Types of messages.
pub mod kind {
    /// Echo reply.
    pub const ECHO_REPLY: u8 = 0;
    /// Destination unreachable. Code 1: the host is unreachable; code 4: fragmentation is needed.
    pub const UNREACHABLE: u8 = 3;
    /// Source quench (deprecated, RFC 6633).
    pub const SOURCE_QUENCH: u8 = 4;
    /// Redirect.
    pub const REDIRECT: u8 = 5;
    /// Echo request.
    pub const ECHO_REQUEST: u8 = 8;
    /// Time exceeded.
    pub const TIME_EXCEEDED: u8 = 11;
    /// Parameter problem.
    pub const PARAMETER_PROBLEM: u8 = 12;
    /// Timestamp request.
    pub const TIMESTAMP_REQUEST: u8 = 13;
    /// Timestamp reply.
    pub const TIMESTAMP_REPLY: u8 = 14;

    /// Whether a message is about another packet and quotes it (RFC 1122, section 3.2.2).
    #[inline]
    pub const fn is_error(kind: u8) -> bool {
        matches!(kind, UNREACHABLE | SOURCE_QUENCH | REDIRECT | TIME_EXCEEDED | PARAMETER_PROBLEM)
    }

    /// For a query, the type of its reply, and true. For a reply, the type of its query, and false.
    #[inline]
    pub const fn query(kind: u8) -> Option<(u8, bool)> {
        match kind {
            ECHO_REQUEST => Some((ECHO_REPLY, true)),
            ECHO_REPLY => Some((ECHO_REQUEST, false)),
            TIMESTAMP_REQUEST => Some((TIMESTAMP_REPLY, true)),
            TIMESTAMP_REPLY => Some((TIMESTAMP_REQUEST, false)),
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
                let _ = (view.kind, view.code, view.checksum.get(), view.id.get(), view.mtu.get(), view.payload());
            }
        }

        #[test]
        fn etherparse_reads_the_same(mut bytes: [u8; 24], named in prop::sample::select(&[(0, 0), (3, 1), (3, 4), (8, 0), (11, 0)][..])) {
            (bytes[0], bytes[1]) = named;
            let view = View::new_checked(&bytes).unwrap();
            let theirs = etherparse::Icmpv4Slice::from_slice(&bytes).unwrap();
            prop_assert_eq!(view.kind, theirs.type_u8());
            prop_assert_eq!(view.code, theirs.code_u8());
            prop_assert_eq!(view.checksum.get(), theirs.checksum());
            match theirs.icmp_type() {
                etherparse::Icmpv4Type::EchoRequest(echo) | etherparse::Icmpv4Type::EchoReply(echo) => {
                    prop_assert!(kind::has_id(named.0));
                    prop_assert_eq!(view.id.get(), echo.id);
                }
                etherparse::Icmpv4Type::DestinationUnreachable(
                    etherparse::icmpv4::DestUnreachableHeader::FragmentationNeeded { next_hop_mtu },
                ) => prop_assert_eq!(view.mtu.get(), next_hop_mtu),
                _ => prop_assert!(kind::is_error(named.0)),
            }
        }
    }
}
