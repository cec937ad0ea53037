//! Eviction: which flow a full table removes.

use super::bucket::WAYS;
use super::eviction_class::EvictionClass;
use super::owners::Owner;
use super::table::FlowTable;

/// The number of an owner's established flows that are sampled to find one that has been silent for long.
const SAMPLE: usize = 8;
/// The seconds in which a connection normally opens: the time of the first repetitions of a SYN (RFC 6298, section 2).
pub(super) const OPENING: u32 = 4;

impl FlowTable {
    /// Chooses the flow that a full table evicts for a new flow of `owner`. [`Owners`](super::owners::Owners) names the
    /// owner that loses a flow; its oldest flow that is not established is evicted. An established flow is evicted
    /// instead in two cases: there is no other flow, or there are few others and the oldest of them may still be
    /// answered. (Connections that are opened together must not evict one another.) Then some of the owner's
    /// established flows are sampled, starting with those that were sampled longest ago. The one of them that has been
    /// silent longest is evicted.
    pub(super) fn victim(&mut self, owner: Owner, now: u32) -> Option<u32> {
        let giver = self.slots.owners.victim_owner(owner);
        let queued = self.slots.oldest(giver, EvictionClass::Unestablished);
        if self.slots.owners.has_few_unestablished(giver)
            && queued.is_none_or(|slot| self.is_opening(slot, now))
        {
            return self.established_victim(giver);
        }
        queued
    }

    /// Whether a flow was opened so recently that the other side may still answer.
    pub(super) fn is_opening(&self, slot: u32, now: u32) -> bool {
        let entry = &self.first_lines[slot as usize];
        entry.state().is_opening() && now.saturating_sub(entry.last_seen()) < OPENING
    }

    #[inline(never)]
    pub(super) fn established_victim(&mut self, giver: Owner) -> Option<u32> {
        let mut victim = self.slots.oldest(giver, EvictionClass::Established)?;
        for _ in 1..SAMPLE {
            let last_seen = |slot: u32| self.first_lines[slot as usize].last_seen();
            let Some(next) = self.slots.next(victim) else { break };
            let spared = if last_seen(next) < last_seen(victim) {
                std::mem::replace(&mut victim, next)
            } else {
                next
            };
            self.slots.unlink(spared, EvictionClass::Established);
            self.slots.append(spared, EvictionClass::Established);
        }
        Some(victim)
    }

    /// The flow to evict first from a hash's two buckets, except for `but`, if they hold any. The order is: an expired
    /// flow before a live one, then a flow whose owner has more than its share, then a flow that is not established,
    /// then the flow that has been silent longest.
    pub(super) fn least_valuable(&self, hash: u64, but: Option<u32>, now: u32) -> Option<u32> {
        let buckets = [self.first_bucket(hash), self.alternate_bucket(hash)];
        let all = buckets.into_iter().flat_map(|bucket| (0..WAYS).map(move |way| (bucket, way)));
        let slots = all.filter_map(|(bucket, way)| self.slot_at(bucket, way));
        let slots = slots.filter(|slot| Some(*slot) != but);
        slots.min_by_key(|slot| {
            let entry = &self.first_lines[*slot as usize];
            let is_over = self.slots.owners.is_over_share(self.slots.owner(*slot));
            (!entry.is_expired(now), !is_over, entry.state().is_established(), entry.last_seen())
        })
    }
}
