//! The decision that a flow's entry holds: how it is written, read and brought up to date. Also which owner the flow
//! counts for.

use super::flow_decision::FlowDecision;
use super::metadata::PacketMetadata;
use crate::drop_reason::DropReason;
use crate::flow::{DirectedKey, Epoch, FlowDirection, FlowMut, Owner, Verdict};
use crate::policy::{self, FlowEnds, NO_SLOT, PolicyVerdict};
use crate::services::FrontendKey;
use crate::tables::{Established, NextHop, NextHopPair, Tables};

/// The owner that a flow counts for: the endpoint that opens it, else the endpoint that it is opened to. So no endpoint
/// uses up the share of another one.
#[inline]
pub(super) fn flow_owner(ends: &FlowEnds) -> Owner {
    match (ends.from, ends.to) {
        (NextHop::Endpoint(index), _) | (_, NextHop::Endpoint(index)) => Owner::endpoint(index),
        _ => Owner::NODE,
    }
}

/// Like [`flow_owner`], for a translated flow with this first key. If a service sends a client from outside to a
/// backend on another node, the flow counts for the namespace of the Service, so it takes nothing from the flows of
/// other namespaces.
pub(super) fn translated_owner(tables: &Tables, first: &DirectedKey, ends: &FlowEnds) -> Owner {
    let owner = flow_owner(ends);
    if owner != Owner::NODE || ends.from != NextHop::World {
        return owner;
    }
    let asked = FrontendKey::asked_by(&first.key, first.original);
    let frontend = tables.services.as_ref().and_then(|services| services.frontend(&asked));
    let namespace = frontend.map(|it| it.namespace).filter(|number| *number != 0);
    namespace.map_or(Owner::NODE, Owner::namespace)
}

/// Counts a packet that its flow allows.
#[inline]
pub(super) fn count_packet(
    entry: &mut FlowMut<'_>,
    metadata: &PacketMetadata,
    direction: FlowDirection,
    now: u32,
) {
    let PacketMetadata { tcp_flags, segments, total_len, .. } = *metadata;
    entry.record_packet(direction, tcp_flags, segments, total_len.into(), now);
}

/// Decides a packet of a known flow by the flow's verdict, and counts it.
#[inline]
pub(super) fn decide_by_verdict(
    entry: &mut FlowMut<'_>,
    metadata: &PacketMetadata,
    direction: FlowDirection,
    verdict: &PolicyVerdict,
    now: u32,
) -> FlowDecision {
    let pair = entry.next_hop_pair(direction);
    if !metadata.entrance.admits_flow(pair, direction) {
        return FlowDecision::drop(metadata.entrance.refusal(pair.to));
    }
    let decision = FlowDecision::from_verdict(pair, verdict);
    if decision.forwards() {
        count_packet(entry, metadata, direction, now);
    } else {
        entry.record_denied(now);
    }
    decision
}

/// The verdict that an entry holds, if it is of this epoch and policy need not be evaluated (`judge` is false).
#[inline]
pub(super) fn cached_verdict_at(
    epoch: Epoch,
    entry: &FlowMut<'_>,
    judge: bool,
) -> Option<PolicyVerdict> {
    if judge || epoch != entry.epoch { None } else { cached_verdict(entry) }
}

/// The verdict that an entry holds. `None`: something other than a rule denied the flow, and an entry cannot hold such
/// a reason.
#[inline]
fn cached_verdict(entry: &FlowMut<'_>) -> Option<PolicyVerdict> {
    let rules = entry.counters;
    let (denied, slot) = match entry.verdict {
        Verdict::Allow => return Some(PolicyVerdict { denied: None, rules }),
        Verdict::DenyEgress => (DropReason::PolicyEgress, rules.egress),
        Verdict::DenyIngress => (DropReason::PolicyIngress, rules.ingress),
    };
    (slot != NO_SLOT).then_some(PolicyVerdict { denied: Some(denied), rules })
}

/// Brings a flow up to date after its ends have been looked up in these tables. The flow keeps its verdict while
/// everything that the verdict rests on is unchanged; otherwise policy is evaluated. `leads`: whether Manx carries
/// packets between these ends.
#[inline]
pub(super) fn refresh_stale(
    tables: &Tables,
    entry: &mut FlowMut<'_>,
    (pair, ends, leads): (NextHopPair, &FlowEnds, bool),
    epoch: Epoch,
    judge: bool,
    evaluate: impl FnOnce() -> PolicyVerdict,
) -> PolicyVerdict {
    let leads_as_before = has_same_next_hops(tables, entry, pair, ends);
    if !judge
        && leads_as_before
        && leads
        // The verdict also rests on the endpoints of the service, which the stamp does not contain.
        && ends.to != NextHop::Service
        && policy::policy_stamp(tables, ends) == entry.second.policy_stamp
        && let Some(verdict) = cached_verdict(entry)
    {
        entry.epoch = epoch;
        return verdict;
    }
    let is_kept = !judge && keeps_established(tables, entry) && leads_as_before;
    let verdict =
        if leads { evaluate() } else { PolicyVerdict::without_rules(Some(DropReason::NoRoute)) };
    // A connection that is kept although rules deny it is counted at no rule.
    let verdict = if is_kept && verdict.denied.is_some() {
        PolicyVerdict::without_rules(None)
    } else {
        verdict
    };
    write_decision(entry, tables, (pair, ends), &verdict);
    entry.epoch = epoch;
    verdict
}

/// Whether a connection continues although policy denies it now.
pub(super) fn keeps_established(tables: &Tables, entry: &FlowMut<'_>) -> bool {
    tables.connections.established == Established::Keep
        && entry.verdict == Verdict::Allow
        && entry.state().is_answered()
}

/// Whether the source and the destination of a flow still have the next hops and attachments that they had. For
/// example, both differ after another pod has got one of the addresses.
fn has_same_next_hops(
    tables: &Tables,
    entry: &FlowMut<'_>,
    pair: NextHopPair,
    ends: &FlowEnds,
) -> bool {
    entry.next_hop_pair(FlowDirection::Original) == pair
        && entry.second.attachments == attachment_ids(tables, ends)
}

/// A number for each end that has the same meaning in all tables: the attachment of an endpoint, or for a visitor the
/// address of the node from whose tunnel it comes. 0 for all other ends.
fn attachment_ids(tables: &Tables, ends: &FlowEnds) -> [u32; 2] {
    [ends.from, ends.to].map(|next_hop| match next_hop {
        NextHop::Endpoint(index) => {
            tables.endpoint(index).map_or(0, |endpoint| endpoint.attachment)
        }
        NextHop::Visitor(index) => tables.tunnel(index).map_or(0, |it| it.remote.to_bits()),
        NextHop::NoRoute
        | NextHop::Unreachable
        | NextHop::Node
        | NextHop::World
        | NextHop::Forwarded
        | NextHop::Tunnel(_)
        | NextHop::Service
        | NextHop::Translated
        | NextHop::ManxPorts
        | NextHop::HostSide(_) => 0,
    })
}

/// Writes the decision and its policy stamp into an entry.
#[inline(always)]
#[expect(clippy::inline_always, reason = "every new flow; restoring and judging again are rare")]
pub(super) fn write_decision(
    entry: &mut FlowMut<'_>,
    tables: &Tables,
    (pair, ends): (NextHopPair, &FlowEnds),
    verdict: &PolicyVerdict,
) {
    let (cached, rules) = match verdict.denied {
        None => (Verdict::Allow, verdict.rules),
        Some(DropReason::PolicyIngress) => (Verdict::DenyIngress, verdict.rules),
        Some(DropReason::PolicyEgress) => (Verdict::DenyEgress, verdict.rules),
        // No rule decided. The entry cannot hold the reason, so it gets no slots, and policy is evaluated again for the
        // next packet.
        Some(_) => (Verdict::DenyEgress, PolicyVerdict::without_rules(None).rules),
    };
    entry.set_verdict(cached);
    entry.counters = rules;
    entry.second.policy_stamp = policy::policy_stamp(tables, ends);
    entry.next_hops = [pair.to, pair.from];
    entry.second.attachments = attachment_ids(tables, ends);
}
