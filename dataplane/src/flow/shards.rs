//! Shards: the assignment of flows to workers, if a node has several workers with a flow table each.
//!
//! The hash of a flow chooses one of many small shards. There are thousands of shards for each flow that the tables can
//! hold. A shard has no owner until a worker opens a flow in it; then it belongs to that worker until the last of its
//! flows is gone. So a flow stays with the worker that read its first packet, unless the shard had another owner. In
//! this way, the workers share the flows as the kernel spreads the packets over the queues. A worker that receives a
//! packet of a flow that it does not know finds out with one load which worker has the flow. A packet of a known flow
//! does not need to read its shard.
//!
//! Only shards that have an owner take memory: 512 shards share a bucket, and a bucket holds three. When a bucket is
//! full and one of its owners needs a fourth shard, that owner takes all other shards of the bucket. So every shard can
//! have an owner, and all workers see the same one.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use ahash::RandomState;

use crate::hash_seed::HashSeed;
use crate::sys::memory::{Pages, ZeroedPages};

/// A worker's number on its node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WorkerId(pub u8);

/// The largest number of workers on one node.
pub const MAX_WORKERS: usize = 255;

/// The owner of each shard. A bucket changes in one atomic step, so no two workers open flows in one shard at the same
/// time.
///
/// No thread reads other memory because of a value that it finds here: a handoff goes through a queue, and the queue
/// provides the ordering.
pub struct Shards {
    /// All workers use this hash, so that they agree on a packet's shard.
    random: RandomState,
    /// One [`ShardBucket`] in each.
    buckets: ZeroedPages<AtomicU64>,
}

const BUCKETS_PER_FLOW: usize = 8;

impl Shards {
    /// Creates shards for tables that together hold `flows` flows. They take at most 128 bytes for each flow. Returns
    /// an error if there is no address space.
    pub fn new(flows: usize) -> io::Result<Self> {
        Self::with_seed(flows, HashSeed::random())
    }

    /// Like [`Shards::new`], with a hash of this seed.
    pub fn with_seed(flows: usize, seed: HashSeed) -> io::Result<Self> {
        let buckets = flows.clamp(1, 1 << 30).next_power_of_two() * BUCKETS_PER_FLOW;
        let buckets = ZeroedPages::new(buckets, Pages::Small)?;
        Ok(Self { random: seed.hasher("flows"), buckets })
    }

    pub(super) fn random(&self) -> RandomState {
        self.random.clone()
    }

    /// Prefetches the bucket of this hash.
    pub(super) fn prefetch(&self, hash: u64) {
        self.buckets.prefetch(self.bucket_index(hash));
    }

    pub(super) fn bucket_index(&self, hash: u64) -> usize {
        (hash >> 8) as usize & (self.buckets.len() - 1)
    }

    /// The worker that has the flows of this hash. `None`: no worker has such flows.
    #[inline]
    pub fn owner(&self, hash: u64) -> Option<WorkerId> {
        let bucket = ShardBucket::from_bits(self.buckets[self.bucket_index(hash)].load(Relaxed));
        Some(bucket.0[bucket.find(tag(hash))?].owner())
    }

    /// Counts a flow of this hash that `worker` is about to open. Returns an error with the shard's owner if that is
    /// another worker.
    pub(super) fn open(&self, hash: u64, worker: WorkerId) -> Result<(), WorkerId> {
        let place = &self.buckets[self.bucket_index(hash)];
        let mut found = place.load(Relaxed);
        loop {
            let bucket = ShardBucket::from_bits(found).opened(tag(hash), worker)?;
            match place.compare_exchange_weak(found, bucket.to_bits(), Relaxed, Relaxed) {
                Ok(_) => return Ok(()),
                Err(other) => found = other,
            }
        }
    }

    /// Counts one flow less. When it has no flow left, the shard loses its owner.
    pub(super) fn close(&self, hash: u64) {
        let place = &self.buckets[self.bucket_index(hash)];
        let closed = |found| Some(ShardBucket::from_bits(found).closed(tag(hash)).to_bits());
        let _ = place.fetch_update(Relaxed, Relaxed, closed);
    }
}

/// The shard of a hash within its bucket: 9 bits that do not choose the bucket while there are at most 2^47 buckets.
/// Never [`ALL_OTHERS`].
fn tag(hash: u64) -> u16 {
    ((hash >> 55) as u16).max(1)
}

/// The tag that stands for all shards without a tag of their own in the bucket.
const ALL_OTHERS: u16 = 0;

/// A shard that has an owner, in 21 bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct OwnedShard {
    /// 0: no owner. Else the number of the owner plus one.
    worker: u8,
    /// 9 bits: the shard, or [`ALL_OTHERS`].
    tag: u16,
    /// 4 bits: the number of its flows. A shard that has once had [`MANY`] flows keeps its owner forever.
    flows: u8,
}

const MANY: u8 = 15;

impl OwnedShard {
    const BITS: u32 = 21;

    fn new(worker: WorkerId, tag: u16) -> Self {
        Self { worker: worker.0 + 1, tag, flows: 0 }
    }

    fn owner(self) -> WorkerId {
        WorkerId(self.worker.wrapping_sub(1))
    }
}

/// The shards of one bucket that have an owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct ShardBucket([OwnedShard; 3]);

impl ShardBucket {
    #[inline]
    fn from_bits(bits: u64) -> Self {
        Self([0, 1, 2].map(|at| {
            let bits = bits >> (at * OwnedShard::BITS);
            let (worker, tag) = ((bits >> 13) as u8, (bits >> 4) as u16 & 0x1ff);
            OwnedShard { worker, tag, flows: bits as u8 & MANY }
        }))
    }

    fn to_bits(self) -> u64 {
        self.0.iter().rev().fold(0, |bits, it| {
            bits << OwnedShard::BITS
                | u64::from(it.worker) << 13
                | u64::from(it.tag) << 4
                | u64::from(it.flows)
        })
    }

    /// The position of the entry for the shard with this tag, or else of the entry for all shards without their own.
    #[inline]
    fn find(&self, tag: u16) -> Option<usize> {
        let held = |tag| self.0.iter().position(|it| it.worker > 0 && it.tag == tag);
        held(tag).or_else(|| held(ALL_OTHERS))
    }

    /// The bucket with one flow added to a shard. Returns an error with the shard's owner if that is another worker.
    fn opened(mut self, tag: u16, worker: WorkerId) -> Result<Self, WorkerId> {
        let at = if let Some(at) = self.find(tag) {
            at
        } else if let Some(free) = self.0.iter().position(|it| it.worker == 0) {
            self.0[free] = OwnedShard::new(worker, tag);
            free
        } else {
            let own = self.0.iter().position(|it| it.owner() == worker).unwrap_or_default();
            if self.0[own].owner() == worker {
                self.0[own].tag = ALL_OTHERS;
            }
            own
        };
        let held = &mut self.0[at];
        if held.owner() != worker {
            return Err(held.owner());
        }
        held.flows = (held.flows + 1).min(MANY);
        Ok(self)
    }

    /// The bucket with one flow removed from a shard.
    fn closed(mut self, tag: u16) -> Self {
        if let Some(at) = self.find(tag) {
            let held = &mut self.0[at];
            match held.flows {
                MANY => {}
                0 | 1 => *held = OwnedShard::default(),
                _ => held.flows -= 1,
            }
        }
        self
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;
    use std::sync::atomic::AtomicU32;

    use proptest::prelude::*;

    use super::*;

    const A: WorkerId = WorkerId(0);
    const B: WorkerId = WorkerId(254);

    /// A hash of this shard, in the first bucket.
    const fn hash(tag: u64) -> u64 {
        tag << 55
    }

    #[test]
    fn a_shard_belongs_to_the_worker_that_opened_it_until_its_last_flow_is_gone() {
        let shards = Shards::new(1).unwrap();
        let [one, other] = [hash(7), hash(7) | 1];
        assert_eq!(shards.owner(one), None);
        assert_eq!(shards.open(one, A), Ok(()));
        assert_eq!(shards.open(other, A), Ok(()));
        assert_eq!(shards.open(other, B), Err(A));
        shards.close(one);
        assert_eq!((shards.owner(one), shards.open(one, B)), (Some(A), Err(A)));
        shards.close(other);
        assert_eq!((shards.owner(one), shards.open(one, B)), (None, Ok(())));
        assert_eq!(shards.owner(other), Some(B));
    }

    #[test]
    fn a_shard_with_more_flows_than_can_be_counted_keeps_its_owner() {
        let shards = Shards::new(1).unwrap();
        for count in [14, 15, 30] {
            (0..count).for_each(|_| assert_eq!(shards.open(hash(count), B), Ok(())));
            (0..count).for_each(|_| shards.close(hash(count)));
            assert_eq!(shards.owner(hash(count)), (count > 14).then_some(B), "{count}");
        }
    }

    #[test]
    fn in_a_full_bucket_the_owner_of_a_shard_takes_all_others() {
        let shards = Shards::new(1).unwrap();
        let [one, two, three, four, five] = [1, 2, 3, 4, 5].map(hash);
        for (shard, worker) in [(one, A), (two, B), (three, B)] {
            assert_eq!(shards.open(shard, worker), Ok(()));
        }
        assert_eq!(shards.open(four, WorkerId(9)), Err(A));
        assert_eq!(shards.owner(four), None);
        assert_eq!(shards.open(four, B), Ok(()));
        assert_eq!(
            [one, two, three, four, five].map(|it| shards.owner(it)),
            [A, B, B, B, B].map(Some)
        );
        assert_eq!(shards.open(five, A), Err(B));
        shards.close(two);
        shards.close(four);
        assert_eq!(
            [one, two, three, four].map(|it| shards.owner(it)),
            [Some(A), None, Some(B), None]
        );
    }

    proptest! {
        /// Three workers open and close flows of six shards in each of four buckets. A worker that has a flow owns its
        /// shard all the time, shards whose flows are closed have no owner, and the owner that a worker finds can
        /// open the flow.
        #[test]
        fn a_worker_that_has_a_flow_owns_its_shard(
            steps in prop::collection::vec((1u64..7, 0u64..4, 0u8..3, any::<bool>()), 1..100),
        ) {
            let shards = Shards::new(1).unwrap();
            // For each hash, its owner and its number of flows.
            let mut flows: HashMap<u64, (WorkerId, u8)> = HashMap::new();
            let mut most = 0;
            for (tag, bucket, worker, opens) in steps {
                let (hash, worker) = (hash(tag) | bucket << 8, WorkerId(worker));
                if opens {
                    let owner = match shards.open(hash, worker) {
                        Ok(()) => worker,
                        Err(other) => {
                            prop_assert_ne!(other, worker);
                            prop_assert_eq!(shards.open(hash, other), Ok(()));
                            other
                        }
                    };
                    let held = flows.entry(hash).or_insert((owner, 0));
                    prop_assert_eq!(held.0, owner);
                    held.1 += 1;
                } else if let Some(held) = flows.get_mut(&hash) {
                    shards.close(hash);
                    held.1 -= 1;
                    if held.1 == 0 {
                        flows.remove(&hash);
                    }
                }
                for (hash, (owner, _)) in &flows {
                    prop_assert_eq!(shards.owner(*hash), Some(*owner));
                }
                let of_bucket = flows.iter().filter(|(hash, _)| *hash >> 8 & 3 == bucket);
                most = most.max(of_bucket.map(|(_, (_, count))| count).sum());
            }
            for (hash, (_, count)) in flows {
                (0..count).for_each(|_| shards.close(hash));
            }
            let left = (0..4).any(|bucket| shards.buckets[bucket].load(Relaxed) != 0);
            prop_assert!(!left || most >= MANY, "a shard with few flows kept its owner after the last one");
        }
    }

    #[test]
    fn two_workers_never_own_a_shard_at_the_same_time() {
        let shards = Shards::new(1).unwrap();
        // Six shards of one bucket, so that it is full at times.
        let inside = [0; 6].map(AtomicU32::new);
        std::thread::scope(|scope| {
            for worker in 0..3 {
                let (shards, inside) = (&shards, &inside);
                scope.spawn(move || {
                    let mut had = 0;
                    while had < 2_000 {
                        for (hash, inside) in (1..7).map(hash).zip(inside) {
                            if shards.open(hash, WorkerId(worker)).is_ok() {
                                assert_eq!(inside.fetch_add(1, Relaxed), 0);
                                assert_eq!(shards.owner(hash), Some(WorkerId(worker)));
                                assert_eq!(inside.fetch_sub(1, Relaxed), 1);
                                shards.close(hash);
                                had += 1;
                            }
                        }
                        std::thread::yield_now();
                    }
                });
            }
        });
        assert_eq!(shards.buckets[0].load(Relaxed), 0);
    }
}
