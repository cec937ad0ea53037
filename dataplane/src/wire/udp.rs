//! UDP (RFC 768).

use super::{Malformed, put, u16_at};

mod field {
    use std::ops::Range;

    pub(super) const SOURCE_PORT: Range<usize> = 0..2;
    pub(super) const DESTINATION_PORT: Range<usize> = 2..4;
    pub(super) const LEN: Range<usize> = 4..6;
    pub(super) const CHECKSUM: Range<usize> = 6..8;
}

/// Length of the header.
pub const HEADER_LEN: usize = 8;
/// Where in the header the checksum stands.
pub const CHECKSUM_OFFSET: usize = field::CHECKSUM.start;

/// A datagram.
#[derive(Debug, Clone, Copy)]
pub struct View<T>(T);

impl<T: AsRef<[u8]>> View<T> {
    /// Checks the length against the bytes; what follows it is not UDP's.
    #[inline]
    pub fn new_checked(bytes: T) -> Result<Self, Malformed> {
        let view = Self::new_quoted(bytes)?;
        let len = usize::from(view.len());
        if len < HEADER_LEN || len > view.0.as_ref().len() {
            return Err(Malformed);
        }
        Ok(view)
    }

    /// As [`View::new_checked`], but the payload may be cut short: in a first fragment, or quoted in an ICMP error.
    #[inline]
    pub fn new_quoted(bytes: T) -> Result<Self, Malformed> {
        if bytes.as_ref().len() < HEADER_LEN {
            return Err(Malformed);
        }
        Ok(Self(bytes))
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

    /// Length of header and payload, in bytes.
    #[expect(clippy::len_without_is_empty, reason = "a field of the header, never below eight")]
    #[inline]
    pub fn len(&self) -> u16 {
        u16_at(self.0.as_ref(), field::LEN)
    }

    /// The checksum, as it stands there; 0 over IPv4 means that there is none.
    #[inline]
    pub fn checksum(&self) -> u16 {
        u16_at(self.0.as_ref(), field::CHECKSUM)
    }

    /// What follows the header, up to the length.
    #[inline]
    pub fn payload(&self) -> &[u8] {
        let bytes = self.0.as_ref();
        &bytes[HEADER_LEN..usize::from(self.len()).clamp(HEADER_LEN, bytes.len())]
    }
}

impl<T: AsRef<[u8]> + AsMut<[u8]>> View<T> {
    /// Sets the length. It is for the caller to have as many bytes.
    #[inline]
    pub fn set_len(&mut self, len: u16) {
        put(self.0.as_mut(), field::LEN, &len.to_be_bytes());
    }

    /// Sets the checksum; a computed 0 is sent as 0xffff.
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
            for view in [View::new_checked(&bytes), View::new_quoted(&bytes)].into_iter().flatten() {
                let _ = (view.source_port(), view.destination_port(), view.len(), view.checksum());
                let _ = view.payload();
            }
        }

        #[test]
        fn etherparse_reads_the_same(bytes in arbitrary::udp()) {
            let view = View::new_checked(&bytes).unwrap();
            let theirs = etherparse::UdpSlice::from_slice(&bytes).unwrap();
            prop_assert_eq!(view.source_port(), theirs.source_port());
            prop_assert_eq!(view.destination_port(), theirs.destination_port());
            prop_assert_eq!(view.len(), theirs.length());
            prop_assert_eq!(view.checksum(), theirs.checksum());
            prop_assert_eq!(view.payload(), theirs.payload());
        }

        #[test]
        fn what_is_set_is_read_back(mut bytes in arbitrary::udp(), len: u16, checksum: u16) {
            let mut view = View::new_checked(&mut bytes[..]).unwrap();
            view.set_len(len);
            view.set_checksum(checksum);
            prop_assert_eq!((view.len(), view.checksum()), (len, checksum));
        }
    }

    #[test]
    fn lengths_that_contradict_are_refused() {
        let mut bytes = [0; 12];
        for (len, fits) in [(7u16, false), (8, true), (12, true), (13, false)] {
            put(&mut bytes, field::LEN, &len.to_be_bytes());
            assert_eq!(View::new_checked(bytes).is_ok(), fits, "length {len}");
        }
    }
}
