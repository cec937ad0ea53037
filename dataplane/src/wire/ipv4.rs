//! IPv4 (RFC 791; DSCP RFC 2474; ECN RFC 3168).

use std::mem::offset_of;

use zerocopy::network_endian::U16;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::Ecn;
use crate::checksum;

/// A header without its options.
#[derive(Debug, Clone, Copy, Default, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Header {
    /// The version, and the length of the header with its options in units of four bytes: 4 bits each.
    pub version_ihl: u8,
    /// The differentiated services code point and the congestion notification: 6 and 2 bits.
    pub dscp_ecn: u8,
    /// The length of header and payload, in bytes.
    pub total_len: U16,
    /// The identification, which is the same in all fragments of a packet.
    pub id: U16,
    /// The word with flags and fragment offset.
    pub flags_offset: U16,
    /// The remaining hops.
    pub ttl: u8,
    /// The protocol of the payload ([`super::protocol`]).
    pub protocol: u8,
    /// The header's checksum.
    pub checksum: U16,
    /// The source address.
    pub source: [u8; 4],
    /// The destination address.
    pub destination: [u8; 4],
}

/// Length of a header without options.
pub const HEADER_LEN: usize = size_of::<Header>();
/// The checksum's offset in the header.
pub const CHECKSUM_OFFSET: usize = offset_of!(Header, checksum);
/// Version and length of a header without options.
pub const VERSION_IHL: u8 = 0x45;
/// A bit in the word of flags and offset: the packet must not be fragmented.
pub const DONT_FRAGMENT: u16 = 0x4000;
/// A bit in the word of flags and offset: this is not the last fragment.
pub const MORE_FRAGMENTS: u16 = 0x2000;
/// The bits of the offset in the word of flags and offset. Its unit is eight bytes.
pub const OFFSET_MASK: u16 = 0x1fff;

/// A packet.
pub type View = super::view::View<Header>;

impl super::view::Header for Header {
    #[inline]
    fn is_valid(&self) -> bool {
        self.version_ihl >> 4 == 4
    }

    #[inline]
    fn header_len(&self) -> usize {
        usize::from(self.version_ihl & 0x0f) * 4
    }

    #[inline]
    fn stated_len(&self) -> Option<usize> {
        Some(self.total_len.get().into())
    }
}

impl Header {
    /// Congestion notification.
    #[inline]
    pub fn ecn(&self) -> Ecn {
        Ecn::from_bits(self.dscp_ecn)
    }

    /// Whether the packet must not be fragmented.
    #[inline]
    pub fn dont_fragment(&self) -> bool {
        self.flags_offset.get() & DONT_FRAGMENT != 0
    }

    /// Whether fragments follow.
    #[inline]
    pub fn more_fragments(&self) -> bool {
        self.flags_offset.get() & MORE_FRAGMENTS != 0
    }

    /// Whether this is a fragment.
    #[inline]
    pub fn is_fragment(&self) -> bool {
        self.flags_offset.get() & (MORE_FRAGMENTS | OFFSET_MASK) != 0
    }

    /// The offset of its payload in the payload of the whole packet, in bytes.
    #[inline]
    pub fn fragment_offset(&self) -> u32 {
        u32::from(self.flags_offset.get() & OFFSET_MASK) * 8
    }

    /// The header of a packet that this program originates, without options, with its checksum.
    #[inline]
    #[must_use]
    pub fn with_checksum(self) -> Self {
        let header = Self { checksum: U16::ZERO, ..self };
        Self { checksum: checksum::finish(checksum::sum(header.as_bytes())).into(), ..header }
    }
}

impl View {
    /// Whether the header's checksum is correct.
    #[inline]
    pub fn checksum_is_right(&self) -> bool {
        checksum::is_right(self.checksum_sum())
    }

    /// Sets the congestion notification and adjusts the checksum.
    #[inline]
    pub fn set_ecn(&mut self, ecn: Ecn) {
        let old = self.dscp_ecn;
        self.header.dscp_ecn = old & !3 | ecn as u8;
        // Both words have the same upper byte, which cancels out.
        self.adjust_checksum(old.into(), self.dscp_ecn.into());
    }

    /// Sets the total length and adjusts the checksum. The caller has this many bytes.
    #[inline]
    pub fn set_total_len(&mut self, len: u16) {
        self.adjust_checksum(self.total_len.get(), len);
        self.header.total_len = len.into();
    }

    /// Sets the word of flags and offset and adjusts the checksum.
    #[inline]
    pub fn set_flags_offset(&mut self, word: u16) {
        self.adjust_checksum(self.flags_offset.get(), word);
        self.header.flags_offset = word.into();
    }

    /// Computes the header's checksum. Use this only for headers that this program originates, never for forwarded
    /// ones.
    #[inline]
    pub fn fill_checksum(&mut self) {
        self.header.checksum = U16::ZERO;
        self.header.checksum = checksum::finish(self.checksum_sum()).into();
    }

    #[inline]
    fn adjust_checksum(&mut self, old: u16, new: u16) {
        self.header.checksum = checksum::adjust(self.checksum.get(), old, new).into();
    }

    /// The sum of the header and its options.
    #[inline]
    fn checksum_sum(&self) -> u32 {
        // A sum over a known length takes only a few instructions, and few packets have options.
        let fixed = checksum::sum(self.header.as_bytes());
        match self.options() {
            [] => fixed,
            options => fixed + checksum::sum(options),
        }
    }
}

/// The fields of a plain header: it has no options, belongs to a whole packet, and has a correct checksum. Nearly every
/// header is plain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Plain {
    /// The length of header and payload, in bytes: at least the length of the header, and at most the received bytes.
    pub total_len: u16,
    /// Congestion notification.
    pub ecn: Ecn,
    /// The remaining hops.
    pub ttl: u8,
    /// The protocol of the payload ([`super::protocol`]).
    pub protocol: u8,
    /// The source address.
    pub source: [u8; 4],
    /// The destination address.
    pub destination: [u8; 4],
}

/// The bits of version, header length and fragmentation in the first eight bytes of the header, as a little-endian
/// machine reads them.
const PLAIN_MASK: u64 = ((MORE_FRAGMENTS | OFFSET_MASK).swap_bytes() as u64) << 48 | 0xff;

impl Plain {
    /// Returns a plain header and its payload, or `None` if the header is not plain or something is wrong with it.
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
        if first & PLAIN_MASK != VERSION_IHL.into() || !checksum::folds_to_ones(sum) {
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

/// Decrements the hop count of a header and adjusts its checksum. A header without remaining hops does not change.
///
/// The TTL is the low byte of a word as a little-endian machine reads it, and a ones' complement sum is the same in
/// either byte order (RFC 1071, section 2 (B)). The word decreases by one, so the checksum increases by one. It skips
/// 0xffff, the other form of 0 (RFC 1624, section 3).
#[inline]
pub fn decrement_ttl(header: &mut Header) {
    let Some(ttl) = header.ttl.checked_sub(1) else { return };
    header.ttl = ttl;
    let checksum = u16::from_le_bytes(header.checksum.to_bytes());
    let adjusted = checksum.wrapping_add(1 + u16::from(checksum >= 0xfffe));
    header.checksum = U16::from_bytes(adjusted.to_le_bytes());
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
                let _ = (view.ecn(), view.id.get(), view.fragment_offset(), view.ttl);
                let _ = (view.dont_fragment(), view.more_fragments(), view.checksum_is_right());
                let _ = (view.protocol, view.source, view.destination, view.options());
                let _ = view.payload();
            }
        }

        #[test]
        fn etherparse_reads_the_same(bytes in arbitrary::packet4()) {
            let view = View::new_checked(&bytes).unwrap();
            let sliced = Ipv4Slice::from_slice(&bytes).unwrap();
            let theirs = sliced.header();
            prop_assert_eq!(view.header_len(), theirs.slice().len());
            prop_assert_eq!(view.dscp_ecn >> 2, theirs.dcp().value());
            prop_assert_eq!(view.ecn() as u8, theirs.ecn().value());
            prop_assert_eq!(view.total_len.get(), theirs.total_len());
            prop_assert_eq!(view.id.get(), theirs.identification());
            prop_assert_eq!(view.dont_fragment(), theirs.dont_fragment());
            prop_assert_eq!(view.more_fragments(), theirs.more_fragments());
            prop_assert_eq!(view.fragment_offset(), u32::from(theirs.fragments_offset().value()) * 8);
            prop_assert_eq!(view.ttl, theirs.ttl());
            prop_assert_eq!(view.protocol, theirs.protocol().0);
            prop_assert_eq!(view.source, theirs.source());
            prop_assert_eq!(view.destination, theirs.destination());
            prop_assert_eq!(view.options(), theirs.options());
            prop_assert!(view.checksum_is_right());
        }

        #[test]
        fn a_plain_header_says_what_its_view_says(mut bytes in arbitrary::packet4(), at in 0usize..24, to: u8, mend: bool) {
            if let Some(byte) = bytes.get_mut(at) {
                *byte = to;
            }
            if mend && let Ok(view) = View::new_checked_mut(&mut bytes) {
                view.fill_checksum();
            }
            let view = View::new_checked(&bytes).ok();
            let plain = view.filter(|view| view.options().is_empty() && !view.is_fragment() && view.checksum_is_right());
            let said = plain.as_ref().map(|view| {
                let plain = Plain {
                    total_len: view.total_len.get(),
                    ecn: view.ecn(),
                    ttl: view.ttl,
                    protocol: view.protocol,
                    source: view.source,
                    destination: view.destination,
                };
                (plain, view.payload())
            });
            prop_assert_eq!(Plain::split(&bytes), said);
        }

        #[test]
        fn what_is_set_is_read_back_and_the_checksum_stays_right(
            mut bytes in arbitrary::packet4(), ecn: u8, word in 0u16..0x8000, cut in 0u16..8,
        ) {
            let view = View::new_checked_mut(&mut bytes).unwrap();
            let len = view.total_len.get() - cut.min(view.payload().len() as u16);
            view.set_ecn(Ecn::from_bits(ecn));
            view.set_flags_offset(word);
            view.set_total_len(len);
            let ttl = view.ttl.saturating_sub(1);
            decrement_ttl(Header::mut_from_prefix(&mut bytes).unwrap().0);
            let view = View::new_checked(&bytes[..]).unwrap();
            prop_assert_eq!(view.ecn(), Ecn::from_bits(ecn));
            prop_assert_eq!((view.flags_offset.get(), view.ttl), (word, ttl));
            prop_assert_eq!(view.total_len.get(), len);
            let theirs = Ipv4HeaderSlice::from_slice(&bytes).unwrap();
            prop_assert_eq!(theirs.header_checksum(), theirs.to_header().calc_header_checksum());
        }
    }

    #[test]
    fn lengths_that_contradict_are_refused() {
        let mut header = [0; 24];
        header[0] = 0x45;
        for (total, fits) in [(19u16, false), (20, true), (24, true), (25, false)] {
            header[2..4].copy_from_slice(&total.to_be_bytes());
            assert_eq!(View::new_checked(&header).is_ok(), fits, "total length {total}");
        }
        header[3] = 24;
        for (first, fits) in
            [(0x44, false), (0x45, true), (0x46, true), (0x47, false), (0x65, false)]
        {
            header[0] = first;
            assert_eq!(View::new_checked(&header).is_ok(), fits, "first byte {first:#x}");
        }
    }
}
