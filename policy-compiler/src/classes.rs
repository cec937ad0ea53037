//! Which identities the policies in use can tell apart.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::Hash;

use ahash::AHashMap;
use ipnet::IpNet;

use crate::addresses::Addresses;
use crate::identity::{Interner, SubjectId};
use crate::image::{Identity, NO_CLASS, TruthLists};
use crate::model::{NamedPort, Protocol};
use crate::resolve::{Namespaces, Predicate, PredicateId, Resolved};

/// What is asked of peers.
pub(crate) struct Predicates {
    /// The resolved predicates, and behind them every number that some subject gives to a port name that rules use.
    pub(crate) all: Vec<Predicate>,
    /// The latter by name and protocol.
    numbers: BTreeMap<(String, Protocol), Vec<(u16, PredicateId)>>,
}

impl Predicates {
    pub(crate) fn build(resolved: &Resolved, interner: &Interner, addresses: &Addresses) -> Self {
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
    pub(crate) fn named<'a>(
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
pub(crate) struct Bits(Box<[u64]>);

impl Bits {
    fn none(predicates: usize) -> Self {
        Self(vec![0; predicates.div_ceil(64)].into())
    }

    fn set(&mut self, predicate: usize) {
        if let Some(word) = self.0.get_mut(predicate / 64) {
            *word |= 1 << (predicate % 64);
        }
    }

    pub(crate) fn has(&self, predicate: usize) -> bool {
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
pub(crate) struct Truths(pub(crate) Vec<Bits>);

impl Truths {
    pub(crate) fn into_lists(self) -> TruthLists {
        self.0.iter().map(Bits::list).collect()
    }
}

/// Identities that no predicate tells apart.
pub(crate) struct Classes {
    /// By class.
    pub(crate) truths: Vec<Truths>,
    /// The first identity of the interner.
    pub(crate) first: u32,
    /// By identity, from the first one on.
    pub(crate) of_identity: Vec<u32>,
}

impl Classes {
    pub(crate) fn build(
        interner: &Interner,
        addresses: &Addresses,
        predicates: &[Predicate],
    ) -> Self {
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

    pub(crate) fn of(&self, identity: Identity) -> u32 {
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
