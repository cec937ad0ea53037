//! The common part of all sources that follow a server, whichever protocol they speak.
//!
//! The layers, in order:
//! - `server`: the server and the kinds that are followed.
//! - `pause`: the wait after a failure.
//! - `reading`: an object, read by the reader that reads files.
//! - `event`: an event of the server.
//! - `faults`: the faults that may leave objects out of date.
//! - `snapshot`: the last state on disk.
//! - `events`: the way of events, to the agent and to the state on disk.
//! - `objects`: all objects, and their differences from those before.
//! - `waiting`: the values that are still to be written, one for each object.
//!
//! A source has a thread that speaks with its server and sends [`Events`]; the agent has [`Followed`], and gets changes.

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

/// The most events that wait for the agent. With so many, the thread that reads them waits, and so does the server.
const WAITING: usize = 4096;
/// The time for which a start waits for the server before it uses the state on disk.
const START: Duration = Duration::from_secs(10);

/// The agent that follows a server, and the writes that it makes there.
#[derive(Debug, Clone)]
pub struct Follower {
    /// The name of its node. It writes to the objects of pods on this node.
    pub node: String,
    /// Its own namespace. It reads Secrets there, and nowhere else.
    pub namespace: String,
    /// The file of the last state.
    pub state: Option<PathBuf>,
}

/// The reason why the agent's start waits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Waits {
    pub server: String,
    /// The time when the start began to wait.
    pub since: SystemTime,
    /// The reason why objects are missing, if it is known.
    pub reason: Option<String>,
    /// The longest time until the next attempt.
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
    /// The last state on disk, for as long as the start may use it.
    loaded: Option<Loaded>,
}

impl Followed {
    /// Only the last state in the file `state` is known, and it is not in force yet. Objects that come by the events
    /// are in force, and are written to the file.
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

    /// Waits until all objects are known. While the server does not answer, the last state is used instead, if it is
    /// complete; without one this waits for the server. `place`: the server. `told` gets the reason for the wait.
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

    /// All objects, as of the last event.
    pub(crate) fn contents(&self) -> &Contents {
        &self.objects.contents
    }

    /// All objects, shared.
    pub(crate) fn shared(&self) -> Arc<Contents> {
        Arc::clone(&self.objects.contents)
    }

    pub(crate) const fn objects(&mut self) -> &mut Objects {
        &mut self.objects
    }

    /// Since when objects may be out of date, and why; `None`: they are not.
    pub(crate) fn stale(&self) -> Option<Stale> {
        self.objects.stale()
    }

    /// Whether changes of a kind are missed now.
    pub(crate) fn is_behind(&self, kind: Kind) -> bool {
        self.objects.is_behind(kind)
    }

    /// The reason why there may be no last state to start from.
    pub(crate) fn trouble(&self) -> Option<String> {
        self.trouble.text()
    }

    /// The time when the first event of the last change was received.
    pub(crate) const fn changed(&self) -> Option<Instant> {
        self.changed
    }

    /// Waits for the next change, and returns it. Dropping the future loses nothing.
    pub(crate) async fn next(&mut self) -> Changes {
        loop {
            if let Some(changes) = self.receive().await {
                return changes;
            }
        }
    }

    /// Waits for events, and takes them.
    async fn receive(&mut self) -> Option<Changes> {
        if self.events.recv_many(&mut self.received, WAITING).await == 0 {
            // The thread ends only without a listener, so it has panicked.
            let reason = format!("the thread that follows {} has ended", self.server.name);
            self.objects.mark_stale(reason);
            std::future::pending::<()>().await;
        }
        self.changed = self.received.first().map(|(at, _)| *at);
        let events = self.received.drain(..).map(|(_, event)| event);
        self.objects.apply(events)
    }

    /// Waits until all objects are known. `told` gets the reason why some are not.
    async fn synced(&mut self, told: &impl Fn(Option<String>)) {
        while !self.contents().in_sync {
            self.receive().await;
            told(self.stale().map(|stale| stale.reason));
        }
    }

    /// Puts the state on disk in force until all objects were listed. `false`: some of it cannot be read, so none of it
    /// is used; the unreadable part may be a policy.
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
