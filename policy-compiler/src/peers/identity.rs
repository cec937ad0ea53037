//! Identities: numbers for everything that policy can distinguish in a peer.
//!
//! The key of an identity is a predicate set over all predicates in use on this node. It is written in *predicate
//! keys*, numbers whose meaning never changes, unlike the numbers of predicates in one image. A second set is part of
//! the key: the set that the address would have without endpoints. If several endpoints have the address, this set is
//! needed to compute the predicate set of one of them.
//!
//! **Why a verdict stays valid while both identities and the endpoint's revision stay the same.** The rules of an
//! endpoint use only predicates that are in use. The revision is the same, so the rules use the same predicates as when
//! the flow was decided. The identity is the same, so the same predicates are true. These rules do not use predicates
//! that have come into use or gone out of use since then.
//!
//! A number is never reused for another key. Numbers only grow. When most numbers are no longer in use, all keys are
//! forgotten. New numbers then continue *after* the highest one, and tables indexed by identity stay small because they
//! start there. Then policy is evaluated once more for each live flow.

use ahash::AHashMap;

use super::predicate_set::PredicateSet;
use crate::common::{Identity, IndexTable};
use crate::prefix_map::MAX_VALUE;
use crate::resolve::Predicate;

/// All identities are forgotten when more have been assigned than four times those in use, plus this. The same holds
/// for the keys of predicates.
const SPARE: u32 = 65_536;

/// The key of a predicate: a number that no other predicate ever gets.
pub(crate) type PredicateKey = u64;

/// Assigns identities to keys, for the life of a compiler.
#[derive(Debug)]
pub(crate) struct IdentityInterner {
    predicate_keys: AHashMap<Predicate, PredicateKey>,
    next_key: PredicateKey,
    /// Finds the index of an identity, counted from `first`, by its key.
    identities: IndexTable,
    /// The keys, one after another. A key is the length of the predicate set and its predicate keys in ascending order,
    /// followed by the same for the set without endpoints.
    keys: Vec<PredicateKey>,
    /// The end of each key in `keys`.
    ends: Vec<usize>,
    /// The lowest identity that is not forgotten.
    pub(crate) first: u32,
}

impl Default for IdentityInterner {
    fn default() -> Self {
        Self::starting_at(1)
    }
}

impl IdentityInterner {
    fn starting_at(first: u32) -> Self {
        Self {
            predicate_keys: AHashMap::new(),
            next_key: 0,
            identities: IndexTable::default(),
            keys: Vec::new(),
            ends: Vec::new(),
            first,
        }
    }

    /// Like [`predicate_keys`](Self::predicate_keys), for all predicates in use. Keys of other predicates are forgotten
    /// when there are too many.
    pub(crate) fn predicate_keys_of_all(&mut self, predicates: &[Predicate]) -> Vec<PredicateKey> {
        if self.predicate_keys.len() > predicates.len() * 4 + SPARE as usize {
            self.predicate_keys.clear();
        }
        self.predicate_keys(predicates)
    }

    /// The keys of some predicates, in the order of the predicates. A predicate without a key gets a new one.
    pub(crate) fn predicate_keys(&mut self, predicates: &[Predicate]) -> Vec<PredicateKey> {
        let number = |predicate: &Predicate| {
            if let Some(known) = self.predicate_keys.get(predicate) {
                return *known;
            }
            self.next_key += 1;
            self.predicate_keys.insert(predicate.clone(), self.next_key - 1);
            self.next_key - 1
        };
        predicates.iter().map(number).collect()
    }

    /// The identity of a predicate set and of the set without endpoints. Returns [`Identity::UNKNOWN`], which is always
    /// denied, when all 2^31 numbers have been used.
    pub(crate) fn identity(
        &mut self,
        sets: [&PredicateSet; 2],
        predicate_keys: &[PredicateKey],
    ) -> Identity {
        let Self { identities, keys, ends, first, .. } = self;
        // The key is appended to `keys`. If it turns out to be known, it is removed again.
        let start = keys.len();
        for set in sets {
            keys.push(set.len() as PredicateKey);
            let from = keys.len();
            keys.extend(set.iter().map(|it| predicate_keys[*it as usize]));
            keys[from..].sort_unstable();
        }
        let (known, key) = keys.split_at(start);
        let next = ends.len() as u32;
        let is = |at: u32| {
            let before = (at as usize).checked_sub(1).and_then(|at| ends.get(at));
            known.get(before.copied().unwrap_or(0)..ends[at as usize]) == Some(key)
        };
        let number = if *first > MAX_VALUE - next {
            identities.find(key, is).map(|number| (number, false))
        } else {
            Some(identities.find_or_insert(key, next, is))
        };
        match number {
            Some((number, true)) => {
                ends.push(keys.len());
                Identity(*first + number)
            }
            other => {
                keys.truncate(start);
                other.map_or(Identity::UNKNOWN, |(number, _)| Identity(*first + number))
            }
        }
    }

    /// Forgets every key if many more identities have been assigned than the `used` identities that are still in use.
    pub(crate) fn forget_if_sparse(&mut self, used: u32) {
        if self.taken() > used.saturating_mul(4).saturating_add(SPARE) {
            self.forget(self.taken());
        }
    }

    /// The number of identities that have been assigned since keys were last forgotten.
    pub(crate) fn taken(&self) -> u32 {
        self.ends.len() as u32
    }

    /// Forgets every key. The first `taken` identities since the last time are never assigned again. Later ones may be
    /// assigned again, so the caller ensures that nothing has used them.
    pub(crate) fn forget(&mut self, taken: u32) {
        let first = self.first + taken;
        let predicate_keys = std::mem::take(&mut self.predicate_keys);
        *self = Self { predicate_keys, next_key: self.next_key, ..Self::starting_at(first) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn identity(interner: &mut IdentityInterner, predicate_keys: PredicateKey) -> Identity {
        interner.identity([&PredicateSet::from([0]), &PredicateSet::default()], &[predicate_keys])
    }

    #[test]
    fn what_is_true_without_endpoints_tells_identities_apart() {
        let mut interner = IdentityInterner::default();
        let sets = [&[][..], &[0], &[1], &[0, 1]].map(PredicateSet::from);
        let all = || sets.iter().flat_map(|a| sets.iter().map(move |b| [a, b]));
        let first: Vec<Identity> = all().map(|it| interner.identity(it, &[7, 3])).collect();
        assert_eq!(first, (1..=16).map(Identity).collect::<Vec<_>>());
        // The result depends on the predicate, not on its number in an image.
        let other: Vec<Identity> = all().map(|it| interner.identity(it, &[3, 7])).collect();
        let swapped = [0, 2, 1, 3];
        let expected = swapped.iter().flat_map(|a| swapped.iter().map(move |b| a * 4 + b + 1));
        assert_eq!(other, expected.map(Identity).collect::<Vec<_>>());
    }

    #[test]
    fn a_forgotten_number_is_never_used_again() {
        let mut interner = IdentityInterner::default();
        let last = (0..=SPARE + 4).map(|i| identity(&mut interner, i.into())).last().unwrap();
        interner.forget_if_sparse(2);
        assert_eq!(interner.first, 1, "two in use leave room for more");
        interner.forget_if_sparse(1);
        assert_eq!(interner.first, last.0 + 1);
        assert_eq!(identity(&mut interner, 0), Identity(last.0 + 1));
    }

    #[test]
    fn a_forgotten_predicate_comes_back_as_another() {
        let named =
            |index: u32| Predicate::Service(crate::model::ObjectName::new("", index.to_string()));
        let mut interner = IdentityInterner::default();
        let many: Vec<Predicate> = (0..SPARE + 5).map(named).collect();
        let before = interner.predicate_keys_of_all(&many);
        let after = interner.predicate_keys_of_all(&many[..1]);
        assert!(before.iter().all(|predicate_keys| *predicate_keys != after[0]));
    }

    #[test]
    fn when_the_numbers_run_out_an_identity_is_unknown() {
        let mut interner = IdentityInterner::starting_at(MAX_VALUE);
        assert_eq!(identity(&mut interner, 1), Identity(MAX_VALUE));
        assert_eq!(identity(&mut interner, 2), Identity::UNKNOWN);
        assert_eq!(identity(&mut interner, 1), Identity(MAX_VALUE));
    }
}
