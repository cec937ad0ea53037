//! What follows when an input has changed, in one order: objects → cluster → place → services → tables.
//!
//! The control loop settles once a turn, and but for the first import and place of a start nothing else makes a step of
//! this. It depends on what the inputs are, and not on the way there: any order and any batches of the same changes lead to
//! the same state (but for a cluster in which the node has no place, which leaves the last topology in force, and for
//! service endpoints behind another plugin, which stay pods until no slice names them).

use std::sync::Arc;
use std::time::Instant;

use manx_dataplane::tables::{PortId, Tables};

use super::calculated::{Calculated, Locals};
use super::inputs::{Inputs, Unsettled};
use super::view::View;
use manx_calculation::calc::NextStep;

/// What has come of it.
#[derive(Debug, Default)]
pub(super) struct Settled {
    /// Whether the place of the node may have changed.
    pub(super) placed: bool,
    /// Tables that are to be published. `None`: those in use say all of it, or stay because others are refuted.
    pub(super) tables: Option<Arc<Tables>>,
    /// When the first change of objects was received that is in force now.
    pub(super) received: Option<Instant>,
}

/// Settles what is unsettled. Before tables say so, `follow_place` makes the node's own network follow its place if that
/// may have changed, and `open_vxlan` opens VXLAN's socket if a tunnel asks for it the first time, or if that is to be
/// tried again; it returns the port.
pub(super) fn settle(
    inputs: &mut Inputs,
    view: &mut View,
    calculated: &mut Calculated,
    locals: &Locals<'_>,
    follow_place: impl FnOnce(&View),
    open_vxlan: impl FnOnce(&View) -> Option<PortId>,
) -> Settled {
    let Unsettled { objects, received, mut place, mut tables, socket } = inputs.take_unsettled();
    let mut services = false;
    if let Some(changes) = &objects {
        match calculated.apply_delta(inputs, view, changes) {
            NextStep::Nothing(_) => {}
            NextStep::Tables => tables = true,
            NextStep::Routes { tables: needs_tables, .. } => {
                (place, tables) = (true, tables || needs_tables);
            }
            NextStep::Import => {
                view.import(inputs);
                (place, tables) = (true, true);
            }
        }
        services = view.services_rest_on(changes);
    }
    if place {
        if let Err(error) = view.place(inputs) {
            tracing::error!(%error, "the node cannot be placed; the routes stay as they were");
        }
        follow_place(view);
    }
    let vxlan = &mut calculated.own.underlay.vxlan;
    if (place || socket) && vxlan.is_none() {
        *vxlan = open_vxlan(view);
        tables |= vxlan.is_some();
    }
    tables |= (place || services) && view.follow_services(inputs);
    if tables {
        calculated.own.underlay.next_hops.clone_from(inputs.next_hops());
    }
    let made = if tables || (place && !calculated.change_routes(view, locals)) {
        calculated.make(inputs, view, locals)
    } else {
        None
    };
    let received = received.filter(|_| !calculated.is_refuted());
    Settled { placed: place, tables: made, received }
}

#[cfg(test)]
mod tests;
