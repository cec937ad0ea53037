//! The prefixes of a cluster, each with its holders and its identity.
//!
//! The *holders* of an address are the kinds of the members that have a prefix which contains the address. Its *atom*
//! is the longest prefix *in use* that contains it.
//!
//! **Why holders and atom determine every predicate.** Selectors, port names and services look only at members. A list
//! of nets holds for an address if one of its nets contains it. Each net is a prefix in use. If the net contains the
//! atom, it contains every address of the atom. If not, it contains none of the addresses whose atom this is: two
//! prefixes nest or are disjoint, and if a net inside the atom contained such an address, the net would be the longest
//! prefix in use, and not the atom.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::{IpNet, Ipv4Net, Ipv6Net};

use super::atoms::AtomPredicates;
use super::classes::{AtomNumber, Classifier};
use super::kinds::KindId;
use super::members::Members;
use crate::common::{Identity, Rebuild};
use crate::model::Model;
use crate::prefix_map::PrefixMap;

/// A prefix as numbers that sort as prefixes do: address, then length.
trait Prefix: Copy + Ord {
    fn net(self) -> IpNet;
    fn contains(self, other: Self) -> bool;
    fn is_host(self) -> bool;
}

/// The address in the upper 32 of 40 bits, the length in the lower 8.
type V4 = u64;

impl Prefix for V4 {
    fn net(self) -> IpNet {
        let address = Ipv4Addr::from_bits((self >> 8) as u32);
        Ipv4Net::new(address, self as u8).unwrap_or_default().into()
    }

    fn contains(self, other: Self) -> bool {
        let shift = 32 - (self & 0x3f);
        self & 0xff <= other & 0xff && self >> 8 >> shift == other >> 8 >> shift
    }

    fn is_host(self) -> bool {
        self & 0xff == 32
    }
}

type V6 = (u128, u8);

impl Prefix for V6 {
    fn net(self) -> IpNet {
        let address = Ipv6Addr::from_bits(self.0);
        Ipv6Net::new(address, self.1).unwrap_or_default().into()
    }

    fn contains(self, other: Self) -> bool {
        let shift = 128 - u32::from(self.1);
        self.1 <= other.1
            && self.0.checked_shr(shift).unwrap_or(0) == other.0.checked_shr(shift).unwrap_or(0)
    }

    fn is_host(self) -> bool {
        self.1 == 128
    }
}

fn v4(net: Ipv4Net) -> V4 {
    u64::from(net.addr().to_bits()) << 8 | u64::from(net.prefix_len())
}

fn v6(net: Ipv6Net) -> V6 {
    (net.addr().to_bits(), net.prefix_len())
}

/// What is at a prefix, as a number that sorts: an atom, a member by its kind, or an unknown address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Occupant(u32);

impl Occupant {
    const ATOM: Self = Self(0);
    const UNKNOWN: Self = Self(u32::MAX);

    fn kind(self) -> Option<KindId> {
        (self != Self::ATOM && self != Self::UNKNOWN).then(|| self.0 - 1)
    }
}

impl From<KindId> for Occupant {
    /// The last number counts as unknown: kinds that have no number of their own are denied.
    fn from(kind: KindId) -> Self {
        kind.checked_add(1).map_or(Self::UNKNOWN, Self)
    }
}

/// The holders of an address.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Holders {
    /// Distinct and ascending.
    pub(crate) kinds: Vec<KindId>,
    pub(crate) atom: Option<IpNet>,
    /// Not enough is known of the address: it is denied.
    pub(crate) unknown: bool,
}

/// Replaces the kind of a member at an IPv4 network. Without `was` the member is added, without `is` it is removed;
/// without both an atom is added.
#[derive(Debug)]
pub(crate) struct PrefixEdit {
    pub(crate) net: Ipv4Net,
    pub(crate) was: Option<KindId>,
    pub(crate) is: Option<KindId>,
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

    /// The identity of every address: that of the longest prefix that contains it.
    pub(crate) fn into_prefix_map(self) -> PrefixMap {
        PrefixMap::from_prefixes(Identity::UNKNOWN.0, self.v4, self.v6)
    }
}

/// The prefixes, ascending, each with what is there.
#[derive(Debug, Default)]
pub(crate) struct Addresses {
    v4: Vec<(V4, Occupant)>,
    /// The lengths of the IPv4 prefixes so far, as bits.
    lengths: u64,
    v6: Vec<(V6, Occupant)>,
}

/// The prefixes of all network sets, ascending, each with the position of its set. Sets are many and long, and sorting
/// them does not depend on the policies, so another thread may sort them early.
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
        kinds: &[Option<KindId>],
        atoms: &AtomPredicates,
    ) -> Self {
        let mut addresses = Self::default();
        addresses.v4.reserve(kinds.iter().flatten().count());
        for net in atoms.prefixes() {
            addresses.add(net, Occupant::ATOM);
        }
        for (member, kind) in members.all.iter().zip(kinds).filter(|(it, _)| !it.is_set()) {
            if let Some(kind) = kind {
                member.for_each_net(|net| addresses.add(net, Occupant::from(*kind)));
            }
        }
        for address in &model.unknown {
            addresses.add(IpNet::from(*address), Occupant::UNKNOWN);
        }
        sort_v4(&mut addresses.v4);
        let item = |position: u32| Some(Occupant::from(kinds.get(position as usize).copied()??));
        let of_sets_v4 = of_sets.v4.into_iter().filter_map(|(net, at)| Some((net, item(at)?)));
        addresses.v4 = merge(of_sets_v4.collect(), addresses.v4);
        addresses.lengths = addresses.v4.iter().fold(0, |all, (net, _)| all | 1 << (net & 0x3f));
        let of_sets_v6 = of_sets.v6.into_iter().filter_map(|(net, at)| Some((net, item(at)?)));
        addresses.v6.extend(of_sets_v6);
        addresses.v6.sort_unstable();
        addresses
    }

    fn add(&mut self, net: IpNet, item: Occupant) {
        match net {
            IpNet::V4(net) => self.v4.push((v4(net), item)),
            IpNet::V6(net) => self.v6.push((v6(net), item)),
        }
    }

    /// The identity of every prefix. A host's address is a prefix of full length.
    pub(crate) fn identities(&self, classifying: &mut Classifier<'_>) -> PrefixIdentities {
        let mut v4 = Vec::with_capacity(self.v4.len());
        identities(&self.v4, classifying, |prefix, identity| {
            v4.push(((prefix >> 8) as u32, prefix as u8, identity.0));
        });
        let mut v6 = Vec::with_capacity(self.v6.len());
        identities(&self.v6, classifying, |(address, length), identity| {
            let net = Ipv6Net::new(Ipv6Addr::from_bits(address), length);
            v6.extend(net.map(|net| (net, identity.0)));
        });
        PrefixIdentities { v4, v6 }
    }

    /// The holders of an address. `here`, if given, replaces the holders of exactly this address, but not those of a
    /// larger prefix.
    pub(crate) fn holders(&self, address: IpAddr, here: Option<&[KindId]>) -> Holders {
        match address {
            IpAddr::V4(address) => self.holders_of_net(Ipv4Net::from(address), here),
            IpAddr::V6(address) => {
                let nets = (0..=128).filter_map(|len| Ipv6Net::new(address, len).ok());
                holders(&self.v6, here, nets.map(|net| v6(net.trunc())))
            }
        }
    }

    /// The [`holders`](Self::holders) of a whole network, without those of smaller prefixes in it.
    pub(crate) fn holders_of_net(&self, net: Ipv4Net, here: Option<&[KindId]>) -> Holders {
        let lengths = (0..=net.prefix_len()).filter(|len| self.lengths >> len & 1 != 0);
        let nets = lengths.filter_map(|len| Ipv4Net::new(net.addr(), len).ok());
        holders(&self.v4, here, nets.map(|net| v4(net.trunc())))
    }

    /// The number of entries at IPv4 prefixes.
    pub(crate) fn len(&self) -> usize {
        self.v4.len()
    }

    /// The prefixes inside a network, ascending; a prefix with several entries occurs several times.
    pub(crate) fn prefixes_in(&self, net: Ipv4Net) -> impl Iterator<Item = Ipv4Net> + '_ {
        let first = self.v4.partition_point(|(other, _)| *other < v4(net));
        let all = self.v4[first..].iter().map(|(prefix, _)| *prefix);
        let all = all.take_while(move |prefix| v4(net).contains(*prefix));
        all.filter_map(|prefix| {
            Ipv4Net::new(Ipv4Addr::from_bits((prefix >> 8) as u32), prefix as u8).ok()
        })
    }

    /// Applies edits. `Err` if an edit replaces what is not there.
    pub(crate) fn apply(&mut self, edits: &[PrefixEdit]) -> Result<(), Rebuild> {
        if edits.is_empty() {
            return Ok(());
        }
        // At one prefix, removals come before additions.
        let mut steps: Vec<((V4, Occupant), bool)> = Vec::new();
        for PrefixEdit { net, was, is } in edits {
            let prefix = v4(*net);
            self.lengths |= 1 << net.prefix_len();
            steps.extend(was.map(|was| ((prefix, Occupant::from(was)), false)));
            steps.extend(is.map(|is| ((prefix, Occupant::from(is)), true)));
            if was.is_none() && is.is_none() {
                steps.push(((prefix, Occupant::ATOM), true));
            }
        }
        steps.sort_unstable();
        let mut all = Vec::with_capacity(self.v4.len() + steps.len());
        let mut rest = self.v4.as_slice();
        for (item, comes) in steps {
            let (before, after) = rest.split_at(rest.partition_point(|other| *other < item));
            all.extend_from_slice(before);
            rest = after;
            if comes {
                all.push(item);
            } else {
                rest = rest.strip_prefix(&[item]).ok_or(Rebuild)?;
            }
        }
        all.extend_from_slice(rest);
        self.v4 = all;
        Ok(())
    }

    /// The kinds of the members that have this address itself, one for each member.
    pub(crate) fn kinds_at(&self, address: Ipv4Addr) -> Vec<KindId> {
        occupants(&self.v4, v4(Ipv4Net::from(address))).filter_map(Occupant::kind).collect()
    }
}

/// Visits every prefix with its identity, ascending.
fn identities<P: Prefix>(
    items: &[(P, Occupant)],
    classifying: &mut Classifier<'_>,
    mut visit: impl FnMut(P, Identity),
) {
    // The prefixes that contain the current one, innermost last, with holders and atom.
    let mut around: Vec<(P, Vec<KindId>, AtomNumber)> = Vec::new();
    let nothing = classifying.outside_atoms();
    let mut held: Vec<KindId> = Vec::new();
    let mut rest = items;
    while let [(prefix, first), after @ ..] = rest {
        let is_same = |(other, _): &&(P, Occupant)| other == prefix;
        let others = after.iter().take_while(is_same).count();
        let (same, after) = rest.split_at(others + 1);
        rest = after;
        while around.last().is_some_and(|(outer, _, _)| !outer.contains(*prefix)) {
            around.pop();
        }
        let (outer, outer_atom) = match around.last() {
            Some((_, outer, atom)) => (outer.as_slice(), *atom),
            None => (&[][..], nothing),
        };
        // Most addresses have one holder and lie in no other prefix.
        if let ([(_, item)], [], true) = (same, outer, prefix.is_host())
            && let Some(kind) = item.kind()
        {
            visit(*prefix, classifying.single_holder(kind, outer_atom));
            continue;
        }
        if same.last().is_some_and(|(_, item)| *item == Occupant::UNKNOWN) {
            visit(*prefix, Identity::UNKNOWN);
            continue;
        }
        held.clear();
        held.extend_from_slice(outer);
        held.extend(same.iter().filter_map(|(_, item)| item.kind()));
        let atom = if *first == Occupant::ATOM {
            classifying.atom_inside(prefix.net(), outer_atom)
        } else {
            outer_atom
        };
        if held.len() > 1 {
            held.sort_unstable();
            held.dedup();
        }
        visit(*prefix, classifying.identity(&held, atom));
        if !prefix.is_host() {
            around.push((*prefix, held.clone(), atom));
        }
    }
}

/// Bits of an address that one pass of the radix sort reads.
const DIGIT: u32 = 11;

/// Merges two lists that ascend by prefix.
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

/// Sorts runs of entries with equal keys.
fn sort_each<T: Ord, K: PartialEq>(items: &mut [T], key: impl Fn(&T) -> K) {
    for same in items.chunk_by_mut(|a, b| key(a) == key(b)) {
        if same.len() > 1 {
            same.sort_unstable();
        }
    }
}

/// Sorts entries: many by radix sort of their addresses, and then the entries of each address.
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

/// The entries at a prefix.
fn occupants<P: Prefix>(items: &[(P, Occupant)], prefix: P) -> impl Iterator<Item = Occupant> {
    let first = items.partition_point(|(other, _)| *other < prefix);
    items[first..].iter().take_while(move |(other, _)| *other == prefix).map(|(_, item)| *item)
}

/// `prefixes` are those that contain the address, ascending by length.
fn holders<P: Prefix>(
    items: &[(P, Occupant)],
    here: Option<&[KindId]>,
    prefixes: impl Iterator<Item = P>,
) -> Holders {
    let mut holders = Holders::default();
    for prefix in prefixes {
        for item in occupants(items, prefix) {
            match item {
                Occupant::ATOM => holders.atom = Some(prefix.net()),
                Occupant::UNKNOWN => holders.unknown = true,
                item if here.is_none() || !prefix.is_host() => holders.kinds.extend(item.kind()),
                _ => {}
            }
        }
    }
    holders.kinds.extend(here.into_iter().flatten());
    holders.kinds.sort_unstable();
    holders.kinds.dedup();
    holders
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
