//! Limits on messages that others can make a worker send: ICMP errors, reports of denied flows, reports of epoll
//! errors.

use std::time::Duration;

/// A limit on how often something is done: a token bucket, which is stored as the time when it will be full again.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RateLimit {
    rate: Rate,
    full_at: Duration,
}

/// The time for one token, and the time for a full bucket.
#[derive(Debug, Clone, Copy)]
struct Rate {
    interval: Duration,
    depth: Duration,
}

impl Rate {
    fn new(per_second: u32, burst: u32) -> Self {
        let interval = Duration::from_secs(1) / per_second.max(1);
        Self { interval, depth: interval * burst }
    }

    /// Takes a token from the bucket that will be full again at `full_at`. Returns false if the bucket is empty.
    fn take(self, full_at: &mut Duration, now: Duration) -> bool {
        let after = (*full_at).max(now) + self.interval;
        let allowed = after.saturating_sub(now) <= self.depth;
        if allowed {
            *full_at = after;
        }
        allowed
    }
}

impl RateLimit {
    /// Allows a burst of `burst`, and `per_second` in the long run (0 counts as 1).
    pub(crate) fn new(per_second: u32, burst: u32) -> Self {
        Self { rate: Rate::new(per_second, burst), full_at: Duration::ZERO }
    }

    /// Takes a token. Returns `false` if there is none. `now` counts from any fixed point in time.
    pub(crate) fn allow(&mut self, now: Duration) -> bool {
        self.rate.take(&mut self.full_at, now)
    }
}

/// The number of buckets of a [`SenderLimit`].
const BUCKETS: usize = 64;

/// A [`RateLimit`] for each sender, as far as the senders' hashes fall into different buckets of 64. The hash is keyed,
/// so no sender can choose which bucket it empties.
#[derive(Debug)]
pub(crate) struct SenderLimit {
    rate: Rate,
    full_at: [Duration; BUCKETS],
}

impl SenderLimit {
    /// Creates the limit; each bucket allows what [`RateLimit::new`] says.
    pub(crate) fn new(per_second: u32, burst: u32) -> Self {
        Self { rate: Rate::new(per_second, burst), full_at: [Duration::ZERO; BUCKETS] }
    }

    /// Takes a token of the sender with this hash. Returns `false` if there is none.
    pub(crate) fn allow(&mut self, sender: u64, now: Duration) -> bool {
        self.rate.take(&mut self.full_at[sender as usize % BUCKETS], now)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_bucket_never_gives_more_than_its_burst_and_its_rate(
            per_second in 1u32..2000, burst in 1u32..100, steps in prop::collection::vec(0u64..20, 1..300),
        ) {
            let mut limit = RateLimit::new(per_second, burst);
            let (mut now, mut sent) = (Duration::from_secs(9), 0u32);
            let start = now;
            for step in steps {
                now += Duration::from_millis(step);
                sent += u32::from(limit.allow(now));
                let most = f64::from(burst) + now.saturating_sub(start).as_secs_f64() * f64::from(per_second);
                prop_assert!(f64::from(sent) <= most + 1e-3, "{sent} > {most}");
            }
        }
    }

    #[test]
    fn each_sender_has_a_bucket_of_its_own() {
        let mut limit = SenderLimit::new(10, 3);
        let mut at = |sender| limit.allow(sender, Duration::ZERO);
        assert_eq!([at(7), at(7), at(7), at(7)], [true, true, true, false]);
        assert_eq!(
            [at(8), at(7 + BUCKETS as u64)],
            [true, false],
            "all that share a bucket share it"
        );
    }

    #[test]
    fn a_bucket_gives_its_burst_and_fills_again() {
        let mut limit = RateLimit::new(10, 3);
        let mut at = |millis| limit.allow(Duration::from_millis(millis));
        assert_eq!([at(0), at(0), at(0), at(0)], [true, true, true, false]);
        assert_eq!([at(100), at(100)], [true, false], "one in a tenth of a second");
        assert_eq!([at(9000), at(9000), at(9000), at(9000)], [true, true, true, false]);
    }
}
