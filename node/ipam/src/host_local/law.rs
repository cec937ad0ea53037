//! The law of the allocator, under concurrent changes, dropped changes and crashes: no two pods have the same address, and
//! no address is lost for ever. Addresses that were given back are given out again in the order of their return, after all
//! others.

use std::pin::Pin;
use std::sync::PoisonError;
use std::task::{Context, Poll, Waker};

use proptest::prelude::*;

use std::collections::BTreeSet;

use super::*;

/// A store whose calls take one step to begin and one to end, and may fail before or after they have done their work. It
/// outlives the agent.
#[derive(Debug, Clone, Default)]
struct Memory {
    record: Arc<std::sync::Mutex<Numbered>>,
    /// The results of the next writes. Later writes succeed.
    ends: Arc<std::sync::Mutex<Vec<End>>>,
}

/// The number of the last write, and its value.
type Numbered = Option<(u64, Vec<u8>)>;

#[derive(Debug, Clone, Copy)]
enum End {
    Written,
    FailedBefore,
    FailedAfter,
}

fn lock<T>(mutex: &std::sync::Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Lets other futures run.
async fn pause() {
    let mut has_paused = false;
    std::future::poll_fn(|_| {
        if std::mem::replace(&mut has_paused, true) { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
}

impl Memory {
    fn read(&self) -> Option<(Revision, Vec<u8>)> {
        let record = lock(&self.record).clone();
        record.map(|(revision, value)| (Revision(revision.to_string()), value))
    }

    fn leases(&self) -> Leases {
        match self.read() {
            Some((_, value)) => saved::read(&value).unwrap(),
            None => fresh(),
        }
    }
}

impl Store for Memory {
    async fn get(&self, key: &Key) -> Result<Option<Record>, store::Error> {
        pause().await;
        let read = self.read();
        pause().await;
        Ok(read.map(|(revision, value)| Record { key: key.clone(), revision, value }))
    }

    async fn compare_and_swap(
        &self,
        _key: &Key,
        expected: Option<&Revision>,
        value: Vec<u8>,
    ) -> Result<Swap, store::Error> {
        let failed = || store::Error {
            record: "the record".to_owned(),
            verb: "written",
            source: std::io::Error::other("it is broken"),
            is_undone: false,
        };
        let end = lock(&self.ends).pop().unwrap_or(End::Written);
        pause().await;
        if let End::FailedBefore = end {
            return Err(failed());
        }
        let now = self.read().map(|(revision, _)| revision);
        let swap = if now.as_ref() == expected {
            let mut record = lock(&self.record);
            let next = record.as_ref().map_or(1, |(revision, _)| revision + 1);
            *record = Some((next, value));
            Swap::Done(Revision(next.to_string()))
        } else {
            Swap::Conflict
        };
        pause().await;
        if let End::FailedAfter = end { Err(failed()) } else { Ok(swap) }
    }

    async fn list(&self, host: &str) -> Result<Vec<Record>, store::Error> {
        Ok(self.get(&key(host)).await?.into_iter().collect())
    }

    fn describe(&self, _key: &Key) -> String {
        "the record".to_owned()
    }
}

/// Leases of two blocks, with five IPv4 and six IPv6 addresses for pods.
fn fresh() -> Leases {
    Leases::new(&["10.0.0.0/29", "fd00::/125"].map(|it| it.parse().unwrap())).unwrap()
}

const ROOM: usize = 5;

fn pod(number: u8) -> PodName {
    PodName { namespace: "default".to_owned(), name: format!("pod-{number}") }
}

fn request(pod: PodName) -> Request {
    Request { pod, addresses: Vec::new(), id: None, taken: BTreeMap::new() }
}

#[derive(Debug, Clone, Copy)]
enum Step {
    /// Begins to reserve addresses for a pod that has no operation in progress.
    Reserve(u8),
    /// Commits a pod's reservation.
    Commit(u8),
    /// Aborts a pod's reservation.
    Abort(u8),
    /// Begins to release the addresses of a pod that has no operation in progress.
    Release(u8),
    /// Runs a pod's operation for one step.
    Go(u8),
    /// Drops a pod's operation.
    GiveUp(u8),
    /// Ends the agent with all its operations, and starts another agent.
    Crash,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let pod = || 0_u8..8;
    let step = prop_oneof![
        4 => pod().prop_map(Step::Reserve),
        2 => pod().prop_map(Step::Commit),
        1 => pod().prop_map(Step::Abort),
        2 => pod().prop_map(Step::Release),
        20 => pod().prop_map(Step::Go),
        1 => pod().prop_map(Step::GiveUp),
        1 => Just(Step::Crash),
    ];
    prop::collection::vec(step, 1..150)
}

fn ends() -> impl Strategy<Value = Vec<End>> {
    let end = prop_oneof![
        6 => Just(End::Written),
        1 => Just(End::FailedBefore),
        1 => Just(End::FailedAfter),
    ];
    prop::collection::vec(end, 0..40)
}

/// The result of a pod's operation.
enum Ended {
    Reserved(Result<Reservation, Error>),
    Released(Result<(), Error>),
}

type Work = Pin<Box<dyn Future<Output = Ended>>>;

/// The state of a pod.
enum Pod {
    UnderWay(Work),
    Reserved(Reservation),
    Attached(Vec<IpAddr>),
}

/// A node, on which agents start and end.
struct Node {
    memory: Memory,
    ipam: HostLocal<Memory>,
    pods: BTreeMap<PodName, Pod>,
    given_up: BTreeSet<PodName>,
}

impl Node {
    fn new(ends: Vec<End>) -> Self {
        let memory = Memory::default();
        *lock(&memory.ends) = ends;
        let ipam = whole(HostLocal::open(memory.clone(), "n1", fresh())).unwrap();
        Self { memory, ipam, pods: BTreeMap::new(), given_up: BTreeSet::new() }
    }

    fn step(&mut self, step: Step) {
        let ipam = self.ipam.clone();
        match step {
            Step::Reserve(number) => {
                self.begin(number, async move {
                    Ended::Reserved(ipam.reserve(&request(pod(number))).await)
                });
            }
            Step::Release(number) => self.begin(number, async move {
                Ended::Released(ipam.release(&pod(number)).await.map(drop))
            }),
            Step::Commit(number) => {
                if let Some(Pod::Reserved(reservation)) = self.take_reserved(number) {
                    self.pods.insert(pod(number), Pod::Attached(reservation.commit()));
                }
            }
            Step::Abort(number) => {
                if let Some(Pod::Reserved(reservation)) = self.take_reserved(number) {
                    let work = async move { Ended::Released(ipam.abort(reservation).await) };
                    self.pods.insert(pod(number), Pod::UnderWay(Box::pin(work)));
                }
            }
            Step::Go(number) => drop(self.go_on(&pod(number))),
            Step::GiveUp(number) => {
                if let Some(Pod::UnderWay(_)) = self.pods.get(&pod(number)) {
                    self.pods.remove(&pod(number));
                    self.given_up.insert(pod(number));
                }
            }
            Step::Crash => {
                self.pods.retain(|_, pod| matches!(pod, Pod::Attached(_)));
                self.ipam = whole(HostLocal::open(self.memory.clone(), "n1", fresh())).unwrap();
            }
        }
    }

    fn take_reserved(&mut self, number: u8) -> Option<Pod> {
        let is_reserved = matches!(self.pods.get(&pod(number)), Some(Pod::Reserved(_)));
        if is_reserved { self.pods.remove(&pod(number)) } else { None }
    }

    fn begin(&mut self, number: u8, work: impl Future<Output = Ended> + 'static) {
        if let Some(Pod::UnderWay(_) | Pod::Reserved(_)) = self.pods.get(&pod(number)) {
            return;
        }
        self.pods.insert(pod(number), Pod::UnderWay(Box::pin(work)));
    }

    /// Runs a pod's operation for one step. Returns whether there was one.
    fn go_on(&mut self, pod: &PodName) -> bool {
        let Some(Pod::UnderWay(work)) = self.pods.get_mut(pod) else { return false };
        let Poll::Ready(ended) = work.as_mut().poll(&mut Context::from_waker(Waker::noop())) else {
            return true;
        };
        self.pods.remove(pod);
        match ended {
            Ended::Reserved(Ok(reservation)) => {
                self.pods.insert(pod.clone(), Pod::Reserved(reservation));
            }
            Ended::Released(Ok(())) => assert_eq!(self.memory.leases().addresses(pod), None),
            Ended::Reserved(Err(_)) | Ended::Released(Err(_)) => {}
        }
        true
    }

    /// Runs all operations to their end.
    fn finish(&mut self) {
        let names: Vec<PodName> = self.pods.keys().cloned().collect();
        for pod in names.iter().cycle() {
            self.go_on(pod);
            if !self.pods.values().any(|pod| matches!(pod, Pod::UnderWay(_))) {
                break;
            }
        }
    }

    /// Checks that each pod's addresses are in the store, and that no two pods have one address.
    fn check(&self) {
        let kept = self.memory.leases();
        let mut seen = BTreeSet::new();
        for (pod, addresses, _) in kept.iter() {
            assert!(addresses.iter().all(|it| seen.insert(*it)), "{pod}: {addresses:?}");
        }
        for (name, pod) in &self.pods {
            let told = match pod {
                Pod::Reserved(reservation) => reservation.addresses(),
                Pod::Attached(addresses) => addresses,
                Pod::UnderWay(_) => continue,
            };
            assert_eq!(kept.addresses(name), Some(told), "{name}");
        }
    }
}

/// Runs a future to its end.
fn whole<F: Future>(future: F) -> F::Output {
    let mut future = Box::pin(future);
    loop {
        if let Poll::Ready(it) = future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            return it;
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]
    #[test]
    fn no_address_is_two_pods_none_is_lost_and_the_last_given_back_comes_last(
        steps in steps(),
        ends in ends(),
        last in 0_usize..ROOM,
    ) {
        let mut node = Node::new(ends);
        for step in steps {
            node.step(step);
            node.check();
        }
        node.finish();
        node.check();
        lock(&node.memory.ends).clear();
        // A runtime detaches the pods whose attachment it has given up, and the pods that the leases name.
        let ipam = node.ipam.clone();
        for pod in &node.given_up {
            whole(ipam.release(pod)).unwrap();
        }
        for (pod, ..) in ipam.leases().iter() {
            whole(ipam.release(pod)).unwrap();
        }
        prop_assert_eq!(ipam.leases().iter().count(), 0);
        let fill = |ipam: &HostLocal<Memory>, from: u8| -> Vec<(PodName, Vec<IpAddr>)> {
            let one = |number| {
                let reserved = whole(ipam.reserve(&request(pod(number)))).ok()?;
                Some((pod(number), reserved.commit()))
            };
            (from..).map_while(one).collect()
        };
        let all = fill(&ipam, 100);
        prop_assert_eq!(all.len(), ROOM);
        let mut order: Vec<usize> = (0..ROOM).collect();
        order.rotate_left(last);
        for at in &order {
            whole(ipam.release(&all[*at].0)).unwrap();
        }
        node.step(Step::Crash);
        let again = fill(&node.ipam, 150);
        let v4 = |all: &[(PodName, Vec<IpAddr>)], at: usize| all[at].1[0];
        for (at, from) in order.iter().enumerate() {
            prop_assert_eq!(v4(&again, at), v4(&all, *from), "in the order in which they came back");
        }
    }
}
