//! A translation: other addresses and ports for a packet.
//!
//! Checksums are adjusted (RFC 1624), so a packet that was damaged before stays so. SCTP's is a CRC over the whole packet
//! and is computed anew. A later fragment has no ports and gets addresses alone. Of an ICMP error the quoted packet is
//! translated, and the error's own addresses follow from it (RFC 5508, section 4.2).

use crate::checksum::{add, difference, finish, fold, fold64, sum};
use crate::flow::{FlowKey, Orientation};
use crate::icmp::{self, Quoted};
use crate::packet::Packet;
use crate::parse::{Parsed, parse};
use crate::wire::address::Address;
use crate::wire::{Malformed, icmpv4, ipv4, protocol, sctp, tcp, udp};

/// Where the addresses stand in each family's header: the source, then the destination.
const ADDRESSES_V4: usize = 12;
const ADDRESSES_V6: usize = 8;

/// The addresses and ports that a packet gets, as the key and orientation that it goes on with. For an ICMP error they
/// are those of the packet that it quotes.
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
    /// Source and destination.
    fn ends(&self) -> [End; 2] {
        [self.key.source(self.orientation), self.key.destination(self.orientation)]
    }

    /// Whether a packet with these ports keeps them.
    pub fn keeps_ports(&self, ports: [u16; 2]) -> bool {
        self.ends().map(|(_, port)| port) == ports
    }

    /// Translates a packet. Errors: it cannot be parsed, which the caller has done before.
    #[inline(never)]
    pub fn apply(&self, packet: &mut Packet) -> Result<(), Malformed> {
        let parsed = parse(packet.bytes())?;
        if parsed.is_icmp_error() {
            let quoted = icmp::parse_quoted(packet.bytes(), &parsed).ok_or(Malformed)?;
            return self.apply_to_error(packet, &parsed, &quoted).ok_or(Malformed);
        }
        let sums = if packet.offload.checksum.is_partial() { Sums::Partial } else { Sums::Whole };
        let transport = parsed.has_ports.then_some((parsed.transport_offset, parsed.protocol));
        let bytes = packet.bytes_mut().get_mut(..parsed.total_len.into()).ok_or(Malformed)?;
        put_ends(bytes, parsed.is_v4(), transport, self.ends(), sums).ok_or(Malformed)
    }

    fn apply_to_error(&self, packet: &mut Packet, error: &Parsed, quoted: &Quoted) -> Option<()> {
        let is_partial = packet.offload.checksum.is_partial();
        let [source, destination] = self.ends();
        // An error of a router on the way keeps the router's address.
        let is_of_the_end = error.source == quoted.destination;
        let from = if is_of_the_end { destination.0 } else { error.source };
        let bytes = packet.bytes_mut();
        let addresses = put_addresses(bytes, error.is_v4(), from, source.0)?;
        let quote = bytes.get_mut(error.header_len.into()..error.total_len.into())?;
        let before = sum(quote);
        let transport = matches!(quoted.protocol, protocol::TCP | protocol::UDP | protocol::SCTP)
            .then_some((quoted.transport_offset, quoted.protocol));
        put_ends(quote, error.is_v4(), transport, [source, destination], Sums::Quoted)?;
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

/// The kind of a layer-4 checksum.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Sums {
    /// Over the whole packet.
    Whole,
    /// Over the pseudo-header alone ([`Checksum::Partial`](crate::packet::Checksum::Partial)).
    Partial,
    /// As [`Sums::Whole`], but the packet may be cut short.
    Quoted,
}

/// Puts addresses and, if it has a `transport` header (its place and protocol), ports into a packet from its IP header
/// on.
#[inline]
fn put_ends(
    bytes: &mut [u8],
    is_v4: bool,
    transport: Option<(u16, u8)>,
    [source, destination]: [End; 2],
    sums: Sums,
) -> Option<()> {
    let addresses = put_addresses(bytes, is_v4, source.0, destination.0)?;
    let Some((offset, protocol)) = transport else { return Some(()) };
    let segment = bytes.get_mut(offset.into()..)?;
    let ports = segment.first_chunk_mut()?;
    let before = u32::from_be_bytes(*ports);
    let after = u32::from(source.1) << 16 | u32::from(destination.1);
    *ports = after.to_be_bytes();
    let field = match protocol {
        protocol::TCP => tcp::CHECKSUM_OFFSET,
        protocol::UDP => udp::CHECKSUM_OFFSET,
        _ if sums == Sums::Quoted || before == after => return Some(()),
        _ => return sctp::fill_checksum(segment),
    };
    if sums == Sums::Quoted && segment.len() < field + 2 {
        return Some(());
    }
    if protocol == protocol::UDP && sums != Sums::Partial {
        let no_checksum = [0; 2];
        if segment.get(field..field + 2)? == no_checksum {
            return Some(());
        }
        adjust(segment, field, add(addresses, difference(before.into(), after.into())), false)?;
        let written = segment.get_mut(field..field + 2)?;
        if *written == no_checksum {
            // Zero says that there is no checksum (RFC 768).
            written.fill(0xff);
        }
        return Some(());
    }
    let changed = match sums {
        Sums::Partial => addresses,
        Sums::Whole | Sums::Quoted => add(addresses, difference(before.into(), after.into())),
    };
    adjust(segment, field, changed, sums == Sums::Partial)
}

/// Puts both addresses into a header, and adjusts the checksum of IPv4's. Returns the change of the pseudo-header's sum.
#[inline]
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

/// Adjusts the checksum at an offset to a changed sum. A partial one is the sum itself, not its complement.
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
