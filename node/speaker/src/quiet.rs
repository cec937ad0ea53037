//! Which lines about a peer are logged.

use std::time::Duration;

use tokio::time::Instant;

/// The time in which a line about one peer is not logged twice.
const QUIET: Duration = Duration::from_mins(1);

/// A line about a peer is logged when it is another one than the last, or when the last is a while ago.
#[derive(Debug, Default)]
pub(crate) struct Quiet(Option<(String, Instant)>);

impl Quiet {
    /// Whether a line is to be logged.
    pub(crate) fn allows(&mut self, words: &str) -> bool {
        if matches!(&self.0, Some((last, at)) if last == words && at.elapsed() < QUIET) {
            return false;
        }
        self.0 = Some((words.to_owned(), Instant::now()));
        true
    }
}
