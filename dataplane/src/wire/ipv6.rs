//! IPv6's fixed header (RFC 8200, section 3). [`super::extension`] walks over the headers after it.

use zerocopy::network_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned, transmute};

/// The fixed header.
#[derive(Debug, Clone, Copy, Default, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Header {
    /// The version, traffic class and flow label: 4, 8 and 20 bits.
    pub version_class_label: U32,
    /// The length of the bytes after the fixed header.
    pub payload_len: U16,
    /// The protocol at the start of the payload ([`super::extension`], [`super::protocol`]).
    pub next_header: u8,
    /// The remaining hops.
    pub hop_limit: u8,
    /// The source address.
    pub source: [u8; 16],
    /// The destination address.
    pub destination: [u8; 16],
}

/// The length of the fixed header, in bytes.
pub const HEADER_LEN: usize = size_of::<Header>();

/// A packet. A jumbogram (RFC 2675) states the length 0, so its view has an empty payload.
pub type View = super::view::View<Header>;

impl super::view::Header for Header {
    #[inline]
    fn is_valid(&self) -> bool {
        self.version_class_label.get() >> 28 == 6
    }

    #[inline]
    fn stated_len(&self) -> Option<usize> {
        Some(self.total_len())
    }
}

impl Header {
    /// The length of the fixed header and the bytes after it, in bytes.
    #[inline]
    pub fn total_len(&self) -> usize {
        HEADER_LEN + usize::from(self.payload_len.get())
    }
}

/// The header of a packet that this program originates, with traffic class and flow label 0.
pub fn header(
    source: [u8; 16],
    destination: [u8; 16],
    next_header: u8,
    hop_limit: u8,
    payload_len: u16,
) -> [u8; HEADER_LEN] {
    transmute!(Header {
        version_class_label: (6 << 28).into(),
        payload_len: payload_len.into(),
        next_header,
        hop_limit,
        source,
        destination,
    })
}

impl View {
    /// Decrements the hop limit. A hop limit of 0 does not change.
    #[inline]
    pub fn decrement_hop_limit(&mut self) {
        self.header.hop_limit = self.header.hop_limit.saturating_sub(1);
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
                let _ = (view.version_class_label, view.next_header, view.hop_limit);
                let _ = (view.source, view.destination, view.total_len(), view.payload());
            }
        }

        #[test]
        fn etherparse_reads_the_same(bytes in arbitrary::packet6()) {
            let view = View::new_checked(&bytes).unwrap();
            let theirs = Ipv6HeaderSlice::from_slice(&bytes).unwrap();
            let class_label = u32::from(theirs.traffic_class()) << 20 | theirs.flow_label().value();
            prop_assert_eq!(view.version_class_label.get(), 6 << 28 | class_label);
            prop_assert_eq!(view.payload_len.get(), theirs.payload_length());
            prop_assert_eq!(view.next_header, theirs.next_header().0);
            prop_assert_eq!(view.hop_limit, theirs.hop_limit());
            prop_assert_eq!(view.source, theirs.source());
            prop_assert_eq!(view.destination, theirs.destination());
        }

        #[test]
        fn a_hop_changes_nothing_else(mut bytes in arbitrary::packet6()) {
            let mut expected = bytes.clone();
            expected[7] = expected[7].saturating_sub(1);
            View::new_checked_mut(&mut bytes).unwrap().decrement_hop_limit();
            prop_assert_eq!(bytes, expected);
        }
    }

    #[test]
    fn lengths_that_contradict_are_refused() {
        let mut header = [0; 44];
        for (first, payload, fits) in
            [(0x60, 4u16, true), (0x60, 5, false), (0x60, 0, true), (0x40, 4, false)]
        {
            header[0] = first;
            header[4..6].copy_from_slice(&payload.to_be_bytes());
            assert_eq!(View::new_checked(&header).is_ok(), fits, "{first:#x}, payload {payload}");
        }
    }
}
