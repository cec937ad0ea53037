//! Session affinity: the backend that a client got last (`sessionAffinity: ClientIP`).
//!
//! All workers share one table, because a client's connections come to any of them. It has a fixed size, and takes no lock:
//! an entry is two words, and a reader that meets a half-written one finds a backend that the frontend does not have, or
//! none, and chooses anew; or another client's, which is one of the frontend's.

use std::io;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use ahash::RandomState;
use zerocopy::FromZeros;

use super::table::{Backend, Frontend};
use crate::hash_seed::HashSeed;
use crate::sys::memory::{Pages, ZeroedPages};
use crate::wire::address::Address;

/// Entries that stand side by side: a client has one of them.
const WAYS: usize = 4;
/// The entries of a table: clients of services, each with each of its services.
const ENTRIES: usize = 1 << 16;

/// Which backend each client got last, by the service's port.
///
/// A full bucket forgets the client that came longest ago. Senders cannot choose buckets, because the hash has a random
/// key. Who sends from very many addresses makes others lose their affinity, but no connection.
#[derive(Debug)]
pub struct Affinities {
    random: RandomState,
    buckets: ZeroedPages<Bucket>,
}

/// The hash of client and service port; 0: none. The low half of the backend's hash, and the second of the last
/// connection.
#[derive(Debug, FromZeros)]
#[repr(C)]
struct Entry {
    client: AtomicU64,
    backend_and_time: AtomicU64,
}

#[derive(Debug, FromZeros)]
#[repr(C, align(64))]
struct Bucket([Entry; WAYS]);

impl Affinities {
    /// No client has come yet. A bucket takes memory when it is first used. Errors: no address space.
    pub fn new() -> io::Result<Self> {
        Self::with_seed(HashSeed::random())
    }

    /// Like [`Affinities::new`], with a hash of this seed.
    pub fn with_seed(seed: HashSeed) -> io::Result<Self> {
        let buckets = ZeroedPages::new(ENTRIES / WAYS, Pages::Small)?;
        Ok(Self { random: seed.hasher("affinities"), buckets })
    }

    /// The backend that the client keeps, if the frontend still has it and the client's last connection is recent
    /// enough.
    pub fn backend(&self, frontend: &Frontend, client: Address, now: u32) -> Option<Backend> {
        let timeout = frontend.affinity?;
        let name = self.name(frontend, client);
        let entry = self.bucket(name).iter().find(|it| it.client.load(Relaxed) == name)?;
        let word = entry.backend_and_time.load(Relaxed);
        let (hash, last) = ((word >> 32) as u32, word as u32);
        let is_recent = now.saturating_sub(last) < timeout;
        frontend.backends.iter().copied().find(|it| is_recent && self.hash(it) == hash)
    }

    /// Notes the backend of a client's new connection.
    pub fn note(&self, frontend: &Frontend, client: Address, backend: Backend, now: u32) {
        let name = self.name(frontend, client);
        let bucket = self.bucket(name);
        let age = |entry: &&Entry| match entry.client.load(Relaxed) {
            found if found == name => (0, 0),
            0 => (1, 0),
            _ => (2, entry.backend_and_time.load(Relaxed) as u32),
        };
        if let Some(entry) = bucket.iter().min_by_key(age) {
            let word = u64::from(self.hash(&backend)) << 32 | u64::from(now);
            entry.client.store(name, Relaxed);
            entry.backend_and_time.store(word, Relaxed);
        }
    }

    fn name(&self, frontend: &Frontend, client: Address) -> u64 {
        self.random.hash_one((frontend.id, client)).max(1)
    }

    fn hash(&self, backend: &Backend) -> u32 {
        self.random.hash_one(backend) as u32
    }

    fn bucket(&self, name: u64) -> &[Entry; WAYS] {
        &self.buckets[name as usize % self.buckets.len()].0
    }
}
