//! A source of objects: what they are now, and an event for each change.

use std::path::Path;
use std::sync::Arc;

use manx_objects::contents::{Changes, Contents};

use crate::directory::{STANDS, Store};
use crate::watch::Watcher;

/// A directory of manifests as a source. An API server would be another one, with the same methods.
#[derive(Debug)]
pub struct Source {
    store: Store,
    watcher: Watcher,
}

impl Source {
    /// Reads a directory. Call within a tokio runtime.
    pub fn open(directory: &Path) -> Self {
        // Before the first reading, which then misses no change.
        let watcher = Watcher::new(directory);
        let mut store = Store::new(directory);
        store.refresh();
        Self { store, watcher }
    }

    /// All objects, as of the last event.
    pub fn contents(&self) -> &Contents {
        self.store.contents()
    }

    /// The same, shared: the caller may read them while the source goes on.
    pub fn shared(&self) -> Arc<Contents> {
        self.store.shared()
    }

    /// Waits for the next change, and returns it. [`Source::contents`] has it then. Dropping the future loses nothing.
    pub async fn next(&mut self) -> Changes {
        loop {
            self.watcher.changed().await;
            // Nothing is awaited from here on: a change that is read is returned.
            let changes = self.store.refresh();
            if self.store.has_unsettled_file() {
                self.watcher.rescan_within(STANDS);
            }
            if let Some(changes) = changes {
                return changes;
            }
        }
    }
}
