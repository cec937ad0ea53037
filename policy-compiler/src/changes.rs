//! How often what stands at an address was changed in place, so that who remembers what stood there need not look again.

use std::sync::atomic::{AtomicU32, Ordering};

/// 16 KiB of counters: few enough to stay in the cache.
const COUNTERS: usize = 1 << 12;

/// Counters by a hash of the address: a change at one address now and then shows at another, but not often.
#[derive(Debug)]
pub(crate) struct Changes(Box<[AtomicU32; COUNTERS]>);

impl Default for Changes {
    /// Nothing was changed yet.
    fn default() -> Self {
        Self(Box::new([const { AtomicU32::new(0) }; COUNTERS]))
    }
}

impl Changes {
    #[inline]
    fn counter(&self, address: u32) -> &AtomicU32 {
        &self.0[(address.wrapping_mul(0x9e37_79b9) >> (u32::BITS - COUNTERS.ilog2())) as usize]
    }

    /// It only grows (and wraps). Who reads this first and then what stands there sees, if a change is counted, the change.
    #[inline]
    pub(crate) fn of(&self, address: u32) -> u32 {
        self.counter(address).load(Ordering::Acquire)
    }

    /// Counts a change that is already stored.
    pub(crate) fn note(&self, address: u32) {
        self.counter(address).fetch_add(1, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_shows_at_its_address_and_hardly_anywhere_else() {
        let changes = Changes::default();
        let first = 0x0a00_0000;
        changes.note(first);
        assert_eq!(changes.of(first), 1);
        let others = (1..65_536).filter(|at| changes.of(first + at) > 0).count();
        assert!(others < 65_536 / COUNTERS * 2, "{others} of 65,535 neighbours");
    }
}
