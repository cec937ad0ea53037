//! ICMP for IPv6 (RFC 4443). Every message that is assigned has at least eight bytes.

use super::{Malformed, put, u16_at, u32_at};

mod field {
    use std::ops::Range;

    pub(super) const KIND: usize = 0;
    pub(super) const CODE: usize = 1;
    pub(super) const CHECKSUM: Range<usize> = 2..4;
    pub(super) const ID: Range<usize> = 4..6;
    pub(super) const MTU: Range<usize> = 4..8;
}

/// Length of the header, the four bytes that depend on the type included.
pub const HEADER_LEN: usize = 8;
/// Where in the header the checksum stands.
pub const CHECKSUM_OFFSET: usize = field::CHECKSUM.start;

/// Types of messages.
pub mod kind {
    /// Destination unreachable; code 0: no route, code 3: the address.
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
    /// Neighbour solicitation ([`crate::wire::ndp`]).
    pub const NEIGHBOUR_SOLICITATION: u8 = 135;
    /// Neighbour advertisement ([`crate::wire::ndp`]).
    pub const NEIGHBOUR_ADVERTISEMENT: u8 = 136;
    /// Redirect.
    pub const REDIRECT: u8 = 137;

    /// Whether it is about a packet, which it quotes (RFC 4443, section 2.1).
    #[inline]
    pub const fn is_error(kind: u8) -> bool {
        kind < 128
    }

    /// Whether it is talk of the link, which no router passes on (RFC 4861, section 4).
    #[inline]
    pub const fn is_neighbour_discovery(kind: u8) -> bool {
        kind >= ROUTER_SOLICITATION && kind <= REDIRECT
    }

    /// Of a query the reply's type and true, of a reply the query's and false.
    #[inline]
    pub const fn query(kind: u8) -> Option<(u8, bool)> {
        match kind {
            ECHO_REQUEST => Some((ECHO_REPLY, true)),
            ECHO_REPLY => Some((ECHO_REQUEST, false)),
            _ => None,
        }
    }

    /// Whether it carries an identifier, by which a reply finds its request.
    #[inline]
    pub const fn has_id(kind: u8) -> bool {
        query(kind).is_some()
    }
}

/// A message.
#[derive(Debug, Clone, Copy)]
pub struct View<T>(T);

impl<T: AsRef<[u8]>> View<T> {
    /// Checks that the header is there.
    #[inline]
    pub fn new_checked(bytes: T) -> Result<Self, Malformed> {
        if bytes.as_ref().len() < HEADER_LEN {
            return Err(Malformed);
        }
        Ok(Self(bytes))
    }

    /// Type, see [`kind`].
    #[inline]
    pub fn kind(&self) -> u8 {
        self.0.as_ref()[field::KIND]
    }

    /// Code.
    #[inline]
    pub fn code(&self) -> u8 {
        self.0.as_ref()[field::CODE]
    }

    /// The checksum, as it stands there.
    #[inline]
    pub fn checksum(&self) -> u16 {
        u16_at(self.0.as_ref(), field::CHECKSUM)
    }

    /// Identifier of a query, meaningful where [`kind::has_id`].
    #[inline]
    pub fn id(&self) -> u16 {
        u16_at(self.0.as_ref(), field::ID)
    }

    /// MTU of the next hop, of a "packet too big" (RFC 4443, section 3.2).
    #[inline]
    pub fn mtu(&self) -> u32 {
        u32_at(self.0.as_ref(), field::MTU)
    }

    /// What follows the header: in an error, the beginning of the packet that it is about.
    #[inline]
    pub fn payload(&self) -> &[u8] {
        &self.0.as_ref()[HEADER_LEN..]
    }
}

impl<T: AsRef<[u8]> + AsMut<[u8]>> View<T> {
    /// Sets the checksum.
    #[inline]
    pub fn set_checksum(&mut self, checksum: u16) {
        put(self.0.as_mut(), field::CHECKSUM, &checksum.to_be_bytes());
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
                let _ = (view.kind(), view.code(), view.checksum(), view.id(), view.mtu(), view.payload());
            }
        }

        #[test]
        fn etherparse_reads_the_same(mut bytes: [u8; 24], named in prop::sample::select(&[(1, 0), (1, 3), (2, 0), (3, 0), (128, 0), (129, 0)][..])) {
            (bytes[field::KIND], bytes[field::CODE]) = named;
            let view = View::new_checked(bytes).unwrap();
            let theirs = etherparse::Icmpv6Slice::from_slice(&bytes).unwrap();
            prop_assert_eq!(view.kind(), theirs.type_u8());
            prop_assert_eq!(view.code(), theirs.code_u8());
            prop_assert_eq!(view.checksum(), theirs.checksum());
            match theirs.icmp_type() {
                etherparse::Icmpv6Type::EchoRequest(echo) | etherparse::Icmpv6Type::EchoReply(echo) => {
                    prop_assert!(kind::has_id(named.0));
                    prop_assert_eq!(view.id(), echo.id);
                }
                etherparse::Icmpv6Type::PacketTooBig { mtu } => prop_assert_eq!(view.mtu(), mtu),
                _ => prop_assert!(kind::is_error(named.0)),
            }
        }

        #[test]
        fn what_is_set_is_read_back(mut bytes: [u8; HEADER_LEN], checksum: u16) {
            let mut view = View::new_checked(&mut bytes[..]).unwrap();
            view.set_checksum(checksum);
            prop_assert_eq!(view.checksum(), checksum);
        }
    }
}
