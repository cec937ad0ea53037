//! What happens to each packet between a chain and a class: the rules that match, laid over each other.

use std::rc::Rc;

use crate::claim::{Claim, Keys, OTHERS};
use crate::image::PathId;
use crate::lines::{Interval, NO_KEY, Place};
use crate::ranges::Ranges;

/// A row: for every packet the path that decides it. Equal rows are equal values.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub(crate) struct RowContent {
    /// The intervals of all tables, one table's behind the other's: of each ascending from key 0, neighbours differ. Packets
    /// that do not show the key that their protocol has are behind all keys.
    pub(crate) intervals: Vec<Interval>,
    /// Where each table's end.
    pub(crate) ends: [u32; OTHERS + 1],
    /// Intervals by source port, ascending from 0, one run behind the other; a place by source counts the runs of the row.
    pub(crate) sources: Vec<Interval>,
    /// Where each run ends.
    pub(crate) source_ends: Vec<u32>,
}

impl RowContent {
    /// The row of rules in order, each with one of its claims; `decide` says where the rules lead that match one packet,
    /// ascending and distinct.
    pub(crate) fn build(
        room: &mut Room,
        claims: &[(usize, Rc<Claim>)],
        mut decide: impl FnMut(&mut dyn Iterator<Item = usize>) -> PathId,
    ) -> Self {
        let Room { sweep, row } = room;
        row.intervals.clear();
        row.sources.clear();
        row.source_ends.clear();
        let mut here: Vec<(usize, &Keys)> = Vec::with_capacity(claims.len());
        for table in 0..=OTHERS {
            here.clear();
            here.extend(
                claims.iter().filter_map(|(rule, it)| Some((*rule, it.0[table].as_ref()?))),
            );
            let first = row.intervals.len();
            row.table(sweep, &here, &mut decide);
            if table != OTHERS {
                let rules = here.iter().filter(|(_, keys)| keys.bare).map(|(rule, _)| *rule);
                let to = Place::path(decide(&mut distinct(rules)));
                push(&mut row.intervals, first, Interval { start: NO_KEY, to });
            }
            row.ends[table] = row.intervals.len() as u32;
        }
        row.clone()
    }

    /// Sweeps over the keys with the claims that are in force at each.
    fn table(
        &mut self,
        sweep: &mut Sweep,
        claims: &[(usize, &Keys)],
        decide: &mut impl FnMut(&mut dyn Iterator<Item = usize>) -> PathId,
    ) {
        let first = self.intervals.len();
        sweep.over(claims.iter().map(|(_, keys)| &keys.set), |start, in_force| {
            let here = || in_force.iter().filter_map(|index| claims.get(*index as usize));
            let to = if here().all(|(_, keys)| keys.sources.is_all()) {
                Place::path(decide(&mut distinct(here().map(|(rule, _)| *rule))))
            } else {
                let last = self.intervals[first..].last().map(|last| last.to);
                self.by_source(&here().copied().collect::<Vec<_>>(), last, decide)
            };
            push(&mut self.intervals, first, Interval { start, to });
        });
    }

    /// A path, or a run by source port: `last`, that of the interval before, if it is the same.
    fn by_source(
        &mut self,
        claims: &[(usize, &Keys)],
        last: Option<Place>,
        decide: &mut impl FnMut(&mut dyn Iterator<Item = usize>) -> PathId,
    ) -> Place {
        let first = self.sources.len();
        Sweep::default().over(claims.iter().map(|(_, keys)| &keys.sources), |start, in_force| {
            let here = in_force.iter().filter_map(|index| claims.get(*index as usize));
            let to = Place::path(decide(&mut distinct(here.map(|(rule, _)| *rule))));
            push(&mut self.sources, first, Interval { start, to });
        });
        if let [one] = self.sources[first..] {
            self.sources.truncate(first);
            return one.to;
        }
        let runs = self.source_ends.len();
        if let Some(last) = last.filter(|last| last.as_by_source().is_some()) {
            let before = self.source_ends[..runs - 1].last().map_or(0, |end| *end as usize);
            if self.sources[before..first] == self.sources[first..] {
                self.sources.truncate(first);
                return last;
            }
        }
        self.source_ends.push(self.sources.len() as u32);
        Place::by_source(runs as u32)
    }

    /// The intervals of each table.
    pub(crate) fn tables(&self) -> [&[Interval]; OTHERS + 1] {
        std::array::from_fn(|table| run(&self.intervals, &self.ends, table))
    }

    /// The runs by source port.
    pub(crate) fn runs(&self) -> impl Iterator<Item = &[Interval]> {
        (0..self.source_ends.len()).map(|at| run(&self.sources, &self.source_ends, at))
    }
}

/// One of the runs that end at these places.
fn run<'a>(intervals: &'a [Interval], ends: &[u32], at: usize) -> &'a [Interval] {
    let first = at.checked_sub(1).map_or(0, |before| ends[before] as usize);
    &intervals[first..ends[at] as usize]
}

/// Adds an interval to those from `first` on, if it leads elsewhere than the one before.
fn push(intervals: &mut Vec<Interval>, first: usize, next: Interval) {
    if intervals[first..].last().is_none_or(|last| last.to != next.to) {
        intervals.push(next);
    }
}

fn distinct(ascending: impl Iterator<Item = usize>) -> impl Iterator<Item = usize> {
    let mut last = None;
    ascending.filter(move |rule| last.replace(*rule) != Some(*rule))
}

/// What making a row needs, to be used again.
#[derive(Default)]
pub(crate) struct Room {
    sweep: Sweep,
    row: RowContent,
}

/// What a sweep over sets of keys needs, to be used again.
#[derive(Default)]
struct Sweep {
    /// Each bound of a set: its key, the set's index, and whether the set begins there.
    edges: Vec<(u32, u32, bool)>,
    /// The sets that hold the key, ascending.
    in_force: Vec<u32>,
}

impl Sweep {
    /// Hands over each key from which on other sets contain the keys than before, from 0 on, and the indexes of these sets,
    /// ascending.
    fn over<'a>(
        &mut self,
        sets: impl Iterator<Item = &'a Ranges>,
        mut hand: impl FnMut(u32, &[u32]),
    ) {
        let Self { edges, in_force } = self;
        edges.clear();
        in_force.clear();
        for (index, set) in (0..).zip(sets) {
            if set.is_all() {
                in_force.push(index);
                continue;
            }
            for (first, last) in set.iter() {
                edges.push((u32::from(first), index, true));
                edges.push((u32::from(last) + 1, index, false));
            }
        }
        edges.sort_unstable();
        if edges.first().is_none_or(|edge| edge.0 > 0) {
            hand(0, in_force);
        }
        for at_one_key in edges.chunk_by(|a, b| a.0 == b.0) {
            for (_, index, opens) in at_one_key {
                match (in_force.binary_search(index), opens) {
                    (Err(at), true) => in_force.insert(at, *index),
                    (Ok(at), false) => {
                        in_force.remove(at);
                    }
                    _ => {}
                }
            }
            let start = at_one_key.first().map(|edge| edge.0).filter(|start| *start < NO_KEY);
            let Some(start) = start else { break };
            hand(start, in_force);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn keys() -> impl Strategy<Value = Keys> {
        let range = || {
            let port = prop_oneof![0u16..20, 65_520u16..=65_535];
            prop_oneof![
                1 => Just(Ranges::all()),
                3 => prop::collection::vec((port.clone(), port), 0..3).prop_map(Ranges::of),
            ]
        };
        (range(), range(), any::<bool>()).prop_map(|(keys, sources, bare)| Keys {
            set: keys,
            sources,
            bare,
        })
    }

    proptest! {
        #[test]
        fn a_row_leads_each_packet_to_the_rules_that_claim_it(
            all in prop::collection::vec((0usize..2, keys()), 0..8),
        ) {
            let mut rule = 0;
            let claims: Vec<(usize, Rc<Claim>)> = all.iter().map(|(step, keys)| {
                rule += step;
                (rule, Rc::new(Claim(std::array::from_fn(|_| Some(keys.clone())))))
            }).collect();
            let mut paths: Vec<Vec<usize>> = Vec::new();
            let row = RowContent::build(&mut Room::default(), &claims, |rules| {
                let rules: Vec<usize> = rules.collect();
                let at = paths.iter().position(|known| *known == rules);
                PathId(at.unwrap_or_else(|| { paths.push(rules); paths.len() - 1 }) as u32)
            });
            let has = |ranges: &Ranges, key| ranges.iter().any(|(a, b)| (a..=b).contains(&key));
            let at = |intervals: &[Interval], key: u32| {
                intervals[intervals.partition_point(|i| i.start <= key) - 1].to
            };
            for key in (0..=21).chain(65_518..=65_535) {
                for source in [0, 5, 19, 20, 65_535] {
                    let mut expected: Vec<usize> = claims.iter().filter(|(_, claim)| {
                        let keys = claim.0[0].as_ref().unwrap();
                        has(&keys.set, key) && has(&keys.sources, source)
                    }).map(|(rule, _)| *rule).collect();
                    expected.dedup();
                    let mut found = at(row.tables()[0], u32::from(key));
                    if let Some(run) = found.as_by_source() {
                        found = at(row.runs().nth(run as usize).unwrap(), source.into());
                    }
                    prop_assert_eq!(&paths[found.as_path().unwrap().0 as usize], &expected);
                }
            }
            let mut bare: Vec<usize> = claims.iter()
                .filter(|(_, claim)| claim.0[0].as_ref().unwrap().bare).map(|(rule, _)| *rule).collect();
            bare.dedup();
            let found = at(row.tables()[0], NO_KEY).as_path().unwrap();
            prop_assert_eq!(&paths[found.0 as usize], &bare);
        }
    }
}
