//! The overlays, with all differences between them, and the underlay, over which their packets travel.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;

use manx_dataplane::encapsulation::{Encapsulation, LinkAddresses, Outer};
use manx_dataplane::port::udp_tunnel;
use manx_dataplane::tables::PortId;
use manx_objects::object::{EncapsulationMode, IpPool};

/// The default VXLAN network identifier of Calico's nodes (`vxlanVNI` of `FelixConfiguration`).
const VNI: u32 = 4096;

/// An encapsulation that pools can request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum Overlay {
    /// IPIP.
    #[default]
    Ipip,
    /// VXLAN.
    Vxlan,
}

impl Overlay {
    /// All overlays.
    pub const ALL: [Self; 2] = [Self::Ipip, Self::Vxlan];

    /// Returns the name of the port of the overlay's own socket.
    pub const fn port(self) -> &'static str {
        match self {
            Self::Ipip => "uplink-raw",
            Self::Vxlan => "uplink-vxlan",
        }
    }

    /// Returns the overlay that a pool requests, and between which nodes it requests it.
    pub(crate) fn of_pool(pool: &IpPool) -> (Self, EncapsulationMode) {
        let overlay = match pool.vxlan_mode {
            None | Some(EncapsulationMode::Never) => Self::Ipip,
            Some(_) => Self::Vxlan,
        };
        (overlay, pool.mode())
    }

    /// Returns the headers that the overlay adds to packets. The MTU of a tunnel is the underlay's MTU minus the length
    /// of these headers.
    pub const fn encapsulation(self) -> Encapsulation {
        match self {
            Self::Ipip => Encapsulation::Ipip,
            Self::Vxlan => Encapsulation::Vxlan { vni: VNI },
        }
    }

    /// Returns the maximum number of segments that a pod's super-packet should have, if packets of `mtu` bytes use this
    /// overlay.
    pub fn segments(self, mtu: u32) -> Option<u32> {
        self.encapsulation().udp_port().map(|_| udp_tunnel::segments_at_once(mtu))
    }

    /// Returns the prepared outer header of a tunnel, and the port by which its packets leave. `macs` are the nodes'
    /// MAC addresses for inner frames. Returns `None` while a MAC address that is needed is not known, or while the
    /// overlay's own socket is not open.
    pub(crate) fn tunnel(
        self,
        underlay: &Underlay,
        macs: &BTreeMap<Ipv4Addr, [u8; 6]>,
        (local, peer): (Ipv4Addr, Ipv4Addr),
    ) -> Option<(Outer, PortId)> {
        match self {
            // The packet socket is used if the next hop is known, and otherwise the raw socket.
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

/// The ports of the overlays' own sockets.
pub type Sockets = BTreeMap<Overlay, PortId>;

/// The ports through which encapsulated packets leave and arrive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Underlay {
    /// The MTU of the uplink.
    pub mtu: u32,
    /// The raw socket for protocol 4. The kernel finds the route of its packets.
    pub raw: PortId,
    /// The packet socket on the uplink, and the MAC address of the uplink.
    pub packet_socket: Option<(PortId, [u8; 6])>,
    /// The MAC address of the next hop for each peer that the packet socket can reach. Packets to other peers are sent
    /// by the raw socket.
    pub next_hops: BTreeMap<Ipv4Addr, [u8; 6]>,
    /// The sockets of overlays that have a socket of their own. A socket is opened when a tunnel needs it.
    pub sockets: Sockets,
}

impl Underlay {
    /// Returns an underlay that has only the raw socket.
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
