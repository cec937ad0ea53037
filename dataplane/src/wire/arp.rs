//! ARP for IPv4 over Ethernet (RFC 826).

use zerocopy::network_endian::U16;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// A packet.
#[derive(Debug, Clone, Copy, Default, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Header {
    /// Hardware space and protocol space, and the lengths of their addresses.
    spaces_and_lengths: [u8; 6],
    /// See [`operation`].
    pub operation: U16,
    /// The sender's hardware address.
    pub sender_hardware: [u8; 6],
    /// The sender's IPv4 address.
    pub sender_protocol: [u8; 4],
    /// The target's hardware address.
    pub target_hardware: [u8; 6],
    /// The target's IPv4 address.
    pub target_protocol: [u8; 4],
}

/// Hardware space Ethernet, protocol space IPv4, addresses of six and four bytes.
const ETHERNET_IPV4: [u8; 6] = [0, 1, 8, 0, 6, 4];

/// The operations.
pub mod operation {
    /// Asks for the hardware address of the target's protocol address.
    pub const REQUEST: u16 = 1;
    /// Says that the sender has its protocol address.
    pub const REPLY: u16 = 2;
}

/// A packet, followed by the link's padding.
pub type View = super::view::View<Header>;

impl super::view::Header for Header {
    /// Whether the packet is about IPv4 over Ethernet.
    #[inline]
    fn is_valid(&self) -> bool {
        self.spaces_and_lengths == ETHERNET_IPV4
    }
}

impl Header {
    /// The answer to a request: the target's address is at the hardware address `hardware`.
    #[inline]
    #[must_use]
    pub fn answer(&self, hardware: [u8; 6]) -> Self {
        Self {
            spaces_and_lengths: ETHERNET_IPV4,
            operation: operation::REPLY.into(),
            sender_hardware: hardware,
            sender_protocol: self.target_protocol,
            target_hardware: self.sender_hardware,
            target_protocol: self.sender_protocol,
        }
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
                let _ = (view.operation.get(), view.sender_hardware, view.sender_protocol);
                let _ = view.target_protocol;
            }
        }

        #[test]
        fn etherparse_reads_the_same(operation: u16, sender: ([u8; 6], [u8; 4]), target: ([u8; 6], [u8; 4])) {
            let bytes = packet(operation, sender, target);
            let view = View::new_checked(&bytes).unwrap();
            prop_assert_eq!(view.operation.get(), operation);
            prop_assert_eq!((view.sender_hardware, view.sender_protocol), sender);
            prop_assert_eq!(view.target_protocol, target.1);
        }

        #[test]
        fn the_answer_goes_back_and_says_where(sender: ([u8; 6], [u8; 4]), target: [u8; 4], own: [u8; 6]) {
            let bytes = packet(operation::REQUEST, sender, ([0; 6], target));
            let answer = View::new_checked(&bytes).unwrap().answer(own);
            prop_assert_eq!(answer.as_bytes(), packet(operation::REPLY, (own, target), sender));
        }
    }
}
