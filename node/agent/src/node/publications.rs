//! The published tables that workers may still use.
//!
//! Each worker hands tables back in the order of publication. So when the last worker hands tables back, no worker uses
//! these tables or earlier ones. Tables that differ only in services have the same version, but are separate publications.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use manx_dataplane::tables::Tables;

/// See the module.
pub(super) struct Publications {
    /// The publications in use, the oldest first.
    in_use: VecDeque<Publication>,
    workers: usize,
}

struct Publication {
    tables: Arc<Tables>,
    /// The number of workers that have handed them back.
    handed_back: usize,
    /// The latest time at which a worker handed them back.
    last: Option<Instant>,
    /// The arrival time of the change that the next publication contains.
    change: Option<Instant>,
}

/// The facts that are known when all workers have handed tables back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Retired {
    /// No worker uses tables of this version or an earlier one. `None`: other tables of the version may be in use.
    pub(super) version: Option<u64>,
    /// The latency of the change that the next publication contains: the time from the change's arrival until every
    /// worker has replaced these tables. `None`: the time of arrival is unknown.
    pub(super) changed_in: Option<Duration>,
}

impl Publication {
    fn new(tables: Arc<Tables>) -> Self {
        Self { tables, handed_back: 0, last: None, change: None }
    }
}

impl Publications {
    /// Starts with workers that have their own closed tables.
    pub(super) fn new(workers: usize) -> Self {
        Self { in_use: [Publication::new(Arc::new(Tables::closed()))].into(), workers }
    }

    /// Adds tables; `received` is the time when the change that they contain arrived.
    pub(super) fn add(&mut self, tables: Arc<Tables>, received: Option<Instant>) {
        if let Some(before) = self.in_use.back_mut() {
            before.change = received;
        }
        self.in_use.push_back(Publication::new(tables));
    }

    /// Records that a worker has handed tables back `at` this time. Returns [`Retired`] if it is the last worker.
    pub(super) fn hand_back(&mut self, tables: &Arc<Tables>, at: Instant) -> Option<Retired> {
        let is_closed = |tables: &Tables| tables.version == 0;
        let is_it = |it: &Publication| {
            Arc::ptr_eq(&it.tables, tables) || (is_closed(&it.tables) && is_closed(tables))
        };
        let place = self.in_use.iter().position(is_it)?;
        let publication = self.in_use.get_mut(place)?;
        publication.handed_back += 1;
        publication.last = publication.last.max(Some(at));
        if publication.handed_back < self.workers {
            return None;
        }
        let times = publication.change.zip(publication.last);
        self.in_use.drain(..=place);
        let is_last_of_version =
            self.in_use.front().is_some_and(|next| next.tables.version > tables.version);
        Some(Retired {
            version: is_last_of_version.then_some(tables.version),
            changed_in: times.map(|(received, last)| last.saturating_duration_since(received)),
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// In any order of the workers' turns, a version is retired once, when each of them uses a later one. Each change
        /// is in force when each of them uses the tables that contain it.
        #[test]
        fn a_version_is_retired_when_every_worker_uses_a_later_one(
            steps in vec(any::<bool>(), 1..12),
            turns in vec(0..3usize, 0..60),
        ) {
            let began = Instant::now();
            let time = |step: usize| began + Duration::from_secs(step as u64);
            let mut publications = Publications::new(3);
            let mut all = vec![Arc::new(Tables::closed())];
            for (step, is_new) in steps.into_iter().enumerate() {
                let version = all[step].version + u64::from(is_new || step == 0);
                all.push(Arc::new(Tables { version, ..Tables::closed() }));
                publications.add(Arc::clone(&all[step + 1]), Some(time(step + 1)));
            }
            // The number of tables that each worker has handed back, and the time of its last one.
            let mut workers = [0; 3];
            let mut retired = None;
            for (turn, worker) in turns.into_iter().enumerate() {
                let at = workers[worker];
                if at + 1 == all.len() {
                    continue;
                }
                workers[worker] += 1;
                // Each worker has its own closed tables.
                let own = Arc::new(Tables::closed());
                let handed = if at == 0 { &own } else { &all[at] };
                let found = publications.hand_back(handed, time(100 + turn));
                let is_last = workers.iter().all(|it| *it > at);
                prop_assert_eq!(found.is_some(), is_last);
                let Some(found) = found else { continue };
                let waited = 100 + turn - (at + 1);
                prop_assert_eq!(found.changed_in, Some(Duration::from_secs(waited as u64)));
                let oldest = workers.iter().map(|it| all[*it].version).min().unwrap();
                let is_later = oldest > all[at].version;
                prop_assert_eq!(found.version, is_later.then_some(all[at].version));
                prop_assert!(found.version.is_none() || found.version > retired);
                retired = found.version.or(retired);
            }
        }
    }
}
