//! The status of `CalicoNodeStatus` objects: the node's BGP state in Calico's form.
//!
//! An object for this node is filled in when it is created, when it changes, and once in each of its periods. Without
//! `--bgp` the status says that no daemon runs, as in Calico. Long lists are cut: only the first peers and routes of each
//! family are listed.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr};
use std::time::{Duration, Instant, SystemTime};

use ipnet::IpNet;
use manx_bgp::peer::PeerType;
use manx_datastore::StatusRequest;
use manx_speaker::status::{SessionState, SessionStatus};
use serde_json::{Value, json};

use super::view::View;
use manx_calculation::topology::HostRoute;

/// The most peers of each family in a status.
const MOST_PEERS: usize = 512;
/// The most routes of each family in a status.
pub(super) const MOST_ROUTES: usize = 512;
/// The interval at which the requests are read.
const LOOKS: Duration = Duration::from_secs(1);
/// Calico's text for an absent gateway.
const NO_GATEWAY: &str = "N/A";

/// The node's BGP state.
#[derive(Debug, Default)]
pub(super) struct Snapshot {
    /// The speaker; `None` if the node has none.
    pub(super) daemon: Option<Daemon>,
    /// The sessions, by the peers' addresses.
    pub(super) sessions: Vec<SessionStatus>,
    /// The first routes of each family: the node's own routes, and those that peers announce.
    pub(super) routes: Vec<KnownRoute>,
    /// Whether there are more than [`MOST_ROUTES`] IPv4 routes, and IPv6 routes. `None` if no object requests routes.
    pub(super) more_routes: Option<[bool; 2]>,
}

/// The BGP speaker.
#[derive(Debug)]
pub(super) struct Daemon {
    pub(super) identifier: Option<Ipv4Addr>,
    /// The time when it started.
    pub(super) began: SystemTime,
    /// The time when the objects last changed its configuration.
    pub(super) configured: SystemTime,
}

/// A route in BGP.
#[derive(Debug)]
pub(super) struct KnownRoute {
    pub(super) prefix: IpNet,
    pub(super) gateway: Option<IpAddr>,
    pub(super) interface: Option<String>,
    pub(super) origin: Origin,
    /// Whether packets use it.
    pub(super) is_used: bool,
}

/// The routes out of the cluster in the node's kernel: prefixes, each with its routers.
pub(super) type Used = BTreeSet<(IpNet, IpAddr)>;

/// The routes out of the cluster that the node's kernel gets.
pub(super) fn used(view: &View) -> Used {
    let router = |(prefix, route): (IpNet, HostRoute)| match route {
        HostRoute::Router { address } => Some((prefix.trunc(), address)),
        _ => None,
    };
    view.host_network().blocks.into_iter().filter_map(router).collect()
}

/// The origin of a route.
#[derive(Debug, Clone, Copy)]
pub(super) enum Origin {
    /// A route of this node: a block, or addresses of services.
    Static,
    /// A route of this node: an address of a pod or a tunnel outside of the blocks.
    Direct,
    /// A route that a peer has announced.
    Peer(PeerType, IpAddr),
}

/// Tracks which objects are due.
#[derive(Debug, Default)]
pub(super) struct NodeStatusReports {
    scheduled: BTreeMap<String, (StatusRequest, Option<Instant>)>,
    next_look: Option<Instant>,
    /// The numbers of IPv4 peers and of IPv6 peers in the last snapshot.
    peers: [usize; 2],
    /// Whether there were more IPv4 routes, and more IPv6 routes, than a status holds.
    more_routes: [bool; 2],
}

impl NodeStatusReports {
    /// Returns the objects that must be filled in now.
    pub(super) fn take_due(
        &mut self,
        now: Instant,
        requests: impl FnOnce() -> BTreeMap<String, StatusRequest>,
    ) -> Vec<(String, StatusRequest)> {
        if self.next_look.is_some_and(|at| now < at) {
            return Vec::new();
        }
        self.next_look = Some(now + LOOKS);
        let requests = requests();
        self.scheduled.retain(|name, _| requests.contains_key(name));
        if requests.is_empty() {
            self.peers = [0; 2];
        }
        if !requests.values().any(|it| it.routes) {
            self.more_routes = [false; 2];
        }
        let mut due = Vec::new();
        for (name, request) in requests {
            let known = self.scheduled.get(&name).filter(|(before, _)| *before == request);
            let is_due = match (known, request.period) {
                (_, None) => false,
                (None, Some(_)) => true,
                (Some((_, at)), Some(_)) => at.is_none_or(|at| now >= at),
            };
            if is_due || known.is_none() {
                let next = request.period.map(|period| now + period);
                self.scheduled.insert(name.clone(), (request.clone(), next));
            }
            if is_due {
                due.push((name, request));
            }
        }
        due
    }

    /// Records which lists of a snapshot are longer than a status can hold.
    pub(super) fn note_cut(&mut self, snapshot: &Snapshot) {
        self.peers = peers_by_family(&snapshot.sessions).map(|it| it.len());
        if let Some(more) = snapshot.more_routes {
            self.more_routes = more;
        }
    }

    /// The warning about what was cut off.
    pub(super) fn warning(&self) -> Option<String> {
        let families = ["IPv4", "IPv6"].into_iter().zip(self.peers).zip(self.more_routes);
        let cut = families.flat_map(|((family, peers), more_routes)| {
            let peers = (peers > MOST_PEERS)
                .then(|| format!("{peers} peers of {family}, {MOST_PEERS} of them listed"));
            let routes = more_routes.then(|| {
                format!("more than {MOST_ROUTES} routes of {family}, {MOST_ROUTES} of them listed")
            });
            peers.into_iter().chain(routes)
        });
        let cut: Vec<String> = cut.collect();
        (!cut.is_empty()).then(|| {
            format!(
                "CalicoNodeStatus objects of this node hold a part: {}; `manx node status` has all sessions",
                cut.join("; ")
            )
        })
    }
}

fn peers_by_family(sessions: &[SessionStatus]) -> [Vec<&SessionStatus>; 2] {
    [true, false].map(|v4| sessions.iter().filter(|it| it.peer.is_ipv4() == v4).collect())
}

/// The status that an object requests. A class that is not requested is null, which removes its earlier value.
pub(super) fn status(request: &StatusRequest, snapshot: &Snapshot) -> Value {
    let of = |is_asked: bool, value: fn(&Snapshot) -> Value| {
        if is_asked { value(snapshot) } else { Value::Null }
    };
    json!({
        "agent": of(request.agent, agent),
        "bgp": of(request.bgp, bgp),
        "routes": of(request.routes, routes),
    })
}

/// The section about the agent: both families have one speaker.
fn agent(Snapshot { daemon, .. }: &Snapshot) -> Value {
    let daemon = match daemon {
        None => json!({ "state": "NotReady" }),
        Some(Daemon { identifier, began, configured }) => json!({
            "state": "Ready",
            "version": concat!("manx v", env!("CARGO_PKG_VERSION")),
            "routerID": identifier.map(|it| it.to_string()).unwrap_or_default(),
            "lastBootTime": time(*began),
            "lastReconfigurationTime": time(*configured),
        }),
    };
    json!({ "birdV4": daemon, "birdV6": daemon })
}

fn bgp(Snapshot { sessions, .. }: &Snapshot) -> Value {
    let [v4, v6] = peers_by_family(sessions);
    let established = |of: &[&SessionStatus]| {
        of.iter().filter(|it| it.state == SessionState::Established).count()
    };
    let peers = |of: &[&SessionStatus]| -> Vec<Value> {
        of.iter().take(MOST_PEERS).map(|session| peer(session)).collect()
    };
    json!({
        "numberEstablishedV4": established(&v4),
        "numberNotEstablishedV4": v4.len() - established(&v4),
        "numberEstablishedV6": established(&v6),
        "numberNotEstablishedV6": v6.len() - established(&v6),
        "peersV4": peers(&v4),
        "peersV6": peers(&v6),
    })
}

/// The entry of a session. Its states are those of RFC 4271, as in Calico.
fn peer(SessionStatus { peer, kind, state, since, .. }: &SessionStatus) -> Value {
    let kind = match kind {
        PeerType::Mesh => "NodeMesh",
        PeerType::Node => "NodePeer",
        PeerType::Global => "GlobalPeer",
    };
    json!({ "peerIP": peer, "type": kind, "state": state.to_string(), "since": time(*since) })
}

fn routes(Snapshot { routes, .. }: &Snapshot) -> Value {
    let of = |v4: bool| -> Vec<Value> {
        let family = routes.iter().filter(|it| it.prefix.addr().is_ipv4() == v4);
        family.take(MOST_ROUTES).map(route).collect()
    };
    json!({ "routesV4": of(true), "routesV6": of(false) })
}

fn route(KnownRoute { prefix, gateway, interface, origin, is_used }: &KnownRoute) -> Value {
    let from = match origin {
        Origin::Static => json!({ "sourceType": "Static" }),
        Origin::Direct => json!({ "sourceType": "Direct" }),
        Origin::Peer(PeerType::Mesh, peer) => json!({ "sourceType": "NodeMesh", "peerIP": peer }),
        Origin::Peer(PeerType::Node | PeerType::Global, peer) => {
            json!({ "sourceType": "BGPPeer", "peerIP": peer })
        }
    };
    json!({
        "destination": prefix.to_string(),
        "gateway": gateway.map_or_else(|| NO_GATEWAY.to_owned(), |it| it.to_string()),
        "interface": interface.as_deref().unwrap_or(NO_GATEWAY),
        "learnedFrom": from,
        "type": if *is_used { "FIB" } else { "RIB" },
    })
}

fn time(at: SystemTime) -> String {
    humantime::format_rfc3339_seconds(at).to_string()
}

#[cfg(test)]
mod tests;
