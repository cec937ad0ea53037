//! The overlays: all in which one differs from another, and the underlay, by which their packets travel.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;

use manx_dataplane::encapsulation::{Encapsulation, LinkAddresses, Outer};
use manx_dataplane::port::udp_tunnel;
use manx_dataplane::tables::PortId;
use manx_objects::object::{EncapsulationMode, IpPool};

/// The VXLAN network of Calico's nodes (`FelixConfiguration`, `vxlanVNI`, by default).
const VNI: u32 = 4096;

/// An encapsulation that pools can ask for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum Overlay {
    /// IPIP.
    #[default]
    Ipip,
    /// VXLAN.
    Vxlan,
}

impl Overlay {
    /// All of them.
    pub const ALL: [Self; 2] = [Self::Ipip, Self::Vxlan];

    /// The name of the port of its own socket.
    pub const fn port(self) -> &'static str {
        match self {
            Self::Ipip => "uplink-raw",
            Self::Vxlan => "uplink-vxlan",
        }
    }

    /// The overlay that a pool asks for, and the nodes between which it asks for it.
    pub(crate) fn of_pool(pool: &IpPool) -> (Self, EncapsulationMode) {
        let overlay = match pool.vxlan_mode {
            None | Some(EncapsulationMode::Never) => Self::Ipip,
            Some(_) => Self::Vxlan,
        };
        (overlay, pool.mode())
    }

    /// The headers around its packets. A tunnel's MTU is smaller by them than the underlay's.
    pub const fn encapsulation(self) -> Encapsulation {
        match self {
            Self::Ipip => Encapsulation::Ipip,
            Self::Vxlan => Encapsulation::Vxlan { vni: VNI },
        }
    }

    /// The most segments that a pod's super-packet should have, if packets of `mtu` bytes travel by this overlay.
    pub fn segments(self, mtu: u32) -> Option<u32> {
        self.encapsulation().udp_port().map(|_| udp_tunnel::segments_at_once(mtu))
    }

    /// The prepared outer header of a tunnel, and the port that its packets leave by. `macs` are the nodes' hardware
    /// addresses in inner frames. `None`: it cannot be had yet.
    pub(crate) fn tunnel(
        self,
        underlay: &Underlay,
        macs: &BTreeMap<Ipv4Addr, [u8; 6]>,
        (local, peer): (Ipv4Addr, Ipv4Addr),
    ) -> Option<(Outer, PortId)> {
        match self {
            // By the packet socket where the next hop is known, else by the raw socket.
            Self::Ipip => Some(match (underlay.packet_socket, underlay.next_hops.get(&peer)) {
                (Some((packet_socket, own)), Some(next_hop)) => {
                    let link = LinkAddresses { source: own, destination: *next_hop };
                    (Outer::ipip(local, peer, Some(link)), packet_socket)
                }
                _ => (Outer::ipip(local, peer, None), underlay.raw),
            }),
            Self::Vxlan => {
                let (source, destination) = (*macs.get(&local)?, *macs.get(&peer)?);
                let inner = LinkAddresses { source, destination };
                Some((Outer::vxlan(local, peer, VNI, inner), *underlay.sockets.get(&self)?))
            }
        }
    }
}

/// The ports of overlays' own sockets.
pub type Sockets = BTreeMap<Overlay, PortId>;

/// Where encapsulated packets leave and arrive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Underlay {
    /// The MTU of the uplink.
    pub mtu: u32,
    /// The raw protocol-4 socket: the kernel finds the way.
    pub raw: PortId,
    /// The packet socket on the uplink and the uplink's own hardware address.
    pub packet_socket: Option<(PortId, [u8; 6])>,
    /// Hardware address of the next hop to each peer that it can reach; others go by the raw socket.
    pub next_hops: BTreeMap<Ipv4Addr, [u8; 6]>,
    /// The sockets of overlays that have one of their own, once a tunnel needs it.
    pub sockets: Sockets,
}

impl Underlay {
    /// An underlay with the raw socket alone.
    pub const fn new(mtu: u32, raw: PortId) -> Self {
        Self { mtu, raw, packet_socket: None, next_hops: BTreeMap::new(), sockets: Sockets::new() }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn each_overlay_is_another_kind_of_encapsulation() {
        let kinds = Overlay::ALL.map(|it| it.encapsulation().kind());
        assert_eq!(BTreeSet::from(kinds).len(), Overlay::ALL.len());
        assert!(kinds.iter().all(|kind| *kind < Encapsulation::KINDS));
    }
}
