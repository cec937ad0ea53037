//! A translation: other addresses and ports for a packet.
//!
//! The identifier of an ICMP query counts as its port. Checksums are adjusted (RFC 1624), so a packet that was damaged
//! before stays damaged. The checksum of SCTP is a CRC over the whole packet and is computed again. A later fragment
//! has no ports, and only its addresses are translated. In an ICMP error the quoted packet is translated, and the
//! error's own addresses follow from it (RFC 5508, section 4.2).

use crate::checksum::{add, difference, finish, fold, fold64, sum};
use crate::flow::{FlowKey, Orientation};
use crate::icmp::{self, Quoted};
use crate::packet::Packet;
use crate::parse::{Fragment, Parsed, parse};
use crate::wire::address::Address;
use crate::wire::{Malformed, icmpv4, icmpv6, ipv4, protocol, sctp, tcp, udp};

/// The offset of the addresses in the header of each family: the source, then the destination.
const ADDRESSES_V4: usize = 12;
const ADDRESSES_V6: usize = 8;
/// The offset of the identifier in an ICMP query.
const IDENTIFIER: usize = 4;

/// The addresses and ports that a packet gets, given as the key and orientation of the translated packet. For an ICMP
/// error they are those of the packet that it quotes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Translation {
    /// The key.
    pub key: FlowKey,
    /// The packet's orientation in it.
    pub orientation: Orientation,
}

/// An address and a port.
type End = (Address, u16);

impl Translation {
    /// The source and the destination.
    #[inline]
    fn ends(&self) -> [End; 2] {
        [self.key.source(self.orientation), self.key.destination(self.orientation)]
    }

    /// Whether a packet with these ports keeps its ports.
    pub fn keeps_ports(&self, ports: [u16; 2]) -> bool {
        self.ends().map(|(_, port)| port) == ports
    }

    /// Translates a packet. Returns an error if the packet cannot be parsed. The caller has parsed it before.
    #[inline(never)]
    pub fn apply(&self, packet: &mut Packet) -> Result<(), Malformed> {
        let parsed = parse(packet.bytes())?;
        if parsed.is_icmp_error() {
            let quoted = icmp::parse_quoted(packet.bytes(), &parsed).ok_or(Malformed)?;
            return self.apply_to_error(packet, &parsed, &quoted).ok_or(Malformed);
        }
        let sums = Sums::of(packet);
        let upper = match parsed.fragment {
            Fragment::Later { .. } => Upper::Nothing,
            Fragment::Whole | Fragment::First { .. } => {
                Upper::new(parsed.is_v4(), parsed.protocol, parsed.icmp())
            }
        };
        let bytes = packet.bytes_mut().get_mut(..parsed.total_len.into()).ok_or(Malformed)?;
        let place = (parsed.transport_offset.into(), upper);
        put_ends(bytes, parsed.is_v4(), place, self.ends(), sums).ok_or(Malformed)
    }

    /// Like [`Translation::apply`], for a packet that is known to parse, to be no fragment and to have ports. It is
    /// parsed again only if its ports may not lie right after an IPv4 header without options, or if it is SCTP.
    #[inline(always)]
    #[expect(clippy::inline_always, reason = "nearly every packet that is translated")]
    pub fn apply_to_whole(&self, packet: &mut Packet) -> Result<(), Malformed> {
        let sums = Sums::of(packet);
        let bytes = packet.bytes_mut();
        if bytes.first() == Some(&ipv4::VERSION_IHL) && !self.key.is_v6() {
            let upper = Upper::new(true, self.key.protocol(), None);
            if matches!(upper, Upper::Tcp | Upper::Udp) {
                let place = (ipv4::HEADER_LEN, upper);
                return put_ends(bytes, true, place, self.ends(), sums).ok_or(Malformed);
            }
        }
        self.apply(packet)
    }

    fn apply_to_error(&self, packet: &mut Packet, error: &Parsed, quoted: &Quoted) -> Option<()> {
        let is_partial = packet.offload.checksum.is_partial();
        let [source, destination] = self.ends();
        // An error from a router on the way keeps the router's address.
        let is_of_the_end = error.source == quoted.destination;
        let from = if is_of_the_end { destination.0 } else { error.source };
        let bytes = packet.bytes_mut();
        let addresses = put_addresses(bytes, error.is_v4(), from, source.0)?;
        let quote = bytes.get_mut(error.header_len.into()..error.total_len.into())?;
        let before = sum(quote);
        let upper = Upper::new(error.is_v4(), quoted.protocol, quoted.icmp);
        let place = (quoted.transport_offset.into(), upper);
        put_ends(quote, error.is_v4(), place, [source, destination], Sums::Quoted)?;
        let of_quote = difference(before.into(), sum(quote).into());
        let changed = match (error.is_v4(), is_partial) {
            (true, true) => return Some(()),
            (true, false) => of_quote,
            (false, true) => addresses,
            (false, false) => add(addresses, of_quote),
        };
        let message = bytes.get_mut(error.transport_offset.into()..)?;
        adjust(message, icmpv4::CHECKSUM_OFFSET, changed, is_partial)
    }
}

/// The kind of data after the IP header, as far as a translation changes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Upper {
    /// TCP: ports.
    Tcp,
    /// UDP: ports, and a checksum that may be absent.
    Udp,
    /// SCTP: ports, and a checksum that does not cover addresses.
    Sctp,
    /// ICMP, whose checksum does not cover addresses. A query has an identifier, which is the port of the side that
    /// asks.
    Icmp(Option<Asks>),
    /// `ICMPv6`: like ICMP, but the checksum covers addresses.
    Icmpv6(Option<Asks>),
    /// Other data, which does not change.
    Nothing,
}

/// Whether an ICMP query is a request, not a reply.
type Asks = bool;

impl Upper {
    /// ICMP of the other family is treated like any protocol without ports, because no receiver reads it as ICMP.
    fn new(is_v4: bool, protocol: u8, icmp: Option<(u8, u8)>) -> Self {
        let query = |of: fn(u8) -> Option<(u8, bool)>| {
            icmp.filter(|(_, code)| *code == 0).and_then(|(kind, _)| of(kind)).map(|(_, asks)| asks)
        };
        match protocol {
            protocol::TCP => Self::Tcp,
            protocol::UDP => Self::Udp,
            protocol::SCTP => Self::Sctp,
            protocol::ICMPV4 if is_v4 => Self::Icmp(query(icmpv4::kind::query)),
            protocol::ICMPV6 if !is_v4 => Self::Icmpv6(query(icmpv6::kind::query)),
            _ => Self::Nothing,
        }
    }
}

/// The kind of a layer-4 checksum.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Sums {
    /// Over the whole packet.
    Whole,
    /// Over the pseudo-header alone ([`Checksum::Partial`](crate::packet::Checksum::Partial)).
    Partial,
    /// Like [`Sums::Whole`], but the packet may be cut short.
    Quoted,
}

impl Sums {
    #[inline]
    fn of(packet: &Packet) -> Self {
        if packet.offload.checksum.is_partial() { Self::Partial } else { Self::Whole }
    }
}

/// Writes addresses, and ports or an identifier, into a packet, which is given from its IP header on. `upper` is the
/// offset and the kind of the data after the IP header.
#[inline(always)]
#[expect(clippy::inline_always, reason = "most of it is known beforehand of a plain packet")]
fn put_ends(
    bytes: &mut [u8],
    is_v4: bool,
    (offset, upper): (usize, Upper),
    [source, destination]: [End; 2],
    sums: Sums,
) -> Option<()> {
    let addresses = put_addresses(bytes, is_v4, source.0, destination.0)?;
    if upper == Upper::Nothing {
        return Some(());
    }
    let segment = bytes.get_mut(offset..)?;
    let ports = match upper {
        Upper::Icmp(asks) | Upper::Icmpv6(asks) => put_identifier(segment, asks, source.1)?,
        _ => put_ports(segment, source.1, destination.1)?,
    };
    let (field, with_addresses) = match upper {
        Upper::Tcp => (tcp::CHECKSUM_OFFSET, true),
        Upper::Udp => (udp::CHECKSUM_OFFSET, true),
        Upper::Icmp(_) => (icmpv4::CHECKSUM_OFFSET, false),
        Upper::Icmpv6(_) => (icmpv6::CHECKSUM_OFFSET, true),
        Upper::Sctp if sums == Sums::Quoted || ports == UNCHANGED => return Some(()),
        Upper::Sctp => return sctp::fill_checksum(segment),
        Upper::Nothing => return Some(()),
    };
    if sums == Sums::Quoted && segment.len() < field + 2 {
        return Some(());
    }
    let is_absent = |segment: &[u8]| segment.get(field..field + 2) == Some(&[0; 2]);
    let may_be_absent = upper == Upper::Udp && sums != Sums::Partial;
    if may_be_absent && is_absent(segment) {
        return Some(());
    }
    let of_addresses = if with_addresses { addresses } else { 0 };
    let changed = match sums {
        Sums::Whole | Sums::Quoted => add(of_addresses, ports),
        Sums::Partial => of_addresses,
    };
    adjust(segment, field, changed, sums == Sums::Partial)?;
    if may_be_absent && is_absent(segment) {
        // Zero would mean that there is no checksum (RFC 768).
        segment.get_mut(field..field + 2)?.fill(0xff);
    }
    Some(())
}

/// The [`difference`] of equal words. Different words never have it.
const UNCHANGED: u64 = u64::MAX;

/// Writes ports into a header. Returns the change of its sum.
#[inline]
fn put_ports(segment: &mut [u8], source: u16, destination: u16) -> Option<u64> {
    let field = segment.first_chunk_mut()?;
    let before = u32::from_be_bytes(*field);
    let after = u32::from(source) << 16 | u32::from(destination);
    *field = after.to_be_bytes();
    Some(difference(before.into(), after.into()))
}

/// Writes the identifier of a query into an ICMP header. The port of the side that asks is the identifier, and the port
/// of the other side is its complement ([`FlowKey::query`]).
fn put_identifier(segment: &mut [u8], asks: Option<Asks>, source: u16) -> Option<u64> {
    let Some(asks) = asks else { return Some(UNCHANGED) };
    let field = segment.get_mut(IDENTIFIER..)?.first_chunk_mut()?;
    let before = u16::from_be_bytes(*field);
    let after = if asks { source } else { !source };
    *field = after.to_be_bytes();
    Some(difference(before.into(), after.into()))
}

/// Writes both addresses into a header, and adjusts the header checksum of IPv4. Returns the change of the
/// pseudo-header's sum.
#[inline(always)]
#[expect(clippy::inline_always, reason = "as `put_ends`")]
fn put_addresses(
    bytes: &mut [u8],
    is_v4: bool,
    source: Address,
    destination: Address,
) -> Option<u64> {
    if !is_v4 {
        let (addresses, _) = bytes.get_mut(ADDRESSES_V6..)?.split_first_chunk_mut::<32>()?;
        let before = sum(addresses);
        let (from, to) = addresses.split_at_mut(16);
        from.copy_from_slice(&source.to_bits().to_be_bytes());
        to.copy_from_slice(&destination.to_bits().to_be_bytes());
        return Some(difference(before.into(), sum(addresses).into()));
    }
    let header: &mut [u8; ipv4::HEADER_LEN] = bytes.first_chunk_mut()?;
    let addresses = header[ADDRESSES_V4..].first_chunk_mut()?;
    let before = u64::from_be_bytes(*addresses);
    let [source, destination] = [source, destination].map(Address::to_v4);
    let after = u64::from(source?.to_bits()) << 32 | u64::from(destination?.to_bits());
    *addresses = after.to_be_bytes();
    let changed = difference(before, after);
    adjust(header, ipv4::CHECKSUM_OFFSET, changed, false)?;
    Some(changed)
}

/// Adjusts the checksum at an offset to a changed sum. A partial checksum is the sum itself, not its complement.
#[inline]
fn adjust(bytes: &mut [u8], offset: usize, changed: u64, is_partial: bool) -> Option<()> {
    let field = bytes.get_mut(offset..)?.first_chunk_mut()?;
    let before = u16::from_be_bytes(*field);
    let changed = u32::from(fold(fold64(changed)));
    let after = if is_partial {
        fold(u32::from(before) + changed)
    } else {
        finish(u32::from(!before) + changed)
    };
    *field = after.to_be_bytes();
    Some(())
}

#[cfg(test)]
mod tests;
