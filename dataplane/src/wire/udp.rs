//! UDP (RFC 768).

use std::mem::offset_of;

use zerocopy::network_endian::U16;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The header.
#[derive(Debug, Clone, Copy, Default, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Header {
    /// The source port.
    pub source_port: U16,
    /// The destination port.
    pub destination_port: U16,
    /// The length of header and payload, in bytes.
    pub len: U16,
    /// The checksum; 0 over IPv4 means that there is none, and a computed 0 is sent as 0xffff.
    pub checksum: U16,
}

/// The length of the header, in bytes.
pub const HEADER_LEN: usize = size_of::<Header>();
/// The checksum's offset in the header.
pub const CHECKSUM_OFFSET: usize = offset_of!(Header, checksum);

/// A datagram. Bytes after its length do not belong to the datagram.
pub type View = super::view::View<Header>;

impl super::view::Header for Header {
    #[inline]
    fn stated_len(&self) -> Option<usize> {
        Some(self.len.get().into())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::arbitrary;
    use super::*;

    proptest! {
        #[test]
        fn no_accessor_panics(bytes: Vec<u8>) {
            for view in [View::new_checked(&bytes), View::new_quoted(&bytes)].into_iter().flatten() {
                let _ = (view.source_port.get(), view.destination_port.get(), view.len.get(), view.checksum.get());
                let _ = view.payload();
            }
        }

        #[test]
        fn etherparse_reads_the_same(bytes in arbitrary::udp()) {
            let view = View::new_checked(&bytes).unwrap();
            let theirs = etherparse::UdpSlice::from_slice(&bytes).unwrap();
            prop_assert_eq!(view.source_port.get(), theirs.source_port());
            prop_assert_eq!(view.destination_port.get(), theirs.destination_port());
            prop_assert_eq!(view.len.get(), theirs.length());
            prop_assert_eq!(view.checksum.get(), theirs.checksum());
            prop_assert_eq!(view.payload(), theirs.payload());
        }
    }

    #[test]
    fn lengths_that_contradict_are_refused() {
        let mut bytes = [0; 12];
        for (len, fits) in [(7u16, false), (8, true), (12, true), (13, false)] {
            bytes[4..6].copy_from_slice(&len.to_be_bytes());
            assert_eq!(View::new_checked(&bytes).is_ok(), fits, "length {len}");
        }
    }
}
