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
use std::net::IpAddr;

use ahash::AHashMap;
use ipnet::IpNet;

use crate::identity::{Holders, Interner, Key, SubjectId};
use crate::image::{ChainId, Identity, Image, Local, NO_CLASS, Path, PathId, Row, Span};
use crate::model::{Direction, Model, NamedPort, ObjectName, Protocol, Reason};
use crate::prefix_map::PrefixMap;
use crate::resolve::{
    Namespaces, Ports, Predicate, PredicateId, Resolved, ResolvedChain, ResolvedRule, resolve,
};
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
        let (rows, starts, interval_paths) = flatten(&rows);
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
            rows,
            starts,
            interval_paths,
            paths: paths.into(),
            slots,
            identity_count: addresses.keys.len(),
            canonical_hash,
            ..empty
        }
    }
}

/// The addresses of the cluster and their identities.
struct Addresses {
    /// Every prefix with an identity of its own, ascending; pods' addresses are prefixes of full length.
    entries: Vec<(IpNet, Identity)>,
    /// The identity of every address that no prefix contains.
    default: Identity,
    /// The distinct identities in order of first appearance, the default first.
    keys: Vec<(Identity, Key)>,
    /// The subjects in use, by namespace.
    subjects: BTreeMap<u32, Vec<SubjectId>>,
}

impl Addresses {
    fn assign(interner: &mut Interner, model: &Model, predicates: &[Predicate]) -> Self {
        let (mut holders, subjects) = subjects(interner, model);
        holders.sort_unstable();
        holders.dedup();
        let prefixes = prefixes_in_use(predicates);
        let atoms = PrefixMap::build(0, prefixes.iter().copied().zip(1..));
        let atom = |address| {
            let at = (atoms.lookup(address) as usize).checked_sub(1);
            at.and_then(|at| prefixes.get(at)).copied()
        };
        let mut identities = Vec::with_capacity(prefixes.len() + holders.len());
        for net in &prefixes {
            identities.push((*net, Key { holders: Holders::Nobody, atom: Some(*net) }));
        }
        let mut several = Vec::new();
        for same in holders.chunk_by(|a, b| a.0 == b.0) {
            several.clear();
            several.extend(same.iter().map(|(_, subject)| *subject));
            if let Some((address, _)) = same.first() {
                let key = Key { holders: Holders::of(&several), atom: atom(*address) };
                identities.push((IpNet::from(*address), key));
            }
        }
        // A prefix in use of full length and a pod with that address: the pod, which is behind it, stands.
        identities.sort_by_key(|(net, _)| *net);
        identities.reverse();
        identities.dedup_by_key(|(net, _)| *net);
        identities.reverse();
        let default_key = Key { holders: Holders::Nobody, atom: None };
        let default = interner.identity(default_key.clone());
        let mut keys = vec![(default, default_key)];
        let mut seen = vec![false; interner.span() + identities.len() + 1];
        let mut entries = Vec::with_capacity(identities.len());
        for (net, key) in identities {
            let identity = interner.identity(key.clone());
            entries.push((net, identity));
            let seen = seen.get_mut(identity.0.wrapping_sub(interner.first) as usize);
            if let Some(seen) = seen.filter(|seen| !**seen) {
                *seen = true;
                keys.push((identity, key));
            }
        }
        Self { entries, default, keys, subjects }
    }
}

/// Every (address, subject) of the cluster, and the subjects of each namespace.
fn subjects(
    interner: &mut Interner,
    model: &Model,
) -> (Vec<(IpAddr, SubjectId)>, BTreeMap<u32, Vec<SubjectId>>) {
    let mut holders = Vec::with_capacity(model.endpoints.len());
    let mut subjects: BTreeMap<u32, Vec<SubjectId>> = BTreeMap::new();
    let mut current: Option<(&str, u32)> = None;
    for (name, endpoint) in &model.endpoints {
        let namespace = match current {
            Some((same, namespace)) if same == name.namespace => namespace,
            _ => interner.namespace(&name.namespace, model.namespace_labels(&name.namespace)),
        };
        current = Some((&name.namespace, namespace));
        let subject = interner.subject(namespace, endpoint);
        subjects.entry(namespace).or_default().push(subject);
        holders.extend(endpoint.addresses.iter().map(|address| (*address, subject)));
    }
    for subjects in subjects.values_mut() {
        subjects.sort_unstable();
        subjects.dedup();
    }
    (holders, subjects)
}

/// The CIDRs and exceptions of all blocks, ascending.
fn prefixes_in_use(predicates: &[Predicate]) -> Vec<IpNet> {
    let mut prefixes = BTreeSet::new();
    for predicate in predicates {
        if let Predicate::Block(block) = predicate {
            prefixes.insert(block.cidr());
            prefixes.extend(block.except());
        }
    }
    prefixes.into_iter().collect()
}

/// What is asked of peers.
struct Predicates {
    /// The resolved predicates, and behind them every number that some subject gives to a port name that rules use.
    all: Vec<Predicate>,
    /// The latter by name and protocol.
    numbers: BTreeMap<(String, Protocol), Vec<(u16, PredicateId)>>,
}

impl Predicates {
    fn build(resolved: &Resolved, interner: &Interner, addresses: &Addresses) -> Self {
        let mut all = resolved.predicates.clone();
        let mut ports = BTreeSet::new();
        let names: BTreeSet<(&str, Protocol)> =
            resolved.peer_ports.iter().map(|(name, protocol)| (name.as_str(), *protocol)).collect();
        if !names.is_empty() {
            for subject in addresses.subjects.values().flatten() {
                let named = &interner.subjects[*subject as usize].endpoint.named_ports;
                ports.extend(named.iter().filter(|p| names.contains(&(&p.name, p.protocol))));
            }
        }
        let mut numbers: BTreeMap<_, Vec<_>> = BTreeMap::new();
        for NamedPort { name, protocol, port } in ports {
            let same_name = numbers.entry((name.clone(), *protocol)).or_default();
            same_name.push((*port, all.len() as PredicateId));
            all.push(Predicate::NamesPort { name: name.clone(), protocol: *protocol, port: *port });
        }
        Self { all, numbers }
    }

    /// The numbers that a subject gives to a name.
    fn named<'a>(
        &'a self,
        name: &str,
        protocol: Protocol,
        bits: &'a Bits,
    ) -> impl Iterator<Item = u16> + 'a {
        let numbers = self.numbers.get(&(name.to_owned(), protocol));
        let numbers = numbers.into_iter().flatten();
        numbers.filter(|(_, predicate)| bits.has(*predicate as usize)).map(|(number, _)| *number)
    }
}

/// A set of predicates.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Bits(Box<[u64]>);

impl Bits {
    fn none(predicates: usize) -> Self {
        Self(vec![0; predicates.div_ceil(64)].into())
    }

    fn set(&mut self, predicate: usize) {
        if let Some(word) = self.0.get_mut(predicate / 64) {
            *word |= 1 << (predicate % 64);
        }
    }

    fn has(&self, predicate: usize) -> bool {
        self.0.get(predicate / 64).is_some_and(|word| word >> (predicate % 64) & 1 == 1)
    }

    fn union(&self, other: &Self) -> Self {
        Self(self.0.iter().zip(&other.0).map(|(a, b)| a | b).collect())
    }

    fn list(&self) -> Box<[PredicateId]> {
        (0..self.0.len() * 64).filter(|p| self.has(*p)).map(|p| p as PredicateId).collect()
    }
}

/// The distinct values of something, numbered.
#[derive(Debug, Default)]
struct Distinct<T> {
    known: AHashMap<T, u32>,
    values: Vec<T>,
}

impl<T: Clone + Eq + Hash> Distinct<T> {
    fn number(&mut self, value: T) -> u32 {
        *self.known.entry(value).or_insert_with_key(|value| {
            self.values.push(value.clone());
            self.values.len() as u32 - 1
        })
    }
}

/// What is true of a class: one set of predicates for each distinct subject, ascending, or one where no pod is.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Truths(Vec<Bits>);

impl Truths {
    fn into_lists(self) -> Box<[Box<[PredicateId]>]> {
        self.0.iter().map(Bits::list).collect()
    }
}

/// Identities that no predicate tells apart.
struct Classes {
    /// By class.
    truths: Vec<Truths>,
    /// The first identity of the interner.
    first: u32,
    /// By identity, from the first one on.
    of_identity: Vec<u32>,
}

impl Classes {
    fn build(interner: &Interner, addresses: &Addresses, predicates: &[Predicate]) -> Self {
        let none = Bits::none(predicates.len());
        let mut kinds: Distinct<Bits> = Distinct { known: AHashMap::new(), values: Vec::new() };
        let nobody = kinds.number(none.clone());
        let mut of_subject = vec![nobody; interner.subjects.len()];
        for (subject, bits) in subject_truths(interner, addresses, predicates) {
            of_subject[subject as usize] = kinds.number(bits);
        }
        let mut atoms: AHashMap<Option<IpNet>, u32> = AHashMap::new();
        let mut by_kinds: AHashMap<(Vec<u32>, u32), u32> = AHashMap::new();
        let mut classes: Distinct<Truths> = Distinct { known: AHashMap::new(), values: Vec::new() };
        let mut of_identity = vec![NO_CLASS; interner.span()];
        for (identity, key) in &addresses.keys {
            let atom = *atoms
                .entry(key.atom)
                .or_insert_with(|| kinds.number(atom_truths(key.atom, predicates)));
            let mut held: Vec<u32> =
                key.holders.subjects().iter().map(|s| of_subject[*s as usize]).collect();
            if held.is_empty() {
                held.push(nobody);
            }
            held.sort_unstable();
            held.dedup();
            let class = *by_kinds.entry((held, atom)).or_insert_with_key(|(held, atom)| {
                let atom = &kinds.values[*atom as usize];
                let mut truths: Vec<Bits> =
                    held.iter().map(|kind| kinds.values[*kind as usize].union(atom)).collect();
                truths.sort_unstable();
                classes.number(Truths(truths))
            });
            let at = identity.0.wrapping_sub(interner.first) as usize;
            if let Some(slot) = of_identity.get_mut(at) {
                *slot = class;
            }
        }
        Self { truths: classes.values, first: interner.first, of_identity }
    }

    fn of(&self, identity: Identity) -> u32 {
        let at = identity.0.wrapping_sub(self.first) as usize;
        self.of_identity.get(at).copied().unwrap_or(NO_CLASS)
    }
}

/// For each subject in use what its labels, namespace and port names make true.
fn subject_truths(
    interner: &Interner,
    addresses: &Addresses,
    predicates: &[Predicate],
) -> AHashMap<SubjectId, Bits> {
    let in_use = addresses.subjects.values().flatten();
    let mut truths: AHashMap<SubjectId, Bits> =
        in_use.map(|subject| (*subject, Bits::none(predicates.len()))).collect();
    let namespace = |id: u32| &interner.namespaces[id as usize];
    let by_name: AHashMap<&str, u32> =
        addresses.subjects.keys().map(|id| (namespace(*id).0.as_str(), *id)).collect();
    let mut names: AHashMap<(&str, Protocol, u16), usize> = AHashMap::new();
    for (index, predicate) in predicates.iter().enumerate() {
        let (namespaces, pods) = match predicate {
            Predicate::Pods { namespaces, pods } => (namespaces, pods),
            Predicate::NamesPort { name, protocol, port } => {
                names.insert((name, *protocol, *port), index);
                continue;
            }
            Predicate::Block(_) => continue,
        };
        let mut mark = |id: &u32| {
            for subject in addresses.subjects.get(id).into_iter().flatten() {
                if pods.matches(&interner.subjects[*subject as usize].endpoint.labels) {
                    truths.entry(*subject).and_modify(|bits| bits.set(index));
                }
            }
        };
        match namespaces {
            Namespaces::Named(name) => by_name.get(name.as_str()).into_iter().for_each(mark),
            Namespaces::Selected(selector) => {
                addresses
                    .subjects
                    .keys()
                    .filter(|id| selector.matches(&namespace(**id).1))
                    .for_each(&mut mark);
            }
        }
    }
    if !names.is_empty() {
        for (subject, bits) in &mut truths {
            for port in &interner.subjects[*subject as usize].endpoint.named_ports {
                if let Some(index) = names.get(&(port.name.as_str(), port.protocol, port.port)) {
                    bits.set(*index);
                }
            }
        }
    }
    truths
}

/// Which blocks contain every address of an atom; for the others they contain none of it (see the identity module).
fn atom_truths(atom: Option<IpNet>, predicates: &[Predicate]) -> Bits {
    let mut bits = Bits::none(predicates.len());
    for (index, predicate) in predicates.iter().enumerate() {
        if let (Some(atom), Predicate::Block(block)) = (atom, predicate)
            && block.cidr().contains(&atom)
            && !block.except().any(|except| except.contains(&atom))
        {
            bits.set(index);
        }
    }
    bits
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
        Local {
            chains: chains.map(|index| ChainId::new(index, resolved.chains[index].chain.direction)),
            revision: hasher.finish(),
        }
    };
    resolved.endpoints.iter().map(|(name, chains)| (name.clone(), local(chains))).collect()
}

/// Rows with their intervals laid end to end.
fn flatten(contents: &[RowContent]) -> (Box<[Row]>, Box<[u16]>, Box<[PathId]>) {
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
    (rows, starts.into(), paths.into())
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
