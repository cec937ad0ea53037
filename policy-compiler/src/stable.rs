//! A hash of many small values that is the same in every process: its keys are constant.
//!
//! Each word is multiplied into the state, and both halves of the product stay (as in wyhash). Who knows the keys can find two
//! values with one hash: it is for what only tells whether one's own objects have changed.

use std::hash::Hasher;

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Stable(u64);

/// Odd, with as many ones as zeroes in each byte.
const KEYS: [u64; 2] = [0x8bb8_4b93_962e_acc9, 0x2d35_8dcc_aa6c_78a5];

impl Stable {
    #[inline]
    fn mix(&mut self, word: u64) {
        let product = u128::from(self.0 ^ KEYS[0]) * u128::from(word ^ KEYS[1]);
        self.0 = product as u64 ^ (product >> u64::BITS) as u64;
    }
}

impl Hasher for Stable {
    fn write(&mut self, bytes: &[u8]) {
        let (words, rest) = bytes.as_chunks::<8>();
        for word in words {
            self.mix(u64::from_le_bytes(*word));
        }
        // Lengths tell apart what zeroes at the end would not.
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
    use std::hash::Hash;

    fn hash_of(value: impl Hash) -> u64 {
        let mut hasher = Stable::default();
        value.hash(&mut hasher);
        hasher.finish()
    }

    #[test]
    fn a_hash_is_the_same_in_every_process() {
        assert_eq!(hash_of(("a text of some length", 7u32, [1u8, 2])), 16_384_337_811_204_305_447);
    }

    proptest! {
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
