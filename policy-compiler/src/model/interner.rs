//! An interner for values that are often equal: label sets of pods, names of their nodes and service accounts.

use std::borrow::Cow;
use std::hash::Hash;
use std::sync::Arc;

use ahash::AHashSet;

/// Values, each stored once. Most pods have the same labels as other pods. With one copy of each label set, a reader of
/// many pods finds most labels in the CPU's cache.
#[derive(Debug)]
pub struct Interner<T: ?Sized> {
    known: AHashSet<Arc<T>>,
    /// When this many values are stored, unused values are removed.
    most: usize,
}

/// After a removal of unused values, as many new values as remain, plus this number, may be stored before the next
/// removal.
const SPARE: usize = 1024;

impl<T: Eq + Hash + ToOwned + ?Sized> Interner<T>
where
    Arc<T>: From<T::Owned>,
{
    /// The stored value that is equal to this one.
    pub fn intern(&mut self, value: Cow<'_, T>) -> Arc<T> {
        if let Some(known) = self.known.get(&*value) {
            return Arc::clone(known);
        }
        if self.known.len() >= self.most {
            self.known.retain(|value| Arc::strong_count(value) > 1);
            self.most = self.known.len() * 2 + SPARE;
        }
        let shared = Arc::<T>::from(value.into_owned());
        self.known.insert(Arc::clone(&shared));
        shared
    }
}

impl<T: ?Sized> Default for Interner<T> {
    fn default() -> Self {
        Self { known: AHashSet::new(), most: 0 }
    }
}

impl<T: ?Sized> Clone for Interner<T> {
    fn clone(&self) -> Self {
        Self { known: self.known.clone(), most: self.most }
    }
}

impl<T: ?Sized> PartialEq for Interner<T> {
    /// The stored values only save memory, so any two interners are equal.
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl<T: ?Sized> Eq for Interner<T> {}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::selector::Labels;

    #[test]
    fn equal_label_sets_are_one_and_those_without_use_are_forgotten() {
        let labels = |index: usize| Labels::from([("app".to_owned(), index.to_string())]);
        let owned = |index| Cow::Owned(labels(index));
        let mut sets = Interner::<Labels>::default();
        let first = sets.intern(owned(0));
        for index in 1..SPARE * 3 {
            assert_eq!(*sets.intern(owned(index)), labels(index));
        }
        assert!(sets.known.len() <= SPARE * 2, "{}", sets.known.len());
        assert!(Arc::ptr_eq(&first, &sets.intern(owned(0))));
    }
}
