//! How bad a problem is.

/// How bad a [`Problem`](super::problem::Problem) is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// Something does not take effect as it was written.
    Error,
    /// Something was ignored.
    Warning,
    /// Nothing is wrong: the input has what only others read.
    Note,
}

impl Severity {
    /// That of the problem which says how many of this severity are not shown: there may be any among them.
    pub(super) fn of_untold(self) -> Self {
        self.min(Self::Warning)
    }
}
