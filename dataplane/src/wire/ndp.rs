//! The part of neighbour discovery (RFC 4861) that a gateway answers or a relay checks: the target of a solicitation or
//! an advertisement, and the gateway's own advertisement.

use zerocopy::network_endian::U32;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::icmpv6;

/// A neighbour solicitation or advertisement without options, starting at the ICMPv6 header.
#[derive(Debug, Clone, Copy, Default, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Header {
    /// ICMPv6's header. In an advertisement, its last four bytes are flags (section 4.4).
    pub icmp: icmpv6::Header,
    /// The address that the message is about.
    pub target: [u8; 16],
}

/// A neighbour advertisement with the target's link-layer address.
#[derive(Debug, Clone, Copy, Default, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Advertisement {
    /// The message without options.
    pub header: Header,
    option: [u8; 2],
    link_address: [u8; 6],
}

/// The length of an advertisement, in bytes.
pub const ADVERTISEMENT_LEN: usize = size_of::<Advertisement>();
/// The hop limit of every message. It shows that no router has forwarded the message (section 7.1.1).
pub const HOP_LIMIT: u8 = 255;
/// Router, solicited, override (section 4.4).
const ADVERTISED_FLAGS: u32 = 0xe000_0000;
/// The option of the target's link-layer address: its type, and its length of one unit of eight bytes (section 4.6.1).
const TARGET_LINK_ADDRESS: [u8; 2] = [2, 1];

/// The types of options (section 4.6.1, and RFC 3971, section 5.3.2).
pub mod option {
    /// Source link-layer address.
    pub const SOURCE_LINK_ADDRESS: u8 = 1;
    /// Target link-layer address.
    pub const TARGET_LINK_ADDRESS: u8 = 2;
    /// Nonce, by which a sender recognizes its own message (RFC 7527).
    pub const NONCE: u8 = 14;
}

/// The options of a message: each with its type and the bytes after type and length. An option that is cut short or has
/// no length gives `None`, and ends the options.
#[derive(Debug, Clone)]
pub struct Options<'a>(pub &'a [u8]);

impl<'a> Iterator for Options<'a> {
    type Item = Option<(u8, &'a [u8])>;

    fn next(&mut self) -> Option<Self::Item> {
        let bytes = std::mem::take(&mut self.0);
        let (kind, units) = match bytes {
            [] => return None,
            [kind, units, ..] if *units > 0 => (*kind, usize::from(*units)),
            _ => return Some(None),
        };
        let Some((one, rest)) = bytes.split_at_checked(8 * units) else { return Some(None) };
        self.0 = rest;
        Some(Some((kind, &one[2..])))
    }
}

/// A neighbour solicitation or advertisement. Its payload holds the options.
pub type View = super::view::View<Header>;

impl super::view::Header for Header {
    /// Whether type and code are those of a solicitation or an advertisement.
    #[inline]
    fn is_valid(&self) -> bool {
        use icmpv6::kind::{NEIGHBOUR_ADVERTISEMENT, NEIGHBOUR_SOLICITATION};
        matches!(self.icmp.kind, NEIGHBOUR_SOLICITATION | NEIGHBOUR_ADVERTISEMENT)
            && self.icmp.code == 0
    }
}

impl Header {
    /// The answer to a solicitation: the target is at the hardware address `hardware`, and is a router. The caller
    /// fills in the checksum.
    pub fn advertisement(&self, hardware: [u8; 6]) -> Advertisement {
        let icmp = icmpv6::Header {
            kind: icmpv6::kind::NEIGHBOUR_ADVERTISEMENT,
            mtu: U32::new(ADVERTISED_FLAGS),
            ..icmpv6::Header::default()
        };
        let header = Self { icmp, target: self.target };
        Advertisement { header, option: TARGET_LINK_ADDRESS, link_address: hardware }
    }
}

#[cfg(test)]
mod tests {
    use etherparse::{Icmpv6Slice, Icmpv6Type};
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn options_end_with_the_bytes_or_with_one_that_is_wrong() {
        let read =
            |bytes: &[u8]| Options(bytes).map(|it| it.map(|(kind, _)| kind)).collect::<Vec<_>>();
        let two = [[1, 1, 2, 3, 4, 5, 6, 7], [14, 1, 0, 0, 0, 0, 0, 0]].concat();
        assert_eq!(read(&two), [Some(1), Some(14)]);
        assert_eq!(Options(&two).next(), Some(Some((1, &[2, 3, 4, 5, 6, 7][..]))));
        assert_eq!(read(&two[..15]), [Some(1), None]);
        assert_eq!(read(&[1]), [None]);
        assert_eq!(read(&[1, 0, 0, 0, 0, 0, 0, 0]), [None], "no length");
        assert_eq!(read(&[1, 2, 0, 0, 0, 0, 0, 0]), [None]);
        assert_eq!(read(&[]), []);
    }

    proptest! {
        #[test]
        fn no_accessor_panics(mut bytes: Vec<u8>) {
            if bytes.len() > 1 {
                bytes[..2].copy_from_slice(&[icmpv6::kind::NEIGHBOUR_SOLICITATION, 0]);
            }
            if let Ok(view) = View::new_checked(&bytes) {
                let _ = (view.target, view.advertisement([0; 6]));
            }
        }

        #[test]
        fn etherparse_reads_the_same(target: [u8; 16], hardware: [u8; 6]) {
            let mut question = [0; 24];
            question[0] = icmpv6::kind::NEIGHBOUR_SOLICITATION;
            question[8..].copy_from_slice(&target);
            let answer = View::new_checked(&question).unwrap().advertisement(hardware);
            let theirs = Icmpv6Slice::from_slice(answer.as_bytes()).unwrap();
            let Icmpv6Type::NeighborAdvertisement(header) = theirs.icmp_type() else {
                panic!("{:?}", theirs.icmp_type());
            };
            prop_assert!(header.router && header.solicited && header.r#override);
            prop_assert_eq!(&answer.as_bytes()[8..24], target);
            prop_assert_eq!(&answer.as_bytes()[26..], hardware);
        }
    }
}
