//! Decides whether a worker that finds no packets continues to poll or sleeps.

use std::time::{Duration, Instant};

/// The time for which an adaptive worker polls without packets before it sleeps.
const PATIENCE: Duration = Duration::from_micros(50);
/// If a yield takes at least this time, another thread had the core for a whole slice of the scheduler.
const SLICE: Duration = Duration::from_millis(1);
/// After a yield of at least [`SLICE`], the worker sleeps in idle turns without polling first, for this time. A worker
/// that is woken from sleep gets the core back soon. A worker that has yielded waits for the slices of the others,
/// which is several milliseconds for each packet.
const CROWDED: Duration = Duration::from_millis(100);

/// The worker offers the core to other threads in one of this many idle turns. An offer that no thread takes costs as
/// much as polling for packets.
const OFFER_EVERY: u32 = 4;

/// An adaptive worker's record of its idle turns.
#[derive(Debug)]
pub struct Idle {
    /// The time of the first idle turn. `None`: the last turn found packets.
    silent_since: Option<Instant>,
    crowded_until: Instant,
    /// The number of idle turns since packets were found.
    turns: u32,
}

impl Idle {
    /// Creates the record of a worker that starts now.
    pub fn new(now: Instant) -> Self {
        Self { silent_since: Some(now), crowded_until: now, turns: 0 }
    }

    /// Records that a turn found packets.
    pub fn found_packets(&mut self) {
        (self.silent_since, self.turns) = (None, 0);
    }

    /// Called after an idle turn. It sometimes offers the core to other threads, because the thread that sends the next
    /// packet may wait for it.
    pub fn yield_core(&mut self) {
        self.turns = self.turns.wrapping_add(1);
        if self.turns % OFFER_EVERY != 1 {
            return;
        }
        let offered = Instant::now();
        std::thread::yield_now();
        self.yielded(offered, Instant::now());
    }

    /// Records that the core was offered at `from` and came back at `to`.
    fn yielded(&mut self, from: Instant, to: Instant) {
        if to - from >= SLICE {
            self.crowded_until = to + CROWDED;
        }
    }

    /// Whether the worker should sleep. The turn that ends now found nothing.
    pub fn should_sleep(&mut self, now: Instant) -> bool {
        let since = *self.silent_since.get_or_insert(now);
        now - since >= PATIENCE || now < self.crowded_until
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHORT: Duration = Duration::from_micros(10);

    #[test]
    fn it_polls_on_for_a_while_after_packets() {
        let start = Instant::now();
        let mut idle = Idle::new(start);
        let found = start + Duration::from_secs(1);
        assert!(idle.should_sleep(found), "nothing came for long");
        idle.found_packets();
        assert!(!idle.should_sleep(found) && !idle.should_sleep(found + SHORT));
        assert!(idle.should_sleep(found + PATIENCE));
    }

    #[test]
    fn where_others_keep_the_core_it_sleeps_at_once_until_it_tries_again() {
        let start = Instant::now();
        let mut idle = Idle::new(start);
        idle.yielded(start, start + SHORT);
        assert!(!idle.should_sleep(start + SHORT), "a short yield is what it is for");
        let back = start + SLICE;
        idle.yielded(start, back);
        idle.found_packets();
        assert!(idle.should_sleep(back) && idle.should_sleep(back + SHORT));
        let later = back + CROWDED;
        idle.found_packets();
        assert!(!idle.should_sleep(later));
    }
}
