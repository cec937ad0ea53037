//! The rows of one chain.

use super::decide::decide;
use super::first_match::{FirstMatch, FirstMatches};
use super::interner::RowInterner;
use super::match_set::{Alternative, CompactMatch, MatchSets, alternatives, single_alternative};
use super::paths::PathTable;
use super::plan::PlannedChain;
use super::row::{FirstPaths, RowScratch};
use crate::image::LocalPredicateSets;
use crate::model::Family;
use crate::peers::{AddressFacts, Predicates};
use crate::resolve::{Outcome, PredicateId, ResolvedList, Step};

/// What is known of a list's rules before it is known what is true of a local end.
#[derive(Debug)]
pub(super) struct PrecomputedList {
    paths: FirstPaths,
    ready: Vec<Option<ReadyForAll>>,
}

/// A step that matches in the same way whoever the local end is, and the families that it matches.
type ReadyForAll = (ReadyStep, [bool; 2]);

impl PrecomputedList {
    /// Of a list, and where its rules lead.
    pub(super) fn new(list: &ResolvedList, paths: FirstPaths) -> Self {
        let all = (0..).zip(&list.steps.steps).map(|(at, step)| {
            let (wanted, matched) = single_alternative(&step.rule, list.list.direction)?;
            Some((ReadyStep::new(at, step, StepMatch::One(wanted, matched)), step.rule.families))
        });
        Self { paths, ready: all.collect() }
    }
}

/// A step that may match, as rows need it.
#[derive(Debug, Clone, Copy)]
struct ReadyStep {
    step: u32,
    tier: u32,
    effect: StepEffect,
    ways: StepMatch,
}

impl ReadyStep {
    fn new(at: u32, step: &Step, ways: StepMatch) -> Self {
        let does = match step.outcome {
            Outcome::Decide(_) => StepEffect::Decide,
            Outcome::Pass(_) => StepEffect::Pass,
            Outcome::Log(_) | Outcome::Staged(_) => StepEffect::GoOn,
        };
        Self { step: at, tier: step.tier, effect: does, ways }
    }
}

#[derive(Debug, Clone, Copy)]
enum StepEffect {
    Decide,
    Pass,
    GoOn,
}

/// The ways in which a step can match.
#[derive(Debug, Clone, Copy)]
enum StepMatch {
    /// What most steps have: it claims the same of every peer of whom a predicate is true; `None`: of every peer.
    One(Option<PredicateId>, CompactMatch),
    /// Some among those of the family.
    Some { first: u32, end: u32 },
}

/// The steps of a chain, for the peers of a family.
#[derive(Default)]
struct FamilySteps<'a> {
    /// For each group of the list's `StepIndex` where its steps stand in `ready`, once they were asked for: a row looks at
    /// all of a group, and they are side by side.
    groups: Vec<Option<(u32, u32)>>,
    ready: Vec<ReadyStep>,
    /// What was foreseen of the list.
    precomputed: Option<&'a [Option<ReadyForAll>]>,
    /// Else, of many rows, by step what is made ready, which is done in the steps' order: so they are side by side in memory.
    in_order: Vec<Option<ReadyStep>>,
    ways: Vec<Alternative<'a>>,
    /// By group what its steps come to by themselves, once that was asked for.
    by_group: Vec<GroupMatch>,
    firsts: FirstMatches,
}

/// What the steps of a group come to by themselves.
#[derive(Clone, Copy, Default)]
enum GroupMatch {
    #[default]
    Unknown,
    First(FirstMatch),
    /// More than their firsts.
    More,
}

/// With what more groups come to a row is not merged.
const FEW_GROUPS: usize = 4;

/// Makes the rows of one chain.
pub(super) struct ChainRowBuilder<'a, 'd> {
    list: &'a ResolvedList,
    local: &'a LocalPredicateSets,
    predicates: &'a Predicates,
    /// Whether so many rows are made that most steps matter to one, and nothing was foreseen of them.
    many: bool,
    families: [FamilySteps<'a>; 2],
    /// Where packets are led with nothing noted on the way.
    paths: FirstPaths,
    scratch: &'d mut ChainScratch,
}

/// What making rows needs, for one after the other.
#[derive(Default)]
pub(super) struct ChainScratch {
    /// Of all chains: many have the same.
    match_sets: MatchSets,
    row: RowScratch,
    /// Steps, each with its place among those of its family that are ready behind it.
    candidates: Vec<u64>,
    matched: Vec<(u32, CompactMatch)>,
    firsts: Vec<FirstMatch>,
}

impl<'a> FamilySteps<'a> {
    /// What the steps of a group come to by themselves, if that is their firsts.
    fn group_match(
        &mut self,
        (group, steps): (usize, &[u32]),
        family: Family,
        known: &FirstPaths,
        room: &mut RowScratch,
        matched: &mut Vec<(u32, CompactMatch)>,
    ) -> Option<FirstMatch> {
        let Self { by_group, firsts, precomputed, .. } = self;
        if by_group.len() <= group {
            by_group.resize(group + 1, GroupMatch::Unknown);
        }
        if matches!(by_group[group], GroupMatch::Unknown) {
            matched.clear();
            let all = steps.iter().try_for_each(|step| {
                let (ready, families) =
                    precomputed.and_then(|all| all.get(*step as usize)?.as_ref())?;
                if families[family as usize] {
                    let StepMatch::One(_, claim) = ready.ways else { return None };
                    matched.push((*step, claim));
                }
                Some(())
            });
            let first = all.and_then(|()| room.first_match(matched, known, firsts));
            by_group[group] = first.map_or(GroupMatch::More, GroupMatch::First);
        }
        match by_group[group] {
            GroupMatch::First(first) => Some(first),
            GroupMatch::Unknown | GroupMatch::More => None,
        }
    }

    /// Adds the steps of a group.
    fn add_group(
        &mut self,
        group: usize,
        steps: &[u32],
        list: &'a ResolvedList,
        local: &AddressFacts<'_>,
        match_sets: &mut MatchSets,
        candidates: &mut Vec<u64>,
    ) {
        let known = self.groups.get(group).copied().flatten();
        let (first, end) = known.unwrap_or_else(|| {
            let first = self.ready.len() as u32;
            for step in steps {
                let ready = match self.in_order.get(*step as usize) {
                    Some(ready) => *ready,
                    None => self.prepare(*step, list, local, match_sets),
                };
                self.ready.extend(ready);
            }
            let run = (first, self.ready.len() as u32);
            if self.groups.len() <= group {
                self.groups.resize(group + 1, None);
            }
            self.groups[group] = Some(run);
            run
        });
        let places = (first..end).zip(&self.ready[first as usize..end as usize]);
        candidates.extend(places.map(|(at, ready)| u64::from(ready.step) << 32 | u64::from(at)));
    }

    /// `None` for a step that matches nobody here.
    fn prepare(
        &mut self,
        index: u32,
        list: &'a ResolvedList,
        local: &AddressFacts<'_>,
        match_sets: &mut MatchSets,
    ) -> Option<ReadyStep> {
        let precomputed = self.precomputed.and_then(|all| all.get(index as usize)?.as_ref());
        if let Some((ready, families)) = precomputed {
            return families[local.family as usize].then_some(*ready);
        }
        let step = list.steps.steps.get(index as usize)?;
        if !step.rule.families[local.family as usize] {
            return None;
        }
        let first = self.ways.len();
        alternatives(&step.rule, list.list.direction, local, match_sets, |way| self.ways.push(way));
        let ways = match self.ways[first..] {
            [] => return None,
            [Alternative::Fixed(wanted, matched)] => {
                self.ways.truncate(first);
                StepMatch::One(wanted, matched)
            }
            _ => StepMatch::Some { first: first as u32, end: self.ways.len() as u32 },
        };
        Some(ReadyStep::new(index, step, ways))
    }
}

impl<'a, 'd> ChainRowBuilder<'a, 'd> {
    pub(super) fn new(
        chain: &PlannedChain<'a>,
        precomputed: Option<&'a PrecomputedList>,
        predicates: &'a Predicates,
        scratch: &'d mut ChainScratch,
    ) -> Self {
        let PlannedChain { list, local, .. } = chain;
        let many = chain.uses_most_steps() && precomputed.is_none();
        let ready = precomputed.map(|it| it.ready.as_slice());
        let families =
            [(); 2].map(|()| FamilySteps { precomputed: ready, ..FamilySteps::default() });
        let unknown = || FirstPaths::unknown(list.steps.steps.len());
        let paths = precomputed.map_or_else(unknown, |it| it.paths.clone());
        Self { list, local, predicates, many, families, paths, scratch }
    }

    /// The row of those of a family of whom, of all that is asked, exactly `truth` is true.
    pub(super) fn row(
        &mut self,
        (paths, rows): (&mut PathTable, &mut RowInterner),
        family: Family,
        predicates_true: &[PredicateId],
    ) -> u32 {
        if let Some(row) =
            self.row_from_first_matches((&mut *paths, &mut *rows), family, predicates_true)
        {
            return row;
        }
        self.match_peers(family, predicates_true);
        let Self {
            paths: known, scratch: ChainScratch { row: room, matched, match_sets, .. }, ..
        } = self;
        let row = room.row(matched, match_sets, known, rows, |matching| {
            let (decision, always) = decide(self.list, matching);
            (paths.intern(decision), always)
        });
        rows.intern_row(row)
    }

    /// [`row`](Self::row) where it follows from what few groups of steps come to by themselves.
    fn row_from_first_matches(
        &mut self,
        (paths, rows): (&mut PathTable, &mut RowInterner),
        family: Family,
        predicates_true: &[PredicateId],
    ) -> Option<u32> {
        let Self { list, families, paths: known, scratch, .. } = self;
        let ChainScratch { row: room, matched, firsts, .. } = &mut **scratch;
        let of_family = &mut families[family as usize];
        let index = of_family.precomputed.and_then(|_| list.index.get())?;
        firsts.clear();
        let wanting = predicates_true.iter().filter_map(|it| index.group(&list.peer, *it));
        let always = (0, index.always.as_slice());
        for group in [always].into_iter().chain(wanting).filter(|(_, steps)| !steps.is_empty()) {
            if firsts.len() == FEW_GROUPS {
                return None;
            }
            firsts.push(of_family.group_match(group, family, known, room, matched)?);
        }
        let row =
            room.row_from_first_matches(&of_family.firsts, firsts, known, rows, |matching| {
                let (decision, always) = decide(list, matching);
                (paths.intern(decision), always)
            })?;
        Some(rows.intern_row(row))
    }

    /// The steps that may match those of a family of whom something is true, ascending.
    fn find_candidates(&mut self, predicates_true: &[PredicateId], local: &AddressFacts<'_>) {
        let Self {
            list, families, many, scratch: ChainScratch { candidates, match_sets, .. }, ..
        } = self;
        let of_family = &mut families[local.family as usize];
        candidates.clear();
        let Some(index) = list.index.get() else {
            let may_match = |step: &Step| {
                let mut entities = step.rule.peer.entities.iter();
                entities.any(|it| {
                    it.wanted.first().is_none_or(|it| predicates_true.binary_search(it).is_ok())
                })
            };
            for (at, _) in (0..).zip(&list.steps.steps).filter(|(_, step)| may_match(step)) {
                if let Some(ready) = of_family.prepare(at, list, local, match_sets) {
                    candidates.push(u64::from(at) << 32 | of_family.ready.len() as u64);
                    of_family.ready.push(ready);
                }
            }
            return;
        };
        if *many && of_family.in_order.is_empty() {
            let steps = 0..list.steps.steps.len() as u32;
            let in_order = steps.map(|step| of_family.prepare(step, list, local, match_sets));
            of_family.in_order = in_order.collect();
        }
        let wanting = predicates_true.iter().filter_map(|it| index.group(&list.peer, *it));
        for (group, steps) in std::iter::once((0, index.always.as_slice())).chain(wanting) {
            of_family.add_group(group, steps, list, local, match_sets, candidates);
        }
        candidates.sort_unstable();
        candidates.dedup_by_key(|step| *step >> 32);
    }

    /// What steps claim of those of a family of whom, of all that is asked, exactly `truth` is true.
    fn match_peers(&mut self, family: Family, predicates_true: &[PredicateId]) {
        let (facts, ports) = (self.local, &self.predicates.possible_ports);
        let local =
            AddressFacts { predicates: &facts[family as usize], family, possible_ports: ports };
        let peer = AddressFacts { predicates: predicates_true, family, possible_ports: ports };
        self.find_candidates(predicates_true, &local);
        let Self {
            families, scratch: ChainScratch { candidates, matched, match_sets, .. }, ..
        } = self;
        let FamilySteps { ready, ways: all_ways, .. } = &families[family as usize];
        matched.clear();
        // Behind a rule that decides every packet only those of later tiers are asked, and only if a Pass leads there.
        let (mut decided, mut passed) = (None, None);
        for ReadyStep { step, tier, effect: does, ways } in
            candidates.iter().map(|it| ready[*it as u32 as usize])
        {
            if decided == Some(tier) {
                continue;
            }
            let before = matched.len();
            let holds = |it: Option<PredicateId>| {
                it.is_none_or(|it| predicates_true.binary_search(&it).is_ok())
            };
            match ways {
                StepMatch::One(wanted, claim) if holds(wanted) => matched.push((step, claim)),
                StepMatch::One(..) => {}
                StepMatch::Some { first, end } => {
                    for way in &all_ways[first as usize..end as usize] {
                        let here = match way {
                            Alternative::Fixed(wanted, claim) => holds(*wanted).then_some(*claim),
                            Alternative::PerPeer(way) => way.match_peer(&peer, match_sets),
                        };
                        matched.extend(here.map(|claim| (step, claim)));
                    }
                }
            }
            match does {
                StepEffect::Pass if matched.len() > before => passed = Some(tier),
                StepEffect::Decide
                    if matched[before..].iter().any(|(_, it)| match_sets.is_everything(*it)) =>
                {
                    if passed != Some(tier) {
                        break;
                    }
                    decided = Some(tier);
                }
                _ => {}
            }
        }
    }
}
