//! Untracked policy (`doNotTrack`): it decides a packet before connection tracking. No flow keeps the decision, and
//! replies are decided independently.
//!
//! Such policy is evaluated only on an uplink that Manx owns
//! ([`InterfaceChains::owned`](crate::tables::InterfaceChains)). An agent shares the uplink with the kernel, so it
//! publishes no such chains. So this file, `untracked_hook.rs`, `Role::Uplink` and the chains of
//! [`OwnedChains`](crate::tables::OwnedChains) are for a mode in which Manx owns the uplink. Until that exists, only
//! tests and the bench use them.

use manx_policy_compiler::model::{L4Header, Transport};

use super::address_lookup::{SourceCache, by_return_path};
use super::entrance::Entrance;
use super::flow_decision::FlowDecision;
use super::key::transport;
use super::metadata::{FlowLookup, PacketMetadata};
use super::route::{connects, forward_if_fits};
use super::state::DecisionState;
use super::untracked_hook::UntrackedVerdict;
use super::visitor;
use crate::drop_reason::DropReason;
use crate::fate::Forwarding;
use crate::flow::{FlowKey, Orientation, RuleCounters};
use crate::policy::{self, PolicyVerdict, PolicyViews};
use crate::tables::{NextHopPair, Tables};

/// Decides a packet before its flow is looked up. Its decision equals that of [`decide`](super::decide()), and it does
/// not change any flow.
#[inline]
pub fn untracked_fast_path<'a>(
    tables: &'a Tables,
    state: &mut DecisionState,
    metadata: &PacketMetadata,
) -> UntrackedVerdict<(Forwarding<'a>, RuleCounters)> {
    if !metadata.is_plain {
        return UntrackedVerdict::SlowPath;
    }
    let (pair, rules) = match evaluate_hook(tables, state, metadata) {
        UntrackedVerdict::Allow(goes) => goes,
        UntrackedVerdict::Tracked => return UntrackedVerdict::Tracked,
        UntrackedVerdict::SlowPath => return UntrackedVerdict::SlowPath,
    };
    match forward_if_fits(tables, metadata, pair) {
        Some(forwarding) => UntrackedVerdict::Allow((forwarding, rules)),
        None => UntrackedVerdict::SlowPath,
    }
}

#[inline(never)]
fn evaluate_hook(
    tables: &Tables,
    state: &mut DecisionState,
    metadata: &PacketMetadata,
) -> UntrackedVerdict<(NextHopPair, RuleCounters)> {
    if metadata.flow.key.is_v6() {
        return evaluate_hook_v6(tables, state, metadata);
    }
    let FlowLookup { key, orientation, .. } = metadata.flow;
    evaluate_addresses(tables, state, metadata.entrance, &key, orientation)
}

#[inline(never)]
fn evaluate_hook_v6(
    tables: &Tables,
    state: &mut DecisionState,
    metadata: &PacketMetadata,
) -> UntrackedVerdict<(NextHopPair, RuleCounters)> {
    let FlowLookup { key, orientation, .. } = &metadata.flow;
    evaluate_addresses(tables, state, metadata.entrance, key, *orientation)
}

#[inline(always)]
#[expect(clippy::inline_always, reason = "each caller knows the family, which leaves little code")]
fn evaluate_addresses(
    tables: &Tables,
    state: &mut DecisionState,
    entrance: Entrance,
    key: &FlowKey,
    orientation: Orientation,
) -> UntrackedVerdict<(NextHopPair, RuleCounters)> {
    let (from, to) = (key.source(orientation), key.destination(orientation));
    if !(from.0.is_forwardable() && to.0.is_forwardable()) {
        return UntrackedVerdict::SlowPath;
    }
    let (pair, ends) = state.source_cache.lookup_ends(tables, from.0, to.0);
    if !entrance.admits(pair.from) {
        return UntrackedVerdict::SlowPath;
    }
    let hook = match state.untracked_hooks.lookup(tables, pair) {
        UntrackedVerdict::Allow(hook) => hook,
        UntrackedVerdict::Tracked => return UntrackedVerdict::Tracked,
        UntrackedVerdict::SlowPath => return UntrackedVerdict::SlowPath,
    };
    let l4 = L4Header::Ports { source: from.1, destination: to.1 };
    let transport = Transport { protocol: key.protocol(), l4 };
    match hook.evaluate(&tables.image, ends.identities, transport) {
        UntrackedVerdict::Allow(rules) => UntrackedVerdict::Allow((pair, rules)),
        UntrackedVerdict::Tracked => UntrackedVerdict::Tracked,
        UntrackedVerdict::SlowPath => UntrackedVerdict::SlowPath,
    }
}

/// The decision of untracked policy. `None`: there is no such policy, or it does not decide the packet.
#[inline]
pub(super) fn evaluate_untracked(
    tables: &Tables,
    state: &mut DecisionState,
    metadata: &PacketMetadata,
) -> Option<FlowDecision> {
    if !tables.host_policy.has_untracked() {
        return None;
    }
    decide_untracked(tables, &mut state.source_cache, metadata)
}

#[inline(never)]
fn decide_untracked(
    tables: &Tables,
    source_cache: &mut SourceCache,
    metadata: &PacketMetadata,
) -> Option<FlowDecision> {
    let FlowLookup { key, orientation, .. } = &metadata.flow;
    let [source, destination] = metadata.flow.addresses();
    if !metadata.entrance.takes([source, destination]) {
        return Some(FlowDecision::drop(DropReason::NotForwardable));
    }
    let found = source_cache.lookup_ends(tables, source, destination);
    let (pair, ends) = by_return_path(tables, metadata.entrance.return_path(), found);
    if !metadata.entrance.admits(pair.from) || visitor::is_stray(tables, (key, *orientation), &ends)
    {
        return Some(FlowDecision::drop(metadata.entrance.refusal(pair.to)));
    }
    let transport = transport(key, *orientation);
    let verdict = match policy::evaluate_untracked(tables, &ends, transport) {
        Err(denied) => denied,
        Ok(untracked) if !untracked.allows() => return None,
        Ok(_) if !connects(tables, ends.from, ends.to) => {
            PolicyVerdict::without_rules(Some(DropReason::NoRoute))
        }
        Ok(untracked) => {
            let views = PolicyViews::untranslated(ends, transport);
            policy::evaluate_policy(tables, views, untracked)
        }
    };
    Some(FlowDecision::from_verdict(pair, &verdict))
}

#[cfg(test)]
mod tests;
