//! Chooses the backends that a new connection may get, by the rules of traffic policies, hints and conditions.
//!
//! Sources: Kubernetes documentation, "Virtual IPs and Service Proxies", "Service Internal Traffic Policy" and
//! "Topology Aware Routing"; KEP-1669 (terminating endpoints), KEP-3015 and KEP-4444 (hints). kube-proxy makes the same
//! decisions.

use std::fmt;
use std::net::IpAddr;

use manx_dataplane::services::{Backend, WithoutBackend};
use manx_dataplane::wire::address::Address;
use manx_objects::contents::Contents;
use manx_objects::object::{Hints, Kind, Object, ObjectKey, SliceEndpoint};

/// The label with the zone of a node.
pub(super) const ZONE: &str = "topology.kubernetes.io/zone";

/// The node for whose clients backends are chosen.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Here {
    pub(super) node: String,
    /// The zone of the node, from the label `topology.kubernetes.io/zone`.
    pub(super) zone: Option<String>,
}

/// Returns the zone of a node, if it is known.
pub fn zone(contents: &Contents, node: &str) -> Option<String> {
    match contents.valid(&ObjectKey::new(Kind::Node, "", node)) {
        Some(Object::Node(node)) => node.labels.get(ZONE).cloned(),
        _ => None,
    }
}

/// Which endpoints clients may get.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum TrafficPolicy {
    /// All endpoints of the cluster. If hints are used, only those that are assigned to this node.
    Cluster,
    /// All endpoints of the cluster, without regard to hints, so that the clients of every node get the same ones.
    Consistent,
    /// Only endpoints on this node.
    Local,
}

/// The reason why new connections do not get an endpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum LeftOut {
    /// The endpoint's address is loopback, link-local, multicast or reserved.
    Address,
    /// The endpoint's slice has no port with the name and the protocol of the Service's port.
    Port,
    /// The endpoint is not ready, and is not one that still serves while it terminates.
    NotReady,
    /// The endpoint is terminating, and another one is ready.
    Terminating,
    /// The endpoint is on another node, and the traffic policy is `Local`.
    OtherNode,
    /// Hints assign the endpoint to other nodes.
    HintedNodes,
    /// Hints assign the endpoint to other zones.
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

/// An endpoint with one of its ports.
#[derive(Debug, Clone, Copy)]
pub(super) struct Candidate<'a> {
    pub(super) endpoint: &'a SliceEndpoint,
    pub(super) port: u16,
}

/// Returns whether packets may be sent to a backend with this address. The API server accepts no other addresses, but
/// manifests may contain any.
pub(super) fn can_be_backend(address: IpAddr) -> bool {
    let is_link_local = matches!(address, IpAddr::V4(v4) if v4.is_link_local());
    !is_link_local && Address::from(address).is_forwardable()
}

/// The choice of backends for clients of a node, among the endpoints of a frontend.
///
/// Ready endpoints are chosen. If none is ready, endpoints that still serve while they terminate are chosen.
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
            TrafficPolicy::Consistent | TrafficPolicy::Local => Hinted::Not,
        };
        let of_ready = Self { policy, here, hinted, takes_terminating: false };
        let takes_terminating = !candidates.iter().any(|it| of_ready.leaves_out(it).is_none());
        Self { takes_terminating, ..of_ready }
    }

    /// Returns the reason why clients do not get an endpoint, or `None` if they may get it.
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

/// Returns the backends for clients of this node, sorted and without duplicates, and what happens to a connection if
/// there is none.
pub(super) fn select(
    candidates: &[Candidate<'_>],
    policy: TrafficPolicy,
    here: &Here,
) -> (Box<[Backend]>, WithoutBackend) {
    let choice = Choice::new(candidates, policy, here);
    let backends = backends(candidates, |it| choice.leaves_out(it).is_none());
    // Clients of other nodes may have a backend. In that case, clients of this node get no answer instead of a refusal.
    let is_elsewhere =
        || candidates.iter().any(|it| choice.leaves_out(it) == Some(LeftOut::OtherNode));
    let without = if backends.is_empty() && is_elsewhere() {
        WithoutBackend::Drop
    } else {
        WithoutBackend::Refuse
    };
    (backends, without)
}

/// Returns all backends, without regard to their conditions and nodes, sorted and without duplicates.
pub(super) fn all(candidates: &[Candidate<'_>]) -> Box<[Backend]> {
    backends(candidates, |_| true)
}

/// Returns the backends of some candidates, sorted and without duplicates.
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

/// The type of hints by which endpoints are chosen.
#[derive(Debug, Clone, Copy)]
enum Hinted {
    Nodes,
    Zones,
    /// Hints are ignored: a ready endpoint has none, or none of them names this node or zone.
    Not,
}

impl Hinted {
    /// Hints of a type are used if every ready endpoint has one and at least one names this node or its zone. Hints for
    /// nodes take precedence over hints for zones.
    fn of(candidates: &[Candidate<'_>], here: &Here) -> Self {
        let ready = || candidates.iter().filter(|it| it.endpoint.ready);
        let counts = |hinted: Self| {
            ready().all(|it| !hinted.names(it).is_empty())
                && ready().any(|it| hinted.is_for_here(it, here))
        };
        [Self::Nodes, Self::Zones].into_iter().find(|it| counts(*it)).unwrap_or(Self::Not)
    }

    /// Returns the nodes or zones to which hints of this type assign an endpoint.
    fn names<'a>(self, candidate: &Candidate<'a>) -> &'a [Box<str>] {
        let Some(Hints { nodes, zones }) = candidate.endpoint.hints.as_deref() else { return &[] };
        match self {
            Self::Nodes => nodes,
            Self::Zones => zones,
            Self::Not => &[],
        }
    }

    /// Returns the reason why clients do not get a ready endpoint.
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
