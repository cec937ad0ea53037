use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::task::{Context, Waker};

use manx_datastore::memory::MemoryWrites;
use manx_datastore::{ServedKey, ServedKind};
use manx_objects::object::Kind;
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use serde_json::json;

use super::*;
use crate::affinity::State;
use crate::assign::{self, Request};
use crate::block::Time;
use crate::config::Config;
use crate::laws::{Fate, Stepped, Task, now_or_never};
use crate::memory::{Memory, Write, pool};
use crate::pool::Pool;
use crate::release::release_by_handle;
use crate::store::{Key, Record};
use crate::users::{NodeUser, PodUser};

const GRACE: Duration = Duration::from_secs(100);
const SETTINGS: Settings = Settings { grace: GRACE, limit: 1000 };

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn rest_at(at: Duration) -> Rest {
    Rest { now: Time(at.as_nanos() as u64), cooldown: Duration::ZERO }
}

fn host(name: &str) -> Owner {
    Owner::Host(name.to_owned())
}

fn net(text: &str) -> IpNet {
    text.parse().unwrap()
}

/// Returns a block of a node with an address for each of these: handle, pod, and the pod's node.
fn block(cidr: &str, node: &str, pods: &[(&str, &str, &str)]) -> Block {
    let mut block = Block::new(net(cidr), host(node), Time(7));
    for (handle, pod, of) in pods {
        let owner = [("namespace", "web"), ("pod", *pod), ("node", *of)];
        let owner = owner.map(|(key, value)| (key.to_owned(), value.to_owned()));
        block.allocate_next(handle, &owner.into(), &[]).unwrap();
    }
    block
}

fn look(blocks: Vec<Block>, nodes: &[&str]) -> Look {
    let nodes = nodes.iter().map(|name| ((*name).to_owned(), NodeUser::default())).collect();
    Look {
        records: Records { blocks, ..Records::default() },
        users: Users { nodes, ..Users::default() },
    }
}

fn plan(garbage: &mut Garbage, look: &Look, at: u64) -> Vec<Step> {
    garbage.plan(look, SETTINGS, seconds(at), rest_at(seconds(at))).steps
}

fn released(steps: &[Step]) -> Vec<(usize, Reason)> {
    let of = |step: &Step| match step {
        Step::Release { leaks, reason } => Some((leaks.len(), *reason)),
        _ => None,
    };
    steps.iter().filter_map(of).collect()
}

#[test]
fn an_address_is_released_after_two_looks_that_are_the_grace_time_apart() {
    let unused = look(vec![block("10.0.0.0/30", "a", &[("h", "gone", "a")])], &["a"]);
    let mut garbage = Garbage::default();
    assert_eq!(plan(&mut garbage, &unused, 0), []);
    assert_eq!(plan(&mut garbage, &unused, 99), []);
    assert_eq!(released(&plan(&mut garbage, &unused, 100)), [(1, Reason::Unused)]);
    // The release was planned. If the address is still there, two looks are needed again.
    assert_eq!(plan(&mut garbage, &unused, 300), []);
    // If a look finds a user, the time starts again.
    let mut used = unused.clone();
    used.users.pods.insert(("web".to_owned(), "gone".to_owned()), PodUser::default());
    assert_eq!(plan(&mut garbage, &used, 350), []);
    assert_eq!(plan(&mut garbage, &unused, 450), []);
    // The time also starts again if the address gets another user.
    let mut other = unused.clone();
    other.records.blocks[0].allocations.get_mut(&0).unwrap().sequence += 1;
    assert_eq!(plan(&mut garbage, &other, 550), []);
    assert_eq!(released(&plan(&mut garbage, &other, 650)), [(1, Reason::Unused)]);
    // A restarted controller has seen nothing.
    assert_eq!(plan(&mut Garbage::default(), &other, 1000), []);
}

#[test]
fn addresses_of_a_node_that_is_gone_wait_for_two_looks_alone() {
    let pods = [("h", "gone", "z"), ("k", "kept", "z")];
    let mut found = look(vec![block("10.0.0.0/30", "z", &pods)], &["a"]);
    found.users.pods.insert(("web".to_owned(), "kept".to_owned()), PodUser::default());
    let mut garbage = Garbage::default();
    assert_eq!(plan(&mut garbage, &found, 0), []);
    let steps = plan(&mut garbage, &found, 1);
    assert_eq!(released(&steps), [(1, Reason::NodeGone)]);
    assert_eq!(steps.len(), 1, "its block is in use");
}

#[test]
fn all_addresses_of_a_handle_are_released_or_none() {
    let blocks = vec![
        block("10.0.0.0/30", "a", &[("h", "gone", "a"), ("h", "kept", "a")]),
        block("fd00::/126", "a", &[("g", "gone", "a")]),
        block("fd00::4/126", "a", &[("g", "gone", "a")]),
    ];
    let mut found = look(blocks, &["a"]);
    found.users.pods.insert(("web".to_owned(), "kept".to_owned()), PodUser::default());
    let mut garbage = Garbage::default();
    plan(&mut garbage, &found, 0);
    assert_eq!(released(&plan(&mut garbage, &found, 100)), [(2, Reason::Unused)]);
}

#[test]
fn a_node_keeps_one_block_of_each_family() {
    let blocks = ["10.0.0.0/30", "10.0.0.4/30", "10.0.0.8/30", "fd00::/126"];
    let mut blocks = blocks.map(|cidr| block(cidr, "a", &[])).to_vec();
    let released = |steps: &[Step]| {
        let of = |step: &Step| match step {
            Step::ReleaseIdleBlock { cidr, .. } => Some(cidr.to_string()),
            _ => None,
        };
        steps.iter().filter_map(of).collect::<Vec<_>>()
    };
    let mut garbage = Garbage::default();
    assert_eq!(plan(&mut garbage, &look(blocks.clone(), &["a"]), 0), []);
    blocks[1].sequence += 1;
    let steps = plan(&mut garbage, &look(blocks.clone(), &["a"]), 100);
    assert_eq!(released(&steps), ["10.0.0.0/30", "10.0.0.8/30"], "the other one was written");
    blocks[3] = block("fd00::4/126", "a", &[("h", "p", "a")]);
    blocks[3].allocations.get_mut(&0).unwrap().owner.clear();
    blocks.push(block("fd00::/126", "a", &[]));
    let found = look(blocks, &["a"]);
    let mut garbage = Garbage::default();
    plan(&mut garbage, &found, 200);
    let steps = plan(&mut garbage, &found, 300);
    assert_eq!(released(&steps), ["fd00::/126", "10.0.0.0/30", "10.0.0.4/30"]);
}

#[test]
fn what_belongs_to_a_gone_node_is_given_up_when_it_is_empty() {
    let mut found =
        look(vec![block("10.0.0.0/30", "z", &[]), block("10.0.0.4/30", "a", &[])], &["a"]);
    for cidr in ["10.0.0.0/30", "10.0.0.4/30", "10.0.0.8/30"] {
        let owner = host("z");
        found.records.affinities.push(Affinity { owner, cidr: net(cidr), state: State::Confirmed });
    }
    let owner = Owner::Virtual("load-balancer".to_owned());
    found.records.affinities.push(Affinity {
        owner,
        cidr: net("10.1.0.0/30"),
        state: State::Confirmed,
    });
    let mut garbage = Garbage::default();
    assert_eq!(plan(&mut garbage, &found, 0), []);
    let expected = ["10.0.0.0/30", "10.0.0.4/30", "10.0.0.8/30"]
        .map(|cidr| Step::ReleaseBlockOfGone { owner: host("z"), cidr: net(cidr) });
    assert_eq!(plan(&mut garbage, &found, 1), expected);
    // The node has come back.
    found.users.nodes.insert("z".to_owned(), NodeUser::default());
    assert_eq!(plan(&mut garbage, &found, 2), []);
}

#[test]
fn a_round_is_bounded_and_the_next_one_goes_on() {
    let pods = ["h1", "h2", "h3", "h4"].map(|handle| (handle, "gone", "a"));
    let found = look(vec![block("10.0.0.0/30", "a", &pods)], &["a"]);
    let settings = Settings { limit: 3, ..SETTINGS };
    let mut garbage = Garbage::default();
    let mut plan = |at| garbage.plan(&found, settings, seconds(at), rest_at(seconds(at)));
    assert_eq!(plan(0), Plan::default());
    let first = plan(100);
    assert_eq!((first.steps.len(), first.left), (3, 1));
    let second = plan(101);
    assert_eq!((second.steps.len(), second.left), (1, 0));
    assert!(!first.steps.contains(&second.steps[0]));
}

const NODES: usize = 2;

/// The objects of the cluster, and facts that only the test knows.
#[derive(Debug, Default)]
struct Objects {
    users: Users,
    /// The handles of pods that have an address.
    handles: BTreeMap<(String, String), String>,
}

#[derive(Clone)]
struct Cluster {
    objects: Arc<Mutex<Objects>>,
    store: Stepped,
}

impl UserSource for Cluster {
    async fn all(&self) -> Result<Users, StoreError> {
        self.store.turn().await;
        let nodes = self.objects.lock().unwrap().users.nodes.clone();
        self.store.turn().await;
        let pods = self.objects.lock().unwrap().users.pods.clone();
        Ok(Users { pods, nodes, ..Users::default() })
    }

    async fn named_by(&self, owner: &Attributes) -> Result<Users, StoreError> {
        self.store.turn().await;
        let mut users = self.objects.lock().unwrap().users.clone();
        users.nodes.retain(|name, _| owner.get("node") == Some(name));
        users.pods.retain(|(_, name), _| owner.get("pod") == Some(name));
        Ok(users)
    }
}

/// The number of steps of each kind with an effect.
#[derive(Debug, Default, Clone, Copy)]
struct Counts {
    unused: usize,
    of_gone: usize,
    kept: usize,
    released: usize,
    handles: usize,
    freed: usize,
}

struct World {
    memory: Arc<Memory>,
    late: Arc<Mutex<Vec<Write>>>,
    objects: Arc<Mutex<Objects>>,
    pools: Arc<Vec<Pool>>,
    config: Arc<Config>,
    now: Arc<Mutex<Duration>>,
    /// The stores of the nodes, and the store of the controller.
    stores: Vec<Stepped>,
    tasks: Vec<Option<Task>>,
    garbage: Arc<Mutex<Garbage>>,
    /// The time when the controller started.
    started: Duration,
    counts: Arc<Mutex<Counts>>,
    turns: usize,
}

#[derive(Debug, Clone, Copy)]
enum Do {
    /// A node or the controller continues to its next call.
    On(usize),
    /// It crashes before the call.
    Crash(usize),
    /// It crashes while its write is in progress.
    CrashDuring(usize),
    /// A write that was in progress is done.
    Land(usize),
    /// A node disappears with its pods.
    Vanish(usize),
    Wait,
}

fn step() -> impl Strategy<Value = Do> {
    prop_oneof![
        40 => (0..=NODES).prop_map(Do::On),
        20 => Just(Do::On(NODES)),
        1 => (0..=NODES).prop_map(Do::Crash),
        2 => (0..=NODES).prop_map(Do::CrashDuring),
        2 => any::<usize>().prop_map(Do::Land),
        1 => (0..NODES).prop_map(Do::Vanish),
        2 => Just(Do::Wait),
    ]
}

fn name_of(at: usize) -> String {
    format!("node-{at}")
}

impl World {
    fn new(config: Config) -> Self {
        let (memory, late) = (Arc::<Memory>::default(), Arc::<Mutex<Vec<Write>>>::default());
        let store = || Stepped {
            memory: Arc::clone(&memory),
            fate: Arc::new(Mutex::new(Fate::Done)),
            late: Arc::clone(&late),
        };
        let stores = (0..=NODES).map(|_| store()).collect();
        Self {
            stores,
            tasks: (0..=NODES).map(|_| None).collect(),
            memory,
            late,
            objects: Arc::default(),
            pools: Arc::new(vec![pool("10.65.0.0/28", 30)]),
            config: Arc::new(config),
            now: Arc::new(Mutex::new(Duration::from_secs(1000))),
            garbage: Arc::default(),
            started: Duration::from_secs(1000),
            counts: Arc::default(),
            turns: 0,
        }
    }

    fn now(&self) -> Duration {
        *self.now.lock().unwrap()
    }

    fn rest(&self) -> Rest {
        Rest { cooldown: self.config.cooldown, ..rest_at(self.now()) }
    }

    fn begin(&mut self, at: usize) {
        self.turns += 1;
        self.tasks[at] = if at == NODES { Some(self.round()) } else { self.node_task(at) };
    }

    /// Returns a round of the controller.
    fn round(&self) -> Task {
        let store = self.stores[NODES].clone();
        let cluster = Cluster { objects: Arc::clone(&self.objects), store: store.clone() };
        let (garbage, counts) = (Arc::clone(&self.garbage), Arc::clone(&self.counts));
        let (now, started, cooldown) = (Arc::clone(&self.now), self.started, self.config.cooldown);
        Box::pin(async move {
            let look = Look::read(&store, &cluster).await.unwrap();
            let at = *now.lock().unwrap();
            let rest = Rest { cooldown, ..rest_at(at) };
            let plan = garbage.lock().unwrap().plan(&look, SETTINGS, at, rest);
            for step in plan.steps {
                let outcome = take(&store, &cluster, &step, rest).await;
                let mut counts = counts.lock().unwrap();
                match (outcome, &step) {
                    (Ok(Outcome::Released(_)), Step::Release { reason: Reason::Unused, .. }) => {
                        assert!(at >= started + GRACE, "before the grace time of this controller");
                        counts.unused += 1;
                    }
                    (Ok(Outcome::Released(_)), _) => counts.of_gone += 1,
                    (Ok(Outcome::Freed), _) => counts.freed += 1,
                    (Ok(Outcome::ReleasedBlock), _) => counts.released += 1,
                    (Ok(Outcome::DeletedHandle), _) => counts.handles += 1,
                    (Ok(Outcome::Kept) | Err(assign::Error::Contended), _) => counts.kept += 1,
                    (Err(error), _) => panic!("{error}"),
                }
            }
        })
    }

    /// Returns the next task of a node: it comes back, assigns an address to a pod without one, or removes or creates a
    /// pod.
    fn node_task(&mut self, at: usize) -> Option<Task> {
        let node = name_of(at);
        let mut objects = self.objects.lock().unwrap();
        let exists = objects.users.nodes.contains_key(&node);
        if !exists && self.turns.is_multiple_of(5) {
            objects.users.nodes.insert(node, NodeUser::default());
            return None;
        }
        if !exists {
            return None;
        }
        let store = self.stores[at].clone();
        let of_node = objects.users.pods.iter().filter(|(_, pod)| pod.node.as_ref() == Some(&node));
        let (with, without): (Vec<_>, Vec<_>) =
            of_node.partition(|(_, pod)| !pod.addresses.is_empty());
        let oldest = with.first().map(|(key, _)| (*key).clone());
        let waits = without.first().map(|(key, _)| (*key).clone());
        if let Some(pod) = oldest.filter(|_| waits.is_none() && self.turns.is_multiple_of(3)) {
            objects.users.pods.remove(&pod);
            let handle = objects.handles.remove(&pod).unwrap();
            let rest = self.rest();
            // Some addresses are leaked, because nothing requests their release.
            return self.turns.is_multiple_of(2).then(|| -> Task {
                Box::pin(async move {
                    let _ = release_by_handle(&store, &handle, rest).await;
                })
            });
        }
        let pod = waits.unwrap_or_else(|| {
            let pod = ("web".to_owned(), format!("pod-{:05}", self.turns));
            let user = PodUser { node: Some(node.clone()), ..PodUser::default() };
            objects.users.pods.insert(pod.clone(), user);
            pod
        });
        let (all, pools, config) = (&self.objects, &self.pools, &self.config);
        let (all, pools, config) = (Arc::clone(all), Arc::clone(pools), Arc::clone(config));
        // Each attempt has its own sandbox.
        let (handle, now) = (format!("net.{}", self.turns), self.rest().now);
        Some(Box::pin(async move {
            let attributes = [("namespace", "web"), ("pod", &pod.1), ("node", &node)];
            let attributes = attributes.map(|(key, value)| (key.to_owned(), value.to_owned()));
            let request = Request {
                owner: &host(&node),
                handle: &handle,
                attributes: &attributes.into(),
                reserved: &[],
                config: &config,
                now,
            };
            let pools: Vec<&Pool> = pools.iter().collect();
            let assigned = assign::assign(&store, &pools, request).await;
            let mut all = all.lock().unwrap();
            match assigned {
                Ok(address) => {
                    if let Some(user) = all.users.pods.get_mut(&pod) {
                        user.addresses.push(address);
                        all.handles.insert(pod, handle);
                    }
                }
                Err(assign::Error::Exhausted { .. } | assign::Error::Contended) => {
                    all.users.pods.remove(&pod);
                }
                Err(error) => panic!("{error}"),
            }
        }))
    }

    fn go_on(&mut self, at: usize) {
        if self.tasks[at].is_none() {
            self.begin(at);
        }
        let Some(task) = &mut self.tasks[at] else { return };
        if task.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready() {
            self.tasks[at] = None;
        }
    }

    fn crash(&mut self, at: usize) {
        self.tasks[at] = None;
        if at == NODES {
            *self.garbage.lock().unwrap() = Garbage::default();
            self.started = self.now();
        }
    }

    fn step(&mut self, step: Do) {
        match step {
            Do::On(at) => self.go_on(at),
            Do::Crash(at) => self.crash(at),
            Do::CrashDuring(at) => {
                *self.stores[at].fate.lock().unwrap() = Fate::Late;
                self.go_on(at);
                self.crash(at);
                *self.stores[at].fate.lock().unwrap() = Fate::Done;
            }
            Do::Land(at) => {
                let mut late = self.late.lock().unwrap();
                if !late.is_empty() {
                    let at = at % late.len();
                    let write = late.remove(at);
                    let _ = self.memory.write(&write);
                }
            }
            Do::Vanish(at) => {
                self.tasks[at] = None;
                let mut objects = self.objects.lock().unwrap();
                let node = name_of(at);
                objects.users.nodes.remove(&node);
                let Objects { users, handles } = &mut *objects;
                users.pods.retain(|pod, user| {
                    let stays = user.node.as_ref() != Some(&node);
                    if !stays {
                        handles.remove(pod);
                    }
                    stays
                });
            }
            Do::Wait => *self.now.lock().unwrap() += Duration::from_secs(40),
        }
        self.check();
    }

    fn blocks(&self) -> Vec<Block> {
        let records = self.memory.records().into_iter();
        records.filter_map(|it| Block::try_from(it).ok()).collect()
    }

    /// Checks that everything with a user still exists.
    fn check(&self) {
        let objects = self.objects.lock().unwrap();
        for (pod, handle) in &objects.handles {
            for address in &objects.users.pods[pod].addresses {
                let blocks = self.blocks();
                let block = blocks.iter().find(|block| block.cidr.contains(address));
                let allocation = block.and_then(|block| block.allocation(*address));
                assert!(
                    allocation.is_some_and(|it| it.has_handle(handle)),
                    "{address} of {pod:?} by {handle}: {allocation:?}"
                );
                let key = Key::Handle(handle.clone());
                let found = now_or_never(self.memory.get(&key)).unwrap();
                let Some((Record::Handle(counted), _)) = found else { panic!("no {handle}") };
                assert!(counted.blocks.contains_key(&block.unwrap().cidr), "{counted:?}");
            }
        }
    }

    /// Completes all writes. Then only the controller continues, as long as it can have work.
    fn end(&mut self) {
        while !self.late.lock().unwrap().is_empty() {
            self.step(Do::Land(0));
        }
        for at in 0..=NODES {
            while self.tasks[at].is_some() {
                self.step(Do::On(at));
            }
        }
        self.objects.lock().unwrap().users.pods.retain(|_, pod| !pod.addresses.is_empty());
        for _ in 0..16 {
            self.begin(NODES);
            while self.tasks[NODES].is_some() {
                self.step(Do::On(NODES));
            }
            *self.now.lock().unwrap() += GRACE / 2;
        }
        self.check_all_else_is_taken();
    }

    fn check_all_else_is_taken(&self) {
        let objects = self.objects.lock().unwrap();
        let used: Vec<&String> = objects.handles.values().collect();
        let mut of_nodes = BTreeMap::<Owner, Vec<Block>>::new();
        for block in self.blocks() {
            for allocation in block.allocations.values() {
                let handle = allocation.handle.as_ref();
                assert!(handle.is_some_and(|it| used.contains(&it)), "left: {allocation:?}");
            }
            assert!(block.owner.is_some() || !block.is_empty(), "left: {block:?}");
            if let Some(owner) = block.owner.clone() {
                of_nodes.entry(owner).or_default().push(block);
            }
        }
        for (owner, blocks) in of_nodes {
            let empty = blocks.iter().filter(|block| block.is_empty()).count();
            let exists = objects.users.nodes.contains_key(owner.name());
            assert!(
                if exists { empty == 0 || blocks.len() == 1 } else { empty == 0 },
                "{blocks:?}"
            );
        }
        for record in self.memory.records() {
            match record {
                Record::Handle(handle) => assert!(used.contains(&&handle.id), "left: {handle:?}"),
                Record::Affinity(Affinity { owner, cidr, .. }) => {
                    let exists = objects.users.nodes.contains_key(owner.name());
                    let has =
                        |block: &Block| block.cidr == cidr && block.owner == Some(owner.clone());
                    assert!(exists || self.blocks().iter().any(has), "left: {owner} {cidr}");
                }
                Record::Block(_) => {}
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, ..ProptestConfig::default() })]

    #[test]
    fn nothing_with_a_user_is_taken_and_all_else_is(
        cooldown in prop_oneof![Just(0_u64), Just(60)],
        steps in prop::collection::vec(step(), 200..1500),
    ) {
        let cooldown = Duration::from_secs(cooldown);
        let mut world = World::new(Config { cooldown, ..Config::default() });
        for step in steps {
            world.step(step);
        }
        world.end();
    }
}

/// Checks that the schedules reach the situations that the laws describe.
#[test]
fn the_schedules_take_each_kind_of_garbage() {
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let mut all = Counts::default();
    for _ in 0..40 {
        let steps = prop::collection::vec(step(), 1500).new_tree(&mut runner).unwrap().current();
        let cooldown = Duration::from_mins(1);
        let mut world = World::new(Config { cooldown, ..Config::default() });
        for step in steps {
            world.step(step);
        }
        let counts = *world.counts.lock().unwrap();
        all.unused += counts.unused;
        all.of_gone += counts.of_gone;
        all.kept += counts.kept;
        all.released += counts.released;
        all.handles += counts.handles;
        all.freed += counts.freed;
    }
    let Counts { unused, of_gone, kept, released, handles, freed } = all;
    let least = [unused, of_gone, kept, released, handles, freed].into_iter().min();
    assert!(least > Some(10), "{all:?}");
}

/// With a server's objects, in both versions of the API: a pod keeps its address, and everything that others have left
/// is removed.
#[test]
fn a_servers_objects_are_taken_back_and_a_pod_keeps_its_address() {
    for version in ["crd.projectcalico.org/v1", "projectcalico.org/v3"] {
        let writes = MemoryWrites::new(version);
        writes.put(ServedKey::new(Kind::Node, "", "a"), json!({}));
        let objects = crate::objects::Objects::new(writes);
        let (pools, config) = ([pool("10.65.0.0/28", 30)], Config::default());
        let assign = |pod: &str, node: &str| {
            let attributes = [("namespace", "web"), ("pod", pod), ("node", node)];
            let attributes = attributes.map(|(key, value)| (key.to_owned(), value.to_owned()));
            let request = Request {
                owner: &host(node),
                handle: &format!("k8s-pod-network.{pod}"),
                attributes: &attributes.into(),
                reserved: &[],
                config: &config,
                now: Time(1),
            };
            now_or_never(assign::assign(&objects, &[&pools[0]], request)).unwrap()
        };
        let kept = assign("kept", "a");
        let pod = json!({ "spec": { "nodeName": "a" }, "status": { "podIP": kept.to_string() } });
        objects.writes().put(ServedKey::new(Kind::Pod, "web", "kept"), pod);
        assign("gone", "a");
        assign("elsewhere", "z");
        let unused = ServedKey::new(ServedKind::IpamHandle, "", "crashed");
        let block = json!({ "10.65.0.0/30": 1 });
        let handle = json!({ "spec": { "handleID": "crashed", "block": block } });
        objects.writes().put(unused, handle);

        let mut garbage = Garbage::default();
        let mut outcomes = Vec::new();
        for at in [0, 50, 100, 150] {
            let at = seconds(at);
            let look = now_or_never(Look::read(&objects, &objects)).unwrap();
            let plan = garbage.plan(&look, SETTINGS, at, rest_at(at));
            let steps = plan.steps.iter();
            let taken = steps
                .map(|step| now_or_never(take(&objects, &objects, step, rest_at(at))).unwrap());
            outcomes.push(taken.map(|it| format!("{it:?}")).collect::<Vec<_>>());
        }
        assert_eq!(outcomes.iter().map(Vec::len).collect::<Vec<_>>(), [0, 2, 2, 0], "{outcomes:?}");
        assert!(!outcomes.concat().contains(&"Kept".to_owned()), "{outcomes:?}");
        let left = objects.writes().objects();
        let left = left.keys().filter(|key| key.namespace.is_empty()).map(ToString::to_string);
        let left: Vec<String> = left.collect();
        assert_eq!(left.len(), 4, "{left:?}");
        let look = now_or_never(Look::read(&objects, &objects)).unwrap();
        let handles: Vec<&str> = look.records.handles.iter().map(|it| it.id.as_str()).collect();
        assert_eq!(handles, ["k8s-pod-network.kept"]);
        assert!(look.records.blocks.iter().any(|block| block.allocation(kept).is_some()));
    }
}
