//! The values that must still be written to a server. For each object (or other key), only the latest value is stored.
//!
//! The agent adds values and never waits. The thread that communicates with the server writes them. A value stays until
//! it is written, even if connections end in the meantime.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::{Mutex, MutexGuard, PoisonError};

use manx_objects::object::ObjectKey;
use tokio::sync::Notify;

/// See the module.
#[derive(Debug)]
pub(crate) struct Waiting<V, K = ObjectKey> {
    values: Mutex<BTreeMap<K, V>>,
    more: Notify,
}

impl<V, K> Default for Waiting<V, K> {
    fn default() -> Self {
        Self { values: Mutex::default(), more: Notify::new() }
    }
}

impl<V: Clone + PartialEq, K: Clone + Ord> Waiting<V, K> {
    fn values(&self) -> MutexGuard<'_, BTreeMap<K, V>> {
        // A poisoned lock is not a problem, because each call leaves the map in a valid state.
        self.values.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Queues a value. It replaces an earlier value of the same object.
    pub(crate) fn put(&self, key: K, value: V) {
        self.values().insert(key, value);
        self.more.notify_one();
    }

    /// Replaces the value with a later one, if it is still `known`.
    pub(crate) fn replace(&self, key: &K, known: &V, later: V) {
        if let Some(value) = self.values().get_mut(key).filter(|value| *value == known) {
            *value = later;
        }
    }

    /// Removes the object's value from the queue.
    pub(crate) fn withdraw(&self, key: &K) {
        self.values().remove(key);
    }

    /// Returns the first value in this order. The value stays in the queue.
    pub(crate) fn first_by<O: Ord>(&self, order: impl Fn(&V) -> O) -> Option<(K, V)> {
        let values = self.values();
        let first = values.iter().min_by_key(|(_, value)| order(value));
        first.map(|(key, value)| (key.clone(), value.clone()))
    }

    /// Waits for a value. Returns the value of the object after `last`, or the first value if no object comes after
    /// `last`. So a value that cannot be written does not block the others. The value stays in the queue.
    pub(crate) async fn next(&self, last: Option<&K>) -> (K, V) {
        loop {
            if let Some(next) = self.after(last) {
                return next;
            }
            self.more.notified().await;
        }
    }

    fn after(&self, last: Option<&K>) -> Option<(K, V)> {
        let values = self.values();
        let behind =
            last.and_then(|last| values.range((Bound::Excluded(last), Bound::Unbounded)).next());
        let (key, value) = behind.or_else(|| values.first_key_value())?;
        Some((key.clone(), value.clone()))
    }

    /// Removes a value after it was written. A later value of the same object stays.
    pub(crate) fn done(&self, key: &K, written: &V) {
        let mut values = self.values();
        if values.get(key) == Some(written) {
            values.remove(key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use manx_objects::object::Kind;

    fn key(name: &str) -> ObjectKey {
        ObjectKey { kind: Kind::Pod, namespace: "shop".to_owned(), name: name.to_owned() }
    }

    #[test]
    fn the_latest_value_counts_and_a_written_one_takes_no_later_one_along() {
        let waiting = Waiting::default();
        waiting.put(key("a"), 1);
        waiting.put(key("b"), 5);
        let first = || waiting.first_by(|value| *value);
        assert_eq!(first(), Some((key("a"), 1)));
        waiting.put(key("a"), 2);
        waiting.done(&key("a"), &1);
        assert_eq!(first(), Some((key("a"), 2)));
        waiting.replace(&key("a"), &1, 9);
        assert_eq!(first(), Some((key("a"), 2)), "there is a later one");
        waiting.replace(&key("a"), &2, 9);
        assert_eq!(first(), Some((key("b"), 5)));
        waiting.replace(&key("a"), &9, 2);
        waiting.done(&key("a"), &2);
        waiting.withdraw(&key("b"));
        assert_eq!(first(), None);
    }

    #[test]
    fn a_value_that_stays_holds_up_no_other() {
        let waiting = Waiting::default();
        waiting.put(key("a"), 1);
        waiting.put(key("b"), 2);
        assert_eq!(waiting.after(None), Some((key("a"), 1)));
        assert_eq!(waiting.after(Some(&key("a"))), Some((key("b"), 2)));
        assert_eq!(waiting.after(Some(&key("b"))), Some((key("a"), 1)));
    }
}
