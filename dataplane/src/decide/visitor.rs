//! Clients from outside whom another node has led to a backend on this one, so that the backend sees their own address.
//!
//! A tunnel brings sources of its own node, and no others ([`Entrance::tunnel`](super::Entrance::tunnel)). Visitors are the
//! exception: they are let in as far as some frontend leads to the address and port that they ask, and are judged by policy
//! as themselves. The node that brought them has chosen the backend, so a taken node can say that anybody asks there; it
//! can do so at its own node ports, too.

use crate::flow::{FlowKey, Orientation};
use crate::policy::FlowEnds;
use crate::services::FrontendKey;
use crate::tables::{NextHop, Tables};

/// Whether the source of a flow or of a packet, which has this next hop, is a visitor: it is outside of the cluster and comes
/// in by another node's tunnel.
#[inline]
pub(super) fn is_visitor(from: NextHop) -> bool {
    matches!(from, NextHop::Visitor(_))
}

/// Whether a packet comes from a visitor who was led to no backend of this node, and so may open nothing.
#[inline]
pub(super) fn is_stray(
    tables: &Tables,
    (key, orientation): (&FlowKey, Orientation),
    ends: &FlowEnds,
) -> bool {
    is_visitor(ends.from) && !is_led(tables, (key, orientation), ends)
}

#[cold]
#[inline(never)]
fn is_led(tables: &Tables, (key, to): (&FlowKey, Orientation), ends: &FlowEnds) -> bool {
    let asked = FrontendKey::asked_by(key, to);
    let is_backend = tables.services.as_deref().is_some_and(|it| it.leads_visitors_to(&asked));
    matches!(ends.to, NextHop::Endpoint(_)) && is_backend
}
