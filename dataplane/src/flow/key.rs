//! The key of a flow, which is the same for both directions of a connection.

use std::hash::{Hash, Hasher};
use std::net::Ipv4Addr;

use zerocopy::FromZeros;

use crate::wire::address::Address;
use crate::wire::protocol;

/// The direction of a packet relative to its key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, FromZeros)]
#[repr(u8)]
pub enum Orientation {
    /// From the key's low end to its high end.
    LowToHigh = 0,
    /// From the key's high end to its low end.
    HighToLow = 1,
}

impl Orientation {
    /// The opposite orientation.
    #[inline]
    #[must_use]
    pub const fn reverse(self) -> Self {
        match self {
            Self::LowToHigh => Self::HighToLow,
            Self::HighToLow => Self::LowToHigh,
        }
    }
}

/// The canonical 5-tuple: `(low, low_port) <= (high, high_port)`, so that both directions of a connection give one key.
///
/// Protocols without ports carry 0; for ICMP see [`FlowKey::query`] and [`FlowKey::message`].
///
/// A key is made, compared and hashed for every packet, so an IPv4 key fits in two words.
#[derive(Debug, Clone, Copy, Eq)]
#[repr(C)]
pub struct FlowKey {
    /// The fields from the lowest bits up: the low end's port and IPv4 address, the protocol, and the ICMP type. For a
    /// query and its reply, the type is that of the packets from the low end. For IPv6, this is the last half of the
    /// low end's address.
    first: u64,
    /// The high end's port and IPv4 address. For IPv6: both ports, protocol, type and [`IS_V6`].
    second: u64,
    /// For IPv6: the other parts of the two addresses.
    v6: [u64; 3],
}

const ADDRESS: u32 = u16::BITS;
const PROTOCOL: u32 = ADDRESS + u32::BITS;
const ICMP_TYPE: u32 = PROTOCOL + u8::BITS;
const HIGH_PORT: u32 = u16::BITS;
/// The number of bits by which the protocol and the ICMP type are shifted down in the second word of an IPv6 key. The
/// shift leaves room for [`IS_V6`].
const SECOND: u32 = u16::BITS;
/// A mark in the second word of an IPv6 key.
pub(super) const IS_V6: u64 = 1 << 63;
/// A mark in the second word of an entry's key: the entry has a second key. No packet's key has this mark.
pub(super) const HAS_ANOTHER: u64 = 1 << 62;

impl FlowKey {
    /// A key that belongs to no connection: a placeholder.
    pub const EMPTY: Self = Self { first: 0, second: 0, v6: [0; 3] };

    /// The key of a packet, and the packet's orientation.
    #[inline]
    pub fn new(
        source: Address,
        destination: Address,
        source_port: u16,
        destination_port: u16,
        protocol: u8,
    ) -> (Self, Orientation) {
        let (Some(from), Some(to)) = (source.to_v4(), destination.to_v4()) else {
            let ends = [(source, source_port), (destination, destination_port)];
            return Self::new_v6(ends, protocol);
        };
        let end =
            |address: Ipv4Addr, port| u64::from(address.to_bits()) << ADDRESS | u64::from(port);
        let (from, to) = (end(from, source_port), end(to, destination_port));
        let orientation = if from <= to { Orientation::LowToHigh } else { Orientation::HighToLow };
        let first = from.min(to) | u64::from(protocol) << PROTOCOL;
        (Self { first, second: from.max(to), v6: [0; 3] }, orientation)
    }

    #[inline(never)]
    fn new_v6(ends: [(Address, u16); 2], protocol: u8) -> (Self, Orientation) {
        let (orientation, [low, high]) = if ends[0] <= ends[1] {
            (Orientation::LowToHigh, ends)
        } else {
            (Orientation::HighToLow, [ends[1], ends[0]])
        };
        let half = |bits: u128| [(bits >> 64) as u64, bits as u64];
        let ([low_high, first], [high_high, high_low]) =
            (half(low.0.to_bits()), half(high.0.to_bits()));
        let second = u64::from(low.1)
            | u64::from(high.1) << HIGH_PORT
            | u64::from(protocol) << (PROTOCOL - SECOND)
            | IS_V6;
        (Self { first, second, v6: [low_high, high_high, high_low] }, orientation)
    }

    /// The two words that hold a whole IPv4 key, and the three further words of IPv6.
    #[inline]
    pub(super) const fn words(&self) -> ([u64; 2], [u64; 3]) {
        ([self.first, self.second], self.v6)
    }

    #[inline]
    pub(super) const fn from_words([first, second]: [u64; 2], v6: [u64; 3]) -> Self {
        Self { first, second, v6 }
    }

    /// Whether the key has these words. For an IPv4 key only the first two are compared.
    #[inline]
    pub(super) fn has_words(&self, [first, second]: &[u64; 2], v6: &[u64; 3]) -> bool {
        // The comparison has no branch between the words, because nearly always both are equal.
        let differing = (self.first ^ first) | (self.second ^ second);
        differing == 0 && (!self.is_v6() || self.v6 == *v6)
    }

    /// Whether the words are those of a connection: the ends are in order, and each word is as in a packet's key.
    pub(super) fn is_canonical(&self) -> bool {
        let (low, high) = (self.low(), self.high());
        let (key, _) = Self::new(low.0, high.0, low.1, high.1, self.protocol());
        let is_icmp = matches!(self.protocol(), protocol::ICMPV4 | protocol::ICMPV6);
        let key = key.with_icmp_type(if is_icmp { self.icmp_type() } else { 0 });
        self.words() == key.words()
    }

    /// Whether its addresses are IPv6 addresses.
    #[inline]
    pub fn is_v6(&self) -> bool {
        self.second & IS_V6 != 0
    }

    /// The protocol and the ICMP type, at the bits where the first word of an IPv4 key has them.
    #[inline]
    fn upper(&self) -> u64 {
        if self.is_v6() { self.second << SECOND } else { self.first }
    }

    fn with_icmp_type(mut self, icmp_type: u8) -> Self {
        if self.is_v6() {
            self.second |= u64::from(icmp_type) << (ICMP_TYPE - SECOND);
        } else {
            self.first |= u64::from(icmp_type) << ICMP_TYPE;
        }
        self
    }

    #[inline]
    fn low(&self) -> (Address, u16) {
        if self.is_v6() {
            (address(self.v6[0], self.first), self.second as u16)
        } else {
            v4(self.first)
        }
    }

    #[inline]
    fn high(&self) -> (Address, u16) {
        if self.is_v6() {
            (address(self.v6[1], self.v6[2]), (self.second >> HIGH_PORT) as u16)
        } else {
            v4(self.second)
        }
    }

    /// The key of an ICMP query, such as an echo request, or of its reply (RFC 792; RFC 4443, section 4). `types` are
    /// the type of the packet and the type of the packets in the other direction. The port of the side that asks is the
    /// identifier, and the port of the other side is the identifier's complement. So two hosts that query each other
    /// with the same identifier have two flows, and a request can never pass as a reply.
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

    /// The key of any other ICMP message. Each type and code has a flow of its own, because policy may distinguish
    /// them.
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

    /// The ICMP type of the packets that come from the low end.
    #[inline]
    pub fn icmp_type(&self) -> u8 {
        (self.upper() >> ICMP_TYPE) as u8
    }

    /// The code of an ICMP [`message`](Self::message). `None`: the key is that of a [`query`](Self::query) and its
    /// reply, whose code is 0.
    #[inline]
    pub fn icmp_code(&self) -> Option<u8> {
        // The ports of a query are complements of each other. Both ports of a message are its code.
        let (low, high) = (self.low().1, self.high().1);
        (low == high).then_some(low as u8)
    }

    /// The IP protocol number.
    #[inline]
    pub fn protocol(&self) -> u8 {
        (self.upper() >> PROTOCOL) as u8
    }

    /// The two ends' IPv4 addresses as numbers; for IPv6 some bits of the addresses.
    #[inline]
    pub fn v4_addresses(&self) -> [u32; 2] {
        [self.first, self.second].map(|word| (word >> ADDRESS) as u32)
    }

    /// The address and port that a packet of this orientation comes from.
    #[inline]
    pub fn source(&self, orientation: Orientation) -> (Address, u16) {
        match orientation {
            Orientation::LowToHigh => self.low(),
            Orientation::HighToLow => self.high(),
        }
    }

    /// The address and port that a packet of this orientation goes to.
    #[inline]
    pub fn destination(&self, orientation: Orientation) -> (Address, u16) {
        match orientation {
            Orientation::LowToHigh => self.high(),
            Orientation::HighToLow => self.low(),
        }
    }
}

/// The IPv4 end that a word holds.
#[inline]
fn v4(word: u64) -> (Address, u16) {
    (Ipv4Addr::from_bits((word >> ADDRESS) as u32).into(), word as u16)
}

#[inline]
fn address(high: u64, low: u64) -> Address {
    Address::v6((u128::from(high) << 64 | u128::from(low)).to_be_bytes())
}

impl PartialEq for FlowKey {
    #[inline]
    fn eq(&self, other: &Self) -> bool {
        let (name, v6) = other.words();
        self.has_words(&name, &v6)
    }
}

impl Hash for FlowKey {
    #[inline]
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u128(u128::from(self.first) << 64 | u128::from(self.second));
        if self.is_v6() {
            state.write_u128(u128::from(self.v6[0]) << 64 | u128::from(self.v6[1]));
            state.write_u64(self.v6[2]);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_key_returns_its_parts_and_is_the_same_in_both_directions(
            ends: [([u8; 16], u16); 2], is_v4: bool, protocol: u8, icmp_type: u8,
        ) {
            let [from, to] = ends.map(|(bytes, port)| {
                let v4 = [bytes[0], bytes[1], bytes[2], bytes[3]];
                let ip = if is_v4 { IpAddr::from(v4) } else { IpAddr::from(bytes) };
                (Address::from(ip), port)
            });
            let (key, orientation) = FlowKey::new(from.0, to.0, from.1, to.1, protocol);
            prop_assert_eq!((key.source(orientation), key.destination(orientation)), (from, to));
            let typed = key.with_icmp_type(icmp_type);
            prop_assert_eq!((typed.protocol(), typed.icmp_type()), (protocol, icmp_type));
            prop_assert_eq!(typed.source(orientation), from);
            prop_assert_eq!(typed == key, icmp_type == 0);
            let (back, other) = FlowKey::new(to.0, from.0, to.1, from.1, protocol);
            prop_assert_eq!((back, other == orientation), (key, from == to));
        }
    }
}
