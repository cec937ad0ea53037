//! A bound on the work for the rows of chains that are walked over. One unit is one step over a rule, a predicate or an
//! interval: some nanoseconds.

/// The work that is left for a chain.
#[derive(Debug)]
pub(super) struct Work {
    left: usize,
    all: usize,
    /// All rows together may take as many bytes as this.
    bytes: usize,
}

/// Each rule and predicate of a chain, and each predicate of its rows, gives it as much work as this.
const EACH: usize = 16;

/// Every chain may take as much work as this, however small it is.
pub(super) const LEAST: usize = 1 << 22;

/// All chains of an image together may take as much work as this many times what the largest may take: pods that share
/// large policies may have a chain each.
const LARGEST: usize = 4;

/// The work of a chain of this size.
pub(super) fn of_chain(size: usize, least: usize) -> usize {
    size.saturating_mul(EACH).saturating_add(least)
}

/// The work of all chains together, given that of the largest.
pub(super) fn of_all(largest: usize) -> usize {
    largest.saturating_mul(LARGEST)
}

impl Work {
    /// This much work, until all rows take `bytes`.
    pub(super) fn new(all: usize, bytes: usize) -> Self {
        Self { left: all, all, bytes }
    }

    /// No bound: the caller has another one.
    pub(super) fn unlimited() -> Self {
        Self::new(usize::MAX, usize::MAX)
    }

    /// The work that was spent.
    pub(super) fn spent(&self) -> usize {
        self.all - self.left
    }

    /// Whether none is left.
    pub(super) fn is_out(&self) -> bool {
        self.left == 0
    }

    /// Spends work; `None` if less is left.
    pub(super) fn spend(&mut self, steps: usize) -> Option<()> {
        let left = self.left.checked_sub(steps);
        self.left = left.unwrap_or(0);
        left.map(|_| ())
    }

    /// Spends work that is done already.
    pub(super) fn note(&mut self, steps: usize) {
        self.left = self.left.saturating_sub(steps);
    }

    /// `None` if all rows together take more bytes than they may.
    pub(super) fn fits(&self, bytes: usize) -> Option<()> {
        (bytes <= self.bytes).then_some(())
    }
}
