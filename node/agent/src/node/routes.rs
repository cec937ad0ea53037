//! The routes that `manx routes` shows: each source's route for each prefix, and whether it is used.

use std::collections::BTreeMap;
use std::net::IpAddr;

use ipnet::IpNet;
use manx_dataplane::tables::NextHop;

use super::Agent;
use super::status::leads_to;
use crate::fault::Fault;
use manx_api::{ErrorKind, Failure, Routes, SourceRoute};
use manx_calculation::topology::{Contribution, Peer, Route, RouteSource};

impl Agent {
    /// The routes of all sources, in order. With an address, only those of the longest prefix that contains it.
    pub(super) fn list_routes(&mut self, around: Option<IpAddr>) -> Result<Routes, Failure> {
        let refuse = |why: String| {
            let message = format!("{why}; `manx status` lists the routes that are in force");
            Failure { kind: ErrorKind::Internal, message }
        };
        if !self.view.cluster.in_sync || self.calculated.is_refuted() {
            return Err(refuse("the tables in use are not those of the objects".to_owned()));
        }
        let of_objects = self.view.contributions(&self.inputs).map_err(|error| {
            refuse(format!("the node cannot be placed, and keeps the routes that it had: {error}"))
        })?;
        let own = self.calculated.own_routes(&self.view, &self.attachments.locals());
        let own = own.into_iter().map(|(prefix, source, via)| Candidate {
            prefix: prefix.trunc(),
            source,
            object: None,
            via: Via::Own(via),
        });
        let of_objects = of_objects.into_iter().map(|it| {
            let Contribution { prefix, source, object, route } = it;
            Candidate { prefix, source, object, via: Via::Object(route) }
        });
        let mut all: Vec<Candidate> = of_objects.chain(own).collect();
        if let Some(address) = around {
            let containing = all.iter().map(|it| it.prefix).filter(|it| it.contains(&address));
            let longest = containing.max_by_key(IpNet::prefix_len);
            all.retain(|it| Some(it.prefix) == longest);
        }
        all.sort_by_key(|it| (it.prefix, it.source));
        let in_use: BTreeMap<IpNet, NextHop> = self.calculated.routes().into_iter().collect();
        let routes = all.iter().enumerate().map(|(at, candidate)| {
            let is_last = all.get(at + 1).is_none_or(|next| next.prefix != candidate.prefix);
            self.describe(candidate, in_use.get(&candidate.prefix).filter(|_| is_last).copied())
        });
        Ok(Routes { node: self.view.node.clone(), routes: routes.collect() })
    }

    /// Describes a route. `used` is the prefix's next hop in the tables in use, if this route is the one used.
    fn describe(&self, candidate: &Candidate, used: Option<NextHop>) -> SourceRoute {
        let (via, reason) = match &candidate.via {
            Via::Own(next_hop) => (leads_to(self, *next_hop), None),
            Via::Object(Route::Tunnel(Peer { address, overlay })) => {
                let kind = overlay.encapsulation().name();
                match used {
                    Some(NextHop::Tunnel(index))
                        if self.calculated.tables.tunnel(index).is_some() =>
                    {
                        (leads_to(self, NextHop::Tunnel(index)), None)
                    }
                    Some(_) => {
                        let fault = self.dataplane.socket_faults.get(overlay);
                        let reason = fault.and_then(Fault::message);
                        let reason = reason.unwrap_or("the tunnel has no socket yet");
                        (format!("{kind} to {address}"), Some(reason.to_owned()))
                    }
                    None => (format!("{kind} to {address}"), None),
                }
            }
            Via::Object(Route::Local) => ("unreachable, but for its pods".to_owned(), None),
            Via::Object(Route::Node | Route::Masquerade) => ("node".to_owned(), None),
            Via::Object(Route::Direct(address)) => (format!("host, by {address}"), None),
            Via::Object(Route::NoRoute(why)) => ("nowhere".to_owned(), Some(format!("it {why}"))),
            Via::Object(Route::World) => ("host".to_owned(), None),
        };
        SourceRoute {
            prefix: candidate.prefix.to_string(),
            source: candidate.source.name().to_owned(),
            object: candidate.object.clone(),
            via,
            reason,
            used: used.is_some(),
        }
    }
}

/// The route of one source for a prefix.
struct Candidate {
    prefix: IpNet,
    source: RouteSource,
    object: Option<String>,
    via: Via,
}

/// The next hop of a route, from objects or from the node itself.
enum Via {
    Object(Route),
    Own(NextHop),
}
