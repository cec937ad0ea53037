//! The decision for one packet: where it came from, whether its flow is known, what policy says, where it goes.
//!
//! Nothing here touches a device, a clock or a buffer; the caller acts on the [`Fate`].

use manx_policy_compiler::model::{Protocol, Shown, Transport};

use crate::fate::{DropReason, Fate};
use crate::flow::{
    Admission, Evicted, FlowDirection, FlowEntry, FlowKey, FlowTable, Orientation, Path,
    RuleCounters, TcpFlags, Verdict,
};
use crate::fragment::FragmentTracker;
use crate::icmp::{self, ErrorKind};
use crate::judge::{self, Ends, Grounds, Judgement, NO_SLOT};
use crate::parse::{Fragment, Parsed};
use crate::tables::{Established, Tables, Via};
use crate::wire::address::Address;
use crate::wire::{icmpv4, icmpv6, protocol};

/// IANA's port of VXLAN (RFC 7348), which pods may not speak: a tunnel packet that the underlay believes is a way round
/// every source check.
const VXLAN_PORT: u16 = 4789;

/// Where a packet entered: by a port's role, or out of a tunnel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Entrance {
    /// An endpoint's port.
    Endpoint(u32),
    /// The host port.
    Host,
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
            Self::Tunnel(index) => via == Via::Tunnel(index),
        }
    }

    /// What a source is refused with that may not enter here.
    fn refusal(self) -> DropReason {
        match self {
            Self::Endpoint(_) | Self::Host => DropReason::SourceSpoofed,
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

/// The key of a packet's flow.
#[inline]
pub fn flow_key(parsed: &Parsed) -> (FlowKey, Orientation) {
    let ports = [parsed.source_port, parsed.destination_port];
    key(parsed.source, parsed.destination, ports, parsed.protocol, parsed.icmp())
}

/// Asking and answering are different ends of a query's flow: a request never passes as the reply to another one.
fn key(
    source: Address,
    destination: Address,
    ports: [u16; 2],
    upper: u8,
    icmp: Option<(u8, u8)>,
) -> (FlowKey, Orientation) {
    let Some((kind, code)) = icmp else {
        return FlowKey::new(source, destination, ports[0], ports[1], upper);
    };
    match query(source, upper, kind) {
        Some((other, asks)) if code == 0 => {
            FlowKey::query(source, destination, ports[0], [kind, other], asks, upper)
        }
        _ => FlowKey::message(source, destination, kind, code, upper),
    }
}

/// Of an ICMP query or reply the other's type, and whether it is the query. The other family's ICMP asks nothing.
fn query(source: Address, upper: u8, kind: u8) -> Option<(u8, bool)> {
    match (upper, source.is_v4()) {
        (protocol::ICMPV4, true) => icmpv4::kind::query(kind),
        (protocol::ICMPV6, false) => icmpv6::kind::query(kind),
        _ => None,
    }
}

/// What policy is asked for a flow: what its first packet showed.
fn transport(entry: &FlowEntry) -> Transport {
    let (key, original) = (entry.key(), entry.original());
    let protocol = key.protocol();
    let shown = match (protocol, Protocol::from_number(protocol)) {
        (protocol::ICMPV4 | protocol::ICMPV6, _) => {
            let low = key.icmp_type();
            match (key.icmp_code(), original) {
                (Some(code), _) => Shown::Icmp { kind: low, code },
                (None, Orientation::LowToHigh) => Shown::Icmp { kind: low, code: 0 },
                (None, Orientation::HighToLow) => {
                    let other = query(key.source(original).0, protocol, low);
                    Shown::Icmp { kind: other.map_or(low, |(other, _)| other), code: 0 }
                }
            }
        }
        (_, Some(_)) => Shown::Ports {
            source: key.source(original).1,
            destination: key.destination(original).1,
        },
        _ => Shown::Nothing,
    };
    Transport { protocol, shown }
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

/// Decides one packet. `hash` is the flow table's hash of the packet's [`flow_key`]; `now` is in seconds.
pub fn decide(
    tables: &Tables,
    memory: &mut Memory,
    subject: &Subject<'_>,
    hash: u64,
    now: u32,
) -> Decision {
    let settled = match refusal(subject) {
        Some(reason) => Settled::refused(reason),
        None => settle(tables, memory, subject, hash, now),
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
        || (parsed.protocol == protocol::UDP && parsed.destination_port == VXLAN_PORT);
    (tunnel && matches!(subject.entrance, Entrance::Endpoint(_)))
        .then_some(DropReason::TunnelFromPod)
}

fn settle(
    tables: &Tables,
    memory: &mut Memory,
    subject: &Subject<'_>,
    hash: u64,
    now: u32,
) -> Settled {
    let first = |memory: &mut Memory| {
        if subject.parsed.is_icmp_error() {
            related(tables, &mut memory.flows, subject, now)
        } else {
            flow(tables, memory, subject, hash, now)
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

fn entrance_code(entrance: Entrance) -> u32 {
    match entrance {
        Entrance::Endpoint(index) => Via::Endpoint(index).encode(),
        Entrance::Host => Via::Host.encode(),
        Entrance::Tunnel(index) => Via::Tunnel(index).encode(),
    }
}

fn flow(
    tables: &Tables,
    memory: &mut Memory,
    subject: &Subject<'_>,
    hash: u64,
    now: u32,
) -> Settled {
    let (key, orientation) = flow_key(subject.parsed);
    let mut keep = true;
    if let Some(entry) = memory.flows.lookup(hash, &key, now) {
        let direction = entry.direction(orientation);
        match entry.admission(subject.flags(), direction) {
            Admission::Cached => return follow(tables, entry, subject, direction, false, now),
            // Were it denied, it would end what is to be kept.
            Admission::Judge if is_kept(tables, entry) => keep = false,
            Admission::Judge => return follow(tables, entry, subject, direction, true, now),
            Admission::JudgeAlone => keep = false,
            Admission::Recycle => {}
        }
    }
    open(tables, memory, subject, hash, (key, orientation), keep, now)
}

/// A packet of a flow that is not known: judged; if it is allowed and `keep`, the flow is known from now on.
fn open(
    tables: &Tables,
    memory: &mut Memory,
    subject: &Subject<'_>,
    hash: u64,
    (key, orientation): (FlowKey, Orientation),
    keep: bool,
    now: u32,
) -> Settled {
    let (source, destination) = (subject.parsed.source, subject.parsed.destination);
    let ends = ends(tables, source, destination);
    if !subject.entrance.admits(ends.from) {
        return Settled::refused(subject.entrance.refusal());
    }
    let opens = subject.parsed.protocol != protocol::TCP || subject.flags().opens();
    if !opens && tables.connections.tcp_strict {
        return Settled::refused(DropReason::TcpWithoutFlow);
    }
    if !connects(ends.from, ends.to) {
        return Settled::refused(DropReason::NoRoute);
    }
    let grounds = judge::grounds(tables, &ends);
    let judgement = judge::judge(tables, &ends, &grounds, subject.transport());
    let settled = settled(&ends, &judgement);
    if settled.verdict.is_ok() && keep && tables.link(ends.to).is_some() {
        let mut entry = FlowEntry::open(key, orientation, subject.flags(), now);
        stamp(&mut entry, tables, &ends, grounds, &judgement);
        entry.pass(
            FlowDirection::Original,
            subject.flags(),
            subject.segments,
            subject.parsed.total_len as u64,
            now,
        );
        match memory.flows.insert(hash, entry, now) {
            Some(Evicted::Unestablished | Evicted::Established) => memory.evictions += 1,
            Some(Evicted::Expired) | None => {}
        }
    }
    settled
}

/// A packet of a known flow: what was decided stands while all that it rests on does; otherwise the flow is judged again,
/// in its original direction, whichever way this packet goes.
fn follow(
    tables: &Tables,
    entry: &mut FlowEntry,
    subject: &Subject<'_>,
    direction: FlowDirection,
    judge: bool,
    now: u32,
) -> Settled {
    let (ends, judgement) = current(tables, entry, judge);
    let (near, far) = match direction {
        FlowDirection::Original => (ends.from, ends.to),
        FlowDirection::Reply => (ends.to, ends.from),
    };
    if !subject.entrance.admits(near) {
        return Settled::refused(subject.entrance.refusal());
    }
    let mut settled = settled(&ends, &judgement);
    if settled.verdict.is_ok() {
        settled.verdict = Ok(Way { from: near, to: far });
        entry.pass(
            direction,
            subject.flags(),
            subject.segments,
            subject.parsed.total_len as u64,
            now,
        );
    } else {
        entry.refuse(now);
    }
    settled
}

/// Brings a flow up to date with the tables and tells where it goes and what is thought of it.
fn current(tables: &Tables, entry: &mut FlowEntry, judge: bool) -> (Ends, Judgement) {
    let (source, _) = entry.key().source(entry.original());
    let (destination, _) = entry.key().destination(entry.original());
    let moved = entry.path.route_generation != tables.route_generation;
    let ends = if moved {
        ends(tables, source, destination)
    } else {
        Ends {
            source: source.to_ip(),
            destination: destination.to_ip(),
            from: Via::decode(entry.path.next_hop_reply),
            to: Via::decode(entry.path.next_hop_original),
        }
    };
    let grounds = judge::grounds(tables, &ends);
    if !moved && !judge && grounds == entry.rests_on {
        let rules = entry.counters;
        let (denied, slot) = match entry.verdict {
            Verdict::Allow => return (ends, Judgement { denied: None, rules }),
            Verdict::DenyEgress => (DropReason::PolicyEgress, rules.egress),
            Verdict::DenyIngress => (DropReason::PolicyIngress, rules.ingress),
        };
        // Without a slot it was not policy that ended the flow.
        if slot != NO_SLOT {
            return (ends, Judgement { denied: Some(denied), rules });
        }
    }
    if !judge && is_kept(tables, entry) && leads_as_before(tables, entry, &ends) {
        entry.path.route_generation = tables.route_generation;
        return (ends, Judgement { denied: None, rules: entry.counters });
    }
    let judgement = if connects(ends.from, ends.to) {
        judge::judge(tables, &ends, &grounds, transport(entry))
    } else {
        Judgement::without_rules(Some(DropReason::NoRoute))
    };
    stamp(entry, tables, &ends, grounds, &judgement);
    (ends, judgement)
}

/// Whether a flow is to survive what policy says now.
fn is_kept(tables: &Tables, entry: &FlowEntry) -> bool {
    tables.connections.established == Established::Keep
        && entry.verdict == Verdict::Allow
        && entry.state().is_answered()
}

/// Whether a flow's ends are where they were: not, when another pod has an end's address.
fn leads_as_before(tables: &Tables, entry: &FlowEntry, ends: &Ends) -> bool {
    let path = &entry.path;
    let hops = [path.next_hop_reply, path.next_hop_original];
    hops == [ends.from, ends.to].map(Via::encode) && path.ports == local_ports(tables, ends)
}

fn local_ports(tables: &Tables, ends: &Ends) -> [u16; 2] {
    [ends.from, ends.to].map(|via| match via {
        Via::Endpoint(index) => tables.endpoint(index).map_or(0, |endpoint| endpoint.port.0),
        Via::NoRoute | Via::Unreachable | Via::Node | Via::Host | Via::Tunnel(_) => 0,
    })
}

/// Writes into a flow what was decided and what it rests on.
fn stamp(
    entry: &mut FlowEntry,
    tables: &Tables,
    ends: &Ends,
    grounds: Grounds,
    judgement: &Judgement,
) {
    (entry.verdict, entry.counters) = match judgement.denied {
        None => (Verdict::Allow, judgement.rules),
        Some(DropReason::PolicyIngress) => (Verdict::DenyIngress, judgement.rules),
        Some(DropReason::PolicyEgress) => (Verdict::DenyEgress, judgement.rules),
        // Not a rule's doing: the entry cannot hold the reason, so without slots the next packet asks again.
        Some(_) => (Verdict::DenyEgress, Judgement::without_rules(None).rules),
    };
    entry.rests_on = grounds;
    entry.path = Path {
        route_generation: tables.route_generation,
        next_hop_original: ends.to.encode(),
        next_hop_reply: ends.from.encode(),
        ports: local_ports(tables, ends),
    };
}

/// An ICMP error: it passes with the flow that its quoted header names, towards the sender of what it quotes and from the
/// side to which that was going.
fn related(tables: &Tables, flows: &mut FlowTable, subject: &Subject<'_>, now: u32) -> Settled {
    let unmatched = Settled::refused(DropReason::IcmpErrorUnmatched);
    if !subject.entrance.admits(tables.route(subject.parsed.source.to_ip())) {
        return Settled::refused(subject.entrance.refusal());
    }
    let Some(quoted) = icmp::quoted(subject.bytes, subject.parsed) else { return unmatched };
    if quoted.source != subject.parsed.destination {
        return unmatched;
    }
    // Hosts complain of what they were asked; nobody needs to know that an answer did not arrive.
    let asked = quoted.icmp.and_then(|(kind, _)| query(quoted.source, quoted.protocol, kind));
    if asked.is_some_and(|(_, asks)| !asks) {
        return unmatched;
    }
    let ports = [quoted.source_port, quoted.destination_port];
    let (key, orientation) =
        key(quoted.source, quoted.destination, ports, quoted.protocol, quoted.icmp);
    let hash = flows.hash(&key);
    let Some(entry) = flows.lookup(hash, &key, now) else { return unmatched };
    let direction = entry.direction(orientation);
    let (ends, judgement) = current(tables, entry, false);
    let (back, forth) = match direction {
        FlowDirection::Original => (ends.from, ends.to),
        FlowDirection::Reply => (ends.to, ends.from),
    };
    if !subject.entrance.admits(forth) {
        return unmatched;
    }
    let mut settled = settled(&ends, &judgement);
    if settled.verdict.is_ok() {
        settled.verdict = Ok(Way { from: forth, to: back });
    }
    settled
}

fn ends(tables: &Tables, source: Address, destination: Address) -> Ends {
    let (source, destination) = (source.to_ip(), destination.to_ip());
    Ends { source, destination, from: tables.route(source), to: tables.route(destination) }
}

fn settled(ends: &Ends, judgement: &Judgement) -> Settled {
    let verdict = match judgement.denied {
        None => Ok(Way { from: ends.from, to: ends.to }),
        Some(reason) => Err(reason),
    };
    Settled { verdict, rules: judgement.rules }
}

/// Manx connects its endpoints with everything, and this node with other nodes' pods; it carries nobody's transit. A
/// destination that is nowhere is let through to be answered.
fn connects(from: Via, to: Via) -> bool {
    match (from, to) {
        (Via::Endpoint(_), _)
        | (_, Via::Endpoint(_) | Via::Unreachable | Via::NoRoute)
        | (Via::Node, Via::Tunnel(_))
        | (Via::Tunnel(_), Via::Node) => true,
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
