//! Cuts IPv4 packets into fragments (RFC 791, section 3.2).

use crate::drop_reason::DropReason;
use crate::packet::{Offload, Packet, Pool};
use crate::wire::{Malformed, ipv4};

/// The unit of offsets, in bytes.
const UNIT: usize = 8;
const MAX_HEADER: usize = 60;
/// Option types: end of list, no operation, and the bit of options that every fragment repeats.
const END: u8 = 0;
const NO_OPERATION: u8 = 1;
const COPIED: u8 = 0x80;

/// Appends the packet to `into` in pieces of at most `mtu` bytes, in order. A packet that fits is appended whole. The
/// layer-4 checksum is completed first, because it covers the bytes of all pieces.
///
/// After an error, `into` is as it was and every buffer is in `pool`. The errors are:
///
/// - [`DropReason::TooBig`]: the packet must not be fragmented (DF, IPv6), or `mtu` leaves less than eight bytes;
/// - [`DropReason::NoBuffer`]: there are not enough buffers;
/// - [`DropReason::Malformed`]: it is not a whole IPv4 packet, its options overrun, or it is a super-packet, which has
///   to be segmented instead.
pub fn fragment(
    mut packet: Packet,
    mtu: usize,
    pool: &mut Pool,
    into: &mut Vec<Packet>,
) -> Result<(), DropReason> {
    let plan = match plan(&mut packet, mtu) {
        Ok(plan) => plan,
        Err(reason) => {
            pool.put(packet);
            return Err(reason);
        }
    };
    let base = into.len();
    into.push(packet);
    let Some(plan) = plan else { return Ok(()) };
    let mut start = plan.first_len;
    while start < plan.payload_len {
        let Some(mut piece) = pool.take() else {
            into.drain(base..).for_each(|piece| pool.put(piece));
            return Err(DropReason::NoBuffer);
        };
        start += plan.fill(&mut piece, into[base].bytes(), start);
        piece.neighbour = into[base].neighbour;
        into.push(piece);
    }
    plan.shorten_to_first(&mut into[base]);
    Ok(())
}

/// The sizes of the pieces of a packet.
struct Plan {
    mtu: usize,
    header_len: usize,
    payload_len: usize,
    /// The flags and offset of the packet itself, which may already be a fragment.
    word: u16,
    /// The number of payload bytes in the first piece.
    first_len: usize,
    /// The header of the later pieces, without lengths, offset and checksum.
    later_header: [u8; MAX_HEADER],
    later_header_len: usize,
}

/// Returns `None` if the packet fits.
fn plan(packet: &mut Packet, mtu: usize) -> Result<Option<Plan>, DropReason> {
    if packet.offload.segmentation.is_some() {
        return Err(DropReason::Malformed);
    }
    if packet.bytes().first().is_some_and(|first| first >> 4 == 6) && packet.len() > mtu {
        return Err(DropReason::TooBig);
    }
    packet.complete_checksum()?;
    if packet.len() <= mtu {
        return Ok(None);
    }
    let ip = ipv4::View::new_checked(packet.bytes())?;
    let total_len = usize::from(ip.total_len.get());
    let header_len = ip.header_len();
    if total_len <= mtu {
        packet.set_len(total_len);
        return Ok(None);
    }
    let first_len = mtu.saturating_sub(header_len) / UNIT * UNIT;
    if ip.dont_fragment() || first_len == 0 {
        return Err(DropReason::TooBig);
    }
    let mut later_header = [0; MAX_HEADER];
    later_header[..ipv4::HEADER_LEN].copy_from_slice(&packet.bytes()[..ipv4::HEADER_LEN]);
    let options_len = copied_options(ip.options(), &mut later_header[ipv4::HEADER_LEN..])?;
    let later_header_len = ipv4::HEADER_LEN + options_len;
    later_header[0] = 0x40 | (later_header_len / 4) as u8;
    Ok(Some(Plan {
        mtu,
        header_len,
        payload_len: total_len - header_len,
        word: ip.flags_offset.get(),
        first_len,
        later_header,
        later_header_len,
    }))
}

/// Writes the options that every fragment repeats and returns their length, padded to a multiple of four.
fn copied_options(mut options: &[u8], into: &mut [u8]) -> Result<usize, Malformed> {
    let mut len = 0;
    while let Some(&kind) = options.first() {
        let option_len = match kind {
            END => break,
            NO_OPERATION => 1,
            _ => match options.get(1) {
                None | Some(0 | 1) => return Err(Malformed),
                Some(&len) => usize::from(len),
            },
        };
        let (option, rest) = options.split_at_checked(option_len).ok_or(Malformed)?;
        if kind & COPIED != 0 {
            into[len..len + option_len].copy_from_slice(option);
            len += option_len;
        }
        options = rest;
    }
    Ok(len.next_multiple_of(4))
}

impl Plan {
    /// Makes `piece` the fragment with the payload of `whole` from `start` on, with as many bytes as fit. Returns that
    /// number of bytes.
    fn fill(&self, piece: &mut Packet, whole: &[u8], start: usize) -> usize {
        let header_len = self.later_header_len;
        let left = self.payload_len - start;
        let room = self.mtu - header_len;
        let (len, more) =
            if left <= room { (left, 0) } else { (room / UNIT * UNIT, ipv4::MORE_FRAGMENTS) };
        let payload = &whole[self.header_len + start..][..len];
        let bytes = piece.room_mut();
        bytes[..header_len].copy_from_slice(&self.later_header[..header_len]);
        bytes[header_len..header_len + len].copy_from_slice(payload);
        piece.set_len(header_len + len);
        if let Ok(ip) = ipv4::View::new_quoted_mut(piece.bytes_mut()) {
            // If the packet is itself a fragment but not the last one, its last piece is not the last fragment either:
            // `word` has that flag.
            ip.set_flags_offset((self.word | more) + (start / UNIT) as u16);
            ip.set_total_len((header_len + len) as u16);
            ip.fill_checksum();
        }
        len
    }

    fn shorten_to_first(&self, packet: &mut Packet) {
        let len = self.header_len + self.first_len;
        if let Ok(ip) = ipv4::View::new_checked_mut(packet.bytes_mut()) {
            ip.set_flags_offset(self.word | ipv4::MORE_FRAGMENTS);
            ip.set_total_len(len as u16);
        }
        packet.set_len(len);
        // The packet holds the complete checksum. A piece alone does not hold the bytes to verify it.
        packet.offload = Offload::default();
    }
}

#[cfg(test)]
mod tests {
    use etherparse::defrag::IpDefragPool;
    use etherparse::{Ipv4HeaderSlice, SlicedPacket};
    use proptest::prelude::*;

    use super::*;
    use crate::checksum;
    use crate::packet::{Checksum, SegmentKind, Segmentation};
    use crate::parse::{Fragment, parse};
    use crate::wire::address::pseudo;
    use crate::wire::{arbitrary, udp};

    /// The number of buffers for all pieces of the longest packet in these tests. Each piece carries at least 8 bytes.
    const LIMIT: usize = 512;
    const NEIGHBOUR: [u8; 6] = [2, 0, 0, 0, 0, 7];

    /// A packet that may be fragmented.
    fn fragmentable() -> impl Strategy<Value = Vec<u8>> {
        arbitrary::packet4().prop_map(|mut bytes| {
            ipv4::View::new_checked_mut(&mut bytes[..]).unwrap().set_flags_offset(0);
            bytes
        })
    }

    fn cut(bytes: &[u8], mtu: usize, limit: usize) -> (Result<(), DropReason>, Vec<Packet>, Pool) {
        let mut pool = Pool::new(limit);
        let mut packet = pool.take_filled(bytes).unwrap();
        packet.neighbour = NEIGHBOUR;
        let mut pieces = Vec::new();
        let outcome = fragment(packet, mtu, &mut pool, &mut pieces);
        (outcome, pieces, pool)
    }

    /// The packet that a receiver reassembles from the pieces.
    fn joined(pieces: &[Packet]) -> Vec<u8> {
        let mut pool = IpDefragPool::<(), ()>::new();
        let mut payload = None;
        for piece in pieces {
            let sliced = SlicedPacket::from_ip(piece.bytes()).unwrap();
            payload = payload.or(pool.process_sliced_packet(&sliced, (), ()).unwrap());
        }
        payload.unwrap().payload
    }

    proptest! {
        #[test]
        fn the_pieces_fit_and_join_to_the_packet(bytes in fragmentable(), mtu in 68usize..1600) {
            let (outcome, pieces, _) = cut(&bytes, mtu, LIMIT);
            prop_assert_eq!(outcome, Ok(()));
            let whole = parse(&bytes).unwrap();
            if bytes.len() <= mtu {
                prop_assert_eq!(pieces.len(), 1);
                prop_assert_eq!(pieces[0].bytes(), bytes);
                return Ok(());
            }
            for (index, piece) in pieces.iter().enumerate() {
                prop_assert!(piece.len() <= mtu);
                prop_assert_eq!(piece.neighbour, NEIGHBOUR);
                let header = Ipv4HeaderSlice::from_slice(piece.bytes()).unwrap().to_header();
                prop_assert_eq!(header.header_checksum, header.calc_header_checksum());
                prop_assert_eq!(usize::from(header.total_len), piece.len());
                prop_assert_eq!(header.more_fragments, index + 1 < pieces.len());
                // If the first piece cannot hold the whole TCP header, every parser refuses it.
                if usize::from(whole.header_len) <= pieces[0].len() {
                    prop_assert_ne!(parse(piece.bytes()).unwrap().fragment, Fragment::Whole);
                }
            }
            prop_assert_eq!(joined(&pieces), &bytes[ipv4::View::new_checked(&bytes).unwrap().header_len()..]);
        }

        #[test]
        fn a_fragment_is_cut_into_fragments_of_the_same_packet(bytes in fragmentable(), mtu in 100usize..600) {
            let (_, coarse, _) = cut(&bytes, 800, LIMIT);
            prop_assume!(coarse.len() > 1 && parse(coarse[0].bytes()).is_ok());
            let fine: Vec<_> = coarse.iter().flat_map(|piece| cut(piece.bytes(), mtu, LIMIT).1).collect();
            prop_assert_eq!(joined(&fine), &bytes[ipv4::View::new_checked(&bytes).unwrap().header_len()..]);
        }

        #[test]
        fn without_buffers_nothing_is_left_behind(bytes in fragmentable(), limit in 1usize..8) {
            let (outcome, pieces, pool) = cut(&bytes, 100, limit);
            match outcome {
                Ok(()) => prop_assert_eq!(pool.available() + pieces.len(), limit),
                Err(reason) => {
                    prop_assert_eq!(reason, DropReason::NoBuffer);
                    prop_assert_eq!((pool.available(), pieces.len()), (limit, 0));
                }
            }
        }
    }

    /// An IPv4 UDP packet with these options and this many bytes after them.
    fn packet(options: &[u8], len: usize) -> Vec<u8> {
        let header_len = 20 + options.len();
        let mut bytes = vec![0; header_len + len];
        (bytes[0], bytes[8], bytes[9]) = (0x40 | (header_len / 4) as u8, 64, 17);
        let total = bytes.len() as u16;
        bytes[2..4].copy_from_slice(&total.to_be_bytes());
        bytes[20..header_len].copy_from_slice(options);
        bytes[header_len + 4..][..2].copy_from_slice(&(len as u16).to_be_bytes());
        ipv4::View::new_checked_mut(&mut bytes[..]).unwrap().fill_checksum();
        bytes
    }

    #[test]
    fn only_options_with_the_copied_flag_are_repeated() {
        let options = [1, 7, 3, 4, 0x82, 3, 9, 1, 0x94, 4, 0, 0];
        let (_, pieces, _) = cut(&packet(&options, 100), 68, LIMIT);
        let options_of =
            |piece: &Packet| ipv4::View::new_checked(piece.bytes()).unwrap().options().to_vec();
        assert_eq!(options_of(&pieces[0]), options);
        for later in &pieces[1..] {
            assert_eq!(options_of(later), [0x82, 3, 9, 0x94, 4, 0, 0, 0]);
        }
    }

    #[test]
    fn options_that_overrun_are_malformed() {
        for options in [[0x82, 5, 0, 0], [0x82, 0, 0, 0], [1, 1, 1, 0x82], [7, 1, 0, 0]] {
            assert_eq!(
                cut(&packet(&options, 100), 68, LIMIT).0,
                Err(DropReason::Malformed),
                "{options:?}"
            );
        }
    }

    #[test]
    fn a_packet_that_must_not_be_cut_is_refused() {
        let mut bytes = packet(&[], 100);
        assert_eq!(cut(&bytes, 27, LIMIT).0, Err(DropReason::TooBig), "no room for eight bytes");
        assert_eq!(cut(&bytes, 28, LIMIT).0, Ok(()));
        ipv4::View::new_checked_mut(&mut bytes[..]).unwrap().set_flags_offset(ipv4::DONT_FRAGMENT);
        assert_eq!(cut(&bytes, 68, LIMIT).0, Err(DropReason::TooBig), "DF");
        assert_eq!(cut(&bytes, 120, LIMIT).0, Ok(()), "but it fits here");
        bytes[0] = 0x60;
        assert_eq!(cut(&bytes, 68, LIMIT).0, Err(DropReason::TooBig), "IPv6");

        let mut pool = Pool::new(1);
        let mut big = pool.take_filled(&packet(&[], 100)).unwrap();
        big.offload.segmentation =
            Some(Segmentation { kind: SegmentKind::Udp, size: 8, ecn: false });
        assert_eq!(fragment(big, 68, &mut pool, &mut Vec::new()), Err(DropReason::Malformed));
        assert_eq!(pool.available(), 1);
    }

    #[test]
    fn the_transport_checksum_is_completed_before_the_cut() {
        let mut pool = Pool::new(LIMIT);
        let bytes = packet(&[], 100);
        let parsed = parse(&bytes).unwrap();
        let mut packet = pool.take_filled(&bytes).unwrap();
        let seed = checksum::fold(pseudo(parsed.source, parsed.destination, 17, 100));
        packet.bytes_mut()[26..28].copy_from_slice(&seed.to_be_bytes());
        packet.offload.checksum =
            Checksum::Partial { start: 20, offset: udp::CHECKSUM_OFFSET as u16 };
        let mut pieces = Vec::new();
        assert_eq!(fragment(packet, 68, &mut pool, &mut pieces), Ok(()));
        assert!(checksum::tests::transport_is_right(
            parsed.source,
            parsed.destination,
            17,
            &joined(&pieces)
        ));
        assert!(pieces.iter().all(|piece| piece.offload == Offload::default()));
    }
}
