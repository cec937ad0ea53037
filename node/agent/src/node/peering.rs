//! BGP: configures the speaker from the objects, and uses the routes that routers announce.
//!
//! A node's routes to other nodes follow from the objects, which all nodes read. BGP announces them to hosts that do not
//! read the objects: routers, and nodes of Calico. So routes to the cluster's own addresses that peers announce are not
//! used. Announced routes out of the cluster are used: the node's kernel gets them, and packets to such destinations go
//! through the kernel.

mod readiness;
mod reports;
pub(super) mod shown;
mod snapshot;

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use ipnet::IpNet;
use tokio::sync::Notify;

use self::readiness::Gate;
use self::reports::Reports;
use super::inputs::Inputs;
use super::passwords::{keys, passwords};
use super::routers::{self, Gateways, MOST_WAYS_OUT, WaysOut};
use super::view::View;
use crate::error::Error;
use crate::own_addresses::is_own;
use crate::privileges;
use manx_api::bgp::{BgpAddress, BgpPrefixes, BgpSession, BgpStatus};
use manx_bgp::export::{Exports, OwnRoute};
use manx_bgp::filter::Filters;
use manx_bgp::path::values_around;
use manx_bgp::peer::Peer;
use manx_bgp::peers;
use manx_bgp::table;
use manx_calculation::services::announced::AnnouncedRoutes;
use manx_calculation::topology::Route;
use manx_objects::contents::Contents;
use manx_objects::object::Object;
use manx_speaker::status::{SessionState, SessionStatus};
use manx_speaker::{Configuration, Speaker};

/// The most prefixes of one peer. A full table of the Internet has about a million.
const PREFIXES: usize = 1 << 20;
/// The most prefixes of a peer that is a node: its blocks and borrowed addresses, and, if it is a route reflector,
/// those of other nodes.
const PREFIXES_OF_NODE: usize = 1 << 15;

/// The shortest interval at which learned routes are read. Reading a million routes takes some tenths of a second.
const LOOKS: Duration = Duration::from_secs(1);
/// The time for which a session must be established before its peer counts as having announced its routes.
const UNTIL_ANNOUNCED: Duration = Duration::from_secs(2);
/// The longest time for which the last agent's routes out of the cluster stay while sessions are not established.
const LAST_WAYS_OUT: Duration = Duration::from_mins(2);

/// The BGP speaker of the node, and its configuration.
pub(crate) struct Peering {
    speaker: Speaker,
    /// The last configuration of the speaker.
    configured: Option<Configuration>,
    /// Whether the last agent has left devices for this one. Then this is a restart, and packets are forwarded as
    /// before.
    restarted: bool,
    /// The port and the sockets at which the speaker listens since its start.
    port: u16,
    listening: Vec<SocketAddr>,
    system: u32,
    problems: Vec<String>,
    /// The speaker's generation of learned routes at the last read.
    generation: Option<u64>,
    /// The earliest time of the next read.
    next_look: Instant,
    /// The time until which the last agent's routes out of the cluster stay, if sessions are not established.
    awaits_until: Option<Instant>,
    /// The number of prefixes out of the cluster that routers have announced.
    ways_out: usize,
    /// The gateways to peers.
    gateways: Gateways,
    /// The ranges of services' addresses, to which no route out of the cluster may lead.
    ranges: Vec<IpNet>,
    /// Whether the sessions hold back the agent's readiness.
    gate: Gate,
    /// The state of Events about sessions.
    reports: Reports,
    /// The time when the speaker began.
    began: SystemTime,
    /// The time when the speaker's configuration last changed.
    configured_at: SystemTime,
}

impl Peering {
    /// Starts the speaker, without peers.
    pub(super) fn start(
        contents: &Contents,
        node: &str,
        news: &Arc<Notify>,
        restarted: bool,
    ) -> Result<Self, Error> {
        let peering = peers::peers(contents, node);
        let (port, listening) = (peering.port, sockets(&peering));
        let (wake, now) = (Arc::clone(news), Instant::now());
        let speaker = Speaker::start(&listening, privileges::drop_all, move || wake.notify_one());
        let speaker = speaker.map_err(|source| Error::Speaker { port, source })?;
        Ok(Self {
            speaker,
            configured: None,
            restarted,
            port,
            listening,
            system: 0,
            problems: Vec::new(),
            generation: None,
            next_look: now,
            awaits_until: restarted.then(|| now + LAST_WAYS_OUT),
            ways_out: 0,
            gateways: Gateways::new(),
            ranges: Vec::new(),
            gate: Gate::default(),
            reports: Reports::default(),
            began: SystemTime::now(),
            configured_at: SystemTime::now(),
        })
    }

    /// Configures the speaker from the objects, if its configuration has changed.
    pub(super) fn configure(&mut self, inputs: &Inputs, view: &View) {
        let contents = inputs.contents();
        let peering = peers::peers(contents, &view.node);
        let wanted = sockets(&peering);
        let peers::Peering {
            system,
            router_id: identifier,
            cluster,
            peers,
            gateways,
            advertisements,
            priorities,
            mut problems,
            ..
        } = peering;
        let (ranges, pools): (Vec<IpNet>, _) =
            (view.announced_nets.all().collect(), pools(contents));
        let is_inside = |it: IpAddr| is_inside(&pools, &ranges, IpNet::from(it));
        let is_of_node = |it: &IpAddr| is_own(&view.own_addresses, it);
        self.gateways = routers::usable_gateways(gateways, is_of_node, is_inside, &mut problems);
        problems.extend(problem_of_listening(&wanted, &self.listening));
        let mut filters = BTreeMap::new();
        for peer in peers.iter().filter(|it| !it.filters.is_empty()) {
            let (of_peer, wrong) = Filters::new(contents, &peer.filters, &peer.name);
            problems.extend(wrong);
            filters.insert(peer.address, of_peer);
        }
        let services = view.announced_services(inputs);
        problems.extend(problems_of_services(view, &services));
        for problem in problems.iter().filter(|it| !self.problems.contains(it)) {
            tracing::warn!(problem, "BGP");
        }
        (self.system, self.problems) = (system, problems);
        // Pools and ranges determine which routes lead out of the cluster, so the routes are read again if these have
        // changed.
        if (&self.ranges, self.pools()) != (&ranges, Some(&pools)) {
            self.generation = None;
        }
        self.ranges = ranges;
        // While a pool is not valid, it is unknown which routes must not be announced, so no new ones are.
        let exports = if view.cluster.invalid_pools.is_empty() {
            Exports {
                own: own_routes(view, &services),
                pools,
                reflected: view.announced_nets.reflected().filter(|_| cluster.is_some()).collect(),
                links: inputs.links().to_vec(),
                advertisements,
                priorities,
            }
        } else {
            let mut exports =
                self.configured.as_ref().map_or(Exports::NONE, |it| it.table.exports.clone());
            exports
                .own
                .retain(|it, kind| *kind != OwnRoute::Service || services.routes.contains(it));
            exports
        };
        let source = &inputs.source;
        source.want_secrets(keys(&peers));
        let secrets = source.secrets();
        let passwords = passwords(&peers, secrets.namespace(), &secrets.found());
        let table = table::Configuration {
            identifier,
            cluster,
            addresses: view.own_addresses.iter().map(IpNet::addr).collect(),
            peers: peers.into_iter().map(|peer| (peer.address, peer)).collect(),
            filters,
            exports,
            prefixes: PREFIXES,
            prefixes_of_node: PREFIXES_OF_NODE,
        };
        let wanted = Configuration { table, passwords, restarted: self.restarted };
        if self.configured.as_ref() != Some(&wanted) {
            self.speaker.configure(wanted.clone());
            self.configured_at = SystemTime::now();
            self.configured = Some(wanted);
        }
    }

    /// The gateways to those peers for which an object names one.
    pub(super) const fn gateways(&self) -> &Gateways {
        &self.gateways
    }

    /// The routes out of the cluster, if they may have changed since the last call. Routes that other nodes announce
    /// are ignored.
    ///
    /// After a restart the result is `None` until all sessions with routers have been established for a moment. Meanwhile
    /// the kernel keeps the routes of the last agent.
    pub(super) fn take_ways_out(&mut self, now: Instant) -> Option<WaysOut> {
        if now < self.next_look
            || self.awaits_until.is_some_and(|until| now < until) && !self.has_all_announced()
        {
            return None;
        }
        self.awaits_until = None;
        let generation = self.speaker.learned_generation();
        if self.generation.replace(generation) == Some(generation) {
            return None;
        }
        let mut learned = self.speaker.next_hops(|peer| !peer.is_node);
        let none = BTreeMap::new();
        let pools = self.pools().unwrap_or(&none);
        let is_inside = |net: IpNet| is_inside(pools, &self.ranges, net);
        learned.retain(|(prefix, router)| !is_inside(*prefix) && !is_inside((*router).into()));
        let (kept, count) = routers::collect(learned);
        self.ways_out = count;
        // A large table costs this thread a part of a second. The pause comes after that.
        self.next_look = Instant::now() + LOOKS;
        Some(kept)
    }

    /// The pools in the speaker's configuration.
    fn pools(&self) -> Option<&BTreeMap<IpNet, bool>> {
        self.configured.as_ref().map(|it| &it.table.exports.pools)
    }

    /// Whether the session with each router that may have one has been established for a moment.
    fn has_all_announced(&self) -> bool {
        let Some(Configuration { table, passwords, .. }) = &self.configured else { return false };
        let sessions = self.speaker.sessions();
        let has_announced = |peer: IpAddr| {
            let mut sessions = sessions.iter().filter(|it| it.peer == peer);
            sessions.any(|it| {
                it.state == SessionState::Established
                    && it.since.elapsed().is_ok_and(|it| it >= UNTIL_ANNOUNCED)
            })
        };
        let has_no_password = |it: &Peer| matches!(passwords.get(&it.address), Some(Err(_)));
        let can_announce = |it: &&Peer| !it.is_node && !has_no_password(it);
        table.peers.values().filter(can_announce).all(|peer| has_announced(peer.address))
    }

    /// The status for `manx status`, with the addresses of the node.
    pub(super) fn status(&self, addresses: Vec<BgpAddress>) -> BgpStatus {
        let too_many = (self.ways_out > MOST_WAYS_OUT).then(|| {
            format!(
                "routers announce {} prefixes outside of the cluster, and the node's kernel gets at most {MOST_WAYS_OUT} of each family, the shortest first: announce fewer",
                self.ways_out
            )
        });
        BgpStatus {
            system: self.system,
            identifier: self.configured.as_ref().map(|it| it.table.identifier),
            addresses,
            listening: self.port,
            refused_connections: self.speaker.refused_connections(),
            problems: self.problems.iter().cloned().chain(too_many).collect(),
            sessions: self.speaker.sessions().into_iter().map(session).collect(),
        }
    }

    /// Ends without a notification to the peers. So peers that support graceful restart keep this node's routes until
    /// the next agent speaks BGP.
    pub(super) fn leave(self) {
        self.speaker.leave();
    }
}

/// Whether a net lies in a pool, or in a range of services' addresses.
fn is_inside(pools: &BTreeMap<IpNet, bool>, ranges: &[IpNet], net: IpNet) -> bool {
    values_around(pools, net).next().is_some() || ranges.iter().any(|range| range.contains(&net))
}

/// The addresses at which a node's speaker should listen: all addresses, or the node's own (`bindMode: NodeIP`).
fn sockets(peering: &peers::Peering) -> Vec<SocketAddr> {
    let any = [IpAddr::from([0_u16; 8])];
    let addresses = if peering.listens_at_addresses { &*peering.addresses } else { &any };
    addresses.iter().map(|it| SocketAddr::new(*it, peering.port)).collect()
}

/// The problem if the speaker does not listen where the settings require it.
fn problem_of_listening(wanted: &[SocketAddr], listening: &[SocketAddr]) -> Option<String> {
    let list = |all: &[SocketAddr]| {
        let all: Vec<String> = all.iter().map(ToString::to_string).collect();
        if all.is_empty() { "no address".to_owned() } else { all.join(", ") }
    };
    (wanted != listening).then(|| {
        format!(
            "BGPConfiguration (listenPort, bindMode) asks to listen at {}, and the agent listens at {} since its start: restart it",
            list(wanted),
            list(listening)
        )
    })
}

/// This node's own routes: its blocks, the addresses of its pods and tunnels outside of these, and those of services.
fn own_routes(view: &View, services: &AnnouncedRoutes) -> BTreeMap<IpNet, OwnRoute> {
    let topology = &view.topology;
    let is_own = |net: &IpNet| topology.blocks.iter().any(|block| block.contains(net));
    let local = topology.prefixes.iter().filter(|(_, route)| **route == Route::Local);
    let local = local.map(|(prefix, _)| *prefix);
    let tunnels = topology.tunnel_addresses.iter().copied().map(IpNet::from);
    let borrowed = local.chain(tunnels).filter(|it| !is_own(it));
    let borrowed = borrowed.map(|it| (it, OwnRoute::Borrowed));
    let blocks = topology.blocks.iter().map(|it| (it.trunc(), OwnRoute::Block));
    let services = services.routes.iter().map(|it| (*it, OwnRoute::Service));
    services.chain(borrowed).chain(blocks).collect()
}

/// Problems with the addresses of services.
fn problems_of_services(view: &View, announced: &AnnouncedRoutes) -> Vec<String> {
    let nets = &view.announced_nets;
    let mut problems: Vec<String> = nets.problems.iter().map(ToString::to_string).collect();
    if announced.left_out > 0 {
        problems.push(format!(
            "found {} addresses of services more than a node announces one by one, so they are not announced, external \
             IPs and the youngest Services first: have fewer Services with externalTrafficPolicy: Local",
            announced.left_out,
        ));
    }
    if let Some(services) = view.services.manx() {
        problems.extend(nets.unserved(&services.external).map(|net| {
            format!(
                "BGPConfiguration default, serviceExternalIPs: found {net}, of which this node serves no address, so it is \
                 not told; expected nets that --external-ips (MANX_EXTERNAL_IPS) names, too: add it there"
            )
        }));
    }
    problems
}

/// The pools. The value says whether routes in the pool are exported.
fn pools(contents: &Contents) -> BTreeMap<IpNet, bool> {
    let all = contents.all_valid().filter_map(|(_, it)| match it {
        Object::IpPool(pool) => Some((pool.cidr.trunc(), !pool.is_hidden_from_peers)),
        _ => None,
    });
    all.collect()
}

fn session(status: SessionStatus) -> BgpSession {
    let SessionStatus { peer, name, kind, system, state, since, last_error, .. } = status;
    let SessionStatus { established, counts, malformed, unannounced, .. } = status;
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
            announced: counts.announced,
            malformed,
            unannounced,
        },
    }
}
