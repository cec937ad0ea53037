//! The pause before the next attempt. It grows after each failure and has jitter, so that the nodes of a cluster do not
//! all try again at the same time.

use std::time::Duration;

/// The first pause and the longest pause.
const PAUSES: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(5));
/// The longest pause, including jitter.
pub(crate) const LONGEST_PAUSE: Duration = Duration::from_millis(7500);

/// See the module.
pub(crate) struct Pause(Duration);

impl Default for Pause {
    fn default() -> Self {
        Self(PAUSES.0)
    }
}

impl Pause {
    pub(crate) async fn wait(&mut self) {
        tokio::time::sleep(self.0.mul_f64(fastrand::f64() + 0.5)).await;
        self.0 = (self.0 * 2).min(PAUSES.1);
    }
}
