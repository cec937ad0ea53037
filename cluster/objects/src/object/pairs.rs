//! Labels and annotations: pairs of texts, in order of their keys.
//!
//! A cluster has very many label sets, and most have few pairs. A `BTreeMap` with one pair needs as
//! much memory as one with eleven.

use std::collections::BTreeMap;
use std::fmt;
use std::slice::Iter;

/// Labels or annotations. All keys are different.
#[derive(Clone, PartialEq, Eq, Hash, Default)]
pub struct Pairs(Box<[(String, String)]>);

impl Pairs {
    /// Returns an empty list.
    pub fn new() -> Self {
        Self::default()
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn get(&self, key: &str) -> Option<&String> {
        let at = self.0.binary_search_by(|(found, _)| found.as_str().cmp(key));
        at.ok().map(|at| &self.0[at].1)
    }

    pub fn contains_key(&self, key: &str) -> bool {
        self.get(key).is_some()
    }

    /// Returns the pairs in the order of their keys.
    pub fn iter(&self) -> PairsIter<'_> {
        self.into_iter()
    }

    /// Returns the keys in order.
    pub fn keys(&self) -> impl Iterator<Item = &String> {
        self.0.iter().map(|(key, _)| key)
    }

    /// Returns the pairs as a map, which can be changed but needs more memory.
    pub fn to_map(&self) -> BTreeMap<String, String> {
        self.0.iter().cloned().collect()
    }

    /// Sets the value of a key. This takes time proportional to the number of pairs, so many pairs
    /// should be collected instead.
    pub fn insert(&mut self, key: String, value: String) {
        self.extend([(key, value)]);
    }
}

/// Each added pair replaces an existing pair with the same key.
impl Extend<(String, String)> for Pairs {
    fn extend<I: IntoIterator<Item = (String, String)>>(&mut self, pairs: I) {
        *self = std::mem::take(self).into_iter().chain(pairs).collect();
    }
}

impl IntoIterator for Pairs {
    type Item = (String, String);
    type IntoIter = std::vec::IntoIter<(String, String)>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.into_vec().into_iter()
    }
}

impl fmt::Debug for Pairs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self).finish()
    }
}

impl From<BTreeMap<String, String>> for Pairs {
    fn from(pairs: BTreeMap<String, String>) -> Self {
        Self(pairs.into_iter().collect())
    }
}

impl<const N: usize> From<[(String, String); N]> for Pairs {
    fn from(pairs: [(String, String); N]) -> Self {
        pairs.into_iter().collect()
    }
}

/// If several pairs have the same key, the last one counts.
impl FromIterator<(String, String)> for Pairs {
    fn from_iter<I: IntoIterator<Item = (String, String)>>(pairs: I) -> Self {
        pairs.into_iter().collect::<BTreeMap<_, _>>().into()
    }
}

/// See [`Pairs::iter`].
#[derive(Debug, Clone)]
pub struct PairsIter<'a>(Iter<'a, (String, String)>);

impl<'a> Iterator for PairsIter<'a> {
    type Item = (&'a String, &'a String);

    fn next(&mut self) -> Option<Self::Item> {
        self.0.next().map(|(key, value)| (key, value))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.0.size_hint()
    }
}

impl<'a> IntoIterator for &'a Pairs {
    type Item = (&'a String, &'a String);
    type IntoIter = PairsIter<'a>;

    fn into_iter(self) -> PairsIter<'a> {
        PairsIter(self.0.iter())
    }
}
