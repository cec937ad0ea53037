//! The time that a thread has had its core. What the machine's other processes take of it is not what a packet costs.

use std::sync::OnceLock;
use std::time::Instant;

use manx_dataplane::sys::clock::ticks;
use nix::time::{ClockId, clock_gettime};

use super::Failure;

/// Seconds that `f` takes of this thread's core.
pub(crate) fn own_seconds<T>(f: impl FnOnce() -> Result<T, Failure>) -> Result<(f64, T), Failure> {
    let now = || clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID);
    let start = now()?;
    let done = f()?;
    let spent = now()? - start;
    Ok((spent.tv_sec() as f64 + spent.tv_nsec() as f64 / 1e9, done))
}

/// The same in [`ticks`].
pub(crate) fn own_ticks<T>(f: impl FnOnce() -> Result<T, Failure>) -> Result<(f64, T), Failure> {
    let (seconds, done) = own_seconds(f)?;
    Ok((seconds * rate(), done))
}

/// Ticks a second.
pub(crate) fn rate() -> f64 {
    static RATE: OnceLock<f64> = OnceLock::new();
    *RATE.get_or_init(|| {
        let (start, from) = (Instant::now(), ticks());
        while start.elapsed().as_millis() < 50 {
            std::hint::spin_loop();
        }
        ticks().wrapping_sub(from) as f64 / start.elapsed().as_secs_f64()
    })
}
