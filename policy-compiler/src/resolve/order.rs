//! The policy order: the policies that may select a local endpoint, in the order of evaluation. It is kept from one
//! resolution to the next, so a changed policy costs only the update of its own position.

use std::cell::LazyCell;
use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};
use std::mem::take;
use std::sync::Arc;

use ahash::{AHashMap, AHashSet};

use super::list::LocalName;
use super::required_label::ByRequiredLabel;
use crate::model::{Direction, LabelView, Mark, Model, Order, Policy, PolicyName, Tier};
use crate::selector::{LabelSource, NAMESPACE};

/// A policy and its name.
pub(super) type NamedPolicy<'m> = (&'m Arc<PolicyName>, &'m Arc<Policy>);

type OwnedPolicy = (Arc<PolicyName>, Arc<Policy>);

/// The policy order.
#[derive(Debug, Default)]
pub(crate) struct PolicyOrder {
    /// The namespaces of the local endpoints.
    namespaces: AHashSet<String>,
    tiers: BTreeMap<String, Tier>,
    /// The policies that may select a local endpoint, as they were when the model's policies had the mark `mark`.
    known: BTreeMap<Arc<PolicyName>, Arc<Policy>>,
    mark: Option<Mark>,
    /// The number of refreshes.
    pub(super) turn: u64,
    /// The policies that require a namespace, by namespace.
    by_namespace: AHashMap<String, ByRequiredLabel<Arc<OrderedPolicy>>>,
    /// The policies that require no namespace.
    anywhere: ByRequiredLabel<Arc<OrderedPolicy>>,
}

/// With more changes than this, the order is built again. Applying a single change moves all policies after it in the
/// lists.
const MOST_CHANGES: usize = 64;

/// A policy with the keys that determine its position in the order.
#[derive(Debug)]
pub(super) struct OrderedPolicy {
    /// The sort key of its tier: see [`Model::tier_sort_key`].
    tier: (bool, Order),
    sort_key: String,
    name: Arc<PolicyName>,
    policy: Arc<Policy>,
}

/// The policies that were removed and added since the last refresh. A policy that has changed is in both lists.
#[derive(Debug, Default)]
pub(super) struct PolicyDelta {
    removed: Vec<OwnedPolicy>,
    added: Vec<Arc<OrderedPolicy>>,
}

impl PolicyDelta {
    /// Applies the delta to the policies that select a member. Returns, for each direction, whether a policy with rules
    /// of that direction was added or removed. `view` gives the labels of the member that selectors see.
    pub(super) fn apply<V: LabelSource>(
        &self,
        selecting: &mut Vec<Arc<OrderedPolicy>>,
        view: impl FnOnce() -> V,
    ) -> [bool; 2] {
        let view = LazyCell::new(view);
        let mut touched = [false; 2];
        let mut touch = |policy: &Policy| {
            for direction in Direction::ALL {
                touched[direction as usize] |= policy.rules(direction).is_some();
            }
        };
        for (name, policy) in &self.removed {
            let is_it =
                |it: &Arc<OrderedPolicy>| Arc::ptr_eq(&it.policy, policy) && it.name == *name;
            if let Some(at) = selecting.iter().position(is_it) {
                touch(policy);
                selecting.remove(at);
            }
        }
        for placed in &self.added {
            if placed.policy.selector.is_all() || placed.policy.selector.matches(&*view) {
                touch(&placed.policy);
                let is_before =
                    |it: &Arc<OrderedPolicy>| OrderedPolicy::cmp(it, placed) == Ordering::Less;
                selecting.insert(selecting.partition_point(is_before), Arc::clone(placed));
            }
        }
        touched
    }
}

impl OrderedPolicy {
    fn new(model: &Model, name: &Arc<PolicyName>, policy: &Arc<Policy>) -> Self {
        let (missing, order, _) = model.tier_sort_key(&policy.tier);
        Self {
            tier: (missing, order),
            sort_key: name.sort_key(),
            name: Arc::clone(name),
            policy: Arc::clone(policy),
        }
    }

    pub(super) fn named(&self) -> NamedPolicy<'_> {
        (&self.name, &self.policy)
    }

    fn cmp(&self, other: &Self) -> Ordering {
        self.tier
            .cmp(&other.tier)
            .then_with(|| self.policy.tier.cmp(&other.policy.tier))
            .then_with(|| self.policy.order.cmp(&other.policy.order))
            .then_with(|| self.sort_key.cmp(&other.sort_key))
    }
}

impl PolicyOrder {
    /// Updates the order to a model and to these local endpoints. Returns what has changed, or `None` if everything may
    /// have changed.
    pub(super) fn refresh(
        &mut self,
        model: &Model,
        local: &BTreeSet<LocalName>,
    ) -> Option<PolicyDelta> {
        self.turn += 1;
        let same_namespaces = {
            let mut namespaces: Vec<&str> = local.iter().map(|it| it.namespace.as_str()).collect();
            namespaces.dedup();
            namespaces.len() == self.namespaces.len()
                && namespaces.into_iter().all(|it| self.namespaces.contains(it))
        };
        if !same_namespaces || self.tiers != model.tiers {
            *self = Self {
                namespaces: local.iter().map(|name| name.namespace.clone()).collect(),
                tiers: model.tiers.clone(),
                turn: self.turn,
                ..Self::default()
            };
        }
        let (mut gone, mut come) = self.differences(model);
        if self.mark.is_some() && gone.len() + come.len() > MOST_CHANGES {
            let (namespaces, tiers) = (take(&mut self.namespaces), take(&mut self.tiers));
            *self = Self { namespaces, tiers, turn: self.turn, ..Self::default() };
            (gone, come) = self.differences(model);
        }
        let is_first = self.mark.is_none();
        let mut changes = PolicyDelta::default();
        for name in gone {
            if let Some(policy) = self.known.remove(&name) {
                self.remove(model, &name, &policy);
                changes.removed.push((name, policy));
            }
        }
        for (name, policy) in &come {
            changes.added.extend(self.insert(model, name, policy, is_first));
        }
        if is_first {
            self.known = come.into_iter().collect();
        } else {
            self.known.extend(come);
        }
        self.mark = Some(model.policies.mark());
        if is_first {
            let all = self.by_namespace.values_mut().chain([&mut self.anywhere]);
            for list in all.flat_map(ByRequiredLabel::lists_mut) {
                list.sort_unstable_by(|a, b| a.cmp(b));
            }
            return None;
        }
        Some(changes)
    }

    /// Two lists: the policies that were removed or changed, and the policies that were added or changed.
    fn differences(&self, model: &Model) -> (Vec<Arc<PolicyName>>, Vec<OwnedPolicy>) {
        let (mut gone, mut come) = (Vec::new(), Vec::new());
        let here = |namespace: &str| self.namespaces.contains(namespace);
        let is_near = |policy: &Policy| policy.selector.may_match(NAMESPACE, &here);
        if let Some(names) = self.mark.as_ref().and_then(|mark| model.policies.since(mark)) {
            for name in names.into_keys() {
                let (was, is) = (self.known.get_key_value(name), model.policies.get(name));
                if was.zip(is).is_some_and(|((_, was), is)| Arc::ptr_eq(was, is)) {
                    continue;
                }
                gone.extend(was.map(|(name, _)| Arc::clone(name)));
                let is = is.filter(|policy| is_near(policy));
                come.extend(is.map(|policy| (Arc::new(name.clone()), Arc::clone(policy))));
            }
            return (gone, come);
        }
        let mut old = self.known.iter().peekable();
        for (name, policy) in &model.policies {
            while let Some((before, _)) = old.next_if(|(other, _)| ***other < *name) {
                gone.push(Arc::clone(before));
            }
            match old.next_if(|(other, _)| ***other == *name) {
                Some((_, was)) if Arc::ptr_eq(was, policy) => continue,
                Some((before, _)) => gone.push(Arc::clone(before)),
                None => {}
            }
            if is_near(policy) {
                come.push((Arc::new(name.clone()), Arc::clone(policy)));
            }
        }
        gone.extend(old.map(|(name, _)| Arc::clone(name)));
        (gone, come)
    }

    /// Visits the lists to which a policy belongs.
    fn lists(&mut self, policy: &Policy, mut each: impl FnMut(&mut Vec<Arc<OrderedPolicy>>)) {
        let Self { namespaces, by_namespace, anywhere, .. } = self;
        let Some(wanted) = policy.selector.required_values(NAMESPACE) else {
            return anywhere.edit(&policy.selector, each);
        };
        for namespace in wanted.into_iter().filter(|it| namespaces.contains(*it)) {
            let here = by_namespace.entry(namespace.to_owned()).or_default();
            here.edit(&policy.selector, &mut each);
        }
    }

    fn remove(&mut self, model: &Model, name: &Arc<PolicyName>, policy: &Arc<Policy>) {
        let placed = OrderedPolicy::new(model, name, policy);
        self.lists(policy, |list| {
            let first =
                list.partition_point(|other| OrderedPolicy::cmp(other, &placed) == Ordering::Less);
            let is_it = |other: &Arc<OrderedPolicy>| *other.name == **name;
            if let Some(at) = list.iter().skip(first).position(is_it) {
                list.remove(first + at);
            }
        });
    }

    /// Inserts a policy. If `unsorted` is true, the policy goes to the end of each list, and the caller sorts the lists
    /// later. Returns `None` if the policy belongs to no list.
    fn insert(
        &mut self,
        model: &Model,
        name: &Arc<PolicyName>,
        policy: &Arc<Policy>,
        unsorted: bool,
    ) -> Option<Arc<OrderedPolicy>> {
        let mut placed = None;
        self.lists(policy, |list| {
            let placed =
                placed.get_or_insert_with(|| Arc::new(OrderedPolicy::new(model, name, policy)));
            let at = if unsorted {
                list.len()
            } else {
                list.partition_point(|other| OrderedPolicy::cmp(other, placed) == Ordering::Less)
            };
            list.insert(at, Arc::clone(placed));
        });
        placed
    }

    /// The policies that select an endpoint, in order.
    pub(super) fn selecting(&self, view: &LabelView<'_>) -> Vec<Arc<OrderedPolicy>> {
        let of_namespace = view.value(NAMESPACE).and_then(|name| self.by_namespace.get(name));
        let places = of_namespace.into_iter().chain([&self.anywhere]);
        let candidates = places.flat_map(|place| place.candidates(view));
        let selecting = candidates.filter(|it| it.policy.selector.matches(view));
        let mut selecting: Vec<_> = selecting.map(Arc::clone).collect();
        selecting.sort_by(|a, b| OrderedPolicy::cmp(a, b));
        selecting.dedup_by(|a, b| Arc::ptr_eq(a, b));
        selecting
    }
}
