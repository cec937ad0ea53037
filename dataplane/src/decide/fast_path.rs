//! The fast path decides a packet of a known flow for which nothing has changed. Nearly every packet is such a packet.
//!
//! Its decision and its changes to the state equal those of [`decide`](super::decide()). It leaves every unusual case
//! to the slow path.

use super::address_lookup::current_epoch;
use super::metadata::PacketMetadata;
use super::route::forward_if_fits;
use super::state::DecisionState;
use crate::fate::Forwarding;
use crate::flow::{RuleCounters, Verdict};
use crate::tables::Tables;

/// Decides a packet of a known flow whose slot has been [guessed](crate::flow::FlowTable::guess). Returns its
/// forwarding, and the slots of the rules that allow it. Returns `None` without an effect if
/// [`decide`](super::decide()) must decide. `now` is in seconds.
///
/// If there is policy before connection tracking ([`HostPolicy::has_untracked`], which is read once per batch), the
/// caller may use this only for packets that are [`Tracked`](super::UntrackedVerdict::Tracked).
///
/// [`HostPolicy::has_untracked`]: crate::tables::HostPolicy::has_untracked
#[inline]
pub fn fast_path<'a>(
    tables: &'a Tables,
    state: &mut DecisionState,
    metadata: &PacketMetadata,
    now: u32,
) -> Option<(Forwarding<'a>, RuleCounters)> {
    if !metadata.is_plain {
        return None;
    }
    let (name, flags) = (&metadata.flow, metadata.tcp_flags);
    let mut entry = state.flows.lookup_guessed(&name.key, name.guess, now)?;
    let direction = entry.direction(name.orientation);
    let stands = entry.verdict == Verdict::Allow
        && entry.stays(flags, direction)
        && entry.epoch == current_epoch(tables, name.key.v4_addresses());
    let pair = entry.next_hop_pair(direction);
    if !stands || !metadata.entrance.admits(pair.from) {
        return None;
    }
    let forwarding = forward_if_fits(tables, metadata, pair)?;
    entry.count_packet(direction, metadata.segments, metadata.total_len.into(), now);
    Some((forwarding, entry.counters))
}

#[cfg(test)]
mod tests;
