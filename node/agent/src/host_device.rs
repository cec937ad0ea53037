//! The node's own interfaces in a network of Manx.
//!
//! - The host port, `manx0`: by it the node's processes reach pods, and pods reach the node and beyond.
//! - The port of forwarded packets, `manx2`: packets that others send to pods through the node come in by it. Nothing
//!   leaves by it.
//!
//! A source address does not tell the two apart, because the node's kernel masquerades: kube-proxy makes it do so for node
//! ports. A routing rule does (`iif lo lookup 78`), because to the kernel the node's own packets come in by `lo`. The main
//! table leads to `manx2`. So if the rule is missing, the node loses its rights, and nobody else gains them.
//!
//! `manx2` has an address of its own in each block, and the kernel masquerades by it ([`Plan`]). So other nodes, which
//! get masqueraded packets by a tunnel, do not take them for the node's own either.
//!
//! [`Plan`]: manx_ipam::plan::Plan

mod look;

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::os::fd::{AsFd, OwnedFd};

use ipnet::IpNet;

use manx_calculation::topology::{HostNetwork, HostRoute};
use manx_devices::device::{self, AgentNamespace, CreatedDevice, DeviceSpec, Error, OpenDevice};
use manx_linux::netlink::{self, Address, MAIN, Netlink, OWN_TABLE, Refusal, Route};
use manx_linux::netns;

use crate::interfaces::FORWARDED;
use crate::reconcile::Pass;

/// The interface by which the node's own packets come in, as routing rules see it.
const LOOPBACK: &str = "lo";

/// The changes that [`HostDevice::reconcile`] made in the main table.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RouteChanges {
    /// Routes that were set.
    pub set: Vec<Route>,
    /// Routes that were removed.
    pub removed: Vec<Route>,
    /// Blocks that got no route, because the node has no route to their node. The next reconciliation tries again.
    pub unreachable: Vec<IpNet>,
}

/// Single routes through Manx that change.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ChangedRoutes {
    /// Those that are set: each prefix with the source address of the node's own packets.
    pub set: Vec<(IpNet, Option<IpAddr>)>,
    /// The prefixes whose routes are removed.
    pub removed: Vec<IpNet>,
}

impl ChangedRoutes {
    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.set.is_empty() && self.removed.is_empty()
    }
}

/// The host port's interface and that of forwarded packets, without their queues.
#[derive(Debug)]
pub struct HostDevice {
    netns: OwnedFd,
    made: CreatedDevice,
    /// `None` where no packet that the node forwards comes to Manx ([`Settings::takes_forwarded`]).
    ///
    /// [`Settings::takes_forwarded`]: crate::settings::Settings::takes_forwarded
    forwarded: Option<CreatedDevice>,
    uplink: String,
}

/// The queues of the interfaces.
pub struct OpenHostDevices {
    /// The queues of the host port.
    pub own: OpenDevice,
    /// The queues of the port of forwarded packets.
    pub forwarded: Option<OpenDevice>,
}

impl HostDevice {
    /// Makes the interfaces in the calling thread's namespace, which is the node's; `wanted` is the host port's device. If it
    /// `takes_forwarded` packets, it also turns forwarding on: those from outside arrive at the node's uplink.
    pub fn attach(
        agent: &AgentNamespace,
        wanted: &DeviceSpec<'_>,
        uplink: &str,
        takes_forwarded: bool,
    ) -> Result<(Self, OpenHostDevices), Error> {
        let netns = netns::current()?;
        let (made, own) = device::make(agent, netns.as_fd(), "the node", wanted)?;
        let mut host = Self { netns, made, forwarded: None, uplink: uplink.to_owned() };
        match host.set_up(agent, wanted, takes_forwarded) {
            Ok(forwarded) => Ok((host, OpenHostDevices { own, forwarded })),
            Err(error) => {
                // The first error is the one to report.
                let _ = host.detach(agent);
                Err(error)
            }
        }
    }

    fn set_up(
        &mut self,
        agent: &AgentNamespace,
        like: &DeviceSpec<'_>,
        takes_forwarded: bool,
    ) -> Result<Option<OpenDevice>, Error> {
        let mut forwarded = None;
        if takes_forwarded {
            let wanted = DeviceSpec { interface: FORWARDED, ..*like };
            let (made, held) = device::make(agent, self.netns.as_fd(), "the node", &wanted)?;
            self.forwarded = Some(made);
            forwarded = Some(held);
        }
        netns::run_in(&self.netns, || self.want_settings(&mut Pass::default()))??;
        Ok(forwarded)
    }

    /// Makes the addresses of the interfaces and the routes to pods those of `desired`, and touches no others. Repeating it
    /// changes nothing.
    pub fn reconcile(&self, desired: &HostNetwork) -> Result<RouteChanges, Error> {
        Ok(netlink::in_netns(&self.netns, async |netlink| {
            // With another plugin Manx cannot tell by a source whether the node or a host beyond it sends. It cannot
            // refuse the source later either, because the node's NAT gives it to others' packets. So the kernel
            // refuses it where a packet comes in.
            netlink.set_refusals(&self.refusals(desired)).await?;
            let own = self.forwarded.as_ref().map(|_| LOOPBACK);
            netlink.set_table_rule(OWN_TABLE, own).await?;
            // Addresses are added first and removed last, because routes use them.
            let mut stale = add_addresses(&netlink, &self.made, &desired.addresses).await?;
            let routes = PodRoutes::find(&netlink, desired).await?;
            let mut entry = &self.made;
            if let Some(forwarded) = &self.forwarded {
                let masquerade = &desired.masquerade_addresses;
                stale.extend(add_addresses(&netlink, forwarded, masquerade).await?);
                set_routes(&netlink, OWN_TABLE, &routes.through(&self.made)).await?;
                entry = forwarded;
            }
            let changes = set_routes(&netlink, MAIN, &routes.through(entry)).await?;
            for address in stale {
                netlink.delete_address(address).await?;
            }
            Ok(RouteChanges { unreachable: routes.unreachable, ..changes })
        })?)
    }

    /// Changes single routes. Those that are removed lead through Manx. All others stay as they are, and nobody looks at them:
    /// [`Self::reconcile`] asks the kernel for all.
    pub fn change_routes(&self, changed: &ChangedRoutes) -> Result<RouteChanges, Error> {
        Ok(netlink::in_netns(&self.netns, async |netlink| {
            if self.forwarded.is_some() {
                change_routes(&netlink, OWN_TABLE, &self.made, changed).await?;
            }
            let entry = self.forwarded.as_ref().unwrap_or(&self.made);
            change_routes(&netlink, MAIN, entry, changed).await
        })?)
    }

    fn refusals(&self, desired: &HostNetwork) -> BTreeSet<Refusal> {
        let refusal = |address: &IpAddr| match address {
            IpAddr::V4(_) => None,
            IpAddr::V6(source) => Some(Refusal { interface: self.uplink.clone(), source: *source }),
        };
        desired.own.iter().filter_map(refusal).collect()
    }

    /// Removes the rules, the routes by other interfaces, and what is left of the interfaces. The queues are closed before.
    pub fn detach(&self, agent: &AgentNamespace) -> Result<(), Error> {
        netlink::in_netns(&self.netns, async |netlink| {
            netlink.set_refusals(&BTreeSet::new()).await?;
            netlink.set_table_rule(OWN_TABLE, None).await?;
            for table in [OWN_TABLE, MAIN] {
                for route in netlink.manx_routes(table).await? {
                    netlink.delete_route(table, &route).await?;
                }
            }
            Ok(())
        })?;
        self.forwarded.iter().try_for_each(|made| made.remove(agent))?;
        self.made.remove(agent)
    }
}

/// Adds the addresses that an interface lacks, and returns those that it has and should not have.
async fn add_addresses(
    netlink: &Netlink,
    made: &CreatedDevice,
    wanted: &[IpAddr],
) -> Result<Vec<Address>, netlink::Error> {
    let mut present = netlink.addresses().await?;
    // The kernel itself adds link-local addresses.
    present.retain(|Address { index, net }| *index == made.index && !is_link_local(net.addr()));
    for net in wanted.iter().map(|address| IpNet::from(*address)) {
        let before = present.len();
        present.retain(|address| address.net != net);
        if present.len() == before {
            netlink.add_address(made.index, net).await?;
        }
    }
    Ok(present)
}

/// The node's routes to pods.
#[derive(Default)]
struct PodRoutes {
    /// Prefixes that are reached through Manx, with the source address. The caller chooses the interface.
    through_manx: Vec<(IpNet, Option<IpAddr>)>,
    /// Routes to other nodes by the node's own network.
    by_node: BTreeSet<Route>,
    unreachable: Vec<IpNet>,
}

impl PodRoutes {
    async fn find(netlink: &Netlink, desired: &HostNetwork) -> Result<Self, netlink::Error> {
        let mut routes = Self::default();
        // Many prefixes lead to few nodes.
        let mut next_hops = BTreeMap::new();
        for (block, route) in &desired.blocks {
            match *route {
                HostRoute::Manx { source } => routes.through_manx.push((block.trunc(), source)),
                HostRoute::Node { address } => {
                    let hop = match next_hops.entry(address) {
                        Entry::Occupied(known) => known.into_mut(),
                        Entry::Vacant(new) => new.insert(netlink.next_hop(address).await?),
                    };
                    match hop {
                        Some(hop) => {
                            let via = Some(hop.neighbour);
                            let route = Route::direct(block.trunc(), hop.device);
                            routes.by_node.insert(Route { via, ..route });
                        }
                        None => routes.unreachable.push(*block),
                    }
                }
            }
        }
        Ok(routes)
    }

    /// All routes for one of the kernel's tables. Those that go through Manx lead to `entry`. A table with only a pool's
    /// prefix would also catch the pool's blocks that are reached in other ways, so each table gets those routes, too.
    fn through(&self, entry: &CreatedDevice) -> BTreeSet<Route> {
        let through_manx = self.through_manx.iter().map(|(net, source)| entry.route(*net, *source));
        through_manx.chain(self.by_node.iter().copied()).collect()
    }
}

/// Makes Manx's routes in a table those that are wanted, and touches no others.
async fn set_routes(
    netlink: &Netlink,
    table: u8,
    wanted: &BTreeSet<Route>,
) -> Result<RouteChanges, netlink::Error> {
    let mut changes = RouteChanges::default();
    let present: BTreeSet<Route> = netlink.manx_routes(table).await?.into_iter().collect();
    for route in wanted.difference(&present) {
        // IPv6 keeps a route with a gateway and one without it side by side, so the old one is removed first.
        if let IpNet::V6(_) = route.destination {
            for old in present.iter().filter(|old| old.destination == route.destination) {
                netlink.delete_route(table, old).await?;
            }
        }
        netlink.replace_route_in(table, route).await?;
        changes.set.push(*route);
    }
    let destinations: BTreeSet<IpNet> = wanted.iter().map(|new| new.destination).collect();
    for route in present.difference(wanted) {
        if !destinations.contains(&route.destination) {
            netlink.delete_route(table, route).await?;
            changes.removed.push(*route);
        }
    }
    Ok(changes)
}

/// Changes routes of a table that lead to `entry`.
async fn change_routes(
    netlink: &Netlink,
    table: u8,
    entry: &CreatedDevice,
    changed: &ChangedRoutes,
) -> Result<RouteChanges, netlink::Error> {
    let mut changes = RouteChanges::default();
    for (net, source) in &changed.set {
        let route = entry.route(*net, *source);
        netlink.replace_route_in(table, &route).await?;
        changes.set.push(route);
    }
    for net in &changed.removed {
        let route = entry.route(*net, None);
        netlink.delete_route(table, &route).await?;
        changes.removed.push(route);
    }
    Ok(changes)
}

fn is_link_local(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => v4.is_link_local(),
        IpAddr::V6(v6) => v6.is_unicast_link_local(),
    }
}

#[cfg(test)]
mod tests;
