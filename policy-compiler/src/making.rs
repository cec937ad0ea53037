//! Makes the rows of a [`Plan`], and the paths that they lead to.

mod chain;

use std::ops::Range;
use std::sync::Arc;

use ahash::AHashMap;

use crate::beside::both_with;
use crate::image::{LINEAR, PathId};
use crate::laid::Laid;
use crate::model::{Decision, Direction, Noted, Reason};
use crate::paths::Paths;
use crate::plan::{Plan, Planned};
use crate::predicates::Predicates;
use crate::resolve::ResolvedList;
use crate::row::ByFirst;

use chain::{ChainRows, Desk, OfList};

/// The rows and paths so far.
#[derive(Debug, Default)]
pub(crate) struct Making {
    pub(crate) paths: Paths,
    pub(crate) rows: Laid,
    /// Bytes of the cells of the chains so far.
    pub(crate) cell_bytes: usize,
    foreseen: Foreseen,
}

/// What follows from lists alone, by where they are in memory.
type Foreseen = AHashMap<usize, OfList>;

/// Rows that were made, by their numbers in the plan, and the chains that would take more than the budget, by theirs.
pub(crate) struct Made {
    pub(crate) rows: Vec<u32>,
    pub(crate) beyond: Vec<usize>,
}

/// From when on something is worth while.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Scale {
    /// With more rows than these two threads make them.
    pub(crate) rows: usize,
    /// Of a list of more rules than these, what follows from it alone is made beforehand, where many rows are made of it.
    pub(crate) rules: usize,
}

impl Default for Scale {
    fn default() -> Self {
        Self { rows: 512, rules: 512 }
    }
}

impl Scale {
    /// Whether a list has more rules than those of which nothing is foreseen.
    pub(crate) fn is_long(self, list: &ResolvedList) -> bool {
        list.steps.steps.len() > self.rules
    }
}

/// For so many paths and rows at most there is room before they are met, for chains share them; and so many rules at most are
/// foreseen.
const ROOM: usize = 1 << 16;

impl Making {
    /// No rows, and paths that there are.
    pub(crate) fn of(paths: Paths) -> Self {
        Self { paths, ..Self::default() }
    }

    /// Bytes of rows and cells.
    pub(crate) fn bytes(&self) -> usize {
        self.rows.lines.bytes() + self.cell_bytes
    }

    /// The first paths are those of what is unknown.
    pub(crate) fn begin(&mut self) {
        for direction in Direction::ALL {
            self.paths.of(Arc::new(Reason::Unknown(direction).into()));
        }
    }

    /// Makes the paths of all rules of lists of which many rows will be made, and what else rows need of them, so that these do
    /// not look at what each rule says.
    pub(crate) fn foresee<'l>(&mut self, lists: impl Iterator<Item = &'l Arc<ResolvedList>>) {
        let Self { paths, foreseen, .. } = self;
        let mut room = ROOM.saturating_sub(paths.len());
        for list in lists {
            let rules = list.steps.steps.len();
            let at = Arc::as_ptr(list).addr();
            if rules > room || foreseen.contains_key(&at) {
                continue;
            }
            room -= rules;
            paths.reserve(rules);
            let of = ByFirst::foreseen(rules, |first| {
                let (decision, always) = decided(list, first.into_iter());
                always.then(|| paths.of(decision))
            });
            foreseen.insert(at, OfList::of(list, of));
        }
    }

    /// Makes all rows of a plan, in order, within a budget. Whether two threads do it cannot be told from what they make:
    /// each makes its half, and the second half's rows and paths then get the numbers that they had got behind the first's.
    /// `None` where two threads made more than the budget: then it depends on the order which rows there are, and this is not
    /// to be used any more.
    pub(crate) fn make(
        &mut self,
        plan: &Plan<'_>,
        predicates: &Predicates,
        budget: usize,
        scale: Scale,
    ) -> Option<Made> {
        let all = plan.rows;
        let is_long = |chain: &&Planned<'_>| scale.is_long(chain.list) && chain.asks_most_steps();
        let long = plan.chains.iter().filter(is_long);
        self.foresee(long.map(|chain| chain.list));
        let foreseen = &std::mem::take(&mut self.foreseen);
        if all <= scale.rows {
            return Some(self.some(plan, 0..all, foreseen, predicates, budget));
        }
        let half = plan.half();
        let mut other = Self::of(Paths::behind(&self.paths));
        let (mut first, second) = both_with(
            true,
            || self.some(plan, 0..half, foreseen, predicates, budget),
            &mut other,
            |other| other.some(plan, half..all, foreseen, predicates, budget),
        );
        let bytes = self.rows.lines.bytes() + other.rows.lines.bytes();
        if !(first.beyond.is_empty() && second.beyond.is_empty())
            || bytes + self.cell_bytes + other.cell_bytes > budget
        {
            return None;
        }
        self.cell_bytes += other.cell_bytes;
        first.rows.extend(self.join(&other, &second.rows));
        Some(first)
    }

    /// The numbers here of rows that were made elsewhere.
    fn join(&mut self, other: &Self, rows: &[u32]) -> Vec<u32> {
        let Self { paths, rows: laid, .. } = self;
        // What both knew has one number.
        let met: Vec<PathId> =
            other.paths.all().iter().map(|it| paths.of(Arc::clone(&it.decision))).collect();
        let wanted = vec![true; other.rows.lines.len()];
        let numbers = laid.take(&other.rows.lines, &wanted, |path| {
            let at = path.0.checked_sub(other.paths.first());
            at.and_then(|at| met.get(at as usize)).copied().unwrap_or(path)
        });
        let number = |row: &u32| numbers.get(*row as usize).copied().flatten().unwrap_or(LINEAR);
        rows.iter().map(number).collect()
    }

    /// Makes some rows of a plan, in order, as long as they fit.
    fn some(
        &mut self,
        plan: &Plan<'_>,
        wanted: Range<usize>,
        foreseen: &Foreseen,
        predicates: &Predicates,
        budget: usize,
    ) -> Made {
        let mut made = Made { rows: Vec::with_capacity(wanted.len()), beyond: Vec::new() };
        self.rows.reserve(wanted.len().min(ROOM));
        let mut desk = Desk::default();
        for (at, chain) in plan.chains.iter().enumerate() {
            let rows = chain.rows.start.max(wanted.start)..chain.rows.end.min(wanted.end);
            let is_last = wanted.end == plan.rows;
            if chain.rows.start >= wanted.start && (is_last || chain.rows.start < wanted.end) {
                self.cell_bytes += chain.bytes();
            }
            if !rows.is_empty() {
                let foreseen = foreseen.get(&Arc::as_ptr(chain.list).addr());
                let mut making = ChainRows::new(chain, foreseen, predicates, &mut desk);
                for number in rows.clone() {
                    if self.bytes() > budget {
                        break;
                    }
                    let (family, truth) = chain.row(number);
                    made.rows.push(making.row(self, family, truth));
                }
            }
            made.rows.resize(rows.end.max(wanted.start) - wanted.start, LINEAR);
            if self.bytes() > budget {
                made.beyond.push(at);
            }
        }
        made
    }
}

/// What decides where these rules of a list match, ascending, and whether it does with the first of them whatever is behind.
fn decided(list: &ResolvedList, matching: impl Iterator<Item = u32>) -> (Arc<Decision>, bool) {
    let ResolvedList { steps, list, .. } = list;
    let mut noted: Vec<&Noted> = Vec::new();
    let matching = matching.map(|rule| rule as usize);
    let decided = steps.walk(matching, |rule| noted.push(rule));
    let decision = decided.and_then(|decided| steps.decision(decided)).cloned();
    let unknown = || Arc::new(Reason::Unknown(list.direction).into());
    let decision = decision.unwrap_or_else(unknown);
    // What is behind the first that matches matters only if that notes something and goes on.
    if noted.is_empty() {
        return (decision, true);
    }
    let noted = noted.into_iter().cloned().collect();
    (Arc::new(Decision { reason: decision.reason.clone(), noted }), false)
}
