//! Flows: known flows, new flows, flows whose verdict is renewed, and the ICMP errors that belong to flows.

use manx_policy_compiler::model::Transport;

use super::address_lookup::{by_return_path, current_epoch, lookup_ends};
use super::flow_decision::FlowDecision;
use super::key::{icmp_query, key_from_parts, transport};
use super::kube_proxy;
use super::metadata::{PacketMetadata, PacketRef};
use super::route::connects;
use super::state::DecisionState;
use super::stored_decision::{
    cached_verdict_at, count_packet, decide_by_verdict, flow_owner, keeps_established,
    refresh_stale, write_decision,
};
use super::{translated, visitor};
use crate::drop_reason::DropReason;
use crate::flow::{Admission, Epoch, Evicted, FlowDirection, FlowMut, FlowTable, Found, Verdict};
use crate::icmp;
use crate::parse::Parsed;
use crate::policy::{self, FlowEnds, PolicyVerdict, PolicyViews, UntrackedAllows};
use crate::tables::{NextHop, NextHopPair, ReturnPath, Tables};
use crate::wire::address::Address;
use crate::wire::protocol;

#[inline]
pub(super) fn decide_tracked(
    tables: &Tables,
    state: &mut DecisionState,
    metadata: &PacketMetadata,
    now: u32,
) -> FlowDecision {
    let name = &metadata.flow;
    let found = state.flows.find(name.hash, &name.key);
    let Some(mut entry) = state.flows.live_entry(found, now) else {
        return match state.flows.other_worker(name.hash) {
            None => open_flow(tables, state, metadata, Some(found), now),
            Some(worker) => FlowDecision::hand_off(worker),
        };
    };
    if entry.has_two_keys() {
        return known_by_two_keys(tables, state, metadata, found, now);
    }
    let direction = entry.direction(name.orientation);
    let from = entry.next_hop_pair(direction).from;
    if direction == FlowDirection::Original
        && (metadata.entrance.is_other_sender(from)
            || translated::has_moved(tables, metadata, from))
    {
        return open_flow(tables, state, metadata, Some(found), now);
    }
    let place = match entry.admission(metadata.tcp_flags, direction) {
        Admission::Cached => return apply_cached(tables, &mut entry, metadata, direction, now),
        // Policy is not evaluated, because a denial would end a connection that is to be kept.
        Admission::Judge if keeps_established(tables, &entry) => None,
        Admission::Judge => return recheck(tables, &mut entry, metadata, direction, true, now),
        Admission::OtherConnection => return FlowDecision::drop(DropReason::ConnectionTaken),
        Admission::JudgeAlone => None,
        Admission::Recycle => Some(found),
    };
    open_flow(tables, state, metadata, place, now)
}

#[cold]
#[inline(never)]
fn known_by_two_keys(
    tables: &Tables,
    state: &mut DecisionState,
    metadata: &PacketMetadata,
    found: Found,
    now: u32,
) -> FlowDecision {
    match state.flows.two_keys(found) {
        Some(keys) => translated::decide_known(tables, state, metadata, (found, keys), now)
            .unwrap_or_else(|place| open_flow(tables, state, metadata, Some(place), now)),
        None => FlowDecision::drop(DropReason::NoTables),
    }
}

/// Decides a packet without a flow. If policy allows it, its flow is inserted, provided that there is a `place` for it.
/// A packet from an endpoint to itself by its own port makes no flow: it is always allowed in both directions, and
/// would take two entries of the table.
#[inline(never)]
fn open_flow(
    tables: &Tables,
    state: &mut DecisionState,
    metadata: &PacketMetadata,
    place: Option<Found>,
    now: u32,
) -> FlowDecision {
    let name = &metadata.flow;
    let [source, destination] = name.addresses();
    if !metadata.entrance.takes([source, destination]) {
        return FlowDecision::drop(DropReason::NotForwardable);
    }
    let epoch = current_epoch(tables, name.key.v4_addresses());
    let found = state.source_cache.lookup_ends(tables, source, destination);
    let (pair, ends) = by_return_path(tables, metadata.entrance.return_path(), found);
    if !metadata.entrance.admits_flow(pair, FlowDirection::Original) {
        return FlowDecision::drop(metadata.entrance.refusal(pair.to));
    }
    if visitor::is_stray(tables, (&name.key, name.orientation), &ends) {
        return FlowDecision::drop(metadata.entrance.refusal(pair.to));
    }
    if let Some(found) = place
        && translated::may_open(tables, ends.to)
        && let Some(decision) = translated::open(tables, state, metadata, (pair, ends, found), now)
    {
        return decision;
    }
    if let Some(reason) = kube_proxy::refusal(pair) {
        return FlowDecision::drop(reason);
    }
    let opens = name.key.protocol() != protocol::TCP || metadata.tcp_flags.opens();
    if !opens && tables.connections.tcp_strict && pair.from != pair.to {
        return FlowDecision::drop(DropReason::TcpWithoutFlow);
    }
    if !connects(tables, ends.from, ends.to) {
        return FlowDecision::drop(DropReason::NoRoute);
    }
    let asked = (destination, transport(&name.key, name.orientation));
    let verdict = evaluate(tables, &ends, asked);
    let decision = FlowDecision::from_verdict(pair, &verdict);
    if decision.forwards()
        && let Some(reason) =
            kube_proxy::account(tables, &mut state.service_budgets, (pair, &ends), asked, now)
    {
        return FlowDecision::drop(reason);
    }
    if let Some(found) = place
        && decision.forwards()
        && pair.from != pair.to
        && tables.link(ends.to).is_some()
    {
        if let Some(worker) = state.flows.reserve_shard(name.hash, found) {
            return FlowDecision::hand_off(worker);
        }
        let evicted = state.flows.insert(name.hash, found, flow_owner(&ends), now, |entry| {
            entry.open(&name.key, name.orientation, metadata.tcp_flags, now);
            write_decision(entry, tables, (pair, &ends), &verdict);
            entry.epoch = epoch;
            count_packet(entry, metadata, FlowDirection::Original, now);
        });
        state.evictions += u64::from(evicted.is_some_and(Evicted::is_live));
    }
    decision
}

/// Evaluates policy for a flow to this destination, in the flow's original direction.
#[inline]
pub(super) fn evaluate(
    tables: &Tables,
    ends: &FlowEnds,
    (destination, transport): (Address, Transport),
) -> PolicyVerdict {
    if ends.to == NextHop::Service {
        return kube_proxy::evaluate(tables, ends, destination, transport);
    }
    let views = PolicyViews::untranslated(*ends, transport);
    policy::evaluate_policy(tables, views, UntrackedAllows::NONE)
}

/// Decides a packet of a known flow. The cached decision is valid while everything that it rests on is unchanged.
#[inline]
fn apply_cached(
    tables: &Tables,
    entry: &mut FlowMut<'_>,
    metadata: &PacketMetadata,
    direction: FlowDirection,
    now: u32,
) -> FlowDecision {
    let stands = entry.epoch == current_epoch(tables, entry.v4_addresses());
    if !stands || entry.verdict != Verdict::Allow {
        return recheck(tables, entry, metadata, direction, false, now);
    }
    let pair = entry.next_hop_pair(direction);
    if !metadata.entrance.admits_flow(pair, direction) {
        return FlowDecision::drop(metadata.entrance.refusal(pair.to));
    }
    count_packet(entry, metadata, direction, now);
    FlowDecision::from_verdict(pair, &PolicyVerdict { denied: None, rules: entry.counters })
}

/// Like [`apply_cached`], if something may have changed or policy must be evaluated (`judge`). Policy is evaluated for
/// the original direction of the flow, whichever direction the packet has.
#[inline(never)]
fn recheck(
    tables: &Tables,
    entry: &mut FlowMut<'_>,
    metadata: &PacketMetadata,
    direction: FlowDirection,
    judge: bool,
    now: u32,
) -> FlowDecision {
    let verdict = refresh(tables, entry, judge);
    decide_by_verdict(entry, metadata, direction, &verdict, now)
}

/// Brings a flow up to date with the tables and returns its verdict.
#[inline]
fn refresh(tables: &Tables, entry: &mut FlowMut<'_>, judge: bool) -> PolicyVerdict {
    let epoch = current_epoch(tables, entry.v4_addresses());
    if let Some(verdict) = cached_verdict_at(epoch, entry, judge) {
        return verdict;
    }
    refresh_untranslated(tables, entry, epoch, judge)
}

/// Like [`refresh`], if something may have changed.
#[inline(never)]
fn refresh_untranslated(
    tables: &Tables,
    entry: &mut FlowMut<'_>,
    epoch: Epoch,
    judge: bool,
) -> PolicyVerdict {
    let (key, original) = (entry.key(), entry.original());
    let ((source, _), (destination, _)) = (key.source(original), key.destination(original));
    let found = lookup_ends(tables, source, destination);
    let before = entry.next_hop_pair(FlowDirection::Original);
    let (pair, ends) = by_return_path(tables, ReturnPath::of(before.from), found);
    let asked = (destination, transport(&key, original));
    let evaluate = || evaluate(tables, &ends, asked);
    let leads = connects(tables, ends.from, ends.to);
    refresh_stale(tables, entry, (pair, &ends, leads), epoch, judge, evaluate)
}

/// Decides an ICMP error. It passes if its quoted header names a flow, if it goes to the sender of the quoted packet,
/// and if it comes from the side to which the quoted packet went. An error from an endpoint to itself passes.
pub(super) fn decide_icmp_error(
    tables: &Tables,
    flows: &mut FlowTable,
    packet: &PacketRef<'_>,
    parsed: &Parsed,
    now: u32,
) -> FlowDecision {
    let unmatched = FlowDecision::drop(DropReason::IcmpErrorUnmatched);
    let entrance = packet.metadata.entrance;
    let pair = NextHopPair {
        from: tables.encoded_next_hop(parsed.source),
        to: tables.encoded_next_hop(parsed.destination),
    };
    let path = entrance.return_path().next_hops(tables, pair);
    if !entrance.admits_flow(path, FlowDirection::Original) {
        return FlowDecision::drop(entrance.refusal(pair.to));
    }
    if pair.from == pair.to && pair.from.endpoint().is_some() {
        // The error is about traffic of an endpoint with itself, which has no flow.
        return FlowDecision::from_verdict(pair, &PolicyVerdict::without_rules(None));
    }
    let Some(quoted) = icmp::parse_quoted(packet.packet.bytes(), parsed) else {
        return unmatched;
    };
    if quoted.source != parsed.destination {
        return unmatched;
    }
    // The quoted packet must not be an ICMP reply: a host sends errors only about requests, because the sender of a
    // reply does not read errors.
    let asked = quoted.icmp.and_then(|(kind, _)| icmp_query(quoted.source, quoted.protocol, kind));
    if asked.is_some_and(|(_, asks)| !asks) {
        return unmatched;
    }
    let ports = [quoted.source_port, quoted.destination_port];
    let (key, orientation) =
        key_from_parts(quoted.source, quoted.destination, ports, quoted.protocol, quoted.icmp);
    let hash = flows.hash(&key);
    let found = flows.find(hash, &key);
    let Some(mut entry) = flows.live_entry(found, now) else {
        return flows.other_worker(hash).map_or(unmatched, FlowDecision::hand_off);
    };
    if entry.has_two_keys() {
        let of_flow = flows.two_keys(found).and_then(|keys| {
            let quoted = (&key, orientation);
            translated::decide_error(tables, flows, (found, keys), quoted, (entrance, now))
        });
        let admitted =
            of_flow.filter(|(direction, pair, _)| entrance.admits_flow(*pair, *direction));
        return admitted.map_or(unmatched, |(_, _, decision)| decision);
    }
    // The error travels in the opposite direction of the quoted packet.
    let direction = entry.direction(orientation).reverse();
    let verdict = refresh(tables, &mut entry, false);
    let pair = entrance.next_hops_of_error(entry.next_hop_pair(direction));
    let is_of_visitor = |from| visitor::is_visitor(NextHop::decode(from));
    if !entrance.admits_flow(pair, direction)
        || (is_of_visitor(path.from) && !is_of_visitor(pair.from))
    {
        return unmatched;
    }
    FlowDecision::from_verdict(pair, &verdict)
}
