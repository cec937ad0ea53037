//! Ethernet II (IEEE 802.3, clause 3), untagged.

use zerocopy::network_endian::U16;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned, transmute};

/// The header.
#[derive(Debug, Clone, Copy, Default, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Header {
    /// The destination's hardware address.
    pub destination: [u8; 6],
    /// The source's hardware address.
    pub source: [u8; 6],
    /// The protocol of the payload, see [`ethertype`].
    pub ethertype: U16,
}

/// The length of the header, in bytes.
pub const HEADER_LEN: usize = size_of::<Header>();

/// A frame. The link's padding is part of its payload.
pub type View = super::view::View<Header>;

impl super::view::Header for Header {}

/// Kinds of payload (IEEE 802 numbers, as IANA lists them).
pub mod ethertype {
    /// IPv4.
    pub const IPV4: u16 = 0x0800;
    /// ARP.
    pub const ARP: u16 = 0x0806;
    /// IPv6.
    pub const IPV6: u16 = 0x86dd;
}

/// The header of a frame that this program sends.
pub fn header(destination: [u8; 6], source: [u8; 6], ethertype: u16) -> [u8; HEADER_LEN] {
    transmute!(Header { destination, source, ethertype: ethertype.into() })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn no_accessor_panics(bytes: Vec<u8>) {
            if let Ok(view) = View::new_checked(&bytes) {
                let _ = (view.destination, view.source, view.ethertype.get(), view.payload());
            }
        }

        #[test]
        fn etherparse_reads_the_same(bytes: [u8; HEADER_LEN]) {
            let view = View::new_checked(&bytes).unwrap();
            let (theirs, _) = etherparse::Ethernet2Header::from_slice(&bytes).unwrap();
            prop_assert_eq!(view.destination, theirs.destination);
            prop_assert_eq!(view.source, theirs.source);
            prop_assert_eq!(view.ethertype.get(), theirs.ether_type.0);
        }

        #[test]
        fn a_header_reads_as_it_was_made(destination: [u8; 6], source: [u8; 6], kind: u16) {
            let bytes = header(destination, source, kind);
            let view = View::new_checked(&bytes).unwrap();
            prop_assert_eq!(view.destination, destination);
            prop_assert_eq!(view.source, source);
            prop_assert_eq!(view.ethertype.get(), kind);
        }
    }
}
