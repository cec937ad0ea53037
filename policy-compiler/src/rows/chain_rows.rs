//! The rows of one chain.
//!
//! The rules of a row form *groups*: one group of the rules that require no predicate of the peer, and for each
//! predicate a group of the rules that require it. The matches of a single group are kept for further rows. The comment
//! at the top of `builder` says how much time this saves.

use super::decide::decide;
use super::first_match::{FirstMatch, FirstMatches};
use super::interner::RowInterner;
use super::match_set::{Alternative, CompactMatch, MatchSets, alternatives, single_alternative};
use super::paths::PathTable;
use super::plan::PlannedChain;
use super::row::{FirstPaths, RowScratch};
use super::until_decided::{StepEffect, UntilDecided};
use super::work::Work;
use crate::image::LocalPredicateSets;
use crate::model::Family;
use crate::peers::{AddressFacts, Predicates};
use crate::resolve::{PredicateId, ResolvedList, Step};

/// The part of a chain that depends only on the list's rules.
#[derive(Debug)]
pub(super) struct PrecomputedList {
    pub(super) paths: FirstPaths,
    ready: Vec<Option<ReadyForAll>>,
}

/// A prepared step that matches the same packets for every local end, and whether it matches each family.
type ReadyForAll = (ReadyStep, [bool; 2]);

impl PrecomputedList {
    /// Prepares the steps that match the same packets for every local end. `paths` are the precomputed paths of the
    /// list.
    pub(super) fn new(list: &ResolvedList, paths: FirstPaths) -> Self {
        let all = (0..).zip(&list.steps.steps).map(|(at, step)| {
            let (wanted, matched, families) = single_alternative(&step.rule, list.list.direction)?;
            Some((ReadyStep::new(at, step, StepMatch::Single(wanted, matched)), families))
        });
        Self { paths, ready: all.collect() }
    }
}

/// A step in the form that rows need. It may match some peers.
#[derive(Debug, Clone, Copy)]
struct ReadyStep {
    step: u32,
    tier: u32,
    effect: StepEffect,
    ways: StepMatch,
}

impl ReadyStep {
    fn new(at: u32, step: &Step, ways: StepMatch) -> Self {
        Self { step: at, tier: step.tier, effect: (&step.outcome).into(), ways }
    }
}

/// The packets that a step matches.
#[derive(Debug, Clone, Copy)]
enum StepMatch {
    /// One match set for every peer that has the predicate, or for every peer if there is no predicate. Most steps are
    /// of this kind.
    Single(Option<PredicateId>, CompactMatch),
    /// Several alternatives, as a range of `FamilySteps::ways`.
    Alternatives { first: u32, end: u32 },
}

/// The steps of a chain for the peers of one family.
#[derive(Default)]
struct FamilySteps<'a> {
    /// For each group of the list's `StepIndex`, the range of the group's steps in `ready`, filled at first use. The
    /// steps of a group are adjacent, because a row reads all of them.
    groups: Vec<Option<(u32, u32)>>,
    ready: Vec<ReadyStep>,
    /// The precomputed steps of the list.
    precomputed: Option<&'a [Option<ReadyForAll>]>,
    /// All steps of the list, prepared in order, if nothing was precomputed and many rows are built. In order, they are
    /// adjacent in memory.
    in_order: Vec<Option<ReadyStep>>,
    ways: Vec<Alternative<'a>>,
    /// The matches of each group of the list's `StepIndex`, computed at first use.
    by_group: Vec<GroupMatch>,
    firsts: FirstMatches,
}

/// The first matches of the steps of one group, if they are known.
#[derive(Clone, Copy, Default)]
enum GroupMatch {
    #[default]
    Unknown,
    First(FirstMatch),
    /// There are no first matches, because some step needs more than its first match, or more than a range of ports.
    More,
}

/// A row is merged from first matches only if it has at most this many groups.
const FEW_GROUPS: usize = 4;

/// Builds the rows of one chain.
pub(super) struct ChainRowBuilder<'a, 'd> {
    list: &'a ResolvedList,
    local: &'a LocalPredicateSets,
    predicates: &'a Predicates,
    /// Whether all steps are prepared in advance: there are so many rows that most steps matter to one of them, and
    /// nothing was precomputed.
    many: bool,
    families: [FamilySteps<'a>; 2],
    /// The paths of packets, by the first rule that matches the packet.
    paths: FirstPaths,
    scratch: &'d mut ChainScratch,
}

/// Memory that is reused from row to row.
#[derive(Default)]
pub(super) struct ChainScratch {
    /// The match sets of all chains. Chains share them, because many chains have equal match sets.
    pub(super) match_sets: MatchSets,
    pub(super) row: RowScratch,
    /// The steps that may match. The upper half of each number is the index of the step in the list, and the lower half
    /// is its index in `ready`.
    candidates: Vec<u64>,
    pub(super) matched: Vec<(u32, CompactMatch)>,
    firsts: Vec<FirstMatch>,
}

impl<'a> FamilySteps<'a> {
    /// The first matches of a group. `None` if the group has none ([`GroupMatch::More`]).
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
                    let StepMatch::Single(_, claim) = ready.ways else { return None };
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

    /// Adds the steps of a group to the candidates.
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

    /// Prepares a step. Returns `None` if it matches no peer of this chain.
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
                StepMatch::Single(wanted, matched)
            }
            _ => StepMatch::Alternatives { first: first as u32, end: self.ways.len() as u32 },
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

    /// The number of the row for the peers of a family of which `predicates_true` are true, and no other predicates
    /// that the chain uses.
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
        // This needs no bound of work: a chain whose rows may take long is built by a walk instead.
        let to = (&mut *rows, &mut Work::unlimited());
        let row = room.row(matched, match_sets, known, to, |matching| {
            let (decision, always) = decide(self.list, matching);
            (paths.intern(decision), always)
        });
        rows.intern_row(row)
    }

    /// Like [`row`](Self::row), but merged from the first matches of a few groups. `None` if a group has no first
    /// matches, or if there are too many groups.
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

    /// Finds the steps that may match peers of a family with these predicates, in ascending order.
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

    /// Collects the match sets of the steps that match the peers of a row. The arguments are those of
    /// [`row`](Self::row).
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
        let mut until = UntilDecided::default();
        for ReadyStep { step, tier, effect: does, ways } in
            candidates.iter().map(|it| ready[*it as u32 as usize])
        {
            if until.skips(tier) {
                continue;
            }
            let before = matched.len();
            let holds = |it: Option<PredicateId>| {
                it.is_none_or(|it| predicates_true.binary_search(&it).is_ok())
            };
            match ways {
                StepMatch::Single(wanted, claim) if holds(wanted) => matched.push((step, claim)),
                StepMatch::Single(..) => {}
                StepMatch::Alternatives { first, end } => {
                    for way in &all_ways[first as usize..end as usize] {
                        let here = match way {
                            Alternative::Fixed(wanted, claim) => holds(*wanted).then_some(*claim),
                            Alternative::Where(entity, claim) => {
                                entity.holds(&peer).then_some(*claim)
                            }
                            Alternative::PerPeer(way) => way.match_peer(&peer, match_sets),
                        };
                        matched.extend(here.map(|claim| (step, claim)));
                    }
                }
            }
            let here = &matched[before..];
            let every_packet = here.iter().any(|(_, it)| match_sets.is_everything(*it));
            if !here.is_empty() && until.ends(does, tier, every_packet) {
                break;
            }
        }
    }
}
