//! Addresses to identities: numbers that stand for everything that policy can ask of a peer.
//!
//! The key of an identity is a *truth*: of all predicates in use on this node those that are true of the address, as what
//! they say, not as numbers of one image. Beside it stands the part of the truth that is there without the endpoints that
//! have the address: where several have it, what is true of one of them alone follows from that.
//!
//! **Why a verdict stands while both identities and the endpoint's revision do.** The rules of an endpoint ask nothing but
//! predicates in use. With the revision the same, they were in use when the flow was judged and are now; with the identity
//! the same, the same of them are true. What came into use or went out of it meanwhile, these rules do not ask.
//!
//! Numbers are never used again for another key. They are handed out in ascending order; when most of those handed out
//! are of no more use, all keys are forgotten and start over *behind* the highest number, so that tables indexed by
//! identity stay small. That costs each live flow one new judgement.

use std::collections::hash_map::Entry;

use ahash::AHashMap;

use crate::image::Identity;
use crate::predicates::Truth;
use crate::prefix_map::MAX_VALUE;
use crate::resolve::Predicate;

/// Identities without use are kept up to this number and three times those in use; so are predicates.
const SPARE: u32 = 65_536;

/// What a predicate says, as a number that is never given to another.
pub(crate) type Said = u64;

/// The key of an identity; see the module.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Key {
    /// What is true, ascending.
    pub(crate) truth: Box<[Said]>,
    /// What would be without the endpoints that have the address.
    pub(crate) around: Box<[Said]>,
}

impl Key {
    /// Of a truth and of what would be without endpoints, given what each predicate says.
    pub(crate) fn of(truths: [&Truth; 2], said: &[Said]) -> Self {
        let [truth, around] = truths.map(|truth| {
            let mut said: Box<[Said]> = truth.iter().map(|it| said[*it as usize]).collect();
            said.sort_unstable();
            said
        });
        Self { truth, around }
    }
}

/// The numbers of identities, for the life of a compiler.
#[derive(Debug)]
pub(crate) struct Interner {
    said: AHashMap<Predicate, Said>,
    next_said: Said,
    identities: AHashMap<Key, Identity>,
    /// The lowest identity that is not forgotten.
    pub(crate) first: u32,
    next: u32,
}

impl Default for Interner {
    fn default() -> Self {
        Self { said: AHashMap::new(), next_said: 0, identities: AHashMap::new(), first: 1, next: 1 }
    }
}

impl Interner {
    /// As [`said`](Self::said), of all predicates that are in use; the numbers of others are forgotten when they are too many.
    pub(crate) fn said_of_all(&mut self, predicates: &[Predicate]) -> Vec<Said> {
        if self.said.len() > predicates.len() * 4 + SPARE as usize {
            self.said.clear();
        }
        self.said(predicates)
    }

    /// The numbers of predicates, in their order.
    pub(crate) fn said(&mut self, predicates: &[Predicate]) -> Vec<Said> {
        let number = |predicate: &Predicate| {
            if let Some(known) = self.said.get(predicate) {
                return *known;
            }
            self.next_said += 1;
            self.said.insert(predicate.clone(), self.next_said - 1);
            self.next_said - 1
        };
        predicates.iter().map(number).collect()
    }

    /// The identity of a key. When all 2^31 numbers have been used, [`Identity::UNKNOWN`], which is always denied.
    pub(crate) fn identity(&mut self, key: Key) -> Identity {
        match self.identities.entry(key) {
            Entry::Occupied(known) => *known.get(),
            Entry::Vacant(_) if self.next > MAX_VALUE => Identity::UNKNOWN,
            Entry::Vacant(free) => {
                self.next += 1;
                *free.insert(Identity(self.next - 1))
            }
        }
    }

    /// Forgets every key if far more numbers are taken than the `used` that the last image needed.
    pub(crate) fn forget_if_sparse(&mut self, used: u32) {
        if self.next - self.first > used.saturating_mul(4).saturating_add(SPARE) {
            self.identities = AHashMap::new();
            self.first = self.next;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(said: Said) -> Key {
        Key { truth: Box::new([said]), around: Box::default() }
    }

    #[test]
    fn a_forgotten_number_is_never_used_again() {
        let mut interner = Interner::default();
        let last = (0..=SPARE + 4).map(|i| interner.identity(key(i.into()))).last().unwrap();
        interner.forget_if_sparse(2);
        assert_eq!(interner.first, 1, "two in use leave room for more");
        interner.forget_if_sparse(1);
        assert_eq!(interner.first, last.0 + 1);
        assert_eq!(interner.identity(key(0)), Identity(last.0 + 1));
    }

    #[test]
    fn a_forgotten_predicate_comes_back_as_another() {
        let named =
            |index: u32| Predicate::Service(crate::model::ObjectName::new("", index.to_string()));
        let mut interner = Interner::default();
        let many: Vec<Predicate> = (0..SPARE + 5).map(named).collect();
        let before = interner.said_of_all(&many);
        let after = interner.said_of_all(&many[..1]);
        assert!(before.iter().all(|said| *said != after[0]));
    }

    #[test]
    fn when_the_numbers_run_out_an_identity_is_unknown() {
        let mut interner = Interner { next: MAX_VALUE, first: MAX_VALUE, ..Interner::default() };
        assert_eq!(interner.identity(key(1)), Identity(MAX_VALUE));
        assert_eq!(interner.identity(key(2)), Identity::UNKNOWN);
        assert_eq!(interner.identity(key(1)), Identity(MAX_VALUE));
    }
}
