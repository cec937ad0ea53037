//! Opens the flow of a packet that is translated.

use manx_policy_compiler::model::Protocol;

use super::judge::{epoch_of, evaluate, leads};
use super::moved::{free_key, is_shared, only_shared_way, opens_midway};
use super::second_key::{NoKey, Wanted, reserve_second_key};
use super::source::{SourceBehind, source_behind};
use crate::decide::address_lookup::by_return_path;
use crate::decide::flow_decision::FlowDecision;
use crate::decide::metadata::PacketMetadata;
use crate::decide::state::DecisionState;
use crate::decide::stored_decision::{count_packet, translated_owner, write_decision};
use crate::drop_reason::DropReason;
use crate::flow::{DirectedKey, FlowDirection, Found};
use crate::policy::FlowEnds;
use crate::report::PortRefused;
use crate::rewrite::Translation;
use crate::services::{FrontendKey, WithoutBackend, choose};
use crate::tables::{EncodedNextHop, NextHop, NextHopPair, Tables};
use crate::wire::address::Address;
use crate::wire::protocol;

/// Whether packets to this next hop may be translated.
#[inline]
pub(in crate::decide) fn may_open(tables: &Tables, to: NextHop) -> bool {
    match to {
        NextHop::Service | NextHop::Node => tables.services.is_some(),
        NextHop::World => tables.manx_ports.is_some(),
        _ => false,
    }
}

/// Opens the flow of a packet that is translated, if policy allows it. The packet goes to a service's address, to a
/// port of the node's address that belongs to a service, or to the world. The arguments are its next hops, its ends,
/// and the place for its flow. `None`: it is not translated.
#[inline(never)]
pub(in crate::decide) fn open(
    tables: &Tables,
    state: &mut DecisionState,
    metadata: &PacketMetadata,
    (asked_pair, asked, found): (NextHopPair, FlowEnds, Found),
    now: u32,
) -> Option<FlowDecision> {
    let name = &metadata.flow;
    let first = DirectedKey { key: name.key, original: name.orientation };
    let client = name.key.source(name.orientation);
    let asked_for = name.key.destination(name.orientation);
    let choice = choose_destination(tables, state, metadata, (asked_pair, &asked), now);
    let Chosen { destination, to_visit, takes_moved } = match choice {
        Choice::Destination(chosen) => chosen,
        Choice::Decided(decision) => return Some(decision),
        Choice::Untranslated => return None,
    };
    // The epoch is read before the look-up, so that a change during the look-up is noticed.
    let epoch = epoch_of(tables, [client.0, destination.0]);
    let of_destination = state.source_cache.lookup_ends(tables, client.0, destination.0);
    let (pair, ends) = by_return_path(tables, metadata.entrance.return_path(), of_destination);
    let is_service = destination != asked_for;
    let source = source_behind(tables, &ends, [client.0, destination.0], is_service);
    if source == Ok(SourceBehind::Client) && !is_service {
        return None;
    }
    let Ok(source) = source else {
        return Some(FlowDecision::drop(DropReason::NoRoute));
    };
    // Only a connection whose backend sees the client's own address and port can have moved here from another node.
    let takes_moved = takes_moved && source == SourceBehind::Client;
    if is_lost(metadata) && !takes_moved {
        return Some(FlowDecision::refuse(DropReason::TcpWithoutFlow));
    }
    if !leads(tables, (is_service, to_visit), &ends) {
        return Some(FlowDecision::drop(DropReason::NoRoute));
    }
    let pair = source.leave(pair);
    let verdict = evaluate(tables, &first, asked, (ends, destination.1));
    if verdict.denied.is_some() || tables.link(NextHop::decode(pair.to)).is_none() {
        return Some(FlowDecision::from_verdict(pair, &verdict));
    }
    if let Some(worker) = state.flows.reserve_shard(name.hash, found) {
        return Some(FlowDecision::hand_off(worker));
    }
    if takes_moved {
        free_key(state, &source.second_key(&first, client.1, destination), now);
    }
    let owner = translated_owner(tables, &first, &ends);
    let wanted = Wanted { first: &first, source, destination, owner };
    let reserved = match reserve_second_key(state, found, &wanted, now) {
        Ok(reserved) => reserved,
        Err(none) => {
            state.flows.release_shard(name.hash, found);
            return Some(without_key(state, metadata, &wanted, &none, now));
        }
    };
    let second = reserved.key();
    if is_lost(metadata) && second.key.source(second.original) != client {
        state.flows.release_second_key(reserved);
        state.flows.release_shard(name.hash, found);
        return Some(FlowDecision::refuse(DropReason::TcpWithoutFlow));
    }
    let place = (name.hash, found, owner);
    let evicted = state.flows.insert_with_second_key(place, reserved, now, |entry| {
        entry.open(&name.key, name.orientation, metadata.tcp_flags, now);
        if matches!(source, SourceBehind::Node(..)) {
            entry.go_outward();
        }
        write_decision(entry, tables, (pair, &ends), &verdict);
        entry.epoch = epoch;
        count_packet(entry, metadata, FlowDirection::Original, now);
    });
    let live = evicted.into_iter().flatten().filter(|it| it.is_live());
    state.evictions += live.count() as u64;
    let translation = Translation { key: second.key, orientation: second.original };
    Some(FlowDecision::from_verdict(pair, &verdict).translated(translation))
}

/// The decision on a packet whose flow gets no second key at this worker.
fn without_key(
    state: &mut DecisionState,
    metadata: &PacketMetadata,
    Wanted { source, destination: (address, port), owner, .. }: &Wanted<'_>,
    NoKey { most, holders, owner: most_of }: &NoKey,
    now: u32,
) -> FlowDecision {
    if let Some(worker) = most.filter(|_| metadata.handoffs == 0) {
        return FlowDecision::hand_off(worker);
    }
    if matches!(source, SourceBehind::Node(..)) {
        state.refusal.note(now, || PortRefused {
            owner: *owner,
            protocol: metadata.flow.key.protocol(),
            destination: address.to_ip(),
            destination_port: *port,
            holders: *holders,
            most: *most_of,
        });
    }
    FlowDecision::drop(DropReason::NoFreePort)
}

/// Whether a packet without a flow belongs to a TCP connection that was already open. Then it is no longer known which
/// backend or which masqueraded source port the connection has. Callers make an exception for a connection that may
/// have moved here from another node, because all nodes choose the same backend for it.
fn is_lost(metadata: &PacketMetadata) -> bool {
    metadata.flow.key.protocol() == protocol::TCP && metadata.is_under_way()
}

/// The destination of a new flow.
enum Choice {
    Destination(Chosen),
    /// The packet is already decided, without a destination.
    Decided(FlowDecision),
    /// The packet is not translated and keeps its destination.
    Untranslated,
}

/// The chosen destination of a new flow.
struct Chosen {
    /// The destination after the translation: a backend, if a service has the address and port that the packet names,
    /// else that address and port.
    destination: (Address, u16),
    /// Whether a client from outside may also get a backend on another node.
    to_visit: bool,
    /// Whether the packet may belong to a connection that has moved here from another node.
    takes_moved: bool,
}

/// Chooses the destination of a new flow.
fn choose_destination(
    tables: &Tables,
    state: &mut DecisionState,
    metadata: &PacketMetadata,
    (pair, ends): (NextHopPair, &FlowEnds),
    now: u32,
) -> Choice {
    let name = &metadata.flow;
    let (address, port) = name.key.destination(name.orientation);
    if ends.to == NextHop::World {
        let destination = (address, port);
        return Choice::Destination(Chosen { destination, to_visit: false, takes_moved: false });
    }
    let protocol = name.key.protocol();
    let asked = FrontendKey { address, protocol, port };
    let frontend = tables.services.as_ref().and_then(|services| services.frontend(&asked));
    let Some(frontend) = frontend else {
        return without_frontend(tables, pair, ends, (protocol, port));
    };
    let is_outside = ends.from == NextHop::World;
    let frontend = frontend.of(is_outside);
    let client = name.key.source(name.orientation);
    if !frontend.clients.has(client.0) {
        return Choice::Decided(FlowDecision::drop(DropReason::ServiceSourceRanges));
    }
    let is_alike = is_outside && is_shared(frontend, ends.to);
    if is_lost(metadata) && !is_alike {
        return Choice::Decided(FlowDecision::refuse(DropReason::TcpWithoutFlow));
    }
    let chance = (!is_alike).then(|| state.chance());
    match choose(frontend, &state.affinities, client, chance, now) {
        Some(backend) => {
            let behind = FrontendKey { address: backend.address, protocol, port: backend.port };
            let takes_moved = is_alike
                && metadata.is_under_way()
                && opens_midway(tables, protocol)
                && only_shared_way(tables, &behind) == Some(asked);
            let destination = (backend.address, backend.port);
            let to_visit = frontend.takes_visitors;
            Choice::Destination(Chosen { destination, to_visit, takes_moved })
        }
        None => Choice::Decided(match frontend.without_backend {
            WithoutBackend::Refuse => FlowDecision::refuse(DropReason::ServiceWithoutBackend),
            WithoutBackend::Drop => FlowDecision::drop(DropReason::ServiceWithoutBackend),
        }),
    }
}

/// The destination of a new flow to an address and port that no service has.
fn without_frontend(
    tables: &Tables,
    pair: NextHopPair,
    ends: &FlowEnds,
    (protocol, port): (u8, u16),
) -> Choice {
    let is_for_manx = pair.from == EncodedNextHop::MANX_PORTS;
    if ends.to == NextHop::Service {
        return Choice::Decided(FlowDecision::refuse(DropReason::ServiceWithoutPort));
    }
    let egress = tables.manx_ports.as_ref().map_or((0, 0), |ports| ports.egress);
    let is_of_way_out = (egress.0..=egress.1).contains(&port);
    let has_ports = Protocol::from_number(protocol).is_some();
    match (is_for_manx, has_ports) {
        (false, _) => Choice::Untranslated,
        // The node's kernel has received this message, too.
        (true, false) => Choice::Decided(FlowDecision::drop(DropReason::NotOurs)),
        // A port for masquerading gets no answer, so nothing shows whether it is in use (RFC 5382, section 4.3).
        (true, true) if is_of_way_out => {
            Choice::Decided(FlowDecision::drop(DropReason::UnknownPort))
        }
        (true, true) => Choice::Decided(FlowDecision::refuse(DropReason::UnknownPort)),
    }
}
