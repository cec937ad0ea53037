//! A worker from the view of the control loop, which starts its thread, sends it commands and reads its counters.

use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;

use crossbeam::channel::Sender;

use super::commands::{Command, Commands};
use super::settings::{Settings, SharedState};
use super::turn::Worker;
use crate::counters::WorkerCounters;
use crate::report::Report;
use crate::sys::capabilities::{CapabilitySet, keep_only};
use crate::sys::shared_file::SharedFile;

/// A handle of a worker's thread, for the control loop. Dropping it ends the worker.
pub struct Handle {
    commands: Commands,
    counters: Arc<WorkerCounters>,
    core: Option<usize>,
    flow_records: Arc<SharedFile>,
    /// `None` once the worker has begun.
    begins: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Handle {
    /// Lets the worker run. It runs the commands that were sent so far before it reads a packet.
    pub fn begin(&mut self) {
        if let Some(begins) = self.begins.take() {
            // If there is no receiver, the thread has ended; `is_alive` shows that.
            let _ = begins.send(());
        }
    }

    /// Sends commands to the worker.
    pub fn commands(&self) -> &Commands {
        &self.commands
    }

    /// The worker's counters.
    pub fn counters(&self) -> &WorkerCounters {
        &self.counters
    }

    /// The core that the worker is pinned to.
    pub fn core(&self) -> Option<usize> {
        self.core
    }

    /// The records of the worker's flows, for the next process ([`crate::flow::FlowRecordFile`]).
    pub fn flow_records(&self) -> &Arc<SharedFile> {
        &self.flow_records
    }

    /// Whether the worker's thread still runs.
    pub fn is_alive(&self) -> bool {
        self.thread.as_ref().is_some_and(|thread| !thread.is_finished())
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.begins = None;
        self.commands.send(Command::Stop);
        if let Some(thread) = self.thread.take() {
            // The thread can have failed only by a panic, and then the process ends, too.
            let _ = thread.join();
        }
    }
}

/// Ends the process if a worker panics: half of a dataplane is worse than none.
struct AbortOnPanic;

impl Drop for AbortOnPanic {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!(
                "manx: a worker died; the process ends with it, because half a dataplane fails open or blind"
            );
            std::process::abort();
        }
    }
}

/// Gives up all capabilities, because a worker uses only open descriptors. Then pins the thread to its core.
fn drop_privileges_and_pin(core: Option<usize>) -> io::Result<()> {
    keep_only(CapabilitySet::empty())?;
    match core {
        Some(id) if !core_affinity::set_for_current(core_affinity::CoreId { id }) => {
            Err(io::Error::other(format!("a worker cannot be pinned to core {id}")))
        }
        _ => Ok(()),
    }
}

/// Starts a worker on its own thread, which has no capabilities and waits for [`Handle::begin`]. Returns an error if
/// there is no thread, no epoll instance or no memory, or if the system does not pin the thread to the core. After an
/// error, the worker has handled no packet.
pub fn spawn(
    name: &str,
    settings: Settings,
    share: SharedState,
    reports: Sender<Report>,
) -> io::Result<Handle> {
    let (queue, receiver) = crossbeam::channel::unbounded();
    let counters = Arc::new(WorkerCounters::default());
    let mut worker = Worker::new(settings, share, receiver, reports, Arc::clone(&counters))?;
    let flow_records = Arc::clone(worker.flow_records());
    let commands = Commands { queue, waker: worker.poller.waker() };
    let (started, outcome) = crossbeam::channel::bounded(1);
    let (begins, begun) = crossbeam::channel::bounded(1);
    let thread = std::thread::Builder::new().name(name.to_owned()).spawn(move || {
        let _guard = AbortOnPanic;
        let outcome = drop_privileges_and_pin(settings.core);
        let has_started = outcome.is_ok();
        if started.send(outcome).is_ok() && has_started && begun.recv().is_ok() {
            worker.run();
        }
    })?;
    outcome.recv().map_err(io::Error::other)??;
    Ok(Handle {
        commands,
        counters,
        core: settings.core,
        flow_records,
        begins: Some(begins),
        thread: Some(thread),
    })
}
