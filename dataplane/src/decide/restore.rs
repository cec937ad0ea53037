//! Restores flows of the last process. Each is judged again, and continues if these tables allow it.

use super::address_lookup::{by_return_path, current_epoch, lookup_ends};
use super::key::transport;
use super::kube_proxy;
use super::route::connects;
use super::state::DecisionState;
use super::stored_decision::{translated_owner, write_decision};
use super::tracked::evaluate;
use super::translated;
use crate::flow::{DirectedKey, Epoch, FlowEntry, FlowMut, FlowRecord, KeyTaken, TwoKeys};
use crate::policy::{FlowEnds, PolicyVerdict};
use crate::tables::{NextHopPair, Tables};

/// The outcome of restoring a flow of the agent's last process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RestoreOutcome {
    /// It continues at this worker.
    Here,
    /// Another worker has its shard and restores it.
    Elsewhere,
    /// It ends: these tables do not allow it, its ends have changed, or its timeout has passed.
    Ended,
}

/// Opens a flow again as its record describes it, if policy would allow its first packet now. `may_reserve`: whether
/// the worker may take a shard that no worker has.
pub fn restore(
    tables: &Tables,
    state: &mut DecisionState,
    record: &FlowRecord,
    may_reserve: bool,
    now: u32,
) -> RestoreOutcome {
    let flow = FlowEntry::from_record(record, now);
    if flow.is_expired(now) {
        return RestoreOutcome::Ended;
    }
    let key = &record.key;
    let ((source, _), (destination, _)) =
        (key.source(record.original), key.destination(record.original));
    let is_led = record.second.is_some() && destination.is_v4_loopback();
    if !(source.is_forwardable() && (destination.is_forwardable() || is_led)) {
        return RestoreOutcome::Ended;
    }
    let Some(((pair, ends), verdict, epoch)) = judge(tables, record) else {
        return RestoreOutcome::Ended;
    };
    let leads = kube_proxy::refusal(pair).is_none()
        && (pair.from != pair.to || record.second.is_some())
        && tables.link(ends.from).is_some()
        && tables.link(ends.to).is_some();
    if !leads || verdict.denied.is_some() {
        return RestoreOutcome::Ended;
    }
    let hash = state.flows.hash(key);
    let found = state.flows.find(hash, key);
    if state.flows.live_entry(found, now).is_some() {
        // The flow in the table is newer than the record.
        return RestoreOutcome::Here;
    }
    if !(may_reserve || state.flows.has_shard(hash))
        || state.flows.reserve_shard(hash, found).is_some()
    {
        return RestoreOutcome::Elsewhere;
    }
    let second = record.second.map(|second| state.flows.reserve_second_key(second, found, now));
    let second = match second.transpose() {
        Ok(second) => second,
        Err(taken) => {
            state.flows.release_shard(hash, found);
            return match taken {
                KeyTaken::Worker(_) => RestoreOutcome::Elsewhere,
                KeyTaken::Flow => RestoreOutcome::Ended,
            };
        }
    };
    let first = DirectedKey { key: record.key, original: record.original };
    let owner = translated_owner(tables, &first, &ends);
    let write = |entry: &mut FlowMut<'_>| {
        entry.replace(flow);
        write_decision(entry, tables, (pair, &ends), &verdict);
        entry.epoch = epoch;
    };
    let evicted = match second {
        None => [state.flows.insert(hash, found, owner, now, write), None],
        Some(second) => {
            state.flows.insert_with_second_key((hash, found, owner), second, now, write)
        }
    };
    let live = evicted.into_iter().flatten().filter(|it| it.is_live());
    state.evictions += live.count() as u64;
    RestoreOutcome::Here
}

/// The ends of a flow and the verdict on it, according to these tables. `None`: its backend is gone, the node from
/// whose tunnel its packets come is gone, or its destination has no route.
fn judge(
    tables: &Tables,
    record: &FlowRecord,
) -> Option<((NextHopPair, FlowEnds), PolicyVerdict, Epoch)> {
    let FlowRecord { key, original, return_path, .. } = *record;
    let of_node = |node| tables.tunnels.iter().flatten().find(|it| it.remote == node);
    let return_path = return_path.renamed(|node| of_node(node)?.link.tunnel)?;
    if let Some(second) = record.second {
        let keys = TwoKeys { first: DirectedKey { key, original }, second };
        return translated::judge_restored(tables, &keys, return_path);
    }
    let ((source, _), (destination, _)) = (key.source(original), key.destination(original));
    let epoch = current_epoch(tables, key.v4_addresses());
    let found = lookup_ends(tables, source, destination);
    let (pair, ends) = by_return_path(tables, return_path, found);
    connects(tables, ends.from, ends.to).then_some(())?;
    let verdict = evaluate(tables, &ends, (destination, transport(&key, original)));
    Some(((pair, ends), verdict, epoch))
}
