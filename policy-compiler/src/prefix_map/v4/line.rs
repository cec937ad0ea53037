//! A /24 in one or two cache lines.
//!
//! A line has 16 words and holds one of two things. It may hold up to 12 runs of equal values (two lines hold up to
//! 24), each with its start and value. Or it may hold up to 12 hosts with values of their own, and the value of all
//! other hosts.

use std::sync::atomic::{AtomicU32, Ordering};

use super::cells::{Base, HOSTS, ONE, TWO};
use super::packed_hosts::{BYTES, MOST, first_zero};
use super::pool::Block;

/// The number of words of a line.
pub(super) const WORDS: usize = 16;

/// The number of words with the last bytes of hosts, at the start of a line of hosts. One value for each of these bytes
/// follows, and then the value of all other hosts.
const KEYS: usize = 3;

const MOST_HOSTS: usize = 4 * KEYS;

/// For each kind of block that holds runs: the kind, the number of words with starts, and the number of words with
/// values.
const SHORT: [(u32, usize, usize); 2] = [(ONE, 4, 12), (TWO, 8, 24)];

/// The number of bits of a start in its lane. The highest bit is set in unused lanes, so no key reaches their start. It
/// is also the bit from which a subtraction may borrow.
const LANE: u32 = u8::BITS + 1;

/// The number of starts in two words.
const LANES: usize = (2 * u32::BITS / LANE) as usize;

/// A one in each lane.
const EACH: u64 = {
    let mut each = 0;
    let mut lane = 0;
    while lane < LANES {
        each |= 1 << (lane as u32 * LANE);
        lane += 1;
    }
    each
};

const BORROW: u64 = EACH << u8::BITS;

/// One line.
#[derive(Debug, Default)]
#[repr(align(64))]
pub(super) struct Line([AtomicU32; WORDS]);

impl Block for Line {
    type Cells = [u32; WORDS];

    fn store(&self, words: &[u32; WORDS]) {
        self.0.iter().zip(words).for_each(|(word, new)| word.store(*new, Ordering::Relaxed));
    }

    fn load(&self) -> [u32; WORDS] {
        self.0.each_ref().map(|word| word.load(Ordering::Acquire))
    }
}

impl Line {
    /// The value of a key in a line of hosts.
    #[inline]
    pub(super) fn lookup_hosts(&self, key: u8) -> u32 {
        let [first, second, third, ..] = &self.0;
        let keys = u64::from(key) * BYTES;
        let low = u64::from(value(first)) | u64::from(value(second)) << u32::BITS;
        // If no host has this key, `at` is the place after the last host, where the value of all other hosts is.
        let at = match first_zero(low ^ keys) {
            8 => 8 + first_zero(u64::from(value(third) ^ keys as u32) | !0 << u32::BITS).min(4),
            at => at,
        };
        value(&self.0[KEYS + at])
    }

    /// The value of a key in a line of runs.
    #[inline]
    pub(super) fn lookup_one_line(&self, key: u8) -> u32 {
        value(&self.0[(4 + starts_up_to(&self.0[..4], key)) % WORDS])
    }
}

/// The value of a key in two lines of runs.
#[inline]
pub(super) fn lookup_two_lines([one, two]: [&Line; 2], key: u8) -> u32 {
    let before = starts_up_to(&one.0[..8], key);
    value(&if before < 8 { one } else { two }.0[(8 + before) % WORDS])
}

#[inline]
fn value(word: &AtomicU32) -> u32 {
    word.load(Ordering::Relaxed)
}

/// The number of starts in `words` that are at most `key`. One subtraction compares the key with all starts of a pair
/// of words: a lane borrows if its start is above the key.
#[inline]
fn starts_up_to(words: &[AtomicU32], key: u8) -> usize {
    let keys = (u64::from(key) * EACH) | BORROW;
    let (pairs, _) = words.as_chunks::<2>();
    let counts = pairs.iter().map(|[low, high]| {
        let starts = u64::from(value(low)) | u64::from(value(high)) << u32::BITS;
        (keys - starts) & BORROW
    });
    // Each lane counts the starts in it that are not above the key. The multiplication adds up all lanes in the highest
    // lane; the sum fits.
    let sum = (counts.sum::<u64>() >> u8::BITS).wrapping_mul(EACH);
    (sum >> ((LANES as u32 - 1) * LANE)) as usize & 0x1f
}

/// The first key and the value of each run, in ascending order from key 0.
#[derive(Default)]
struct Runs {
    all: [(u8, u32); MOST_RUNS],
    count: usize,
}

const MOST_RUNS: usize = 24;

impl Runs {
    /// Adds a run: keys from `start` on have this value. `start` must not be below the start of the last run. Returns
    /// `None` if there are too many runs.
    fn push(&mut self, start: u8, value: u32) -> Option<()> {
        if self.count > 0 && self.all[self.count - 1].0 == start {
            self.count -= 1;
        }
        if self.count == 0 || self.all[self.count - 1].1 != value {
            *self.all.get_mut(self.count)? = (start, value);
            self.count += 1;
        }
        Some(())
    }
}

/// A /24 in which few hosts have values of their own, and all others have the value `others`.
pub(super) struct Hosts {
    others: u32,
    keys: [u8; MOST_HOSTS],
    values: [u32; MOST_HOSTS],
    count: usize,
}

impl Hosts {
    fn new(others: u32) -> Self {
        Self { others, keys: [0; MOST_HOSTS], values: [others; MOST_HOSTS], count: 0 }
    }

    /// Adds a host, unless its value is `others`. Returns `None` if there are too many hosts.
    fn push(&mut self, key: u8, value: u32) -> Option<()> {
        if value != self.others {
            *self.values.get_mut(self.count)? = value;
            self.keys[self.count] = key;
            self.count += 1;
        }
        Some(())
    }

    /// The hosts of a /24, from its entries in ascending order. Addresses in no entry have the value `others`. Returns
    /// `None` if an entry is not a single address, or if there are too many hosts.
    pub(super) fn from_entries(others: u32, entries: &[(u32, u8, u32)]) -> Option<Self> {
        let mut hosts = Self::new(others);
        let mut entries = entries.iter().peekable();
        while let Some((address, length, value)) = entries.next() {
            if *length != 32 {
                return None;
            }
            // If a host has several values, the largest is taken, which comes last.
            if entries.peek().is_none_or(|next| next.0 != *address) {
                hosts.push(*address as u8, *value)?;
            }
        }
        Some(hosts)
    }

    fn from_cells(cells: &[u32; 256]) -> Option<Self> {
        // If at most `MOST_HOSTS` cells differ from all others, then most of the first `MOST_HOSTS * 2 + 1` cells have
        // the common value. So their median is the common value.
        let mut first = [0; MOST_HOSTS * 2 + 1];
        first.copy_from_slice(cells.get(..MOST_HOSTS * 2 + 1)?);
        first.sort_unstable();
        let mut hosts = Self::new(first[MOST_HOSTS]);
        for (value, key) in cells.iter().zip(0..=u8::MAX) {
            hosts.push(key, *value)?;
        }
        Some(hosts)
    }

    /// The data for [`PackedHosts`](super::packed_hosts::PackedHosts): the hosts' last bytes, and their values followed
    /// by the value of all others. `None` if there are too many hosts, or if a value does not fit two bytes.
    pub(super) fn pack(&self, base: Base) -> Option<(&[u8], [u16; MOST + 1])> {
        let keys = &self.keys[..self.count];
        let mut values = [0; MOST + 1];
        let all = self.values[..self.count].iter().chain([&self.others]);
        for (at, value) in all.enumerate() {
            *values.get_mut(at)? = base.short(*value)?;
        }
        Some((keys, values))
    }

    pub(super) fn line(&self) -> [u32; WORDS] {
        // Unused places repeat the byte of the first host. A lookup finds the first of several equal bytes, so it never
        // finds these places.
        let mut keys = [self.keys[0]; MOST_HOSTS];
        keys[..self.count].copy_from_slice(&self.keys[..self.count]);
        let mut words = [self.others; WORDS];
        for (word, keys) in words.iter_mut().zip(keys.as_chunks::<4>().0) {
            *word = u32::from_le_bytes(*keys);
        }
        words[KEYS..][..MOST_HOSTS].copy_from_slice(&self.values);
        words
    }
}

/// A block of one or two lines for these cells: its kind and its lines. `None` if the cells do not fit.
pub(super) fn short(cells: &[u32; 256]) -> Option<(u32, [[u32; WORDS]; 2])> {
    let of_runs = runs(cells).and_then(|runs| encode_runs(&runs));
    if let Some((ONE, _)) = of_runs {
        return of_runs;
    }
    let hosts = Hosts::from_cells(cells);
    hosts.map(|hosts| (HOSTS, [hosts.line(), [0; WORDS]])).or(of_runs)
}

fn runs(cells: &[u32; 256]) -> Option<Runs> {
    let mut runs = Runs::default();
    for (value, start) in cells.iter().zip(0..=u8::MAX) {
        runs.push(start, *value)?;
    }
    Some(runs)
}

/// The block of lines for these runs: its kind and its lines. `None` if the runs do not fit.
fn encode_runs(runs: &Runs) -> Option<(u32, [[u32; WORDS]; 2])> {
    let runs = &runs.all[..runs.count];
    let (kind, starts, _) = *SHORT.iter().find(|(_, _, values)| runs.len() <= *values)?;
    // Unused lanes hold a start that no key reaches.
    let mut lanes = [BORROW; 4];
    let mut words = [[0; WORDS]; 2];
    for (index, (start, value)) in runs.iter().enumerate() {
        if let Some(at) = index.checked_sub(1) {
            let shift = (at % LANES) as u32 * LANE;
            lanes[at / LANES] ^= (1 << u8::BITS | u64::from(*start)) << shift;
        }
        let at = starts + index;
        words[at / WORDS][at % WORDS] = *value;
    }
    for (pair, lanes) in words[0][..starts].as_chunks_mut::<2>().0.iter_mut().zip(lanes) {
        *pair = [lanes as u32, (lanes >> u32::BITS) as u32];
    }
    Some((kind, words))
}

/// The lines that a block of this kind uses.
pub(super) fn used(kind: u32, lines: &[[u32; WORDS]; 2]) -> &[[u32; WORDS]] {
    if kind == TWO { lines } else { &lines[..1] }
}
