//! The flow table: buckets of tags that lead to densely stored entries.
//!
//! ```text
//! hash ── bucket (one line: 8 tags, 8 slots) ── slot ──> first line of the entry ··· second line
//!      └─ alternate bucket, only if the first one has spilled
//! ```
//! The two lines of an entry lie in two arrays, because most packets need only the first line. So a line that is not
//! needed is not fetched and takes no room in a cache. Entries are dense: a thousand flows touch only the pages of a
//! thousand entries, whatever the capacity is. The buckets have at least two places for each key, and an entry goes to
//! its alternate bucket when its first one is nearly full. So the table is practically always full before both buckets
//! of some hash are.
//!
//! When the table is full, an owner that has its share or more loses a flow: usually its oldest flow that is not
//! established, else an established flow that has been silent for long. So a flood of SYNs evicts flows of its own
//! owner and takes nothing from other owners.

use std::io;
use std::sync::Arc;

use ahash::RandomState;
use crossbeam::channel::Sender;

use super::bucket::{Bucket, Place, WAYS, tag};
use super::end::{EndReason, FlowEnd, Listener};
use super::entry::{FirstLine, FlowEntry, SecondLine, Verdict};
use super::eviction_class::EvictionClass;
use super::flow_mut::FlowMut;
use super::key::FlowKey;
use super::owners::Owner;
use super::record::FlowRecords;
use super::shards::{Shards, WorkerId};
use super::slots::Slots;
use crate::hash_seed::HashSeed;
use crate::sys::memory::{Pages, ZeroedPages};
use crate::sys::shared_file::SharedFile;

/// The slot at which a flow probably is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Guess(pub(super) u32);

impl Guess {
    /// No guess: the flow is probably not in the table.
    pub const NONE: Self = Self(u32::MAX);
}

/// The slot of a flow, if it is in the table. It is valid until a flow is inserted or removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Found(pub(super) Option<u32>);

/// The slot of the last flow that a batch has prefetched because the table will probably evict it next.
#[derive(Debug, Clone, Copy, Default)]
pub struct Victims(Option<u32>);

/// The kind of flow that an insertion evicted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Evicted {
    /// A flow whose timeout had passed.
    Expired,
    /// A live flow that was not established.
    Unestablished,
    /// A live established flow.
    Established,
}

impl Evicted {
    /// Whether another packet might still have found the flow.
    pub fn is_live(self) -> bool {
        match self {
            Self::Unestablished | Self::Established => true,
            Self::Expired => false,
        }
    }
}

/// The flows of a worker. Time is in seconds and never goes back. If records are kept, it counts from the machine's
/// start.
pub struct FlowTable {
    random: RandomState,
    /// The shards and the number of this worker, if there are several workers.
    pub(super) shards: Option<(Arc<Shards>, WorkerId)>,
    pub(super) buckets: ZeroedPages<Bucket>,
    /// The two lines of each entry, by slot.
    pub(super) first_lines: ZeroedPages<FirstLine>,
    pub(super) second_lines: ZeroedPages<SecondLine>,
    pub(super) slots: Slots,
    len: usize,
    /// The next bucket to age.
    hand: usize,
}

impl FlowTable {
    /// Creates a table for `capacity` flows, at least 1 and at most 2^30 (other values are clamped). It takes about 144
    /// bytes for each flow that it has held at once, and at most 32 more bytes for each flow of its capacity (twice as
    /// much if second keys are [expected](FlowTable::expect_second_keys)). Memory grows by huge pages if the system has
    /// them. Returns an error if there is no address space.
    pub fn new(capacity: usize, seed: HashSeed) -> io::Result<Self> {
        Self::with_hasher(capacity, seed.hasher("flows"), None)
    }

    /// Creates the table of one of several workers. A flow in it is opened only after a [`FlowTable::reserve_shard`].
    pub fn shared(capacity: usize, shards: Arc<Shards>, worker: WorkerId) -> io::Result<Self> {
        Self::with_hasher(capacity, shards.random(), Some((shards, worker)))
    }

    fn with_hasher(
        capacity: usize,
        random: RandomState,
        shards: Option<(Arc<Shards>, WorkerId)>,
    ) -> io::Result<Self> {
        let capacity = capacity.clamp(1, 1 << 30);
        Ok(Self {
            random,
            shards,
            buckets: buckets_for(capacity)?,
            first_lines: ZeroedPages::new(capacity, Pages::Huge)?,
            second_lines: ZeroedPages::new(capacity, Pages::Huge)?,
            slots: Slots::new(capacity)?,
            len: 0,
            hand: 0,
        })
    }

    /// Makes room for a second key of each flow. Without this, second keys take the places of other flows in a table
    /// that is nearly full. Call this while the table is empty. Returns an error if there is no address space.
    pub fn expect_second_keys(&mut self) -> io::Result<()> {
        self.buckets = buckets_for(2 * self.capacity())?;
        Ok(())
    }

    /// Keeps a record of each flow from now on, for the next process. Call this while the table is empty. Returns the
    /// file of the records ([`super::FlowRecordFile`]). The records take another 48 bytes for each flow. Returns an
    /// error if there is no file or no address space.
    pub fn keep_records(&mut self) -> io::Result<Arc<SharedFile>> {
        let records = FlowRecords::new(self.capacity())?;
        let file = records.file();
        self.slots.records = Some(records);
        Ok(file)
    }

    /// From now on, reports the end of each allowed flow to `to`, until its receiver is dropped. An end that finds no
    /// room in the channel is lost and counted. A receiver that was set before gets no more reports.
    pub fn tell_ends(&mut self, to: Sender<FlowEnd>) {
        self.slots.listener = Some(Listener { to, lost: 0 });
    }

    /// The number of flows, including expired flows that have not been removed yet.
    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there is no flow.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The largest number of flows that the table holds.
    pub fn capacity(&self) -> usize {
        self.slots.capacity()
    }

    /// The hash of the key, for the calls below.
    #[inline]
    pub fn hash(&self, key: &FlowKey) -> u64 {
        self.random.hash_one(key)
    }

    /// Prefetches the bucket of a flow, for a batch.
    #[inline]
    pub fn prefetch(&self, hash: u64) {
        self.buckets.prefetch(self.first_bucket(hash));
    }

    /// Guesses the slot of a flow, for a batch whose buckets were all prefetched ([`FlowTable::prefetch`]). If a flow
    /// has been inserted since, [`FlowTable::lookup_guessed`] may not find the flow, but never finds another one.
    #[inline]
    pub fn guess(&self, hash: u64) -> Guess {
        let bucket = &self.buckets[self.first_bucket(hash)];
        match bucket.ways_with_tag(tag(hash)).next() {
            Some(way) => Guess(bucket.slots[way]),
            None if bucket.spilled > 0 => self.guess_alternate(hash),
            None => {
                // The flow may be opened in the alternate bucket, and then its shard is read, too.
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

    /// Prefetches the flow of this key at its guessed slot, for a batch. If the flow is probably new, prefetches the
    /// flow that must be evicted for it.
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

    /// The flow of this key, if it is at the guessed slot and live. If this returns `None`, call [`FlowTable::lookup`].
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

    /// A flow that was found, unless it has expired. An expired flow stays until it is aged or replaced.
    #[inline]
    pub fn live_entry(&mut self, Found(slot): Found, now: u32) -> Option<FlowMut<'_>> {
        let slot = slot?;
        (!self.first_lines[slot as usize].is_expired(now)).then(|| self.entry_mut(slot))
    }

    #[inline]
    pub(super) fn entry_mut(&mut self, slot: u32) -> FlowMut<'_> {
        let (first, second) = (&mut self.first_lines, &mut self.second_lines);
        let queued = Some((&mut self.slots, slot));
        FlowMut::from_lines(&mut first[slot as usize], &mut second[slot as usize], queued)
    }

    /// The other worker that has the flows of this hash, if there is one. The caller has not found the flow in this
    /// table.
    #[inline]
    pub fn other_worker(&self, hash: u64) -> Option<WorkerId> {
        let (shards, own) = self.shards.as_ref()?;
        shards.owner(hash).filter(|owner| owner != own)
    }

    /// Whether the shard of a hash belongs to this worker.
    pub fn has_shard(&self, hash: u64) -> bool {
        self.shards.as_ref().is_none_or(|(shards, own)| shards.owner(hash) == Some(*own))
    }

    /// Reserves the shard of a hash for this worker, before the flow that [`FlowTable::find`] searched for is stored
    /// here. Returns the owner if the shard belongs to another worker. Otherwise [`FlowTable::insert`] must follow.
    pub fn reserve_shard(&self, hash: u64, Found(slot): Found) -> Option<WorkerId> {
        let (shards, own) = self.shards.as_ref().filter(|_| slot.is_none())?;
        shards.open(hash, *own).err()
    }

    /// Releases the reservation of a flow that is not stored after all. `found` is the same as for
    /// [`FlowTable::reserve_shard`].
    pub fn release_shard(&self, hash: u64, Found(slot): Found) {
        if let Some((shards, _)) = self.shards.as_ref().filter(|_| slot.is_none()) {
            shards.close(hash);
        }
    }

    /// Stores a flow of an owner: `write` opens the flow or copies it into its slot. `found` is the result of
    /// [`FlowTable::find`] for its key; a flow that was found is replaced. The call always succeeds, and returns the
    /// kind of flow that it evicted, if any.
    #[inline(never)]
    pub fn insert(
        &mut self,
        hash: u64,
        found: Found,
        owner: Owner,
        now: u32,
        write: impl FnOnce(&mut FlowMut<'_>),
    ) -> Option<Evicted> {
        self.store((hash, found, owner), now, true, write).1
    }

    /// Like [`FlowTable::insert`]. Writes the record if the flow `is_whole`, that is, if it gets no second key. Also
    /// returns the slot.
    #[inline(always)]
    #[expect(clippy::inline_always, reason = "every new flow")]
    pub(super) fn store(
        &mut self,
        (hash, Found(slot), owner): (u64, Found, Owner),
        now: u32,
        is_whole: bool,
        write: impl FnOnce(&mut FlowMut<'_>),
    ) -> (Option<u32>, Option<Evicted>) {
        let (slot, evicted) = match slot {
            Some(taken) if self.first_lines[taken as usize].has_two_keys() => {
                // The flow may have been found by either key, and is stored under its first key. The old flow's
                // reservation of this hash passes to the new flow.
                if let Some((shards, own)) = &self.shards {
                    let reserved = shards.open(hash, *own);
                    debug_assert_eq!(reserved, Ok(()), "a shard in which this worker has a flow");
                }
                self.remove(taken, now, EndReason::Replaced);
                self.make_room(hash, owner, now)
            }
            Some(taken) => {
                self.tell_end(taken, now, EndReason::Replaced);
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
            if is_whole {
                entry.write_record();
            }
            let key = entry.key();
            debug_assert_eq!(self.find(hash, &key), Found(Some(slot)), "`write` set another key");
        }
        (slot, evicted)
    }

    /// Returns a slot for a new flow, after it has set a tag that leads to the slot. Also returns the kind of flow that
    /// was evicted for it.
    #[inline(never)]
    fn make_room(&mut self, hash: u64, owner: Owner, now: u32) -> (Option<u32>, Option<Evicted>) {
        let chosen = self.choose_bucket(hash);
        let victim = if chosen.is_none() {
            self.least_valuable(hash, None, now)
        } else if self.len == self.capacity() {
            self.victim(owner, now)
        } else {
            None
        };
        let evicted = victim.map(|slot| self.evict(slot, now));
        // There is always a place and a slot: the victim left them if there were none.
        let Some(place) = self.free_place(hash, chosen) else { return (None, evicted) };
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
        self.set_tag(hash, place, slot);
        (Some(slot), evicted)
    }

    /// A free place for a tag of this hash, in the bucket `chosen`. If that is `None`, the bucket is chosen now.
    #[inline]
    pub(super) fn free_place(&self, hash: u64, chosen: Option<usize>) -> Option<Place> {
        let bucket = chosen.or_else(|| self.choose_bucket(hash))?;
        let way = self.buckets[bucket].free_way()?;
        Some(Place { bucket, way, is_alternate: bucket != self.first_bucket(hash) })
    }

    /// Sets a tag in a free way, so that a hash leads to a slot.
    #[inline]
    pub(super) fn set_tag(
        &mut self,
        hash: u64,
        Place { bucket, way, is_alternate }: Place,
        slot: u32,
    ) {
        if is_alternate {
            let first = self.first_bucket(hash);
            self.buckets[first].spilled += 1;
        }
        let line = &mut self.buckets[bucket];
        line.set_tag(way, tag(hash));
        line.slots[way] = slot;
    }

    /// Frees a way that leads to a flow by `key`. The flow no longer counts in the key's shard and first bucket.
    #[inline]
    pub(super) fn clear_tag(
        &mut self,
        Place { bucket, way, is_alternate }: Place,
        key: impl FnOnce(&Self) -> FlowKey,
    ) {
        if is_alternate || self.shards.is_some() {
            self.forget_hash(self.hash(&key(self)), is_alternate);
        }
        self.buckets[bucket].set_tag(way, 0);
    }

    /// Removes the expired flows of the next `budget` buckets and returns their number. A caller that ages
    /// [`FlowTable::buckets`] buckets every few seconds keeps the table clean and its records correct. A record states
    /// when the flow was last aged or last changed its state.
    pub fn age(&mut self, budget: usize, now: u32) -> usize {
        let before = self.len;
        for _ in 0..budget.min(self.buckets.len()) {
            let bucket = self.hand;
            self.hand = (bucket + 1) & (self.buckets.len() - 1);
            for way in 0..WAYS {
                let Some(slot) = self.slot_at(bucket, way) else { continue };
                if self.first_lines[slot as usize].is_expired(now) {
                    self.remove(slot, now, EndReason::Expired);
                } else if self.slots.records.is_some() {
                    self.entry_mut(slot).renew_record();
                }
            }
        }
        before - self.len
    }

    /// The number of buckets in a complete round of [`FlowTable::age`].
    pub fn buckets(&self) -> usize {
        self.buckets.len()
    }

    /// Copies of all flows, in no particular order, including expired flows that have not been removed yet.
    pub fn iter(&self) -> impl Iterator<Item = FlowEntry> {
        let ways =
            (0..self.buckets.len()).flat_map(|bucket| (0..WAYS).map(move |way| (bucket, way)));
        ways.filter_map(|(bucket, way)| {
            let slot = self.slot_at(bucket, way)?;
            // A second key has a tag, too, which leads to the same flow. So only the tag of the first key counts.
            let place = Place::from_bits(self.slots.place_bits(slot));
            ((place.bucket, place.way) == (bucket, way)).then(|| self.copy(slot))
        })
    }

    /// An owner's flows of one class, starting with the oldest. The list is never longer than the number of slots.
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
    pub(super) fn first_bucket(&self, hash: u64) -> usize {
        hash as usize & (self.buckets.len() - 1)
    }

    /// The alternate bucket. It is never the first one, because there are at least two buckets and the distance is odd.
    #[inline]
    pub(super) fn alternate_bucket(&self, hash: u64) -> usize {
        (hash as usize ^ ((hash >> 32) as usize | 1)) & (self.buckets.len() - 1)
    }

    #[inline]
    pub(super) fn slot_at(&self, bucket: usize, way: usize) -> Option<u32> {
        let line = &self.buckets[bucket];
        (line.tag(way) != 0).then(|| line.slots[way])
    }

    /// Searches for the flow of this key, which may be either of the two keys of a flow.
    #[inline(never)]
    pub fn find(&self, hash: u64, key: &FlowKey) -> Found {
        let first = self.first_bucket(hash);
        let found = self.find_in(first, hash, key);
        if found.is_some() || self.buckets[first].spilled == 0 {
            return Found(found);
        }
        Found(self.find_in(self.alternate_bucket(hash), hash, key))
    }

    #[inline(always)]
    #[expect(
        clippy::inline_always,
        reason = "twice in one function, which every packet of the slow path calls"
    )]
    fn find_in(&self, bucket: usize, hash: u64, key: &FlowKey) -> Option<u32> {
        let line = &self.buckets[bucket];
        let mut slots = line.ways_with_tag(tag(hash)).map(|way| line.slots[way]);
        slots.find(|slot| {
            let slot = *slot as usize;
            let lines = self.first_lines.get(slot).zip(self.second_lines.get(slot));
            lines.is_some_and(|(first, second)| {
                first.has_key(key, second) || first.has_two_keys() && self.has_either_key(slot, key)
            })
        })
    }

    pub(super) fn choose_bucket(&self, hash: u64) -> Option<usize> {
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

    /// Evicts a flow and returns its kind. Its slot still belongs to its owner.
    pub(super) fn evict(&mut self, slot: u32, now: u32) -> Evicted {
        let entry = &self.first_lines[slot as usize];
        let evicted = if entry.is_expired(now) {
            Evicted::Expired
        } else if entry.state().is_established() {
            Evicted::Established
        } else {
            Evicted::Unestablished
        };
        self.vacate(slot, now, EndReason::Evicted);
        evicted
    }

    /// Removes a flow, but its slot still belongs to its owner. The end is reported with this reason, or as expired if
    /// the flow has expired.
    #[inline]
    fn vacate(&mut self, slot: u32, now: u32, reason: EndReason) {
        self.tell_end(slot, now, reason);
        self.remove_second_key(slot);
        let place = Place::from_bits(self.slots.place_bits(slot));
        self.clear_tag(place, |table| table.copy(slot).key());
        if let Some(records) = &self.slots.records {
            records.clear(slot);
        }
        let entry = &mut self.first_lines[slot as usize];
        let standing = std::mem::replace(&mut entry.eviction_class, EvictionClass::Free);
        // A packet of the same batch may have guessed this slot.
        entry.key_words = FlowKey::EMPTY.words().0;
        self.slots.unlink(slot, standing);
    }

    /// Reports to the listener that a flow ends, with this reason or, if the flow has expired, as expired.
    #[inline]
    fn tell_end(&mut self, slot: u32, now: u32, reason: EndReason) {
        if self.slots.listener.is_some() {
            self.tell_listener(slot, now, reason);
        }
    }

    #[cold]
    #[inline(never)]
    fn tell_listener(&mut self, slot: u32, now: u32, reason: EndReason) {
        let flow = self.copy(slot);
        if flow.verdict == Verdict::Allow {
            let reason = if flow.is_expired(now) { EndReason::Expired } else { reason };
            self.slots.tell_end(slot, flow, reason);
        }
    }

    /// Removes a flow. The end is reported with this reason, or as expired if the flow has expired.
    pub(super) fn remove(&mut self, slot: u32, now: u32, reason: EndReason) {
        self.vacate(slot, now, reason);
        self.release(slot);
    }

    /// Gives back the slot of a flow that was evicted.
    #[inline]
    pub(super) fn release(&mut self, slot: u32) {
        self.slots.release(slot);
        self.len -= 1;
    }

    /// Removes a flow from the counts of its shard and its first bucket.
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

/// Creates buckets with at least two places for each of `keys` keys, up to the number that a [`Place`] can name.
fn buckets_for(keys: usize) -> io::Result<ZeroedPages<Bucket>> {
    let buckets = (keys * 2).div_ceil(WAYS).next_power_of_two();
    ZeroedPages::new(buckets.clamp(2, Place::BUCKETS), Pages::Huge)
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
