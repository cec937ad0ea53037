//! What `manx routes` shows: what each source says of each prefix, and which of them is used.

use std::collections::BTreeMap;

use ipnet::IpNet;
use manx_dataplane::tables::NextHop;

use super::Agent;
use super::status::leads_to;
use manx_api::{ErrorKind, Failure, Routes, SourceRoute};
use manx_calculation::import::Overlay;
use manx_calculation::topology::{Contribution, Peer, Route, RouteSource};

impl Agent {
    /// The routes of all sources, in order.
    pub(super) fn list_routes(&mut self) -> Result<Routes, Failure> {
        let own = self.calculated.own_routes(&self.view, &self.attachments.locals());
        let of_objects = self.view.contributions(&self.inputs).map_err(|error| {
            let message = format!(
                "the node cannot be placed, and keeps the routes that it had, which `manx status` lists: {error}"
            );
            Failure { kind: ErrorKind::Internal, message }
        })?;
        let in_use: BTreeMap<IpNet, NextHop> = self.calculated.routes.iter().copied().collect();
        let of_objects = of_objects.iter().map(|it| {
            let via = in_use.get(&it.prefix).copied();
            ((it.prefix, it.source), self.of_object(it, via))
        });
        let own = own.into_iter().map(|(prefix, source, via)| {
            let route = SourceRoute {
                prefix: prefix.to_string(),
                source: source.name().to_owned(),
                object: None,
                via: leads_to(self, via),
                reason: None,
                used: false,
            };
            ((prefix.trunc(), source), route)
        });
        let mut all: Vec<((IpNet, RouteSource), SourceRoute)> = of_objects.chain(own).collect();
        all.sort_by_key(|(order, _)| *order);
        for at in 0..all.len() {
            let next = all.get(at + 1).map(|((prefix, _), _)| *prefix);
            all[at].1.used = next != Some(all[at].0.0);
        }
        let routes = all.into_iter().map(|(_, route)| route).collect();
        Ok(Routes { node: self.view.node.clone(), routes })
    }

    /// `in_use`: where the prefix leads by the tables in use.
    fn of_object(&self, route: &Contribution, in_use: Option<NextHop>) -> SourceRoute {
        let Contribution { prefix, source, object, route } = route;
        let (via, reason) = match (route, in_use) {
            (Route::Tunnel(_), Some(next_hop @ NextHop::Tunnel(_))) => {
                (leads_to(self, next_hop), None)
            }
            (Route::Tunnel(Peer { address, overlay }), _) => {
                let kind = match overlay {
                    Overlay::Ipip => "IPIP",
                    Overlay::Vxlan => "VXLAN",
                };
                (format!("{kind} to {address}"), None)
            }
            (Route::Local, _) => ("unreachable, but for its pods".to_owned(), None),
            (Route::Node | Route::Masquerade, _) => ("node".to_owned(), None),
            (Route::Direct(address), _) => (format!("host, by {address}"), None),
            (Route::Nowhere(why), _) => ("nowhere".to_owned(), Some(format!("it {why}"))),
            (Route::World, _) => ("host".to_owned(), None),
        };
        SourceRoute {
            prefix: prefix.to_string(),
            source: source.name().to_owned(),
            object: object.clone(),
            via,
            reason,
            used: false,
        }
    }
}
