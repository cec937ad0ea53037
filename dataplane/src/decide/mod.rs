//! The decision for one packet: where it came from, whether its flow is known, what policy says, where it goes.
//!
//! Nothing here touches a device, a clock or a buffer; the caller acts on the [`Fate`].

mod address_lookup;
mod fast_path;
mod key;
mod metadata;
mod tracked;
mod untracked;

use crate::fate::{DropReason, Fate};
use crate::flow::{FlowTable, RuleCounters, WorkerId};
use crate::fragment::FragmentTracker;
use crate::icmp::ErrorKind;
use crate::packet::Packet;
use crate::parse::{Fragment, Parsed, must_not_fragment, parse};
use crate::policy::{NO_SLOT, PolicyVerdict};
use crate::tables::{EncodedNextHop, NextHop, Tables};
use crate::wire::{protocol, vxlan};

use untracked::evaluate_untracked;

pub use address_lookup::SourceCache;
pub use fast_path::{Forwarding, fast_path};
pub use key::flow_key;
pub use metadata::{Arrival, FlowLookup, PacketMetadata};
pub use untracked::{UntrackedHookCache, UntrackedVerdict, untracked_fast_path};

/// Where a packet entered: by a port's role, or out of a tunnel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entrance {
    /// The way back to those who entered here.
    back: EncodedNextHop,
    /// The bits in which the hop of who may enter here is equal to that.
    significant_bits: u32,
}

impl Entrance {
    /// Where nobody may enter: no hop is equal to this in all bits.
    pub const NOWHERE: Self = Self { back: EncodedNextHop(u32::MAX), significant_bits: u32::MAX };
    /// The host port: the node and the world.
    pub const HOST: Self =
        Self { back: NextHop::Host.encode(), significant_bits: !EncodedNextHop::NODE_OR_HOST };
    /// The host port where the world is behind the uplink: the node.
    pub const NODE: Self = Self { back: NextHop::Node.encode(), significant_bits: u32::MAX };
    /// The uplink: the world.
    pub const UPLINK: Self = Self { back: NextHop::Host.encode(), significant_bits: u32::MAX };

    /// An endpoint's port.
    #[inline]
    pub const fn endpoint(index: u32) -> Self {
        Self { back: NextHop::Endpoint(index).encode(), significant_bits: u32::MAX }
    }

    /// A known peer's tunnel. The pool of a packet's destination chose the encapsulation, that of its source chooses the one
    /// back.
    #[inline]
    pub const fn tunnel(index: u32) -> Self {
        Self {
            back: NextHop::Tunnel(index).encode(),
            significant_bits: !EncodedNextHop::TUNNELS_OF_A_NODE,
        }
    }

    /// Whether packets from an address that is reached by `hop` may enter here: the strict reverse path (RFC 3704, 2.2).
    #[inline]
    fn admits(self, hop: EncodedNextHop) -> bool {
        (self.back.0 ^ hop.0) & self.significant_bits == 0
    }

    /// The way back to those who entered here.
    #[inline]
    pub const fn back(self) -> NextHop {
        NextHop::decode(self.back)
    }

    /// What a source is refused with that may not enter here.
    fn refusal(self) -> DropReason {
        match self.back() {
            NextHop::Tunnel(_) => DropReason::TunnelSourceMismatch,
            _ => DropReason::SourceSpoofed,
        }
    }
}

/// One packet, as the decision sees it.
#[derive(Debug, Clone, Copy)]
pub struct PacketRef<'a> {
    /// The packet: its headers are read again where its flow alone does not decide it.
    pub packet: &'a Packet,
    /// What was seen of it at first.
    pub metadata: &'a PacketMetadata,
}

/// A decision: the fate, and the counter slots of what gave it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub struct Decision<'a> {
    /// What becomes of the packet.
    pub fate: Fate<'a>,
    /// What decided at the source's egress and at the destination's ingress ([`NO_SLOT`]: nothing was asked).
    pub rules: RuleCounters,
}

/// Whom a packet's flow goes to, or why not; a packet's later fragments follow its first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FlowDecision {
    verdict: Result<NextHopPair, Stop>,
    rules: RuleCounters,
}

/// Why a packet does not go on from here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stop {
    Drop(DropReason),
    /// It is another worker's to decide.
    HandOver(WorkerId),
}

/// Where from and where to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct NextHopPair {
    from: EncodedNextHop,
    to: EncodedNextHop,
}

impl FlowDecision {
    const fn stopped(stop: Stop) -> Self {
        Self { verdict: Err(stop), rules: RuleCounters { egress: NO_SLOT, ingress: NO_SLOT } }
    }

    const fn drop(reason: DropReason) -> Self {
        Self::stopped(Stop::Drop(reason))
    }

    const fn hand_off(to: WorkerId) -> Self {
        Self::stopped(Stop::HandOver(to))
    }
}

/// What a worker remembers between packets.
pub struct DecisionState {
    /// Flows.
    pub flows: FlowTable,
    /// The last source of packets that no known flow decided.
    pub source_cache: SourceCache,
    /// The way that the last packet went of those that policy before connection tracking is asked about.
    pub untracked_hooks: UntrackedHookCache,
    /// First fragments, and what was decided of them.
    pub fragments: FragmentTracker<FlowDecision>,
    /// How many live flows had to make room for others.
    pub evictions: u64,
    /// The worker that is asked next for what may be in any worker's state, and how many others there are.
    pub next_worker: (WorkerId, u8),
}

/// Decides one packet. `now` is in seconds.
#[inline]
pub fn decide<'a>(
    tables: &'a Tables,
    state: &mut DecisionState,
    packet: &PacketRef<'_>,
    now: u32,
) -> Decision<'a> {
    let decision = decide_flow(tables, state, packet, now);
    let fate = match decision.verdict {
        Ok(pair) => match route(tables, packet.metadata, pair) {
            Fate::Forward { link, .. }
                if packet.metadata.unit > link.mtu && must_not_fragment(packet.packet.bytes()) =>
            {
                let error = ErrorKind::TooBig { mtu: link.mtu };
                Fate::Answer { reason: DropReason::TooBig, error }
            }
            fate => fate,
        },
        Err(Stop::Drop(reason)) => Fate::Drop(reason),
        Err(Stop::HandOver(to)) => Fate::Handoff(to),
    };
    Decision { fate, rules: decision.rules }
}

#[inline]
fn decide_flow(
    tables: &Tables,
    state: &mut DecisionState,
    packet: &PacketRef<'_>,
    now: u32,
) -> FlowDecision {
    if packet.metadata.is_plain {
        return match evaluate_untracked(tables, state, packet.metadata) {
            None => tracked::decide_tracked(tables, state, packet.metadata, now),
            Some(decision) => decision,
        };
    }
    match parse(packet.packet.bytes()) {
        Ok(parsed) => decide_unusual(tables, state, packet, &parsed, now),
        Err(malformed) => FlowDecision::drop(malformed.into()),
    }
}

/// As [`decide_flow`], of packets that their flow alone does not decide.
#[inline(never)]
fn decide_unusual(
    tables: &Tables,
    state: &mut DecisionState,
    packet: &PacketRef<'_>,
    parsed: &Parsed,
    now: u32,
) -> FlowDecision {
    let metadata = packet.metadata;
    let tunnel = parsed.protocol == protocol::IPIP
        || (parsed.protocol == protocol::UDP && parsed.destination_port == vxlan::PORT);
    if tunnel && matches!(metadata.entrance.back(), NextHop::Endpoint(_)) {
        return FlowDecision::drop(DropReason::TunnelFromPod);
    }
    if !parsed.is_forwardable() {
        return FlowDecision::drop(DropReason::NotForwardable);
    }
    let first = |state: &mut DecisionState| match evaluate_untracked(tables, state, metadata) {
        Some(decision) => decision,
        None if parsed.is_icmp_error() => {
            tracked::decide_icmp_error(tables, &mut state.flows, packet, parsed, now)
        }
        None => tracked::decide_tracked(tables, state, metadata, now),
    };
    let entrance = metadata.entrance.back.0;
    match parsed.fragment {
        Fragment::Whole => first(state),
        Fragment::First { .. } => {
            let decision = first(state);
            if !matches!(decision.verdict, Err(Stop::HandOver(_))) {
                state.fragments.insert(parsed, entrance, tables.version, decision, now);
            }
            decision
        }
        // The first fragment's decision holds its source check: the key names the entrance too. It stands only while the
        // tables do: it names endpoints by an index that others may give to somebody else.
        Fragment::Later { .. } => {
            match (state.fragments.lookup(parsed, entrance, tables.version, now), state.next_worker)
            {
                (Some(Some(decision)), _) => decision,
                // The first one may have been another worker's.
                (None, (next, others)) if metadata.handoffs < others => {
                    FlowDecision::hand_off(next)
                }
                (Some(None) | None, _) => FlowDecision::drop(DropReason::FragmentWithoutFirst),
            }
        }
    }
}

fn from_verdict(pair: NextHopPair, verdict: &PolicyVerdict) -> FlowDecision {
    let rules = verdict.rules;
    let verdict = match verdict.denied {
        None => Ok(pair),
        Some(reason) => Err(Stop::Drop(reason)),
    };
    FlowDecision { verdict, rules }
}

/// Manx connects its endpoints with everything, this node with other nodes' pods, and, where it owns the uplink, with the world;
/// it carries nobody's transit. A destination that is nowhere is let through to be answered.
#[inline]
fn connects(tables: &Tables, from: NextHop, to: NextHop) -> bool {
    match (from, to) {
        (NextHop::Endpoint(_), _)
        | (_, NextHop::Endpoint(_) | NextHop::Unreachable | NextHop::NoRoute)
        | (NextHop::Node, NextHop::Tunnel(_))
        | (NextHop::Tunnel(_), NextHop::Node) => true,
        (NextHop::Node, NextHop::Host) | (NextHop::Host, NextHop::Node) => tables.uplink.is_some(),
        (
            NextHop::Node
            | NextHop::Host
            | NextHop::Tunnel(_)
            | NextHop::NoRoute
            | NextHop::Unreachable,
            NextHop::Node | NextHop::Host | NextHop::Tunnel(_),
        ) => false,
    }
}

/// What is left of routing when the packet may go, but for its size: its hop limit.
#[inline]
fn route<'a>(tables: &'a Tables, metadata: &PacketMetadata, pair: NextHopPair) -> Fate<'a> {
    let answer = |reason, error| Fate::Answer { reason, error };
    let Some(link) = tables.link(NextHop::decode(pair.to)) else {
        return match NextHop::decode(pair.to) {
            NextHop::NoRoute => answer(DropReason::NoRoute, ErrorKind::HostUnreachable),
            _ => answer(DropReason::HostUnreachable, ErrorKind::HostUnreachable),
        };
    };
    // The node and Manx are one router: between them is no hop.
    let decrements_ttl = pair.to != EncodedNextHop::NODE && pair.from != EncodedNextHop::NODE;
    if decrements_ttl && metadata.ttl <= 1 {
        return answer(DropReason::TtlExceeded, ErrorKind::TimeExceeded);
    }
    Fate::Forward { link, decrements_ttl }
}
