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
#[derive(Debug, Clone, Copy, Eq)]
#[repr(C)]
pub struct FlowKey {
    low: Address,
    high: Address,
    /// From the lowest bits up: the low end's port, the high end's, the protocol, and ICMP's type, of a query or its reply the
    /// one that comes from the low end. In one number, because it is compared and hashed with every packet.
    rest: u64,
}

const HIGH_PORT: u32 = 16;
const PROTOCOL: u32 = 32;
const ICMP_TYPE: u32 = 40;

impl FlowKey {
    /// No connection's: what stands where a key is to be.
    pub const NOTHING: Self =
        Self { low: Address::UNSPECIFIED, high: Address::UNSPECIFIED, rest: 0 };

    /// The key of a packet, and which way the packet goes.
    #[inline]
    pub fn new(
        source: Address,
        destination: Address,
        source_port: u16,
        destination_port: u16,
        protocol: u8,
    ) -> (Self, Orientation) {
        let ends = [(source, source_port), (destination, destination_port)];
        let (orientation, [low, high]) = if ends[0] <= ends[1] {
            (Orientation::LowToHigh, ends)
        } else {
            (Orientation::HighToLow, [ends[1], ends[0]])
        };
        let rest =
            u64::from(low.1) | u64::from(high.1) << HIGH_PORT | u64::from(protocol) << PROTOCOL;
        (Self { low: low.0, high: high.0, rest }, orientation)
    }

    fn with_icmp_type(self, icmp_type: u8) -> Self {
        Self { rest: self.rest | u64::from(icmp_type) << ICMP_TYPE, ..self }
    }

    #[inline]
    fn low_port(&self) -> u16 {
        self.rest as u16
    }

    #[inline]
    fn high_port(&self) -> u16 {
        (self.rest >> HIGH_PORT) as u16
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
        (key.with_icmp_type(types[orientation as usize]), orientation)
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
        (key.with_icmp_type(icmp_type), orientation)
    }

    /// ICMP's type as the low end's packets show it.
    #[inline]
    pub fn icmp_type(&self) -> u8 {
        (self.rest >> ICMP_TYPE) as u8
    }

    /// The code of an ICMP [`message`](Self::message); `None`: it is a [`query`](Self::query) or its reply, which have 0.
    #[inline]
    pub fn icmp_code(&self) -> Option<u8> {
        // A query's ports are complements of each other, a message's are its code.
        (self.low_port() == self.high_port()).then(|| self.low_port() as u8)
    }

    /// The IP protocol number.
    #[inline]
    pub fn protocol(&self) -> u8 {
        (self.rest >> PROTOCOL) as u8
    }

    /// Address and port that a packet of this orientation comes from.
    #[inline]
    pub fn source(&self, orientation: Orientation) -> (Address, u16) {
        match orientation {
            Orientation::LowToHigh => (self.low, self.low_port()),
            Orientation::HighToLow => (self.high, self.high_port()),
        }
    }

    /// Address and port that a packet of this orientation goes to.
    #[inline]
    pub fn destination(&self, orientation: Orientation) -> (Address, u16) {
        match orientation {
            Orientation::LowToHigh => (self.high, self.high_port()),
            Orientation::HighToLow => (self.low, self.low_port()),
        }
    }
}

impl PartialEq for FlowKey {
    /// Without a branch between the words: nearly always all of them are equal.
    #[inline]
    fn eq(&self, other: &Self) -> bool {
        let low = self.low.to_bits() ^ other.low.to_bits();
        let high = self.high.to_bits() ^ other.high.to_bits();
        low | high | u128::from(self.rest ^ other.rest) == 0
    }
}

impl Hash for FlowKey {
    /// Three wide writes; the derived form would make five.
    #[inline]
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u128(self.low.to_bits());
        state.write_u128(self.high.to_bits());
        state.write_u64(self.rest);
    }
}
