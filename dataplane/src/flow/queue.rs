//! The order in which entries are given up: a queue through the slots of the table, oldest first; and the slots that are
//! free.

use std::io;

use crate::sys::memory::{Pages, ZeroedPages};

/// A slot's neighbours: slots plus one; 0 is none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Link {
    pub(crate) previous: u32,
    pub(crate) next: u32,
    /// What the table has noted of the slot while it is taken.
    pub(crate) note: u32,
}

/// Links of all slots: each slot is free, queued, or neither. All work is constant per call.
#[derive(Debug)]
pub(super) struct Slots {
    links: ZeroedPages<Link>,
    /// Oldest and newest of the queue.
    oldest: u32,
    newest: u32,
    /// First of the chain of returned slots.
    returned: u32,
    /// Slots from here on were never used.
    unused: u32,
}

impl Slots {
    pub(super) fn new(capacity: usize) -> io::Result<Self> {
        Ok(Self {
            links: ZeroedPages::new(capacity, Pages::Huge)?,
            oldest: 0,
            newest: 0,
            returned: 0,
            unused: 0,
        })
    }

    pub(super) fn capacity(&self) -> usize {
        self.links.len()
    }

    /// A free slot, the latest returned first: its lines are warm. `None` when all are taken.
    pub(super) fn take(&mut self) -> Option<u32> {
        if let Some(slot) = self.returned.checked_sub(1) {
            self.returned = self.links[slot as usize].next;
            return Some(slot);
        }
        let slot = self.unused;
        if (slot as usize) < self.links.len() {
            self.unused += 1;
            Some(slot)
        } else {
            None
        }
    }

    /// Notes something of a slot that is taken.
    pub(super) fn put_note(&mut self, slot: u32, note: u32) {
        self.links[slot as usize].note = note;
    }

    /// What was noted of a slot since it was taken.
    #[inline]
    pub(super) fn note(&self, slot: u32) -> u32 {
        self.links[slot as usize].note
    }

    /// The slot behind a queued one; behind none the oldest.
    pub(super) fn next(&self, slot: Option<u32>) -> Option<u32> {
        slot.map_or(self.oldest, |slot| self.links[slot as usize].next).checked_sub(1)
    }

    /// Gives back a slot that is not queued.
    pub(super) fn put(&mut self, slot: u32) {
        self.links[slot as usize].next = self.returned;
        self.returned = slot + 1;
    }

    pub(super) fn oldest(&self) -> Option<u32> {
        self.oldest.checked_sub(1)
    }

    /// Queues a slot that is not queued, as the newest.
    pub(super) fn enqueue(&mut self, slot: u32) {
        let link = &mut self.links[slot as usize];
        (link.previous, link.next) = (self.newest, 0);
        match self.newest.checked_sub(1) {
            Some(newest) => self.links[newest as usize].next = slot + 1,
            None => self.oldest = slot + 1,
        }
        self.newest = slot + 1;
    }

    /// Takes a queued slot out of the queue.
    pub(super) fn unqueue(&mut self, slot: u32) {
        let Link { previous, next, .. } = self.links[slot as usize];
        match previous.checked_sub(1) {
            Some(before) => self.links[before as usize].next = next,
            None => self.oldest = next,
        }
        match next.checked_sub(1) {
            Some(after) => self.links[after as usize].previous = previous,
            None => self.newest = previous,
        }
    }
}
