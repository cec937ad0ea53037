//! A value that is written to the server once for each change, and again after a failure.

use std::time::Duration;

use tokio::sync::watch;
use tokio::time::timeout;

use super::fault::words;

/// The pause before the second try, and the longest pause. The pause doubles after each failure.
const PAUSES: (Duration, Duration) = (Duration::from_millis(100), Duration::from_mins(1));

/// The value to write, and the result of the last try. Nothing is written before a value is set.
#[derive(Debug)]
pub(super) struct Kept<T> {
    wanted: watch::Sender<Option<T>>,
    outcome: watch::Sender<Outcome<T>>,
}

/// The value that was last written, and the failure of the last try.
#[derive(Debug, Clone)]
struct Outcome<T> {
    written: Option<T>,
    failure: Option<String>,
}

impl<T> Default for Kept<T> {
    fn default() -> Self {
        let outcome = Outcome { written: None, failure: None };
        Self { wanted: watch::Sender::new(None), outcome: watch::Sender::new(outcome) }
    }
}

impl<T: Clone + PartialEq> Kept<T> {
    /// Queues a write. If the value is the one that was last written, it is not written again.
    pub(super) fn want(&self, value: T) {
        self.wanted.send_replace(Some(value));
    }

    /// Queues a write, even if the value is the one that was last written, because another writer has changed it.
    pub(super) fn want_again(&self, value: T) {
        self.outcome.send_modify(|outcome| outcome.written = None);
        self.want(value);
    }

    /// Waits until this value is written.
    pub(super) async fn written(&self, value: &T) {
        let mut outcome = self.outcome.subscribe();
        // The sender exists as long as `self`, so this cannot fail.
        _ = outcome.wait_for(|outcome| outcome.written.as_ref() == Some(value)).await;
    }

    /// Returns the reason why the last try failed.
    pub(super) fn failure(&self) -> Option<String> {
        self.outcome.borrow().failure.clone()
    }

    /// Writes the wanted values as long as the connection lasts. `what` names the value in the log.
    pub(super) async fn keep_writing(
        &self,
        what: &str,
        write: impl AsyncFn(T) -> kube::Result<()>,
    ) {
        let mut wanted = self.wanted.subscribe();
        let mut pause = PAUSES.0;
        loop {
            let next = wanted.borrow_and_update().clone();
            let Some(next) = next.filter(|next| !self.is_written(next)) else {
                // The sender exists as long as `self`, so this cannot fail.
                _ = wanted.changed().await;
                pause = PAUSES.0;
                continue;
            };
            match write(next.clone()).await {
                Ok(()) => {
                    let outcome = Outcome { written: Some(next), failure: None };
                    self.outcome.send_replace(outcome);
                }
                Err(error) => {
                    self.fail(what, words(&error));
                    // A new value is written at once: it does not wait for the end of the failed value's pause.
                    let other = timeout(pause, wanted.changed()).await.is_ok();
                    pause = if other { PAUSES.0 } else { (pause * 2).min(PAUSES.1) };
                }
            }
        }
    }

    fn is_written(&self, value: &T) -> bool {
        self.outcome.borrow().written.as_ref() == Some(value)
    }

    fn fail(&self, what: &str, reason: String) {
        if self.outcome.borrow().failure.as_ref() != Some(&reason) {
            tracing::warn!(reason, "{what} is written again later");
        }
        self.outcome.send_modify(|outcome| outcome.failure = Some(reason));
    }
}
