//! Work for pods outside of the control loop: their addresses and their devices.
//!
//! Making or removing a pod's device takes milliseconds in the kernel, and longer while other namespaces are made or
//! removed. Reserving or releasing addresses needs a write to a disk, or calls to a server. So each piece of work runs
//! outside of the control loop, and its result is an event. Meanwhile the control loop handles requests for the status,
//! changes of objects, and publication.
//!
//! Work on addresses is asynchronous. Work on devices runs on a thread that may block. A thread works for one pod. At most
//! [`THREADS`] threads work at once; further work waits in order of arrival. After [`SLOW`], work that hangs (a namespace
//! on a mount that does not answer) no longer counts against the limit of threads, and the removal of a device counts as
//! done.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use manx_policy_compiler::model::ObjectName;
use tokio::sync::{Semaphore, mpsc};
use tokio::task::{JoinError, JoinHandle};

use manx_devices::device::AgentNamespace;

/// The most threads that make or remove devices at once. More would gain little, because the kernel makes one network
/// device at a time (`rtnl_lock`).
const THREADS: usize = 8;

/// The time after which work counts as hanging: the kernel's devices take less.
const SLOW: Duration = Duration::from_secs(5);

/// A piece of work that has ended.
pub(super) struct Completed<C> {
    pub(super) pod: ObjectName,
    /// The result for the control loop; `Err`: the work's panic.
    pub(super) result: thread::Result<C>,
}

/// Starts work, and sends the control loop each result.
pub(super) struct PodWork<C> {
    namespace: Arc<AgentNamespace>,
    threads: Arc<Semaphore>,
    completed: mpsc::UnboundedSender<Completed<C>>,
}

impl<C: Send + 'static> PodWork<C> {
    /// Creates the value and the receiver of all results. There is no work yet.
    pub(super) fn new(
        namespace: Arc<AgentNamespace>,
    ) -> (Self, mpsc::UnboundedReceiver<Completed<C>>) {
        let (completed, receiver) = mpsc::unbounded_channel();
        let threads = Arc::new(Semaphore::new(THREADS));
        (Self { namespace, threads, completed }, receiver)
    }

    /// Runs `work` on a pod's addresses, and then sends one [`Completed`]. The work is never dropped midway, because then its
    /// effect would not be known. Call this in the runtime.
    pub(super) fn start_async(
        &self,
        pod: ObjectName,
        work: impl Future<Output = C> + Send + 'static,
    ) {
        let completed = self.completed.clone();
        tokio::spawn(async move { send(&completed, pod, tokio::spawn(work).await) });
    }

    /// Runs `work` for a pod on a thread that may block, and then sends one [`Completed`]. Call this in the runtime.
    pub(super) fn start(
        &self,
        pod: ObjectName,
        work: impl FnOnce(&AgentNamespace) -> C + Send + 'static,
    ) {
        let (running, completed) = (self.run(work), self.completed.clone());
        tokio::spawn(async move { send(&completed, pod, running.await.wait().await) });
    }

    /// Waits for a value, runs `work` with it on a thread that may block, and then sends one [`Completed`]. If `awaited`
    /// gives an error, that is the result.
    pub(super) fn start_when<T: Send + 'static>(
        &self,
        pod: ObjectName,
        awaited: impl Future<Output = Result<T, C>> + Send + 'static,
        work: impl FnOnce(T) -> C + Send + 'static,
    ) {
        let (namespace, threads) = (Arc::clone(&self.namespace), Arc::clone(&self.threads));
        let completed = self.completed.clone();
        tokio::spawn(async move {
            let result = match tokio::spawn(awaited).await {
                Ok(Ok(thing)) => run(namespace, threads, move |_| work(thing)).await.wait().await,
                Ok(Err(without)) => Ok(without),
                Err(error) => Err(error),
            };
            send(&completed, pod, result);
        });
    }

    /// Like [`Self::start`], but sends [`Completed`] with `done` when the work has ended or is [`SLOW`].
    pub(super) fn start_bounded(
        &self,
        pod: ObjectName,
        work: impl FnOnce(&AgentNamespace) + Send + 'static,
        done: C,
    ) {
        let (running, completed) = (self.run(work), self.completed.clone());
        tokio::spawn(async move {
            let result = match running.await {
                Progress::Ended(ended) => ended.map(|()| done),
                Progress::Slow(_) => Ok(done),
            };
            send(&completed, pod, result);
        });
    }

    fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce(&AgentNamespace) -> T + Send + 'static,
    ) -> impl Future<Output = Progress<T>> + Send + 'static {
        run(Arc::clone(&self.namespace), Arc::clone(&self.threads), work)
    }
}

/// Runs `work` when a thread is free. When it is [`SLOW`], it frees its place for other work.
async fn run<T: Send + 'static>(
    namespace: Arc<AgentNamespace>,
    threads: Arc<Semaphore>,
    work: impl FnOnce(&AgentNamespace) -> T + Send + 'static,
) -> Progress<T> {
    // The semaphore is never closed.
    let _place = threads.acquire_owned().await;
    let mut thread = tokio::task::spawn_blocking(move || work(&namespace));
    match tokio::time::timeout(SLOW, &mut thread).await {
        Ok(ended) => Progress::Ended(ended),
        Err(_) => Progress::Slow(thread),
    }
}

/// The state of work after [`SLOW`].
enum Progress<T> {
    Ended(Result<T, JoinError>),
    Slow(JoinHandle<T>),
}

impl<T> Progress<T> {
    /// Waits until the work ends, and returns its result.
    async fn wait(self) -> Result<T, JoinError> {
        match self {
            Self::Ended(ended) => ended,
            Self::Slow(thread) => thread.await,
        }
    }
}

/// Sends a result to the control loop. An agent that stops cancels work that has not begun, and waits only a moment for
/// other work.
fn send<C>(
    completed: &mpsc::UnboundedSender<Completed<C>>,
    pod: ObjectName,
    ended: Result<C, JoinError>,
) {
    let result = match ended {
        Ok(result) => Ok(result),
        Err(error) => match error.try_into_panic() {
            Ok(panic) => Err(panic),
            Err(_cancelled) => return,
        },
    };
    let _ = completed.send(Completed { pod, result });
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use tokio::sync::oneshot;

    use super::*;
    use manx_linux::testing::namespaces_allowed;

    #[test]
    fn addresses_that_take_long_hold_up_no_other_pod() {
        if !namespaces_allowed() {
            return;
        }
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let (work, mut completed) = PodWork::new(Arc::new(AgentNamespace::create().unwrap()));
            let (answer, answered) = oneshot::channel();
            work.start_async(ObjectName::new("a", "slow"), async { answered.await.unwrap() });
            work.start_async(ObjectName::new("a", "quick"), async { 1 });
            work.start(ObjectName::new("a", "device"), |_| 2);
            let mut ended = [completed.recv().await.unwrap(), completed.recv().await.unwrap()]
                .map(|it| it.result.unwrap());
            ended.sort_unstable();
            assert_eq!(ended, [1, 2]);
            answer.send(3).unwrap();
            assert_eq!(completed.recv().await.unwrap().result.unwrap(), 3);
        });
    }

    #[test]
    fn work_that_hangs_gives_its_place_to_other_work() {
        if !namespaces_allowed() {
            return;
        }
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let (release, hung) = channel::<()>();
        let hung = Arc::new(std::sync::Mutex::new(hung));
        runtime.block_on(async {
            let namespace = Arc::new(AgentNamespace::create().unwrap());
            let (work, mut completed) = PodWork::new(namespace);
            for number in 0..THREADS {
                let hung = Arc::clone(&hung);
                let name = ObjectName::new("hangs", format!("{number}"));
                work.start(name, move |_| hung.lock().unwrap().recv().is_err());
            }
            work.start(ObjectName::new("goes", "on"), |_| false);
            let first = completed.recv().await.unwrap();
            assert_eq!((first.pod, first.result.unwrap()), (ObjectName::new("goes", "on"), false));
            // Work whose end need not be awaited counts as done although it hangs.
            let behind = Arc::clone(&hung);
            let hangs = move |_: &AgentNamespace| drop(behind.lock());
            work.start_bounded(ObjectName::new("is", "removed"), hangs, false);
            let second = completed.recv().await.unwrap();
            assert_eq!(second.pod, ObjectName::new("is", "removed"));
            assert!(!second.result.unwrap());
            drop(release);
            for _ in 0..THREADS {
                assert!(completed.recv().await.unwrap().result.unwrap());
            }
        });
    }
}
