//! The steps of a list by the predicate that they require of the peer.
//!
//! A row looks only at the steps that its peers may match, so the cost of a row does not grow with the number of rules
//! in the list.

use super::predicate::PredicateId;
use super::steps::{Step, Steps};
use super::terms::Terms;
use crate::common::Grouped;

/// See the module.
#[derive(Debug, Clone)]
pub(crate) struct StepIndex {
    /// The steps that require nothing.
    pub(crate) always: Vec<u32>,
    /// The other steps, by the index of the required predicate among those that the list uses.
    wanting: Grouped,
}

impl StepIndex {
    pub(super) fn from_steps(steps: &Steps, asked: &Terms) -> Self {
        let (mut always, mut wanting) = (Vec::new(), Vec::new());
        for (index, Step { rule, .. }) in (0..).zip(&steps.steps) {
            let mut wants_nothing = false;
            for entity in &rule.peer.entities {
                match entity.wanted.first().map(|first| asked.predicates.binary_search(first)) {
                    Some(Ok(place)) => wanting.push((place as u32, index)),
                    Some(Err(_)) | None => wants_nothing = true,
                }
            }
            always.extend(wants_nothing.then_some(index));
        }
        Self {
            always,
            wanting: Grouped::from_pairs(asked.predicates.len(), wanting.iter().copied()),
        }
    }

    /// How many steps require each predicate, in the order of the list's predicates.
    pub(crate) fn sizes(&self) -> impl Iterator<Item = usize> + '_ {
        self.wanting.groups().map(<[u32]>::len)
    }

    /// The steps that require a predicate, and the number of their group. Group 0 is the steps that require nothing.
    pub(crate) fn group(&self, asked: &Terms, predicate: PredicateId) -> Option<(usize, &[u32])> {
        let place = asked.predicates.binary_search(&predicate).ok()?;
        Some((place + 1, self.wanting.group(place)))
    }
}
