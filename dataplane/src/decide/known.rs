//! The short way: a packet of a known flow of which nothing has changed, which nearly every packet is.
//!
//! It is no other decision than [`decide`](super::decide())'s, and leaves the same behind; it says nothing where anything is out of the
//! ordinary.

use super::ends::as_of;
use super::{Glance, Memory, Way, depart};
use crate::fate::Fate;
use crate::flow::{RuleCounters, Verdict};
use crate::tables::{Link, Tables};

/// How a packet goes on; it fits where it goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Passage<'a> {
    /// Where to.
    pub link: &'a Link,
    /// This is a hop: the hop limit goes down by one.
    pub hop: bool,
    /// What had decided.
    pub rules: RuleCounters,
}

/// Decides a packet of a known flow whose place has been [guessed](crate::flow::FlowTable::guess). `None`, and nothing done: ask
/// [`decide`](super::decide()). `now` is in seconds.
///
/// Where policy is asked before connection tracking ([`HostPolicy::has_untracked`]), which is looked at once a batch, it is to be
/// asked of what is [`Tracked`](super::BeforeTracking::Tracked).
///
/// [`HostPolicy::has_untracked`]: crate::tables::HostPolicy::has_untracked
#[inline]
pub fn known<'a>(
    tables: &'a Tables,
    memory: &mut Memory,
    glance: &Glance,
    now: u32,
) -> Option<Passage<'a>> {
    if !glance.is_plain {
        return None;
    }
    let (name, flags) = (&glance.name, glance.tcp_flags);
    let mut entry = memory.flows.at(&name.key, name.guess, now)?;
    let direction = entry.direction(name.orientation);
    let stands = entry.verdict == Verdict::Allow
        && entry.stays(flags, direction)
        && entry.as_of == as_of(tables, name.key.v4_addresses());
    let [from, to] = entry.hops(direction);
    if !stands || !glance.entrance.admits(from) {
        return None;
    }
    let passage = passage(tables, glance, Way { from, to }, entry.counters)?;
    entry.count(direction, glance.segments, glance.total_len.into(), now);
    Some(passage)
}

/// How a packet goes a way that rules allow it; `None`: it is to be answered, or does not fit.
#[inline]
pub(super) fn passage<'a>(
    tables: &'a Tables,
    glance: &Glance,
    way: Way,
    rules: RuleCounters,
) -> Option<Passage<'a>> {
    match depart(tables, glance, way) {
        Fate::Forward { link, hop } if glance.unit <= link.mtu => {
            Some(Passage { link, hop, rules })
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests;
