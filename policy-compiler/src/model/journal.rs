//! Maps that record which of their entries may have changed.

use std::collections::BTreeMap;
use std::mem;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use super::tracked::Mark;

/// The number of changes that are kept. A reader that missed more changes reads everything.
const MOST: usize = 128;

/// A map with a [`Mark`], like [`Tracked`](super::Tracked) values, that also records its last changes. A reader that
/// has kept an earlier mark learns at which keys the map may have changed since then, and the values that were there. A
/// change through [`DerefMut`] may have changed every key.
#[derive(Debug, Clone)]
pub struct Journal<K, V> {
    map: BTreeMap<K, V>,
    mark: Mark,
    /// The last changes, in order.
    changes: Vec<Change<K, V>>,
}

#[derive(Debug, Clone)]
struct Change<K, V> {
    /// The map's mark before the change.
    mark: Mark,
    key: K,
    before: Option<V>,
}

impl<K, V> Default for Journal<K, V> {
    fn default() -> Self {
        BTreeMap::new().into()
    }
}

impl<K: Ord + Clone, V: Clone> Journal<K, V> {
    /// Like [`BTreeMap::insert`].
    pub fn insert(&mut self, key: K, value: V) -> Option<V> {
        self.record(&key);
        self.map.insert(key, value)
    }

    /// Like [`BTreeMap::remove`].
    pub fn remove(&mut self, key: &K) -> Option<V> {
        self.record(key);
        self.map.remove(key)
    }

    /// Like [`BTreeMap::get_mut`].
    pub fn get_mut(&mut self, key: &K) -> Option<&mut V> {
        self.record(key);
        self.map.get_mut(key)
    }

    /// Records a key whose value is about to change.
    fn record(&mut self, key: &K) {
        // The mark is replaced only if a reader holds it. A reader may still hold an earlier mark, so the change is
        // recorded even if the mark stays.
        let is_known = Arc::get_mut(&mut self.mark.0).is_none();
        if !is_known && self.changes.is_empty() {
            return;
        }
        if self.changes.len() == MOST {
            self.changes.drain(..MOST / 2);
        }
        let mark = if is_known { mem::take(&mut self.mark) } else { Mark::default() };
        let before = self.map.get(key).cloned();
        self.changes.push(Change { mark, key: key.clone(), before });
    }
}

impl<K: Ord, V> Journal<K, V> {
    /// The current mark.
    pub(crate) fn mark(&self) -> Mark {
        self.mark.clone()
    }

    /// The keys at which the map may have changed since a mark, with the values that were there. `None` if every key
    /// may have changed.
    pub(crate) fn since(&self, mark: &Mark) -> Option<BTreeMap<&K, Option<&V>>> {
        if *mark == self.mark {
            return Some(BTreeMap::new());
        }
        let at = self.changes.iter().position(|change| change.mark == *mark)?;
        let mut since = BTreeMap::new();
        for Change { key, before, .. } in &self.changes[at..] {
            since.entry(key).or_insert(before.as_ref());
        }
        Some(since)
    }
}

impl<K, V> Deref for Journal<K, V> {
    type Target = BTreeMap<K, V>;

    fn deref(&self) -> &Self::Target {
        &self.map
    }
}

impl<K, V> DerefMut for Journal<K, V> {
    fn deref_mut(&mut self) -> &mut Self::Target {
        self.changes.clear();
        self.mark = Mark::default();
        &mut self.map
    }
}

impl<K, V> From<BTreeMap<K, V>> for Journal<K, V> {
    fn from(map: BTreeMap<K, V>) -> Self {
        Self { map, mark: Mark::default(), changes: Vec::new() }
    }
}

impl<K: PartialEq, V: PartialEq> PartialEq for Journal<K, V> {
    fn eq(&self, other: &Self) -> bool {
        self.map == other.map
    }
}

impl<K: Eq, V: Eq> Eq for Journal<K, V> {}

impl<'j, K, V> IntoIterator for &'j Journal<K, V> {
    type Item = (&'j K, &'j V);
    type IntoIter = std::collections::btree_map::Iter<'j, K, V>;

    fn into_iter(self) -> Self::IntoIter {
        self.map.iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_knew_a_map_is_told_where_it_may_differ() {
        let mut one: Journal<u8, u8> = BTreeMap::from([(1, 1)]).into();
        one.insert(2, 2);
        assert!(one.changes.is_empty(), "no reader has a mark");
        let first = one.mark();
        let told = |journal: &Journal<u8, u8>, mark: &Mark| -> Option<Vec<(u8, Option<u8>)>> {
            let since = journal.since(mark)?;
            Some(since.into_iter().map(|(key, before)| (*key, before.copied())).collect())
        };
        assert_eq!(told(&one, &first), Some(Vec::new()));
        one.insert(3, 3);
        one.insert(4, 4);
        let second = one.mark();
        let mut other = one.clone();
        one.remove(&4);
        assert_eq!(one.remove(&9), None);
        *other.get_mut(&2).unwrap() = 5;
        other.insert(2, 6);
        assert_eq!(told(&one, &first), Some(vec![(3, None), (4, None), (9, None)]));
        assert_eq!(told(&one, &second), Some(vec![(4, Some(4)), (9, None)]));
        assert_eq!(told(&other, &second), Some(vec![(2, Some(2))]));
        assert_eq!(told(&one, &other.mark()), None, "they went different ways");
        other.clear();
        assert_eq!(told(&other, &first), None);
    }

    #[test]
    fn who_missed_too_much_is_told_so() {
        let mut one: Journal<usize, ()> = Journal::default();
        let mark = one.mark();
        for key in 0..=MOST {
            assert_eq!(one.since(&mark).map(|since| since.len()), Some(key));
            one.insert(key, ());
        }
        assert!(one.since(&mark).is_none());
    }
}
