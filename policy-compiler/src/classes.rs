//! Which identities the policies in use can tell apart.

use std::hash::Hash;

use ahash::AHashMap;
use ipnet::IpNet;

use crate::addresses::Addresses;
use crate::identity::{Interner, Key};
use crate::image::{Identity, NO_CLASS};
use crate::predicates::{AtomTruths, Truth, union};
use crate::resolve::PredicateId;
use crate::subject::SubjectId;

/// The distinct values of something, numbered.
#[derive(Debug)]
struct Distinct<T> {
    known: AHashMap<T, u32>,
    values: Vec<T>,
}

impl<T: Clone + Eq + Hash> Distinct<T> {
    fn new() -> Self {
        Self { known: AHashMap::new(), values: Vec::new() }
    }

    fn number(&mut self, value: T) -> u32 {
        *self.known.entry(value).or_insert_with_key(|value| {
            self.values.push(value.clone());
            self.values.len() as u32 - 1
        })
    }
}

/// Identities that no predicate tells apart.
pub(crate) struct Classes {
    /// What is true of each class.
    pub(crate) truths: Vec<Truth>,
    /// The first identity of the interner.
    pub(crate) first: u32,
    /// By identity, from the first one on.
    pub(crate) of_identity: Vec<u32>,
}

impl Classes {
    pub(crate) fn build(
        interner: &Interner,
        addresses: &Addresses,
        truths: &AHashMap<SubjectId, Truth>,
        atoms: &AtomTruths,
    ) -> Self {
        let mut kinds: Distinct<Truth> = Distinct::new();
        let nothing = kinds.number(Truth::default());
        let mut of_subject = vec![nothing; interner.subjects.len()];
        for (subject, truth) in truths {
            of_subject[*subject as usize] = kinds.number(truth.clone());
        }
        let mut of_atom: AHashMap<Option<IpNet>, u32> = AHashMap::new();
        let mut by_kinds: AHashMap<(Vec<u32>, u32), u32> = AHashMap::new();
        let mut classes: Distinct<Truth> = Distinct::new();
        let mut of_identity = vec![NO_CLASS; interner.span()];
        let mut held = Vec::new();
        for (identity, key) in &addresses.keys {
            let atom = *of_atom.entry(key.atom).or_insert_with(|| {
                kinds.number(key.atom.map(|atom| atoms.of(atom)).unwrap_or_default())
            });
            held.clear();
            held.extend(key.holders.subjects().iter().map(|subject| of_subject[*subject as usize]));
            held.sort_unstable();
            held.dedup();
            let class = if let Some(class) = by_kinds.get(&(held.clone(), atom)) {
                *class
            } else {
                let all = held.iter().chain([&atom]).map(|kind| &kinds.values[*kind as usize]);
                let truth = all.fold(Vec::new(), |truth, kind| union(&truth, kind));
                let class = classes.number(truth.into());
                by_kinds.insert((held.clone(), atom), class);
                class
            };
            let at = identity.0.wrapping_sub(interner.first) as usize;
            if let Some(slot) = of_identity.get_mut(at) {
                *slot = class;
            }
        }
        Self { truths: classes.values, first: interner.first, of_identity }
    }

    /// For each predicate the classes of which it is true, ascending.
    pub(crate) fn columns(&self, predicates: usize) -> Vec<Vec<u32>> {
        let mut columns = vec![Vec::new(); predicates];
        for (class, truth) in (0..).zip(&self.truths) {
            for predicate in truth {
                columns[*predicate as usize].push(class);
            }
        }
        columns
    }

    pub(crate) fn of(&self, identity: Identity) -> u32 {
        let at = identity.0.wrapping_sub(self.first) as usize;
        self.of_identity.get(at).copied().unwrap_or(NO_CLASS)
    }
}

/// What is true of an address of one endpoint of several that may have it: what its own subject, its atom and those that
/// are no endpoints make true.
pub(crate) fn local_truth(
    own: SubjectId,
    key: &Key,
    is_endpoint: impl Fn(SubjectId) -> bool,
    truths: &AHashMap<SubjectId, Truth>,
    atoms: &AtomTruths,
) -> Vec<PredicateId> {
    let others = key.holders.subjects().iter().filter(|subject| !is_endpoint(**subject));
    let known = others.chain([&own]).filter_map(|subject| truths.get(subject));
    let atom = key.atom.map(|atom| atoms.of(atom)).unwrap_or_default();
    known.fold(atom.into_vec(), |truth, subject| union(&truth, subject))
}
