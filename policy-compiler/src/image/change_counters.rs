//! Counts, for each address, the changes in an image that is in use. A caller that keeps the identity or the next hop
//! of an address looks it up again when the count changes.

use std::sync::atomic::{AtomicU32, Ordering};

/// The number of counters. They take 16 KiB, so they stay in the cache.
const COUNTERS: usize = 1 << 12;

/// Counters, indexed by a hash of the address. Two addresses rarely share a counter.
#[derive(Debug)]
pub(crate) struct ChangeCounters(Box<[AtomicU32; COUNTERS]>);

impl Default for ChangeCounters {
    /// Creates counters at zero.
    fn default() -> Self {
        Self(Box::new([const { AtomicU32::new(0) }; COUNTERS]))
    }
}

impl ChangeCounters {
    fn index(address: u32) -> usize {
        (address.wrapping_mul(0x9e37_79b9) >> (u32::BITS - COUNTERS.ilog2())) as usize
    }

    /// The sum of the counts of two addresses. The sum only grows (and may wrap around). If a caller reads the sum
    /// before it looks up an address, every later change of the address changes the sum.
    #[inline]
    pub(crate) fn sum(&self, addresses: [u32; 2]) -> u32 {
        let counters = &*self.0;
        let [one, other] = addresses.map(|at| counters[Self::index(at)].load(Ordering::Acquire));
        one.wrapping_add(other)
    }

    /// Counts a change that is already stored.
    pub(crate) fn increment(&self, address: u32) {
        self.0[Self::index(address)].fetch_add(1, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_shows_at_its_address_and_hardly_anywhere_else() {
        let changes = ChangeCounters::default();
        let first = 0x0a00_0000;
        changes.increment(first);
        assert_eq!(changes.sum([first; 2]), 2);
        let others = (1..65_536).filter(|at| changes.sum([first + at; 2]) > 0).count();
        assert!(others < 65_536 / COUNTERS * 2, "{others} of 65,535 neighbours");
    }
}
