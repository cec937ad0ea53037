//! The untracked hook of an interface: the chains that decide its packets before connection tracking.

use manx_policy_compiler::image::{ChainId, Identity, Image};
use manx_policy_compiler::model::{Direction, Transport, Verdict};

use super::route::connects;
use crate::flow::RuleCounters;
use crate::policy::NO_SLOT;
use crate::tables::{NextHop, NextHopPair, Tables};

/// The verdict of the untracked fast path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UntrackedVerdict<T> {
    /// The chain of the interface and the chains after it allow the packet.
    Allow(T),
    /// Untracked policy does not decide: the packet's flow decides.
    Tracked,
    /// The slow path ([`decide`](super::decide())) must decide.
    SlowPath,
}

/// The chains that are evaluated for packets between two next hops before their flows are looked up. The first is the
/// chain of the node's interface. If it allows the packet, the chain of the pod at the other end follows, if there is
/// one. Both chains have the same direction, because no packet that Manx carries passes two interfaces.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct UntrackedHook {
    direction: Direction,
    interface: ChainId,
    pod: Option<ChainId>,
}

impl UntrackedHook {
    pub(super) fn lookup(tables: &Tables, pair: NextHopPair) -> UntrackedVerdict<Self> {
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

    /// Evaluates the hook for a packet between two ends. Returns the slots of the rules that allow the packet.
    #[inline(always)]
    #[expect(clippy::inline_always, reason = "as `evaluate_addresses`")]
    pub(super) fn evaluate(
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

/// The hook that was looked up last. Packets that arrive together often have the same two next hops. The hook is valid
/// for one version of the tables.
#[derive(Debug, Clone, Copy)]
pub struct UntrackedHookCache {
    version: u64,
    pair: NextHopPair,
    hook: UntrackedVerdict<UntrackedHook>,
}

impl Default for UntrackedHookCache {
    /// This value is valid for any tables, because no interface is at a next hop without a route.
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
    pub(super) fn lookup(
        &mut self,
        tables: &Tables,
        pair: NextHopPair,
    ) -> &UntrackedVerdict<UntrackedHook> {
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
