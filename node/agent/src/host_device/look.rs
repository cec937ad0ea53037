//! What the node's kernel should have for the host port, compared with what it has.

use std::collections::BTreeSet;

use ipnet::IpNet;
use manx_calculation::topology::HostNetwork;
use manx_devices::device::{CreatedDevice, Error};
use manx_linux::netlink::{
    self, Action, Family, MAIN, Netlink, OWN_TABLE, RULE_PREFERENCE, Route, RouteOf, Rule,
};
use manx_linux::netns::{self, sysctl};

use super::{HostDevice, LOOPBACK, PodRoutes, Refusal};
use crate::interfaces::{FORWARDED, HOST};
use crate::reconcile::Pass;

impl HostDevice {
    /// Notes all that is wanted, and what [`Self::reconcile`] would change. Settings are set unless the pass only looks.
    pub(crate) fn look(&self, desired: &HostNetwork, pass: &mut Pass) -> Result<(), Error> {
        netns::run_in(&self.netns, || self.want_settings(pass))??;
        Ok(netlink::in_netns(&self.netns, async |netlink| {
            let present = netlink.addresses().await?;
            let of_forwarded = self.forwarded.iter().flat_map(|made| {
                desired.masquerade_addresses.iter().map(move |it| (made, FORWARDED, *it))
            });
            let of_host = desired.addresses.iter().map(|it| (&self.made, HOST, *it));
            for (made, name, address) in of_host.chain(of_forwarded) {
                let net = IpNet::from(address);
                let is_there = present.iter().any(|it| (it.index, it.net) == (made.index, net));
                pass.want(format!("{net} on {name}"), is_there);
            }
            for family in Family::ALL {
                let listed = netlink.rules(family).await?;
                let present: Vec<Rule> = listed.into_iter().filter_map(|it| it.rule).collect();
                // A kernel without IPv6 has no rules of it, and gets none.
                for rule in self.rules(family, desired).filter(|_| !present.is_empty()) {
                    pass.want(rule.to_string(), present.contains(&rule));
                }
            }
            let routes = PodRoutes::find(&netlink, desired).await?;
            let entry = match &self.forwarded {
                Some(forwarded) => {
                    let own = routes.through(&self.made);
                    look_at_routes(&netlink, (OWN_TABLE, &self.made, HOST), own, pass).await?;
                    (forwarded, FORWARDED)
                }
                None => (&self.made, HOST),
            };
            let all = routes.through(entry.0);
            look_at_routes(&netlink, (MAIN, entry.0, entry.1), all, pass).await
        })?)
    }

    pub(super) fn want_settings(&self, pass: &mut Pass) -> Result<(), netlink::Error> {
        let forwards = self.forwarded.iter().flat_map(|_| sysctl::FORWARD);
        // The kernel may lack IPv6.
        for (key, value) in forwards.filter(|(key, _)| sysctl::read(key).is_ok()) {
            pass.want_setting(key, value)?;
        }
        // Manx has checked the sources of packets that it sends to the node. The kernel's check knows nothing of tunnels.
        pass.want_setting(&format!("ipv4/conf/{HOST}/rp_filter"), "0")?;
        // Manx's own ICMP errors come from the tunnel address, which is also the node's. Otherwise the kernel takes such a
        // source for forged.
        pass.want_setting(&format!("ipv4/conf/{HOST}/accept_local"), "1")
    }

    fn rules(&self, family: Family, desired: &HostNetwork) -> impl Iterator<Item = Rule> {
        let rule = move |interface: &str, action| Rule {
            interface: Some(interface.to_owned()),
            ..Rule::new(RULE_PREFERENCE, family, action)
        };
        let own = self.forwarded.iter().map(move |_| rule(LOOPBACK, Action::Lookup(OWN_TABLE)));
        let refusals = self.refusals(desired).into_iter().filter(move |_| family == Family::V6);
        own.chain(refusals.map(move |Refusal { interface, source }| Rule {
            from: Some(source.into()),
            ..rule(&interface, Action::Drop)
        }))
    }
}

async fn look_at_routes(
    netlink: &Netlink,
    (table, made, name): (u8, &CreatedDevice, &str),
    wanted: BTreeSet<Route>,
    pass: &mut Pass,
) -> Result<(), netlink::Error> {
    let present: BTreeSet<Route> = netlink.manx_routes(table).await?.into_iter().collect();
    let text = |route: &Route| {
        RouteOf { table, route, device: (route.device == made.index).then_some(name) }.to_string()
    };
    for route in &wanted {
        pass.want(text(route), present.contains(route));
    }
    let is_gone = |it: &&Route| !wanted.iter().any(|new| new.destination == it.destination);
    pass.findings.removed.extend(present.difference(&wanted).filter(is_gone).map(text));
    Ok(())
}
