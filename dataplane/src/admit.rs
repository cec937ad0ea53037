//! What comes in: tunnel packets are taken out of their tunnels, every packet is parsed.

use std::net::Ipv4Addr;

use crate::checksum;
use crate::decide::Entrance;
use crate::encapsulation::{self, Encapsulation};
use crate::fate::DropReason;
use crate::packet::{Checksum, Offload, Packet, SegmentKind, Segmentation};
use crate::parse::Parsed;
use crate::tables::{Role, Tables};
use crate::wire::address::Address;
use crate::wire::{icmpv4, icmpv6, ipv4, protocol, tcp, udp};

/// Where the packets of a role enter; `None`: each of them tells, see [`unwrap`].
pub(crate) fn entrance(tables: &Tables, role: Role) -> Result<Option<Entrance>, DropReason> {
    match role {
        Role::Closed => Err(DropReason::NoTables),
        Role::Endpoint(index) => Ok(Some(Entrance::endpoint(index))),
        Role::Host if tables.uplink.is_some() => Ok(Some(Entrance::NODE)),
        Role::Host => Ok(Some(Entrance::HOST)),
        Role::Uplink | Role::Underlay => Ok(None),
    }
}

/// Where a packet from the underlay or the uplink enters. Of a tunnel that leads here the outer header is taken off.
#[inline]
pub(crate) fn unwrap(
    tables: &Tables,
    packet: &mut Packet,
    role: Role,
) -> Result<Entrance, DropReason> {
    match unwrap_plain(tables, packet) {
        Some(entrance) => Ok(entrance),
        None => unwrap_any(tables, packet, role),
    }
}

/// The short way: of a tunnel that leads here, nothing on the way marked it, and nobody has to say anything about its checksum,
/// which nearly every packet is. It is no other answer than [`unwrap_any`]'s; `None`, and nothing done: ask that.
#[inline(always)]
#[expect(clippy::inline_always, reason = "the loop over a batch is to have it in its registers")]
fn unwrap_plain(tables: &Tables, packet: &mut Packet) -> Option<Entrance> {
    // VXLAN, which goes the long way, is told at once.
    let is_ipip = packet.bytes().get(ipv4::field::PROTOCOL) == Some(&protocol::IPIP);
    if !is_ipip || packet.offload != Offload::default() {
        return None;
    }
    let (outer, inner) = encapsulation::plain(packet.bytes())?;
    let is_here = tables.underlay_address == Some(outer.destination.into());
    if !is_here || may_be_unfinished(inner) {
        return None;
    }
    let peer = tables.peers.tunnel(outer.source.into(), Encapsulation::Ipip)?;
    packet.truncate(outer.total_len.into());
    packet.pull_front(Encapsulation::Ipip.header_len());
    Some(Entrance::tunnel(peer))
}

/// As [`unwrap`], of any packet.
#[inline(never)]
fn unwrap_any(tables: &Tables, packet: &mut Packet, role: Role) -> Result<Entrance, DropReason> {
    if role == Role::Uplink && !is_tunnelled_here(tables, packet) {
        return Ok(Entrance::UPLINK);
    }
    let arrived = encapsulation::tunnelled(packet.bytes())?;
    let peer = tables
        .peers
        .tunnel(arrived.source, arrived.encapsulation)
        .filter(|_| tables.underlay_address == Some(arrived.destination))
        .ok_or(DropReason::UnknownTunnelPeer)?;
    encapsulation::decapsulate(packet, &arrived)?;
    if packet.offload == Offload::default()
        && may_be_unfinished(packet.bytes())
        && let Some(tunnel) = tables.tunnel(peer)
    {
        restore_offload(packet, tunnel.link.mtu as usize);
    }
    Ok(Entrance::tunnel(peer))
}

/// Where a packet entered that another worker has read and, if it came by a tunnel from `peer`, unwrapped.
pub(crate) fn handed_over(
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
        ip.protocol() == protocol::IPIP && tables.underlay_address == Some(ip.destination().into())
    })
}

/// Whether the checksum of what begins as an IPv4 packet does may be the pseudo-header's sum alone: those of which it is not are
/// nothing for [`restore_offload`].
#[inline]
fn may_be_unfinished(bytes: &[u8]) -> bool {
    let Some(header) = bytes.first_chunk::<{ ipv4::HEADER_LEN }>() else { return false };
    let upper = header[ipv4::field::PROTOCOL];
    let offset = match upper {
        protocol::UDP => udp::CHECKSUM_OFFSET,
        protocol::TCP => tcp::CHECKSUM_OFFSET,
        _ => return false,
    };
    let header_len = u16::from(header[ipv4::field::VERSION_IHL] & 0x0f) * 4;
    let at = usize::from(header_len) + offset;
    let stored = bytes.get(at..at + 2).and_then(<[u8]>::first_chunk);
    let Some(stored) = stored else { return false };
    let [first, .., source, destination] = header.as_chunks::<4>().0 else { return false };
    let total_len = u16::from_be_bytes([first[2], first[3]]);
    // The payload's length is the difference, for which its complement is added.
    // As the machine reads the words, which a ones' complement sum survives (RFC 1071, section 2 (B)).
    let ends = [source, destination].map(|end| u64::from(u32::from_ne_bytes(*end)));
    let words = [upper.into(), total_len, !header_len].map(|word| u64::from(word.to_be()));
    let sum = ends[0] + ends[1] + words[0] + words[1] + words[2];
    checksum::fold(checksum::fold64(sum)) == u16::from_ne_bytes(*stored)
}

/// A socket without metadata hands up what the kernels on one machine pass each other unfinished, and does not say so: a
/// super-packet of TCP, and a checksum that is only the pseudo-header's sum. What it must have been is put back. If it was
/// anything else, the checksum is wrong and the receiver finds it: one that happens to equal the pseudo-header's sum is as
/// likely as any other wrong checksum that happens to be right.
#[inline(never)]
fn restore_offload(packet: &mut Packet, mtu: usize) {
    let Ok(ip) = ipv4::View::new_checked(packet.bytes()) else { return };
    let start = ip.header_len();
    let (offset, header_len) = match ip.protocol() {
        protocol::UDP => (udp::CHECKSUM_OFFSET, None),
        protocol::TCP => {
            let Ok(tcp) = tcp::View::new_checked(ip.payload()) else { return };
            (tcp::CHECKSUM_OFFSET, Some(start + tcp.header_len()))
        }
        _ => return,
    };
    let Some(stored) = ip.payload().get(offset..offset + 2) else { return };
    let [source, destination] = [ip.source(), ip.destination()].map(Address::v4);
    let pseudo = checksum::pseudo(source, destination, ip.protocol(), ip.payload().len() as u32);
    if stored != checksum::fold(pseudo).to_be_bytes() || ip.is_fragment() {
        return;
    }
    let len = usize::from(ip.total_len());
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

/// Takes a packet in that has been parsed: what is to become of its checksum is looked at, the link's padding taken off.
#[inline]
pub(crate) fn take_in(packet: &mut Packet, parsed: &Parsed) -> Result<(), DropReason> {
    if !may_be_finished(packet.offload.checksum, parsed) {
        return Err(DropReason::Malformed);
    }
    packet.truncate(parsed.total_len.into());
    Ok(())
}

/// Whether a checksum that is written later changes nothing by which the packet is judged: it is the upper layer's own, or
/// lies behind that layer's header (of a tunnel within). Senders choose its place, and would choose a port's.
#[inline]
fn may_be_finished(checksum: Checksum, parsed: &Parsed) -> bool {
    let Checksum::Partial { start, offset } = checksum else { return true };
    let own = match parsed.protocol {
        protocol::TCP => Some(tcp::CHECKSUM_OFFSET),
        protocol::UDP => Some(udp::CHECKSUM_OFFSET),
        protocol::ICMPV4 => Some(icmpv4::CHECKSUM_OFFSET),
        protocol::ICMPV6 => Some(icmpv6::CHECKSUM_OFFSET),
        _ => None,
    };
    let is_own = start == parsed.transport_offset && own == Some(usize::from(offset));
    // What an ICMP error quotes is judged too.
    is_own || (start >= parsed.header_len && !parsed.is_icmp_error())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::encapsulation::{LinkAddresses, Outer, encapsulate};
    use crate::packet::Pool;
    use crate::parse::parse;
    use crate::tables::{Link, PortId, Tunnel};
    use crate::wire::arbitrary;
    use crate::wire::put;

    const LOCAL: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
    const REMOTE: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 2);

    const ENDS: LinkAddresses = LinkAddresses { source: [2; 6], destination: [4; 6] };

    /// A tunnel of each kind, which are not the first.
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

    proptest! {
        #[test]
        fn the_short_way_out_of_a_tunnel_is_no_other(
            mut bytes in arbitrary::packet4(),
            is_unfinished: bool,
            padding in 0usize..4,
            changes in prop::collection::vec((0usize..90, any::<u8>()), 0..3),
            mend: bool,
            checksum in prop::sample::select(&[
                Checksum::Unverified,
                Checksum::Unverified,
                Checksum::Verified,
                Checksum::Partial { start: 40, offset: 6 },
            ][..]),
            role in prop::sample::select(&[Role::Underlay, Role::Uplink][..]),
            is_vxlan: bool,
        ) {
            let tables = tables();
            if is_unfinished {
                let parsed = parse(&bytes).unwrap();
                let start = usize::from(parsed.transport_offset);
                let len = (bytes.len() - start) as u32;
                let pseudo = checksum::pseudo(parsed.source, parsed.destination, parsed.protocol, len);
                for offset in [udp::CHECKSUM_OFFSET, tcp::CHECKSUM_OFFSET] {
                    if let Some(field) = bytes[start..].get_mut(offset..offset + 2) {
                        field.copy_from_slice(&checksum::fold(pseudo).to_be_bytes());
                    }
                }
            }
            let is_known = bytes[0] == 0x45 && !may_be_unfinished(&bytes);
            let mut packet = Pool::new(1).take_filled(&bytes).unwrap();
            let outer = if is_vxlan {
                Outer::vxlan(REMOTE, LOCAL, 4096, ENDS)
            } else {
                Outer::ipip(REMOTE, LOCAL, None)
            };
            prop_assert!(encapsulate(&mut packet, &outer, 1));
            let mut bytes = packet.bytes().to_vec();
            bytes.resize(bytes.len() + padding, 0);
            for &(at, to) in &changes {
                if let Some(byte) = bytes.get_mut(at) {
                    *byte = to;
                }
            }
            if mend && let Ok(mut outer) = ipv4::View::new_checked(&mut bytes[..]) {
                outer.fill_checksum();
            }
            let mut pool = Pool::new(3);
            let [mut plain, mut short, mut long] = [(); 3].map(|()| {
                let mut packet = pool.take_filled(&bytes).unwrap();
                packet.offload.checksum = checksum;
                packet
            });
            prop_assert_eq!(unwrap(&tables, &mut short, role), unwrap_any(&tables, &mut long, role));
            prop_assert_eq!((short.bytes(), short.offload), (long.bytes(), long.offload));
            if let Some(entrance) = unwrap_plain(&tables, &mut plain) {
                prop_assert_eq!(entrance, Entrance::tunnel(1));
            } else {
                let may_be_plain = is_known && !is_vxlan && changes.is_empty();
                prop_assert!(!may_be_plain || plain.offload != Offload::default());
                prop_assert_eq!(plain.bytes(), bytes);
            }
        }

        #[test]
        fn what_is_restored_may_be_unfinished_and_hardly_anything_else(
            (_, _, mut bytes) in arbitrary::described(),
            is_unfinished: bool,
            changes in prop::collection::vec((0usize..40, any::<u8>()), 0..3),
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
                let pseudo = checksum::pseudo(parsed.source, parsed.destination, parsed.protocol, len);
                put(&mut bytes[start..], offset..offset + 2, &checksum::fold(pseudo).to_be_bytes());
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
            prop_assert!(may_be_unfinished(&bytes) || !is_restored);
            if let Ok(parsed) = parse(&bytes) && parsed.is_v4() {
                prop_assert_eq!(may_be_unfinished(&bytes), is_restored);
            }
        }
    }
}
