//! ARP for IPv4 over Ethernet (RFC 826).

use super::{Malformed, array_at, put, u16_at};

mod field {
    use std::ops::Range;

    pub(super) const SPACES_AND_LENGTHS: Range<usize> = 0..6;
    pub(super) const OPERATION: Range<usize> = 6..8;
    pub(super) const SENDER_HARDWARE: Range<usize> = 8..14;
    pub(super) const SENDER_PROTOCOL: Range<usize> = 14..18;
    pub(super) const TARGET_HARDWARE: Range<usize> = 18..24;
    pub(super) const TARGET_PROTOCOL: Range<usize> = 24..28;
}

/// Length of the packet.
pub const PACKET_LEN: usize = 28;
/// Hardware space Ethernet, protocol space IPv4, addresses of six and four bytes.
const ETHERNET_IPV4: [u8; 6] = [0, 1, 8, 0, 6, 4];

/// What is asked or answered.
pub mod operation {
    /// Who has the target's protocol address?
    pub const REQUEST: u16 = 1;
    /// The sender has its protocol address.
    pub const REPLY: u16 = 2;
}

/// A packet.
#[derive(Debug, Clone, Copy)]
pub struct View<T>(T);

impl<T: AsRef<[u8]>> View<T> {
    /// Checks that the packet is there and is about IPv4 over Ethernet.
    #[inline]
    pub fn new_checked(bytes: T) -> Result<Self, Malformed> {
        match bytes.as_ref() {
            b if b.len() >= PACKET_LEN && b[field::SPACES_AND_LENGTHS] == ETHERNET_IPV4 => {
                Ok(Self(bytes))
            }
            _ => Err(Malformed),
        }
    }

    /// See [`operation`].
    #[inline]
    pub fn operation(&self) -> u16 {
        u16_at(self.0.as_ref(), field::OPERATION)
    }

    /// The sender's hardware address.
    #[inline]
    pub fn sender_hardware(&self) -> [u8; 6] {
        array_at(self.0.as_ref(), field::SENDER_HARDWARE)
    }

    /// The sender's IPv4 address.
    #[inline]
    pub fn sender_protocol(&self) -> [u8; 4] {
        array_at(self.0.as_ref(), field::SENDER_PROTOCOL)
    }

    /// The target's IPv4 address.
    #[inline]
    pub fn target_protocol(&self) -> [u8; 4] {
        array_at(self.0.as_ref(), field::TARGET_PROTOCOL)
    }
}

impl<T: AsRef<[u8]> + AsMut<[u8]>> View<T> {
    /// Makes the request its own answer: the target's address is at `hardware`.
    #[inline]
    pub fn answer(&mut self, hardware: [u8; 6]) {
        let (asker, asked) = (self.sender_hardware(), self.target_protocol());
        let asker_protocol = self.sender_protocol();
        let bytes = self.0.as_mut();
        put(bytes, field::OPERATION, &operation::REPLY.to_be_bytes());
        put(bytes, field::SENDER_HARDWARE, &hardware);
        put(bytes, field::SENDER_PROTOCOL, &asked);
        put(bytes, field::TARGET_HARDWARE, &asker);
        put(bytes, field::TARGET_PROTOCOL, &asker_protocol);
    }
}

#[cfg(test)]
mod tests {
    use etherparse::{ArpEthIpv4Packet, ArpOperation, ArpPacket};
    use proptest::prelude::*;

    use super::*;

    fn packet(operation: u16, sender: ([u8; 6], [u8; 4]), target: ([u8; 6], [u8; 4])) -> Vec<u8> {
        ArpPacket::from(ArpEthIpv4Packet {
            operation: ArpOperation(operation),
            sender_mac: sender.0,
            sender_ipv4: sender.1,
            target_mac: target.0,
            target_ipv4: target.1,
        })
        .to_bytes()
        .to_vec()
    }

    proptest! {
        #[test]
        fn no_accessor_panics(mut bytes: Vec<u8>, ours: bool) {
            if ours && bytes.len() >= 6 {
                bytes[..6].copy_from_slice(&ETHERNET_IPV4);
            }
            if let Ok(view) = View::new_checked(&bytes) {
                let _ = (view.operation(), view.sender_hardware(), view.sender_protocol());
                let _ = view.target_protocol();
            }
        }

        #[test]
        fn etherparse_reads_the_same(operation: u16, sender: ([u8; 6], [u8; 4]), target: ([u8; 6], [u8; 4])) {
            let view = View::new_checked(packet(operation, sender, target)).unwrap();
            prop_assert_eq!(view.operation(), operation);
            prop_assert_eq!((view.sender_hardware(), view.sender_protocol()), sender);
            prop_assert_eq!(view.target_protocol(), target.1);
        }

        #[test]
        fn the_answer_goes_back_and_says_where(sender: ([u8; 6], [u8; 4]), target: [u8; 4], own: [u8; 6]) {
            let mut bytes = packet(operation::REQUEST, sender, ([0; 6], target));
            View::new_checked(&mut bytes[..]).unwrap().answer(own);
            prop_assert_eq!(bytes, packet(operation::REPLY, (own, target), sender));
        }
    }
}
