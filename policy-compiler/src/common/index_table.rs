//! A hash table of indexes into a vector that the caller holds. Values are stored only in the vector: the table has no
//! copy of a key.

use std::hash::Hash;

use ahash::RandomState;

/// A hash table of indexes. Indexes are below 2^32 - 1.
#[derive(Debug, Default)]
pub(crate) struct IndexTable {
    /// Open addressing with linear probing; [`FREE`] marks a free place. The length is a power of two, or 0.
    places: Vec<Entry>,
    len: usize,
    hashes: RandomState,
}

#[derive(Debug, Clone, Copy)]
struct Entry {
    /// The lower half of the hash of its value.
    hash: u32,
    number: u32,
}

const FREE: Entry = Entry { hash: 0, number: u32::MAX };

impl IndexTable {
    /// Returns the index of a value, and whether the value is new. A new value gets the index `next`. `is` says whether
    /// the value is stored at an index.
    pub(crate) fn find_or_insert<T: Hash + ?Sized>(
        &mut self,
        value: &T,
        next: u32,
        is: impl Fn(u32) -> bool,
    ) -> (u32, bool) {
        self.reserve(1);
        let hash = self.hashes.hash_one(value) as u32;
        let at = find_place(&self.places, hash, is);
        let here = &mut self.places[at];
        if here.number != FREE.number {
            return (here.number, false);
        }
        *here = Entry { hash, number: next };
        self.len += 1;
        (next, true)
    }

    /// The index of a value, if the table has it. `is` says whether the value is stored at an index.
    pub(crate) fn find<T: Hash + ?Sized>(
        &self,
        value: &T,
        is: impl Fn(u32) -> bool,
    ) -> Option<u32> {
        if self.places.is_empty() {
            return None;
        }
        let hash = self.hashes.hash_one(value) as u32;
        let here = self.places[find_place(&self.places, hash, is)];
        (here.number != FREE.number).then_some(here.number)
    }

    /// Reserves memory for `more` additional indexes. At most three quarters of the places are taken.
    pub(crate) fn reserve(&mut self, more: usize) {
        let wanted = (self.len + more) * 4;
        if wanted > self.places.len() * 3 {
            self.grow((wanted / 3 + 1).next_power_of_two().max(16));
        }
    }

    fn grow(&mut self, places: usize) {
        let places = vec![FREE; places];
        for old in std::mem::replace(&mut self.places, places) {
            if old.number == FREE.number {
                continue;
            }
            let at = find_place(&self.places, old.hash, |_| false);
            self.places[at] = old;
        }
    }
}

/// The place that holds the index of a value, or the free place where a new value's index belongs. At least one place
/// is always free.
fn find_place(places: &[Entry], hash: u32, is: impl Fn(u32) -> bool) -> usize {
    let mask = places.len() - 1;
    let mut at = hash as usize & mask;
    loop {
        let here = places[at];
        if here.number == FREE.number || (here.hash == hash && is(here.number)) {
            return at;
        }
        at = (at + 1) & mask;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn equal_values_have_one_number(all in prop::collection::vec(0u16..500, 0..2_000)) {
            let mut numbers = IndexTable::default();
            let mut distinct: Vec<u16> = Vec::new();
            for value in all {
                let known = distinct.iter().position(|it| *it == value);
                let found = numbers.find(&value, |at| distinct[at as usize] == value);
                prop_assert_eq!(found.map(|number| number as usize), known);
                let (number, is_new) =
                    numbers.find_or_insert(&value, distinct.len() as u32, |at| distinct[at as usize] == value);
                prop_assert_eq!(number as usize, known.unwrap_or(distinct.len()));
                prop_assert_eq!(is_new, known.is_none());
                if is_new {
                    distinct.push(value);
                }
            }
        }
    }
}
