//! Builds the rows of a chain in which many rules may match many peers.
//!
//! The builder of rows (`chain_rows`) collects the rules of each row. This takes *n*² steps if *n* rules may match each
//! of *n* peers. An example is *n* rules that match all addresses except one network, each with another network. The
//! walk goes from one row to the next, and processes only the rules in which the two rows differ:
//!
//! - Each row is a sequence of predicates, those that most peers have first, and the rows are visited in the order of
//!   these sequences. So nets that contain each other form a tree, and the walk enters and leaves each net once.
//! - A set of bits holds the rules that match at the current peers. Entering or leaving a predicate changes only the
//!   bits of the rules that contain the predicate. So for all rows together, these changes cost about as many steps as
//!   there are predicates in the rules.
//! - A row equals an earlier row on the way to it if, since then, no rule has begun to match, and no rule that has
//!   stopped matching had taken a key. Otherwise the row is painted (`painter`): rules claim keys in order until
//!   nothing is left to claim.
//! - Rows with the same matching rules are one row. Sets of matching rules are compared by a hash of 128 bits with
//!   random secret keys.
//!
//! A row that differs from all others still costs one step for each rule that matches it. [`Work`] bounds the total.

use ahash::{AHashMap, RandomState};

use super::chain_rows::ChainScratch;
use super::clauses::Clauses;
use super::decide::decide;
use super::interner::RowInterner;
use super::painter::Painter;
use super::paths::PathTable;
use super::plan::PlannedChain;
use super::row::FirstPaths;
use super::until_decided::UntilDecided;
use super::walk_order::Order;
use super::walk_state::{Active, Flip, Frame, WalkState};
use super::work::Work;
use crate::image::Target;
use crate::model::Family;
use crate::peers::{AddressFacts, Predicates};
use crate::resolve::{PredicateId, ResolvedList};

/// A finished row.
#[derive(Clone, Copy)]
struct MadeRow {
    row: u32,
    /// The clauses that took keys in the row, as a range of `Walk::visible`. `None` means that they are not known, so
    /// any clause may matter.
    visible: Option<(u32, u32)>,
}

/// Walks over the rows of one chain.
pub(super) struct Walk<'a, 'd> {
    list: &'a ResolvedList,
    predicates: &'a Predicates,
    paths: FirstPaths,
    scratch: &'d mut ChainScratch,
    painter: Painter,
    /// For one row after another, the clauses that took keys in the row, in ascending order.
    visible: Vec<u32>,
    hashes: [RandomState; 2],
}

impl<'a, 'd> Walk<'a, 'd> {
    pub(super) fn new(
        list: &'a ResolvedList,
        predicates: &'a Predicates,
        paths: FirstPaths,
        scratch: &'d mut ChainScratch,
    ) -> Self {
        Self {
            list,
            predicates,
            paths,
            scratch,
            painter: Painter::default(),
            visible: Vec::new(),
            hashes: [RandomState::new(), RandomState::new()],
        }
    }

    /// Builds the rows of a chain, and returns their numbers in order. `None` if they take more work than is left.
    pub(super) fn rows(
        &mut self,
        chain: &PlannedChain<'a>,
        (paths, rows): (&mut PathTable, &mut RowInterner),
        work: &mut Work,
    ) -> Option<Vec<u32>> {
        let mut made = vec![0; chain.rows.len()];
        for family in Family::ALL {
            let of_family = chain.rows.clone().filter(|row| chain.row(*row).0 == family);
            let of_family: Vec<usize> = of_family.collect();
            if of_family.is_empty() {
                continue;
            }
            self.rows_of_family(chain, (family, &of_family), (paths, rows), &mut made, work)?;
        }
        Some(made)
    }

    /// Builds the rows of one family, and writes the number of each to its place in `made`. Returns `None` if they take
    /// more work than is left.
    fn rows_of_family(
        &mut self,
        chain: &PlannedChain<'a>,
        (family, of_family): (Family, &[usize]),
        (paths, rows): (&mut PathTable, &mut RowInterner),
        made: &mut [u32],
        work: &mut Work,
    ) -> Option<()> {
        let order = Order::new(chain, of_family);
        let match_sets = &mut self.scratch.match_sets;
        let clauses =
            Clauses::new(chain, family, &order.ranked, self.predicates, match_sets, work)?;
        let mut state = WalkState::new(&clauses, &self.hashes);
        let mut known: AHashMap<u128, MadeRow> = AHashMap::new();
        let mut entered: Vec<Frame> = Vec::new();
        // The rows that were built at the current position or at one with fewer of the same predicates. Each has the
        // number of predicates and the number of flips at its position.
        let mut around: Vec<(usize, usize, MadeRow)> = Vec::new();
        for (row, ranks, fork) in order.each() {
            let same = entered.iter().zip(ranks).take_while(|(one, rank)| one.rank == **rank);
            let same = same.count();
            self.leave_to(same, &mut entered, (&mut state, &clauses), work)?;
            while around.last().is_some_and(|(depth, ..)| *depth > same) {
                around.pop();
            }
            for depth in same..=ranks.len() {
                // A fork is the position from which the ways to this row and to the next one part. The walk builds a
                // row there even if no peer needs it, because the rows after the fork often equal it.
                let is_made = around.last().is_some_and(|(made, ..)| *made == depth);
                if depth == ranks.len() || (depth == fork && !is_made) {
                    let outer = around.last().copied();
                    let outer =
                        outer.filter(|(_, flips, row)| self.is_same(&state, *flips, *row, work));
                    let here = match (outer, known.get(&state.hash)) {
                        (Some((.., same)), _) => same,
                        (None, Some(known)) => *known,
                        (None, None) => {
                            let set = order.predicates(&ranks[..depth], &clauses);
                            let set = (family, set.as_slice());
                            let here = self.row((paths, rows), &clauses, &state, set, work)?;
                            work.fits(rows.lines.bytes())?;
                            known.insert(state.hash, here);
                            here
                        }
                    };
                    around.push((depth, state.flips.len(), here));
                    if depth == ranks.len() {
                        made[row - chain.rows.start] = here.row;
                    }
                }
                if let Some(rank) = ranks.get(depth) {
                    entered.push(Frame { rank: *rank, flips: state.flips.len() });
                    work.spend(state.enter(*rank, &clauses, &self.hashes))?;
                }
            }
        }
        Some(())
    }

    /// Leaves the predicates that were entered after the first `depth`. Returns `None` if this takes more work than is
    /// left.
    fn leave_to(
        &self,
        depth: usize,
        entered: &mut Vec<Frame>,
        (state, clauses): (&mut WalkState, &Clauses<'_>),
        work: &mut Work,
    ) -> Option<()> {
        while entered.len() > depth
            && let Some(frame) = entered.pop()
        {
            work.spend(state.leave(frame, clauses, &self.hashes))?;
        }
        Some(())
    }

    /// Whether the row at the current position certainly equals the row `made`, which was built when there were `flips`
    /// flips. It does if, since then, no port was added, no clause has begun to match, and no clause that has stopped
    /// matching had taken a key.
    fn is_same(&self, state: &WalkState, flips: usize, made: MadeRow, work: &mut Work) -> bool {
        let Some((start, end)) = made.visible else { return state.flips.len() == flips };
        let visible = self.visible.get(start as usize..end as usize).unwrap_or_default();
        let since = state.flips.get(flips..).unwrap_or_default();
        work.note(since.len());
        since.iter().all(|flip| match flip {
            Flip::Clause(clause) => {
                !state.matches(*clause) && visible.binary_search(clause).is_err()
            }
            Flip::Port => false,
        })
    }

    /// Builds a row.
    fn row(
        &mut self,
        (paths, rows): (&mut PathTable, &mut RowInterner),
        clauses: &Clauses<'a>,
        state: &WalkState,
        (family, set): (Family, &[PredicateId]),
        work: &mut Work,
    ) -> Option<MadeRow> {
        let possible_ports = &self.predicates.possible_ports;
        let peer = AddressFacts { predicates: set, family, possible_ports };
        let first = self.visible.len();
        self.painter.begin();
        let mut decided_alone = true;
        let mut active = Active::new(clauses, state);
        while let Some(number) = active.next(self.painter.done) {
            let clause = &clauses.all[number as usize];
            work.spend(clause.steps())?;
            let Some(claim) = clause.claim(&peer, &mut self.scratch.match_sets) else { continue };
            let to = self.paths.path_or(Some(clause.step), || {
                let (decision, always) = decide(self.list, std::iter::once(clause.step));
                always.then(|| paths.intern(decision))
            });
            // If the clause takes no key, it does not matter whether its rule decides alone.
            let painted =
                self.painter.paint(claim, &self.scratch.match_sets, to.unwrap_or(Target::NOWHERE));
            match painted {
                Some(false) => {}
                Some(true) if to.is_some() => self.visible.push(number),
                _ => {
                    decided_alone = false;
                    break;
                }
            }
        }
        let none = self.paths.path_or(None, || {
            let (decision, always) = decide(self.list, std::iter::empty());
            always.then(|| paths.intern(decision))
        });
        if let Some(none) = none.filter(|_| decided_alone) {
            let (row, intervals) = self.painter.row(none, rows);
            work.spend(intervals)?;
            let visible = Some((first as u32, self.visible.len() as u32));
            return Some(MadeRow { row: rows.intern_row(row), visible });
        }
        self.visible.truncate(first);
        let row = self.swept_row((paths, rows), clauses, state, &peer, work)?;
        Some(MadeRow { row, visible: None })
    }

    /// Builds a row in which more than the first matching rule matters.
    fn swept_row(
        &mut self,
        (paths, rows): (&mut PathTable, &mut RowInterner),
        clauses: &Clauses<'a>,
        state: &WalkState,
        peer: &AddressFacts<'_>,
        work: &mut Work,
    ) -> Option<u32> {
        let ChainScratch { row, matched, match_sets, .. } = &mut *self.scratch;
        matched.clear();
        let mut until = UntilDecided::default();
        let mut active = Active::new(clauses, state);
        while let Some(number) = active.next(0) {
            let clause = &clauses.all[number as usize];
            work.spend(clause.steps())?;
            let step = &self.list.steps.steps[clause.step as usize];
            if until.skips(step.tier) {
                continue;
            }
            let Some(claim) = clause.claim(peer, match_sets) else { continue };
            matched.push((clause.step, claim));
            if until.ends((&step.outcome).into(), step.tier, match_sets.is_everything(claim)) {
                break;
            }
        }
        let to = (&mut *rows, &mut *work);
        let row = row.row(matched, match_sets, &mut self.paths, to, |matching| {
            let (decision, always) = decide(self.list, matching);
            (paths.intern(decision), always)
        });
        work.spend(matched.len())?;
        Some(rows.intern_row(row))
    }
}
