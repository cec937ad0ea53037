//! Device work off the control loop.
//!
//! To make or remove a pod's device takes milliseconds in the kernel, and longer while other namespaces come and go. Each piece
//! of work therefore runs on a thread that may block, and its result comes back to the control loop as an event. Status,
//! datastore and publication go on meanwhile.
//!
//! A thread works for one pod. At most [`THREADS`] work at once; more wait in order of arrival.

use std::sync::Arc;
use std::thread;

use manx_policy_compiler::model::ObjectName;
use tokio::sync::{Semaphore, mpsc};

use super::device::AgentNamespace;

/// Threads that make or remove devices at once. The kernel makes one network device at a time (`rtnl_lock`), so that more
/// threads gain little.
const THREADS: usize = 8;

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
            let _turn = threads.acquire_owned().await;
            let ended = tokio::task::spawn_blocking(move || work(&namespace)).await;
            // An agent that stops cancels what has not begun, and no longer waits.
            if let Some(result) =
                ended.map_or_else(|it| it.try_into_panic().ok().map(Err), |it| Some(Ok(it)))
            {
                let _ = completed.send(Completed { pod, result });
            }
        });
    }
}
