//! The IPv4 half: a trie with strides of 16, 8 and 8 bits.
//!
//! A *cell* is a value or names the block that refines it. Blocks are made of cache lines of 16 words: a page holds 256
//! cells; a short block, for a /24 in which few values follow each other, holds where runs of one value start and their values,
//! in one line up to 12 runs, in two up to 24; another, for one in which few hosts differ from all others, holds these, up to
//! twelve in a line. Up to eight share a line with those of other /24: of each there are as many words as it takes. So a /24
//! with few hosts costs a lookup one line.
//!
//! Runs take the fewest instructions and hosts the least memory: where there are so many blocks that a lookup waits for memory,
//! they are of hosts.
//!
//! **Writing while others read.** A cell is stored whole. A block that others may read is never changed but in cells of a
//! page; instead a new one is written into a spare line and its name stored into the cell above (release, and readers
//! acquire). Lines that nobody names any more stay unused for the life of the map: that is what the spare ones are for.

use std::net::{IpAddr, Ipv4Addr};
use std::num::NonZeroU16;
use std::sync::atomic::{AtomicU32, Ordering};

use super::MAX_VALUE;

/// Tells names of blocks from values.
const BLOCK: u32 = 1 << 31;
const KIND: u32 = 7 << 28;
const LINE: u32 = (1 << 28) - 1;
const PAGE: u32 = 0;
const ONE: u32 = 1 << 28;
const TWO: u32 = 2 << 28;
const HOSTS: u32 = 3 << 28;
/// A few hosts in some words of a line: how many they are stands in the name above the number of the first word.
const FEW: u32 = 4 << 28;
const COUNT: u32 = 26;
const WORD: u32 = (1 << COUNT) - 1;

/// So many lookups are made side by side.
const BATCH: usize = 64;

const ROOT: usize = 1 << 16;
const WORDS: usize = 16;
const PAGE_LINES: usize = 256 / WORDS;
/// Spare lines are at least this many, and an eighth of those in use.
const SPARE: usize = 1024;

/// Words of the hosts' last bytes in their block; then come as many values as they have bytes, and that of all others.
const KEYS: usize = 3;
const MOST_HOSTS: usize = 4 * KEYS;

/// The same of a few hosts, whose values are [`Trie::base`] lower and take two bytes each; 0 is the default.
const FEW_HOSTS: usize = 8;

/// Words of the last bytes of so many hosts.
#[inline]
const fn key_words(hosts: usize) -> usize {
    hosts.div_ceil(4)
}

/// Words of so many hosts, with their values and that of all others.
const fn words_of_few(hosts: usize) -> usize {
    key_words(hosts) + (hosts + 1).div_ceil(2)
}

/// With more /24 that hold longer prefixes than these, lookups wait for memory: as lines they are 512 KiB.
const MANY_BLOCKS: usize = 8192;

/// Words of starts, then words of values, of a block of runs.
const SHORT: [(u32, usize, usize); 2] = [(ONE, 4, 12), (TWO, 8, 24)];

/// Bits of a start; the highest tells those behind the last from all keys, and is free for borrowing.
const LANE: u32 = u8::BITS + 1;
/// Starts in two words.
const LANES: usize = (2 * u32::BITS / LANE) as usize;
/// One in each lane.
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

#[derive(Debug, Default)]
#[repr(align(64))]
struct Line([AtomicU32; WORDS]);

impl From<[u32; WORDS]> for Line {
    fn from(words: [u32; WORDS]) -> Self {
        Self(words.map(AtomicU32::new))
    }
}

/// See the module.
#[derive(Debug)]
pub(super) struct Trie {
    default: u32,
    /// One less than the lowest value but the default.
    base: u32,
    root: Box<[AtomicU32]>,
    lines: Box<[Line]>,
    /// The first line that nothing was ever written to.
    next: AtomicU32,
}

fn copied(word: &AtomicU32) -> AtomicU32 {
    AtomicU32::new(word.load(Ordering::Acquire))
}

impl Clone for Trie {
    /// What is stored in one does not show in the other. Nobody may store meanwhile.
    fn clone(&self) -> Self {
        Self {
            default: self.default,
            base: self.base,
            root: self.root.iter().map(copied).collect(),
            lines: self.lines.iter().map(|line| Line(line.0.each_ref().map(copied))).collect(),
            next: copied(&self.next),
        }
    }
}

impl Trie {
    /// `entries` are cut to their lengths, at most 32, their values at most [`MAX_VALUE`]. Of two values for one prefix the
    /// larger stands.
    pub(super) fn build(default: u32, mut entries: Vec<(u32, u8, u32)>) -> Self {
        if !entries.is_sorted() {
            entries.sort_unstable();
        }
        let lowest = entries.iter().map(|entry| entry.2).filter(|value| *value != default).min();
        let base = lowest.unwrap_or_default().saturating_sub(1);
        let mut root = vec![default; ROOT];
        let mut pages: Vec<[u32; 256]> = Vec::new();
        let is_short = |entry: &&(u32, u8, u32)| entry.1 <= 24;
        let mut short: Vec<_> = entries.iter().filter(is_short).collect();
        short.sort_by_key(|entry| entry.1);
        for (address, length, value) in short {
            let at = (address >> 16) as usize;
            if *length <= 16 {
                root[at..][..1 << (16 - length)].fill(*value);
                continue;
            }
            let page = second(&mut root[at], &mut pages);
            page[(address >> 8 & 0xff) as usize..][..1 << (24 - length)].fill(*value);
        }
        let in_24 = |entry: &(u32, u8, u32)| entry.0 >> 8;
        let many = entries.chunk_by(|a, b| in_24(a) == in_24(b)).nth(MANY_BLOCKS).is_some();
        let mut blocks = Blocks { default, base, ..Blocks::default() };
        for block in entries.chunk_by(|a, b| in_24(a) == in_24(b)) {
            // The short prefixes that begin here come first.
            let block = &block[block.iter().take_while(is_short).count()..];
            let Some((address, ..)) = block.first() else { continue };
            let page = second(&mut root[(address >> 16) as usize], &mut pages);
            let cell = &mut page[(address >> 8 & 0xff) as usize];
            if let Some(hosts) = Hosts::of(*cell, block).filter(|_| many) {
                *cell = blocks.add_hosts(&hosts);
                continue;
            }
            let mut cells = [*cell; 256];
            for length in 25..=32u8 {
                for (address, _, value) in block.iter().filter(|entry| entry.1 == length) {
                    cells[(address & 0xff) as usize..][..1 << (32 - length)].fill(*value);
                }
            }
            *cell = blocks.add(&cells);
        }
        let Blocks { mut lines, .. } = blocks;
        // The pages of the second level come last; until here the root names them by their number.
        let first = lines.len();
        for page in &pages {
            push(&mut lines, page);
        }
        for cell in root.iter_mut().filter(|cell| **cell & BLOCK != 0) {
            *cell = BLOCK | PAGE | (first + (*cell & LINE) as usize * PAGE_LINES) as u32;
        }
        let next = lines.len();
        lines.resize_with(next + SPARE.max(next / 8), Line::default);
        Self {
            default,
            base,
            root: root.into_iter().map(AtomicU32::new).collect(),
            lines: lines.into(),
            next: AtomicU32::new(next as u32),
        }
    }

    #[inline]
    pub(super) fn lookup(&self, address: u32) -> u32 {
        let cell = self.above(address);
        if cell & BLOCK == 0 { cell } else { self.in_block(cell, address) }
    }

    /// The blocks behind the cells that lead there, so that no lookup waits for what another has to fetch.
    #[inline]
    pub(super) fn lookup_all<T>(
        &self,
        addresses: &[u32],
        found: &mut [T],
        make: impl Fn(u32) -> T,
    ) {
        for (addresses, found) in addresses.chunks(BATCH).zip(found.chunks_mut(BATCH)) {
            let mut cells = [self.default; BATCH];
            for (cell, address) in cells.iter_mut().zip(addresses) {
                *cell = self.above(*address);
            }
            for ((found, cell), address) in found.iter_mut().zip(cells).zip(addresses) {
                let value = if cell & BLOCK == 0 { cell } else { self.in_block(cell, *address) };
                *found = make(value);
            }
        }
    }

    /// The cell of the /24 of an address, or that of its /16 if it is a value.
    #[inline]
    fn above(&self, address: u32) -> u32 {
        let cell = load(self.root.get((address >> 16) as usize), self.default);
        if cell & BLOCK == 0 { cell } else { self.in_page(cell, address >> 8) }
    }

    #[inline]
    fn in_block(&self, block: u32, address: u32) -> u32 {
        match block & KIND {
            kind if kind & FEW != 0 => self.in_few(block, address as u8),
            PAGE => self.in_page(block, address),
            ONE => self.in_one(block, address as u8),
            TWO => self.in_two(block, address as u8),
            _ => self.in_hosts(block, address as u8),
        }
    }

    #[inline]
    fn page_cell(&self, block: u32, index: u32) -> Option<&AtomicU32> {
        let line = (block & LINE) as usize + (index as usize >> 4 & 0xf);
        self.lines.get(line)?.0.get(index as usize & 0xf)
    }

    #[inline]
    fn in_page(&self, block: u32, index: u32) -> u32 {
        load(self.page_cell(block, index), self.default)
    }

    #[inline]
    fn in_few(&self, block: u32, key: u8) -> u32 {
        let first = (block & WORD) as usize;
        let Some(line) = self.lines.get(first / WORDS) else { return self.default };
        let word = |at: usize| value(&line.0[(first + at) % WORDS]);
        let count = (block >> COUNT & 0xf) as usize;
        let keys = u64::from(word(0)) | u64::from(word(1)) << u32::BITS;
        // Behind the last host come all others.
        let at = first_zero(keys ^ (u64::from(key) * BYTES)).min(count);
        let pair = word(key_words(count) + at / 2);
        let found = pair >> (at % 2 * 16) & u32::from(u16::MAX);
        if found == 0 { self.default } else { self.base + found }
    }

    /// Not inlined: the other ways through would be longer.
    #[inline(never)]
    fn in_hosts(&self, block: u32, key: u8) -> u32 {
        let Some(line) = self.lines.get((block & LINE) as usize) else { return self.default };
        let [first, second, third, ..] = &line.0;
        let keys = u64::from(key) * BYTES;
        let low = u64::from(value(first)) | u64::from(value(second)) << u32::BITS;
        // Behind the last host come all others.
        let at = match first_zero(low ^ keys) {
            8 => 8 + first_zero(u64::from(value(third) ^ keys as u32) | !0 << u32::BITS).min(4),
            at => at,
        };
        line.0.get(KEYS + at).map_or(self.default, value)
    }

    #[inline]
    fn in_one(&self, block: u32, key: u8) -> u32 {
        let Some(line) = self.lines.get((block & LINE) as usize) else { return self.default };
        let before = starts_up_to(&line.0[..4], key);
        line.0.get(4 + before).map_or(self.default, value)
    }

    #[inline]
    fn in_two(&self, block: u32, key: u8) -> u32 {
        let at = (block & LINE) as usize;
        let Some([one, two]) = self.lines.get(at..at + 2) else { return self.default };
        let before = starts_up_to(&one.0[..8], key);
        let line = if before < 8 { one } else { two };
        line.0.get((8 + before) & 0xf).filter(|_| before < 24).map_or(self.default, value)
    }

    /// Stores a host's value; `false`, and nothing is changed, where no line is left or that is no value. One at a time may
    /// call this; others may look up.
    pub(super) fn set(&self, address: u32, value: u32) -> bool {
        if value > MAX_VALUE {
            return false;
        }
        if self.lookup(address) == value {
            return true;
        }
        let Some(root) = self.root.get((address >> 16) as usize) else { return false };
        let cell = root.load(Ordering::Relaxed);
        if cell & BLOCK == 0 {
            let mut second = [cell; 256];
            let mut third = [cell; 256];
            third[(address & 0xff) as usize] = value;
            let Some(block) = self.write(&third) else { return false };
            second[(address >> 8 & 0xff) as usize] = block;
            let Some(block) = self.write_page(&second) else { return false };
            root.store(block, Ordering::Release);
            return true;
        }
        let Some(second) = self.page_cell(cell, address >> 8) else { return false };
        let cell = second.load(Ordering::Relaxed);
        if cell & BLOCK != 0 && cell & KIND == PAGE {
            let Some(cell) = self.page_cell(cell, address) else { return false };
            cell.store(value, Ordering::Release);
            return true;
        }
        let mut third = self.cells(address);
        third[(address & 0xff) as usize] = value;
        let Some(block) = self.write(&third) else { return false };
        second.store(block, Ordering::Release);
        true
    }

    /// Stores the value of every address of a prefix, cut to its length; `false`, and nothing is changed, where no line is left
    /// or that is no value.
    pub(super) fn set_prefix(&mut self, address: u32, length: u8, value: u32) -> bool {
        if value > MAX_VALUE || length > 32 {
            return false;
        }
        let at = (address >> 16) as usize;
        if length <= 16 {
            let all = self.root.get_mut(at..).and_then(|it| it.get_mut(..1 << (16 - length)));
            return all.map(|all| all.iter_mut().for_each(|it| *it.get_mut() = value)).is_some();
        }
        let Some(root) = self.root.get(at).map(|cell| cell.load(Ordering::Relaxed)) else {
            return false;
        };
        let page = if root & BLOCK == 0 { self.write_page(&[root; 256]) } else { Some(root) };
        let Some(page) = page else { return false };
        let middle = address >> 8 & 0xff;
        let (range, value) = if length <= 24 {
            (middle..middle + (1 << (24 - length)), value)
        } else {
            let mut third = self.cells(address);
            third[(address & 0xff) as usize..][..1 << (32 - length)].fill(value);
            let Some(block) = self.write(&third) else { return false };
            (middle..middle + 1, block)
        };
        for middle in range {
            let Some(cell) = self.page_cell(page, middle) else { return false };
            cell.store(value, Ordering::Release);
        }
        self.root.get(at).inspect(|cell| cell.store(page, Ordering::Release)).is_some()
    }

    /// The values of the /24 of an address.
    fn cells(&self, address: u32) -> [u32; 256] {
        let mut cells = [0; 256];
        for (cell, low) in cells.iter_mut().zip(0..) {
            *cell = self.lookup(address & !0xff | low);
        }
        cells
    }

    fn write(&self, cells: &[u32; 256]) -> Option<u32> {
        match short(cells) {
            Some((kind, lines)) => Some(BLOCK | kind | self.write_lines(used(kind, &lines))?),
            None => self.write_page(cells),
        }
    }

    fn write_page(&self, cells: &[u32; 256]) -> Option<u32> {
        let (lines, _) = cells.as_chunks::<WORDS>();
        Some(BLOCK | PAGE | self.write_lines(lines)?)
    }

    fn write_lines(&self, words: &[[u32; WORDS]]) -> Option<u32> {
        let next = self.next.load(Ordering::Relaxed);
        let lines = self.lines.get(next as usize..next as usize + words.len())?;
        for (line, words) in lines.iter().zip(words) {
            for (word, value) in line.0.iter().zip(words) {
                word.store(*value, Ordering::Relaxed);
            }
        }
        self.next.store(next + words.len() as u32, Ordering::Relaxed);
        Some(next)
    }

    /// Every address, in runs of one value.
    pub(super) fn runs(&self) -> Vec<(IpAddr, IpAddr, u32)> {
        let mut starts: Vec<(u32, u32)> = Vec::new();
        let mut add = |first: u32, value: u32| {
            if starts.last().is_none_or(|(_, last)| *last != value) {
                starts.push((first, value));
            }
        };
        for (cell, high) in self.root.iter().zip(0u32..) {
            let cell = cell.load(Ordering::Acquire);
            if cell & BLOCK == 0 {
                add(high << 16, cell);
                continue;
            }
            for middle in 0..256 {
                let first = high << 16 | middle << 8;
                let cell = self.in_page(cell, middle);
                if cell & BLOCK == 0 {
                    add(first, cell);
                } else {
                    let cells = self.cells(first);
                    let all = cells.iter().zip(first..=first | 0xff);
                    all.for_each(|(value, first)| add(first, *value));
                }
            }
        }
        let ends = starts.iter().skip(1).map(|(first, _)| first - 1).chain([u32::MAX]);
        let address = |bits| IpAddr::V4(Ipv4Addr::from_bits(bits));
        starts
            .iter()
            .zip(ends)
            .map(|((first, value), last)| (address(*first), address(last), *value))
            .collect()
    }

    pub(super) fn bytes(&self) -> usize {
        size_of_val(&*self.root) + size_of_val(&*self.lines)
    }
}

#[inline]
fn load(cell: Option<&AtomicU32>, default: u32) -> u32 {
    cell.map_or(default, |cell| cell.load(Ordering::Acquire))
}

#[inline]
fn value(word: &AtomicU32) -> u32 {
    word.load(Ordering::Relaxed)
}

/// How many of the starts in some pairs of words are at most `key`: it is held to all of a pair at once, each in its lane;
/// where the start is above it, it borrows.
#[inline]
fn starts_up_to(words: &[AtomicU32], key: u8) -> usize {
    let keys = (u64::from(key) * EACH) | BORROW;
    let (pairs, _) = words.as_chunks::<2>();
    let counts = pairs.iter().map(|[low, high]| {
        let starts = u64::from(value(low)) | u64::from(value(high)) << u32::BITS;
        (keys - starts) & BORROW
    });
    // A lane has room for the sum, and the highest for that of all lanes.
    let sum = (counts.sum::<u64>() >> u8::BITS).wrapping_mul(EACH);
    (sum >> ((LANES as u32 - 1) * LANE)) as usize & 0x1f
}

/// One in each byte.
const BYTES: u64 = u64::MAX / 0xff;

/// Which byte is the first, from the lowest on, that is zero; 8: none.
#[inline]
const fn first_zero(bytes: u64) -> usize {
    // Below the first zero nothing borrows; what is said of bytes above it may be wrong.
    let zeroes = bytes.wrapping_sub(BYTES) & !bytes & (BYTES << 7);
    zeroes.trailing_zeros() as usize / 8
}

/// The page of a cell of the root, with the cell's value if there was none; while building the root holds its number.
fn second<'p>(cell: &mut u32, pages: &'p mut Vec<[u32; 256]>) -> &'p mut [u32; 256] {
    if *cell & BLOCK == 0 {
        pages.push([*cell; 256]);
        *cell = BLOCK | (pages.len() as u32 - 1);
    }
    &mut pages[(*cell & LINE) as usize]
}

#[derive(Default)]
struct Blocks {
    default: u32,
    base: u32,
    lines: Vec<Line>,
    /// The first free word of the last line that holds few hosts.
    free: usize,
}

impl Blocks {
    fn add(&mut self, cells: &[u32; 256]) -> u32 {
        if let Some((kind, lines)) = short(cells) {
            return self.add_short(kind, &lines);
        }
        let first = self.lines.len() as u32;
        push(&mut self.lines, cells);
        BLOCK | PAGE | first
    }

    fn add_hosts(&mut self, hosts: &Hosts) -> u32 {
        let has_number = self.lines.len() < WORD as usize / WORDS;
        let Some(few) = hosts.few(self.default, self.base).filter(|_| has_number) else {
            return self.add_short(HOSTS, &[hosts.line(), [0; WORDS]]);
        };
        let words = words_of_few(hosts.count);
        if self.free.is_multiple_of(WORDS) || self.free % WORDS + words > WORDS {
            self.free = self.lines.len() * WORDS;
            self.lines.push(Line::default());
        }
        let first = self.free;
        let room = self.lines[first / WORDS].0[first % WORDS..].iter_mut();
        room.zip(&few[..words]).for_each(|(word, new)| *word.get_mut() = *new);
        self.free += words;
        BLOCK | FEW | (hosts.count as u32) << COUNT | first as u32
    }

    fn add_short(&mut self, kind: u32, lines: &[[u32; WORDS]; 2]) -> u32 {
        let first = self.lines.len() as u32;
        self.lines.extend(used(kind, lines).iter().map(|words| Line::from(*words)));
        BLOCK | kind | first
    }
}

fn push(lines: &mut Vec<Line>, cells: &[u32; 256]) {
    let (words, _) = cells.as_chunks::<WORDS>();
    lines.extend(words.iter().map(|words| Line::from(*words)));
}

/// The lines of a short block.
fn used(kind: u32, lines: &[[u32; WORDS]; 2]) -> &[[u32; WORDS]] {
    if kind == TWO { lines } else { &lines[..1] }
}

/// The first key and the value of each run of one value, ascending from key 0.
#[derive(Default)]
struct Runs {
    all: [(u8, u32); MOST_RUNS],
    count: usize,
}

const MOST_RUNS: usize = 24;

impl Runs {
    /// From `start` on `value` is in force; `start` is at least that of the last run. `None`: too many.
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

/// A /24 in which few hosts differ from all others.
struct Hosts {
    others: u32,
    keys: [u8; MOST_HOSTS],
    values: [u32; MOST_HOSTS],
    count: usize,
}

impl Hosts {
    fn new(others: u32) -> Self {
        Self { others, keys: [0; MOST_HOSTS], values: [others; MOST_HOSTS], count: 0 }
    }

    /// `None`: too many.
    fn push(&mut self, key: u8, value: u32) -> Option<()> {
        if value != self.others {
            *self.values.get_mut(self.count)? = value;
            self.keys[self.count] = key;
            self.count += 1;
        }
        Some(())
    }

    /// Of a /24 in which there are only hosts, ascending, around them `others`.
    fn of(others: u32, entries: &[(u32, u8, u32)]) -> Option<Self> {
        let mut hosts = Self::new(others);
        let mut entries = entries.iter().peekable();
        while let Some((address, length, value)) = entries.next() {
            if *length != 32 {
                return None;
            }
            // Of several values of one host the last is the largest.
            if entries.peek().is_none_or(|next| next.0 != *address) {
                hosts.push(*address as u8, *value)?;
            }
        }
        Some(hosts)
    }

    fn of_cells(cells: &[u32; 256]) -> Option<Self> {
        // So many of the first that most of them are of the others.
        let mut first = [0; MOST_HOSTS * 2 + 1];
        first.copy_from_slice(cells.get(..MOST_HOSTS * 2 + 1)?);
        first.sort_unstable();
        let mut hosts = Self::new(first[MOST_HOSTS]);
        for (value, key) in cells.iter().zip(0..=u8::MAX) {
            hosts.push(key, *value)?;
        }
        Some(hosts)
    }

    /// As few hosts, if they are and their values fit.
    fn few(&self, default: u32, base: u32) -> Option<[u32; words_of_few(FEW_HOSTS)]> {
        if self.count > FEW_HOSTS {
            return None;
        }
        let mut words = [0; words_of_few(FEW_HOSTS)];
        let (keys, values) = words.split_at_mut(key_words(self.count));
        for (key, at) in self.keys[..self.count].iter().zip(0u32..) {
            keys[at as usize / 4] |= u32::from(*key) << (at % 4 * 8);
        }
        for (value, at) in self.values[..self.count].iter().chain([&self.others]).zip(0u32..) {
            let short = if *value == default {
                0
            } else {
                let above = u16::try_from(value.checked_sub(base)?).ok()?;
                u32::from(NonZeroU16::new(above)?.get())
            };
            values[at as usize / 2] |= short << (at % 2 * 16);
        }
        Some(words)
    }

    fn line(&self) -> [u32; WORDS] {
        // Of several equal bytes the first one counts: the last places are the first host's.
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

/// The short block of these cells, if there is one.
fn short(cells: &[u32; 256]) -> Option<(u32, [[u32; WORDS]; 2])> {
    let of_runs = runs(cells).and_then(|runs| of_runs(&runs));
    if let Some((ONE, _)) = of_runs {
        return of_runs;
    }
    let hosts = Hosts::of_cells(cells);
    hosts.map(|hosts| (HOSTS, [hosts.line(), [0; WORDS]])).or(of_runs)
}

fn runs(cells: &[u32; 256]) -> Option<Runs> {
    let mut runs = Runs::default();
    for (value, start) in cells.iter().zip(0..=u8::MAX) {
        runs.push(start, *value)?;
    }
    Some(runs)
}

/// The block of these runs, if there is one.
fn of_runs(runs: &Runs) -> Option<(u32, [[u32; WORDS]; 2])> {
    let runs = &runs.all[..runs.count];
    let (kind, starts, _) = *SHORT.iter().find(|(_, _, values)| runs.len() <= *values)?;
    // Behind the last run there are starts that no key reaches.
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
