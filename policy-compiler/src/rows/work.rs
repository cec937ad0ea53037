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

/// The work that each rule and predicate of a chain, and each predicate of its rows, adds to the chain's bound.
const EACH: usize = 16;

/// The work that every chain may take, however small it is.
pub(super) const LEAST: usize = 1 << 22;

/// All chains of an image together may take this many times the work of the largest one, because pods that share large
/// policies may have a chain each.
const LARGEST: usize = 4;

/// The work that a chain of this size may take.
pub(super) fn of_chain(size: usize, least: usize) -> usize {
    size.saturating_mul(EACH).saturating_add(least)
}

/// The work that all chains together may take, given that of the largest.
pub(super) fn of_all(largest: usize) -> usize {
    largest.saturating_mul(LARGEST)
}

impl Work {
    /// Creates a bound of this much work, and of `bytes` for all rows.
    pub(super) fn new(all: usize, bytes: usize) -> Self {
        Self { left: all, all, bytes }
    }

    /// Creates a value without a bound, for a caller that has another one.
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

    /// Spends work. Returns `None` if less is left.
    pub(super) fn spend(&mut self, steps: usize) -> Option<()> {
        let left = self.left.checked_sub(steps);
        self.left = left.unwrap_or(0);
        left.map(|_| ())
    }

    /// Spends work that has already been done.
    pub(super) fn note(&mut self, steps: usize) {
        self.left = self.left.saturating_sub(steps);
    }

    /// Returns `None` if all rows together take more bytes than they may.
    pub(super) fn fits(&self, bytes: usize) -> Option<()> {
        (bytes <= self.bytes).then_some(())
    }
}
