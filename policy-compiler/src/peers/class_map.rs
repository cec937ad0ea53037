//! The class of each identity.
//!
//! Identities and classes are both numbered in the order in which their addresses are first processed. So for the first
//! identities of an image, the class usually equals the identity's index. Nothing is stored for these: a lookup
//! computes the class from the identity.

use std::sync::atomic::{AtomicU32, Ordering};

use crate::common::Identity;

/// The value that stands for no class.
pub(crate) const NO_CLASS: u32 = u32::MAX;

/// The map from identities to classes.
#[derive(Debug)]
pub(crate) struct ClassMap {
    /// The first identity, which is at least 1.
    first: u32,
    /// The number of identities, starting with `first`, whose class equals their index.
    in_order: u32,
    /// The class of each further identity, or [`NO_CLASS`].
    rest: Box<[AtomicU32]>,
}

impl Default for ClassMap {
    /// Creates a map in which no identity has a class.
    fn default() -> Self {
        Self::new(1, &[])
    }
}

impl ClassMap {
    /// Creates a map with the classes of the identities from `first` on.
    pub(crate) fn new(first: u32, classes: &[u32]) -> Self {
        let in_order = classes.iter().zip(0..).take_while(|(class, at)| *class == at).count();
        let rest = classes[in_order..].iter().copied().map(AtomicU32::new).collect();
        Self { first, in_order: in_order as u32, rest }
    }

    /// The first identity.
    pub(crate) fn first(&self) -> u32 {
        self.first
    }

    /// The classes of all identities, starting with the first.
    pub(crate) fn all(&self) -> Vec<u32> {
        let rest = self.rest.iter().map(|class| class.load(Ordering::Relaxed));
        (0..self.in_order).chain(rest).collect()
    }

    /// The index of an identity, counted from the first. An identity before the first wraps to an index far beyond the
    /// end.
    #[inline]
    pub(crate) fn index(&self, identity: Identity) -> u32 {
        identity.0.wrapping_sub(self.first)
    }

    /// The class of an identity, or [`NO_CLASS`].
    #[inline]
    pub(crate) fn class(&self, identity: Identity) -> u32 {
        let place = self.index(identity);
        if place < self.in_order {
            return place;
        }
        let class = self.rest.get((place - self.in_order) as usize);
        class.map_or(NO_CLASS, |class| class.load(Ordering::Relaxed))
    }

    /// Stores the class of an identity while other threads may look up. Returns `false` if there is no room, or if the
    /// identity's class is not stored but computed and differs from `class`.
    pub(crate) fn store(&self, identity: Identity, class: u32) -> bool {
        let place = self.index(identity);
        if place < self.in_order {
            return place == class;
        }
        let room = self.rest.get((place - self.in_order) as usize);
        room.inspect(|room| room.store(class, Ordering::Relaxed)).is_some()
    }

    pub(crate) fn bytes(&self) -> usize {
        size_of_val(&*self.rest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn each_identity_has_the_class_that_it_was_given(
            first in prop_oneof![1u32..5, u32::MAX / 2 - 5..u32::MAX / 2],
            in_order in 0u32..6,
            rest in prop::collection::vec(prop_oneof![0u32..9, Just(NO_CLASS)], 0..6),
            admitted in prop::collection::vec((0u32..14, 0u32..9), 0..6),
        ) {
            let mut classes: Vec<u32> = (0..in_order).chain(rest).collect();
            let map = ClassMap::new(first, &classes);
            let known = classes.iter().zip(0..).take_while(|(class, at)| *class == at).count();
            for (at, class) in admitted {
                let place = classes.get_mut(at as usize).filter(|_| at as usize >= known);
                let fits = place.is_some() || (at as usize) < known && at == class;
                if let Some(place) = place {
                    *place = class;
                }
                prop_assert_eq!(map.store(Identity(first + at), class), fits);
            }
            prop_assert_eq!(&map.all(), &classes);
            for (class, at) in classes.iter().zip(0..) {
                prop_assert_eq!(map.class(Identity(first + at)), *class);
            }
            for none in [0, first - 1, first + classes.len() as u32, u32::MAX] {
                prop_assert_eq!(map.class(Identity(none)), NO_CLASS);
            }
        }
    }
}
