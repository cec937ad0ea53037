//! The row plan: which rows have to be built. For each class, some of the chain's predicates are true. The chain needs
//! one row for each distinct set of such predicates.
//!
//! The gain: a changed policy costs only the rows of the classes that its rules may match, not those of all classes. In
//! the cluster of `docs/performance.md`, such a change takes 3.0 ms (goal 5), and a whole compilation takes 31 ms.

use std::ops::Range;
use std::sync::Arc;

use super::partition::{ClassColumns, Partition, Partitions, Parts};
use crate::common::Rebuild;
use crate::image::{LINEAR, LocalPredicateSets};
use crate::model::{Direction, Family};
use crate::peers::{PredicateSet, family};
use crate::resolve::{PossiblePorts, PredicateId, ResolvedEnd, ResolvedList, RuleEffect, Step};

/// A chain with at most this many rows needs no step index: each row tries every step of the list.
const FEW_ROWS: usize = 8;

/// The rows to build, numbered chain by chain.
#[derive(Default)]
pub(crate) struct RowPlan<'a> {
    pub(crate) chains: Vec<PlannedChain<'a>>,
    /// The number of rows to build.
    pub(crate) rows: usize,
    /// The number of simple chains, whose rows are built one by one. These come first. The rows of the others are built
    /// by walks.
    pub(crate) simple: usize,
    /// The number of rows of these chains.
    pub(crate) simple_rows: usize,
}

/// A chain that needs rows.
pub(crate) struct PlannedChain<'a> {
    /// Its index among all chains of the image.
    pub(crate) at: usize,
    pub(crate) list: &'a Arc<ResolvedList>,
    pub(crate) local: &'a LocalPredicateSets,
    cells: PlannedCells,
    /// The numbers of its rows.
    pub(crate) rows: Range<usize>,
}

enum PlannedCells {
    /// Every row has to be built.
    Full(Arc<Partition>),
    /// Some rows exist. `rows` holds the row of each class, and `open` holds the classes that need another row, each
    /// with the index of its part in `parts`.
    Incremental { rows: Vec<u32>, open: Vec<(u32, u32)>, parts: Parts },
}

impl<'a> RowPlan<'a> {
    /// The number of rows in the first half of the simple rows. The halves are chosen so that both have about the same
    /// number of rows and of their predicates, because a row with more predicates takes longer.
    pub(crate) fn half(&self) -> usize {
        let simple = self.chains.get(..self.simple).unwrap_or_default();
        let parts = || simple.iter().map(|chain| chain.cells.parts());
        let all = parts().map(|parts| parts.len() + parts.predicates.len()).sum::<usize>();
        let mut before = 0;
        let ends = parts().flat_map(|parts| {
            let first = before;
            before += parts.len() + parts.predicates.len();
            (1..).zip(&parts.all).map(move |(at, (_, end))| first + at + end)
        });
        ends.take_while(|end| end * 2 <= all).count()
    }

    fn add(
        &mut self,
        at: usize,
        (list, local): (&'a Arc<ResolvedList>, &'a LocalPredicateSets),
        cells: PlannedCells,
    ) {
        let rows = self.rows..self.rows + cells.parts().len();
        if rows.len() > FEW_ROWS {
            list.index();
        }
        self.rows = rows.end;
        self.chains.push(PlannedChain { at, list, local, cells, rows });
    }

    /// Ends the planning. Sorts the chains: [expensive](PlannedChain::is_dear) ones come last, in ascending order of
    /// size, so that the simple chains get their rows first. `most` is the limit above which a chain may be expensive.
    pub(crate) fn finish(&mut self, most: usize) {
        let mut keyed: Vec<_> = std::mem::take(&mut self.chains)
            .into_iter()
            .map(|chain| (if chain.is_dear(most) { chain.size() } else { 0 }, chain))
            .collect();
        keyed.sort_by_key(|(size, _)| *size);
        self.simple = keyed.partition_point(|(size, _)| *size == 0);
        self.rows = 0;
        for (at, (_, mut chain)) in keyed.into_iter().enumerate() {
            chain.rows = self.rows..self.rows + chain.rows.len();
            self.rows = chain.rows.end;
            self.simple_rows = if at < self.simple { self.rows } else { self.simple_rows };
            self.chains.push(chain);
        }
    }

    /// Adds a chain that has `rows`, except for the classes `unmade`. Returns `Err` if one of these classes does not
    /// exist.
    pub(crate) fn add_some(
        &mut self,
        at: usize,
        (list, local): (&'a Arc<ResolvedList>, &'a LocalPredicateSets),
        (rows, unmade): (Vec<u32>, &[u32]),
        classes: &[PredicateSet],
        ports: &[PossiblePorts],
    ) -> Result<(), Rebuild> {
        let asked = list.peer_predicates(ports);
        let is_asked = |it: &PredicateId| asked.binary_search(it).is_ok();
        let mut parts = Parts::default();
        let open = unmade.iter().map(|class| {
            let set = classes.get(*class as usize)?;
            let relevant = set.iter().copied().filter(is_asked);
            Some((*class, parts.push(family(set)?, relevant)))
        });
        let open = open.collect::<Option<_>>().ok_or(Rebuild)?;
        self.add(at, (list, local), PlannedCells::Incremental { rows, open, parts });
        Ok(())
    }

    /// Adds a chain of which no row can be reused.
    pub(crate) fn add_all(
        &mut self,
        at: usize,
        (list, local): (&'a Arc<ResolvedList>, &'a LocalPredicateSets),
        (classes, partitions): (&ClassColumns, &mut Partitions),
        ports: &[PossiblePorts],
        turn: u64,
    ) {
        let partition = partitions.get(list.peer_predicates(ports), classes, turn);
        self.add(at, (list, local), PlannedCells::Full(partition));
    }
}

impl PlannedCells {
    fn parts(&self) -> &Parts {
        match self {
            Self::Full(partition) => &partition.parts,
            Self::Incremental { parts, .. } => parts,
        }
    }
}

impl PlannedChain<'_> {
    /// The family of the peers of a row, and those predicates of the chain that are true of these peers.
    pub(crate) fn row(&self, number: usize) -> (Family, &[PredicateId]) {
        self.cells.parts().part(number - self.rows.start)
    }

    /// The sum of four numbers: rules, terms of the rules for peers, rows, and predicates of the rows.
    pub(crate) fn size(&self) -> usize {
        let steps = self.list.steps.steps.iter();
        let named = steps.map(|step| 1 + step.rule.peer.size());
        named.sum::<usize>() + self.rows.len() + self.cells.parts().predicates.len()
    }

    /// The number of tests of rules if the rows are built one by one. Each row tests the alternatives of all rules that
    /// its peers may match, and repeats some tests ([`looks_again`](Self::looks_again)).
    pub(crate) fn looks(&self) -> usize {
        let again = self.rows.len().saturating_mul(self.looks_again());
        self.looks_once().saturating_add(again)
    }

    /// An upper bound of the number of repeated tests in one row: source ports are tested again for each range of keys,
    /// noted rules for each decision, and port sets for each row.
    fn looks_again(&self) -> usize {
        let (mut keys, mut sources, mut noted, mut named) = (1_usize, 0_usize, 0, 0);
        for Step { rule, outcome, .. } in &self.list.steps.steps {
            let [local, peer] = [&rule.local, &rule.peer].map(ResolvedEnd::port_ranges);
            let (source, key) = match self.list.list.direction {
                Direction::Ingress => (peer, local),
                Direction::Egress => (local, peer),
            };
            keys += key.max(1);
            sources += source;
            noted += usize::from(!matches!(outcome, RuleEffect::Decide(_)));
            if rule.peer.port_sets().next().is_some() {
                named += local + peer;
            }
        }
        let each = keys.saturating_mul(1 + sources).saturating_mul(1 + noted);
        if sources + noted == 0 { named } else { each.saturating_add(named) }
    }

    fn looks_once(&self) -> usize {
        let Some(index) = self.list.index.get() else {
            let steps = self.list.steps.steps.iter();
            let each = steps.map(|step| step.rule.peer.entities.len().max(1)).sum::<usize>();
            return self.rows.len() * each;
        };
        let asked = &self.list.peer.predicates;
        let mut sizes = vec![0; asked.last().map_or(0, |last| *last as usize + 1)];
        let (always, wanting) = index.alternatives();
        for (predicate, size) in asked.iter().zip(wanting) {
            sizes[*predicate as usize] = *size;
        }
        let named = self.cells.parts().predicates.iter();
        let wanting = named.filter_map(|predicate| sizes.get(*predicate as usize)).sum::<usize>();
        self.rows.len() * always + wanting
    }

    /// Whether the rows should be built by a walk: if they were built one by one, the number of tests would exceed
    /// `most`, and would also exceed four times the chain's [size](Self::size).
    fn is_dear(&self, most: usize) -> bool {
        const FAR: usize = 4;
        let looks = self.looks();
        most == 0 || (looks > most && looks / FAR > self.size())
    }

    /// Whether there are so many rows (at least one for eight steps) that most steps probably matter to one of them.
    pub(crate) fn uses_most_steps(&self) -> bool {
        self.rows.len() * 8 >= self.list.steps.steps.len()
    }

    /// The number of bytes of its cells.
    pub(crate) fn bytes(&self) -> usize {
        match &self.cells {
            PlannedCells::Full(partition) => size_of_val(&*partition.of_class),
            PlannedCells::Incremental { rows, .. } => size_of_val(&**rows),
        }
    }

    /// The row of each class. `made` are the rows that were built for the whole plan.
    pub(crate) fn into_cells(self, made: &[u32]) -> Vec<u32> {
        let made = made.get(self.rows).unwrap_or_default();
        let made = |part: u32| made.get(part as usize).copied().unwrap_or(LINEAR);
        match self.cells {
            PlannedCells::Full(partition) => {
                partition.of_class.iter().map(|part| made(*part)).collect()
            }
            PlannedCells::Incremental { mut rows, open, .. } => {
                for (class, part) in open {
                    if let Some(row) = rows.get_mut(class as usize) {
                        *row = made(part);
                    }
                }
                rows
            }
        }
    }
}
