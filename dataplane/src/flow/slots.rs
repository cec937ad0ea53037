//! The slots of a table: which slots are free, and the order in which the entries of each owner are evicted.
//!
//! Each owner has two lists of slots, each with the oldest slot first: one for flows that are not established, which
//! are evicted first, and one for established flows.
//!
//! The other data of a slot is here, too: the [record](super::record), which follows the entry's state as the lists do;
//! the [second key](super::second_key); and the listener for the flow's [end](super::end).

use std::io;

use zerocopy::FromZeros;

use super::end::{EndReason, FlowEnd, Listener};
use super::entry::FlowEntry;
use super::eviction_class::EvictionClass;
use super::owners::{Owner, Owners};
use super::record::FlowRecords;
use super::second_key::SecondKeyLine;
use crate::sys::memory::{Pages, ZeroedPages};

/// The neighbours of a slot in its list. Each is stored plus one; 0 means none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, FromZeros)]
pub(crate) struct SlotLink {
    pub(crate) previous: u32,
    pub(crate) next: u32,
    /// A number that the table stores with a taken slot.
    pub(crate) note: u32,
    /// The owner of a taken slot.
    pub(crate) owner: u16,
}

/// The links of all slots. Each slot is either free or in one list of its owner. Every call takes constant time.
#[derive(Debug)]
pub(super) struct Slots {
    links: ZeroedPages<SlotLink>,
    pub(super) owners: Owners,
    /// The flow records, if they are kept.
    pub(super) records: Option<FlowRecords>,
    /// The second key of each entry that is marked to have one.
    pub(super) second_keys: ZeroedPages<SecondKeyLine>,
    /// The listener for the ends of flows, if there is one.
    pub(super) listener: Option<Listener>,
    /// The slot that was given back last, plus one; 0 means none. Its link leads to the slot that was given back before
    /// it.
    returned: u32,
    /// Slots from this number on have never been used.
    unused: u32,
}

impl Slots {
    pub(super) fn new(capacity: usize) -> io::Result<Self> {
        Ok(Self {
            links: ZeroedPages::new(capacity, Pages::Huge)?,
            owners: Owners::new(capacity),
            records: None,
            second_keys: ZeroedPages::new(capacity, Pages::Small)?,
            listener: None,
            returned: 0,
            unused: 0,
        })
    }

    pub(super) fn capacity(&self) -> usize {
        self.links.len()
    }

    /// Takes a free slot: the one that was given back last, because its lines are probably in the cache. `None`: no
    /// slot is free.
    pub(super) fn allocate(&mut self, owner: Owner, note: u32) -> Option<u32> {
        let slot = if let Some(slot) = self.returned.checked_sub(1) {
            self.returned = self.links[slot as usize].next;
            slot
        } else {
            let slot = self.unused;
            if slot as usize >= self.links.len() {
                return None;
            }
            self.unused += 1;
            slot
        };
        let link = &mut self.links[slot as usize];
        (link.note, link.owner) = (note, owner.0);
        self.owners.add(owner);
        Some(slot)
    }

    /// Gives a taken slot that is in no list to `owner`, as [`Slots::allocate`] does with a free slot.
    #[inline]
    pub(super) fn reassign(&mut self, slot: u32, owner: Owner, note: u32) {
        let link = &mut self.links[slot as usize];
        link.note = note;
        if link.owner != owner.0 {
            let before = Owner(std::mem::replace(&mut link.owner, owner.0));
            self.owners.remove(before);
            self.owners.add(owner);
        }
    }

    /// Gives a taken slot to another owner, and moves it to that owner's list.
    #[inline(never)]
    pub(super) fn change_owner(&mut self, slot: u32, standing: EvictionClass, owner: Owner) {
        self.unlink(slot, standing);
        self.reassign(slot, owner, self.place_bits(slot));
        self.append(slot, standing);
    }

    /// The note that was stored when the slot was taken.
    #[inline]
    pub(super) fn place_bits(&self, slot: u32) -> u32 {
        self.links[slot as usize].note
    }

    /// The owner of a taken slot.
    #[inline]
    pub(super) fn owner(&self, slot: u32) -> Owner {
        Owner(self.links[slot as usize].owner)
    }

    /// Reports to the listener that the flow in a slot has ended.
    #[cold]
    #[inline(never)]
    pub(super) fn tell_end(&mut self, slot: u32, flow: FlowEntry, reason: EndReason) {
        let second_key = flow.has_two_keys().then(|| self.second_keys[slot as usize].second_key());
        let end = FlowEnd { flow, second_key, reason, lost: 0 };
        self.listener.take_if(|listener| !listener.tell(end));
    }

    /// Gives back a taken slot that is in no list.
    pub(super) fn release(&mut self, slot: u32) {
        self.owners.remove(self.owner(slot));
        self.links[slot as usize].next = self.returned;
        self.returned = slot + 1;
    }

    /// The first slot of an owner's list.
    #[inline]
    pub(super) fn oldest(&self, owner: Owner, standing: EvictionClass) -> Option<u32> {
        self.owners.lists(owner)?[list(standing)?].oldest.checked_sub(1)
    }

    /// The slot after this one in its list.
    #[inline]
    pub(super) fn next(&self, slot: u32) -> Option<u32> {
        self.links[slot as usize].next.checked_sub(1)
    }

    /// Appends a taken slot that is in no list to a list of its owner.
    #[inline]
    pub(super) fn append(&mut self, slot: u32, standing: EvictionClass) {
        let Some(at) = list(standing) else { return };
        let link = &mut self.links[slot as usize];
        let holding = self.owners.owner_flows(Owner(link.owner));
        holding.unestablished += u32::from(standing == EvictionClass::Unestablished);
        let list = &mut holding.lists[at];
        (link.previous, link.next) = (list.newest, 0);
        let newest = std::mem::replace(&mut list.newest, slot + 1);
        match newest.checked_sub(1) {
            Some(newest) => self.links[newest as usize].next = slot + 1,
            None => list.oldest = slot + 1,
        }
    }

    /// Removes a slot from the list that it is in.
    #[inline]
    pub(super) fn unlink(&mut self, slot: u32, standing: EvictionClass) {
        let Some(at) = list(standing) else { return };
        let SlotLink { previous, next, owner, .. } = self.links[slot as usize];
        let holding = self.owners.owner_flows(Owner(owner));
        holding.unestablished -= u32::from(standing == EvictionClass::Unestablished);
        let list = &mut holding.lists[at];
        match previous.checked_sub(1) {
            Some(before) => self.links[before as usize].next = next,
            None => list.oldest = next,
        }
        match next.checked_sub(1) {
            Some(after) => self.links[after as usize].previous = previous,
            None => list.newest = previous,
        }
    }
}

/// The list of an owner for the flows of a class.
#[inline]
const fn list(standing: EvictionClass) -> Option<usize> {
    match standing {
        EvictionClass::Free => None,
        EvictionClass::Unestablished => Some(0),
        EvictionClass::Established => Some(1),
    }
}
