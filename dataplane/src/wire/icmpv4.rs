//! ICMP for IPv4 (RFC 792, RFC 1191).

use super::{Malformed, put, u16_at};

mod field {
    use std::ops::Range;

    pub(super) const KIND: usize = 0;
    pub(super) const CODE: usize = 1;
    pub(super) const CHECKSUM: Range<usize> = 2..4;
    pub(super) const ID: Range<usize> = 4..6;
    pub(super) const MTU: Range<usize> = 6..8;
}

/// Length of the header, the four bytes that depend on the type included.
pub const HEADER_LEN: usize = 8;
/// Where in the header the checksum stands.
pub const CHECKSUM_OFFSET: usize = field::CHECKSUM.start;

/// Types of messages.
pub mod kind {
    /// Echo reply.
    pub const ECHO_REPLY: u8 = 0;
    /// Destination unreachable; code 1: the host, code 4: fragmentation needed.
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

    /// Whether it is about a packet, which it quotes (RFC 1122, section 3.2.2).
    #[inline]
    pub const fn is_error(kind: u8) -> bool {
        matches!(kind, UNREACHABLE | SOURCE_QUENCH | REDIRECT | TIME_EXCEEDED | PARAMETER_PROBLEM)
    }

    /// Of a query the reply's type and true, of a reply the query's and false.
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

    /// MTU of the next hop, of a "fragmentation needed" (RFC 1191, section 4).
    #[inline]
    pub fn mtu(&self) -> u32 {
        u32::from(u16_at(self.0.as_ref(), field::MTU))
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
        fn etherparse_reads_the_same(mut bytes: [u8; 24], named in prop::sample::select(&[(0, 0), (3, 1), (3, 4), (8, 0), (11, 0)][..])) {
            (bytes[field::KIND], bytes[field::CODE]) = named;
            let view = View::new_checked(bytes).unwrap();
            let theirs = etherparse::Icmpv4Slice::from_slice(&bytes).unwrap();
            prop_assert_eq!(view.kind(), theirs.type_u8());
            prop_assert_eq!(view.code(), theirs.code_u8());
            prop_assert_eq!(view.checksum(), theirs.checksum());
            match theirs.icmp_type() {
                etherparse::Icmpv4Type::EchoRequest(echo) | etherparse::Icmpv4Type::EchoReply(echo) => {
                    prop_assert!(kind::has_id(named.0));
                    prop_assert_eq!(view.id(), echo.id);
                }
                etherparse::Icmpv4Type::DestinationUnreachable(
                    etherparse::icmpv4::DestUnreachableHeader::FragmentationNeeded { next_hop_mtu },
                ) => prop_assert_eq!(view.mtu(), u32::from(next_hop_mtu)),
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
