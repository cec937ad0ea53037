//! The way to the other nodes: the tunnel ports, and the hardware addresses that the packet socket needs.
//!
//! The kernel resolves neighbours; the agent reads what it found. A peer whose next hop is not known yet is reached by
//! the raw socket, where the kernel resolves it with the first packet.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use manx_dataplane::port::ipip_raw::IpipRaw;
use manx_dataplane::port::uplink::{PacketUplink, UplinkOptions};
use manx_dataplane::port::vxlan::VxlanSocket;
use manx_dataplane::port::{PacketIo, Reception};
use manx_dataplane::wire::vxlan;
use tokio::sync::watch;

use super::device::Queues;
use manx_linux::doctor::{self, Lack};
use manx_linux::netlink::{self, Netlink};

/// How often the kernel's neighbour table is read.
const REFRESH: Duration = Duration::from_secs(2);

/// Hardware address of the next hop to each peer.
pub(super) type NextHops = BTreeMap<Ipv4Addr, [u8; 6]>;

/// The uplink's tunnel ports.
pub(super) struct Ports {
    /// The raw protocol-4 sockets.
    pub(super) raw: Queues,
    /// The packet sockets, if asked for, and the uplink's hardware address.
    pub(super) packet_socket: Option<(Queues, [u8; 6])>,
}

/// Opens the tunnel ports on the uplink `link`, a queue for each worker. With packet sockets the raw sockets only send; without,
/// the first one receives too: each would receive every packet.
pub(super) fn open(
    link: &netlink::Link,
    packet_socket: bool,
    workers: usize,
) -> Result<Ports, Lack> {
    let Some(mac) = link.mac.filter(|_| packet_socket) else {
        return Ok(Ports { raw: raw(Reception::All, workers)?, packet_socket: None });
    };
    let queues = PacketUplink::open(link.index, UplinkOptions::default(), workers)
        .map_err(|error| doctor::packet_sockets_refused(&error))?
        .into_iter()
        .map(|queue| Box::new(queue) as Box<dyn PacketIo>)
        .collect();
    Ok(Ports { raw: raw(Reception::Quiet, workers)?, packet_socket: Some((queues, mac)) })
}

/// Opens VXLAN's sockets on the underlay address `local`: the first worker's receives, all send.
pub(super) fn vxlan(local: Ipv4Addr, workers: usize) -> Result<Queues, VxlanRefused> {
    let socket = |reception| match VxlanSocket::open(local, reception) {
        Ok(socket) => Ok(Box::new(socket) as Box<dyn PacketIo>),
        Err(source) => Err(VxlanRefused { local, source }),
    };
    receptions(Reception::All, workers).map(socket).collect()
}

/// The first worker's, and that of all others.
fn receptions(first: Reception, workers: usize) -> impl Iterator<Item = Reception> {
    std::iter::once(first).chain(std::iter::repeat(Reception::Quiet)).take(workers)
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

fn raw(first: Reception, workers: usize) -> Result<Queues, Lack> {
    let socket = |reception| match IpipRaw::open(reception) {
        Ok(socket) => Ok(Box::new(socket) as Box<dyn PacketIo>),
        Err(error) => Err(doctor::raw_sockets_refused(&error)),
    };
    receptions(first, workers).map(socket).collect()
}

/// Keeps `hops` at what the kernel knows of the peers' next hops on interface `device`; never ends.
pub(super) async fn watch_next_hops(
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
