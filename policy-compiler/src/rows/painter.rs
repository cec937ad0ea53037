//! The painter of a row: each key belongs to the first rule that claims it.
//!
//! A *claim* is the match set of one rule. Claims come in the order of the rules, and each takes those of its keys that
//! no earlier claim took. So the cost of a claim depends only on the keys that it takes, and the painter knows when all
//! keys are taken.

use super::interner::RowInterner;
use super::match_set::{CompactMatch, MatchSets};
use super::row::push_interval;
use crate::image::{Interval, NO_KEY, OTHERS, Row, TABLES, Target};

/// The state of the row that is being painted.
#[derive(Debug)]
pub(super) struct Painter {
    tables: [TablePaint; TABLES],
    /// The parts that are completely painted, as bits of [`parts`].
    pub(super) done: u16,
    intervals: Vec<Interval>,
}

/// The number of words of a set of keys.
const WORDS: usize = NO_KEY as usize / 64;

#[derive(Debug)]
struct TablePaint {
    /// The open keys: those that no claim has taken. This is not up to date while all keys are open, and after all are
    /// taken.
    open: Box<[u64; WORDS]>,
    /// One bit for each word of `open`: whether the word is not zero.
    occupied: [u64; WORDS / 64],
    /// The number of open keys.
    left: u32,
    /// The ranges of keys that were taken, each with its target.
    pieces: Vec<(u32, u32, Target)>,
    /// The target of packets without a key, if a claim took them.
    bare: Option<Target>,
}

impl Default for Painter {
    fn default() -> Self {
        let table = || TablePaint {
            open: Box::new([0; WORDS]),
            occupied: [0; WORDS / 64],
            left: NO_KEY,
            pieces: Vec::new(),
            bare: None,
        };
        Self { tables: [(); TABLES].map(|()| table()), done: 0, intervals: Vec::new() }
    }
}

/// The parts of a row that a match set tests, as bits: the keys of each table, and above them the packets without a key
/// of each table.
pub(super) fn parts(claim: CompactMatch, match_sets: &MatchSets) -> u16 {
    let CompactMatch::Interned(number) = claim else { return match_sets.tables(claim).into() };
    let mut parts = match_sets.tables(claim).into();
    for table in 0..OTHERS {
        let bare = match_sets.table_match(number, table).is_some_and(|keys| keys.bare);
        parts |= u16::from(bare) << (TABLES + table);
    }
    parts
}

impl Painter {
    /// Begins a row.
    pub(super) fn begin(&mut self) {
        self.done = 0;
        for table in &mut self.tables {
            table.left = NO_KEY;
            table.pieces.clear();
            table.bare = None;
        }
    }

    /// Gives the open keys of a match set to a target. Returns whether there were any. Returns `None` if the match set
    /// tests source ports, and then the row must not be used.
    pub(super) fn paint(
        &mut self,
        claim: CompactMatch,
        match_sets: &MatchSets,
        to: Target,
    ) -> Option<bool> {
        let number = match claim {
            CompactMatch::Ports { table, first, last } => {
                return Some(self.keys(table.into(), (first, last), to));
            }
            CompactMatch::Interned(number) => number,
        };
        let mut painted = false;
        for table in 0..TABLES {
            let Some(keys) = match_sets.table_match(number, table) else { continue };
            if !keys.sources.is_all() {
                return None;
            }
            for range in keys.keys.iter() {
                painted |= self.keys(table, range, to);
            }
            let bare = &mut self.tables[table].bare;
            if keys.bare && bare.is_none() && table != OTHERS {
                *bare = Some(to);
                self.done |= 1 << (TABLES + table);
                painted = true;
            }
        }
        Some(painted)
    }

    fn keys(&mut self, table: usize, (first, last): (u16, u16), to: Target) -> bool {
        let Some(paint) = self.tables.get_mut(table) else { return false };
        let painted = paint.paint(first.into(), last.into(), to);
        if paint.left == 0 {
            self.done |= 1 << table;
        }
        painted
    }

    /// Returns the row, and the number of its intervals. Keys that no claim took lead to the target `none`.
    pub(super) fn row(&mut self, none: Target, interner: &mut RowInterner) -> (Row, usize) {
        let Self { tables, intervals, .. } = self;
        let mut row = [none; TABLES];
        let mut count = 0;
        for ((table, paint), place) in tables.iter_mut().enumerate().zip(&mut row) {
            if paint.pieces.is_empty() && paint.bare.is_none() {
                continue;
            }
            intervals.clear();
            paint.pieces.sort_unstable_by_key(|piece| piece.0);
            let mut next = 0;
            for (first, last, to) in &paint.pieces {
                if next < *first {
                    push_interval(intervals, Interval { start: next, to: none });
                }
                push_interval(intervals, Interval { start: *first, to: *to });
                next = last + 1;
            }
            if next < NO_KEY {
                push_interval(intervals, Interval { start: next, to: none });
            }
            if table != OTHERS {
                let to = paint.bare.unwrap_or(none);
                push_interval(intervals, Interval { start: NO_KEY, to });
            }
            count += intervals.len();
            *place = interner.tree(intervals, Target::by_key);
        }
        (row, count)
    }
}

impl TablePaint {
    /// Gives the open keys from `first` to `last`, inclusive, to the target `to`. Returns whether there were any.
    fn paint(&mut self, first: u32, last: u32, to: Target) -> bool {
        if self.left == 0 || first > last {
            return false;
        }
        if self.left == NO_KEY {
            if last - first + 1 == NO_KEY {
                self.pieces.push((first, last, to));
                self.left = 0;
                return true;
            }
            self.open.fill(u64::MAX);
            self.occupied.fill(u64::MAX);
        }
        let mut painted = false;
        let mut from = first;
        while let Some(start) = self.next_open(from).filter(|start| *start <= last) {
            let end = self.end_of_open(start, last);
            self.close(start, end);
            self.left -= end - start + 1;
            self.pieces.push((start, end, to));
            painted = true;
            from = end + 1;
        }
        painted
    }

    /// The first open key that is at least `from`.
    fn next_open(&self, from: u32) -> Option<u32> {
        let at = (from / 64) as usize;
        let here = self.open.get(at)? & u64::MAX << (from % 64);
        if here != 0 {
            return Some(from / 64 * 64 + here.trailing_zeros());
        }
        let at = at + 1;
        let mut group = at / 64;
        let mut occupied = self.occupied.get(group)? & u64::MAX << (at % 64);
        while occupied == 0 {
            group += 1;
            occupied = *self.occupied.get(group)?;
        }
        let at = group * 64 + occupied.trailing_zeros() as usize;
        Some((at * 64) as u32 + self.open.get(at)?.trailing_zeros())
    }

    /// The last key, at most `last`, of the open keys that begin at `start`.
    fn end_of_open(&self, start: u32, last: u32) -> u32 {
        let mut at = (start / 64) as usize;
        let mut closed = !self.open[at] & u64::MAX << (start % 64);
        while closed == 0 {
            at += 1;
            if (at * 64) as u32 > last {
                return last;
            }
            closed = !self.open[at];
        }
        last.min((at * 64) as u32 + closed.trailing_zeros() - 1)
    }

    fn close(&mut self, start: u32, end: u32) {
        let (first, last) = ((start / 64) as usize, (end / 64) as usize);
        for at in first..=last {
            let from = if at == first { u64::MAX << (start % 64) } else { u64::MAX };
            let to = if at == last { u64::MAX >> (63 - end % 64) } else { u64::MAX };
            self.open[at] &= !(from & to);
            if self.open[at] == 0 {
                self.occupied[at / 64] &= !(1 << (at % 64));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::common::PathId;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(12))]

        #[test]
        fn each_key_belongs_to_the_first_that_claims_it(
            claims in prop::collection::vec(
                (prop_oneof![0u16..200, 65_300u16.., any::<u16>()], prop_oneof![0u16..200, any::<u16>()]), 0..16),
        ) {
            let mut painter = Painter::default();
            for _ in 0..2 {
                painter.begin();
                let mut owner: Vec<Option<u32>> = vec![None; NO_KEY as usize];
                for ((first, more), number) in claims.iter().zip(0u32..) {
                    let last = first.saturating_add(*more);
                    let mut expected = false;
                    for key in &mut owner[usize::from(*first)..=usize::from(last)] {
                        expected |= key.is_none();
                        key.get_or_insert(number);
                    }
                    let claim = CompactMatch::Ports { table: 1, first: *first, last };
                    let to = Target::path(PathId(number));
                    prop_assert_eq!(painter.paint(claim, &MatchSets::default(), to), Some(expected));
                    prop_assert_eq!(painter.done == 2, owner.iter().all(Option::is_some));
                }
                let mut found = vec![None; NO_KEY as usize];
                for (first, last, to) in &painter.tables[1].pieces {
                    for key in &mut found[*first as usize..=*last as usize] {
                        prop_assert!(key.is_none());
                        *key = to.as_path().map(|path| path.0);
                    }
                }
                prop_assert_eq!(found, owner);
            }
        }
    }
}
