//! The severity of a problem.

/// The severity of a [`Problem`](super::problem::Problem).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// A part of the input does not take effect as written.
    Error,
    /// Something was ignored.
    Warning,
    /// Nothing is wrong: the input contains objects that only other programs read.
    Note,
}

impl Severity {
    /// Returns the severity of the problem that counts unreported problems of this severity. It is
    /// at least a warning, so that it is not overlooked.
    pub(super) fn of_untold(self) -> Self {
        self.min(Self::Warning)
    }
}
