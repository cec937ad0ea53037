//! Visitors: clients from outside of the cluster whose packets another node has sent on to a backend on this node. The
//! backend sees a visitor's own address.
//!
//! A tunnel admits only sources that belong to the node at its other end
//! ([`Entrance::tunnel`](super::Entrance::tunnel)). Visitors are the exception. A visitor is admitted if some frontend
//! leads to the address and port that its packet is sent to, and policy judges the visitor by its own address. The node
//! that sends the packet on has chosen the backend. So a compromised node can claim that any client sends packets to
//! such a backend; it could claim the same for its own node ports.

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

/// Whether a packet comes from a visitor and does not go to a backend of this node that visitors may reach. Such a
/// packet must not open a flow.
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
