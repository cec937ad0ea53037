//! Which identities the policies in use can tell apart.
//!
//! A *kind* is all that matters of a member: whether it is an endpoint, and what is true of it. An address is held by some
//! kinds, in some atom; their truths together are the address's, and equal truths are one class.

use std::hash::Hash;

use ahash::AHashMap;
use ipnet::IpNet;

use crate::identity::{Interner, Key, Said};
use crate::image::{Identity, NO_CLASS};
use crate::members::Members;
use crate::predicates::{AtomTruths, Truth, Truths, union};
use crate::resolve::PredicateId;

/// Index of a kind.
pub(crate) type KindId = u32;

/// The kinds of members.
#[derive(Debug, Default)]
pub(crate) struct Kinds {
    known: [AHashMap<Truth, KindId>; 2],
    /// Whether its members are endpoints, and what is true of them.
    all: Vec<(bool, Truth)>,
}

impl Kinds {
    /// The kind of a member; `None` for those whom no policy here can tell from nobody.
    pub(crate) fn of(&mut self, is_endpoint: bool, truth: &[PredicateId]) -> Option<KindId> {
        if truth.is_empty() {
            return None;
        }
        let known = &mut self.known[usize::from(is_endpoint)];
        if let Some(kind) = known.get(truth) {
            return Some(*kind);
        }
        let kind = self.all.len() as KindId;
        known.insert(truth.into(), kind);
        self.all.push((is_endpoint, truth.into()));
        Some(kind)
    }

    /// The kind of every member, by position.
    pub(crate) fn of_members(
        members: &Members<'_>,
        truths: &Truths,
    ) -> (Self, Vec<Option<KindId>>) {
        let mut kinds = Self::default();
        let all = members.all.iter().enumerate();
        let of = all.map(|(at, it)| kinds.of(it.is_endpoint(), truths.of_member(at))).collect();
        (kinds, of)
    }

    /// What is true of an address that some kinds hold in an atom, and what would be without endpoints.
    pub(crate) fn truth(&self, held: &[KindId], atom: &Truth) -> [Truth; 2] {
        let held = held.iter().filter_map(|kind| self.all.get(*kind as usize));
        let all = held.clone().flat_map(|(_, truth)| truth.iter());
        let around =
            held.filter(|(is_endpoint, _)| !is_endpoint).flat_map(|(_, truth)| truth.iter());
        [union(all.chain(atom.iter())), union(around.chain(atom.iter()))]
    }

    /// What is true of an address of one endpoint of several that may have it: what it itself, its atom and those that are
    /// no endpoints make true.
    pub(crate) fn local_truth(&self, own: &[PredicateId], held: &[KindId], atom: &Truth) -> Truth {
        let [_, around] = self.truth(held, atom);
        union(own.iter().chain(around.iter()))
    }
}

/// Identities that no predicate tells apart.
pub(crate) struct Classes {
    /// What is true of each class.
    pub(crate) truths: Vec<Truth>,
    /// The identity that stands first in `of_identity`.
    pub(crate) first: u32,
    /// Class of each identity; [`NO_CLASS`] for those not in use.
    pub(crate) of_identity: Vec<u32>,
    /// How many identities are in use.
    pub(crate) identities: usize,
    /// Classes by what is true of them.
    pub(crate) known: AHashMap<Truth, u32>,
}

/// Gives addresses their identities and identities their classes.
pub(crate) struct Classifying<'a> {
    interner: &'a mut Interner,
    kinds: &'a Kinds,
    atoms: &'a AtomTruths,
    /// By predicate what it says.
    said: &'a [Said],
    of_atom: AHashMap<Option<IpNet>, u32>,
    atom_truths: Vec<Truth>,
    /// The last atom and its number: neighbours mostly have one.
    last: Option<(Option<IpNet>, u32)>,
    of_one: AHashMap<(KindId, u32), Identity>,
    /// By atom.
    of_several: AHashMap<u32, AHashMap<Box<[KindId]>, Identity>>,
    classes: Classes,
}

impl<'a> Classifying<'a> {
    pub(crate) fn new(
        interner: &'a mut Interner,
        kinds: &'a Kinds,
        atoms: &'a AtomTruths,
        said: &'a [Said],
    ) -> Self {
        let classes = Classes {
            truths: Vec::new(),
            first: interner.first,
            of_identity: Vec::new(),
            identities: 0,
            known: AHashMap::new(),
        };
        Self {
            interner,
            kinds,
            atoms,
            said,
            of_atom: AHashMap::new(),
            atom_truths: Vec::new(),
            last: None,
            of_one: AHashMap::new(),
            of_several: AHashMap::new(),
            classes,
        }
    }

    /// The identity of an address that these kinds hold (ascending, distinct) in an atom.
    pub(crate) fn identity(&mut self, held: &[KindId], atom: Option<IpNet>) -> Identity {
        let number = match self.last {
            Some((last, number)) if last == atom => number,
            _ => self.atom(atom),
        };
        let known = match held {
            [one] => self.of_one.get(&(*one, number)).copied(),
            several => self.of_several.get(&number).and_then(|of| of.get(several)).copied(),
        };
        if let Some(known) = known {
            return known;
        }
        let [truth, around] = self.kinds.truth(held, &self.atom_truths[number as usize]);
        let identity = self.interner.identity(Key::of([&truth, &around], self.said));
        match held {
            [one] => self.of_one.insert((*one, number), identity),
            several => {
                let of_atom = self.of_several.entry(number).or_default();
                of_atom.insert(several.into(), identity)
            }
        };
        if identity != Identity::UNKNOWN {
            self.class(identity, truth);
        }
        identity
    }

    fn atom(&mut self, atom: Option<IpNet>) -> u32 {
        let Self { atoms, atom_truths, .. } = self;
        let number = *self.of_atom.entry(atom).or_insert_with(|| {
            atom_truths.push(atom.map(|atom| atoms.of(atom)).unwrap_or_default());
            atom_truths.len() as u32 - 1
        });
        self.last = Some((atom, number));
        number
    }

    fn class(&mut self, identity: Identity, truth: Truth) {
        let Classes { truths, first, of_identity, identities, known } = &mut self.classes;
        let class = number_of(known, truths, truth);
        let at = identity.0.wrapping_sub(*first) as usize;
        if of_identity.len() <= at {
            of_identity.resize(at + 1, NO_CLASS);
        }
        if std::mem::replace(&mut of_identity[at], class) == NO_CLASS {
            *identities += 1;
        }
    }

    pub(crate) fn classes(self) -> Classes {
        self.classes
    }
}

/// The number of a value among the distinct ones.
fn number_of<T: Clone + Eq + Hash>(
    known: &mut AHashMap<T, u32>,
    values: &mut Vec<T>,
    value: T,
) -> u32 {
    if let Some(known) = known.get(&value) {
        return *known;
    }
    let next = values.len() as u32;
    values.push(value.clone());
    known.insert(value, next);
    next
}

/// For each predicate the classes of which it is true, ascending.
pub(crate) fn columns(classes: &[Truth], predicates: usize) -> Vec<Vec<u32>> {
    let mut columns = vec![Vec::new(); predicates];
    for (class, truth) in (0..).zip(classes) {
        for predicate in truth {
            columns[*predicate as usize].push(class);
        }
    }
    columns
}
