//! Finds the members that a selector matches.
//!
//! A selector is evaluated for a whole *domain* at once: a namespace, if it requires one, or all members. For each
//! label in the selector, the members of the domain are grouped once by value. The selector then becomes the same
//! expression over sets of members. So a member's labels are read once for each key, not once for each selector.

use std::ops::Range;

use ahash::AHashMap;

use super::members::{Member, Members, Position, Run};
use crate::common::{LARGE_CLUSTER, Pinned, join};
use crate::selector::{
    Comparison, Labels, NAMESPACE, NAMESPACE_PREFIX, Node, ORCHESTRATOR, Selector, is_reserved,
};

/// A set of members of a domain. Bit *n* stands for the member with place *n*, counted over all members of the domain.
type Bits = Vec<u64>;

fn set_range(bits: &mut Bits, Range { start, end }: Range<usize>) {
    let (first, last) = (start / 64, end.div_ceil(64));
    let below = |bit: usize| if bit >= 64 { u64::MAX } else { (1 << bit) - 1 };
    for (word, at) in bits[first..last].iter_mut().zip(first..) {
        *word |= below(end - at * 64) & !below(start.saturating_sub(at * 64));
    }
}

/// A stored set of members: as runs of places if these are few, or else as bits.
enum PlaceSet {
    Runs(Vec<Range<usize>>),
    Bits(Bits),
}

impl PlaceSet {
    fn add_to(&self, bits: &mut Bits) {
        match self {
            Self::Runs(runs) => {
                for run in runs {
                    set_range(bits, run.clone());
                }
            }
            Self::Bits(all) => bits.iter_mut().zip(all).for_each(|(word, all)| *word |= all),
        }
    }
}

/// The members of a domain, grouped by the value of a label.
struct LabelValues<'m> {
    by_value: AHashMap<&'m str, usize>,
    /// The places of the members that have a value, indexed by the number of the value.
    places: Vec<PlaceSet>,
    /// The number of words of [`Bits`] for this domain.
    words: usize,
}

impl<'m> LabelValues<'m> {
    /// The number of a value.
    fn number(&mut self, value: &'m str) -> usize {
        *self.by_value.entry(value).or_insert_with(|| {
            self.places.push(PlaceSet::Runs(Vec::new()));
            self.places.len() - 1
        })
    }

    /// Adds members that have the value with this number. Their places must come after all places that were added
    /// before.
    fn add(&mut self, number: usize, places: Range<usize>) {
        let Some(all) = self.places.get_mut(number) else { return };
        match all {
            PlaceSet::Bits(bits) => return set_range(bits, places),
            PlaceSet::Runs(runs) => match runs.last_mut() {
                Some(last) if last.end == places.start => last.end = places.end,
                _ => runs.push(places),
            },
        }
        // With this many runs, bits take no more memory than runs.
        if matches!(all, PlaceSet::Runs(runs) if runs.len() * 2 > self.words) {
            let mut bits = vec![0; self.words];
            all.add_to(&mut bits);
            *all = PlaceSet::Bits(bits);
        }
    }

    /// Adds the values of `others`, whose places all come after those in `self`.
    fn append(&mut self, others: Self) {
        for (value, number) in others.by_value {
            let own = self.number(value);
            match &others.places[number] {
                PlaceSet::Runs(runs) => runs.iter().for_each(|run| self.add(own, run.clone())),
                PlaceSet::Bits(others) => {
                    let mut bits = vec![0; self.words];
                    self.places[own].add_to(&mut bits);
                    bits.iter_mut().zip(others).for_each(|(word, other)| *word |= other);
                    self.places[own] = PlaceSet::Bits(bits);
                }
            }
        }
    }
}

struct Domain<'m> {
    /// The runs of members, each with the place of its first member.
    runs: Vec<(usize, Run)>,
    len: usize,
    labels: AHashMap<String, LabelValues<'m>>,
}

impl<'m> Domain<'m> {
    fn from_runs(runs: Vec<Run>) -> Self {
        let mut len = 0;
        let placed = runs.into_iter().map(|run| {
            len += run.len();
            (len - run.len(), run)
        });
        Self { runs: placed.collect(), len, labels: AHashMap::new() }
    }

    fn empty(&self) -> Bits {
        vec![0; self.len.div_ceil(64)]
    }

    fn full(&self) -> Bits {
        let mut all = self.empty();
        set_range(&mut all, 0..self.len);
        all
    }

    fn complement(&self, mut bits: Bits) -> Bits {
        let all = self.full();
        bits.iter_mut().zip(all).for_each(|(word, all)| *word = !*word & all);
        bits
    }

    fn matching(&mut self, members: &'m Members<'_>, selector: &Selector) -> Bits {
        match selector.node() {
            Node::All => self.full(),
            Node::Has(key) => self.with_value(members, key, |_| true),
            Node::Compare { key, how, value } => {
                if *how == Comparison::Equal {
                    return self.equal(members, key, value);
                }
                if *how == Comparison::NotEqual {
                    let equal = self.equal(members, key, value);
                    return self.complement(equal);
                }
                self.with_value(members, key, |found| how.holds(Some(found), value))
            }
            Node::Among { key, values, negated } => {
                let mut among = self.empty();
                for value in values {
                    self.add_equal(members, key, value, &mut among);
                }
                if *negated { self.complement(among) } else { among }
            }
            Node::Not(one) => {
                let bits = self.matching(members, one);
                self.complement(bits)
            }
            Node::And(all) => {
                let mut bits = self.full();
                for one in all {
                    let other = self.matching(members, one);
                    bits.iter_mut().zip(other).for_each(|(word, other)| *word &= other);
                }
                bits
            }
            Node::Or(all) => {
                let mut bits = self.empty();
                for one in all {
                    let other = self.matching(members, one);
                    bits.iter_mut().zip(other).for_each(|(word, other)| *word |= other);
                }
                bits
            }
        }
    }

    fn equal(&mut self, members: &'m Members<'_>, key: &str, value: &str) -> Bits {
        let mut bits = self.empty();
        self.add_equal(members, key, value, &mut bits);
        bits
    }

    fn add_equal(&mut self, members: &'m Members<'_>, key: &str, value: &str, bits: &mut Bits) {
        let values = self.values(members, key);
        if let Some(number) = values.by_value.get(value) {
            values.places[*number].add_to(bits);
        }
    }

    fn with_value(
        &mut self,
        members: &'m Members<'_>,
        key: &str,
        wanted: impl Fn(&str) -> bool,
    ) -> Bits {
        let mut bits = self.empty();
        let values = self.values(members, key);
        for (value, number) in &values.by_value {
            if wanted(value) {
                values.places[*number].add_to(&mut bits);
            }
        }
        bits
    }

    fn values(&mut self, members: &'m Members<'_>, key: &str) -> &LabelValues<'m> {
        if !self.labels.contains_key(key) {
            let words = self.len.div_ceil(64);
            // Reading the labels of many members is slow because of cache misses, so two threads share the work.
            let half = self.runs.partition_point(|(first, _)| first * 2 < self.len);
            let (one, other) = self.runs.split_at(half);
            let (mut values, others) = join(
                self.len >= LARGE_CLUSTER * 4 && !is_reserved(key),
                || collect_values(one, members, key, words),
                || collect_values(other, members, key, words),
            );
            values.append(others);
            self.labels.insert(key.to_owned(), values);
        }
        &self.labels[key]
    }
}

/// Whether a label has the same value for all members of a run.
fn is_run_label(key: &str) -> bool {
    matches!(key, NAMESPACE | ORCHESTRATOR) || key.starts_with(NAMESPACE_PREFIX)
}

fn collect_values<'m>(
    runs: &[(usize, Run)],
    members: &'m Members<'_>,
    key: &str,
    words: usize,
) -> LabelValues<'m> {
    let (of_run, own) = (is_run_label(key), !is_reserved(key));
    let mut values = LabelValues { by_value: AHashMap::new(), places: Vec::new(), words };
    let mut seen = AHashMap::new();
    for (place, run) in runs {
        let in_run = members.all.get(run.clone()).unwrap_or_default();
        let value = |member: &'m Member<'_>| member.view().and_then(|view| view.value(key));
        if of_run {
            if let Some(value) = in_run.first().and_then(value) {
                let number = values.number(value);
                values.add(number, *place..place + in_run.len());
            }
        } else if own && in_run.iter().all(|member| member.own_labels().is_some()) {
            add_own_values(&mut values, &mut seen, in_run, *place, key);
        } else {
            for (member, place) in in_run.iter().zip(*place..) {
                if let Some(value) = value(member) {
                    let number = values.number(value);
                    values.add(number, place..place + 1);
                }
            }
        }
    }
    values
}

/// Adds the values of a label that members have themselves. Pods are scattered in memory, so reading them causes cache
/// misses. The pointers to the label sets of several pods are read first, so that these misses overlap. Many members
/// share one label set. `seen` holds the result for each label set that was read: the number of the label's value in
/// it.
fn add_own_values<'m>(
    values: &mut LabelValues<'m>,
    seen: &mut AHashMap<Pinned<&'m Labels>, Option<usize>>,
    members: &'m [Member<'_>],
    place: usize,
    key: &str,
) {
    const SIDE_BY_SIDE: usize = 64;
    for (members, place) in members.chunks(SIDE_BY_SIDE).zip((place..).step_by(SIDE_BY_SIDE)) {
        let mut all = [None; SIDE_BY_SIDE];
        for (labels, member) in all.iter_mut().zip(members) {
            *labels = member.own_labels();
        }
        for (labels, place) in all.into_iter().flatten().zip(place..) {
            let number = seen
                .entry(Pinned(labels))
                .or_insert_with(|| labels.get(key).map(|value| values.number(value)));
            if let Some(number) = number {
                values.add(*number, place..place + 1);
            }
        }
    }
}

/// An index of the members by label values.
pub(crate) struct SelectorIndex<'m> {
    members: &'m Members<'m>,
    everywhere: Domain<'m>,
    namespaces: AHashMap<String, Domain<'m>>,
}

impl<'m> SelectorIndex<'m> {
    pub(crate) fn new(members: &'m Members<'m>) -> Self {
        let everywhere = Domain::from_runs(members.runs.clone());
        Self { members, everywhere, namespaces: AHashMap::new() }
    }

    /// Visits the members that match a selector.
    pub(crate) fn matching(&mut self, selector: &Selector, mut visit: impl FnMut(Position)) {
        let members = self.members;
        self.each_domain(selector, |domain| match_domain(domain, members, selector, &mut visit));
    }

    /// Returns the number of pods that match a selector, and visits the members that match and are not pods. Pods are
    /// counted without a visit to each.
    pub(crate) fn count(&mut self, selector: &Selector, mut visit: impl FnMut(Position)) -> usize {
        let members = self.members;
        let mut count = 0;
        self.each_domain(selector, |domain| {
            let mut bits = domain.matching(members, selector);
            // Pods come first.
            let of_pods = domain.runs.partition_point(|(_, run)| run.start < members.sets);
            let pods = domain.runs[..of_pods].last().map_or(0, |(first, run)| first + run.len());
            let mut all = domain.empty();
            set_range(&mut all, 0..pods);
            for (word, pods) in bits.iter_mut().zip(all) {
                count += (*word & pods).count_ones() as usize;
                *word &= !pods;
            }
            visit_members(&domain.runs, places(bits), &mut visit);
        });
        count
    }

    /// Visits the domains whose members may match a selector.
    fn each_domain(&mut self, selector: &Selector, mut visit: impl FnMut(&mut Domain<'m>)) {
        let members = self.members;
        let Some(namespaces) = selector.required_values(NAMESPACE) else {
            return visit(&mut self.everywhere);
        };
        for namespace in namespaces {
            if !self.namespaces.contains_key(namespace) {
                let runs = members.runs_in(namespace).cloned().collect();
                self.namespaces.insert(namespace.to_owned(), Domain::from_runs(runs));
            }
            if let Some(domain) = self.namespaces.get_mut(namespace) {
                visit(domain);
            }
        }
    }
}

fn match_domain<'m>(
    domain: &mut Domain<'m>,
    members: &'m Members<'m>,
    selector: &Selector,
    visit: &mut impl FnMut(Position),
) {
    // This is the fast path for most selectors of network sets: they require one value of one label, which few members
    // have.
    if let Node::Compare { key, how: Comparison::Equal, value } = selector.node() {
        domain.values(members, key);
        let Domain { runs, labels, .. } = domain;
        let number = |values: &LabelValues<'_>| values.by_value.get(value.as_str()).copied();
        let Some((values, number)) = labels.get(key).and_then(|it| Some((it, number(it)?))) else {
            return;
        };
        if let Some(PlaceSet::Runs(places)) = values.places.get(number) {
            return visit_members(runs, places.iter().cloned().flatten(), visit);
        }
    }
    let bits = domain.matching(members, selector);
    visit_members(&domain.runs, places(bits), visit);
}

/// The places in a set, in ascending order.
fn places(bits: Bits) -> impl Iterator<Item = usize> {
    bits.into_iter().zip(0..).flat_map(|(word, at)| {
        let mut rest = word;
        std::iter::from_fn(move || {
            let bit = (rest != 0).then(|| rest.trailing_zeros() as usize)?;
            rest &= rest - 1;
            Some(at * 64 + bit)
        })
    })
}

/// Visits the members at some places of a domain. `runs` are the runs of the domain, and `places` must be in ascending
/// order.
fn visit_members(
    runs: &[(usize, Run)],
    places: impl Iterator<Item = usize>,
    visit: &mut impl FnMut(Position),
) {
    // The places of the current run, and the number that is added to such a place to get the member's position.
    let (mut run, mut shift) = (0..0, 0);
    for place in places {
        if !run.contains(&place) {
            let after = runs.partition_point(|(first, _)| *first <= place);
            let Some((first, here)) = runs[..after].last() else { continue };
            (run, shift) = (*first..first + here.len(), here.start - first);
        }
        visit(place + shift);
    }
}
