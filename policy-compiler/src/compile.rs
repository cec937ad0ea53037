//! Model and local endpoints to an image.
//!
//! A compiler lives as long as the dataplane that it serves: it is what keeps the numbers of identities and the counter
//! slots of reasons the same from image to image.
//!
//! Cost, with *E* endpoints in the cluster, *S* distinct subjects, *P* predicates, *C* classes and *H* chains: O(E) for
//! addresses, O(S·P) selector matches (only within the namespace where a predicate names one), O(H·C·rules) for rows.
//! Policies are looked up by namespace, never all of them.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash, Hasher};

use ahash::AHashMap;

use crate::addresses::Addresses;
use crate::classes::{Classes, Predicates, Truths};
use crate::identity::Interner;
use crate::image::{ChainId, Image, Local, Path, PathId, Row, Span};
use crate::model::{Direction, Model, ObjectName, Reason};
use crate::prefix_map::PrefixMap;
use crate::resolve::{Ports, Resolved, ResolvedChain, ResolvedRule, resolve};
use crate::row::{Reach, RowContent};

/// Makes images; keeps identities and counter slots for its life.
#[derive(Debug)]
pub struct Compiler {
    interner: Interner,
    slots: AHashMap<Reason, u32>,
    /// How many identities the last image used.
    used: u32,
}

impl Default for Compiler {
    fn default() -> Self {
        Self::new()
    }
}

impl Compiler {
    /// A compiler that has made nothing yet.
    pub fn new() -> Self {
        let unknown = Direction::ALL.into_iter().map(Reason::Unknown);
        Self { interner: Interner::default(), slots: unknown.zip(0..).collect(), used: 0 }
    }

    /// The tables by which the `local` endpoints are judged. Names that the model does not have get none.
    pub fn compile(&mut self, model: &Model, local: &BTreeSet<ObjectName>) -> Image {
        self.interner.forget_if_sparse(self.used);
        let resolved = resolve(model, local);
        let addresses = Addresses::assign(&mut self.interner, model, &resolved.predicates);
        let predicates = Predicates::build(&resolved, &self.interner, &addresses);
        let classes = Classes::build(&self.interner, &addresses, &predicates.all);
        let mut tables = Tables::new(&mut self.slots);
        for chain in &resolved.chains {
            for truths in &classes.truths {
                tables.cell(chain, &predicates, truths);
            }
        }
        let canonical_hash = canonical_hash(&resolved, &addresses, &classes, &tables);
        let Tables { cells, rows, paths, .. } = tables;
        self.used = addresses.keys.len() as u32;
        let intervals = flatten(&rows);
        let slots = self.slots.len() as u32;
        let empty = Image::default();
        Image {
            prefixes: PrefixMap::build(
                addresses.default.0,
                addresses.entries.iter().map(|(net, identity)| (*net, identity.0)),
            ),
            entries: addresses.entries.into(),
            default_identity: addresses.default,
            endpoints: local_endpoints(&resolved),
            first_identity: classes.first,
            classes: classes.of_identity.into(),
            class_truths: classes.truths.into_iter().map(Truths::into_lists).collect(),
            predicates: predicates.all.into(),
            chains: resolved.chains.into_iter().map(|chain| chain.chain).collect(),
            cells: cells.into(),
            rows: intervals.rows,
            starts: intervals.starts,
            interval_paths: intervals.paths,
            paths: paths.into(),
            slots,
            identity_count: addresses.keys.len(),
            canonical_hash,
            ..empty
        }
    }
}

/// The rows as they are being made.
struct Tables<'s> {
    slots: &'s mut AHashMap<Reason, u32>,
    path_ids: AHashMap<Reason, PathId>,
    paths: Vec<Path>,
    by_claims: AHashMap<(Vec<(Reach, PathId)>, PathId), u32>,
    row_ids: AHashMap<RowContent, u32>,
    rows: Vec<RowContent>,
    cells: Vec<u32>,
}

impl<'s> Tables<'s> {
    fn new(slots: &'s mut AHashMap<Reason, u32>) -> Self {
        let mut tables = Self {
            slots,
            path_ids: AHashMap::new(),
            paths: Vec::new(),
            by_claims: AHashMap::new(),
            row_ids: AHashMap::new(),
            rows: Vec::new(),
            cells: Vec::new(),
        };
        for direction in Direction::ALL {
            tables.path(Reason::Unknown(direction));
        }
        tables
    }

    fn path(&mut self, reason: Reason) -> PathId {
        if let Some(path) = self.path_ids.get(&reason) {
            return *path;
        }
        let path = PathId(self.paths.len() as u32);
        let next = self.slots.len() as u32;
        let slot = *self.slots.entry(reason.clone()).or_insert(next);
        self.paths.push(Path { verdict: reason.verdict(), reason: reason.clone(), slot });
        self.path_ids.insert(reason, path);
        path
    }

    /// Appends the cell of a chain and a class.
    fn cell(&mut self, chain: &ResolvedChain, predicates: &Predicates, truths: &Truths) {
        let mut claims = Vec::new();
        for rule in &chain.rules {
            let reaches = reaches(rule, predicates, truths);
            if !reaches.is_empty() {
                let path = self.path(Reason::Rule(rule.name.clone()));
                claims.extend(reaches.into_iter().map(|reach| (reach, path)));
            }
        }
        let default = self.path(chain.chain.default_reason());
        let (rows, row_ids) = (&mut self.rows, &mut self.row_ids);
        let row = *self.by_claims.entry((claims, default)).or_insert_with_key(|(claims, _)| {
            *row_ids.entry(RowContent::build(claims, default)).or_insert_with_key(|row| {
                rows.push(row.clone());
                rows.len() as u32 - 1
            })
        });
        self.cells.push(row);
    }
}

/// What a rule claims of a class's packets. Each subject of the class is asked alone: whoever satisfies the peers must be
/// the one that names the port.
fn reaches(rule: &ResolvedRule, predicates: &Predicates, truths: &Truths) -> BTreeSet<Reach> {
    let mut reaches = BTreeSet::new();
    for bits in &truths.0 {
        let meant = match &rule.peers {
            None => true,
            Some(peers) => peers.iter().any(|predicate| bits.has(*predicate as usize)),
        };
        if !meant {
            continue;
        }
        let Some(services) = &rule.services else {
            reaches.insert(Reach::Everything);
            continue;
        };
        for (protocol, ports) in services {
            match ports {
                Ports::All => {
                    reaches.insert(Reach::Protocol(*protocol));
                }
                Ports::Range(first, last) => {
                    reaches.insert(Reach::Ports(*protocol, *first, *last));
                }
                Ports::Numbers(numbers) => {
                    reaches.extend(numbers.iter().map(|n| Reach::Ports(*protocol, *n, *n)));
                }
                Ports::OfPeer(name) => {
                    let numbers = predicates.named(name, *protocol, bits);
                    reaches.extend(numbers.map(|n| Reach::Ports(*protocol, n, n)));
                }
            }
        }
    }
    reaches
}

fn local_endpoints(resolved: &Resolved) -> BTreeMap<ObjectName, Local> {
    let local = |chains: &[usize; 2]| {
        let mut hasher = DefaultHasher::new();
        for chain in chains {
            resolved.chains[*chain].revision.hash(&mut hasher);
        }
        Local { chains: chains.map(|index| ChainId(index as u32)), revision: hasher.finish() }
    };
    resolved.endpoints.iter().map(|(name, chains)| (name.clone(), local(chains))).collect()
}

/// Rows with their intervals laid end to end.
struct Intervals {
    rows: Box<[Row]>,
    starts: Box<[u16]>,
    paths: Box<[PathId]>,
}

fn flatten(contents: &[RowContent]) -> Intervals {
    let (mut starts, mut paths) = (Vec::new(), Vec::new());
    let rows = contents
        .iter()
        .map(|content| {
            let ports = std::array::from_fn(|protocol| {
                let intervals = &content.ports[protocol];
                let span = Span { first: starts.len() as u32, len: intervals.len() as u32 };
                starts.extend(intervals.iter().map(|(start, _)| *start));
                paths.extend(intervals.iter().map(|(_, path)| *path));
                span
            });
            Row { ports, portless: content.portless, other: content.other }
        })
        .collect();
    Intervals { rows, starts: starts.into(), paths: paths.into() }
}

/// Classes, rows and paths are numbered in an order that the model gives, so their numbers are part of the meaning;
/// identities are replaced by their classes, counter slots left out.
fn canonical_hash(
    resolved: &Resolved,
    addresses: &Addresses,
    classes: &Classes,
    tables: &Tables,
) -> u64 {
    let mut hasher = DefaultHasher::new();
    classes.of(addresses.default).hash(&mut hasher);
    for (net, identity) in &addresses.entries {
        (net, classes.of(*identity)).hash(&mut hasher);
    }
    resolved.endpoints.hash(&mut hasher);
    for chain in &resolved.chains {
        chain.revision.hash(&mut hasher);
    }
    tables.cells.hash(&mut hasher);
    tables.rows.hash(&mut hasher);
    for path in &tables.paths {
        path.reason.hash(&mut hasher);
    }
    hasher.finish()
}
