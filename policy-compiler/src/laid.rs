//! Rows and their lines, each laid once: equal rows are one, and so are equal lines of whichever rows.
//!
//! A tree of lines follows from the intervals that it tells apart, and a line from those and where they lead. So from the
//! leaves on equal intervals lead to one place, and rows are equal where their places are.

use crate::image::PathId;
use crate::lines::{Interval, Line, Lines, Place, Row, WIDTH};
use crate::numbers::Numbers;

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Laid {
    pub(crate) lines: Lines,
    numbers: Numbers,
    rows: Numbers,
}

impl Laid {
    /// The number of a row.
    pub(crate) fn row(&mut self, row: Row) -> u32 {
        let all = &mut self.lines;
        // A slice of numbers is hashed at once.
        let said = row.map(Place::bits);
        let (number, is_new) = self.rows.of(&said, all.len() as u32, |it| all.row(it) == Some(row));
        if is_new {
            all.push(row);
        }
        number
    }

    /// The number of a line.
    fn line(&mut self, line: &Line) -> u32 {
        let all = &mut self.lines.all;
        let (number, is_new) =
            self.numbers.of(line, all.len() as u32, |it| all[it as usize] == *line);
        if is_new {
            all.push(*line);
        }
        number
    }

    /// Where what tells ascending intervals apart leads; `by` makes places of its lines.
    pub(crate) fn tree(&mut self, intervals: &[Interval], by: impl Fn(u32) -> Place) -> Place {
        let mut add = |some: &[Interval]| match some {
            [] => Interval { start: 0, to: Place::default() },
            [alone] => *alone,
            [first, ..] => Interval { start: first.start, to: by(self.line(&Line::of(some))) },
        };
        if intervals.len() <= WIDTH {
            return add(intervals).to;
        }
        let mut level: Vec<Interval> = intervals.chunks(WIDTH).map(&mut add).collect();
        while level.len() > 1 {
            level = level.chunks(WIDTH).map(&mut add).collect();
        }
        level.first().map_or(Place::default(), |top| top.to)
    }

    /// Leaves out all rows but those that are wanted, by number; the new numbers of these, in their order.
    pub(crate) fn leave_out(&mut self, wanted: &[bool]) -> Vec<Option<u32>> {
        let Self { lines, .. } = std::mem::take(self);
        self.take(&lines, wanted, |path| path)
    }

    /// Adds other lines' rows that are wanted, by number; `paths` says of their paths which they are here. The rows' numbers
    /// here, in their order.
    pub(crate) fn take(
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
        // Lines lead to lines that were laid before them.
        let mut taken = vec![0; other.all.len()];
        let here = |taken: &[u32], place: Place| match place.as_line() {
            Some(line) => {
                taken.get(line as usize).map_or(Place::default(), |it| place.to_line(*it))
            }
            None => place.as_path().map_or(place, |path| Place::path(paths(path))),
        };
        self.lines.all.reserve(other.all.len());
        for (at, line) in other.all.iter().enumerate().filter(|(at, _)| in_use[*at]) {
            let mut line = *line;
            for to in &mut line.to {
                *to = here(&taken, *to);
            }
            taken[at] = self.line(&line);
        }
        let row = |(row, wanted)| {
            let mut row = other.row(row).filter(|_| wanted)?;
            for to in &mut row {
                *to = here(&taken, *to);
            }
            Some(self.row(row))
        };
        wanted_rows().map(row).collect()
    }
}

/// Which lines some places lead to, at once or by others.
fn lines_in_use(lines: &Lines, places: impl Iterator<Item = Place>) -> Vec<bool> {
    let mut in_use = vec![false; lines.all.len()];
    let put = |in_use: &mut [bool], place: Place| {
        let line = place.as_line().and_then(|line| in_use.get_mut(line as usize));
        if let Some(line) = line {
            *line = true;
        }
    };
    places.for_each(|place| put(&mut in_use, place));
    for (at, line) in lines.all.iter().enumerate().rev() {
        if in_use[at] {
            line.to.iter().for_each(|place| put(&mut in_use, *place));
        }
    }
    in_use
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lines::{NO_KEY, Packet, TABLES};
    use crate::model::Transport;
    use proptest::prelude::*;

    fn intervals() -> impl Strategy<Value = Vec<Interval>> {
        let start = prop_oneof![1u32..200, 65_500u32..=65_536, 1u32..65_536];
        prop::collection::btree_set(start, 0..200).prop_map(|starts| {
            let starts = std::iter::once(0).chain(starts).zip(7..);
            starts.map(|(start, path)| Interval { start, to: Place::path(PathId(path)) }).collect()
        })
    }

    proptest! {
        #[test]
        fn a_tree_leads_each_key_where_its_interval_does(
            intervals in intervals(),
            by_source: bool,
        ) {
            let mut laid = Laid::default();
            let by = if by_source { Place::by_source } else { Place::by_key };
            let place = laid.tree(&intervals, by);
            laid.row(Row::default());
            prop_assert_eq!(laid.row([place; TABLES]), 1);
            prop_assert_eq!(laid.tree(&intervals, by), place, "equal ones are one");
            let starts = || intervals.iter().map(|interval| interval.start);
            for asked in starts().flat_map(|it| [it.saturating_sub(1), it, (it + 1).min(NO_KEY)]) {
                let (key, source) = if by_source { (3, asked) } else { (asked, 3) };
                let packet = Packet::new(1, key, source);
                let at = intervals.partition_point(|interval| interval.start <= asked) - 1;
                prop_assert_eq!(laid.lines.led(place, &packet), intervals[at].to.as_path());
            }
            let mut bounds = [Vec::new(), Vec::new()];
            laid.lines.bounds(1, 1, &mut bounds);
            let mut drawn = std::mem::take(&mut bounds[usize::from(by_source)]);
            drawn.sort_unstable();
            prop_assert_eq!(drawn, starts().collect::<Vec<_>>());
        }

        #[test]
        fn rows_that_stay_lead_where_they_led(
            all in prop::collection::vec((intervals(), any::<bool>()), 1..5),
            keys in prop::collection::vec(0..=NO_KEY, 20),
        ) {
            let mut laid = Laid::default();
            let rows: Vec<u32> = all.iter().map(|(intervals, _)| {
                let sources = laid.tree(intervals, Place::by_source);
                let to = [Interval { start: 0, to: sources }, Interval { start: 9, ..intervals[0] }];
                let place = laid.tree(&to, Place::by_key);
                laid.row([place; TABLES])
            }).collect();
            let before = laid.lines.clone();
            let mut wanted = vec![false; before.len()];
            for (row, (_, stays)) in rows.iter().zip(&all) {
                wanted[*row as usize] |= stays;
            }
            let moved = laid.leave_out(&wanted);
            prop_assert_eq!(laid.lines.len(), wanted.iter().filter(|it| **it).count());
            prop_assert!(laid.lines.all.len() <= before.all.len());
            for ((row, new), wanted) in (0..).zip(moved).zip(wanted) {
                prop_assert_eq!(new.is_some(), wanted);
                let Some(new) = new else { continue };
                for key in &keys {
                    for (key, source) in [(3, *key), (*key, 3)] {
                        let packet = Packet::new(1, key, source);
                        let led = |lines: &Lines, row| lines.led(lines.first(row, 1)?, &packet);
                        prop_assert_eq!(led(&laid.lines, new), led(&before, row));
                    }
                }
            }
        }
    }

    #[test]
    fn lines_that_lead_in_a_circle_lead_nowhere() {
        let mut laid = Laid::default();
        let circle = [0, 5].map(|start| Interval { start, to: Place::by_key(0) });
        let place = laid.tree(&circle, Place::by_key);
        laid.row([place; TABLES]);
        assert_eq!(laid.lines.path(0, Transport::bare(6)), None);
        laid.lines.bounds(0, 0, &mut Default::default());
    }
}
