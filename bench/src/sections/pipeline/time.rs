//! The CPU time of a thread. Time in which other processes have its core does not count.

use std::sync::OnceLock;
use std::time::Instant;

use manx_dataplane::sys::clock::{UNIT, ticks};
use nix::time::{ClockId, clock_gettime};

use crate::error::Failure;

/// The unit of a packet's cost.
pub(crate) const PER_PACKET: &str =
    if UNIT.len() == 2 { "ns per packet" } else { "cycles per packet" };

/// The CPU time of `f` in this thread, in seconds.
pub(crate) fn cpu_seconds<T>(f: impl FnOnce() -> Result<T, Failure>) -> Result<(f64, T), Failure> {
    let now = || clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID);
    let start = now()?;
    let done = f()?;
    let spent = now()? - start;
    Ok((spent.tv_sec() as f64 + spent.tv_nsec() as f64 / 1e9, done))
}

/// The CPU time of `f` in this thread, in [`ticks`].
pub(crate) fn cpu_ticks<T>(f: impl FnOnce() -> Result<T, Failure>) -> Result<(f64, T), Failure> {
    let (seconds, done) = cpu_seconds(f)?;
    Ok((seconds * ticks_per_second(), done))
}

/// The rate of [`ticks`].
pub(crate) fn ticks_per_second() -> f64 {
    static RATE: OnceLock<f64> = OnceLock::new();
    *RATE.get_or_init(|| {
        let (start, from) = (Instant::now(), ticks());
        while start.elapsed().as_millis() < 50 {
            std::hint::spin_loop();
        }
        ticks().wrapping_sub(from) as f64 / start.elapsed().as_secs_f64()
    })
}
