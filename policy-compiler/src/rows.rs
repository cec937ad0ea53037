//! The rows of every chain and class, and the paths that they lead to.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use ahash::AHashMap;

use crate::chains::Chains;
use crate::claim::{Claimed, Distinct, Way, ways};
use crate::classes::{NewClass, columns};
use crate::grouped::{Grouped, Occupied};
use crate::image::{ChainId, Identity, LINEAR, LocalFacts, Path, PathId, Peers};
use crate::linear::Linear;
use crate::lines::{Interval, Lines, Place, Row};
use crate::model::{Decision, Direction, Family, Noted, Reason};
use crate::predicates::{Known, Predicates, Truth, family};
use crate::resolve::{Outcome, PredicateId, Resolved, ResolvedList, ResolvedRule, Step};
use crate::row::{ByFirst, Room, RowContent};
use crate::slots::Slots;

/// The rows, paths and cells that were made, to be used again: a chain that stays costs a copy of its cells.
#[derive(Debug, Default)]
pub(crate) struct Tables {
    /// Those of all paths, for the life of a compiler.
    pub(crate) slots: Slots,
    by_slot: AHashMap<u32, PathId>,
    paths: Vec<Path>,
    /// The same, as images share them.
    published: Arc<[Path]>,
    rows: AHashMap<RowContent, u32>,
    pub(crate) lines: Lines,
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
        *self = Self { slots: std::mem::take(&mut self.slots), ..Self::default() };
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
        self.slots.release(slots);
        self.forget();
    }

    /// All paths.
    pub(crate) fn published_paths(&mut self) -> Arc<[Path]> {
        // They are only added to.
        if self.published.len() != self.paths.len() {
            self.published = self.paths.as_slice().into();
        }
        Arc::clone(&self.published)
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
        let is_fresh = self.rows.is_empty();
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
        if self.lines.rows.len() > self.most_rows {
            self.leave_out_unused(&mut cells.all);
            self.most_rows = self.lines.rows.len() * 3 + SPARE;
        }
        cells
    }

    /// Bytes of rows and cells.
    fn bytes(&self) -> usize {
        self.lines.bytes() + self.cell_bytes
    }

    /// Lays the rows anew that are in use. The numbers of `cells` change with theirs.
    fn leave_out_unused(&mut self, cells: &mut [u32]) {
        let mut numbers: Vec<Option<u32>> = vec![None; self.lines.rows.len()];
        for row in &*cells {
            if let Some(number) = numbers.get_mut(*row as usize) {
                *number = Some(0);
            }
        }
        if numbers.iter().all(Option::is_some) {
            return;
        }
        let all = std::mem::take(&mut self.rows);
        let mut used: Vec<(u32, RowContent)> = all.into_iter().map(|(it, row)| (row, it)).collect();
        used.retain(|(row, _)| numbers[*row as usize].is_some());
        used.sort_unstable_by_key(|(row, _)| *row);
        self.lines = Lines::default();
        for (row, content) in used {
            numbers[row as usize] = Some(self.row(&content));
        }
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
            self.path(Reason::Unknown(direction).into());
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

    fn path(&mut self, decision: Decision) -> PathId {
        let slot = self.slots.of(&decision);
        *self.by_slot.entry(slot).or_insert_with(|| {
            self.paths.push(Path::new(decision, slot));
            PathId(self.paths.len() as u32 - 1)
        })
    }

    fn row(&mut self, content: &RowContent) -> u32 {
        if let Some(row) = self.rows.get(content) {
            return *row;
        }
        let mut row = Row::default();
        for (place, table) in row.iter_mut().zip(content.tables()) {
            *place = self.table(content, table);
        }
        self.lines.rows.push(row);
        self.rows.insert(content.clone(), self.lines.rows.len() as u32 - 1);
        self.lines.rows.len() as u32 - 1
    }

    fn table(&mut self, content: &RowContent, table: &[Interval]) -> Place {
        if table.iter().all(|interval| interval.to.as_by_source().is_none()) {
            return self.lines.tree(table, Place::by_key);
        }
        let mut last = None;
        let mut table = table.to_vec();
        for interval in &mut table {
            if let Some(run) = interval.to.as_by_source() {
                let known = last.filter(|(known, _)| *known == run);
                let (_, to) = known.unwrap_or_else(|| {
                    let run_of = content.runs().nth(run as usize).unwrap_or_default();
                    (run, self.lines.tree(run_of, Place::by_source))
                });
                last = Some((run, to));
                interval.to = to;
            }
        }
        self.lines.tree(&table, Place::by_key)
    }

    fn judged_linearly(&mut self, list: &ResolvedList, each: &[(Identity, Truth)]) -> Linear {
        let mut path = |reason: &Reason| self.path(reason.clone().into());
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

/// Adds the steps that may match those of whom something is true, ascending.
fn candidates_of(list: &ResolvedList, truth: &[PredicateId], candidates: &mut Vec<u32>) {
    let Some(index) = list.index.get() else {
        let may_match = |step: &Step| {
            let mut entities = step.rule.peer.entities.iter();
            entities.any(|it| it.wanted.first().is_none_or(|it| truth.binary_search(it).is_ok()))
        };
        let all = (0..).zip(&list.steps.steps);
        return candidates.extend(all.filter(|(_, step)| may_match(step)).map(|(at, _)| at));
    };
    candidates.extend_from_slice(&index.always);
    for predicate in truth {
        candidates.extend_from_slice(index.wanting(&list.peer, *predicate));
    }
    candidates.sort_unstable();
    candidates.dedup();
}

/// A step as rows need it.
#[derive(Clone, Copy)]
struct Ready {
    /// Its ways among those of its family.
    first: u32,
    end: u32,
    tier: u32,
    does: Does,
}

#[derive(Clone, Copy)]
enum Does {
    Decide,
    Pass,
    GoOn,
}

/// The steps of a chain, for the peers of a family.
#[derive(Default)]
struct OfFamily<'a> {
    /// By step; made when first asked for.
    ready: Vec<Option<Ready>>,
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
    /// For one row after the other.
    candidates: Vec<u32>,
    claimed: Vec<(u32, Claimed)>,
}

impl<'a> OfFamily<'a> {
    fn prepare(
        &mut self,
        index: u32,
        step: &'a Step,
        direction: Direction,
        local: &Known<'_>,
        claims: &mut Distinct,
    ) -> Option<Ready> {
        let first = self.ways.len();
        if step.rule.families[local.family as usize] {
            ways(&step.rule, direction, local, claims, |way| self.ways.push(way));
        }
        let does = match *step.outcome {
            Outcome::Decide(_) => Does::Decide,
            Outcome::Pass(_) => Does::Pass,
            Outcome::Log(_) | Outcome::Staged(_) => Does::GoOn,
        };
        let (first, end) = (first as u32, self.ways.len() as u32);
        let ready = Ready { first, end, tier: step.tier, does };
        *self.ready.get_mut(index as usize)? = Some(ready);
        Some(ready)
    }
}

impl<'a> ChainRows<'a> {
    fn new(list: &'a ResolvedList, local: &'a LocalFacts, predicates: &'a Predicates) -> Self {
        let steps = list.steps.steps.len();
        Self {
            list,
            local,
            predicates,
            families: [(); 2]
                .map(|()| OfFamily { ready: vec![None; steps], ..OfFamily::default() }),
            asked: list.asked_of_peers(&predicates.answers),
            paths: ByFirst::of(steps),
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
        let Self { paths, room, claimed, claims, .. } = self;
        let steps = &self.list.steps;
        let direction = self.list.list.direction;
        let content = RowContent::build(room, claimed, claims, paths, |matching| {
            let mut noted: Vec<&Noted> = Vec::new();
            let matching = matching.map(|rule| rule as usize);
            let decided = steps.walk(matching, |rule| noted.push(rule));
            let reason = decided.and_then(|decided| steps.reason(decided)).cloned();
            // What is behind the first that matches matters only if that notes something and goes on.
            let always = noted.is_empty();
            let path = tables.path(Decision {
                reason: reason.unwrap_or(Reason::Unknown(direction)),
                noted: noted.into_iter().cloned().collect(),
            });
            (path, always)
        });
        tables.row(content)
    }

    /// What steps claim of those of a family of whom, of all that is asked, exactly `truth` is true.
    fn claim(&mut self, family: Family, truth: &[PredicateId]) {
        let Self { candidates, claimed, families, claims, .. } = self;
        let of_family = &mut families[family as usize];
        candidates.clear();
        claimed.clear();
        candidates_of(self.list, truth, candidates);
        let answers = &self.predicates.answers;
        let local = Known { truth: &self.local[family as usize], family, answers };
        let peer = Known { truth, family, answers };
        let direction = self.list.list.direction;
        let steps = &self.list.steps.steps;
        // Behind a rule that decides every packet only those of later tiers are asked, and only if a Pass leads there.
        let (mut decided, mut passed) = (None, None);
        for index in candidates.iter().copied() {
            let known = of_family.ready.get(index as usize).copied().flatten();
            let ready = known.or_else(|| {
                let step = steps.get(index as usize)?;
                of_family.prepare(index, step, direction, &local, claims)
            });
            let Some(Ready { first, end, tier, does }) = ready else { continue };
            if decided == Some(tier) {
                continue;
            }
            let before = claimed.len();
            for way in &of_family.ways[first as usize..end as usize] {
                let here = match way {
                    Way::Same(None, claim) => Some(*claim),
                    Way::Same(Some(wanted), claim) => {
                        truth.binary_search(wanted).is_ok().then_some(*claim)
                    }
                    Way::Asking(way) => way.claim(&peer, claims),
                };
                claimed.extend(here.map(|claim| (index, claim)));
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
