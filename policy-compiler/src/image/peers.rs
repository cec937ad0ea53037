//! What an image knows of addresses. Images between which only policies changed share it.

use std::sync::Arc;

use super::change_counters::ChangeCounters;
use crate::common::Identity;
use crate::peers::{ClassMap, PredicateSet, Predicates};
use crate::prefix_map::PrefixMap;

/// The tables from addresses to classes. They may hold predicates that only another image which shares them uses.
#[derive(Debug)]
pub(crate) struct PeerTables {
    pub(crate) prefixes: PrefixMap,
    /// Counts what is stored in `prefixes` in place.
    pub(crate) changes: ChangeCounters,
    /// Class of each identity, and room for identities to come.
    pub(crate) classes: ClassMap,
    /// The predicate set of each class.
    pub(crate) class_predicate_sets: Box<[PredicateSet]>,
    pub(crate) predicates: Arc<Predicates>,
    /// How many identities some address has.
    pub(crate) identities: usize,
}

impl PeerTables {
    /// The class of an identity. [`Identity::UNKNOWN`] has none, nor has one that is older than these tables.
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
