//! The number of calls of the datastore that it takes to assign an address with Calico's IPAM. All nodes of a large
//! cluster start at once, and each assigns addresses to its pods, one after the other. Each call takes simulated time,
//! so the counts do not depend on the machine. A write is refused if another node has changed the object first.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use std::future::poll_fn;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use manx_block_ipam::affinity::Owner;
use manx_block_ipam::assign::{Request, assign};
use manx_block_ipam::block::{Attributes, Time};
use manx_block_ipam::config::Config;
use manx_block_ipam::memory::{Memory, Write, pool};
use manx_block_ipam::pool::Pool;
use manx_block_ipam::store::{Key, Record, Store, StoreError, Which};

use crate::error::{Error, Failure};
use crate::report::figures::Figure;
use crate::run::{ListedRow, Run, Settings};

/// The number of nodes.
const NODES: usize = 1000;
/// The number of addresses that each node assigns.
const ADDRESSES: usize = 100;
/// The range of the time that a call of the store takes, in simulated microseconds: the lower bound, inclusive, and the
/// upper bound, exclusive.
const CALL: (u64, u64) = (2_000, 10_000);
/// The range of the time between two pods that the runtime of a node creates, in the same form as [`CALL`].
const POD: (u64, u64) = (50_000, 150_000);
/// The prefix length of blocks.
const BLOCK: u8 = 26;

/// A row: the pool, and how full it becomes.
struct Row {
    name: &'static str,
    cidr: &'static str,
    description: &'static str,
    estimate: Duration,
}

const ROWS: [Row; 2] = [
    Row {
        name: "addresses",
        cidr: "10.0.0.0/14",
        description: "1,000 nodes give 100 addresses each, from twice as many blocks as they need",
        estimate: Duration::from_secs(150),
    },
    Row {
        name: "addresses-scarce",
        cidr: "10.0.0.0/15",
        description: "1,000 nodes give 100 addresses each, and need 2,000 of 2,048 blocks",
        estimate: Duration::from_secs(150),
    },
];

/// The rows of this section.
pub fn rows(_: &Settings) -> Vec<ListedRow> {
    ROWS.iter().map(|row| ListedRow::new(row.name, row.description, row.estimate)).collect()
}

pub fn measure(run: &mut Run) -> Result<(), Error> {
    for row in &ROWS {
        if !run.wants(row.name) {
            continue;
        }
        run.progress.begin(&format!("{}: {}", row.name, row.description));
        run.add_measured(row.name, figures(row))?;
        run.progress.step(format!("{}: done", row.name), row.estimate);
    }
    Ok(())
}

fn figures(row: &Row) -> Result<Vec<Figure>, Failure> {
    let calls = simulate(&pool(row.cidr, BLOCK))?;
    let head = format!("Addresses by Calico's IPAM: {}", row.description);
    let of_each = |count: u64| count as f64 / (NODES * ADDRESSES) as f64;
    let figures = [
        ("writes of an address", "writes", of_each(calls.writes)),
        ("of these, refused because another node was first", "writes", of_each(calls.conflicts)),
        ("reads of one object", "reads", of_each(calls.reads)),
        ("lists", "lists", of_each(calls.lists)),
        ("objects in lists", "objects", of_each(calls.listed)),
        ("simulated time until the last node has all", "s", calls.end as f64 / 1e6),
    ];
    Ok(figures
        .into_iter()
        .filter_map(|(what, unit, value)| {
            Figure::from_values(row.name, &head, what, unit, &[value], None)
        })
        .collect())
}

/// The numbers of calls of the store, by kind.
#[derive(Debug, Default)]
struct Calls {
    reads: u64,
    lists: u64,
    listed: u64,
    writes: u64,
    conflicts: u64,
    /// The time when the last node was done, in simulated microseconds.
    end: u64,
}

/// The simulated clock, and the nodes that wait until some time.
#[derive(Default)]
struct Clock {
    now: u64,
    wakes: BinaryHeap<Reverse<(u64, usize)>>,
    random: u64,
    calls: Calls,
}

impl Clock {
    /// A number from a range. The sequence is the same in each run (Knuth's 64-bit generator; its high bits).
    fn between(&mut self, (from, below): (u64, u64)) -> u64 {
        self.random = self
            .random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        from + (self.random >> 33) % (below - from)
    }
}

/// The store as one node sees it: each call takes simulated time.
#[derive(Clone)]
struct Distant {
    node: usize,
    memory: Arc<Memory>,
    clock: Arc<Mutex<Clock>>,
}

impl Distant {
    fn clock(&self) -> MutexGuard<'_, Clock> {
        self.clock.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for some simulated time.
    async fn wait(&self, range: (u64, u64)) {
        let until = {
            let mut clock = self.clock();
            let until = clock.now + clock.between(range);
            clock.wakes.push(Reverse((until, self.node)));
            until
        };
        poll_fn(|_| if self.clock().now >= until { Poll::Ready(()) } else { Poll::Pending }).await;
    }

    /// A call: its request takes half of the time, and its answer takes the other half.
    async fn call<T>(&self, ask: impl FnOnce() -> T) -> T {
        let half = (CALL.0 / 2, CALL.1 / 2);
        self.wait(half).await;
        let answer = ask();
        self.wait(half).await;
        answer
    }

    async fn write(&self, write: Write) -> Result<u64, StoreError> {
        let done = self.call(|| self.memory.write(&write)).await;
        let calls = &mut self.clock().calls;
        calls.writes += 1;
        calls.conflicts += u64::from(done == Err(StoreError::Conflict));
        done
    }
}

impl Store for Distant {
    type Revision = u64;

    async fn get(&self, key: &Key) -> Result<Option<(Record, u64)>, StoreError> {
        self.clock().calls.reads += 1;
        Ok(self.call(|| self.memory.read(key)).await)
    }

    async fn list(&self, which: &Which) -> Result<Vec<(Record, u64)>, StoreError> {
        let found = self.call(|| self.memory.listed(which)).await;
        let calls = &mut self.clock().calls;
        calls.lists += 1;
        calls.listed += found.len() as u64;
        Ok(found)
    }

    async fn create(&self, record: Record) -> Result<u64, StoreError> {
        self.write(Write::Create(record)).await
    }

    async fn swap(&self, revision: &u64, record: Record) -> Result<u64, StoreError> {
        self.write(Write::Swap(*revision, record)).await
    }

    async fn delete(&self, revision: &u64, record: Record) -> Result<(), StoreError> {
        self.write(Write::Delete(*revision, record)).await.map(drop)
    }
}

/// Runs a node, and returns the addresses that it assigns to its pods.
async fn node(store: Distant, pool: &Pool) -> Result<Vec<IpAddr>, Failure> {
    let owner = Owner::Host(format!("node-{}", store.node));
    let config = Config::default();
    let mut addresses = Vec::new();
    for pod in 0..ADDRESSES {
        let handle = format!("k8s-pod-network.{}-{pod}", store.node);
        let attributes = Attributes::from([("node".to_owned(), owner.name().to_owned())]);
        let now = Time(store.clock().now / 1_000_000);
        let request = Request {
            owner: &owner,
            handle: &handle,
            attributes: &attributes,
            reserved: &[],
            config: &config,
            now,
        };
        addresses.push(assign(&store, &[pool], request).await.map_err(|it| it.to_string())?);
        store.wait(POD).await;
    }
    Ok(addresses)
}

/// Runs all nodes until each has assigned its addresses. Returns the counts of their calls.
fn simulate(pool: &Pool) -> Result<Calls, Failure> {
    let (memory, clock) = (Arc::new(Memory::default()), Arc::new(Mutex::new(Clock::default())));
    let store = |node| Distant { node, memory: Arc::clone(&memory), clock: Arc::clone(&clock) };
    let mut tasks: BTreeMap<usize, Pin<Box<_>>> =
        (0..NODES).map(|it| (it, Box::pin(node(store(it), pool)))).collect();
    let mut given: BTreeSet<IpAddr> = BTreeSet::new();
    let mut next: Vec<usize> = (0..NODES).collect();
    let mut context = Context::from_waker(Waker::noop());
    loop {
        for it in std::mem::take(&mut next) {
            let Some(task) = tasks.get_mut(&it) else { continue };
            if let Poll::Ready(done) = task.as_mut().poll(&mut context) {
                given.extend(done?);
                tasks.remove(&it);
            }
        }
        let mut clock = clock.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(Reverse((at, node))) = clock.wakes.pop() else { break };
        clock.now = at;
        next.push(node);
    }
    if given.len() != NODES * ADDRESSES {
        let found = given.len();
        return Err(format!("{found} different addresses, expected {}", NODES * ADDRESSES).into());
    }
    let mut clock = clock.lock().unwrap_or_else(PoisonError::into_inner);
    clock.calls.end = clock.now;
    Ok(std::mem::take(&mut clock.calls))
}
