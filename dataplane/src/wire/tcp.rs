//! TCP (RFC 9293, section 3.1).

use super::{Malformed, put, u16_at, u32_at};

mod field {
    use std::ops::Range;

    pub(super) const SOURCE_PORT: Range<usize> = 0..2;
    pub(super) const DESTINATION_PORT: Range<usize> = 2..4;
    pub(super) const SEQUENCE: Range<usize> = 4..8;
    pub(super) const DATA_OFFSET: usize = 12;
    pub(super) const FLAGS: usize = 13;
    pub(super) const CHECKSUM: Range<usize> = 16..18;
}

/// Length of a header without options.
pub const HEADER_LEN: usize = 20;
/// Where in the header the checksum stands.
pub const CHECKSUM_OFFSET: usize = field::CHECKSUM.start;

/// Bits of the flags' byte.
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

/// A segment.
#[derive(Debug, Clone, Copy)]
pub struct View<T>(T);

impl<T: AsRef<[u8]>> View<T> {
    /// Checks that the header is there, with its options.
    #[inline]
    pub fn new_checked(bytes: T) -> Result<Self, Malformed> {
        if bytes.as_ref().len() < HEADER_LEN {
            return Err(Malformed);
        }
        let view = Self(bytes);
        let header_len = view.header_len();
        if header_len < HEADER_LEN || header_len > view.0.as_ref().len() {
            return Err(Malformed);
        }
        Ok(view)
    }

    /// Port it comes from.
    #[inline]
    pub fn source_port(&self) -> u16 {
        u16_at(self.0.as_ref(), field::SOURCE_PORT)
    }

    /// Port it goes to.
    #[inline]
    pub fn destination_port(&self) -> u16 {
        u16_at(self.0.as_ref(), field::DESTINATION_PORT)
    }

    /// Number of the first byte of payload (or of SYN).
    #[inline]
    pub fn sequence(&self) -> u32 {
        u32_at(self.0.as_ref(), field::SEQUENCE)
    }

    /// Length of the header with its options, in bytes.
    #[inline]
    pub fn header_len(&self) -> usize {
        usize::from(self.0.as_ref()[field::DATA_OFFSET] >> 4) * 4
    }

    /// See [`flag`].
    #[inline]
    pub fn flags(&self) -> u8 {
        self.0.as_ref()[field::FLAGS]
    }

    /// The checksum, as it stands there.
    #[inline]
    pub fn checksum(&self) -> u16 {
        u16_at(self.0.as_ref(), field::CHECKSUM)
    }

    /// The options, padding included.
    #[inline]
    pub fn options(&self) -> &[u8] {
        &self.0.as_ref()[HEADER_LEN..self.header_len()]
    }

    /// What follows the header.
    #[inline]
    pub fn payload(&self) -> &[u8] {
        &self.0.as_ref()[self.header_len()..]
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

    use super::super::arbitrary;
    use super::*;

    proptest! {
        #[test]
        fn no_accessor_panics(bytes: Vec<u8>) {
            if let Ok(view) = View::new_checked(&bytes) {
                let _ = (view.source_port(), view.destination_port(), view.sequence());
                let _ = (view.flags(), view.checksum(), view.options(), view.payload());
            }
        }

        #[test]
        fn etherparse_reads_the_same(bytes in arbitrary::tcp()) {
            let view = View::new_checked(&bytes).unwrap();
            let theirs = etherparse::TcpSlice::from_slice(&bytes).unwrap();
            prop_assert_eq!(view.source_port(), theirs.source_port());
            prop_assert_eq!(view.destination_port(), theirs.destination_port());
            prop_assert_eq!(view.sequence(), theirs.sequence_number());
            prop_assert_eq!(view.flags() & flag::SYN != 0, theirs.syn());
            prop_assert_eq!(view.flags() & flag::CWR != 0, theirs.cwr());
            prop_assert_eq!(view.checksum(), theirs.checksum());
            prop_assert_eq!(view.options(), theirs.options());
            prop_assert_eq!(view.payload(), theirs.payload());
        }

        #[test]
        fn what_is_set_is_read_back(mut bytes in arbitrary::tcp(), checksum: u16) {
            let mut view = View::new_checked(&mut bytes[..]).unwrap();
            view.set_checksum(checksum);
            prop_assert_eq!(view.checksum(), checksum);
        }
    }

    #[test]
    fn lengths_that_contradict_are_refused() {
        let mut bytes = [0; 24];
        for (offset, fits) in [(4u8, false), (5, true), (6, true), (7, false)] {
            bytes[field::DATA_OFFSET] = offset << 4;
            assert_eq!(View::new_checked(bytes).is_ok(), fits, "data offset {offset}");
        }
    }
}
