//! The steps of a list, indexed by the predicate that they require of the peer.
//!
//! A row reads only the steps that its peers may match, so the cost of a row does not grow with the number of rules in
//! the list.

use super::predicate::PredicateId;
use super::steps::{Step, Steps};
use super::terms::Terms;
use crate::common::Grouped;

/// The index of a list's steps.
#[derive(Debug, Clone)]
pub(crate) struct StepIndex {
    /// The steps that require no predicate.
    pub(crate) always: Vec<u32>,
    /// The other steps, grouped by the predicate that they require. Group *n* is for the predicate with index *n* in
    /// the list's `peer.predicates`.
    wanting: Grouped,
    /// The number of alternatives (entities) of the steps in `always`, and of the steps in each group of `wanting`. A
    /// test of a step tests all of its alternatives.
    alternatives: (usize, Vec<usize>),
}

impl StepIndex {
    pub(super) fn from_steps(steps: &Steps, asked: &Terms) -> Self {
        let (mut always, mut wanting) = (Vec::new(), Vec::new());
        let mut alternatives = (0, vec![0; asked.predicates.len()]);
        for (index, Step { rule, .. }) in (0..).zip(&steps.steps) {
            let mut wants_nothing = false;
            for entity in &rule.peer.entities {
                match entity.wanted.first().map(|first| asked.predicates.binary_search(first)) {
                    Some(Ok(place)) => {
                        wanting.push((place as u32, index));
                        alternatives.1[place] += rule.peer.entities.len();
                    }
                    Some(Err(_)) | None => wants_nothing = true,
                }
            }
            if wants_nothing {
                always.push(index);
                alternatives.0 += rule.peer.entities.len();
            }
        }
        Self {
            always,
            wanting: Grouped::from_pairs(asked.predicates.len(), wanting.iter().copied()),
            alternatives,
        }
    }

    /// The number of alternatives of the steps that require no predicate. Then, for each predicate of the list in
    /// order, the number of alternatives of the steps that require it.
    pub(crate) fn alternatives(&self) -> (usize, &[usize]) {
        (self.alternatives.0, &self.alternatives.1)
    }

    /// The number of the group of a predicate, and the steps that require the predicate. Number 0 is for the steps that
    /// require no predicate.
    pub(crate) fn group(&self, asked: &Terms, predicate: PredicateId) -> Option<(usize, &[u32])> {
        let place = asked.predicates.binary_search(&predicate).ok()?;
        Some((place + 1, self.wanting.group(place)))
    }
}
