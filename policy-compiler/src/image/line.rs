//! A line: up to ten intervals of keys in one cache line.

use std::hash::{Hash, Hasher};

use super::target::{Interval, NO_KEY, Target};

/// The number of intervals in a line.
pub(crate) const WIDTH: usize = 10;

/// The number of bits of a lane. The subtraction may borrow from the highest bit.
const LANE: u32 = 21;

/// A word with a one in each lane.
const EACH: u64 = 1 | 1 << LANE | 1 << (2 * LANE);

const BORROW: u64 = EACH << (LANE - 1);

/// A line. It divides the keys into intervals, each with a target.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(align(64))]
pub(crate) struct Line {
    /// The starts of the second and all further intervals, three in a word; unused lanes hold [`NEVER`].
    starts: [u64; 3],
    /// The target of each interval. Unused elements repeat the last interval's target.
    pub(crate) to: [Target; WIDTH],
}

impl Hash for Line {
    /// Hashes adjacent numbers together.
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.starts.hash(state);
        self.to.map(Target::bits).hash(state);
    }
}

/// A number above every key.
pub(super) const NEVER: u32 = NO_KEY + 1;

impl Line {
    /// Makes a line of at most ten intervals in ascending order.
    pub(crate) fn from_intervals(intervals: &[Interval]) -> Self {
        let last = intervals.last().map(|last| last.to).unwrap_or_default();
        let mut line = Self { starts: [EACH * u64::from(NEVER); 3], to: [last; WIDTH] };
        for (at, interval) in intervals.iter().enumerate().take(WIDTH) {
            line.to[at] = interval.to;
            if let Some(at) = at.checked_sub(1) {
                line.set_start(at, interval.start);
            }
        }
        line
    }

    /// The starts of all intervals except the first.
    pub(crate) fn starts(&self) -> impl Iterator<Item = u32> + '_ {
        (0..WIDTH - 1)
            .map(|at| (self.starts[at / 3] >> (at as u32 % 3 * LANE)) as u32 & ((1 << LANE) - 1))
    }

    pub(crate) fn set_start(&mut self, at: usize, start: u32) {
        let shift = at as u32 % 3 * LANE;
        let word = &mut self.starts[at / 3];
        *word = *word & !(((1 << LANE) - 1) << shift) | u64::from(start) << shift;
    }

    /// The target of a key. One subtraction compares the key with the three starts of a word: a lane borrows if its
    /// start is above the key.
    #[inline]
    pub(super) fn lookup(&self, key: u32) -> Target {
        let keys = (u64::from(key) * EACH) | BORROW;
        let [a, b, c] = self.starts.map(|starts| (keys - starts) & BORROW);
        // Each lane counts the starts in it that are not above the key. The multiplication adds up the three lanes in
        // the highest lane; the sum fits.
        let sum = ((a + b + c) >> (LANE - 1)).wrapping_mul(EACH);
        let before = (sum >> (2 * LANE)) as usize & 0xf;
        self.to.get(before).copied().unwrap_or_default()
    }
}
