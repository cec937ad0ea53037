//! Connections whose packets come by another node than before, because a router chooses their way anew.
//!
//! The other node chooses the same backend ([`choose`](crate::services::choose)). What this node
//! knows of the connection by its old way gives way:
//!
//! | before | now | what gives way |
//! |---|---|---|
//! | another node brought the client here | this node does | the visitor's flow: [`free_key`] |
//! | this node led him to its own backend | another node brings him | the translated flow: [`gives_way`] |
//! | another node brought him | a third one does | the visitor's flow: [`has_moved`] |
//!
//! A first packet takes nothing away: it opens a connection, and who has the addresses and ports of one that is there
//! waits until that ends. Of UDP nobody can tell a first packet.
//!
//! Nobody can tell, either, whether the client has sent a packet, or a stranger with his address. So a connection moves only
//! where the answers come from the same address as before, whichever node they leave: where one frontend alone leads
//! clients from outside to the backend, at an address that is no node's ([`only_shared_way`]). Otherwise the client would
//! answer the backend's next segment, which comes from another address, by a reset.

use crate::decide::address_lookup::{by_return_path, lookup_ends};
use crate::decide::metadata::PacketMetadata;
use crate::decide::state::DecisionState;
use crate::decide::visitor;
use crate::flow::{DirectedKey, EndReason, FlowDirection, TwoKeys};
use crate::services::{Frontend, FrontendKey};
use crate::tables::{EncodedNextHop, NextHop, Tables};
use crate::wire::protocol;

/// Whether all nodes choose alike for clients from outside of a frontend, at an address with this next hop: they may come by
/// any node.
pub(super) fn is_shared(frontend: &Frontend, asked: NextHop) -> bool {
    // Another next hop: the address is a node's.
    frontend.takes_visitors && asked == NextHop::Service
}

/// The frontend by which all clients from outside reach a backend, if they may come by any node.
pub(super) fn only_shared_way(tables: &Tables, backend: &FrontendKey) -> Option<FrontendKey> {
    let services = tables.services.as_deref()?;
    let way = services.only_way(backend)?;
    let frontend = services.frontend(&way)?.of(true);
    is_shared(frontend, tables.next_hop(way.address)).then_some(way)
}

/// Whether a packet is of a connection that is there, of a visitor whom another node brought before: a router has chosen
/// its way anew. `from`: the next hop of the connection's client.
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

/// Frees the second key of a flow that may have moved here from another node, if a visitor's flow has it.
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

/// Whether a translated flow with these keys gives way to a packet that has its second key and comes as a client's:
/// another node brings the client now, to the backend that this node had chosen.
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

/// Whether a connection of this protocol may open by a packet that is not its first one.
pub(super) fn opens_midway(tables: &Tables, of: u8) -> bool {
    of != protocol::TCP || !tables.connections.tcp_strict
}
