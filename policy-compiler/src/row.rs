//! What happens to each packet between a chain and a class: the rules that match, laid over each other.

pub(crate) mod firsts;

use crate::claim::{Claimed, Distinct, Keys, OTHERS};
use crate::image::PathId;
use crate::laid::Laid;
use crate::lines::{Interval, NO_KEY, Place, Row, TABLES};

use firsts::{First, Firsts, NOBODY};

/// What making a row needs, to be used again.
#[derive(Debug, Default)]
pub(crate) struct Room {
    sweep: Sweep,
    /// By index of a table's claims their rules.
    rules: Vec<u32>,
    /// The claims of packets that do not show a key.
    bare: Vec<u64>,
    /// Of one table: ascending from key 0, neighbours lead to different places. Packets that do not show the key that their
    /// protocol has are behind all keys.
    intervals: Vec<Interval>,
    by_source: BySource,
    firsts: firsts::Desk,
}

impl Room {
    /// Adds what the claims of some rules come to, ascending; `None` where the first that matches may not be all that matters.
    pub(crate) fn first(
        &mut self,
        claims: &[(u32, Claimed)],
        known: &ByFirst,
        firsts: &mut Firsts,
    ) -> Option<First> {
        let all = claims.iter().all(|(rule, _)| known.path(*rule).is_some());
        if all { firsts.add(claims, &mut self.firsts) } else { None }
    }

    /// [`row`](Self::row) where the rules are those of some that come first; `None` where it is not known to where one leads.
    pub(crate) fn row_of_firsts(
        &mut self,
        firsts: &Firsts,
        all: &[First],
        known: &mut ByFirst,
        laid: &mut Laid,
        decide: impl FnMut(InForce<'_>) -> (PathId, bool),
    ) -> Option<Row> {
        let Self { intervals, firsts: desk, .. } = self;
        let nobody = Paths { known: &mut *known, decide }.of(&[], &[]);
        let mut row = [nobody; TABLES];
        for (table, place) in row.iter_mut().enumerate() {
            intervals.clear();
            for piece in firsts.merged(all, table, desk) {
                let to = if piece.rule == NOBODY { nobody } else { known.path(piece.rule)? };
                push(intervals, Interval { start: piece.start, to });
            }
            if !intervals.is_empty() {
                *place = laid.tree(intervals, Place::by_key);
            }
        }
        Some(row)
    }

    /// The row of rules in order, ascending, each with one of its claims; `decide` says where the rules lead that match one
    /// packet, and whether they lead there whatever matches besides behind the first. What `known` knows it is not asked.
    pub(crate) fn row(
        &mut self,
        claims: &[(u32, Claimed)],
        distinct: &Distinct,
        known: &mut ByFirst,
        laid: &mut Laid,
        decide: impl FnMut(InForce<'_>) -> (PathId, bool),
    ) -> Row {
        let mut paths = Paths { known, decide };
        let mut row = Row::default();
        let tables = claims.iter().fold(0, |all, (_, claimed)| all | distinct.tables(*claimed));
        for (table, place) in row.iter_mut().enumerate().take(OTHERS + 1) {
            *place = if tables >> table & 1 == 0 {
                paths.of(&[], &[])
            } else {
                self.table(table, claims, distinct, &mut paths, laid)
            };
        }
        row
    }

    /// Where a table leads that claims look at: sweeps over the keys with the claims that are in force at each.
    fn table<'d>(
        &mut self,
        table: usize,
        claims: &[(u32, Claimed)],
        distinct: &'d Distinct,
        paths: &mut Paths<'_, impl FnMut(InForce<'_>) -> (PathId, bool)>,
        laid: &mut Laid,
    ) -> Place {
        let Self { sweep, rules, bare, intervals, by_source, .. } = self;
        sweep.clear();
        rules.clear();
        bare.clear();
        intervals.clear();
        // Those that ask for source ports.
        let mut sourced: Vec<(u32, &'d Keys)> = Vec::new();
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
        sweep.over(|start, in_force| {
            let to = if sourced.iter().any(|(index, _)| has(in_force, *index)) {
                by_source.place(in_force, rules, &sourced, paths, laid)
            } else {
                paths.of(in_force, rules)
            };
            push(intervals, Interval { start, to });
        });
        if table != OTHERS {
            let to = paths.of(bare, rules);
            push(intervals, Interval { start: NO_KEY, to });
        }
        laid.tree(intervals, Place::by_key)
    }
}

/// The source ports at one key.
#[derive(Debug, Default)]
struct BySource {
    sweep: Sweep,
    intervals: Vec<Interval>,
}

impl BySource {
    /// Where they lead.
    fn place(
        &mut self,
        in_force: &[u64],
        rules: &[u32],
        sourced: &[(u32, &Keys)],
        paths: &mut Paths<'_, impl FnMut(InForce<'_>) -> (PathId, bool)>,
        laid: &mut Laid,
    ) -> Place {
        let Self { sweep, intervals } = self;
        sweep.clear();
        intervals.clear();
        sweep.in_force.extend_from_slice(in_force);
        for (index, keys) in sourced.iter().filter(|(index, _)| has(in_force, *index)) {
            sweep.in_force[*index as usize / BITS] &= !(1 << (*index as usize % BITS));
            sweep.add(*index, keys.sources.iter());
        }
        sweep.over(|start, in_force| {
            let to = paths.of(in_force, rules);
            push(intervals, Interval { start, to });
        });
        laid.tree(intervals, Place::by_source)
    }
}

/// Adds an interval, if it leads elsewhere than the one before.
fn push(intervals: &mut Vec<Interval>, next: Interval) {
    if intervals.last().is_none_or(|last| last.to != next.to) {
        intervals.push(next);
    }
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
#[derive(Debug, Clone)]
pub(crate) struct ByFirst {
    of: Vec<Option<Place>>,
    nobody: Option<Place>,
}

impl ByFirst {
    /// Knows nothing of so many rules.
    pub(crate) fn of(rules: usize) -> Self {
        Self { of: vec![None; rules], nobody: None }
    }

    /// Where packets are led for which a rule is the first, if that is always so.
    fn path(&self, rule: u32) -> Option<Place> {
        self.of.get(rule as usize).copied().flatten()
    }

    /// Knows of so many rules what `path` says: where they lead with each as the first, as far as that is always so, and where
    /// none does.
    pub(crate) fn foreseen(
        rules: usize,
        mut path: impl FnMut(Option<u32>) -> Option<PathId>,
    ) -> Self {
        let mut place = |first| path(first).map(Place::path);
        let of = (0..rules as u32).map(|rule| place(Some(rule))).collect();
        Self { of, nobody: place(None) }
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
            Some(first) => self.known.path(first),
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
    use crate::lines::Packet;
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
            let mut known = ByFirst::of(all.len());
            let mut laid = Laid::default();
            let row = Room::default().row(&claims, &distinct, &mut known, &mut laid, |rules| {
                let rules: Vec<u32> = rules.collect();
                let at = paths.iter().position(|known| *known == rules);
                let at = at.unwrap_or_else(|| { paths.push(rules); paths.len() - 1 });
                (PathId(at as u32), false)
            });
            let has = |ranges: &Ranges, key| ranges.iter().any(|(a, b)| (a..=b).contains(&key));
            let row = laid.row(row);
            let rules_at = |key, source| {
                let first = laid.lines.first(row, 0).unwrap();
                let path = laid.lines.led(first, Packet::new(0, key, source));
                paths[path.unwrap().0 as usize].clone()
            };
            for key in (0..=21).chain(65_518..=65_535) {
                for source in [0, 5, 19, 20, 65_535] {
                    let claims = claims.iter().zip(&all);
                    let mut expected: Vec<u32> = claims.filter(|(_, (_, keys))| {
                        has(&keys.set, key) && has(&keys.sources, source)
                    }).map(|((rule, _), _)| *rule).collect();
                    expected.dedup();
                    prop_assert_eq!(rules_at(key.into(), source.into()), expected);
                }
            }
            let mut bare: Vec<u32> = claims.iter().zip(&all)
                .filter(|(_, (_, keys))| keys.bare).map(|((rule, _), _)| *rule).collect();
            bare.dedup();
            prop_assert_eq!(rules_at(NO_KEY, 0), bare);
        }
    }
}
