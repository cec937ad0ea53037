//! The policies that may select an endpoint, by the namespace to which their subjects are limited.
//!
//! A policy whose subject is limited to a namespace is tried only for members of that namespace: a cluster has many
//! policies, and few of them can select one endpoint.

use std::collections::HashMap;

use super::members::Member;
use super::policies::Policy;
use super::tiers::Tier;

/// Policies by the namespace to which their subjects are limited; `None` for policies without such a limit.
#[derive(Debug, Default)]
pub(super) struct ByNamespace(HashMap<Option<String>, Vec<Placed>>);

/// A policy with its place in the order.
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

    /// The policies that may select a member.
    pub(super) fn of(&self, member: &Member) -> impl Iterator<Item = Placed> {
        let everywhere = self.0.get(&None);
        let here = member.namespace.as_ref().and_then(|_| self.0.get(&member.namespace));
        everywhere.into_iter().chain(here).flatten().copied()
    }
}
