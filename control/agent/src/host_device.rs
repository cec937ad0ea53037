//! The host port: `manx0` in the node's namespace, by which the node reaches pods and pods reach the node and beyond.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::os::fd::{AsFd, OwnedFd};

use ipnet::IpNet;

use manx_calculation::topology::{Desired, HostRoute};
use manx_devices::device::{self, AgentNamespace, CreatedDevice, DeviceSpec, Error, OpenDevice};
use manx_linux::netlink::{self, Address, Netlink, Refusal, Route};
use manx_linux::netns::{self, sysctl};

use crate::settings::Network;

/// The interface's name.
pub const NAME: &str = "manx0";

/// What [`HostDevice::reconcile`] changed.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Reconciled {
    /// Routes set.
    pub set: Vec<Route>,
    /// Routes removed.
    pub removed: Vec<Route>,
    /// Blocks without a way: the node has no route to the other node. They stay without until the next reconciliation.
    pub unreachable: Vec<IpNet>,
}

/// The host port's interface, without its queues.
#[derive(Debug)]
pub struct HostDevice {
    netns: OwnedFd,
    made: CreatedDevice,
    uplink: String,
}

impl HostDevice {
    /// Makes `manx0` in the calling thread's namespace, which is the node's. In a network of Manx it lets the node
    /// forward, too: what comes from outside for a pod arrives at the node's uplink.
    pub fn attach(
        agent: &AgentNamespace,
        wanted: &DeviceSpec<'_>,
        uplink: &str,
        network: Network,
    ) -> Result<(Self, OpenDevice), Error> {
        let netns = netns::current()?;
        let (made, held) = device::make(agent, netns.as_fd(), "the node", wanted)?;
        let host = Self { netns, made, uplink: uplink.to_owned() };
        match host.set_up(network) {
            Ok(()) => Ok((host, held)),
            Err(error) => {
                // The first error is the one to tell.
                let _ = host.detach(agent);
                Err(error)
            }
        }
    }

    fn set_up(&self, network: Network) -> Result<(), Error> {
        netns::run_in(&self.netns, || {
            match network {
                Network::Manx => sysctl::apply(sysctl::FORWARD)?,
                // It has set what it needs.
                Network::OtherPlugin => {}
            }
            // Manx checks the sources of packets that it sends to the node; the kernel's check knows nothing of
            // tunnels.
            sysctl::set(&format!("ipv4/conf/{NAME}/rp_filter"), "0")?;
            // Manx's own ICMP errors come from the tunnel address, which is the node's too: the kernel takes such a
            // source for forged otherwise.
            sysctl::set(&format!("ipv4/conf/{NAME}/accept_local"), "1")
        })?
        .map_err(netlink::Error::from)?;
        Ok(())
    }

    /// Makes the node's addresses on `manx0` and its routes to pods what they shall be, and touches no others. Doing it
    /// again changes nothing.
    pub fn reconcile(&self, desired: &Desired) -> Result<Reconciled, Error> {
        Ok(netlink::in_netns(&self.netns, async |netlink| {
            // Manx cannot tell by a source whether the node speaks or somebody beyond it, and what NAT makes of others'
            // packets on the way does come from the node: so before that, where a packet comes in.
            netlink.set_refusals(&self.refusals(desired)).await?;
            // What must exist before use is made first, removed last.
            let stale = self.add_addresses(&netlink, desired).await?;
            let changes = self.reconcile_routes(&netlink, desired).await?;
            for address in stale {
                netlink.delete_address(address).await?;
            }
            Ok(changes)
        })?)
    }

    fn refusals(&self, desired: &Desired) -> BTreeSet<Refusal> {
        let refusal = |address: &IpAddr| match address {
            IpAddr::V4(_) => None,
            IpAddr::V6(source) => Some(Refusal { interface: self.uplink.clone(), source: *source }),
        };
        desired.own.iter().filter_map(refusal).collect()
    }

    /// Adds what is missing and gives what is there beyond it.
    async fn add_addresses(
        &self,
        netlink: &Netlink,
        desired: &Desired,
    ) -> Result<Vec<Address>, netlink::Error> {
        let mut present = netlink.addresses().await?;
        // The kernel's own link-local addresses are not ours to judge.
        present.retain(|Address { index, net }| {
            *index == self.made.index && !is_link_local(net.addr())
        });
        for net in desired.addresses.iter().map(|address| IpNet::from(*address)) {
            let before = present.len();
            present.retain(|address| address.net != net);
            if present.len() == before {
                netlink.add_address(self.made.index, net).await?;
            }
        }
        Ok(present)
    }

    async fn reconcile_routes(
        &self,
        netlink: &Netlink,
        desired: &Desired,
    ) -> Result<Reconciled, netlink::Error> {
        let mut changes = Reconciled::default();
        let mut wanted = BTreeSet::new();
        // Many prefixes lead to few nodes.
        let mut next_hops = BTreeMap::new();
        for (block, way) in &desired.blocks {
            match *way {
                HostRoute::Manx { source } => {
                    wanted.insert(self.made.route(block.trunc(), source));
                }
                HostRoute::Node { address } => {
                    let hop = match next_hops.entry(address) {
                        Entry::Occupied(known) => known.into_mut(),
                        Entry::Vacant(new) => new.insert(netlink.next_hop(address).await?),
                    };
                    match hop {
                        Some(hop) => {
                            let via = Some(hop.neighbour);
                            let route = Route::direct(block.trunc(), hop.device);
                            wanted.insert(Route { via, ..route });
                        }
                        None => changes.unreachable.push(*block),
                    }
                }
            }
        }
        let present: BTreeSet<Route> = netlink.manx_routes().await?.into_iter().collect();
        for route in wanted.difference(&present) {
            // IPv6 keeps routes by and without a gateway side by side: there replacing is removing first.
            if let IpNet::V6(_) = route.destination {
                for old in present.iter().filter(|old| old.destination == route.destination) {
                    netlink.delete_route(old).await?;
                }
            }
            netlink.replace_route(route).await?;
            changes.set.push(*route);
        }
        let destinations: BTreeSet<IpNet> = wanted.iter().map(|new| new.destination).collect();
        for route in present.difference(&wanted) {
            if !destinations.contains(&route.destination) {
                netlink.delete_route(route).await?;
                changes.removed.push(*route);
            }
        }
        Ok(changes)
    }

    /// Removes the rules, the routes that leave by other interfaces, and what closing the queues (which goes first)
    /// does not remove.
    pub fn detach(&self, agent: &AgentNamespace) -> Result<(), Error> {
        netlink::in_netns(&self.netns, async |netlink| {
            netlink.set_refusals(&BTreeSet::new()).await?;
            for route in netlink.manx_routes().await? {
                netlink.delete_route(&route).await?;
            }
            Ok(())
        })?;
        self.made.remove(agent)
    }
}

fn is_link_local(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => v4.is_link_local(),
        IpAddr::V6(v6) => v6.is_unicast_link_local(),
    }
}

#[cfg(test)]
mod tests;
