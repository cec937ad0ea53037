//! The seeds of a worker's keyed hashes and random numbers.

use std::hash::Hash;

use ahash::RandomState;

/// Seeds of keyed hashes and of random numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HashSeed(Option<[u64; 4]>);

impl HashSeed {
    /// Fresh random seeds for each hash, so that senders can neither choose keys that collide nor predict random
    /// numbers.
    pub const fn random() -> Self {
        Self(None)
    }

    /// Constant seeds, for tests that must run the same way each time.
    pub const fn fixed(seed: u64) -> Self {
        Self(Some([seed, !seed, seed.rotate_left(17), seed.wrapping_mul(0x9e37_79b9_7f4a_7c15)]))
    }

    /// The hash of this name. With fixed seeds, a name always gives the same hash, and different names give different
    /// ones.
    pub fn hasher(self, name: impl Hash) -> RandomState {
        let Some([a, b, c, d]) = self.0 else { return RandomState::new() };
        let own = RandomState::with_seeds(a, b, c, d).hash_one(name);
        RandomState::with_seeds(a ^ own, b, c, d)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fixed_seeds_hash_alike_and_no_two_names_or_seeds_do() {
        let hash = |seed: HashSeed, name: &str| seed.hasher((name, 0u8)).hash_one(7);
        let fixed = HashSeed::fixed(1);
        assert_eq!(hash(fixed, "flows"), hash(fixed, "flows"));
        assert_ne!(hash(fixed, "flows"), hash(fixed, "fragments"));
        assert_ne!(hash(fixed, "flows"), hash(HashSeed::fixed(2), "flows"));
    }

    #[test]
    fn random_seeds_differ_each_time() {
        let draw = || HashSeed::random().hasher("flows").hash_one(7);
        assert_ne!(draw(), draw());
    }
}
