//! Decides which messages about a peer are logged.

use std::time::Duration;

use tokio::time::Instant;

/// The time for which a message about one peer is not repeated.
const QUIET: Duration = Duration::from_mins(1);

/// Allows a message about a peer if its text differs from the last one, or if the last message is older than [`QUIET`].
#[derive(Debug, Default)]
pub(crate) struct Quiet(Option<(String, Instant)>);

impl Quiet {
    /// Whether a message should be logged.
    pub(crate) fn allows(&mut self, words: &str) -> bool {
        if matches!(&self.0, Some((last, at)) if last == words && at.elapsed() < QUIET) {
            return false;
        }
        self.0 = Some((words.to_owned(), Instant::now()));
        true
    }
}
