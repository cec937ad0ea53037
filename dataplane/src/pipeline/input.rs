//! Input: takes packets out of their tunnels, and checks their offload metadata.

use std::mem::offset_of;
use std::net::Ipv4Addr;

use zerocopy::FromBytes;

use crate::checksum;
use crate::decide::Entrance;
use crate::drop_reason::DropReason;
use crate::encapsulation::{self, Encapsulation};
use crate::offload::most_segments;
use crate::packet::{Checksum, Offload, Packet, SegmentKind, Segmentation};
use crate::parse::Parsed;
use crate::tables::{Role, Tables};
use crate::wire::address::{Address, pseudo};
use crate::wire::view::Header as _;
use crate::wire::{icmpv4, icmpv6, ipv4, protocol, tcp, udp};

/// The entrance of the packets of a port with this role. `None`: each packet has its own entrance, see [`decapsulate`].
pub(crate) fn entrance(tables: &Tables, role: Role) -> Result<Option<Entrance>, DropReason> {
    match role {
        Role::Closed => Err(DropReason::NoTables),
        // The port is attached, but the cluster does not know the endpoint. An ICMP error would not reach the endpoint
        // either.
        Role::Endpoint(index) | Role::HostSide(index) if tables.endpoint(index).is_none() => {
            Err(DropReason::NoTables)
        }
        Role::Endpoint(index) => Ok(Some(Entrance::endpoint(index))),
        Role::HostSide(index) => Ok(Some(Entrance::host_side(index))),
        Role::Host if tables.uplink.is_some() => Ok(Some(Entrance::NODE)),
        Role::Host => Ok(Some(Entrance::HOST)),
        Role::Forwarded => Ok(Some(Entrance::FORWARDED)),
        Role::Service => Ok(Some(Entrance::SERVICE)),
        Role::ManxPorts => Ok(Some(Entrance::MANX_PORTS)),
        Role::Uplink | Role::Underlay => Ok(None),
    }
}

/// Returns the entrance of a packet from the underlay or the uplink. A packet from a tunnel that ends here loses its
/// outer header.
#[inline]
pub(crate) fn decapsulate(
    tables: &Tables,
    packet: &mut Packet,
    role: Role,
) -> Result<Entrance, DropReason> {
    match decapsulate_plain(tables, packet) {
        Some(entrance) => Ok(entrance),
        None => decapsulate_any(tables, packet, role),
    }
}

/// The fast path of nearly all tunnel packets: IPIP to this node, without a congestion mark, with a finished checksum.
/// Its result equals that of [`decapsulate_any`]. Returns `None` and does nothing if [`decapsulate_any`] must decide.
#[inline(always)]
#[expect(clippy::inline_always, reason = "the loop over a batch is to have it in its registers")]
fn decapsulate_plain(tables: &Tables, packet: &mut Packet) -> Option<Entrance> {
    // VXLAN takes the slow path.
    let is_ipip = packet.bytes().get(offset_of!(ipv4::Header, protocol)) == Some(&protocol::IPIP);
    if !is_ipip || packet.offload != Offload::default() {
        return None;
    }
    let (outer, inner) = encapsulation::parse_plain_ipip(packet.bytes())?;
    let is_here = tables.underlay_address == Some(outer.destination.into());
    if !is_here || may_be_partial(inner) {
        return None;
    }
    let peer = tables.peers.tunnel(outer.source.into(), Encapsulation::Ipip)?;
    packet.truncate(outer.total_len.into());
    packet.pull_front(Encapsulation::Ipip.header_len());
    Some(Entrance::tunnel(peer))
}

/// Like [`decapsulate`], for any packet.
#[inline(never)]
fn decapsulate_any(
    tables: &Tables,
    packet: &mut Packet,
    role: Role,
) -> Result<Entrance, DropReason> {
    if role == Role::Uplink && !is_tunnelled_here(tables, packet) {
        return Ok(Entrance::UPLINK);
    }
    let arrived = encapsulation::parse_outer(packet.bytes())?;
    let peer = tables
        .peers
        .tunnel(arrived.source, arrived.encapsulation)
        .filter(|_| tables.underlay_address == Some(arrived.destination))
        .ok_or(DropReason::UnknownTunnelPeer)?;
    encapsulation::decapsulate(packet, &arrived)?;
    if packet.offload == Offload::default()
        && may_be_partial(packet.bytes())
        && let Some(tunnel) = tables.tunnel(peer)
    {
        restore_offload(packet, tunnel.link.mtu as usize);
    }
    Ok(Entrance::tunnel(peer))
}

/// The entrance of a packet that another worker has read and, if it arrived by a tunnel from `peer`, decapsulated.
pub(crate) fn handoff_entrance(
    tables: &Tables,
    role: Role,
    peer: Option<(Ipv4Addr, Encapsulation)>,
) -> Result<Entrance, DropReason> {
    match (entrance(tables, role)?, peer) {
        (Some(entrance), None) => Ok(entrance),
        (None, Some((remote, encapsulation))) => tables
            .peers
            .tunnel(remote, encapsulation)
            .map(Entrance::tunnel)
            .ok_or(DropReason::UnknownTunnelPeer),
        (None, None) if role == Role::Uplink => Ok(Entrance::UPLINK),
        (Some(_), Some(_)) | (None, None) => Err(DropReason::UnknownTunnelPeer),
    }
}

fn is_tunnelled_here(tables: &Tables, packet: &Packet) -> bool {
    ipv4::View::new_checked(packet.bytes()).is_ok_and(|ip| {
        ip.protocol == protocol::IPIP && tables.underlay_address == Some(ip.destination.into())
    })
}

/// Whether the TCP or UDP checksum of an IPv4 packet may be partial (the sum of the pseudo-header only). If it may not
/// be, [`restore_offload`] has nothing to do.
#[inline]
fn may_be_partial(bytes: &[u8]) -> bool {
    let Ok((header, _)) = ipv4::Header::ref_from_prefix(bytes) else { return false };
    let upper = header.protocol;
    let offset = match upper {
        protocol::UDP => udp::CHECKSUM_OFFSET,
        protocol::TCP => tcp::CHECKSUM_OFFSET,
        _ => return false,
    };
    let header_len = header.header_len();
    let at = header_len + offset;
    let stored = bytes.get(at..at + 2).and_then(<[u8]>::first_chunk);
    let Some(stored) = stored else { return false };
    // The payload's length is a difference, so the complement of the header's length is added. The words are read in
    // the machine's byte order, which does not change a ones' complement sum (RFC 1071, section 2 (B)).
    let ends = [header.source, header.destination].map(|end| u64::from(u32::from_ne_bytes(end)));
    let words = [upper.into(), header.total_len.get(), !(header_len as u16)]
        .map(|word| u64::from(word.to_be()));
    let sum = ends[0] + ends[1] + words[0] + words[1] + words[2];
    checksum::fold(checksum::fold64(sum)) == u16::from_ne_bytes(*stored)
}

/// Restores the offload state of a packet from a socket without metadata. Kernels on one machine send each other
/// packets that are not finished, and such a socket does not mark them: TCP super-packets, and packets whose checksum
/// is only the sum of the pseudo-header. A packet with any other checksum stays unchanged, so that its receiver can
/// verify the checksum. A damaged checksum equals the sum of the pseudo-header as rarely as it happens to be right.
#[inline(never)]
fn restore_offload(packet: &mut Packet, mtu: usize) {
    let Ok(ip) = ipv4::View::new_checked(packet.bytes()) else { return };
    let start = ip.header_len();
    let (offset, header_len) = match ip.protocol {
        protocol::UDP => (udp::CHECKSUM_OFFSET, None),
        protocol::TCP => {
            let Ok(tcp) = tcp::View::new_checked(ip.payload()) else { return };
            (tcp::CHECKSUM_OFFSET, Some(start + tcp.header_len()))
        }
        _ => return,
    };
    let Some(stored) = ip.payload().get(offset..offset + 2) else { return };
    let [source, destination] = [ip.source, ip.destination].map(Address::v4);
    let pseudo_sum = pseudo(source, destination, ip.protocol, ip.payload().len() as u32);
    if stored != checksum::fold(pseudo_sum).to_be_bytes() || ip.is_fragment() {
        return;
    }
    let len = usize::from(ip.total_len.get());
    packet.offload.checksum = Checksum::Partial { start: start as u16, offset: offset as u16 };
    if let Some(header_len) = header_len
        && len > mtu
        && mtu > header_len
    {
        let size = (mtu - header_len) as u16;
        packet.offload.segmentation =
            Some(Segmentation { kind: SegmentKind::Tcp4, size, ecn: false });
    }
}

/// Checks the offload state of a parsed packet, removes the padding of the link, and counts its segments. Returns the
/// number of its packets [on a wire](crate::packet::Body::on_a_wire), and the length of the longest.
#[inline]
pub(crate) fn check_offload(
    packet: &mut Packet,
    parsed: &Parsed,
) -> Result<(u32, u32), DropReason> {
    let is_true = packet.offload.segmentation.is_none_or(|it| is_segmentable(it.kind, parsed));
    if !is_true || !is_completable(packet.offload.checksum, parsed) {
        return Err(DropReason::Malformed);
    }
    packet.truncate(parsed.total_len.into());
    let (segments, unit) = packet.on_a_wire(parsed.header_len.into());
    match packet.offload.segmentation {
        Some(it) if segments > most_segments(it.kind, unit) => Err(DropReason::TooManySegments),
        _ => Ok((segments, unit)),
    }
}

/// Whether the protocol of the packet has super-packets of this kind. Senders choose the kind, so it is checked. A
/// packet that is no such super-packet would never be cut, but would count as many packets and would go to a device
/// that does not accept it. (For a tunnel packet the kernel names the kind of the inner packet.)
fn is_segmentable(kind: SegmentKind, parsed: &Parsed) -> bool {
    let is_kind = match kind {
        SegmentKind::Tcp4 => parsed.is_v4() && parsed.protocol == protocol::TCP,
        SegmentKind::Tcp6 => !parsed.is_v4() && parsed.protocol == protocol::TCP,
        SegmentKind::Udp => parsed.protocol == protocol::UDP,
    };
    is_kind || parsed.protocol == protocol::IPIP
}

/// Whether completing the checksum later cannot change anything that decides the packet. The checksum must be that of
/// the layer-4 header, or lie after that header (in a packet in a tunnel). Senders choose the place of the checksum,
/// and could choose the place of a port. A checksum after the end of the packet, in the padding of the link, is
/// refused, because it does not belong to the packet.
#[inline]
fn is_completable(checksum: Checksum, parsed: &Parsed) -> bool {
    let Checksum::Partial { start, offset } = checksum else { return true };
    let own = match parsed.protocol {
        protocol::TCP => Some(tcp::CHECKSUM_OFFSET),
        protocol::UDP => Some(udp::CHECKSUM_OFFSET),
        protocol::ICMPV4 => Some(icmpv4::CHECKSUM_OFFSET),
        protocol::ICMPV6 => Some(icmpv6::CHECKSUM_OFFSET),
        _ => None,
    };
    let is_own = start == parsed.transport_offset && own == Some(usize::from(offset));
    let is_inside = u32::from(start) + u32::from(offset) + 2 <= u32::from(parsed.total_len);
    // The packet that an ICMP error quotes is judged, too.
    is_inside && (is_own || start >= parsed.header_len && !parsed.is_icmp_error())
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use proptest::bool::weighted;
    use proptest::collection::vec;
    use proptest::prelude::*;
    use proptest::sample::select;
    use proptest::test_runner::{Config, TestRunner};

    use super::*;
    use crate::encapsulation::{LinkAddresses, Outer, encapsulate};
    use crate::packet::Pool;
    use crate::parse::parse;
    use crate::tables::{Link, PortId, Tunnel};
    use crate::wire::{Ecn, arbitrary, put};

    const LOCAL: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
    const REMOTE: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 2);

    const ENDS: LinkAddresses = LinkAddresses { source: [2; 6], destination: [4; 6] };

    /// Tables with a tunnel of each kind; neither is the first one.
    fn tables() -> Tables {
        let tunnels = [Outer::ipip(LOCAL, REMOTE, None), Outer::vxlan(LOCAL, REMOTE, 4096, ENDS)];
        let kinds = tunnels.map(|outer| (REMOTE, outer.encapsulation()));
        let tunnel = |outer| Tunnel { remote: REMOTE, outer, link: Link::native(PortId(0), 1450) };
        Tables {
            underlay_address: Some(LOCAL),
            tunnels: [None].into_iter().chain(tunnels.map(|outer| Some(tunnel(outer)))).collect(),
            peers: kinds.into_iter().zip(1..).collect(),
            ..Tables::closed()
        }
    }

    /// A packet from a tunnel: mostly correct, and often wrong in one respect.
    #[derive(Debug, Clone)]
    struct Arrival {
        inner: Vec<u8>,
        /// The number of bytes of options.
        inner_options: u8,
        is_unfinished: bool,
        is_vxlan: bool,
        source: Ipv4Addr,
        destination: Ipv4Addr,
        outer_options: u8,
        /// Whether the mark is that of the outer header; else it is that of the inner one.
        mark: Option<Ecn>,
        padding: usize,
        changes: Vec<(usize, u8)>,
        mend: bool,
        checksum: Checksum,
        role: Role,
    }

    fn arrival() -> impl Strategy<Value = Arrival> {
        let options = || prop_oneof![9 => Just(0u8), 1 => Just(4)];
        let inner = (arbitrary::packet4(), options(), weighted(0.3));
        let end = |right| prop_oneof![7 => Just(right), 1 => Just(Ipv4Addr::new(192, 0, 2, 3))];
        let outer = (any::<bool>(), end(REMOTE), end(LOCAL), options());
        let mark = prop_oneof![
            4 => Just(None),
            1 => select(&[Ecn::NotEct, Ecn::Ect1, Ecn::Ect0][..]).prop_map(Some),
            1 => Just(Some(Ecn::Ce)),
        ];
        let change = (0usize..90, any::<u8>());
        let changes = prop_oneof![3 => Just(Vec::new()), 1 => vec(change, 1..3)];
        let checksum = prop_oneof![
            6 => Just(Checksum::Unverified),
            1 => Just(Checksum::Verified),
            1 => Just(Checksum::Partial { start: 40, offset: 6 }),
            1 => Just(Checksum::Partial { start: 30, offset: 6 }),
        ];
        let role = select(&[Role::Underlay, Role::Uplink][..]);
        let rest = (mark, 0usize..4, changes, any::<bool>(), checksum, role);
        (inner, outer, rest).prop_map(|(inner, outer, rest)| Arrival {
            inner: inner.0,
            inner_options: inner.1,
            is_unfinished: inner.2,
            is_vxlan: outer.0,
            source: outer.1,
            destination: outer.2,
            outer_options: outer.3,
            mark: rest.0,
            padding: rest.1,
            changes: rest.2,
            mend: rest.3,
            checksum: rest.4,
            role: rest.5,
        })
    }

    /// Sets the options of an IPv4 packet to 0 or 4 bytes of no-operation options.
    fn put_options(bytes: &mut Vec<u8>, len: u8) {
        let ip = ipv4::View::new_checked(&bytes[..]).unwrap();
        let header_len = ip.header_len();
        let total_len = ip.total_len.get() - header_len as u16 + 20 + u16::from(len);
        bytes.splice(20..header_len, vec![1; len.into()]);
        bytes[0] = 0x45 + len / 4;
        put(bytes, 2..4, &total_len.to_be_bytes());
        ipv4::View::new_checked_mut(&mut bytes[..]).unwrap().fill_checksum();
    }

    /// Replaces a UDP or TCP checksum by the sum of the pseudo-header.
    fn unfinish(bytes: &mut [u8]) {
        let parsed = parse(bytes).unwrap();
        let start = usize::from(parsed.transport_offset);
        let len = (bytes.len() - start) as u32;
        let pseudo_sum = pseudo(parsed.source, parsed.destination, parsed.protocol, len);
        for offset in [udp::CHECKSUM_OFFSET, tcp::CHECKSUM_OFFSET] {
            if let Some(field) = bytes[start..].get_mut(offset..offset + 2) {
                field.copy_from_slice(&checksum::fold(pseudo_sum).to_be_bytes());
            }
        }
    }

    impl Arrival {
        /// The inner packet.
        fn inner(&self) -> Vec<u8> {
            let mut inner = self.inner.clone();
            put_options(&mut inner, self.inner_options);
            if self.is_unfinished {
                unfinish(&mut inner);
            }
            inner
        }

        /// The packet that arrives.
        fn bytes(&self, inner: &[u8]) -> Vec<u8> {
            let outer = if self.is_vxlan {
                Outer::vxlan(self.source, self.destination, 4096, ENDS)
            } else {
                Outer::ipip(self.source, self.destination, None)
            };
            let mut packet = Pool::new(1).take_filled(inner).unwrap();
            assert!(encapsulate(&mut packet, &outer, 1));
            if let Some(mark) = self.mark {
                ipv4::View::new_checked_mut(packet.bytes_mut()).unwrap().set_ecn(mark);
            }
            let mut bytes = packet.bytes().to_vec();
            if self.outer_options > 0 {
                put_options(&mut bytes, self.outer_options);
            }
            bytes.resize(bytes.len() + self.padding, 0);
            for &(at, to) in &self.changes {
                if let Some(byte) = bytes.get_mut(at) {
                    *byte = to;
                }
            }
            if self.mend
                && let Ok(outer) = ipv4::View::new_checked_mut(&mut bytes[..])
            {
                outer.fill_checksum();
            }
            bytes
        }

        /// Whether the packet goes from the peer to this node, is unchanged, and has a finished checksum.
        fn is_right(&self) -> bool {
            let is_for_us = (self.source, self.destination) == (REMOTE, LOCAL);
            let is_as_sent = self.mark.is_none() && self.changes.is_empty();
            is_for_us && is_as_sent && self.checksum == Checksum::default()
        }
    }

    /// The number of packets of an encapsulation that took each path.
    #[derive(Debug, Clone, Copy, Default)]
    struct Seen {
        fast: u32,
        general: u32,
        refused: u32,
    }

    #[test]
    fn the_fast_decapsulation_equals_the_general_one() {
        let tables = tables();
        let (ipip, vxlan) = <(Cell<Seen>, Cell<Seen>)>::default();
        let config = Config { cases: 1500, failure_persistence: None, ..Config::default() };
        TestRunner::new(config)
            .run(&arrival(), |arrival| {
                let inner = arrival.inner();
                let bytes = arrival.bytes(&inner);
                let mut pool = Pool::new(3);
                let [mut plain, mut fast, mut general] = [(); 3].map(|()| {
                    let mut packet = pool.take_filled(&bytes).unwrap();
                    packet.offload.checksum = arrival.checksum;
                    packet
                });
                let role = arrival.role;
                let entered = decapsulate(&tables, &mut fast, role);
                prop_assert_eq!(entered, decapsulate_any(&tables, &mut general, role));
                prop_assert_eq!((fast.bytes(), fast.offload), (general.bytes(), general.offload));
                let plain_entrance = decapsulate_plain(&tables, &mut plain);
                let is_fast = plain_entrance.is_some();
                if let Some(entrance) = plain_entrance {
                    prop_assert_eq!((Ok(entrance), plain.bytes()), (entered, fast.bytes()));
                } else {
                    prop_assert_eq!(plain.bytes(), &bytes);
                }
                if arrival.is_right() {
                    // From the uplink, only IPIP packets are decapsulated.
                    let (entrance, behind) = match (arrival.is_vxlan, role) {
                        (false, _) => (Entrance::tunnel(1), &inner),
                        (true, Role::Uplink) => (Entrance::UPLINK, &bytes),
                        (true, _) => (Entrance::tunnel(2), &inner),
                    };
                    prop_assert_eq!((entered, fast.bytes()), (Ok(entrance), &behind[..]));
                    let has_options = arrival.inner_options + arrival.outer_options > 0;
                    let is_general = arrival.is_vxlan || has_options || may_be_partial(&inner);
                    prop_assert_eq!(is_fast, !is_general);
                }
                let seen = if arrival.is_vxlan { &vxlan } else { &ipip };
                let Seen { fast, general, refused } = seen.get();
                seen.set(match entered {
                    Ok(_) if is_fast => Seen { fast: fast + 1, general, refused },
                    Ok(_) => Seen { fast, general: general + 1, refused },
                    Err(_) => Seen { fast, general, refused: refused + 1 },
                });
                Ok(())
            })
            .unwrap();
        let (ipip, vxlan) = (ipip.get(), vxlan.get());
        assert!(ipip.fast > 150 && ipip.general > 150 && ipip.refused > 50, "{ipip:?}");
        assert!(vxlan.fast == 0 && vxlan.general > 150 && vxlan.refused > 50, "{vxlan:?}");
    }

    proptest! {
        #[test]
        fn may_be_partial_holds_of_restored_packets_and_of_few_others(
            (_, _, mut bytes) in arbitrary::described(),
            is_unfinished: bool,
            changes in vec((0usize..40, any::<u8>()), 0..3),
        ) {
            let parsed = parse(&bytes).unwrap();
            let start = usize::from(parsed.transport_offset);
            let offset = match parsed.protocol {
                protocol::TCP => Some(tcp::CHECKSUM_OFFSET),
                protocol::UDP => Some(udp::CHECKSUM_OFFSET),
                _ => None,
            };
            if let Some(offset) = offset.filter(|_| is_unfinished) {
                let len = (bytes.len() - start) as u32;
                let pseudo_sum = pseudo(parsed.source, parsed.destination, parsed.protocol, len);
                put(&mut bytes[start..], offset..offset + 2, &checksum::fold(pseudo_sum).to_be_bytes());
            }
            let is_known = offset.is_some() && is_unfinished && changes.is_empty() && parsed.is_v4();
            for (at, to) in changes {
                if let Some(byte) = bytes.get_mut(at) {
                    *byte = to;
                }
            }
            let mut packet = Pool::new(1).take_filled(&bytes).unwrap();
            restore_offload(&mut packet, 1480);
            let is_restored = packet.offload != Offload::default();
            prop_assert!(is_restored || !is_known);
            prop_assert!(may_be_partial(&bytes) || !is_restored);
            if let Ok(parsed) = parse(&bytes) && parsed.is_v4() {
                prop_assert_eq!(may_be_partial(&bytes), is_restored);
            }
        }
    }
}
