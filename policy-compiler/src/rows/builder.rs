//! The row builder: it builds the rows of a plan, and the paths to which they lead.
//!
//! The gain: the site of `docs/performance.md` compiles from nothing in 48 ms (goal 50). It took 95 ms without the
//! second thread, without the merging of rows from the results of groups of rules, and without some smaller
//! improvements (`docs/experiments.md`).

use std::ops::Range;
use std::sync::Arc;

use ahash::AHashMap;

use super::chain_rows::{ChainRowBuilder, ChainScratch, PrecomputedList};
use super::decide::decide;
use super::interner::RowInterner;
use super::paths::PathTable;
use super::plan::{PlannedChain, RowPlan};
use super::row::FirstPaths;
use super::walk::Walk;
use super::work::{self, Work};
use crate::common::{PathId, Pinned, Rebuild, join_with};
use crate::image::LINEAR;
use crate::model::{Direction, Reason};
use crate::peers::Predicates;
use crate::resolve::ResolvedList;

/// The rows and paths so far, and the data that is precomputed for further rows.
#[derive(Debug, Default)]
pub(crate) struct RowBuilder {
    pub(crate) paths: PathTable,
    pub(crate) rows: RowInterner,
    /// The number of bytes of the cells of the chains so far.
    pub(crate) cell_bytes: usize,
    precomputed: Precomputed,
    /// The work for all rows so far, as the number of tests of rules and of their predicates.
    pub(crate) looks: u64,
}

/// The precomputed part of each list.
type Precomputed = AHashMap<Pinned<Arc<ResolvedList>>, PrecomputedList>;

/// The rows that were built, in the order of their numbers in the plan. `over_budget` holds the plan's indexes of the
/// chains that exceed the budget of bytes or work.
pub(crate) struct BuiltRows {
    pub(crate) rows: Vec<u32>,
    pub(crate) over_budget: Vec<usize>,
}

/// The sizes above which an optimization is used.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Thresholds {
    /// Above this number of rows, two threads build them.
    pub(crate) rows: usize,
    /// Above this number of rules, a list is long: everything that depends on the list alone is precomputed, if many
    /// rows need it.
    pub(crate) rules: usize,
    /// If the rows of a chain test more rules than this, they may be built by a walk (`walk`). With 0, the rows of
    /// every chain are.
    pub(crate) looks: usize,
    /// The [`Work`] that the walk over a chain may take, in addition to an amount that depends on the chain's size.
    pub(crate) work: usize,
}

impl Default for Thresholds {
    fn default() -> Self {
        Self { rows: 512, rules: 512, looks: 1 << 16, work: work::LEAST }
    }
}

impl Thresholds {
    /// Whether a list is long enough to be precomputed.
    pub(crate) fn is_long(self, list: &ResolvedList) -> bool {
        list.steps.steps.len() > self.rules
    }
}

/// Memory is reserved in advance for at most this many rows, because chains share rows. At most about this many rules
/// are precomputed.
const RESERVE: usize = 1 << 16;

impl RowBuilder {
    /// Creates a builder that has these paths and no rows.
    pub(crate) fn with_paths(paths: PathTable) -> Self {
        Self { paths, ..Self::default() }
    }

    /// The number of bytes of rows and cells.
    pub(crate) fn bytes(&self) -> usize {
        self.rows.lines.bytes() + self.cell_bytes
    }

    /// Creates the first paths, which are those for unknown ends, one for each direction.
    pub(crate) fn begin(&mut self) {
        for direction in Direction::ALL {
            self.paths.intern(Arc::new(Reason::Unknown(direction).into()));
        }
    }

    /// Precomputes everything that rows need from these lists, such as the paths of their rules. Then the rows do not
    /// read the rules again.
    pub(crate) fn precompute<'l>(&mut self, lists: impl Iterator<Item = &'l Arc<ResolvedList>>) {
        let Self { paths, precomputed, .. } = self;
        let mut room = RESERVE.saturating_sub(paths.len());
        for list in lists {
            let rules = list.steps.steps.len();
            let key = Pinned(Arc::clone(list));
            if rules > room || precomputed.contains_key(&key) {
                continue;
            }
            room -= rules;
            paths.reserve(rules);
            let of = FirstPaths::precompute(rules, |first| {
                let (decision, always) = decide(list, first.into_iter());
                always.then(|| paths.intern(decision))
            });
            precomputed.insert(key, PrecomputedList::new(list, of));
        }
    }

    /// Builds all rows of a plan, in order, within a budget. The result does not depend on the number of threads. If
    /// there are two, each builds one half, and then the rows and paths of the second half get the numbers that a
    /// single thread would have given them. Returns `Err` if two threads built more than the budget. In this case it is
    /// not known which rows a single thread would have fitted into the budget, so the builder must no longer be used.
    pub(crate) fn build(
        &mut self,
        plan: &RowPlan<'_>,
        predicates: &Predicates,
        budget: usize,
        scale: Thresholds,
    ) -> Result<BuiltRows, Rebuild> {
        let all = plan.simple_rows;
        let is_long =
            |chain: &&PlannedChain<'_>| scale.is_long(chain.list) && chain.uses_most_steps();
        let long = plan.chains.iter().filter(is_long);
        self.precompute(long.map(|chain| chain.list));
        let precomputed = &std::mem::take(&mut self.precomputed);
        let simple = plan.chains.iter().take(plan.simple);
        self.looks += simple.map(|chain| chain.looks() as u64).sum::<u64>();
        let mut made = if all <= scale.rows {
            self.build_range(plan, 0..all, precomputed, predicates, budget)
        } else {
            self.build_halves(plan, precomputed, predicates, budget)?
        };
        self.walk(plan, precomputed, predicates, (budget, scale.work), &mut made);
        Ok(made)
    }

    /// Builds the rows of all simple chains with two threads.
    fn build_halves(
        &mut self,
        plan: &RowPlan<'_>,
        precomputed: &Precomputed,
        predicates: &Predicates,
        budget: usize,
    ) -> Result<BuiltRows, Rebuild> {
        let all = plan.simple_rows;
        let half = plan.half();
        let mut other = Self::with_paths(PathTable::continuing(&self.paths));
        let (mut first, second) = join_with(
            true,
            || self.build_range(plan, 0..half, precomputed, predicates, budget),
            &mut other,
            |other| other.build_range(plan, half..all, precomputed, predicates, budget),
        );
        let bytes = self.rows.lines.bytes() + other.rows.lines.bytes();
        if !(first.over_budget.is_empty() && second.over_budget.is_empty())
            || bytes + self.cell_bytes + other.cell_bytes > budget
        {
            return Err(Rebuild);
        }
        self.cell_bytes += other.cell_bytes;
        first.rows.extend(self.merge(&other, &second.rows));
        Ok(first)
    }

    /// Builds by walks the rows of the chains that are not simple, within the bounds of work. Each chain may take half
    /// of the remaining budget.
    fn walk(
        &mut self,
        plan: &RowPlan<'_>,
        precomputed: &Precomputed,
        predicates: &Predicates,
        (budget, least): (usize, usize),
        made: &mut BuiltRows,
    ) {
        let mut scratch = ChainScratch::default();
        let walked = || plan.chains.iter().enumerate().skip(plan.simple);
        let work_of = |chain: &PlannedChain<'_>| work::of_chain(chain.size(), least);
        let mut all = work::of_all(walked().map(|(_, chain)| work_of(chain)).max().unwrap_or(0));
        for (at, chain) in walked() {
            let left = budget.saturating_sub(self.bytes() + chain.bytes());
            let mut work = Work::new(work_of(chain).min(all), self.rows.lines.bytes() + left / 2);
            let known = precomputed.get(&Pinned(Arc::clone(chain.list)));
            let unknown = || FirstPaths::unknown(chain.list.steps.steps.len());
            let first = known.map_or_else(unknown, |known| known.paths.clone());
            let mut walk = Walk::new(chain.list, predicates, first, &mut scratch);
            let mut rows = None;
            if left > 0 {
                rows = walk.rows(chain, (&mut self.paths, &mut self.rows), &mut work);
            }
            all -= work.spent();
            self.looks += work.spent() as u64;
            if let Some(rows) = rows {
                self.cell_bytes += chain.bytes();
                made.rows.extend(rows);
            } else {
                made.over_budget.push(at);
                made.rows.resize(chain.rows.end, LINEAR);
            }
        }
    }

    /// Adds all rows of another builder. `rows` are numbers of rows in the other builder. Returns the numbers that
    /// these have in this one.
    fn merge(&mut self, other: &Self, rows: &[u32]) -> Vec<u32> {
        let Self { paths, rows: interner, .. } = self;
        // The number in this builder for each path of the other one. A decision that both have keeps its number here.
        let met: Vec<PathId> =
            other.paths.all().iter().map(|it| paths.intern(Arc::clone(&it.decision))).collect();
        let wanted = vec![true; other.rows.lines.len()];
        let numbers = interner.import(&other.rows.lines, &wanted, |path| {
            let at = path.0.checked_sub(other.paths.first());
            at.and_then(|at| met.get(at as usize)).copied().unwrap_or(path)
        });
        let number = |row: &u32| numbers.get(*row as usize).copied().flatten().unwrap_or(LINEAR);
        rows.iter().map(number).collect()
    }

    /// Builds the rows of simple chains that have the `wanted` numbers in the plan, in order, as long as they fit the
    /// budget.
    fn build_range(
        &mut self,
        plan: &RowPlan<'_>,
        wanted: Range<usize>,
        precomputed: &Precomputed,
        predicates: &Predicates,
        budget: usize,
    ) -> BuiltRows {
        let mut made =
            BuiltRows { rows: Vec::with_capacity(wanted.len()), over_budget: Vec::new() };
        self.rows.reserve(wanted.len().min(RESERVE));
        let mut scratch = ChainScratch::default();
        for (at, chain) in plan.chains.iter().enumerate().take(plan.simple) {
            let rows = chain.rows.start.max(wanted.start)..chain.rows.end.min(wanted.end);
            let is_last = wanted.end == plan.simple_rows;
            if chain.rows.start >= wanted.start && (is_last || chain.rows.start < wanted.end) {
                self.cell_bytes += chain.bytes();
            }
            if !rows.is_empty() {
                let precomputed = precomputed.get(&Pinned(Arc::clone(chain.list)));
                let mut making = ChainRowBuilder::new(chain, precomputed, predicates, &mut scratch);
                for number in rows.clone() {
                    if self.bytes() > budget {
                        break;
                    }
                    let (family, set) = chain.row(number);
                    made.rows.push(making.row((&mut self.paths, &mut self.rows), family, set));
                }
            }
            made.rows.resize(rows.end.max(wanted.start) - wanted.start, LINEAR);
            if self.bytes() > budget {
                made.over_budget.push(at);
            }
        }
        made
    }
}
