//! Publishes tables to real workers without ports, and measures the time until the last worker uses them.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crossbeam::channel::{Receiver, unbounded};
use manx_dataplane::pipeline::Sizes;
use manx_dataplane::report::Report;
use manx_dataplane::tables::Tables;
use manx_dataplane::worker::{Polling, Settings, Workers};

use crate::error::Failure;

/// The workers of the node.
const WORKERS: usize = 2;
/// A worker that does not use new tables after this time counts as stopped.
const PATIENCE: Duration = Duration::from_secs(10);

/// Workers, and the tables that were last published to them.
pub(super) struct Published {
    workers: Workers,
    reports: Receiver<Report>,
    pub(super) tables: Arc<Tables>,
}

impl Published {
    /// Starts workers that use these tables.
    pub(super) fn new(tables: Tables) -> Result<Self, Failure> {
        let (report, reports) = unbounded();
        let sizes = Sizes { flows: 1 << 10, translates: true, ..Sizes::default() };
        let settings = Settings { sizes, polling: Polling::default(), core: None };
        let mut workers = Workers::spawn(settings, &[None; WORKERS], &report)?;
        workers.begin();
        let tables = Arc::new(tables);
        let mut published = Self { workers, reports, tables: Arc::clone(&tables) };
        published.publish(tables, Instant::now())?;
        Ok(published)
    }

    /// Publishes tables, and waits until every worker uses them. Returns the time from `began` until the last worker
    /// uses them.
    pub(super) fn publish(
        &mut self,
        tables: Arc<Tables>,
        began: Instant,
    ) -> Result<Duration, Failure> {
        self.workers.publish(&tables);
        self.tables = tables;
        let mut last = began;
        let mut left = self.workers.len();
        while left > 0 {
            let report = self.reports.recv_timeout(PATIENCE);
            match report.map_err(|_| "a worker does not take new tables")? {
                Report::Retired(_, at) => (last, left) = (last.max(at), left - 1),
                other => return Err(format!("a worker without ports reports {other:?}").into()),
            }
        }
        Ok(last - began)
    }
}
