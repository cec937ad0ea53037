//! Sets of members.

use std::fmt;

use super::members::Member;

/// A set of members, as a function. It is called for one member at a time and caches nothing: a cluster has many
/// members and many policies, and a judgement is about few of either.
pub(super) struct Set {
    /// The namespace that contains all members of the set, if there is one.
    pub(super) within: Option<String>,
    takes: Box<dyn Fn(&Member) -> bool + Send + Sync>,
}

impl Set {
    /// The members for which `takes` is true, within a namespace if one is given.
    pub(super) fn new(
        within: Option<&str>,
        takes: impl Fn(&Member) -> bool + Send + Sync + 'static,
    ) -> Self {
        Self { within: within.map(str::to_owned), takes: Box::new(takes) }
    }

    /// Whether a member is in the set.
    pub(super) fn has(&self, member: &Member) -> bool {
        (self.within.is_none() || self.within == member.namespace) && (self.takes)(member)
    }
}

impl fmt::Debug for Set {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Set").field("within", &self.within).finish_non_exhaustive()
    }
}
