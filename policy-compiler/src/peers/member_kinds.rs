//! Kinds of members. Two members are of one kind if no policy here distinguishes them: they have the same predicate
//! set, and both are endpoints or both are not.

use std::sync::Arc;

use ahash::AHashMap;

use super::members::Members;
use super::predicate_set::{PredicateSet, union};
use super::predicates::MemberPredicates;
use crate::resolve::PredicateId;

/// The index of a kind.
pub(crate) type MemberKindId = u32;

/// The kinds of members.
#[derive(Debug, Default)]
pub(crate) struct MemberKinds {
    known: [AHashMap<PredicateSet, MemberKindId>; 2],
    /// For each kind, whether its members are endpoints, and their predicate set.
    pub(super) all: Vec<(bool, PredicateSet)>,
    /// The total length of the predicate sets of all kinds.
    pub(crate) truths: usize,
}

impl MemberKinds {
    /// The kind of a member. `None` for an empty predicate set, because such a member affects no policy here.
    pub(crate) fn intern(
        &mut self,
        is_endpoint: bool,
        set: &[PredicateId],
    ) -> Option<MemberKindId> {
        if set.is_empty() {
            return None;
        }
        let known = &mut self.known[usize::from(is_endpoint)];
        if let Some(kind) = known.get(set) {
            return Some(*kind);
        }
        let kind = self.all.len() as MemberKindId;
        let set = PredicateSet::from(set);
        known.insert(Arc::clone(&set), kind);
        self.truths += set.len();
        self.all.push((is_endpoint, set));
        Some(kind)
    }

    /// The kind of every member, by position.
    pub(crate) fn from_members(
        members: &Members<'_>,
        sets: &MemberPredicates,
    ) -> (Self, Vec<Option<MemberKindId>>) {
        let mut kinds = Self::default();
        let all = members.all.iter().enumerate();
        let of = all.map(|(at, it)| kinds.intern(it.is_endpoint(), sets.member(at))).collect();
        (kinds, of)
    }

    /// The predicate set of an address with members of these kinds in an atom, and the set that it would have without
    /// endpoints.
    pub(crate) fn predicate_sets(
        &self,
        held: &[MemberKindId],
        atom: &PredicateSet,
    ) -> [PredicateSet; 2] {
        let held = || held.iter().filter_map(|kind| self.all.get(*kind as usize));
        let endpoints = held().filter(|(is_endpoint, _)| *is_endpoint).count();
        let sum = held().map(|(_, set)| set.len()).sum::<usize>();
        let mut all = Vec::with_capacity(sum + atom.len());
        let union_of = |all: &mut Vec<PredicateId>, endpoints: bool| -> PredicateSet {
            all.clear();
            let held = held().filter(|(is_endpoint, _)| endpoints || !is_endpoint);
            held.for_each(|(_, set)| all.extend_from_slice(set));
            all.extend_from_slice(atom);
            all.sort_unstable();
            all.dedup();
            all.as_slice().into()
        };
        let set = union_of(&mut all, true);
        let around = match endpoints {
            0 => Arc::clone(&set),
            all if all == held().count() => Arc::clone(atom),
            _ => union_of(&mut all, false),
        };
        [set, around]
    }

    /// The predicate set of a local endpoint at one of its addresses: its own predicates, the predicates of the atom,
    /// and those of members with this address that are not endpoints. Predicates of other endpoints with this address
    /// do not count.
    pub(crate) fn local_predicate_set(
        &self,
        own: &[PredicateId],
        held: &[MemberKindId],
        atom: &PredicateSet,
    ) -> PredicateSet {
        let [_, around] = self.predicate_sets(held, atom);
        union(own.iter().chain(around.iter()))
    }
}
