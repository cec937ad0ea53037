//! Addresses to identities: numbers that stand for everything that policy can ask of a peer.
//!
//! The key of an identity is the set of *members* that have the address (see the members module; the set is empty where
//! nobody is) and the longest CIDR prefix *in use* that contains the address, its *atom* (the prefixes in use are the nets
//! of all policies that are compiled, and the two that hold a whole family each).
//!
//! **Why the truth of every predicate is constant for a key.** Selectors, port names and services look at members only. A
//! list of nets is true of an address if one of them contains it; each of those is a prefix in use, hence it either
//! contains the atom and so every address of this key, or it does not contain it. In the second case it contains no
//! address of this key: two prefixes nest or are disjoint, and had a prefix inside the atom contained the address, it and
//! not the atom would be the longest. When a new prefix comes into use, the addresses inside it get another key and so
//! another identity; the key of the others and its meaning stay.
//!
//! Numbers are never used again for another key. They are handed out in ascending order; when most of those handed out
//! are of no more use, all keys are forgotten and start over *behind* the highest number, so that tables indexed by
//! identity stay small. That costs each live flow one new judgement.

use ahash::AHashMap;
use ipnet::IpNet;

use crate::image::Identity;
use crate::members::MemberId;
use crate::prefix_map::MAX_VALUE;

/// Identities without use are kept up to this number and three times those in use.
const SPARE: u32 = 65_536;

/// The members that have an address.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Holders {
    /// Nobody.
    Nobody,
    /// One.
    One(MemberId),
    /// Several, ascending.
    Many(Box<[MemberId]>),
}

impl Holders {
    /// The set of `members`, which are ascending and distinct.
    pub(crate) fn of(members: &[MemberId]) -> Self {
        match members {
            [] => Self::Nobody,
            [one] => Self::One(*one),
            many => Self::Many(many.into()),
        }
    }
}

/// The key of an identity; see the module.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Key {
    /// Whose address it is.
    pub(crate) holders: Holders,
    /// The longest prefix in use that contains it, if any does.
    pub(crate) atom: Option<IpNet>,
}

/// The numbers of identities, for the life of a compiler.
#[derive(Debug)]
pub(crate) struct Interner {
    identities: AHashMap<Key, Identity>,
    /// The lowest identity that is not forgotten.
    pub(crate) first: u32,
    next: u32,
}

impl Default for Interner {
    fn default() -> Self {
        Self { identities: AHashMap::new(), first: 1, next: 1 }
    }
}

impl Interner {
    /// The identity of a key. When all 2^31 numbers have been used, [`Identity::UNKNOWN`], which is always denied.
    pub(crate) fn identity(&mut self, key: &Key) -> Identity {
        if let Some(known) = self.identities.get(key) {
            return *known;
        }
        if self.next > MAX_VALUE {
            return Identity::UNKNOWN;
        }
        self.next += 1;
        let identity = Identity(self.next - 1);
        self.identities.insert(key.clone(), identity);
        identity
    }

    /// About this many keys are going to be asked for.
    pub(crate) fn expect(&mut self, keys: usize) {
        let known = self.identities.len();
        self.identities.reserve(keys.saturating_sub(known));
    }

    /// How many numbers lie between the first that is not forgotten and the next new one.
    pub(crate) fn span(&self) -> usize {
        (self.next - self.first) as usize
    }

    /// Forgets every key if far more numbers are taken than the `used` that the last image needed.
    pub(crate) fn forget_if_sparse(&mut self, used: u32) {
        if self.next - self.first > used.saturating_mul(4).saturating_add(SPARE) {
            let next = self.next;
            *self = Self { first: next, next, ..Self::default() };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(prefix: u32) -> Key {
        let address = std::net::Ipv4Addr::from(prefix);
        Key { holders: Holders::Nobody, atom: Some(IpNet::from(std::net::IpAddr::V4(address))) }
    }

    #[test]
    fn a_forgotten_number_is_never_used_again() {
        let mut interner = Interner::default();
        let last = (0..=SPARE + 4).map(|i| interner.identity(&key(i))).last().unwrap();
        interner.forget_if_sparse(2);
        assert_eq!(interner.first, 1, "two in use leave room for more");
        interner.forget_if_sparse(1);
        assert_eq!(interner.span(), 0);
        assert_eq!(interner.identity(&key(0)), Identity(last.0 + 1));
        assert_eq!(interner.first, last.0 + 1);
    }

    #[test]
    fn when_the_numbers_run_out_an_identity_is_unknown() {
        let mut interner = Interner { next: MAX_VALUE, first: MAX_VALUE, ..Interner::default() };
        assert_eq!(interner.identity(&key(1)), Identity(MAX_VALUE));
        assert_eq!(interner.identity(&key(2)), Identity::UNKNOWN);
        assert_eq!(interner.identity(&key(1)), Identity(MAX_VALUE));
    }
}
