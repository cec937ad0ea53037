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
/// Not to be asked where policy is asked before connection tracking ([`HostPolicy::has_untracked`]), which is looked at once a
/// batch.
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
    let entry = memory.flows.at(&name.key, name.guess, now)?;
    let direction = entry.direction(name.orientation);
    let stands = entry.verdict == Verdict::Allow
        && entry.stays(flags, direction)
        && entry.as_of == as_of(tables, name.key.v4_addresses());
    let [from, to] = entry.hops(direction);
    if !stands || !glance.entrance.admits(from) {
        return None;
    }
    let Fate::Forward { link, hop } = depart(tables, glance, Way { from, to }) else {
        return None;
    };
    if glance.unit > link.mtu {
        return None;
    }
    entry.count(direction, glance.segments, glance.total_len.into(), now);
    Some(Passage { link, hop, rules: entry.counters })
}

#[cfg(test)]
mod tests;
