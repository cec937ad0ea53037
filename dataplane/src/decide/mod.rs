//! The decision for one packet: where it came from, whether its flow is known, what policy says, where it goes.
//!
//! Nothing here touches a device, a clock or a buffer; the caller acts on the [`Fate`].

mod ends;
mod flow;
mod glance;
mod key;
mod known;
mod untracked;

use crate::fate::{DropReason, Fate};
use crate::flow::{FlowTable, RuleCounters, WorkerId};
use crate::fragment::FragmentTracker;
use crate::icmp::ErrorKind;
use crate::judge::{Judgement, NO_SLOT};
use crate::packet::Packet;
use crate::parse::{Fragment, Parsed, parse, stays_whole};
use crate::tables::{Hop, Tables, Via};
use crate::wire::{protocol, vxlan};

use untracked::before_tracking;

pub use ends::LastSource;
pub use glance::{Arrival, Glance, Name};
pub use key::flow_key;
pub use known::{Passage, known};
pub use untracked::{BeforeTracking, LastCourse, untracked};

/// Where a packet entered: by a port's role, or out of a tunnel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entrance {
    /// The way back to those who entered here.
    back: Hop,
    /// The bits in which the hop of who may enter here is equal to that.
    equal: u32,
}

impl Entrance {
    /// Where nobody may enter: no hop is equal to this in all bits.
    pub const NOWHERE: Self = Self { back: Hop(u32::MAX), equal: u32::MAX };
    /// The host port: the node and the world.
    pub const HOST: Self = Self { back: Via::Host.encode(), equal: !Hop::NODE_OR_HOST };
    /// The host port where the world is behind the uplink: the node.
    pub const NODE: Self = Self { back: Via::Node.encode(), equal: u32::MAX };
    /// The uplink: the world.
    pub const UPLINK: Self = Self { back: Via::Host.encode(), equal: u32::MAX };

    /// An endpoint's port.
    #[inline]
    pub const fn endpoint(index: u32) -> Self {
        Self { back: Via::Endpoint(index).encode(), equal: u32::MAX }
    }

    /// A known peer's tunnel. The pool of a packet's destination chose the encapsulation, that of its source chooses the one
    /// back.
    #[inline]
    pub const fn tunnel(index: u32) -> Self {
        Self { back: Via::Tunnel(index).encode(), equal: !Hop::TUNNELS_OF_A_NODE }
    }

    /// Whether packets from an address that is reached by `hop` may enter here: the strict reverse path (RFC 3704, 2.2).
    #[inline]
    fn admits(self, hop: Hop) -> bool {
        (self.back.0 ^ hop.0) & self.equal == 0
    }

    /// The way back to those who entered here.
    #[inline]
    pub const fn back(self) -> Via {
        Via::decode(self.back)
    }

    /// What a source is refused with that may not enter here.
    fn refusal(self) -> DropReason {
        match self.back() {
            Via::Tunnel(_) => DropReason::TunnelSourceMismatch,
            _ => DropReason::SourceSpoofed,
        }
    }
}

/// One packet, as the decision sees it.
#[derive(Debug, Clone, Copy)]
pub struct Subject<'a> {
    /// The packet: its headers are read again where its flow alone does not decide it.
    pub packet: &'a Packet,
    /// What was seen of it at first.
    pub glance: &'a Glance,
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
pub struct Settled {
    verdict: Result<Way, Stop>,
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
struct Way {
    from: Hop,
    to: Hop,
}

impl Settled {
    const fn stopped(stop: Stop) -> Self {
        Self { verdict: Err(stop), rules: RuleCounters { egress: NO_SLOT, ingress: NO_SLOT } }
    }

    const fn refused(reason: DropReason) -> Self {
        Self::stopped(Stop::Drop(reason))
    }

    const fn handed_over(to: WorkerId) -> Self {
        Self::stopped(Stop::HandOver(to))
    }
}

/// What a worker remembers between packets.
pub struct Memory {
    /// Flows.
    pub flows: FlowTable,
    /// The last source of packets that no known flow decided.
    pub last_source: LastSource,
    /// The way that the last packet went of those that policy before connection tracking is asked about.
    pub last_course: LastCourse,
    /// First fragments, and what was decided of them.
    pub fragments: FragmentTracker<Settled>,
    /// How many live flows had to make room for others.
    pub evictions: u64,
    /// The worker that is asked next for what may be in any worker's memory, and how many others there are.
    pub next: (WorkerId, u8),
}

/// Decides one packet. `now` is in seconds.
#[inline]
pub fn decide<'a>(
    tables: &'a Tables,
    memory: &mut Memory,
    subject: &Subject<'_>,
    now: u32,
) -> Decision<'a> {
    let settled = settle(tables, memory, subject, now);
    let fate = match settled.verdict {
        Ok(way) => match depart(tables, subject.glance, way) {
            Fate::Forward { link, .. }
                if subject.glance.unit > link.mtu && stays_whole(subject.packet.bytes()) =>
            {
                let error = ErrorKind::TooBig { mtu: link.mtu };
                Fate::Answer { reason: DropReason::TooBig, error }
            }
            fate => fate,
        },
        Err(Stop::Drop(reason)) => Fate::Drop(reason),
        Err(Stop::HandOver(to)) => Fate::HandOver(to),
    };
    Decision { fate, rules: settled.rules }
}

#[inline]
fn settle(tables: &Tables, memory: &mut Memory, subject: &Subject<'_>, now: u32) -> Settled {
    if subject.glance.is_plain {
        return match before_tracking(tables, memory, subject.glance) {
            None => flow::flow(tables, memory, subject.glance, now),
            Some(settled) => settled,
        };
    }
    match parse(subject.packet.bytes()) {
        Ok(parsed) => settle_others(tables, memory, subject, &parsed, now),
        Err(malformed) => Settled::refused(malformed.into()),
    }
}

/// As [`settle`], of packets that their flow alone does not decide.
#[inline(never)]
fn settle_others(
    tables: &Tables,
    memory: &mut Memory,
    subject: &Subject<'_>,
    parsed: &Parsed,
    now: u32,
) -> Settled {
    let glance = subject.glance;
    let tunnel = parsed.protocol == protocol::IPIP
        || (parsed.protocol == protocol::UDP && parsed.destination_port == vxlan::PORT);
    if tunnel && matches!(glance.entrance.back(), Via::Endpoint(_)) {
        return Settled::refused(DropReason::TunnelFromPod);
    }
    if !parsed.is_forwardable() {
        return Settled::refused(DropReason::NotForwardable);
    }
    let first = |memory: &mut Memory| match before_tracking(tables, memory, glance) {
        Some(settled) => settled,
        None if parsed.is_icmp_error() => {
            flow::related(tables, &mut memory.flows, subject, parsed, now)
        }
        None => flow::flow(tables, memory, glance, now),
    };
    let entrance = glance.entrance.back.0;
    match parsed.fragment {
        Fragment::Whole => first(memory),
        Fragment::First { .. } => {
            let settled = first(memory);
            if !matches!(settled.verdict, Err(Stop::HandOver(_))) {
                memory.fragments.remember(parsed, entrance, tables.version, settled, now);
            }
            settled
        }
        // The first fragment's decision holds its source check: the key names the entrance too. It stands only while the
        // tables do: it names endpoints by an index that others may give to somebody else.
        Fragment::Later { .. } => {
            match (memory.fragments.find(parsed, entrance, tables.version, now), memory.next) {
                (Some(Some(settled)), _) => settled,
                // The first one may have been another worker's.
                (None, (next, others)) if glance.times < others => Settled::handed_over(next),
                (Some(None) | None, _) => Settled::refused(DropReason::FragmentWithoutFirst),
            }
        }
    }
}

fn settled(way: Way, judgement: &Judgement) -> Settled {
    let verdict = match judgement.denied {
        None => Ok(way),
        Some(reason) => Err(Stop::Drop(reason)),
    };
    Settled { verdict, rules: judgement.rules }
}

/// Manx connects its endpoints with everything, this node with other nodes' pods, and, where it owns the uplink, with the world;
/// it carries nobody's transit. A destination that is nowhere is let through to be answered.
#[inline]
fn connects(tables: &Tables, from: Via, to: Via) -> bool {
    match (from, to) {
        (Via::Endpoint(_), _)
        | (_, Via::Endpoint(_) | Via::Unreachable | Via::NoRoute)
        | (Via::Node, Via::Tunnel(_))
        | (Via::Tunnel(_), Via::Node) => true,
        (Via::Node, Via::Host) | (Via::Host, Via::Node) => tables.uplink.is_some(),
        (
            Via::Node | Via::Host | Via::Tunnel(_) | Via::NoRoute | Via::Unreachable,
            Via::Node | Via::Host | Via::Tunnel(_),
        ) => false,
    }
}

/// What is left of routing when the packet may go, but for its size: its hop limit.
#[inline]
fn depart<'a>(tables: &'a Tables, glance: &Glance, way: Way) -> Fate<'a> {
    let answer = |reason, error| Fate::Answer { reason, error };
    let Some(link) = tables.link(Via::decode(way.to)) else {
        return match Via::decode(way.to) {
            Via::NoRoute => answer(DropReason::NoRoute, ErrorKind::HostUnreachable),
            _ => answer(DropReason::HostUnreachable, ErrorKind::HostUnreachable),
        };
    };
    // The node and Manx are one router: between them is no hop.
    let hop = way.to != Hop::NODE && way.from != Hop::NODE;
    if hop && glance.ttl <= 1 {
        return answer(DropReason::TtlExceeded, ErrorKind::TimeExceeded);
    }
    Fate::Forward { link, hop }
}
