//! Flows of the last process: each is judged anew, and continues if these tables allow it.

use super::address_lookup::{by_return_path, current_epoch, lookup_ends};
use super::key::transport;
use super::route::connects;
use super::service;
use super::state::DecisionState;
use super::tracked::{evaluate, flow_owner, write_decision};
use crate::flow::{Evicted, FlowEntry, FlowRecord};
use crate::tables::Tables;

/// The outcome of restoring a flow of the agent's last process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RestoreOutcome {
    /// It continues here.
    Here,
    /// Another worker has its shard, and restores it.
    Elsewhere,
    /// It ends: these tables do not allow it, its ends have moved, or its timeout has passed.
    Ended,
}

/// Opens a flow again as its record says, if it would be opened by a first packet that policy judges now.
/// `may_claim`: the worker may take a shard that no worker has.
pub fn restore(
    tables: &Tables,
    state: &mut DecisionState,
    record: &FlowRecord,
    may_claim: bool,
    now: u32,
) -> RestoreOutcome {
    let flow = FlowEntry::from_record(record, now);
    if flow.is_expired(now) {
        return RestoreOutcome::Ended;
    }
    let key = &record.key;
    let ((source, _), (destination, _)) =
        (key.source(record.original), key.destination(record.original));
    if !(source.is_forwardable() && destination.is_forwardable()) {
        return RestoreOutcome::Ended;
    }
    let epoch = current_epoch(tables, key.v4_addresses());
    let found = lookup_ends(tables, source, destination);
    let (pair, ends) = by_return_path(tables, record.return_path, found);
    let leads = service::refusal(pair).is_none()
        && connects(tables, ends.from, ends.to)
        && pair.from != pair.to
        && tables.link(ends.from).is_some()
        && tables.link(ends.to).is_some();
    if !leads {
        return RestoreOutcome::Ended;
    }
    let verdict = evaluate(tables, &ends, (destination, transport(key, record.original)));
    if verdict.denied.is_some() {
        return RestoreOutcome::Ended;
    }
    let hash = state.flows.hash(key);
    let found = state.flows.find(hash, key);
    if state.flows.live_entry(found, now).is_some() {
        // What has passed since is newer.
        return RestoreOutcome::Here;
    }
    if !(may_claim || state.flows.has_shard(hash)) || state.flows.claim(hash, found).is_some() {
        return RestoreOutcome::Elsewhere;
    }
    let evicted = state.flows.insert(hash, found, flow_owner(&ends), now, |entry| {
        entry.replace(flow);
        write_decision(entry, tables, (pair, &ends), &verdict);
        entry.epoch = epoch;
    });
    state.evictions += u64::from(evicted.is_some_and(Evicted::is_live));
    RestoreOutcome::Here
}
