//! Terms: the predicates and port sets that rules use for one end of a packet.

use super::predicate::{PortSetId, PredicateId};
use super::rule::ResolvedEnd;
use super::steps::Step;

/// The terms that rules use for one end of a packet, in ascending order.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Terms {
    /// The predicates.
    pub predicates: Vec<PredicateId>,
    /// The port sets.
    pub port_sets: Vec<PortSetId>,
}

/// The terms that steps use for the local end and for the peer.
pub(super) fn terms_of<'s>(steps: impl IntoIterator<Item = &'s Step>) -> [Terms; 2] {
    let mut asked = [Terms::default(), Terms::default()];
    for Step { rule, .. } in steps {
        asked[0].add_end(&rule.local);
        asked[1].add_end(&rule.peer);
    }
    asked.iter_mut().for_each(Terms::sort);
    asked
}

impl Terms {
    fn add_end(&mut self, end: &ResolvedEnd) {
        self.port_sets.extend(end.port_sets());
        for entity in &end.entities {
            self.predicates.extend(entity.wanted.iter().chain(&*entity.unwanted));
        }
    }

    /// Whether there are no terms.
    pub(super) fn is_empty(&self) -> bool {
        self.predicates.is_empty() && self.port_sets.is_empty()
    }

    /// Adds the terms of `other`.
    pub(crate) fn extend(&mut self, other: &Self) {
        self.predicates.extend_from_slice(&other.predicates);
        self.port_sets.extend_from_slice(&other.port_sets);
    }

    /// Sorts the terms after additions, and removes duplicates.
    pub(crate) fn sort(&mut self) {
        for all in [&mut self.predicates, &mut self.port_sets] {
            all.sort_unstable();
            all.dedup();
        }
    }
}
