//! BGP: what the objects ask of the speaker, and the routes that routers have told.
//!
//! A node's routes to other nodes follow from the objects, which all nodes read alike. BGP tells them to those that do not
//! read them: routers, and nodes of Calico. So what peers tell of the cluster's own addresses is not used. A way out of the
//! cluster that a router tells is one: the node's kernel gets a route, and packets to the world go by the kernel.

use std::collections::{BTreeMap, BTreeSet};
use std::iter;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use ipnet::IpNet;
use tokio::sync::Notify;

use super::inputs::Inputs;
use super::view::View;
use crate::error::Error;
use crate::privileges;
use manx_api::bgp::{BgpPrefixes, BgpSession, BgpStatus};
use manx_bgp::export::{Exports, OwnRoute};
use manx_bgp::filter::Filters;
use manx_bgp::peer::PeerType;
use manx_bgp::peers;
use manx_bgp::table;
use manx_calculation::topology::Route;
use manx_objects::contents::Contents;
use manx_objects::object::Object;
use manx_speaker::status::{SessionState, SessionStatus};
use manx_speaker::{Configuration, Speaker};

/// The most prefixes of one peer. A full table of the Internet has about a million.
const PREFIXES: usize = 1 << 20;
/// The most ways out that the node's kernel gets.
const MOST_WAYS_OUT: usize = 1 << 12;

/// The shortest time between two looks at what routers have told. A look at a million routes takes some tenths of a second.
const LOOKS: Duration = Duration::from_secs(1);
/// How long a session is established until its peer is taken to have told its routes.
const TOLD: Duration = Duration::from_secs(2);
/// How long the last agent's ways out stay at most, while sessions are not established.
const LAST_WAYS_OUT: Duration = Duration::from_mins(2);

/// The ways out of the cluster that routers have told, each with the router's address.
pub(super) type WaysOut = BTreeMap<IpNet, IpAddr>;

/// The node's part in BGP.
pub(crate) struct Peering {
    speaker: Speaker,
    /// What the speaker was told last.
    configured: Option<Configuration>,
    /// Whether an agent has forwarded this node's packets before this one.
    restarted: bool,
    /// The port of the objects, and the one at which the speaker listens.
    ports: (u16, u16),
    system: u32,
    problems: Vec<String>,
    /// The number of the speaker's routes that were read last.
    generation: Option<u64>,
    /// When these may be read next.
    next_look: Instant,
    /// The time until which the last agent's ways out stay, if sessions are not established.
    awaits_until: Option<Instant>,
    /// The number of ways out that the kernel does not get, because there are too many.
    too_many: usize,
}

impl Peering {
    /// Starts the speaker, without peers.
    pub(super) fn start(
        contents: &Contents,
        node: &str,
        news: &Arc<Notify>,
        restarted: bool,
    ) -> Result<Self, Error> {
        let port = peers::peers(contents, node).port;
        let (told, now) = (Arc::clone(news), Instant::now());
        let listen = [SocketAddr::from(([0_u16; 8], port))];
        let speaker = Speaker::start(&listen, privileges::give_up_all, move || told.notify_one());
        let speaker = speaker.map_err(|source| Error::Speaker { port, source })?;
        Ok(Self {
            speaker,
            configured: None,
            restarted,
            ports: (port, port),
            system: 0,
            problems: Vec::new(),
            generation: None,
            next_look: now,
            awaits_until: restarted.then(|| now + LAST_WAYS_OUT),
            too_many: 0,
        })
    }

    /// Tells the speaker what the objects ask, if that has changed.
    pub(super) fn configure(&mut self, inputs: &Inputs, view: &View) {
        let contents = inputs.contents();
        let peers::Peering {
            system,
            router_id: identifier,
            cluster,
            port,
            peers,
            mut problems,
            ..
        } = peers::peers(contents, &view.node);
        self.ports.0 = port;
        let (port, listening) = self.ports;
        if port != listening {
            problems.push(format!(
                "BGPConfiguration asks for port {port}, and the agent listens at {listening} since its start: restart it"
            ));
        }
        let mut filters = BTreeMap::new();
        for peer in peers.iter().filter(|it| !it.filters.is_empty()) {
            let (of_peer, wrong) = Filters::new(contents, &peer.filters, &peer.name);
            problems.extend(wrong);
            filters.insert(peer.address, of_peer);
        }
        for problem in problems.iter().filter(|it| !self.problems.contains(it)) {
            tracing::warn!(problem, "BGP");
        }
        (self.system, self.problems) = (system, problems);
        let table = table::Configuration {
            identifier,
            cluster,
            addresses: view.own_addresses.iter().map(IpNet::addr).collect(),
            peers: peers.into_iter().map(|peer| (peer.address, peer)).collect(),
            filters,
            exports: Exports {
                own: own_routes(view),
                pools: pools(contents),
                passed_on: Vec::new(),
                links: inputs.links().to_vec(),
            },
            prefixes: PREFIXES,
        };
        let wanted = Configuration { table, restarted: self.restarted };
        if self.configured.as_ref() != Some(&wanted) {
            self.speaker.configure(wanted.clone());
            self.configured = Some(wanted);
        }
    }

    /// The ways out of the cluster, if they may have changed since they were taken last. A peer of the mesh is a node, and
    /// tells none.
    ///
    /// After a restart there are none until all sessions have been established for a moment: the kernel keeps those of the
    /// last agent as long.
    pub(super) fn take_ways_out(&mut self, now: Instant) -> Option<WaysOut> {
        if now < self.next_look
            || self.awaits_until.is_some_and(|until| now < until) && !self.has_all_told()
        {
            return None;
        }
        self.awaits_until = None;
        let generation = self.speaker.learned_generation();
        if self.generation.replace(generation) == Some(generation) {
            return None;
        }
        self.next_look = now + LOOKS;
        let is_router = |peer: &IpAddr| {
            let peers = self.configured.as_ref().map(|it| &it.table.peers);
            let peer = peers.and_then(|it| it.get(peer));
            peer.is_some_and(|it| it.kind != PeerType::Mesh)
        };
        let pools = self.configured.as_ref().map(|it| &it.table.exports.pools);
        let is_in_pool =
            |prefix: IpNet| pools.is_some_and(|it| within(prefix, |net| it.contains_key(net)));
        let learned = self.speaker.learned().into_iter().filter_map(|(prefix, routes)| {
            let best = routes.into_iter().find(|it| is_router(&it.peer))?;
            (!is_in_pool(prefix)).then_some((prefix, best.next_hop))
        });
        let mut all: WaysOut = learned.collect();
        self.too_many = all.len().saturating_sub(MOST_WAYS_OUT);
        if self.too_many > 0 {
            // Shorter prefixes lead to more.
            let mut by_length: Vec<IpNet> = all.keys().copied().collect();
            by_length.sort_by_key(IpNet::prefix_len);
            for prefix in by_length.drain(MOST_WAYS_OUT..) {
                all.remove(&prefix);
            }
        }
        Some(all)
    }

    /// Whether each session has been established for a moment.
    fn has_all_told(&self) -> bool {
        let peers = self.configured.as_ref().map_or(0, |it| it.table.peers.len());
        let sessions = self.speaker.sessions();
        let has_told = |it: &SessionStatus| {
            it.state == SessionState::Established && it.since.elapsed().is_ok_and(|it| it >= TOLD)
        };
        sessions.len() == peers && sessions.iter().all(has_told)
    }

    pub(super) fn status(&self) -> BgpStatus {
        let too_many = (self.too_many > 0).then(|| {
            format!(
                "{} prefixes that routers tell get no route in the node's kernel, which gets {MOST_WAYS_OUT} at most: those with the longest prefixes; have the routers tell fewer",
                self.too_many
            )
        });
        BgpStatus {
            system: self.system,
            identifier: self.configured.as_ref().map(|it| it.table.identifier),
            listening: self.ports.1,
            refused_connections: self.speaker.refused_connections(),
            problems: self.problems.iter().cloned().chain(too_many).collect(),
            sessions: self.speaker.sessions().into_iter().map(session).collect(),
        }
    }

    /// Ends without a word to the peers, so that those that can keep this node's routes until the next agent speaks.
    pub(super) fn leave(self) {
        self.speaker.leave();
    }
}

/// The routes that begin at this node: its blocks, and the addresses of its pods and tunnels outside of these.
fn own_routes(view: &View) -> BTreeMap<IpNet, OwnRoute> {
    let topology = &view.topology;
    let is_own = |net: &IpNet| topology.blocks.iter().any(|block| block.contains(net));
    let local = topology.prefixes.iter().filter(|(_, route)| **route == Route::Local);
    let local = local.map(|(prefix, _)| *prefix);
    let tunnels = topology.tunnel_addresses.iter().copied().map(IpNet::from);
    let borrowed = local.chain(tunnels).filter(|it| !is_own(it));
    let borrowed = borrowed.map(|it| (it, OwnRoute::Borrowed));
    let blocks = topology.blocks.iter().map(|it| (it.trunc(), OwnRoute::Block));
    borrowed.chain(blocks).collect()
}

/// The pools, each with whether routes in it are exported.
fn pools(contents: &Contents) -> BTreeMap<IpNet, bool> {
    let all = contents.all_valid().filter_map(|(_, it)| match it {
        Object::IpPool(pool) => Some((pool.cidr.trunc(), !pool.is_hidden_from_peers)),
        _ => None,
    });
    all.collect()
}

/// Whether a prefix lies in one that is meant.
fn within(prefix: IpNet, is_meant: impl Fn(&IpNet) -> bool) -> bool {
    iter::successors(Some(prefix.trunc()), IpNet::supernet).any(|net| is_meant(&net))
}

/// The ways out that the node's kernel gets: not to what Manx has a route for itself, nor to addresses that the node needs
/// or that nodes have.
pub(super) fn usable<'a>(
    ways_out: &'a WaysOut,
    own: &'a BTreeSet<IpNet>,
    needed: &'a BTreeSet<IpAddr>,
) -> impl Iterator<Item = (IpNet, IpAddr)> + 'a {
    let is_usable = |(prefix, _): &(&IpNet, &IpAddr)| {
        let is_single = prefix.prefix_len() == prefix.max_prefix_len();
        let is_needed = is_single && needed.contains(&prefix.addr());
        !is_needed && !within(**prefix, |net| own.contains(net))
    };
    ways_out.iter().filter(is_usable).map(|(prefix, router)| (*prefix, *router))
}

fn session(status: SessionStatus) -> BgpSession {
    let SessionStatus { peer, name, kind, system, state, since, last_error, .. } = status;
    let SessionStatus { established, counts, malformed, untold, .. } = status;
    BgpSession {
        peer,
        name,
        kind: kind.to_string(),
        system,
        state: state.to_string(),
        since_s: SystemTime::now().duration_since(since).unwrap_or_default().as_secs(),
        last_error,
        hold_time_s: established.map(|it| it.hold_time.as_secs()),
        restart_time_s: established.and_then(|it| it.restart_time).map(|it| it.as_secs()),
        prefixes: BgpPrefixes {
            received: counts.received,
            refused: counts.refused,
            told: counts.told,
            malformed,
            untold,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn routers_lead_to_nothing_that_manx_leads_to_and_to_no_address_that_is_needed() {
        let net = |text: &str| text.parse::<IpNet>().unwrap();
        let router = "10.0.0.1".parse().unwrap();
        let told = [
            "0.0.0.0/0",
            "10.244.1.0/24",
            "10.244.0.0/16",
            "10.0.0.0/8",
            "10.0.0.9/32",
            "fd00::/8",
        ];
        let ways_out: WaysOut = told.iter().map(|it| (net(it), router)).collect();
        let own = BTreeSet::from([net("10.244.0.0/16")]);
        let needed = BTreeSet::from(["10.0.0.9".parse().unwrap()]);
        let found: Vec<IpNet> =
            usable(&ways_out, &own, &needed).map(|(prefix, _)| prefix).collect();
        assert_eq!(found, [net("0.0.0.0/0"), net("10.0.0.0/8"), net("fd00::/8")]);
    }
}
