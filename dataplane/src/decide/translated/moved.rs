//! Connections whose packets come by another node than before, because a router chooses their way anew.
//!
//! The other node chooses the same backend ([`choose`](crate::services::choose)). What this node
//! knows of the connection by its old way gives way:
//!
//! | before | now | what gives way |
//! |---|---|---|
//! | another node brought the client here | this node does | the visitor's flow: [`free_key`] |
//! | this node led him to its own backend | another node brings him | the translated flow: [`gives_way`] |
//! | another node brought him | a third one does | the visitor's flow: [`visitor::has_moved`] |
//!
//! A first packet takes nothing away: it opens a connection, and who has the addresses and ports of one that is there
//! waits until that ends. Of UDP nobody can tell a first packet.

use crate::decide::address_lookup::{by_return_path, lookup_ends};
use crate::decide::metadata::PacketMetadata;
use crate::decide::state::DecisionState;
use crate::decide::visitor;
use crate::flow::{DirectedKey, EndReason, FlowDirection, TwoKeys};
use crate::services::{Frontend, FrontendKey};
use crate::tables::{NextHop, Tables};

/// Whether the connections of clients from outside to a frontend, at an address with this next hop, may come by any
/// node.
pub(super) fn takes_moved(frontend: &Frontend, asked: NextHop) -> bool {
    // Another next hop: the address is a node's.
    frontend.takes_visitors && asked == NextHop::Service
}

/// Frees the second key of a flow that may have moved here from another node, if a visitor's flow has it.
pub(super) fn free_key(state: &mut DecisionState, second: &DirectedKey, now: u32) {
    let hash = state.flows.hash(&second.key);
    let holder = state.flows.find(hash, &second.key);
    let Some(entry) = state.flows.live_entry(holder, now) else { return };
    let from = entry.next_hop_pair(FlowDirection::Original).from;
    let is_visitors = !entry.has_two_keys()
        && entry.original() == second.original
        && matches!(NextHop::decode(from), NextHop::Visitor(_));
    if is_visitors {
        state.flows.remove_found(holder, now, EndReason::Replaced);
    }
}

/// Whether a translated flow with these keys gives way to a packet that has its second key and comes as a client's:
/// another node brings the client now, to the backend that this node had chosen.
pub(super) fn gives_way(
    tables: &Tables,
    TwoKeys { first, second }: &TwoKeys,
    metadata: &PacketMetadata,
) -> bool {
    let [asked, behind] = [first, second].map(|it| it.key.destination(it.original));
    let [client, seen] = [first, second].map(|it| it.key.source(it.original));
    let (address, port) = asked;
    let frontend = FrontendKey { address, protocol: first.key.protocol(), port };
    let moves = || {
        let services = tables.services.as_deref();
        let frontend = services.and_then(|it| it.frontend(&frontend));
        frontend.is_some_and(|it| takes_moved(it, tables.next_hop(address)))
    };
    let is_brought = || {
        let found = lookup_ends(tables, client.0, behind.0);
        let (pair, ends) = by_return_path(tables, metadata.entrance.return_path(), found);
        matches!(ends.from, NextHop::Visitor(_))
            && metadata.entrance.admits_flow(pair, FlowDirection::Original)
            && !visitor::is_stray(tables, (&second.key, second.original), &ends)
    };
    client == seen && metadata.is_under_way() && moves() && is_brought()
}
