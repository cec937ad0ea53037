//! The decision for one packet: where it came from, whether its flow is known, what policy says, where it goes.
//!
//! Nothing here touches a device, a clock or a buffer; the caller acts on the [`Fate`].

mod flow;
mod key;

use manx_policy_compiler::model::{Shown, Transport};

use crate::fate::{DropReason, Fate};
use crate::flow::{FlowKey, FlowTable, Guess, Orientation, RuleCounters, TcpFlags, WorkerId};
use crate::fragment::FragmentTracker;
use crate::icmp::ErrorKind;
use crate::judge::{self, Ends, Judgement, NO_SLOT};
use crate::packet::Packet;
use crate::parse::{Fragment, Parsed};
use crate::tables::{Hop, TUNNELS_OF_A_NODE, Tables, Via};
use crate::wire::address::Address;
use crate::wire::{protocol, vxlan};

pub use key::flow_key;

/// Where a packet entered: by a port's role, or out of a tunnel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Entrance {
    /// An endpoint's port.
    Endpoint(u32),
    /// The host port: the node and the world.
    Host,
    /// The host port where the world is behind the uplink: the node.
    Node,
    /// The uplink: the world.
    Uplink,
    /// A known peer's tunnel.
    Tunnel(u32),
}

impl Entrance {
    /// Whether packets from an address that is reached by `hop` may enter here: the strict reverse path (RFC 3704, 2.2).
    #[inline]
    fn admits(self, hop: Hop) -> bool {
        // Of the two hops' bits those that must be equal.
        let (own, equal) = match self {
            Self::Endpoint(index) => (Via::Endpoint(index), u32::MAX),
            Self::Host => (Via::Host, !Hop::NODE_OR_HOST),
            Self::Node => (Via::Node, u32::MAX),
            Self::Uplink => (Via::Host, u32::MAX),
            // The pool of a packet's destination chose the encapsulation, that of its source chooses the one back.
            Self::Tunnel(index) => (Via::Tunnel(index), !(TUNNELS_OF_A_NODE - 1)),
        };
        (own.encode().0 ^ hop.0) & equal == 0
    }

    /// The way back to those who entered here.
    pub fn back(self) -> Via {
        match self {
            Self::Endpoint(index) => Via::Endpoint(index),
            Self::Host | Self::Uplink => Via::Host,
            Self::Node => Via::Node,
            Self::Tunnel(index) => Via::Tunnel(index),
        }
    }

    /// What a source is refused with that may not enter here.
    fn refusal(self) -> DropReason {
        match self {
            Self::Endpoint(_) | Self::Host | Self::Node | Self::Uplink => DropReason::SourceSpoofed,
            Self::Tunnel(_) => DropReason::TunnelSourceMismatch,
        }
    }
}

/// One packet, as the decision sees it.
#[derive(Debug, Clone, Copy)]
pub struct Subject<'a> {
    /// The packet: the inner header of an ICMP error is read from it.
    pub packet: &'a Packet,
    /// Its headers.
    pub parsed: &'a Parsed,
    /// Where it entered.
    pub entrance: Entrance,
    /// Length on a wire: of the packet, or of a super-packet's largest segment.
    pub unit: usize,
    /// How many packets it stands for.
    pub segments: u64,
    /// How many workers have had it before.
    pub times: u8,
}

impl Subject<'_> {
    fn flags(&self) -> TcpFlags {
        TcpFlags(self.parsed.tcp_flags)
    }

    fn transport(&self) -> Transport {
        let Parsed { protocol, source_port: source, destination_port: destination, .. } =
            *self.parsed;
        let shown = match self.parsed.icmp() {
            Some((kind, code)) => Shown::Icmp { kind, code },
            None if self.parsed.has_ports => Shown::Ports { source, destination },
            None => Shown::Nothing,
        };
        Transport { protocol, shown }
    }
}

/// A decision: the fate, and the counter slots of what gave it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub struct Decision {
    /// What becomes of the packet.
    pub fate: Fate,
    /// What decided at the source's egress and at the destination's ingress ([`NO_SLOT`]: nothing was asked).
    pub rules: RuleCounters,
}

impl Decision {
    /// Nothing was decided, and so it is to be dropped.
    pub const NOTHING: Self = Self {
        fate: Fate::Drop(DropReason::NoTables),
        rules: RuleCounters { egress: NO_SLOT, ingress: NO_SLOT },
    };
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
    /// First fragments, and what was decided of them.
    pub fragments: FragmentTracker<Settled>,
    /// How many live flows had to make room for others.
    pub evictions: u64,
    /// The worker that is asked next for what may be in any worker's memory, and how many others there are.
    pub next: (WorkerId, u8),
}

/// The name of a packet's flow, found once for all who ask.
#[derive(Debug, Clone, Copy)]
pub struct Name {
    /// The [`flow_key`].
    pub key: FlowKey,
    /// Which way the packet goes in it.
    pub orientation: Orientation,
    /// Where the flow probably is.
    pub guess: Guess,
    /// The key's hash in the worker's flow table.
    pub hash: u64,
}

impl Name {
    /// No flow's.
    pub const NOTHING: Self = Self {
        key: FlowKey::NOTHING,
        orientation: Orientation::LowToHigh,
        guess: Guess::NONE,
        hash: 0,
    };

    /// Of a packet; `flows` is the table that it will be looked up in.
    #[inline]
    pub fn of(parsed: &Parsed, flows: &FlowTable) -> Self {
        let (key, orientation) = flow_key(parsed);
        Self { key, orientation, guess: Guess::NONE, hash: flows.hash(&key) }
    }
}

/// Decides one packet. `name` is its flow's; `now` is in seconds.
#[inline]
pub fn decide(
    tables: &Tables,
    memory: &mut Memory,
    subject: &Subject<'_>,
    name: &Name,
    now: u32,
) -> Decision {
    let settled = settle(tables, memory, subject, name, now);
    let fate = match settled.verdict {
        Ok(way) => depart(tables, subject, way),
        Err(Stop::Drop(reason)) => Fate::Drop(reason),
        Err(Stop::HandOver(to)) => Fate::HandOver(to),
    };
    Decision { fate, rules: settled.rules }
}

#[inline]
fn settle(
    tables: &Tables,
    memory: &mut Memory,
    subject: &Subject<'_>,
    name: &Name,
    now: u32,
) -> Settled {
    let parsed = subject.parsed;
    let tunnel = parsed.protocol == protocol::IPIP
        || (parsed.protocol == protocol::UDP && parsed.destination_port == vxlan::PORT);
    if tunnel && matches!(subject.entrance, Entrance::Endpoint(_)) {
        return Settled::refused(DropReason::TunnelFromPod);
    }
    let plain = parsed.fragment == Fragment::Whole && !parsed.is_icmp_error();
    if plain && !tables.host_policy.has_untracked() {
        return flow::flow(tables, memory, subject, name, now);
    }
    settle_others(tables, memory, subject, name, now)
}

/// As [`settle`], of fragments, ICMP errors, and where some packets are asked about before connection tracking.
#[inline(never)]
fn settle_others(
    tables: &Tables,
    memory: &mut Memory,
    subject: &Subject<'_>,
    name: &Name,
    now: u32,
) -> Settled {
    if !subject.parsed.is_forwardable() {
        return Settled::refused(DropReason::NotForwardable);
    }
    let first = |memory: &mut Memory| {
        if tables.host_policy.has_untracked()
            && let Some(settled) = untracked(tables, subject)
        {
            settled
        } else if subject.parsed.is_icmp_error() {
            flow::related(tables, &mut memory.flows, subject, now)
        } else {
            flow::flow(tables, memory, subject, name, now)
        }
    };
    let entrance = subject.entrance.back().encode().0;
    match subject.parsed.fragment {
        Fragment::Whole => first(memory),
        Fragment::First { .. } => {
            let settled = first(memory);
            if !matches!(settled.verdict, Err(Stop::HandOver(_))) {
                memory.fragments.remember(subject.parsed, entrance, tables.version, settled, now);
            }
            settled
        }
        // The first fragment's decision holds its source check: the key names the entrance too. It stands only while the
        // tables do: it names endpoints by an index that others may give to somebody else.
        Fragment::Later { .. } => {
            match (
                memory.fragments.find(subject.parsed, entrance, tables.version, now),
                memory.next,
            ) {
                (Some(Some(settled)), _) => settled,
                // The first one may have been another worker's.
                (None, (next, others)) if subject.times < others => Settled::handed_over(next),
                (Some(None) | None, _) => Settled::refused(DropReason::FragmentWithoutFirst),
            }
        }
    }
}

/// What becomes of a packet that policy before connection tracking decides: no flow is known by it, and its way back is
/// asked about for itself. `None`: it decides nothing.
fn untracked(tables: &Tables, subject: &Subject<'_>) -> Option<Settled> {
    let ends = ends(tables, subject.parsed.source, subject.parsed.destination);
    if !subject.entrance.admits(ends.from.encode()) {
        return Some(Settled::refused(subject.entrance.refusal()));
    }
    let grounds = judge::grounds(tables, &ends);
    let transport = subject.transport();
    let judgement = match judge::untracked(tables, &ends, &grounds, transport) {
        Err(denied) => denied,
        Ok(untracked) if !untracked.allows() => return None,
        Ok(_) if !connects(tables, &ends) => Judgement::without_rules(Some(DropReason::NoRoute)),
        Ok(untracked) => judge::judge(tables, &ends, &grounds, transport, untracked),
    };
    Some(settled(&ends, &judgement))
}

fn ends(tables: &Tables, source: Address, destination: Address) -> Ends {
    Ends { source, destination, from: tables.route(source), to: tables.route(destination) }
}

fn settled(ends: &Ends, judgement: &Judgement) -> Settled {
    let verdict = match judgement.denied {
        None => Ok(Way { from: ends.from.encode(), to: ends.to.encode() }),
        Some(reason) => Err(Stop::Drop(reason)),
    };
    Settled { verdict, rules: judgement.rules }
}

/// Manx connects its endpoints with everything, this node with other nodes' pods, and, where it owns the uplink, with the world;
/// it carries nobody's transit. A destination that is nowhere is let through to be answered.
fn connects(tables: &Tables, ends: &Ends) -> bool {
    match (ends.from, ends.to) {
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

/// What is left of routing when the packet may go: its hop limit and its size.
#[inline]
fn depart(tables: &Tables, subject: &Subject<'_>, way: Way) -> Fate {
    let parsed = subject.parsed;
    let answer = |reason, error| Fate::Answer { reason, error };
    let Some(link) = tables.link(Via::decode(way.to)) else {
        return match Via::decode(way.to) {
            Via::NoRoute => answer(DropReason::NoRoute, ErrorKind::HostUnreachable),
            _ => answer(DropReason::HostUnreachable, ErrorKind::HostUnreachable),
        };
    };
    // The node and Manx are one router: between them is no hop.
    let hop = way.to != Hop::NODE && way.from != Hop::NODE;
    if hop && parsed.ttl <= 1 {
        return answer(DropReason::TtlExceeded, ErrorKind::TimeExceeded);
    }
    if subject.unit > link.mtu as usize && !parsed.may_fragment() {
        return answer(DropReason::TooBig, ErrorKind::TooBig { mtu: link.mtu });
    }
    Fate::Forward { link, hop }
}
