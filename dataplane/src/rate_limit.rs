//! A limit on what others can make a worker do or say: ICMP errors, complaints about epoll.

use std::time::Duration;

/// How often something may be done: a token bucket, described by the moment at which it will be full again.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RateLimit {
    interval: Duration,
    depth: Duration,
    full_at: Duration,
}

impl RateLimit {
    /// `burst` at once, and `per_second` in the long run (0 counts as 1).
    pub(crate) fn new(per_second: u32, burst: u32) -> Self {
        let interval = Duration::from_secs(1) / per_second.max(1);
        Self { interval, depth: interval * burst, full_at: Duration::ZERO }
    }

    /// Whether it may be done now, which takes a token; `now` counts from any fixed moment.
    pub(crate) fn allow(&mut self, now: Duration) -> bool {
        let full_at = self.full_at.max(now) + self.interval;
        let allowed = full_at.saturating_sub(now) <= self.depth;
        if allowed {
            self.full_at = full_at;
        }
        allowed
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
    fn a_bucket_gives_its_burst_and_fills_again() {
        let mut limit = RateLimit::new(10, 3);
        let mut at = |millis| limit.allow(Duration::from_millis(millis));
        assert_eq!([at(0), at(0), at(0), at(0)], [true, true, true, false]);
        assert_eq!([at(100), at(100)], [true, false], "one in a tenth of a second");
        assert_eq!([at(9000), at(9000), at(9000), at(9000)], [true, true, true, false]);
    }
}
