//! The rows of every chain and class, and the paths that they lead to.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use ahash::AHashMap;

use crate::chains::Chains;
use crate::claim::{Claimed, Distinct, Way, ways};
use crate::classes::{NewClass, columns};
use crate::grouped::{Grouped, Occupied};
use crate::image::{ChainId, Identity, LINEAR, LocalFacts, Peers};
use crate::laid::Laid;
use crate::linear::Linear;
use crate::model::{Decision, Direction, Family, Noted, Reason};
use crate::paths::Paths;
use crate::predicates::{Known, Predicates, Truth, family};
use crate::resolve::{Outcome, PredicateId, Resolved, ResolvedList, ResolvedRule, Step};
use crate::row::{ByFirst, Room};

/// The rows, paths and cells that were made, to be used again: a chain that stays costs a copy of its cells.
#[derive(Debug, Default)]
pub(crate) struct Tables {
    pub(crate) paths: Paths,
    pub(crate) rows: Laid,
    chains: AHashMap<ChainKey, ChainCells>,
    /// Of the cells of the chains so far.
    cell_bytes: usize,
    /// With more rows than these it is looked which are in use.
    most_rows: usize,
    /// With more paths than these all is made anew; 0 until they were made once.
    most_paths: usize,
    /// Counts builds.
    turn: u64,
}

/// Where a list is in memory, and the facts of the local end: as long as the list is kept, nothing else is there.
type ChainKey = (usize, LocalFacts);

#[derive(Debug)]
struct ChainCells {
    /// It keeps the place that the key names.
    list: Arc<ResolvedList>,
    /// By class.
    rows: Vec<u32>,
    /// The classes whose rows are to be made.
    unmade: Vec<u32>,
    /// When it was last in use.
    turn: u64,
}

/// Rows and paths without use are kept up to twice as many as those in use, and this many.
const SPARE: usize = 16;

/// The cells of all chains, and the chains that are judged rule by rule.
#[derive(Debug, Default)]
pub(crate) struct Cells {
    pub(crate) all: Vec<u32>,
    pub(crate) linear: BTreeMap<ChainId, Linear>,
}

impl Tables {
    /// Forgets all but the slots: for other classes, or other numbers of predicates.
    pub(crate) fn forget(&mut self) {
        let mut paths = std::mem::take(&mut self.paths);
        paths.forget();
        *self = Self { paths, ..Self::default() };
    }

    /// There are more classes. Each has the row of the one that it comes from where the chain asks nothing in which they
    /// differ, and else one that is to be made.
    pub(crate) fn add_classes(&mut self, new: &[NewClass], predicates: &Predicates) {
        for chain in self.chains.values_mut() {
            for class in new {
                let alike = class.from.filter(|_| !asks(&chain.list, &class.differs, predicates));
                let row = alike.and_then(|it| chain.rows.get(it as usize)).copied();
                if row.is_none() {
                    chain.unmade.push(chain.rows.len() as u32);
                }
                chain.rows.push(row.unwrap_or(LINEAR));
            }
        }
    }

    /// Gives slots to others, but for those of what is unknown; paths have others then.
    pub(crate) fn release(&mut self, slots: &BTreeSet<u32>) {
        self.paths.release(slots);
        self.forget();
    }

    /// The cells of all chains. What is used again rests on the same classes and predicates.
    pub(crate) fn build(
        &mut self,
        budget: usize,
        resolved: &Resolved,
        peers: &Peers,
        chains: &Chains,
    ) -> Cells {
        if self.paths.len() > self.most_paths {
            self.forget();
        }
        let is_fresh = self.rows.lines.len() == 0;
        let mut cells = self.cells(budget, resolved, peers, chains);
        // What does not fit is what does not fit from nothing.
        if self.bytes() > budget && !is_fresh {
            self.forget();
            cells = self.cells(budget, resolved, peers, chains);
        }
        if self.most_paths == 0 {
            self.most_paths = self.paths.len() * 3 + SPARE;
        }
        self.chains.retain(|_, chain| chain.turn == self.turn);
        if self.rows.lines.len() > self.most_rows {
            self.leave_out_unused(&mut cells.all);
            self.most_rows = self.rows.lines.len() * 3 + SPARE;
        }
        cells
    }

    /// Bytes of rows and cells.
    fn bytes(&self) -> usize {
        self.rows.lines.bytes() + self.cell_bytes
    }

    /// Leaves out the rows that are not in use. The numbers of `cells` change with theirs.
    fn leave_out_unused(&mut self, cells: &mut [u32]) {
        let mut in_use = vec![false; self.rows.lines.len()];
        for row in &*cells {
            if let Some(in_use) = in_use.get_mut(*row as usize) {
                *in_use = true;
            }
        }
        if in_use.iter().all(|it| *it) {
            return;
        }
        let numbers = self.rows.leave_out(&in_use);
        let kept = self.chains.values_mut().flat_map(|chain| &mut chain.rows);
        for row in cells.iter_mut().chain(kept) {
            if let Some(Some(number)) = numbers.get(*row as usize) {
                *row = *number;
            }
        }
    }

    fn cells(
        &mut self,
        budget: usize,
        resolved: &Resolved,
        peers: &Peers,
        chains: &Chains,
    ) -> Cells {
        let Peers { predicates, class_truths: classes, .. } = peers;
        for direction in Direction::ALL {
            self.paths.of(Reason::Unknown(direction).into());
        }
        self.turn += 1;
        let mut by_truth = None;
        let mut cells = Cells::default();
        cells.all.reserve(chains.all.len() * classes.len());
        self.cell_bytes = 0;
        for (id, made) in (0..).map(ChainId).zip(&chains.all) {
            let list = &resolved.lists[made.list];
            let rows = made.local.as_ref().and_then(|local| {
                let key = (Arc::as_ptr(list).addr(), local.clone());
                if let Some(known) = self.chains.get_mut(&key).filter(|it| it.unmade.is_empty()) {
                    known.turn = self.turn;
                    self.cell_bytes += size_of_val(&*known.rows);
                    cells.all.extend_from_slice(&known.rows);
                    return Some(());
                }
                let by_truth =
                    by_truth.get_or_insert_with(|| ByTruth::of(classes, predicates.all.len()));
                let kept = match self.chains.remove(&key) {
                    Some(known) => Some((known.rows, known.unmade)),
                    None => self.of_predecessor(list, local, by_truth),
                };
                let rows = ChainRows::new(list, local, predicates);
                let rows = match kept {
                    Some((kept, unmade)) => rows.some(self, kept, &unmade, classes, budget)?,
                    None => rows.cells(self, by_truth, budget)?,
                };
                cells.all.extend_from_slice(&rows);
                let (list, unmade) = (Arc::clone(list), Vec::new());
                self.chains.insert(key, ChainCells { list, rows, unmade, turn: self.turn });
                Some(())
            });
            if rows.is_none() {
                cells.all.extend(std::iter::repeat_n(LINEAR, classes.len()));
                let linear = self.judged_linearly(list, &made.each);
                cells.linear.insert(id, linear);
            }
        }
        cells
    }

    /// The rows of the chain in whose place one comes, and the classes of which a rule speaks in which they differ; `None`
    /// if it takes the place of none, or little would stand.
    fn of_predecessor(
        &self,
        list: &ResolvedList,
        local: &LocalFacts,
        by_truth: &ByTruth,
    ) -> Option<(Vec<u32>, Vec<u32>)> {
        let before = list.before.upgrade()?;
        let known = self.chains.get(&(Arc::as_ptr(&before).addr(), local.clone()))?;
        let mut unmade = known.unmade.clone();
        let most = known.rows.len() / 2;
        for rule in list.differing(&before)? {
            unmade.extend(by_truth.concerned(rule)?);
            if unmade.len() > most {
                return None;
            }
        }
        unmade.sort_unstable();
        unmade.dedup();
        Some((known.rows.clone(), unmade))
    }

    fn judged_linearly(&mut self, list: &ResolvedList, each: &[(Identity, Truth)]) -> Linear {
        let mut path = |reason: &Reason| self.paths.of(reason.clone().into());
        let step_paths = list
            .steps
            .steps
            .iter()
            .map(|step| match &*step.outcome {
                Outcome::Decide(reason) => Some(path(reason)),
                Outcome::Pass(_) | Outcome::Log(_) | Outcome::Staged(_) => None,
            })
            .collect();
        let end_paths = list.steps.ends.iter().map(|end| end.as_ref().map(&mut path)).collect();
        Linear {
            direction: list.list.direction,
            steps: Arc::clone(&list.steps),
            step_paths,
            end_paths,
            own: each.iter().cloned().collect(),
        }
    }
}

/// Whether a list asks any of some predicates of the peer.
fn asks(list: &ResolvedList, some: &[PredicateId], predicates: &Predicates) -> bool {
    let questions = list.peer.questions.iter();
    let answers = questions.flat_map(|question| &predicates.answers[*question as usize]);
    some.iter().any(|it| list.peer.predicates.binary_search(it).is_ok())
        || answers.into_iter().any(|answer| some.contains(&answer.2))
}

/// The classes by what is true of them.
struct ByTruth {
    families: Vec<Option<Family>>,
    /// For each predicate those of which it is true, ascending.
    columns: Grouped,
}

impl ByTruth {
    fn of(classes: &[Truth], predicates: usize) -> Self {
        let families = classes.iter().map(|truth| family(truth)).collect();
        Self { families, columns: columns(classes, predicates) }
    }

    /// The classes that a rule may mean as peers; `None`: any.
    fn concerned(&self, rule: &ResolvedRule) -> Option<Vec<u32>> {
        let mut concerned = Vec::new();
        for entity in &rule.peer.entities {
            let columns = entity.wanted.iter().map(|wanted| self.columns.group(*wanted as usize));
            concerned.extend_from_slice(columns.min_by_key(|column| column.len())?);
        }
        Some(concerned)
    }
}

/// Where so few rows are to be made each step is asked.
const FEW: usize = 8;

/// A step that may match, as rows need it.
#[derive(Clone, Copy)]
struct Ready {
    step: u32,
    tier: u32,
    does: Does,
    ways: Ways,
}

#[derive(Clone, Copy)]
enum Does {
    Decide,
    Pass,
    GoOn,
}

/// The ways in which a step can match.
#[derive(Clone, Copy)]
enum Ways {
    /// What most steps have: it claims the same of every peer of whom a predicate is true; `None`: of every peer.
    One(Option<PredicateId>, Claimed),
    /// Some among those of the family.
    Some { first: u32, end: u32 },
}

/// The steps of a chain, for the peers of a family.
#[derive(Default)]
struct OfFamily<'a> {
    /// For each group of the list's [`StepIndex`] where its steps stand in `ready`, once they were asked for: a row looks at
    /// all of a group, and they are side by side.
    groups: Vec<Option<(u32, u32)>>,
    ready: Vec<Ready>,
    ways: Vec<Way<'a>>,
}

/// Makes the rows of one chain.
struct ChainRows<'a> {
    list: &'a ResolvedList,
    local: &'a LocalFacts,
    predicates: &'a Predicates,
    families: [OfFamily<'a>; 2],
    /// All that is asked of the peer but its family, ascending.
    asked: Vec<PredicateId>,
    /// Where packets are led with nothing noted on the way.
    paths: ByFirst,
    claims: Distinct,
    room: Room,
    /// For one row after the other: steps, each with its place among those of its family that are ready behind it.
    candidates: Vec<u64>,
    claimed: Vec<(u32, Claimed)>,
}

impl<'a> OfFamily<'a> {
    /// Adds the steps of a group.
    fn add_group(
        &mut self,
        group: usize,
        steps: &[u32],
        list: &'a ResolvedList,
        local: &Known<'_>,
        claims: &mut Distinct,
        candidates: &mut Vec<u64>,
    ) {
        let known = self.groups.get(group).copied().flatten();
        let (first, end) = known.unwrap_or_else(|| {
            let first = self.ready.len() as u32;
            for step in steps {
                let ready = self.prepare(*step, list, local, claims);
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
        local: &Known<'_>,
        claims: &mut Distinct,
    ) -> Option<Ready> {
        let step = list.steps.steps.get(index as usize)?;
        if !step.rule.families[local.family as usize] {
            return None;
        }
        let first = self.ways.len();
        ways(&step.rule, list.list.direction, local, claims, |way| self.ways.push(way));
        let ways = match self.ways[first..] {
            [] => return None,
            [Way::Same(wanted, claimed)] => {
                self.ways.truncate(first);
                Ways::One(wanted, claimed)
            }
            _ => Ways::Some { first: first as u32, end: self.ways.len() as u32 },
        };
        let does = match *step.outcome {
            Outcome::Decide(_) => Does::Decide,
            Outcome::Pass(_) => Does::Pass,
            Outcome::Log(_) | Outcome::Staged(_) => Does::GoOn,
        };
        Some(Ready { step: index, tier: step.tier, does, ways })
    }
}

impl<'a> ChainRows<'a> {
    fn new(list: &'a ResolvedList, local: &'a LocalFacts, predicates: &'a Predicates) -> Self {
        Self {
            list,
            local,
            predicates,
            families: Default::default(),
            asked: list.asked_of_peers(&predicates.answers),
            paths: ByFirst::of(list.steps.steps.len()),
            claims: Distinct::default(),
            room: Room::default(),
            candidates: Vec::new(),
            claimed: Vec::new(),
        }
    }

    /// The chain's rows, of which all but some stand; `None` if they would take more than the budget.
    fn some(
        mut self,
        tables: &mut Tables,
        mut rows: Vec<u32>,
        unmade: &[u32],
        classes: &[Truth],
        budget: usize,
    ) -> Option<Vec<u32>> {
        if unmade.len() > FEW {
            self.list.index();
        }
        tables.cell_bytes += size_of_val(&*rows);
        for class in unmade {
            if tables.bytes() > budget {
                return None;
            }
            let truth = classes.get(*class as usize)?;
            let is_asked = |it: &&PredicateId| self.asked.binary_search(it).is_ok();
            let relevant: Vec<PredicateId> = truth.iter().filter(is_asked).copied().collect();
            *rows.get_mut(*class as usize)? = self.row(tables, family(truth)?, &relevant);
        }
        (tables.bytes() <= budget).then_some(rows)
    }

    /// The chain's row for each class; `None` if they would take more than the budget.
    fn cells(mut self, tables: &mut Tables, classes: &ByTruth, budget: usize) -> Option<Vec<u32>> {
        // The predicates of the chain that are true of each class; most classes have none of them.
        let touched = self.asked.iter().flat_map(|predicate| {
            let column = classes.columns.group(*predicate as usize);
            column.iter().map(|class| (*class, *predicate))
        });
        let touched = Occupied::of(classes.families.len(), touched);
        if touched.len() > FEW {
            self.list.index();
        }
        let mut cells = vec![LINEAR; classes.families.len()];
        tables.cell_bytes += size_of_val(&*cells);
        let mut memo: [AHashMap<&[PredicateId], u32>; 2] = Default::default();
        for (class, relevant) in touched.each() {
            if tables.bytes() > budget {
                return None;
            }
            // The two families partition the addresses, so every class has one.
            let family = (*classes.families.get(class)?)?;
            let known = memo[family as usize].entry(relevant);
            *cells.get_mut(class)? = *known.or_insert_with(|| self.row(tables, family, relevant));
        }
        let mut untouched = [None; 2];
        for (cell, family) in cells.iter_mut().zip(&classes.families) {
            if *cell == LINEAR {
                let family = (*family)?;
                let row = &mut untouched[family as usize];
                *cell = *row.get_or_insert_with(|| self.row(tables, family, &[]));
            }
        }
        (tables.bytes() <= budget).then_some(cells)
    }

    /// The row of those of a family of whom, of all that is asked, exactly `truth` is true.
    fn row(&mut self, tables: &mut Tables, family: Family, truth: &[PredicateId]) -> u32 {
        self.claim(family, truth);
        let Self { paths: known, room, claimed, claims, .. } = self;
        let Tables { paths, rows, .. } = tables;
        let steps = &self.list.steps;
        let direction = self.list.list.direction;
        let row = room.row(claimed, claims, known, rows, |matching| {
            let mut noted: Vec<&Noted> = Vec::new();
            let matching = matching.map(|rule| rule as usize);
            let decided = steps.walk(matching, |rule| noted.push(rule));
            let reason = decided.and_then(|decided| steps.reason(decided)).cloned();
            // What is behind the first that matches matters only if that notes something and goes on.
            let always = noted.is_empty();
            let path = paths.of(Decision {
                reason: reason.unwrap_or(Reason::Unknown(direction)),
                noted: noted.into_iter().cloned().collect(),
            });
            (path, always)
        });
        rows.row(row)
    }

    /// The steps that may match those of a family of whom something is true, ascending.
    fn find_candidates(&mut self, truth: &[PredicateId], local: &Known<'_>) {
        let Self { list, candidates, families, claims, .. } = self;
        let of_family = &mut families[local.family as usize];
        candidates.clear();
        let Some(index) = list.index.get() else {
            let may_match = |step: &Step| {
                let mut entities = step.rule.peer.entities.iter();
                entities
                    .any(|it| it.wanted.first().is_none_or(|it| truth.binary_search(it).is_ok()))
            };
            for (at, _) in (0..).zip(&list.steps.steps).filter(|(_, step)| may_match(step)) {
                if let Some(ready) = of_family.prepare(at, list, local, claims) {
                    candidates.push(u64::from(at) << 32 | of_family.ready.len() as u64);
                    of_family.ready.push(ready);
                }
            }
            return;
        };
        let wanting = truth.iter().filter_map(|it| index.wanting(&list.peer, *it));
        for (group, steps) in std::iter::once((0, index.always.as_slice())).chain(wanting) {
            of_family.add_group(group, steps, list, local, claims, candidates);
        }
        candidates.sort_unstable();
        candidates.dedup_by_key(|step| *step >> 32);
    }

    /// What steps claim of those of a family of whom, of all that is asked, exactly `truth` is true.
    fn claim(&mut self, family: Family, truth: &[PredicateId]) {
        let (facts, answers) = (self.local, &self.predicates.answers);
        let local = Known { truth: &facts[family as usize], family, answers };
        let peer = Known { truth, family, answers };
        self.find_candidates(truth, &local);
        let Self { candidates, claimed, families, claims, .. } = self;
        let OfFamily { ready, ways: all_ways, .. } = &families[family as usize];
        claimed.clear();
        // Behind a rule that decides every packet only those of later tiers are asked, and only if a Pass leads there.
        let (mut decided, mut passed) = (None, None);
        for Ready { step, tier, does, ways } in
            candidates.iter().map(|it| ready[*it as u32 as usize])
        {
            if decided == Some(tier) {
                continue;
            }
            let before = claimed.len();
            let holds =
                |it: Option<PredicateId>| it.is_none_or(|it| truth.binary_search(&it).is_ok());
            match ways {
                Ways::One(wanted, claim) if holds(wanted) => claimed.push((step, claim)),
                Ways::One(..) => {}
                Ways::Some { first, end } => {
                    for way in &all_ways[first as usize..end as usize] {
                        let here = match way {
                            Way::Same(wanted, claim) => holds(*wanted).then_some(*claim),
                            Way::Asking(way) => way.claim(&peer, claims),
                        };
                        claimed.extend(here.map(|claim| (step, claim)));
                    }
                }
            }
            match does {
                Does::Pass if claimed.len() > before => passed = Some(tier),
                Does::Decide
                    if claimed[before..].iter().any(|(_, it)| claims.is_everything(*it)) =>
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
