//! SCTP's checksum. The kernel leaves it to a veth's device like any other, although it is not the Internet checksum.
//!
//! A virtio header cannot say that a partial checksum is a `CRC32c` (RFC 9260, appendix A), so later code could not
//! tell. It is completed where the packet comes in.

use crate::packet::{Checksum, Packet};

/// The checksum's offset in SCTP's common header. No other checksum that a kernel leaves partial has this offset.
const CHECKSUM: u16 = 8;
/// The polynomial 0x1edc6f41, its bits in the order of transmission.
const POLYNOMIAL: u32 = 0x82f6_3b78;
const TABLE: [u32; 256] = table();

/// Completes the checksum of a packet if it is partial and SCTP's. The checksum field must lie inside the packet.
#[inline]
pub(super) fn finish(packet: &mut Packet) {
    let Checksum::Partial { start, offset: CHECKSUM } = packet.offload.checksum else { return };
    let Some(message) = packet.bytes_mut().get_mut(start as usize..) else { return };
    let Some(field) = message.get_mut(CHECKSUM as usize..CHECKSUM as usize + 4) else { return };
    field.fill(0);
    let crc = crc32c(message);
    message[CHECKSUM as usize..CHECKSUM as usize + 4].copy_from_slice(&crc.to_le_bytes());
    packet.offload.checksum = Checksum::Verified;
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
    use super::*;
    use crate::packet::{Offload, Pool};

    #[test]
    fn the_crc_is_castagnolis() {
        // The check value of the catalogue of CRCs, and RFC 3720, B.4.
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
        assert_eq!(crc32c(&[0; 32]), 0x8a91_36aa);
        assert_eq!(crc32c(&[0xff; 32]), 0x62a8_ab43);
    }

    #[test]
    fn only_an_unfinished_sctp_checksum_is_touched() {
        let mut pool = Pool::new(1);
        let mut packet = pool.take_filled(&[7; 60]).unwrap();
        for offset in [2, 6, 16] {
            packet.offload =
                Offload { checksum: Checksum::Partial { start: 20, offset }, segmentation: None };
            finish(&mut packet);
            assert_eq!(packet.bytes(), [7; 60]);
            assert_eq!(packet.offload.checksum, Checksum::Partial { start: 20, offset });
        }
        packet.offload.checksum = Checksum::Partial { start: 20, offset: 8 };
        finish(&mut packet);
        let field = packet.bytes()[28..32].to_vec();
        let mut message = packet.bytes()[20..].to_vec();
        message[8..12].fill(0);
        assert_eq!(field, crc32c(&message).to_le_bytes());
        assert_eq!((&packet.bytes()[..28], &packet.bytes()[32..]), (&[7; 28][..], &[7; 28][..]));
        assert_eq!(packet.offload.checksum, Checksum::Verified);
    }

    #[test]
    fn a_message_too_short_for_a_checksum_is_left_alone() {
        let mut pool = Pool::new(1);
        let mut packet = pool.take_filled(&[7; 30]).unwrap();
        packet.offload.checksum = Checksum::Partial { start: 20, offset: 8 };
        finish(&mut packet);
        assert_eq!(packet.bytes(), [7; 30]);
    }
}
