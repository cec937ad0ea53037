//! The uplink to the other nodes: the tunnel ports, and the hardware addresses that the packet socket needs.
//!
//! The kernel resolves neighbours, and the agent reads its neighbour table. A peer whose next hop is not known yet is
//! reached by the raw socket: the kernel resolves the next hop with the first packet.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, SocketAddrV4};
use std::time::Duration;
use std::{io, iter};

use manx_calculation::overlay::Overlay;
use manx_dataplane::port::icmp_raw::IcmpRaw;
use manx_dataplane::port::icmpv6_raw::Icmpv6Raw;
use manx_dataplane::port::ipip_raw::IpipRaw;
use manx_dataplane::port::udp_tunnel::UdpTunnel;
use manx_dataplane::port::uplink::{PacketUplink, UplinkOptions};
use manx_dataplane::port::{PacketIo, Reception};
use tokio::sync::watch;

use super::error::Error;
use manx_devices::device::Queues;
use manx_linux::doctor::{self, Lack};
use manx_linux::netlink::{self, Netlink};

/// The interval at which the kernel's neighbour table is read.
const REFRESH: Duration = Duration::from_secs(2);

/// The hardware address of the next hop to each peer.
pub(super) type NextHops = BTreeMap<Ipv4Addr, [u8; 6]>;

/// The uplink's tunnel ports.
pub(super) struct Tunnels {
    /// The raw protocol-4 sockets.
    pub(super) raw: Queues,
    /// The packet sockets, if they are wanted, and the uplink's hardware address.
    pub(super) packet_socket: Option<(Queues, [u8; 6])>,
}

/// Finds the interface that has the first of the node's addresses; if no interface has it, the next address is tried. Other
/// nodes know the node by its first address.
pub(super) async fn find_by_address(
    netlink: &Netlink,
    node: &str,
    wanted: &[IpAddr],
) -> Result<netlink::Link, Error> {
    let found = netlink.addresses().await?;
    let of = |address: &IpAddr| found.iter().find(|it| it.net.addr() == *address);
    let index = wanted.iter().find_map(of).map(|it| it.index);
    match netlink.links().await?.into_iter().find(|link| Some(link.index) == index) {
        Some(link) => find(netlink, &link.name).await,
        None => Err(Error::NoUplink {
            node: node.to_owned(),
            wanted: wanted.to_vec(),
            found: found.iter().map(|it| it.net.addr()).collect(),
        }),
    }
}

/// Finds the interface of this name.
pub(super) async fn find(netlink: &Netlink, name: &str) -> Result<netlink::Link, Error> {
    let link = netlink.existing(name).await?;
    if link.loopback {
        return Err(Error::Loopback(link.name));
    }
    if !link.up {
        tracing::warn!(uplink = link.name, "the uplink is down: other nodes cannot be reached");
    }
    Ok(link)
}

/// Opens the tunnel ports on the uplink `link`, a queue for each worker. With packet sockets the raw sockets only send.
/// Without packet sockets only the first raw socket receives, because each receiving socket would get every packet.
pub(super) fn open(
    link: &netlink::Link,
    packet_socket: bool,
    workers: usize,
) -> Result<Tunnels, Lack> {
    let Some(mac) = link.mac.filter(|_| packet_socket) else {
        return Ok(Tunnels { raw: raw(Reception::All, workers)?, packet_socket: None });
    };
    let queues = PacketUplink::open(link.index, UplinkOptions::default(), workers)
        .map_err(|error| doctor::packet_sockets_refused(&error))?
        .into_iter()
        .map(|queue| Box::new(queue) as Box<dyn PacketIo>)
        .collect();
    Ok(Tunnels { raw: raw(Reception::Quiet, workers)?, packet_socket: Some((queues, mac)) })
}

/// Opens tunnel ports that receive nothing, because another CNI plugin reaches the other nodes.
pub(super) fn unused(workers: usize) -> Result<Tunnels, Lack> {
    Ok(Tunnels { raw: raw(Reception::Quiet, workers)?, packet_socket: None })
}

/// Opens an overlay's own sockets at the underlay address `local`. The first worker's socket receives, and all of them
/// send. Returns `None` if the overlay has no own sockets and uses the ports of [`open`].
pub(super) fn own_sockets(
    overlay: Overlay,
    local: Ipv4Addr,
    workers: usize,
) -> Option<Result<Queues, String>> {
    let encapsulation = overlay.encapsulation();
    let local = SocketAddrV4::new(local, encapsulation.udp_port()?);
    let opened = sockets(Reception::All, workers, |reception| UdpTunnel::open(local, reception));
    Some(opened.map_err(|error| {
        let name = encapsulation.name();
        // The kernel's name for tunnel devices of this kind.
        let kind = name.to_lowercase();
        format!(
            "nodes behind {name} cannot be reached: UDP {local} cannot be had: {error}; expected that the address is the uplink's \
             and that no other socket has the port (a {name} device of the kernel's: ip -d link show type {kind})"
        )
    }))
}

/// Opens the sockets for ICMP errors about packets with the node's own address, for IPv4 and for IPv6. The IPv6 entry is
/// `None` on a kernel without IPv6.
pub(super) fn report_sockets(workers: usize) -> Result<[Option<Queues>; 2], Lack> {
    let v4 = sockets(Reception::All, workers, IcmpRaw::open);
    let v4 = v4.map_err(|error| doctor::raw_sockets_refused(&error))?;
    Ok([Some(v4), sockets(Reception::All, workers, Icmpv6Raw::open).ok()])
}

fn raw(first: Reception, workers: usize) -> Result<Queues, Lack> {
    sockets(first, workers, IpipRaw::open).map_err(|error| doctor::raw_sockets_refused(&error))
}

/// Opens a socket for each worker. `first` determines which packets the first socket receives. All others only send.
fn sockets<P: PacketIo + 'static>(
    first: Reception,
    workers: usize,
    open: impl Fn(Reception) -> io::Result<P>,
) -> io::Result<Queues> {
    let receptions = iter::once(first).chain(iter::repeat(Reception::Quiet)).take(workers);
    receptions.map(|it| Ok(Box::new(open(it)?) as Box<dyn PacketIo>)).collect()
}

/// Keeps `hops` equal to the peers' next hops on interface `device` that the kernel knows; never ends.
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

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use manx_linux::netlink::{Peer, Veth, in_netns};
    use manx_linux::netns;
    use manx_linux::testing::namespaces_allowed;

    use super::*;

    #[test]
    fn the_uplink_has_the_first_of_the_nodes_addresses() {
        if !namespaces_allowed() {
            return;
        }
        let (node, other) = (netns::create().unwrap(), netns::create().unwrap());
        in_netns(&node, async |netlink| {
            for (index, name, address) in
                [(11, "eth0", "192.0.2.7/24"), (12, "eth1", "10.0.0.7/24")]
            {
                let peer = Peer { name, netns: Some(other.as_fd()), mac: None, index: None };
                let veth = Veth { name, mac: None, index: Some(index), mtu: 1500, peer };
                netlink.add_veth(&veth).await?;
                netlink.add_address(index, address.parse().unwrap()).await?;
            }
            let of = async |wanted: &[&str]| {
                let wanted: Vec<IpAddr> = wanted.iter().map(|it| it.parse().unwrap()).collect();
                let found = find_by_address(&netlink, "n1", &wanted).await;
                found.map(|link| link.name).map_err(|error| error.to_string())
            };
            assert_eq!(of(&["192.0.2.7", "10.0.0.7"]).await.unwrap(), "eth0");
            assert_eq!(of(&["10.0.0.7", "192.0.2.7"]).await.unwrap(), "eth1");
            assert_eq!(of(&["203.0.113.1", "10.0.0.7"]).await.unwrap(), "eth1");
            insta::assert_snapshot!(of(&["203.0.113.1"]).await.unwrap_err(), @"no interface has an address of Node n1 (203.0.113.1): found 192.0.2.7, 10.0.0.7; name the interface that leads to the other nodes by --uplink, or correct status.addresses of the Node");
            Ok(())
        })
        .unwrap();
    }
}
