//! The paths to which rows lead, and their counter slots.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::slots::Slots;
use crate::common::PathId;
use crate::image::Path;
use crate::model::Decision;

/// All paths of a compiler, with their numbers. Paths are only added, never changed.
#[derive(Debug, Default)]
pub(crate) struct PathTable {
    /// The slots of all decisions, for the life of a compiler.
    slots: Slots,
    /// The path of each slot, or [`NONE`].
    by_slot: Vec<u32>,
    all: Vec<Path>,
    /// The number of the first path.
    first: u32,
    /// The same paths, as a slice that images share.
    published: Arc<[Path]>,
}

const NONE: u32 = u32::MAX;

impl PathTable {
    /// Creates an empty table whose numbers follow those of another one.
    pub(crate) fn continuing(others: &Self) -> Self {
        Self { first: others.len() as u32, ..Self::default() }
    }

    /// The path of a decision.
    pub(crate) fn intern(&mut self, decision: Arc<Decision>) -> PathId {
        let (slot, decision) = self.slots.assign(decision);
        let at = slot as usize;
        if self.by_slot.len() <= at {
            self.by_slot.resize(at + 1, NONE);
        }
        if self.by_slot[at] == NONE {
            self.by_slot[at] = self.first + self.all.len() as u32;
            self.all.push(Path::new(decision, slot));
        }
        PathId(self.by_slot[at])
    }

    /// Reserves memory for `more` paths.
    pub(crate) fn reserve(&mut self, more: usize) {
        self.slots.reserve(more);
        self.all.reserve(more);
    }

    /// The number of the first path.
    pub(crate) fn first(&self) -> u32 {
        self.first
    }

    /// All paths so far, by number.
    pub(crate) fn all(&self) -> &[Path] {
        &self.all
    }

    pub(crate) fn len(&self) -> usize {
        self.all.len()
    }

    /// The number of counter slots: every slot that was ever used is below it.
    pub(crate) fn slots(&self) -> u32 {
        self.slots.end()
    }

    /// Forgets everything except the slots.
    pub(crate) fn forget(&mut self) {
        *self = Self { slots: std::mem::take(&mut self.slots), ..Self::default() };
    }

    /// Forgets all paths, and frees these slots for other decisions, except the slots for unknown
    /// ends.
    pub(crate) fn release(&mut self, slots: &BTreeSet<u32>) {
        self.slots.release(slots);
        self.forget();
    }

    /// All paths, as a shared slice.
    pub(crate) fn shared(&mut self) -> Arc<[Path]> {
        if self.published.len() != self.all.len() {
            self.published = self.all.as_slice().into();
        }
        Arc::clone(&self.published)
    }
}
