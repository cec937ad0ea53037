//! A bound on the work for the rows of chains that are walked over. One unit is one step over a rule, a predicate or an
//! interval, which takes some nanoseconds.

/// The work that is left for a chain.
#[derive(Debug)]
pub(super) struct Work {
    left: usize,
    all: usize,
    /// The largest number of bytes that all rows together may take.
    bytes: usize,
}

/// A chain's bound of work grows by this for each unit of the chain's size (rules, their terms for peers, rows, and
/// predicates of rows).
const EACH: usize = 16;

/// The work that every chain may take, in addition to the part for its size.
pub(super) const LEAST: usize = 1 << 22;

/// All chains of an image together may take this many times the bound of the largest chain. A single bound for all is
/// needed because pods with the same large policies may each have their own chain.
const LARGEST: usize = 4;

/// The work that a chain of this size may take.
pub(super) fn of_chain(size: usize, least: usize) -> usize {
    size.saturating_mul(EACH).saturating_add(least)
}

/// The work that all chains together may take, given the bound of the largest chain.
pub(super) fn of_all(largest: usize) -> usize {
    largest.saturating_mul(LARGEST)
}

impl Work {
    /// Creates a bound: `all` for the work, and `bytes` for the memory of all rows.
    pub(super) fn new(all: usize, bytes: usize) -> Self {
        Self { left: all, all, bytes }
    }

    /// Creates a value without a bound, for a caller whose work is bounded by other means.
    pub(super) fn unlimited() -> Self {
        Self::new(usize::MAX, usize::MAX)
    }

    /// The work that was spent.
    pub(super) fn spent(&self) -> usize {
        self.all - self.left
    }

    /// Whether no work is left.
    pub(super) fn is_out(&self) -> bool {
        self.left == 0
    }

    /// Spends work. If less than that is left, nothing remains and the result is `None`.
    pub(super) fn spend(&mut self, steps: usize) -> Option<()> {
        let left = self.left.checked_sub(steps);
        self.left = left.unwrap_or(0);
        left.map(|_| ())
    }

    /// Spends work that has already been done, even if less is left.
    pub(super) fn note(&mut self, steps: usize) {
        self.left = self.left.saturating_sub(steps);
    }

    /// Returns `None` if all rows together take `bytes` bytes and this exceeds the bound.
    pub(super) fn fits(&self, bytes: usize) -> Option<()> {
        (bytes <= self.bytes).then_some(())
    }
}
