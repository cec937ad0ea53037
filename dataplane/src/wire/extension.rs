//! IPv6 extension headers (RFC 8200, section 4): a walk over them to the layer-4 header.

use zerocopy::network_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, KnownLayout, Unaligned};

use super::Malformed;
use super::protocol::{AUTHENTICATION, DESTINATION_OPTIONS, FRAGMENT, HOP_BY_HOP, ROUTING};

/// The first eight bytes of an extension header. No extension header is shorter, and a fragment header is not longer.
#[derive(FromBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Header {
    /// The protocol or extension header that follows.
    next: u8,
    /// The length of the header after these eight bytes, in units of eight bytes (in an authentication header: four
    /// bytes).
    len: u8,
    /// In a fragment header: the offset in bytes, a multiple of eight, and in the lowest bit whether more fragments
    /// follow. In a routing header: type and segments left, one byte each.
    word: U16,
    /// In a fragment header: the identification.
    id: U32,
}

/// The largest number of extension headers in a packet. RFC 8200 recommends an order of six headers, one of which may
/// occur twice.
pub const LIMIT: usize = 8;
/// The length of a fragment header, in bytes.
pub const FRAGMENT_LEN: usize = UNIT;
/// The unit of extension header lengths, in bytes: the length of every extension header except authentication's is a
/// multiple of it.
const UNIT: usize = size_of::<Header>();

/// The fragment header's content (RFC 8200, section 4.5).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fragment {
    /// The identification, which is the same in all fragments of a packet.
    pub id: u32,
    /// The fragment's offset in the packet's fragmentable part, in bytes.
    pub offset: u32,
    /// Whether fragments follow.
    pub more: bool,
}

/// The result of a walk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WalkEnd {
    /// The protocol at `offset`: a transport, ESP, "no next header", or anything else that is not walked over.
    pub protocol: u8,
    /// The offset of the end of the walk from the beginning of the IPv6 payload, in bytes.
    pub offset: usize,
    /// The fragment header, if there is one, and the offset of its end.
    pub fragment: Option<(Fragment, usize)>,
    /// Whether there is an authentication header: such a packet is neither cut nor joined (RFC 4302).
    pub authenticated: bool,
}

/// Walks over hop-by-hop options, routing, fragment, authentication and destination options headers.
///
/// The walk ends after the fragment header of a later fragment, because the bytes after it are from the middle of a
/// packet. Returns an error for a header that is cut short, more than [`LIMIT`] headers, hop-by-hop options that are
/// not first, or a second fragment header. It also returns one for a routing header of type 0 with segments left,
/// because policy would judge the wrong destination (RFC 5095).
#[inline]
pub fn walk(next_header: u8, payload: &[u8]) -> Result<WalkEnd, Malformed> {
    let mut walked =
        WalkEnd { protocol: next_header, offset: 0, fragment: None, authenticated: false };
    for _ in 0..=LIMIT {
        let kind = walked.protocol;
        if !matches!(kind, HOP_BY_HOP | ROUTING | FRAGMENT | AUTHENTICATION | DESTINATION_OPTIONS) {
            return Ok(walked);
        }
        let header = payload.get(walked.offset..).ok_or(Malformed)?;
        let (header, _) = Header::ref_from_prefix(header).map_err(|_| Malformed)?;
        let len = match kind {
            FRAGMENT => FRAGMENT_LEN,
            // The length is in units of four bytes, minus two (RFC 4302, section 2.2).
            AUTHENTICATION => (usize::from(header.len) + 2) * 4,
            _ => (usize::from(header.len) + 1) * UNIT,
        };
        let misplaced = kind == HOP_BY_HOP && walked.offset > 0;
        // The type is in the upper byte, and the segments left are in the lower byte.
        let diverted = kind == ROUTING && matches!(header.word.get(), 1..=0xff);
        let end = walked.offset + len;
        if end > payload.len() || misplaced || diverted {
            return Err(Malformed);
        }
        walked.protocol = header.next;
        walked.offset = end;
        walked.authenticated |= kind == AUTHENTICATION;
        if kind == FRAGMENT {
            if walked.fragment.is_some() {
                return Err(Malformed);
            }
            let word = header.word.get();
            let fragment =
                Fragment { id: header.id.get(), offset: u32::from(word & !7), more: word & 1 != 0 };
            walked.fragment = Some((fragment, end));
            if fragment.offset > 0 {
                return Ok(walked);
            }
        }
    }
    Err(Malformed)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::{arbitrary, ipv6, protocol};
    use super::*;

    /// An options or routing header of `units`; its other bytes are zero.
    fn header(next: u8, units: u8) -> Vec<u8> {
        let mut bytes = vec![0; usize::from(units) * UNIT];
        bytes[0] = next;
        bytes[1] = units - 1;
        bytes
    }

    proptest! {
        #[test]
        fn no_walk_panics(first in prop_oneof![Just(0), Just(43), Just(44), Just(51), Just(60)], bytes: Vec<u8>) {
            if let Ok(walked) = walk(first, &bytes) {
                prop_assert!(walked.offset <= bytes.len());
            }
        }

        #[test]
        fn etherparse_walks_to_the_same(bytes in arbitrary::packet6()) {
            let view = ipv6::View::new_checked(&bytes).unwrap();
            let walked = walk(view.next_header, view.payload()).unwrap();
            let theirs = etherparse::Ipv6Slice::from_slice(&bytes).unwrap();
            prop_assert_eq!(walked.protocol, theirs.payload().ip_number.0);
            prop_assert_eq!(&view.payload()[walked.offset..], theirs.payload().payload);
            prop_assert_eq!(walked.fragment.is_some_and(|(f, _)| f.more || f.offset > 0), theirs.payload().fragmented);
        }
    }

    #[test]
    fn a_chain_longer_than_the_limit_is_refused() {
        for (count, fits) in [(LIMIT, true), (LIMIT + 1, false)] {
            let mut chain = header(DESTINATION_OPTIONS, 1).repeat(count);
            let last = (count - 1) * UNIT;
            chain[last] = protocol::UDP;
            let walked = walk(DESTINATION_OPTIONS, &chain);
            assert_eq!(walked.is_ok(), fits, "{count}");
            assert!(
                walked.is_err()
                    || walked
                        == Ok(WalkEnd {
                            protocol: protocol::UDP,
                            offset: chain.len(),
                            fragment: None,
                            authenticated: false,
                        })
            );
        }
    }

    #[test]
    fn what_hides_the_destination_or_the_transport_is_refused() {
        let mut source_route = header(protocol::TCP, 3);
        source_route[3] = 1;
        assert_eq!(walk(ROUTING, &source_route), Err(Malformed), "RFC 5095");
        source_route[3] = 0;
        assert!(walk(ROUTING, &source_route).is_ok());

        let late = [header(HOP_BY_HOP, 1), header(protocol::TCP, 1)].concat();
        assert_eq!(walk(DESTINATION_OPTIONS, &late), Err(Malformed), "hop-by-hop comes first");
        let twice = [header(FRAGMENT, 1), header(protocol::TCP, 1)].concat();
        assert_eq!(walk(FRAGMENT, &twice), Err(Malformed), "one fragment header");
        assert_eq!(walk(DESTINATION_OPTIONS, &header(6, 2)[..15]), Err(Malformed), "cut short");
    }

    #[test]
    fn a_later_fragment_is_not_looked_into() {
        let mut bytes = header(DESTINATION_OPTIONS, 1);
        bytes[2..8].copy_from_slice(&[0, 8, 0, 0, 0, 7]);
        let fragment = Fragment { id: 7, offset: 8, more: false };
        let expected = WalkEnd {
            protocol: DESTINATION_OPTIONS,
            offset: 8,
            fragment: Some((fragment, 8)),
            authenticated: false,
        };
        assert_eq!(walk(FRAGMENT, &bytes), Ok(expected));
    }
}
