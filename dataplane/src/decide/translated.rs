//! Flows that are translated: opened by the table of services, found by either of their keys, judged by what is behind the
//! translation.
//!
//! A flow's backend is chosen when the flow opens, and stays its backend. It is given up only when its address exists no
//! more: then TCP's client is told, and for other protocols the next packet chooses anew.

use manx_policy_compiler::model::{L4Header, Transport};

use super::address_lookup::{by_return_path, current_epoch, lookup_ends};
use super::flow_decision::FlowDecision;
use super::key::transport;
use super::metadata::PacketMetadata;
use super::route::{connects, forward_if_fits};
use super::state::DecisionState;
use super::tracked::{
    cached_verdict, count_packet, flow_owner, keeps_established, open_flow, refresh_stale,
    write_decision,
};
use crate::drop_reason::DropReason;
use crate::fate::Forwarding;
use crate::flow::{
    Admission, ClaimedKey, DirectedKey, Epoch, FlowDirection, FlowKey, FlowMut, FlowTable, Found,
    Orientation, PlaceInFlow, RuleCounters, TwoKeys, Verdict,
};
use crate::policy::{self, FlowEnds, PolicyVerdict, PolicyView, PolicyViews, UntrackedAllows};
use crate::rewrite::Translation;
use crate::services::{
    Backend, FrontendKey, HAIRPIN_V4, HAIRPIN_V6, ServiceTable, WithoutBackend, choose,
};
use crate::tables::{NextHop, NextHopPair, ReturnPath, Tables};
use crate::wire::address::Address;
use crate::wire::protocol;

/// The source ports that are tried for a flow until one is free behind the translation.
const PORT_TRIES: u32 = 32;
/// The first port that may take the place of a client's.
const FIRST_PORT: u16 = 1024;

/// Opens the flow of a packet to a service address, if policy allows it to the backend that is chosen. `asked`: the ends
/// of the packet as it came. `found`: the place for the flow.
#[inline(never)]
pub(super) fn open_to_service(
    tables: &Tables,
    services: &ServiceTable,
    state: &mut DecisionState,
    metadata: &PacketMetadata,
    (asked, found): (FlowEnds, Found),
    now: u32,
) -> FlowDecision {
    let name = &metadata.flow;
    let first = DirectedKey { key: name.key, original: name.orientation };
    let protocol = name.key.protocol();
    if protocol == protocol::TCP && !metadata.tcp_flags.opens() {
        // Nobody knows the backend of this connection.
        return FlowDecision::refuse(DropReason::TcpWithoutFlow);
    }
    let (client, client_port) = name.key.source(name.orientation);
    let (address, port) = name.key.destination(name.orientation);
    let Some(frontend) = services.frontend(&FrontendKey { address, protocol, port }) else {
        return FlowDecision::refuse(DropReason::ServiceWithoutPort);
    };
    let chance = state.chance();
    let Some(backend) = choose(frontend, &state.affinities, client, chance, now) else {
        return match frontend.without_backend {
            WithoutBackend::Refuse => FlowDecision::refuse(DropReason::ServiceWithoutBackend),
            WithoutBackend::Drop => FlowDecision::drop(DropReason::ServiceWithoutBackend),
        };
    };
    let of_backend = state.source_cache.lookup_ends(tables, client, backend.address);
    let (pair, ends) = by_return_path(tables, metadata.entrance.return_path(), of_backend);
    if ends.to == NextHop::Service || !connects(tables, ends.from, ends.to) {
        return FlowDecision::drop(DropReason::NoRoute);
    }
    let source = source_behind(&ends, client, backend.address);
    let second = second_key((source, client_port), backend, protocol);
    let keys = TwoKeys { first, second };
    let verdict = evaluate(tables, &keys, asked, ends);
    if verdict.denied.is_some() || tables.link(ends.to).is_none() {
        return FlowDecision::from_verdict(pair, &verdict);
    }
    if let Some(owner) = state.flows.claim(name.hash, found) {
        return FlowDecision::hand_off(owner);
    }
    let Some(claimed) = claim_second_key(state, found, second, now) else {
        state.flows.unclaim(name.hash, found);
        return FlowDecision::drop(DropReason::NoFreePort);
    };
    let second = claimed.key();
    let epoch = epoch(tables, &TwoKeys { first, second });
    let evicted = state.flows.insert(name.hash, found, flow_owner(&ends), now, |entry| {
        entry.open(&name.key, name.orientation, metadata.tcp_flags, now);
        write_decision(entry, tables, (pair, &ends), &verdict);
        entry.epoch = epoch;
        count_packet(entry, metadata, FlowDirection::Original, now);
    });
    let stored = state.flows.find(name.hash, &name.key);
    let for_second = state.flows.add_second_key(stored, claimed, now);
    let live = [evicted, for_second].into_iter().flatten().filter(|it| it.is_live());
    state.evictions += live.count() as u64;
    let translation = Translation { key: second.key, orientation: second.original };
    FlowDecision::from_verdict(pair, &verdict).translated(translation)
}

/// The source of a flow's packets behind the translation: the client, so that the backend sees him. If both are one
/// endpoint, it is the endpoint's gateway, because an endpoint takes nothing from the outside that has its own address.
fn source_behind(ends: &FlowEnds, client: Address, backend: Address) -> Address {
    if !is_hairpin(ends) {
        client
    } else if backend.is_v4() {
        HAIRPIN_V4.into()
    } else {
        std::net::IpAddr::V6(HAIRPIN_V6).into()
    }
}

/// Whether an endpoint reaches itself through a service.
fn is_hairpin(ends: &FlowEnds) -> bool {
    matches!(ends.from, NextHop::Endpoint(_)) && ends.from == ends.to
}

fn second_key(source: (Address, u16), backend: Backend, protocol: u8) -> DirectedKey {
    let (key, original) = FlowKey::new(source.0, backend.address, source.1, backend.port, protocol);
    DirectedKey { key, original }
}

/// Claims a second key: this one, or the same with another source port if another flow or worker has it.
fn claim_second_key(
    state: &mut DecisionState,
    found: Found,
    second: DirectedKey,
    now: u32,
) -> Option<ClaimedKey> {
    let ((source, mut port), (address, to)) =
        (second.key.source(second.original), second.key.destination(second.original));
    for _ in 0..PORT_TRIES {
        let backend = Backend { address, port: to };
        let second = second_key((source, port), backend, second.key.protocol());
        if let Ok(claimed) = state.flows.claim_second_key(second, found, now) {
            return Some(claimed);
        }
        let ports = u32::from(u16::MAX - FIRST_PORT) + 1;
        port = FIRST_PORT + (state.chance() % ports) as u16;
    }
    None
}

/// Evaluates policy for a translated flow. `asked`: its ends before the translation. `ends`: those behind it, but for the
/// source, which is as it was sent.
fn evaluate(tables: &Tables, keys: &TwoKeys, asked: FlowEnds, ends: FlowEnds) -> PolicyVerdict {
    let TwoKeys { first, second } = keys;
    let original = transport(&first.key, first.original);
    let l4 = match original.l4 {
        L4Header::Ports { source, .. } => {
            L4Header::Ports { source, destination: second.key.destination(second.original).1 }
        }
        other => other,
    };
    let views = PolicyViews {
        original: PolicyView { ends: asked, transport: original },
        translated: PolicyView { ends, transport: Transport { l4, ..original } },
    };
    policy::evaluate_policy(tables, views, UntrackedAllows::NONE)
}

/// The two addresses that a translated flow's decision rests on: its source, and its destination behind the translation.
#[inline]
fn judged_addresses(TwoKeys { first, second }: &TwoKeys) -> [Address; 2] {
    [first.key.source(first.original).0, second.key.destination(second.original).0]
}

/// The epoch of a decision on a translated flow. A backend that goes begins another one.
#[inline]
pub(super) fn epoch(tables: &Tables, keys: &TwoKeys) -> Epoch {
    let addresses = judged_addresses(keys).map(|it| it.to_bits() as u32);
    let Epoch { version, changes } = current_epoch(tables, addresses);
    let gone = tables.services.as_ref().map_or(0, |services| services.gone());
    Epoch { version, changes: changes.wrapping_add(gone) }
}

/// The ends that policy judges, if the packets of the original direction took this path before.
fn judged_ends(tables: &Tables, keys: &TwoKeys, path: ReturnPath) -> (NextHopPair, FlowEnds) {
    let [source, destination] = judged_addresses(keys);
    by_return_path(tables, path, lookup_ends(tables, source, destination))
}

/// The ends of the flow before its translation, with the same source.
fn asked_ends(tables: &Tables, keys: &TwoKeys, ends: &FlowEnds) -> FlowEnds {
    let (address, _) = keys.first.key.destination(keys.first.original);
    let identities = [ends.identities[0], tables.identity(address)];
    FlowEnds { from: ends.from, to: tables.next_hop(address), identities }
}

/// A flow's backend has no address any more.
struct BackendGone;

/// Brings a translated flow up to date with the tables, as [`tracked`](super::tracked) does others.
fn refresh(
    tables: &Tables,
    entry: &mut FlowMut<'_>,
    keys: &TwoKeys,
    judge: bool,
) -> Result<PolicyVerdict, BackendGone> {
    let epoch = epoch(tables, keys);
    if epoch == entry.epoch
        && !judge
        && let Some(verdict) = cached_verdict(entry)
    {
        return Ok(verdict);
    }
    let [_, backend] = judged_addresses(keys);
    if !tables.services.as_ref().is_some_and(|services| services.has_address(backend)) {
        return Err(BackendGone);
    }
    let path = ReturnPath::of(entry.next_hop_pair(FlowDirection::Original).from);
    let (pair, ends) = judged_ends(tables, keys, path);
    let evaluate = || evaluate(tables, keys, asked_ends(tables, keys, &ends), ends);
    Ok(refresh_stale(tables, entry, (pair, &ends), epoch, judge, evaluate))
}

/// Decides a packet whose flow was found, is live and has two keys.
#[inline(never)]
pub(super) fn decide_known(
    tables: &Tables,
    state: &mut DecisionState,
    metadata: &PacketMetadata,
    (found, keys): (Found, TwoKeys),
    now: u32,
) -> FlowDecision {
    let name = &metadata.flow;
    let Some(mut entry) = state.flows.live_entry(found, now) else {
        return open_flow(tables, state, metadata, Some(found), now);
    };
    let (direction, key, orientation) = match keys.place(&name.key, name.orientation) {
        PlaceInFlow::Own(direction, key, orientation) => (direction, key, orientation),
        PlaceInFlow::OtherConnection => return FlowDecision::drop(DropReason::ConnectionTaken),
        PlaceInFlow::UntranslatedReply => {
            let to = entry.next_hop_pair(FlowDirection::Reply).to;
            return FlowDecision::drop(metadata.entrance.refusal(to));
        }
    };
    let pair = entry.next_hop_pair(direction);
    let is_original = direction == FlowDirection::Original;
    if is_original && metadata.entrance.is_other_sender(pair.from) {
        return open_flow(tables, state, metadata, Some(found), now);
    }
    let judge = match entry.admission(metadata.tcp_flags, direction) {
        Admission::Cached => false,
        // Policy is not evaluated, because a denial would end a connection that is to be kept.
        Admission::Judge => !keeps_established(tables, &entry),
        Admission::Recycle if is_original => {
            return open_flow(tables, state, metadata, Some(found), now);
        }
        // The backend opens a connection to the client from the service's port.
        Admission::Recycle | Admission::JudgeAlone => {
            return FlowDecision::drop(DropReason::ConnectionTaken);
        }
    };
    let Ok(verdict) = refresh(tables, &mut entry, &keys, judge) else {
        return without_backend(tables, state, metadata, (found, is_original), now);
    };
    let pair = entry.next_hop_pair(direction);
    if !metadata.entrance.admits_flow(pair, direction) {
        return FlowDecision::drop(metadata.entrance.refusal(pair.to));
    }
    let decision = FlowDecision::from_verdict(pair, &verdict);
    if decision.forwards() {
        count_packet(&mut entry, metadata, direction, now);
    } else {
        entry.record_denied(now);
    }
    decision.translated(Translation { key, orientation })
}

/// Decides a packet of a flow whose backend is gone.
fn without_backend(
    tables: &Tables,
    state: &mut DecisionState,
    metadata: &PacketMetadata,
    (found, is_original): (Found, bool),
    now: u32,
) -> FlowDecision {
    let name = &metadata.flow;
    if !is_original {
        return FlowDecision::drop(DropReason::BackendGone);
    }
    state.flows.remove_without_backend(found, now);
    if name.key.protocol() == protocol::TCP && !metadata.tcp_flags.opens() {
        return FlowDecision::refuse(DropReason::BackendGone);
    }
    let found = state.flows.find(name.hash, &name.key);
    open_flow(tables, state, metadata, Some(found), now)
}

/// Decides an ICMP error about a packet of a translated flow, which names the flow by this key and orientation. `None`: no
/// such packet of the flow has passed here.
pub(super) fn decide_error(
    tables: &Tables,
    flows: &mut FlowTable,
    (found, keys): (Found, TwoKeys),
    (key, orientation): (&FlowKey, Orientation),
    now: u32,
) -> Option<(FlowDirection, NextHopPair, FlowDecision)> {
    // The error travels against the quoted packet, and so as a packet of the other direction does.
    let PlaceInFlow::Own(direction, key, back) = keys.place(key, orientation.reverse()) else {
        return None;
    };
    let mut entry = flows.live_entry(found, now)?;
    let verdict = refresh(tables, &mut entry, &keys, false).ok()?;
    let pair = entry.next_hop_pair(direction);
    let translation = Translation { key, orientation: back.reverse() };
    Some((direction, pair, FlowDecision::from_verdict(pair, &verdict).translated(translation)))
}

/// As [`fast_path`](super::fast_path()), for packets of flows that are translated. The caller has tried that first.
#[inline(never)]
pub fn translated_fast_path<'a>(
    tables: &'a Tables,
    state: &mut DecisionState,
    metadata: &PacketMetadata,
    now: u32,
) -> Option<(Forwarding<'a>, Translation, RuleCounters)> {
    if !metadata.is_plain || tables.host_policy.has_untracked() {
        return None;
    }
    let (name, flags) = (&metadata.flow, metadata.tcp_flags);
    let (mut entry, keys) = state.flows.lookup_guessed_two_keys(&name.key, name.guess, now)?;
    let PlaceInFlow::Own(direction, key, orientation) = keys.place(&name.key, name.orientation)
    else {
        return None;
    };
    let stands = entry.verdict == Verdict::Allow
        && entry.stays(flags, direction)
        && entry.epoch == epoch(tables, &keys);
    let pair = entry.next_hop_pair(direction);
    if !stands || !metadata.entrance.admits(pair.from) {
        return None;
    }
    let forwarding = forward_if_fits(tables, metadata, pair)?;
    entry.count_packet(direction, metadata.segments, metadata.total_len.into(), now);
    Some((forwarding, Translation { key, orientation }, entry.counters))
}

/// What restoring a translated flow of the last process needs: its ends and the verdict on it. `None`: its backend is
/// gone.
pub(super) fn judge_restored(
    tables: &Tables,
    keys: &TwoKeys,
    path: ReturnPath,
) -> Option<((NextHopPair, FlowEnds), PolicyVerdict, Epoch)> {
    let epoch = epoch(tables, keys);
    let [_, backend] = judged_addresses(keys);
    tables.services.as_ref()?.has_address(backend).then_some(())?;
    let (pair, ends) = judged_ends(tables, keys, path);
    let verdict = evaluate(tables, keys, asked_ends(tables, keys, &ends), ends);
    Some(((pair, ends), verdict, epoch))
}
