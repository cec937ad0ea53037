//! Reports when a directory may have changed.

use std::path::Path;
use std::time::Duration;

use notify::{EventKind, RecursiveMode, Watcher as _};
use tokio::sync::mpsc;
use tokio::time::Instant;

/// Changes come in bursts (an editor's write, a checkout), and only the state after the burst matters. A burst ends
/// after this time without a change.
const DEBOUNCE: Duration = Duration::from_millis(50);
/// A burst that does not end is reported after this time.
const DEBOUNCE_AT_MOST: Duration = Duration::from_millis(500);
/// After this time without an event, the directory is read again. The reasons are that watches miss changes on network
/// file systems, and that a replaced directory has no watch.
const RESCAN: Duration = Duration::from_secs(3);

/// The reason why a [`Watcher`] woke up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WakeUp {
    /// Something in the directory has changed.
    Event,
    /// There was no event for some time. The directory should be read anyway.
    Rescan,
}

/// A watch on a directory.
#[derive(Debug)]
pub(crate) struct Watcher {
    changes: mpsc::Receiver<()>,
    /// `None` if there is no watch (for example, because no inotify instance is left); there are only rescans then.
    watch: Option<notify::RecommendedWatcher>,
    /// The time of the next rescan.
    rescan: Instant,
    /// The burst that is not reported yet. It is stored here because a future may be dropped at any time.
    burst: Option<Burst>,
}

/// Changes that follow each other within a short time.
#[derive(Debug, Clone, Copy)]
struct Burst {
    first: Instant,
    last: Instant,
}

impl Watcher {
    /// Watches `directory`, which need not exist yet.
    pub(crate) fn new(directory: &Path) -> Self {
        // One waiting signal is enough.
        let (sender, changes) = mpsc::channel(1);
        let told = move |event: notify::Result<notify::Event>| {
            // Reading files causes events, too. A reaction to them would read the files again, without end.
            if event.is_ok_and(|event| matches!(event.kind, EventKind::Access(_))) {
                return;
            }
            // If the channel is full, a signal is already waiting.
            let _ = sender.try_send(());
        };
        let watch = notify::recommended_watcher(told).and_then(|mut watch| {
            watch.watch(directory, RecursiveMode::NonRecursive)?;
            Ok(watch)
        });
        let watch = match watch {
            Ok(watch) => Some(watch),
            Err(error) => {
                let every = RESCAN.as_secs();
                tracing::warn!(
                    directory = %directory.display(), %error,
                    "cannot watch the directory; it is read again every {every} s"
                );
                None
            }
        };
        Self { changes, watch, rescan: Instant::now() + RESCAN, burst: None }
    }

    /// Waits until the directory may have changed, for at most 3 s. If the future is dropped, no event is lost.
    pub(crate) async fn changed(&mut self) -> WakeUp {
        loop {
            let due = match self.burst {
                Some(Burst { first, last }) => (last + DEBOUNCE).min(first + DEBOUNCE_AT_MOST),
                None => self.rescan,
            };
            if self.watch.is_none() {
                tokio::time::sleep_until(due).await;
                return self.report();
            }
            match tokio::time::timeout_at(due, self.changes.recv()).await {
                Ok(Some(())) => {
                    let last = Instant::now();
                    let first = self.burst.map_or(last, |burst| burst.first);
                    self.burst = Some(Burst { first, last });
                }
                // The watch has ended by itself. From now on there are only rescans, and the first one is due
                // immediately.
                Ok(None) => {
                    self.watch = None;
                    self.rescan = Instant::now();
                }
                Err(_elapsed) => return self.report(),
            }
        }
    }

    /// Makes [`Watcher::changed`] return within `delay`, even without an event.
    pub(crate) fn rescan_within(&mut self, delay: Duration) {
        self.rescan = self.rescan.min(Instant::now() + delay);
    }

    fn report(&mut self) -> WakeUp {
        self.rescan = Instant::now() + RESCAN;
        if self.burst.take().is_some() { WakeUp::Event } else { WakeUp::Rescan }
    }
}
