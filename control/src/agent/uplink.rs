//! The way to the other nodes: the tunnel ports, and the hardware addresses that the packet socket needs.
//!
//! The kernel resolves neighbours; the agent reads what it found. A peer whose next hop is not known yet is reached by
//! the raw socket, where the kernel resolves it with the first packet.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use manx_dataplane::port::PacketIo;
use manx_dataplane::port::ipip_raw::{IpipRaw, Reception};
use manx_dataplane::port::uplink::{PacketUplink, UplinkOptions};
use manx_dataplane::port::vxlan::VxlanSocket;
use manx_dataplane::wire::vxlan;
use tokio::sync::watch;

use crate::doctor::{self, Lack};
use crate::netlink::{self, Netlink};

/// How often the kernel's neighbour table is read.
const REFRESH: Duration = Duration::from_secs(2);

/// Hardware address of the next hop to each peer.
pub(super) type NextHops = BTreeMap<Ipv4Addr, [u8; 6]>;

/// The uplink's tunnel ports.
pub(super) struct Ports {
    /// The raw protocol-4 socket.
    pub(super) raw: Box<dyn PacketIo>,
    /// The packet socket, if asked for, and the uplink's hardware address.
    pub(super) packet_socket: Option<(Box<dyn PacketIo>, [u8; 6])>,
}

/// Opens the tunnel ports on the uplink `link`. With a packet socket the raw socket only sends; without, it receives too.
pub(super) fn open(link: &netlink::Link, packet_socket: bool) -> Result<Ports, Lack> {
    let Some(mac) = link.mac.filter(|_| packet_socket) else {
        return Ok(Ports { raw: Box::new(raw(Reception::All)?), packet_socket: None });
    };
    let raw = Box::new(raw(Reception::Quiet)?);
    let mut queues = PacketUplink::open(link.index, UplinkOptions::default(), 1)
        .map_err(|error| doctor::packet_sockets_refused(&error))?;
    let packet_socket = queues.pop().map(|queue| (Box::new(queue) as Box<dyn PacketIo>, mac));
    Ok(Ports { raw, packet_socket })
}

/// Opens VXLAN's socket on the underlay address `local`.
pub(super) fn vxlan(local: Ipv4Addr) -> Result<Box<dyn PacketIo>, VxlanRefused> {
    match VxlanSocket::open(local) {
        Ok(socket) => Ok(Box::new(socket)),
        Err(source) => Err(VxlanRefused { local, source }),
    }
}

/// There is no socket for VXLAN.
#[derive(Debug, thiserror::Error)]
#[error(
    "UDP {local}:{port} cannot be had: {source}; expected that the address is the uplink's and that nobody has the port (a VXLAN device of the kernel's: ip -d link show type vxlan)",
    port = vxlan::PORT
)]
pub(super) struct VxlanRefused {
    local: Ipv4Addr,
    source: std::io::Error,
}

fn raw(reception: Reception) -> Result<IpipRaw, Lack> {
    IpipRaw::open(reception).map_err(|error| doctor::raw_sockets_refused(&error))
}

/// Keeps `hops` at what the kernel knows of the peers' next hops on interface `device`; never ends.
pub(super) async fn follow(
    netlink: Netlink,
    device: u32,
    mut peers: watch::Receiver<BTreeSet<Ipv4Addr>>,
    hops: watch::Sender<NextHops>,
) {
    loop {
        let wanted = peers.borrow_and_update().clone();
        match next_hops(&netlink, device, &wanted).await {
            Ok(found) => {
                hops.send_if_modified(|known| {
                    let changed = *known != found;
                    *known = found;
                    changed
                });
            }
            Err(error) => {
                tracing::warn!(%error, "next hops of the peers cannot be read; the raw socket serves them");
            }
        }
        tokio::select! {
            changed = peers.changed() => if changed.is_err() { return },
            () = tokio::time::sleep(REFRESH) => {}
        }
    }
}

async fn next_hops(
    netlink: &Netlink,
    device: u32,
    peers: &BTreeSet<Ipv4Addr>,
) -> Result<NextHops, netlink::Error> {
    let mut found = NextHops::new();
    for peer in peers {
        let Some(hop) = netlink.next_hop(IpAddr::V4(*peer)).await? else { continue };
        if hop.device != device {
            continue;
        }
        if let Some(mac) = netlink.resolve(hop).await? {
            found.insert(*peer, mac);
        }
    }
    Ok(found)
}
