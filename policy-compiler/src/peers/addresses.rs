//! The prefixes of a cluster, each with its occupants and its identity.
//!
//! The *members* of an address are those with a prefix that contains the address. Its *atom* is the longest prefix *in
//! use* that contains it.
//!
//! **Why members and atom determine every predicate.** Selectors, port names and services depend only on members. A
//! list of nets holds for an address if one of its nets contains it. Each net is a prefix in use. If the net contains
//! the atom, it contains every address whose atom this is. If not, it contains none of these addresses. Two prefixes
//! either nest or are disjoint. If a net inside the atom contained such an address, that net would be the longest
//! prefix in use, and the atom would not.

use std::net::{IpAddr, Ipv6Addr};

use ipnet::{IpNet, Ipv6Net};

use super::atoms::AtomPredicates;
use super::classes::{AtomNumber, Classifier, NO_SURROUNDINGS, SurroundingsNumber};
use super::member_kinds::MemberKindId;
use super::members::Members;
use super::prefixes::{Occupant, OccupantEdit, Occupants, Prefix, Prefixes, V4, V6, v4, v6};
use super::truths::TooMany;
use crate::common::{Identity, Rebuild};
use crate::model::Model;
use crate::prefix_map::PrefixMap;

/// Replaces the kind `was` of a member at a network by `is`. If `was` is `None`, the member is added. If `is` is
/// `None`, it is removed. If both are `None`, the network becomes an atom.
#[derive(Debug)]
pub(crate) struct PrefixEdit {
    pub(crate) net: IpNet,
    pub(crate) was: Option<MemberKindId>,
    pub(crate) is: Option<MemberKindId>,
}

impl PrefixEdit {
    fn of_occupants<P: Prefix>(&self, prefix: P) -> impl Iterator<Item = OccupantEdit<P>> {
        let Self { was, is, .. } = *self;
        let atom = (was.is_none() && is.is_none()).then_some(Occupant::ATOM);
        let goes = was.map(|was| ((prefix, Occupant::from(was)), false));
        let comes = is.map(Occupant::from).or(atom).map(|is| ((prefix, is), true));
        goes.into_iter().chain(comes)
    }
}

/// Prefixes, each with its identity.
#[derive(Debug, Default)]
pub(crate) struct PrefixIdentities {
    v4: Vec<(u32, u8, u32)>,
    v6: Vec<(Ipv6Net, u32)>,
}

impl PrefixIdentities {
    /// The number of prefixes.
    pub(crate) fn len(&self) -> usize {
        self.v4.len() + self.v6.len()
    }

    /// A map from every address to the identity of the longest prefix that contains the address.
    pub(crate) fn into_prefix_map(self) -> PrefixMap {
        PrefixMap::from_prefixes(Identity::UNKNOWN.0, self.v4, self.v6)
    }
}

/// The prefixes, each with its occupants.
#[derive(Debug)]
pub(crate) struct Addresses {
    v4: Prefixes<V4>,
    v6: Prefixes<V6>,
}

/// The prefixes of all network sets in ascending order, each with the position of its set. There may be many network
/// sets, each with many prefixes. Sorting them does not depend on policies, so another thread can sort while policies
/// are resolved.
#[derive(Debug, Default)]
pub(crate) struct SetPrefixes {
    v4: Vec<(V4, u32)>,
    v6: Vec<(V6, u32)>,
}

impl SetPrefixes {
    pub(crate) fn from_members(members: &Members<'_>) -> Self {
        let mut of_sets = Self::default();
        for (position, member) in (0..).zip(&members.all).filter(|(_, member)| member.is_set()) {
            member.for_each_net(|net| match net {
                IpNet::V4(net) => of_sets.v4.push((v4(net), position)),
                IpNet::V6(net) => of_sets.v6.push((v6(net), position)),
            });
        }
        sort_v4(&mut of_sets.v4);
        of_sets
    }
}

impl Addresses {
    pub(crate) fn new(
        model: &Model,
        members: &Members<'_>,
        of_sets: SetPrefixes,
        kinds: &[Option<MemberKindId>],
        atoms: &AtomPredicates,
    ) -> Self {
        let mut v4s = Vec::with_capacity(kinds.iter().flatten().count());
        let mut v6s = Vec::new();
        let mut add = |net, item| match net {
            IpNet::V4(net) => v4s.push((v4(net), item)),
            IpNet::V6(net) => v6s.push((v6(net), item)),
        };
        for net in atoms.prefixes() {
            add(net, Occupant::ATOM);
        }
        for (member, kind) in members.all.iter().zip(kinds).filter(|(it, _)| !it.is_set()) {
            if let Some(kind) = kind {
                member.for_each_net(|net| add(net, Occupant::from(*kind)));
            }
        }
        for address in &model.unknown {
            add(IpNet::from(*address), Occupant::UNKNOWN);
        }
        sort_v4(&mut v4s);
        let item = |position: u32| Some(Occupant::from(kinds.get(position as usize).copied()??));
        let of_sets_v4 = of_sets.v4.into_iter().filter_map(|(net, at)| Some((net, item(at)?)));
        let of_sets_v6 = of_sets.v6.into_iter().filter_map(|(net, at)| Some((net, item(at)?)));
        v6s.extend(of_sets_v6);
        v6s.sort_unstable();
        Self { v4: Prefixes::new(merge(of_sets_v4.collect(), v4s)), v6: Prefixes::new(v6s) }
    }

    /// The identity of every prefix. A single address counts as a prefix of full length.
    pub(crate) fn identities(
        &self,
        classifying: &mut Classifier<'_>,
    ) -> Result<PrefixIdentities, TooMany> {
        let mut v4 = Vec::with_capacity(self.v4.all.len());
        identities(&self.v4.all, classifying, |prefix, identity| {
            v4.push(((prefix >> 8) as u32, prefix as u8, identity.0));
        })?;
        let mut v6 = Vec::with_capacity(self.v6.all.len());
        identities(&self.v6.all, classifying, |(address, length), identity| {
            let net = Ipv6Net::new(Ipv6Addr::from_bits(address), length);
            v6.extend(net.map(|net| (net, identity.0)));
        })?;
        Ok(PrefixIdentities { v4, v6 })
    }

    /// The occupants of a network and of all larger prefixes around it. If `here` is given and `net` is a single
    /// address, `here` replaces the kinds of the members at exactly this address.
    pub(crate) fn occupants(&self, net: IpNet, here: Option<&[MemberKindId]>) -> Occupants {
        match net {
            IpNet::V4(net) => self.v4.occupants(v4(net), here),
            IpNet::V6(net) => self.v6.occupants(v6(net), here),
        }
    }

    /// The number of entries. A prefix has one entry for each of its occupants.
    pub(crate) fn len(&self) -> usize {
        self.v4.all.len() + self.v6.all.len()
    }

    /// The prefixes of the first `most` entries inside a network, in ascending order. A prefix occurs once for each of
    /// its occupants.
    pub(crate) fn prefixes_in(&self, net: IpNet, most: usize) -> Vec<IpNet> {
        match net {
            IpNet::V4(net) => self.v4.inside(v4(net)).take(most).collect(),
            IpNet::V6(net) => self.v6.inside(v6(net)).take(most).collect(),
        }
    }

    /// Applies edits. Returns `Err` if an edit replaces something that is not there.
    pub(crate) fn apply(&mut self, edits: &[PrefixEdit]) -> Result<(), Rebuild> {
        let (mut v4s, mut v6s) = (Vec::new(), Vec::new());
        for edit in edits {
            match edit.net {
                IpNet::V4(net) => v4s.extend(edit.of_occupants(v4(net))),
                IpNet::V6(net) => v6s.extend(edit.of_occupants(v6(net))),
            }
        }
        self.v4.apply(v4s)?;
        self.v6.apply(v6s)
    }

    /// The kinds of the members at exactly this address, one for each member.
    pub(crate) fn kinds_at(&self, address: IpAddr) -> Vec<MemberKindId> {
        match IpNet::from(address) {
            IpNet::V4(net) => self.v4.occupants_of(v4(net)).filter_map(Occupant::kind).collect(),
            IpNet::V6(net) => self.v6.occupants_of(v6(net)).filter_map(Occupant::kind).collect(),
        }
    }
}

/// Visits every prefix with its identity, in ascending order.
fn identities<P: Prefix>(
    items: &[(P, Occupant)],
    classifying: &mut Classifier<'_>,
    mut visit: impl FnMut(P, Identity),
) -> Result<(), TooMany> {
    // The prefixes that contain the current one, from the outermost to the innermost. Each has the surroundings and the
    // atom of the addresses in it.
    let mut around: Vec<(P, SurroundingsNumber, AtomNumber)> = Vec::new();
    let nothing = (NO_SURROUNDINGS, classifying.outside_atoms());
    let mut own: Vec<MemberKindId> = Vec::new();
    let mut rest = items;
    while let [(prefix, first), after @ ..] = rest {
        let is_same = |(other, _): &&(P, Occupant)| other == prefix;
        let others = after.iter().take_while(is_same).count();
        let (same, after) = rest.split_at(others + 1);
        rest = after;
        while around.last().is_some_and(|(outer, _, _)| !outer.contains(*prefix)) {
            around.pop();
        }
        let (outer, outer_atom) = around.last().map_or(nothing, |(_, outer, atom)| (*outer, *atom));
        // Most addresses have one member and lie in no larger prefix with occupants.
        if let ([(_, item)], NO_SURROUNDINGS, true) = (same, outer, prefix.is_host())
            && let Some(kind) = item.kind()
        {
            visit(*prefix, classifying.single_occupant(kind, outer_atom)?);
            continue;
        }
        if same.last().is_some_and(|(_, item)| *item == Occupant::UNKNOWN) {
            visit(*prefix, Identity::UNKNOWN);
            continue;
        }
        own.clear();
        own.extend(same.iter().filter_map(|(_, item)| item.kind()));
        own.sort_unstable();
        own.dedup();
        let atom = if *first == Occupant::ATOM {
            classifying.atom_inside(prefix.net(), outer_atom)
        } else {
            outer_atom
        };
        if prefix.is_host() {
            visit(*prefix, classifying.identity(outer, &own, atom)?);
        } else {
            let inside = classifying.surroundings(outer, &own)?;
            visit(*prefix, classifying.identity(inside, &[], atom)?);
            around.push((*prefix, inside, atom));
        }
    }
    Ok(())
}

/// The number of bits of an address that one pass of the radix sort reads.
const DIGIT: u32 = 11;

/// Merges two lists that are in ascending order of prefix. Entries of one prefix may be in any order in `some`.
fn merge(mut some: Vec<(V4, Occupant)>, others: Vec<(V4, Occupant)>) -> Vec<(V4, Occupant)> {
    sort_each(&mut some, |item| item.0);
    if others.is_empty() {
        return some;
    } else if some.is_empty() {
        return others;
    }
    let mut all = Vec::with_capacity(some.len() + others.len());
    let mut rest = some.as_slice();
    for other in others {
        let (before, after) = rest.split_at(rest.partition_point(|item| *item < other));
        all.extend_from_slice(before);
        all.push(other);
        rest = after;
    }
    all.extend_from_slice(rest);
    all
}

/// Sorts each run of adjacent entries with equal keys.
fn sort_each<T: Ord, K: PartialEq>(items: &mut [T], key: impl Fn(&T) -> K) {
    for same in items.chunk_by_mut(|a, b| key(a) == key(b)) {
        if same.len() > 1 {
            same.sort_unstable();
        }
    }
}

/// Sorts entries. If there are many, a radix sort orders them by address, and then the entries of each address are
/// sorted.
fn sort_v4<T: Copy + Ord>(items: &mut Vec<(V4, T)>) {
    let first = match items.first() {
        Some(first) if items.len() >= 1 << DIGIT && !items.is_sorted() => *first,
        _ => return items.sort_unstable(),
    };
    let mut other = vec![first; items.len()];
    for shift in [8, 8 + DIGIT, 8 + 2 * DIGIT] {
        let digit = |item: &(V4, T)| (item.0 >> shift) as usize & ((1 << DIGIT) - 1);
        let mut places = [0u32; 1 << DIGIT];
        for item in &*items {
            places[digit(item)] += 1;
        }
        let mut next = 0;
        for place in &mut places {
            next += std::mem::replace(place, next);
        }
        for item in &*items {
            let place = &mut places[digit(item)];
            other[*place as usize] = *item;
            *place += 1;
        }
        std::mem::swap(items, &mut other);
    }
    sort_each(items, |item| item.0 >> 8);
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(16))]

        #[test]
        fn many_are_sorted_like_few(
            items in prop::collection::vec(
                ((prop_oneof![any::<u32>(), 0u32..300], 0u8..=32), 0u32..3), 2_048..6_000),
        ) {
            let items = items.into_iter();
            let mut found: Vec<(V4, Occupant)> = items
                .map(|((address, length), item)| {
                    (u64::from(address) << 8 | u64::from(length), Occupant(item))
                })
                .collect();
            let mut expected = found.clone();
            expected.sort_unstable();
            sort_v4(&mut found);
            prop_assert_eq!(found, expected);
        }
    }
}
