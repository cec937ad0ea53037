//! A connection's name: one for both directions.

use std::hash::{Hash, Hasher};

use crate::wire::address::Address;

/// Which way a packet goes relative to its key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Orientation {
    /// From the key's low end to its high end.
    LowToHigh = 0,
    /// From the key's high end to its low end.
    HighToLow = 1,
}

/// The canonical 5-tuple: `(low, low_port) <= (high, high_port)`, so that both directions of a connection give one key.
///
/// Protocols without ports carry 0; for ICMP echo see [`FlowKey::echo`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct FlowKey {
    low: Address,
    high: Address,
    low_port: u16,
    high_port: u16,
    protocol: u8,
}

impl FlowKey {
    /// The key of a packet, and which way the packet goes.
    #[inline]
    pub fn new(
        source: Address,
        destination: Address,
        source_port: u16,
        destination_port: u16,
        protocol: u8,
    ) -> (Self, Orientation) {
        if (source, source_port) <= (destination, destination_port) {
            let key = Self {
                low: source,
                high: destination,
                low_port: source_port,
                high_port: destination_port,
                protocol,
            };
            (key, Orientation::LowToHigh)
        } else {
            let key = Self {
                low: destination,
                high: source,
                low_port: destination_port,
                high_port: source_port,
                protocol,
            };
            (key, Orientation::HighToLow)
        }
    }

    /// The key of an ICMP echo request or its reply (RFC 792; RFC 4443, section 4). The identifier stands as the asking
    /// side's port and its complement as the answering side's, so that two hosts who ask each other with one identifier
    /// have two flows, and a request can never pass as a reply.
    #[inline]
    pub fn echo(
        source: Address,
        destination: Address,
        identifier: u16,
        is_request: bool,
        protocol: u8,
    ) -> (Self, Orientation) {
        let (asking, answering) = (identifier, !identifier);
        if is_request {
            Self::new(source, destination, asking, answering, protocol)
        } else {
            Self::new(source, destination, answering, asking, protocol)
        }
    }

    /// The IP protocol number.
    #[inline]
    pub fn protocol(&self) -> u8 {
        self.protocol
    }

    /// Address and port that a packet of this orientation comes from.
    #[inline]
    pub fn source(&self, orientation: Orientation) -> (Address, u16) {
        match orientation {
            Orientation::LowToHigh => (self.low, self.low_port),
            Orientation::HighToLow => (self.high, self.high_port),
        }
    }

    /// Address and port that a packet of this orientation goes to.
    #[inline]
    pub fn destination(&self, orientation: Orientation) -> (Address, u16) {
        match orientation {
            Orientation::LowToHigh => (self.high, self.high_port),
            Orientation::HighToLow => (self.low, self.low_port),
        }
    }
}

impl Hash for FlowKey {
    /// Three wide writes; the derived form would write 38 bytes in pieces.
    #[inline]
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u128(self.low.to_bits());
        state.write_u128(self.high.to_bits());
        state.write_u64(
            u64::from(self.low_port)
                | u64::from(self.high_port) << 16
                | u64::from(self.protocol) << 32,
        );
    }
}
