//! Finds the policies that select an endpoint.

use super::by_namespace::Placed;
use super::oracle::Oracle;

impl Oracle {
    /// The policies that select an endpoint, tier by tier, in the order of each tier.
    pub(super) fn selecting(&self, endpoint: usize) -> Vec<Placed> {
        let member = &self.members.list[endpoint];
        let may_select = self.by_namespace.of(member);
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
