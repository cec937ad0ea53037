//! IPv4 (RFC 791; DSCP RFC 2474; ECN RFC 3168).

use super::{Ecn, Malformed, array_at, put, u16_at};
use crate::checksum;

pub(crate) mod field {
    use std::ops::Range;

    pub(crate) const VERSION_IHL: usize = 0;
    pub(crate) const DSCP_ECN: usize = 1;
    pub(crate) const TOTAL_LEN: Range<usize> = 2..4;
    pub(crate) const ID: Range<usize> = 4..6;
    pub(crate) const FLAGS_OFFSET: Range<usize> = 6..8;
    pub(crate) const TTL: usize = 8;
    pub(crate) const PROTOCOL: usize = 9;
    pub(crate) const CHECKSUM: Range<usize> = 10..12;
    pub(crate) const SOURCE: Range<usize> = 12..16;
    pub(crate) const DESTINATION: Range<usize> = 16..20;
}

/// Length of a header without options.
pub const HEADER_LEN: usize = 20;
/// In the word of flags and offset: must not be fragmented.
pub const DONT_FRAGMENT: u16 = 0x4000;
/// In the word of flags and offset: not the last fragment.
pub const MORE_FRAGMENTS: u16 = 0x2000;
/// In the word of flags and offset: the offset, in units of eight bytes.
pub const OFFSET_MASK: u16 = 0x1fff;

/// A packet.
#[derive(Debug, Clone, Copy)]
pub struct View<T>(T);

impl<T: AsRef<[u8]>> View<T> {
    /// Checks version, header length and total length against each other and the bytes; what follows the total length
    /// is the link's padding.
    #[inline]
    pub fn new_checked(bytes: T) -> Result<Self, Malformed> {
        let view = Self::new_quoted(bytes)?;
        let total = usize::from(view.total_len());
        if total < view.header_len() || total > view.0.as_ref().len() {
            return Err(Malformed);
        }
        Ok(view)
    }

    /// As [`View::new_checked`], but the total length may exceed the bytes: a packet quoted in an ICMP error is cut
    /// short. Every accessor but [`View::payload`], which then holds what is there, is as good.
    #[inline]
    pub fn new_quoted(bytes: T) -> Result<Self, Malformed> {
        let b = bytes.as_ref();
        if b.len() < HEADER_LEN || b[field::VERSION_IHL] >> 4 != 4 {
            return Err(Malformed);
        }
        let view = Self(bytes);
        let header_len = view.header_len();
        if header_len < HEADER_LEN || header_len > view.0.as_ref().len() {
            return Err(Malformed);
        }
        Ok(view)
    }

    /// Length of the header with its options, in bytes.
    #[inline]
    pub fn header_len(&self) -> usize {
        usize::from(self.0.as_ref()[field::VERSION_IHL] & 0x0f) * 4
    }

    /// Differentiated services code point.
    #[inline]
    pub fn dscp(&self) -> u8 {
        self.0.as_ref()[field::DSCP_ECN] >> 2
    }

    /// Congestion notification.
    #[inline]
    pub fn ecn(&self) -> Ecn {
        Ecn::from_bits(self.0.as_ref()[field::DSCP_ECN])
    }

    /// Length of header and payload, in bytes.
    #[inline]
    pub fn total_len(&self) -> u16 {
        u16_at(self.0.as_ref(), field::TOTAL_LEN)
    }

    /// Identification, common to a packet's fragments.
    #[inline]
    pub fn id(&self) -> u16 {
        u16_at(self.0.as_ref(), field::ID)
    }

    /// The word of flags and offset.
    #[inline]
    pub fn flags_offset(&self) -> u16 {
        u16_at(self.0.as_ref(), field::FLAGS_OFFSET)
    }

    /// Whether it must not be fragmented.
    #[inline]
    pub fn dont_fragment(&self) -> bool {
        self.flags_offset() & DONT_FRAGMENT != 0
    }

    /// Whether fragments follow.
    #[inline]
    pub fn more_fragments(&self) -> bool {
        self.flags_offset() & MORE_FRAGMENTS != 0
    }

    /// Whether it is a part of a packet.
    #[inline]
    pub fn is_fragment(&self) -> bool {
        self.flags_offset() & (MORE_FRAGMENTS | OFFSET_MASK) != 0
    }

    /// Where its payload stands in the whole packet's, in bytes.
    #[inline]
    pub fn fragment_offset(&self) -> u32 {
        u32::from(self.flags_offset() & OFFSET_MASK) * 8
    }

    /// Hops left.
    #[inline]
    pub fn ttl(&self) -> u8 {
        self.0.as_ref()[field::TTL]
    }

    /// What the payload is ([`super::protocol`]).
    #[inline]
    pub fn protocol(&self) -> u8 {
        self.0.as_ref()[field::PROTOCOL]
    }

    /// The header's checksum, as it stands there.
    #[inline]
    pub fn checksum(&self) -> u16 {
        u16_at(self.0.as_ref(), field::CHECKSUM)
    }

    /// Whether the header's checksum is right.
    #[inline]
    pub fn checksum_is_right(&self) -> bool {
        // A sum over a known length is a few instructions, and few packets have options.
        let fixed = checksum::sum(&self.0.as_ref()[..HEADER_LEN]);
        let options = match self.options() {
            [] => 0,
            options => checksum::sum(options),
        };
        checksum::is_right(fixed + options)
    }

    /// Where it comes from.
    #[inline]
    pub fn source(&self) -> [u8; 4] {
        array_at(self.0.as_ref(), field::SOURCE)
    }

    /// Where it goes to.
    #[inline]
    pub fn destination(&self) -> [u8; 4] {
        array_at(self.0.as_ref(), field::DESTINATION)
    }

    /// The header with its options.
    #[inline]
    pub fn header(&self) -> &[u8] {
        &self.0.as_ref()[..self.header_len()]
    }

    /// The options, padding included.
    #[inline]
    pub fn options(&self) -> &[u8] {
        &self.0.as_ref()[HEADER_LEN..self.header_len()]
    }

    /// What follows the header, up to the total length.
    #[inline]
    pub fn payload(&self) -> &[u8] {
        let bytes = self.0.as_ref();
        let end = usize::from(self.total_len()).clamp(self.header_len(), bytes.len());
        &bytes[self.header_len()..end]
    }
}

impl<T: AsRef<[u8]> + AsMut<[u8]>> View<T> {
    /// Sets the congestion notification and adjusts the checksum.
    #[inline]
    pub fn set_ecn(&mut self, ecn: Ecn) {
        let old = u16_at(self.0.as_ref(), field::VERSION_IHL..field::DSCP_ECN + 1);
        self.0.as_mut()[field::DSCP_ECN] = old as u8 & !3 | ecn as u8;
        self.adjust_checksum(old, old & !3 | ecn as u16);
    }

    /// Sets the total length and adjusts the checksum. It is for the caller to have as many bytes.
    #[inline]
    pub fn set_total_len(&mut self, len: u16) {
        let old = self.total_len();
        put(self.0.as_mut(), field::TOTAL_LEN, &len.to_be_bytes());
        self.adjust_checksum(old, len);
    }

    /// Sets the word of flags and offset and adjusts the checksum.
    #[inline]
    pub fn set_flags_offset(&mut self, word: u16) {
        let old = self.flags_offset();
        put(self.0.as_mut(), field::FLAGS_OFFSET, &word.to_be_bytes());
        self.adjust_checksum(old, word);
    }

    /// Sets the header's checksum.
    #[inline]
    pub fn set_checksum(&mut self, checksum: u16) {
        put(self.0.as_mut(), field::CHECKSUM, &checksum.to_be_bytes());
    }

    /// Computes the header's checksum: for headers that we originate, never for one that passes.
    #[inline]
    pub fn fill_checksum(&mut self) {
        self.set_checksum(0);
        self.set_checksum(checksum::finish(checksum::sum(self.header())));
    }

    /// What follows the header, up to the total length, to change.
    #[inline]
    pub fn payload_mut(&mut self) -> &mut [u8] {
        let start = self.header_len();
        let end = usize::from(self.total_len()).clamp(start, self.0.as_ref().len());
        &mut self.0.as_mut()[start..end]
    }

    #[inline]
    fn adjust_checksum(&mut self, old: u16, new: u16) {
        self.set_checksum(checksum::adjust(self.checksum(), old, new));
    }
}

/// What nearly every header is: without options, of a whole packet, and right. Its fields are read in one go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Plain {
    /// Length of header and payload, in bytes: at least the header's, and no more than there is.
    pub total_len: u16,
    /// Congestion notification.
    pub ecn: Ecn,
    /// Hops left.
    pub ttl: u8,
    /// What the payload is ([`super::protocol`]).
    pub protocol: u8,
    /// Where it comes from.
    pub source: [u8; 4],
    /// Where it goes to.
    pub destination: [u8; 4],
}

/// Version and length of the header, and what says that a packet is a part of one, in the header's first eight bytes as a
/// little-endian machine reads them.
const PLAIN_MASK: u64 = ((MORE_FRAGMENTS | OFFSET_MASK).swap_bytes() as u64) << 48 | 0xff;

impl Plain {
    /// The header and what follows it, up to the total length; `None`: it is something else, or something is wrong with it.
    #[inline]
    pub fn split(bytes: &[u8]) -> Option<(Self, &[u8])> {
        let (header, payload) = bytes.split_first_chunk::<HEADER_LEN>()?;
        let ([first, second], destination) = header.as_chunks() else { return None };
        let (&destination, _) = destination.split_first_chunk()?;
        let [first, second] = [first, second].map(|it| u64::from_le_bytes(*it));
        let total_len = ((first >> 16) as u16).swap_bytes();
        let payload = payload.get(..usize::from(total_len).checked_sub(HEADER_LEN)?)?;
        let sum =
            checksum::add(checksum::add(first, second), u32::from_le_bytes(destination).into());
        if first & PLAIN_MASK != 0x45 || !checksum::folds_to_ones(sum) {
            return None;
        }
        let plain = Self {
            total_len,
            ecn: Ecn::from_bits((first >> 8) as u8),
            ttl: second as u8,
            protocol: (second >> 8) as u8,
            source: ((second >> 32) as u32).to_le_bytes(),
            destination,
        };
        Some((plain, payload))
    }
}

/// Takes a hop off a header, whose options do not matter, and adjusts its checksum. One without hops left keeps none.
///
/// Hops are the low byte of a word as a little-endian machine reads it, and a ones' complement sum is the same in either byte
/// order (RFC 1071, section 2 (B)): where a word becomes one less, the checksum becomes one more, and skips what is 0 written
/// otherwise (RFC 1624, section 3).
#[inline]
pub fn decrement_ttl(header: &mut [u8; HEADER_LEN]) {
    let Some(ttl) = header[field::TTL].checked_sub(1) else { return };
    header[field::TTL] = ttl;
    let checksum = u16::from_le_bytes(array_at(header, field::CHECKSUM));
    let adjusted = checksum.wrapping_add(1 + u16::from(checksum >= 0xfffe));
    put(header, field::CHECKSUM, &adjusted.to_le_bytes());
}

#[cfg(test)]
mod tests {
    use etherparse::{Ipv4HeaderSlice, Ipv4Slice};
    use proptest::prelude::*;

    use super::super::arbitrary;
    use super::*;

    proptest! {
        #[test]
        fn no_accessor_panics(mut bytes: Vec<u8>, first in 0x40u8..0x50) {
            if let Some(b) = bytes.first_mut() {
                *b = first;
            }
            for view in [View::new_checked(&bytes), View::new_quoted(&bytes)].into_iter().flatten() {
                let _ = (view.dscp(), view.ecn(), view.id(), view.fragment_offset(), view.ttl());
                let _ = (view.dont_fragment(), view.more_fragments(), view.checksum_is_right());
                let _ = (view.protocol(), view.source(), view.destination(), view.options());
                let _ = view.payload();
            }
        }

        #[test]
        fn etherparse_reads_the_same(bytes in arbitrary::packet4()) {
            let view = View::new_checked(&bytes).unwrap();
            let sliced = Ipv4Slice::from_slice(&bytes).unwrap();
            let theirs = sliced.header();
            prop_assert_eq!(view.header_len(), theirs.slice().len());
            prop_assert_eq!(view.dscp(), theirs.dcp().value());
            prop_assert_eq!(view.ecn() as u8, theirs.ecn().value());
            prop_assert_eq!(view.total_len(), theirs.total_len());
            prop_assert_eq!(view.id(), theirs.identification());
            prop_assert_eq!(view.dont_fragment(), theirs.dont_fragment());
            prop_assert_eq!(view.more_fragments(), theirs.more_fragments());
            prop_assert_eq!(view.fragment_offset(), u32::from(theirs.fragments_offset().value()) * 8);
            prop_assert_eq!(view.ttl(), theirs.ttl());
            prop_assert_eq!(view.protocol(), theirs.protocol().0);
            prop_assert_eq!(view.source(), theirs.source());
            prop_assert_eq!(view.destination(), theirs.destination());
            prop_assert_eq!(view.options(), theirs.options());
            prop_assert!(view.checksum_is_right());
        }

        #[test]
        fn a_plain_header_says_what_its_view_says(mut bytes in arbitrary::packet4(), at in 0usize..24, to: u8, mend: bool) {
            if let Some(byte) = bytes.get_mut(at) {
                *byte = to;
            }
            if mend && let Ok(mut view) = View::new_checked(&mut bytes[..]) {
                view.fill_checksum();
            }
            let view = View::new_checked(&bytes).ok();
            let plain = view.filter(|view| view.options().is_empty() && !view.is_fragment() && view.checksum_is_right());
            let said = plain.as_ref().map(|view| {
                let plain = Plain {
                    total_len: view.total_len(),
                    ecn: view.ecn(),
                    ttl: view.ttl(),
                    protocol: view.protocol(),
                    source: view.source(),
                    destination: view.destination(),
                };
                (plain, view.payload())
            });
            prop_assert_eq!(Plain::split(&bytes), said);
        }

        #[test]
        fn what_is_set_is_read_back_and_the_checksum_stays_right(
            mut bytes in arbitrary::packet4(), ecn: u8, word in 0u16..0x8000, cut in 0u16..8,
        ) {
            let mut view = View::new_checked(&mut bytes[..]).unwrap();
            let len = view.total_len() - cut.min(view.payload().len() as u16);
            view.set_ecn(Ecn::from_bits(ecn));
            view.set_flags_offset(word);
            view.set_total_len(len);
            let ttl = view.ttl().saturating_sub(1);
            decrement_ttl(bytes.first_chunk_mut().unwrap());
            let view = View::new_checked(&bytes[..]).unwrap();
            prop_assert_eq!(view.ecn(), Ecn::from_bits(ecn));
            prop_assert_eq!((view.flags_offset(), view.ttl()), (word, ttl));
            prop_assert_eq!(view.total_len(), len);
            let theirs = Ipv4HeaderSlice::from_slice(&bytes).unwrap();
            prop_assert_eq!(theirs.header_checksum(), theirs.to_header().calc_header_checksum());
        }
    }

    #[test]
    fn lengths_that_contradict_are_refused() {
        let mut header = [0; 24];
        header[0] = 0x45;
        for (total, fits) in [(19u16, false), (20, true), (24, true), (25, false)] {
            put(&mut header, field::TOTAL_LEN, &total.to_be_bytes());
            assert_eq!(View::new_checked(header).is_ok(), fits, "total length {total}");
        }
        put(&mut header, field::TOTAL_LEN, &24u16.to_be_bytes());
        for (first, fits) in
            [(0x44, false), (0x45, true), (0x46, true), (0x47, false), (0x65, false)]
        {
            header[0] = first;
            assert_eq!(View::new_checked(header).is_ok(), fits, "first byte {first:#x}");
        }
    }
}
