//! The table that all sessions share.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use manx_bgp::table::Table;
use tokio::sync::Notify;
use tokio::time::Instant;

/// The table, and the sessions that its changes wake.
///
/// The lock is never held while a task waits.
#[derive(Debug)]
pub(crate) struct Routes {
    table: Mutex<Table>,
    sessions: Mutex<BTreeMap<IpAddr, Arc<Notify>>>,
    /// Notified when something that callers read has changed.
    pub(crate) changed: Notify,
    /// Notified when paths have become stale.
    pub(crate) stale: Notify,
    began: Instant,
}

impl Routes {
    pub(crate) fn new() -> Self {
        Self {
            table: Mutex::new(Table::new()),
            sessions: Mutex::default(),
            changed: Notify::new(),
            stale: Notify::new(),
            began: Instant::now(),
        }
    }

    /// The current time on the table's clock.
    pub(crate) fn now(&self) -> Duration {
        self.began.elapsed()
    }

    /// The runtime's time at which the table's clock shows `time`.
    pub(crate) fn instant(&self, time: Duration) -> Instant {
        self.began + time
    }

    /// Returns the notification that wakes a session when there are routes to send to its peer.
    pub(crate) fn join(&self, peer: IpAddr) -> Arc<Notify> {
        Arc::clone(lock(&self.sessions).entry(peer).or_default())
    }

    /// Removes a peer whose session has ended for good.
    pub(crate) fn leave(&self, peer: IpAddr) {
        lock(&self.sessions).remove(&peer);
    }

    /// Reads the table.
    pub(crate) fn read<T>(&self, read: impl FnOnce(&Table) -> T) -> T {
        read(&lock(&self.table))
    }

    /// Changes the table, and wakes the sessions that have routes to send.
    pub(crate) fn write<T>(&self, write: impl FnOnce(&mut Table) -> T) -> T {
        let mut table = lock(&self.table);
        let before = table.generation();
        let result = write(&mut table);
        let has_changed = table.generation() != before;
        let woken = table.take_woken();
        drop(table);
        if has_changed {
            self.changed.notify_one();
        }
        if !woken.is_empty() {
            let sessions = lock(&self.sessions);
            woken.iter().filter_map(|it| sessions.get(it)).for_each(|it| it.notify_one());
        }
        result
    }
}

/// Locks a mutex even if another thread has panicked, because a panic must not end sessions.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
