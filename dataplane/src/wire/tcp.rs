//! TCP (RFC 9293, section 3.1).

use std::mem::offset_of;

use zerocopy::network_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// A header without its options.
#[derive(Debug, Clone, Copy, Default, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Header {
    /// The source port.
    pub source_port: U16,
    /// The destination port.
    pub destination_port: U16,
    /// The number of the first byte of payload (or of SYN).
    pub sequence: U32,
    /// The number of the next byte that the sender expects.
    pub acknowledgment: U32,
    /// In the upper half: the length of the header with its options, in units of four bytes.
    pub data_offset: u8,
    /// See [`flag`].
    pub flags: u8,
    /// The number of bytes that the sender can receive.
    pub window: U16,
    /// The checksum.
    pub checksum: U16,
    /// The end of urgent data.
    pub urgent: U16,
}

/// The length of a header without options, in bytes.
pub const HEADER_LEN: usize = size_of::<Header>();
/// The checksum's offset in the header.
pub const CHECKSUM_OFFSET: usize = offset_of!(Header, checksum);

/// A segment.
pub type View = super::view::View<Header>;

impl super::view::Header for Header {
    #[inline]
    fn header_len(&self) -> usize {
        usize::from(self.data_offset >> 4) * 4
    }
}

/// The bits of the byte of flags.
pub mod flag {
    /// No more data from the sender.
    pub const FIN: u8 = 0x01;
    /// Synchronize sequence numbers.
    pub const SYN: u8 = 0x02;
    /// Reset the connection.
    pub const RST: u8 = 0x04;
    /// Push.
    pub const PSH: u8 = 0x08;
    /// The acknowledgment is significant.
    pub const ACK: u8 = 0x10;
    /// ECN echo (RFC 3168, section 6.1).
    pub const ECE: u8 = 0x40;
    /// Congestion window reduced (RFC 3168, section 6.1).
    pub const CWR: u8 = 0x80;
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::arbitrary;
    use super::*;

    proptest! {
        #[test]
        fn no_accessor_panics(bytes: Vec<u8>) {
            if let Ok(view) = View::new_checked(&bytes) {
                let _ = (view.source_port.get(), view.destination_port.get(), view.sequence.get());
                let _ = (view.flags, view.checksum.get(), view.options(), view.payload());
            }
        }

        #[test]
        fn etherparse_reads_the_same(bytes in arbitrary::tcp()) {
            let view = View::new_checked(&bytes).unwrap();
            let theirs = etherparse::TcpSlice::from_slice(&bytes).unwrap();
            prop_assert_eq!(view.source_port.get(), theirs.source_port());
            prop_assert_eq!(view.destination_port.get(), theirs.destination_port());
            prop_assert_eq!(view.sequence.get(), theirs.sequence_number());
            prop_assert_eq!(view.flags & flag::SYN != 0, theirs.syn());
            prop_assert_eq!(view.flags & flag::CWR != 0, theirs.cwr());
            prop_assert_eq!(view.checksum.get(), theirs.checksum());
            prop_assert_eq!(view.options(), theirs.options());
            prop_assert_eq!(view.payload(), theirs.payload());
        }
    }

    #[test]
    fn lengths_that_contradict_are_refused() {
        let mut bytes = [0; 24];
        for (offset, fits) in [(4u8, false), (5, true), (6, true), (7, false)] {
            bytes[12] = offset << 4;
            assert_eq!(View::new_checked(&bytes).is_ok(), fits, "data offset {offset}");
        }
    }
}
