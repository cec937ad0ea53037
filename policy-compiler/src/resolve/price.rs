//! What the policies of namespaces cost to compile from nothing: known before anything is compiled of them.
//!
//! A price is a number of units of about half a microsecond. It counts the rules of policies that have a namespace, with
//! what they name of both ends ([`PolicyRules::size`]): each policy [`OF_POLICY`] times for the predicates and addresses
//! that it brings along, and once more in each list that it is in, which makes rows. Rows are made for each endpoint if
//! a list asks for something of its own. Policies without a namespace have no price: who may write them may do anything.

use std::collections::BTreeMap;
use std::mem::replace;

use ahash::AHashSet;

use super::list::{Resolved, ResolvedList};
use super::policy_rules::PolicyRules;
use crate::common::Pinned;

/// A rule and what it names cost this many times as much as its place in one more list.
const OF_POLICY: usize = 8;

impl PolicyRules {
    fn is_priced(&self) -> bool {
        !self.name.namespace.is_empty()
    }
}

impl ResolvedList {
    /// The size of its policies that have a price.
    fn priced_size(&self) -> usize {
        self.policy_rules.iter().filter(|it| it.is_priced()).map(|it| it.size).sum()
    }
}

impl Resolved {
    /// The price of the endpoints of each namespace. A policy that has a namespace selects endpoints of that one only.
    pub(crate) fn prices(&self) -> BTreeMap<&str, usize> {
        let mut prices = BTreeMap::new();
        let mut listed = vec![false; self.lists.len()];
        let mut paid = AHashSet::new();
        for (name, lists) in &self.endpoints {
            let price: &mut usize = prices.entry(name.namespace.as_str()).or_default();
            for &at in lists.values() {
                let Some(list) = self.lists.get(at) else { continue };
                let is_first = !replace(&mut listed[at], true);
                if is_first || !list.local.is_empty() {
                    *price = price.saturating_add(list.priced_size());
                }
                if is_first {
                    let rules = list.policy_rules.iter().filter(|it| it.is_priced());
                    let new = rules.filter(|it| paid.insert(Pinned(&***it)));
                    let sizes: usize = new.map(|it| it.size.saturating_mul(OF_POLICY)).sum();
                    *price = price.saturating_add(sizes);
                }
            }
        }
        prices
    }
}
