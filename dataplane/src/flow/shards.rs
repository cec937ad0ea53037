//! Whose flow is it, where a node has several workers: each has a flow table of its own, and this tells in which a flow is.
//!
//! Flows fall by their hash into many small shards, several for each flow that there can be. A shard belongs to nobody until a worker
//! opens a flow in it, and from then on to that worker until the last of its flows is gone. So a flow is where its first packet was
//! read (unless the shard was another's), as the kernel spreads packets over the queues; and whoever meets a packet whose flow he does not know learns by one load
//! whose it is. A known flow's packet asks nothing.

use std::io;
use std::sync::atomic::{AtomicU16, Ordering::Relaxed};

use ahash::RandomState;

use crate::sys::memory::{Pages, ZeroedPages};

/// A worker's number on its node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WorkerId(pub u8);

/// The workers that one node can have.
pub const MAX_WORKERS: usize = 255;

/// Whose each shard is. Only its owner changes a shard that has one, so no two workers open flows in one shard at a time.
///
/// Nothing else is read because of what stands here: who hands a packet over does so by a queue, and that orders the rest.
pub struct Shards {
    /// The hash is the same for all, so that a packet is handed over with it.
    random: RandomState,
    /// 0: nobody's. Else the owner's number and one, above [`COUNT_BITS`] bits that count its flows. One that has once had [`MANY`]
    /// stays its owner's for good.
    shards: ZeroedPages<AtomicU16>,
}

const COUNT_BITS: u32 = 8;
const MANY: u16 = (1 << COUNT_BITS) - 1;
/// So many that two workers' flows seldom fall into one, for those of the later one are all handed over: of two workers with a fifth
/// of what they can hold, one in 600.
const SHARDS_PER_FLOW: usize = 512;

impl Shards {
    /// For tables that hold `flows` flows together. Takes at most 128 bytes for each. Errors: no address space.
    pub fn new(flows: usize) -> io::Result<Self> {
        let shards = flows.clamp(1, 1 << 30).next_power_of_two() * SHARDS_PER_FLOW;
        Ok(Self { random: RandomState::new(), shards: ZeroedPages::new(shards, Pages::Small)? })
    }

    pub(super) fn random(&self) -> RandomState {
        self.random.clone()
    }

    pub(super) fn shard(&self, hash: u64) -> &AtomicU16 {
        &self.shards[self.place(hash)]
    }

    /// Asks for the shard before it is needed.
    pub(super) fn prefetch(&self, hash: u64) {
        self.shards.prefetch(self.place(hash));
    }

    fn place(&self, hash: u64) -> usize {
        (hash >> 8) as usize & (self.shards.len() - 1)
    }

    /// Whose the flows of this hash are. `None`: nobody has one.
    #[inline]
    pub fn owner(&self, hash: u64) -> Option<WorkerId> {
        owner(self.shard(hash).load(Relaxed))
    }

    /// Makes the flows of this hash `worker`'s, if they are nobody's. Returns whose they are.
    pub fn claim(&self, hash: u64, worker: WorkerId) -> WorkerId {
        let claimed = (u16::from(worker.0) + 1) << COUNT_BITS;
        match self.shard(hash).compare_exchange(0, claimed, Relaxed, Relaxed) {
            Ok(_) => worker,
            Err(other) => owner(other).unwrap_or(worker),
        }
    }

    /// The owner has one flow more.
    pub(super) fn opened(&self, hash: u64) {
        let shard = self.shard(hash);
        let held = shard.load(Relaxed);
        debug_assert!(held != 0, "a flow is opened after a claim");
        if held & MANY < MANY {
            shard.store(held + 1, Relaxed);
        }
    }

    /// The owner has one flow less: of the last one, the shard is nobody's again.
    pub(super) fn closed(&self, hash: u64) {
        let shard = self.shard(hash);
        let held = shard.load(Relaxed);
        match held & MANY {
            0 | MANY => {}
            1 => shard.store(0, Relaxed),
            _ => shard.store(held - 1, Relaxed),
        }
    }
}

fn owner(shard: u16) -> Option<WorkerId> {
    Some(WorkerId(((shard >> COUNT_BITS) as u8).checked_sub(1)?))
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU32;

    use super::*;

    /// Hashes of one shard.
    const SAME: [u64; 2] = [7, 8];

    const A: WorkerId = WorkerId(0);
    const B: WorkerId = WorkerId(254);

    #[test]
    fn a_shard_is_its_first_claimants_until_his_last_flow_is_gone() {
        let shards = Shards::new(1).unwrap();
        let [one, other] = SAME;
        assert_eq!(shards.owner(one), None);
        assert_eq!(shards.claim(one, A), A);
        shards.opened(one);
        assert_eq!(shards.claim(other, A), A);
        shards.opened(other);
        shards.closed(one);
        assert_eq!((shards.owner(one), shards.claim(one, B)), (Some(A), A));
        shards.closed(other);
        assert_eq!((shards.owner(one), shards.claim(one, B)), (None, B));
        assert_eq!(shards.owner(other), Some(B));
    }

    #[test]
    fn a_shard_of_more_flows_than_can_be_counted_is_never_let_go_of() {
        let shards = Shards::new(1).unwrap();
        for count in [254, 255, 300] {
            let hash = count << 8;
            assert_eq!(shards.claim(hash, B), B);
            (0..count).for_each(|_| shards.opened(hash));
            (0..count).for_each(|_| shards.closed(hash));
            assert_eq!(shards.owner(hash), (count > 254).then_some(B), "{count}");
        }
    }

    #[test]
    fn no_two_workers_own_a_shard_at_a_time() {
        let shards = Shards::new(4).unwrap();
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
