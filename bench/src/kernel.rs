//! Paths of the kernel's own parts.

use std::net::Ipv4Addr;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path as FilePath;

use ipnet::{IpNet, Ipv4Net};
use manx_linux::netlink::{self, Netlink, Peer, Route, Veth};
use manx_linux::netns::{self, sysctl};
use rtnetlink::LinkVxlan;

use crate::error::{Error, io};
use crate::path::{Between, End, Path};
use crate::sys;

/// The underlay's MTU, and that of pods that need no tunnel, in bytes.
pub const MTU: u32 = 1500;
/// What VXLAN over IPv4 adds to a packet: outer IPv4, UDP and VXLAN headers and the inner Ethernet header.
pub const VXLAN_OVERHEAD: u32 = 20 + 8 + 8 + 14;
const VXLAN: &str = "vxlan0";
/// The last byte of the two nodes' addresses.
const LEFT: u8 = 2;
const RIGHT: u8 = 3;

/// Kernel routing: left - veth - router - veth - right, no rules, no connection tracking.
pub fn routing() -> Result<Path, Error> {
    let (left, router, right) = (namespace()?, namespace()?, namespace()?);
    let far = |host: u8| net(10, 99, host, 0, 24);
    for (end, name, host) in [(&left, "left", 1), (&right, "right", 2)] {
        veth(&router, name, end, "eth0", MTU)?;
        address(&router, name, net(10, 99, host, 1, 24))?;
        address(end, "eth0", net(10, 99, host, 2, 24))?;
        route(end, "eth0", far(3 - host), Ipv4Addr::new(10, 99, host, 1))?;
    }
    netns::run_in(&router, || sysctl::set("ipv4/ip_forward", "1"))??;
    Ok(Path {
        from: End { netns: left, address: Ipv4Addr::new(10, 99, 1, 2).into() },
        to: End { netns: right, address: Ipv4Addr::new(10, 99, 2, 2).into() },
        between: Between::KernelRouting(router),
    })
}

/// Who speaks through the kernel's tunnel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ends {
    /// The nodes themselves: two veths and two hops less than Manx's pods have.
    Nodes,
    /// Pods behind them, as any network plugin attaches them: by a veth to a node that routes.
    Pods,
}

/// A VXLAN device at each end of one veth pair, tunnel segmentation off: what crosses the veth is what a wire would carry; or,
/// with `whole`, as the devices are, so that super-packets cross it whole.
pub fn vxlan(whole: bool, ends: Ends) -> Result<Path, Error> {
    let (left, right) = (namespace()?, namespace()?);
    veth(&left, "eth0", &right, "eth0", MTU)?;
    let node = |host| Ipv4Addr::new(172, 18, 0, host);
    for (end, host, peer) in [(&left, LEFT, RIGHT), (&right, RIGHT, LEFT)] {
        address(end, "eth0", net(172, 18, 0, host, 24))?;
        if !whole {
            let off = ["tx-udp_tnl-segmentation", "tx-udp_tnl-csum-segmentation"];
            netns::run_in(end, || sys::features_off("eth0", &off))?
                .map_err(io("the tunnel segmentation of eth0 cannot be switched off"))?;
        }
        add_vxlan(end, node(peer))?;
        address(end, VXLAN, net(10, 98, 0, host, 24))?;
    }
    match ends {
        Ends::Nodes => Ok(Path {
            from: End { netns: left, address: Ipv4Addr::new(10, 98, 0, LEFT).into() },
            to: End { netns: right, address: Ipv4Addr::new(10, 98, 0, RIGHT).into() },
            between: Between::KernelVxlan(Vec::new()),
        }),
        Ends::Pods => Ok(Path {
            from: pod(&left, LEFT, RIGHT)?,
            to: pod(&right, RIGHT, LEFT)?,
            between: Between::KernelVxlan(vec![left, right]),
        }),
    }
}

/// A pod behind a node that reaches the pod of its peer by [`VXLAN`].
fn pod(node: &OwnedFd, host: u8, peer: u8) -> Result<End, Error> {
    let pod = namespace()?;
    veth(node, "pod", &pod, "eth0", MTU - VXLAN_OVERHEAD)?;
    address(node, "pod", net(10, 99, host, 1, 24))?;
    address(&pod, "eth0", net(10, 99, host, 2, 24))?;
    let far = net(10, 99, peer, 0, 24);
    route(&pod, "eth0", far, Ipv4Addr::new(10, 99, host, 1))?;
    route(node, VXLAN, far, Ipv4Addr::new(10, 98, 0, peer))?;
    netns::run_in(node, || sysctl::set("ipv4/ip_forward", "1"))??;
    Ok(End { netns: pod, address: Ipv4Addr::new(10, 99, host, 2).into() })
}

/// A namespace with its loopback up.
pub fn namespace() -> Result<OwnedFd, Error> {
    let netns = netns::create()?;
    loopback(&netns)?;
    Ok(netns)
}

/// The same, with a name in a folder by which other processes find it.
pub fn named(folder: &FilePath, name: &str) -> Result<OwnedFd, Error> {
    let netns = netns::create_named(&folder.join(name))?;
    loopback(&netns)?;
    Ok(netns)
}

/// Sets a namespace's loopback up.
pub fn loopback(netns: &OwnedFd) -> Result<(), Error> {
    Ok(netlink::in_netns(netns, async |netlink| {
        let lo = netlink.existing("lo").await?;
        netlink.set_up(lo.index).await
    })?)
}

/// A veth pair, both ends up, with this MTU in bytes.
pub fn veth(
    one: &OwnedFd,
    name: &str,
    other: &OwnedFd,
    peer_name: &str,
    mtu: u32,
) -> Result<(), Error> {
    netlink::in_netns(one, async |netlink| {
        let peer = Peer { name: peer_name, netns: Some(other.as_fd()), mac: None };
        netlink.add_veth(&Veth { name, mac: None, mtu, peer }).await?;
        set_up(&netlink, name).await
    })?;
    Ok(netlink::in_netns(other, async |netlink| set_up(&netlink, peer_name).await)?)
}

async fn set_up(netlink: &Netlink, name: &str) -> Result<(), netlink::Error> {
    let link = netlink.existing(name).await?;
    netlink.set_up(link.index).await
}

/// Gives an interface an address.
pub fn address(netns: &OwnedFd, interface: &str, net: IpNet) -> Result<(), Error> {
    Ok(netlink::in_netns(netns, async |netlink| {
        let link = netlink.existing(interface).await?;
        netlink.add_address(link.index, net).await
    })?)
}

/// Makes a route.
pub fn route(netns: &OwnedFd, interface: &str, to: IpNet, via: Ipv4Addr) -> Result<(), Error> {
    Ok(netlink::in_netns(netns, async |netlink| {
        let device = netlink.existing(interface).await?.index;
        netlink.replace_route(&Route { via: Some(via.into()), ..Route::direct(to, device) }).await
    })?)
}

/// `a.b.c.d/prefix`; a prefix beyond 32 is 32.
pub fn net(a: u8, b: u8, c: u8, d: u8, prefix: u8) -> IpNet {
    let address = Ipv4Addr::new(a, b, c, d);
    IpNet::V4(Ipv4Net::new(address, prefix).unwrap_or_else(|_| address.into()))
}

fn add_vxlan(netns: &OwnedFd, remote: Ipv4Addr) -> Result<(), Error> {
    netns::run_in(netns, || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(io("no runtime for netlink"))?;
        runtime.block_on(async {
            let underlay = Netlink::open()?.existing("eth0").await?;
            let (connection, handle, _) =
                rtnetlink::new_connection().map_err(io("no netlink socket"))?;
            tokio::spawn(connection);
            let device = LinkVxlan::new(VXLAN, 42)
                .dev(underlay.index)
                .port(4789)
                .remote(remote)
                .mtu(MTU - VXLAN_OVERHEAD)
                .up()
                .build();
            handle.link().add(device).execute().await.map_err(|error| match error {
                rtnetlink::Error::NetlinkError(message) => {
                    io("the kernel makes no VXLAN device")(message.to_io())
                }
                other => {
                    io("the kernel makes no VXLAN device")(std::io::Error::other(other.to_string()))
                }
            })
        })
    })?
}
