//! Which pages are served where they are to be, and why others are not.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Pages by their name, each with why it is not served. All copies are the same.
#[derive(Debug, Clone, Default)]
pub struct Served(Arc<Mutex<BTreeMap<&'static str, Option<String>>>>);

impl Served {
    /// The pages of this name are served.
    pub(crate) fn settle(&self, pages: &'static str) {
        self.all().insert(pages, None);
    }

    /// The pages of this name are not served. The log says so once for each reason.
    pub fn fail(&self, pages: &'static str, reason: &str) {
        let before = self.all().insert(pages, Some(reason.to_owned()));
        if before.flatten().as_deref() != Some(reason) {
            tracing::error!("{pages}: {reason}");
        }
    }

    /// What is not served, a sentence each.
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
