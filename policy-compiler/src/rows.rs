//! The rows of every chain and class, and the paths that they lead to.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::sync::Arc;

use ahash::AHashMap;

use crate::chains::Chains;
use crate::claim::{Claim, Way, ways};
use crate::classes::columns;
use crate::image::{
    BY_SOURCE, ChainId, Identity, Interval, LINEAR, Linear, LocalFacts, Path, PathId, Peers, Row,
    Span,
};
use crate::model::{Decision, Direction, Family, Noted, Reason};
use crate::predicates::{Known, Predicates, Truth, family};
use crate::resolve::{Decided, Outcome, PredicateId, Resolved, ResolvedList, Step};
use crate::row::RowContent;
use crate::slots::Slots;

/// Bytes of an interval.
const INTERVAL: usize = size_of::<Interval>();

/// The rows as they are being made.
pub(crate) struct Tables<'s> {
    slots: &'s mut Slots,
    by_slot: AHashMap<u32, PathId>,
    pub(crate) paths: Vec<Path>,
    row_ids: AHashMap<RowContent, u32>,
    pub(crate) rows: Vec<Row>,
    pub(crate) intervals: Vec<Interval>,
    pub(crate) by_source: Vec<Span>,
    pub(crate) cells: Vec<u32>,
    pub(crate) linear: BTreeMap<ChainId, Linear>,
    bytes: usize,
}

impl<'s> Tables<'s> {
    pub(crate) fn build(
        slots: &'s mut Slots,
        budget: usize,
        resolved: &Resolved,
        peers: &Peers,
        chains: &Chains,
    ) -> Self {
        let Peers { predicates, class_truths: classes, .. } = peers;
        let mut tables = Self {
            slots,
            by_slot: AHashMap::new(),
            paths: Vec::new(),
            row_ids: AHashMap::with_capacity(classes.len()),
            rows: Vec::new(),
            intervals: Vec::new(),
            by_source: Vec::new(),
            cells: Vec::with_capacity(chains.all.len() * classes.len()),
            linear: BTreeMap::new(),
            bytes: 0,
        };
        for direction in Direction::ALL {
            tables.path(Reason::Unknown(direction).into());
        }
        let columns = columns(classes, predicates.all.len());
        for (id, made) in (0..).map(ChainId).zip(&chains.all) {
            let list = &resolved.lists[made.list];
            let rows = made.local.as_ref().and_then(|local| {
                ChainRows::new(list, local, predicates).cells(
                    &mut tables,
                    classes,
                    &columns,
                    budget,
                )
            });
            if let Some(cells) = rows {
                tables.cells.extend(cells);
            } else {
                tables.cells.extend(std::iter::repeat_n(LINEAR, classes.len()));
                let linear = tables.judged_linearly(list, &made.each);
                tables.linear.insert(id, linear);
            }
        }
        tables
    }

    fn path(&mut self, decision: Decision) -> PathId {
        let slot = self.slots.of(&decision);
        *self.by_slot.entry(slot).or_insert_with(|| {
            self.paths.push(Path::new(decision, slot));
            PathId(self.paths.len() as u32 - 1)
        })
    }

    fn row(&mut self, content: RowContent) -> u32 {
        if let Some(row) = self.row_ids.get(&content) {
            return *row;
        }
        let first = self.by_source.len() as u32;
        for run in content.runs() {
            let span = self.span(run, 0);
            self.by_source.push(span);
        }
        let tables = content.tables().map(|table| self.span(table, first));
        self.bytes += size_of::<Row>()
            + INTERVAL * (content.intervals.len() + content.sources.len())
            + size_of::<Span>() * content.source_ends.len();
        self.rows.push(Row { tables, bare: content.bare });
        self.row_ids.insert(content, self.rows.len() as u32 - 1);
        self.rows.len() as u32 - 1
    }

    /// Lays intervals behind those of other rows; the row's runs by source port are those from `first` on.
    fn span(&mut self, run: &[Interval], first: u32) -> Span {
        let path =
            |path: PathId| PathId(if path.0 & BY_SOURCE == 0 { path.0 } else { path.0 + first });
        if let [alone] = run {
            return Span { first: path(alone.path).0, len: 1 };
        }
        let span = Span { first: self.intervals.len() as u32, len: run.len() as u32 };
        self.intervals.extend(run.iter().map(|it| Interval { path: path(it.path), ..*it }));
        span
    }

    fn judged_linearly(&mut self, list: &ResolvedList, each: &[(Identity, Truth)]) -> Linear {
        let mut path = |reason: &Reason| self.path(reason.clone().into());
        let step_paths = list
            .steps
            .steps
            .iter()
            .map(|step| match &step.outcome {
                Outcome::Decide(reason) => Some(path(reason)),
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

/// Makes the rows of one chain.
struct ChainRows<'a> {
    list: &'a ResolvedList,
    local: &'a LocalFacts,
    predicates: &'a Predicates,
    /// For each family, for each step the ways in which it can match; made when first asked for.
    ways: [Vec<Option<Vec<Way<'a>>>>; 2],
    /// Steps that want nothing of the peer.
    always: Vec<usize>,
    /// Steps that want a predicate of the peer, ascending.
    by_predicate: AHashMap<PredicateId, Vec<usize>>,
    /// All that is asked of the peer but its family.
    asked: BTreeSet<PredicateId>,
    /// The paths of decisions with nothing noted on the way: of steps, then of tiers' ends.
    paths: Vec<Option<PathId>>,
}

impl<'a> ChainRows<'a> {
    fn new(list: &'a ResolvedList, local: &'a LocalFacts, predicates: &'a Predicates) -> Self {
        let steps = list.steps.steps.len();
        let mut rows = Self {
            list,
            local,
            predicates,
            ways: [(); 2].map(|()| (0..steps).map(|_| None).collect()),
            always: Vec::new(),
            by_predicate: AHashMap::new(),
            asked: BTreeSet::new(),
            paths: vec![None; steps + list.steps.ends.len()],
        };
        for (index, Step { rule, .. }) in list.steps.steps.iter().enumerate() {
            let mut always = false;
            for entity in &rule.peer.entities {
                rows.asked.extend(entity.wanted.iter().chain(&entity.unwanted));
                match entity.wanted.first() {
                    Some(first) => {
                        let by = rows.by_predicate.entry(*first).or_default();
                        if by.last() != Some(&index) {
                            by.push(index);
                        }
                    }
                    None => always = true,
                }
            }
            for question in rule.peer.questions() {
                let answers = &predicates.answers[question as usize];
                rows.asked.extend(answers.iter().map(|answer| answer.2));
            }
            if always {
                rows.always.push(index);
            }
        }
        for family in Family::ALL {
            rows.asked.remove(&(family as u32));
        }
        rows
    }

    /// The chain's row for each class; `None` if they would take more than the budget.
    fn cells(
        mut self,
        tables: &mut Tables<'_>,
        classes: &[Truth],
        columns: &[Vec<u32>],
        budget: usize,
    ) -> Option<Vec<u32>> {
        let count = classes.len();
        tables.bytes += count * size_of::<u32>();
        // The predicates of the chain that are true of each class; most classes have none of them.
        let mut touched: Vec<(u32, PredicateId)> = Vec::new();
        for predicate in &self.asked {
            let column = columns.get(*predicate as usize).into_iter().flatten();
            touched.extend(column.map(|class| (*class, *predicate)));
        }
        touched.sort_unstable();
        let mut rest = touched.as_slice();
        let mut memo: [AHashMap<Vec<PredicateId>, u32>; 2] = Default::default();
        let mut untouched = [None; 2];
        let mut cells = Vec::with_capacity(count);
        for (class, truth) in (0..).zip(classes) {
            let len = rest.iter().take_while(|(of, _)| *of == class).count();
            let (here, after) = rest.split_at(len);
            rest = after;
            if tables.bytes > budget {
                return None;
            }
            // The two families partition the addresses, so every class has one.
            let family = family(truth)?;
            let relevant: Vec<PredicateId> = here.iter().map(|(_, predicate)| *predicate).collect();
            let known = if relevant.is_empty() {
                untouched[family as usize]
            } else {
                memo[family as usize].get(&relevant).copied()
            };
            let row = known.unwrap_or_else(|| self.row(tables, family, &relevant));
            if relevant.is_empty() {
                untouched[family as usize] = Some(row);
            } else if known.is_none() {
                memo[family as usize].insert(relevant, row);
            }
            cells.push(row);
        }
        Some(cells)
    }

    /// The row of those of a family of whom, of all that is asked, exactly `truth` is true.
    fn row(&mut self, tables: &mut Tables<'_>, family: Family, truth: &[PredicateId]) -> u32 {
        let by_predicate = truth.iter().filter_map(|p| self.by_predicate.get(p)).flatten();
        let mut candidates: Vec<usize> = by_predicate.chain(&self.always).copied().collect();
        candidates.sort_unstable();
        candidates.dedup();
        let answers = &self.predicates.answers;
        let local = Known { truth: &self.local[family as usize], family, answers };
        let peer = Known { truth, family, answers };
        let direction = self.list.list.direction;
        let steps = &self.list.steps;
        let mut claimed: Vec<(usize, Rc<Claim>)> = Vec::new();
        // Behind a rule that decides every packet only those of later tiers are asked, and only if a Pass leads there.
        let (mut decided, mut passed) = (None, None);
        for index in candidates {
            let Some(step) = steps.steps.get(index) else { continue };
            if !step.rule.families[family as usize] || decided == Some(step.tier) {
                continue;
            }
            let ways = self.ways[family as usize][index]
                .get_or_insert_with(|| ways(&step.rule, direction, &local));
            let first = claimed.len();
            claimed.extend(ways.iter().filter_map(|way| Some((index, way.claim(&peer)?))));
            match step.outcome {
                Outcome::Pass(_) if claimed.len() > first => passed = Some(step.tier),
                Outcome::Decide(_)
                    if claimed[first..].iter().any(|(_, claim)| claim.is_everything()) =>
                {
                    if passed != Some(step.tier) {
                        break;
                    }
                    decided = Some(step.tier);
                }
                _ => {}
            }
        }
        let paths = &mut self.paths;
        let content = RowContent::build(&claimed, |matching| {
            let mut noted: Vec<&Noted> = Vec::new();
            let decided = steps.walk(matching, |rule| noted.push(rule));
            let at = decided.map(|decided| match decided {
                Decided::Step(index) => index,
                Decided::End(tier) => steps.steps.len() + tier,
            });
            let known = at.filter(|_| noted.is_empty()).and_then(|at| paths.get_mut(at));
            if let Some(Some(path)) = known {
                return *path;
            }
            let reason = decided.and_then(|decided| steps.reason(decided)).cloned();
            let path = tables.path(Decision {
                reason: reason.unwrap_or(Reason::Unknown(direction)),
                noted: noted.into_iter().cloned().collect(),
            });
            if let Some(known) = known {
                *known = Some(path);
            }
            path
        });
        tables.row(content)
    }
}
