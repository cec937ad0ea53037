//! Session affinity: the last backend of each client (`sessionAffinity: ClientIP`).
//!
//! All workers share one table, because the connections of a client may arrive at any worker. The table has a fixed
//! size and takes no lock. An entry is two words. A reader may meet a half-written entry. It then finds no backend, or
//! one that the frontend does not have, and chooses again. Or it finds another client's backend, which is also a
//! backend of the frontend.

use std::io;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use ahash::RandomState;
use zerocopy::FromZeros;

use super::table::{Backend, Frontend};
use crate::hash_seed::HashSeed;
use crate::sys::memory::{Pages, ZeroedPages};
use crate::wire::address::Address;

/// The number of entries in a bucket: a client has one of them.
const WAYS: usize = 4;
/// The number of entries of the table: one for each client and service port.
const ENTRIES: usize = 1 << 16;

/// A backend is searched for at this many places on each side of its former place in the list of backends. A shorter
/// list is searched completely. In a longer list, up to this many backends may have been added or removed since the
/// client's last connection.
const NEAR: usize = 1024;

/// The last backend of each client, for each service port.
///
/// A full bucket removes an entry of the namespace that has most entries there, and of those the oldest. So the
/// services of two namespaces keep half of a bucket each, however many clients one of them has. A client has one entry
/// for each service port. So an entry of a namespace is removed only for further clients of that namespace, or for a
/// namespace that has fewer entries. Senders cannot choose buckets, because the hash has a random key.
#[derive(Debug)]
pub struct SessionAffinities {
    random: RandomState,
    buckets: ZeroedPages<Bucket>,
}

/// The client's [name](Name), and its [`Kept`]; name 0 marks a free entry.
#[derive(Debug, FromZeros)]
#[repr(C)]
struct Entry {
    client: AtomicU64,
    kept: AtomicU64,
}

/// The record of a client's backend, in one word: the backend's place in its list, a part of its hash, and the second
/// of the client's last connection. The count of seconds wraps after two years, so a client may get the backend that it
/// had more than a year before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Kept {
    index: u32,
    hash: u32,
    seconds: u32,
}

/// The largest number of backends of a frontend, which the bits for a place can number.
pub const MOST_BACKENDS: usize = 1 << Kept::INDEX_BITS;

impl Kept {
    const INDEX_BITS: u32 = 17;
    const HASH_BITS: u32 = 21;
    const SECONDS_BITS: u32 = u64::BITS - Self::INDEX_BITS - Self::HASH_BITS;

    const fn low(value: u64, bits: u32) -> u32 {
        (value & ((1 << bits) - 1)) as u32
    }

    /// Creates a record. Each number keeps only the bits for which there is room.
    const fn new(index: usize, hash: u64, now: u32) -> Self {
        Self {
            index: Self::low(index as u64, Self::INDEX_BITS),
            hash: Self::low(hash, Self::HASH_BITS),
            seconds: Self::low(now as u64, Self::SECONDS_BITS),
        }
    }

    const fn from_word(word: u64) -> Self {
        Self {
            index: Self::low(word >> (Self::HASH_BITS + Self::SECONDS_BITS), Self::INDEX_BITS),
            hash: Self::low(word >> Self::SECONDS_BITS, Self::HASH_BITS),
            seconds: Self::low(word, Self::SECONDS_BITS),
        }
    }

    const fn word(self) -> u64 {
        (self.index as u64) << (Self::HASH_BITS + Self::SECONDS_BITS)
            | (self.hash as u64) << Self::SECONDS_BITS
            | self.seconds as u64
    }

    /// The number of seconds since the last connection. It is 0 if another worker, whose clock is ahead, has recorded
    /// the connection.
    const fn age(self, now: u32) -> u32 {
        let age = Self::low(now.wrapping_sub(self.seconds) as u64, Self::SECONDS_BITS);
        if age >> (Self::SECONDS_BITS - 1) == 0 { age } else { 0 }
    }
}

#[derive(Debug, FromZeros)]
#[repr(C, align(64))]
struct Bucket([Entry; WAYS]);

/// The hash of a client and a service port. The lower 16 bits are a hash of the port's namespace. It is never 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Name(u64);

impl Name {
    const NAMESPACE_BITS: u32 = u16::BITS;

    const fn namespace(self) -> u16 {
        self.0 as u16
    }

    /// The number that chooses the bucket.
    const fn bucket(self) -> usize {
        (self.0 >> Self::NAMESPACE_BITS) as usize
    }
}

impl SessionAffinities {
    /// Creates an empty table. A bucket uses memory only after its first use. Returns an error if there is no address
    /// space.
    pub fn new() -> io::Result<Self> {
        Self::with_seed(HashSeed::random())
    }

    /// Like [`SessionAffinities::new`], with a hash of this seed.
    pub fn with_seed(seed: HashSeed) -> io::Result<Self> {
        let buckets = ZeroedPages::new(ENTRIES / WAYS, Pages::Small)?;
        Ok(Self { random: seed.hasher("affinities"), buckets })
    }

    /// The backend that the client keeps, if the frontend still has it and the client's last connection is recent
    /// enough. It is searched for at up to 1,024 places on each side of its former place, so a service with more
    /// backends than that costs no more.
    pub fn backend(&self, frontend: &Frontend, client: Address, now: u32) -> Option<Backend> {
        let timeout = frontend.affinity?;
        let name = self.name(frontend, client);
        let entry = self.bucket(name).iter().find(|it| it.client.load(Relaxed) == name.0)?;
        let kept = Kept::from_word(entry.kept.load(Relaxed));
        if kept.age(now) >= timeout {
            return None;
        }
        let backends = &*frontend.backends;
        let (before, from) = backends.split_at((kept.index as usize).min(backends.len()));
        let near = from.iter().take(NEAR).chain(before.iter().rev().take(NEAR));
        near.copied().find(|it| Kept::new(0, self.hash(it), 0).hash == kept.hash)
    }

    /// Records the backend of a client's new connection.
    pub fn note(&self, frontend: &Frontend, client: Address, backend: Backend, now: u32) {
        let name = self.name(frontend, client);
        let bucket = self.bucket(name);
        let names = bucket.each_ref().map(|entry| entry.client.load(Relaxed));
        let own = names.iter().position(|it| *it == name.0);
        let free = || names.iter().position(|it| *it == 0);
        let at = own.or_else(free).unwrap_or_else(|| {
            let times = bucket.each_ref().map(|it| Kept::from_word(it.kept.load(Relaxed)).seconds);
            forgotten(names.map(|it| Name(it).namespace()), times, name.namespace())
        });
        // The list is sorted.
        let index = frontend.backends.binary_search(&backend).unwrap_or_else(|near| near);
        bucket[at].client.store(name.0, Relaxed);
        bucket[at].kept.store(Kept::new(index, self.hash(&backend), now).word(), Relaxed);
    }

    fn name(&self, frontend: &Frontend, client: Address) -> Name {
        let namespace = self.random.hash_one(frontend.namespace) as u16;
        let hash = self.random.hash_one((frontend.id, client)) << Name::NAMESPACE_BITS
            | u64::from(namespace);
        Name(hash.max(1))
    }

    fn hash(&self, backend: &Backend) -> u64 {
        self.random.hash_one(backend)
    }

    fn bucket(&self, name: Name) -> &[Entry; WAYS] {
        &self.buckets[name.bucket() % self.buckets.len()].0
    }
}

/// The entry of a full bucket that a new entry of `namespace` replaces: its own oldest entry if no other namespace has
/// more there, else the oldest entry of the namespaces that have most.
fn forgotten(namespaces: [u16; WAYS], times: [u32; WAYS], namespace: u16) -> usize {
    let count = |of: u16| namespaces.iter().filter(|it| **it == of).count();
    let most = namespaces.iter().map(|it| count(*it)).max().unwrap_or_default();
    let gives =
        |of: u16| if count(namespace) == most { of == namespace } else { count(of) == most };
    let givers = (0..WAYS).filter(|at| gives(namespaces[*at]));
    givers.min_by_key(|at| times[*at]).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use proptest::prelude::*;

    use super::*;

    fn frontend(namespace: u64, id: u64) -> Frontend {
        let backend = |n| Backend { address: Ipv4Addr::from_bits(n).into(), port: 80 };
        let backends = (0..3).map(backend).collect();
        Frontend { id, namespace, backends, affinity: Some(1000), ..Frontend::default() }
    }

    fn client(n: u32) -> Address {
        Ipv4Addr::from_bits(0x0a00_0000 + n).into()
    }

    /// The number of a frontend's clients that are remembered, if each got the first backend.
    fn remembered(affinities: &SessionAffinities, frontend: &Frontend, clients: u32) -> usize {
        let first = Some(frontend.backends[0]);
        (0..clients).filter(|n| affinities.backend(frontend, client(*n), 9) == first).count()
    }

    proptest! {
        /// A namespace gives an entry to another one only if it has more of the bucket than that one, and at least as
        /// many as any. If two namespaces use a bucket, each that wants half of it gets half.
        #[test]
        fn nobody_gives_an_entry_to_who_has_as_many(
            namespaces in prop::array::uniform4(0u16..5), times in prop::array::uniform4(0u32..5), namespace in 0u16..5,
        ) {
            let count = |of: u16| namespaces.iter().filter(|it| **it == of).count();
            let at = forgotten(namespaces, times, namespace);
            let giver = namespaces[at];
            if giver != namespace {
                prop_assert!(count(giver) > count(namespace));
                prop_assert!(namespaces.iter().all(|it| count(*it) <= count(giver)));
            }
            let is_older = |it: usize| namespaces[it] == giver && times[it] < times[at];
            prop_assert!(!(0..WAYS).any(is_older));
        }
    }

    /// A backend is found even if others were added or removed, as long as these are fewer than the places that are
    /// searched. In a short list it is always found.
    #[test]
    fn a_client_keeps_its_backend_while_others_come_and_go() {
        let backend = |n| Backend { address: Ipv4Addr::from_bits(n).into(), port: 80 };
        let of = |range: std::ops::Range<u32>| Frontend {
            backends: range.map(backend).collect(),
            ..frontend(1, 1)
        };
        let (most, near) = (1 << Kept::INDEX_BITS, NEAR as u32);
        for (before, now, place) in [
            (0..2, 0..most, 1),
            (0..most, 0..most, most - 1),
            (0..most, near..most, 2 * near),
            (near - 1..most, 0..most, 5 * near),
            (0..near, near - 1..near, near - 1),
        ] {
            let affinities = SessionAffinities::new().unwrap();
            affinities.note(&of(before.clone()), client(1), backend(place), 1);
            // The clock of the worker that searches may be behind.
            for second in [0, 1, 2] {
                let found = affinities.backend(&of(now.clone()), client(1), second);
                assert_eq!(found, Some(backend(place)), "{before:?}, then {now:?}");
            }
        }
    }

    /// The clients of a namespace with few clients keep their records beside a namespace with many services and
    /// clients, whichever of the two comes first.
    #[test]
    fn a_namespace_with_a_crowd_of_clients_leaves_another_its_clients() {
        const FEW: u32 = 2_000;
        let few = frontend(1, 1);
        let note = |affinities: &SessionAffinities, frontend: &Frontend, clients: u32| {
            for n in 0..clients {
                affinities.note(frontend, client(n), frontend.backends[0], 1 + n % 5);
            }
        };
        for comes_last in [false, true] {
            let affinities = SessionAffinities::new().unwrap();
            if !comes_last {
                note(&affinities, &few, FEW);
            }
            (0..100).for_each(|id| note(&affinities, &frontend(2, 100 + id), 4_000));
            if comes_last {
                note(&affinities, &few, FEW);
            }
            // Three of 2,000 clients fall into one of 16,384 buckets about five times.
            let kept = remembered(&affinities, &few, FEW);
            assert!(kept > FEW as usize * 95 / 100, "{kept} of {FEW}, last: {comes_last}");
        }
    }
}
