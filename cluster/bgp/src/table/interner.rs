//! Attributes that are equal are kept once: routers tell a few for many prefixes.
//!
//! Law: two attributes that were interned are equal if and only if they are one.

use std::sync::Arc;

use ahash::RandomState;
use hashbrown::HashTable;

use crate::path::Attributes;

/// How many attributes are kept at least before those that nobody needs are looked for.
const SPARE: usize = 1024;

/// See the module.
#[derive(Debug)]
pub(super) struct Interner {
    /// Each with its hash, so that a larger table is made without a look at all of them.
    all: HashTable<(u64, Arc<Attributes>)>,
    hasher: RandomState,
    /// From this number on, those that nobody needs are removed.
    most: usize,
}

impl Interner {
    pub(super) fn new() -> Self {
        Self { all: HashTable::new(), hasher: RandomState::new(), most: SPARE }
    }

    /// The one that is equal to these.
    pub(super) fn intern(&mut self, attributes: Arc<Attributes>) -> Arc<Attributes> {
        let Self { all, hasher, most } = self;
        if all.len() >= *most {
            all.retain(|(_, it)| Arc::strong_count(it) > 1);
            *most = 2 * all.len() + SPARE;
            all.shrink_to(*most / 2, |(hash, _)| *hash);
        }
        let hash = hasher.hash_one(&attributes);
        let is_same = |it: &(u64, Arc<Attributes>)| it.0 == hash && it.1 == attributes;
        if let Some((_, found)) = all.find(hash, is_same) {
            return Arc::clone(found);
        }
        all.insert_unique(hash, (hash, Arc::clone(&attributes)), |(hash, _)| *hash);
        attributes
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use super::*;

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
}
