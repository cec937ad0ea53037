//! Tells when a directory may have changed.

use std::path::Path;
use std::time::Duration;

use notify::{EventKind, RecursiveMode, Watcher as _};
use tokio::sync::mpsc;
use tokio::time::Instant;

/// Changes come in bursts (an editor's write, a checkout); the last one matters.
const DEBOUNCE: Duration = Duration::from_millis(50);
/// A burst that does not end is reported all the same.
const DEBOUNCE_AT_MOST: Duration = Duration::from_millis(500);
/// The directory is looked at this often without being told: watches miss what happens behind network file systems, and
/// a directory that is replaced has no watch at all.
const RESCAN: Duration = Duration::from_secs(3);

/// Why a [`Watcher`] woke up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WakeUp {
    /// Something in the directory changed.
    Event,
    /// Nothing was heard for a while; look anyway.
    Rescan,
}

/// A watch on a directory.
#[derive(Debug)]
pub struct Watcher {
    changes: mpsc::Receiver<()>,
    /// Without one (no inotify instances left, say) there are rescans only.
    watch: Option<notify::RecommendedWatcher>,
    /// When the next rescan is due.
    rescan: Instant,
    /// The burst that is not reported yet. It is kept here and not in a future, which may be dropped at any time.
    burst: Option<Burst>,
}

/// Changes that come one soon after the other.
#[derive(Debug, Clone, Copy)]
struct Burst {
    first: Instant,
    last: Instant,
}

impl Watcher {
    /// Watches `directory`, which need not exist yet.
    pub fn new(directory: &Path) -> Self {
        // One waiting signal says all there is to say.
        let (sender, changes) = mpsc::channel(1);
        let told = move |event: notify::Result<notify::Event>| {
            // Reading the files is an event too, and answering it by reading would never end.
            if event.is_ok_and(|event| matches!(event.kind, EventKind::Access(_))) {
                return;
            }
            // Full: there is a signal waiting already.
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

    /// Waits until the directory may have changed, at most 3 s. Dropping the future loses nothing.
    pub async fn changed(&mut self) -> WakeUp {
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
                // The watch has ended by itself: from now on as if there had been none, and look at once.
                Ok(None) => {
                    self.watch = None;
                    self.rescan = Instant::now();
                }
                Err(_elapsed) => return self.report(),
            }
        }
    }

    /// Has [`Watcher::changed`] report within `delay`, whatever happens.
    pub fn rescan_within(&mut self, delay: Duration) {
        self.rescan = self.rescan.min(Instant::now() + delay);
    }

    fn report(&mut self) -> WakeUp {
        self.rescan = Instant::now() + RESCAN;
        if self.burst.take().is_some() { WakeUp::Event } else { WakeUp::Rescan }
    }
}
