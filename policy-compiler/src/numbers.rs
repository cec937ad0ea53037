//! Numbers of values that stand elsewhere, found by what these say: a map that holds no copy of its keys.

use std::hash::Hash;

use ahash::RandomState;

/// See the module. Numbers are below 2^32 - 1.
#[derive(Debug, Default)]
pub(crate) struct Numbers {
    /// By hash, each at the first free place from its own on; [`FREE`] where none is. A power of two, or nothing.
    places: Vec<Numbered>,
    len: usize,
    hashes: RandomState,
}

#[derive(Debug, Clone, Copy)]
struct Numbered {
    /// The lower half of its value's hash.
    hash: u32,
    number: u32,
}

const FREE: Numbered = Numbered { hash: 0, number: u32::MAX };

impl Numbers {
    /// The number of a value, of which `is` says whether a number is its own; it gets `next` if none is, and then the second
    /// is whether it did.
    pub(crate) fn of(
        &mut self,
        value: &impl Hash,
        next: u32,
        is: impl Fn(u32) -> bool,
    ) -> (u32, bool) {
        // No more than three quarters are taken.
        if self.len * 4 >= self.places.len() * 3 {
            self.grow();
        }
        let hash = self.hashes.hash_one(value) as u32;
        let mask = self.places.len() - 1;
        let mut at = hash as usize;
        loop {
            let here = &mut self.places[at & mask];
            if here.number == FREE.number {
                *here = Numbered { hash, number: next };
                self.len += 1;
                return (next, true);
            }
            if here.hash == hash && is(here.number) {
                return (here.number, false);
            }
            at += 1;
        }
    }

    fn grow(&mut self) {
        let places = vec![FREE; (self.places.len() * 2).max(16)];
        let mask = places.len() - 1;
        for old in std::mem::replace(&mut self.places, places) {
            if old.number == FREE.number {
                continue;
            }
            let mut at = old.hash as usize & mask;
            while self.places[at].number != FREE.number {
                at = (at + 1) & mask;
            }
            self.places[at] = old;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn equal_values_have_one_number(all in prop::collection::vec(0u16..500, 0..2_000)) {
            let mut numbers = Numbers::default();
            let mut distinct: Vec<u16> = Vec::new();
            for value in all {
                let known = distinct.iter().position(|it| *it == value);
                let (number, is_new) =
                    numbers.of(&value, distinct.len() as u32, |at| distinct[at as usize] == value);
                prop_assert_eq!(number as usize, known.unwrap_or(distinct.len()));
                prop_assert_eq!(is_new, known.is_none());
                if is_new {
                    distinct.push(value);
                }
            }
        }
    }
}
