//! Ethernet II (IEEE 802.3, clause 3), untagged.

use super::{Malformed, array_at, put, u16_at};

mod field {
    use std::ops::Range;

    pub(super) const DESTINATION: Range<usize> = 0..6;
    pub(super) const SOURCE: Range<usize> = 6..12;
    pub(super) const ETHERTYPE: Range<usize> = 12..14;
}

/// Length of the header.
pub const HEADER_LEN: usize = 14;

/// What follows the header (IEEE 802 numbers, as IANA lists them).
pub mod ethertype {
    /// IPv4.
    pub const IPV4: u16 = 0x0800;
    /// ARP.
    pub const ARP: u16 = 0x0806;
    /// IPv6.
    pub const IPV6: u16 = 0x86dd;
}

/// The header of a frame that this program makes.
pub fn header(destination: [u8; 6], source: [u8; 6], ethertype: u16) -> [u8; HEADER_LEN] {
    let mut header = [0; HEADER_LEN];
    put(&mut header, field::DESTINATION, &destination);
    put(&mut header, field::SOURCE, &source);
    put(&mut header, field::ETHERTYPE, &ethertype.to_be_bytes());
    header
}

/// A frame.
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

    /// Hardware address it goes to.
    #[inline]
    pub fn destination(&self) -> [u8; 6] {
        array_at(self.0.as_ref(), field::DESTINATION)
    }

    /// Hardware address it comes from.
    #[inline]
    pub fn source(&self) -> [u8; 6] {
        array_at(self.0.as_ref(), field::SOURCE)
    }

    /// What the payload is.
    #[inline]
    pub fn ethertype(&self) -> u16 {
        u16_at(self.0.as_ref(), field::ETHERTYPE)
    }

    /// What follows the header, padding included.
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
                let _ = (view.destination(), view.source(), view.ethertype(), view.payload());
            }
        }

        #[test]
        fn etherparse_reads_the_same(bytes: [u8; HEADER_LEN]) {
            let view = View::new_checked(bytes).unwrap();
            let (theirs, _) = etherparse::Ethernet2Header::from_slice(&bytes).unwrap();
            prop_assert_eq!(view.destination(), theirs.destination);
            prop_assert_eq!(view.source(), theirs.source);
            prop_assert_eq!(view.ethertype(), theirs.ether_type.0);
        }

        #[test]
        fn a_header_reads_as_it_was_made(destination: [u8; 6], source: [u8; 6], kind: u16) {
            let view = View::new_checked(header(destination, source, kind)).unwrap();
            prop_assert_eq!(view.destination(), destination);
            prop_assert_eq!(view.source(), source);
            prop_assert_eq!(view.ethertype(), kind);
        }
    }
}
