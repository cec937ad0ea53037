//! Device work off the control loop.
//!
//! To make or remove a pod's device takes milliseconds in the kernel, and longer while other namespaces come and go. Each piece
//! of work therefore runs on a thread that may block, and its result comes back to the control loop as an event. Status,
//! datastore and publication go on meanwhile.
//!
//! A thread works for one pod. At most [`THREADS`] work at once; more wait in order of arrival. Work that hangs (a namespace on
//! a mount that does not answer) gives its place to the next after [`SLOW`].

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use manx_policy_compiler::model::ObjectName;
use tokio::sync::{Semaphore, mpsc};

use super::device::AgentNamespace;

/// Threads that make or remove devices at once. The kernel makes one network device at a time (`rtnl_lock`), so that more
/// threads gain little.
const THREADS: usize = 8;

/// Work that takes longer than this waits for something else than the kernel's devices.
const SLOW: Duration = Duration::from_secs(5);

/// A piece of work that has ended.
pub(super) struct Completed<C> {
    /// The pod that it was for.
    pub(super) pod: ObjectName,
    /// What it returned for the control loop; `Err`: how it panicked.
    pub(super) result: thread::Result<C>,
}

/// Starts device work, and tells the control loop when a piece of it has ended.
pub(super) struct DeviceWork<C> {
    namespace: Arc<AgentNamespace>,
    threads: Arc<Semaphore>,
    completed: mpsc::UnboundedSender<Completed<C>>,
}

impl<C: Send + 'static> DeviceWork<C> {
    /// No work yet, and the receiver of all that will be completed.
    pub(super) fn new(
        namespace: Arc<AgentNamespace>,
    ) -> (Self, mpsc::UnboundedReceiver<Completed<C>>) {
        let (completed, receiver) = mpsc::unbounded_channel();
        let threads = Arc::new(Semaphore::new(THREADS));
        (Self { namespace, threads, completed }, receiver)
    }

    /// Runs `work` for a pod on a thread that may block; one [`Completed`] follows. Call within the runtime.
    pub(super) fn start(
        &self,
        pod: ObjectName,
        work: impl FnOnce(&AgentNamespace) -> C + Send + 'static,
    ) {
        let (namespace, threads) = (Arc::clone(&self.namespace), Arc::clone(&self.threads));
        let completed = self.completed.clone();
        tokio::spawn(async move {
            // The semaphore is never closed.
            let place = threads.acquire_owned().await;
            let mut thread = tokio::task::spawn_blocking(move || work(&namespace));
            let ended = if let Ok(ended) = tokio::time::timeout(SLOW, &mut thread).await {
                ended
            } else {
                drop(place);
                thread.await
            };
            // An agent that stops cancels what has not begun, and waits for the rest no longer than a moment.
            if let Some(result) =
                ended.map_or_else(|it| it.try_into_panic().ok().map(Err), |it| Some(Ok(it)))
            {
                let _ = completed.send(Completed { pod, result });
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;
    use manx_linux::testing::namespaces_allowed;

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
            let (work, mut completed) = DeviceWork::new(namespace);
            for number in 0..THREADS {
                let hung = Arc::clone(&hung);
                let name = ObjectName::new("hangs", format!("{number}"));
                work.start(name, move |_| hung.lock().unwrap().recv().is_err());
            }
            work.start(ObjectName::new("goes", "on"), |_| false);
            let first = completed.recv().await.unwrap();
            assert_eq!((first.pod, first.result.unwrap()), (ObjectName::new("goes", "on"), false));
            drop(release);
            for _ in 0..THREADS {
                assert!(completed.recv().await.unwrap().result.unwrap());
            }
        });
    }
}
