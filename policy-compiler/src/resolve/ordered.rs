//! The policies that may select a local endpoint, in the order in which they are judged: kept from one resolution to the
//! next, so that a policy that changes costs its own place.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use ahash::AHashMap;

use super::LocalName;
use crate::model::{Model, NAMESPACE, Order, Policy, PolicyName, Tier};
use crate::selector::LabelSource;

/// A policy and its name.
pub(super) type Speaking<'m> = (&'m PolicyName, &'m Arc<Policy>);

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Ordered {
    /// Those of the local endpoints.
    namespaces: BTreeSet<String>,
    tiers: BTreeMap<String, Tier>,
    /// Every policy of the model.
    known: BTreeMap<PolicyName, Arc<Policy>>,
    /// Those that may select an endpoint of a namespace, in order.
    by_namespace: AHashMap<String, Vec<Arc<Placed>>>,
    /// Those that name none, in order.
    anywhere: Vec<Arc<Placed>>,
}

#[derive(Debug)]
struct Placed {
    /// Of its tier: see [`Model::tier_place`].
    tier: (bool, Order),
    sort_key: String,
    name: PolicyName,
    policy: Arc<Policy>,
}

impl Placed {
    fn cmp(&self, other: &Self) -> Ordering {
        self.tier
            .cmp(&other.tier)
            .then_with(|| self.policy.tier.cmp(&other.policy.tier))
            .then_with(|| self.policy.order.cmp(&other.policy.order))
            .then_with(|| self.sort_key.cmp(&other.sort_key))
    }
}

impl Ordered {
    /// Brings it up to a model, for these endpoints.
    pub(super) fn follow(&mut self, model: &Model, local: &BTreeSet<LocalName>) {
        let same_namespaces = {
            let mut namespaces: Vec<&str> = local.iter().map(|it| it.namespace.as_str()).collect();
            namespaces.dedup();
            namespaces.into_iter().eq(self.namespaces.iter().map(String::as_str))
        };
        if !same_namespaces || self.tiers != model.tiers {
            *self = Self {
                namespaces: local.iter().map(|name| name.namespace.clone()).collect(),
                tiers: model.tiers.clone(),
                ..Self::default()
            };
        }
        let is_first = self.known.is_empty();
        let (gone, come) = self.differences(model);
        for name in gone {
            if let Some(policy) = self.known.remove(&name) {
                self.take_out(&name, &policy);
            }
        }
        for (name, policy) in come {
            self.put_in(model, &name, &policy, is_first);
            self.known.insert(name, policy);
        }
        if is_first {
            for list in self.by_namespace.values_mut().chain([&mut self.anywhere]) {
                list.sort_unstable_by(|a, b| a.cmp(b));
            }
        }
    }

    /// The policies that are no more as they were, and those that are new.
    fn differences(&self, model: &Model) -> (Vec<PolicyName>, Vec<(PolicyName, Arc<Policy>)>) {
        let (mut gone, mut come) = (Vec::new(), Vec::new());
        let mut old = self.known.iter().peekable();
        for (name, policy) in &model.policies {
            let same = |was: &Speaking<'_>| Arc::ptr_eq(was.1, policy) && was.0 == name;
            if old.next_if(same).is_some() {
                continue;
            }
            while let Some((before, _)) = old.next_if(|(other, _)| *other < name) {
                gone.push(before.clone());
            }
            match old.next_if(|(other, _)| *other == name) {
                Some((_, was)) if Arc::ptr_eq(was, policy) => continue,
                Some(_) => gone.push(name.clone()),
                None => {}
            }
            come.push((name.clone(), Arc::clone(policy)));
        }
        gone.extend(old.map(|(name, _)| name.clone()));
        (gone, come)
    }

    /// The lists in which a policy stands.
    fn lists(&mut self, policy: &Policy, mut each: impl FnMut(&mut Vec<Arc<Placed>>)) {
        let Self { namespaces, by_namespace, anywhere, .. } = self;
        let here = |namespace: &str| namespaces.contains(namespace);
        if !policy.selector.may_match(NAMESPACE, &here) {
            return;
        }
        let Some(wanted) = policy.selector.required_values(NAMESPACE) else {
            return each(anywhere);
        };
        for namespace in wanted.into_iter().filter(|it| here(it)) {
            if let Some(list) = by_namespace.get_mut(namespace) {
                each(list);
            } else {
                each(by_namespace.entry(namespace.to_owned()).or_default());
            }
        }
    }

    fn take_out(&mut self, name: &PolicyName, policy: &Policy) {
        self.lists(policy, |list| list.retain(|placed| placed.name != *name));
    }

    /// `unsorted`: all are sorted afterwards.
    fn put_in(&mut self, model: &Model, name: &PolicyName, policy: &Arc<Policy>, unsorted: bool) {
        let mut placed = None;
        self.lists(policy, |list| {
            let placed = placed.get_or_insert_with(|| {
                let (missing, order, _) = model.tier_place(&policy.tier);
                Arc::new(Placed {
                    tier: (missing, order),
                    sort_key: name.sort_key(),
                    name: name.clone(),
                    policy: Arc::clone(policy),
                })
            });
            let at = if unsorted {
                list.len()
            } else {
                list.partition_point(|other| Placed::cmp(other, placed) == Ordering::Less)
            };
            list.insert(at, Arc::clone(placed));
        });
    }

    /// The policies that select a member, in order.
    pub(super) fn selecting(&self, view: &impl LabelSource) -> Vec<Speaking<'_>> {
        let of_namespace = view.label(NAMESPACE).and_then(|name| self.by_namespace.get(name));
        let mut here = of_namespace.map(Vec::as_slice).unwrap_or_default().iter().peekable();
        let mut anywhere = self.anywhere.iter().peekable();
        let mut selecting = Vec::new();
        loop {
            let first = match (here.peek(), anywhere.peek()) {
                (Some(a), Some(b)) if Placed::cmp(a, b) == Ordering::Less => here.next(),
                (_, Some(_)) => anywhere.next(),
                _ => here.next(),
            };
            let Some(placed) = first else { return selecting };
            if placed.policy.selector.matches(view) {
                selecting.push((&placed.name, &placed.policy));
            }
        }
    }
}
