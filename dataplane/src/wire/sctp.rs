//! SCTP's common header (RFC 9260, section 3.1). Its checksum is a CRC-32C that covers no address: nothing that a
//! forwarder changes touches it.

use super::{Malformed, u16_at, u32_at};

mod field {
    use std::ops::Range;

    pub(super) const SOURCE_PORT: Range<usize> = 0..2;
    pub(super) const DESTINATION_PORT: Range<usize> = 2..4;
    pub(super) const CHECKSUM: Range<usize> = 8..12;
}

/// Length of the common header.
pub const HEADER_LEN: usize = 12;

/// A packet.
#[derive(Debug, Clone, Copy)]
pub struct View<T>(T);

impl<T: AsRef<[u8]>> View<T> {
    /// Checks that the common header is there.
    #[inline]
    pub fn new_checked(bytes: T) -> Result<Self, Malformed> {
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

    /// The CRC-32C, as it stands there.
    #[inline]
    pub fn checksum(&self) -> u32 {
        u32_at(self.0.as_ref(), field::CHECKSUM)
    }

    /// The chunks.
    #[inline]
    pub fn payload(&self) -> &[u8] {
        &self.0.as_ref()[HEADER_LEN..]
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
                let _ = (view.source_port(), view.destination_port(), view.checksum());
                let _ = view.payload();
            }
        }
    }

    #[test]
    fn reads_what_stands_there() {
        let view = View::new_checked([0x0f, 0xa0, 0x13, 0x88, 1, 2, 3, 4, 5, 6, 7, 8, 1]).unwrap();
        assert_eq!((view.source_port(), view.destination_port()), (4000, 5000));
        assert_eq!(view.checksum(), 0x0506_0708);
        assert_eq!(view.payload(), [1]);
        assert!(View::new_checked([0; 11]).is_err());
    }
}
