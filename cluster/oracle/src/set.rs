//! Sets of members.

use std::fmt;

use super::members::Member;

/// A set of members, as a function. It is called for one member at a time and caches nothing, because a cluster has
/// many members and many policies, and a single judgement concerns only a few of them.
pub(super) struct Set {
    /// The namespace that contains all members of the set, if there is one.
    pub(super) within: Option<String>,
    takes: Box<dyn Fn(&Member) -> bool + Send + Sync>,
}

impl Set {
    /// Returns the set of the members for which `takes` is true. If a namespace is given, the set is limited to it.
    pub(super) fn new(
        within: Option<&str>,
        takes: impl Fn(&Member) -> bool + Send + Sync + 'static,
    ) -> Self {
        Self { within: within.map(str::to_owned), takes: Box::new(takes) }
    }

    /// Returns whether a member is in the set.
    pub(super) fn has(&self, member: &Member) -> bool {
        (self.within.is_none() || self.within == member.namespace) && (self.takes)(member)
    }
}

impl fmt::Debug for Set {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Set").field("within", &self.within).finish_non_exhaustive()
    }
}
