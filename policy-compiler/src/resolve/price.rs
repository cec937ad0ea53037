//! The price of a namespace's policies: an estimate, before compilation, of the cost of compiling them from nothing.
//!
//! A price is a number of units of about half a microsecond. It counts the rules of policies that have a namespace,
//! with the terms in them (their [size](super::size)). A policy counts [`OF_POLICY`] times for its predicates and
//! addresses, and once more for the rows of each list that contains it. If the rules of a policy test the local
//! endpoint itself, a list may need rows of its own for each endpoint. So such a policy counts once more for each
//! endpoint of the list that needs its own rows. Policies without a namespace have no price, because their authors are
//! trusted with the whole cluster.

use std::collections::BTreeMap;
use std::mem::replace;
use std::sync::Arc;

use ahash::AHashSet;

use super::list::{Resolved, ResolvedList};
use super::policy_rules::PolicyRules;
use super::size::PricedSizes;
use crate::common::Pinned;
use crate::model::Model;

/// A policy has a fixed cost (for its predicates and addresses) and a cost for each list that contains it. The fixed
/// cost is this many times the cost for one list.
const OF_POLICY: usize = 8;

impl ResolvedList {
    /// The policies of the list that have a price.
    fn priced(&self) -> impl Iterator<Item = &Arc<PolicyRules>> {
        self.policy_rules.iter().filter(|it| it.is_priced())
    }
}

impl Resolved {
    /// The price of each namespace, added up over the namespace's local endpoints. A policy that has a namespace
    /// selects only endpoints of that namespace.
    pub(crate) fn prices(&self, model: &Model) -> BTreeMap<&str, usize> {
        let mut prices = BTreeMap::new();
        let mut listed = vec![false; self.lists.len()];
        let (mut paid, mut rows) = (AHashSet::new(), AHashSet::new());
        for (name, lists) in &self.endpoints {
            let price: &mut usize = prices.entry(name.namespace.as_str()).or_default();
            for &at in lists.values() {
                let Some(list) = self.lists.get(at).filter(|it| it.priced_sizes.all > 0) else {
                    continue;
                };
                let PricedSizes { all, of_local } = list.priced_sizes;
                let is_first = !replace(&mut listed[at], true);
                if is_first {
                    let new = list.priced().filter(|it| paid.insert(Pinned(&***it)));
                    let sizes: usize = new.map(|it| it.size.saturating_mul(OF_POLICY)).sum();
                    *price = price.saturating_add(sizes).saturating_add(all);
                }
                // Replicas of one pod (with equal labels and named ports) share one set of rows if the list uses no
                // local predicate other than named ports.
                let differs = of_local > 0
                    && model.endpoints.get(&**name).is_none_or(|pod| {
                        !list.local.predicates.is_empty()
                            || rows.insert((at, Arc::as_ptr(&pod.labels), &pod.named_ports))
                    });
                if differs && !is_first {
                    *price = price.saturating_add(of_local);
                }
            }
        }
        prices
    }
}
