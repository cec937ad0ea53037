//! Model and local endpoints to an image.
//!
//! A compiler lives as long as the dataplane that it serves: it is what keeps the numbers of identities and the counter
//! slots of decisions the same from image to image.
//!
//! **Cost**, with *E* members of the cluster, *S* distinct subjects, *P* predicates: O(E log E) for addresses, O(S·P) selector
//! matches at worst (only among those with the namespace or label that a selector requires), and for each chain as many
//! rows as its own predicates tell classes apart. Policies are looked up by namespace, never all of them.
//!
//! **Memory.** A chain whose rows do not fit the budget any more is judged rule by rule, slower and no less right;
//! [`Counts::linear`](crate::image::Counts) says how many there are.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use ahash::AHashMap;

use crate::addresses::Addresses;
use crate::claim::{Claim, claims};
use crate::classes::{Classes, local_truth};
use crate::identity::{Interner, Key};
use crate::image::{
    BY_SOURCE, Chain, ChainId, Identity, Image, LINEAR, Linear, Local, LocalFacts, Path, PathId,
    Row, Span,
};
use crate::members::Members;
use crate::model::{Decision, Direction, Family, Model, Reason};
use crate::predicates::{AtomTruths, Known, Predicates, Truth, evaluate, family};
use crate::prefix_map::PrefixMap;
use crate::resolve::{
    LocalName, Outcome, Ports, PredicateId, Resolved, ResolvedList, Step, resolve,
};
use crate::row::{Cell, RowContent};
use crate::subject::SubjectId;

/// Bytes of rows and cells that an image may hold if nothing else is said.
pub const DEFAULT_BUDGET: usize = 64 << 20;

/// Makes images; keeps identities and counter slots for its life.
#[derive(Debug)]
pub struct Compiler {
    interner: Interner,
    slots: AHashMap<Decision, u32>,
    /// How many identities the last image used.
    used: u32,
    budget: usize,
}

impl Default for Compiler {
    fn default() -> Self {
        Self::new()
    }
}

impl Compiler {
    /// A compiler that has made nothing yet.
    pub fn new() -> Self {
        Self::with_budget(DEFAULT_BUDGET)
    }

    /// A compiler whose images hold at most about this many bytes of rows and cells.
    pub fn with_budget(budget: usize) -> Self {
        let unknown = Direction::ALL.into_iter().map(|d| Decision::from(Reason::Unknown(d)));
        let slots = unknown.zip(0..).collect();
        Self { interner: Interner::default(), slots, used: 0, budget }
    }

    /// The tables by which the `local` endpoints are judged: pods, and, without a namespace, host endpoints. Names that the
    /// model does not have get none.
    pub fn compile(&mut self, model: &Model, local: &BTreeSet<LocalName>) -> Image {
        self.interner.forget_if_sparse(self.used);
        let resolved = resolve(model, local);
        let members = Members::of(&mut self.interner.subjects, model, &resolved);
        let (predicates, truths) = evaluate(&resolved, &self.interner.subjects, &members);
        let atoms = AtomTruths::new(&predicates.all);
        let addresses = Addresses::assign(&mut self.interner, model, &members, &truths, &atoms);
        let classes = Classes::build(&self.interner, &addresses, &truths, &atoms);
        let prefixes = PrefixMap::build(
            Identity::UNKNOWN.0,
            addresses.entries.iter().map(|(net, identity)| (*net, identity.0)),
        );
        let ends = LocalEnds { model, members: &members, truths: &truths, atoms: &atoms };
        let keys: AHashMap<Identity, &Key> =
            addresses.keys.iter().map(|(identity, key)| (*identity, key)).collect();
        let chains = Chains::of(&resolved, &predicates, |name| {
            ends.truths_of(name, |address| keys.get(&Identity(prefixes.lookup(address))).copied())
        });
        let tables =
            Tables::build(&mut self.slots, self.budget, &resolved, &predicates, &classes, &chains);
        let canonical_hash = canonical_hash(&resolved, &addresses, &classes, &chains, &tables);
        let intervals = flatten(&tables.rows);
        self.used = addresses.keys.len() as u32;
        let Tables { cells, paths, linear, .. } = tables;
        let slots = self.slots.len() as u32;
        Image {
            prefixes,
            entries: addresses.entries.into(),
            endpoints: chains.endpoints,
            first_identity: classes.first,
            classes: classes.of_identity.into(),
            class_truths: classes.truths.into(),
            predicates: predicates.all.into(),
            answers: predicates.answers.into(),
            chains: chains.all.into_iter().map(|(chain, _)| chain).collect(),
            cells: cells.into(),
            linear,
            rows: intervals.rows,
            starts: intervals.starts,
            interval_paths: intervals.paths,
            by_source: intervals.by_source,
            paths: paths.into(),
            slots,
            identity_count: addresses.keys.len(),
            canonical_hash,
            ..Image::default()
        }
    }
}

/// What is true of local endpoints themselves.
struct LocalEnds<'a> {
    model: &'a Model,
    members: &'a Members,
    truths: &'a AHashMap<SubjectId, Truth>,
    atoms: &'a AtomTruths,
}

/// What is true of an endpoint, by family; of a host endpoint nothing is known before the packet.
type LocalTruths = Option<[Vec<Vec<PredicateId>>; 2]>;

impl LocalEnds<'_> {
    /// The truths of a pod's addresses, by family. `None` for a host endpoint: its end of a packet may be any address.
    fn truths_of<'k>(
        &self,
        name: &LocalName,
        key: impl Fn(std::net::IpAddr) -> Option<&'k Key>,
    ) -> LocalTruths {
        let pod = self.model.endpoints.get(name)?;
        let own = *self.members.local.get(name)?;
        let mut truths = [Vec::new(), Vec::new()];
        for address in &pod.addresses {
            let key = key(*address)?;
            let is_endpoint = |subject| self.members.endpoints.contains(&subject);
            let truth = local_truth(own, key, is_endpoint, self.truths, self.atoms);
            truths[Family::of(*address) as usize].push(truth);
        }
        Some(truths)
    }
}

/// The chains of all local endpoints.
struct Chains {
    endpoints: BTreeMap<LocalName, Local>,
    /// Each with the index of its list.
    all: Vec<(Chain, usize)>,
}

impl Chains {
    fn of(
        resolved: &Resolved,
        predicates: &Predicates,
        truths_of: impl Fn(&LocalName) -> LocalTruths,
    ) -> Self {
        let mut chains = Self { endpoints: BTreeMap::new(), all: Vec::new() };
        let mut known: AHashMap<(usize, Option<LocalFacts>), ChainId> = AHashMap::new();
        for (name, lists) in &resolved.endpoints {
            let mut truths: Option<LocalTruths> = None;
            let mut local = Local { chains: BTreeMap::new(), revision: 0 };
            let mut hasher = DefaultHasher::new();
            for (at, index) in lists {
                let list = &resolved.lists[*index];
                let asked = asked(list, predicates);
                let own = if asked.is_empty() {
                    Some([Box::default(), Box::default()])
                } else {
                    let truths = truths.get_or_insert_with(|| truths_of(name));
                    truths.as_ref().and_then(|truths| constant(truths, &asked))
                };
                list.revision.hash(&mut hasher);
                for family in own.iter().flatten() {
                    let texts = family.iter().map(|p| &predicates.all[*p as usize]);
                    texts.collect::<Vec<_>>().hash(&mut hasher);
                }
                let chain = *known.entry((*index, own)).or_insert_with_key(|(index, own)| {
                    let chain = Chain { list: list.list.clone(), local: own.clone() };
                    chains.all.push((chain, *index));
                    ChainId(chains.all.len() as u32 - 1)
                });
                local.chains.insert(*at, chain);
            }
            local.revision = hasher.finish();
            chains.endpoints.insert(name.clone(), local);
        }
        chains
    }
}

/// The predicates that a list asks of the local end, answers to its questions among them.
fn asked(list: &ResolvedList, predicates: &Predicates) -> BTreeSet<PredicateId> {
    let questions = list.local_questions.iter();
    let answers = questions.flat_map(|question| predicates.answers[*question as usize].iter());
    list.local.iter().copied().chain(answers.map(|answer| answer.2)).collect()
}

/// What is true, of all that is asked, for each family, if it is the same for all addresses of that.
fn constant(
    truths: &[Vec<Vec<PredicateId>>; 2],
    asked: &BTreeSet<PredicateId>,
) -> Option<LocalFacts> {
    let of_family = |truths: &Vec<Vec<PredicateId>>| -> Option<Box<[PredicateId]>> {
        let restrict = |truth: &Vec<PredicateId>| -> Box<[PredicateId]> {
            truth.iter().copied().filter(|predicate| asked.contains(predicate)).collect()
        };
        let mut restricted = truths.iter().map(restrict);
        let first = restricted.next().unwrap_or_default();
        restricted.all(|other| other == first).then_some(first)
    };
    Some([of_family(&truths[0])?, of_family(&truths[1])?])
}

/// The rows as they are being made.
struct Tables<'s> {
    slots: &'s mut AHashMap<Decision, u32>,
    path_ids: AHashMap<Decision, PathId>,
    paths: Vec<Path>,
    row_ids: AHashMap<RowContent, u32>,
    rows: Vec<RowContent>,
    cells: Vec<u32>,
    linear: BTreeMap<ChainId, Linear>,
    bytes: usize,
}

impl<'s> Tables<'s> {
    fn build(
        slots: &'s mut AHashMap<Decision, u32>,
        budget: usize,
        resolved: &Resolved,
        predicates: &Predicates,
        classes: &Classes,
        chains: &Chains,
    ) -> Self {
        let mut tables = Self {
            slots,
            path_ids: AHashMap::new(),
            paths: Vec::new(),
            row_ids: AHashMap::new(),
            rows: Vec::new(),
            cells: Vec::with_capacity(chains.all.len() * classes.truths.len()),
            linear: BTreeMap::new(),
            bytes: 0,
        };
        for direction in Direction::ALL {
            tables.path(Reason::Unknown(direction).into());
        }
        let columns = classes.columns(predicates.all.len());
        for (id, (chain, list)) in (0..).map(ChainId).zip(&chains.all) {
            let list = &resolved.lists[*list];
            let rows = chain.local.as_ref().and_then(|local| {
                let builder = RowBuilder { list, local, predicates, classes, columns: &columns };
                builder.cells(&mut tables, budget)
            });
            if let Some(cells) = rows {
                tables.cells.extend(cells);
            } else {
                tables.cells.extend(std::iter::repeat_n(LINEAR, classes.truths.len()));
                let linear = tables.judged_linearly(list);
                tables.linear.insert(id, linear);
            }
        }
        tables
    }

    fn path(&mut self, decision: Decision) -> PathId {
        if let Some(path) = self.path_ids.get(&decision) {
            return *path;
        }
        let path = PathId(self.paths.len() as u32);
        let next = self.slots.len() as u32;
        let slot = *self.slots.entry(decision.clone()).or_insert(next);
        self.paths.push(Path::new(decision.clone(), slot));
        self.path_ids.insert(decision, path);
        path
    }

    fn row(&mut self, content: RowContent) -> u32 {
        let (rows, bytes) = (&mut self.rows, &mut self.bytes);
        *self.row_ids.entry(content).or_insert_with_key(|content| {
            *bytes += size_of::<Row>();
            for (_, cell) in content.tables.iter().flatten() {
                *bytes += 6;
                if let Cell::BySource(sources) = cell {
                    *bytes += size_of::<Span>() + 6 * sources.len();
                }
            }
            rows.push(content.clone());
            rows.len() as u32 - 1
        })
    }

    fn judged_linearly(&mut self, list: &ResolvedList) -> Linear {
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
        let steps = Arc::clone(&list.steps);
        Linear { direction: list.list.direction, steps, step_paths, end_paths }
    }
}

/// Makes the rows of one chain.
struct RowBuilder<'a> {
    list: &'a ResolvedList,
    local: &'a LocalFacts,
    predicates: &'a Predicates,
    classes: &'a Classes,
    columns: &'a [Vec<u32>],
}

impl RowBuilder<'_> {
    /// The chain's row for each class; `None` if they would take more than the budget.
    fn cells(&self, tables: &mut Tables<'_>, budget: usize) -> Option<Vec<u32>> {
        let count = self.classes.truths.len();
        tables.bytes += count * size_of::<u32>();
        let wanted = self.wanted();
        // The predicates of the chain that are true of each class; most classes have none of them.
        let mut touched: Vec<(u32, PredicateId)> = Vec::new();
        for predicate in &wanted.asked {
            let column = self.columns.get(*predicate as usize).into_iter().flatten();
            touched.extend(column.map(|class| (*class, *predicate)));
        }
        touched.sort_unstable();
        let mut memo: AHashMap<(Family, Vec<PredicateId>), u32> = AHashMap::new();
        let mut cells = Vec::with_capacity(count);
        let mut rest = touched.as_slice();
        for (class, truth) in (0..).zip(&self.classes.truths) {
            let len = rest.partition_point(|(of, _)| *of <= class);
            let (here, after) = rest.split_at(len);
            rest = after;
            // The two families partition the addresses, so every class has one.
            let family = family(truth)?;
            let relevant: Vec<PredicateId> = here.iter().map(|(_, predicate)| *predicate).collect();
            if tables.bytes > budget {
                return None;
            }
            let row = *memo.entry((family, relevant)).or_insert_with_key(|(family, relevant)| {
                let content = self.row(tables, &wanted, *family, truth, relevant);
                tables.row(content)
            });
            cells.push(row);
        }
        Some(cells)
    }

    /// Which steps can match at all, by what they want of the peer.
    fn wanted(&self) -> Wanted {
        let mut wanted = Wanted::default();
        for (index, Step { rule, .. }) in self.list.steps.steps.iter().enumerate() {
            let mut always = false;
            for entity in &rule.peer.entities {
                wanted.asked.extend(entity.wanted.iter().chain(&entity.unwanted));
                match entity.wanted.first() {
                    Some(first) => {
                        let by = wanted.by_predicate.entry(*first).or_default();
                        if by.last() != Some(&index) {
                            by.push(index);
                        }
                    }
                    None => always = true,
                }
                for ports in entity.ports.iter().flatten().chain(&rule.peer.not_ports) {
                    if let Ports::Answer(question) = ports {
                        let answers = &self.predicates.answers[*question as usize];
                        wanted.asked.extend(answers.iter().map(|answer| answer.2));
                    }
                }
            }
            if always {
                wanted.always.push(index);
            }
        }
        for family in Family::ALL {
            wanted.asked.remove(&(family as u32));
        }
        wanted
    }

    fn row(
        &self,
        tables: &mut Tables<'_>,
        wanted: &Wanted,
        family: Family,
        truth: &[PredicateId],
        relevant: &[PredicateId],
    ) -> RowContent {
        let by_predicate = relevant.iter().filter_map(|p| wanted.by_predicate.get(p)).flatten();
        let mut candidates: Vec<usize> = by_predicate.chain(&wanted.always).copied().collect();
        candidates.sort_unstable();
        candidates.dedup();
        let answers = &self.predicates.answers;
        let local = Known { truth: &self.local[family as usize], answers };
        let peer = Known { truth, answers };
        let steps = &self.list.steps;
        let mut claimed: Vec<(usize, Claim)> = Vec::new();
        // Behind a rule that decides every packet only those are asked that a Pass before it leads to.
        let (mut decided, mut passed) = (None, None);
        for index in candidates {
            let Some(step) = steps.steps.get(index) else { continue };
            if !step.rule.families[family as usize] || decided == Some(step.tier) {
                continue;
            }
            if decided.is_some() && decided != passed {
                break;
            }
            for claim in claims(&step.rule, self.list.list.direction, &local, &peer) {
                match step.outcome {
                    Outcome::Decide(_) if claim.is_everything() => decided = Some(step.tier),
                    Outcome::Pass(_) => passed = Some(step.tier),
                    _ => {}
                }
                claimed.push((index, claim));
            }
        }
        RowContent::build(&claimed, |matching| {
            let mut noted = Vec::new();
            let decided = steps.walk(matching.iter().copied(), |rule| noted.push(rule.clone()));
            let reason = decided.and_then(|decided| steps.reason(decided)).cloned();
            let unknown = Reason::Unknown(self.list.list.direction);
            tables.path(Decision { reason: reason.unwrap_or(unknown), noted })
        })
    }
}

/// The steps of a chain by what they want of the peer.
#[derive(Default)]
struct Wanted {
    /// Those that want nothing.
    always: Vec<usize>,
    /// Those that want this predicate, ascending.
    by_predicate: AHashMap<PredicateId, Vec<usize>>,
    /// All that is asked of the peer but its family.
    asked: BTreeSet<PredicateId>,
}

/// Rows with their intervals laid end to end.
struct Intervals {
    rows: Box<[Row]>,
    starts: Box<[u16]>,
    paths: Box<[PathId]>,
    by_source: Box<[Span]>,
}

fn flatten(contents: &[RowContent]) -> Intervals {
    let (mut starts, mut paths): (Vec<u16>, Vec<PathId>) = (Vec::new(), Vec::new());
    let mut by_source: Vec<Span> = Vec::new();
    let mut rows = Vec::with_capacity(contents.len());
    for content in contents {
        let tables = content.tables.each_ref().map(|intervals| {
            let cells: Vec<PathId> = intervals
                .iter()
                .map(|(_, cell)| match cell {
                    Cell::Path(path) => *path,
                    Cell::BySource(sources) => {
                        let first = starts.len() as u32;
                        starts.extend(sources.iter().map(|(start, _)| *start));
                        paths.extend(sources.iter().map(|(_, path)| *path));
                        by_source.push(Span { first, len: sources.len() as u32 });
                        PathId(BY_SOURCE | (by_source.len() as u32 - 1))
                    }
                })
                .collect();
            let span = Span { first: starts.len() as u32, len: cells.len() as u32 };
            starts.extend(intervals.iter().map(|(start, _)| *start));
            paths.extend(cells);
            span
        });
        rows.push(Row { tables, bare: content.bare });
    }
    Intervals {
        rows: rows.into(),
        starts: starts.into(),
        paths: paths.into(),
        by_source: by_source.into(),
    }
}

/// Classes, rows and paths are numbered in an order that the model gives, so their numbers are part of the meaning;
/// identities are replaced by their classes, counter slots left out.
fn canonical_hash(
    resolved: &Resolved,
    addresses: &Addresses,
    classes: &Classes,
    chains: &Chains,
    tables: &Tables<'_>,
) -> u64 {
    let mut hasher = DefaultHasher::new();
    for (net, identity) in &addresses.entries {
        (net, classes.of(*identity)).hash(&mut hasher);
    }
    for (name, local) in &chains.endpoints {
        name.hash(&mut hasher);
        for ((stage, direction), chain) in &local.chains {
            (stage, direction, chain).hash(&mut hasher);
        }
    }
    for (chain, list) in &chains.all {
        (chain, resolved.lists[*list].revision).hash(&mut hasher);
    }
    tables.cells.hash(&mut hasher);
    tables.rows.hash(&mut hasher);
    for path in &tables.paths {
        (&path.reason, &path.noted).hash(&mut hasher);
    }
    hasher.finish()
}
