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
/// Protocols without ports carry 0; for ICMP see [`FlowKey::query`] and [`FlowKey::message`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct FlowKey {
    low: Address,
    high: Address,
    low_port: u16,
    high_port: u16,
    protocol: u8,
    /// ICMP's type, of a query or its reply the one that comes from the low end.
    icmp_type: u8,
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
                icmp_type: 0,
            };
            (key, Orientation::LowToHigh)
        } else {
            let key = Self {
                low: destination,
                high: source,
                low_port: destination_port,
                high_port: source_port,
                protocol,
                icmp_type: 0,
            };
            (key, Orientation::HighToLow)
        }
    }

    /// The key of an ICMP query, such as an echo request, or of its reply (RFC 792; RFC 4443, section 4). `types` are the
    /// packet's own and that of the packets that go the other way. The identifier stands as the asking side's port and its
    /// complement as the answering side's, so that two hosts who ask each other with one identifier have two flows, and a
    /// request can never pass as a reply.
    #[inline]
    pub fn query(
        source: Address,
        destination: Address,
        identifier: u16,
        types: [u8; 2],
        is_request: bool,
        protocol: u8,
    ) -> (Self, Orientation) {
        let (asking, answering) = (identifier, !identifier);
        let (key, orientation) = if is_request {
            Self::new(source, destination, asking, answering, protocol)
        } else {
            Self::new(source, destination, answering, asking, protocol)
        };
        (Self { icmp_type: types[orientation as usize], ..key }, orientation)
    }

    /// The key of any other ICMP message. Each type and code is a flow of its own, because policy may tell them apart.
    #[inline]
    pub fn message(
        source: Address,
        destination: Address,
        icmp_type: u8,
        code: u8,
        protocol: u8,
    ) -> (Self, Orientation) {
        let code = u16::from(code);
        let (key, orientation) = Self::new(source, destination, code, code, protocol);
        (Self { icmp_type, ..key }, orientation)
    }

    /// ICMP's type as the low end's packets show it.
    #[inline]
    pub fn icmp_type(&self) -> u8 {
        self.icmp_type
    }

    /// The code of an ICMP [`message`](Self::message); `None`: it is a [`query`](Self::query) or its reply, which have 0.
    #[inline]
    pub fn icmp_code(&self) -> Option<u8> {
        // A query's ports are complements of each other, a message's are its code.
        (self.low_port == self.high_port).then_some(self.low_port as u8)
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
                | u64::from(self.protocol) << 32
                | u64::from(self.icmp_type) << 40,
        );
    }
}
