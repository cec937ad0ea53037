//! Policy before connection tracking (`doNotTrack`): of what it decides no flow is known, and the way back is asked about for
//! itself.

use super::key::transport;
use super::known::passage;
use super::{Entrance, Glance, LastSource, Memory, Name, Passage, Settled, connects, settled};
use crate::fate::DropReason;
use crate::flow::{FlowKey, Orientation};
use crate::judge::{self, Judgement};
use crate::tables::Tables;

/// The short way of a packet that such policy may decide.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BeforeTracking<'a> {
    /// It lets the packet through, and so does all that is asked behind it.
    Goes(Passage<'a>),
    /// It decides nothing: the packet is its flow's.
    Tracked,
    /// Ask [`decide`](super::decide()).
    Other,
}

/// Decides a packet before its flow is looked for: no other decision than [`decide`](super::decide())'s, and nothing is left
/// behind.
#[inline]
pub fn untracked<'a>(
    tables: &'a Tables,
    memory: &mut Memory,
    glance: &Glance,
) -> BeforeTracking<'a> {
    if !glance.is_plain {
        return BeforeTracking::Other;
    }
    let Some(Settled { verdict, rules }) = ask(tables, &mut memory.last_source, glance) else {
        return BeforeTracking::Tracked;
    };
    match verdict.ok().and_then(|way| passage(tables, glance, way, rules)) {
        Some(passage) => BeforeTracking::Goes(passage),
        None => BeforeTracking::Other,
    }
}

/// What becomes of a packet that such policy decides. `None`: it decides nothing, or there is none.
#[inline]
pub(super) fn before_tracking(
    tables: &Tables,
    memory: &mut Memory,
    glance: &Glance,
) -> Option<Settled> {
    if !tables.host_policy.has_untracked() {
        return None;
    }
    ask(tables, &mut memory.last_source, glance)
}

#[inline(never)]
fn ask(tables: &Tables, last_source: &mut LastSource, glance: &Glance) -> Option<Settled> {
    let Name { key, orientation, .. } = glance.name;
    if key.is_v6() {
        return ask_v6(tables, last_source, glance);
    }
    between(tables, last_source, glance.entrance, &key, orientation)
}

#[inline(never)]
fn ask_v6(tables: &Tables, last_source: &mut LastSource, glance: &Glance) -> Option<Settled> {
    let Name { key, orientation, .. } = &glance.name;
    between(tables, last_source, glance.entrance, key, *orientation)
}

#[inline(always)]
#[expect(clippy::inline_always, reason = "little is left of it where the family is known")]
fn between(
    tables: &Tables,
    last_source: &mut LastSource,
    entrance: Entrance,
    key: &FlowKey,
    orientation: Orientation,
) -> Option<Settled> {
    let [source, destination] = [key.source(orientation).0, key.destination(orientation).0];
    if !(source.is_forwardable() && destination.is_forwardable()) {
        return Some(Settled::refused(DropReason::NotForwardable));
    }
    let (way, ends) = last_source.ends(tables, source, destination);
    if !entrance.admits(way.from) {
        return Some(Settled::refused(entrance.refusal()));
    }
    let transport = transport(key, orientation);
    let judgement = match judge::untracked(tables, &ends, transport) {
        Err(denied) => denied,
        Ok(untracked) if !untracked.allows() => return None,
        Ok(_) if !connects(tables, &ends) => Judgement::without_rules(Some(DropReason::NoRoute)),
        Ok(untracked) => judge::judge(tables, &ends, transport, untracked),
    };
    Some(settled(way, &judgement))
}

#[cfg(test)]
mod tests;
