//! The order in which a walk visits rows.

use ahash::AHashMap;

use super::clauses::Clauses;
use super::plan::PlannedChain;
use crate::resolve::PredicateId;

/// The rows of a family in the order of the walk.
pub(super) struct Order {
    /// The predicates by rank: those that are true in most rows come first.
    pub(super) ranked: Vec<PredicateId>,
    /// The number of each row, and the end of its ranks in `ranks`.
    rows: Vec<(usize, usize)>,
    ranks: Vec<u32>,
}

impl Order {
    pub(super) fn new(chain: &PlannedChain<'_>, rows: &[usize]) -> Self {
        let mut counts: AHashMap<PredicateId, u32> = AHashMap::new();
        for row in rows {
            for predicate in chain.row(*row).1 {
                *counts.entry(*predicate).or_default() += 1;
            }
        }
        let mut ranked: Vec<PredicateId> = counts.keys().copied().collect();
        ranked.sort_unstable_by_key(|it| (std::cmp::Reverse(counts[it]), *it));
        for (predicate, rank) in ranked.iter().zip(0..) {
            counts.insert(*predicate, rank);
        }
        let mut unsorted: Vec<u32> = Vec::new();
        let mut places = Vec::with_capacity(rows.len());
        for row in rows {
            let start = unsorted.len();
            unsorted.extend(chain.row(*row).1.iter().map(|it| counts[it]));
            unsorted[start..].sort_unstable();
            places.push((*row, start..unsorted.len()));
        }
        places.sort_by(|(_, one), (_, other)| unsorted[one.clone()].cmp(&unsorted[other.clone()]));
        let mut order = Self { ranked, rows: Vec::with_capacity(rows.len()), ranks: Vec::new() };
        for (row, range) in places {
            order.ranks.extend_from_slice(&unsorted[range]);
            order.rows.push((row, order.ranks.len()));
        }
        order
    }

    /// Each row with its ranks, and the length of the prefix of these ranks with which the next row's ranks also begin.
    pub(super) fn each(&self) -> impl Iterator<Item = (usize, &[u32], usize)> {
        let mut start = 0;
        let ends = self.rows.iter().map(|(_, end)| *end);
        let next_ends = ends.skip(1).chain([self.ranks.len()]);
        self.rows.iter().zip(next_ends).map(move |((row, end), next_end)| {
            let (ranks, next) = (&self.ranks[start..*end], &self.ranks[*end..next_end]);
            start = *end;
            (*row, ranks, ranks.iter().zip(next).take_while(|(one, other)| one == other).count())
        })
    }

    /// The predicates of some ranks, in ascending order. The result is empty if no clause tests the ports of peers,
    /// because then the predicates are not needed.
    pub(super) fn predicates(&self, ranks: &[u32], clauses: &Clauses<'_>) -> Vec<PredicateId> {
        if !clauses.looks_at_ports {
            return Vec::new();
        }
        let mut all: Vec<_> = ranks.iter().map(|rank| self.ranked[*rank as usize]).collect();
        all.sort_unstable();
        all
    }
}
