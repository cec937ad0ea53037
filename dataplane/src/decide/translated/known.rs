//! Packets of known translated flows.
//!
//! A flow keeps its backend until the backend is gone ([`ServiceTable::keeps`]). Then a TCP client gets a RST, and for
//! other protocols the next packet chooses another backend.

use super::judge::{epoch, epoch_of, evaluate_known, is_of_service, judged_ends, leads_known};
use super::moved;
use crate::decide::entrance::Entrance;
use crate::decide::flow_decision::FlowDecision;
use crate::decide::metadata::PacketMetadata;
use crate::decide::route::forward_if_fits;
use crate::decide::state::DecisionState;
use crate::decide::stored_decision::{
    cached_verdict_at, decide_by_verdict, keeps_established, refresh_stale,
};
use crate::decide::visitor;
use crate::drop_reason::DropReason;
use crate::fate::Forwarding;
use crate::flow::{
    Admission, EndReason, Epoch, FlowDirection, FlowKey, FlowMut, FlowState, FlowTable, Found,
    Orientation, PlaceInFlow, RuleCounters, TwoKeys, Verdict,
};
use crate::policy::{FlowEnds, PolicyVerdict};
use crate::rewrite::Translation;
use crate::services::{Backend, FrontendKey, ServiceTable};
use crate::tables::{NextHop, NextHopPair, ReturnPath, Tables};
use crate::wire::protocol;

/// The flow's backend is gone, or the node has lost the address that replaced the flow's source.
struct BackendGone;

/// Whether the addresses that the translation has put into a flow still exist: the backend's address, and the address
/// that replaced the source.
fn stands(tables: &Tables, TwoKeys { first, second }: &TwoKeys, to: NextHop) -> bool {
    let [(before, _), (source, _)] = [first, second].map(|it| it.key.source(it.original));
    let [asked, behind] = [first, second].map(|it| FrontendKey::asked_by(&it.key, it.original));
    let is_service = is_of_service(&asked, &behind);
    let backend = Backend { address: behind.address, port: behind.port };
    let keeps = |services: &ServiceTable| services.keeps(&asked, backend);
    let is_there = || match to {
        NextHop::World | NextHop::Node => {
            tables.manx_ports.as_ref().is_some_and(|it| it.has(source))
        }
        NextHop::Tunnel(_) => tables.router_v4.is_some_and(|router| source == router.into()),
        _ => true,
    };
    (!is_service || tables.services.as_deref().is_some_and(keeps))
        && (source == before || is_there())
}

/// Brings a translated flow up to date with the tables, as [`tracked`](super::tracked) does for other flows.
fn refresh(
    tables: &Tables,
    entry: &mut FlowMut<'_>,
    keys: &TwoKeys,
    judge: bool,
) -> Result<PolicyVerdict, BackendGone> {
    let epoch = epoch(tables, keys);
    if let Some(verdict) = cached_verdict_at(epoch, entry, judge) {
        return Ok(verdict);
    }
    let path = ReturnPath::of(entry.next_hop_pair(FlowDirection::Original).from);
    let (pair, ends) = judged_ends(tables, keys, path);
    if !stands(tables, keys, ends.to) {
        return Err(BackendGone);
    }
    let evaluate = || evaluate_known(tables, keys, ends);
    let as_before =
        entry.verdict == Verdict::Allow && entry.next_hop_pair(FlowDirection::Original) == pair;
    let leads = leads_known(tables, keys, &ends, as_before);
    Ok(refresh_stale(tables, entry, (pair, &ends, leads), epoch, judge, evaluate))
}

/// Decides a packet whose flow was found and has two keys. Returns `Err` if the flow has expired, or if the packet does
/// not belong to the flow but may open a new flow in its place.
#[inline(never)]
pub(in crate::decide) fn decide_known(
    tables: &Tables,
    state: &mut DecisionState,
    metadata: &PacketMetadata,
    (found, keys): (Found, TwoKeys),
    now: u32,
) -> Result<FlowDecision, Found> {
    let name = &metadata.flow;
    let Some(mut entry) = state.flows.live_entry(found, now) else {
        return Err(found);
    };
    // A connection that was reset does not count as closed, because anybody can forge a reset.
    let is_closed = entry.state() == FlowState::Closed;
    let (direction, key, orientation) = match keys.place(&name.key, name.orientation) {
        PlaceInFlow::Own(direction, key, orientation) => (direction, key, orientation),
        // If the packet may open a flow, the new flow takes the place of this one.
        PlaceInFlow::OtherConnection
            if is_closed && metadata.tcp_flags.opens()
                || moved::gives_way(tables, &keys, metadata) =>
        {
            return Err(found);
        }
        PlaceInFlow::OtherConnection => return Ok(FlowDecision::drop(DropReason::ConnectionTaken)),
        PlaceInFlow::UntranslatedReply => {
            let to = entry.next_hop_pair(FlowDirection::Reply).to;
            return Ok(FlowDecision::drop(metadata.entrance.refusal(to)));
        }
    };
    let pair = entry.next_hop_pair(direction);
    let is_original = direction == FlowDirection::Original;
    if is_original && metadata.entrance.is_other_sender(pair.from) {
        return Err(found);
    }
    let judge = match entry.admission(metadata.tcp_flags, direction) {
        Admission::Cached => false,
        // The packet alone is judged, because a denial of the flow would end a connection that is to be kept.
        Admission::Judge if keeps_established(tables, &entry) => {
            let path = ReturnPath::of(entry.next_hop_pair(FlowDirection::Original).from);
            let (pair, ends) = judged_ends(tables, &keys, path);
            let verdict = evaluate_known(tables, &keys, ends);
            if verdict.denied.is_some() {
                return Ok(FlowDecision::from_verdict(pair, &verdict));
            }
            false
        }
        Admission::Judge => true,
        // The other side gets a RST, because its connection has ended. Then the initiator's next SYN meets no old
        // connection there.
        Admission::OtherConnection => {
            let is_told = !is_original
                && metadata.entrance.admits_flow(pair, direction)
                && refresh(tables, &mut entry, &keys, false).is_ok_and(|it| it.denied.is_none());
            let reason = DropReason::ConnectionTaken;
            return Ok(if is_told {
                FlowDecision::refuse(reason)
            } else {
                FlowDecision::drop(reason)
            });
        }
        Admission::Recycle if is_original => return Err(found),
        // The backend opens a connection to the client from the port of the service.
        Admission::Recycle | Admission::JudgeAlone => {
            return Ok(FlowDecision::drop(DropReason::ConnectionTaken));
        }
    };
    let Ok(verdict) = refresh(tables, &mut entry, &keys, judge) else {
        return without_backend(tables, state, metadata, (found, &keys, is_original), now);
    };
    let decision = decide_by_verdict(&mut entry, metadata, direction, &verdict, now);
    Ok(decision.translated(Translation { key, orientation }))
}

/// Decides a packet of a flow whose backend is gone.
fn without_backend(
    tables: &Tables,
    state: &mut DecisionState,
    metadata: &PacketMetadata,
    (found, keys, is_original): (Found, &TwoKeys, bool),
    now: u32,
) -> Result<FlowDecision, Found> {
    let name = &metadata.flow;
    if !is_original {
        return Ok(FlowDecision::drop(DropReason::BackendGone));
    }
    // Only the sender of the flow ends it and gets the RST. A visitor's flow has one key, so this flow is not a
    // visitor's.
    let (pair, ends) = judged_ends(tables, keys, metadata.entrance.return_path());
    if !metadata.entrance.admits_flow(pair, FlowDirection::Original)
        || visitor::is_visitor(ends.from)
    {
        return Ok(FlowDecision::drop(metadata.entrance.refusal(pair.to)));
    }
    state.flows.remove_found(found, now, EndReason::BackendGone);
    if name.key.protocol() == protocol::TCP && !metadata.tcp_flags.opens() {
        return Ok(FlowDecision::refuse(DropReason::BackendGone));
    }
    Err(state.flows.find(name.hash, &name.key))
}

/// Decides an ICMP error that enters here and is about a packet of a translated flow. The error names the flow by this
/// key and orientation. `None`: no such packet of the flow has passed here.
pub(in crate::decide) fn decide_error(
    tables: &Tables,
    flows: &mut FlowTable,
    (found, keys): (Found, TwoKeys),
    (key, orientation): (&FlowKey, Orientation),
    (entrance, now): (Entrance, u32),
) -> Option<(FlowDirection, NextHopPair, FlowDecision)> {
    // The error travels in the opposite direction of the quoted packet, so it is placed like a packet of that
    // direction.
    let PlaceInFlow::Own(direction, key, back) = keys.place(key, orientation.reverse()) else {
        return None;
    };
    let mut entry = flows.live_entry(found, now)?;
    let verdict = refresh(tables, &mut entry, &keys, false).ok()?;
    let pair = entrance.next_hops_of_error(entry.next_hop_pair(direction));
    let translation = Translation { key, orientation: back.reverse() };
    Some((direction, pair, FlowDecision::from_verdict(pair, &verdict).translated(translation)))
}

/// Like [`fast_path`](crate::decide::fast_path()), for packets of translated flows. The caller has tried
/// [`fast_path`](crate::decide::fast_path()) first.
#[inline]
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
    let (mut entry, place) =
        state.flows.lookup_guessed_two_keys(&name.key, name.orientation, name.guess, now)?;
    let PlaceInFlow::Own(direction, key, orientation) = place else { return None };
    // The client and the backend: packets of both directions travel between these two.
    let judged = [name.key.source(name.orientation).0, key.destination(orientation).0];
    let stands = entry.verdict == Verdict::Allow
        && entry.stays(flags, direction)
        && entry.epoch == epoch_of(tables, judged);
    let pair = entry.next_hop_pair(direction);
    if !stands || !metadata.entrance.admits(pair.from) {
        return None;
    }
    let forwarding = forward_if_fits(tables, metadata, pair)?;
    entry.count_packet(direction, metadata.segments, metadata.total_len.into(), now);
    Some((forwarding, Translation { key, orientation }, entry.counters))
}

/// What is needed to restore a translated flow of the last process: its ends and the verdict on it. `None`: its backend
/// is gone, or its destination has no route.
pub(in crate::decide) fn judge_restored(
    tables: &Tables,
    keys: &TwoKeys,
    path: ReturnPath,
) -> Option<((NextHopPair, FlowEnds), PolicyVerdict, Epoch)> {
    let epoch = epoch(tables, keys);
    let (pair, ends) = judged_ends(tables, keys, path);
    // The record does not hold the next hops. Its return path alone shows that the source was outside of the cluster,
    // and was not a pod that is now gone.
    let as_before = path == ReturnPath::ManxPorts;
    let leads = leads_known(tables, keys, &ends, as_before);
    (leads && stands(tables, keys, ends.to)).then_some(())?;
    let verdict = evaluate_known(tables, keys, ends);
    Some(((pair, ends), verdict, epoch))
}
