//! Hashes of the content of policies, computed at first use. Most of the work is hashing rules, which a compilation may
//! do on a second thread.

use std::hash::{Hash, Hasher};

use super::list::ResolvedList;
use super::policy_rules::PolicyRules;
use crate::common::StableHasher;
use crate::model::Direction;

impl ResolvedList {
    /// A hash of the list and of the content of its policies. Equal policies have equal hashes in every process of one
    /// build, and different policies have different hashes (within 64 bits). If the author of a policy finds a
    /// collision, only the enforcement of that author's own change is delayed. No policy can hide a change of another
    /// policy.
    pub(crate) fn revision(&self) -> u64 {
        *self.revision.get_or_init(|| {
            let mut hasher = StableHasher::default();
            self.context_hash.hash(&mut hasher);
            for rules in &self.policy_rules {
                rules.revision(self.list.direction).hash(&mut hasher);
            }
            hasher.finish()
        })
    }
}

impl PolicyRules {
    /// A hash of the policy's name and of its rules in this direction.
    fn revision(&self, direction: Direction) -> u64 {
        *self.revision.get_or_init(|| {
            let mut hasher = StableHasher::default();
            (&self.name, self.policy.rules(direction)).hash(&mut hasher);
            hasher.finish()
        })
    }
}
