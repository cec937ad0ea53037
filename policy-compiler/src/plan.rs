//! Which rows are to be made: of each chain one for every truth that classes have, of all that the chain asks.

use std::ops::Range;
use std::sync::Arc;

use ahash::AHashMap;

use crate::classes::columns;
use crate::grouped::{Grouped, Occupied};
use crate::image::{LINEAR, LocalFacts};
use crate::model::Family;
use crate::predicates::{Answers, Truth, family};
use crate::resolve::{PredicateId, ResolvedList, ResolvedRule};

/// The classes by what is true of them.
pub(crate) struct ByTruth {
    families: Vec<Family>,
    /// For each predicate those of which it is true, ascending.
    columns: Grouped,
}

impl ByTruth {
    /// The two families partition the addresses, so every class has one; `None` where one has none.
    pub(crate) fn of(classes: &[Truth], predicates: usize) -> Option<Self> {
        let families = classes.iter().map(|truth| family(truth)).collect::<Option<_>>()?;
        Some(Self { families, columns: columns(classes, predicates) })
    }

    /// The classes that a rule may mean as peers; `None`: any.
    pub(crate) fn concerned(&self, rule: &ResolvedRule) -> Option<Vec<u32>> {
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

/// No row.
const NONE: u32 = u32::MAX;

/// Rows to be made, chain by chain, by number.
#[derive(Default)]
pub(crate) struct Plan<'a> {
    pub(crate) chains: Vec<Planned<'a>>,
    rows: Vec<(Family, usize)>,
    /// What is true for each row, one behind the other; each ends where `rows` says.
    truths: Vec<PredicateId>,
}

/// A chain of which rows are to be made.
pub(crate) struct Planned<'a> {
    pub(crate) list: &'a Arc<ResolvedList>,
    pub(crate) local: &'a LocalFacts,
    /// By class the row that stands, or, of a chain of which none does, the number of the one that is to be made.
    pub(crate) cells: Vec<u32>,
    /// Of a chain of which some rows stand the other classes, each with the number of its row.
    open: Option<Vec<(u32, u32)>>,
    /// Its rows.
    pub(crate) rows: Range<usize>,
}

impl<'a> Plan<'a> {
    /// How many rows are to be made.
    pub(crate) fn len(&self) -> usize {
        self.rows.len()
    }

    /// The family of those of whom a row speaks, and what is true of them, of all that the chain asks.
    pub(crate) fn row(&self, number: usize) -> (Family, &[PredicateId]) {
        let (family, end) = self.rows[number];
        let start = number.checked_sub(1).map_or(0, |before| self.rows[before].1);
        (family, &self.truths[start..end])
    }

    fn push(&mut self, family: Family, truth: impl IntoIterator<Item = PredicateId>) -> u32 {
        self.truths.extend(truth);
        self.rows.push((family, self.truths.len()));
        self.rows.len() as u32 - 1
    }

    fn end(
        &mut self,
        list: &'a Arc<ResolvedList>,
        local: &'a LocalFacts,
        cells: Vec<u32>,
        open: Option<Vec<(u32, u32)>>,
        first: usize,
    ) {
        let rows = first..self.rows.len();
        if rows.len() > FEW {
            list.index();
        }
        self.chains.push(Planned { list, local, cells, open, rows });
    }

    /// Adds a chain of whose rows all but some classes' stand; `None` for a class that is none.
    pub(crate) fn add_some(
        &mut self,
        list: &'a Arc<ResolvedList>,
        local: &'a LocalFacts,
        (cells, unmade): (Vec<u32>, &[u32]),
        classes: &[Truth],
        answers: &[Answers],
    ) -> Option<()> {
        let asked = list.asked_of_peers(answers);
        let families = unmade.iter().map(|class| family(classes.get(*class as usize)?));
        let families: Vec<Family> = families.collect::<Option<_>>()?;
        let first = self.rows.len();
        let is_asked = |it: &PredicateId| asked.binary_search(it).is_ok();
        let open = unmade.iter().zip(families).map(|(class, family)| {
            let relevant = classes[*class as usize].iter().copied().filter(is_asked);
            (*class, self.push(family, relevant))
        });
        let open = open.collect();
        self.end(list, local, cells, Some(open), first);
        Some(())
    }

    /// Adds a chain of which no row stands.
    pub(crate) fn add_all(
        &mut self,
        list: &'a Arc<ResolvedList>,
        local: &'a LocalFacts,
        classes: &ByTruth,
        answers: &[Answers],
    ) {
        let first = self.rows.len();
        // The predicates of the chain that are true of each class; most classes have none of them.
        let asked = list.asked_of_peers(answers);
        let touched = asked.iter().flat_map(|predicate| {
            let column = classes.columns.group(*predicate as usize);
            column.iter().map(|class| (*class, *predicate))
        });
        let touched = Occupied::of(classes.families.len(), touched);
        let mut cells = vec![NONE; classes.families.len()];
        let mut known: [AHashMap<&[PredicateId], u32>; 2] = Default::default();
        for (class, relevant) in touched.each() {
            let family = classes.families[class];
            let known = known[family as usize].entry(relevant);
            let row = known.or_insert_with(|| self.push(family, relevant.iter().copied()));
            cells[class] = *row;
        }
        let mut untouched = [NONE; 2];
        for (cell, family) in cells.iter_mut().zip(&classes.families) {
            if *cell == NONE {
                let row = &mut untouched[*family as usize];
                if *row == NONE {
                    *row = self.push(*family, []);
                }
                *cell = *row;
            }
        }
        self.end(list, local, cells, None, first);
    }
}

impl Planned<'_> {
    /// By class the row, given those that were made.
    pub(crate) fn filled(self, made: &[u32]) -> Vec<u32> {
        let made = |row: u32| made.get(row as usize).copied().unwrap_or(LINEAR);
        let Self { mut cells, open, .. } = self;
        let Some(open) = open else {
            for cell in &mut cells {
                *cell = made(*cell);
            }
            return cells;
        };
        for (class, row) in open {
            if let Some(cell) = cells.get_mut(class as usize) {
                *cell = made(row);
            }
        }
        cells
    }
}
