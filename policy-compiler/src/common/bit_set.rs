//! A set of small numbers. Its lowest member is found without reading most of the set.

const BITS: usize = u64::BITS as usize;

/// A set of small numbers.
#[derive(Debug, Default, Clone)]
pub(crate) struct BitSet {
    words: Vec<u64>,
    /// One bit for each word: whether the word is not zero.
    occupied: Vec<u64>,
}

impl BitSet {
    /// Removes all members.
    pub(crate) fn clear(&mut self) {
        self.words.clear();
        self.occupied.clear();
    }

    pub(crate) fn insert(&mut self, number: u32) {
        let word = number as usize / BITS;
        if self.words.len() <= word {
            self.words.resize(word + 1, 0);
            self.occupied.resize(word / BITS + 1, 0);
        }
        self.words[word] |= 1 << (number as usize % BITS);
        self.occupied[word / BITS] |= 1 << (word % BITS);
    }

    pub(crate) fn remove(&mut self, number: u32) {
        let at = number as usize / BITS;
        let Some(word) = self.words.get_mut(at) else { return };
        *word &= !(1 << (number as usize % BITS));
        if *word == 0 {
            self.occupied[at / BITS] &= !(1 << (at % BITS));
        }
    }

    pub(crate) fn contains(&self, number: u32) -> bool {
        let word = self.words.get(number as usize / BITS).copied().unwrap_or_default();
        word >> (number as usize % BITS) & 1 != 0
    }

    /// The lowest member that is at least this number.
    pub(crate) fn next(&self, from: u32) -> Option<u32> {
        let mut at = from as usize / BITS;
        let here = self.words.get(at)? & (u64::MAX << (from as usize % BITS));
        if here != 0 {
            return Some((at * BITS) as u32 + here.trailing_zeros());
        }
        at += 1;
        let mut group = at / BITS;
        let mut occupied = self.occupied.get(group)? & (u64::MAX << (at % BITS));
        while occupied == 0 {
            group += 1;
            occupied = *self.occupied.get(group)?;
        }
        let at = group * BITS + occupied.trailing_zeros() as usize;
        Some((at * BITS) as u32 + self.words.get(at)?.trailing_zeros())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    proptest! {
        #[test]
        fn it_holds_what_a_sorted_set_holds(
            steps in prop::collection::vec(
                (any::<bool>(), prop_oneof![0u32..130, 4_000u32..4_200, 8_190u32..20_000]), 0..80),
        ) {
            let (mut bits, mut expected) = (BitSet::default(), BTreeSet::new());
            for (comes, number) in steps {
                if comes {
                    bits.insert(number);
                    expected.insert(number);
                } else {
                    bits.remove(number);
                    expected.remove(&number);
                }
                prop_assert_eq!(bits.contains(number), comes);
                prop_assert_eq!(bits.next(number), expected.range(number..).next().copied());
            }
            bits.clear();
            prop_assert_eq!(bits.next(0), None);
        }
    }
}
