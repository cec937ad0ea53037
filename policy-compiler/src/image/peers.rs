//! The tables that lead from an address to its class. The next image shares them if only policies have changed.

use std::sync::Arc;

use super::change_counters::ChangeCounters;
use crate::common::Identity;
use crate::peers::{ClassMap, PredicateSet, Predicates};
use crate::prefix_map::PrefixMap;

/// The tables from addresses to classes. Several images may share them, so they may contain predicates that this image
/// does not use.
#[derive(Debug)]
pub(crate) struct PeerTables {
    pub(crate) prefixes: PrefixMap,
    /// Counts the changes of `prefixes` while the image is in use.
    pub(crate) changes: ChangeCounters,
    /// The class of each identity, with room for new identities.
    pub(crate) classes: ClassMap,
    /// The predicate set of each class.
    pub(crate) class_predicate_sets: Box<[PredicateSet]>,
    pub(crate) predicates: Arc<Predicates>,
    /// The number of identities that some address has.
    pub(crate) identities: usize,
}

impl PeerTables {
    /// The class of an identity. [`Identity::UNKNOWN`] has none, and an identity that is older than these tables has
    /// none either.
    pub(crate) fn class(&self, identity: Identity) -> Option<usize> {
        let class = self.classes.class(identity) as usize;
        (class < self.class_predicate_sets.len()).then_some(class)
    }
}

impl Default for PeerTables {
    fn default() -> Self {
        Self {
            prefixes: PrefixMap::new(Identity::UNKNOWN.0),
            changes: ChangeCounters::default(),
            classes: ClassMap::default(),
            class_predicate_sets: Box::default(),
            predicates: Arc::default(),
            identities: 0,
        }
    }
}
