//! The laws, for interleaved operations: two leaders reconcile Services, a collector removes garbage, and tenants create,
//! change and delete Services, all at one server. Between two requests, another actor may continue. A leader may crash
//! at any request. Its write is then done, not done, or done later.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::future::poll_fn;
use std::net::IpAddr;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use manx_datastore::memory::MemoryWrites;
use manx_datastore::{Revision, ServedKey, ServedKind, WriteError, Writes};
use manx_objects::object::{Kind, PoolUse};
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use serde_json::{Value, json};

use super::ledger::{Ledger, Subject, release_strays};
use super::reconcile::reconcile;
use super::terms::Terms;
use super::wish::{AssignIps, Service, family};
use crate::block::{Block, Rest, Time};
use crate::garbage::{Garbage, Look, Settings, take};
use crate::laws::{Fate, Task, now_or_never};
use crate::memory::pool;
use crate::objects::Objects;
use crate::pool::{Family, Pool};
use crate::store::{Store, Which};

const LEADERS: usize = 2;
/// The last actor is the collector.
const ACTORS: usize = LEADERS + 1;
const NAMES: usize = 5;
/// Eight addresses in blocks of two, eight addresses of a pool that must be requested by name, and eight addresses of
/// the other family.
const POOLS: [(&str, u8); 3] = [("192.0.2.0/29", 31), ("192.0.2.16/29", 31), ("fd00:1::/125", 127)];
const MANUAL: usize = 1;

/// A write that is in progress.
#[derive(Debug, Clone)]
enum Sent {
    Create(ServedKey, Value),
    Swap(ServedKey, Revision, Value),
    Status(ServedKey, Revision, Value),
    Delete(ServedKey, Revision),
}

/// A server that waits before each request until its client may continue.
#[derive(Clone)]
struct Stepped {
    memory: Arc<MemoryWrites>,
    fate: Arc<Mutex<Fate>>,
    late: Arc<Mutex<Vec<Sent>>>,
    has_changed: Arc<AtomicBool>,
}

async fn turn() {
    let mut waited = false;
    let once = |_: &mut Context<'_>| {
        if std::mem::replace(&mut waited, true) { Poll::Ready(()) } else { Poll::Pending }
    };
    poll_fn(once).await;
}

async fn write(memory: &MemoryWrites, sent: Sent) -> Result<Option<Revision>, WriteError> {
    match sent {
        Sent::Create(key, value) => memory.create(&key, value).await.map(Some),
        Sent::Swap(key, at, value) => memory.compare_and_swap(&key, &at, value).await.map(Some),
        Sent::Status(key, at, fields) => memory.write_status(&key, &at, fields).await.map(Some),
        Sent::Delete(key, at) => memory.delete(&key, &at).await.map(|()| None),
    }
}

impl Stepped {
    async fn send(&self, sent: Sent) -> Result<Option<Revision>, WriteError> {
        turn().await;
        if *self.fate.lock().unwrap() == Fate::Late {
            self.late.lock().unwrap().push(sent);
            // The client's task is dropped before this future is polled again.
            std::future::pending::<()>().await;
            unreachable!();
        }
        self.has_changed.store(true, Ordering::Relaxed);
        write(&self.memory, sent).await
    }

    async fn put(&self, sent: Sent) -> Result<Revision, WriteError> {
        Ok(self.send(sent).await?.unwrap())
    }
}

impl Writes for Stepped {
    async fn api_version(&self, kind: ServedKind) -> Result<&'static str, WriteError> {
        self.memory.api_version(kind).await
    }

    async fn get(&self, key: &ServedKey) -> Result<Option<(Value, Revision)>, WriteError> {
        turn().await;
        self.memory.get(key).await
    }

    async fn list(
        &self,
        kind: ServedKind,
        labels: &str,
    ) -> Result<Vec<(ServedKey, Value, Revision)>, WriteError> {
        turn().await;
        self.memory.list(kind, labels).await
    }

    async fn create(&self, key: &ServedKey, value: Value) -> Result<Revision, WriteError> {
        self.put(Sent::Create(key.clone(), value)).await
    }

    async fn compare_and_swap(
        &self,
        key: &ServedKey,
        revision: &Revision,
        value: Value,
    ) -> Result<Revision, WriteError> {
        self.put(Sent::Swap(key.clone(), revision.clone(), value)).await
    }

    async fn write_status(
        &self,
        key: &ServedKey,
        revision: &Revision,
        fields: Value,
    ) -> Result<Revision, WriteError> {
        self.put(Sent::Status(key.clone(), revision.clone(), fields)).await
    }

    async fn delete(&self, key: &ServedKey, revision: &Revision) -> Result<(), WriteError> {
        self.send(Sent::Delete(key.clone(), revision.clone())).await.map(drop)
    }
}

/// The knowledge of an actor. A crash removes it.
#[derive(Default)]
struct Known {
    ledger: Ledger,
    /// The Services about whose changes the actor was notified.
    pending: BTreeSet<Subject>,
    garbage: Garbage,
}

struct Actor {
    server: Stepped,
    known: Rc<RefCell<Known>>,
    task: Option<Task>,
    tasks: u64,
}

/// A tenant's change of a Service, which is given by its number.
#[derive(Debug, Clone)]
enum Change {
    Delete,
    /// Creates the Service or changes its request: the addresses or the pool, the families, and the class or type.
    Ask(Asked, u8, u8),
}

#[derive(Debug, Clone)]
enum Asked {
    Any,
    Manual,
    Address(u8),
}

/// A step of a schedule.
#[derive(Debug, Clone)]
enum Step {
    /// An actor continues to its next request.
    On(usize),
    /// An actor crashes: after its request, before it, or while its write is in progress.
    CrashAfter(usize),
    CrashBefore(usize),
    CrashDuring(usize),
    /// A write that was in progress is done.
    Land(usize),
    Tenant(usize, Change),
}

fn step() -> impl Strategy<Value = Step> {
    // Leaders continue more often than the collector.
    let actor = || (0..7_usize).prop_map(|it| it.min(6) / 3);
    let asked = prop_oneof![
        2 => Just(Asked::Any),
        1 => Just(Asked::Manual),
        2 => (0..4_u8).prop_map(Asked::Address),
    ];
    let change = prop_oneof![
        1 => Just(Change::Delete),
        4 => (asked, 0..3_u8, 0..5_u8).prop_map(|(it, families, kind)| Change::Ask(it, families, kind)),
    ];
    prop_oneof![
        80 => actor().prop_map(Step::On),
        1 => actor().prop_map(Step::CrashAfter),
        1 => actor().prop_map(Step::CrashBefore),
        1 => actor().prop_map(Step::CrashDuring),
        1 => (0..8_usize).prop_map(Step::Land),
        2 => (0..NAMES, change).prop_map(|(at, change)| Step::Tenant(at, change)),
    ]
}

fn pools() -> Vec<Pool> {
    let made = |(at, (cidr, size)): (usize, (&str, u8))| Pool {
        uses: vec![PoolUse::LoadBalancer],
        is_manual: at == MANUAL,
        ..pool(cidr, size)
    };
    POOLS.into_iter().enumerate().map(made).collect()
}

fn terms() -> Terms {
    let objects = Objects::new(MemoryWrites::new("projectcalico.org/v3"));
    now_or_never(Terms::read(&objects, pools(), Some(AssignIps::AllServices), None)).unwrap()
}

fn key(at: usize) -> ServedKey {
    ServedKey::new(Kind::Service, "shop", &format!("web-{at}"))
}

/// The number of situations of each kind that were reached.
#[derive(Debug, Default, Clone, Copy)]
struct Seen {
    told: usize,
    released: usize,
    troubles: usize,
    late: usize,
    gone: usize,
}

struct World {
    memory: Arc<MemoryWrites>,
    late: Arc<Mutex<Vec<Sent>>>,
    /// Whether something was written since the last check.
    has_changed: Arc<AtomicBool>,
    terms: Rc<Terms>,
    actors: Vec<Actor>,
    uids: usize,
    seen: Rc<Cell<Seen>>,
}

const REST: Rest = Rest { now: Time(1_000_000_000), cooldown: Duration::ZERO };

async fn reconcile_noting(
    objects: &Objects<Stepped>,
    subject: &Subject,
    terms: &Terms,
    known: &RefCell<Known>,
    seen: &Cell<Seen>,
) {
    let mut ledger = known.borrow().ledger.clone();
    // An error means that others have changed the same record or Service. A later task tries again.
    if let Ok(reconciled) = reconcile(objects, subject, terms, &mut ledger, REST.now).await {
        let mut now = seen.get();
        now.told += reconciled.told.len();
        now.released += reconciled.released.len();
        now.troubles += usize::from(reconciled.trouble.is_some());
        now.gone += usize::from(reconciled.metadata.is_none());
        seen.set(now);
        known.borrow_mut().ledger = ledger;
    } else {
        known.borrow_mut().pending.insert(subject.clone());
    }
}

impl World {
    fn new() -> Self {
        let memory = Arc::new(MemoryWrites::new("projectcalico.org/v3"));
        let late = Arc::<Mutex<Vec<Sent>>>::default();
        let has_changed = Arc::<AtomicBool>::default();
        let actor = |_| Actor {
            server: Stepped {
                memory: Arc::clone(&memory),
                fate: Arc::new(Mutex::new(Fate::Done)),
                late: Arc::clone(&late),
                has_changed: Arc::clone(&has_changed),
            },
            known: Rc::default(),
            task: None,
            tasks: 0,
        };
        let actors = (0..ACTORS).map(actor).collect();
        Self {
            memory,
            late,
            has_changed,
            terms: Rc::new(terms()),
            actors,
            uids: 0,
            seen: Rc::default(),
        }
    }

    /// Starts the next task of an actor.
    fn begin(&mut self, at: usize) {
        let (terms, seen) = (Rc::clone(&self.terms), Rc::clone(&self.seen));
        let actor = &mut self.actors[at];
        let objects = Objects::new(actor.server.clone());
        let known = Rc::clone(&actor.known);
        let tasks = actor.tasks;
        actor.tasks += 1;
        if at == LEADERS {
            actor.task = Some(Box::pin(collect(objects, known, tasks)));
            return;
        }
        actor.task = Some(Box::pin(async move {
            let next = known.borrow_mut().pending.pop_first();
            if let Some(subject) = next {
                return reconcile_noting(&objects, &subject, &terms, &known, &seen).await;
            }
            let Ok(ledger) = Ledger::read(&objects).await else { return };
            let subjects: Vec<Subject> = ledger.subjects().collect();
            known.borrow_mut().ledger = ledger;
            known.borrow_mut().pending.extend(subjects);
            let _ = release_strays(&objects, |block| terms.has_block(block), REST).await;
            // A watch that begins again sends all Services.
            let all = objects.writes().list(Kind::Service.into(), "").await.unwrap();
            let subjects = all.iter().map(|(_, object, _)| Subject::of(object));
            known.borrow_mut().pending.extend(subjects);
        }));
    }

    fn go_on(&mut self, at: usize) {
        if self.actors[at].task.is_none() {
            self.begin(at);
        }
        let task = self.actors[at].task.as_mut().unwrap();
        if task.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready() {
            self.actors[at].task = None;
        }
    }

    fn crash(&mut self, at: usize) {
        self.actors[at].task = None;
        self.actors[at].known = Rc::default();
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::On(at) => self.go_on(at),
            Step::CrashAfter(at) => {
                self.go_on(at);
                self.crash(at);
            }
            Step::CrashBefore(at) => self.crash(at),
            Step::CrashDuring(at) => {
                *self.actors[at].server.fate.lock().unwrap() = Fate::Late;
                self.go_on(at);
                *self.actors[at].server.fate.lock().unwrap() = Fate::Done;
                self.crash(at);
            }
            Step::Land(at) => {
                let mut late = self.late.lock().unwrap();
                if !late.is_empty() {
                    let at = at % late.len();
                    let sent = late.remove(at);
                    let _ = now_or_never(write(&self.memory, sent));
                    self.has_changed.store(true, Ordering::Relaxed);
                }
            }
            Step::Tenant(at, change) => {
                self.change(at, change);
                self.has_changed.store(true, Ordering::Relaxed);
            }
        }
        let mut seen = self.seen.get();
        seen.late += usize::from(!self.late.lock().unwrap().is_empty());
        self.seen.set(seen);
        if self.has_changed.swap(false, Ordering::Relaxed) {
            self.check();
        }
    }

    fn change(&mut self, at: usize, change: Change) {
        let key = key(at);
        let before = self.memory.object(&key);
        let subject = match change {
            Change::Delete => {
                let Some(object) = before else { return };
                self.memory.remove(&key);
                Subject::of(&object)
            }
            Change::Ask(asked, families, kind) => {
                let mut object = before.unwrap_or_else(|| {
                    self.uids += 1;
                    json!({ "metadata": { "uid": format!("uid-{}", self.uids) } })
                });
                object["metadata"]["annotations"] = match asked {
                    Asked::Any => json!({}),
                    Asked::Manual => {
                        json!({ "projectcalico.org/ipv4pools": format!("[\"{}\"]", POOLS[MANUAL].0) })
                    }
                    Asked::Address(at) => {
                        json!({ "projectcalico.org/loadBalancerIPs": format!("[\"192.0.2.{at}\"]") })
                    }
                };
                let all = [json!(["IPv4"]), json!(["IPv4", "IPv6"]), json!(["IPv6", "IPv4"])];
                object["spec"] =
                    json!({ "type": "LoadBalancer", "ipFamilies": all[families as usize] });
                match kind {
                    0 => object["spec"]["type"] = json!("ClusterIP"),
                    1 => object["spec"]["loadBalancerClass"] = json!("example.com/lb"),
                    _ => {}
                }
                self.memory.put(key.clone(), object);
                Subject::of(&self.memory.object(&key).unwrap())
            }
        };
        for actor in &self.actors[..LEADERS] {
            actor.known.borrow_mut().pending.insert(subject.clone());
        }
    }

    fn services(&self) -> Vec<Service> {
        let all = self.memory.objects();
        let services = all.iter().filter(|(key, _)| key.kind == Kind::Service.into());
        services.map(|(_, object)| Service::read(object)).collect()
    }

    /// Returns the blocks, read from their objects.
    fn blocks(&self) -> Vec<Block> {
        let copy = MemoryWrites::new("projectcalico.org/v3");
        for (key, object) in self.memory.objects() {
            if key.kind == ServedKind::IpamBlock {
                copy.put(key, object);
            }
        }
        let found = now_or_never(Objects::new(copy).list(&Which::Blocks)).unwrap();
        found.into_iter().filter_map(|(record, _)| Block::try_from(record).ok()).collect()
    }

    /// Returns the handles of all allocated addresses.
    fn allocated(&self) -> BTreeMap<IpAddr, String> {
        let mut all = BTreeMap::new();
        for block in self.blocks() {
            let Block { cidr, allocations, free, .. } = &block;
            assert_eq!(free.len() + allocations.len(), 2, "{block:?}");
            for (at, allocation) in allocations {
                let address = crate::addresses::address(*cidr, *at);
                let before = all.insert(address, allocation.handle.clone().unwrap());
                assert_eq!(before, None, "{address} twice");
            }
        }
        all
    }

    /// Checks what is true at every moment.
    fn check(&self) {
        let allocated = self.allocated();
        for service in self.services() {
            for entry in &service.ingress {
                let address: IpAddr = entry["ip"].as_str().unwrap().parse().unwrap();
                let has = allocated.get(&address);
                assert_eq!(has, Some(&service.handle), "{address} of {}", service.name);
            }
        }
    }

    /// Completes all writes that are in progress. Then each actor completes its task, and one leader continues alone
    /// for some time.
    fn end(&mut self) {
        while !self.late.lock().unwrap().is_empty() {
            self.step(Step::Land(0));
        }
        for at in 0..ACTORS {
            while self.actors[at].task.is_some() {
                self.step(Step::On(at));
            }
        }
        // Each Service may wait for the addresses of all others, so there are as many rounds as Services, and two more.
        for _ in 0..NAMES + 2 {
            loop {
                self.step(Step::On(0));
                let Actor { task, known, .. } = &self.actors[0];
                if task.is_none() && known.borrow().pending.is_empty() {
                    break;
                }
            }
            // This task sweeps, which notifies the leader about all Services.
            self.step(Step::On(0));
            while self.actors[0].task.is_some() {
                self.step(Step::On(0));
            }
        }
        while !self.actors[0].known.borrow().pending.is_empty() {
            self.step(Step::On(0));
        }
        while self.actors[0].task.is_some() {
            self.step(Step::On(0));
        }
    }

    /// Checks what is true when nothing is in progress.
    fn check_end(&self) {
        let mut left = self.allocated();
        let owners = left.clone();
        for service in self.services() {
            let has: BTreeSet<IpAddr> = owners
                .iter()
                .filter(|(_, handle)| **handle == service.handle)
                .map(|(address, _)| *address)
                .collect();
            left.retain(|_, handle| *handle != service.handle);
            let texts =
                service.ingress.iter().map(|it| it["ip"].as_str().unwrap().parse().unwrap());
            assert_eq!(texts.collect::<BTreeSet<IpAddr>>(), has, "{service:?}");
            if !service.is_ours(AssignIps::AllServices) {
                assert!(has.is_empty(), "{service:?} has {has:?}");
                continue;
            }
            let wish = service.wish().unwrap();
            for of in [Family::V4, Family::V6] {
                let number = has.iter().filter(|address| family(**address) == of).count();
                match wish.addresses.first() {
                    Some(address) if family(*address) == of => {
                        // The Service has the address that it requests, unless another Service has it.
                        let has_it = has.contains(address);
                        assert!(has_it || owners.contains_key(address), "{service:?} {has:?}");
                        assert!(number <= 1, "{service:?} {has:?}");
                    }
                    Some(_) => assert_eq!(number, 0, "{service:?} {has:?}"),
                    // There are more addresses than Services, so every Service gets one.
                    None => {
                        let wants = usize::from(wish.families.contains(&of));
                        assert_eq!(number, wants, "{service:?} {has:?} {owners:?}");
                    }
                }
            }
        }
        assert_eq!(left, BTreeMap::new(), "nobody's");
    }
}

async fn collect(objects: Objects<Stepped>, known: Rc<RefCell<Known>>, round: u64) {
    let Ok(look) = Look::read(&objects, &objects).await else { return };
    let settings = Settings { grace: Duration::from_secs(1), limit: 100 };
    let at = Duration::from_secs(round * 10);
    let steps = known.borrow_mut().garbage.plan(&look, settings, at, REST).steps;
    for step in steps {
        let _ = take(&objects, &objects, &step, REST).await;
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn no_address_has_two_services_and_none_is_lost(
        steps in prop::collection::vec(step(), 200..1500),
    ) {
        let mut world = World::new();
        for step in steps {
            world.step(step);
        }
        world.end();
        world.check_end();
    }
}

/// Checks that the schedules reach the situations that the laws describe.
#[test]
fn the_schedules_give_release_and_crash() {
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let mut all = Seen::default();
    for _ in 0..10 {
        let steps = prop::collection::vec(step(), 1500).new_tree(&mut runner).unwrap().current();
        let mut world = World::new();
        for step in steps {
            world.step(step);
        }
        let Seen { told, released, troubles, late, gone } = world.seen.get();
        all.told += told;
        all.released += released;
        all.troubles += troubles;
        all.late += late;
        all.gone += gone;
    }
    let Seen { told, released, troubles, late, gone } = all;
    assert!(told > 40 && released > 40 && troubles > 20 && late > 500 && gone > 20, "{all:?}");
}
