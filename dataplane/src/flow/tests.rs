//! Laws of the flow table.

use std::collections::{HashMap, HashSet};
use std::os::fd::AsFd;
use std::sync::Arc;

use proptest::prelude::*;

use super::eviction::OPENING;
use super::eviction_class::EvictionClass;
use super::*;
use crate::sys::shared_file::SharedFile;
use crate::tables::ReturnPath;
use crate::wire::address::Address;
use crate::wire::protocol::{TCP, UDP};

fn address(n: u32) -> Address {
    Address::v4(n.to_be_bytes())
}

fn table(capacity: usize) -> FlowTable {
    FlowTable::new(capacity, HashSeed::fixed(7)).unwrap()
}

fn key(n: u32, protocol: u8) -> (FlowKey, Orientation) {
    FlowKey::new(address(n), address(u32::MAX), 1000, 80, protocol)
}

fn key_of(n: u32) -> FlowKey {
    key(n, TCP).0
}

fn open(n: u32, protocol: u8, flags: TcpFlags, now: u32) -> FlowEntry {
    let (key, orientation) = key(n, protocol);
    FlowEntry::open(key, orientation, flags, now)
}

fn record_in(state: FlowState) -> FlowRecord {
    let (original, return_path) = (Orientation::HighToLow, ReturnPath::None);
    FlowRecord { key: key(1, TCP).0, original, state, seen: 100, return_path, second: None }
}

/// The flows that the next process reads from the table's records.
fn recorded(file: &FlowRecordFile, table: &FlowTable) -> HashMap<FlowKey, FlowRecord> {
    let mut all = HashMap::new();
    let spoiled = file.read(table.capacity(), |it| assert_eq!(all.insert(it.key, it), None));
    assert_eq!(spoiled.unwrap(), 0);
    all
}

/// A TCP flow after its handshake.
fn established(n: u32, now: u32) -> FlowEntry {
    let mut entry = open(n, TCP, TcpFlags::SYN, now);
    entry.verdict = Verdict::Allow;
    entry.as_mut().record_packet(FlowDirection::Original, TcpFlags::SYN, 1, 60, now);
    entry.as_mut().record_packet(FlowDirection::Reply, TcpFlags::SYN | TcpFlags::ACK, 1, 60, now);
    entry.as_mut().record_packet(FlowDirection::Original, TcpFlags::ACK, 1, 52, now);
    assert_eq!(entry.state(), FlowState::Established);
    entry
}

fn insert(table: &mut FlowTable, entry: FlowEntry, now: u32) -> Option<Evicted> {
    insert_of(table, Owner::NODE, entry, now)
}

fn insert_of(table: &mut FlowTable, owner: Owner, entry: FlowEntry, now: u32) -> Option<Evicted> {
    let key = entry.key();
    let hash = table.hash(&key);
    table.insert(hash, table.find(hash, &key), owner, now, |place| place.replace(entry))
}

fn holds(table: &mut FlowTable, key: &FlowKey, now: u32) -> bool {
    table.lookup(table.hash(key), key, now).is_some()
}

#[test]
fn a_flow_is_found_until_its_timeout_has_passed_and_then_ages_away() {
    for state in FlowState::ALL {
        let mut table = table(16);
        let entry = FlowEntry::from_record(&record_in(state), 100);
        assert_eq!(insert(&mut table, entry, 100), None);
        let last = 100 + state.timeout(false);
        assert!(holds(&mut table, &entry.key(), last), "{state:?}");
        assert!(!holds(&mut table, &entry.key(), last + 1), "{state:?}");
        assert_eq!(table.age(table.buckets(), last), 0, "{state:?}");
        assert_eq!(table.age(table.buckets(), last + 1), 1, "{state:?}");
        assert!(table.is_empty() && table.iter().next().is_none());
    }
}

#[test]
fn established_flows_survive_a_flood_of_syns_ten_times_the_capacity() {
    let mut table = table(1024);
    for n in 0..512 {
        assert_eq!(insert(&mut table, established(n, 0), 0), None);
    }
    for n in 0..10 * 1024 {
        let _ = insert(&mut table, open(10_000 + n, TCP, TcpFlags::SYN, 1), 1);
        assert!(table.len() <= 1024);
    }
    for n in 0..512 {
        assert!(holds(&mut table, &key(n, TCP).0, 1), "flow {n} was evicted");
    }
    assert_eq!(table.len(), 1024);
}

#[test]
fn a_flood_evicts_its_own_oldest_and_flows_established_since_are_spared() {
    let mut table = table(256);
    for n in 0..256 {
        insert(&mut table, open(n, UDP, TcpFlags::default(), 0), 0);
    }
    // Sixteen of the oldest connections are answered later and are then silent.
    for n in 0..16 {
        let (key, orientation) = key(n, UDP);
        let mut entry = table.lookup(table.hash(&key), &key, 1).unwrap();
        assert_eq!(entry.direction(orientation), FlowDirection::Original);
        entry.record_packet(FlowDirection::Reply, TcpFlags::default(), 1, 100, 1);
    }
    assert_eq!(
        insert(&mut table, open(1000, TCP, TcpFlags::SYN, 2), 2),
        Some(Evicted::Unestablished)
    );
    assert!(!holds(&mut table, &key(16, UDP).0, 2), "the oldest unanswered goes");
    for n in (0..16).chain(17..256) {
        assert!(holds(&mut table, &key(n, UDP).0, 2), "flow {n} was evicted");
    }
}

#[test]
fn a_flow_that_ends_joins_the_eviction_list_at_once() {
    let mut table = table(16);
    for n in 0..16 {
        insert(&mut table, established(n, 0), 0);
    }
    let key = key_of(9);
    let mut entry = table.lookup(table.hash(&key), &key, 1).unwrap();
    entry.record_packet(FlowDirection::Original, TcpFlags::RST, 1, 40, 1);
    let new = open(1000, TCP, TcpFlags::SYN, 2);
    assert_eq!(insert(&mut table, new, 2), Some(Evicted::Unestablished));
    assert!(!holds(&mut table, &key, 2));
}

#[test]
fn connections_that_are_opened_together_do_not_evict_one_another() {
    let mut table = table(64);
    for n in 0..64 {
        insert(&mut table, established(n, 0), 0);
    }
    for n in 100..116 {
        let new = open(n, TCP, TcpFlags::SYN, 9);
        assert_eq!(insert(&mut table, new, 9), Some(Evicted::Established));
    }
    // When more than a quarter of the flows are not established, the oldest of these is evicted, and no established
    // one.
    for n in 116..200 {
        let _ = insert(&mut table, open(n, TCP, TcpFlags::SYN, 9), 9);
    }
    let queued = table.listed(Owner::NODE, EvictionClass::Unestablished).count();
    assert_eq!((queued, table.len()), (17, 64));
    // None of these connections was answered.
    let new = open(300, TCP, TcpFlags::SYN, 9 + OPENING);
    assert_eq!(insert(&mut table, new, 9 + OPENING), Some(Evicted::Unestablished));
}

#[test]
fn a_table_full_of_established_flows_still_takes_a_new_one() {
    let mut table = table(64);
    for n in 0..64 {
        insert(&mut table, established(n, n), n);
    }
    let new = open(1000, TCP, TcpFlags::SYN, 64);
    assert_eq!(insert(&mut table, new, 64), Some(Evicted::Established));
    assert!(holds(&mut table, &new.key(), 64));
    assert_eq!(table.len(), 64);
}

/// A pod that plays both ends of TCP with an accomplice makes established flows as fast as it can send.
#[test]
fn an_owner_that_fills_the_table_takes_nothing_from_one_within_its_share() {
    let (attacker, accomplice, victim) =
        (Owner::endpoint(0), Owner::endpoint(1), Owner::endpoint(2));
    let mut table = table(3 * 100);
    for n in 0..100 {
        let flow =
            if n % 2 == 0 { established(n, 0) } else { open(n, UDP, TcpFlags::default(), 0) };
        assert_eq!(insert_of(&mut table, victim, flow, 0), None);
    }
    for n in 0..5000 {
        let owner = if n % 3 == 0 { accomplice } else { attacker };
        let _ = insert_of(&mut table, owner, established(10_000 + n, 10), 10);
    }
    for n in 0..100 {
        let protocol = if n % 2 == 0 { TCP } else { UDP };
        assert!(holds(&mut table, &key(n, protocol).0, 10), "flow {n} of the victim was evicted");
    }
    let held = |table: &FlowTable, owner| table.listed(owner, EvictionClass::Established).count();
    assert_eq!((held(&table, attacker), held(&table, accomplice)), (100, 100));
    // A new owner gets its share from those owners that then have more than theirs.
    for n in 0..75 {
        let _ = insert_of(&mut table, Owner::endpoint(3), established(20_000 + n, 20), 20);
    }
    assert_eq!(held(&table, Owner::endpoint(3)), 75);
    let others = [attacker, accomplice, victim].map(|owner| held(&table, owner));
    assert!(others.into_iter().all(|held| (25..=100).contains(&held)), "{others:?}");
}

#[test]
fn an_owner_with_only_established_flows_gives_up_one_that_was_silent_for_long() {
    let mut table = table(64);
    for n in 0..64 {
        insert(&mut table, established(n, 0), 0);
    }
    // All flows except a few get further packets.
    for n in (0..64).filter(|n| n % 8 != 5) {
        let key = key_of(n);
        let mut entry = table.lookup(table.hash(&key), &key, 100).unwrap();
        entry.record_packet(FlowDirection::Original, TcpFlags::ACK, 1, 40, 100);
    }
    for n in 0..8 {
        assert_eq!(insert(&mut table, established(100 + n, 100), 100), Some(Evicted::Established));
    }
    for n in 0..64 {
        assert_eq!(holds(&mut table, &key_of(n), 100), n % 8 != 5, "flow {n}");
    }
}

#[test]
fn a_flow_that_another_owner_opens_again_counts_for_that_owner() {
    let mut table = table(8);
    let (one, other) = (Owner::endpoint(0), Owner::endpoint(1));
    for n in 0..4 {
        insert_of(&mut table, one, established(n, 0), 0);
        insert_of(&mut table, other, open(n, TCP, TcpFlags::SYN, 1), 1);
    }
    assert_eq!(table.len(), 4);
    let count = |owner, standing| table.listed(owner, standing).count();
    assert_eq!(
        [EvictionClass::Unestablished, EvictionClass::Established].map(|it| count(one, it)),
        [0, 0]
    );
    assert_eq!(
        [EvictionClass::Unestablished, EvictionClass::Established].map(|it| count(other, it)),
        [4, 0]
    );
}

#[test]
fn expired_flows_go_before_live_ones() {
    let mut table = table(1);
    insert(&mut table, established(1, 0), 0);
    assert_eq!(insert(&mut table, established(2, 3601), 3601), Some(Evicted::Expired));
}

#[test]
fn a_denied_flow_stays_denied_with_its_direction_and_resumes_when_allowed() {
    let mut table = table(4);
    let mut entry = established(1, 0);
    entry.verdict = Verdict::DenyIngress;
    insert(&mut table, entry, 0);
    for now in [1000, 4000, 7000] {
        let mut found = table.lookup(table.hash(&entry.key()), &entry.key(), now).unwrap();
        assert_eq!(found.verdict, Verdict::DenyIngress);
        found.record_denied(now);
        assert_eq!(found.state(), FlowState::Established);
        assert_eq!(found.original(), entry.original());
        assert_eq!(found.to_entry().traffic(FlowDirection::Original).packets, 2);
    }
    assert!(holds(&mut table, &entry.key(), 10_600));
    assert!(!holds(&mut table, &entry.key(), 10_601), "idle");
}

#[test]
fn memory_that_was_never_written_denies() {
    assert_eq!(Verdict::DenyEgress as u8, 0);
    let entry = open(1, TCP, TcpFlags::SYN, 0);
    assert_ne!(entry.verdict, Verdict::Allow);
}

proptest! {
    #[test]
    fn an_echo_reply_has_the_key_of_its_request_and_a_request_of_the_other_side_has_another(
        one: [u8; 16], other: [u8; 16], identifier: u16,
    ) {
        let (one, other) = (Address::v6(one), Address::v6(other));
        prop_assume!(one != other);
        let (asked, there) = FlowKey::query(one, other, identifier, [8, 0], true, 1);
        let (answered, back) = FlowKey::query(other, one, identifier, [0, 8], false, 1);
        prop_assert_eq!(asked, answered);
        prop_assert!(there != back);
        prop_assert!(FlowKey::query(other, one, identifier, [8, 0], true, 1).0 != asked);
        prop_assert!(FlowKey::query(one, other, identifier, [13, 14], true, 1).0 != asked);
        prop_assert_eq!(asked.icmp_code(), None);
        let low = if there == Orientation::LowToHigh { 8 } else { 0 };
        prop_assert_eq!(asked.icmp_type(), low);
    }

    #[test]
    fn both_directions_have_one_key_and_opposite_orientations(
        source: [u8; 16], destination: [u8; 16], source_port: u16, destination_port: u16, protocol: u8,
    ) {
        let (source, destination) = (Address::v6(source), Address::v6(destination));
        let (there, one) = FlowKey::new(source, destination, source_port, destination_port, protocol);
        let (back, other) = FlowKey::new(destination, source, destination_port, source_port, protocol);
        prop_assert_eq!(there, back);
        prop_assert_eq!(one != other, (source, source_port) != (destination, destination_port));
        prop_assert_eq!(there.source(one), (source, source_port));
        prop_assert_eq!(there.destination(one), (destination, destination_port));
        let table = table(1);
        prop_assert_eq!(table.hash(&there), table.hash(&back));
    }

    /// A worker owns a shard while it has a flow in it, even as flows expire, are evicted or replaced. A bucket of
    /// shards without flows has no owner.
    #[test]
    fn a_shard_has_an_owner_exactly_while_it_has_flows(
        capacity in 1usize..40,
        steps in prop::collection::vec((0u32..60, 0u8..4, 0u32..30), 1..200),
    ) {
        let shards = Arc::new(Shards::new(8).unwrap());
        let own = WorkerId(3);
        let mut table = FlowTable::shared(capacity, Arc::clone(&shards), own).unwrap();
        let mut now = 0;
        for (n, action, wait) in steps {
            now += wait;
            if action == 0 {
                let _ = table.age(table.buckets(), now);
            } else {
                let entry = if action == 1 { open(n, TCP, TcpFlags::SYN, now) } else { established(n, now) };
                let hash = table.hash(&entry.key());
                let found = table.find(hash, &entry.key());
                prop_assert_eq!(table.reserve_shard(hash, found), None);
                let _ = insert(&mut table, entry, now);
            }
            for n in 0..60 {
                let hash = table.hash(&key_of(n));
                let hashes = table.iter().map(|it| table.hash(&it.key())).collect::<Vec<_>>();
                if hashes.contains(&hash) {
                    prop_assert_eq!(shards.owner(hash), Some(own));
                } else if hashes.iter().all(|it| shards.bucket_index(*it) != shards.bucket_index(hash)) {
                    prop_assert_eq!(shards.owner(hash), None);
                }
                prop_assert_eq!(table.other_worker(hash), None);
            }
        }
    }

    /// Compares the table with a plain map. Only flows that the table reports as evicted are missing; `len`, `iter` and
    /// `lookup` agree; the eviction lists are in order; and there is a record of each flow.
    #[test]
    fn the_table_is_a_map_with_timeouts_and_bounded_size(
        capacity in 1usize..40,
        steps in prop::collection::vec((0u32..60, 0u8..8, 0u32..30), 1..300),
    ) {
        let mut table = table(capacity);
        let file = table.keep_records().unwrap().as_fd().try_clone_to_owned().unwrap();
        let file = FlowRecordFile::open(SharedFile::open(file).unwrap()).unwrap();
        let mut model: HashMap<u32, FlowEntry> = HashMap::new();
        let mut now = 0;
        for (n, action, wait) in steps {
            now += wait;
            let (key, _) = key(n, TCP);
            let hash = table.hash(&key);
            match action {
                0 | 1 => {
                    let entry = if action == 0 { open(n, TCP, TcpFlags::SYN, now) } else { established(n, now) };
                    let unestablished_live = model.values()
                        .filter(|e| !e.is_expired(now) && !e.state().is_established())
                        .count();
                    let many = model.len() / 4;
                    let evicted = insert(&mut table, entry, now);
                    model.insert(n, entry);
                    let gone: Vec<u32> = model.keys().copied()
                        .filter(|&m| !table.iter().any(|e| e.key() == key_of(m)))
                        .collect();
                    for m in &gone {
                        let old = model.remove(m).unwrap();
                        match evicted {
                            None => prop_assert!(false, "flow {m} vanished"),
                            Some(Evicted::Expired) => prop_assert!(old.is_expired(now)),
                            Some(Evicted::Unestablished) => prop_assert!(!old.is_expired(now) && !old.state().is_established()),
                            Some(Evicted::Established) => {
                                prop_assert!(!old.is_expired(now) && old.state().is_established());
                                prop_assert!(unestablished_live <= many, "an established flow went before many others");
                            }
                        }
                    }
                    prop_assert_eq!(gone.is_empty(), evicted.is_none());
                }
                2..=4 => {
                    let expected = model.get_mut(&n).filter(|e| !e.is_expired(now));
                    let guess = table.guess(hash);
                    if let Some(flow) = table.lookup_guessed(&key, guess, now) {
                        prop_assert_eq!((flow.key(), expected.is_some()), (key, true));
                    }
                    let found = table.lookup(hash, &key, now);
                    prop_assert_eq!(found.is_some(), expected.is_some());
                    if let (Some(mut found), Some(expected)) = (found, expected) {
                        let (flags, direction) = match action {
                            2 => (TcpFlags::FIN | TcpFlags::ACK, FlowDirection::Original),
                            3 => (TcpFlags::SYN | TcpFlags::ACK, FlowDirection::Reply),
                            _ => (TcpFlags::ACK, FlowDirection::Original),
                        };
                        found.record_packet(direction, flags, 1, 40, now);
                        expected.as_mut().record_packet(direction, flags, 1, 40, now);
                        prop_assert_eq!(found.state(), expected.state());
                        prop_assert_eq!(found.to_entry().traffic(direction), expected.traffic(direction));
                    }
                }
                5 | 6 => {
                    let entry = if action == 5 { open(n, TCP, TcpFlags::SYN, now) } else { established(n, now) };
                    if let Some(mut found) = table.lookup(hash, &key, now) {
                        found.replace(entry);
                        model.insert(n, entry);
                    }
                }
                _ => {
                    let expired = model.len();
                    model.retain(|_, e| !e.is_expired(now));
                    prop_assert_eq!(table.age(table.buckets(), now), expired - model.len());
                    for record in recorded(&file, &table).values() {
                        let entry = model.values().find(|it| it.key() == record.key).unwrap();
                        prop_assert_eq!(record.seen, entry.last_seen(), "ageing renews it");
                    }
                }
            }
            prop_assert!(table.len() <= capacity);
            prop_assert_eq!(table.len(), model.len());
            prop_assert_eq!(table.iter().count(), model.len());
            let mut records = recorded(&file, &table);
            for entry in model.values_mut() {
                let (found, seen) = (records.remove(&entry.key()), entry.last_seen());
                let expected = found.map(|it| FlowRecord { seen: it.seen, ..entry.as_mut().record() });
                prop_assert!(found.is_some_and(|it| it.seen <= seen) && found == expected);
            }
            prop_assert!(records.is_empty(), "records without a flow: {:?}", records);
            for (standing, is_established) in [(EvictionClass::Unestablished, false), (EvictionClass::Established, true)] {
                let listed: Vec<FlowKey> = table.listed(Owner::NODE, standing).map(|e| e.key()).collect();
                let is_expected = |e: &&FlowEntry| e.state().is_established() == is_established;
                let expected: HashSet<FlowKey> = model.values().filter(is_expected).map(FlowEntry::key).collect();
                prop_assert_eq!(listed.len(), expected.len());
                prop_assert_eq!(HashSet::from_iter(listed), expected);
            }
        }
    }
}
