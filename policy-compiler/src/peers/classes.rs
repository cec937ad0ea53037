//! Classes: sets of identities that the policies in use do not distinguish.
//!
//! The predicate set of an address is the union of the sets of its members and of its atom. Addresses with equal sets
//! are one class.

use std::sync::Arc;

use ahash::AHashMap;
use ipnet::IpNet;

use super::atoms::AtomPredicates;
use super::class_map::NO_CLASS;
use super::identity::{IdentityInterner, PredicateKey};
use super::member_kinds::{MemberKindId, MemberKinds};
use super::predicate_set::{PredicateSet, union};
use super::truths::{TooMany, Truths};
use crate::common::{Grouped, Identity};
use crate::resolve::PredicateId;

/// The classes of one image.
pub(crate) struct Classes {
    /// The predicate set of each class.
    pub(crate) predicate_sets: Vec<PredicateSet>,
    /// The first identity of `of_identity`.
    pub(crate) first: u32,
    /// The class of each identity, or [`NO_CLASS`] for identities that are not in use.
    pub(crate) of_identity: Vec<u32>,
    /// The number of identities in use.
    pub(crate) identities: usize,
    /// Classes by predicate set.
    pub(crate) by_predicate_set: AHashMap<PredicateSet, u32>,
}

/// The number of an atom while identities are computed.
pub(crate) type AtomNumber = u32;

/// The number of an address's surroundings. Surroundings are the predicates of all members whose prefixes are larger
/// than the single address and contain it.
pub(crate) type SurroundingsNumber = u32;

/// The surroundings of an address that lies in no larger prefix with members.
pub(crate) const NO_SURROUNDINGS: SurroundingsNumber = 0;

/// The number for a missing atom.
const NO_ATOM: AtomNumber = AtomNumber::MAX;

/// A map whose keys are sets of kinds; each set is in ascending order.
type OfKinds<T> = AHashMap<Box<[MemberKindId]>, T>;

/// Assigns identities to addresses, and classes to identities.
pub(crate) struct Classifier<'a> {
    interner: &'a mut IdentityInterner,
    kinds: &'a MemberKinds,
    atoms: &'a AtomPredicates,
    /// The key of each predicate.
    predicate_keys: &'a [PredicateKey],
    /// The predicate set of each atom.
    atom_predicates: Vec<PredicateSet>,
    /// The last result for an address whose members have a single kind, by kind: the atom of the address, and its
    /// identity.
    of_one: Vec<(AtomNumber, Identity)>,
    of_one_elsewhere: AHashMap<(MemberKindId, AtomNumber), Identity>,
    of_several: AHashMap<(SurroundingsNumber, AtomNumber), OfKinds<Identity>>,
    /// The predicates of surroundings, by number.
    surroundings: Vec<PredicateSet>,
    surroundings_numbers: AHashMap<PredicateSet, SurroundingsNumber>,
    /// The surroundings of the addresses in a prefix, by the surroundings of the prefix itself and by the kinds of its
    /// members.
    surroundings_inside: AHashMap<SurroundingsNumber, OfKinds<SurroundingsNumber>>,
    truths: &'a mut Truths,
    classes: Classes,
}

impl<'a> Classifier<'a> {
    pub(crate) fn new(
        interner: &'a mut IdentityInterner,
        kinds: &'a MemberKinds,
        atoms: &'a AtomPredicates,
        predicate_keys: &'a [PredicateKey],
        truths: &'a mut Truths,
    ) -> Self {
        let classes = Classes {
            predicate_sets: Vec::new(),
            first: interner.first,
            of_identity: Vec::new(),
            identities: 0,
            by_predicate_set: AHashMap::new(),
        };
        Self {
            interner,
            kinds,
            atoms,
            predicate_keys,
            atom_predicates: Vec::new(),
            of_one: vec![(NO_ATOM, Identity::UNKNOWN); kinds.all.len()],
            of_one_elsewhere: AHashMap::new(),
            of_several: AHashMap::new(),
            surroundings: vec![PredicateSet::default()],
            surroundings_numbers: AHashMap::from([(PredicateSet::default(), NO_SURROUNDINGS)]),
            surroundings_inside: AHashMap::new(),
            truths,
            classes,
        }
    }

    /// The identity of an address with the surroundings `around` and this atom. `own` are the kinds of the members at
    /// the address itself, ascending and distinct.
    pub(crate) fn identity(
        &mut self,
        around: SurroundingsNumber,
        own: &[MemberKindId],
        atom: AtomNumber,
    ) -> Result<Identity, TooMany> {
        if let ([one], NO_SURROUNDINGS) = (own, around) {
            return self.single_occupant(*one, atom);
        }
        let known = self.of_several.get(&(around, atom)).and_then(|of| of.get(own)).copied();
        if let Some(known) = known {
            return Ok(known);
        }
        let identity = self.make_identity(around, own, atom)?;
        self.of_several.entry((around, atom)).or_default().insert(own.into(), identity);
        Ok(identity)
    }

    /// The identity of an address in this atom whose members all have one kind, and that lies in no larger prefix with
    /// members.
    #[inline]
    pub(crate) fn single_occupant(
        &mut self,
        kind: MemberKindId,
        atom: AtomNumber,
    ) -> Result<Identity, TooMany> {
        if let Some((last, identity)) = self.of_one.get(kind as usize)
            && *last == atom
        {
            return Ok(*identity);
        }
        self.single_occupant_slow(kind, atom)
    }

    #[inline(never)]
    fn single_occupant_slow(
        &mut self,
        kind: MemberKindId,
        atom: AtomNumber,
    ) -> Result<Identity, TooMany> {
        let identity = match self.of_one_elsewhere.get(&(kind, atom)) {
            Some(known) => *known,
            None => self.make_identity(NO_SURROUNDINGS, &[kind], atom)?,
        };
        if let Some(last) = self.of_one.get_mut(kind as usize) {
            let (before, there) = std::mem::replace(last, (atom, identity));
            if before != NO_ATOM {
                self.of_one_elsewhere.insert((kind, before), there);
            }
        }
        Ok(identity)
    }

    /// The surroundings of the addresses in a prefix. `outer` are the surroundings of the prefix itself, and `own` are
    /// the kinds of its members. These are never endpoints, because endpoints have only single addresses.
    pub(crate) fn surroundings(
        &mut self,
        outer: SurroundingsNumber,
        own: &[MemberKindId],
    ) -> Result<SurroundingsNumber, TooMany> {
        let known = self.surroundings_inside.get(&outer).and_then(|of| of.get(own)).copied();
        if let Some(known) = known {
            return Ok(known);
        }
        let [set, _] = self.kinds.predicate_sets(own, &self.surroundings[outer as usize]);
        self.truths.count(set.len())?;
        let all = &mut self.surroundings;
        let number = *self.surroundings_numbers.entry(set).or_insert_with_key(|set| {
            all.push(Arc::clone(set));
            all.len() as SurroundingsNumber - 1
        });
        self.surroundings_inside.entry(outer).or_default().insert(own.into(), number);
        Ok(number)
    }

    fn make_identity(
        &mut self,
        around: SurroundingsNumber,
        own: &[MemberKindId],
        atom: AtomNumber,
    ) -> Result<Identity, TooMany> {
        let atom = &self.atom_predicates[atom as usize];
        let [set, around] = if around == NO_SURROUNDINGS {
            self.kinds.predicate_sets(own, atom)
        } else {
            let around = self.surroundings[around as usize].iter();
            self.kinds.predicate_sets(own, &union(around.chain(&**atom)))
        };
        self.truths.count(set.len())?;
        let identity = self.interner.identity([&set, &around], self.predicate_keys);
        if identity != Identity::UNKNOWN {
            self.class(identity, set);
        }
        Ok(identity)
    }

    /// Adds the atom of the addresses that lie in no prefix in use.
    pub(crate) fn outside_atoms(&mut self) -> AtomNumber {
        self.atom_predicates.push(PredicateSet::default());
        self.atom_predicates.len() as u32 - 1
    }

    /// Adds the atom of a prefix in use. `outer` is the smallest atom that contains the prefix.
    pub(crate) fn atom_inside(&mut self, atom: IpNet, outer: AtomNumber) -> AtomNumber {
        let around = &self.atom_predicates[outer as usize];
        let set = union(around.iter().chain(self.atoms.made_true_by(atom)));
        self.atom_predicates.push(set);
        self.atom_predicates.len() as u32 - 1
    }

    fn class(&mut self, identity: Identity, set: PredicateSet) {
        let Classes {
            predicate_sets: sets,
            first,
            of_identity,
            identities,
            by_predicate_set: known,
        } = &mut self.classes;
        let class = *known.entry(set).or_insert_with_key(|set| {
            sets.push(Arc::clone(set));
            sets.len() as u32 - 1
        });
        let at = identity.0.wrapping_sub(*first) as usize;
        if of_identity.len() <= at {
            of_identity.resize(at + 1, NO_CLASS);
        }
        if std::mem::replace(&mut of_identity[at], class) == NO_CLASS {
            *identities += 1;
        }
    }

    pub(crate) fn finish(self) -> Classes {
        self.classes
    }
}

/// For each predicate, the classes that match it, in ascending order.
pub(crate) fn classes_by_predicate(classes: &[PredicateSet], predicates: usize) -> Grouped {
    let pairs = (0..).zip(classes).flat_map(|(class, set)| set.iter().map(move |it| (*it, class)));
    Grouped::from_pairs(predicates, pairs)
}

/// A class that is added to an image.
#[derive(Debug)]
pub(crate) struct NewClass {
    /// The class that the addresses of the new class had before.
    pub(crate) from: Option<u32>,
    /// The predicates that are true of only one of the two classes.
    pub(crate) differs: Vec<PredicateId>,
}
