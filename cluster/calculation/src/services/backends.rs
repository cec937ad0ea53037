//! The backends that a new connection may get: the rules of traffic policies, hints and conditions.
//!
//! Sources: Kubernetes documentation, "Virtual IPs and Service Proxies", "Service Internal Traffic Policy" and
//! "Topology Aware Routing"; KEP-1669 (terminating endpoints), KEP-3015 and KEP-4444 (hints). kube-proxy decides alike.

use std::net::IpAddr;

use manx_dataplane::services::{Backend, WithoutBackend};
use manx_dataplane::wire::address::Address;
use manx_objects::object::{Hints, SliceEndpoint};

/// The node whose clients get backends.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Here {
    pub(super) node: String,
    /// The label `topology.kubernetes.io/zone` of the node.
    pub(super) zone: Option<String>,
}

/// The endpoints that clients may get.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TrafficPolicy {
    /// All of the cluster's, unless hints say which ones are meant for this node.
    Cluster,
    /// Those of this node only.
    Local,
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

/// The backends for clients of this node, sorted and each once, and what becomes of a connection if there is none.
///
/// Ready endpoints count. If none is ready, those count that still serve while they terminate.
pub(super) fn select(
    candidates: &[Candidate<'_>],
    policy: TrafficPolicy,
    here: &Here,
) -> (Box<[Backend]>, WithoutBackend) {
    let is_ready = |it: &Candidate<'_>| it.endpoint.ready;
    let serves_still = |it: &Candidate<'_>| it.endpoint.serving && it.endpoint.terminating;
    let is_local = |it: &Candidate<'_>| it.endpoint.node.as_deref() == Some(&*here.node);
    let found = match policy {
        TrafficPolicy::Cluster => {
            let hinted = Hinted::of(candidates, here);
            let ready = backends(candidates, |it| is_ready(it) && hinted.is_for_here(it, here));
            ready.or_else(|| backends(candidates, serves_still))
        }
        TrafficPolicy::Local => {
            let ready = backends(candidates, |it| is_ready(it) && is_local(it));
            ready.or_else(|| backends(candidates, |it| serves_still(it) && is_local(it)))
        }
    };
    if let Some(found) = found {
        return (found, WithoutBackend::Refuse);
    }
    // Other nodes' clients may have a backend: then this node's get no answer, as if the service was far away.
    let is_elsewhere = candidates.iter().any(|it| is_ready(it) || serves_still(it));
    let without = if is_elsewhere { WithoutBackend::Drop } else { WithoutBackend::Refuse };
    (Box::default(), without)
}

/// All backends, whatever their conditions and nodes, sorted and each once.
pub(super) fn all(candidates: &[Candidate<'_>]) -> Box<[Backend]> {
    backends(candidates, |_| true).unwrap_or_default()
}

/// The backends of some candidates, sorted and each once; `None` if there is none.
fn backends(
    candidates: &[Candidate<'_>],
    counts: impl Fn(&Candidate<'_>) -> bool,
) -> Option<Box<[Backend]>> {
    let counting = candidates.iter().filter(|it| counts(it));
    let mut backends: Vec<Backend> =
        counting.map(|it| Backend { address: it.endpoint.address.into(), port: it.port }).collect();
    backends.sort_unstable();
    backends.dedup();
    (!backends.is_empty()).then(|| backends.into())
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

    fn is_for_here(self, candidate: &Candidate<'_>, here: &Here) -> bool {
        let own = match self {
            Self::Nodes => Some(&here.node),
            Self::Zones => here.zone.as_ref(),
            Self::Not => return true,
        };
        own.is_some_and(|own| self.names(candidate).iter().any(|name| **name == **own))
    }
}
