//! Device work off the control loop.
//!
//! To make or remove a pod's device takes milliseconds in the kernel, and longer while other namespaces come and go. Each piece
//! of work therefore runs on a thread that may block, and its result comes back to the control loop as an event. Status,
//! datastore and publication go on meanwhile.
//!
//! A thread works for one pod. At most [`THREADS`] work at once; more wait in order of arrival.

use std::panic::resume_unwind;
use std::sync::Arc;

use manx_policy_compiler::model::ObjectName;
use tokio::sync::{Semaphore, mpsc};

use super::device::AgentNamespace;
use super::node::Agent;
use super::node::pods::Reply;

/// Threads that make or remove devices at once. The kernel makes one network device at a time (`rtnl_lock`), so that more
/// threads gain little.
const THREADS: usize = 8;

/// What the control loop does when a piece of work has ended. The reply goes to the caller after the next publication.
pub(super) type Commit = Box<dyn FnOnce(&mut Agent) -> Option<Reply> + Send>;

/// A piece of work that has ended.
pub(super) struct Completed {
    /// The pod that it was for.
    pub(super) pod: ObjectName,
    /// What follows.
    pub(super) commit: Commit,
}

/// Starts device work, and tells the control loop when a piece of it has ended.
pub(super) struct DeviceWork {
    namespace: Arc<AgentNamespace>,
    threads: Arc<Semaphore>,
    completed: mpsc::UnboundedSender<Completed>,
}

impl DeviceWork {
    /// No work yet, and the receiver of all that will be completed.
    pub(super) fn new(
        namespace: Arc<AgentNamespace>,
    ) -> (Self, mpsc::UnboundedReceiver<Completed>) {
        let (completed, receiver) = mpsc::unbounded_channel();
        let threads = Arc::new(Semaphore::new(THREADS));
        (Self { namespace, threads, completed }, receiver)
    }

    /// Runs `work` for a pod on a thread that may block; one [`Completed`] follows. A panic goes on in the control loop: an
    /// agent that does not know what has become of a device ends. Call within the runtime.
    pub(super) fn start(
        &self,
        pod: ObjectName,
        work: impl FnOnce(&AgentNamespace) -> Commit + Send + 'static,
    ) {
        let (namespace, threads) = (Arc::clone(&self.namespace), Arc::clone(&self.threads));
        let completed = self.completed.clone();
        tokio::spawn(async move {
            // The semaphore is never closed.
            let _turn = threads.acquire_owned().await;
            let commit = match tokio::task::spawn_blocking(move || work(&namespace)).await {
                Ok(commit) => commit,
                Err(ended) => Box::new(|_: &mut Agent| match ended.try_into_panic() {
                    Ok(panic) => resume_unwind(panic),
                    // The runtime has been stopped.
                    Err(_) => None,
                }),
            };
            // An agent that stops no longer waits.
            let _ = completed.send(Completed { pod, commit });
        });
    }
}
