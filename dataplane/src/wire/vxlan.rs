//! VXLAN (RFC 7348, section 5): an Ethernet frame in a UDP datagram.

use super::{Malformed, array_at, put};

mod field {
    use std::ops::Range;

    pub(super) const FLAGS: usize = 0;
    pub(super) const VNI: Range<usize> = 4..7;
}

/// Length of the header.
pub const HEADER_LEN: usize = 8;
/// The port that IANA gave it. Pods may not speak it: a tunnel packet that the underlay believes is a way round every
/// source check.
pub const PORT: u16 = 4789;
/// The flag that says that there is a network identifier; no other is defined.
const HAS_VNI: u8 = 0x08;

/// The header of network `vni`, of which 24 bits count.
pub fn header(vni: u32) -> [u8; HEADER_LEN] {
    let mut header = [0; HEADER_LEN];
    header[field::FLAGS] = HAS_VNI;
    put(&mut header, field::VNI, &vni.to_be_bytes()[1..]);
    header
}

/// A datagram's payload.
#[derive(Debug, Clone, Copy)]
pub struct View<T>(T);

impl<T: AsRef<[u8]>> View<T> {
    /// Checks that the header is there and names a network. Reserved bits are ignored, as the RFC asks.
    #[inline]
    pub fn new_checked(bytes: T) -> Result<Self, Malformed> {
        match bytes.as_ref().get(..HEADER_LEN) {
            Some(header) if header[field::FLAGS] & HAS_VNI != 0 => Ok(Self(bytes)),
            _ => Err(Malformed),
        }
    }

    /// The network that the frame belongs to.
    #[inline]
    pub fn vni(&self) -> u32 {
        let [a, b, c]: [u8; 3] = array_at(self.0.as_ref(), field::VNI);
        u32::from_be_bytes([0, a, b, c])
    }

    /// The frame.
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
