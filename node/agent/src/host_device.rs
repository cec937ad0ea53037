//! The node's own interfaces in a network of Manx.
//!
//! - The host port, `manx0`: the node's processes reach pods by it, and pods reach the node and other hosts.
//! - The port of forwarded packets, `manx2`: packets that other hosts send to pods through the node come in by it. No
//!   packets leave by it.
//!
//! A source address does not distinguish the node's own packets from forwarded ones, because the node's kernel
//! masquerades: kube-proxy makes it do so for node ports. A routing rule does (`iif lo lookup 78`), because to the
//! kernel the node's own packets come in by `lo`. The main table leads to `manx2`. So if the rule is missing, Manx
//! treats packets of the node's processes like packets of other hosts, and never the reverse.
//!
//! `manx2` has its own address in each block, which the kernel uses for masquerading ([`Plan`]). So other nodes, which get
//! masqueraded packets by a tunnel, do not treat them as the node's own either.
//!
//! [`Plan`]: manx_ipam::plan::Plan

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::os::fd::{AsFd, OwnedFd};

use ipnet::IpNet;

use manx_calculation::topology::{HostNetwork, HostRoute};
use manx_devices::device::{self, AgentNamespace, CreatedDevice, DeviceSpec, Error, OpenDevice};
use manx_linux::netlink::{
    self, Action, Address, Family, Hop, MAIN, MANX_PROTOCOL, Netlink, OWN_TABLE, RULE_PREFERENCE,
    Route, RouteOf, Rule,
};
use manx_linux::netns::{self, sysctl};

use crate::interfaces::{FORWARDED, HOST};
use crate::reconcile::Pass;

/// The metric of routes that routers have announced. Other programs do not use it, and it is higher than their metrics.
const LEARNED_METRIC: u32 = 20_179;

/// The interface by which the node's own packets come in, as routing rules see it.
const LOOPBACK: &str = "lo";

/// A change of single routes through Manx.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ChangedRoutes {
    /// The prefixes whose routes are set, each with the source address of the node's own packets.
    pub set: Vec<(IpNet, Option<IpAddr>)>,
    /// The prefixes whose routes are removed.
    pub removed: Vec<IpNet>,
}

impl ChangedRoutes {
    /// Whether there are no changes.
    pub fn is_empty(&self) -> bool {
        self.set.is_empty() && self.removed.is_empty()
    }
}

/// The host port's interface and that of forwarded packets, without their queues.
#[derive(Debug)]
pub struct HostDevice {
    netns: OwnedFd,
    made: CreatedDevice,
    /// `None` if no packets that the node forwards are sent to Manx ([`Settings::takes_forwarded`]).
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
    /// Makes the interfaces in the calling thread's namespace, which is the node's; `wanted` is the host port's device. If
    /// it `takes_forwarded` packets, it also enables forwarding in the kernel, because packets from outside arrive at the
    /// node's uplink.
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
                let _ = host.detach(agent, true);
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

    /// Changes the settings, the addresses of the interfaces, the rules and the routes to pods to those of `desired`,
    /// and touches no others. Repeating it changes nothing. A pass with `only_looks` has the same findings, and changes
    /// nothing.
    ///
    /// Returns the blocks that get no route, because the kernel has no route to the node that has the block. The next
    /// call tries again.
    ///
    /// # Errors
    /// The first error. If a setting cannot be set, everything else is still set.
    pub(crate) fn walk(&self, desired: &HostNetwork, pass: &mut Pass) -> Result<Vec<IpNet>, Error> {
        let set = netns::run_in(&self.netns, || self.want_settings(pass));
        let unreachable = netlink::in_netns(&self.netns, async |netlink| {
            self.walk_network(&netlink, desired, pass).await
        })?;
        set??;
        Ok(unreachable)
    }

    async fn walk_network(
        &self,
        netlink: &Netlink,
        desired: &HostNetwork,
        pass: &mut Pass,
    ) -> Result<Vec<IpNet>, netlink::Error> {
        for family in Family::ALL {
            set_rules(netlink, family, &self.rules(family, desired), pass).await?;
        }
        let host = Interface { name: HOST, made: &self.made };
        // Addresses are added first and removed last, because routes use them.
        let mut stale = host.add_addresses(netlink, &desired.addresses, pass).await?;
        let routes = PodRoutes::find(netlink, desired).await?;
        let mut entry = host;
        if let Some(made) = &self.forwarded {
            let forwarded = Interface { name: FORWARDED, made };
            let masquerade = &desired.masquerade_addresses;
            stale.extend(forwarded.add_addresses(netlink, masquerade, pass).await?);
            let own = routes.through(&self.made);
            host.set_routes(netlink, OWN_TABLE, &own, |_| false, pass).await?;
            entry = forwarded;
        }
        // Routes from routers are only in the main table, because the kernel uses the table of the node's own packets
        // before it.
        let mut main = routes.through(entry.made);
        // A router that is reached through Manx is not used: its packets would come back.
        let own = [Some(self.made.index), self.forwarded.as_ref().map(|it| it.index)];
        main.extend(routes.by_routers(|device| own.contains(&Some(device))));
        let stays = |it: &Route| desired.keeps_routers && it.metric == Some(LEARNED_METRIC);
        entry.set_routes(netlink, MAIN, &main, stays, pass).await?;
        for (name, address) in stale {
            if pass.want_gone(format!("{} on {name}", address.net)) {
                netlink.delete_address(address).await?;
            }
        }
        Ok(routes.unreachable)
    }

    fn want_settings(&self, pass: &mut Pass) -> Result<(), netlink::Error> {
        let forwards = self.forwarded.iter().flat_map(|_| sysctl::FORWARD);
        // The kernel may lack IPv6.
        for (key, value) in forwards.filter(|(key, _)| sysctl::read(key).is_ok()) {
            pass.want_setting(key, value)?;
        }
        // Manx has checked the sources of packets that it sends to the node. The kernel's check does not know the tunnels.
        pass.want_setting(&format!("ipv4/conf/{HOST}/rp_filter"), "0")?;
        // Manx's own ICMP errors come from the tunnel address, which is also the node's. Otherwise the kernel takes such a
        // source for a forged one.
        pass.want_setting(&format!("ipv4/conf/{HOST}/accept_local"), "1")
    }

    /// The wanted rules of a family.
    fn rules(&self, family: Family, desired: &HostNetwork) -> BTreeSet<Rule> {
        let rule = |interface: &str, action| Rule {
            interface: Some(interface.to_owned()),
            ..Rule::new(RULE_PREFERENCE, family, action)
        };
        let own = self.forwarded.iter().map(|_| rule(LOOPBACK, Action::Lookup(OWN_TABLE)));
        // With another plugin, a source address does not show Manx whether the node or a host beyond it is the sender.
        // Manx cannot refuse the node's address as a source, because after the node's NAT packets of other hosts have
        // it, too. So the kernel refuses it where a packet comes in from the uplink. For IPv4 the kernel does so by
        // default.
        let refused = desired.own.iter().filter(|it| family == Family::V6 && it.is_ipv6());
        let refusals =
            refused.map(|source| Rule { from: Some(*source), ..rule(&self.uplink, Action::Drop) });
        own.chain(refusals).collect()
    }

    /// Changes single routes. Removed routes must lead through Manx. All other routes stay. They are not even read,
    /// while `walk` reads all routes.
    pub fn change_routes(&self, changed: &ChangedRoutes) -> Result<(), Error> {
        Ok(netlink::in_netns(&self.netns, async |netlink| {
            if self.forwarded.is_some() {
                change_routes(&netlink, OWN_TABLE, &self.made, changed).await?;
            }
            let entry = self.forwarded.as_ref().unwrap_or(&self.made);
            change_routes(&netlink, MAIN, entry, changed).await
        })?)
    }

    /// Removes the rules, the routes by other interfaces, and the rest of the interfaces. Close the queues before. With
    /// `keeps_routers`, the routes by routers stay for the next agent.
    pub fn detach(&self, agent: &AgentNamespace, keeps_routers: bool) -> Result<(), Error> {
        netlink::in_netns(&self.netns, async |netlink| {
            for family in Family::ALL {
                set_rules(&netlink, family, &BTreeSet::new(), &mut Pass::default()).await?;
            }
            for table in [OWN_TABLE, MAIN] {
                let stays = |it: &Route| keeps_routers && it.metric == Some(LEARNED_METRIC);
                for route in netlink.manx_routes(table).await?.into_iter().filter(|it| !stays(it)) {
                    netlink.delete_route(table, &route).await?;
                }
            }
            Ok(())
        })?;
        self.forwarded.iter().try_for_each(|made| made.remove(agent))?;
        self.made.remove(agent)
    }
}

/// Changes the rules of a family that belong to the interfaces to the wanted ones, and touches no others.
async fn set_rules(
    netlink: &Netlink,
    family: Family,
    wanted: &BTreeSet<Rule>,
    pass: &mut Pass,
) -> Result<(), netlink::Error> {
    let listed = netlink.rules(family).await?;
    // A kernel without IPv6 has no IPv6 rules, and gets none.
    if listed.is_empty() && family == Family::V6 {
        return Ok(());
    }
    let known = listed.into_iter().filter_map(|it| it.rule).filter(is_own).collect();
    pass.change_rules(netlink, &known, wanted).await
}

/// Whether a rule belongs to these interfaces. Manx's other rules belong to `manx1`: they have other preferences, or
/// lead to other tables.
fn is_own(rule: &Rule) -> bool {
    let does = matches!(rule.action, Action::Drop | Action::Lookup(OWN_TABLE));
    does && (rule.preference, rule.made_by) == (RULE_PREFERENCE, MANX_PROTOCOL)
}

/// One of the interfaces, with its name.
#[derive(Clone, Copy)]
struct Interface<'a> {
    name: &'static str,
    made: &'a CreatedDevice,
}

impl Interface<'_> {
    /// Adds missing addresses. Returns the addresses that the interface should not have, with its name.
    async fn add_addresses(
        self,
        netlink: &Netlink,
        wanted: &[IpAddr],
        pass: &mut Pass,
    ) -> Result<Vec<(&'static str, Address)>, netlink::Error> {
        let mut present = netlink.addresses().await?;
        present.retain(|it| it.index == self.made.index);
        for net in wanted.iter().map(|address| IpNet::from(*address)) {
            let before = present.len();
            present.retain(|address| address.net != net);
            if pass.want(format!("{net} on {}", self.name), present.len() < before) {
                netlink.add_address(self.made.index, net).await?;
            }
        }
        // The kernel itself adds link-local addresses.
        present.retain(|address| !is_link_local(address.net.addr()));
        Ok(present.into_iter().map(|address| (self.name, address)).collect())
    }

    /// Changes Manx's routes in a table to the wanted ones, and touches no others. Unwanted routes for which `stays` is
    /// true are kept.
    async fn set_routes(
        self,
        netlink: &Netlink,
        table: u8,
        wanted: &BTreeSet<Route>,
        stays: impl Fn(&Route) -> bool,
        pass: &mut Pass,
    ) -> Result<(), netlink::Error> {
        let text = |route: &Route| {
            let is_own = route.hops.iter().all(|it| it.device == self.made.index);
            let device = is_own.then_some(self.name);
            RouteOf { table, route, device }.to_string()
        };
        let present: BTreeSet<Route> = netlink.manx_routes(table).await?.into_iter().collect();
        for route in wanted {
            if !pass.want(text(route), present.contains(route)) {
                continue;
            }
            // IPv6 keeps a route with a gateway and one without it side by side, so the old one is removed first. All other
            // routes are replaced atomically.
            if let IpNet::V6(_) = route.destination {
                let is_beside = |old: &&Route| {
                    place(old) == place(route) && old.is_direct() != route.is_direct()
                };
                for old in present.iter().filter(is_beside) {
                    netlink.delete_route(table, old).await?;
                }
            }
            match netlink.replace_route_in(table, route).await {
                Err(error) if route.metric == Some(LEARNED_METRIC) => {
                    tracing::debug!(%error, "a learned route is refused");
                }
                set => set?,
            }
        }
        let places: BTreeSet<_> = wanted.iter().map(place).collect();
        let unwanted = present.iter().filter(|it| !places.contains(&place(it)) && !stays(it));
        for route in unwanted {
            if pass.want_gone(text(route)) {
                netlink.delete_route(table, route).await?;
            }
        }
        Ok(())
    }
}

/// The key of a route in a table, which has one route for each destination and metric.
const fn place(route: &Route) -> (IpNet, Option<u32>) {
    (route.destination, route.metric)
}

/// The node's routes to pods, and out of the cluster.
#[derive(Default)]
struct PodRoutes {
    /// The prefixes that are reached through Manx, with the source address. The caller chooses the interface.
    through_manx: Vec<(IpNet, Option<IpAddr>)>,
    /// The routes to other nodes by the node's own network.
    by_node: BTreeSet<Route>,
    /// The next hops of routes out of the cluster: the neighbours that lead to routers. Two routers may be reached by one
    /// neighbour.
    by_router: BTreeMap<IpNet, BTreeSet<Hop>>,
    unreachable: Vec<IpNet>,
}

impl PodRoutes {
    async fn find(netlink: &Netlink, desired: &HostNetwork) -> Result<Self, netlink::Error> {
        let mut routes = Self::default();
        // Many prefixes share few next hops, so each next hop is looked up once.
        let mut next_hops = BTreeMap::new();
        for (block, route) in &desired.blocks {
            let address = match *route {
                HostRoute::Manx { source } => {
                    routes.through_manx.push((block.trunc(), source));
                    continue;
                }
                HostRoute::Node { address } | HostRoute::Router { address } => address,
            };
            let is_by_router = matches!(route, HostRoute::Router { .. });
            let hop = match next_hops.entry(address) {
                Entry::Occupied(known) => known.into_mut(),
                Entry::Vacant(new) => new.insert(match netlink.next_hop(address).await {
                    // A router may announce any address, and the cluster does not need its routes, so an error is ignored.
                    Err(_) if is_by_router => None,
                    hop => hop?,
                }),
            };
            // A router without a usable next hop is left out: the kernel would refuse the whole route, with the next
            // hops by other routers.
            let Some(hop) = hop.filter(|it| it.is_beyond || !is_by_router) else {
                if !is_by_router {
                    routes.unreachable.push(*block);
                }
                continue;
            };
            let hop = Hop::via(hop.neighbour, hop.device);
            if is_by_router {
                routes.by_router.entry(block.trunc()).or_default().insert(hop);
            } else {
                routes.by_node.insert(Route::by(block.trunc(), [hop]));
            }
        }
        Ok(routes)
    }

    /// All routes for one of the kernel's tables. The routes through Manx lead to `entry`. Some blocks of a pool are
    /// reached by the node's own network, and not through Manx. Without own routes in the table, packets to them would
    /// use the route to the pool's whole prefix. So each table also gets the routes to these blocks.
    fn through(&self, entry: &CreatedDevice) -> BTreeSet<Route> {
        let through_manx = self.through_manx.iter().map(|(net, source)| entry.route(*net, *source));
        through_manx.chain(self.by_node.iter().cloned()).collect()
    }

    /// The routes out of the cluster, each with all of its next hops except those through Manx's own devices.
    fn by_routers(&self, is_own: impl Fn(u32) -> bool) -> impl Iterator<Item = Route> {
        self.by_router.iter().filter_map(move |(to, hops)| {
            let hops = hops.iter().copied().filter(|it| !is_own(it.device));
            let route = Route { metric: Some(LEARNED_METRIC), ..Route::by(*to, hops) };
            (!route.hops.is_empty()).then_some(route)
        })
    }
}

/// Changes routes in a table that lead to `entry`.
async fn change_routes(
    netlink: &Netlink,
    table: u8,
    entry: &CreatedDevice,
    changed: &ChangedRoutes,
) -> Result<(), netlink::Error> {
    for (net, source) in &changed.set {
        netlink.replace_route_in(table, &entry.route(*net, *source)).await?;
    }
    for net in &changed.removed {
        netlink.delete_route(table, &entry.route(*net, None)).await?;
    }
    Ok(())
}

fn is_link_local(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => v4.is_link_local(),
        IpAddr::V6(v6) => v6.is_unicast_link_local(),
    }
}

#[cfg(test)]
mod tests;
