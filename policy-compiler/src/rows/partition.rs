//! Partitions: the classes, grouped by the predicates that a chain uses.
//!
//! Classes in the same part share a row.

use std::sync::Arc;

use ahash::AHashMap;

use crate::common::{Grouped, OccupiedGroups};
use crate::model::Family;
use crate::peers::{PredicateSet, classes_by_predicate, family};
use crate::resolve::{PredicateId, ResolvedRule};

/// The classes by predicate.
pub(crate) struct ClassColumns {
    families: Vec<Family>,
    /// For each predicate, the classes that match it, in ascending order.
    columns: Grouped,
}

impl ClassColumns {
    /// Groups the classes by predicate. Returns `None` if a class has no family, which does not happen with complete
    /// predicate sets.
    pub(crate) fn new(classes: &[PredicateSet], predicates: usize) -> Option<Self> {
        let families = classes.iter().map(|set| family(set)).collect::<Option<_>>()?;
        Some(Self { families, columns: classes_by_predicate(classes, predicates) })
    }

    /// A set of classes that contains every class which the rule may match as peer. `None` means all classes.
    pub(crate) fn classes_matching(&self, rule: &ResolvedRule) -> Option<Vec<u32>> {
        let mut concerned = Vec::new();
        for entity in &rule.peer.entities {
            let columns = entity.wanted.iter().map(|wanted| self.columns.group(*wanted as usize));
            concerned.extend_from_slice(columns.min_by_key(|column| column.len())?);
        }
        Some(concerned)
    }
}

/// The value for a class that is in no part yet.
const NO_PART: u32 = u32::MAX;

/// The groups of peers for which rows are built. For each group: the family, and those predicates of the chain that are
/// true of the group's peers.
#[derive(Debug, Default)]
pub(crate) struct Parts {
    pub(super) all: Vec<(Family, usize)>,
    /// The predicates of all parts, one part after another; `all` holds the end of each.
    pub(super) predicates: Vec<PredicateId>,
}

impl Parts {
    pub(super) fn len(&self) -> usize {
        self.all.len()
    }

    pub(super) fn part(&self, number: usize) -> (Family, &[PredicateId]) {
        let (family, end) = self.all[number];
        let start = number.checked_sub(1).map_or(0, |before| self.all[before].1);
        (family, &self.predicates[start..end])
    }

    pub(super) fn push(
        &mut self,
        family: Family,
        set: impl IntoIterator<Item = PredicateId>,
    ) -> u32 {
        self.predicates.extend(set);
        self.all.push((family, self.predicates.len()));
        self.all.len() as u32 - 1
    }
}

/// All classes, in groups (parts). Two classes are in one part if they have the same family and the same of some
/// predicates are true of them.
#[derive(Debug)]
pub(crate) struct Partition {
    pub(super) of_class: Vec<u32>,
    pub(super) parts: Parts,
}

impl Partition {
    fn new(asked: &[PredicateId], classes: &ClassColumns) -> Self {
        // None of these predicates is true of most classes, so only the other classes are grouped one by one.
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
        let Parts { all, predicates: sets } = &self.parts;
        size_of_val(&*self.of_class) + size_of_val(&**all) + size_of_val(&**sets)
    }
}

/// A cache of partitions, by the predicates that chains use. It helps because a chain that replaces another one usually
/// uses the same predicates.
#[derive(Debug, Default)]
pub(crate) struct Partitions {
    /// Each partition, with the turn that last used it.
    all: AHashMap<Box<[PredicateId]>, (Arc<Partition>, u64)>,
}

impl Partitions {
    /// Returns the partition of the classes by these predicates, which must be in ascending order.
    pub(super) fn get(
        &mut self,
        mut asked: Vec<PredicateId>,
        classes: &ClassColumns,
        turn: u64,
    ) -> Arc<Partition> {
        // A predicate that is true of no class does not divide the classes.
        asked.retain(|predicate| !classes.columns.group(*predicate as usize).is_empty());
        if let Some((known, used)) = self.all.get_mut(asked.as_slice()) {
            *used = turn;
            return Arc::clone(known);
        }
        let made = Arc::new(Partition::new(&asked, classes));
        self.all.insert(asked.into(), (Arc::clone(&made), turn));
        made
    }

    /// If there are more than two partitions for each chain, drops those that this turn did not use. If the rest take
    /// more than `room` bytes, drops all. Partitions only save time, so they can be dropped.
    pub(crate) fn evict(&mut self, chains: usize, turn: u64, room: usize) {
        if self.all.len() > chains * 2 {
            self.all.retain(|_, (_, used)| *used == turn);
        }
        if self.bytes() > room {
            *self = Self::default();
        }
    }

    /// The memory of all partitions, in bytes.
    pub(crate) fn bytes(&self) -> usize {
        let each = self.all.iter().map(|(asked, (it, _))| size_of_val(&**asked) + it.bytes());
        each.sum()
    }
}
