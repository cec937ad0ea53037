//! The rows of every chain and class, as they are kept from image to image.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use ahash::AHashMap;

use super::builder::{RowBuilder, Thresholds};
use super::chains::Chains;
use super::partition::{ClassColumns, Partitions};
use super::plan::RowPlan;
use crate::common::{ChainId, Identity};
use crate::image::{LINEAR, Linear, LocalPredicateSets, PeerTables};
use crate::model::Decision;
use crate::peers::{NewClass, PredicateSet, Predicates};
use crate::resolve::{Outcome, PredicateId, Resolved, ResolvedList};

/// The rows, paths and cells that were made, to be used again: a chain that stays costs a copy of its cells.
#[derive(Debug, Default)]
pub(crate) struct RowTables {
    pub(crate) builder: RowBuilder,
    chains: AHashMap<ChainKey, ChainCells>,
    pub(crate) partitions: Partitions,
    /// With more rows than these it is looked which are in use.
    most_rows: usize,
    /// With more paths than these all is made anew; 0 until they were made once.
    most_paths: usize,
    /// Counts builds.
    turn: u64,
    pub(crate) scale: Thresholds,
}

/// Where a list is in memory, and the facts of the local end: as long as the list is kept, nothing else is there.
type ChainKey = (usize, LocalPredicateSets);

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

impl RowTables {
    /// Forgets all but the slots: for other classes, or other numbers of predicates.
    pub(crate) fn forget(&mut self) {
        let mut paths = std::mem::take(&mut self.builder.paths);
        paths.forget();
        *self =
            Self { builder: RowBuilder::with_paths(paths), scale: self.scale, ..Self::default() };
    }

    /// Makes what needs nothing but lists, of long ones of which rows will be made from nothing.
    pub(crate) fn precompute(&mut self, lists: &[Arc<ResolvedList>]) {
        self.builder.begin();
        let scale = self.scale;
        let lists = lists.iter().filter(|list| scale.is_long(list));
        self.builder.precompute(lists.clone());
        for list in lists {
            list.index();
            list.revision();
        }
    }

    /// There are more classes. Each has the row of the one that it comes from where the chain asks nothing in which they
    /// differ, and else one that is to be made.
    pub(crate) fn add_classes(&mut self, new: &[NewClass], predicates: &Predicates) {
        if !new.is_empty() {
            self.partitions = Partitions::default();
        }
        for chain in self.chains.values_mut() {
            for class in new {
                let alike =
                    class.from.filter(|_| !uses_any(&chain.list, &class.differs, predicates));
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
        self.builder.paths.release(slots);
        self.forget();
    }

    /// The cells of all chains. What is used again rests on the same classes and predicates. `by_truth` are the classes by what is
    /// true of them, if somebody knows that already.
    pub(crate) fn build(
        &mut self,
        budget: usize,
        resolved: &Resolved,
        peers: &PeerTables,
        chains: &Chains,
        by_truth: Option<ClassColumns>,
    ) -> Cells {
        if self.most_paths > 0 && self.builder.paths.len() > self.most_paths {
            self.forget();
        }
        let is_fresh = self.builder.rows.lines.len() == 0;
        let scale = self.scale;
        let mut cells = self.cells(budget, (resolved, peers, chains), by_truth, scale);
        // What does not fit is what does not fit from nothing, one chain after the other.
        let fits = cells.is_some() && self.builder.bytes() <= budget;
        if !fits && !is_fresh || cells.is_none() {
            self.forget();
            cells = self.cells(
                budget,
                (resolved, peers, chains),
                None,
                Thresholds { rows: usize::MAX, ..scale },
            );
        }
        let mut cells = cells.unwrap_or_default();
        if self.most_paths == 0 {
            self.most_paths = self.builder.paths.len() * 3 + SPARE;
        }
        self.chains.retain(|_, chain| chain.turn == self.turn);
        let room = budget.saturating_sub(self.builder.bytes());
        self.partitions.evict(self.chains.len(), self.turn, room);
        if self.builder.rows.lines.len() > self.most_rows {
            self.drop_unused_rows(&mut cells.all);
            self.most_rows = self.builder.rows.lines.len() * 3 + SPARE;
        }
        cells
    }

    /// Leaves out the rows that are not in use. The numbers of `cells` change with theirs.
    fn drop_unused_rows(&mut self, cells: &mut [u32]) {
        let mut in_use = vec![false; self.builder.rows.lines.len()];
        for row in &*cells {
            if let Some(in_use) = in_use.get_mut(*row as usize) {
                *in_use = true;
            }
        }
        if in_use.iter().all(|it| *it) {
            return;
        }
        let numbers = self.builder.rows.retain(&in_use);
        let kept = self.chains.values_mut().flat_map(|chain| &mut chain.rows);
        for row in cells.iter_mut().chain(kept) {
            if let Some(Some(number)) = numbers.get(*row as usize) {
                *row = *number;
            }
        }
    }

    /// `None` as [`RowBuilder::build`].
    fn cells(
        &mut self,
        budget: usize,
        (resolved, peers, chains): (&Resolved, &PeerTables, &Chains),
        by_truth: Option<ClassColumns>,
        scale: Thresholds,
    ) -> Option<Cells> {
        let PeerTables { predicates, class_predicate_sets: classes, .. } = peers;
        self.builder.begin();
        self.builder.cell_bytes = 0;
        self.turn += 1;
        let mut by_truth = by_truth.map(Some);
        let mut plan = RowPlan::default();
        // The chains of the plan, and those that have no rows.
        let mut planned: Vec<usize> = Vec::new();
        let mut rowless = vec![true; chains.all.len()];
        let mut all = vec![LINEAR; chains.all.len() * classes.len()];
        let cells_of = |chain: usize| chain * classes.len()..(chain + 1) * classes.len();
        for (at, made) in chains.all.iter().enumerate() {
            let (list, Some(local)) = (&resolved.lists[made.list], &made.local) else { continue };
            let key = (Arc::as_ptr(list).addr(), local.clone());
            if let Some(known) = self.chains.get_mut(&key).filter(|it| it.unmade.is_empty()) {
                known.turn = self.turn;
                self.builder.cell_bytes += size_of_val(&*known.rows);
                all[cells_of(at)].copy_from_slice(&known.rows);
                rowless[at] = false;
                continue;
            }
            let by_truth =
                by_truth.get_or_insert_with(|| ClassColumns::new(classes, predicates.all.len()));
            let Some(by_truth) = by_truth else { continue };
            let kept = match self.chains.get(&key) {
                Some(known) => Some((known.rows.clone(), known.unmade.clone())),
                None => self.reuse_predecessor(list, local, by_truth),
            };
            let answers = &predicates.possible_ports;
            if let Some((rows, unmade)) = kept {
                let stands = (rows, unmade.as_slice());
                if plan.add_some(list, local, stands, classes, answers).is_none() {
                    continue;
                }
            } else {
                let classes = (&*by_truth, &mut self.partitions);
                plan.add_all(list, local, classes, answers, self.turn);
            }
            planned.push(at);
        }
        let made = self.builder.build(&plan, predicates, budget, scale)?;
        for ((number, chain), at) in plan.chains.into_iter().enumerate().zip(&planned) {
            if made.over_budget.contains(&number) {
                continue;
            }
            let (list, key) = (chain.list, (Arc::as_ptr(chain.list).addr(), chain.local.clone()));
            let rows = chain.into_cells(&made.rows);
            all[cells_of(*at)].copy_from_slice(&rows);
            rowless[*at] = false;
            let (list, unmade) = (Arc::clone(list), Vec::new());
            self.chains.insert(key, ChainCells { list, rows, unmade, turn: self.turn });
        }
        let mut linear = BTreeMap::new();
        for ((id, made), _) in (0..).map(ChainId).zip(&chains.all).zip(rowless).filter(|it| it.1) {
            let list = &resolved.lists[made.list];
            linear.insert(id, self.linear_chain(list, &made.each_address));
        }
        Some(Cells { all, linear })
    }

    /// The rows of the chain in whose place one comes, and the classes of which a rule speaks in which they differ; `None`
    /// if it takes the place of none, or little would stand.
    fn reuse_predecessor(
        &self,
        list: &ResolvedList,
        local: &LocalPredicateSets,
        by_truth: &ClassColumns,
    ) -> Option<(Vec<u32>, Vec<u32>)> {
        let before = list.predecessor.upgrade()?;
        let known = self.chains.get(&(Arc::as_ptr(&before).addr(), local.clone()))?;
        let mut unmade = known.unmade.clone();
        let most = known.rows.len() / 2;
        for rule in list.differing_rules(&before)? {
            unmade.extend(by_truth.classes_matching(rule)?);
            if unmade.len() > most {
                return None;
            }
        }
        unmade.sort_unstable();
        unmade.dedup();
        Some((known.rows.clone(), unmade))
    }

    fn linear_chain(&mut self, list: &ResolvedList, each: &[(Identity, PredicateSet)]) -> Linear {
        let mut path = |decision: &Arc<Decision>| self.builder.paths.intern(Arc::clone(decision));
        let step_paths = list
            .steps
            .steps
            .iter()
            .map(|step| match &step.outcome {
                Outcome::Decide(decision) => Some(path(decision)),
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
fn uses_any(list: &ResolvedList, some: &[PredicateId], predicates: &Predicates) -> bool {
    let questions = list.peer.port_sets.iter();
    let answers = questions.flat_map(|question| &predicates.possible_ports[*question as usize]);
    some.iter().any(|it| list.peer.predicates.binary_search(it).is_ok())
        || answers.into_iter().any(|answer| some.contains(&answer.2))
}
