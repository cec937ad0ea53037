//! A flow entry: the cached decision and its inputs.

use std::ops::{Deref, DerefMut};

use zerocopy::FromZeros;

use super::eviction_class::EvictionClass;
use super::key::{FlowKey, HAS_ANOTHER, IS_V6, Orientation};
use super::record::{FlowRecord, MAX_AGE};
use super::state::{Admission, FlowDirection, FlowState, LEAST_TIMEOUT, TcpFlags};
use crate::tables::{EncodedNextHop, NextHopPair};

/// The cached verdict. Zero denies, so that memory that was never written allows nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, FromZeros)]
#[repr(u8)]
pub enum Verdict {
    /// Denied by the egress policy of the source.
    DenyEgress = 0,
    /// Denied by the ingress policy of the destination.
    DenyIngress = 1,
    /// Allowed by every policy that applies.
    Allow = 2,
}

/// The policy stamp: the inputs of a verdict, in the original direction of the flow. While the stamp is unchanged, the
/// verdict is valid. Otherwise policy is evaluated again, in the original direction, whichever packet comes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, FromZeros)]
#[repr(C)]
pub struct PolicyStamp {
    /// Identity of the source address.
    pub source_identity: u32,
    /// Identity of the destination address.
    pub destination_identity: u32,
    /// Policy revision of the source if it is a local endpoint, else 0.
    pub source_revision: u32,
    /// Policy revision of the destination if it is a local endpoint, else 0.
    pub destination_revision: u32,
}

/// The epoch in which a decision was made. While it is the current epoch, nothing that the decision rests on has
/// changed, and none of it has to be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, FromZeros)]
#[repr(C)]
pub struct Epoch {
    /// The low half of the version of the tables. 0 means that there are no tables.
    pub version: u32,
    /// The number of changes in place that may concern the two addresses, until the decision was made. It is a sum of
    /// counters that only grow.
    pub changes: u32,
}

/// Counter slots of the rules that allowed the flow's first packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, FromZeros)]
#[repr(C)]
pub struct RuleCounters {
    /// The slot of the source's egress policy.
    pub egress: u32,
    /// The slot of the destination's ingress policy.
    pub ingress: u32,
}

/// The traffic of one direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Traffic {
    /// The number of packets; a super-packet counts as its segments.
    pub packets: u64,
    /// The number of bytes, from the IP header on.
    pub bytes: u64,
}

/// One half of the bits of each count of a [`Traffic`].
#[derive(Debug, Clone, Copy, Default, FromZeros)]
#[repr(C)]
pub(super) struct HalfTraffic {
    pub(super) packets: u32,
    pub(super) bytes: u32,
}

/// The part of an entry that a packet of a known IPv4 flow reads and changes: one cache line of plain data. The number
/// of cache lines that are fetched limits the speed of a large table, so these fields lie side by side.
#[derive(Debug, Clone, Copy, FromZeros)]
#[repr(C, align(64))]
pub struct FirstLine {
    pub(super) key_words: [u64; 2],
    pub(super) state: FlowState,
    /// The cached verdict. In a table, [`FlowMut::set_verdict`](super::FlowMut::set_verdict) sets it.
    pub verdict: Verdict,
    pub(super) original: Orientation,
    /// The flow table sets this.
    pub(super) eviction_class: EvictionClass,
    pub(super) last_seen: u32,
    /// The epoch in which the verdict and the next hops were last checked.
    pub epoch: Epoch,
    /// The next hops, by direction of the packets. The next hop of replies is the one from which the first packet came.
    pub next_hops: [EncodedNextHop; 2],
    /// The rules that allowed the flow.
    pub counters: RuleCounters,
    /// Indexed by direction.
    pub(super) traffic: [HalfTraffic; 2],
}

/// The rest of an entry: fields that are read only after a change, IPv6 addresses, and the upper halves of the traffic
/// counts.
#[derive(Debug, Clone, Copy, FromZeros)]
#[repr(C, align(64))]
pub struct SecondLine {
    v6: [u64; 3],
    /// The inputs of the verdict.
    pub policy_stamp: PolicyStamp,
    /// The attachments of source and destination, each 0 if it is not a local endpoint. The numbers of endpoints and
    /// ports are reused; those of attachments are not.
    pub attachments: [u32; 2],
    /// Indexed by direction.
    upper_traffic: [HalfTraffic; 2],
}

const _: () = assert!(size_of::<FirstLine>() == 64 && size_of::<SecondLine>() == 64);

impl FirstLine {
    #[inline]
    pub(super) fn open(key: &FlowKey, original: Orientation, flags: TcpFlags, now: u32) -> Self {
        Self {
            key_words: key.words().0,
            state: FlowState::first(key.protocol(), flags),
            verdict: Verdict::DenyEgress,
            original,
            eviction_class: EvictionClass::Free,
            last_seen: now,
            epoch: Epoch::default(),
            next_hops: [EncodedNextHop::default(); 2],
            counters: RuleCounters::default(),
            traffic: [HalfTraffic::default(); 2],
        }
    }

    /// Whether the entry belongs to this connection and has no second key.
    #[inline]
    pub(super) fn has_key(&self, key: &FlowKey, second: &SecondLine) -> bool {
        key.has_words(&self.key_words, &second.v6)
    }

    /// The key, without its marks.
    #[inline]
    pub(super) fn key(&self, second: &SecondLine) -> FlowKey {
        let [first, last] = self.key_words;
        // An IPv4 flow does not need the second line.
        let v6 = if last & IS_V6 == 0 { [0; 3] } else { second.v6 };
        FlowKey::from_words([first, last & !HAS_ANOTHER], v6)
    }

    /// Whether the entry has a second key ([`two_keys`](super::two_keys)).
    #[inline]
    pub(crate) fn has_two_keys(&self) -> bool {
        self.key_words[1] & HAS_ANOTHER != 0
    }

    pub(super) fn set_two_keys(&mut self, two: bool) {
        self.key_words[1] = self.key_words[1] & !HAS_ANOTHER | if two { HAS_ANOTHER } else { 0 };
    }

    /// Replaces the entry by another one in the same slot. The eviction class and the mark of a second key stay,
    /// because the table maintains them.
    #[inline]
    pub(super) fn become_other(&mut self, other: Self) {
        let (class, two) = (self.eviction_class, self.has_two_keys());
        *self = Self { eviction_class: class, ..other };
        self.set_two_keys(two);
    }

    /// The connection's two IPv4 addresses as numbers; for IPv6 some bits of the addresses.
    #[inline]
    pub fn v4_addresses(&self) -> [u32; 2] {
        FlowKey::from_words(self.key_words, [0; 3]).v4_addresses()
    }

    /// The connection's state.
    #[inline]
    pub fn state(&self) -> FlowState {
        self.state
    }

    /// The orientation of its first packet.
    #[inline]
    pub fn original(&self) -> Orientation {
        self.original
    }

    /// The direction within the flow of a packet that has this orientation.
    #[inline]
    pub fn direction(&self, packet: Orientation) -> FlowDirection {
        if packet == self.original { FlowDirection::Original } else { FlowDirection::Reply }
    }

    /// The next hops of source and destination for packets of a direction.
    #[inline]
    pub fn next_hop_pair(&self, direction: FlowDirection) -> NextHopPair {
        let [from, to] =
            [self.next_hops[direction as usize ^ 1], self.next_hops[direction as usize]];
        NextHopPair { from, to }
    }

    /// How the flow's state admits a packet.
    #[inline]
    pub fn admission(&self, flags: TcpFlags, direction: FlowDirection) -> Admission {
        self.state.admission(flags, direction)
    }

    /// Whether a packet of this direction leaves the flow's state unchanged ([`FlowState::stays`]).
    #[inline]
    pub fn stays(&self, flags: TcpFlags, direction: FlowDirection) -> bool {
        self.state.stays(flags, direction)
    }

    /// Records a packet of a denied flow. The flow stays, and its state does not change: if policy allows it later, it
    /// continues from there.
    #[inline]
    pub fn record_denied(&mut self, now: u32) {
        self.last_seen = now;
    }

    /// The time of its last packet, in seconds on the table's clock.
    #[inline]
    pub fn last_seen(&self) -> u32 {
        self.last_seen
    }

    /// Whether the flow has been silent for longer than its state's timeout. The result is never early, and at most two
    /// seconds late, because the clock counts whole seconds.
    #[inline]
    pub fn is_expired(&self, now: u32) -> bool {
        // Time never goes back. If it did, the second comparison would still be right.
        now.wrapping_sub(self.last_seen) > LEAST_TIMEOUT
            && now.saturating_sub(self.last_seen) > self.state.timeout(self.has_two_keys())
    }
}

impl SecondLine {
    #[inline]
    pub(super) fn open(key: &FlowKey) -> Self {
        Self {
            v6: key.words().1,
            policy_stamp: PolicyStamp::default(),
            attachments: [0; 2],
            upper_traffic: [HalfTraffic::default(); 2],
        }
    }

    #[cold]
    #[inline(never)]
    pub(super) fn carry(&mut self, direction: FlowDirection, packets: bool, bytes: bool) {
        let upper = &mut self.upper_traffic[direction as usize];
        upper.packets = upper.packets.wrapping_add(packets.into());
        upper.bytes = upper.bytes.wrapping_add(bytes.into());
    }
}

/// A flow outside of a table.
#[derive(Debug, Clone, Copy)]
pub struct FlowEntry {
    pub(super) first: FirstLine,
    pub(super) second: SecondLine,
}

impl FlowEntry {
    /// Opens a flow, as [`FlowMut::open`](super::FlowMut::open) does.
    #[inline]
    pub fn open(key: FlowKey, original: Orientation, flags: TcpFlags, now: u32) -> Self {
        Self { first: FirstLine::open(&key, original, flags, now), second: SecondLine::open(&key) }
    }

    /// A flow with the progress that its record states. It is denied, like a flow from [`Self::open`]. The record
    /// may be older than the flow's last packet by [`MAX_AGE`].
    pub fn from_record(record: &FlowRecord, now: u32) -> Self {
        let seen = record.seen.saturating_add(MAX_AGE).min(now);
        let mut entry = Self::open(record.key, record.original, TcpFlags::default(), seen);
        entry.first.state = record.state;
        entry.first.set_two_keys(record.second.is_some());
        entry
    }

    /// A copy of a flow in a table.
    pub(super) fn from_lines(first: &FirstLine, second: &SecondLine) -> Self {
        Self { first: *first, second: *second }
    }

    /// The key of the connection.
    #[inline]
    pub fn key(&self) -> FlowKey {
        self.first.key(&self.second)
    }

    /// The traffic of a direction.
    #[inline]
    pub fn traffic(&self, direction: FlowDirection) -> Traffic {
        let lower = self.first.traffic[direction as usize];
        let upper = self.second.upper_traffic[direction as usize];
        let whole = |upper: u32, lower: u32| u64::from(upper) << u32::BITS | u64::from(lower);
        Traffic {
            packets: whole(upper.packets, lower.packets),
            bytes: whole(upper.bytes, lower.bytes),
        }
    }
}

impl Deref for FlowEntry {
    type Target = FirstLine;

    #[inline]
    fn deref(&self) -> &FirstLine {
        &self.first
    }
}

impl DerefMut for FlowEntry {
    #[inline]
    fn deref_mut(&mut self) -> &mut FirstLine {
        &mut self.first
    }
}
