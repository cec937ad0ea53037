//! The port of Manx's own translation: `manx1` in the node's namespace.
//!
//! - Manx writes packets with the node's address as their source. The node's kernel routes them out, or delivers them to
//!   a process of the node.
//! - Packets to ports of the node's addresses that are Manx's are routed to `manx1` instead of the node's sockets, from
//!   outside and from the node's own processes (`port_rules`).
//!
//! Rules, routes and reserved ports outlive the agent. While no agent runs, `manx1` is gone, and the table of ports drops
//! these packets: a connection waits for the next agent, and no socket of the node answers it. The ranges of service
//! addresses are then unreachable. Otherwise packets to them would leave by the default route, to unknown hosts. [`remove`]
//! removes all of this. It reads the state from the kernel, so any process can call it.

use std::collections::BTreeSet;
use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use ipnet::IpNet;

use manx_devices::device::{self, AgentNamespace, CreatedDevice, DeviceSpec, OpenDevice};
use manx_linux::listening::UsedPorts;
use manx_linux::netlink::{
    self, Family, Netlink, PORTS_TABLE, PortRange, Route, Rule, TRANSLATED_TABLE,
};
use manx_linux::netns::{self, sysctl};

use crate::interfaces::{FORWARDED, HOST, SERVICES};
use crate::port_reservation;
pub use crate::port_reservation::Error as PortsError;
use crate::port_rules::{self, Interfaces, MOVED_LOCAL, Present};
pub use crate::port_rules::{Desired, GrantedPort, PortRanges};
pub use crate::reconcile::Findings;
use crate::reconcile::Pass;

/// An address that only `manx1` has. No other machine can send to it, and the kernel never chooses it as a source. An
/// interface without an IPv4 address fails even the loose check of sources (`fib_validate_source`), which
/// `net.ipv4.conf.all.rp_filter` may enable.
const OWN: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 77);

const ALL_RP_FILTER: &str = "ipv4/conf/all/rp_filter";

/// The reason why the port cannot be made, kept or removed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Another program has a rule before the rule for the node's own addresses.
    #[error(
        "another program has a routing rule at a preference of Manx's (0 to {MOVED_LOCAL}): found ({0}), expected none but \
         pref 0 lookup local; delete it (ip rule del …), or give it a preference above {MOVED_LOCAL}"
    )]
    ForeignRule(String),
    /// Another program has moved the rule for the node's own addresses.
    #[error(
        "the routing rule for the node's own addresses is not in its place: found {}, expected (ip rule pref 0 lookup local); \
         stop the program that has moved it, and set it back (ip rule add pref 0 lookup local)", found(.0)
    )]
    LocalMoved(Vec<String>),
    /// Another program uses Manx's table.
    #[error(
        "another program uses routing table {PORTS_TABLE}, which is Manx's: found ({0}), expected nothing; delete it \
         (ip route flush table {PORTS_TABLE})"
    )]
    ForeignRoute(String),
    /// The kernel would drop packets that Manx has translated, because it treats their sources as forged.
    #[error(
        "net.ipv4.conf.all.rp_filter is 1, so the kernel would drop what Manx has translated: expected 0 or 2 for --services manx; \
         sysctl -w net.ipv4.conf.all.rp_filter=2"
    )]
    StrictReversePath,
    /// Ports cannot be reserved or given back.
    #[error(transparent)]
    Ports(#[from] port_reservation::Error),
    /// The list of sockets cannot be read.
    #[error("the ports that processes of the node use cannot be read (/proc/net): {0}")]
    Sockets(io::Error),
    #[error(transparent)]
    Device(#[from] device::Error),
    #[error(transparent)]
    Netlink(#[from] netlink::Error),
}

impl From<netns::Error> for Error {
    fn from(error: netns::Error) -> Self {
        Self::Netlink(error.into())
    }
}

fn found(rules: &[String]) -> String {
    if rules.is_empty() { "none".to_owned() } else { format!("({})", rules.join("), (")) }
}

/// The settings of the port.
#[derive(Debug, Clone)]
pub struct TranslationSettings {
    pub ports: PortRanges,
    /// The file with the ports that Manx has reserved, in a folder that exists.
    pub record: PathBuf,
}

/// `manx1` for Manx's own translation, without its queues.
#[derive(Debug)]
pub struct TranslationDevice {
    netns: OwnedFd,
    made: CreatedDevice,
    settings: TranslationSettings,
    /// The items that the last reconciliation wanted, as text.
    wanted: Mutex<BTreeSet<String>>,
}

impl TranslationDevice {
    /// Makes `manx1` in the calling thread's namespace, which is the node's. Its other properties are those of `like`, the
    /// host port's device. No packet reaches it before [`Self::reconcile`], unless an earlier agent has left its rules.
    pub fn attach(
        agent: &AgentNamespace,
        like: &DeviceSpec<'_>,
        settings: TranslationSettings,
    ) -> Result<(Self, OpenDevice), Error> {
        let netns = netns::current()?;
        netns::run_in(&netns, || {
            check_reverse_path()?;
            Ok::<_, Error>(port_reservation::check_apart(settings.ports.egress)?)
        })??;
        netlink::in_netns(&netns, async |netlink| check_free(&netlink).await)??;
        netlink::in_netns(&netns, async |netlink| {
            // The rule of kube-proxy's service port would send packets that Manx has translated back to Manx.
            netlink.set_table_rule(TRANSLATED_TABLE, None).await
        })?;
        let wanted = DeviceSpec { interface: SERVICES, ..*like };
        let (made, held) = device::make(agent, netns.as_fd(), "the node", &wanted)?;
        let port = Self { netns, made, settings, wanted: Mutex::default() };
        match port.set_up(&mut Pass::default()) {
            Ok(()) => Ok((port, held)),
            Err(error) => {
                // The first error is the one to report.
                let _ = port.made.remove(agent);
                Err(error)
            }
        }
    }

    /// Sets the interface's settings and gives it its address.
    fn set_up(&self, pass: &mut Pass) -> Result<(), Error> {
        netns::run_in(&self.netns, || set_settings(pass))??;
        let own = IpNet::from(IpAddr::V4(OWN));
        Ok(netlink::in_netns(&self.netns, async |netlink| {
            let present = netlink.addresses().await?;
            let is_there = present.iter().any(|it| (it.index, it.net) == (self.made.index, own));
            if pass.want(format!("{own} on {SERVICES}"), is_there) {
                netlink.add_unused_address(self.made.index, own).await?;
            }
            Ok(())
        })?)
    }

    /// Reserves the ports before rules route them to Manx.
    fn reserve(&self, desired: &Desired, pass: &mut Pass) -> Result<(), Error> {
        let PortRanges { egress, node_ports } = self.settings.ports;
        let host_ports = desired.host_ports.iter().filter_map(GrantedPort::range);
        let ranges: Vec<PortRange> = [egress, node_ports].into_iter().chain(host_ports).collect();
        let (record, only_looks) = (&self.settings.record, pass.only_looks);
        let (ports, is_there) =
            netns::run_in(&self.netns, || port_reservation::reserve(&ranges, record, only_looks))??;
        pass.want(format!("{ports} in net.ipv4.ip_local_reserved_ports"), is_there);
        Ok(())
    }

    /// The ports that the node's processes use.
    pub fn used_ports(&self) -> Result<UsedPorts, Error> {
        netns::run_in(&self.netns, UsedPorts::read)?.map_err(Error::Sockets)
    }

    /// Changes rules, routes, reserved ports and settings to those of `desired`, and touches no others. Repeating it
    /// changes nothing. So its findings are changes that other programs have made since.
    ///
    /// # Errors
    /// The first error. Everything else is done nevertheless, and the next call tries again.
    pub fn reconcile(&self, desired: &Desired) -> Result<Findings, Error> {
        let mut pass = Pass::default();
        let done = self.walk(desired, &mut pass);
        let mut wanted = self.wanted.lock().unwrap_or_else(PoisonError::into_inner);
        pass.find_set_back(&wanted);
        if done.is_ok() {
            wanted.clear();
        }
        wanted.extend(pass.wanted);
        done.map(|()| pass.findings)
    }

    /// Returns what [`Self::reconcile`] would find now: everything that is wanted, and the differences. It changes nothing.
    /// After an error the other results are still complete.
    pub(crate) fn look(&self, desired: &Desired) -> (Pass, Result<(), Error>) {
        let mut pass = Pass { only_looks: true, ..Pass::default() };
        let looked = self.walk(desired, &mut pass);
        (pass, looked)
    }

    fn walk(&self, desired: &Desired, pass: &mut Pass) -> Result<(), Error> {
        let reserved = self.reserve(desired, pass);
        let set_up = self.set_up(pass);
        let ruled = netlink::in_netns(&self.netns, async |netlink| {
            let outside = outside(&netlink).await?;
            let [v4, v6] = Family::ALL;
            // An error in one family does not stop the other.
            let v4 = self.walk_family(&netlink, v4, desired, &outside, pass).await;
            let v6 = self.walk_family(&netlink, v6, desired, &outside, pass).await;
            v4.and(v6)
        });
        match netns::run_in(&self.netns, check_reverse_path)? {
            Err(error @ Error::StrictReversePath) => pass.findings.foreign.push(error.to_string()),
            other => other?,
        }
        ruled?;
        set_up?;
        reserved
    }

    async fn walk_family(
        &self,
        netlink: &Netlink,
        family: Family,
        desired: &Desired,
        outside: &BTreeSet<String>,
        pass: &mut Pass,
    ) -> Result<(), netlink::Error> {
        let addresses = desired.of(family).into_iter();
        let routes: BTreeSet<Route> = addresses
            .map(|address| self.made.route(address.into(), desired.source(address)))
            .collect();
        let interfaces = Interfaces { manx: SERVICES, outside };
        let rules = port_rules::wanted(family, desired, self.settings.ports, interfaces);
        // Rules lead to routes, so routes are set before rules and removed after them. If a route cannot be set, because
        // the node has lost the address, the rules are still set.
        let routed = pass.set_routes(netlink, family, &routes).await;
        let ranges = desired.ranges.iter().filter(|net| Family::of(net.addr()) == family).copied();
        let closed = pass.set_last_resorts(netlink, family, ranges.collect()).await;
        pass.set_rules(netlink, family, &rules).await?;
        pass.remove_routes(netlink, family, &routes).await?;
        routed.and(closed)
    }

    /// Removes what is left of the interface after its queues are closed. The rest stays for the next agent.
    pub fn close(&self, agent: &AgentNamespace) -> Result<(), Error> {
        Ok(self.made.remove(agent)?)
    }

    /// Removes everything that [`remove`] removes, and what is left of the interface after its queues are closed.
    pub fn detach(&self, agent: &AgentNamespace) -> Result<(), Error> {
        netns::run_in(&self.netns, || remove(&self.settings.record))??;
        Ok(self.made.remove(agent)?)
    }
}

/// Removes the rules, routes and reserved ports that any process of Manx has set in the calling thread's namespace.
/// `record` is that of its [`TranslationSettings`]. Repeating it changes nothing.
pub fn remove(record: &Path) -> Result<(), Error> {
    netlink::in_netns(netns::current()?, async |netlink| {
        let mut pass = Pass::default();
        for family in Family::ALL {
            pass.set_rules(&netlink, family, &port_rules::unmoved(family)).await?;
            pass.remove_routes(&netlink, family, &BTreeSet::new()).await?;
            pass.set_last_resorts(&netlink, family, BTreeSet::new()).await?;
        }
        Ok(())
    })?;
    Ok(port_reservation::give_back(record)?)
}

/// Returns an error if other programs use the places of Manx's rules and routes.
async fn check_free(netlink: &Netlink) -> Result<Result<(), Error>, netlink::Error> {
    for family in Family::ALL {
        let listed = netlink.rules(family).await?;
        let present = Present::new(&listed);
        if let Some(rule) = present.foreign.first() {
            return Ok(Err(Error::ForeignRule(rule.clone())));
        }
        // A kernel without IPv6 has no IPv6 rules.
        if !listed.is_empty() && !present.has_local() {
            let local = listed.iter().filter(|it| it.rule.as_ref().is_some_and(Rule::is_of_local));
            return Ok(Err(Error::LocalMoved(local.map(ToString::to_string).collect())));
        }
        let routes = netlink.table_routes(PORTS_TABLE, family).await?;
        if let Some(route) = routes.iter().find(|route| !route.is_manx()) {
            return Ok(Err(Error::ForeignRoute(route.to_string())));
        }
    }
    Ok(Ok(()))
}

fn set_settings(pass: &mut Pass) -> Result<(), netlink::Error> {
    // Sources of translated packets are the node's own, or are reached by another interface. Answers from ports of
    // 127.0.0.1 have that address as their source.
    [("accept_local", "1"), ("rp_filter", "0"), ("route_localnet", "1")].into_iter().try_for_each(
        |(name, value)| pass.want_setting(&format!("ipv4/conf/{SERVICES}/{name}"), value),
    )
}

/// The kernel uses the larger of this value and the interface's (`ip-sysctl.rst`).
fn check_reverse_path() -> Result<(), Error> {
    match sysctl::read(ALL_RP_FILTER).map_err(netlink::Error::from)?.as_str() {
        "1" => Err(Error::StrictReversePath),
        _ => Ok(()),
    }
}

/// The interfaces by which other hosts can send packets to the node: all except `lo`, Manx's, and the ports of bridges.
async fn outside(netlink: &Netlink) -> Result<BTreeSet<String>, netlink::Error> {
    let own = [HOST, SERVICES, FORWARDED];
    let links = netlink.links().await?.into_iter();
    let outside = links.filter(|it| !it.loopback && it.master.is_none());
    Ok(outside.map(|it| it.name).filter(|name| !own.contains(&name.as_str())).collect())
}

#[cfg(test)]
mod tests;
