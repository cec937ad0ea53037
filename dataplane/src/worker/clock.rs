//! The time by which a worker's turns go.

use std::time::{Duration, Instant};

use super::ASK_EVERY;

/// A worker's clock. To read the system's costs a small turn a tenth of its time, and nothing that is done with packets asks for
/// the time more finely than some turns take.
#[derive(Debug)]
pub struct Clock {
    start: Instant,
    now: Duration,
    turns: u32,
}

impl Clock {
    /// Of a worker that starts now.
    pub fn start() -> Self {
        Self { start: Instant::now(), now: Duration::ZERO, turns: 0 }
    }

    /// When a turn begins, counted from the start. As long as turns find packets, as the one before it did or not (`found`), it is
    /// the time at which one of the last few began.
    #[inline]
    pub fn turn(&mut self, found: bool) -> Duration {
        self.turns = self.turns.wrapping_add(1);
        if !found || self.turns.is_multiple_of(ASK_EVERY) {
            self.now = self.start.elapsed();
        }
        self.now
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_never_goes_back_and_stands_still_for_a_few_turns_at_most() {
        let mut clock = Clock::start();
        let (mut last, mut stood) = (Duration::ZERO, 0);
        for turn in 0..1000 {
            std::thread::sleep(Duration::from_micros(1));
            let now = clock.turn(turn % 100 != 0);
            assert!(now >= last);
            assert!(now > last || turn % 100 != 0, "who has found nothing looks");
            stood = if now > last { 0 } else { stood + 1 };
            assert!(stood < ASK_EVERY);
            last = now;
        }
    }
}
