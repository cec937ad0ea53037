//! The checksum of SCTP. In a packet over a veth, the kernel leaves it partial like any other checksum, although it is
//! not the Internet checksum.
//!
//! A virtio header cannot say that a partial checksum is a `CRC32c` (RFC 9260, appendix A), so later code would take it
//! for an Internet checksum. So it is completed where the packet is received.

use crate::packet::{Checksum, Packet};
use crate::wire::sctp;

/// No other checksum that a kernel leaves partial has this offset.
const CHECKSUM: u16 = sctp::CHECKSUM_OFFSET as u16;

/// Completes the checksum of a packet if it is partial and belongs to SCTP. The checksum field must lie inside the
/// packet.
#[inline]
pub(super) fn finish(packet: &mut Packet) {
    let Checksum::Partial { start, offset: CHECKSUM } = packet.offload.checksum else { return };
    let message = packet.bytes_mut().get_mut(start as usize..);
    if message.and_then(sctp::fill_checksum).is_some() {
        packet.offload.checksum = Checksum::Verified;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packet::{Offload, Pool};

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
        let mut message = [7; 40];
        sctp::fill_checksum(&mut message).unwrap();
        assert_eq!(packet.bytes()[28..32], message[8..12]);
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
