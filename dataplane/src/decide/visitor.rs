//! Visitors: clients from outside that another node has led to a backend on this node. The backend sees a visitor's own
//! address.
//!
//! A tunnel brings sources of its own node, and no others ([`Entrance::tunnel`](super::Entrance::tunnel)). Visitors are
//! the exception. They are admitted if some frontend leads to the address and port of their packet, and policy judges
//! them by their own address. The node that brings a visitor has chosen the backend. So a compromised node can claim
//! that any client asks there; it could do the same at its own node ports.

use crate::flow::{FlowKey, Orientation};
use crate::policy::FlowEnds;
use crate::services::FrontendKey;
use crate::tables::{NextHop, Tables};

/// Whether this next hop of a source makes it a visitor: the source is outside of the cluster and comes in by another
/// node's tunnel.
#[inline]
pub(super) fn is_visitor(from: NextHop) -> bool {
    matches!(from, NextHop::Visitor(_))
}

/// Whether a packet comes from a visitor that no frontend leads to a backend of this node. Such a packet may open
/// nothing.
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
