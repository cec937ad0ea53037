//! The number of truths of a compilation. A truth is one predicate that is true of one member, or of the addresses of
//! one class. A compilation takes time and memory in proportion to the number of truths. This number may grow with the
//! square of the size of policies and network sets: if each of many sets contains all addresses, the predicate of each
//! set is true of every address.

use crate::model::Model;

/// The limit for the truths of a compilation: the first number, plus the second number for each member.
const MOST: (usize, usize) = (8 << 20, 128);

/// The limit for the truths of a compilation for this cluster.
pub(crate) fn most_truths(model: &Model) -> usize {
    let pods_and_sets = model.endpoints.len() + model.network_sets.len();
    let members = pods_and_sets + model.host_endpoints.len() + model.services.len();
    MOST.0.saturating_add(members.saturating_mul(MOST.1))
}

/// The error that the number of truths exceeds the limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TooMany;

/// Counts truths. The truths of a member count once. The truths of an address count each time that a predicate set is
/// computed for it.
#[derive(Debug)]
pub(crate) struct Truths {
    left: usize,
}

impl Truths {
    /// Creates a counter with this limit.
    pub(crate) const fn new(most: usize) -> Self {
        Self { left: most }
    }

    /// Counts some.
    pub(crate) fn count(&mut self, some: usize) -> Result<(), TooMany> {
        self.left = self.left.checked_sub(some).ok_or(TooMany)?;
        Ok(())
    }
}
