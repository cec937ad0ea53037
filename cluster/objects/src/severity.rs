//! The severity of a problem.

/// The severity of a [`Problem`](super::problem::Problem).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// Something does not take effect as it was written.
    Error,
    /// Something was ignored.
    Warning,
    /// Nothing is wrong: the input contains objects that only other programs read.
    Note,
}

impl Severity {
    /// The severity of the problem that counts those of this severity which are not shown: at least
    /// a warning, so that it is not overlooked.
    pub(super) fn of_untold(self) -> Self {
        self.min(Self::Warning)
    }
}
