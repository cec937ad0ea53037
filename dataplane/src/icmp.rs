//! ICMP errors: those that this node originates, and the packets that are quoted in errors which pass through.

use zerocopy::IntoBytes;

use crate::checksum;
use crate::packet::{Packet, Pool};
use crate::parse::{Fragment, Parsed};
use crate::wire::address::{Address, pseudo};
use crate::wire::{extension, icmpv4, icmpv6, ipv4, ipv6, protocol};

/// The length of the longest error over IPv4, in bytes (RFC 1812, section 4.3.2.3).
const MAX_V4: usize = 576;
/// The length of the longest error over IPv6, in bytes: the minimum MTU (RFC 4443, section 2.4 (c)).
const MAX_V6: usize = 1280;
const TTL: u8 = 64;
/// Precedence "internetwork control", in the byte with DSCP and ECN (RFC 1812, section 4.3.2.5).
const CONTROL: u8 = 0xc0;

/// The kind of an ICMP error. The address family determines the message type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ErrorKind {
    /// The packet is larger than the next link's MTU: fragmentation needed (RFC 1191), packet too big (RFC 4443,
    /// section 3.2).
    TooBig {
        /// The next link's MTU, in bytes.
        mtu: u32,
    },
    /// The hop limit ran out.
    TimeExceeded,
    /// No host has the address.
    HostUnreachable,
    /// No process listens at the port.
    PortUnreachable,
}

/// Builds the error about `offending` with the source address `ours`. Returns `None` if no error may be sent or if
/// there is no buffer.
///
/// No error is sent about an ICMP error or redirect, about a later fragment, or to a source that is not the address of
/// a single node. No error is sent about a packet to many nodes, except for an IPv6 multicast packet that is too big
/// (RFC 1122, section 3.2.2; RFC 4443, section 2.4 (e)). The error quotes as much of the packet as fits in 576 bytes
/// (IPv6: 1280).
pub fn build_error(
    offending: &[u8],
    parsed: &Parsed,
    error: ErrorKind,
    ours: Address,
    pool: &mut Pool,
) -> Option<Packet> {
    if !may_send_error(parsed, error) || ours.is_v4() != parsed.is_v4() {
        return None;
    }
    let whole = offending.get(..usize::from(parsed.total_len))?;
    match (ours.to_v4(), parsed.source.to_v4()) {
        (Some(from), Some(to)) => build_error_v4(whole, error, from.octets(), to.octets(), pool),
        _ => build_error_v6(whole, error, ours, parsed.source, pool),
    }
}

fn may_send_error(parsed: &Parsed, error: ErrorKind) -> bool {
    let to_many = !parsed.is_v4() && parsed.destination.to_ip().is_multicast();
    let redirect = !parsed.is_v4()
        && parsed.protocol == protocol::ICMPV6
        && parsed.icmp_type == icmpv6::kind::REDIRECT;
    !parsed.is_icmp_error()
        && !redirect
        && !matches!(parsed.fragment, Fragment::Later { .. })
        && parsed.source.is_forwardable()
        && (parsed.destination.is_forwardable()
            || parsed.destination.is_v4_loopback()
            || to_many && matches!(error, ErrorKind::TooBig { .. }))
}

fn build_error_v4(
    whole: &[u8],
    error: ErrorKind,
    from: [u8; 4],
    to: [u8; 4],
    pool: &mut Pool,
) -> Option<Packet> {
    let (kind, code, mtu) = match error {
        ErrorKind::TooBig { mtu } => (icmpv4::kind::UNREACHABLE, 4, mtu.min(0xffff) as u16),
        ErrorKind::TimeExceeded => (icmpv4::kind::TIME_EXCEEDED, 0, 0),
        ErrorKind::HostUnreachable => (icmpv4::kind::UNREACHABLE, 1, 0),
        ErrorKind::PortUnreachable => (icmpv4::kind::UNREACHABLE, 3, 0),
    };
    let headers_len = ipv4::HEADER_LEN + icmpv4::HEADER_LEN;
    let quote = &whole[..whole.len().min(MAX_V4 - headers_len)];
    let ip = ipv4::Header {
        version_ihl: ipv4::VERSION_IHL,
        dscp_ecn: CONTROL,
        total_len: ((headers_len + quote.len()) as u16).into(),
        // The error fits every MTU, so it needs no identification of its own (RFC 6864, section 4.1).
        flags_offset: ipv4::DONT_FRAGMENT.into(),
        ttl: TTL,
        protocol: protocol::ICMPV4,
        source: from,
        destination: to,
        ..ipv4::Header::default()
    };
    let mut icmp = icmpv4::Header { kind, code, mtu: mtu.into(), ..icmpv4::Header::default() };
    let sum = checksum::sum(icmp.as_bytes()) + checksum::sum(quote);
    icmp.checksum = checksum::finish(sum).into();
    pool.concatenate(&[ip.with_checksum().as_bytes(), icmp.as_bytes(), quote])
}

fn build_error_v6(
    whole: &[u8],
    error: ErrorKind,
    from: Address,
    to: Address,
    pool: &mut Pool,
) -> Option<Packet> {
    let (kind, code, mtu) = match error {
        ErrorKind::TooBig { mtu } => (icmpv6::kind::PACKET_TOO_BIG, 0, mtu),
        ErrorKind::TimeExceeded => (icmpv6::kind::TIME_EXCEEDED, 0, 0),
        ErrorKind::HostUnreachable => (icmpv6::kind::UNREACHABLE, 3, 0),
        ErrorKind::PortUnreachable => (icmpv6::kind::UNREACHABLE, 4, 0),
    };
    let quote = &whole[..whole.len().min(MAX_V6 - ipv6::HEADER_LEN - icmpv6::HEADER_LEN)];
    let len = (icmpv6::HEADER_LEN + quote.len()) as u16;
    let (source, destination) = (from.to_bits().to_be_bytes(), to.to_bits().to_be_bytes());
    let ip = ipv6::header(source, destination, protocol::ICMPV6, TTL, len);
    let mut icmp = icmpv6::Header { kind, code, mtu: mtu.into(), ..icmpv6::Header::default() };
    let sum = pseudo(from, to, protocol::ICMPV6, u32::from(len))
        + checksum::sum(icmp.as_bytes())
        + checksum::sum(quote);
    icmp.checksum = checksum::finish(sum).into();
    pool.concatenate(&[&ip, icmp.as_bytes(), quote])
}

/// The packet that an ICMP error is about, as its sender sent it. Its source is the receiver of the error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Quoted {
    /// Its source address.
    pub source: Address,
    /// Its destination address.
    pub destination: Address,
    /// The layer-4 protocol.
    pub protocol: u8,
    /// As in [`Parsed::source_port`].
    pub source_port: u16,
    /// As in [`Parsed::destination_port`].
    pub destination_port: u16,
    /// As in [`Parsed::icmp`].
    pub icmp: Option<(u8, u8)>,
    /// The offset of the layer-4 header, in bytes.
    pub transport_offset: u16,
}

/// Reads the packet that an ICMP error quotes (IPv4 types 3, 4, 11, 12; IPv6 types 1 to 4).
///
/// Returns `None` if the message is not such an error, or if the quoted packet does not identify a flow, may not cause
/// an error, or was not sent by the receiver of the error.
pub fn parse_quoted(bytes: &[u8], parsed: &Parsed) -> Option<Quoted> {
    let redirect = parsed.is_v4() && parsed.icmp_type == icmpv4::kind::REDIRECT;
    let known = icmpv6::kind::UNREACHABLE..=icmpv6::kind::PARAMETER_PROBLEM;
    let other = !parsed.is_v4() && !known.contains(&parsed.icmp_type);
    if !parsed.is_icmp_error() || redirect || other {
        return None;
    }
    let quote = bytes.get(usize::from(parsed.header_len)..usize::from(parsed.total_len))?;
    let quoted = if parsed.is_v4() { parse_quoted_v4(quote)? } else { parse_quoted_v6(quote)? };
    (quoted.source == parsed.destination).then_some(quoted)
}

fn parse_quoted_v4(quote: &[u8]) -> Option<Quoted> {
    let ip = ipv4::View::new_quoted(quote).ok()?;
    if ip.fragment_offset() > 0 {
        return None;
    }
    let segment = &quote[ip.header_len()..];
    let mut message = None;
    let (source_port, destination_port) = match ip.protocol {
        protocol::ICMPV4 => {
            let icmp = icmpv4::View::new_checked(segment).ok()?;
            message = Some((icmp.kind, icmp.code));
            let id = if icmpv4::kind::has_id(icmp.kind) { icmp.id.get() } else { 0 };
            (!icmpv4::kind::is_error(icmp.kind)).then_some((id, id))?
        }
        protocol => ports(protocol, segment)?,
    };
    Some(Quoted {
        source: Address::v4(ip.source),
        destination: Address::v4(ip.destination),
        protocol: ip.protocol,
        source_port,
        destination_port,
        icmp: message,
        transport_offset: ip.header_len() as u16,
    })
}

fn parse_quoted_v6(quote: &[u8]) -> Option<Quoted> {
    let ip = ipv6::View::new_quoted(quote).ok()?;
    let walked = extension::walk(ip.next_header, ip.payload()).ok()?;
    if walked.fragment.is_some_and(|(fragment, _)| fragment.offset > 0) {
        return None;
    }
    let segment = &ip.payload()[walked.offset..];
    let mut message = None;
    let (source_port, destination_port) = match walked.protocol {
        protocol::ICMPV6 => {
            let icmp = icmpv6::View::new_checked(segment).ok()?;
            message = Some((icmp.kind, icmp.code));
            let id = if icmpv6::kind::has_id(icmp.kind) { icmp.id() } else { 0 };
            (!icmpv6::kind::is_error(icmp.kind)).then_some((id, id))?
        }
        protocol => ports(protocol, segment)?,
    };
    Some(Quoted {
        source: Address::v6(ip.source),
        destination: Address::v6(ip.destination),
        protocol: walked.protocol,
        source_port,
        destination_port,
        icmp: message,
        transport_offset: (ipv6::HEADER_LEN + walked.offset) as u16,
    })
}

/// The ports. They are in the eight bytes after the IP header that every error quotes (RFC 792).
fn ports(protocol: u8, segment: &[u8]) -> Option<(u16, u16)> {
    match protocol {
        protocol::TCP | protocol::UDP | protocol::SCTP => {
            let &[a, b, c, d] = segment.first_chunk()?;
            Some((u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d])))
        }
        _ => Some((0, 0)),
    }
}

#[cfg(test)]
mod tests;
