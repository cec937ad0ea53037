//! VXLAN (RFC 7348, section 5): an Ethernet frame in a UDP datagram.

use zerocopy::network_endian::U32;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned, transmute};

/// The header.
#[derive(Debug, Clone, Copy, Default, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Header {
    flags: u8,
    reserved: [u8; 3],
    /// The network identifier, 24 bits, and eight reserved bits.
    vni_reserved: U32,
}

/// The length of the header, in bytes.
pub const HEADER_LEN: usize = size_of::<Header>();
/// The port that IANA assigned. Pods may not use it: a pod's tunnel packet that the underlay accepts would evade every
/// source check.
pub const PORT: u16 = 4789;
/// The flag that says that there is a network identifier; no other flag is defined.
const HAS_VNI: u8 = 0x08;

/// A datagram's payload. Its payload is the frame.
pub type View = super::view::View<Header>;

impl super::view::Header for Header {
    /// Whether the header has a network identifier. Reserved bits are ignored, as the RFC says.
    #[inline]
    fn is_valid(&self) -> bool {
        self.flags & HAS_VNI != 0
    }
}

impl Header {
    /// The network that the frame belongs to.
    #[inline]
    pub fn vni(&self) -> u32 {
        self.vni_reserved.get() >> 8
    }
}

/// The header for the network `vni`. Only its low 24 bits are used.
pub fn header(vni: u32) -> [u8; HEADER_LEN] {
    transmute!(Header { flags: HAS_VNI, reserved: [0; 3], vni_reserved: (vni << 8).into() })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn what_is_read_is_what_was_written(vni in 0u32..1 << 24, frame: Vec<u8>) {
            let bytes = [&header(vni)[..], &frame].concat();
            let view = View::new_checked(&bytes).unwrap();
            prop_assert_eq!((view.vni(), view.payload()), (vni, &frame[..]));
        }

        #[test]
        fn arbitrary_bytes_never_panic(bytes: Vec<u8>) {
            if let Ok(view) = View::new_checked(&bytes) {
                let _ = (view.vni(), view.payload());
            }
        }
    }

    #[test]
    fn without_a_network_or_cut_short_it_is_refused() {
        let mut bytes = header(4096);
        assert!(View::new_checked(&bytes[..7]).is_err());
        bytes[0] = 0xf7;
        assert!(View::new_checked(&bytes).is_err());
    }
}
