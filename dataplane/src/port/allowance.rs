//! The limit on relayed link messages of a pod. Each message costs a worker the time of a packet, policy does not judge
//! it, and the node's bridge floods it to all of its pods.

use std::cell::Cell;
use std::time::{Duration, Instant};

/// The largest number of messages in a burst.
pub(super) const BURST: u32 = 200;
/// The time after which one more message is allowed: 200 per second.
pub(super) const EACH: Duration = Duration::from_millis(5);

/// The number of messages that a queue may still send.
#[derive(Debug)]
pub(super) struct Allowance {
    left: Cell<u32>,
    /// The time up to which messages have been added.
    counted: Cell<Instant>,
}

impl Allowance {
    pub(super) fn new(now: Instant) -> Self {
        Self { left: Cell::new(BURST), counted: Cell::new(now) }
    }

    /// Whether one more message may be relayed.
    pub(super) fn take(&self, now: Instant) -> bool {
        let elapsed = now.saturating_duration_since(self.counted.get());
        let earned = u32::try_from(elapsed.as_nanos() / EACH.as_nanos()).unwrap_or(BURST);
        let left = self.left.get().saturating_add(earned);
        self.counted.set(if left < BURST { self.counted.get() + EACH * earned } else { now });
        let left = left.min(BURST);
        self.left.set(left.saturating_sub(1));
        left > 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_goes_on_and_then_as_many_as_time_allows() {
        let start = Instant::now();
        let allowance = Allowance::new(start);
        let passed = |from: Duration, len: u32| {
            let times = (0..len).map(|step| start + from + Duration::from_micros(100) * step);
            times.filter(|now| allowance.take(*now)).count() as u32
        };
        // One message every 0.1 ms for a second: 200 pass at once, and 200 more in that second.
        assert_eq!(passed(Duration::ZERO, 10_000), 2 * BURST - 1);
        assert_eq!(passed(Duration::from_secs(1), 10_000), BURST);
        // After a rest of any length, no more messages pass than at first.
        assert_eq!(passed(Duration::from_hours(1), 10_000), 2 * BURST - 1);
    }
}
