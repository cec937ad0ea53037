//! The numbers that identify predicates and port sets in a resolution.

use ahash::AHashMap;

use super::predicate::{PortSet, PortSetId, Predicate, PredicateId};

/// The numbering of predicates and port sets.
#[derive(Debug, Default)]
pub(crate) struct Vocabulary {
    predicate_ids: AHashMap<Predicate, PredicateId>,
    port_set_ids: AHashMap<PortSet, PortSetId>,
    /// The predicates by number, in the order of first use; the families come first.
    pub(crate) predicates: Vec<Predicate>,
    /// The port sets by number.
    pub(crate) port_sets: Vec<PortSet>,
}

impl Vocabulary {
    pub(super) fn predicate(&mut self, predicate: Predicate) -> PredicateId {
        let all = &mut self.predicates;
        *self.predicate_ids.entry(predicate).or_insert_with_key(|predicate| {
            all.push(predicate.clone());
            all.len() as u32 - 1
        })
    }

    pub(super) fn port_set(&mut self, port_set: PortSet) -> PortSetId {
        let all = &mut self.port_sets;
        *self.port_set_ids.entry(port_set).or_insert_with_key(|port_set| {
            all.push(port_set.clone());
            all.len() as u32 - 1
        })
    }
}
