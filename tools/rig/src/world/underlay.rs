//! The network below the cluster, made from parts of the kernel: a bridge for each segment, a veth pair for each host,
//! and the rig's own network namespace as the router between the segments.

use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use crate::plan::{Host, Plan, Route};
use manx_linux::netlink::{self, Netlink, Peer, Veth};
use manx_linux::netns::{self, sysctl};

/// The interface of a node, or of the outside host, on the underlay.
pub const UPLINK: &str = "eth0";

/// The paths of a rig's network namespaces, which have names in one folder.
#[derive(Debug, Clone)]
pub struct Names(PathBuf);

impl Names {
    /// The paths in this folder.
    pub fn new(folder: &Path) -> Self {
        Self(folder.to_owned())
    }

    /// The namespace of the node with this index.
    pub fn node(&self, index: usize) -> PathBuf {
        self.0.join(format!("node-{index}"))
    }

    /// The namespace of the pod with this index.
    pub fn pod(&self, index: usize) -> PathBuf {
        self.0.join(format!("pod-{index}"))
    }

    /// The namespace of the outside host.
    pub fn outside(&self) -> PathBuf {
        self.0.join("outside")
    }
}

/// Builds the underlay in the calling thread's network namespace, and every namespace of the plan. Call it within a
/// tokio runtime. Everything that it makes ends with the namespaces.
pub async fn build(plan: &Plan, names: &Names) -> Result<(), netlink::Error> {
    let netlink = Netlink::open()?;
    make_router(&netlink, plan).await?;
    for (index, host) in plan.nodes.values().enumerate() {
        let netns = netns::create_named(&names.node(index))?;
        connect(&netlink, plan, host, &format!("node{index}"), &netns).await?;
        netns::run_in(&netns, forward)??;
    }
    let outside = netns::create_named(&names.outside())?;
    connect(&netlink, plan, &plan.outside, "outside", &outside).await?;
    for index in 0..plan.pods.len() {
        let netns = netns::create_named(&names.pod(index))?;
        netlink::in_netns(&netns, async |netlink| prepare_namespace(&netlink).await)?;
    }
    Ok(())
}

fn bridge(segment: usize) -> String {
    format!("segment{segment}")
}

/// Makes the bridges and, if there are several segments, the router's addresses and routes.
async fn make_router(netlink: &Netlink, plan: &Plan) -> Result<(), netlink::Error> {
    prepare_namespace(netlink).await?;
    if plan.segments.len() > 1 {
        forward()?;
    }
    for (index, segment) in plan.segments.iter().enumerate() {
        let name = bridge(index);
        netlink.add_bridge(&name).await?;
        let link = netlink.existing(&name).await?;
        netlink.set_mtu(link.index, plan.mtu).await?;
        sysctl::make_ipv6_static(&name)?;
        netlink.set_up(link.index).await?;
        for address in &segment.gateways {
            netlink.add_address(link.index, *address).await?;
        }
        let here = |via| segment.subnets.iter().any(|subnet| subnet.contains(&via));
        for route in plan.router.iter().filter(|route| here(route.via)) {
            add_route(netlink, *route, link.index).await?;
        }
    }
    Ok(())
}

/// Connects a host to its segment.
async fn connect(
    netlink: &Netlink,
    plan: &Plan,
    host: &Host,
    port: &str,
    netns: &OwnedFd,
) -> Result<(), netlink::Error> {
    let peer = Peer { name: UPLINK, netns: Some(netns.as_fd()), mac: None, index: None };
    netlink.add_veth(&Veth { name: port, mac: None, index: None, mtu: plan.mtu, peer }).await?;
    let link = netlink.existing(port).await?;
    let bridge = netlink.existing(&bridge(host.segment)).await?;
    sysctl::make_ipv6_static(port)?;
    netlink.set_master(link.index, bridge.index).await?;
    netlink.set_up(link.index).await?;
    netlink::in_netns(netns, async |netlink| {
        prepare_namespace(&netlink).await?;
        let uplink = netlink.existing(UPLINK).await?;
        sysctl::make_ipv6_static(UPLINK)?;
        netlink.set_up(uplink.index).await?;
        for address in &host.addresses {
            netlink.add_address(uplink.index, *address).await?;
        }
        for route in &host.routes {
            add_route(&netlink, *route, uplink.index).await?;
        }
        Ok(())
    })
}

async fn add_route(netlink: &Netlink, route: Route, device: u32) -> Result<(), netlink::Error> {
    let Route { prefix, via } = route;
    let route = netlink::Route::via(prefix, via, device);
    netlink.replace_static_route(&route).await
}

/// Prepares a namespace of the rig.
async fn prepare_namespace(netlink: &Netlink) -> Result<(), netlink::Error> {
    let lo = netlink.existing("lo").await?;
    netlink.set_up(lo.index).await?;
    Ok(sysctl::apply(sysctl::RIG)?)
}

/// Makes the calling thread's namespace forward packets.
fn forward() -> Result<(), sysctl::Error> {
    sysctl::apply(sysctl::FORWARD)?;
    sysctl::apply(sysctl::PLAIN_BRIDGES)
}
