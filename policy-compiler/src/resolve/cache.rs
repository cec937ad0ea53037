//! The resolve cache: the results of earlier resolutions. With it, a changed policy costs only its own rules and the
//! lists that contain it.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

use ahash::{AHashMap, AHashSet};

use super::list::{List, Lists, LocalName, ResolvedList};
use super::order::{NamedPolicy, OrderedPolicy};
use super::policy_rules::PolicyRules;
use super::size;
use super::steps::Step;
use super::terms::terms_of;
use super::vocabulary::Vocabulary;
use crate::common::Pinned;
use crate::model::{Direction, Endpoint, Failsafe, Mark, Model, Policy, Reason, Tier};

/// The number of unused entries that are kept, in addition to as many as are in use.
const SPARE: usize = 256;

/// The resolved rules of each policy, with the number of the resolution that last used them.
type Rules = AHashMap<Pinned<Arc<Policy>>, (Arc<PolicyRules>, u64)>;

/// The resolve cache. All numbers in it belong to one vocabulary.
#[derive(Debug, Default)]
pub(crate) struct ResolveCache {
    pub(crate) vocabulary: Vocabulary,
    /// The resolved rules, by direction.
    rules: [Rules; 2],
    lists: AHashMap<Arc<List>, CachedList>,
    context: Option<Context>,
    /// The policies of the local pods.
    pub(super) pods: BTreeMap<Arc<LocalName>, PodPolicies>,
    /// The value of `PolicyOrder::turn` when `pods` was computed.
    pub(super) pods_at: u64,
    /// The number of resolutions so far.
    turn: u64,
}

/// The policies of an endpoint.
#[derive(Debug)]
pub(super) struct PodPolicies {
    pub(super) pod: Arc<Endpoint>,
    /// The policies that select it, in order.
    pub(super) selecting: Vec<Arc<OrderedPolicy>>,
    pub(super) lists: Lists<Arc<ResolvedList>>,
}

/// The inputs of all lists, except their policies. If these change, no stored list is valid.
#[derive(Debug, PartialEq)]
struct Context {
    tiers: BTreeMap<String, Tier>,
    failsafe: Failsafe,
    profiles: Mark,
}

#[derive(Debug)]
struct CachedList {
    resolved: Arc<ResolvedList>,
    /// The policies from which it was resolved.
    policies: Vec<Arc<Policy>>,
}

impl ResolveCache {
    /// Begins a resolution.
    pub(super) fn begin_turn(&mut self, model: &Model) {
        let around = Context {
            tiers: model.tiers.clone(),
            failsafe: model.failsafe.clone(),
            profiles: model.profiles.mark(),
        };
        if self.context.as_ref() != Some(&around) {
            self.lists.clear();
            self.pods.clear();
            self.context = Some(around);
        }
        self.turn += 1;
    }

    /// Ends a resolution. If there are too many unused entries, forgets them.
    pub(super) fn end_turn(&mut self, lists: &[Arc<ResolvedList>]) {
        let turn = self.turn;
        if self.lists.len() > lists.len() * 2 + SPARE {
            let used: AHashSet<Pinned<&ResolvedList>> =
                lists.iter().map(|it| Pinned(&**it)).collect();
            self.lists.retain(|_, it| used.contains(&Pinned(&*it.resolved)));
        }
        // If a list is reused, its rules are not looked up, so they may carry an earlier turn although they are in use.
        // If they are forgotten here, they are only resolved again when another list needs them.
        for (direction, rules) in Direction::ALL.into_iter().zip(&mut self.rules) {
            let of_direction = |list: &&Arc<List>| list.direction == direction;
            let named = || self.lists.keys().filter(of_direction).map(|list| list.policies.len());
            if rules.len() > SPARE && rules.len() > named().sum::<usize>() * 2 {
                rules.retain(|_, (_, used)| *used == turn);
            }
        }
    }

    /// The stored list, if its policies are unchanged.
    pub(super) fn list(
        &self,
        list: &List,
        policies: &[NamedPolicy<'_>],
    ) -> Option<&Arc<ResolvedList>> {
        let known = self.lists.get(list)?;
        let same = known.policies.len() == policies.len()
            && known.policies.iter().zip(policies).all(|(old, (_, new))| Arc::ptr_eq(old, new));
        same.then_some(&known.resolved)
    }

    /// Stores a list.
    pub(super) fn insert_list(
        &mut self,
        resolved: &Arc<ResolvedList>,
        policies: &[NamedPolicy<'_>],
    ) {
        let policies = policies.iter().map(|(_, policy)| Arc::clone(policy)).collect();
        let resolved = Arc::clone(resolved);
        let list = Arc::clone(&resolved.list);
        self.lists.insert(list, CachedList { resolved, policies });
    }

    /// The stored rules of a policy, if there are any.
    pub(super) fn rules(
        &mut self,
        direction: Direction,
        (name, policy): NamedPolicy<'_>,
    ) -> Option<Arc<PolicyRules>> {
        let (known, used) = self.rules[direction as usize].get_mut(&Pinned(Arc::clone(policy)))?;
        // Two policies with different names may share one value.
        if !Arc::ptr_eq(&known.name, name) && known.name != *name {
            return None;
        }
        *used = self.turn;
        Some(Arc::clone(known))
    }

    /// Stores the rules of a policy.
    pub(super) fn insert_rules(
        &mut self,
        direction: Direction,
        (name, policy): NamedPolicy<'_>,
        steps: Vec<Step>,
        tier_end: Option<Step>,
    ) -> Arc<PolicyRules> {
        let terms = terms_of(&steps);
        let rules = Arc::new(PolicyRules {
            name: Arc::clone(name),
            policy: Arc::clone(policy),
            size: size::size(&steps, &terms, &self.vocabulary),
            terms,
            isolated: Arc::new(Reason::Isolated(direction, (**name).clone()).into()),
            tier_end,
            steps: steps.into(),
            revision: OnceLock::new(),
        });
        let key = Pinned(Arc::clone(&rules.policy));
        self.rules[direction as usize].insert(key, (Arc::clone(&rules), self.turn));
        rules
    }
}
