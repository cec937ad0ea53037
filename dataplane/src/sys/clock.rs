//! A cheap clock for measuring cost: it counts cycles if the processor provides them, else nanoseconds. A second clock
//! gives the time since the machine's start, so that successive processes agree on it.

use std::time::Duration;

/// The time since the machine's start, without the time in which it slept (`CLOCK_MONOTONIC`). It is the same for all
/// processes except those in a time namespace of their own.
#[inline]
pub fn since_boot() -> Duration {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: it writes one `timespec`, and every Linux has this clock. (Rustix would call the vDSO directly, which
    // crashes under valgrind.)
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut now) };
    Duration::new(now.tv_sec.cast_unsigned(), now.tv_nsec.cast_unsigned() as u32)
}

/// A count that only grows, in the unit of [`UNIT`]. The wrapping difference of two reads is the cost of the code
/// between them.
///
/// The time-stamp counter is not a barrier: a few instructions around the call may fall on either side.
#[inline]
pub fn ticks() -> u64 {
    imp::ticks()
}

/// The unit of a tick: `"cycles"` (of the constant-rate counter, not of the core's present frequency) or `"ns"`.
pub const UNIT: &str = imp::UNIT;

#[cfg(target_arch = "x86_64")]
mod imp {
    pub(super) const UNIT: &str = "cycles";

    #[inline]
    pub(super) fn ticks() -> u64 {
        // SAFETY: RDTSC exists on every x86_64 and reads a register only.
        unsafe { core::arch::x86_64::_rdtsc() }
    }
}

#[cfg(not(target_arch = "x86_64"))]
mod imp {
    use std::sync::OnceLock;
    use std::time::Instant;

    pub(super) const UNIT: &str = "ns";

    #[inline]
    pub(super) fn ticks() -> u64 {
        static START: OnceLock<Instant> = OnceLock::new();
        START.get_or_init(Instant::now).elapsed().as_nanos() as u64
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn ticks_grow_with_time() {
        let before = super::ticks();
        std::thread::sleep(std::time::Duration::from_millis(2));
        let spent = super::ticks().wrapping_sub(before);
        assert!(spent > 1_000_000, "2 ms are more than a million ticks of any unit, not {spent}");
    }
}
