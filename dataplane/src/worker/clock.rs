//! A worker's clock.

use std::time::Duration;

use crate::sys;

/// The number of turns between two reads of the clock, and between two polls of epoll, while packets flow.
pub(super) const POLL_EVERY: u32 = 8;
/// The number of ticks after which any turn reads the system's clock again: about twenty microseconds.
const LONG: u64 = 50_000;

/// A worker's clock. The system's clock is not read in each turn (round of the worker's loop), because that would take
/// a tenth of the time of a small turn. So the result may be late by a few small turns or by one long turn, which is
/// precise enough for packets. The clock counts from the machine's start, so that the next process knows how long a
/// flow has been silent.
#[derive(Debug)]
pub struct Clock {
    now: Duration,
    turns: u32,
    /// The tick at which the system's clock was last read.
    read: u64,
}

impl Clock {
    /// The clock of a worker.
    pub fn start() -> Self {
        Self { now: sys::clock::since_boot(), turns: 0, read: sys::clock::ticks() }
    }

    /// The time at which a turn begins. `found` says whether the turn before found packets. While turns find packets
    /// and are short, the result is the time at which one of the last few turns began.
    #[inline]
    pub fn begin_turn(&mut self, found: bool) -> Duration {
        self.turns = self.turns.wrapping_add(1);
        let ticks = sys::clock::ticks();
        let is_old = ticks.wrapping_sub(self.read) >= LONG;
        if !found || is_old || self.turns.is_multiple_of(POLL_EVERY) {
            self.read = ticks;
            self.now = sys::clock::since_boot();
        }
        self.now
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_does_not_stand_still_for_long_turns() {
        let mut clock = Clock::start();
        let mut last = clock.begin_turn(true);
        for _ in 0..20 {
            std::thread::sleep(Duration::from_millis(1));
            let now = clock.begin_turn(true);
            assert!(now >= last + Duration::from_millis(1));
            last = now;
        }
    }

    #[test]
    fn it_never_goes_back_and_stands_still_for_a_few_turns_at_most() {
        let mut clock = Clock::start();
        let (mut last, mut stood) = (sys::clock::since_boot(), 0);
        for turn in 0..1000 {
            std::thread::sleep(Duration::from_micros(1));
            let now = clock.begin_turn(turn % 100 != 0);
            assert!(now >= last);
            assert!(
                now > last || turn % 100 != 0,
                "the clock is read after a turn that found nothing"
            );
            stood = if now > last { 0 } else { stood + 1 };
            assert!(stood < POLL_EVERY);
            last = now;
        }
    }
}
