//! Finds the rules in which two lists differ. If a list replaces another one, only the rows of peers that these rules
//! may match are built again.

use std::ops::Range;
use std::sync::Arc;

use ahash::AHashSet;

use super::list::ResolvedList;
use super::policy_rules::PolicyRules;
use super::predicate::{PossiblePorts, PredicateId};
use super::rule::ResolvedRule;
use super::step_index::StepIndex;
use super::steps::Step;
use crate::common::Pinned;
use crate::model::Family;

impl ResolvedList {
    /// The rules of policies that only one of two lists has. Both lists must have the same stage and direction. `None`
    /// if the lists also differ in something else.
    pub(crate) fn differing_rules<'l>(&'l self, other: &'l Self) -> Option<Vec<&'l ResolvedRule>> {
        let around = |list: &'l Self| {
            let Range { start, end } = list.policy_steps;
            let steps = &list.steps.steps;
            (steps[..start].iter().chain(&steps[end..]), &list.tiers, &list.steps.ends)
        };
        let ((here, tiers, ends), (there, other_tiers, other_ends)) = (around(self), around(other));
        if tiers != other_tiers || ends != other_ends || !here.eq(there) {
            return None;
        }
        // Usually the lists differ in a single policy, so the equal policies before and after it are skipped.
        let (mut own, mut others) = (self.policy_rules.as_slice(), other.policy_rules.as_slice());
        while let ([a, own_rest @ ..], [b, others_rest @ ..]) = (own, others)
            && Arc::ptr_eq(a, b)
        {
            (own, others) = (own_rest, others_rest);
        }
        while let ([own_rest @ .., a], [others_rest @ .., b]) = (own, others)
            && Arc::ptr_eq(a, b)
        {
            (own, others) = (own_rest, others_rest);
        }
        let mut differing = Vec::new();
        for (list, here, there) in [(self, own, others), (other, others, own)] {
            let there: AHashSet<Pinned<&PolicyRules>> =
                there.iter().map(|it| Pinned(&**it)).collect();
            let only = here.iter().filter(|rules| !there.contains(&Pinned(&***rules)));
            // The step for the end of a staged policy's tier counts only if this list contains it.
            let stands =
                |end: &&Step| list.steps.steps.iter().any(|it| Arc::ptr_eq(&it.rule, &end.rule));
            let steps =
                only.flat_map(|it| it.steps.iter().chain(it.tier_end.iter().filter(stands)));
            differing.extend(steps.map(|step| &*step.rule));
        }
        Some(differing)
    }

    /// The index of the steps, by the predicate that they require of the peer. It is built at first use.
    pub(crate) fn index(&self) -> &StepIndex {
        self.index.get_or_init(|| StepIndex::from_steps(&self.steps, &self.peer))
    }

    /// The predicates that its rules use for the peer, in ascending order. The predicates of port sets are included,
    /// and the two predicates of address families are not.
    pub(crate) fn peer_predicates(&self, ports: &[PossiblePorts]) -> Vec<PredicateId> {
        let mut asked = self.peer.predicates.clone();
        for port_set in &self.peer.port_sets {
            let ports = ports.get(*port_set as usize).into_iter().flatten();
            asked.extend(ports.map(|port| port.2));
        }
        asked.retain(|asked| *asked >= Family::ALL.len() as PredicateId);
        asked.sort_unstable();
        asked.dedup();
        asked
    }
}
