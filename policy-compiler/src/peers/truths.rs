//! The number of truths of a compilation. A truth is one predicate that is true of one member, or of the addresses of
//! one class. A compilation takes time and memory in proportion to the number of truths. This number may grow with the
//! square of the size of policies and network sets: if each of many sets contains the whole world, each set is true of
//! each of many addresses.

use crate::model::Model;

/// The largest number of truths of a compilation, and the number that each member adds to it.
const MOST: (usize, usize) = (8 << 20, 128);

/// The largest number of truths for a cluster.
pub(crate) fn most_truths(model: &Model) -> usize {
    let pods_and_sets = model.endpoints.len() + model.network_sets.len();
    let members = pods_and_sets + model.host_endpoints.len() + model.services.len();
    MOST.0.saturating_add(members.saturating_mul(MOST.1))
}

/// The error that there are more truths than a compilation may count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TooMany;

/// Counts truths. Truths of members count once. Truths of addresses count whenever a set of them is made.
#[derive(Debug)]
pub(crate) struct Truths {
    left: usize,
}

impl Truths {
    /// Creates a counter that counts at most this many truths.
    pub(crate) const fn new(most: usize) -> Self {
        Self { left: most }
    }

    /// Counts some.
    pub(crate) fn count(&mut self, some: usize) -> Result<(), TooMany> {
        self.left = self.left.checked_sub(some).ok_or(TooMany)?;
        Ok(())
    }
}
