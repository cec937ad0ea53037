//! IPv6's fixed header (RFC 8200, section 3). What follows it is walked in [`super::extension`].

use super::{Ecn, Malformed, array_at, put, u16_at};

mod field {
    use std::ops::Range;

    pub(super) const VERSION_CLASS: Range<usize> = 0..2;
    pub(super) const PAYLOAD_LEN: Range<usize> = 4..6;
    pub(super) const NEXT_HEADER: usize = 6;
    pub(super) const HOP_LIMIT: usize = 7;
    pub(super) const SOURCE: Range<usize> = 8..24;
    pub(super) const DESTINATION: Range<usize> = 24..40;
}

/// Length of the fixed header.
pub const HEADER_LEN: usize = 40;

/// The header of a packet that this program originates: traffic class and flow label 0.
pub fn header(
    source: [u8; 16],
    destination: [u8; 16],
    next_header: u8,
    hop_limit: u8,
    payload_len: u16,
) -> [u8; HEADER_LEN] {
    let mut header = [0; HEADER_LEN];
    header[0] = 0x60;
    put(&mut header, field::PAYLOAD_LEN, &payload_len.to_be_bytes());
    header[field::NEXT_HEADER] = next_header;
    header[field::HOP_LIMIT] = hop_limit;
    put(&mut header, field::SOURCE, &source);
    put(&mut header, field::DESTINATION, &destination);
    header
}

/// A packet.
#[derive(Debug, Clone, Copy)]
pub struct View<T>(T);

impl<T: AsRef<[u8]>> View<T> {
    /// Checks version and payload length against the bytes; what follows the payload is the link's padding. A jumbogram
    /// (RFC 2675) states no length and so holds nothing.
    #[inline]
    pub fn new_checked(bytes: T) -> Result<Self, Malformed> {
        let view = Self::new_quoted(bytes)?;
        if view.total_len() > view.0.as_ref().len() {
            return Err(Malformed);
        }
        Ok(view)
    }

    /// As [`View::new_checked`], but the payload may be cut short, as a packet quoted in an ICMP error is.
    #[inline]
    pub fn new_quoted(bytes: T) -> Result<Self, Malformed> {
        let b = bytes.as_ref();
        if b.len() < HEADER_LEN || b[0] >> 4 != 6 {
            return Err(Malformed);
        }
        Ok(Self(bytes))
    }

    /// Differentiated services code point.
    #[inline]
    pub fn dscp(&self) -> u8 {
        (self.version_class() >> 6) as u8 & 0x3f
    }

    /// Congestion notification.
    #[inline]
    pub fn ecn(&self) -> Ecn {
        Ecn::from_bits((self.version_class() >> 4) as u8)
    }

    /// Length of what follows the fixed header, in bytes.
    #[inline]
    pub fn payload_len(&self) -> u16 {
        u16_at(self.0.as_ref(), field::PAYLOAD_LEN)
    }

    /// Length of the fixed header and what follows it, in bytes.
    #[inline]
    pub fn total_len(&self) -> usize {
        HEADER_LEN + usize::from(self.payload_len())
    }

    /// What the payload begins with ([`super::extension`], [`super::protocol`]).
    #[inline]
    pub fn next_header(&self) -> u8 {
        self.0.as_ref()[field::NEXT_HEADER]
    }

    /// Hops left.
    #[inline]
    pub fn hop_limit(&self) -> u8 {
        self.0.as_ref()[field::HOP_LIMIT]
    }

    /// Where it comes from.
    #[inline]
    pub fn source(&self) -> [u8; 16] {
        array_at(self.0.as_ref(), field::SOURCE)
    }

    /// Where it goes to.
    #[inline]
    pub fn destination(&self) -> [u8; 16] {
        array_at(self.0.as_ref(), field::DESTINATION)
    }

    /// What follows the fixed header, up to the payload length.
    #[inline]
    pub fn payload(&self) -> &[u8] {
        let bytes = self.0.as_ref();
        &bytes[HEADER_LEN..self.total_len().min(bytes.len())]
    }

    #[inline]
    fn version_class(&self) -> u16 {
        u16_at(self.0.as_ref(), field::VERSION_CLASS)
    }
}

impl<T: AsRef<[u8]> + AsMut<[u8]>> View<T> {
    /// Sets the congestion notification.
    #[inline]
    pub fn set_ecn(&mut self, ecn: Ecn) {
        let word = self.version_class() & !0x30 | (ecn as u16) << 4;
        put(self.0.as_mut(), field::VERSION_CLASS, &word.to_be_bytes());
    }

    /// Sets the hops left.
    #[inline]
    pub fn set_hop_limit(&mut self, hops: u8) {
        self.0.as_mut()[field::HOP_LIMIT] = hops;
    }

    /// What follows the fixed header, up to the payload length, to change.
    #[inline]
    pub fn payload_mut(&mut self) -> &mut [u8] {
        let end = self.total_len().min(self.0.as_ref().len());
        &mut self.0.as_mut()[HEADER_LEN..end]
    }
}

#[cfg(test)]
mod tests {
    use etherparse::Ipv6HeaderSlice;
    use proptest::prelude::*;

    use super::super::arbitrary;
    use super::*;

    proptest! {
        #[test]
        fn no_accessor_panics(mut bytes: Vec<u8>, first in 0x60u8..0x70) {
            if let Some(b) = bytes.first_mut() {
                *b = first;
            }
            for view in [View::new_checked(&bytes), View::new_quoted(&bytes)].into_iter().flatten() {
                let _ = (view.dscp(), view.ecn(), view.next_header(), view.hop_limit());
                let _ = (view.source(), view.destination(), view.total_len(), view.payload());
            }
        }

        #[test]
        fn etherparse_reads_the_same(bytes in arbitrary::packet6()) {
            let view = View::new_checked(&bytes).unwrap();
            let theirs = Ipv6HeaderSlice::from_slice(&bytes).unwrap();
            prop_assert_eq!(view.dscp(), theirs.dscp().value());
            prop_assert_eq!(view.ecn() as u8, theirs.ecn().value());
            prop_assert_eq!(view.payload_len(), theirs.payload_length());
            prop_assert_eq!(view.next_header(), theirs.next_header().0);
            prop_assert_eq!(view.hop_limit(), theirs.hop_limit());
            prop_assert_eq!(view.source(), theirs.source());
            prop_assert_eq!(view.destination(), theirs.destination());
        }

        #[test]
        fn what_is_set_is_read_back(mut bytes in arbitrary::packet6(), ecn: u8, hops: u8) {
            let before = bytes.clone();
            let mut view = View::new_checked(&mut bytes[..]).unwrap();
            view.set_ecn(Ecn::from_bits(ecn));
            view.set_hop_limit(hops);
            prop_assert_eq!(view.ecn(), Ecn::from_bits(ecn));
            prop_assert_eq!(view.hop_limit(), hops);
            let before = View::new_checked(before).unwrap();
            prop_assert_eq!(view.dscp(), before.dscp());
            prop_assert_eq!(view.source(), before.source());
        }
    }

    #[test]
    fn lengths_that_contradict_are_refused() {
        let mut header = [0; 44];
        for (first, payload, fits) in
            [(0x60, 4u16, true), (0x60, 5, false), (0x60, 0, true), (0x40, 4, false)]
        {
            header[0] = first;
            put(&mut header, field::PAYLOAD_LEN, &payload.to_be_bytes());
            assert_eq!(View::new_checked(header).is_ok(), fits, "{first:#x}, payload {payload}");
        }
    }
}
