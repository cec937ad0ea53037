//! The backends that a new connection may get: the rules of traffic policies, hints and conditions.
//!
//! Sources: Kubernetes documentation, "Virtual IPs and Service Proxies", "Service Internal Traffic Policy" and
//! "Topology Aware Routing"; KEP-1669 (terminating endpoints), KEP-3015 and KEP-4444 (hints). kube-proxy decides alike.

use std::fmt;
use std::net::IpAddr;

use manx_dataplane::services::{Backend, WithoutBackend};
use manx_dataplane::wire::address::Address;
use manx_objects::contents::Contents;
use manx_objects::object::{Hints, Kind, Object, ObjectKey, SliceEndpoint};

/// The label of a node's zone.
pub(super) const ZONE: &str = "topology.kubernetes.io/zone";

/// The node whose clients get backends.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Here {
    pub(super) node: String,
    /// The label `topology.kubernetes.io/zone` of the node.
    pub(super) zone: Option<String>,
}

/// The zone of a node, if it is known.
pub fn zone(contents: &Contents, node: &str) -> Option<String> {
    match contents.valid(&ObjectKey::new(Kind::Node, "", node)) {
        Some(Object::Node(node)) => node.labels.get(ZONE).cloned(),
        _ => None,
    }
}

/// The endpoints that clients may get.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum TrafficPolicy {
    /// All of the cluster's, unless hints say which ones are meant for this node.
    Cluster,
    /// The same, whatever hints say: every node's clients get the same ones.
    Alike,
    /// Those of this node only.
    Local,
}

/// Why new connections do not get an endpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum LeftOut {
    /// Its address is loopback, link-local, multicast or reserved.
    Address,
    /// Its slice has no port with the name and the protocol of the Service's port.
    Port,
    /// It is not ready, and does not serve while it terminates.
    NotReady,
    /// It terminates, and another one is ready.
    Terminating,
    /// It is on another node, and the traffic policy is `Local`.
    OtherNode,
    /// Hints mean it for other nodes.
    HintedNodes,
    /// Hints mean it for other zones.
    HintedZones,
}

impl fmt::Display for LeftOut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Address => "its address is loopback, link-local, multicast or reserved",
            Self::Port => "its slice has no port of this name and protocol",
            Self::NotReady => "not ready",
            Self::Terminating => "it terminates, and others are ready",
            Self::OtherNode => "it is on another node, and the traffic policy is Local",
            Self::HintedNodes => "hints mean it for other nodes",
            Self::HintedZones => "hints mean it for other zones",
        })
    }
}

/// An endpoint at one of its ports.
#[derive(Debug, Clone, Copy)]
pub(super) struct Candidate<'a> {
    pub(super) endpoint: &'a SliceEndpoint,
    pub(super) port: u16,
}

/// Whether packets may be sent to a backend with this address. The API server takes no others; manifests may have any.
pub(super) fn can_be_backend(address: IpAddr) -> bool {
    let is_link_local = matches!(address, IpAddr::V4(v4) if v4.is_link_local());
    !is_link_local && Address::from(address).is_forwardable()
}

/// How the backends for clients of a node are chosen among the endpoints of a frontend.
///
/// Ready endpoints count. If none is ready, those count that still serve while they terminate.
#[derive(Debug, Clone, Copy)]
pub(super) struct Choice<'a> {
    policy: TrafficPolicy,
    here: &'a Here,
    hinted: Hinted,
    takes_terminating: bool,
}

impl<'a> Choice<'a> {
    pub(super) fn new(candidates: &[Candidate<'_>], policy: TrafficPolicy, here: &'a Here) -> Self {
        let hinted = match policy {
            TrafficPolicy::Cluster => Hinted::of(candidates, here),
            TrafficPolicy::Alike | TrafficPolicy::Local => Hinted::Not,
        };
        let of_ready = Self { policy, here, hinted, takes_terminating: false };
        let takes_terminating = !candidates.iter().any(|it| of_ready.leaves_out(it).is_none());
        Self { takes_terminating, ..of_ready }
    }

    /// Why clients do not get an endpoint; `None`: they may get it.
    pub(super) fn leaves_out(&self, candidate: &Candidate<'_>) -> Option<LeftOut> {
        let endpoint = candidate.endpoint;
        let is_local = || endpoint.node.as_deref() == Some(&*self.here.node);
        let serves_still = endpoint.serving && endpoint.terminating;
        if !endpoint.ready && !serves_still {
            Some(LeftOut::NotReady)
        } else if self.policy == TrafficPolicy::Local && !is_local() {
            Some(LeftOut::OtherNode)
        } else if endpoint.ready {
            self.hinted.leaves_out(candidate, self.here)
        } else {
            (!self.takes_terminating).then_some(LeftOut::Terminating)
        }
    }
}

/// The backends for clients of this node, sorted and each once, and what becomes of a connection if there is none.
pub(super) fn select(
    candidates: &[Candidate<'_>],
    policy: TrafficPolicy,
    here: &Here,
) -> (Box<[Backend]>, WithoutBackend) {
    let choice = Choice::new(candidates, policy, here);
    let backends = backends(candidates, |it| choice.leaves_out(it).is_none());
    // Other nodes' clients may have a backend: then this node's get no answer, as if the service was far away.
    let is_elsewhere =
        || candidates.iter().any(|it| choice.leaves_out(it) == Some(LeftOut::OtherNode));
    let without = if backends.is_empty() && is_elsewhere() {
        WithoutBackend::Drop
    } else {
        WithoutBackend::Refuse
    };
    (backends, without)
}

/// All backends, whatever their conditions and nodes, sorted and each once.
pub(super) fn all(candidates: &[Candidate<'_>]) -> Box<[Backend]> {
    backends(candidates, |_| true)
}

/// The backends of some candidates, sorted and each once.
fn backends(
    candidates: &[Candidate<'_>],
    counts: impl Fn(&Candidate<'_>) -> bool,
) -> Box<[Backend]> {
    let counting = candidates.iter().filter(|it| counts(it));
    let mut backends: Vec<Backend> =
        counting.map(|it| Backend { address: it.endpoint.address.into(), port: it.port }).collect();
    backends.sort_unstable();
    backends.dedup();
    backends.into()
}

/// The hints by which endpoints are chosen.
#[derive(Debug, Clone, Copy)]
enum Hinted {
    Nodes,
    Zones,
    /// Hints do not matter: a ready endpoint has none, or none is for this node.
    Not,
}

impl Hinted {
    /// Hints of a kind count if every ready endpoint has one and some endpoint's is for this node. Those for nodes are
    /// asked first.
    fn of(candidates: &[Candidate<'_>], here: &Here) -> Self {
        let ready = || candidates.iter().filter(|it| it.endpoint.ready);
        let counts = |hinted: Self| {
            ready().all(|it| !hinted.names(it).is_empty())
                && ready().any(|it| hinted.is_for_here(it, here))
        };
        [Self::Nodes, Self::Zones].into_iter().find(|it| counts(*it)).unwrap_or(Self::Not)
    }

    /// The nodes or zones for which an endpoint is meant.
    fn names<'a>(self, candidate: &Candidate<'a>) -> &'a [Box<str>] {
        let Some(Hints { nodes, zones }) = candidate.endpoint.hints.as_deref() else { return &[] };
        match self {
            Self::Nodes => nodes,
            Self::Zones => zones,
            Self::Not => &[],
        }
    }

    /// Why clients do not get a ready endpoint.
    fn leaves_out(self, candidate: &Candidate<'_>, here: &Here) -> Option<LeftOut> {
        let reason = match self {
            Self::Nodes => LeftOut::HintedNodes,
            Self::Zones => LeftOut::HintedZones,
            Self::Not => return None,
        };
        (!self.is_for_here(candidate, here)).then_some(reason)
    }

    fn is_for_here(self, candidate: &Candidate<'_>, here: &Here) -> bool {
        let own = match self {
            Self::Nodes => Some(&here.node),
            Self::Zones => here.zone.as_ref(),
            Self::Not => return true,
        };
        own.is_some_and(|own| self.names(candidate).iter().any(|name| **name == **own))
    }
}
