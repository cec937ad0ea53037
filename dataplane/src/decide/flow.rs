//! Known flows and new ones: what is remembered, what is judged again, and the ICMP errors that belong to them.

use super::ends::{as_of, ends};
use super::key::{key, query, transport};
use super::{Glance, Memory, Settled, Subject, Way, connects, settled};
use crate::fate::DropReason;
use crate::flow::{
    Admission, AsOf, Evicted, FlowDirection, FlowMut, FlowTable, Found, Owner, Verdict,
};
use crate::icmp;
use crate::judge::{self, Ends, Judgement, NO_SLOT, Untracked};
use crate::parse::Parsed;
use crate::tables::{Established, Tables, Via};
use crate::wire::protocol;

#[inline]
pub(super) fn flow(tables: &Tables, memory: &mut Memory, glance: &Glance, now: u32) -> Settled {
    let name = &glance.name;
    let found = memory.flows.find(name.hash, &name.key);
    let Some(mut entry) = memory.flows.live(found, now) else {
        return match memory.flows.elsewhere(name.hash) {
            None => open(tables, memory, glance, Some(found), now),
            Some(owner) => Settled::handed_over(owner),
        };
    };
    let direction = entry.direction(name.orientation);
    let place = match entry.admission(glance.tcp_flags, direction) {
        Admission::Cached => return follow(tables, &mut entry, glance, direction, now),
        // Were it denied, it would end what is to be kept.
        Admission::Judge if is_kept(tables, &entry) => None,
        Admission::Judge => return again(tables, &mut entry, glance, direction, true, now),
        Admission::JudgeAlone => None,
        Admission::Recycle => Some(found),
    };
    open(tables, memory, glance, place, now)
}

/// A packet of a flow that is not known: judged; if it is allowed, the flow is known from now on, where there is a `place` for it.
/// What an endpoint sends to itself makes no flow: it is always allowed, in either direction, and would cost the table two.
#[inline(never)]
fn open(
    tables: &Tables,
    memory: &mut Memory,
    glance: &Glance,
    place: Option<Found>,
    now: u32,
) -> Settled {
    let name = &glance.name;
    let [source, destination] = name.addresses();
    if !(source.is_forwardable() && destination.is_forwardable()) {
        return Settled::refused(DropReason::NotForwardable);
    }
    let as_of = as_of(tables, name.key.v4_addresses());
    let (way, ends) = memory.last_source.ends(tables, source, destination);
    if !glance.entrance.admits(way.from) {
        return Settled::refused(glance.entrance.refusal());
    }
    let opens = name.key.protocol() != protocol::TCP || glance.tcp_flags.opens();
    if !opens && tables.connections.tcp_strict && way.from != way.to {
        return Settled::refused(DropReason::TcpWithoutFlow);
    }
    if !connects(tables, ends.from, ends.to) {
        return Settled::refused(DropReason::NoRoute);
    }
    let transport = transport(&name.key, name.orientation);
    let judgement = judge::judge(tables, &ends, transport, Untracked::NONE);
    let settled = settled(way, &judgement);
    if let Some(found) = place
        && settled.verdict.is_ok()
        && way.from != way.to
        && tables.link(ends.to).is_some()
    {
        if let Some(owner) = memory.flows.claim(name.hash, found) {
            return Settled::handed_over(owner);
        }
        let evicted = memory.flows.insert(name.hash, found, owner(way), now, |entry| {
            entry.open(&name.key, name.orientation, glance.tcp_flags, now);
            stamp(entry, tables, (way, &ends), &judgement);
            entry.as_of = as_of;
            pass(entry, glance, FlowDirection::Original, now);
        });
        match evicted {
            Some(Evicted::Unestablished | Evicted::Established) => memory.evictions += 1,
            Some(Evicted::Expired) | None => {}
        }
    }
    settled
}

/// Who a flow counts for: the endpoint that opens it, so that nobody fills another's share, or else the one that it is opened to.
#[inline]
fn owner(way: Way) -> Owner {
    way.from.endpoint().or(way.to.endpoint()).map_or(Owner::NODE, Owner::endpoint)
}

/// A packet of a known flow: what was decided stands while all that it rests on does.
#[inline]
fn follow(
    tables: &Tables,
    entry: &mut FlowMut<'_>,
    glance: &Glance,
    direction: FlowDirection,
    now: u32,
) -> Settled {
    let stands = entry.as_of == as_of(tables, entry.v4_addresses());
    if !stands || entry.verdict != Verdict::Allow {
        return again(tables, entry, glance, direction, false, now);
    }
    let [from, to] = entry.hops(direction);
    if !glance.entrance.admits(from) {
        return Settled::refused(glance.entrance.refusal());
    }
    pass(entry, glance, direction, now);
    Settled { verdict: Ok(Way { from, to }), rules: entry.counters }
}

/// As [`follow`], where something may have changed, or the packet is to be judged (`judge`): the flow is judged in its original
/// direction, whichever way this packet goes.
#[inline(never)]
fn again(
    tables: &Tables,
    entry: &mut FlowMut<'_>,
    glance: &Glance,
    direction: FlowDirection,
    judge: bool,
    now: u32,
) -> Settled {
    let judgement = current(tables, entry, judge);
    let [from, to] = entry.hops(direction);
    if !glance.entrance.admits(from) {
        return Settled::refused(glance.entrance.refusal());
    }
    let settled = settled(Way { from, to }, &judgement);
    if settled.verdict.is_ok() {
        pass(entry, glance, direction, now);
    } else {
        entry.refuse(now);
    }
    settled
}

/// Counts a packet that its flow admits.
#[inline]
pub(super) fn pass(entry: &mut FlowMut<'_>, glance: &Glance, direction: FlowDirection, now: u32) {
    let Glance { tcp_flags, segments, total_len, .. } = *glance;
    entry.pass(direction, tcp_flags, segments, total_len.into(), now);
}

/// Brings a flow up to date with the tables and tells what is thought of it.
#[inline]
fn current(tables: &Tables, entry: &mut FlowMut<'_>, judge: bool) -> Judgement {
    let as_of = as_of(tables, entry.v4_addresses());
    if as_of == entry.as_of
        && !judge
        && let Some(judgement) = remembered(entry)
    {
        return judgement;
    }
    renewed(tables, entry, as_of, judge)
}

/// What an entry remembers of its judgement. `None`: it was denied and by no rule, which is not remembered.
#[inline]
fn remembered(entry: &FlowMut<'_>) -> Option<Judgement> {
    let rules = entry.counters;
    let (denied, slot) = match entry.verdict {
        Verdict::Allow => return Some(Judgement { denied: None, rules }),
        Verdict::DenyEgress => (DropReason::PolicyEgress, rules.egress),
        Verdict::DenyIngress => (DropReason::PolicyIngress, rules.ingress),
    };
    (slot != NO_SLOT).then_some(Judgement { denied: Some(denied), rules })
}

/// The same, where something may have changed.
#[inline(never)]
fn renewed(tables: &Tables, entry: &mut FlowMut<'_>, as_of: AsOf, judge: bool) -> Judgement {
    let (source, _) = entry.key().source(entry.original());
    let (destination, _) = entry.key().destination(entry.original());
    let (way, ends) = ends(tables, source, destination);
    let leads_as_before = leads_as_before(tables, entry, way, &ends);
    if !judge
        && leads_as_before
        && connects(tables, ends.from, ends.to)
        && judge::grounds(tables, &ends) == entry.second.rests_on
        && let Some(judgement) = remembered(entry)
    {
        entry.as_of = as_of;
        return judgement;
    }
    let is_kept = !judge && is_kept(tables, entry) && leads_as_before;
    let judgement = if connects(tables, ends.from, ends.to) {
        let transport = transport(&entry.key(), entry.original());
        judge::judge(tables, &ends, transport, Untracked::NONE)
    } else {
        Judgement::without_rules(Some(DropReason::NoRoute))
    };
    // Kept against the rules, it is counted by none of them.
    let judgement = if is_kept && judgement.denied.is_some() {
        Judgement::without_rules(None)
    } else {
        judgement
    };
    stamp(entry, tables, (way, &ends), &judgement);
    entry.as_of = as_of;
    judgement
}

/// Whether a flow is to survive what policy says now.
fn is_kept(tables: &Tables, entry: &FlowMut<'_>) -> bool {
    tables.connections.established == Established::Keep
        && entry.verdict == Verdict::Allow
        && entry.state().is_answered()
}

/// Whether a flow's ends are where they were: not, when another pod has an end's address.
fn leads_as_before(tables: &Tables, entry: &FlowMut<'_>, way: Way, ends: &Ends) -> bool {
    entry.hops(FlowDirection::Original) == [way.from, way.to]
        && entry.second.attachments == attachments(tables, ends)
}

fn attachments(tables: &Tables, ends: &Ends) -> [u32; 2] {
    [ends.from, ends.to].map(|via| match via {
        Via::Endpoint(index) => tables.endpoint(index).map_or(0, |endpoint| endpoint.attachment),
        Via::NoRoute | Via::Unreachable | Via::Node | Via::Host | Via::Tunnel(_) => 0,
    })
}

/// Writes into a flow what was decided and what it rests on.
#[inline]
fn stamp(
    entry: &mut FlowMut<'_>,
    tables: &Tables,
    (way, ends): (Way, &Ends),
    judgement: &Judgement,
) {
    (entry.verdict, entry.counters) = match judgement.denied {
        None => (Verdict::Allow, judgement.rules),
        Some(DropReason::PolicyIngress) => (Verdict::DenyIngress, judgement.rules),
        Some(DropReason::PolicyEgress) => (Verdict::DenyEgress, judgement.rules),
        // Not a rule's doing: the entry cannot hold the reason, so without slots the next packet asks again.
        Some(_) => (Verdict::DenyEgress, Judgement::without_rules(None).rules),
    };
    entry.second.rests_on = judge::grounds(tables, ends);
    entry.next_hops = [way.to, way.from];
    entry.second.attachments = attachments(tables, ends);
}

/// An ICMP error: it passes with the flow that its quoted header names, towards the sender of what it quotes and from the
/// side to which that was going. One of an endpoint to itself passes.
pub(super) fn related(
    tables: &Tables,
    flows: &mut FlowTable,
    subject: &Subject<'_>,
    parsed: &Parsed,
    now: u32,
) -> Settled {
    let unmatched = Settled::refused(DropReason::IcmpErrorUnmatched);
    if !subject.glance.entrance.admits(tables.route(parsed.source).encode()) {
        return Settled::refused(subject.glance.entrance.refusal());
    }
    let way = Way { from: tables.hop(parsed.source), to: tables.hop(parsed.destination) };
    if way.from == way.to && way.from.endpoint().is_some() {
        // About traffic of an endpoint with itself, of which there are no flows.
        return Settled { verdict: Ok(way), rules: Judgement::without_rules(None).rules };
    }
    let Some(quoted) = icmp::quoted(subject.packet.bytes(), parsed) else {
        return unmatched;
    };
    if quoted.source != parsed.destination {
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
    let Some(mut entry) = flows.lookup(hash, &key, now) else {
        return flows.elsewhere(hash).map_or(unmatched, Settled::handed_over);
    };
    let direction = entry.direction(orientation);
    let judgement = current(tables, &mut entry, false);
    let [back, forth] = entry.hops(direction);
    if !subject.glance.entrance.admits(forth) {
        return unmatched;
    }
    settled(Way { from: forth, to: back }, &judgement)
}
