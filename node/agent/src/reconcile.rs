//! Compares Manx's rules, routes and settings in the node's kernel with the wanted ones, and changes them or only reports
//! the differences.

use std::collections::BTreeSet;

use ipnet::IpNet;
use manx_linux::netlink::{
    self, Family, ListedRoute, MAIN, Netlink, PORTS_TABLE, Route, RouteOf, Rule,
};
use manx_linux::netns::sysctl;

use crate::interfaces::SERVICES;
use crate::port_rules::{self, Present, Step};

/// The result of a pass: what it changed or found. If it is empty, everything was as wanted.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Findings {
    /// Items that were missing and have been set.
    pub set: Vec<String>,
    /// Items that were there, were not wanted, and have been removed.
    pub removed: Vec<String>,
    /// Items of other programs in places where they disturb Manx. They are reported and not removed.
    pub foreign: Vec<String>,
    /// The entries of `set` that were wanted before, and the entries of `removed` that were not: other programs have
    /// changed these.
    pub set_back: Vec<String>,
}

/// A pass over everything that Manx has in the node's kernel.
#[derive(Debug, Default)]
pub(crate) struct Pass {
    /// Whether the pass changes nothing. Then `set` and `removed` contain what it would change.
    pub(crate) only_looks: bool,
    /// Everything that is wanted, in the syntax of `ip` and `sysctl`.
    pub(crate) wanted: Vec<String>,
    pub(crate) findings: Findings,
}

impl Pass {
    /// Records a wanted item. Returns whether it must be set now.
    pub(crate) fn want(&mut self, what: String, is_there: bool) -> bool {
        if !is_there {
            self.findings.set.push(what.clone());
        }
        self.wanted.push(what);
        !is_there && !self.only_looks
    }

    /// Records an item that is there and not wanted. Returns whether it must be removed now.
    pub(crate) fn want_gone(&mut self, what: String) -> bool {
        self.findings.removed.push(what);
        !self.only_looks
    }

    /// Sets a setting of `/proc/sys/net` in the calling thread's namespace, if it differs.
    pub(crate) fn want_setting(&mut self, key: &str, value: &str) -> Result<(), netlink::Error> {
        let is_there = sysctl::read(key)? == value;
        if self.want(format!("net.{} = {value}", key.replace('/', ".")), is_there) {
            sysctl::set(key, value)?;
        }
        Ok(())
    }

    /// Finds changes that other programs have made since `wanted` was the wanted state. At a start there is no such state
    /// yet.
    pub(crate) fn find_set_back(&mut self, wanted: &BTreeSet<String>) {
        if wanted.is_empty() {
            return;
        }
        let Findings { set, removed, set_back, .. } = &mut self.findings;
        set_back.extend(set.iter().filter(|it| wanted.contains(*it)).cloned());
        let others = removed.iter().filter(|it| !wanted.contains(*it));
        set_back.extend(others.map(|it| format!("removed ({it})")));
    }

    /// Changes Manx's rules of a family, and the kernel's rule for the table `local`, to the wanted ones.
    pub(crate) async fn set_rules(
        &mut self,
        netlink: &Netlink,
        family: Family,
        wanted: &BTreeSet<Rule>,
    ) -> Result<(), netlink::Error> {
        let listed = netlink.rules(family).await?;
        let present = Present::new(&listed);
        self.findings.foreign.extend(present.foreign.iter().cloned());
        // If Manx has no rules and wants none, another program may have moved the kernel's rule.
        if !present.has_manx() && !port_rules::has_manx(wanted) {
            return Ok(());
        }
        self.change_rules(netlink, &present.known, wanted).await
    }

    /// Changes the known rules of a family to the wanted ones.
    pub(crate) async fn change_rules(
        &mut self,
        netlink: &Netlink,
        known: &BTreeSet<Rule>,
        wanted: &BTreeSet<Rule>,
    ) -> Result<(), netlink::Error> {
        self.wanted.extend(wanted.iter().map(ToString::to_string));
        for step in port_rules::steps(known, wanted) {
            match &step {
                Step::Add(rule) => {
                    self.findings.set.push(step.to_string());
                    if !self.only_looks {
                        netlink.add_rule(rule).await?;
                    }
                }
                Step::Delete(rule) => {
                    if self.want_gone(step.to_string()) {
                        netlink.delete_rule(rule).await?;
                    }
                }
            }
        }
        Ok(())
    }

    /// Adds the routes that are missing in a family's table of ports, and the route at its end that drops all other
    /// packets. A table without routes needs none.
    pub(crate) async fn set_routes(
        &mut self,
        netlink: &Netlink,
        family: Family,
        wanted: &BTreeSet<Route>,
    ) -> Result<(), netlink::Error> {
        if wanted.is_empty() {
            return Ok(());
        }
        let present = netlink.table_routes(PORTS_TABLE, family).await?;
        let has_end = present.iter().any(|route| route.is_end() && route.is_manx());
        if self.want(end_of(family), has_end) {
            netlink.end_table(PORTS_TABLE, family).await?;
        }
        let present: BTreeSet<Route> = present.iter().filter_map(ListedRoute::route).collect();
        for route in wanted {
            if self.want(text_of(route), present.contains(route)) {
                netlink.replace_route_in(PORTS_TABLE, route).await?;
            }
        }
        Ok(())
    }

    /// Makes exactly these prefixes unreachable where Manx has no route for them. Otherwise a default route would send
    /// their packets to unknown hosts.
    pub(crate) async fn set_last_resorts(
        &mut self,
        netlink: &Netlink,
        family: Family,
        wanted: BTreeSet<IpNet>,
    ) -> Result<(), netlink::Error> {
        let text = |net: &IpNet| format!("ip route unreachable {net}");
        let mut present = BTreeSet::new();
        for route in netlink.table_routes(MAIN, family).await?.iter().filter(|it| it.is_manx()) {
            let Some(net) = route.last_resort() else { continue };
            if !wanted.contains(&net) && self.want_gone(text(&net)) {
                netlink.delete_listed(route).await?;
            }
            present.insert(net);
        }
        for net in wanted {
            if self.want(text(&net), present.contains(&net)) {
                netlink.add_last_resort(net).await?;
            }
        }
        Ok(())
    }

    /// Removes Manx's routes from a family's table of ports that are not wanted, and the route at its end if no route is
    /// wanted.
    pub(crate) async fn remove_routes(
        &mut self,
        netlink: &Netlink,
        family: Family,
        wanted: &BTreeSet<Route>,
    ) -> Result<(), netlink::Error> {
        for route in netlink.table_routes(PORTS_TABLE, family).await? {
            let (stays, text) = match route.route() {
                Some(it) => (wanted.contains(&it), text_of(&it)),
                None => (route.is_end() && !wanted.is_empty(), end_of(family)),
            };
            if !route.is_manx() {
                self.findings.foreign.push(route.to_string());
            } else if !stays && self.want_gone(text) {
                netlink.delete_listed(&route).await?;
            }
        }
        Ok(())
    }
}

fn text_of(route: &Route) -> String {
    RouteOf { table: PORTS_TABLE, route, device: Some(SERVICES) }.to_string()
}

fn end_of(family: Family) -> String {
    format!("ip route table {PORTS_TABLE} blackhole default ({family:?})")
}
