//! The short way: a packet of a known flow of which nothing has changed, which nearly every packet is.
//!
//! It is no other decision than [`decide`](super::decide())'s, and leaves the same behind; it says nothing where anything is out of the
//! ordinary.

use super::address_lookup::current_epoch;
use super::{DecisionState, NextHopPair, PacketMetadata, route};
use crate::fate::Fate;
use crate::flow::{RuleCounters, Verdict};
use crate::tables::{Link, Tables};

/// How a packet goes on; it fits where it goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Forwarding<'a> {
    /// Where to.
    pub link: &'a Link,
    /// This is a hop: the hop limit goes down by one.
    pub decrements_ttl: bool,
    /// What had decided.
    pub rules: RuleCounters,
}

/// Decides a packet of a known flow whose place has been [guessed](crate::flow::FlowTable::guess). `None`, and nothing done: ask
/// [`decide`](super::decide()). `now` is in seconds.
///
/// Where policy is asked before connection tracking ([`HostPolicy::has_untracked`]), which is looked at once a batch, it is to be
/// asked of what is [`Tracked`](super::UntrackedVerdict::Tracked).
///
/// [`HostPolicy::has_untracked`]: crate::tables::HostPolicy::has_untracked
#[inline]
pub fn fast_path<'a>(
    tables: &'a Tables,
    state: &mut DecisionState,
    metadata: &PacketMetadata,
    now: u32,
) -> Option<Forwarding<'a>> {
    if !metadata.is_plain {
        return None;
    }
    let (name, flags) = (&metadata.flow, metadata.tcp_flags);
    let mut entry = state.flows.lookup_guessed(&name.key, name.guess, now)?;
    let direction = entry.direction(name.orientation);
    let stands = entry.verdict == Verdict::Allow
        && entry.stays(flags, direction)
        && entry.epoch == current_epoch(tables, name.key.v4_addresses());
    let [from, to] = entry.next_hop_pair(direction);
    if !stands || !metadata.entrance.admits(from) {
        return None;
    }
    let forwarding = forward_if_fits(tables, metadata, NextHopPair { from, to }, entry.counters)?;
    entry.count_packet(direction, metadata.segments, metadata.total_len.into(), now);
    Some(forwarding)
}

/// How a packet goes a way that rules allow it; `None`: it is to be answered, or does not fit.
#[inline]
pub(super) fn forward_if_fits<'a>(
    tables: &'a Tables,
    metadata: &PacketMetadata,
    pair: NextHopPair,
    rules: RuleCounters,
) -> Option<Forwarding<'a>> {
    match route(tables, metadata, pair) {
        Fate::Forward { link, decrements_ttl } if metadata.unit <= link.mtu => {
            Some(Forwarding { link, decrements_ttl, rules })
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests;
