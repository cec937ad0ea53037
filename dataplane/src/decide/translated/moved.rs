//! Connections whose packets now enter the cluster by another node, because a router has chosen another path for them.
//!
//! All nodes choose the same backend for such a connection ([`choose`](crate::services::choose)). The flow that this
//! node has stored for the old path is replaced:
//!
//! | the client's packets came before | and come now | the flow that is replaced |
//! |---|---|---|
//! | from another node, by its tunnel | into the cluster by this node | the visitor's flow: [`free_key`] |
//! | into the cluster by this node, to its own backend | from another node, by its tunnel | the translated flow: [`gives_way`] |
//! | from another node, by its tunnel | from a third node, by its tunnel | the visitor's flow: [`has_moved`] |
//!
//! A packet that opens a connection (a SYN of TCP) replaces no flow. If a connection with the same addresses and ports
//! exists, the new connection waits until that one ends. UDP has no first packet that can be recognized, so any packet
//! of UDP may replace a flow.
//!
//! A packet of the client cannot be distinguished from a stranger's packet with the same source address. So a
//! connection moves only if its replies have the same source address as before, whichever node sends them. This is so
//! if clients from outside reach the backend by a single frontend, and if the frontend's address belongs to no node
//! ([`only_shared_way`]). Otherwise the backend's next segment would reach the client from another address, and the
//! client would answer it with a reset.

use crate::decide::address_lookup::{by_return_path, lookup_ends};
use crate::decide::metadata::PacketMetadata;
use crate::decide::state::DecisionState;
use crate::decide::visitor;
use crate::flow::{DirectedKey, EndReason, FlowDirection, TwoKeys};
use crate::services::{Frontend, FrontendKey};
use crate::tables::{EncodedNextHop, NextHop, Tables};
use crate::wire::protocol;

/// Whether all nodes choose the same backend for a client from outside that uses this frontend, because the client's
/// packets may enter the cluster by any node. `asked` is the next hop of the frontend's address.
pub(super) fn is_shared(frontend: &Frontend, asked: NextHop) -> bool {
    // With any other next hop, the address belongs to a node.
    frontend.takes_visitors && asked == NextHop::Service
}

/// The only frontend by which clients from outside reach a backend. `None`: there is not exactly one, or not all nodes
/// choose the same backend for its clients ([`is_shared`]).
pub(super) fn only_shared_way(tables: &Tables, backend: &FrontendKey) -> Option<FrontendKey> {
    let services = tables.services.as_deref()?;
    let way = services.only_way(backend)?;
    let frontend = services.frontend(&way)?.of(true);
    is_shared(frontend, tables.next_hop(way.address)).then_some(way)
}

/// Whether a packet belongs to an existing connection of a visitor, but comes by the tunnel of another node than
/// before. Then a router has chosen another path for the connection. `from` is the next hop of the connection's client.
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

/// Removes a visitor's flow whose key is needed as the second key of a connection that may have moved here from another
/// node.
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

/// Whether a translated flow with these keys gives way to a packet that has its second key and its original direction.
/// Then the client's packets, which entered the cluster by this node before, now come from another node by its tunnel.
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

/// Whether a flow of this protocol may begin with a packet from the middle of a connection.
pub(super) fn opens_midway(tables: &Tables, of: u8) -> bool {
    of != protocol::TCP || !tables.connections.tcp_strict
}
