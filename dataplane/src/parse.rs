//! The parsed headers of a packet: the fields that the decision needs, each read once.
//!
//! A packet that cannot be parsed is dropped: no decision rests on a header that a receiver could read differently.

use zerocopy::FromBytes;
use zerocopy::network_endian::U16;

use crate::wire::address::Address;
use crate::wire::view::Header as _;
use crate::wire::{Malformed, extension, icmpv4, icmpv6, ipv4, ipv6, protocol, sctp, tcp, udp};

/// The longest packet that fragments can add up to, in bytes (RFC 791, section 3.2; RFC 8200, section 4.5).
const MAX_REASSEMBLED: u32 = 65_535;
/// The unit of the length of a fragment, in bytes: the length of every fragment except the last is a multiple of it.
const FRAGMENT_UNIT: usize = 8;

/// The kind of fragment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Fragment {
    /// The whole packet.
    #[default]
    Whole,
    /// The first part. It carries the ports, and later fragments follow the decision on it.
    First {
        /// The identification, which is the same in all fragments of a packet.
        id: u32,
    },
    /// A later part. It has neither ports nor ICMP types.
    Later {
        /// The identification, which is the same in all fragments of a packet.
        id: u32,
        /// The fragment's offset in the packet's payload, in bytes.
        offset: u16,
    },
}

/// The header fields that a decision needs. The default value is never forwarded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Parsed {
    /// The source address.
    pub source: Address,
    /// The destination address. It has the same family as the source.
    pub destination: Address,
    /// The layer-4 protocol, after IPv6's extension headers. In a later IPv6 fragment, it is the protocol that the
    /// fragment header names, which may differ from the layer-4 protocol.
    pub protocol: u8,
    /// TTL or hop limit.
    pub ttl: u8,
    /// The flags of TCP ([`tcp::flag`]), else 0.
    pub tcp_flags: u8,
    /// The type of an ICMP message, else 0.
    pub icmp_type: u8,
    /// The code of an ICMP message, else 0.
    pub icmp_code: u8,
    /// Whether the packet has ports: TCP, UDP and SCTP, except for later fragments.
    pub has_ports: bool,
    /// The source port, or the identifier of an ICMP query, else 0.
    pub source_port: u16,
    /// The destination port, or the identifier of an ICMP query, else 0.
    pub destination_port: u16,
    /// The offset of the layer-4 header from the packet's first byte, in bytes.
    pub transport_offset: u16,
    /// The end of the layer-4 header as an offset from the packet's first byte, in bytes. Each segment of a
    /// super-packet repeats these bytes.
    pub header_len: u16,
    /// The packet's length as its IP header gives it, in bytes. Bytes after it are padding of the link.
    pub total_len: u16,
    /// The kind of fragment.
    pub fragment: Fragment,
}

impl Parsed {
    /// Whether it is IPv4.
    #[inline]
    pub fn is_v4(&self) -> bool {
        self.source.is_v4()
    }

    /// The type and code of an ICMP or `ICMPv6` message, except for later fragments.
    #[inline]
    pub fn icmp(&self) -> Option<(u8, u8)> {
        let is_icmp = matches!(self.protocol, protocol::ICMPV4 | protocol::ICMPV6)
            && !matches!(self.fragment, Fragment::Later { .. });
        is_icmp.then_some((self.icmp_type, self.icmp_code))
    }

    /// Whether it is an ICMP error, which is a message about another packet.
    #[inline]
    pub fn is_icmp_error(&self) -> bool {
        if !matches!(self.protocol, protocol::ICMPV4 | protocol::ICMPV6) {
            return false;
        }
        match (self.protocol, self.fragment) {
            (_, Fragment::Later { .. }) => false,
            (protocol::ICMPV4, _) if self.is_v4() => icmpv4::kind::is_error(self.icmp_type),
            (protocol::ICMPV6, _) if !self.is_v4() => icmpv6::kind::is_error(self.icmp_type),
            _ => false,
        }
    }
}

/// Whether a packet must not be fragmented: an IPv4 packet with Don't Fragment, or any packet that is not IPv4.
pub fn must_not_fragment(bytes: &[u8]) -> bool {
    ipv4::View::new_quoted(bytes).map_or(true, |ip| ip.dont_fragment())
}

/// Decrements the hop limit of a parsed packet, and adjusts its checksum. The caller has already dropped packets whose
/// [`Parsed::ttl`] is 1 or less.
#[inline]
pub fn decrement_ttl(bytes: &mut [u8]) {
    match ipv4::Header::mut_from_prefix(bytes) {
        Ok((header, _)) if header.is_valid() => ipv4::decrement_ttl(header),
        _ => {
            if let Ok(ip) = ipv6::View::new_checked_mut(bytes) {
                ip.decrement_hop_limit();
            }
        }
    }
}

/// Parses a packet, starting at its IP header.
///
/// These packets are refused, besides packets with headers that are cut short or contradict themselves:
///
/// - a wrong IPv4 header checksum;
/// - a layer-4 header that is cut short in a whole packet or a first fragment, and a later fragment that overlaps it.
///   These are the tiny fragment and overlapping fragment attacks (RFC 1858, RFC 3128, RFC 7112), here for every
///   protocol with ports;
/// - fragments whose length is not a multiple of eight bytes, or that reach beyond 64 KB (RFC 8200, section 4.5);
/// - an IPv6 packet from or to an IPv4-mapped address, because an [`Address`] would treat it as IPv4;
/// - jumbograms.
#[inline]
pub fn parse(bytes: &[u8]) -> Result<Parsed, Malformed> {
    match parse_plain(bytes) {
        Some(plain) => Ok(plain),
        None => parse_any(bytes),
    }
}

/// Parses a plain packet: IPv4 without options, whole, TCP or UDP. Nearly every packet is plain. Returns `None` if the
/// packet is not plain or something is wrong with it.
#[inline(always)]
#[expect(
    clippy::inline_always,
    reason = "the caller need not test again what is the same in all of them"
)]
pub fn parse_plain(bytes: &[u8]) -> Option<Parsed> {
    let (ip, payload) = ipv4::Plain::split(bytes)?;
    let &[p0, p1, p2, p3, len @ .., _, _] = payload.first_chunk::<{ udp::HEADER_LEN }>()?;
    let ports = u32::from_be_bytes([p0, p1, p2, p3]);
    let (least, len, tcp_flags) = match ip.protocol {
        protocol::UDP => (udp::HEADER_LEN, usize::from(u16::from_be_bytes(len)), 0),
        protocol::TCP => {
            let tcp = payload.first_chunk::<{ tcp::HEADER_LEN }>()?;
            (tcp::HEADER_LEN, usize::from(tcp[12] >> 4) * 4, tcp[13])
        }
        _ => return None,
    };
    if len < least || len > payload.len() {
        return None;
    }
    let upper_len = if ip.protocol == protocol::UDP { udp::HEADER_LEN } else { len };
    Some(Parsed {
        source: Address::v4(ip.source),
        destination: Address::v4(ip.destination),
        protocol: ip.protocol,
        ttl: ip.ttl,
        tcp_flags,
        icmp_type: 0,
        icmp_code: 0,
        has_ports: true,
        source_port: (ports >> 16) as u16,
        destination_port: ports as u16,
        transport_offset: ipv4::HEADER_LEN as u16,
        header_len: (ipv4::HEADER_LEN + upper_len) as u16,
        total_len: ip.total_len,
        fragment: Fragment::Whole,
    })
}

#[inline(never)]
fn parse_any(bytes: &[u8]) -> Result<Parsed, Malformed> {
    match bytes.first().ok_or(Malformed)? >> 4 {
        4 => parse_v4(bytes),
        6 => parse_v6(bytes),
        _ => Err(Malformed),
    }
}

#[inline]
fn parse_v4(bytes: &[u8]) -> Result<Parsed, Malformed> {
    let ip = ipv4::View::new_checked(bytes)?;
    if !ip.checksum_is_right() {
        return Err(Malformed);
    }
    let payload = ip.payload();
    let (id, offset, more) = (u32::from(ip.id.get()), ip.fragment_offset(), ip.more_fragments());
    let fragment = part(id, offset, more, ip.header_len(), payload.len())?;
    let parsed = Parsed {
        source: Address::v4(ip.source),
        destination: Address::v4(ip.destination),
        protocol: ip.protocol,
        ttl: ip.ttl,
        transport_offset: ip.header_len() as u16,
        total_len: ip.total_len.get(),
        fragment,
        ..Parsed::default()
    };
    parsed.with_upper(payload)
}

#[inline]
fn parse_v6(bytes: &[u8]) -> Result<Parsed, Malformed> {
    let ip = ipv6::View::new_checked(bytes)?;
    let total_len = u16::try_from(ip.total_len()).map_err(|_| Malformed)?;
    let (source, destination) = (Address::v6(ip.source), Address::v6(ip.destination));
    if source.is_v4() || destination.is_v4() {
        return Err(Malformed);
    }
    let payload = ip.payload();
    let walked = extension::walk(ip.next_header, payload)?;
    let fragment = match walked.fragment {
        None => Fragment::Whole,
        Some((f, end)) => {
            part(f.id, f.offset, f.more, end - extension::FRAGMENT_LEN, payload.len() - end)?
        }
    };
    let parsed = Parsed {
        source,
        destination,
        protocol: walked.protocol,
        ttl: ip.hop_limit,
        transport_offset: (ipv6::HEADER_LEN + walked.offset) as u16,
        total_len,
        fragment,
        ..Parsed::default()
    };
    parsed.with_upper(&payload[walked.offset..])
}

/// The kind of fragment. `before` is the length of the headers that reassembly keeps, and `len` is the length of the
/// bytes after them.
#[inline]
fn part(
    id: u32,
    offset: u32,
    more: bool,
    before: usize,
    len: usize,
) -> Result<Fragment, Malformed> {
    if offset == 0 && !more {
        return Ok(Fragment::Whole);
    }
    let uneven = more && !len.is_multiple_of(FRAGMENT_UNIT);
    if uneven || len == 0 || before as u32 + offset + len as u32 > MAX_REASSEMBLED {
        return Err(Malformed);
    }
    match offset {
        0 => Ok(Fragment::First { id }),
        offset => Ok(Fragment::Later { id, offset: offset as u16 }),
    }
}

impl Parsed {
    /// Adds the fields of the layer-4 header.
    #[inline]
    fn with_upper(self, segment: &[u8]) -> Result<Self, Malformed> {
        if let Fragment::Later { offset, .. } = self.fragment {
            let overlaps = usize::from(offset) < least_header(self.protocol);
            return if overlaps { Err(Malformed) } else { Ok(self.with_header(0)) };
        }
        match self.protocol {
            protocol::TCP => {
                let tcp = tcp::View::new_checked(segment)?;
                let parsed = self.with_ports(tcp.source_port, tcp.destination_port);
                Ok(Self { tcp_flags: tcp.flags, ..parsed.with_header(tcp.header_len()) })
            }
            protocol::UDP => {
                // A first fragment does not hold the whole datagram, so its length is not compared.
                let udp = match self.fragment {
                    Fragment::Whole => udp::View::new_checked(segment)?,
                    Fragment::First { .. } | Fragment::Later { .. } => {
                        udp::View::new_quoted(segment)?
                    }
                };
                let parsed = self.with_ports(udp.source_port, udp.destination_port);
                Ok(parsed.with_header(udp::HEADER_LEN))
            }
            protocol::SCTP => {
                let sctp = sctp::View::new_checked(segment)?;
                let parsed = self.with_ports(sctp.source_port, sctp.destination_port);
                Ok(parsed.with_header(sctp::HEADER_LEN))
            }
            protocol::ICMPV4 if self.is_v4() => {
                let icmp = icmpv4::View::new_checked(segment)?;
                let id = if icmpv4::kind::has_id(icmp.kind) { icmp.id.get() } else { 0 };
                Ok(self.with_icmp(icmp.kind, icmp.code, id).with_header(icmpv4::HEADER_LEN))
            }
            protocol::ICMPV6 if !self.is_v4() => {
                let icmp = icmpv6::View::new_checked(segment)?;
                let id = if icmpv6::kind::has_id(icmp.kind) { icmp.id() } else { 0 };
                Ok(self.with_icmp(icmp.kind, icmp.code, id).with_header(icmpv6::HEADER_LEN))
            }
            _ => Ok(self.with_header(0)),
        }
    }

    #[inline]
    fn with_header(self, len: usize) -> Self {
        Self { header_len: self.transport_offset + len as u16, ..self }
    }

    #[inline]
    fn with_ports(self, source: U16, destination: U16) -> Self {
        let (source_port, destination_port) = (source.get(), destination.get());
        Self { has_ports: true, source_port, destination_port, ..self }
    }

    #[inline]
    fn with_icmp(self, icmp_type: u8, icmp_code: u8, id: u16) -> Self {
        Self { icmp_type, icmp_code, source_port: id, destination_port: id, ..self }
    }
}

/// The number of bytes of the layer-4 header that the first fragment must hold.
#[inline]
const fn least_header(protocol: u8) -> usize {
    match protocol {
        protocol::TCP => tcp::HEADER_LEN,
        protocol::SCTP => sctp::HEADER_LEN,
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use etherparse::{SlicedPacket, TransportSlice};
    use proptest::prelude::*;

    use super::*;
    use crate::wire::arbitrary::{self, Transport};

    /// An IPv4 packet with a correct checksum.
    fn v4(protocol: u8, flags_offset: u16, payload: &[u8]) -> Vec<u8> {
        let mut bytes =
            vec![0x45, 0, 0, 0, 0, 7, 0, 0, 64, protocol, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2];
        bytes.extend(payload);
        let total = bytes.len() as u16;
        bytes[2..4].copy_from_slice(&total.to_be_bytes());
        bytes[6..8].copy_from_slice(&flags_offset.to_be_bytes());
        ipv4::View::new_checked_mut(&mut bytes).unwrap().fill_checksum();
        bytes
    }

    /// An IPv6 packet with a fragment header.
    fn v6(protocol: u8, word: u16, payload: &[u8]) -> Vec<u8> {
        let mut bytes = vec![0; 48];
        (bytes[0], bytes[6], bytes[7], bytes[8], bytes[24]) = (0x60, 44, 64, 0xfd, 0xfd);
        bytes[4..6].copy_from_slice(&(8 + payload.len() as u16).to_be_bytes());
        bytes[40] = protocol;
        bytes[42..44].copy_from_slice(&word.to_be_bytes());
        bytes[47] = 7;
        bytes.extend(payload);
        bytes
    }

    fn udp(len: u16) -> Vec<u8> {
        let mut bytes = vec![0; usize::from(len)];
        bytes[..6].copy_from_slice(&[0, 53, 4, 0, (len >> 8) as u8, len as u8]);
        bytes
    }

    const MORE: u16 = ipv4::MORE_FRAGMENTS;

    proptest! {
        #[test]
        fn arbitrary_bytes_never_panic_and_offsets_stay_inside(mut bytes: Vec<u8>, first in 0x40u8..0x70) {
            if let Some(b) = bytes.first_mut() {
                *b = first;
            }
            if let Ok(parsed) = parse(&bytes) {
                prop_assert!(parsed.transport_offset <= parsed.header_len);
                prop_assert!(parsed.header_len <= parsed.total_len);
                prop_assert!(usize::from(parsed.total_len) <= bytes.len());
            }
        }

        #[test]
        fn mutated_packets_never_panic_and_offsets_stay_inside(
            (_, _, mut bytes) in arbitrary::described(),
            changes in prop::collection::vec((0usize..120, any::<u8>()), 1..4),
            cut: prop::sample::Index,
            mend: bool,
        ) {
            for (at, to) in changes {
                if let Some(b) = bytes.get_mut(at) {
                    *b = to;
                }
            }
            if mend && let Ok(ip) = ipv4::View::new_checked_mut(&mut bytes) {
                ip.fill_checksum();
            }
            let _ = parse(&bytes[..cut.index(bytes.len() + 1)]);
            if let Ok(parsed) = parse(&bytes) {
                prop_assert!(parsed.transport_offset <= parsed.header_len);
                prop_assert!(parsed.header_len <= parsed.total_len);
                prop_assert!(usize::from(parsed.total_len) <= bytes.len());
            }
            if let Some(plain) = parse_plain(&bytes) {
                prop_assert_eq!(parse_any(&bytes), Ok(plain));
            }
        }

        #[test]
        fn nearly_all_packets_are_plain_and_read_alike_either_way((headers, transport, bytes) in arbitrary::described()) {
            let is_plain = headers.ipv4().is_some_and(|(header, _)| header.options.is_empty())
                && matches!(transport, Transport::Tcp(_) | Transport::Udp(..));
            prop_assert_eq!(parse_plain(&bytes), is_plain.then(|| parse_any(&bytes).unwrap()));
        }

        #[test]
        fn a_valid_packet_reads_as_etherparse_reads_it((headers, transport, bytes) in arbitrary::described()) {
            let parsed = parse(&bytes).unwrap();
            let sliced = SlicedPacket::from_ip(&bytes).unwrap();
            let (source, destination, ttl) = match (headers.ipv4(), headers.ipv6()) {
                (Some((h, _)), _) => (IpAddr::from(h.source), IpAddr::from(h.destination), h.time_to_live),
                (_, Some((h, _))) => (IpAddr::from(h.source), IpAddr::from(h.destination), h.hop_limit),
                (None, None) => unreachable!("one of the two"),
            };
            prop_assert_eq!((parsed.source.to_ip(), parsed.destination.to_ip()), (source, destination));
            prop_assert_eq!(parsed.ttl, ttl);
            prop_assert_eq!(usize::from(parsed.total_len), bytes.len());
            prop_assert_eq!(usize::from(parsed.transport_offset), headers.header_len());
            prop_assert_eq!(parsed.fragment, Fragment::Whole);
            let header_len = usize::from(parsed.header_len - parsed.transport_offset);
            let ports = (parsed.source_port, parsed.destination_port);
            match (&sliced.transport, transport) {
                (Some(TransportSlice::Tcp(tcp)), Transport::Tcp(header)) => {
                    prop_assert_eq!(ports, (tcp.source_port(), tcp.destination_port()));
                    prop_assert_eq!(header_len, header.header_len());
                    prop_assert_eq!(parsed.tcp_flags & tcp::flag::RST != 0, tcp.rst());
                    prop_assert!(parsed.has_ports);
                }
                (Some(TransportSlice::Udp(udp)), Transport::Udp(..)) => {
                    prop_assert_eq!(ports, (udp.source_port(), udp.destination_port()));
                    prop_assert!(parsed.has_ports && header_len == 8);
                }
                (Some(TransportSlice::Icmpv4(icmp)), Transport::Echo { id, .. }) => {
                    prop_assert_eq!((parsed.icmp_type, parsed.icmp_code), (icmp.type_u8(), icmp.code_u8()));
                    prop_assert!(ports == (id, id) && !parsed.has_ports && header_len == 8);
                }
                (Some(TransportSlice::Icmpv6(icmp)), Transport::Echo { id, .. }) => {
                    prop_assert_eq!((parsed.icmp_type, parsed.icmp_code), (icmp.type_u8(), icmp.code_u8()));
                    prop_assert!(ports == (id, id) && !parsed.has_ports && header_len == 8);
                }
                (None, Transport::Sctp(source, destination)) => {
                    prop_assert_eq!(ports, (source, destination));
                    prop_assert!(parsed.has_ports && header_len == 12);
                }
                (None, Transport::Other(protocol)) => {
                    prop_assert_eq!(parsed.protocol, protocol);
                    prop_assert!(ports == (0, 0) && !parsed.has_ports && header_len == 0);
                }
                (theirs, ours) => prop_assert!(false, "{theirs:?} is not {ours:?}"),
            }
        }

        #[test]
        fn a_hop_changes_nothing_else((_, _, mut bytes) in arbitrary::described()) {
            let parsed = parse(&bytes).unwrap();
            prop_assume!(parsed.ttl > 1);
            decrement_ttl(&mut bytes);
            prop_assert_eq!(parse(&bytes), Ok(Parsed { ttl: parsed.ttl - 1, ..parsed }));
        }

        #[test]
        fn padding_is_not_counted_and_a_packet_cut_short_is_refused((_, _, mut bytes) in arbitrary::described()) {
            let parsed = parse(&bytes).unwrap();
            prop_assert_eq!(parse(&bytes[..bytes.len() - 1]), Err(Malformed));
            bytes.extend([0; 5]);
            prop_assert_eq!(parse(&bytes), Ok(parsed));
        }
    }

    #[test]
    fn a_wrong_header_checksum_is_refused() {
        let mut bytes = v4(protocol::UDP, 0, &udp(8));
        assert!(parse(&bytes).is_ok());
        bytes[8] -= 1;
        assert_eq!(parse(&bytes), Err(Malformed));
    }

    #[test]
    fn a_transport_cut_short_is_refused() {
        for (kind, least) in [(protocol::UDP, 8), (protocol::SCTP, 12), (protocol::ICMPV4, 8)] {
            assert_eq!(parse(&v4(kind, 0, &udp(8)[..least.min(8) - 1])), Err(Malformed), "{kind}");
        }
        assert_eq!(parse(&v4(protocol::TCP, 0, &[0x50; 19])), Err(Malformed));
        assert_eq!(parse(&v4(protocol::UDP, 0, &udp(9)[..8])), Err(Malformed), "UDP's own length");
    }

    #[test]
    fn the_first_fragment_has_the_ports_and_later_ones_their_offset() {
        for bytes in [v4(17, MORE, &udp(32)[..16]), v6(17, 1, &udp(32)[..16])] {
            let first = parse(&bytes).unwrap();
            assert_eq!(first.fragment, Fragment::First { id: 7 });
            assert_eq!(
                (first.has_ports, first.source_port, first.destination_port),
                (true, 53, 1024)
            );
        }
        for bytes in [v4(17, 2, &[0; 16]), v6(17, 2 << 3, &[0; 16])] {
            let later = parse(&bytes).unwrap();
            assert_eq!(later.fragment, Fragment::Later { id: 7, offset: 16 });
            assert!(!later.has_ports);
            assert_eq!(later.header_len, later.transport_offset);
        }
    }

    #[test]
    fn fragments_that_hide_or_overwrite_the_transport_are_refused() {
        let tcp = [0x50; 24];
        for bytes in [v4(6, MORE, &tcp[..16]), v6(6, 1, &tcp[..16]), v4(132, MORE, &tcp[..8])] {
            assert_eq!(parse(&bytes), Err(Malformed), "RFC 1858: the first holds the header");
        }
        for (protocol, units, fits) in [
            (6, 1, false),
            (6, 2, false),
            (6, 3, true),
            (132, 1, false),
            (132, 2, true),
            (17, 1, true),
        ] {
            assert_eq!(parse(&v4(protocol, units, &tcp)).is_ok(), fits, "{protocol} at {units}");
            assert_eq!(
                parse(&v6(protocol, units << 3, &tcp)).is_ok(),
                fits,
                "{protocol} at {units}"
            );
        }
    }

    #[test]
    fn fragments_that_no_receiver_could_join_are_refused() {
        assert_eq!(parse(&v4(17, MORE | 2, &[0; 15])), Err(Malformed), "not a multiple of eight");
        assert_eq!(parse(&v6(17, 2 << 3 | 1, &[0; 15])), Err(Malformed));
        assert!(parse(&v4(17, 2, &[0; 15])).is_ok(), "but the last may be");
        assert_eq!(parse(&v4(17, 8191, &[0; 8])), Err(Malformed), "beyond 64 KB");
        assert_eq!(parse(&v6(17, 8191 << 3, &[0; 8])), Err(Malformed));
        assert_eq!(parse(&v4(17, 2, &[])), Err(Malformed), "nothing in it");
    }

    #[test]
    fn an_ipv6_packet_cannot_pass_for_ipv4() {
        let mut bytes = v6(17, 0, &udp(8));
        assert!(parse(&bytes).is_ok());
        bytes[24..40].copy_from_slice(&[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, 1]);
        assert_eq!(parse(&bytes), Err(Malformed));
    }

    #[test]
    fn only_errors_of_its_own_family_are_icmp_errors() {
        let mut message = [0; 8];
        for (kind, error) in [(0, false), (3, true), (8, false), (11, true), (13, false)] {
            message[0] = kind;
            assert_eq!(parse(&v4(1, 0, &message)).unwrap().is_icmp_error(), error, "type {kind}");
            assert!(!parse(&v4(58, 0, &message)).unwrap().is_icmp_error(), "ICMPv6 over IPv4");
        }
        for (kind, error) in [(1, true), (2, true), (128, false), (135, false)] {
            message[0] = kind;
            assert_eq!(parse(&v6(58, 0, &message)).unwrap().is_icmp_error(), error, "type {kind}");
        }
    }
}
