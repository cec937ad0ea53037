//! The policies that may select a local endpoint, in the order in which they are judged.

use std::collections::BTreeSet;
use std::sync::Arc;

use ahash::{AHashMap, AHashSet};

use super::LocalName;
use crate::model::{Model, NAMESPACE, Policy, PolicyName};
use crate::selector::LabelSource;

/// Which policies may select one of some local endpoints, by where they are in memory: as long as one is kept here, nothing
/// else is there.
#[derive(Debug, Default)]
pub(crate) struct Candidates {
    local: BTreeSet<LocalName>,
    known: AHashMap<usize, (Arc<Policy>, bool)>,
}

impl Candidates {
    /// Forgets what is not of these endpoints, and most of the policies that are no more.
    fn keep(&mut self, model: &Model, local: &BTreeSet<LocalName>) {
        if self.local != *local || self.known.len() > model.policies.len() * 2 {
            *self = Self { local: local.clone(), known: AHashMap::new() };
            self.known.reserve(model.policies.len());
        }
    }

    /// Whether a policy may select one of them, whose namespaces `here` knows.
    fn may_select(&mut self, policy: &Arc<Policy>, here: &impl Fn(&str) -> bool) -> bool {
        let known = self.known.entry(Arc::as_ptr(policy).addr());
        known.or_insert_with(|| (Arc::clone(policy), policy.selector.may_match(NAMESPACE, here))).1
    }
}
/// The policies, sorted for evaluation, and found by the namespace that their selector asks for.
pub(super) struct Ordered<'m> {
    /// Tier by tier, in order.
    all: Vec<(&'m PolicyName, &'m Policy)>,
    /// Indexes of those that may select an endpoint of a namespace.
    by_namespace: AHashMap<String, Vec<usize>>,
    /// Indexes of those that name none.
    anywhere: Vec<usize>,
}

impl<'m> Ordered<'m> {
    /// The policies that may select one of `local`; the others, as a rule nearly all, are not even sorted.
    pub(super) fn new(
        model: &'m Model,
        local: &BTreeSet<LocalName>,
        known: &mut Candidates,
    ) -> Self {
        let namespaces: AHashSet<&str> = local.iter().map(|name| name.namespace.as_str()).collect();
        let here = |namespace: &str| namespaces.contains(namespace);
        known.keep(model, local);
        let candidates =
            model.policies.iter().filter(|(_, policy)| known.may_select(policy, &here));
        let mut all: Vec<_> = candidates
            .map(|(name, policy)| {
                let tier = model.tier_place(&policy.tier);
                ((tier, policy.order, name.sort_key()), name, policy.as_ref())
            })
            .collect();
        all.sort_unstable_by(|a, b| a.0.cmp(&b.0));
        let mut ordered =
            Self { all: Vec::new(), by_namespace: AHashMap::new(), anywhere: Vec::new() };
        for (index, (_, name, policy)) in all.into_iter().enumerate() {
            ordered.all.push((name, policy));
            match policy.selector.required_values(NAMESPACE) {
                Some(namespaces) => {
                    for namespace in namespaces {
                        ordered.by_namespace.entry(namespace.to_owned()).or_default().push(index);
                    }
                }
                None => ordered.anywhere.push(index),
            }
        }
        ordered
    }

    /// The policies that select a member, in order.
    pub(super) fn selecting(&self, view: &impl LabelSource) -> Vec<(&'m PolicyName, &'m Policy)> {
        let namespaced = view.label(NAMESPACE).and_then(|name| self.by_namespace.get(name));
        let mut indexes: Vec<usize> =
            namespaced.into_iter().flatten().chain(&self.anywhere).copied().collect();
        indexes.sort_unstable();
        let candidates = indexes.into_iter().filter_map(|index| self.all.get(index).copied());
        candidates.filter(|(_, policy)| policy.selector.matches(view)).collect()
    }
}
