//! Hashes of what policies say, made when somebody first asks: most of a list's is its rules', and these a compilation may hash
//! beside other work.

use std::hash::{Hash, Hasher};

use super::list::ResolvedList;
use super::policy_rules::PolicyRules;
use crate::common::StableHasher;
use crate::model::Direction;

impl ResolvedList {
    /// A hash of all that its policies say: the same for the same policies in any process that was built alike, and
    /// different (up to 64 bits) for others. Those who write policies gain nothing from a collision but late enforcement of
    /// their own change: what a policy keeps saying hides no change of another.
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
    /// A hash of its name and of its rules of this direction, which is that of its steps.
    fn revision(&self, direction: Direction) -> u64 {
        *self.revision.get_or_init(|| {
            let mut hasher = StableHasher::default();
            (&self.name, self.policy.rules(direction)).hash(&mut hasher);
            hasher.finish()
        })
    }
}
