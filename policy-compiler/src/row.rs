//! What happens to each packet between a chain and a class: the rules that match, laid over each other.

use crate::claim::{Claimed, Distinct, Keys, OTHERS};
use crate::image::PathId;
use crate::lines::{Interval, NO_KEY, Place};

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
    /// The row of rules in order, ascending, each with one of its claims; `decide` says where the rules lead that match one
    /// packet, and whether they lead there whatever matches besides behind the first. What `known` knows it is not asked.
    pub(crate) fn build<'r>(
        room: &'r mut Room,
        claims: &[(u32, Claimed)],
        distinct: &Distinct,
        known: &mut ByFirst,
        decide: impl FnMut(InForce<'_>) -> (PathId, bool),
    ) -> &'r Self {
        let mut paths = Paths { known, decide };
        let Room { sweep, rules, bare, row } = room;
        row.intervals.clear();
        row.sources.clear();
        row.source_ends.clear();
        let tables = claims.iter().fold(0, |all, (_, claimed)| all | distinct.tables(*claimed));
        for table in 0..=OTHERS {
            let first = row.intervals.len();
            if tables >> table & 1 == 0 {
                let to = paths.of(&[], &[]);
                row.intervals.push(Interval { start: 0, to });
            } else {
                sweep.clear();
                rules.clear();
                bare.clear();
                let mut sourced: Vec<(u32, &Keys)> = Vec::new();
                for (rule, claimed) in claims {
                    let index = rules.len() as u32;
                    match *claimed {
                        Claimed::Ports { table: of, first, last } if usize::from(of) == table => {
                            sweep.add(index, [(first, last)]);
                        }
                        Claimed::Ports { .. } => continue,
                        Claimed::Known(number) => {
                            let Some(keys) = distinct.keys(number, table) else { continue };
                            sweep.add(index, keys.set.iter());
                            if keys.bare {
                                put(bare, index);
                            }
                            if !keys.sources.is_all() {
                                sourced.push((index, keys));
                            }
                        }
                    }
                    rules.push(*rule);
                }
                row.table(sweep, rules, &sourced, &mut paths);
                if table != OTHERS {
                    let to = paths.of(bare, rules);
                    push(&mut row.intervals, first, Interval { start: NO_KEY, to });
                }
            }
            row.ends[table] = row.intervals.len() as u32;
        }
        row
    }

    /// Sweeps over the keys with the claims that are in force at each; `sourced` are those that ask for source ports.
    fn table(
        &mut self,
        sweep: &mut Sweep,
        rules: &[u32],
        sourced: &[(u32, &Keys)],
        paths: &mut Paths<'_, impl FnMut(InForce<'_>) -> (PathId, bool)>,
    ) {
        let first = self.intervals.len();
        sweep.over(|start, in_force| {
            let to = if sourced.iter().any(|(index, _)| has(in_force, *index)) {
                let last = self.intervals[first..].last().map(|last| last.to);
                self.by_source(in_force, rules, sourced, last, paths)
            } else {
                paths.of(in_force, rules)
            };
            push(&mut self.intervals, first, Interval { start, to });
        });
    }

    /// A path, or a run by source port: `last`, that of the interval before, if it is the same.
    fn by_source(
        &mut self,
        in_force: &[u64],
        rules: &[u32],
        sourced: &[(u32, &Keys)],
        last: Option<Place>,
        paths: &mut Paths<'_, impl FnMut(InForce<'_>) -> (PathId, bool)>,
    ) -> Place {
        let first = self.sources.len();
        let mut sweep = Sweep { in_force: in_force.to_vec(), ..Sweep::default() };
        for (index, keys) in sourced.iter().filter(|(index, _)| has(in_force, *index)) {
            sweep.in_force[*index as usize / BITS] &= !(1 << (*index as usize % BITS));
            sweep.add(*index, keys.sources.iter());
        }
        sweep.over(|start, in_force| {
            let to = paths.of(in_force, rules);
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

/// What making a row needs, to be used again.
#[derive(Debug, Default)]
pub(crate) struct Room {
    sweep: Sweep,
    /// By index of a table's claims their rules.
    rules: Vec<u32>,
    /// The claims of packets that do not show a key.
    bare: Vec<u64>,
    row: RowContent,
}

const BITS: usize = u64::BITS as usize;

/// Puts a number into a set.
fn put(set: &mut Vec<u64>, number: u32) {
    let at = number as usize / BITS;
    if set.len() <= at {
        set.resize(at + 1, 0);
    }
    set[at] |= 1 << (number as usize % BITS);
}

fn has(set: &[u64], number: u32) -> bool {
    let word = set.get(number as usize / BITS).copied().unwrap_or_default();
    word >> (number as usize % BITS) & 1 != 0
}

/// Where the rules that match a packet lead, by the first of them.
#[derive(Debug)]
pub(crate) struct ByFirst {
    of: Vec<Option<Place>>,
    nobody: Option<Place>,
}

impl ByFirst {
    /// Knows nothing of so many rules.
    pub(crate) fn of(rules: usize) -> Self {
        Self { of: vec![None; rules], nobody: None }
    }
}

struct Paths<'k, D> {
    known: &'k mut ByFirst,
    decide: D,
}

impl<D: FnMut(InForce<'_>) -> (PathId, bool)> Paths<'_, D> {
    /// Where the rules lead whose claims are in force.
    #[inline]
    fn of(&mut self, in_force: &[u64], rules: &[u32]) -> Place {
        let word = in_force.iter().position(|word| *word != 0);
        let index = word.map(|at| at * BITS + in_force[at].trailing_zeros() as usize);
        let first = index.and_then(|index| rules.get(index)).copied();
        let known = match first {
            Some(first) => self.known.of.get(first as usize).copied().flatten(),
            None => self.known.nobody,
        };
        known.unwrap_or_else(|| self.make(first, in_force, rules))
    }

    #[cold]
    fn make(&mut self, first: Option<u32>, in_force: &[u64], rules: &[u32]) -> Place {
        let (path, always) = (self.decide)(InForce::of(in_force, rules));
        let place = Place::path(path);
        let known = match first {
            Some(first) => self.known.of.get_mut(first as usize),
            None => Some(&mut self.known.nobody),
        };
        if let Some(known) = known.filter(|_| always) {
            *known = Some(place);
        }
        place
    }
}

/// The rules whose claims are in force, ascending and distinct.
pub(crate) struct InForce<'a> {
    /// The indexes of the claims that are not yet handed over, from the word `at` on.
    words: &'a [u64],
    at: usize,
    rest: u64,
    rules: &'a [u32],
    last: Option<u32>,
}

impl<'a> InForce<'a> {
    fn of(words: &'a [u64], rules: &'a [u32]) -> Self {
        Self { words, at: 0, rest: words.first().copied().unwrap_or_default(), rules, last: None }
    }
}

impl Iterator for InForce<'_> {
    type Item = u32;

    fn next(&mut self) -> Option<u32> {
        loop {
            while self.rest == 0 {
                self.at += 1;
                self.rest = *self.words.get(self.at)?;
            }
            let index = self.at * BITS + self.rest.trailing_zeros() as usize;
            self.rest &= self.rest - 1;
            let rule = *self.rules.get(index)?;
            if self.last.replace(rule) != Some(rule) {
                return Some(rule);
            }
        }
    }
}

/// A sweep over sets of keys, with the sets that hold each.
#[derive(Debug, Default)]
struct Sweep {
    /// Each bound of a set: the key, then the set's number and whether it begins there, as a number that sorts by keys.
    edges: Vec<u64>,
    /// The sets that hold the key.
    in_force: Vec<u64>,
}

impl Sweep {
    fn clear(&mut self) {
        self.edges.clear();
        self.in_force.clear();
    }

    /// Adds ranges of a set.
    fn add(&mut self, number: u32, ranges: impl IntoIterator<Item = (u16, u16)>) {
        for (first, last) in ranges {
            if (first, last) == (0, u16::MAX) {
                put(&mut self.in_force, number);
                return;
            }
            let edge = |key: u32| u64::from(key) << 33 | u64::from(number) << 1;
            self.edges.push(edge(u32::from(first)) | 1);
            self.edges.push(edge(u32::from(last) + 1));
        }
    }

    /// Hands over each key from which on other sets contain the keys than before, from 0 on, and these sets.
    fn over(&mut self, mut hand: impl FnMut(u32, &[u64])) {
        let Self { edges, in_force } = self;
        edges.sort_unstable();
        let key = |edge: u64| (edge >> 33) as u32;
        if edges.first().is_none_or(|edge| key(*edge) > 0) {
            hand(0, in_force);
        }
        let mut edges = edges.iter().copied().peekable();
        while let Some(edge) = edges.next() {
            let number = (edge >> 1) as u32;
            if edge & 1 == 1 {
                put(in_force, number);
            } else if let Some(word) = in_force.get_mut(number as usize / BITS) {
                *word &= !(1 << (number as usize % BITS));
            }
            let here = key(edge);
            if here < NO_KEY && edges.peek().is_none_or(|next| key(*next) > here) {
                hand(here, in_force);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::claim::Claim;
    use crate::ranges::Ranges;
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
            // As many as a word of a set has bits, and more.
            all in prop_oneof![
                9 => prop::collection::vec((0u32..2, keys()), 0..8),
                1 => prop::collection::vec((0u32..2, keys()), 60..140),
            ],
        ) {
            let mut rule = 0;
            let mut distinct = Distinct::default();
            let claims: Vec<(u32, Claimed)> = all.iter().map(|(step, keys)| {
                rule += step;
                let claim = Claim(std::array::from_fn(|_| Some(keys.clone())));
                (rule, distinct.claimed(claim).unwrap())
            }).collect();
            let mut paths: Vec<Vec<u32>> = Vec::new();
            let mut room = Room::default();
            let mut known = ByFirst::of(all.len());
            let row = RowContent::build(&mut room, &claims, &distinct, &mut known, |rules| {
                let rules: Vec<u32> = rules.collect();
                let at = paths.iter().position(|known| *known == rules);
                let at = at.unwrap_or_else(|| { paths.push(rules); paths.len() - 1 });
                (PathId(at as u32), false)
            });
            let has = |ranges: &Ranges, key| ranges.iter().any(|(a, b)| (a..=b).contains(&key));
            let at = |intervals: &[Interval], key: u32| {
                intervals[intervals.partition_point(|i| i.start <= key) - 1].to
            };
            for key in (0..=21).chain(65_518..=65_535) {
                for source in [0, 5, 19, 20, 65_535] {
                    let claims = claims.iter().zip(&all);
                    let mut expected: Vec<u32> = claims.filter(|(_, (_, keys))| {
                        has(&keys.set, key) && has(&keys.sources, source)
                    }).map(|((rule, _), _)| *rule).collect();
                    expected.dedup();
                    let mut found = at(row.tables()[0], u32::from(key));
                    if let Some(run) = found.as_by_source() {
                        found = at(row.runs().nth(run as usize).unwrap(), source.into());
                    }
                    prop_assert_eq!(&paths[found.as_path().unwrap().0 as usize], &expected);
                }
            }
            let mut bare: Vec<u32> = claims.iter().zip(&all)
                .filter(|(_, (_, keys))| keys.bare).map(|((rule, _), _)| *rule).collect();
            bare.dedup();
            let found = at(row.tables()[0], NO_KEY).as_path().unwrap();
            prop_assert_eq!(&paths[found.0 as usize], &bare);
        }
    }
}
