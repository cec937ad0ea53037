//! Which rows are to be made: of each chain one for every truth that classes have, of all that the chain asks.

use std::ops::Range;
use std::sync::Arc;

use ahash::AHashMap;

use crate::classes::classes_by_predicate;
use crate::grouped::{Grouped, OccupiedGroups};
use crate::image::{LINEAR, LocalPredicateSets};
use crate::model::Family;
use crate::predicates::{PossiblePorts, PredicateSet, family};
use crate::resolve::{PredicateId, ResolvedList, ResolvedRule};

/// The classes by what is true of them.
pub(crate) struct ClassColumns {
    families: Vec<Family>,
    /// For each predicate those of which it is true, ascending.
    columns: Grouped,
}

impl ClassColumns {
    /// The two families partition the addresses, so every class has one; `None` where one has none.
    pub(crate) fn new(classes: &[PredicateSet], predicates: usize) -> Option<Self> {
        let families = classes.iter().map(|truth| family(truth)).collect::<Option<_>>()?;
        Some(Self { families, columns: classes_by_predicate(classes, predicates) })
    }

    /// The classes that a rule may mean as peers; `None`: any.
    pub(crate) fn classes_matching(&self, rule: &ResolvedRule) -> Option<Vec<u32>> {
        let mut concerned = Vec::new();
        for entity in &rule.peer.entities {
            let columns = entity.wanted.iter().map(|wanted| self.columns.group(*wanted as usize));
            concerned.extend_from_slice(columns.min_by_key(|column| column.len())?);
        }
        Some(concerned)
    }
}

/// Where so few rows are to be made each step is asked.
const FEW_ROWS: usize = 8;

/// No part.
const NO_PART: u32 = u32::MAX;

/// Whom rows are made for: their family, and what is true of them, of all that a chain asks.
#[derive(Debug, Default)]
pub(crate) struct Parts {
    all: Vec<(Family, usize)>,
    /// What is true of each, one behind the other; each ends where `all` says.
    predicates: Vec<PredicateId>,
}

impl Parts {
    fn len(&self) -> usize {
        self.all.len()
    }

    fn part(&self, number: usize) -> (Family, &[PredicateId]) {
        let (family, end) = self.all[number];
        let start = number.checked_sub(1).map_or(0, |before| self.all[before].1);
        (family, &self.predicates[start..end])
    }

    fn push(&mut self, family: Family, truth: impl IntoIterator<Item = PredicateId>) -> u32 {
        self.predicates.extend(truth);
        self.all.push((family, self.predicates.len()));
        self.all.len() as u32 - 1
    }
}

/// All classes, parted by what is true of them, of some predicates.
#[derive(Debug)]
pub(crate) struct Partition {
    of_class: Vec<u32>,
    parts: Parts,
}

impl Partition {
    fn new(asked: &[PredicateId], classes: &ClassColumns) -> Self {
        // The predicates that are true of each class; most classes have none of them.
        let touched = asked.iter().flat_map(|predicate| {
            let column = classes.columns.group(*predicate as usize);
            column.iter().map(|class| (*class, *predicate))
        });
        let touched = OccupiedGroups::from_pairs(classes.families.len(), touched);
        let mut parts = Parts::default();
        let mut of_class = vec![NO_PART; classes.families.len()];
        let mut known: [AHashMap<&[PredicateId], u32>; 2] = Default::default();
        for (class, relevant) in touched.each() {
            let family = classes.families[class];
            let known = known[family as usize].entry(relevant);
            of_class[class] =
                *known.or_insert_with(|| parts.push(family, relevant.iter().copied()));
        }
        let mut untouched = [NO_PART; 2];
        for (part, family) in of_class.iter_mut().zip(&classes.families) {
            if *part == NO_PART {
                let rest = &mut untouched[*family as usize];
                if *rest == NO_PART {
                    *rest = parts.push(*family, []);
                }
                *part = *rest;
            }
        }
        Self { of_class, parts }
    }

    fn bytes(&self) -> usize {
        let Parts { all, predicates: truths } = &self.parts;
        size_of_val(&*self.of_class) + size_of_val(&**all) + size_of_val(&**truths)
    }
}

/// How the chains so far part the classes, by what they ask: a chain that comes in the place of another mostly asks the same.
#[derive(Debug, Default)]
pub(crate) struct Partitions {
    /// Each with the turn when it was last in use.
    all: AHashMap<Box<[PredicateId]>, (Arc<Partition>, u64)>,
}

impl Partitions {
    /// That of predicates, ascending.
    fn get(
        &mut self,
        mut asked: Vec<PredicateId>,
        classes: &ClassColumns,
        turn: u64,
    ) -> Arc<Partition> {
        // What is true of nobody parts nobody.
        asked.retain(|predicate| !classes.columns.group(*predicate as usize).is_empty());
        if let Some((known, used)) = self.all.get_mut(asked.as_slice()) {
            *used = turn;
            return Arc::clone(known);
        }
        let made = Arc::new(Partition::new(&asked, classes));
        self.all.insert(asked.into(), (Arc::clone(&made), turn));
        made
    }

    /// Forgets those that no chain that comes at this turn has, if they are more than two for each chain, and all if they
    /// take more than `room` bytes: they spare time only.
    pub(crate) fn evict(&mut self, chains: usize, turn: u64, room: usize) {
        if self.all.len() > chains * 2 {
            self.all.retain(|_, (_, used)| *used == turn);
        }
        if self.bytes() > room {
            *self = Self::default();
        }
    }

    /// Bytes of all.
    pub(crate) fn bytes(&self) -> usize {
        let each = self.all.iter().map(|(asked, (it, _))| size_of_val(&**asked) + it.bytes());
        each.sum()
    }
}

/// Rows to be made, chain by chain, by number.
#[derive(Default)]
pub(crate) struct RowPlan<'a> {
    pub(crate) chains: Vec<PlannedChain<'a>>,
    /// How many rows are to be made.
    pub(crate) rows: usize,
}

/// A chain of which rows are to be made.
pub(crate) struct PlannedChain<'a> {
    pub(crate) list: &'a Arc<ResolvedList>,
    pub(crate) local: &'a LocalPredicateSets,
    cells: PlannedCells,
    /// Its rows.
    pub(crate) rows: Range<usize>,
}

enum PlannedCells {
    /// No row stands.
    All(Arc<Partition>),
    /// By class the row that stands, and the other classes, each with its part.
    Some { rows: Vec<u32>, open: Vec<(u32, u32)>, parts: Parts },
}

impl<'a> RowPlan<'a> {
    /// The first row of the second half, if the more a row takes the more is true.
    pub(crate) fn half(&self) -> usize {
        let parts = || self.chains.iter().map(|chain| chain.cells.parts());
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
        list: &'a Arc<ResolvedList>,
        local: &'a LocalPredicateSets,
        cells: PlannedCells,
    ) {
        let rows = self.rows..self.rows + cells.parts().len();
        if rows.len() > FEW_ROWS {
            list.index();
        }
        self.rows = rows.end;
        self.chains.push(PlannedChain { list, local, cells, rows });
    }

    /// Adds a chain of whose rows all but some classes' stand; `None` for a class that is none.
    pub(crate) fn add_some(
        &mut self,
        list: &'a Arc<ResolvedList>,
        local: &'a LocalPredicateSets,
        (rows, unmade): (Vec<u32>, &[u32]),
        classes: &[PredicateSet],
        answers: &[PossiblePorts],
    ) -> Option<()> {
        let asked = list.peer_predicates(answers);
        let is_asked = |it: &PredicateId| asked.binary_search(it).is_ok();
        let mut parts = Parts::default();
        let open = unmade.iter().map(|class| {
            let truth = classes.get(*class as usize)?;
            let relevant = truth.iter().copied().filter(is_asked);
            Some((*class, parts.push(family(truth)?, relevant)))
        });
        let open = open.collect::<Option<_>>()?;
        self.add(list, local, PlannedCells::Some { rows, open, parts });
        Some(())
    }

    /// Adds a chain of which no row stands.
    pub(crate) fn add_all(
        &mut self,
        list: &'a Arc<ResolvedList>,
        local: &'a LocalPredicateSets,
        (classes, partitions): (&ClassColumns, &mut Partitions),
        answers: &[PossiblePorts],
        turn: u64,
    ) {
        let partition = partitions.get(list.peer_predicates(answers), classes, turn);
        self.add(list, local, PlannedCells::All(partition));
    }
}

impl PlannedCells {
    fn parts(&self) -> &Parts {
        match self {
            Self::All(partition) => &partition.parts,
            Self::Some { parts, .. } => parts,
        }
    }
}

impl PlannedChain<'_> {
    /// Of one of its rows the family of those of whom it speaks, and what is true of them, of all that the chain asks.
    pub(crate) fn row(&self, number: usize) -> (Family, &[PredicateId]) {
        self.cells.parts().part(number - self.rows.start)
    }

    /// Whether so many rows are made that most steps matter to one.
    pub(crate) fn uses_most_steps(&self) -> bool {
        self.rows.len() * 8 >= self.list.steps.steps.len()
    }

    /// Bytes of its cells.
    pub(crate) fn bytes(&self) -> usize {
        match &self.cells {
            PlannedCells::All(partition) => size_of_val(&*partition.of_class),
            PlannedCells::Some { rows, .. } => size_of_val(&**rows),
        }
    }

    /// By class the row, given those that were made.
    pub(crate) fn into_cells(self, made: &[u32]) -> Vec<u32> {
        let made = made.get(self.rows).unwrap_or_default();
        let made = |part: u32| made.get(part as usize).copied().unwrap_or(LINEAR);
        match self.cells {
            PlannedCells::All(partition) => {
                partition.of_class.iter().map(|part| made(*part)).collect()
            }
            PlannedCells::Some { mut rows, open, .. } => {
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
