//! Whose flow is it, where a node has several workers: each has a flow table of its own, and this tells in which a flow is.
//!
//! Flows fall by their hash into many small shards, about as many as there can be flows. A shard belongs to nobody until a worker
//! opens a flow in it, and from then on to that worker until the last of its flows is gone. So a flow is where its first packet was
//! read, as the kernel spreads packets over the queues; and whoever meets a packet whose flow he does not know learns by one load
//! whose it is. A known flow's packet asks nothing.

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use ahash::RandomState;

/// A worker's number on its node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WorkerId(pub u8);

/// The workers that one node can have.
pub const MAX_WORKERS: usize = 255;

/// Whose each shard is. Only its owner changes a shard that has one, so no two workers open flows in one shard at a time.
///
/// Nothing else is read because of what stands here: who hands a packet over does so by a queue, and that orders the rest.
#[derive(Debug)]
pub struct Shards {
    /// The hash is the same for all, so that a packet is handed over with it.
    random: RandomState,
    /// 0: nobody's. Else the owner's number and one, above [`COUNT_BITS`] bits that count its flows.
    shards: Box<[AtomicU32]>,
}

const COUNT_BITS: u32 = 24;

impl Shards {
    /// For tables that hold `flows` flows together. Takes four bytes for each.
    pub fn new(flows: usize) -> Self {
        let shards = flows.clamp(1, 1 << 30).next_power_of_two();
        Self {
            random: RandomState::new(),
            shards: (0..shards).map(|_| AtomicU32::new(0)).collect(),
        }
    }

    pub(super) fn random(&self) -> RandomState {
        self.random.clone()
    }

    fn shard(&self, hash: u64) -> &AtomicU32 {
        &self.shards[(hash >> 8) as usize & (self.shards.len() - 1)]
    }

    /// Whose the flows of this hash are. `None`: nobody has one.
    #[inline]
    pub fn owner(&self, hash: u64) -> Option<WorkerId> {
        owner(self.shard(hash).load(Relaxed))
    }

    /// Makes the flows of this hash `worker`'s, if they are nobody's. Returns whose they are.
    pub fn claim(&self, hash: u64, worker: WorkerId) -> WorkerId {
        let claimed = (u32::from(worker.0) + 1) << COUNT_BITS;
        match self.shard(hash).compare_exchange(0, claimed, Relaxed, Relaxed) {
            Ok(_) => worker,
            Err(other) => owner(other).unwrap_or(worker),
        }
    }

    /// The owner has one flow more.
    pub(super) fn opened(&self, hash: u64) {
        let shard = self.shard(hash);
        shard.store(shard.load(Relaxed) + 1, Relaxed);
    }

    /// The owner has one flow less: of the last one, the shard is nobody's again.
    pub(super) fn closed(&self, hash: u64) {
        let shard = self.shard(hash);
        let left = shard.load(Relaxed) - 1;
        let last = left & ((1 << COUNT_BITS) - 1) == 0;
        shard.store(if last { 0 } else { left }, Relaxed);
    }
}

fn owner(shard: u32) -> Option<WorkerId> {
    Some(WorkerId(((shard >> COUNT_BITS) as u8).checked_sub(1)?))
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU32;

    use super::*;

    const A: WorkerId = WorkerId(0);
    const B: WorkerId = WorkerId(254);

    #[test]
    fn a_shard_is_its_first_claimants_until_his_last_flow_is_gone() {
        let shards = Shards::new(1);
        assert_eq!(shards.owner(7), None);
        assert_eq!(shards.claim(7, A), A);
        shards.opened(7);
        assert_eq!(shards.claim(8, A), A, "one shard for all");
        shards.opened(8);
        shards.closed(7);
        assert_eq!((shards.owner(7), shards.claim(7, B)), (Some(A), A));
        shards.closed(8);
        assert_eq!((shards.owner(7), shards.claim(7, B)), (None, B));
        assert_eq!(shards.owner(7), Some(B));
    }

    #[test]
    fn no_two_workers_own_a_shard_at_a_time() {
        let shards = Shards::new(4);
        let inside = [0; 4].map(AtomicU32::new);
        std::thread::scope(|scope| {
            for worker in 0..3 {
                let (shards, inside) = (&shards, &inside);
                scope.spawn(move || {
                    let mut had = 0;
                    while had < 2_000 {
                        for (hash, inside) in (0..4).map(|at| at << 8).zip(inside) {
                            if shards.claim(hash, WorkerId(worker)) == WorkerId(worker) {
                                shards.opened(hash);
                                assert_eq!(inside.fetch_add(1, Relaxed), 0);
                                assert_eq!(shards.owner(hash), Some(WorkerId(worker)));
                                assert_eq!(inside.fetch_sub(1, Relaxed), 1);
                                shards.closed(hash);
                                had += 1;
                            }
                        }
                        std::thread::yield_now();
                    }
                });
            }
        });
    }
}
