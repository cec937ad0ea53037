//! The path of events from the thread that communicates with a server, to the agent and to the state on disk.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::time::{Instant, SystemTime};

use manx_objects::object::Kind;
use tokio::sync::mpsc;

use super::event::{Event, Reason};
use super::snapshot::Snapshot;

/// The error if the receiver of the events is gone.
#[derive(Debug)]
pub(crate) struct Closed;

/// An event, and the time when it was received.
pub(super) type Received = (Instant, Event);

/// The sender of events to the agent and to the state on disk.
pub(crate) struct Events {
    sender: mpsc::Sender<Received>,
    snapshot: Option<Snapshot>,
    /// The kinds that the state on disk lacks, because they were not listed yet or cannot be followed.
    unknown: RefCell<BTreeSet<Kind>>,
    /// The time of the server's last answer.
    answered: Cell<SystemTime>,
}

impl Events {
    /// Makes a sender. No event was sent yet, and none of `kinds` was listed.
    pub(super) fn new(
        sender: mpsc::Sender<Received>,
        snapshot: Option<Snapshot>,
        kinds: &[Kind],
    ) -> Self {
        let unknown = RefCell::new(kinds.iter().copied().collect());
        Self { sender, snapshot, unknown, answered: Cell::new(SystemTime::now()) }
    }

    /// Sends an event. Waits while the agent has very many unread events.
    pub(crate) async fn send(&self, mut event: Event) -> Result<(), Closed> {
        let at = Instant::now();
        if let Some(snapshot) = &self.snapshot {
            snapshot.record(&mut event);
        }
        match &event {
            Event::Listed { kind, .. } | Event::Fault { kind: Some(kind), fault: None } => {
                _ = self.unknown.borrow_mut().remove(kind);
            }
            Event::Fault { kind: Some(kind), fault: Some(_) } => {
                _ = self.unknown.borrow_mut().insert(*kind);
            }
            Event::Fault { kind: None, .. } | Event::Changed(_) | Event::Gone(_) => {}
        }
        self.sender.send((at, event)).await.map_err(|_| Closed)
    }

    /// Reports that objects cannot be followed. For one kind, the fault begins now; for all kinds, it began at the
    /// server's last answer.
    pub(crate) async fn fail(&self, kind: Option<Kind>, reason: Reason) -> Result<(), Closed> {
        let since = if kind.is_none() { self.answered.get() } else { SystemTime::now() };
        self.send(Event::Fault { kind, fault: Some((since, reason)) }).await
    }

    /// Reports that objects can be followed again.
    pub(crate) async fn recover(&self, kind: Option<Kind>) -> Result<(), Closed> {
        self.send(Event::Fault { kind, fault: None }).await
    }

    /// Records that the server has answered. If every kind is followed, the events so far describe the server's current
    /// state.
    pub(crate) fn confirm(&self) {
        self.answered.set(SystemTime::now());
        if let Some(snapshot) = &self.snapshot
            && self.unknown.borrow().is_empty()
        {
            snapshot.complete(SystemTime::now());
        }
    }
}
