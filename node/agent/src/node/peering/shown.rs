//! The node's BGP state for people, Prometheus and probes.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Instant;

use super::Peering;
use super::readiness::Sessions;
use manx_api::bgp::BgpAddress;
use manx_bgp::peer::PeerType;
use manx_bgp::peers::{self, AddressSource};
use manx_datastore::Happening;
use manx_objects::contents::Contents;
use manx_observe::agent_metrics::{BgpMetrics, PeerMetrics};
use manx_speaker::status::{SessionState, SessionStatus};

impl Peering {
    /// The reason why the agent is not ready yet, as far as its sessions decide. The first call is when tables of all
    /// objects are in force.
    pub(in crate::node) fn holds_back(&mut self, now: Instant) -> Option<String> {
        let Self { configured, speaker, awaits_until, gate, .. } = self;
        gate.waits(now, || {
            let up = speaker.established();
            let peers = configured.iter().flat_map(|it| it.table.peers.keys().copied());
            let (established, others): (Vec<_>, Vec<_>) = peers.partition(|it| up.contains(it));
            let restarts = awaits_until.is_some_and(|until| now < until);
            Sessions { established: established.len(), others, restarts }
        })
    }

    /// The Events about sessions with routers, each with its peer.
    pub(in crate::node) fn happenings(&mut self, now: Instant) -> Vec<(String, Happening)> {
        if !self.reports.is_due(now) {
            return Vec::new();
        }
        let up = self.speaker.established();
        let peers = self.configured.iter().flat_map(|it| it.table.peers.values());
        let routers = peers.filter(|it| !it.is_node).map(|it| it.address);
        let news = self.reports.look(now, routers.map(|it| (it, up.contains(&it))));
        if news.is_empty() {
            return Vec::new();
        }
        let sessions = self.speaker.sessions();
        let told = news.into_iter().filter_map(|(peer, is_up)| {
            let session = sessions.iter().find(|it| it.peer == peer)?;
            Some((peer.to_string(), happening(session, is_up)))
        });
        told.collect()
    }

    /// The metrics for Prometheus.
    pub(in crate::node) fn metrics(&self) -> BgpMetrics {
        let mut peers: BTreeMap<&'static str, PeerMetrics> = BTreeMap::new();
        for (kind, totals) in self.speaker.totals() {
            let of = peers.entry(name(kind)).or_default();
            of.established = totals.established;
            of.ended = totals.ended;
            of.refused = totals.refused;
            of.malformed = totals.malformed;
            of.unannounced = totals.unannounced;
        }
        for kind in [PeerType::Mesh, PeerType::Node, PeerType::Global] {
            let of = peers.entry(name(kind)).or_default();
            of.sessions = SessionState::ALL.map(|state| (state_name(state), 0)).into();
        }
        for session in self.speaker.sessions() {
            let of = peers.entry(name(session.kind)).or_default();
            *of.sessions.entry(state_name(session.state)).or_default() += 1;
            of.received += session.counts.received as u64;
            of.announced += session.counts.announced as u64;
        }
        BgpMetrics {
            peers,
            refused_connections: self.speaker.refused_connections(),
            problems: self.problems.len() as u64,
        }
    }
}

fn happening(
    SessionStatus { peer, name, system, state, last_error, .. }: &SessionStatus,
    is_up: bool,
) -> Happening {
    let session = format!("BGP session with {name} ({peer}, AS {system})");
    let (reason, text) = if is_up {
        ("BgpSessionUp", format!("{session} is established again"))
    } else {
        let why = last_error.as_ref().map(|it| format!(": {it}")).unwrap_or_default();
        ("BgpSessionDown", format!("{session} is down, {state}{why}"))
    };
    Happening { reason, action: "Speak", is_warning: !is_up, text }
}

/// The addresses by which the node speaks BGP, each with its source.
pub(in crate::node) fn addresses(contents: &Contents, node: &str) -> Vec<BgpAddress> {
    let Some((addresses, source)) = peers::addresses(contents, node) else { return Vec::new() };
    let one = |address: IpAddr| {
        let source = match (source, address.is_ipv4()) {
            (AddressSource::InternalIp, _) => "InternalIP",
            (AddressSource::Annotation, true) => "annotation projectcalico.org/IPv4Address",
            (AddressSource::Annotation, false) => "annotation projectcalico.org/IPv6Address",
        };
        BgpAddress { address, source: source.to_owned() }
    };
    addresses.into_iter().map(one).collect()
}

/// The type of a peer as a label of metrics.
const fn name(kind: PeerType) -> &'static str {
    match kind {
        PeerType::Global => "global",
        PeerType::Node => "node",
        PeerType::Mesh => "mesh",
    }
}

/// A state as a label of metrics.
const fn state_name(state: SessionState) -> &'static str {
    match state {
        SessionState::Idle => "idle",
        SessionState::Connect => "connect",
        SessionState::Active => "active",
        SessionState::OpenSent => "opensent",
        SessionState::OpenConfirm => "openconfirm",
        SessionState::Established => "established",
    }
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use super::*;

    #[test]
    fn an_event_names_the_peer_and_says_why() {
        let mut session = SessionStatus {
            peer: "10.0.0.1".parse().unwrap(),
            name: "rack".to_owned(),
            kind: PeerType::Global,
            system: 65001,
            state: SessionState::Active,
            since: SystemTime::UNIX_EPOCH,
            last_error: None,
            established: None,
            counts: manx_bgp::table::Counts::default(),
            malformed: 0,
            unannounced: 0,
        };
        let mut told = vec![happening(&session, true).text, happening(&session, false).text];
        session.last_error = Some("the peer says Administrative Shutdown (6/2)".to_owned());
        told.push(happening(&session, false).text);
        insta::assert_snapshot!(told.join("\n"), @r"
        BGP session with rack (10.0.0.1, AS 65001) is established again
        BGP session with rack (10.0.0.1, AS 65001) is down, Active
        BGP session with rack (10.0.0.1, AS 65001) is down, Active: the peer says Administrative Shutdown (6/2)
        ");
    }
}
