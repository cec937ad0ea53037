//! Rows as lookups read them: places that lead from one line of the cache to the next until a path stands there.
//!
//! A row says for each table of [`claim`](crate::claim) where it leads: to a path, or to a line that tells keys apart, or
//! source ports. A line divides them into up to ten intervals, a [`leaf`](crate::leaf) into up to seventeen, and a tree of them
//! into any number.
//!
//! A packet that shows no key has one of its own, [`NO_KEY`], behind all others.

use std::hash::{Hash, Hasher};

use crate::claim::{OTHERS, icmp_key, table_of};
use crate::image::PathId;
use crate::leaf::Leaf;
use crate::model::{Shown, Transport};

/// Where the next step of a lookup is: a path, or a line to be asked by key or by source port.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub(crate) struct Target(u32);

/// Tells lines from paths.
const LINE: u32 = 1 << 31;
const SOURCE: u32 = 1 << 30;
/// Of lines, tells those that are leaves from others.
const LEAF: u32 = 1 << 29;
const NUMBER: u32 = LEAF - 1;

impl Target {
    /// None at all. No image has so many lines.
    pub(crate) const NOWHERE: Self = Self::by_source(u32::MAX).leaf();

    pub(crate) const fn path(path: PathId) -> Self {
        Self(path.0 & NUMBER)
    }

    pub(crate) const fn by_key(line: u32) -> Self {
        Self(LINE | line & NUMBER)
    }

    pub(crate) const fn by_source(line: u32) -> Self {
        Self(LINE | SOURCE | line & NUMBER)
    }

    /// The leaf of this number in the place of the line.
    pub(crate) const fn leaf(self) -> Self {
        Self(self.0 | LEAF)
    }

    /// Whether it is a leaf, if it is a line.
    #[inline]
    pub(crate) const fn is_leaf(self) -> bool {
        self.0 & LEAF != 0
    }

    /// The number of its leaf, if it is one that is asked by key.
    #[inline]
    pub(crate) const fn as_leaf_by_key(self) -> Option<u32> {
        if self.0 & !NUMBER == LINE | LEAF { Some(self.0 & NUMBER) } else { None }
    }

    #[inline]
    pub(crate) const fn is_line(self) -> bool {
        self.0 & LINE != 0
    }

    /// Whether it is a line that may be there: not [`NOWHERE`](Self::NOWHERE).
    #[inline]
    pub(crate) const fn leads_on(self) -> bool {
        self.is_line() && self.0 != Self::NOWHERE.0
    }

    #[inline]
    pub(crate) const fn as_path(self) -> Option<PathId> {
        if self.is_line() { None } else { Some(PathId(self.0)) }
    }

    /// As a number; equal places have one.
    pub(crate) const fn bits(self) -> u32 {
        self.0
    }

    /// The place of a number.
    pub(crate) const fn from_bits(bits: u32) -> Self {
        Self(bits)
    }

    /// Whether it is asked by source port, if it is a line.
    #[inline]
    pub(crate) const fn is_by_source(self) -> bool {
        self.0 & SOURCE != 0
    }

    /// The number of its line or leaf.
    pub(crate) const fn as_line(self) -> Option<u32> {
        if self.is_line() { Some(self.0 & NUMBER) } else { None }
    }

    /// Another line or leaf that is asked for the same.
    pub(crate) const fn to_line(self, line: u32) -> Self {
        Self(self.0 & !NUMBER | line & NUMBER)
    }
}

/// The key of packets that show none; keys are below.
pub(crate) const NO_KEY: u32 = 1 << 16;

/// From `start` on, up to the next one's, keys lead to `to`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Interval {
    pub(crate) start: u32,
    pub(crate) to: Target,
}

/// For each table where it leads.
pub(crate) type Row = [Target; TABLES];

/// How many tables there are.
pub(crate) const TABLES: usize = OTHERS + 1;

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
const NEVER: u32 = NO_KEY + 1;

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
    fn lookup(&self, key: u32) -> Target {
        let keys = (u64::from(key) * EACH) | BORROW;
        let [a, b, c] = self.starts.map(|starts| (keys - starts) & BORROW);
        // A lane has room for the sum, and the highest for that of all lanes.
        let sum = ((a + b + c) >> (LANE - 1)).wrapping_mul(EACH);
        let before = (sum >> (2 * LANE)) as usize & 0xf;
        self.to.get(before).copied().unwrap_or_default()
    }
}

/// What a row is asked of a packet.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PacketKey {
    pub(crate) table: u8,
    /// The key, and above it the source port.
    asked: u64,
}

/// By protocol.
const TABLE: [u8; 256] = {
    let mut tables = [0; 256];
    let mut protocol = 0;
    while protocol < 256 {
        tables[protocol] = table_of(protocol as u8) as u8;
        protocol += 1;
    }
    tables
};

impl PacketKey {
    #[inline]
    pub(crate) const fn new(table: u8, key: u32, source: u32) -> Self {
        Self { table, asked: key as u64 | (source as u64) << u32::BITS }
    }

    /// What a line is asked.
    #[inline]
    const fn key(self, line: Target) -> u32 {
        // By source it is the upper half.
        (self.asked >> ((line.0 & SOURCE) / (SOURCE / u32::BITS))) as u32
    }
}

/// The table that is asked of packets of a protocol.
#[inline]
pub(crate) const fn table(protocol: u8) -> u8 {
    TABLE[protocol as usize]
}

impl From<Transport> for PacketKey {
    #[inline(always)]
    #[expect(clippy::inline_always, reason = "who asks may know that there are ports")]
    fn from(transport: Transport) -> Self {
        let table = table(transport.protocol);
        let source = match transport.shown {
            Shown::Ports { source, .. } if table < 3 => source,
            _ => 0,
        };
        Self::new(table, key_of(table, transport), source.into())
    }
}

/// The key that a packet of a table shows, or [`NO_KEY`].
#[inline(always)]
#[expect(clippy::inline_always, reason = "as of what is put together")]
fn key_of(table: u8, Transport { protocol, shown }: Transport) -> u32 {
    match shown {
        Shown::Ports { destination, .. } if table < 3 => destination.into(),
        _ if usize::from(table) == OTHERS => protocol.into(),
        Shown::Icmp { kind, code } if table >= 3 => icmp_key(kind, code).into(),
        _ => NO_KEY,
    }
}

/// A lookup takes at most so many steps behind the row: ten intervals each, by key and then by source port, and one more where
/// a leaf had become a tree.
pub(crate) const STEPS: usize = 11;

/// All rows.
#[derive(Debug, Clone, Default)]
pub(crate) struct Lines {
    /// By table, and there by row: most packets are of one protocol, and so are what lookups keep in the cache.
    pub(crate) rows: [Vec<Target>; TABLES],
    pub(crate) all: Vec<Line>,
    pub(crate) leaves: Vec<Leaf>,
}

impl Lines {
    /// How many rows there are.
    pub(crate) fn len(&self) -> usize {
        self.rows[0].len()
    }

    /// Adds a row; its number.
    pub(crate) fn push(&mut self, row: Row) -> u32 {
        for (all, place) in self.rows.iter_mut().zip(row) {
            all.push(place);
        }
        self.len() as u32 - 1
    }

    /// A row, if there is one of this number.
    pub(crate) fn row(&self, row: u32) -> Option<Row> {
        let mut places = Row::default();
        for (place, all) in places.iter_mut().zip(&self.rows) {
            *place = *all.get(row as usize)?;
        }
        Some(places)
    }

    /// Where a row leads first.
    #[inline]
    pub(crate) fn first(&self, row: u32, table: u8) -> Option<Target> {
        self.rows.get(usize::from(table))?.get(row as usize).copied()
    }

    /// Where a line leads.
    #[inline]
    pub(crate) fn next(&self, line: Target, packet: PacketKey) -> Option<Target> {
        if line.is_leaf() {
            return self.in_leaf(line, packet).map(Target::path);
        }
        Some(self.all.get((line.0 & NUMBER) as usize)?.lookup(packet.key(line)))
    }

    /// The path to which a leaf leads.
    #[inline]
    fn in_leaf(&self, leaf: Target, packet: PacketKey) -> Option<PathId> {
        // Who shows no key is led where key 0 is.
        Some(self.leaves.get((leaf.0 & NUMBER) as usize)?.lookup(packet.key(leaf) as u16))
    }

    /// The path to which a place leads a packet.
    #[inline(always)]
    #[expect(clippy::inline_always, reason = "what a packet shows is not put together anew")]
    pub(crate) fn follow(&self, place: Target, transport: Transport) -> Option<PathId> {
        // What the packet shows is only looked at where it matters, and mostly one leaf says all.
        if !place.is_line() {
            return place.as_path();
        }
        match place.as_leaf_by_key() {
            Some(leaf) => {
                let leaf = self.leaves.get(leaf as usize)?;
                // Who shows no key is led where key 0 is.
                Some(leaf.lookup(key_of(table(transport.protocol), transport) as u16))
            }
            None => self.follow_far(place, transport),
        }
    }

    /// As [`follow`](Self::follow), of what was put together for several places.
    #[inline(always)]
    #[expect(clippy::inline_always, reason = "as `follow`")]
    pub(crate) fn follow_prepared(&self, place: Target, packet: PacketKey) -> Option<PathId> {
        match place.as_leaf_by_key() {
            Some(leaf) => Some(self.leaves.get(leaf as usize)?.lookup(packet.asked as u16)),
            None if place.is_line() => self.follow_lines(place, packet),
            None => place.as_path(),
        }
    }

    /// [`follow`](Self::follow) where it takes more than a leaf's keys.
    #[inline(never)]
    fn follow_far(&self, place: Target, transport: Transport) -> Option<PathId> {
        self.follow_lines(place, transport.into())
    }

    /// [`follow`](Self::follow) for what a packet shows.
    #[inline(never)]
    pub(crate) fn follow_lines(&self, mut place: Target, packet: PacketKey) -> Option<PathId> {
        for _ in 0..STEPS {
            if !place.is_line() {
                break;
            }
            if place.is_leaf() {
                return self.in_leaf(place, packet);
            }
            place = self.next(place, packet)?;
        }
        place.as_path()
    }

    /// Adds the bounds that a table of a row draws, of keys and of source ports, 0 among them; in no order.
    pub(crate) fn bounds(&self, row: u32, table: usize, bounds: &mut [Vec<u32>; 2]) {
        for bounds in bounds.iter_mut() {
            bounds.push(0);
        }
        let first = self.rows.get(table).and_then(|all| all.get(row as usize));
        let mut open: Vec<(Target, usize)> = first.map(|place| (*place, 0)).into_iter().collect();
        while let Some((place, depth)) = open.pop() {
            let Some(number) = place.as_line().filter(|_| depth < STEPS) else { continue };
            let bounds = &mut bounds[usize::from(place.is_by_source())];
            if place.is_leaf() {
                let leaf = self.leaves.get(number as usize);
                bounds.extend(leaf.into_iter().flat_map(Leaf::starts));
                // Who shows no key may be led elsewhere than the last keys.
                bounds.push(NO_KEY);
                continue;
            }
            let Some(line) = self.all.get(number as usize) else { continue };
            bounds.extend(line.starts().filter(|start| *start < NEVER));
            let mut last = None;
            let leads = line.to.iter().filter(|to| last.replace(**to) != Some(**to));
            open.extend(leads.map(|to| (*to, depth + 1)));
        }
    }

    pub(crate) fn bytes(&self) -> usize {
        self.rows.iter().map(|all| size_of_val(&**all)).sum::<usize>()
            + size_of_val(&*self.all)
            + size_of_val(&*self.leaves)
    }
}
