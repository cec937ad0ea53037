//! The Internet checksum (RFC 1071): computed, verified, adjusted (RFC 1624).
//!
//! A sum is a `u32`: a ones' complement sum of big-endian 16-bit words that is not yet folded to 16 bits. Sums are
//! added with `+`. [`sum`] and the sum of a pseudo-header are below 2^20, so a `u32` holds thousands of them.

/// The number of words that [`sum`] adds in parallel, so that no addition waits for the one before.
const LANES: usize = 4;
const WORD: usize = 8;

/// The sum of `bytes`, at most 0xffff. A last odd byte is the high half of a word.
///
/// The sum of bytes at an odd offset must be [`swap`]ped before it is added to the sum of the bytes in front of them.
#[inline]
pub fn sum(bytes: &[u8]) -> u32 {
    let (blocks, rest) = bytes.as_chunks::<{ LANES * WORD }>();
    let mut lanes = [0u128; LANES];
    for block in blocks {
        let (words, _) = block.as_chunks::<WORD>();
        for (lane, &word) in lanes.iter_mut().zip(words) {
            *lane += u128::from(u64::from_ne_bytes(word));
        }
    }
    let mut total = u64::from(fold64(fold128(lanes.iter().sum())));
    let (halves, rest) = rest.as_chunks::<4>();
    for &half in halves {
        total += u64::from(u32::from_ne_bytes(half));
    }
    let (pairs, rest) = rest.as_chunks::<2>();
    for &pair in pairs {
        total += u64::from(u16::from_ne_bytes(pair));
    }
    if let &[odd] = rest {
        total += u64::from(u16::from_ne_bytes([odd, 0]));
    }
    // The words were read in the machine's byte order. The sum is the same in either order (RFC 1071, section 2 (B)).
    u32::from(u16::from_be(fold(fold64(total))))
}

/// The sum folded to 16 bits. 2^16 counts as 1 in a ones' complement sum, so the halves are added, and the carry is
/// added at the low end.
#[inline]
pub const fn fold(sum: u32) -> u16 {
    let (sum, carry) = (sum as u16).overflowing_add((sum >> 16) as u16);
    sum + carry as u16
}

/// A sum of 64 bits folded to 32, as [`fold`] does.
#[inline]
pub const fn fold64(sum: u64) -> u32 {
    let (sum, carry) = (sum as u32).overflowing_add((sum >> 32) as u32);
    sum + carry as u32
}

/// Whether a sum other than 0 folds to sixteen ones, that is, whether it is a multiple of m = 2^16 - 1.
///
/// Let q = (2^64 - 1) / m, a whole number. m * q is 2^64 - 1, which is -1 in 64 bits. So if a sum is a multiple k * m,
/// the sum times -q is k, which is at most q. Multiplication by -q is one to one, so for every other sum the result is
/// more than q.
#[inline]
pub const fn folds_to_ones(sum: u64) -> bool {
    const QUOTIENTS: u64 = u64::MAX / 0xffff;
    sum.wrapping_mul(QUOTIENTS.wrapping_neg()) <= QUOTIENTS
}

#[inline]
const fn fold128(sum: u128) -> u64 {
    add(sum as u64, (sum >> 64) as u64)
}

/// Adds two sums of 64 bits. A carry is added at the low end, because 2^64 counts as 1 in a ones' complement sum.
#[inline]
pub const fn add(one: u64, other: u64) -> u64 {
    let (sum, carry) = one.overflowing_add(other);
    sum + carry as u64
}

/// The amount to add to a sum when words whose sum is `before` are replaced by words whose sum is `after`. Subtracting
/// m is adding ~m ([`adjust`]).
#[inline]
pub const fn difference(before: u64, after: u64) -> u64 {
    add(!before, after)
}

/// The sum of the same bytes at an offset that is one byte larger.
#[inline]
pub const fn swap(sum: u32) -> u32 {
    fold(sum).swap_bytes() as u32
}

/// The checksum to send: the complement of the sum.
#[inline]
pub const fn finish(sum: u32) -> u16 {
    !fold(sum)
}

/// Whether the checksum is right, given the sum of the data including the checksum.
#[inline]
pub const fn is_right(sum: u32) -> bool {
    fold(sum) == 0xffff
}

/// The checksum after one 16-bit word of the data has changed from `old` to `new`.
///
/// Let C be the checksum and ~ the complement. The sum of the data is ~C. Subtracting m is adding ~m, because m + ~m is
/// (minus) zero. So the new checksum C' is ~(~C + ~m + m') (RFC 1624, equation 3). Unlike C' = C + m + ~m' of RFC 1141,
/// this never turns a sum that is not zero into minus zero, so C' equals the checksum that is computed from the whole
/// data.
#[inline]
#[must_use]
pub const fn adjust(checksum: u16, old: u16, new: u16) -> u16 {
    finish(!checksum as u32 + !old as u32 + new as u32)
}

#[cfg(test)]
pub(crate) mod tests {
    use etherparse::checksum::Sum16BitWords;
    use proptest::prelude::*;
    use zerocopy::network_endian::U16;

    use super::*;
    use crate::packet::{Checksum, Pool};
    use crate::parse::parse;
    use crate::wire::address::{Address, pseudo};
    use crate::wire::arbitrary::{self, Transport};
    use crate::wire::{Malformed, icmpv6, protocol, tcp, udp};

    /// Whether a layer-4 checksum is right over all of `segment`, header and payload.
    ///
    /// True for protocols without an Internet checksum, and for UDP over IPv4 without one (RFC 768). False if `segment`
    /// does not hold the protocol's header.
    pub(crate) fn transport_is_right(
        source: Address,
        destination: Address,
        protocol: u8,
        segment: &[u8],
    ) -> bool {
        let pseudo_sum = || pseudo(source, destination, protocol, segment.len() as u32);
        match protocol {
            protocol::TCP => {
                tcp::View::new_checked(segment).is_ok() && is_right(pseudo_sum() + sum(segment))
            }
            protocol::UDP => match udp::View::new_checked(segment) {
                Err(Malformed) => false,
                Ok(view) if view.checksum == U16::ZERO => source.is_v4(),
                Ok(view) => {
                    // Bytes after the length that the UDP header gives are not part of the datagram.
                    let len = view.len.get();
                    let covered = &segment[..usize::from(len)];
                    let pseudo_sum = pseudo(source, destination, protocol, u32::from(len));
                    is_right(pseudo_sum + sum(covered))
                }
            },
            protocol::ICMPV4 => is_right(sum(segment)),
            protocol::ICMPV6 => {
                icmpv6::View::new_checked(segment).is_ok() && is_right(pseudo_sum() + sum(segment))
            }
            _ => true,
        }
    }

    /// RFC 1071's definition, word by word.
    fn by_definition(bytes: &[u8]) -> u16 {
        bytes.chunks(2).fold(0, |sum, pair| {
            let word = u16::from_be_bytes([pair[0], pair.get(1).copied().unwrap_or(0)]);
            let (sum, carry) = sum.overflowing_add(word);
            sum + u16::from(carry)
        })
    }

    proptest! {
        #[test]
        fn sums_fold_to_their_remainder(one: u64, other: u64, quotient in 1..=u64::MAX / 0xffff) {
            let remainder = ((u128::from(one) + u128::from(other)) % 0xffff) as u16;
            prop_assert_eq!(fold(fold64(add(one, other))) % 0xffff, remainder);
            prop_assert_eq!(folds_to_ones(one), one.is_multiple_of(0xffff));
            prop_assert!(folds_to_ones(quotient * 0xffff));
        }

        #[test]
        fn the_sum_is_the_definition_and_etherparses(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            prop_assert_eq!(fold(sum(&bytes)), by_definition(&bytes));
            let theirs = Sum16BitWords::new().add_slice(&bytes).ones_complement();
            prop_assert_eq!(finish(sum(&bytes)), theirs.to_be());
        }

        #[test]
        fn a_sum_splits_anywhere(bytes in prop::collection::vec(any::<u8>(), 0..300), at: prop::sample::Index) {
            let at = at.index(bytes.len() + 1);
            let (front, back) = bytes.split_at(at);
            let back = if at % 2 == 0 { sum(back) } else { swap(sum(back)) };
            prop_assert_eq!(fold(sum(front) + back), fold(sum(&bytes)));
        }

        #[test]
        fn adjusted_is_recomputed(mut bytes: [u8; 20], at in 1usize..10, new: u16) {
            bytes[0] |= 0x40;
            let before = finish(sum(&bytes));
            let old = u16::from_be_bytes([bytes[at * 2], bytes[at * 2 + 1]]);
            bytes[at * 2..at * 2 + 2].copy_from_slice(&new.to_be_bytes());
            prop_assert_eq!(adjust(before, old, new), finish(sum(&bytes)));
        }

        #[test]
        fn what_etherparse_wrote_is_right_and_a_flipped_bit_is_not(
            (_, transport, mut bytes) in arbitrary::described(), bit: prop::sample::Index,
        ) {
            let parsed = parse(&bytes).unwrap();
            let start = usize::from(parsed.transport_offset);
            let check = |bytes: &[u8]| {
                transport_is_right(parsed.source, parsed.destination, parsed.protocol, &bytes[start..])
            };
            prop_assert!(check(&bytes));
            if matches!(transport, Transport::Tcp(_) | Transport::Echo { .. }) {
                let bit = bit.index((bytes.len() - start) * 8);
                bytes[start + bit / 8] ^= 1 << (bit % 8);
                prop_assert!(!check(&bytes));
            }
        }

        #[test]
        fn a_completed_partial_checksum_is_etherparses((_, transport, bytes) in arbitrary::described()) {
            let offset = match transport {
                Transport::Tcp(_) => tcp::CHECKSUM_OFFSET,
                Transport::Udp(..) => udp::CHECKSUM_OFFSET,
                Transport::Echo { .. } | Transport::Sctp(..) | Transport::Other(_) => return Ok(()),
            };
            let parsed = parse(&bytes).unwrap();
            let start = usize::from(parsed.transport_offset);
            let len = (bytes.len() - start) as u32;
            let seed = fold(pseudo(parsed.source, parsed.destination, parsed.protocol, len));
            let mut pool = Pool::new(1);
            let mut packet = pool.take_filled(&bytes).unwrap();
            packet.bytes_mut()[start + offset..][..2].copy_from_slice(&seed.to_be_bytes());
            packet.offload.checksum = Checksum::Partial { start: start as u16, offset: offset as u16 };
            prop_assert_eq!(packet.complete_checksum(), Ok(()));
            prop_assert_eq!(packet.bytes(), bytes);
            prop_assert_eq!(packet.offload.checksum, Checksum::Verified);
        }
    }

    #[test]
    fn a_udp_checksum_of_zero_is_sent_as_all_ones() {
        let mut pool = Pool::new(1);
        let mut packet = pool.take_filled(&[0xff, 0xff, 0, 0, 0, 0, 0, 0]).unwrap();
        packet.offload.checksum = Checksum::Partial { start: 0, offset: 6 };
        packet.complete_checksum().unwrap();
        assert_eq!(packet.bytes()[6..], [0xff, 0xff]);
    }

    #[test]
    fn a_partial_checksum_outside_the_packet_is_malformed() {
        let mut pool = Pool::new(1);
        let mut packet = pool.take_filled(&[0; 40]).unwrap();
        for (start, offset) in [(41, 0), (20, 19), (20, u16::MAX), (u16::MAX, u16::MAX)] {
            packet.offload.checksum = Checksum::Partial { start, offset };
            assert_eq!(packet.complete_checksum(), Err(Malformed), "{start} {offset}");
        }
    }
}
