//! Stores equal attributes once, because routers announce few different ones for many prefixes.
//!
//! Laws: two interned attributes are equal if and only if they are one object. Unused attributes take at most as much
//! memory as used ones, plus [`SPARE_WEIGHT`].

use std::sync::Arc;

use ahash::RandomState;
use hashbrown::HashTable;

use super::taken;
use crate::path::Attributes;

/// The lowest value of the limit `Interner::most`.
const SPARE: usize = 1024;

/// The lowest value of the limit `Interner::most_weight`, in bytes as `taken::weight` counts them.
const SPARE_WEIGHT: usize = 1 << 20;

/// See the module.
#[derive(Debug)]
pub(super) struct Interner {
    /// The attributes, each with its hash, so that the table can grow without hashing all of them again.
    all: HashTable<(u64, Arc<Attributes>)>,
    hasher: RandomState,
    /// The number of stored attributes at which unused ones are removed the next time.
    most: usize,
    /// The total weight of the stored attributes, and the total weight at which unused ones are removed the next time.
    weight: usize,
    most_weight: usize,
}

impl Interner {
    pub(super) fn new() -> Self {
        let (all, hasher) = (HashTable::new(), RandomState::new());
        Self { all, hasher, most: SPARE, weight: 0, most_weight: SPARE_WEIGHT }
    }

    /// Returns the stored attributes that are equal to these.
    pub(super) fn intern(&mut self, attributes: Arc<Attributes>) -> Arc<Attributes> {
        let Self { all, hasher, most, weight, most_weight } = self;
        if all.len() >= *most || *weight >= *most_weight {
            all.retain(|(_, it)| Arc::strong_count(it) > 1);
            *most = 2 * all.len() + SPARE;
            all.shrink_to(*most / 2, |(hash, _)| *hash);
            *weight = all.iter().map(|(_, it)| taken::weight(it)).sum();
            *most_weight = 2 * *weight + SPARE_WEIGHT;
        }
        let hash = hasher.hash_one(&attributes);
        let is_same = |it: &(u64, Arc<Attributes>)| it.0 == hash && it.1 == attributes;
        if let Some((_, found)) = all.find(hash, is_same) {
            return Arc::clone(found);
        }
        *weight += taken::weight(&attributes);
        all.insert_unique(hash, (hash, Arc::clone(&attributes)), |(hash, _)| *hash);
        attributes
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use super::*;
    use crate::path::Opaque;

    fn attributes(med: u32) -> Arc<Attributes> {
        let next_hop = IpAddr::from([10, 0, 0, 1]);
        Arc::new(Attributes { med: Some(med), ..Attributes::of_own(next_hop) })
    }

    #[test]
    fn equal_ones_are_one_and_those_that_nobody_needs_go() {
        let mut interner = Interner::new();
        let first = interner.intern(attributes(0));
        for med in 0..10 * SPARE {
            let it = interner.intern(attributes(med as u32));
            assert_eq!(Arc::ptr_eq(&it, &first), med == 0);
        }
        assert!(Arc::ptr_eq(&interner.intern(attributes(0)), &first), "it is needed");
        assert!(interner.all.len() <= 2 * SPARE, "{}", interner.all.len());
    }

    /// A peer announces one prefix again and again, with other long attributes each time.
    #[test]
    fn long_ones_that_nobody_needs_go_before_there_are_many() {
        let mut interner = Interner::new();
        for number in 0..500_u32 {
            let mut value = number.to_be_bytes().to_vec();
            value.resize(60_000, 0);
            let opaque = vec![Opaque { flags: 0xe0, code: 200, value }];
            let of_own = Attributes::of_own(IpAddr::from([10, 0, 0, 1]));
            interner.intern(Arc::new(Attributes { opaque, ..of_own }));
            let kept: usize = interner.all.iter().map(|(_, it)| taken::weight(it)).sum();
            assert!(kept <= SPARE_WEIGHT + 60_000, "{number}: {kept}");
            assert_eq!(kept, interner.weight);
        }
    }
}
