//! Paths that the kernel carries: routing between veth pairs, and VXLAN devices.

use std::net::Ipv4Addr;
use std::os::fd::OwnedFd;

use manx_linux::netlink::Netlink;
use manx_linux::netns;
use rtnetlink::LinkVxlan;

use super::constants::{MTU, VXLAN_OVERHEAD};
use super::ends::{KernelPath, PathEnd, PathEnds};
use super::filter::Filter;
use super::links::{ANYWHERE, add_address, add_route, add_veth, forward_ipv4, namespace, net};
use crate::error::{Error, io};
use crate::host::sys;

const VXLAN: &str = "vxlan0";
/// The last byte of the two nodes' addresses.
const LEFT: u8 = 2;
const RIGHT: u8 = 3;

/// A path by kernel routing: left - veth - router - veth - right. The router has a filter with this many rules, or else
/// no rules and no connection tracking.
pub fn routing(filter: Option<(Filter, usize)>) -> Result<KernelPath, Error> {
    let router = namespace()?;
    let ends = PathEnds::new(attach(&router, "left", 1, MTU)?, attach(&router, "right", 2, MTU)?);
    forward_ipv4(&router)?;
    if let Some((filter, rules)) = filter {
        filter.load(&router, rules, 1)?;
    }
    Ok(KernelPath { ends, between: vec![router] })
}

/// The net of all pods that [`attach`] creates.
pub(super) const PODS: &str = "10.99.0.0/16";

/// Attaches a pod as any network plugin does: by a veth pair to a node that routes. Its address is 10.99.`host`.2.
pub(super) fn attach(node: &OwnedFd, name: &str, host: u8, mtu: u32) -> Result<PathEnd, Error> {
    let pod = namespace()?;
    add_veth(node, name, &pod, "eth0", mtu)?;
    add_address(node, name, net(10, 99, host, 1, 24))?;
    add_address(&pod, "eth0", net(10, 99, host, 2, 24))?;
    add_route(&pod, "eth0", ANYWHERE, Ipv4Addr::new(10, 99, host, 1))?;
    Ok(PathEnd { netns: pod, address: Ipv4Addr::new(10, 99, host, 2).into() })
}

/// The ends of a tunnel of the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TunnelEnds {
    /// The nodes themselves. Compared with this, packets between pods pass two more veth pairs and two more hops.
    Nodes,
    /// Pods behind the nodes (`attach`).
    Pods,
}

/// A path through two nodes that are connected by a veth pair, with a VXLAN device on each node.
///
/// With `super_packets`, the veth pair carries whole super-packets. Without it, tunnel segmentation offload is off, so
/// the veth pair carries the same packets as a wire.
pub fn vxlan(super_packets: bool, ends: TunnelEnds) -> Result<KernelPath, Error> {
    let (left, right) = (namespace()?, namespace()?);
    add_veth(&left, "eth0", &right, "eth0", MTU)?;
    for (node, host, peer) in [(&left, LEFT, RIGHT), (&right, RIGHT, LEFT)] {
        add_address(node, "eth0", net(172, 18, 0, host, 24))?;
        if !super_packets {
            let off = ["tx-udp_tnl-segmentation", "tx-udp_tnl-csum-segmentation"];
            netns::run_in(node, || sys::features_off("eth0", &off))?
                .map_err(io("the tunnel segmentation of eth0 cannot be switched off"))?;
        }
        add_vxlan(node, Ipv4Addr::new(172, 18, 0, peer))?;
        add_address(node, VXLAN, net(10, 98, 0, host, 24))?;
    }
    Ok(match ends {
        TunnelEnds::Nodes => KernelPath {
            ends: PathEnds::new(
                PathEnd { netns: left, address: Ipv4Addr::new(10, 98, 0, LEFT).into() },
                PathEnd { netns: right, address: Ipv4Addr::new(10, 98, 0, RIGHT).into() },
            ),
            between: Vec::new(),
        },
        TunnelEnds::Pods => KernelPath {
            ends: PathEnds::new(pod(&left, LEFT, RIGHT)?, pod(&right, RIGHT, LEFT)?),
            between: vec![left, right],
        },
    })
}

/// A pod behind a node. It reaches the pod of the node's peer by [`VXLAN`].
fn pod(node: &OwnedFd, host: u8, peer: u8) -> Result<PathEnd, Error> {
    let pod = attach(node, "pod", host, MTU - VXLAN_OVERHEAD)?;
    add_route(node, VXLAN, net(10, 99, peer, 0, 24), Ipv4Addr::new(10, 98, 0, peer))?;
    forward_ipv4(node)?;
    Ok(pod)
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
