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

use std::collections::BTreeSet;
use std::rc::Rc;

use crate::addresses::Addresses;
use crate::chains::{Chains, LocalEnds};
use crate::classes::{Classifying, Kinds};
use crate::identity::Interner;
use crate::image::{BY_SOURCE, Chain, Identity, Image, PathId, Row, Span};
use crate::members::Members;
use crate::model::Model;
use crate::predicates::{AtomTruths, evaluate};
use crate::prefix_map::PrefixMap;
use crate::resolve::{LocalName, resolve};
use crate::row::{Cell, RowContent};
use crate::rows::Tables;
use crate::slots::Slots;

/// Bytes of rows and cells that an image may hold if nothing else is said.
pub const DEFAULT_BUDGET: usize = 64 << 20;

/// Makes images; keeps identities and counter slots for its life.
#[derive(Debug)]
pub struct Compiler {
    interner: Interner,
    slots: Slots,
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
        Self { interner: Interner::default(), slots: Slots::default(), used: 0, budget }
    }

    /// Forgets the decisions that have these slots and gives the slots to others. It is for the caller to know that nobody
    /// uses an image that names them, or will count by them.
    pub fn release(&mut self, slots: &BTreeSet<u32>) {
        self.slots.release(slots);
    }

    /// The tables by which the `local` endpoints are judged: pods, and, without a namespace, host endpoints. Names that the
    /// model does not have get none.
    pub fn compile(&mut self, model: &Model, local: &BTreeSet<LocalName>) -> Image {
        self.interner.forget_if_sparse(self.used);
        let resolved = resolve(model, local);
        let members = Members::of(model);
        let (predicates, truths) = evaluate(&resolved, &members, local);
        let atoms = AtomTruths::new(&predicates.all);
        let (kinds, of_members) = Kinds::of_members(&members, &truths);
        let addresses = Addresses::of(model, &members, &of_members, &atoms);
        let said = self.interner.said(&predicates.all);
        let mut classifying = Classifying::new(&mut self.interner, &kinds, &atoms, &said);
        let entries = addresses.identities(&mut classifying);
        let classes = classifying.classes();
        let prefixes = PrefixMap::build(
            Identity::UNKNOWN.0,
            entries.iter().map(|(net, identity)| (*net, identity.0)),
        );
        let ends = LocalEnds {
            model,
            members: &members,
            truths: &truths,
            kinds: &kinds,
            atoms: &atoms,
            addresses: &addresses,
            prefixes: &prefixes,
        };
        let chains = Chains::of(&resolved, &predicates, &ends);
        let tables =
            Tables::build(&mut self.slots, self.budget, &resolved, &predicates, &classes, &chains);
        let intervals = flatten(&tables.rows);
        self.used = classes.identities as u32;
        let Tables { cells, paths, linear, .. } = tables;
        let slots = self.slots.end();
        Image {
            prefixes,
            endpoints: chains.endpoints,
            first_identity: classes.first,
            classes: classes.of_identity.into(),
            class_truths: classes.truths.into(),
            predicates: predicates.all.into(),
            answers: predicates.answers.into(),
            chains: chains
                .all
                .into_iter()
                .map(|made| Chain {
                    list: resolved.lists[made.list].list.clone(),
                    local: made.local,
                })
                .collect(),
            cells: cells.into(),
            linear,
            rows: intervals.rows,
            starts: intervals.starts,
            interval_paths: intervals.paths,
            by_source: intervals.by_source,
            paths: paths.into(),
            slots,
            identity_count: classes.identities,
            ..Image::default()
        }
    }
}

/// Rows with their intervals laid end to end.
struct Intervals {
    rows: Box<[Row]>,
    starts: Box<[u16]>,
    paths: Box<[PathId]>,
    by_source: Box<[Span]>,
}

fn flatten(contents: &[Rc<RowContent>]) -> Intervals {
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
