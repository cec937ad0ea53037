//! The rows of every chain and class, and the paths that they lead to.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::sync::Arc;

use ahash::{AHashMap, AHashSet};

use crate::chains::Chains;
use crate::claim::{Claim, Way, ways};
use crate::classes::columns;
use crate::image::{ChainId, Identity, LINEAR, LocalFacts, Path, PathId, Peers};
use crate::linear::Linear;
use crate::lines::{Interval, Lines, Place};
use crate::model::{Decision, Direction, Family, Noted, Reason};
use crate::predicates::{Known, Predicates, Truth, family};
use crate::resolve::{Decided, Outcome, PredicateId, Resolved, ResolvedList, Step};
use crate::row::{Room, RowContent};
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
    #[expect(dead_code, reason = "it keeps the place that the key names")]
    list: Arc<ResolvedList>,
    /// By class.
    rows: Vec<u32>,
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

    /// There are more classes, each the same to all chains that there are as one that it comes from.
    pub(crate) fn add_classes(&mut self, from: &[u32]) {
        for chain in self.chains.values_mut() {
            for class in from {
                let row = chain.rows.get(*class as usize).copied().unwrap_or(LINEAR);
                chain.rows.push(row);
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
            numbers[row as usize] = Some(self.row(content));
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
                if let Some(known) = self.chains.get_mut(&key) {
                    known.turn = self.turn;
                    self.cell_bytes += size_of_val(&*known.rows);
                    cells.all.extend_from_slice(&known.rows);
                    return Some(());
                }
                let by_truth =
                    by_truth.get_or_insert_with(|| ByTruth::of(classes, predicates.all.len()));
                let rows = ChainRows::new(list, local, predicates);
                let rows = rows.cells(self, by_truth, budget)?;
                cells.all.extend_from_slice(&rows);
                let list = Arc::clone(list);
                self.chains.insert(key, ChainCells { list, rows, turn: self.turn });
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

    fn path(&mut self, decision: Decision) -> PathId {
        let slot = self.slots.of(&decision);
        *self.by_slot.entry(slot).or_insert_with(|| {
            self.paths.push(Path::new(decision, slot));
            PathId(self.paths.len() as u32 - 1)
        })
    }

    fn row(&mut self, content: RowContent) -> u32 {
        if let Some(row) = self.rows.get(&content) {
            return *row;
        }
        let number =
            self.lines.add(content.tables(), |lines, table| by_source(&content, lines, table));
        self.rows.insert(content, number);
        number
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

/// The intervals of a table of a row, with the lines in place of its runs by source port.
fn by_source(content: &RowContent, lines: &mut Lines, table: &[Interval]) -> Vec<Interval> {
    let mut last = None;
    let mut table = table.to_vec();
    for interval in &mut table {
        if let Some(run) = interval.to.as_by_source() {
            let known = last.filter(|(known, _)| *known == run);
            let (_, to) = known.unwrap_or_else(|| {
                let run_of = content.runs().nth(run as usize).unwrap_or_default();
                (run, lines.tree(run_of, Place::by_source))
            });
            last = Some((run, to));
            interval.to = to;
        }
    }
    table
}

/// The classes by what is true of them.
struct ByTruth {
    families: Vec<Option<Family>>,
    /// For each predicate those of which it is true, ascending.
    columns: Vec<Vec<u32>>,
}

impl ByTruth {
    fn of(classes: &[Truth], predicates: usize) -> Self {
        let families = classes.iter().map(|truth| family(truth)).collect();
        Self { families, columns: columns(classes, predicates) }
    }
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

/// A way in which a step can match: what most rows need of it, side by side.
struct Quick {
    wants: Option<PredicateId>,
    /// What it claims of any peer of whom that is true; `None`: it is the [`Way`] that knows.
    claim: Option<Rc<Claim>>,
}

/// The steps of a chain, for the peers of a family.
#[derive(Default)]
struct OfFamily<'a> {
    /// By step; made when first asked for.
    ready: Vec<Option<Ready>>,
    quick: Vec<Quick>,
    ways: Vec<Way<'a>>,
}

/// Makes the rows of one chain.
struct ChainRows<'a> {
    list: &'a ResolvedList,
    local: &'a LocalFacts,
    predicates: &'a Predicates,
    families: [OfFamily<'a>; 2],
    /// Steps that want nothing of the peer.
    always: Vec<usize>,
    /// Steps that want a predicate of the peer, ascending.
    by_predicate: AHashMap<PredicateId, Vec<usize>>,
    /// All that is asked of the peer but its family.
    asked: BTreeSet<PredicateId>,
    /// The paths of decisions with nothing noted on the way: of steps, then of tiers' ends.
    paths: Vec<Option<PathId>>,
    /// The path of packets that no step matches.
    unmatched: Option<PathId>,
    /// The distinct claims: they are few, and stay in the cache.
    claims: AHashSet<Rc<Claim>>,
    room: Room,
    /// For one row after the other.
    candidates: Vec<usize>,
    claimed: Vec<(usize, Rc<Claim>)>,
}

impl<'a> OfFamily<'a> {
    fn prepare(
        &mut self,
        index: usize,
        step: &'a Step,
        direction: Direction,
        local: &Known<'_>,
        claims: &mut AHashSet<Rc<Claim>>,
    ) -> Option<Ready> {
        let first = self.ways.len();
        if step.rule.families[local.family as usize] {
            self.ways.extend(ways(&step.rule, direction, local, claims));
        }
        for way in &self.ways[first..] {
            // The family is not among what rows know to be true.
            let wants = way.wants.filter(|wanted| *wanted >= Family::ALL.len() as PredicateId);
            let claim = way.constant(local.family).filter(|claim| !claim.is_nothing()).cloned();
            self.quick.push(Quick { wants, claim });
        }
        let does = match *step.outcome {
            Outcome::Decide(_) => Does::Decide,
            Outcome::Pass(_) => Does::Pass,
            Outcome::Log(_) | Outcome::Staged(_) => Does::GoOn,
        };
        let (first, end) = (first as u32, self.ways.len() as u32);
        let ready = Ready { first, end, tier: step.tier, does };
        *self.ready.get_mut(index)? = Some(ready);
        Some(ready)
    }
}

impl<'a> ChainRows<'a> {
    fn new(list: &'a ResolvedList, local: &'a LocalFacts, predicates: &'a Predicates) -> Self {
        let steps = list.steps.steps.len();
        let mut rows = Self {
            list,
            local,
            predicates,
            families: [(); 2]
                .map(|()| OfFamily { ready: vec![None; steps], ..OfFamily::default() }),
            always: Vec::new(),
            by_predicate: AHashMap::new(),
            asked: BTreeSet::new(),
            paths: vec![None; steps + list.steps.ends.len()],
            unmatched: None,
            claims: AHashSet::new(),
            room: Room::default(),
            candidates: Vec::new(),
            claimed: Vec::new(),
        };
        for (index, Step { rule, .. }) in list.steps.steps.iter().enumerate() {
            let mut always = false;
            for entity in &rule.peer.entities {
                rows.asked.extend(entity.wanted.iter().chain(&entity.unwanted));
                match entity.wanted.first() {
                    Some(first) => {
                        let by = rows.by_predicate.entry(*first).or_default();
                        if by.last() != Some(&index) {
                            by.push(index);
                        }
                    }
                    None => always = true,
                }
            }
            for question in rule.peer.questions() {
                let answers = &predicates.answers[question as usize];
                rows.asked.extend(answers.iter().map(|answer| answer.2));
            }
            if always {
                rows.always.push(index);
            }
        }
        for family in Family::ALL {
            rows.asked.remove(&(family as u32));
        }
        rows
    }

    /// The chain's row for each class; `None` if they would take more than the budget.
    fn cells(mut self, tables: &mut Tables, classes: &ByTruth, budget: usize) -> Option<Vec<u32>> {
        // The predicates of the chain that are true of each class; most classes have none of them.
        let mut touched: Vec<(u32, PredicateId)> = Vec::new();
        for predicate in &self.asked {
            let column = classes.columns.get(*predicate as usize).into_iter().flatten();
            touched.extend(column.map(|class| (*class, *predicate)));
        }
        touched.sort_unstable();
        let mut cells = vec![LINEAR; classes.families.len()];
        tables.cell_bytes += size_of_val(&*cells);
        let mut memo: [AHashMap<Vec<PredicateId>, u32>; 2] = Default::default();
        for here in touched.chunk_by(|a, b| a.0 == b.0) {
            if tables.bytes() > budget {
                return None;
            }
            let class = here.first()?.0 as usize;
            let family = classes.families[class]?;
            let relevant: Vec<PredicateId> = here.iter().map(|(_, predicate)| *predicate).collect();
            let memo = &mut memo[family as usize];
            let known = memo.get(&relevant).copied();
            let row = known.unwrap_or_else(|| self.row(tables, family, &relevant));
            if known.is_none() {
                memo.insert(relevant, row);
            }
            cells[class] = row;
        }
        let mut untouched = [None; 2];
        for (cell, family) in cells.iter_mut().zip(&classes.families) {
            if *cell == LINEAR {
                // The two families partition the addresses, so every class has one.
                let family = (*family)?;
                let row = &mut untouched[family as usize];
                *cell = *row.get_or_insert_with(|| self.row(tables, family, &[]));
            }
        }
        (tables.bytes() <= budget).then_some(cells)
    }

    /// The row of those of a family of whom, of all that is asked, exactly `truth` is true.
    fn row(&mut self, tables: &mut Tables, family: Family, truth: &[PredicateId]) -> u32 {
        let Self { candidates, claimed, by_predicate, always, families, claims, .. } = self;
        let of_family = &mut families[family as usize];
        candidates.clear();
        claimed.clear();
        candidates.extend(always.iter());
        for of_predicate in truth.iter().filter_map(|predicate| by_predicate.get(predicate)) {
            candidates.extend(of_predicate);
        }
        candidates.sort_unstable();
        candidates.dedup();
        let answers = &self.predicates.answers;
        let local = Known { truth: &self.local[family as usize], family, answers };
        let peer = Known { truth, family, answers };
        let direction = self.list.list.direction;
        let steps = &self.list.steps;
        // Behind a rule that decides every packet only those of later tiers are asked, and only if a Pass leads there.
        let (mut decided, mut passed) = (None, None);
        for index in candidates.iter().copied() {
            let known = of_family.ready.get(index).copied().flatten();
            let ready = known.or_else(|| {
                of_family.prepare(index, steps.steps.get(index)?, direction, &local, claims)
            });
            let Some(Ready { first, end, tier, does }) = ready else { continue };
            if decided == Some(tier) {
                continue;
            }
            let before = claimed.len();
            for at in first as usize..end as usize {
                match &of_family.quick[at] {
                    Quick { wants: Some(wanted), claim: Some(claim) } => {
                        if truth.binary_search(wanted).is_ok() {
                            claimed.push((index, Rc::clone(claim)));
                        }
                    }
                    _ => claimed.extend(of_family.ways[at].claim(&peer).map(|it| (index, it))),
                }
            }
            match does {
                Does::Pass if claimed.len() > before => passed = Some(tier),
                Does::Decide if claimed[before..].iter().any(|(_, it)| it.is_everything()) => {
                    if passed != Some(tier) {
                        break;
                    }
                    decided = Some(tier);
                }
                _ => {}
            }
        }
        let Self { paths, unmatched, room, .. } = self;
        let content = RowContent::build(room, claimed, |matching| {
            let first = matching.next();
            // A step has a path only if it decides wherever it is the first.
            let known = first.map_or(*unmatched, |first| paths.get(first).copied().flatten());
            if let Some(path) = known {
                return path;
            }
            let mut noted: Vec<&Noted> = Vec::new();
            let decided = steps.walk(first.into_iter().chain(matching), |rule| noted.push(rule));
            let at = decided.map(|decided| match decided {
                Decided::Step(index) => index,
                Decided::End(tier) => steps.steps.len() + tier,
            });
            let known = at.filter(|_| noted.is_empty()).and_then(|at| paths.get_mut(at));
            if let Some(Some(path)) = known {
                return *path;
            }
            let reason = decided.and_then(|decided| steps.reason(decided)).cloned();
            let path = tables.path(Decision {
                reason: reason.unwrap_or(Reason::Unknown(direction)),
                noted: noted.into_iter().cloned().collect(),
            });
            if let Some(known) = known {
                *known = Some(path);
            }
            if first.is_none() {
                *unmatched = Some(path);
            }
            path
        });
        tables.row(content)
    }
}
