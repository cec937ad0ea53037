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
    /// The other steps, grouped by the required predicate's index among those that the list uses.
    wanting: Grouped,
    /// The numbers of alternatives: of steps that require no predicate, and of steps that require each predicate. A
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

    /// The numbers of alternatives: of steps that require no predicate, and of steps that require each of the list's
    /// predicates, in their order.
    pub(crate) fn alternatives(&self) -> (usize, &[usize]) {
        (self.alternatives.0, &self.alternatives.1)
    }

    /// The steps that require a predicate, and the number of their group. Group 0 holds the steps that require no
    /// predicate.
    pub(crate) fn group(&self, asked: &Terms, predicate: PredicateId) -> Option<(usize, &[u32])> {
        let place = asked.predicates.binary_search(&predicate).ok()?;
        Some((place + 1, self.wanting.group(place)))
    }
}
