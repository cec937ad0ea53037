//! Which identities the policies in use can tell apart.

use std::hash::Hash;

use ahash::AHashMap;
use ipnet::IpNet;

use crate::addresses::Addresses;
use crate::identity::Interner;
use crate::image::{Identity, NO_CLASS};
use crate::members::Position;
use crate::predicates::{AtomTruths, Truth, union};
use crate::resolve::PredicateId;

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

    fn number(&mut self, value: &T) -> u32 {
        if let Some(known) = self.known.get(value) {
            return *known;
        }
        let next = self.values.len() as u32;
        self.values.push(value.clone());
        self.known.insert(value.clone(), next);
        next
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
        truths: &[Truth],
        atoms: &AtomTruths,
    ) -> Self {
        // Kinds: the distinct truths of members and of atoms. Most members have one of few.
        let mut kinds: Distinct<Truth> = Distinct::new();
        let nothing = kinds.number(&Truth::default());
        let kind_of: Vec<u32> = truths
            .iter()
            .map(|truth| if truth.is_empty() { nothing } else { kinds.number(truth) })
            .collect();
        let mut of_atom: AHashMap<Option<IpNet>, u32> = AHashMap::new();
        let mut classes: Distinct<Truth> = Distinct::new();
        let mut of_one: AHashMap<(u32, u32), u32> = AHashMap::new();
        let mut of_several: AHashMap<(Vec<u32>, u32), u32> = AHashMap::new();
        let mut of_identity = vec![NO_CLASS; interner.span()];
        let mut held = Vec::new();
        for (identity, key, holders) in &addresses.keys {
            let atom = *of_atom.entry(key.atom).or_insert_with(|| {
                kinds.number(&key.atom.map(|atom| atoms.of(atom)).unwrap_or_default())
            });
            held.clear();
            held.extend(holders.positions().iter().map(|position| kind_of[*position]));
            held.sort_unstable();
            held.dedup();
            held.retain(|kind| *kind != nothing);
            let known = match held.as_slice() {
                [] => of_one.get(&(nothing, atom)),
                [one] => of_one.get(&(*one, atom)),
                _ => of_several.get(&(held.clone(), atom)),
            };
            let class = known.copied().unwrap_or_else(|| {
                let all = held.iter().chain([&atom]).map(|kind| &kinds.values[*kind as usize]);
                let class = classes.number(&union(all.flat_map(|truth| truth.iter())));
                match held.as_slice() {
                    [] => of_one.insert((nothing, atom), class),
                    [one] => of_one.insert((*one, atom), class),
                    _ => of_several.insert((held.clone(), atom), class),
                };
                class
            });
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

/// What is true of an address of one endpoint of several that may have it: what it itself, its atom and those that are no
/// endpoints make true.
pub(crate) fn local_truth(
    own: Position,
    holders: &[Position],
    atom: Option<IpNet>,
    is_endpoint: impl Fn(Position) -> bool,
    truths: &[Truth],
    atoms: &AtomTruths,
) -> Truth {
    let others = holders.iter().filter(|position| !is_endpoint(**position));
    let known = others.chain([&own]).flat_map(|position| truths[*position].iter());
    let atom = atom.map(|atom| atoms.of(atom)).unwrap_or_default();
    union(known.chain(&atom).copied().collect::<Vec<PredicateId>>().iter())
}
