//! Connections whose packets arrive by another node than before, because a router has chosen another way for them.
//!
//! The other node chooses the same backend ([`choose`](crate::services::choose)). The flow that this node has for the
//! old way is replaced:
//!
//! | before | now | the flow that is replaced |
//! |---|---|---|
//! | another node brought the client here | this node leads the client itself | the visitor's flow: [`free_key`] |
//! | this node led the client to its own backend | another node brings the client | the translated flow: [`gives_way`] |
//! | another node brought the client | a third node brings it | the visitor's flow: [`has_moved`] |
//!
//! A first packet replaces nothing: it opens a connection, and a connection with the same addresses and ports as an
//! existing one waits until that one ends. UDP has no first packet that can be recognized.
//!
//! Nor can a packet of the client be distinguished from one of a stranger with the same source address. So a connection
//! moves only where replies come from the same address as before, whichever node they leave. This holds if a single
//! frontend leads clients from outside to the backend, and if its address is no node's ([`only_shared_way`]). Otherwise
//! the backend's next segment would reach the client from another address, and the client would answer it with a reset.

use crate::decide::address_lookup::{by_return_path, lookup_ends};
use crate::decide::metadata::PacketMetadata;
use crate::decide::state::DecisionState;
use crate::decide::visitor;
use crate::flow::{DirectedKey, EndReason, FlowDirection, TwoKeys};
use crate::services::{Frontend, FrontendKey};
use crate::tables::{EncodedNextHop, NextHop, Tables};
use crate::wire::protocol;

/// Whether all nodes choose the same backend for a client from outside that uses this frontend. `asked` is the next hop
/// of the frontend's address. Packets of such a client may come by any node.
pub(super) fn is_shared(frontend: &Frontend, asked: NextHop) -> bool {
    // With another next hop, the address is a node's.
    frontend.takes_visitors && asked == NextHop::Service
}

/// The only frontend by which clients from outside reach a backend, if they may come by any node.
pub(super) fn only_shared_way(tables: &Tables, backend: &FrontendKey) -> Option<FrontendKey> {
    let services = tables.services.as_deref()?;
    let way = services.only_way(backend)?;
    let frontend = services.frontend(&way)?.of(true);
    is_shared(frontend, tables.next_hop(way.address)).then_some(way)
}

/// Whether a packet belongs to an existing connection of a visitor that another node brought before. A router has then
/// chosen another way for the connection. `from` is the next hop of the connection's client.
#[inline]
pub(in crate::decide) fn has_moved(
    tables: &Tables,
    metadata: &PacketMetadata,
    from: EncodedNextHop,
) -> bool {
    visitor::is_visitor(NextHop::decode(from))
        && matches!(metadata.entrance.back(), NextHop::Tunnel(_))
        && !metadata.entrance.admits(from)
        && metadata.is_under_way()
        && only_shared_way(
            tables,
            &FrontendKey::asked_by(&metadata.flow.key, metadata.flow.orientation),
        )
        .is_some()
}

/// Removes a visitor's flow that has the second key of a flow that may have moved here from another node.
pub(super) fn free_key(state: &mut DecisionState, second: &DirectedKey, now: u32) {
    let hash = state.flows.hash(&second.key);
    let holder = state.flows.find(hash, &second.key);
    let Some(entry) = state.flows.live_entry(holder, now) else { return };
    let from = entry.next_hop_pair(FlowDirection::Original).from;
    let is_visitors = !entry.has_two_keys()
        && entry.original() == second.original
        && visitor::is_visitor(NextHop::decode(from));
    if is_visitors {
        state.flows.remove_found(holder, now, EndReason::Replaced);
    }
}

/// Whether a translated flow with these keys gives way to a packet that has its second key and comes as a client's
/// packet. Then another node now brings the client to the backend that this node had chosen.
pub(super) fn gives_way(tables: &Tables, keys: &TwoKeys, metadata: &PacketMetadata) -> bool {
    let TwoKeys { first, second } = keys;
    let [asked, backend] = [first, second].map(|it| FrontendKey::asked_by(&it.key, it.original));
    let [client, seen] = [first, second].map(|it| it.key.source(it.original));
    let is_brought = || {
        let found = lookup_ends(tables, client.0, backend.address);
        let (_, ends) = by_return_path(tables, metadata.entrance.return_path(), found);
        visitor::is_visitor(ends.from)
    };
    client == seen
        && metadata.is_under_way()
        && only_shared_way(tables, &backend) == Some(asked)
        && is_brought()
}

/// Whether a packet that is not the first one may open a connection of this protocol.
pub(super) fn opens_midway(tables: &Tables, of: u8) -> bool {
    of != protocol::TCP || !tables.connections.tcp_strict
}
