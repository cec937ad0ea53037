//! Policy before connection tracking (`doNotTrack`): of what it decides no flow is known, and the way back is asked about for
//! itself.

use manx_policy_compiler::image::{ChainId, Identity, Image};
use manx_policy_compiler::model::{Direction, Shown, Transport, Verdict};

use super::fast_path::forward_if_fits;
use super::key::transport;
use super::{
    DecisionState, Entrance, FlowDecision, FlowLookup, Forwarding, NextHopPair, PacketMetadata,
    SourceCache, connects, from_verdict,
};
use crate::fate::DropReason;
use crate::flow::{FlowKey, Orientation, RuleCounters};
use crate::policy::{self, NO_SLOT, PolicyVerdict};
use crate::tables::{NextHop, Tables};

/// What the short way says of a packet that such policy may decide.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UntrackedVerdict<T> {
    /// It lets the packet through, and so does all that is asked behind it.
    Allow(T),
    /// It decides nothing: the packet is its flow's.
    Tracked,
    /// Ask [`decide`](super::decide()).
    SlowPath,
}

/// Who is asked about the packets of one way before they are looked for among the flows: an interface of the node's, and if that
/// lets a packet through, the pod at the way's other end, if it is one. Both are in one direction, for nothing that connects
/// passes two interfaces.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct UntrackedHook {
    direction: Direction,
    interface: ChainId,
    pod: Option<ChainId>,
}

impl UntrackedHook {
    fn lookup(tables: &Tables, pair: NextHopPair) -> UntrackedVerdict<Self> {
        let [from, to] = [pair.from, pair.to].map(NextHop::decode);
        let asked = |next_hop, direction| tables.host_policy.untracked(next_hop, direction);
        let (direction, interface, other) =
            match (asked(from, Direction::Ingress), asked(to, Direction::Egress)) {
                (None, None) => return UntrackedVerdict::Tracked,
                (Some(arrives), None) => (Direction::Ingress, arrives, to),
                (None, Some(leaves)) => (Direction::Egress, leaves, from),
                (Some(_), Some(_)) => return UntrackedVerdict::SlowPath,
            };
        if !connects(tables, from, to) {
            return UntrackedVerdict::SlowPath;
        }
        let pod = match other {
            NextHop::Endpoint(index) => match tables.endpoint(index) {
                Some(pod) if direction == Direction::Ingress => Some(pod.ingress),
                Some(pod) => Some(pod.egress),
                None => return UntrackedVerdict::SlowPath,
            },
            _ => None,
        };
        UntrackedVerdict::Allow(Self { direction, interface, pod })
    }

    /// Asks about a packet between two ends; what lets it through.
    #[inline(always)]
    #[expect(clippy::inline_always, reason = "as `between`")]
    fn evaluate(
        &self,
        image: &Image,
        [source, destination]: [Identity; 2],
        transport: Transport,
    ) -> UntrackedVerdict<RuleCounters> {
        let (own, peer) = match self.direction {
            Direction::Egress => (source, destination),
            Direction::Ingress => (destination, source),
        };
        let query = image.query(own, peer, transport);
        let Some(mut path) = image.path_of(self.interface, query) else {
            return UntrackedVerdict::SlowPath;
        };
        if path.passes_on {
            return UntrackedVerdict::Tracked;
        }
        if path.verdict == Verdict::Allow
            && let Some(pod) = self.pod
        {
            match image.path_of(pod, query) {
                Some(its) => path = its,
                None => return UntrackedVerdict::SlowPath,
            }
        }
        if path.verdict == Verdict::Deny {
            return UntrackedVerdict::SlowPath;
        }
        UntrackedVerdict::Allow(match self.direction {
            Direction::Egress => RuleCounters { egress: path.slot, ingress: NO_SLOT },
            Direction::Ingress => RuleCounters { egress: NO_SLOT, ingress: path.slot },
        })
    }
}

/// The hook of the way that was gone last: packets that come together often go one way. It is good in its tables.
#[derive(Debug, Clone, Copy)]
pub struct UntrackedHookCache {
    version: u64,
    pair: NextHopPair,
    hook: UntrackedVerdict<UntrackedHook>,
}

impl Default for UntrackedHookCache {
    /// In whichever tables: nowhere is no interface.
    fn default() -> Self {
        let nowhere = NextHop::NoRoute.encode();
        Self {
            version: 0,
            pair: NextHopPair { from: nowhere, to: nowhere },
            hook: UntrackedVerdict::Tracked,
        }
    }
}

impl UntrackedHookCache {
    #[inline]
    fn lookup(&mut self, tables: &Tables, pair: NextHopPair) -> &UntrackedVerdict<UntrackedHook> {
        if self.pair != pair || self.version != tables.version {
            self.refill(tables, pair);
        }
        &self.hook
    }

    #[inline(never)]
    fn refill(&mut self, tables: &Tables, pair: NextHopPair) {
        *self = Self { version: tables.version, pair, hook: UntrackedHook::lookup(tables, pair) };
    }
}

/// Decides a packet before its flow is looked for: no other decision than [`decide`](super::decide())'s, and nothing is left
/// behind.
#[inline]
pub fn untracked_fast_path<'a>(
    tables: &'a Tables,
    state: &mut DecisionState,
    metadata: &PacketMetadata,
) -> UntrackedVerdict<Forwarding<'a>> {
    if !metadata.is_plain {
        return UntrackedVerdict::SlowPath;
    }
    let (pair, rules) = match evaluate_hook(tables, state, metadata) {
        UntrackedVerdict::Allow(goes) => goes,
        UntrackedVerdict::Tracked => return UntrackedVerdict::Tracked,
        UntrackedVerdict::SlowPath => return UntrackedVerdict::SlowPath,
    };
    match forward_if_fits(tables, metadata, pair, rules) {
        Some(forwarding) => UntrackedVerdict::Allow(forwarding),
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
#[expect(clippy::inline_always, reason = "little is left of it where the family is known")]
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
    let shown = Shown::Ports { source: from.1, destination: to.1 };
    let transport = Transport { protocol: key.protocol(), shown };
    match hook.evaluate(&tables.image, ends.identities, transport) {
        UntrackedVerdict::Allow(rules) => UntrackedVerdict::Allow((pair, rules)),
        UntrackedVerdict::Tracked => UntrackedVerdict::Tracked,
        UntrackedVerdict::SlowPath => UntrackedVerdict::SlowPath,
    }
}

/// What becomes of a packet that such policy decides. `None`: it decides nothing, or there is none.
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
    if !(source.is_forwardable() && destination.is_forwardable()) {
        return Some(FlowDecision::drop(DropReason::NotForwardable));
    }
    let (pair, ends) = source_cache.lookup_ends(tables, source, destination);
    if !metadata.entrance.admits(pair.from) {
        return Some(FlowDecision::drop(metadata.entrance.refusal()));
    }
    let transport = transport(key, *orientation);
    let verdict = match policy::evaluate_untracked(tables, &ends, transport) {
        Err(denied) => denied,
        Ok(untracked) if !untracked.allows() => return None,
        Ok(_) if !connects(tables, ends.from, ends.to) => {
            PolicyVerdict::without_rules(Some(DropReason::NoRoute))
        }
        Ok(untracked) => policy::evaluate_policy(tables, &ends, transport, untracked),
    };
    Some(from_verdict(pair, &verdict))
}

#[cfg(test)]
mod tests;
