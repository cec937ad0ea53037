//! The state of each page: served, or the reason why not.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Pages by their name, each with the reason why it is not served. All copies share this.
#[derive(Debug, Clone, Default)]
pub struct Served(Arc<Mutex<BTreeMap<&'static str, Option<String>>>>);

impl Served {
    /// Records that the pages of this name are served.
    pub(crate) fn succeed(&self, pages: &'static str) {
        self.all().insert(pages, None);
    }

    /// Records that the pages of this name are not served. Each reason is logged once.
    pub fn fail(&self, pages: &'static str, reason: &str) {
        let before = self.all().insert(pages, Some(reason.to_owned()));
        if before.flatten().as_deref() != Some(reason) {
            tracing::error!("{pages}: {reason}");
        }
    }

    /// Whether the pages of this name are known not to be served.
    pub(crate) fn has_failed(&self, pages: &'static str) -> bool {
        self.all().get(pages).is_some_and(Option::is_some)
    }

    /// A sentence about each page that is not served.
    pub fn problems(&self) -> Vec<String> {
        let all = self.all();
        let failed = all.iter().filter_map(|(pages, reason)| Some((pages, reason.as_ref()?)));
        failed.map(|(pages, reason)| format!("{pages}: {reason}")).collect()
    }

    /// Each name, and whether its pages are served.
    pub(crate) fn states(&self) -> Vec<(&'static str, bool)> {
        self.all().iter().map(|(pages, reason)| (*pages, reason.is_none())).collect()
    }

    fn all(&self) -> MutexGuard<'_, BTreeMap<&'static str, Option<String>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
