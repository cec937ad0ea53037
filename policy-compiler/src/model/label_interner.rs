//! Label sets, each stored once: many pods have equal labels, and the cache then holds one copy of them.

use std::sync::Arc;

use ahash::AHashSet;

use crate::selector::Labels;

/// Sets of labels, each stored once. Few of many pods differ in their labels, so a reader that has looked at one
/// pod's labels has them in the cache for all pods that share them.
#[derive(Debug, Clone, Default)]
pub struct LabelInterner {
    known: AHashSet<Arc<Labels>>,
    /// When this many sets are stored, those that are no longer in use are removed.
    most: usize,
}

/// Unused sets are kept up to the number of those in use plus this many.
const SPARE: usize = 1024;

impl LabelInterner {
    /// The stored set that is equal to this one.
    pub fn intern(&mut self, labels: &Labels) -> Arc<Labels> {
        if let Some(known) = self.known.get(labels) {
            return Arc::clone(known);
        }
        if self.known.len() >= self.most {
            self.known.retain(|labels| Arc::strong_count(labels) > 1);
            self.most = self.known.len() * 2 + SPARE;
        }
        let shared = Arc::new(labels.clone());
        self.known.insert(Arc::clone(&shared));
        shared
    }
}

impl PartialEq for LabelInterner {
    /// The stored sets are no part of any value.
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for LabelInterner {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_label_sets_are_one_and_those_without_use_are_forgotten() {
        let labels = |index: usize| Labels::from([("app".to_owned(), index.to_string())]);
        let mut sets = LabelInterner::default();
        let first = sets.intern(&labels(0));
        for index in 1..SPARE * 3 {
            assert_eq!(*sets.intern(&labels(index)), labels(index));
        }
        assert!(sets.known.len() <= SPARE * 2, "{}", sets.known.len());
        assert!(Arc::ptr_eq(&first, &sets.intern(&labels(0))));
    }
}
