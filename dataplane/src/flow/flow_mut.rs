//! A flow that can be changed. If it is in a table, its eviction list and its record follow each change, and a listener
//! gets a report of its end.

use std::mem::replace;
use std::net::Ipv4Addr;
use std::ops::{Deref, DerefMut};

use super::end::EndReason;
use super::entry::{FirstLine, FlowEntry, SecondLine, Verdict};
use super::eviction_class::EvictionClass;
use super::key::{FlowKey, Orientation};
use super::record::FlowRecord;
use super::slots::Slots;
use super::state::{FlowDirection, TcpFlags};
use crate::tables::ReturnPath;

impl FlowEntry {
    /// A mutable view of the flow, like that of a flow in a table.
    #[inline]
    pub fn as_mut(&mut self) -> FlowMut<'_> {
        FlowMut::from_lines(&mut self.first, &mut self.second, None)
    }
}

/// A flow that can be changed, in a table or outside of one.
#[derive(Debug)]
pub struct FlowMut<'a> {
    first: &'a mut FirstLine,
    /// The part that is seldom needed.
    pub second: &'a mut SecondLine,
    /// The table's slots, and the slot of the flow. The slot is always in that list of its owner which the flow's state
    /// requires. `None`: the flow is in no table.
    list_slot: Option<(&'a mut Slots, u32)>,
}

impl<'a> FlowMut<'a> {
    #[inline]
    pub(super) fn from_lines(
        first: &'a mut FirstLine,
        second: &'a mut SecondLine,
        queued: Option<(&'a mut Slots, u32)>,
    ) -> Self {
        Self { first, second, list_slot: queued }
    }

    /// Turns the entry into the flow of a first packet with the orientation `original`. The flow is denied, has an
    /// empty stamp and has no next hops until the caller sets the decision. The packet is not counted here: see
    /// [`FlowMut::record_packet`].
    #[inline]
    pub fn open(&mut self, key: &FlowKey, original: Orientation, flags: TcpFlags, now: u32) {
        self.first.become_other(FirstLine::open(key, original, flags, now));
        *self.second = SecondLine::open(key);
        self.update_eviction_list();
    }

    /// Marks the flow as masqueraded by a port of the node, after [`FlowMut::open`].
    #[inline]
    pub fn go_outward(&mut self) {
        self.first.state = self.first.state.outward();
    }

    /// Turns the entry into a copy of another flow.
    pub fn replace(&mut self, entry: FlowEntry) {
        self.first.become_other(entry.first);
        *self.second = entry.second;
        self.follow_state();
    }

    /// Returns a copy outside of the table.
    #[inline]
    pub fn to_entry(&self) -> FlowEntry {
        FlowEntry::from_lines(self.first, self.second)
    }

    /// The key of the connection.
    #[inline]
    pub fn key(&self) -> FlowKey {
        self.first.key(self.second)
    }

    /// The part of the flow that the next process needs.
    #[inline]
    pub fn record(&self) -> FlowRecord {
        let second = self.list_slot.as_ref().filter(|_| self.first.has_two_keys());
        FlowRecord {
            second: second.map(|(slots, slot)| slots.second_keys[*slot as usize].second_key()),
            key: self.key(),
            original: self.first.original,
            state: self.first.state,
            seen: self.first.last_seen,
            return_path: self.return_path(),
        }
    }

    /// The return path of its packets, in the form for the next process.
    fn return_path(&self) -> ReturnPath<Ipv4Addr> {
        let node = Ipv4Addr::from_bits(self.second.attachments[0]);
        ReturnPath::of(self.first.next_hop_pair(FlowDirection::Original).from)
            .renamed(|_| Some(node))
            .unwrap_or(ReturnPath::None)
    }

    /// Counts an admitted packet (a super-packet as its segments) and updates the connection's state.
    #[inline]
    pub fn record_packet(
        &mut self,
        direction: FlowDirection,
        flags: TcpFlags,
        packets: u32,
        bytes: u32,
        now: u32,
    ) {
        if !self.first.stays(flags, direction) {
            self.first.state = self.first.state.next(flags, direction);
            self.follow_state();
        }
        self.count_packet(direction, packets, bytes, now);
    }

    /// Brings everything that depends on the state up to date.
    #[inline(never)]
    fn follow_state(&mut self) {
        self.update_eviction_list();
        self.renew_record();
    }

    /// Sets the verdict. A flow that is no longer allowed is reported as ended.
    #[inline]
    pub fn set_verdict(&mut self, verdict: Verdict) {
        let before = replace(&mut self.first.verdict, verdict);
        if before == Verdict::Allow && verdict != Verdict::Allow {
            self.tell_denied();
        }
    }

    #[cold]
    #[inline(never)]
    fn tell_denied(&mut self) {
        if let Some((slots, slot)) = &mut self.list_slot {
            let flow = FlowEntry::from_lines(self.first, self.second);
            slots.tell_end(*slot, flow, EndReason::Denied);
        }
    }

    /// Writes the record of a flow that is new in its slot.
    #[inline]
    pub(super) fn write_record(&self) {
        if let Some((slots, slot)) = &self.list_slot
            && let Some(records) = &slots.records
        {
            records.write(*slot, &self.record());
        }
    }

    /// Brings the flow's record up to date, if there is one.
    pub(super) fn renew_record(&self) {
        if let Some((slots, slot)) = &self.list_slot
            && let Some(records) = &slots.records
        {
            records.change(*slot, &self.record());
        }
    }

    /// Moves the flow to that list of its owner which its state requires.
    fn update_eviction_list(&mut self) {
        let Some((slots, slot)) = &mut self.list_slot else { return };
        let standing = EvictionClass::from_state(self.first.state);
        let before = replace(&mut self.first.eviction_class, standing);
        if before != standing {
            slots.unlink(*slot, before);
            slots.append(*slot, standing);
        }
    }

    /// Counts a packet as [`FlowMut::record_packet`] does, if the packet leaves the state unchanged. Otherwise does
    /// nothing.
    #[inline(always)]
    #[expect(clippy::inline_always, reason = "nearly every packet, and a few instructions")]
    pub fn count_packet(&mut self, direction: FlowDirection, packets: u32, bytes: u32, now: u32) {
        self.first.last_seen = now;
        let traffic = &mut self.first.traffic[direction as usize];
        let (packets, packets_carry) = traffic.packets.overflowing_add(packets);
        let (bytes, bytes_carry) = traffic.bytes.overflowing_add(bytes);
        (traffic.packets, traffic.bytes) = (packets, bytes);
        if packets_carry || bytes_carry {
            self.second.carry(direction, packets_carry, bytes_carry);
        }
    }
}

impl Deref for FlowMut<'_> {
    type Target = FirstLine;

    #[inline]
    fn deref(&self) -> &FirstLine {
        self.first
    }
}

impl DerefMut for FlowMut<'_> {
    #[inline]
    fn deref_mut(&mut self) -> &mut FirstLine {
        self.first
    }
}

#[cfg(test)]
mod tests {
    use super::super::Traffic;
    use super::*;

    #[test]
    fn traffic_is_counted_beyond_32_bits() {
        let mut entry =
            FlowEntry::open(FlowKey::EMPTY, Orientation::LowToHigh, TcpFlags::default(), 0);
        let mut passed = Traffic::default();
        for (packets, bytes) in [(1, u32::MAX), (u32::MAX, 1), (u32::MAX, u32::MAX), (7, 9)] {
            entry.as_mut().count_packet(FlowDirection::Reply, packets, bytes, 0);
            passed.packets += u64::from(packets);
            passed.bytes += u64::from(bytes);
            assert_eq!(entry.traffic(FlowDirection::Reply), passed);
        }
        assert_eq!(entry.traffic(FlowDirection::Original), Traffic::default());
    }
}
