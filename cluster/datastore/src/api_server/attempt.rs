//! Writes Events one after the other, at most one each second. An Event that cannot be written does not block the
//! others: it is tried again later, and given up after a few tries.

use std::time::{Duration, Instant};

use super::fault::{self, is_passing, words};
use crate::followed::Waiting;

/// The minimum time between two Events of an agent.
const BETWEEN: Duration = Duration::from_secs(1);
/// The maximum number of tries for an Event.
const TRIES: u32 = 5;
/// The time between the first and the second try. It doubles after each try.
const AGAIN: Duration = Duration::from_secs(10);
/// The timeout of a try.
const TRY: Duration = Duration::from_secs(10);

/// An Event that is to be written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Attempt<V> {
    pub(super) value: V,
    /// The earliest time to write it.
    pub(super) due: Instant,
    /// The number of tries so far.
    tries: u32,
}

impl<V> Attempt<V> {
    pub(super) const fn new(value: V, due: Instant) -> Self {
        Self { value, due, tries: 0 }
    }
}

/// Writes the Events that are due, as long as the future is polled. `abandon` gets the reason if an Event is given up.
pub(super) async fn keep_trying<V: Clone + PartialEq, K: Clone + Ord>(
    waiting: &Waiting<Attempt<V>, K>,
    write: impl AsyncFn(&K, &V) -> kube::Result<()>,
    abandon: impl Fn(&K, &str),
) {
    let mut second = tokio::time::interval(BETWEEN);
    second.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        second.tick().await;
        let now = Instant::now();
        // An Event that is tried again comes after all Events that were due before it.
        let first = waiting.first_by(|it| it.due).filter(|(_, it)| it.due <= now);
        let Some((key, attempt)) = first else { continue };
        let written = match tokio::time::timeout(TRY, write(&key, &attempt.value)).await {
            Ok(written) => written,
            Err(_elapsed) => Err(fault::own(format!("no answer for {} s", TRY.as_secs()))),
        };
        match written {
            Err(error) if is_passing(&error) && attempt.tries + 1 < TRIES => {
                let due = Instant::now() + AGAIN * 2_u32.pow(attempt.tries);
                let later = Attempt { due, tries: attempt.tries + 1, ..attempt.clone() };
                waiting.replace(&key, &attempt, later);
                continue;
            }
            Err(error) => abandon(&key, &words(&error)),
            Ok(()) => {}
        }
        waiting.done(&key, &attempt);
    }
}
