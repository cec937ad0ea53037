//! The settings of a worker, and the state that it shares with the other workers of its node.

use std::io;
use std::sync::Arc;

use super::closer::Closer;
use crate::flow::{MAX_WORKERS, Shards};
use crate::hash_seed::HashSeed;
use crate::pipeline::Sizes;
use crate::pipeline::handoff::WorkerMesh;
use crate::services::SessionAffinities;

/// Whether an idle worker sleeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Polling {
    /// It sleeps in epoll after a while without packets.
    #[default]
    Adaptive,
    /// It never sleeps.
    Busy,
}

/// The settings of a worker.
#[derive(Debug, Clone, Copy)]
pub struct Settings {
    /// The sizes of its tables and buffers.
    pub sizes: Sizes,
    /// Whether the worker sleeps when idle.
    pub polling: Polling,
    /// The core that the worker is pinned to.
    pub core: Option<usize>,
}

/// The state that a worker shares with the other workers of its node.
pub struct SharedState {
    /// The seed of its hashes and random numbers.
    pub(super) seed: HashSeed,
    pub(super) mesh: WorkerMesh,
    pub(super) shards: Option<Arc<Shards>>,
    pub(super) affinities: Arc<SessionAffinities>,
    pub(super) closer: Closer,
}

impl SharedState {
    /// The shared state for each of `workers` workers (at least one, at most [`MAX_WORKERS`]), in order. `sizes` are
    /// the sizes of each worker. Returns an error if there is no address space.
    pub fn for_workers(workers: usize, sizes: Sizes) -> io::Result<Vec<Self>> {
        Self::seeded(workers, sizes, HashSeed::random())
    }

    /// Like [`SharedState::for_workers`], with hashes and random numbers that follow from `seed`. With a fixed seed,
    /// senders can choose keys that collide. So this is only for tests that must run the same way each time.
    pub fn seeded(workers: usize, sizes: Sizes, seed: HashSeed) -> io::Result<Vec<Self>> {
        let workers = workers.clamp(1, MAX_WORKERS);
        if workers == 1 {
            return Ok(vec![Self::alone_seeded(seed)?]);
        }
        let shards = Arc::new(Shards::with_seed(sizes.flows * workers, seed)?);
        let affinities = Arc::new(SessionAffinities::with_seed(seed)?);
        let share = |mesh| Self {
            seed,
            mesh,
            shards: Some(Arc::clone(&shards)),
            affinities: Arc::clone(&affinities),
            closer: Closer::default(),
        };
        Ok(WorkerMesh::new(workers, sizes.buffers).into_iter().map(share).collect())
    }

    /// The shared state of a single worker: nothing is shared.
    pub fn alone() -> io::Result<Self> {
        Self::alone_seeded(HashSeed::random())
    }

    fn alone_seeded(seed: HashSeed) -> io::Result<Self> {
        let affinities = Arc::new(SessionAffinities::with_seed(seed)?);
        let (mesh, closer) = (WorkerMesh::alone(), Closer::default());
        Ok(Self { seed, mesh, shards: None, affinities, closer })
    }
}
