//! Settling: the agent's state follows its inputs, in one order: objects → cluster → place → services → tables.
//!
//! The control loop settles after each event. Only settling takes these steps, with one exception: at the start of the
//! agent, `View::open` imports the objects and calculates the node's place for the first time. The result depends only
//! on the inputs: the same changes in any order and in any batches lead to the same state. There are two exceptions.
//! First, if the node has no place in the new cluster, the last topology stays in force. Second, with another plugin,
//! the address of a service's endpoint that once was a pod's counts as a pod's until no slice names it. After settling,
//! `host_ports` decides which ports of the node pods get. That decision depends on the node's sockets at that time.

use std::sync::Arc;
use std::time::Instant;

use manx_dataplane::tables::Tables;

use super::calculated::{Calculated, Locals};
use super::inputs::{Inputs, Unsettled};
use super::node_services::ServiceChange;
use super::view::View;
use crate::host_device::ChangedRoutes;
use manx_calculation::calc::NextStep;
use manx_calculation::overlay::Sockets;

/// The result of settling.
#[derive(Debug, Default)]
pub(super) struct Settled {
    /// Whether the node's place may have changed.
    pub(super) placed: bool,
    /// The tables to publish: new ones, or those in use with other services. `None` if the tables in use contain all
    /// changes, or if they stay because the new tables are refuted.
    pub(super) tables: Option<Arc<Tables>>,
    /// The time when the first change of objects arrived that is now in force.
    pub(super) received: Option<Instant>,
    /// Whether the node's BGP peers, or the routes announced to them, may have changed.
    pub(super) peers: bool,
}

/// The part of the node's own network that may have changed.
#[derive(Debug)]
pub(super) enum HostUpdate {
    /// Any part: the node's place has changed.
    All,
    /// Only these routes.
    Routes(ChangedRoutes),
}

/// Settles all unsettled changes. Before new tables are made, `update_host` updates the node's own network, and
/// `open_sockets` opens the sockets that tunnels need and that are not already open.
pub(super) fn settle(
    inputs: &mut Inputs,
    view: &mut View,
    calculated: &mut Calculated,
    locals: &Locals<'_>,
    update_host: impl FnOnce(&View, HostUpdate),
    open_sockets: impl FnOnce(&View, &Sockets) -> Sockets,
) -> Settled {
    let Unsettled { objects, received, mut place, mut tables, socket, peers, ways_out } =
        inputs.take_unsettled();
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
    }
    if place && let Err(error) = view.place(inputs) {
        tracing::error!(%error, "the node cannot be placed; the routes stay as they were");
    }
    let services = view.update_services(inputs, objects.as_ref(), place);
    let announced = objects.as_ref().is_some_and(|changes| view.update_announced(inputs, changes))
        || view.translates_other_addresses();
    let addresses = match &services {
        ServiceChange::Addresses(addresses) => Some(addresses),
        ServiceChange::None | ServiceChange::Tables => None,
    };
    if place || ways_out {
        view.set_ways_out(inputs);
        update_host(view, HostUpdate::All);
    } else if let Some(routes) = addresses.map(|it| view.changed_routes(it))
        && !routes.is_empty()
    {
        update_host(view, HostUpdate::Routes(routes));
    }
    let sockets = &mut calculated.own.underlay.sockets;
    if place || socket {
        let opened = open_sockets(view, sockets);
        tables |= !opened.is_empty();
        sockets.extend(opened);
    }
    tables |= services == ServiceChange::Tables;
    let routes = place || addresses.is_some();
    let only = addresses.filter(|_| !place).map(|it| &it.translated);
    if tables {
        calculated.own.underlay.next_hops.clone_from(inputs.next_hops());
    }
    let made = if tables || (routes && !calculated.change_routes(view, locals, only)) {
        calculated.calculate_tables(inputs, view, locals)
    } else {
        None
    };
    let made = made.or_else(|| calculated.replace_services(view));
    let received = received.filter(|_| !calculated.is_refuted());
    Settled { placed: place, tables: made, received, peers: peers || place || announced }
}

#[cfg(test)]
mod tests;
