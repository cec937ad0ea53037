//! The prefixes of the table, in the order of their last change.
//!
//! Each prefix has a number, which sessions store for announced prefixes, and one position in the log: that of its last
//! change. A session continues to read the log from its last position. So pending announcements take no memory for each
//! peer, however slow the peer is and however many there are.
//!
//! Laws (`tests` below, and those of the table):
//! - A reader that reads to the end has seen every prefix that has changed since its start, in the prefix's last state.
//! - A prefix is stored as long as it has a path, is this node's own, or was announced to a peer and not withdrawn.
//! - The log has at most two entries for each prefix, plus [`SPARE`].

use ahash::RandomState;
use hashbrown::HashTable;
use ipnet::IpNet;

use super::paths::Paths;
use crate::export::OwnRoute;

/// The number of outdated entries, in addition to one for each prefix, above which the log is rebuilt.
const SPARE: usize = 1024;

/// A stored prefix.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) prefix: IpNet,
    /// The kind of the prefix, if it is this node's own.
    pub(super) own: Option<OwnRoute>,
    /// Whether the rules for all peers allow the announcement of the prefix. `None` if they were not evaluated since
    /// they changed.
    pub(super) is_allowed: Option<bool>,
    /// The number of sessions in which the prefix is announced.
    pub(super) holders: u32,
    /// The position of the prefix's last change in the log, or `NOWHERE`.
    at: u64,
    pub(super) paths: Paths,
}

/// The position of an entry that is not in the log, because its prefix is new or its number is free.
const NOWHERE: u64 = u64::MAX;

/// See the module.
#[derive(Debug)]
pub(super) struct Routes {
    entries: Vec<Entry>,
    free: Vec<u32>,
    index: HashTable<u32>,
    hasher: RandomState,
    log: Vec<u32>,
    /// The position of the log's first entry.
    begin: u64,
}

impl Routes {
    pub(super) fn new() -> Self {
        Self {
            entries: Vec::new(),
            free: Vec::new(),
            index: HashTable::new(),
            hasher: RandomState::new(),
            log: Vec::new(),
            begin: 0,
        }
    }

    /// The number of a stored prefix.
    pub(super) fn find(&self, prefix: IpNet) -> Option<u32> {
        let hash = hash(&self.hasher, prefix);
        self.index.find(hash, |it| self.entries[*it as usize].prefix == prefix).copied()
    }

    /// Returns the number of a prefix. If the prefix is new, stores it without a path. If it then gets no path, the
    /// caller must [remove](Self::remove_unused) it.
    pub(super) fn number(&mut self, prefix: IpNet) -> u32 {
        if self.index.len() == self.index.capacity() {
            self.enlarge_index();
        }
        let Self { entries, free, index, hasher, .. } = self;
        let hash = hash(hasher, prefix);
        if let Some(found) = index.find(hash, |it| entries[*it as usize].prefix == prefix) {
            return *found;
        }
        let (own, is_allowed) = (None, None);
        let entry = Entry { prefix, own, is_allowed, holders: 0, at: NOWHERE, paths: Paths::None };
        let number = if let Some(number) = free.pop() {
            entries[number as usize] = entry;
            number
        } else {
            entries.push(entry);
            // The number of prefixes is far below this limit, because the prefixes of all peers are bounded.
            (entries.len() - 1) as u32
        };
        index.insert_unique(hash, number, |it| self::hash(hasher, entries[*it as usize].prefix));
        number
    }

    /// Doubles the size of the index. This function reads the prefixes in memory order. If the index grew by itself, it
    /// would read them in the order of their hashes, which is slower.
    fn enlarge_index(&mut self) {
        let Self { entries, index, hasher, .. } = self;
        let mut larger = HashTable::with_capacity(2 * index.len().max(4));
        let of = |it: &u32| hash(hasher, entries[*it as usize].prefix);
        for (entry, number) in entries.iter().zip(0u32..).filter(|(it, _)| it.is_used()) {
            larger.insert_unique(hash(hasher, entry.prefix), number, of);
        }
        *index = larger;
    }

    pub(super) fn get(&self, number: u32) -> &Entry {
        &self.entries[number as usize]
    }

    pub(super) fn get_mut(&mut self, number: u32) -> &mut Entry {
        &mut self.entries[number as usize]
    }

    /// Whether a prefix has a path of a peer. The number may be outdated: it may be free, or belong to another prefix
    /// now.
    pub(super) fn has_path(&self, number: u32, peer: u32) -> bool {
        self.entries.get(number as usize).is_some_and(|it| it.paths.of(peer).is_some())
    }

    /// All prefixes, in the order of their numbers.
    #[cfg(test)]
    pub(super) fn all(&self) -> impl Iterator<Item = &Entry> {
        self.entries.iter().filter(|it| it.is_used())
    }

    /// Returns the prefixes with the `most` numbers from `from` on. Returns `None` if all numbers are lower than
    /// `from`.
    pub(super) fn part(&self, from: usize, most: usize) -> Option<impl Iterator<Item = &Entry>> {
        let end = (from + most).min(self.entries.len());
        let part = self.entries.get(from..end).filter(|it| !it.is_empty())?;
        Some(part.iter().filter(|it| it.is_used()))
    }

    /// Discards the stored results of the rules for all peers, so that the rules are evaluated again.
    pub(super) fn forget_rules(&mut self) {
        self.entries.iter_mut().for_each(|it| it.is_allowed = None);
    }

    /// Records that a prefix has changed, so that readers see it again.
    pub(super) fn note(&mut self, number: u32) {
        self.entries[number as usize].at = self.end();
        self.log.push(number);
    }

    /// Removes a prefix that is no longer needed.
    pub(super) fn remove_unused(&mut self, number: u32) {
        let Self { entries, free, index, hasher, .. } = self;
        let entry = &mut entries[number as usize];
        if entry.is_used() {
            return;
        }
        let hash = hash(hasher, entry.prefix);
        if let Ok(found) = index.find_entry(hash, |it| *it == number) {
            found.remove();
            entry.at = NOWHERE;
            free.push(number);
        }
        if index.is_empty() {
            // No number is in use any more, so the memory of a table that was large is freed.
            self.begin = self.end();
            (self.entries, self.free, self.log) = (Vec::new(), Vec::new(), Vec::new());
            self.index = HashTable::new();
        }
    }

    /// The position where the log begins. A reader that starts here sees all prefixes.
    pub(super) const fn begin(&self) -> u64 {
        self.begin
    }

    /// The position after the last change.
    pub(super) const fn end(&self) -> u64 {
        self.begin + self.log.len() as u64
    }

    /// Returns the next changed prefix for a reader, and moves the reader to the position after it.
    pub(super) fn read(&self, reader: &mut u64) -> Option<u32> {
        loop {
            *reader = (*reader).max(self.begin);
            let number = *self.log.get((*reader - self.begin) as usize)?;
            *reader += 1;
            if self.entries[number as usize].at == *reader - 1 {
                return Some(number);
            }
        }
    }

    /// Whether the log has so many outdated entries that it should be [rebuilt](Self::renew_log).
    pub(super) fn is_log_long(&self) -> bool {
        self.log.len() > 2 * self.index.len() + SPARE
    }

    /// Rebuilds the log without outdated entries. The readers' positions are adjusted.
    pub(super) fn renew_log<'a>(&mut self, readers: impl Iterator<Item = &'a mut u64>) {
        let mut readers: Vec<&mut u64> = readers.collect();
        readers.sort_unstable();
        let (before, next) = (self.begin, self.end());
        let mut kept = Vec::with_capacity(self.index.len());
        let mut waiting = readers.into_iter().peekable();
        for (at, number) in (before..).zip(std::mem::take(&mut self.log)) {
            while let Some(reader) = waiting.next_if(|it| **it <= at) {
                *reader = next + kept.len() as u64;
            }
            let entry = &mut self.entries[number as usize];
            if entry.at == at {
                entry.at = next + kept.len() as u64;
                kept.push(number);
            }
        }
        waiting.for_each(|it| *it = next + kept.len() as u64);
        (self.log, self.begin) = (kept, next);
    }
}

/// The hash of a prefix. The hash key is random, because peers choose the prefixes.
fn hash(hasher: &RandomState, prefix: IpNet) -> u64 {
    match prefix {
        IpNet::V4(it) => {
            hasher.hash_one(u64::from(it.addr().to_bits()) << 8 | u64::from(it.prefix_len()))
        }
        IpNet::V6(it) => hasher.hash_one((it.addr().to_bits(), it.prefix_len())),
    }
}

impl Entry {
    fn is_used(&self) -> bool {
        self.holders > 0 || self.own.is_some() || !matches!(self.paths, Paths::None)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};
    use std::net::Ipv4Addr;

    use ipnet::Ipv4Net;
    use proptest::prelude::*;

    use super::*;

    fn net(last: u8) -> IpNet {
        Ipv4Net::from(Ipv4Addr::new(10, 0, 0, last)).into()
    }

    #[derive(Debug, Clone)]
    enum Step {
        Change(u8),
        Remove(u8),
        Read(usize, usize),
        Renew,
    }

    fn steps() -> impl Strategy<Value = Step> {
        prop_oneof![
            6 => (0..20u8).prop_map(Step::Change),
            3 => (0..20u8).prop_map(Step::Remove),
            4 => (0..3usize, 1..9usize).prop_map(|(reader, most)| Step::Read(reader, most)),
            1 => Just(Step::Renew),
        ]
    }

    proptest! {
        /// A reader sees exactly those stored prefixes that have changed since it last saw them.
        #[test]
        fn readers_see_what_has_changed(all in prop::collection::vec(steps(), 0..80)) {
            let mut routes = Routes::new();
            let mut readers = [0u64; 3];
            let mut unseen: [BTreeSet<IpNet>; 3] = Default::default();
            let mut there: BTreeMap<IpNet, u32> = BTreeMap::new();
            for step in all {
                match step {
                    Step::Change(it) => {
                        let number = routes.number(net(it));
                        prop_assert_eq!(routes.find(net(it)), Some(number));
                        if let Some(before) = there.insert(net(it), number) {
                            prop_assert_eq!(before, number);
                        }
                        routes.get_mut(number).holders = 1;
                        routes.note(number);
                        for seen in &mut unseen {
                            seen.insert(net(it));
                        }
                    }
                    Step::Remove(it) => {
                        let Some(number) = there.remove(&net(it)) else { continue };
                        routes.remove_unused(number);
                        prop_assert_eq!(routes.find(net(it)), Some(number), "it is held");
                        routes.get_mut(number).holders = 0;
                        routes.remove_unused(number);
                        prop_assert_eq!(routes.find(net(it)), None);
                        for seen in &mut unseen {
                            seen.remove(&net(it));
                        }
                    }
                    Step::Read(reader, most) => {
                        for _ in 0..most {
                            let Some(number) = routes.read(&mut readers[reader]) else { break };
                            let prefix = routes.get(number).prefix;
                            prop_assert!(unseen[reader].remove(&prefix), "{} was seen", prefix);
                        }
                    }
                    Step::Renew => routes.renew_log(readers.iter_mut()),
                }
                let numbers: BTreeSet<u32> = there.values().copied().collect();
                prop_assert_eq!(numbers.len(), there.len(), "each has a number of its own");
                let all: BTreeSet<IpNet> = routes.all().map(|it| it.prefix).collect();
                prop_assert_eq!(all, there.keys().copied().collect::<BTreeSet<_>>());
            }
            for (reader, unseen) in readers.iter_mut().zip(unseen) {
                let mut seen = BTreeSet::new();
                while let Some(number) = routes.read(reader) {
                    seen.insert(routes.get(number).prefix);
                }
                prop_assert_eq!(seen, unseen);
            }
        }
    }

    #[test]
    fn a_prefix_is_small() {
        assert_eq!(size_of::<Entry>(), 48);
    }
}
