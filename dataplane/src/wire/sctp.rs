//! SCTP's common header (RFC 9260, section 3.1). Its checksum is a CRC-32C (appendix A) over the packet without
//! addresses. So a forwarder has to change the checksum only when it translates ports.

use std::mem::offset_of;

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
    /// The verification tag, which identifies the association: a number that the receiver chose.
    pub verification_tag: U32,
    /// The CRC-32C.
    pub checksum: U32,
}

/// The length of the common header, in bytes.
pub const HEADER_LEN: usize = size_of::<Header>();

/// The checksum's offset in the header.
pub const CHECKSUM_OFFSET: usize = offset_of!(Header, checksum);

/// The polynomial 0x1edc6f41, with its bits in the order of transmission.
const POLYNOMIAL: u32 = 0x82f6_3b78;
const TABLE: [u32; 256] = table();

/// A packet. Its payload holds the chunks.
pub type View = super::view::View<Header>;

impl super::view::Header for Header {}

/// Computes the checksum of a packet, which is given from its common header on, and stores it. Returns `None` if the
/// header is cut short.
pub fn fill_checksum(bytes: &mut [u8]) -> Option<()> {
    let place = CHECKSUM_OFFSET..CHECKSUM_OFFSET + size_of::<U32>();
    bytes.get_mut(place.clone())?.fill(0);
    let crc = crc32c(bytes);
    bytes[place].copy_from_slice(&crc.to_le_bytes());
    Some(())
}

fn crc32c(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(u32::MAX, |crc, &byte| (crc >> 8) ^ TABLE[usize::from(crc as u8 ^ byte)])
}

const fn table() -> [u32; 256] {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        let mut crc = byte as u32;
        let mut bit = 0;
        while bit < 8 {
            crc = if crc & 1 == 1 { (crc >> 1) ^ POLYNOMIAL } else { crc >> 1 };
            bit += 1;
        }
        table[byte] = crc;
        byte += 1;
    }
    table
}

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

    #[test]
    fn the_crc_is_castagnolis() {
        // The check value of the catalogue of CRCs, and the one of RFC 3720, B.4.
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
        assert_eq!(crc32c(&[0; 32]), 0x8a91_36aa);
        assert_eq!(crc32c(&[0xff; 32]), 0x62a8_ab43);
    }
}
