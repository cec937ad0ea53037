//! The laws, for interleaved operations: several nodes attach and detach pods, and an administrator takes blocks away,
//! all with one store. Between two calls of the store, another node may continue. A node may crash at any call. Its
//! write is then done, not done, or done later.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::future::poll_fn;
use std::net::IpAddr;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use ipnet::IpNet;
use proptest::prelude::*;
use proptest::strategy::ValueTree;

use crate::affinity::{Affinity, Owner, State};
use crate::assign::{self, Error, Request};
use crate::block::{Attributes, Block, Rest, Time};
use crate::claim::release_block;
use crate::config::Config;
use crate::handle::Handle;
use crate::memory::{Memory, Write, pool};
use crate::pool::Pool;
use crate::records::Records;
use crate::release::{delete_handle, release_by_handle};
use crate::store::{Key, Record, Store, StoreError, Which};
use crate::users::{NodeUser, PodUser, Users};

const NODES: usize = 3;
/// 16 addresses in four blocks. They are fewer than the pods, so nodes borrow addresses and take empty blocks from each
/// other.
const POOLS: [(&str, u8); 2] = [("10.65.0.0/28", 30), ("fd00:65::/124", 126)];
const BLOCKS: usize = 4;
const ADDRESSES_OF_BLOCK: usize = 4;

const NAMESPACE: &str = "default";

/// The outcome of a node's next write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fate {
    Done,
    /// The node crashes, and the schedule decides when the write is done.
    Late,
}

/// A store that waits before each call until its node may continue.
#[derive(Clone)]
pub(crate) struct Stepped {
    pub(crate) memory: Arc<Memory>,
    pub(crate) fate: Arc<Mutex<Fate>>,
    pub(crate) late: Arc<Mutex<Vec<Write>>>,
}

impl Stepped {
    pub(crate) async fn turn(&self) {
        let mut waited = false;
        poll_fn(
            |_| {
                if std::mem::replace(&mut waited, true) { Poll::Ready(()) } else { Poll::Pending }
            },
        )
        .await;
    }

    async fn write(&self, write: Write) -> Result<u64, StoreError> {
        self.turn().await;
        if *self.fate.lock().unwrap() == Fate::Late {
            self.late.lock().unwrap().push(write);
            // The node's task is dropped before this future is polled again.
            std::future::pending::<()>().await;
            unreachable!();
        }
        self.memory.write(&write)
    }
}

impl Store for Stepped {
    type Revision = u64;

    async fn get(&self, key: &Key) -> Result<Option<(Record, u64)>, StoreError> {
        self.turn().await;
        self.memory.get(key).await
    }

    async fn list(&self, which: &Which) -> Result<Vec<(Record, u64)>, StoreError> {
        self.turn().await;
        self.memory.list(which).await
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

/// The last request for a pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Last {
    Attach,
    /// The pod is being detached. Once this has begun, the runtime does not attach the sandbox again.
    Detach,
}

/// The addresses of a node's pods, as the node knows them.
#[derive(Default)]
struct Held {
    addresses: RefCell<BTreeMap<String, IpAddr>>,
    /// The pods for which it is not known whether the last request was done. After a crash they are detached or
    /// attached again.
    unknown: RefCell<BTreeMap<String, Last>>,
    exhausted: Cell<usize>,
    named: Cell<usize>,
    repeated: Cell<usize>,
}

pub(crate) type Task = Pin<Box<dyn Future<Output = ()>>>;

struct Node {
    owner: Owner,
    store: Stepped,
    held: Rc<Held>,
    task: Option<Task>,
    pods: usize,
}

/// A step of a schedule.
#[derive(Debug, Clone, Copy)]
enum Step {
    /// A node continues to its next call.
    On(usize),
    /// A node continues and crashes after the call.
    CrashAfter(usize),
    /// A node crashes before the call.
    CrashBefore(usize),
    /// A node crashes while its write is in progress.
    CrashDuring(usize),
    /// A write that was in progress is done.
    Land(usize),
    /// Time passes.
    Wait,
}

fn step() -> impl Strategy<Value = Step> {
    let node = 0..=NODES;
    prop_oneof![
        24 => node.clone().prop_map(Step::On),
        1 => node.clone().prop_map(Step::CrashAfter),
        1 => node.clone().prop_map(Step::CrashBefore),
        1 => node.prop_map(Step::CrashDuring),
        1 => (0..8_usize).prop_map(Step::Land),
        1 => Just(Step::Wait),
    ]
}

struct World {
    memory: Arc<Memory>,
    late: Arc<Mutex<Vec<Write>>>,
    pools: Rc<Vec<Pool>>,
    config: Rc<Config>,
    now: Rc<Cell<u64>>,
    nodes: Vec<Node>,
    /// A number that chooses the next block that the administrator takes away.
    taken: Rc<Cell<u64>>,
}

impl World {
    fn new(config: Config, (cidr, block_size): (&str, u8)) -> Self {
        let (memory, late) = (Arc::<Memory>::default(), Arc::<Mutex<Vec<Write>>>::default());
        let node = |at: usize| Node {
            owner: Owner::Host(format!("node-{at}")),
            store: Stepped {
                memory: Arc::clone(&memory),
                fate: Arc::new(Mutex::new(Fate::Done)),
                late: Arc::clone(&late),
            },
            held: Rc::default(),
            task: None,
            pods: 0,
        };
        // The last entry is the administrator.
        let nodes = (0..=NODES).map(node).collect();
        let pools = Rc::new(vec![pool(cidr, block_size)]);
        let now = Rc::new(Cell::new(1_000_000_000));
        Self { memory, late, pools, config: Rc::new(config), now, nodes, taken: Rc::default() }
    }

    /// Starts the next task of a node: it attaches or detaches pods that a crash has left, or else any pod.
    fn begin(&mut self, at: usize) {
        let Self { pools, config, now, nodes, taken, .. } = self;
        let (pools, config, now) = (Rc::clone(pools), Rc::clone(config), Rc::clone(now));
        let node = &mut nodes[at];
        let (store, held, owner) = (node.store.clone(), Rc::clone(&node.held), node.owner.clone());
        if at == NODES {
            let turn = taken.replace(taken.get() + 1);
            let victim = Owner::Host(format!("node-{}", turn % NODES as u64));
            let mut cidrs = pools[0].cidr.subnets(pools[0].block_size).unwrap();
            let cidr = cidrs.nth(turn as usize / 3 % BLOCKS).unwrap();
            let only_empty = turn % 2 == 0;
            node.task = Some(Box::pin(async move {
                let rest = Rest { now: Time(now.get()), cooldown: config.cooldown };
                if turn % 4 == 3 {
                    let handles = store.list(&Which::Handles).await.unwrap();
                    let picked = handles.into_iter().cycle().nth(turn as usize / 4);
                    if let Some((Record::Handle(handle), revision)) = picked {
                        let _ = delete_handle(&store, handle, revision, rest).await;
                    }
                    return;
                }
                let _ = release_block(&store, &victim, cidr, only_empty, None, rest).await;
            }));
            return;
        }
        let unknown = held.unknown.borrow().first_key_value().map(|(it, last)| (it.clone(), *last));
        let detaches = held.addresses.borrow().len() >= 7 || node.pods % 6 == 5;
        node.pods += 1;
        let first = held.addresses.borrow().keys().next().cloned();
        let repeats = node.pods.is_multiple_of(2);
        let again = unknown.clone().filter(|(_, last)| repeats && *last == Last::Attach);
        let again = again.map(|(handle, _)| handle);
        let left = unknown.map(|(handle, _)| handle);
        held.repeated.set(held.repeated.get() + usize::from(again.is_some()));
        let name = again.clone().unwrap_or_else(|| format!("net.{}-{}", owner.name(), node.pods));
        let address = node.pods.is_multiple_of(5).then(|| {
            let mut addresses = pools[0].cidr.hosts();
            addresses.nth(node.pods / 5 % addresses.count()).unwrap()
        });
        node.task = Some(Box::pin(async move {
            let rest = Rest { now: Time(now.get()), cooldown: config.cooldown };
            let detached = if again.is_some() { None } else { left.or(first.filter(|_| detaches)) };
            if let Some(handle) = detached {
                held.addresses.borrow_mut().remove(&handle);
                held.unknown.borrow_mut().insert(handle.clone(), Last::Detach);
                if release_by_handle(&store, &handle, rest).await.is_ok() {
                    held.unknown.borrow_mut().remove(&handle);
                }
                return;
            }
            held.unknown.borrow_mut().insert(name.clone(), Last::Attach);
            let attributes =
                [("node", owner.name()), ("namespace", NAMESPACE), ("pod", name.as_str())];
            let attributes = attributes.map(|(key, value)| (key.to_owned(), value.to_owned()));
            let attributes = Attributes::from(attributes);
            let request = Request {
                owner: &owner,
                handle: &name,
                attributes: &attributes,
                reserved: &[],
                config: &config,
                now: rest.now,
            };
            let assigned = match address {
                Some(it) => assign::assign_named(&store, &pools, it, request).await.map(|()| it),
                None => assign::assign(&store, &pools.iter().collect::<Vec<_>>(), request).await,
            };
            match assigned {
                Ok(got) => {
                    held.named.set(held.named.get() + usize::from(address.is_some()));
                    held.unknown.borrow_mut().remove(&name);
                    held.addresses.borrow_mut().insert(name.clone(), got);
                }
                Err(Error::Exhausted { .. } | Error::BlockLimit { .. }) => {
                    held.exhausted.set(held.exhausted.get() + 1);
                }
                Err(Error::Contended) => {}
                Err(Error::Refused(_) | Error::OtherOwner { .. }) if address.is_some() => {}
                Err(other) => panic!("{other}"),
            }
        }));
    }

    fn go_on(&mut self, at: usize) {
        if self.nodes[at].task.is_none() {
            self.begin(at);
        }
        let task = self.nodes[at].task.as_mut().unwrap();
        if task.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready() {
            self.nodes[at].task = None;
        }
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::On(at) => self.go_on(at),
            Step::CrashAfter(at) => {
                self.go_on(at);
                self.nodes[at].task = None;
            }
            Step::CrashBefore(at) => self.nodes[at].task = None,
            Step::CrashDuring(at) => {
                *self.nodes[at].store.fate.lock().unwrap() = Fate::Late;
                self.go_on(at);
                self.nodes[at].task = None;
                *self.nodes[at].store.fate.lock().unwrap() = Fate::Done;
            }
            Step::Land(at) => {
                let mut late = self.late.lock().unwrap();
                if !late.is_empty() {
                    let at = at % late.len();
                    let write = late.remove(at);
                    let _ = self.memory.write(&write);
                }
            }
            Step::Wait => self.now.set(self.now.get() + 40_000_000_000),
        }
        self.check();
    }

    fn blocks(&self) -> BTreeMap<IpNet, Block> {
        let records = self.memory.records().into_iter();
        records.filter_map(|it| Block::try_from(it).ok()).map(|block| (block.cidr, block)).collect()
    }

    /// Checks what is true at every moment.
    fn check(&self) {
        let blocks = self.blocks();
        let mut confirmed = BTreeMap::new();
        let mut handles = BTreeMap::new();
        for record in self.memory.records() {
            match record {
                Record::Affinity(Affinity { owner, cidr, state: State::Confirmed }) => {
                    let other = confirmed.insert(cidr, owner.clone());
                    assert_eq!(other, None, "{cidr} is {owner}'s, too");
                    let of_block = blocks.get(&cidr).and_then(|it| it.owner.clone());
                    assert_eq!(of_block, Some(owner), "{cidr}");
                }
                Record::Handle(Handle { id, blocks }) => {
                    handles.insert(id, blocks);
                }
                Record::Block(_) | Record::Affinity(_) => {}
            }
        }
        for block in blocks.values() {
            let all: BTreeSet<u32> = block.free.iter().copied().collect();
            assert_eq!(all.len(), block.free.len(), "free twice: {block:?}");
            assert!(block.allocations.keys().all(|at| !all.contains(at)), "{block:?}");
            assert_eq!(block.free.len() + block.allocations.len(), ADDRESSES_OF_BLOCK, "{block:?}");
            for allocation in block.allocations.values().filter(|it| it.released_at.is_none()) {
                let handle = allocation.handle.as_deref().unwrap();
                let number = block.addresses_of(handle).count() as u32;
                let count = handles.get(handle).and_then(|of| of.get(&block.cidr));
                assert!(count.is_some_and(|it| *it >= number), "{handle}: {count:?}");
            }
        }
        for node in &self.nodes {
            for (handle, address) in &*node.held.addresses.borrow() {
                let block = blocks.values().find(|it| it.cidr.contains(address)).unwrap();
                let found = block.allocation(*address).and_then(|it| it.handle.clone());
                assert_eq!(found.as_ref(), Some(handle), "{address}");
            }
        }
    }

    /// Completes all writes that are in progress. Then each node completes its task and detaches all its pods.
    fn end(&mut self) {
        while !self.late.lock().unwrap().is_empty() {
            self.step(Step::Land(0));
        }
        for at in 0..=NODES {
            while self.nodes[at].task.is_some() {
                self.step(Step::On(at));
            }
        }
        let rest = Rest { now: Time(self.now.get()), cooldown: self.config.cooldown };
        for node in &self.nodes {
            let known = std::mem::take(&mut *node.held.addresses.borrow_mut());
            let unknown = std::mem::take(&mut *node.held.unknown.borrow_mut());
            for handle in known.into_keys().chain(unknown.into_keys()) {
                now_or_never(release_by_handle(&*self.memory, &handle, rest)).unwrap();
            }
        }
        self.check();
    }
}

/// Runs a schedule without crashes until nothing is in progress. Returns all records, the pools, and the users of
/// addresses as the nodes know them. `on` gives the node that continues at each step; `None` means that time passes.
pub(crate) fn run_without_crashes(
    config: Config,
    on: impl IntoIterator<Item = Option<usize>>,
) -> (Records, Vec<Pool>, Users) {
    let mut world = World::new(config, POOLS[0]);
    for node in on {
        world.step(node.map_or(Step::Wait, |at| Step::On(at % (NODES + 1))));
    }
    for at in 0..=NODES {
        while world.nodes[at].task.is_some() {
            world.step(Step::On(at));
        }
    }
    let mut records = Records::default();
    for record in world.memory.records() {
        match record {
            Record::Block(block) => records.blocks.push(block),
            Record::Affinity(affinity) => records.affinities.push(affinity),
            Record::Handle(handle) => records.handles.push(handle),
        }
    }
    let mut users = Users::default();
    for node in &world.nodes[..NODES] {
        let name = node.owner.name().to_owned();
        for (pod, address) in &*node.held.addresses.borrow() {
            let user =
                PodUser { node: Some(name.clone()), addresses: vec![*address], is_finished: false };
            users.pods.insert((NAMESPACE.to_owned(), pod.clone()), user);
        }
        users.nodes.insert(name, NodeUser::default());
    }
    (records, world.pools.to_vec(), users)
}

pub(crate) fn now_or_never<T>(future: impl Future<Output = T>) -> T {
    let mut future = Box::pin(future);
    match future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(value) => value,
        Poll::Pending => panic!("a store in memory never waits"),
    }
}

/// Assigns all addresses of the pool to one node, and returns their number.
fn take_all(world: &World) -> usize {
    let pools: Vec<&Pool> = world.pools.iter().collect();
    let owner = Owner::Host("last".to_owned());
    let attributes = Attributes::new();
    let mut taken = BTreeSet::new();
    for at in 0.. {
        let request = Request {
            owner: &owner,
            handle: &format!("last.{at}"),
            attributes: &attributes,
            reserved: &[],
            config: &world.config,
            now: Time(world.now.get() + 2_000_000_000_000),
        };
        match now_or_never(assign::assign(&*world.memory, &pools, request)) {
            Ok(address) => assert!(taken.insert(address), "{address} twice"),
            Err(Error::Exhausted { .. }) => break,
            Err(other) => panic!("{other}"),
        }
    }
    taken.len()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, ..ProptestConfig::default() })]

    #[test]
    fn no_address_is_given_out_twice_and_none_is_lost(
        pool in prop::sample::select(&POOLS[..]),
        strict in any::<bool>(),
        cooldown in prop_oneof![Just(0_u64), Just(60)],
        steps in prop::collection::vec(step(), 200..1500),
    ) {
        let cooldown = Duration::from_secs(cooldown);
        let config = Config { strict_affinity: strict, cooldown, ..Config::default() };
        let mut world = World::new(config, pool);
        for step in steps {
            world.step(step);
        }
        world.end();
        for block in world.blocks().values() {
            let unreleased = block.allocations.values().filter(|it| it.released_at.is_none());
            assert_eq!(unreleased.count(), 0, "lost: {block:?}");
        }
        assert_eq!(take_all(&world), BLOCKS * ADDRESSES_OF_BLOCK);
    }
}

/// Checks that the schedules reach the situations that the laws describe.
#[test]
fn the_schedules_borrow_reclaim_and_run_out() {
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let (mut borrowed, mut exhausted, mut nobodys, mut late) = (0, 0, 0, 0);
    let (mut named, mut repeated) = (0, 0);
    for _ in 0..40 {
        let steps = prop::collection::vec(step(), 1000).new_tree(&mut runner).unwrap().current();
        let mut world = World::new(Config::default(), POOLS[0]);
        for step in steps {
            world.step(step);
            late += usize::from(!world.late.lock().unwrap().is_empty());
            let blocks = world.blocks();
            nobodys += blocks.values().filter(|it| it.owner.is_none()).count();
            for node in &world.nodes {
                for address in node.held.addresses.borrow().values() {
                    let block = blocks.values().find(|it| it.cidr.contains(address)).unwrap();
                    borrowed += usize::from(block.owner.as_ref() != Some(&node.owner));
                }
            }
        }
        for Node { held, .. } in &world.nodes {
            exhausted += held.exhausted.get();
            named += held.named.get();
            repeated += held.repeated.get();
        }
    }
    assert!(named > 100 && repeated > 100, "{named} {repeated}");
    assert!(
        borrowed > 1000 && exhausted > 5 && nobodys > 500 && late > 1000,
        "{borrowed} {exhausted} {nobodys} {late}"
    );
}
