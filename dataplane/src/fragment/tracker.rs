//! The decisions on first fragments. Later fragments carry no ports and follow these decisions.

use ahash::RandomState;

use crate::flow::Epoch;
use crate::parse::{Fragment, Parsed};
use crate::wire::address::Address;

/// The seconds for which the decision on a first fragment is valid. Linux keeps fragments for the same time
/// (`ipfrag_time`). RFC 1122, section 3.3.2, recommends 60 to 120 seconds for a receiver.
const TIMEOUT: u32 = 30;
/// The number of places where a key may be.
const WAYS: usize = 4;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Key {
    source: Address,
    destination: Address,
    id: u32,
    /// 0 for IPv6, where fragments of one packet may name different protocols (RFC 8200, section 4.5).
    protocol: u8,
    /// The entrance of the packet: fragments that entered elsewhere do not follow its decision.
    origin: u32,
    /// The epoch of the decision. In another epoch the addresses may lead elsewhere, and an endpoint or a rule of the
    /// decision may mean something else in other tables.
    epoch: Epoch,
}

#[derive(Debug, Clone, Copy)]
struct Entry<T> {
    key: Key,
    /// `None`: two first fragments got different decisions.
    decision: Option<T>,
    expires: u32,
}

/// A table of bounded size with the decisions on first fragments. The key consists of source, destination, id,
/// protocol, the packet's origin, and the epoch of the decision. So new tables, and a change of one of the addresses in
/// the current tables, end the decisions, and later fragments are dropped.
///
/// If first fragments with one key get different decisions while the first decision is valid, the key has no decision
/// until 30 seconds after the last of them. The reason is that it is unknown to which of them a receiver joins the
/// later fragments. (Two packets may have the same id within that time, RFC 4963. The later fragments of both are
/// dropped, so that neither packet passes by the decision on the other.) A full bucket removes a decision of the origin
/// that would have most of them, and of these the one that expires first. The later fragments of that packet are
/// dropped. So each of two origins has half of a bucket. Time is in seconds from any fixed point.
#[derive(Debug)]
pub struct FragmentTracker<T> {
    hasher: RandomState,
    buckets: Vec<[Option<Entry<T>>; WAYS]>,
}

impl<T: Copy + PartialEq> FragmentTracker<T> {
    /// Creates a tracker with room for at least `capacity` packets in fragments, and for at most twice as many.
    pub fn new(capacity: usize) -> Self {
        Self::with_hasher(capacity, RandomState::new())
    }

    /// Like [`FragmentTracker::new`], with this hash.
    pub fn with_hasher(capacity: usize, hasher: RandomState) -> Self {
        let buckets = capacity.div_ceil(WAYS).next_power_of_two();
        Self { hasher, buckets: vec![[None; WAYS]; buckets] }
    }

    /// Records the decision on a first fragment. Other packets are ignored.
    pub fn insert(&mut self, parsed: &Parsed, origin: u32, epoch: Epoch, decision: T, now: u32) {
        let Fragment::First { id } = parsed.fragment else { return };
        let key = Key::new(parsed, id, origin, epoch);
        let bucket = self.bucket(&key);
        let expires = now.saturating_add(TIMEOUT);
        if let Some(entry) = bucket.iter_mut().flatten().find(|e| e.is_live(&key, now)) {
            entry.decision = entry.decision.filter(|&earlier| earlier == decision);
            entry.expires = expires;
            return;
        }
        let live = bucket.map(|place| place.filter(|entry| now < entry.expires));
        let held_by = |origin| live.iter().flatten().filter(|it| it.key.origin == origin).count();
        // Free places come first, then places of the origin that would have most places together with the new one.
        let worth = |place: &Option<Entry<T>>| {
            place.map(|entry| {
                let is_own = entry.key.origin == origin;
                let holds = held_by(entry.key.origin) + usize::from(is_own);
                (std::cmp::Reverse(holds), entry.expires)
            })
        };
        let places = bucket.iter_mut().zip(&live);
        if let Some((place, _)) = places.min_by_key(|(_, live)| worth(live)) {
            *place = Some(Entry { key, decision: Some(decision), expires });
        }
    }

    /// The decision that applies to a later fragment. `Some(None)` means that first fragments got different decisions.
    /// `None`: there is no valid decision, or the packet is not a later fragment.
    pub fn lookup(
        &mut self,
        parsed: &Parsed,
        origin: u32,
        epoch: Epoch,
        now: u32,
    ) -> Option<Option<T>> {
        let Fragment::Later { id, .. } = parsed.fragment else { return None };
        let key = Key::new(parsed, id, origin, epoch);
        let known = self.bucket(&key).iter().flatten().find(|entry| entry.is_live(&key, now))?;
        Some(known.decision)
    }

    fn bucket(&mut self, key: &Key) -> &mut [Option<Entry<T>>; WAYS] {
        let at = self.hasher.hash_one(key) as usize & (self.buckets.len() - 1);
        &mut self.buckets[at]
    }
}

impl Key {
    fn new(parsed: &Parsed, id: u32, origin: u32, epoch: Epoch) -> Self {
        let protocol = if parsed.is_v4() { parsed.protocol } else { 0 };
        Self { source: parsed.source, destination: parsed.destination, id, protocol, origin, epoch }
    }
}

impl<T> Entry<T> {
    fn is_live(&self, key: &Key, now: u32) -> bool {
        self.key == *key && now < self.expires
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::parse::parse;
    use crate::wire::ipv4;

    const EPOCH: Epoch = Epoch { version: 1, changes: 0 };

    /// An IPv4 UDP fragment at this offset, in units of eight bytes. One number gives its source.
    fn part(source: u8, id: u16, units: u16) -> Parsed {
        let mut bytes = [0; 36];
        (bytes[0], bytes[3], bytes[8], bytes[9], bytes[15], bytes[19]) =
            (0x45, 36, 64, 17, source, 1);
        bytes[4..6].copy_from_slice(&id.to_be_bytes());
        bytes[6..8].copy_from_slice(&(ipv4::MORE_FRAGMENTS | units).to_be_bytes());
        ipv4::View::new_checked_mut(&mut bytes[..]).unwrap().fill_checksum();
        parse(&bytes).unwrap()
    }

    /// An IPv6 fragment whose fragment header names this protocol.
    fn part6(protocol: u8, units: u16) -> Parsed {
        let mut bytes = [0; 72];
        (bytes[0], bytes[5], bytes[6], bytes[8], bytes[24], bytes[40]) =
            (0x60, 32, 44, 0xfd, 0xfd, protocol);
        (bytes[48], bytes[56]) = (17, 17);
        bytes[42..44].copy_from_slice(&(units << 3 | 1).to_be_bytes());
        parse(&bytes).unwrap()
    }

    #[test]
    fn later_fragments_get_the_decision_of_the_first_until_it_expires() {
        let mut tracker = FragmentTracker::new(16);
        assert_eq!(tracker.lookup(&part(1, 7, 2), 0, EPOCH, 100), None, "none came");
        tracker.insert(&part(1, 7, 0), 0, EPOCH, 'a', 100);
        assert_eq!(tracker.lookup(&part(1, 7, 2), 0, EPOCH, 100), Some(Some('a')));
        assert_eq!(tracker.lookup(&part(1, 7, 4), 0, EPOCH, 129), Some(Some('a')));
        assert_eq!(tracker.lookup(&part(1, 7, 4), 0, EPOCH, 130), None);
        tracker.insert(&part(1, 7, 0), 0, EPOCH, 'b', 130);
        assert_eq!(
            tracker.lookup(&part(1, 7, 4), 0, EPOCH, 131),
            Some(Some('b')),
            "what expired is no contradiction"
        );
    }

    #[test]
    fn fragments_of_other_packets_get_no_decision() {
        let mut tracker = FragmentTracker::new(16);
        tracker.insert(&part(1, 7, 0), 5, EPOCH, 'a', 0);
        assert_eq!(tracker.lookup(&part(1, 8, 2), 5, EPOCH, 0), None, "another id");
        assert_eq!(tracker.lookup(&part(2, 7, 2), 5, EPOCH, 0), None, "another source");
        assert_eq!(tracker.lookup(&part(1, 7, 2), 6, EPOCH, 0), None, "another origin");
        assert_eq!(
            tracker.lookup(&part(1, 7, 2), 5, Epoch { version: 2, ..EPOCH }, 0),
            None,
            "other tables"
        );
        let changed = Epoch { changes: 1, ..EPOCH };
        assert_eq!(tracker.lookup(&part(1, 7, 2), 5, changed, 0), None, "a changed address");
        assert_eq!(
            tracker.lookup(&Parsed { protocol: 6, ..part(1, 7, 3) }, 5, EPOCH, 0),
            None,
            "another protocol"
        );
        assert_eq!(
            tracker.lookup(&part(1, 7, 0), 5, EPOCH, 0),
            None,
            "a first one is judged itself"
        );
        tracker.insert(&part(1, 9, 2), 5, EPOCH, 'b', 0);
        assert_eq!(
            tracker.lookup(&part(1, 9, 2), 5, EPOCH, 0),
            None,
            "a later one decides nothing"
        );
    }

    #[test]
    fn ipv6_fragments_that_name_different_protocols_belong_together() {
        let mut tracker = FragmentTracker::new(16);
        let first = part6(60, 0);
        assert_eq!(first.protocol, 17, "behind destination options");
        tracker.insert(&first, 0, EPOCH, 'a', 0);
        assert_eq!(tracker.lookup(&part6(60, 4), 0, EPOCH, 0), Some(Some('a')));
    }

    #[test]
    fn contradicting_first_fragments_leave_no_decision() {
        let mut tracker = FragmentTracker::new(16);
        tracker.insert(&part(1, 7, 0), 0, EPOCH, 'a', 0);
        tracker.insert(&part(1, 7, 0), 0, EPOCH, 'a', 1);
        assert_eq!(
            tracker.lookup(&part(1, 7, 2), 0, EPOCH, 2),
            Some(Some('a')),
            "a duplicate changes nothing"
        );
        tracker.insert(&part(1, 7, 0), 0, EPOCH, 'b', 10);
        assert_eq!(tracker.lookup(&part(1, 7, 2), 0, EPOCH, 10), Some(None));
        tracker.insert(&part(1, 7, 0), 0, EPOCH, 'b', 20);
        assert_eq!(
            tracker.lookup(&part(1, 7, 2), 0, EPOCH, 49),
            Some(None),
            "saying it again does not help"
        );
        tracker.insert(&part(1, 7, 0), 0, EPOCH, 'b', 50);
        assert_eq!(tracker.lookup(&part(1, 7, 2), 0, EPOCH, 50), Some(Some('b')));
    }

    #[test]
    fn an_origin_that_sends_first_fragments_all_the_time_leaves_another_its_half() {
        let mut tracker = FragmentTracker::new(64);
        let (attacker, neighbour) = (5, 6);
        for n in 0..2000u16 {
            tracker.insert(&part(9, n, 0), attacker, EPOCH, 'a', 0);
        }
        // Two of one bucket are half of it.
        let mut place = |n| {
            let key = Key::new(&part(1, n, 0), n.into(), neighbour, EPOCH);
            tracker.bucket(&key).as_ptr()
        };
        let first = place(0);
        let Some(second) = (1..u16::MAX).find(|n| place(*n) == first) else {
            panic!("no two keys of one bucket")
        };
        for n in [0, second] {
            tracker.insert(&part(1, n, 0), neighbour, EPOCH, 'b', 1);
        }
        for n in 2000..4000 {
            tracker.insert(&part(9, n, 0), attacker, EPOCH, 'a', 2);
        }
        for n in [0, second] {
            assert_eq!(tracker.lookup(&part(1, n, 2), neighbour, EPOCH, 2), Some(Some('b')), "{n}");
        }
    }

    proptest! {
        #[test]
        fn a_fragment_gets_only_the_decision_of_its_own_packet_and_memory_is_bounded(
            steps in prop::collection::vec((any::<u8>(), 0u16..50, any::<bool>()), 0..400),
        ) {
            let mut tracker = FragmentTracker::new(32);
            for (now, (source, id, first)) in steps.into_iter().enumerate() {
                let now = now as u32 / 8;
                if first {
                    tracker.insert(&part(source, id, 0), 0, EPOCH, (source, id), now);
                    prop_assert_eq!(tracker.lookup(&part(source, id, 2), 0, EPOCH, now), Some(Some((source, id))), "the newest is kept");
                } else if let Some(Some(found)) = tracker.lookup(&part(source, id, 2), 0, EPOCH, now) {
                    prop_assert_eq!(found, (source, id));
                }
            }
            prop_assert_eq!(tracker.buckets.len() * WAYS, 32);
        }
    }
}
