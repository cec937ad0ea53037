//! Neighbour discovery (RFC 4861) as far as a gateway answers it: a solicitation's target, and the advertisement.

use super::{Malformed, array_at, icmpv6, put};

mod field {
    use std::ops::Range;

    pub(super) const KIND: usize = 0;
    pub(super) const CODE: usize = 1;
    pub(super) const FLAGS: usize = 4;
    pub(super) const TARGET: Range<usize> = 8..24;
    pub(super) const OPTION: Range<usize> = 24..26;
    pub(super) const LINK_ADDRESS: Range<usize> = 26..32;
}

/// Length of a solicitation without options.
pub const SOLICITATION_LEN: usize = 24;
/// Length of an advertisement with the target's link-layer address.
pub const ADVERTISEMENT_LEN: usize = 32;
/// What every message carries, so that a router cannot have passed it on (section 7.1.1).
pub const HOP_LIMIT: u8 = 255;
/// Router, solicited, override (section 4.4).
const ADVERTISED_FLAGS: u8 = 0xe0;
/// Option: target link-layer address, one unit of eight bytes (section 4.6.1).
const TARGET_LINK_ADDRESS: [u8; 2] = [2, 1];

/// A neighbour solicitation, from ICMPv6's header on.
#[derive(Debug, Clone, Copy)]
pub struct View<T>(T);

impl<T: AsRef<[u8]>> View<T> {
    /// Checks type, code and length.
    #[inline]
    pub fn new_checked(bytes: T) -> Result<Self, Malformed> {
        match bytes.as_ref() {
            b if b.len() >= SOLICITATION_LEN
                && b[field::KIND] == icmpv6::kind::NEIGHBOUR_SOLICITATION
                && b[field::CODE] == 0 =>
            {
                Ok(Self(bytes))
            }
            _ => Err(Malformed),
        }
    }

    /// The address asked for.
    #[inline]
    pub fn target(&self) -> [u8; 16] {
        array_at(self.0.as_ref(), field::TARGET)
    }

    /// The answer: the target is at `hardware`, and is a router. Its checksum is yet to be filled in.
    pub fn advertisement(&self, hardware: [u8; 6]) -> [u8; ADVERTISEMENT_LEN] {
        let mut message = [0; ADVERTISEMENT_LEN];
        message[field::KIND] = icmpv6::kind::NEIGHBOUR_ADVERTISEMENT;
        message[field::FLAGS] = ADVERTISED_FLAGS;
        put(&mut message, field::TARGET, &self.target());
        put(&mut message, field::OPTION, &TARGET_LINK_ADDRESS);
        put(&mut message, field::LINK_ADDRESS, &hardware);
        message
    }
}

#[cfg(test)]
mod tests {
    use etherparse::{Icmpv6Slice, Icmpv6Type};
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn no_accessor_panics(mut bytes: Vec<u8>) {
            if bytes.len() > 1 {
                bytes[..2].copy_from_slice(&[icmpv6::kind::NEIGHBOUR_SOLICITATION, 0]);
            }
            if let Ok(view) = View::new_checked(&bytes) {
                let _ = (view.target(), view.advertisement([0; 6]));
            }
        }

        #[test]
        fn etherparse_reads_the_same(target: [u8; 16], hardware: [u8; 6]) {
            let mut question = [0; SOLICITATION_LEN];
            question[field::KIND] = icmpv6::kind::NEIGHBOUR_SOLICITATION;
            put(&mut question, field::TARGET, &target);
            let answer = View::new_checked(question).unwrap().advertisement(hardware);
            let theirs = Icmpv6Slice::from_slice(&answer).unwrap();
            let Icmpv6Type::NeighborAdvertisement(header) = theirs.icmp_type() else {
                panic!("{:?}", theirs.icmp_type());
            };
            prop_assert!(header.router && header.solicited && header.r#override);
            prop_assert_eq!(&answer[field::TARGET], target);
            prop_assert_eq!(&answer[field::LINK_ADDRESS], hardware);
        }
    }
}
