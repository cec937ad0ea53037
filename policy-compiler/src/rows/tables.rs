//! The rows of every chain and class, kept from image to image.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use ahash::{AHashMap, AHashSet};

use super::builder::{RowBuilder, Thresholds};
use super::chains::Chains;
use super::partition::{ClassColumns, Partitions};
use super::plan::RowPlan;
use crate::common::{ChainId, Identity, Pinned, Rebuild};
use crate::image::{LINEAR, Linear, LocalPredicateSets, PeerTables};
use crate::model::Decision;
use crate::peers::{NewClass, PredicateSet, Predicates};
use crate::resolve::{PredicateId, Resolved, ResolvedList, RuleEffect};

/// Rows, paths and cells, which are kept for the next image. For a chain that does not change, the next image only
/// copies the cells.
#[derive(Debug, Default)]
pub(crate) struct RowTables {
    pub(crate) builder: RowBuilder,
    chains: AHashMap<ChainKey, ChainCells>,
    pub(crate) partitions: Partitions,
    /// The number of rows above which unused ones are dropped.
    most_rows: usize,
    /// The number of paths above which everything is built again. It is 0 before the first build.
    most_paths: usize,
    /// The number of builds.
    turn: u64,
    pub(crate) scale: Thresholds,
}

/// A list, and the predicates that are true of the local end.
type ChainKey = (Pinned<Arc<ResolvedList>>, LocalPredicateSets);

#[derive(Debug)]
struct ChainCells {
    /// The row of each class.
    rows: Vec<u32>,
    /// The classes whose rows have not been built yet.
    unmade: Vec<u32>,
    /// The turn that last used the chain.
    turn: u64,
    /// Whether the rows of the chain exceeded the budget of bytes or work. If so, the chain is evaluated rule by rule.
    too_dear: bool,
}

/// Unused rows and paths are dropped when the total number exceeds three times the number in use, plus this.
const SPARE: usize = 16;

/// The cells of all chains, and the chains that are evaluated rule by rule.
#[derive(Debug, Default)]
pub(crate) struct Cells {
    pub(crate) all: Vec<u32>,
    pub(crate) linear: BTreeMap<ChainId, Linear>,
}

/// The cells of all chains while they are filled in.
struct Grid {
    /// The cells, by chain and class.
    cells: Vec<u32>,
    classes: usize,
    /// For each chain, whether it has rows.
    has_rows: Vec<bool>,
}

impl Grid {
    fn new(chains: usize, classes: usize) -> Self {
        Self { cells: vec![LINEAR; chains * classes], classes, has_rows: vec![false; chains] }
    }

    fn fill(&mut self, chain: usize, rows: &[u32]) {
        self.cells[chain * self.classes..(chain + 1) * self.classes].copy_from_slice(rows);
        self.has_rows[chain] = true;
    }
}

impl RowTables {
    /// Forgets everything except the slots, because classes or the numbers of predicates change.
    pub(crate) fn forget(&mut self) {
        let mut paths = std::mem::take(&mut self.builder.paths);
        paths.forget();
        let mut builder = RowBuilder::with_paths(paths);
        builder.looks = self.builder.looks;
        *self = Self { builder, scale: self.scale, ..Self::default() };
    }

    /// Precomputes the parts of rows that depend only on the lists, for long lists. Called before a compilation from
    /// nothing.
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

    /// Adds classes. If a chain uses no predicate in which a new class differs from the class that it is derived from,
    /// the two classes share a row. For every other chain, the row of the new class must still be built.
    pub(crate) fn add_classes(&mut self, new: &[NewClass], predicates: &Predicates) {
        if !new.is_empty() {
            self.partitions = Partitions::default();
            self.chains.retain(|_, chain| !chain.too_dear);
        }
        for ((list, _), chain) in &mut self.chains {
            for class in new {
                let alike = class.from.filter(|_| !uses_any(&list.0, &class.differs, predicates));
                let row = alike.and_then(|it| chain.rows.get(it as usize)).copied();
                if row.is_none() {
                    chain.unmade.push(chain.rows.len() as u32);
                }
                chain.rows.push(row.unwrap_or(LINEAR));
            }
        }
    }

    /// Frees counter slots for other decisions, except the slots for unknown ends. All rows and paths are then built
    /// again.
    pub(crate) fn release(&mut self, slots: &BTreeSet<u32>) {
        self.builder.paths.release(slots);
        self.forget();
    }

    /// Builds the cells of all chains. The caller ensures that classes and predicates are the same as for all parts
    /// that are kept. `columns` are the classes of each predicate, if the caller knows them.
    pub(crate) fn build(
        &mut self,
        budget: usize,
        resolved: &Resolved,
        peers: &PeerTables,
        chains: &Chains,
        columns: Option<ClassColumns>,
    ) -> Cells {
        if self.most_paths > 0 && self.builder.paths.len() > self.most_paths {
            self.forget();
        }
        let is_fresh = self.builder.rows.lines.len() == 0;
        let scale = self.scale;
        let mut cells = self.cells(budget, (resolved, peers, chains), columns, scale);
        // If the budget is exceeded, everything is built again from nothing, one chain after another. So it does not
        // depend on earlier images which chains get no rows.
        let fits = cells.is_ok() && self.builder.bytes() <= budget;
        if !fits && !is_fresh || cells.is_err() {
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

    /// Drops unused rows, and renumbers the cells.
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

    /// Returns `Err` as [`RowBuilder::build`] does.
    fn cells(
        &mut self,
        budget: usize,
        (resolved, peers, chains): (&Resolved, &PeerTables, &Chains),
        columns: Option<ClassColumns>,
        scale: Thresholds,
    ) -> Result<Cells, Rebuild> {
        self.builder.begin();
        self.builder.cell_bytes = 0;
        self.turn += 1;
        let mut grid = Grid::new(chains.all.len(), peers.class_predicate_sets.len());
        let plan = self.plan((resolved, peers, chains), columns, &mut grid)?;
        let built = self.builder.build(&plan, &peers.predicates, budget, scale)?;
        let over_budget: AHashSet<usize> = built.over_budget.into_iter().collect();
        let (turn, simple) = (self.turn, plan.simple);
        for (number, chain) in plan.chains.into_iter().enumerate() {
            let key = (Pinned(Arc::clone(chain.list)), chain.local.clone());
            let unmade = Vec::new();
            if over_budget.contains(&number) {
                // A failed walk is expensive, so it is not repeated while the chain's rules and the classes are
                // unchanged.
                if number >= simple {
                    let rows = Vec::new();
                    self.chains.insert(key, ChainCells { rows, unmade, turn, too_dear: true });
                }
                continue;
            }
            let at = chain.at;
            let rows = chain.into_cells(&built.rows);
            grid.fill(at, &rows);
            self.chains.insert(key, ChainCells { rows, unmade, turn, too_dear: false });
        }
        let mut linear = BTreeMap::new();
        for ((id, chain), has_rows) in (0..).map(ChainId).zip(&chains.all).zip(grid.has_rows) {
            if !has_rows {
                let list = &resolved.lists[chain.list];
                linear.insert(id, self.linear_chain(list, &chain.each_address));
            }
        }
        Ok(Cells { all: grid.cells, linear })
    }

    /// Fills in the cells of the chains that do not change. Returns the rows that the other chains need, and the
    /// indexes of these chains.
    fn plan<'a>(
        &mut self,
        (resolved, peers, chains): (&'a Resolved, &PeerTables, &'a Chains),
        columns: Option<ClassColumns>,
        grid: &mut Grid,
    ) -> Result<RowPlan<'a>, Rebuild> {
        let PeerTables { predicates, class_predicate_sets: classes, .. } = peers;
        let mut columns = columns.map(Some);
        let mut plan = RowPlan::default();
        for (at, chain) in chains.all.iter().enumerate() {
            let (list, Some(local)) = (&resolved.lists[chain.list], &chain.local) else { continue };
            let key = (Pinned(Arc::clone(list)), local.clone());
            if let Some(known) = self.chains.get_mut(&key).filter(|it| it.unmade.is_empty()) {
                known.turn = self.turn;
                if known.too_dear {
                    continue;
                }
                self.builder.cell_bytes += size_of_val(&*known.rows);
                grid.fill(at, &known.rows);
                continue;
            }
            let columns =
                columns.get_or_insert_with(|| ClassColumns::new(classes, predicates.all.len()));
            let Some(columns) = columns else { continue };
            let stands = match self.chains.get(&key) {
                Some(known) => Some((known.rows.clone(), known.unmade.clone())),
                None => self.reuse_predecessor(list, local, columns),
            };
            let ports = &predicates.possible_ports;
            if let Some((rows, unmade)) = stands {
                plan.add_some(at, (list, local), (rows, &unmade), classes, ports)?;
            } else {
                plan.add_all(at, (list, local), (columns, &mut self.partitions), ports, self.turn);
            }
        }
        plan.finish(self.scale.looks);
        Ok(plan)
    }

    /// Returns the rows of the chain that this one replaces, and the classes whose rows must be built again: those that
    /// a rule may match which only one of the two chains has. `None` if this chain replaces no chain, or if more than
    /// half of the rows would be built again.
    fn reuse_predecessor(
        &self,
        list: &ResolvedList,
        local: &LocalPredicateSets,
        columns: &ClassColumns,
    ) -> Option<(Vec<u32>, Vec<u32>)> {
        let before = list.predecessor.upgrade()?;
        let known = self.chains.get(&(Pinned(before.clone()), local.clone()))?;
        if known.too_dear {
            return None;
        }
        let mut unmade = known.unmade.clone();
        let most = known.rows.len() / 2;
        for rule in list.differing_rules(&before)? {
            unmade.extend(columns.classes_matching(rule)?);
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
                RuleEffect::Decide(decision) => Some(path(decision)),
                RuleEffect::Pass(_) | RuleEffect::Log(_) | RuleEffect::Staged(_) => None,
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

/// Whether a list uses any of some predicates for the peer.
fn uses_any(list: &ResolvedList, some: &[PredicateId], predicates: &Predicates) -> bool {
    let port_sets = list.peer.port_sets.iter();
    let ports = port_sets.flat_map(|port_set| &predicates.possible_ports[*port_set as usize]);
    some.iter().any(|it| list.peer.predicates.binary_search(it).is_ok())
        || ports.into_iter().any(|port| some.contains(&port.2))
}
