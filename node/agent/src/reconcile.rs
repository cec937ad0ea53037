//! Rules, routes and settings of Manx's in the node's kernel, compared with what is wanted: made so, or only looked at.

use std::collections::BTreeSet;

use ipnet::IpNet;
use manx_linux::netlink::{
    self, Family, ListedRoute, MAIN, Netlink, PORTS_TABLE, Route, RouteOf, Rule,
};
use manx_linux::netns::sysctl;

use crate::interfaces::SERVICES;
use crate::port_rules::{self, Present, Step};

/// What a pass changed or saw. Nothing in it means that all was as it should be.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Findings {
    /// What was missing and has been set.
    pub set: Vec<String>,
    /// What was there, is not wanted, and has been removed.
    pub removed: Vec<String>,
    /// What another program has put where it disturbs Manx. It stays.
    pub foreign: Vec<String>,
    /// What of `set` was wanted before, and of `removed` was not: what others have changed since.
    pub set_back: Vec<String>,
}

/// A walk over all that Manx has in the node's kernel.
#[derive(Debug, Default)]
pub(crate) struct Pass {
    /// Whether it changes nothing. Then `set` and `removed` are what it would change.
    pub(crate) only_looks: bool,
    /// All that is wanted, in the words of `ip` and `sysctl`.
    pub(crate) wanted: Vec<String>,
    pub(crate) findings: Findings,
}

impl Pass {
    /// Notes what is wanted. Returns whether it is to be set now.
    pub(crate) fn want(&mut self, what: String, is_there: bool) -> bool {
        if !is_there {
            self.findings.set.push(what.clone());
        }
        self.wanted.push(what);
        !is_there && !self.only_looks
    }

    /// Notes what is there and not wanted. Returns whether it is to be removed now.
    pub(crate) fn want_gone(&mut self, what: String) -> bool {
        self.findings.removed.push(what);
        !self.only_looks
    }

    /// Wants a setting of `/proc/sys/net`, of the calling thread's namespace.
    pub(crate) fn want_setting(&mut self, key: &str, value: &str) -> Result<(), netlink::Error> {
        let is_there = sysctl::read(key)? == value;
        if self.want(format!("net.{} = {value}", key.replace('/', ".")), is_there) {
            sysctl::set(key, value)?;
        }
        Ok(())
    }

    /// Finds what others have changed since `wanted` was wanted. Nothing of it is known at a start.
    pub(crate) fn find_set_back(&mut self, wanted: &BTreeSet<String>) {
        if wanted.is_empty() {
            return;
        }
        let Findings { set, removed, set_back, .. } = &mut self.findings;
        set_back.extend(set.iter().filter(|it| wanted.contains(*it)).cloned());
        let others = removed.iter().filter(|it| !wanted.contains(*it));
        set_back.extend(others.map(|it| format!("removed ({it})")));
    }

    /// Makes Manx's rules of a family, and the kernel's for the table `local`, those that are wanted.
    pub(crate) async fn set_rules(
        &mut self,
        netlink: &Netlink,
        family: Family,
        wanted: &BTreeSet<Rule>,
    ) -> Result<(), netlink::Error> {
        let listed = netlink.rules(family).await?;
        let present = Present::new(&listed);
        self.findings.foreign.extend(present.foreign.iter().cloned());
        // Where Manx has nothing and wants nothing, another program may have moved the kernel's rule.
        if !present.has_manx() && !port_rules::has_manx(wanted) {
            return Ok(());
        }
        self.change_rules(netlink, &present.known, wanted).await
    }

    /// Makes the known rules of a family those that are wanted.
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

    /// Sets the routes that a family's table of the ports lacks, and its end. A table without routes needs none.
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

    /// Makes these prefixes, and no others of Manx's, unreachable where no route to Manx leads there: behind a default route
    /// there are strangers.
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

    /// Removes the routes of Manx's in a family's table of the ports that are not wanted, and its end if none is.
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
