//! Finds the policies that select an endpoint.
//!
//! A policy whose subject is limited to a namespace is tried only for members of that namespace: a cluster has many
//! policies, and few of them can select one endpoint.

use std::collections::HashMap;

use super::Oracle;
use super::policies::Policy;
use super::tiers::Tier;

/// Policies by the namespace to which their subjects are limited; `None` for policies without such a limit.
#[derive(Debug, Default)]
pub(super) struct ByNamespace(HashMap<Option<String>, Vec<Placed>>);

/// A policy, and its place in the order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Placed {
    /// The tier's index.
    pub(super) tier: usize,
    /// Its place in the tier.
    place: usize,
    /// The policy's index.
    pub(super) policy: usize,
}

impl ByNamespace {
    pub(super) fn new(tiers: &[Tier], policies: &[Policy]) -> Self {
        let mut all = Self::default();
        for (tier, of_tier) in tiers.iter().enumerate() {
            for (place, policy) in of_tier.policies.iter().copied().enumerate() {
                let within = policies[policy].subject.within.clone();
                all.0.entry(within).or_default().push(Placed { tier, place, policy });
            }
        }
        all
    }
}

impl Oracle {
    /// The policies that select an endpoint, tier by tier, in the order of each tier.
    pub(super) fn selecting(&self, endpoint: usize) -> Vec<Placed> {
        let member = &self.members.list[endpoint];
        let everywhere = self.by_namespace.0.get(&None);
        let here =
            member.namespace.as_ref().and_then(|_| self.by_namespace.0.get(&member.namespace));
        let may_select = everywhere.into_iter().chain(here).flatten().copied();
        let mut selecting: Vec<Placed> =
            may_select.filter(|it| self.policies[it.policy].subject.has(member)).collect();
        selecting.sort_unstable();
        selecting
    }

    /// Those policies that deny the endpoint everything because they cannot be evaluated, in the order of their names.
    pub(super) fn broken(&self, selecting: &[Placed]) -> Vec<usize> {
        let mut broken: Vec<usize> = selecting.iter().map(|it| it.policy).collect();
        broken.retain(|policy| self.policies[*policy].broken.is_some());
        broken.sort_unstable();
        broken
    }
}
