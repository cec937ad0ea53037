//! One row: the decisions on all packets between a chain and a class. It is built by a sweep over the match sets of the
//! rules.

use super::first_match::{FirstMatch, FirstMatches, MergeScratch, NO_RULE};
use super::interner::RowInterner;
use super::match_set::{CompactMatch, MatchSets, TableMatch};
use super::work::Work;
use crate::common::{BitSet, PathId};
use crate::image::{Interval, NO_KEY, OTHERS, Row, TABLES, Target};

/// Memory that is reused from row to row.
#[derive(Debug, Default)]
pub(crate) struct RowScratch {
    sweep: Sweep,
    /// The rule of each match set that tests the current table.
    rules: Vec<u32>,
    /// The indexes in `rules` of the match sets that contain packets without a key.
    bare: BitSet,
    /// The intervals of one table, in ascending order from key 0. Adjacent intervals have different targets. Packets
    /// that do not show the key of their protocol come after all keys.
    intervals: Vec<Interval>,
    by_source: BySource,
    firsts: MergeScratch,
}

impl RowScratch {
    /// Adds the first matches of some rules, which are in ascending order. Returns `None` if the first matching rule
    /// may not decide alone.
    pub(crate) fn first_match(
        &mut self,
        matched: &[(u32, CompactMatch)],
        known: &FirstPaths,
        firsts: &mut FirstMatches,
    ) -> Option<FirstMatch> {
        let all = matched.iter().all(|(rule, _)| known.path(*rule).is_some());
        if all { firsts.add(matched, &mut self.firsts) } else { None }
    }

    /// Builds a row from several first matches, which are merged. `None` if the path of a rule is not known.
    pub(crate) fn row_from_first_matches(
        &mut self,
        firsts: &FirstMatches,
        all: &[FirstMatch],
        known: &mut FirstPaths,
        interner: &mut RowInterner,
        decide: impl FnMut(ActiveRules<'_>) -> (PathId, bool),
    ) -> Option<Row> {
        let Self { intervals, firsts: scratch, .. } = self;
        let work = &mut Work::unlimited();
        let no_rules =
            PathFinder { known: &mut *known, decide, work }.target(&BitSet::default(), &[]);
        let mut row = [no_rules; TABLES];
        for (table, place) in row.iter_mut().enumerate() {
            intervals.clear();
            for piece in firsts.merge_all(all, table, scratch) {
                let to = if piece.rule == NO_RULE { no_rules } else { known.path(piece.rule)? };
                push_interval(intervals, Interval { start: piece.start, to });
            }
            if !intervals.is_empty() {
                *place = interner.tree(intervals, Target::by_key);
            }
        }
        Some(row)
    }

    /// Builds a row from the match sets in `matched`, each with its rule, in ascending order of rule. `decide` gets the
    /// rules that match a packet, and returns the path, and whether the first of these rules alone determines it. Paths
    /// that `known` contains are not decided again. If the work runs out before the row is complete, the row must not
    /// be used.
    pub(super) fn row(
        &mut self,
        matched: &[(u32, CompactMatch)],
        distinct: &MatchSets,
        known: &mut FirstPaths,
        (interner, work): (&mut RowInterner, &mut Work),
        decide: impl FnMut(ActiveRules<'_>) -> (PathId, bool),
    ) -> Row {
        let mut paths = PathFinder { known, decide, work };
        let mut row = Row::default();
        let tables = matched.iter().fold(0, |all, (_, claimed)| all | distinct.tables(*claimed));
        for (table, place) in row.iter_mut().enumerate().take(OTHERS + 1) {
            *place = if tables >> table & 1 == 0 {
                paths.target(&BitSet::default(), &[])
            } else {
                self.table_target(table, matched, distinct, &mut paths, interner)
            };
        }
        row
    }

    /// Builds one table of the row, and returns the target that the row needs for it. It goes through the table's keys
    /// (such as ports) in ascending order, knows for each key which match sets contain it, and begins a new interval
    /// where the decision changes.
    fn table_target<'d>(
        &mut self,
        table: usize,
        matched: &[(u32, CompactMatch)],
        distinct: &'d MatchSets,
        paths: &mut PathFinder<'_, impl FnMut(ActiveRules<'_>) -> (PathId, bool)>,
        interner: &mut RowInterner,
    ) -> Target {
        let Self { sweep, rules, bare, intervals, by_source, .. } = self;
        sweep.clear();
        rules.clear();
        bare.clear();
        intervals.clear();
        // The match sets that test source ports.
        let mut sourced: Vec<(u32, &'d TableMatch)> = Vec::new();
        for (rule, claimed) in matched {
            let index = rules.len() as u32;
            match *claimed {
                CompactMatch::Ports { table: of, first, last } if usize::from(of) == table => {
                    sweep.add(index, [(first, last)]);
                }
                CompactMatch::Ports { .. } => continue,
                CompactMatch::Interned(number) => {
                    let Some(keys) = distinct.table_match(number, table) else { continue };
                    sweep.add(index, keys.keys.iter());
                    if keys.bare {
                        bare.insert(index);
                    }
                    if !keys.sources.is_all() {
                        sourced.push((index, keys));
                    }
                }
            }
            rules.push(*rule);
        }
        sweep.sweep(|start, in_force| {
            if paths.work.spend(sourced.len()).is_none() {
                return;
            }
            let to = if sourced.iter().any(|(index, _)| in_force.contains(*index)) {
                by_source.target(in_force, rules, &sourced, paths, interner)
            } else {
                paths.target(in_force, rules)
            };
            push_interval(intervals, Interval { start, to });
        });
        if table != OTHERS {
            let to = paths.target(bare, rules);
            push_interval(intervals, Interval { start: NO_KEY, to });
        }
        interner.tree(intervals, Target::by_key)
    }
}

/// Builds the intervals of source ports at one key.
#[derive(Debug, Default)]
struct BySource {
    sweep: Sweep,
    intervals: Vec<Interval>,
}

impl BySource {
    /// The target at a key that the match sets in `in_force` contain. Some of these, in `sourced`, test source ports.
    fn target(
        &mut self,
        in_force: &BitSet,
        rules: &[u32],
        sourced: &[(u32, &TableMatch)],
        paths: &mut PathFinder<'_, impl FnMut(ActiveRules<'_>) -> (PathId, bool)>,
        interner: &mut RowInterner,
    ) -> Target {
        let Self { sweep, intervals } = self;
        sweep.clear();
        intervals.clear();
        sweep.active.clone_from(in_force);
        for (index, keys) in sourced.iter().filter(|(index, _)| in_force.contains(*index)) {
            sweep.active.remove(*index);
            sweep.add(*index, keys.sources.iter());
        }
        paths.work.note(sweep.edges.len());
        sweep.sweep(|start, in_force| {
            let to = paths.target(in_force, rules);
            push_interval(intervals, Interval { start, to });
        });
        interner.tree(intervals, Target::by_source)
    }
}

/// Adds an interval if its target differs from that of the interval before.
pub(super) fn push_interval(intervals: &mut Vec<Interval>, next: Interval) {
    if intervals.last().is_none_or(|last| last.to != next.to) {
        intervals.push(next);
    }
}

/// The paths of packets whose first matching rule alone determines the path, by this rule. `none` is the path of
/// packets that no rule matches.
#[derive(Debug, Clone)]
pub(crate) struct FirstPaths {
    by_rule: Vec<Option<Target>>,
    none: Option<Target>,
}

impl FirstPaths {
    /// Creates the table for this many rules, with no path known yet.
    pub(crate) fn unknown(rules: usize) -> Self {
        Self { by_rule: vec![None; rules], none: None }
    }

    /// The path of packets for which a rule is the first match, if the rule alone determines it.
    fn path(&self, rule: u32) -> Option<Target> {
        self.by_rule.get(rule as usize).copied().flatten()
    }

    /// The path of packets whose first matching rule is `rule`, or that no rule matches if `rule` is `None`. If the
    /// path is not known, it is computed by `path` and stored. `path` returns `None` if further rules matter.
    pub(super) fn path_or(
        &mut self,
        rule: Option<u32>,
        path: impl FnOnce() -> Option<PathId>,
    ) -> Option<Target> {
        let known = match rule {
            Some(rule) => self.by_rule.get_mut(rule as usize)?,
            None => &mut self.none,
        };
        if known.is_none() {
            *known = path().map(Target::path);
        }
        *known
    }

    /// Creates the table for this many rules, with the results of `path` for all of them. `path` is called as by
    /// [`path_or`](Self::path_or).
    pub(crate) fn precompute(
        rules: usize,
        mut path: impl FnMut(Option<u32>) -> Option<PathId>,
    ) -> Self {
        let mut place = |first| path(first).map(Target::path);
        let of = (0..rules as u32).map(|rule| place(Some(rule))).collect();
        Self { by_rule: of, none: place(None) }
    }
}

struct PathFinder<'k, D> {
    known: &'k mut FirstPaths,
    decide: D,
    work: &'k mut Work,
}

impl<D: FnMut(ActiveRules<'_>) -> (PathId, bool)> PathFinder<'_, D> {
    /// The target at a key. `in_force` holds the match sets that contain the key, and `rules` the rule of each match
    /// set.
    #[inline]
    fn target(&mut self, in_force: &BitSet, rules: &[u32]) -> Target {
        let first = in_force.next(0).and_then(|index| rules.get(index as usize)).copied();
        let known = match first {
            Some(first) => self.known.path(first),
            None => self.known.none,
        };
        known.unwrap_or_else(|| self.make(first, in_force, rules))
    }

    #[cold]
    fn make(&mut self, first: Option<u32>, in_force: &BitSet, rules: &[u32]) -> Target {
        if self.work.is_out() {
            return Target::NOWHERE;
        }
        let active = ActiveRules { in_force, from: 0, rules, last: None, work: self.work };
        let (path, always) = (self.decide)(active);
        if self.work.is_out() {
            // The work ran out, so `decide` may not have seen all rules.
            return Target::NOWHERE;
        }
        let place = Target::path(path);
        let known = match first {
            Some(first) => self.known.by_rule.get_mut(first as usize),
            None => Some(&mut self.known.none),
        };
        if let Some(known) = known.filter(|_| always) {
            *known = Some(place);
        }
        place
    }
}

/// The work for reading one rule for a decision. It includes storing the rule, because a decision may note every rule
/// that it reads.
const READ: usize = 8;

/// The rules whose match sets contain a key, ascending and distinct, until the work runs out.
pub(crate) struct ActiveRules<'a> {
    in_force: &'a BitSet,
    /// The match sets with an index below this have been read.
    from: u32,
    rules: &'a [u32],
    last: Option<u32>,
    work: &'a mut Work,
}

impl Iterator for ActiveRules<'_> {
    type Item = u32;

    fn next(&mut self) -> Option<u32> {
        loop {
            let index = self.in_force.next(self.from)?;
            self.from = index + 1;
            let rule = *self.rules.get(index as usize)?;
            if self.last.replace(rule) != Some(rule) {
                self.work.spend(READ)?;
                return Some(rule);
            }
        }
    }
}

/// A sweep over keys in ascending order. It knows which sets contain the current key.
#[derive(Debug, Default)]
struct Sweep {
    /// The keys at which a set begins or ends, as numbers that sort by key: the upper bits are the key, then comes the
    /// set's number, and the lowest bit says whether the set begins there.
    edges: Vec<u64>,
    /// The sets that contain the current key.
    active: BitSet,
}

impl Sweep {
    fn clear(&mut self) {
        self.edges.clear();
        self.active.clear();
    }

    /// Adds the ranges of a set.
    fn add(&mut self, number: u32, ranges: impl IntoIterator<Item = (u16, u16)>) {
        for (first, last) in ranges {
            if (first, last) == (0, u16::MAX) {
                self.active.insert(number);
                return;
            }
            let edge = |key: u32| u64::from(key) << 33 | u64::from(number) << 1;
            self.edges.push(edge(u32::from(first)) | 1);
            self.edges.push(edge(u32::from(last) + 1));
        }
    }

    /// Visits, from 0 on, each key at which the containing sets change, together with these sets.
    fn sweep(&mut self, mut visit: impl FnMut(u32, &BitSet)) {
        let Self { edges, active: in_force } = self;
        edges.sort_unstable();
        let key = |edge: u64| (edge >> 33) as u32;
        if edges.first().is_none_or(|edge| key(*edge) > 0) {
            visit(0, in_force);
        }
        let mut edges = edges.iter().copied().peekable();
        while let Some(edge) = edges.next() {
            let number = (edge >> 1) as u32;
            if edge & 1 == 1 {
                in_force.insert(number);
            } else {
                in_force.remove(number);
            }
            let here = key(edge);
            if here < NO_KEY && edges.peek().is_none_or(|next| key(*next) > here) {
                visit(here, in_force);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::common::Ranges;
    use crate::image::PacketKey;
    use crate::rows::match_set::MatchSet;
    use proptest::prelude::*;

    fn keys() -> impl Strategy<Value = TableMatch> {
        let range = || {
            let port = prop_oneof![0u16..20, 65_520u16..=65_535];
            prop_oneof![
                1 => Just(Ranges::all()),
                3 => prop::collection::vec((port.clone(), port), 0..3).prop_map(Ranges::union),
            ]
        };
        (range(), range(), any::<bool>()).prop_map(|(keys, sources, bare)| TableMatch {
            keys,
            sources,
            bare,
        })
    }

    proptest! {
        #[test]
        fn a_row_leads_each_packet_to_the_rules_that_claim_it(
            // There are a few sets, or about as many as a word has bits, or more.
            all in prop_oneof![
                9 => prop::collection::vec((0u32..2, keys()), 0..8),
                1 => prop::collection::vec((0u32..2, keys()), 60..140),
            ],
        ) {
            let mut rule = 0;
            let mut distinct = MatchSets::default();
            let matched: Vec<(u32, CompactMatch)> = all.iter().map(|(step, keys)| {
                rule += step;
                let claim = MatchSet(std::array::from_fn(|_| Some(keys.clone())));
                (rule, distinct.intern(claim).unwrap())
            }).collect();
            let mut paths: Vec<Vec<u32>> = Vec::new();
            let mut known = FirstPaths::unknown(all.len());
            let mut interner = RowInterner::default();
            let work = &mut Work::unlimited();
            let row = RowScratch::default().row(&matched, &distinct, &mut known, (&mut interner, work), |rules| {
                let rules: Vec<u32> = rules.collect();
                let at = paths.iter().position(|known| *known == rules);
                let at = at.unwrap_or_else(|| { paths.push(rules); paths.len() - 1 });
                (PathId(at as u32), false)
            });
            let has = |ranges: &Ranges, key| ranges.iter().any(|(a, b)| (a..=b).contains(&key));
            let row = interner.intern_row(row);
            let rules_at = |key, source| {
                let first = interner.lines.first(row, 0).unwrap();
                let path = interner.lines.follow_lines(first, PacketKey::new(0, key, source));
                paths[path.unwrap().0 as usize].clone()
            };
            for key in (0..=21).chain(65_518..=65_535) {
                for source in [0, 5, 19, 20, 65_535] {
                    let matched = matched.iter().zip(&all);
                    let mut expected: Vec<u32> = matched.filter(|(_, (_, keys))| {
                        has(&keys.keys, key) && has(&keys.sources, source)
                    }).map(|((rule, _), _)| *rule).collect();
                    expected.dedup();
                    prop_assert_eq!(rules_at(key.into(), source.into()), expected);
                }
            }
            let mut bare: Vec<u32> = matched.iter().zip(&all)
                .filter(|(_, (_, keys))| keys.bare).map(|((rule, _), _)| *rule).collect();
            bare.dedup();
            prop_assert_eq!(rules_at(NO_KEY, 0), bare);
        }
    }
}
