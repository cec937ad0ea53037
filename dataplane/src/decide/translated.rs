//! Flows that are translated: to a backend of a service, and to the world with the node's address as their source. They are
//! found by either of their keys, and judged by their client and by what is behind the translation.
//!
//! A flow's backend is chosen when the flow opens, and stays its backend until it is gone ([`ServiceTable::keeps`]): then
//! TCP's client is told, and for other protocols the next packet chooses anew.

use std::net::IpAddr;

use manx_policy_compiler::model::{L4Header, Protocol, Transport};

use super::address_lookup::{by_return_path, current_epoch, lookup_ends};
use super::flow_decision::FlowDecision;
use super::key::{key_with_ends, transport};
use super::metadata::PacketMetadata;
use super::route::{connects, forward_if_fits};
use super::state::DecisionState;
use super::stored_decision::{
    cached_verdict_at, count_packet, decide_by_verdict, flow_owner, keeps_established,
    refresh_stale, write_decision,
};
use crate::drop_reason::DropReason;
use crate::fate::Forwarding;
use crate::flow::{
    Admission, ClaimedKey, DirectedKey, EndReason, Epoch, FlowDirection, FlowKey, FlowMut,
    FlowTable, Found, Holder, KeyTaken, Orientation, Owner, PlaceInFlow, RuleCounters, TwoKeys,
    Verdict,
};
use crate::policy::{self, FlowEnds, PolicyVerdict, PolicyView, PolicyViews, UntrackedAllows};
use crate::rewrite::Translation;
use crate::services::{
    Backend, FrontendKey, HAIRPIN_V4, HAIRPIN_V6, ServiceTable, WithoutBackend, choose,
};
use crate::tables::{EncodedNextHop, ManxPorts, NextHop, NextHopPair, ReturnPath, Tables};
use crate::wire::address::Address;
use crate::wire::protocol;

/// The ports that are tried for a flow until one is free behind the translation.
const PORT_TRIES: usize = 32;
/// The ports that may take the place of a client's, the first and the last.
const CLIENT_PORTS: (u16, u16) = (1024, u16::MAX);

/// Whether the packets of flows to this next hop may be translated.
#[inline]
pub(super) fn may_open(tables: &Tables, to: NextHop) -> bool {
    match to {
        NextHop::Service | NextHop::Node => tables.services.is_some(),
        NextHop::Host => tables.manx_ports.is_some(),
        _ => false,
    }
}

/// Opens the flow of a packet that is translated, if policy allows it: to a service's address, to a port of the node's that
/// a service has, or to the world. The packet comes with its next hops, its ends, and the place for its flow. `None`: it is
/// not translated.
#[inline(never)]
pub(super) fn open(
    tables: &Tables,
    state: &mut DecisionState,
    metadata: &PacketMetadata,
    (asked_pair, asked, found): (NextHopPair, FlowEnds, Found),
    now: u32,
) -> Option<FlowDecision> {
    let name = &metadata.flow;
    let first = DirectedKey { key: name.key, original: name.orientation };
    let client = name.key.source(name.orientation);
    let asked_for = name.key.destination(name.orientation);
    let destination = match choose_destination(tables, state, metadata, (asked_pair, &asked), now) {
        Ok(destination) => destination,
        Err(refused) => return refused,
    };
    // Read before the look-up, so that a change meanwhile is noticed.
    let epoch = epoch_of(tables, [client.0, destination.0]);
    let of_destination = state.source_cache.lookup_ends(tables, client.0, destination.0);
    let (pair, ends) = by_return_path(tables, metadata.entrance.return_path(), of_destination);
    let is_service = destination != asked_for;
    let source = source_behind(tables, &ends, [client.0, destination.0], is_service);
    if source == Ok(SourceBehind::Client) && !is_service {
        return None;
    }
    let leads = match source {
        // Somebody else's backend must not be a service's address: it would be translated for ever.
        _ if ends.to == NextHop::Service => false,
        Ok(SourceBehind::Client) => connects(tables, ends.from, ends.to),
        Ok(SourceBehind::Address(_) | SourceBehind::Node(..)) => true,
        Err(NoAddress) => false,
    };
    let (Ok(source), true) = (source, leads) else {
        return Some(FlowDecision::drop(DropReason::NoRoute));
    };
    let pair = source.leave(pair);
    let second = source.second_key(&first, client.1, destination);
    let verdict = evaluate(tables, &TwoKeys { first, second }, asked, ends);
    if verdict.denied.is_some() || tables.link(NextHop::decode(pair.to)).is_none() {
        return Some(FlowDecision::from_verdict(pair, &verdict));
    }
    if let Some(owner) = state.flows.claim(name.hash, found) {
        return Some(FlowDecision::hand_off(owner));
    }
    let wanted = Wanted { first: &first, source, destination, owner: flow_owner(&ends) };
    let Some(claimed) = claim_second_key(state, found, &wanted, now) else {
        state.flows.unclaim(name.hash, found);
        return Some(FlowDecision::drop(DropReason::NoFreePort));
    };
    let second = claimed.key();
    let evicted = state.flows.insert(name.hash, found, flow_owner(&ends), now, |entry| {
        entry.open(&name.key, name.orientation, metadata.tcp_flags, now);
        write_decision(entry, tables, (pair, &ends), &verdict);
        entry.epoch = epoch;
        count_packet(entry, metadata, FlowDirection::Original, now);
    });
    let stored = state.flows.find(name.hash, &name.key);
    let for_second = state.flows.add_second_key(stored, claimed, now);
    let live = [evicted, for_second].into_iter().flatten().filter(|it| it.is_live());
    state.evictions += live.count() as u64;
    let translation = Translation { key: second.key, orientation: second.original };
    Some(FlowDecision::from_verdict(pair, &verdict).translated(translation))
}

/// The destination of a new flow behind its translation: a backend, if a service has the address and port that it asks
/// for, else those. Errors: the decision on a flow that is not opened; `None`: it is not translated.
fn choose_destination(
    tables: &Tables,
    state: &mut DecisionState,
    metadata: &PacketMetadata,
    (pair, ends): (NextHopPair, &FlowEnds),
    now: u32,
) -> Result<(Address, u16), Option<FlowDecision>> {
    let name = &metadata.flow;
    let (address, port) = name.key.destination(name.orientation);
    if ends.to == NextHop::Host {
        return Ok((address, port));
    }
    let protocol = name.key.protocol();
    let frontend = tables
        .services
        .as_ref()
        .and_then(|services| services.frontend(&FrontendKey { address, protocol, port }));
    let Some(frontend) = frontend else {
        return Err(without_frontend(tables, pair, ends, (protocol, port)));
    };
    let (client, _) = name.key.source(name.orientation);
    if !frontend.clients.has(client) {
        return Err(Some(FlowDecision::drop(DropReason::ServiceSourceRanges)));
    }
    if protocol == protocol::TCP && !metadata.tcp_flags.opens() {
        // Nobody knows the backend of this connection.
        return Err(Some(FlowDecision::refuse(DropReason::TcpWithoutFlow)));
    }
    let chance = state.chance();
    match choose(frontend, &state.affinities, client, chance, now) {
        Some(backend) => Ok((backend.address, backend.port)),
        None => Err(Some(match frontend.without_backend {
            WithoutBackend::Refuse => FlowDecision::refuse(DropReason::ServiceWithoutBackend),
            WithoutBackend::Drop => FlowDecision::drop(DropReason::ServiceWithoutBackend),
        })),
    }
}

/// The decision on a new flow to an address and port that no service has.
fn without_frontend(
    tables: &Tables,
    pair: NextHopPair,
    ends: &FlowEnds,
    (protocol, port): (u8, u16),
) -> Option<FlowDecision> {
    let is_for_manx = pair.from == EncodedNextHop::MANX_PORTS;
    if ends.to == NextHop::Service {
        return Some(FlowDecision::refuse(DropReason::ServiceWithoutPort));
    }
    let egress = tables.manx_ports.as_ref().map_or((0, 0), |ports| ports.egress);
    let is_of_way_out = (egress.0..=egress.1).contains(&port);
    let has_ports = Protocol::from_number(protocol).is_some();
    match (is_for_manx, has_ports) {
        (false, _) => None,
        // The node's kernel has this message, too.
        (true, false) => Some(FlowDecision::drop(DropReason::NotOurs)),
        // Nothing tells whether a port of the way out is in use (RFC 5382, section 4.3).
        (true, true) if is_of_way_out => Some(FlowDecision::drop(DropReason::UnknownPort)),
        (true, true) => Some(FlowDecision::refuse(DropReason::UnknownPort)),
    }
}

/// The source of a flow's packets behind the translation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SourceBehind {
    /// The client, so that the other end sees him.
    Client,
    /// Another address: the client's gateway, if an endpoint reaches itself, because it takes nothing from the outside that
    /// has its own address; or one of this node's block, on the way through a tunnel, which brings no other.
    Address(Address),
    /// The node, with a port of these: its answers come back to the node.
    Node(Address, (u16, u16)),
}

/// The node has no address of the family that could take a source's place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct NoAddress;

/// The source of a flow behind its translation, by the client and the destination. It is the node where the pool of a pod
/// asks for it; and where a service has led a client that is no pod to a backend that is none, because the answers have to
/// come back here.
fn source_behind(
    tables: &Tables,
    ends: &FlowEnds,
    [client, destination]: [Address; 2],
    is_service: bool,
) -> Result<SourceBehind, NoAddress> {
    if is_hairpin(ends) {
        let (v4, v6) = (HAIRPIN_V4.into(), IpAddr::V6(HAIRPIN_V6).into());
        return Ok(SourceBehind::Address(if client.is_v4() { v4 } else { v6 }));
    }
    let Some(ports) = &tables.manx_ports else { return Ok(SourceBehind::Client) };
    let of_node = || {
        let address = ManxPorts::of_family(&ports.addresses, client).ok_or(NoAddress)?;
        Ok(SourceBehind::Node(address, ports.egress))
    };
    match (ends.from, ends.to) {
        (NextHop::Endpoint(_), NextHop::Host) if ports.masquerades(client, destination) => {
            of_node()
        }
        (NextHop::Node | NextHop::Host, NextHop::Node | NextHop::Host) if is_service => of_node(),
        (NextHop::Node, NextHop::Tunnel(_)) if is_service => {
            let router = tables.router_v4.filter(|_| client.is_v4()).ok_or(NoAddress)?;
            Ok(SourceBehind::Address(router.into()))
        }
        (NextHop::Host, NextHop::Tunnel(_)) if is_service => {
            let visitor = ManxPorts::of_family(&ports.visitors, client).ok_or(NoAddress)?;
            Ok(SourceBehind::Address(visitor))
        }
        _ => Ok(SourceBehind::Client),
    }
}

impl SourceBehind {
    /// The next hops of packets with this source behind the translation, where routes lead by `pair`.
    fn leave(self, pair: NextHopPair) -> NextHopPair {
        match self {
            Self::Node(..) => NextHopPair { to: EncodedNextHop::MANX_PORTS, ..pair },
            Self::Client | Self::Address(_) => pair,
        }
    }

    /// The second key of a flow with this first one, this source port and this destination.
    fn second_key(self, first: &DirectedKey, port: u16, to: (Address, u16)) -> DirectedKey {
        let source = match self {
            Self::Client => first.key.source(first.original).0,
            Self::Address(address) | Self::Node(address, _) => address,
        };
        let (key, original) = key_with_ends(&first.key, first.original, (source, port), to);
        DirectedKey { key, original }
    }
}

/// Whether an endpoint reaches itself through a service.
fn is_hairpin(ends: &FlowEnds) -> bool {
    matches!(ends.from, NextHop::Endpoint(_)) && ends.from == ends.to
}

/// A flow that needs a second key: its first one, its source and destination behind the translation, and its owner.
struct Wanted<'a> {
    first: &'a DirectedKey,
    source: SourceBehind,
    destination: (Address, u16),
    owner: Owner,
}

/// Claims a second key: with the client's own port, or with another one if another flow or worker has that key. The node's
/// ports are taken at random; where those that are tried are taken, the owner that has most of them gives one up to an
/// owner that has fewer. So no pod can keep the ports to a destination from others.
fn claim_second_key(
    state: &mut DecisionState,
    found: Found,
    wanted: &Wanted<'_>,
    now: u32,
) -> Option<ClaimedKey> {
    let Wanted { first, source, destination, owner } = *wanted;
    let (_, own) = first.key.source(first.original);
    let (own, (least, last)) = match source {
        SourceBehind::Client | SourceBehind::Address(_) => (Some(own), CLIENT_PORTS),
        SourceBehind::Node(_, ports) => (None, ports),
    };
    let ports = u32::from(last.saturating_sub(least)) + 1;
    let mut next = own;
    let (mut taken, mut count) = ([None; PORT_TRIES], 0);
    for _ in 0..PORT_TRIES {
        let port = next.take().unwrap_or_else(|| least + (state.chance() % ports) as u16);
        let second = source.second_key(first, port, destination);
        match state.flows.claim_second_key(second, found, now) {
            Ok(claimed) => return Some(claimed),
            Err(KeyTaken::Worker(_)) => {}
            Err(KeyTaken::Flow) => {
                let holder = state.flows.holder(&second.key);
                let is_new = |it: &Holder| {
                    let mut known = taken.iter().flatten();
                    known.all(|(_, other): &(_, Holder)| other.found != it.found)
                };
                if let Some(holder) = holder.filter(is_new) {
                    taken[count] = Some((second, holder));
                    count += 1;
                }
            }
        }
    }
    let (second, Holder { found: victim, .. }) = most_wasteful(&taken, owner)?;
    if !matches!(source, SourceBehind::Node(..)) || victim == found {
        return None;
    }
    state.flows.remove_found(victim, now, EndReason::Evicted);
    state.evictions += 1;
    state.flows.claim_second_key(second, found, now).ok()
}

/// Of the keys that were found taken, one of the owner that has most: rather of a flow that is not established. `None`:
/// `owner` itself would have as many as that one.
fn most_wasteful(
    taken: &[Option<(DirectedKey, Holder)>],
    owner: Owner,
) -> Option<(DirectedKey, Holder)> {
    let all = || taken.iter().flatten();
    let count = |owner: Owner| all().filter(|(_, it)| it.owner == owner).count();
    let rank = |(_, it): &&(DirectedKey, Holder)| (count(it.owner), !it.is_established);
    let found = all().max_by_key(rank)?;
    (count(found.1.owner) > count(owner) + 1).then_some(*found)
}

/// Evaluates policy for a translated flow. `asked`: its ends before the translation. `ends`: those behind it, but for the
/// source, which is as it was sent.
fn evaluate(tables: &Tables, keys: &TwoKeys, asked: FlowEnds, ends: FlowEnds) -> PolicyVerdict {
    let TwoKeys { first, second } = keys;
    let original = transport(&first.key, first.original);
    let l4 = match original.l4 {
        L4Header::Ports { source, .. } => {
            L4Header::Ports { source, destination: second.key.destination(second.original).1 }
        }
        other => other,
    };
    let views = PolicyViews {
        original: PolicyView { ends: asked, transport: original },
        translated: PolicyView { ends, transport: Transport { l4, ..original } },
    };
    policy::evaluate_policy(tables, views, UntrackedAllows::NONE)
}

/// The two addresses that a translated flow's decision rests on: its source, and its destination behind the translation.
#[inline]
fn judged_addresses(TwoKeys { first, second }: &TwoKeys) -> [Address; 2] {
    [first.key.source(first.original).0, second.key.destination(second.original).0]
}

/// The epoch of a decision on a translated flow. A backend that goes begins another one.
#[inline]
pub(super) fn epoch(tables: &Tables, keys: &TwoKeys) -> Epoch {
    epoch_of(tables, judged_addresses(keys))
}

#[inline]
fn epoch_of(tables: &Tables, addresses: [Address; 2]) -> Epoch {
    let addresses = addresses.map(|it| it.to_bits() as u32);
    let Epoch { version, changes } = current_epoch(tables, addresses);
    let gone = tables.services.as_ref().map_or(0, |services| services.gone());
    Epoch { version, changes: changes.wrapping_add(gone) }
}

/// The ends that policy judges, and the next hops, if the packets of the original direction took this path before.
fn judged_ends(tables: &Tables, keys: &TwoKeys, path: ReturnPath) -> (NextHopPair, FlowEnds) {
    let TwoKeys { first, second } = keys;
    let [source, destination] = judged_addresses(keys);
    let (pair, ends) = by_return_path(tables, path, lookup_ends(tables, source, destination));
    let by_node = first.key.source(first.original).0 != second.key.source(second.original).0
        && matches!(ends.to, NextHop::Host | NextHop::Node);
    let pair = if by_node { NextHopPair { to: EncodedNextHop::MANX_PORTS, ..pair } } else { pair };
    (pair, ends)
}

/// The ends of the flow before its translation, with the same source.
fn asked_ends(tables: &Tables, keys: &TwoKeys, ends: &FlowEnds) -> FlowEnds {
    let (address, _) = keys.first.key.destination(keys.first.original);
    let identities = [ends.identities[0], tables.identity(address)];
    FlowEnds { from: ends.from, to: tables.next_hop(address), identities }
}

/// A flow's backend is gone, or the node lost the one by which the world answers.
struct BackendGone;

/// Whether what a translation has put in the place of a flow's ends is still there: the backend, and the node's address.
fn stands(tables: &Tables, TwoKeys { first, second }: &TwoKeys, to: NextHop) -> bool {
    let [(before, _), (source, _)] = [first, second].map(|it| it.key.source(it.original));
    let [asked, behind] = [first, second].map(|it| it.key.destination(it.original));
    let protocol = first.key.protocol();
    // Other protocols have no service, and their ports are none.
    let is_service = Protocol::from_number(protocol).is_some() && asked != behind;
    let frontend = FrontendKey { address: asked.0, protocol, port: asked.1 };
    let backend = Backend { address: behind.0, port: behind.1 };
    let keeps = |services: &ServiceTable| services.keeps(&frontend, backend);
    let has_source =
        |ports: &ManxPorts| ManxPorts::of_family(&ports.addresses, source) == Some(source);
    let is_by_node = source != before && matches!(to, NextHop::Host | NextHop::Node);
    (!is_service || tables.services.as_deref().is_some_and(keeps))
        && (!is_by_node || tables.manx_ports.as_ref().is_some_and(has_source))
}

/// Brings a translated flow up to date with the tables, as [`tracked`](super::tracked) does others.
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
    let evaluate = || evaluate(tables, keys, asked_ends(tables, keys, &ends), ends);
    Ok(refresh_stale(tables, entry, (pair, &ends), epoch, judge, evaluate))
}

/// Decides a packet whose flow was found, is live and has two keys. `Err`: the packet opens a flow at this place.
#[inline(never)]
pub(super) fn decide_known(
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
    let (direction, key, orientation) = match keys.place(&name.key, name.orientation) {
        PlaceInFlow::Own(direction, key, orientation) => (direction, key, orientation),
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
        // The packet alone is judged, because a denial would end a connection that is to be kept.
        Admission::Judge if keeps_established(tables, &entry) => {
            let path = ReturnPath::of(entry.next_hop_pair(FlowDirection::Original).from);
            let (pair, ends) = judged_ends(tables, &keys, path);
            let verdict = evaluate(tables, &keys, asked_ends(tables, &keys, &ends), ends);
            if verdict.denied.is_some() {
                return Ok(FlowDecision::from_verdict(pair, &verdict));
            }
            false
        }
        Admission::Judge => true,
        Admission::Recycle if is_original => return Err(found),
        // The backend opens a connection to the client from the service's port.
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
    // Nobody else ends a sender's flow, or is answered for it.
    let (pair, _) = judged_ends(tables, keys, metadata.entrance.return_path());
    if !metadata.entrance.admits_flow(pair, FlowDirection::Original) {
        return Ok(FlowDecision::drop(metadata.entrance.refusal(pair.to)));
    }
    state.flows.remove_found(found, now, EndReason::BackendGone);
    if name.key.protocol() == protocol::TCP && !metadata.tcp_flags.opens() {
        return Ok(FlowDecision::refuse(DropReason::BackendGone));
    }
    Err(state.flows.find(name.hash, &name.key))
}

/// Decides an ICMP error about a packet of a translated flow, which names the flow by this key and orientation. `None`: no
/// such packet of the flow has passed here.
pub(super) fn decide_error(
    tables: &Tables,
    flows: &mut FlowTable,
    (found, keys): (Found, TwoKeys),
    (key, orientation): (&FlowKey, Orientation),
    now: u32,
) -> Option<(FlowDirection, NextHopPair, FlowDecision)> {
    // The error travels against the quoted packet, and so as a packet of the other direction does.
    let PlaceInFlow::Own(direction, key, back) = keys.place(key, orientation.reverse()) else {
        return None;
    };
    let mut entry = flows.live_entry(found, now)?;
    let verdict = refresh(tables, &mut entry, &keys, false).ok()?;
    let pair = entry.next_hop_pair(direction);
    let translation = Translation { key, orientation: back.reverse() };
    Some((direction, pair, FlowDecision::from_verdict(pair, &verdict).translated(translation)))
}

/// As [`fast_path`](super::fast_path()), for packets of flows that are translated. The caller has tried that first.
#[inline(never)]
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
    let (mut entry, keys) = state.flows.lookup_guessed_two_keys(&name.key, name.guess, now)?;
    let PlaceInFlow::Own(direction, key, orientation) = keys.place(&name.key, name.orientation)
    else {
        return None;
    };
    let stands = entry.verdict == Verdict::Allow
        && entry.stays(flags, direction)
        && entry.epoch == epoch(tables, &keys);
    let pair = entry.next_hop_pair(direction);
    if !stands || !metadata.entrance.admits(pair.from) {
        return None;
    }
    let forwarding = forward_if_fits(tables, metadata, pair)?;
    entry.count_packet(direction, metadata.segments, metadata.total_len.into(), now);
    Some((forwarding, Translation { key, orientation }, entry.counters))
}

/// What restoring a translated flow of the last process needs: its ends and the verdict on it. `None`: its backend is
/// gone.
pub(super) fn judge_restored(
    tables: &Tables,
    keys: &TwoKeys,
    path: ReturnPath,
) -> Option<((NextHopPair, FlowEnds), PolicyVerdict, Epoch)> {
    let epoch = epoch(tables, keys);
    let (pair, ends) = judged_ends(tables, keys, path);
    stands(tables, keys, ends.to).then_some(())?;
    let verdict = evaluate(tables, keys, asked_ends(tables, keys, &ends), ends);
    Some(((pair, ends), verdict, epoch))
}
