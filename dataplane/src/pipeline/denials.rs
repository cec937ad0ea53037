//! The denied flows that were reported recently, so that a flow is not reported with every packet.

use std::time::Duration;

const PLACES: usize = 4096;
/// A denied flow that continues is reported again after this time.
const AGAIN: Duration = Duration::from_secs(10);

/// A direct-mapped cache of flow hashes. A flow may be reported twice. A new flow is omitted only if its hash equals
/// that of a recently reported flow.
pub(crate) struct RecentDenials(Box<[(u64, Duration)]>);

impl Default for RecentDenials {
    fn default() -> Self {
        Self(vec![(0, Duration::ZERO); PLACES].into())
    }
}

impl RecentDenials {
    /// Whether this flow must be reported now. If so, it counts as reported.
    pub(crate) fn is_new(&mut self, hash: u64, now: Duration) -> bool {
        let place = &mut self.0[hash as usize % PLACES];
        if place.0 == hash && now.saturating_sub(place.1) < AGAIN {
            return false;
        }
        *place = (hash, now);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flow_is_reported_once_and_again_after_a_while() {
        let mut recent = RecentDenials::default();
        let second = Duration::from_secs;
        assert!(recent.is_new(7, second(1)));
        assert!(!recent.is_new(7, second(2)));
        assert!(recent.is_new(8, second(2)));
        assert!(recent.is_new(7, second(11)));
    }
}
