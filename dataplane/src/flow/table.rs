//! The flow table: buckets of tags that lead to densely kept entries.
//!
//! ```text
//! hash ── bucket (one line: 8 tags, 8 slots) ── slot ──> first line of the entry ··· second line
//!      └─ alternate bucket, only if the first one has spilled
//! ```
//! The two lines of an entry lie in two arrays, since most packets need the first one alone: what is fetched together, and what
//! shares the sets of the caches, is what is needed. Entries are dense, so a thousand flows touch the pages of a thousand
//! entries, whatever the capacity. There are at least two ways for each entry, and an entry goes to its alternate bucket when
//! its first one is nearly full, so that a pair of buckets is practically never full before the table is.
//!
//! When the table is full, an owner that has its share or more gives up a flow: the oldest of those that are not
//! established, and only then an established one, silent for long. So a flood of SYNs replaces itself, and takes nothing from
//! anybody else.

use std::io;
use std::sync::Arc;

use ahash::RandomState;

use super::bucket::{Bucket, Place, WAYS, tag};
use super::entry::{FirstLine, FlowEntry, FlowMut, SecondLine};
use super::key::FlowKey;
use super::owners::Owner;
use super::shards::{Shards, WorkerId};
use super::slots::{EvictionClass, Slots};
use crate::sys::memory::{Pages, ZeroedPages};

/// Seeds of the keyed hash.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HashSeed(Option<[u64; 4]>);

impl HashSeed {
    /// Drawn anew for each table, so that senders cannot choose keys that collide.
    pub const fn random() -> Self {
        Self(None)
    }

    /// A constant: for tests, which want the same run again.
    pub const fn fixed(seed: u64) -> Self {
        Self(Some([seed, !seed, seed.rotate_left(17), seed.wrapping_mul(0x9e37_79b9_7f4a_7c15)]))
    }
}

/// The slot at which a flow probably is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Guess(u32);

impl Guess {
    /// Nothing is known.
    pub const NONE: Self = Self(u32::MAX);
}

/// Where a flow is, if it is known. Good until the next one is inserted or taken out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Found(Option<u32>);

/// Which flows are evicted next for new ones, as far as they have been prefetched in a batch.
#[derive(Debug, Clone, Copy, Default)]
pub struct Victims(Option<u32>);

/// What an insertion pushed out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Evicted {
    /// A flow whose timeout had passed: nothing of value.
    Expired,
    /// A live flow that was not established.
    Unestablished,
    /// A live established flow: nothing else was there.
    Established,
}

/// A worker's flows. Time is in seconds since the table's start and never goes back.
pub struct FlowTable {
    random: RandomState,
    /// With other workers: the shards, and the number of this worker.
    shards: Option<(Arc<Shards>, WorkerId)>,
    buckets: ZeroedPages<Bucket>,
    /// By slot, the two lines of each entry.
    pub(super) first_lines: ZeroedPages<FirstLine>,
    second_lines: ZeroedPages<SecondLine>,
    pub(super) slots: Slots,
    len: usize,
    /// Next bucket to age.
    hand: usize,
}

impl FlowTable {
    /// A table for `capacity` flows, at least 1 and at most 2^30 (others are clamped). It takes about 144 bytes for each
    /// flow it has held at once, and at most another 32 for each of its capacity, in steps of a huge page where there are
    /// such. Errors: no address space.
    pub fn new(capacity: usize, seed: HashSeed) -> io::Result<Self> {
        let random = match seed.0 {
            None => RandomState::new(),
            Some([a, b, c, d]) => RandomState::with_seeds(a, b, c, d),
        };
        Self::with_hasher(capacity, random, None)
    }

    /// The table of one of several workers. Its flows are opened after a [`FlowTable::claim`].
    pub fn shared(capacity: usize, shards: Arc<Shards>, worker: WorkerId) -> io::Result<Self> {
        Self::with_hasher(capacity, shards.random(), Some((shards, worker)))
    }

    fn with_hasher(
        capacity: usize,
        random: RandomState,
        shards: Option<(Arc<Shards>, WorkerId)>,
    ) -> io::Result<Self> {
        let capacity = capacity.clamp(1, 1 << 30);
        let buckets = (capacity * 2).div_ceil(WAYS).next_power_of_two().max(2);
        Ok(Self {
            random,
            shards,
            buckets: ZeroedPages::new(buckets, Pages::Huge)?,
            first_lines: ZeroedPages::new(capacity, Pages::Huge)?,
            second_lines: ZeroedPages::new(capacity, Pages::Huge)?,
            slots: Slots::new(capacity)?,
            len: 0,
            hand: 0,
        })
    }

    /// Flows held, expired ones that have not been met yet included.
    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there is no flow.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// How many flows fit.
    pub fn capacity(&self) -> usize {
        self.slots.capacity()
    }

    /// The key's hash, for the calls below.
    #[inline]
    pub fn hash(&self, key: &FlowKey) -> u64 {
        self.random.hash_one(key)
    }

    /// For a batch: asks for the bucket before it is needed.
    #[inline]
    pub fn prefetch(&self, hash: u64) {
        self.buckets.prefetch(self.first_bucket(hash));
    }

    /// For a batch, after [`FlowTable::prefetch`] of all of it: where the flow is if it is known. Good as long as nothing is
    /// inserted, and not wrong later.
    #[inline]
    pub fn guess(&self, hash: u64) -> Guess {
        let bucket = &self.buckets[self.first_bucket(hash)];
        match bucket.ways_with_tag(tag(hash)).next() {
            Some(way) => Guess(bucket.slots[way]),
            None if bucket.spilled > 0 => self.guess_alternate(hash),
            None => {
                // The flow may be opened in the alternate bucket, and its shard is read then.
                if bucket.is_crowded() {
                    self.buckets.prefetch(self.alternate_bucket(hash));
                }
                if let Some((shards, _)) = &self.shards {
                    shards.prefetch(hash);
                }
                Guess::NONE
            }
        }
    }

    #[inline(never)]
    fn guess_alternate(&self, hash: u64) -> Guess {
        let bucket = &self.buckets[self.alternate_bucket(hash)];
        let way = bucket.ways_with_tag(tag(hash)).next();
        way.map_or(Guess::NONE, |way| Guess(bucket.slots[way]))
    }

    /// For a batch: prefetches the flow of this key where it was guessed to be; if the flow is probably new,
    /// prefetches what must be evicted for it.
    #[inline]
    pub fn prefetch_guessed(&self, key: &FlowKey, guess: Guess, victims: &mut Victims) {
        if guess == Guess::NONE {
            return self.prefetch_victim(victims);
        }
        self.first_lines.prefetch(guess.0 as usize);
        if key.is_v6() {
            self.second_lines.prefetch(guess.0 as usize);
        }
    }

    #[inline(never)]
    fn prefetch_victim(&self, victims: &mut Victims) {
        if self.len < self.capacity() {
            return;
        }
        victims.0 = match victims.0 {
            Some(slot) => self.slots.next(slot),
            None => self.slots.oldest(self.slots.owners.last(), EvictionClass::Unestablished),
        };
        if let Some(slot) = victims.0 {
            self.first_lines.prefetch(slot as usize);
            self.second_lines.prefetch(slot as usize);
            self.buckets.prefetch(Place::from_bits(self.slots.place_bits(slot)).bucket);
        }
    }

    /// The flow of this key if that is where it was guessed to be, and live; otherwise ask [`FlowTable::lookup`].
    #[inline]
    pub fn lookup_guessed(
        &mut self,
        key: &FlowKey,
        Guess(guess): Guess,
        now: u32,
    ) -> Option<FlowMut<'_>> {
        let first = self.first_lines.get_mut(guess as usize)?;
        let second = self.second_lines.get_mut(guess as usize)?;
        (first.has_key(key, second) && !first.is_expired(now))
            .then(|| FlowMut::from_lines(first, second, Some((&mut self.slots, guess))))
    }

    /// The flow of this key, if it is live.
    pub fn lookup(&mut self, hash: u64, key: &FlowKey, now: u32) -> Option<FlowMut<'_>> {
        self.live_entry(self.find(hash, key), now)
    }

    /// A flow that was found; not an expired one, which stays until aged or replaced.
    #[inline]
    pub fn live_entry(&mut self, Found(slot): Found, now: u32) -> Option<FlowMut<'_>> {
        let slot = slot?;
        (!self.first_lines[slot as usize].is_expired(now)).then(|| self.entry_mut(slot))
    }

    #[inline]
    fn entry_mut(&mut self, slot: u32) -> FlowMut<'_> {
        let (first, second) = (&mut self.first_lines, &mut self.second_lines);
        let queued = Some((&mut self.slots, slot));
        FlowMut::from_lines(&mut first[slot as usize], &mut second[slot as usize], queued)
    }

    /// The other worker that has the flows of this hash, if there is one. The caller asks this when a flow is not
    /// found here.
    #[inline]
    pub fn other_worker(&self, hash: u64) -> Option<WorkerId> {
        let (shards, own) = self.shards.as_ref()?;
        shards.owner(hash).filter(|owner| owner != own)
    }

    /// Claims the shard of a hash for this worker, before a flow that is at `found`, or nowhere, is stored here.
    /// Returns the owner if the shard belongs to another worker. [`FlowTable::insert`] must follow.
    pub fn claim(&self, hash: u64, Found(slot): Found) -> Option<WorkerId> {
        let (shards, own) = self.shards.as_ref().filter(|_| slot.is_none())?;
        shards.open(hash, *own).err()
    }

    /// Stores a flow of an owner, which `write` opens or sets in its place; `found` is where its key is, and what is there is
    /// replaced. Always succeeds; tells what had to go for it.
    #[inline]
    pub fn insert(
        &mut self,
        hash: u64,
        Found(slot): Found,
        owner: Owner,
        now: u32,
        write: impl FnOnce(&mut FlowMut<'_>),
    ) -> Option<Evicted> {
        let (slot, evicted) = match slot {
            Some(taken) => {
                if self.slots.owner(taken) != owner {
                    self.slots.change_owner(
                        taken,
                        self.first_lines[taken as usize].eviction_class,
                        owner,
                    );
                }
                (slot, None)
            }
            None => self.make_room(hash, owner, now),
        };
        if let Some(slot) = slot {
            let mut entry = self.entry_mut(slot);
            write(&mut entry);
            let key = entry.key();
            debug_assert_eq!(self.find(hash, &key), Found(Some(slot)), "it is where it belongs");
        }
        evicted
    }

    /// A free slot, to which a tag leads now, and what had to go for it.
    #[inline(never)]
    fn make_room(&mut self, hash: u64, owner: Owner, now: u32) -> (Option<u32>, Option<Evicted>) {
        let chosen = self.choose_bucket(hash);
        let victim = if chosen.is_none() {
            self.least_valuable(&[self.first_bucket(hash), self.alternate_bucket(hash)], now)
        } else if self.len == self.capacity() {
            self.victim(owner, now)
        } else {
            None
        };
        let evicted = victim.map(|slot| self.evict(slot, now));
        // All of them exist: the victim left a slot, and a way if there was none.
        let chosen = chosen.or_else(|| self.choose_bucket(hash));
        let free = chosen.and_then(|bucket| Some((bucket, self.buckets[bucket].free_way()?)));
        let Some((bucket, way)) = free else { return (None, evicted) };
        let first = self.first_bucket(hash);
        let place = Place { bucket, way, is_alternate: bucket != first };
        let slot = if let Some(slot) = victim {
            self.slots.reassign(slot, owner, place.to_bits());
            slot
        } else {
            let Some(slot) = self.slots.allocate(owner, place.to_bits()) else {
                return (None, None);
            };
            self.len += 1;
            slot
        };
        if bucket != first {
            self.buckets[first].spilled += 1;
        }
        let line = &mut self.buckets[bucket];
        line.set_tag(way, tag(hash));
        line.slots[way] = slot;
        (Some(slot), evicted)
    }

    /// Looks at the next `budget` buckets and removes expired flows; how many they were. A caller that spends
    /// [`FlowTable::buckets`] over a few seconds keeps the table clean.
    pub fn age(&mut self, budget: usize, now: u32) -> usize {
        let before = self.len;
        for _ in 0..budget.min(self.buckets.len()) {
            let bucket = self.hand;
            self.hand = (bucket + 1) & (self.buckets.len() - 1);
            for way in 0..WAYS {
                if let Some(slot) = self.slot_at(bucket, way)
                    && self.first_lines[slot as usize].is_expired(now)
                {
                    self.remove(slot);
                }
            }
        }
        before - self.len
    }

    /// How many buckets a whole round of [`FlowTable::age`] has.
    pub fn buckets(&self) -> usize {
        self.buckets.len()
    }

    /// Copies of all flows, in no order; expired ones that have not been met yet included.
    pub fn iter(&self) -> impl Iterator<Item = FlowEntry> {
        self.buckets.iter().flat_map(|bucket| {
            (0..WAYS).filter(|&way| bucket.tag(way) != 0).map(|way| self.copy(bucket.slots[way]))
        })
    }

    /// Of an owner's flows of one standing, from the oldest on: no more than there are slots.
    #[cfg(test)]
    pub(super) fn listed(
        &self,
        owner: Owner,
        standing: EvictionClass,
    ) -> impl Iterator<Item = FlowEntry> {
        let oldest = self.slots.oldest(owner, standing);
        let slots = std::iter::successors(oldest, |slot| self.slots.next(*slot));
        slots.take(self.capacity()).map(|slot| self.copy(slot))
    }

    fn copy(&self, slot: u32) -> FlowEntry {
        let slot = slot as usize;
        FlowEntry::from_lines(&self.first_lines[slot], &self.second_lines[slot])
    }

    #[inline]
    fn first_bucket(&self, hash: u64) -> usize {
        hash as usize & (self.buckets.len() - 1)
    }

    /// Never the first one: there are at least two buckets, and the distance is odd.
    #[inline]
    fn alternate_bucket(&self, hash: u64) -> usize {
        (hash as usize ^ ((hash >> 32) as usize | 1)) & (self.buckets.len() - 1)
    }

    #[inline]
    pub(super) fn slot_at(&self, bucket: usize, way: usize) -> Option<u32> {
        let line = &self.buckets[bucket];
        (line.tag(way) != 0).then(|| line.slots[way])
    }

    /// Looks for the flow of this key.
    #[inline(never)]
    pub fn find(&self, hash: u64, key: &FlowKey) -> Found {
        let first = self.first_bucket(hash);
        let found = self.find_in(first, hash, key);
        if found.is_some() || self.buckets[first].spilled == 0 {
            return Found(found);
        }
        Found(self.find_in(self.alternate_bucket(hash), hash, key))
    }

    #[inline]
    fn find_in(&self, bucket: usize, hash: u64, key: &FlowKey) -> Option<u32> {
        let line = &self.buckets[bucket];
        let mut slots = line.ways_with_tag(tag(hash)).map(|way| line.slots[way]);
        slots.find(|slot| {
            let slot = *slot as usize;
            let lines = self.first_lines.get(slot).zip(self.second_lines.get(slot));
            lines.is_some_and(|(first, second)| first.has_key(key, second))
        })
    }

    fn choose_bucket(&self, hash: u64) -> Option<usize> {
        let first = self.first_bucket(hash);
        if !self.buckets[first].is_crowded() {
            return Some(first);
        }
        let alternate = self.alternate_bucket(hash);
        match (self.buckets[first].used(), self.buckets[alternate].used()) {
            (WAYS, WAYS) => None,
            (first_used, used) if used < first_used => Some(alternate),
            _ => Some(first),
        }
    }

    /// Evicts a flow whose slot another flow is about to take, and returns what it was.
    fn evict(&mut self, slot: u32, now: u32) -> Evicted {
        let entry = &self.first_lines[slot as usize];
        let evicted = if entry.is_expired(now) {
            Evicted::Expired
        } else if entry.state().is_established() {
            Evicted::Established
        } else {
            Evicted::Unestablished
        };
        self.vacate(slot);
        evicted
    }

    /// Takes a flow out; its slot stays its owner's.
    #[inline]
    fn vacate(&mut self, slot: u32) {
        let Place { bucket, way, is_alternate } = Place::from_bits(self.slots.place_bits(slot));
        if is_alternate || self.shards.is_some() {
            self.forget_hash(self.hash(&self.copy(slot).key()), is_alternate);
        }
        self.buckets[bucket].set_tag(way, 0);
        let entry = &mut self.first_lines[slot as usize];
        let standing = std::mem::replace(&mut entry.eviction_class, EvictionClass::Free);
        self.slots.unlink(slot, standing);
    }

    fn remove(&mut self, slot: u32) {
        self.vacate(slot);
        self.slots.release(slot);
        self.len -= 1;
    }

    /// Removes what is known of a flow besides its tag.
    #[inline(never)]
    fn forget_hash(&mut self, hash: u64, is_alternate: bool) {
        if let Some((shards, _)) = &self.shards {
            shards.close(hash);
        }
        if is_alternate {
            let first = self.first_bucket(hash);
            self.buckets[first].spilled -= 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::bucket::CROWDED;
    use super::super::{Orientation, TcpFlags};
    use super::*;
    use crate::wire::address::Address;

    /// Flows that all have the same two buckets.
    fn crowd(table: &FlowTable, count: usize) -> Vec<(u64, FlowKey)> {
        (0u128..)
            .map(|n| FlowKey::new(Address::v6(n.to_be_bytes()), Address::default(), 1, 2, 6).0)
            .map(|key| (table.hash(&key), key))
            .filter(|&(hash, _)| table.first_bucket(hash) == 0 && table.alternate_bucket(hash) == 1)
            .take(count)
            .collect()
    }

    #[test]
    fn a_crowd_fills_both_buckets_then_replaces_itself_and_leaves_no_trace() {
        let mut table = FlowTable::new(64, HashSeed::fixed(3)).unwrap();
        let crowd = crowd(&table, 2 * WAYS + 4);
        for round in 0..3 {
            let start = round * 1000;
            for (now, &(hash, key)) in (start..).zip(&crowd) {
                let flow = FlowEntry::open(key, Orientation::LowToHigh, TcpFlags::SYN, now);
                let found = table.find(hash, &key);
                let evicted =
                    table.insert(hash, found, Owner::NODE, now, |place| place.replace(flow));
                let full = now - start >= 2 * WAYS as u32;
                assert_eq!(evicted, full.then_some(Evicted::Unestablished));
                assert_eq!(table.lookup(hash, &key, now).map(|flow| flow.key()), Some(key));
            }
            assert_eq!(table.len(), 2 * WAYS);
            assert!(table.buckets.iter().all(|it| it.is_crowded() == (it.used() >= CROWDED)));
            assert_eq!(table.buckets[0].used(), WAYS);
            assert!(table.buckets[0].spilled == WAYS as u32);
            for (hash, key) in &crowd[4..] {
                assert!(table.lookup(*hash, key, start + 20).is_some());
                let guess = table.guess(*hash);
                assert!(table.lookup_guessed(key, guess, start + 20).is_some(), "in either bucket");
            }
            assert_eq!(table.age(table.buckets(), start + 900), 2 * WAYS);
            assert!(table.buckets.iter().all(|bucket| bucket.spilled == 0 && bucket.used() == 0));
            assert!(table.slots.oldest(Owner::NODE, EvictionClass::Unestablished).is_none());
        }
    }
}
