//! A counter slot for each decision: the same in every image, until it is released.

use std::collections::BTreeSet;

use ahash::AHashMap;

use crate::model::{Decision, Direction, Reason};

/// See the module.
#[derive(Debug)]
pub(crate) struct Slots {
    of: AHashMap<Decision, u32>,
    free: BTreeSet<u32>,
    /// The lowest that was never used.
    next: u32,
}

impl Default for Slots {
    /// What is unknown has the first ones.
    fn default() -> Self {
        let unknown = Direction::ALL.into_iter().map(|d| Decision::from(Reason::Unknown(d)));
        let of: AHashMap<Decision, u32> = unknown.zip(0..).collect();
        Self { next: of.len() as u32, of, free: BTreeSet::new() }
    }
}

impl Slots {
    /// All that were ever used are below this number.
    pub(crate) fn end(&self) -> u32 {
        self.next
    }

    /// The slot of a decision.
    pub(crate) fn of(&mut self, decision: &Decision) -> u32 {
        if let Some(slot) = self.of.get(decision) {
            return *slot;
        }
        let slot = self.free.pop_first().unwrap_or_else(|| {
            self.next += 1;
            self.next - 1
        });
        self.of.insert(decision.clone(), slot);
        slot
    }

    /// Gives slots to others, but for those of what is unknown.
    pub(crate) fn release(&mut self, slots: &BTreeSet<u32>) {
        let free = &mut self.free;
        self.of.retain(|decision, slot| {
            let goes = slots.contains(slot) && !matches!(decision.reason, Reason::Unknown(_));
            if goes {
                free.insert(*slot);
            }
            !goes
        });
    }
}
