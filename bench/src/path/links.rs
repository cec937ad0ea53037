//! Network namespaces and their connections: veth pairs, addresses and routes.

use std::net::Ipv4Addr;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path as FilePath;

use ipnet::{IpNet, Ipv4Net};
use manx_linux::netlink::{self, Netlink, Peer, Route, Veth};
use manx_linux::netns::{self, sysctl};

use crate::error::Error;

/// All addresses: the destination of a default route.
pub const ANYWHERE: IpNet = IpNet::V4(Ipv4Net::new_assert(Ipv4Addr::UNSPECIFIED, 0));

/// Creates a namespace whose loopback device is up.
pub fn namespace() -> Result<OwnedFd, Error> {
    let netns = netns::create()?;
    set_loopback_up(&netns)?;
    Ok(netns)
}

/// Creates a namespace whose loopback device is up, with a name in a folder by which other
/// processes find it.
pub fn named_namespace(folder: &FilePath, name: &str) -> Result<OwnedFd, Error> {
    let netns = netns::create_named(&folder.join(name))?;
    set_loopback_up(&netns)?;
    Ok(netns)
}

/// Sets the loopback device of a namespace up.
pub fn set_loopback_up(netns: &OwnedFd) -> Result<(), Error> {
    Ok(netlink::in_netns(netns, async |netlink| {
        let lo = netlink.existing("lo").await?;
        netlink.set_up(lo.index).await
    })?)
}

/// Creates a veth pair with this MTU in bytes, and sets both ends up.
pub fn add_veth(
    one: &OwnedFd,
    name: &str,
    other: &OwnedFd,
    peer_name: &str,
    mtu: u32,
) -> Result<(), Error> {
    netlink::in_netns(one, async |netlink| {
        let peer = Peer { name: peer_name, netns: Some(other.as_fd()), mac: None, index: None };
        netlink.add_veth(&Veth { name, mac: None, index: None, mtu, peer }).await?;
        set_up(&netlink, name).await
    })?;
    Ok(netlink::in_netns(other, async |netlink| set_up(&netlink, peer_name).await)?)
}

async fn set_up(netlink: &Netlink, name: &str) -> Result<(), netlink::Error> {
    let link = netlink.existing(name).await?;
    netlink.set_up(link.index).await
}

/// Gives an interface an address.
pub fn add_address(netns: &OwnedFd, interface: &str, net: IpNet) -> Result<(), Error> {
    Ok(netlink::in_netns(netns, async |netlink| {
        let link = netlink.existing(interface).await?;
        netlink.add_address(link.index, net).await
    })?)
}

/// Adds a route to `to` by the next hop `via`.
pub fn add_route(netns: &OwnedFd, interface: &str, to: IpNet, via: Ipv4Addr) -> Result<(), Error> {
    Ok(netlink::in_netns(netns, async |netlink| {
        let device = netlink.existing(interface).await?.index;
        netlink.replace_route(&Route::via(to, via.into(), device)).await
    })?)
}

/// The net `a.b.c.d/prefix`. A prefix above 32 counts as 32.
pub fn net(a: u8, b: u8, c: u8, d: u8, prefix: u8) -> IpNet {
    let address = Ipv4Addr::new(a, b, c, d);
    IpNet::V4(Ipv4Net::new(address, prefix).unwrap_or_else(|_| address.into()))
}

/// Makes the kernel forward IPv4 packets in a namespace.
pub fn forward_ipv4(netns: &OwnedFd) -> Result<(), Error> {
    Ok(netns::run_in(netns, || sysctl::set("ipv4/ip_forward", "1"))??)
}
