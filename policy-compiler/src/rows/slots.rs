//! A counter slot for each decision. It stays the same in every image until it is released.

use std::collections::BTreeSet;
use std::collections::hash_map::Entry;
use std::sync::Arc;

use ahash::AHashMap;

use crate::model::{Decision, Direction, Reason};

/// The slots of all decisions.
#[derive(Debug)]
pub(crate) struct Slots {
    by_decision: AHashMap<Arc<Decision>, u32>,
    free: BTreeSet<u32>,
    /// The lowest slot that has never been used.
    next: u32,
}

impl Default for Slots {
    /// Reserves the first slots for the decisions for unknown ends, one for each direction.
    fn default() -> Self {
        let unknown = Direction::ALL.into_iter().map(|d| Arc::new(Reason::Unknown(d).into()));
        let of: AHashMap<Arc<Decision>, u32> = unknown.zip(0..).collect();
        Self { next: of.len() as u32, by_decision: of, free: BTreeSet::new() }
    }
}

impl Slots {
    /// Every slot that was ever used is below this number.
    pub(crate) fn end(&self) -> u32 {
        self.next
    }

    /// Reserves memory for `more` slots.
    pub(crate) fn reserve(&mut self, more: usize) {
        self.by_decision.reserve(more);
    }

    /// The slot of a decision, and the stored copy of the decision.
    pub(crate) fn assign(&mut self, decision: Arc<Decision>) -> (u32, Arc<Decision>) {
        match self.by_decision.entry(decision) {
            Entry::Occupied(known) => (*known.get(), Arc::clone(known.key())),
            Entry::Vacant(free) => {
                let slot = self.free.pop_first().unwrap_or_else(|| {
                    self.next += 1;
                    self.next - 1
                });
                let decision = Arc::clone(free.key());
                (*free.insert(slot), decision)
            }
        }
    }

    /// Frees slots for other decisions, except the slots for unknown ends.
    pub(crate) fn release(&mut self, slots: &BTreeSet<u32>) {
        let free = &mut self.free;
        self.by_decision.retain(|decision, slot| {
            let goes = slots.contains(slot) && !matches!(decision.reason, Reason::Unknown(_));
            if goes {
                free.insert(*slot);
            }
            !goes
        });
    }
}
