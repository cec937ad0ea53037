//! Values of single Secrets by name: only those that the agent currently needs.
//!
//! The values are kept separately from all other objects. A value is in no
//! [`Contents`](manx_objects::contents::Contents), in no file and in no message, and is removed when it is no longer
//! needed.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use manx_objects::object::bgp::SecretKey;
use tokio::sync::watch;

/// The default namespace of an agent.
pub const NAMESPACE: &str = "kube-system";

/// A value of a Secret. Its `Debug` output does not contain the value.
#[derive(Clone, PartialEq, Eq)]
pub struct SecretValue(Vec<u8>);

impl SecretValue {
    /// Returns the bytes. They must not be shown anywhere.
    pub fn expose(&self) -> &[u8] {
        &self.0
    }
}

impl From<Vec<u8>> for SecretValue {
    fn from(bytes: Vec<u8>) -> Self {
        Self(bytes)
    }
}

impl fmt::Debug for SecretValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SecretValue(..)")
    }
}

/// The state of a requested value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Found {
    Value(SecretValue),
    /// There is no such Secret.
    NoSecret,
    /// The Secret has no such key.
    NoKey,
    /// The Secret or the value cannot be read, for this reason.
    Unreadable(String),
}

/// The states of the requested values. A value that was not looked up yet is not included.
pub type FoundSecrets = BTreeMap<SecretKey, Found>;

/// The requested values, and the state of each.
#[derive(Debug)]
pub struct Secrets {
    namespace: String,
    wanted: watch::Sender<BTreeSet<SecretKey>>,
    found: watch::Sender<FoundSecrets>,
}

impl Secrets {
    /// Returns an empty set of requests. All Secrets must be in this namespace.
    pub(crate) fn new(namespace: &str) -> Self {
        Self {
            namespace: namespace.to_owned(),
            wanted: watch::Sender::default(),
            found: watch::Sender::default(),
        }
    }

    /// Returns the namespace of all Secrets.
    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    /// Returns a receiver of the states.
    pub fn subscribe(&self) -> watch::Receiver<FoundSecrets> {
        self.found.subscribe()
    }

    /// Returns the current states.
    pub fn found(&self) -> FoundSecrets {
        self.found.borrow().clone()
    }

    /// Replaces the requested values. All other values are removed.
    pub(crate) fn want(&self, keys: BTreeSet<SecretKey>) {
        self.wanted.send_if_modified(|wanted| {
            let is_new = *wanted != keys;
            *wanted = keys;
            is_new
        });
        let wanted = self.wanted.borrow();
        self.found.send_if_modified(|found| {
            let before = found.len();
            found.retain(|key, _| wanted.contains(key));
            found.len() != before
        });
    }

    /// Returns a receiver of the requested keys.
    pub(crate) fn wanted(&self) -> watch::Receiver<BTreeSet<SecretKey>> {
        self.wanted.subscribe()
    }

    /// Records the state of each requested key of a Secret.
    pub(crate) fn note(&self, name: &str, value: impl Fn(&str) -> Found) {
        self.change(name, |key, _| Some(value(key)));
    }

    /// Records that a Secret cannot be read. Known values stay.
    pub(crate) fn note_fault(&self, name: &str, reason: &str) {
        self.change(name, |_, found| {
            let is_known = matches!(found, Some(Found::Value(_)));
            (!is_known).then(|| Found::Unreadable(reason.to_owned()))
        });
    }

    /// Changes the state of the requested keys of a Secret. If `change` returns `None`, the state stays.
    fn change(&self, name: &str, change: impl Fn(&str, Option<&Found>) -> Option<Found>) {
        let wanted = self.wanted.borrow();
        self.found.send_if_modified(|found| {
            let mut has_changed = false;
            for key in wanted.iter().filter(|it| it.name == name) {
                let before = found.get(key);
                if let Some(new) = change(&key.key, before)
                    && before != Some(&new)
                {
                    found.insert(key.clone(), new);
                    has_changed = true;
                }
            }
            has_changed
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(name: &str, key: &str) -> SecretKey {
        SecretKey { name: name.to_owned(), key: key.to_owned() }
    }

    fn value(text: &str) -> Found {
        Found::Value(text.as_bytes().to_vec().into())
    }

    #[test]
    fn only_what_is_wanted_is_known_and_it_is_shown_nowhere() {
        let secrets = Secrets::new("kube-system");
        let mut told = secrets.subscribe();
        secrets.want(BTreeSet::from([key("bgp", "a"), key("other", "a")]));
        assert!(secrets.found().is_empty());
        let of_secret = |key: &str| value(&format!("hidden-{key}"));
        secrets.note("bgp", of_secret);
        assert!(told.has_changed().unwrap());
        told.mark_unchanged();
        assert_eq!(secrets.found(), BTreeMap::from([(key("bgp", "a"), value("hidden-a"))]));
        assert!(!format!("{secrets:?} {:#?}", secrets.found()).contains("hidden"));
        secrets.note("bgp", of_secret);
        secrets.note("nobody's", of_secret);
        assert!(!told.has_changed().unwrap(), "it is the same");
        secrets.want(BTreeSet::from([key("bgp", "b")]));
        assert!(secrets.found().is_empty() && told.has_changed().unwrap());
    }

    #[test]
    fn a_known_value_stays_when_its_secret_cannot_be_read() {
        let secrets = Secrets::new("kube-system");
        secrets.want(BTreeSet::from([key("bgp", "a"), key("bgp", "b")]));
        secrets.note("bgp", |key| if key == "a" { value("x") } else { Found::NoKey });
        secrets.note_fault("bgp", "no answer");
        let unreadable = Found::Unreadable("no answer".to_owned());
        let expected = [(key("bgp", "a"), value("x")), (key("bgp", "b"), unreadable)];
        assert_eq!(secrets.found(), BTreeMap::from(expected));
        secrets.note("bgp", |_| Found::NoSecret);
        assert!(secrets.found().values().all(|it| *it == Found::NoSecret));
    }
}
