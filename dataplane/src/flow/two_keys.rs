//! Flows with two keys: flows whose packets are translated.
//!
//! A translated flow has one key for its packets before the translation, and one for its packets after it. Replies
//! carry the second key. Both keys lead to the same entry, so there is one state, one verdict, one count, one timeout
//! and one eviction.
//!
//! ```text
//! hash of the first key ─── bucket ──┐
//!                                    ├─> slot ──> first line ··· second line ··· second key
//! hash of the second key ── bucket ──┘
//! ```
//! The entry's key has a mark that no packet's key has. So a packet of such a flow never matches a flow that is not
//! translated, and a lookup of the latter costs nothing more.
//!
//! One worker has both keys: it reserves the shards of both keys when it opens the flow. A second key is refused if
//! another flow has it or if its shard belongs to another worker. The caller then tries another key with another source
//! port.

use super::bucket::{Place, tag};
use super::end::EndReason;
use super::flow_mut::FlowMut;
use super::key::{FlowKey, Orientation};
use super::owners::Owner;
use super::second_key::{DirectedKey, SecondKeyLine};
use super::shards::WorkerId;
use super::state::{FlowDirection, FlowState};
use super::table::{Evicted, FlowTable, Found, Guess};

/// Why a flow cannot have a second key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyTaken {
    /// A live flow has it.
    Flow,
    /// Its shard belongs to another worker.
    Worker(WorkerId),
}

/// A packet's place in a flow that has both keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PlaceInFlow {
    /// The packet belongs to the flow. The value is its direction, and the key and orientation that it has after the
    /// translation.
    Own(FlowDirection, FlowKey, Orientation),
    /// The packet has the direction of a reply, but the key of packets before the translation: a translated reply would
    /// have the other key.
    UntranslatedReply,
    /// The packet has the original direction, but the key of packets after the translation. It belongs to another
    /// connection, whose replies could not be distinguished from this one's.
    OtherConnection,
}

/// The two keys of a flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TwoKeys {
    /// The key before the translation.
    pub first: DirectedKey,
    /// The key after the translation.
    pub second: DirectedKey,
}

impl TwoKeys {
    /// The place of a packet that found the flow by one of its keys.
    #[inline]
    pub fn place(&self, key: &FlowKey, orientation: Orientation) -> PlaceInFlow {
        let Self { first, second } = self;
        let is_first = *key == first.key;
        let other = || if is_first { second.key } else { first.key };
        PlaceInFlow::new(is_first, orientation, [first.original, second.original], other)
    }
}

impl PlaceInFlow {
    /// The place of a packet of this orientation. `is_first` says whether it has the first key or the second one.
    /// `originals` is the orientation of the flow's original direction in each key. `other` returns the key that the
    /// packet does not have.
    #[inline(always)]
    #[expect(clippy::inline_always, reason = "every packet that is translated")]
    fn new(
        is_first: bool,
        orientation: Orientation,
        originals: [Orientation; 2],
        other: impl FnOnce() -> FlowKey,
    ) -> Self {
        let [first, second] = originals;
        match (is_first, orientation == if is_first { first } else { second }) {
            (true, true) => Self::Own(FlowDirection::Original, other(), second),
            (false, false) => Self::Own(FlowDirection::Reply, other(), first.reverse()),
            (true, false) => Self::UntranslatedReply,
            (false, true) => Self::OtherConnection,
        }
    }
}

/// The flow that has a key.
#[derive(Debug, Clone, Copy)]
pub struct KeyOwner {
    /// Its slot.
    pub found: Found,
    /// Its owner.
    pub owner: Owner,
    /// Its state.
    pub state: FlowState,
    /// The time of its last packet.
    pub last_seen: u32,
}

/// A second key that is reserved for a flow.
#[derive(Debug)]
#[must_use = "its shard is open: FlowTable::insert_with_second_key or FlowTable::release_second_key follows"]
pub struct ReservedKey {
    second: DirectedKey,
    hash: u64,
}

impl ReservedKey {
    /// The key.
    pub fn key(&self) -> DirectedKey {
        self.second
    }
}

impl FlowTable {
    /// Reserves a second key for the flow that was `found`, or that is about to be stored if none was. An expired flow
    /// that has the key is removed. Call this after [`FlowTable::reserve_shard`] for the first key.
    pub fn reserve_second_key(
        &mut self,
        second: DirectedKey,
        Found(own): Found,
        now: u32,
    ) -> Result<ReservedKey, KeyTaken> {
        let hash = self.hash(&second.key);
        if let Found(Some(other)) = self.find(hash, &second.key)
            && Some(other) != own
        {
            if !self.first_lines[other as usize].is_expired(now) {
                return Err(KeyTaken::Flow);
            }
            self.remove(other, now, EndReason::Expired);
        }
        if let Some((shards, worker)) = &self.shards {
            shards.open(hash, *worker).map_err(KeyTaken::Worker)?;
        }
        Ok(ReservedKey { second, hash })
    }

    /// Releases a reservation that is not needed.
    pub fn release_second_key(&mut self, ReservedKey { hash, .. }: ReservedKey) {
        if let Some((shards, _)) = &self.shards {
            shards.close(hash);
        }
    }

    /// Like [`FlowTable::insert`], with the second key that was reserved for the flow. Returns the kinds of the flows
    /// that were evicted for the two keys. If there is no place for the second key after all, the flow is not stored,
    /// because it must not pass as a flow that is not translated.
    #[inline]
    pub fn insert_with_second_key(
        &mut self,
        place: (u64, Found, Owner),
        reserved: ReservedKey,
        now: u32,
        write: impl FnOnce(&mut FlowMut<'_>),
    ) -> [Option<Evicted>; 2] {
        match self.store(place, now, false, write) {
            (Some(slot), evicted) => [evicted, self.add_second_key(slot, reserved, now)],
            (None, evicted) => {
                self.release_second_key(reserved);
                [evicted, None]
            }
        }
    }

    /// Gives the second key to a flow that was just stored with one key, and writes its record. Returns the kind of
    /// flow that was evicted for the key.
    fn add_second_key(
        &mut self,
        slot: u32,
        ReservedKey { second, hash }: ReservedKey,
        now: u32,
    ) -> Option<Evicted> {
        let chosen = self.choose_bucket(hash);
        let victim = chosen.map_or_else(|| self.least_valuable(hash, Some(slot), now), |_| None);
        let evicted = victim.map(|victim| {
            let evicted = self.evict(victim, now);
            self.release(victim);
            evicted
        });
        // There is always a place: the victim left one if there was none.
        let Some(place) = self.free_place(hash, chosen) else {
            self.release_second_key(ReservedKey { second, hash });
            self.remove(slot, now, EndReason::Evicted);
            return evicted;
        };
        self.set_tag(hash, place, slot);
        let line = SecondKeyLine::new(second, place.to_bits());
        self.slots.second_keys[slot as usize] = line;
        self.first_lines[slot as usize].set_two_keys(true);
        self.entry_mut(slot).write_record();
        evicted
    }

    /// The flow that already has a key, so that it is refused as a second key.
    pub fn key_owner(&self, key: &FlowKey) -> Option<KeyOwner> {
        let found = self.find(self.hash(key), key);
        let slot = found.0?;
        let line = &self.first_lines[slot as usize];
        let owner = self.slots.owner(slot);
        Some(KeyOwner { found, owner, state: line.state(), last_seen: line.last_seen() })
    }

    /// The second key of a flow, if it has one.
    pub fn second_key(&self, Found(slot): Found) -> Option<DirectedKey> {
        let slot = slot? as usize;
        self.first_lines[slot].has_two_keys().then(|| self.slots.second_keys[slot].second_key())
    }

    /// Both keys of a flow, if it has two.
    #[inline]
    pub fn two_keys(&self, found: Found) -> Option<TwoKeys> {
        let second = self.second_key(found)?;
        let slot = found.0? as usize;
        let line = &self.first_lines[slot];
        let key = line.key(&self.second_lines[slot]);
        Some(TwoKeys { first: DirectedKey { key, original: line.original() }, second })
    }

    /// Like [`FlowTable::lookup_guessed`], for flows with two keys. Returns the flow and the packet's place in it.
    #[inline(always)]
    #[expect(clippy::inline_always, reason = "every packet that is translated")]
    pub fn lookup_guessed_two_keys(
        &mut self,
        key: &FlowKey,
        orientation: Orientation,
        Guess(guess): Guess,
        now: u32,
    ) -> Option<(FlowMut<'_>, PlaceInFlow)> {
        let slot = guess as usize;
        let first = self.first_lines.get_mut(slot)?;
        if !first.has_two_keys() || first.is_expired(now) {
            return None;
        }
        let second = self.second_lines.get_mut(slot)?;
        let line = self.slots.second_keys.get(slot)?;
        let is_second = line.has_key(key);
        if !is_second && first.key(second) != *key {
            return None;
        }
        let other = || if is_second { first.key(second) } else { line.key() };
        let originals = [first.original(), line.original];
        let place = PlaceInFlow::new(!is_second, orientation, originals, other);
        Some((FlowMut::from_lines(first, second, Some((&mut self.slots, guess))), place))
    }

    /// Removes a flow that was found. The end is reported with this reason, or as expired if the flow has expired.
    pub fn remove_found(&mut self, Found(slot): Found, now: u32, reason: EndReason) {
        if let Some(slot) = slot {
            self.remove(slot, now, reason);
        }
    }

    /// Whether this key is one of the two keys of the entry in a slot.
    #[cold]
    #[inline(never)]
    pub(super) fn has_either_key(&self, slot: usize, key: &FlowKey) -> bool {
        self.first_lines[slot].key(&self.second_lines[slot]) == *key
            || self.slots.second_keys[slot].has_key(key)
    }

    /// Removes the second key of the entry in a slot, if it has one.
    #[inline]
    pub(super) fn remove_second_key(&mut self, slot: u32) {
        if self.first_lines[slot as usize].has_two_keys() {
            self.remove_marked(slot);
        }
    }

    #[cold]
    #[inline(never)]
    fn remove_marked(&mut self, slot: u32) {
        let line = self.slots.second_keys[slot as usize];
        let place = Place::from_bits(line.place);
        debug_assert_eq!(
            self.buckets[place.bucket].tag(place.way),
            tag(self.hash(&line.second_key().key))
        );
        self.clear_tag(place, |_| line.second_key().key);
        self.first_lines[slot as usize].set_two_keys(false);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::Arc;

    use proptest::prelude::*;

    use super::super::bucket::{Bucket, WAYS};
    use super::super::{FlowEntry, HashSeed, Orientation, Shards, TcpFlags};
    use super::*;
    use crate::wire::address::Address;
    use crate::wire::protocol::TCP;

    const OWN: WorkerId = WorkerId(3);
    const OTHER: WorkerId = WorkerId(4);
    /// The numbers that first keys have; those of second keys follow.
    const FIRST: std::ops::Range<u32> = 0..24;
    const SECOND: std::ops::Range<u32> = 20..40;

    /// Some numbers are used both as a first key and as a second key. A third of the keys are IPv6 keys.
    fn key(n: u32) -> (FlowKey, Orientation) {
        let address = |n: u32| match n % 3 {
            0 => Address::v6(u128::from(n).to_be_bytes()),
            _ => Address::v4(n.to_be_bytes()),
        };
        let port = if n.is_multiple_of(2) { 80 } else { 60_000 };
        FlowKey::new(address(n + 3), address(3 * 1000 + n % 3), 1000, port, TCP)
    }

    fn second_of(n: u32) -> DirectedKey {
        let (key, original) = key(n);
        DirectedKey { key, original }
    }

    /// The expected content of the table: for each first key, the second key of the flow, and the time when the flow
    /// was opened.
    type Model = BTreeMap<u32, (Option<u32>, u32)>;

    /// Stores a flow with these keys as the decision on its first packet does. Returns an error if the second key is
    /// taken.
    fn open(
        table: &mut FlowTable,
        first: u32,
        second: Option<u32>,
        now: u32,
    ) -> Result<[Option<Evicted>; 2], KeyTaken> {
        let (key, original) = key(first);
        let hash = table.hash(&key);
        let found = table.find(hash, &key);
        assert_eq!(table.reserve_shard(hash, found), None);
        let reserved = second.map(|it| table.reserve_second_key(second_of(it), found, now));
        let reserved = match reserved.transpose() {
            Ok(reserved) => reserved,
            Err(taken) => {
                table.release_shard(hash, found);
                return Err(taken);
            }
        };
        let place = (hash, found, Owner::NODE);
        let write = |entry: &mut FlowMut<'_>| entry.open(&key, original, TcpFlags::SYN, now);
        Ok(match reserved {
            None => [table.insert(place.0, place.1, place.2, now, write), None],
            Some(reserved) => table.insert_with_second_key(place, reserved, now, write),
        })
    }

    fn tags(table: &FlowTable) -> usize {
        table.buckets.iter().map(Bucket::used).sum()
    }

    proptest! {
        /// Each key leads to its flow and to no other flow, whichever flows arrive, expire, are evicted, are replaced,
        /// or get another second key. A flow that is removed leaves no trace of either key. Other flows are removed
        /// only if the table reports it.
        #[test]
        fn both_keys_lead_to_one_flow_until_it_goes_and_then_to_none(
            capacity in 1_usize..30,
            steps in prop::collection::vec(
                (FIRST, prop::option::of(SECOND), 0_u8..8, 0_u32..8), 1..200,
            ),
        ) {
            let shards = Arc::new(Shards::new(64).unwrap());
            let mut table = FlowTable::shared(capacity, Arc::clone(&shards), OWN).unwrap();
            let mut model = Model::new();
            let mut now = 100;
            let live = |opened: u32, now: u32| now - opened <= 20;
            for (first, second, action, wait) in steps {
                now += wait;
                if action == 0 {
                    let expired = model.values().filter(|(_, at)| !live(*at, now)).count();
                    prop_assert_eq!(table.age(table.buckets(), now), expired);
                    model.retain(|_, (_, at)| live(*at, now));
                } else if second != Some(first) {
                    // The packet finds the flow that the new one replaces by either of its keys.
                    let replaced = model.iter().find(|(key, (its, _))| **key == first || *its == Some(first));
                    let replaced = replaced.map(|(key, _)| *key);
                    let taken = model.iter().find(|(key, (its, _))| {
                        Some(**key) != replaced && second.is_some_and(|it| **key == it || *its == Some(it))
                    });
                    let taken = taken.map(|(key, (_, at))| (*key, live(*at, now)));
                    let opened = open(&mut table, first, second, now);
                    prop_assert_eq!(opened.is_err(), matches!(taken, Some((_, true))), "{:?}", opened);
                    if let Some((key, false)) = taken {
                        model.remove(&key);
                    }
                    if let Ok(evicted) = opened {
                        replaced.map(|it| model.remove(&it));
                        model.insert(first, (second, now));
                        let is_there = |n: &u32| {
                            let (key, _) = key(*n);
                            table.iter().any(|it| it.key() == key)
                        };
                        let gone = model.keys().filter(|it| !is_there(it)).count();
                        prop_assert_eq!(gone, evicted.iter().flatten().count());
                        prop_assert!(is_there(&first), "the new one stays");
                        model.retain(|first, _| is_there(first));
                    }
                }
                prop_assert_eq!(table.len(), model.len());
                prop_assert_eq!(table.iter().count(), model.len());
                prop_assert_eq!(tags(&table), model.values().map(|(it, _)| 1 + usize::from(it.is_some())).sum::<usize>());
                for n in FIRST.start..SECOND.end {
                    let (key, orientation) = key(n);
                    let hash = table.hash(&key);
                    let found = table.find(hash, &key);
                    let as_first = model.get_key_value(&n);
                    let flow = as_first.or_else(|| model.iter().find(|(_, (it, _))| *it == Some(n)));
                    prop_assert_eq!(found.0.is_some(), flow.is_some(), "key {}", n);
                    let Some((first, (second, at))) = flow else { continue };
                    let its = second.map(second_of);
                    prop_assert_eq!(table.second_key(found), its);
                    if as_first.is_none() {
                        prop_assert_eq!(its.map(|it| it.original), Some(orientation));
                    }
                    prop_assert_eq!(shards.owner(hash), Some(OWN));
                    let guess = table.guess(hash);
                    if second.is_some() {
                        prop_assert!(table.lookup_guessed(&key, guess, now).is_none(), "never as one that is not translated");
                    }
                    for orientation in [Orientation::LowToHigh, Orientation::HighToLow] {
                        let keys = table.two_keys(found);
                        let expected = keys.filter(|_| live(*at, now)).map(|it| it.place(&key, orientation));
                        let slot = Guess(found.0.unwrap());
                        let quick = table.lookup_guessed_two_keys(&key, orientation, slot, now);
                        prop_assert_eq!(quick.map(|(_, place)| place), expected);
                    }
                    let entry = table.lookup(hash, &key, now);
                    prop_assert_eq!(entry.is_some(), live(*at, now));
                    prop_assert!(entry.is_none_or(|it| it.key() == self::key(*first).0));
                }
            }
            table.age(table.buckets(), now + 10_000);
            prop_assert!(table.is_empty() && tags(&table) == 0);
            prop_assert!(table.buckets.iter().all(|bucket| bucket.spilled == 0));
            for n in FIRST.start..SECOND.end {
                prop_assert_eq!(shards.owner(table.hash(&key(n).0)), None);
            }
        }
    }

    #[test]
    fn a_key_whose_shard_is_another_workers_is_refused_and_nothing_of_it_stays() {
        let shards = Arc::new(Shards::new(64).unwrap());
        let mut table = FlowTable::shared(8, Arc::clone(&shards), OWN).unwrap();
        let hash = table.hash(&second_of(30).key);
        shards.open(hash, OTHER).unwrap();
        assert_eq!(open(&mut table, 1, Some(30), 0), Err(KeyTaken::Worker(OTHER)));
        assert_eq!(shards.owner(table.hash(&key(1).0)), None);
        shards.close(hash);
        open(&mut table, 1, Some(30), 0).unwrap();
        assert_eq!(shards.owner(hash), Some(OWN));
    }

    #[test]
    fn with_room_for_second_keys_nothing_is_evicted_before_the_table_is_full() {
        const FLOWS: u32 = 1 << 12;
        for is_expected in [true, false] {
            let mut table = FlowTable::new(FLOWS as usize, HashSeed::fixed(3)).unwrap();
            if is_expected {
                table.expect_second_keys().unwrap();
            }
            let open = |n| open(&mut table, n, Some(n + FLOWS), 0).unwrap();
            let evicted = (0..FLOWS).map(open).filter(|it| *it != [None; 2]).count();
            assert_eq!(evicted == 0, is_expected, "{evicted}");
        }
    }

    /// Packets of one batch made their guesses before the first of them was decided.
    #[test]
    fn nothing_of_a_removed_flow_is_found_by_a_guess_from_before() {
        let mut table = FlowTable::new(64, HashSeed::fixed(3)).unwrap();
        for (first, second) in [(1, Some(30)), (3, Some(33)), (5, None)] {
            open(&mut table, first, second, 0).unwrap();
            let keys: Vec<FlowKey> =
                [Some(first), second].into_iter().flatten().map(|n| key(n).0).collect();
            let guesses: Vec<Guess> = keys.iter().map(|key| table.guess(table.hash(key))).collect();
            let found = table.find(table.hash(&keys[0]), &keys[0]);
            table.remove_found(found, 0, EndReason::BackendGone);
            for (key, guess) in keys.iter().zip(guesses) {
                assert!(table.lookup_guessed(key, guess, 0).is_none(), "{first}");
                assert!(
                    table.lookup_guessed_two_keys(key, Orientation::LowToHigh, guess, 0).is_none(),
                    "{first}"
                );
            }
        }
    }

    #[test]
    fn a_second_key_evicts_another_flow_of_its_buckets_and_never_its_own() {
        let mut table = FlowTable::new(64, HashSeed::fixed(3)).unwrap();
        let crowd = |n: u32| {
            let (low, high) = (u128::from(n) << 64, u128::MAX);
            FlowKey::new(Address::v6(low.to_be_bytes()), Address::v6(high.to_be_bytes()), 1, 2, TCP)
        };
        let in_two_buckets = |it: &(FlowKey, Orientation)| {
            let hash = table.hash(&it.0);
            table.first_bucket(hash) == 0 && table.alternate_bucket(hash) == 1
        };
        let keys: Vec<_> = (0..).map(crowd).filter(in_two_buckets).take(2 * WAYS + 1).collect();
        for (now, (key, original)) in (0..).zip(&keys[..2 * WAYS]) {
            let hash = table.hash(key);
            let flow = FlowEntry::open(*key, *original, TcpFlags::SYN, now);
            let found = table.find(hash, key);
            assert_eq!(table.insert(hash, found, Owner::NODE, now, |it| it.replace(flow)), None);
        }
        // The oldest flow of all is the one that gets a second key.
        let oldest = table.find(table.hash(&keys[0].0), &keys[0].0);
        let (key, original) = keys[2 * WAYS];
        let reserved = table.reserve_second_key(DirectedKey { key, original }, oldest, 16).unwrap();
        assert_eq!(
            table.add_second_key(oldest.0.unwrap(), reserved, 16),
            Some(Evicted::Unestablished)
        );
        assert_eq!(table.find(table.hash(&key), &key), oldest);
        assert_eq!(table.find(table.hash(&keys[0].0), &keys[0].0), oldest);
        assert_eq!(table.find(table.hash(&keys[1].0), &keys[1].0), Found(None));
        assert_eq!(table.len(), 2 * WAYS - 1);
        // A flow that is opened again in its slot keeps both.
        table.live_entry(oldest, 16).unwrap().open(&keys[0].0, keys[0].1, TcpFlags::SYN, 16);
        for key in [key, keys[0].0] {
            assert_eq!(table.find(table.hash(&key), &key), oldest);
        }
    }
}
