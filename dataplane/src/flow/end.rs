//! The end of an allowed flow, which is reported once to a listener, with the flow's counts. By default there is no
//! listener; then each flow that ends costs one comparison.

use crossbeam::channel::{Sender, TrySendError};

use super::entry::FlowEntry;
use super::second_key::DirectedKey;

/// The reason why a flow has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum EndReason {
    /// It was silent for longer than its state allows.
    Expired,
    /// It was live, and was evicted to make room for another one.
    Evicted,
    /// The same connection was opened again, or the connection was over and another one got its masquerading port.
    Replaced,
    /// Its backend is gone.
    BackendGone,
    /// Policy or routes no longer allow it. If they allow it again, its later end is reported, too, with all counts
    /// since the flow was opened.
    Denied,
}

/// A flow that has ended.
#[derive(Debug, Clone, Copy)]
pub struct FlowEnd {
    /// Its last state: its key, its traffic, the rules that allowed it, and when it was last seen.
    pub flow: FlowEntry,
    /// Its second key, if it had one.
    pub second_key: Option<DirectedKey>,
    /// The reason for its end.
    pub reason: EndReason,
    /// The number of earlier ends that were lost because the channel had no room.
    pub lost: u64,
}

/// The listener to which ends are reported.
#[derive(Debug)]
pub(super) struct Listener {
    pub(super) to: Sender<FlowEnd>,
    pub(super) lost: u64,
}

impl Listener {
    /// Reports an end. Returns false if the receiver is gone.
    pub(super) fn tell(&mut self, end: FlowEnd) -> bool {
        match self.to.try_send(FlowEnd { lost: self.lost, ..end }) {
            Ok(()) => self.lost = 0,
            Err(TrySendError::Full(_)) => self.lost += 1,
            Err(TrySendError::Disconnected(_)) => return false,
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use crossbeam::channel::bounded;
    use proptest::prelude::*;

    use super::super::{
        Evicted, FlowDirection, FlowKey, FlowTable, HashSeed, Owner, TcpFlags, Verdict,
    };
    use super::*;
    use crate::wire::address::Address;
    use crate::wire::protocol::UDP;

    const TIMEOUT: u32 = 60;

    fn table(capacity: usize) -> FlowTable {
        FlowTable::new(capacity, HashSeed::fixed(7)).unwrap()
    }

    /// Opens a flow, with one packet of 100 bytes.
    fn open(table: &mut FlowTable, n: u8, verdict: Verdict, now: u32) -> Option<Evicted> {
        let (key, original) = key(n);
        let hash = table.hash(&key);
        table.insert(hash, table.find(hash, &key), Owner::NODE, now, |entry| {
            entry.open(&key, original, TcpFlags::default(), now);
            entry.set_verdict(verdict);
            entry.count_packet(FlowDirection::Original, 1, 100, now);
        })
    }

    fn key(n: u8) -> (FlowKey, super::super::Orientation) {
        FlowKey::new(Address::v4([10, 0, 0, n]), Address::v4([10, 0, 1, 1]), 1000, 53, UDP)
    }

    proptest! {
        /// An allowed flow is reported once each time that it stops being allowed, with its traffic until then.
        #[test]
        fn each_end_of_an_allowed_flow_is_told_once_with_its_counts(
            capacity in 1_usize..12,
            steps in prop::collection::vec((0_u8..16, 0_u8..7, 0_u32..40), 1..150),
        ) {
            let mut table = table(capacity);
            let (to, ends) = bounded(4096);
            table.tell_ends(to);
            // For each flow in the table: whether it is allowed, its packets, and when it was last seen.
            let mut model = BTreeMap::<u8, (bool, u64, u32)>::new();
            let mut now = 100;
            for (n, action, wait) in steps {
                now += wait;
                let mut expected = Vec::new();
                let expired = |last: u32| now - last > TIMEOUT;
                let live = model.get(&n).copied().filter(|(.., last)| !expired(*last));
                let mut evicted = None;
                match action {
                    0 | 1 => {
                        if let Some((true, packets, last)) = model.get(&n).copied() {
                            let reason = if expired(last) { EndReason::Expired } else { EndReason::Replaced };
                            expected.push((n, packets, reason));
                        }
                        evicted = open(&mut table, n, Verdict::Allow, now);
                        model.insert(n, (true, 1, now));
                    }
                    2 => {
                        table.age(table.buckets(), now);
                        let gone = model.extract_if(.., |_, (.., last)| expired(*last));
                        let allowed = gone.filter(|(_, (allowed, ..))| *allowed);
                        expected.extend(allowed.map(|(n, (_, packets, _))| (n, packets, EndReason::Expired)));
                    }
                    _ => {
                        let (key, _) = key(n);
                        let hash = table.hash(&key);
                        let entry = table.lookup(hash, &key, now);
                        prop_assert_eq!(entry.is_some(), live.is_some());
                        if let (Some(mut entry), Some((was, mut packets, mut last))) = (entry, live) {
                            let is = match action {
                                3 => false,
                                4 => true,
                                _ => was,
                            };
                            entry.set_verdict(if is { Verdict::Allow } else { Verdict::DenyIngress });
                            if was && !is {
                                expected.push((n, packets, EndReason::Denied));
                            }
                            if action > 4 {
                                entry.count_packet(FlowDirection::Original, 1, 100, now);
                                (packets, last) = (packets + 1, now);
                            }
                            model.insert(n, (is, packets, last));
                        }
                    }
                }
                let mut told: Vec<_> = ends.try_iter().map(|end| {
                    let passed = end.flow.traffic(FlowDirection::Original);
                    let n = (0..16).find(|n| key(*n).0 == end.flow.key()).unwrap();
                    assert_eq!((passed.bytes, end.lost), (passed.packets * 100, 0));
                    (n, passed.packets, end.reason)
                }).collect();
                if evicted.is_some() {
                    let there = |n: &u8| table.iter().any(|it| it.key() == key(*n).0);
                    let (gone, (allowed, packets, last)) =
                        model.iter().map(|(n, it)| (*n, *it)).find(|(n, _)| !there(n)).unwrap();
                    let reason = if expired(last) { EndReason::Expired } else { EndReason::Evicted };
                    expected.extend(allowed.then_some((gone, packets, reason)));
                    model.remove(&gone);
                }
                told.sort_unstable_by_key(|it| it.0);
                expected.sort_unstable_by_key(|it| it.0);
                prop_assert_eq!(told, expected);
            }
        }
    }

    #[test]
    fn what_finds_no_room_is_counted_and_nobody_is_told_who_has_gone() {
        let mut table = table(8);
        let (to, ends) = bounded(1);
        table.tell_ends(to);
        let end_all = |table: &mut FlowTable, at| {
            for n in 0..3 {
                let _ = open(table, n, Verdict::Allow, at);
            }
            table.age(table.buckets(), at + TIMEOUT + 1);
        };
        end_all(&mut table, 0);
        assert_eq!(ends.try_iter().map(|it| it.lost).collect::<Vec<_>>(), [0]);
        end_all(&mut table, 1000);
        assert_eq!(ends.try_iter().map(|it| it.lost).collect::<Vec<_>>(), [2]);
        drop(ends);
        end_all(&mut table, 2000);
        assert!(table.slots.listener.is_none());
    }
}
