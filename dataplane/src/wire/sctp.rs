//! SCTP's common header (RFC 9260, section 3.1). Its checksum is a CRC-32C over the packet without
//! addresses: a forwarder never changes the bytes that it covers.

use zerocopy::network_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The common header.
#[derive(Debug, Clone, Copy, Default, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Header {
    /// The source port.
    pub source_port: U16,
    /// The destination port.
    pub destination_port: U16,
    /// The association, by the number that its receiver chose.
    pub verification_tag: U32,
    /// The CRC-32C.
    pub checksum: U32,
}

/// Length of the common header.
pub const HEADER_LEN: usize = size_of::<Header>();

/// A packet. Its payload is the chunks.
pub type View = super::view::View<Header>;

impl super::view::Header for Header {}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn no_accessor_panics(bytes: Vec<u8>) {
            if let Ok(view) = View::new_checked(&bytes) {
                let _ = (view.source_port.get(), view.destination_port.get(), view.checksum.get());
                let _ = view.payload();
            }
        }
    }

    #[test]
    fn reads_what_stands_there() {
        let view = View::new_checked(&[0x0f, 0xa0, 0x13, 0x88, 1, 2, 3, 4, 5, 6, 7, 8, 1]).unwrap();
        assert_eq!((view.source_port.get(), view.destination_port.get()), (4000, 5000));
        assert_eq!(view.checksum.get(), 0x0506_0708);
        assert_eq!(view.payload(), [1]);
        assert!(View::new_checked(&[0; 11]).is_err());
    }
}
