//! Tells when a directory may have changed.

use std::path::Path;
use std::time::Duration;

use notify::{EventKind, RecursiveMode, Watcher as _};
use tokio::sync::mpsc;

/// Changes come in bursts (an editor's write, a checkout); the last one matters.
const DEBOUNCE: Duration = Duration::from_millis(50);
/// A burst that does not end is reported all the same.
const DEBOUNCE_AT_MOST: Duration = Duration::from_millis(500);
/// The directory is looked at this often without being told: watches miss what happens behind network file systems, and
/// a directory that is replaced has no watch at all.
const RESCAN: Duration = Duration::from_secs(3);

/// Why a [`Watcher`] woke up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
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
        match watch {
            Ok(watch) => Self { changes, watch: Some(watch) },
            Err(error) => {
                let every = RESCAN.as_secs();
                tracing::warn!(
                    directory = %directory.display(), %error,
                    "cannot watch the directory; it is read again every {every} s"
                );
                Self { changes, watch: None }
            }
        }
    }

    /// Waits until the directory may have changed, at most 3 s. Dropping the future loses nothing.
    pub async fn changed(&mut self) -> Change {
        if self.watch.is_none() {
            tokio::time::sleep(RESCAN).await;
            return Change::Rescan;
        }
        match tokio::time::timeout(RESCAN, self.changes.recv()).await {
            Ok(Some(())) => {}
            Err(_) => return Change::Rescan,
            // The watch has ended by itself: from now on as if there had been none.
            Ok(None) => {
                self.watch = None;
                return Change::Rescan;
            }
        }
        let quiet = async {
            while let Ok(Some(())) = tokio::time::timeout(DEBOUNCE, self.changes.recv()).await {}
        };
        // Either way the burst is reported.
        let _ = tokio::time::timeout(DEBOUNCE_AT_MOST, quiet).await;
        Change::Event
    }
}
