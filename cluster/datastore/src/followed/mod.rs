//! The common part of all sources that follow a server, independently of the protocol.
//!
//! The layers, in order:
//! - `server`: the server and the followed kinds.
//! - `pause`: the wait after a failure.
//! - `reading`: an object, read by the reader of files.
//! - `event`: an event from the server.
//! - `faults`: the faults that may cause objects to be out of date.
//! - `snapshot`: the last state on disk.
//! - `events`: the path of events to the agent and to the state on disk.
//! - `objects`: all objects, and their differences from the previous ones.
//! - `waiting`: the values that must still be written, one for each object.
//!
//! A source has a thread that communicates with its server and sends [`Events`]. The agent has [`Followed`] and
//! receives changes.

mod event;
mod events;
mod faults;
mod objects;
mod pause;
mod reading;
mod server;
mod snapshot;
#[cfg(test)]
mod tests;
mod waiting;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use manx_objects::contents::{Changes, Contents};
use manx_objects::object::Kind;
use serde_json::Value;
use tokio::sync::mpsc;
use tokio::time::timeout;

pub(crate) use self::event::{Event, Reason};
use self::events::Received;
pub(crate) use self::events::{Closed, Events};
pub use self::faults::Stale;
pub(crate) use self::objects::Objects;
pub(crate) use self::pause::Pause;
pub(crate) use self::reading::{Reading, key, read};
pub(crate) use self::server::Server;
use self::snapshot::Loaded;
pub(crate) use self::snapshot::{Snapshot, Trouble};
pub(crate) use self::waiting::Waiting;

/// The maximum number of events that wait for the agent. When it is reached, the thread that reads events waits, and so
/// does the server.
const WAITING: usize = 4096;
/// The time for which a starting agent waits for the server before it uses the state on disk.
const START: Duration = Duration::from_secs(10);

/// The properties of an agent that follows a server.
#[derive(Debug, Clone)]
pub struct Follower {
    /// The name of the agent's node. The agent writes to the objects of pods on this node.
    pub node: String,
    /// The agent's own namespace. It reads Secrets only there.
    pub namespace: String,
    /// The file of the last state.
    pub state: Option<PathBuf>,
}

/// The reason why a starting agent waits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Waits {
    pub server: String,
    /// The time when the start began to wait.
    pub since: SystemTime,
    /// The reason why objects are missing, if it is known.
    pub reason: Option<String>,
    /// The maximum time until the next attempt.
    pub at_most: Duration,
}

/// The objects of a server. See the module.
#[derive(Debug)]
pub(crate) struct Followed {
    server: Server,
    objects: Objects,
    trouble: Trouble,
    events: mpsc::Receiver<Received>,
    received: Vec<Received>,
    /// The time when the first event of the last change was received.
    changed: Option<Instant>,
    /// The last state on disk, until `Followed::start` takes it.
    loaded: Option<Loaded>,
}

impl Followed {
    /// Makes the receiver and the sender of events. At first only the last state in the file `state` is known, and it
    /// is not used yet. Objects that arrive with events are used, and are written to the file.
    pub(crate) fn new(server: Server, state: Option<&Path>) -> (Self, Events) {
        let trouble = Trouble::default();
        let open = |file| Snapshot::open(file, server, &trouble);
        let (snapshot, loaded) = state.map_or((None, None), open);
        let (sender, events) = mpsc::channel(WAITING);
        let of_thread = Events::new(sender, snapshot, server.kinds);
        let objects = Objects::followed(server);
        let (received, changed) = (Vec::new(), None);
        (Self { server, objects, trouble, events, received, changed, loaded }, of_thread)
    }

    /// Waits until all objects are known. While the server does not answer, the last state is used, if it is complete.
    /// Without such a state, this waits for the server. `place` names the server. `told` is called with the reason for
    /// the wait.
    pub(crate) async fn start(&mut self, place: &Arc<str>, told: impl Fn(&Waits)) {
        let waits = Waits {
            server: place.to_string(),
            since: SystemTime::now(),
            reason: None,
            at_most: pause::LONGEST_PAUSE,
        };
        told(&waits);
        let told = |reason| told(&Waits { reason, ..waits.clone() });
        if let Some(loaded) = self.loaded.take() {
            if timeout(START, self.synced(&told)).await.is_ok() || self.restore(place, loaded) {
                return;
            }
            tracing::error!(
                "the last state holds an object that cannot be read: it is not used, and nothing passes until {} answers",
                self.server.name
            );
        }
        self.synced(&told).await;
    }

    /// Returns all objects, as of the last event.
    pub(crate) fn contents(&self) -> &Contents {
        &self.objects.contents
    }

    /// Returns all objects as a shared value.
    pub(crate) fn shared(&self) -> Arc<Contents> {
        Arc::clone(&self.objects.contents)
    }

    pub(crate) const fn objects(&mut self) -> &mut Objects {
        &mut self.objects
    }

    /// Returns since when and why objects may be out of date, or `None` if they are up to date.
    pub(crate) fn stale(&self) -> Option<Stale> {
        self.objects.stale()
    }

    /// Returns whether changes of a kind may be missed now.
    pub(crate) fn is_behind(&self, kind: Kind) -> bool {
        self.objects.is_behind(kind)
    }

    /// Returns the reason why the next start may find no usable state on disk.
    pub(crate) fn trouble(&self) -> Option<String> {
        self.trouble.text()
    }

    /// Returns the time when the first event of the last change was received.
    pub(crate) const fn changed(&self) -> Option<Instant> {
        self.changed
    }

    /// Waits for the next change, and returns it. If the future is dropped, nothing is lost.
    pub(crate) async fn next(&mut self) -> Changes {
        loop {
            if let Some(changes) = self.receive().await {
                return changes;
            }
        }
    }

    /// Waits for events and applies them.
    async fn receive(&mut self) -> Option<Changes> {
        if self.events.recv_many(&mut self.received, WAITING).await == 0 {
            // The receiver still exists, so the thread has not ended normally: it has panicked.
            let reason = format!("the thread that follows {} has ended", self.server.name);
            self.objects.mark_stale(reason);
            std::future::pending::<()>().await;
        }
        self.changed = self.received.first().map(|(at, _)| *at);
        let events = self.received.drain(..).map(|(_, event)| event);
        self.objects.apply(events)
    }

    /// Waits until all objects are known. `told` is called with the reason why some are not known.
    async fn synced(&mut self, told: &impl Fn(Option<String>)) {
        while !self.contents().in_sync {
            self.receive().await;
            told(self.stale().map(|stale| stale.reason));
        }
    }

    /// Uses the state on disk until all objects are listed. If a part of the state cannot be read, returns `false` and
    /// uses none of the state, because that part may be a policy.
    fn restore(&mut self, place: &Arc<str>, Loaded { texts, complete }: Loaded) -> bool {
        let reading = |text: String| {
            let object: Value = serde_json::from_str(&text).ok()?;
            let kind = Kind::ALL.into_iter().find(|kind| {
                kind.name() == object["kind"]
                    && kind.api_versions().iter().any(|version| *version == object["apiVersion"])
            })?;
            Some(read(place, key(kind, &object), text))
        };
        let readings: Option<Vec<_>> = texts.into_iter().map(reading).collect();
        let is_whole = readings.is_some();
        if let Some(readings) = readings {
            self.objects.restore(complete, readings);
        }
        is_whole
    }
}
