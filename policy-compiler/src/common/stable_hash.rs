//! A hash of many small values. It is the same in every process, because its keys are constant.
//!
//! The law: mixing in a word is invertible, in the state and in the word. So two sequences that differ in exactly one
//! word have different hashes, and later words cannot hide the difference. An attacker who knows the keys can find
//! sequences with equal hashes that differ in more words. So use the hash only to detect whether objects have changed.

use std::hash::Hasher;

/// The state of such a hash.
#[derive(Debug, Default)]
pub(crate) struct StableHasher(u64);

/// These numbers are odd, with as many ones as zeros in each byte. Multiplication by an odd number is invertible.
const KEYS: [u64; 2] = [0x8bb8_4b93_962e_acc9, 0x2d35_8dcc_aa6c_78a5];

impl StableHasher {
    #[inline]
    fn mix(&mut self, word: u64) {
        let mut state = self.0 ^ word ^ KEYS[0];
        state ^= state >> 32;
        state = state.wrapping_mul(KEYS[1]);
        self.0 = state ^ state >> 29;
    }
}

impl Hasher for StableHasher {
    fn write(&mut self, bytes: &[u8]) {
        let (words, rest) = bytes.as_chunks::<8>();
        for word in words {
            self.mix(u64::from_le_bytes(*word));
        }
        // The length distinguishes values that differ only in zeros at the end.
        let mut last = [0; 8];
        last[..rest.len()].copy_from_slice(rest);
        self.mix(u64::from_le_bytes(last));
        self.mix(bytes.len() as u64);
    }

    #[inline]
    fn write_u8(&mut self, value: u8) {
        self.mix(value.into());
    }

    #[inline]
    fn write_u16(&mut self, value: u16) {
        self.mix(value.into());
    }

    #[inline]
    fn write_u32(&mut self, value: u32) {
        self.mix(value.into());
    }

    #[inline]
    fn write_u64(&mut self, value: u64) {
        self.mix(value);
    }

    #[inline]
    fn write_usize(&mut self, value: usize) {
        self.mix(value as u64);
    }

    fn finish(&self) -> u64 {
        let mut last = Self(self.0);
        last.mix(0);
        last.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use proptest::sample::select;
    use std::hash::Hash;

    fn hash_of(value: impl Hash) -> u64 {
        let mut hasher = StableHasher::default();
        value.hash(&mut hasher);
        hasher.finish()
    }

    fn mixed(state: u64, word: u64) -> u64 {
        let mut hasher = StableHasher(state);
        hasher.mix(word);
        hasher.0
    }

    /// The state before a word.
    fn undone(state: u64, word: u64) -> u64 {
        // Each round doubles the number of correct bits of the inverse (Newton).
        let inverse = (0..6).fold(1u64, |inverse, _| {
            inverse.wrapping_mul(2u64.wrapping_sub(KEYS[1].wrapping_mul(inverse)))
        });
        let product = state ^ state >> 29 ^ state >> 58;
        let folded = product.wrapping_mul(inverse);
        folded ^ folded >> 32 ^ KEYS[0] ^ word
    }

    #[test]
    fn a_hash_is_the_same_in_every_process() {
        assert_eq!(hash_of(("a text of some length", 7u32, [1u8, 2])), 12_799_479_376_521_679_727);
    }

    proptest! {
        #[test]
        fn a_word_can_be_undone(
            state in prop_oneof![any::<u64>(), select(&[0, u64::MAX, KEYS[0], KEYS[1]][..])],
            other: u64,
            word in prop_oneof![any::<u64>(), select(&[0, u64::MAX, KEYS[0], KEYS[1]][..])],
        ) {
            prop_assert_eq!(undone(mixed(state, word), word), state);
            prop_assert_eq!(mixed(state, word) == mixed(other, word), state == other);
            prop_assert_eq!(mixed(state, word) == mixed(state, other), word == other);
        }

        #[test]
        fn other_values_have_other_hashes(
            a in prop::collection::vec((any::<Option<u8>>(), ".{0,12}"), 0..4),
            b in prop::collection::vec((any::<Option<u8>>(), ".{0,12}"), 0..4),
            bit in 0u32..64,
            word: u64,
        ) {
            prop_assert_eq!(hash_of(&a) == hash_of(&b), a == b);
            let change = hash_of(word) ^ hash_of(word ^ 1 << bit);
            prop_assert!((8..=56).contains(&change.count_ones()), "{change:x}");
        }
    }
}
