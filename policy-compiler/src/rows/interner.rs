//! The row interner: it stores equal rows once, and equal lines of different rows once.
//!
//! The intervals that a tree of lines divides determine the tree. The intervals and targets of a line determine the
//! line. So equal intervals always get the same target, and two rows are equal if their targets are equal.
//!
//! The gain: the tables of the site of `docs/performance.md` take 4.8 MB (goal 16), so they mostly fit the CPU's
//! caches. Without this, a random lookup could not take only 30 ns.

use crate::common::{IndexTable, PathId};
use crate::image::{Interval, LEAF_WIDTH, Leaf, Line, Lines, NO_KEY, Row, Target, WIDTH};

/// The rows and lines, with indexes that find equal ones.
#[derive(Debug, Default)]
pub(crate) struct RowInterner {
    pub(crate) lines: Lines,
    line_numbers: IndexTable,
    leaf_numbers: IndexTable,
    row_numbers: IndexTable,
}

impl RowInterner {
    /// Reserves memory for `more` rows.
    pub(crate) fn reserve(&mut self, more: usize) {
        let Self { lines, leaf_numbers: leaves, row_numbers: rows, .. } = self;
        lines.rows.iter_mut().for_each(|all| all.reserve(more));
        lines.leaves.reserve(more);
        leaves.reserve(more);
        rows.reserve(more);
    }

    /// The number of a row.
    pub(crate) fn intern_row(&mut self, row: Row) -> u32 {
        let all = &mut self.lines;
        // The bits of the targets are hashed instead of the targets, which is faster.
        let said = row.map(Target::bits);
        let (number, is_new) =
            self.row_numbers.find_or_insert(&said, all.len() as u32, |it| all.row(it) == Some(row));
        if is_new {
            all.push(row);
        }
        number
    }

    /// The number of a line.
    fn intern_line(&mut self, line: &Line) -> u32 {
        let all = &mut self.lines.all;
        let (number, is_new) = self
            .line_numbers
            .find_or_insert(line, all.len() as u32, |it| all[it as usize] == *line);
        if is_new {
            all.push(*line);
        }
        number
    }

    /// The number of a leaf.
    fn intern_leaf(&mut self, leaf: &Leaf) -> u32 {
        let all = &mut self.lines.leaves;
        let (number, is_new) = self
            .leaf_numbers
            .find_or_insert(leaf, all.len() as u32, |it| all[it as usize] == *leaf);
        if is_new {
            all.push(*leaf);
        }
        number
    }

    /// Adds a line, leaf or tree that divides these ascending intervals, and returns its target. `by` turns the number
    /// of a line or leaf into a target.
    pub(crate) fn tree(&mut self, intervals: &[Interval], by: impl Fn(u32) -> Target) -> Target {
        let [first, .., last] = intervals else {
            return intervals.first().map_or(Target::default(), |alone| alone.to);
        };
        // A leaf leads a packet without a key to the target of the first interval, so the last interval must have the
        // same target.
        if first.to == last.to
            && let Some(leaf) = Leaf::from_intervals(intervals)
        {
            return by(self.intern_leaf(&leaf)).leaf();
        }
        if intervals.len() <= WIDTH {
            return by(self.intern_line(&Line::from_intervals(intervals)));
        }
        let mut level = self.in_leaves(intervals, &by).unwrap_or_else(|| intervals.to_vec());
        while level.len() > WIDTH {
            // The first intervals stay in this level, and only as many of the last ones as necessary go one level down.
            // So with up to a hundred intervals, a lookup of a low key takes one step less.
            let lines = (level.len() - WIDTH).div_ceil(WIDTH - 1);
            let further = level.split_off(WIDTH.saturating_sub(lines));
            level.extend(further.chunks(WIDTH).map(|some| match some {
                [alone] => *alone,
                some => Interval {
                    start: some[0].start,
                    to: by(self.intern_line(&Line::from_intervals(some))),
                },
            }));
        }
        by(self.intern_line(&Line::from_intervals(&level)))
    }

    /// Packs intervals into leaves, except the interval for packets without a key. Returns intervals that lead to the
    /// leaves, or `None` if a leaf cannot hold one of the targets.
    fn in_leaves(
        &mut self,
        intervals: &[Interval],
        by: impl Fn(u32) -> Target,
    ) -> Option<Vec<Interval>> {
        let bare = Interval { start: NO_KEY, to: intervals.last()?.to };
        let keyed = &intervals[..intervals.partition_point(|interval| interval.start < NO_KEY)];
        let leaves =
            keyed.chunks(LEAF_WIDTH).map(|some| Some((some[0].start, Leaf::from_intervals(some)?)));
        let leaves: Vec<(u32, Leaf)> = leaves.collect::<Option<_>>()?;
        let leaves = leaves
            .iter()
            .map(|(start, leaf)| Interval { start: *start, to: by(self.intern_leaf(leaf)).leaf() });
        Some(leaves.chain([bare]).collect())
    }

    /// Adds a leaf of another interner. `paths` translates the numbers of its paths. Returns the target for a search by
    /// key, and the one for a search by source port.
    fn import_leaf(&mut self, leaf: &Leaf, paths: impl Fn(PathId) -> PathId) -> [Target; 2] {
        let by = [Target::by_key, Target::by_source];
        if let Some(leaf) = leaf.map_paths(&paths) {
            let leaf = self.intern_leaf(&leaf);
            return by.map(|by| by(leaf).leaf());
        }
        let mut intervals = leaf.intervals();
        for to in intervals.iter_mut().map(|interval| &mut interval.to) {
            *to = to.as_path().map_or(*to, |path| Target::path(paths(path)));
        }
        by.map(|by| self.tree(&intervals, by))
    }

    /// Keeps the rows whose numbers are marked in `wanted`, and drops the others. Returns the new number of each old
    /// row, or `None` for a dropped one.
    pub(crate) fn retain(&mut self, wanted: &[bool]) -> Vec<Option<u32>> {
        let Self { lines, .. } = std::mem::take(self);
        self.import(&lines, wanted, |path| path)
    }

    /// Adds those rows of another interner whose numbers are marked in `wanted`. `paths` translates the numbers of
    /// their paths. Returns, for each row of the other interner, its number in this one, or `None` if it is not wanted.
    pub(crate) fn import(
        &mut self,
        other: &Lines,
        wanted: &[bool],
        paths: impl Fn(PathId) -> PathId,
    ) -> Vec<Option<u32>> {
        let wanted_rows =
            || (0..other.len() as u32).zip(wanted).map(|(row, wanted)| (row, *wanted));
        let leads = wanted_rows().filter(|(_, wanted)| *wanted);
        let leads = leads.filter_map(|(row, _)| other.row(row)).flatten();
        let in_use = lines_in_use(other, leads);
        self.lines.leaves.reserve(other.leaves.len());
        let mut leaves = vec![[Target::default(); 2]; other.leaves.len()];
        for (at, leaf) in other.leaves.iter().enumerate().filter(|(at, _)| in_use.leaves[*at]) {
            leaves[at] = self.import_leaf(leaf, &paths);
        }
        // A line leads only to lines that were added before it.
        let mut taken = vec![0; other.all.len()];
        let here = |taken: &[u32], place: Target| match place.as_line() {
            Some(leaf) if place.is_leaf() => {
                let leaf = leaves.get(leaf as usize).copied().unwrap_or_default();
                leaf[usize::from(place.is_by_source())]
            }
            Some(line) => {
                taken.get(line as usize).map_or(Target::default(), |it| place.to_line(*it))
            }
            None => place.as_path().map_or(place, |path| Target::path(paths(path))),
        };
        self.lines.all.reserve(other.all.len());
        for (at, line) in other.all.iter().enumerate().filter(|(at, _)| in_use.lines[*at]) {
            let mut line = *line;
            for to in &mut line.to {
                *to = here(&taken, *to);
            }
            taken[at] = self.intern_line(&line);
        }
        let row = |(row, wanted)| {
            let mut row = other.row(row).filter(|_| wanted)?;
            for to in &mut row {
                *to = here(&taken, *to);
            }
            Some(self.intern_row(row))
        };
        wanted_rows().map(row).collect()
    }
}

/// The lines and leaves in use, by number.
struct LinesInUse {
    lines: Vec<bool>,
    leaves: Vec<bool>,
}

impl LinesInUse {
    fn mark(&mut self, place: Target) {
        let Some(number) = place.as_line() else { return };
        let all = if place.is_leaf() { &mut self.leaves } else { &mut self.lines };
        if let Some(in_use) = all.get_mut(number as usize) {
            *in_use = true;
        }
    }
}

/// The lines and leaves to which some targets lead, directly or through other lines.
fn lines_in_use(lines: &Lines, places: impl Iterator<Item = Target>) -> LinesInUse {
    let mut in_use =
        LinesInUse { lines: vec![false; lines.all.len()], leaves: vec![false; lines.leaves.len()] };
    places.for_each(|place| in_use.mark(place));
    for (at, line) in lines.all.iter().enumerate().rev() {
        if in_use.lines[at] {
            line.to.iter().for_each(|place| in_use.mark(*place));
        }
    }
    in_use
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    use crate::image::PacketKey;
    use crate::image::TABLES;
    use crate::image::table;
    use crate::model::Transport;
    use proptest::prelude::*;

    fn intervals() -> impl Strategy<Value = Vec<Interval>> {
        let start = prop_oneof![1u32..200, 65_500u32..=65_536, 1u32..65_536];
        let starts = prop_oneof![
            1 => prop::collection::btree_set(start.clone(), 0..200),
            1 => prop::collection::btree_set(start, 0..20),
        ];
        // In some cases the last interval has the target of the first one, and some targets are paths that a leaf
        // cannot hold.
        let paths = (prop_oneof![Just(7u32), 65_400u32..65_540], prop_oneof![2u32..4, Just(999)]);
        (starts, paths).prop_map(|(starts, (path, many))| {
            let to = (0..).map(|at| Target::path(PathId(path + at % many)));
            let starts = std::iter::once(0).chain(starts).zip(to);
            starts.map(|(start, to)| Interval { start, to }).collect()
        })
    }

    proptest! {
        #[test]
        fn a_tree_leads_each_key_where_its_interval_does(
            intervals in intervals(),
            by_source: bool,
        ) {
            let mut laid = RowInterner::default();
            let by = if by_source { Target::by_source } else { Target::by_key };
            let place = laid.tree(&intervals, by);
            laid.intern_row(Row::default());
            prop_assert_eq!(laid.intern_row([place; TABLES]), 1);
            prop_assert_eq!(laid.tree(&intervals, by), place, "equal ones are one");
            let starts = || intervals.iter().map(|interval| interval.start);
            for asked in starts().flat_map(|it| [it.saturating_sub(1), it, (it + 1).min(NO_KEY)]) {
                let (key, source) = if by_source { (3, asked) } else { (asked, 3) };
                let packet = PacketKey::new(1, key, source);
                let at = intervals.partition_point(|interval| interval.start <= asked) - 1;
                prop_assert_eq!(laid.lines.follow_lines(place, packet), intervals[at].to.as_path());
            }
            let mut bounds = [Vec::new(), Vec::new()];
            laid.lines.bounds(1, 1, &mut bounds);
            // Packets without a key may have a separate interval even if the last keys have the same target.
            let drawn: BTreeSet<u32> = bounds[usize::from(by_source)].iter().copied().collect();
            prop_assert!(starts().all(|start| drawn.contains(&start)));
            prop_assert!(drawn.into_iter().all(|it| it == NO_KEY || starts().any(|start| start == it)));
        }

        #[test]
        fn rows_that_stay_lead_where_they_led(
            all in prop::collection::vec((intervals(), any::<bool>()), 1..5),
            keys in prop::collection::vec(0..=NO_KEY, 20),
        ) {
            let mut laid = RowInterner::default();
            let rows: Vec<u32> = all.iter().map(|(intervals, _)| {
                let sources = laid.tree(intervals, Target::by_source);
                let to = [Interval { start: 0, to: sources }, Interval { start: 9, ..intervals[0] }];
                let place = laid.tree(&to, Target::by_key);
                laid.intern_row([place; TABLES])
            }).collect();
            let before = laid.lines.clone();
            let mut wanted = vec![false; before.len()];
            for (row, (_, stays)) in rows.iter().zip(&all) {
                wanted[*row as usize] |= stays;
            }
            let mut other = RowInterner::default();
            let far = |path: PathId| PathId(path.0 + 100);
            let taken = other.import(&before, &wanted, far);
            let moved = laid.retain(&wanted);
            prop_assert_eq!(laid.lines.len(), wanted.iter().filter(|it| **it).count());
            prop_assert!(laid.lines.all.len() <= before.all.len());
            for ((row, (new, taken)), wanted) in (0..).zip(moved.into_iter().zip(taken)).zip(wanted) {
                prop_assert_eq!([new.is_some(), taken.is_some()], [wanted; 2]);
                let Some((new, taken)) = new.zip(taken) else { continue };
                for key in &keys {
                    for (key, source) in [(3, *key), (*key, 3)] {
                        let packet = PacketKey::new(1, key, source);
                        let led = |lines: &Lines, row| lines.follow_lines(lines.first(row, 1)?, packet);
                        prop_assert_eq!(led(&laid.lines, new), led(&before, row));
                        prop_assert_eq!(led(&other.lines, taken), led(&before, row).map(far));
                    }
                }
            }
        }
    }

    #[test]
    fn lines_that_lead_in_a_circle_lead_nowhere() {
        let mut laid = RowInterner::default();
        let circle = [0, 5].map(|start| Interval { start, to: Target::by_key(0) });
        let place = laid.tree(&circle, Target::by_key);
        laid.intern_row([place; TABLES]);
        let first = laid.lines.first(0, table(6)).unwrap();
        assert_eq!(laid.lines.follow(first, Transport::bare(6)), None);
        laid.lines.bounds(0, 0, &mut Default::default());
    }
}
