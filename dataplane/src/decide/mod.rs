//! The decision for one packet: where it came from, whether its flow is known, what policy says, where it goes.
//!
//! Nothing here touches a device, a clock or a buffer; the caller acts on the [`Fate`].

mod flow;
mod key;

use manx_policy_compiler::model::{Shown, Transport};

use crate::fate::{DropReason, Fate};
use crate::flow::{FlowKey, FlowTable, Orientation, RuleCounters, TcpFlags};
use crate::fragment::FragmentTracker;
use crate::icmp::ErrorKind;
use crate::judge::{self, Ends, Judgement, NO_SLOT};
use crate::parse::{Fragment, Parsed};
use crate::tables::{self, Tables, Via};
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
    /// Whether packets from an address that is reached by `via` may enter here: the strict reverse path (RFC 3704, 2.2).
    #[inline]
    fn admits(self, via: Via) -> bool {
        match self {
            Self::Endpoint(index) => via == Via::Endpoint(index),
            Self::Host => matches!(via, Via::Node | Via::Host),
            Self::Node => via == Via::Node,
            Self::Uplink => via == Via::Host,
            // The pool of a packet's destination chose the encapsulation, that of its source chooses the one back.
            Self::Tunnel(index) => {
                matches!(via, Via::Tunnel(other) if tables::node_of(other) == tables::node_of(index))
            }
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
    /// The packet's bytes: the inner header of an ICMP error is read from them.
    pub bytes: &'a [u8],
    /// Its headers.
    pub parsed: &'a Parsed,
    /// Where it entered.
    pub entrance: Entrance,
    /// Length on a wire: of the packet, or of a super-packet's largest segment.
    pub unit: usize,
    /// How many packets it stands for.
    pub segments: u64,
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

/// Whom a packet's flow goes to, or why not; a packet's later fragments follow its first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Settled {
    verdict: Result<Way, DropReason>,
    rules: RuleCounters,
}

/// Where from and where to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Way {
    from: Via,
    to: Via,
}

impl Settled {
    const fn refused(reason: DropReason) -> Self {
        Self { verdict: Err(reason), rules: RuleCounters { egress: NO_SLOT, ingress: NO_SLOT } }
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
}

/// The name of a packet's flow, found once for all who ask.
#[derive(Debug, Clone, Copy)]
pub struct Name {
    /// The [`flow_key`].
    pub key: FlowKey,
    /// Which way the packet goes in it.
    pub orientation: Orientation,
    /// The flow table's hash of the key.
    pub hash: u64,
}

impl Name {
    /// Of a packet.
    #[inline]
    pub fn of(parsed: &Parsed, flows: &FlowTable) -> Self {
        let (key, orientation) = flow_key(parsed);
        Self { key, orientation, hash: flows.hash(&key) }
    }
}

/// Decides one packet. `name` is its flow's; `now` is in seconds.
pub fn decide(
    tables: &Tables,
    memory: &mut Memory,
    subject: &Subject<'_>,
    name: &Name,
    now: u32,
) -> Decision {
    let settled = match refusal(subject) {
        Some(reason) => Settled::refused(reason),
        None => settle(tables, memory, subject, name, now),
    };
    let fate = match settled.verdict {
        Ok(way) => depart(tables, subject, way),
        Err(reason) => Fate::Drop(reason),
    };
    Decision { fate, rules: settled.rules }
}

/// What is refused whatever the tables say.
fn refusal(subject: &Subject<'_>) -> Option<DropReason> {
    let parsed = subject.parsed;
    if !parsed.source.is_forwardable() || !parsed.destination.is_forwardable() {
        return Some(DropReason::NotForwardable);
    }
    let tunnel = parsed.protocol == protocol::IPIP
        || (parsed.protocol == protocol::UDP && parsed.destination_port == vxlan::PORT);
    (tunnel && matches!(subject.entrance, Entrance::Endpoint(_)))
        .then_some(DropReason::TunnelFromPod)
}

fn settle(
    tables: &Tables,
    memory: &mut Memory,
    subject: &Subject<'_>,
    name: &Name,
    now: u32,
) -> Settled {
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
    match subject.parsed.fragment {
        Fragment::Whole => first(memory),
        Fragment::First { .. } => {
            let settled = first(memory);
            memory.fragments.remember(
                subject.parsed,
                entrance_code(subject.entrance),
                tables.version,
                settled,
                now,
            );
            settled
        }
        // The first fragment's decision holds its source check: the key names the entrance too. It stands only while the
        // tables do: it names endpoints by an index that others may give to somebody else.
        Fragment::Later { .. } => memory
            .fragments
            .find(subject.parsed, entrance_code(subject.entrance), tables.version, now)
            .unwrap_or(Settled::refused(DropReason::FragmentWithoutFirst)),
    }
}

/// What becomes of a packet that policy before connection tracking decides: no flow is known by it, and its way back is
/// asked about for itself. `None`: it decides nothing.
fn untracked(tables: &Tables, subject: &Subject<'_>) -> Option<Settled> {
    let ends = ends(tables, subject.parsed.source, subject.parsed.destination);
    if !subject.entrance.admits(ends.from) {
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

fn entrance_code(entrance: Entrance) -> u32 {
    match entrance {
        Entrance::Endpoint(index) => Via::Endpoint(index).encode(),
        Entrance::Host | Entrance::Uplink => Via::Host.encode(),
        Entrance::Node => Via::Node.encode(),
        Entrance::Tunnel(index) => Via::Tunnel(index).encode(),
    }
}

fn ends(tables: &Tables, source: Address, destination: Address) -> Ends {
    Ends { source, destination, from: tables.route(source), to: tables.route(destination) }
}

fn settled(ends: &Ends, judgement: &Judgement) -> Settled {
    let verdict = match judgement.denied {
        None => Ok(Way { from: ends.from, to: ends.to }),
        Some(reason) => Err(reason),
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
fn depart(tables: &Tables, subject: &Subject<'_>, way: Way) -> Fate {
    let parsed = subject.parsed;
    let answer = |reason, error| Fate::Answer { reason, error };
    let Some((_, mtu)) = tables.link(way.to) else {
        return match way.to {
            Via::NoRoute => answer(DropReason::NoRoute, ErrorKind::HostUnreachable),
            _ => answer(DropReason::HostUnreachable, ErrorKind::HostUnreachable),
        };
    };
    // The node and Manx are one router: between them is no hop.
    let hop = way.to != Via::Node && way.from != Via::Node;
    if hop && parsed.ttl <= 1 {
        return answer(DropReason::TtlExceeded, ErrorKind::TimeExceeded);
    }
    if subject.unit > mtu as usize && !parsed.may_fragment() {
        return answer(DropReason::TooBig, ErrorKind::TooBig { mtu });
    }
    Fate::Forward { via: way.to, hop }
}
