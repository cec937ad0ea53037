//! The size of policies: an estimate from their rules and the terms in the rules. The [price](super::price) of policies
//! is computed from their size.

use std::sync::Arc;

use super::policy_rules::PolicyRules;
use super::predicate::Predicate;
use super::steps::Step;
use super::terms::Terms;
use super::vocabulary::Vocabulary;

/// The size of a term that is tested on all members of the cluster: a port name, or a key of a selector with more than
/// [`FEW_KEYS`] keys.
const OF_ALL_MEMBERS: usize = 64;

/// A selector with more keys than this is large. Nearly no selector is.
const FEW_KEYS: usize = 8;

/// The size of a policy with these steps: 1, plus the sizes of its rules and of their terms.
pub(super) fn size(steps: &[Step], terms: &[Terms; 2], vocabulary: &Vocabulary) -> usize {
    let of_terms = terms.iter().map(|terms| {
        let selectors = terms.predicates.iter().filter_map(|it| {
            match vocabulary.predicates.get(*it as usize) {
                Some(Predicate::Members(selector)) => Some(selector),
                _ => None,
            }
        });
        let keys = selectors.map(|it| it.keys().len()).filter(|keys| *keys > FEW_KEYS);
        (terms.port_sets.len() + keys.sum::<usize>()).saturating_mul(OF_ALL_MEMBERS)
    });
    1 + of_terms.sum::<usize>() + steps.iter().map(Step::size).sum::<usize>()
}

/// The total sizes of the policies of a list that have a price.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct PricedSizes {
    pub(super) all: usize,
    /// The part for the policies whose rules test the local endpoint itself.
    pub(super) of_local: usize,
}

impl PricedSizes {
    pub(super) fn new(rules: &[Arc<PolicyRules>]) -> Self {
        let priced = || rules.iter().filter(|it| it.is_priced());
        let asks = |it: &&Arc<PolicyRules>| !it.terms[0].is_empty();
        Self {
            all: priced().map(|it| it.size).sum(),
            of_local: priced().filter(asks).map(|it| it.size).sum(),
        }
    }
}

impl PolicyRules {
    pub(super) fn is_priced(&self) -> bool {
        !self.name.namespace.is_empty()
    }
}
