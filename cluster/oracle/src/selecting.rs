//! The policies that may select an endpoint, by the namespace to which their subjects are limited.
//!
//! A policy whose subject is limited to a namespace is tried only for members of that namespace. The reason is that a
//! cluster has many policies, and only a few of them can select a given endpoint.

use std::collections::HashMap;

use super::members::Member;
use super::policies::Policy;
use super::tiers::Tier;

/// Policies by the namespace to which their subjects are limited. The key is `None` for policies without such a limit.
#[derive(Debug, Default)]
pub(super) struct ByNamespace(HashMap<Option<String>, Vec<Placed>>);

/// A policy and its place in the order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Placed {
    /// The index of the tier.
    pub(super) tier: usize,
    /// The place within the tier.
    place: usize,
    /// The index of the policy.
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

    /// Returns the policies that may select a member.
    pub(super) fn of(&self, member: &Member) -> impl Iterator<Item = Placed> {
        let everywhere = self.0.get(&None);
        let here = member.namespace.as_ref().and_then(|_| self.0.get(&member.namespace));
        everywhere.into_iter().chain(here).flatten().copied()
    }
}
