//! IPIP (RFC 2003) and VXLAN (RFC 7348): encapsulation and decapsulation. Congestion marks are handled as RFC 6040
//! says. VXLAN carries frames. The frames here hold IPv4 packets, as in Calico.

use std::net::Ipv4Addr;

use zerocopy::network_endian::U16;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::checksum;
use crate::drop_reason::DropReason;
use crate::packet::{Checksum, Packet};
use crate::wire::view::Header as _;
use crate::wire::{Ecn, Malformed, ethernet, ipv4, protocol, udp, vxlan};

/// The TTL of outer packets, which is independent of the inner one (RFC 2003, section 3.1).
const TTL: u8 = 64;

/// The kind of a tunnel, which determines the headers between the outer and the inner IPv4 header.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Encapsulation {
    /// No header between them: protocol 4.
    Ipip,
    /// UDP, VXLAN with this network identifier, and Ethernet.
    Vxlan {
        /// The VXLAN network identifier (VNI), 24 bits.
        vni: u32,
    },
}

impl Encapsulation {
    /// The number of kinds.
    pub const KINDS: u32 = 2;

    /// The kind as a number below [`Encapsulation::KINDS`].
    pub const fn kind(self) -> u32 {
        match self {
            Self::Ipip => 0,
            Self::Vxlan { .. } => 1,
        }
    }

    /// A number that differs for each kind and network.
    #[inline]
    pub(crate) const fn key(self) -> u32 {
        match self {
            Self::Ipip => 0,
            Self::Vxlan { vni } => 1 + vni,
        }
    }

    /// The name in output to users.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ipip => "IPIP",
            Self::Vxlan { .. } => "VXLAN",
        }
    }

    /// The UDP port that its packets are sent to. `None`: UDP does not carry it.
    #[inline]
    pub const fn udp_port(self) -> Option<u16> {
        match self {
            Self::Ipip => None,
            Self::Vxlan { .. } => Some(vxlan::PORT),
        }
    }

    /// The length of the headers in front of the inner packet, in bytes, with an outer IPv4 header without options.
    #[inline]
    pub const fn header_len(self) -> usize {
        match self.udp_port() {
            None => ipv4::HEADER_LEN,
            Some(_) => UDP_TUNNEL_HEADER_LEN,
        }
    }
}

/// Whether a packet of this protocol and destination port (if it has one) belongs to a tunnel.
#[inline]
pub(crate) const fn is_tunnel(protocol: u8, destination_port: u16) -> bool {
    protocol == protocol::IPIP || protocol == protocol::UDP && is_tunnel_port(destination_port)
}

/// Whether a UDP datagram to this port belongs to a tunnel.
#[inline]
pub(crate) const fn is_tunnel_port(destination_port: u16) -> bool {
    matches!(destination_port, vxlan::PORT)
}

// A kind that is not below `KINDS` would have the index of another node's tunnel.
const _: () = assert!(Encapsulation::Vxlan { vni: 0 }.kind() + 1 == Encapsulation::KINDS);

/// The headers in front of a packet in a tunnel over UDP. Every tunnel's own header must be as long as VXLAN's: the
/// socket receives faster when the length is known at compile time.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct UdpTunnelHeaders {
    ip: ipv4::Header,
    udp: udp::Header,
    tunnel: [u8; vxlan::HEADER_LEN],
    frame: ethernet::Header,
}

/// The length of the headers in front of the inner packet of a tunnel over UDP, in bytes.
pub const UDP_TUNNEL_HEADER_LEN: usize = size_of::<UdpTunnelHeaders>();

/// The hardware addresses of a link's ends. The link carries the encapsulated packets, or is the link that VXLAN
/// emulates.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LinkAddresses {
    /// This node's end.
    pub source: [u8; 6],
    /// The next hop's end.
    pub destination: [u8; 6],
}

impl LinkAddresses {
    fn header(self) -> [u8; ethernet::HEADER_LEN] {
        ethernet::header(self.destination, self.source, ethernet::ethertype::IPV4)
    }
}

/// The length of the longest outer header: an Ethernet header of the underlay, and the headers of a tunnel over UDP.
const OUTER_MAX: usize = ethernet::HEADER_LEN + UDP_TUNNEL_HEADER_LEN;

/// A tunnel's outer header. It is built once, and patched for each packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Outer {
    encapsulation: Encapsulation,
    /// The header fills the end of the array. Words that differ between packets are zero here.
    bytes: [u8; OUTER_MAX],
    len: usize,
    /// The length of the Ethernet header in front of the IPv4 header, in bytes.
    link_len: usize,
    /// The length of the headers from the outer IPv4 header on, in bytes.
    added: u16,
    /// The checksum's sum over the IPv4 header.
    sum: u32,
}

impl Outer {
    /// IPIP from `local` to `remote`. If `link` is given, an Ethernet header is put in front.
    pub fn ipip(local: Ipv4Addr, remote: Ipv4Addr, link: Option<LinkAddresses>) -> Self {
        let link = link.map(LinkAddresses::header);
        Self::new(
            Encapsulation::Ipip,
            link.as_ref().map_or(&[], |link| &link[..]),
            local,
            remote,
            &[],
        )
    }

    /// VXLAN from `local` to `remote`. `inner` are the addresses in the frames.
    ///
    /// There is no UDP checksum (RFC 7348, section 5, says that it should be zero). The socket that sends the packet
    /// writes its own UDP header.
    pub fn vxlan(local: Ipv4Addr, remote: Ipv4Addr, vni: u32, inner: LinkAddresses) -> Self {
        let port = U16::new(vxlan::PORT);
        let udp = udp::Header { source_port: port, destination_port: port, ..Default::default() };
        let behind = [udp.as_bytes(), &vxlan::header(vni), &inner.header()].concat();
        Self::new(Encapsulation::Vxlan { vni }, &[], local, remote, &behind)
    }

    fn new(
        encapsulation: Encapsulation,
        link: &[u8],
        local: Ipv4Addr,
        remote: Ipv4Addr,
        behind: &[u8],
    ) -> Self {
        let ip = ipv4::Header {
            version_ihl: ipv4::VERSION_IHL,
            ttl: TTL,
            protocol: match encapsulation.udp_port() {
                None => protocol::IPIP,
                Some(_) => protocol::UDP,
            },
            source: local.octets(),
            destination: remote.octets(),
            ..ipv4::Header::default()
        };
        let mut bytes = [0; OUTER_MAX];
        let whole = [link, ip.as_bytes(), behind].concat();
        bytes[OUTER_MAX - whole.len()..].copy_from_slice(&whole);
        Self {
            encapsulation,
            bytes,
            len: whole.len(),
            link_len: link.len(),
            added: (whole.len() - link.len()) as u16,
            sum: checksum::sum(ip.as_bytes()),
        }
    }

    /// The kind of the tunnel.
    #[inline]
    pub const fn encapsulation(&self) -> Encapsulation {
        self.encapsulation
    }

    /// The number of bytes that the outer headers add to the IP packet.
    #[inline]
    pub const fn added(&self) -> usize {
        self.added as usize
    }

    /// The length of the Ethernet header in front, in bytes; 0 if there is none.
    #[inline]
    pub const fn link_len(&self) -> usize {
        self.link_len
    }
}

/// Puts the outer header in front of an IPv4 packet, and removes the link's padding from its end.
///
/// The outer packet has the ECN of the inner one (RFC 6040, section 4.1, normal mode) and DSCP 0. With IPIP it also has
/// the inner DF (RFC 2003, section 3.1). Its identification is `id`, which must differ between packets that may be
/// fragmented (RFC 6864). The offload's offsets move with the packet.
///
/// Returns false and leaves the packet unchanged if it is not IPv4, is shorter than its total length, or would be too
/// long with the outer header, or if there is no headroom.
#[inline(always)]
#[expect(clippy::inline_always, reason = "as Outbox::queue")]
#[must_use]
pub fn encapsulate(packet: &mut Packet, outer: &Outer, id: u16) -> bool {
    let Ok((&inner, _)) = ipv4::Header::ref_from_prefix(packet.bytes()) else { return false };
    let inner_len = inner.total_len.get();
    let is_padded = packet.len() != usize::from(inner_len);
    let holds = ipv4::HEADER_LEN..=packet.len();
    if !inner.is_valid() || is_padded && !holds.contains(&usize::from(inner_len)) {
        return false;
    }
    let Some(total_len) = inner_len.checked_add(outer.added) else { return false };
    let Some(block) = packet.push_front_end(&outer.bytes, outer.len) else { return false };
    let (header, kept) = match outer.encapsulation {
        Encapsulation::Ipip => {
            (ipv4::Header::mut_from_suffix(block).ok().map(|it| it.1), ipv4::DONT_FRAGMENT)
        }
        Encapsulation::Vxlan { .. } => {
            let headers = UdpTunnelHeaders::mut_from_suffix(block).ok().map(|it| it.1);
            let header = headers.map(|headers| {
                headers.udp.len = (total_len - ipv4::HEADER_LEN as u16).into();
                &mut headers.ip
            });
            (header, 0)
        }
    };
    // The header is always present, because the block is longer.
    let Some(header) = header else { return false };
    let (ecn, flags) = (inner.dscp_ecn & 3, inner.flags_offset.get() & kept);
    header.dscp_ecn = ecn;
    header.total_len = total_len.into();
    header.id = id.into();
    header.flags_offset = flags.into();
    // This is RFC 1624's equation where the old words are zero: the new words are added to the sum.
    let new = [ecn.into(), total_len, id, flags].map(u32::from);
    let sum = outer.sum + new[0] + new[1] + new[2] + new[3];
    header.checksum = checksum::finish(sum).into();
    if is_padded {
        packet.truncate(outer.link_len as u32 + u32::from(total_len));
    }
    true
}

/// The outer header of a tunnel packet. It suffices to identify the peer before anything else in the packet is trusted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OuterHeader {
    /// The kind of the tunnel.
    pub encapsulation: Encapsulation,
    /// The peer that sent it.
    pub source: Ipv4Addr,
    /// The address that it was sent to.
    pub destination: Ipv4Addr,
    /// The congestion mark of the outer header.
    pub ecn: Ecn,
    /// The length of the IPv4 header alone, in bytes.
    ip_header_len: u16,
    total_len: u16,
}

/// Returns the outer header and the inner packet of a plain tunnel packet: IPIP around an IPv4 packet without options
/// that leaves the tunnel unchanged. Nearly every tunnel packet is plain. `None`: the packet is not plain, or something
/// is wrong with it.
#[inline(always)]
#[expect(clippy::inline_always, reason = "as parse::parse_plain")]
pub(crate) fn parse_plain_ipip(bytes: &[u8]) -> Option<(ipv4::Plain, &[u8])> {
    let (outer, inner) = ipv4::Plain::split(bytes)?;
    if outer.protocol != protocol::IPIP {
        return None;
    }
    let (header, _) = ipv4::Header::ref_from_prefix(inner).ok()?;
    // Two equal marks combine to the same mark.
    let comes_out_as_it_is = header.ecn() == outer.ecn;
    (header.version_ihl == ipv4::VERSION_IHL && comes_out_as_it_is).then_some((outer, inner))
}

/// Reads the outer header of a packet that begins with it.
///
/// These are malformed: a packet that is neither IPIP nor VXLAN around an IPv4 packet, a wrong header checksum, and a
/// fragment. Nodes send no fragments to each other while the tunnel's MTU is right. The UDP checksum is not read,
/// because the socket verifies it.
#[inline]
pub fn parse_outer(bytes: &[u8]) -> Result<OuterHeader, Malformed> {
    let Some((ip, payload)) = ipv4::Plain::split(bytes) else {
        return parse_outer_any(bytes);
    };
    Ok(OuterHeader {
        encapsulation: parse_encapsulation(ip.protocol, payload)?,
        source: ip.source.into(),
        destination: ip.destination.into(),
        ecn: ip.ecn,
        ip_header_len: ipv4::HEADER_LEN as u16,
        total_len: ip.total_len,
    })
}

#[inline(never)]
fn parse_outer_any(bytes: &[u8]) -> Result<OuterHeader, Malformed> {
    let ip = ipv4::View::new_checked(bytes)?;
    if ip.is_fragment() || !ip.checksum_is_right() {
        return Err(Malformed);
    }
    Ok(OuterHeader {
        encapsulation: parse_encapsulation(ip.protocol, ip.payload())?,
        source: ip.source.into(),
        destination: ip.destination.into(),
        ecn: ip.ecn(),
        ip_header_len: ip.header_len() as u16,
        total_len: ip.total_len.get(),
    })
}

#[inline]
fn parse_encapsulation(protocol: u8, payload: &[u8]) -> Result<Encapsulation, Malformed> {
    match protocol {
        protocol::IPIP => Ok(Encapsulation::Ipip),
        protocol::UDP => vxlan(payload),
        _ => Err(Malformed),
    }
}

/// Reads the VXLAN network identifier from a UDP datagram.
fn vxlan(bytes: &[u8]) -> Result<Encapsulation, Malformed> {
    let udp = udp::View::new_checked(bytes)?;
    if udp.destination_port != U16::new(vxlan::PORT) {
        return Err(Malformed);
    }
    let tunnel = vxlan::View::new_checked(udp.payload())?;
    let frame = ethernet::View::new_checked(tunnel.payload())?;
    if frame.ethertype.get() != ethernet::ethertype::IPV4 {
        return Err(Malformed);
    }
    Ok(Encapsulation::Vxlan { vni: tunnel.vni() })
}

/// Removes the outer header, which [`parse_outer`] read from the same packet, and marks the inner packet for
/// congestion.
///
/// The inner packet is then [parsed](crate::parse) like any other. Returns [`DropReason::Malformed`] if the inner
/// packet does not begin as an IPv4 packet does, or if the device's unfinished checksum lies outside of it. Returns
/// [`DropReason::EcnInconsistent`] as [`combine_ecn`] says. The caller drops the packet on an error.
#[inline]
pub fn decapsulate(packet: &mut Packet, tunnelled: &OuterHeader) -> Result<(), DropReason> {
    let behind = tunnelled.encapsulation.header_len() - ipv4::HEADER_LEN;
    let header_len = usize::from(tunnelled.ip_header_len) + behind;
    if let Checksum::Partial { start, .. } = packet.offload.checksum
        && usize::from(start) < header_len + ipv4::HEADER_LEN
    {
        return Err(DropReason::Malformed);
    }
    packet.truncate(tunnelled.total_len.into());
    packet.pull_front(header_len);
    let (inner, _) = ipv4::Header::ref_from_prefix(packet.bytes()).map_err(|_| Malformed)?;
    if !inner.is_valid() {
        return Err(DropReason::Malformed);
    }
    let ecn = inner.ecn();
    match combine_ecn(tunnelled.ecn, ecn) {
        None => return Err(DropReason::EcnInconsistent),
        Some(combined) if combined != ecn => {
            ipv4::View::new_checked_mut(packet.bytes_mut())?.set_ecn(combined);
        }
        Some(_) => {}
    }
    Ok(())
}

/// The mark of the packet that leaves a tunnel, from the outer and the inner mark (RFC 6040, figure 4). `None`: the
/// packet is dropped, because it met congestion, and a drop is the only congestion signal that its sender understands.
#[inline]
pub const fn combine_ecn(outer: Ecn, inner: Ecn) -> Option<Ecn> {
    match (inner, outer) {
        (Ecn::NotEct, Ecn::Ce) => None,
        (Ecn::NotEct, Ecn::NotEct | Ecn::Ect0 | Ecn::Ect1) => Some(Ecn::NotEct),
        (Ecn::Ect0 | Ecn::Ect1, Ecn::Ce) | (Ecn::Ce, _) => Some(Ecn::Ce),
        (Ecn::Ect0, Ecn::Ect1) => Some(Ecn::Ect1),
        (Ecn::Ect0 | Ecn::Ect1, _) => Some(inner),
    }
}

#[cfg(test)]
mod tests {
    use etherparse::{EtherType, Ethernet2Slice, Ipv4Slice, UdpSlice};
    use proptest::prelude::*;

    use super::*;
    use crate::packet::Pool;
    use crate::wire::arbitrary;

    const LOCAL: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
    const REMOTE: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 2);
    const ENDS: LinkAddresses = LinkAddresses { source: [2; 6], destination: [4; 6] };
    const ECNS: [Ecn; 4] = [Ecn::NotEct, Ecn::Ect1, Ecn::Ect0, Ecn::Ce];

    fn packet(bytes: &[u8]) -> Packet {
        Pool::new(1).take_filled(bytes).unwrap()
    }

    /// The packet after encapsulation, with `outer` as the outer mark.
    fn through_tunnel(bytes: &[u8], outer: Ecn) -> Packet {
        let mut packet = packet(bytes);
        assert!(encapsulate(&mut packet, &Outer::ipip(LOCAL, REMOTE, None), 1));
        ipv4::View::new_checked_mut(packet.bytes_mut()).unwrap().set_ecn(outer);
        packet
    }

    proptest! {
        #[test]
        fn the_outer_header_is_what_etherparse_would_write(
            bytes in arbitrary::packet4(),
            id: u16,
            padding in 0usize..8,
            vni in prop::option::of(0u32..1 << 24),
        ) {
            let mut packet = packet(&[&bytes[..], &vec![0; padding]].concat());
            let before = ipv4::View::new_checked(&bytes).unwrap();
            let header = match vni {
                None => Outer::ipip(LOCAL, REMOTE, None),
                Some(vni) => Outer::vxlan(LOCAL, REMOTE, vni, ENDS),
            };
            prop_assert!(encapsulate(&mut packet, &header, id));
            let sliced = Ipv4Slice::from_slice(packet.bytes()).unwrap();
            let outer = sliced.header().to_header();
            prop_assert_eq!(outer.header_checksum, outer.calc_header_checksum());
            prop_assert_eq!((outer.source, outer.destination), (LOCAL.octets(), REMOTE.octets()));
            prop_assert_eq!((outer.time_to_live, outer.identification), (64, id));
            prop_assert_eq!((outer.dscp.value(), outer.ecn.value()), (0, before.ecn() as u8));
            prop_assert_eq!((outer.more_fragments, outer.fragment_offset.value()), (false, 0));
            let payload = sliced.payload().payload;
            let Some(vni) = vni else {
                prop_assert_eq!((outer.protocol.0, outer.dont_fragment), (4, before.dont_fragment()));
                prop_assert_eq!(payload, &bytes[..]);
                prop_assert_eq!(packet.len(), bytes.len() + 20);
                return Ok(());
            };
            prop_assert_eq!((outer.protocol.0, outer.dont_fragment), (17, false));
            let udp = UdpSlice::from_slice(payload).unwrap();
            prop_assert_eq!((udp.source_port(), udp.destination_port()), (4789, 4789));
            prop_assert_eq!((usize::from(udp.length()), udp.checksum()), (payload.len(), 0));
            // RFC 7348, section 5: the flag says that the identifier is valid; the identifier is the upper 24 bits of
            // the last word.
            let (vxlan, frame) = udp.payload().split_at(8);
            prop_assert_eq!(vxlan, [[8, 0, 0, 0], (vni << 8).to_be_bytes()].concat());
            let frame = Ethernet2Slice::from_slice_without_fcs(frame).unwrap();
            prop_assert_eq!((frame.source(), frame.destination()), (ENDS.source, ENDS.destination));
            prop_assert_eq!(frame.ether_type(), EtherType::IPV4);
            prop_assert_eq!(frame.payload_slice(), &bytes[..]);
            prop_assert_eq!(packet.len(), bytes.len() + 50);
        }

        #[test]
        fn out_of_the_tunnel_comes_what_went_in(bytes in arbitrary::packet4()) {
            let ecn = ipv4::View::new_checked(&bytes).unwrap().ecn();
            let mut packet = through_tunnel(&bytes, ecn);
            packet.offload.checksum = Checksum::Partial { start: 40, offset: 6 };
            let outer = parse_outer(packet.bytes()).unwrap();
            prop_assert_eq!((outer.source, outer.destination, outer.ecn), (LOCAL, REMOTE, ecn));
            prop_assert_eq!(decapsulate(&mut packet, &outer), Ok(()));
            prop_assert_eq!(packet.bytes(), bytes);
            prop_assert_eq!(packet.offload.checksum, Checksum::Partial { start: 20, offset: 6 });
        }

        #[test]
        fn a_mark_on_the_way_reaches_the_inner_header_or_the_packet_dies(
            bytes in arbitrary::packet4(), mark in prop::sample::select(&ECNS[..]),
        ) {
            let mut packet = through_tunnel(&bytes, mark);
            let outer = parse_outer(packet.bytes()).unwrap();
            let inner = ipv4::View::new_checked(&bytes).unwrap().ecn();
            match combine_ecn(mark, inner) {
                None => prop_assert_eq!(decapsulate(&mut packet, &outer), Err(DropReason::EcnInconsistent)),
                Some(expected) => {
                    prop_assert_eq!(decapsulate(&mut packet, &outer), Ok(()));
                    prop_assert_eq!(ipv4::View::new_checked(packet.bytes()).unwrap().ecn(), expected);
                }
            }
        }

        #[test]
        fn arbitrary_bytes_never_panic(mut bytes: Vec<u8>, mend: bool) {
            if mend && bytes.len() > 20 {
                bytes[0] = 0x45;
                bytes[6..10].copy_from_slice(&[0, 0, 1, 4]);
                let len = bytes.len() as u16;
                bytes[2..4].copy_from_slice(&len.to_be_bytes());
                ipv4::View::new_checked_mut(&mut bytes[..]).unwrap().fill_checksum();
            }
            if let Ok(outer) = parse_outer(&bytes) {
                let _ = decapsulate(&mut packet(&bytes), &outer);
            }
            let _ = encapsulate(&mut packet(&bytes), &Outer::ipip(LOCAL, REMOTE, None), 0);
        }
    }

    #[test]
    fn a_packet_is_a_tunnels_by_its_protocol_or_its_udp_port() {
        const KINDS: [Encapsulation; Encapsulation::KINDS as usize] =
            [Encapsulation::Ipip, Encapsulation::Vxlan { vni: 0 }];
        for port in 0..=u16::MAX {
            let is_known = KINDS.iter().any(|kind| kind.udp_port() == Some(port));
            let found = [4, 6, 17].map(|protocol| is_tunnel(protocol, port));
            assert_eq!(found, [true, false, is_known], "{port}");
        }
    }

    #[test]
    fn marks_combine_as_figure_4_of_rfc_6040_says() {
        use Ecn::{Ce, Ect0, Ect1, NotEct};
        // The outer marks in the order of the figure. Each inner mark has a row.
        let outers = [NotEct, Ect0, Ect1, Ce];
        let rows = [
            (NotEct, [Some(NotEct), Some(NotEct), Some(NotEct), None]),
            (Ect0, [Some(Ect0), Some(Ect0), Some(Ect1), Some(Ce)]),
            (Ect1, [Some(Ect1), Some(Ect1), Some(Ect1), Some(Ce)]),
            (Ce, [Some(Ce); 4]),
        ];
        for (inner, row) in rows {
            assert_eq!(outers.map(|outer| combine_ecn(outer, inner)), row, "inner {inner:?}");
        }
    }

    #[test]
    fn an_ethernet_header_goes_in_front() {
        let outer = Outer::ipip(LOCAL, REMOTE, Some(ENDS));
        assert_eq!(outer.link_len(), 14);
        let mut inner = [0; 20];
        (inner[0], inner[3]) = (0x45, 20);
        let mut packet = packet(&inner);
        assert!(encapsulate(&mut packet, &outer, 0));
        let frame = ethernet::View::new_checked(packet.bytes()).unwrap();
        assert_eq!((frame.source, frame.destination), ([2; 6], [4; 6]));
        assert_eq!(frame.ethertype.get(), ethernet::ethertype::IPV4);
        assert_eq!(parse_outer(frame.payload()).unwrap().source, LOCAL);
    }

    #[test]
    fn what_does_not_fit_stays_as_it_was() {
        let mut inner = [0; 20];
        (inner[0], inner[3]) = (0x45, 20);
        let outer = Outer::ipip(LOCAL, REMOTE, None);
        let mut crowded = packet(&inner);
        let headroom = crowded.headroom();
        assert!(crowded.push_front(&vec![0; headroom - 19]));
        let len = crowded.len();
        crowded.bytes_mut()[..20].copy_from_slice(&inner);
        assert!(!encapsulate(&mut crowded, &outer, 0), "no headroom");
        assert_eq!(crowded.len(), len);

        let mut longest = vec![0; 65_516];
        (longest[0], longest[2], longest[3]) = (0x45, 0xff, 0xec);
        assert!(!encapsulate(&mut packet(&longest), &outer, 0), "beyond 64 KB");
        (longest[2], longest[3]) = (0xff, 0xeb);
        assert!(encapsulate(&mut packet(&longest), &outer, 0));
    }

    #[test]
    fn what_is_no_whole_ipip_packet_is_refused() {
        let mut bytes = [0; 40];
        (bytes[0], bytes[3], bytes[9], bytes[20], bytes[23]) = (0x45, 40, 4, 0x45, 20);
        let tell = |bytes: &mut [u8; 40]| {
            ipv4::View::new_checked_mut(&mut bytes[..]).unwrap().fill_checksum();
            parse_outer(&bytes[..])
        };
        assert!(tell(&mut bytes).is_ok());
        bytes[10] ^= 1;
        assert_eq!(parse_outer(&bytes), Err(Malformed), "checksum");
        for (at, value) in [(9, 41), (6, 0x20), (7, 1)] {
            let mut bytes = bytes;
            bytes[at] = value;
            assert_eq!(tell(&mut bytes), Err(Malformed), "byte {at}");
        }
        bytes[20] = 0x60;
        let outer = tell(&mut bytes).unwrap();
        assert_eq!(
            decapsulate(&mut packet(&bytes), &outer),
            Err(DropReason::Malformed),
            "IPv6 inside"
        );
        bytes[20] = 0x45;
        let mut packet = packet(&bytes);
        packet.offload.checksum = Checksum::Partial { start: 30, offset: 6 };
        assert_eq!(
            decapsulate(&mut packet, &outer),
            Err(DropReason::Malformed),
            "checksum in a header"
        );
    }
}
