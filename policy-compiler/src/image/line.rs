//! A line: up to ten intervals of keys in one cache line.

use std::hash::{Hash, Hasher};

use super::target::{Interval, NO_KEY, Target};

/// Intervals that a line tells apart.
pub(crate) const WIDTH: usize = 10;

/// Bits of a lane; the highest is free for borrowing.
const LANE: u32 = 21;

/// One in each lane of a word.
const EACH: u64 = 1 | 1 << LANE | 1 << (2 * LANE);

const BORROW: u64 = EACH << (LANE - 1);

/// What tells keys apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(align(64))]
pub(crate) struct Line {
    /// Where the second and each further interval start, three in a word; behind the last one [`NEVER`].
    starts: [u64; 3],
    /// By interval, and behind the last one that one's.
    pub(crate) to: [Target; WIDTH],
}

impl Hash for Line {
    /// Numbers side by side are hashed at once.
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.starts.hash(state);
        self.to.map(Target::bits).hash(state);
    }
}

/// Above every key.
pub(super) const NEVER: u32 = NO_KEY + 1;

impl Line {
    /// At most ten intervals, ascending.
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

    /// Where intervals start, but for the first.
    pub(crate) fn starts(&self) -> impl Iterator<Item = u32> + '_ {
        (0..WIDTH - 1)
            .map(|at| (self.starts[at / 3] >> (at as u32 % 3 * LANE)) as u32 & ((1 << LANE) - 1))
    }

    pub(crate) fn set_start(&mut self, at: usize, start: u32) {
        let shift = at as u32 % 3 * LANE;
        let word = &mut self.starts[at / 3];
        *word = *word & !(((1 << LANE) - 1) << shift) | u64::from(start) << shift;
    }

    /// Where a key leads. It is held to three bounds at once: where one is above it, it borrows.
    #[inline]
    pub(super) fn lookup(&self, key: u32) -> Target {
        let keys = (u64::from(key) * EACH) | BORROW;
        let [a, b, c] = self.starts.map(|starts| (keys - starts) & BORROW);
        // A lane has room for the sum, and the highest for that of all lanes.
        let sum = ((a + b + c) >> (LANE - 1)).wrapping_mul(EACH);
        let before = (sum >> (2 * LANE)) as usize & 0xf;
        self.to.get(before).copied().unwrap_or_default()
    }
}
