//! The prefixes of one family in ascending order, each with its occupants.

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, Ipv6Addr};

use ipnet::{IpNet, Ipv4Net, Ipv6Net};

use super::member_kinds::MemberKindId;
use crate::common::Rebuild;

/// A prefix in the form of numbers, ordered by address and then by length.
pub(super) trait Prefix: Copy + Ord {
    fn net(self) -> IpNet;
    fn length(self) -> u8;
    /// The prefix of this length that contains it.
    fn around(self, length: u8) -> Self;
    fn is_host(self) -> bool;

    fn contains(self, other: Self) -> bool {
        self.length() <= other.length() && other.around(self.length()) == self
    }
}

/// The address in the upper 32 of 40 bits, and the length in the lower 8.
pub(super) type V4 = u64;

impl Prefix for V4 {
    fn net(self) -> IpNet {
        let address = Ipv4Addr::from_bits((self >> 8) as u32);
        Ipv4Net::new(address, self.length()).unwrap_or_default().into()
    }

    fn length(self) -> u8 {
        self as u8
    }

    fn around(self, length: u8) -> Self {
        let shift = 40 - u32::from(length.min(32));
        self >> shift << shift | u64::from(length)
    }

    fn is_host(self) -> bool {
        self.length() == 32
    }
}

/// The address, and the length.
pub(super) type V6 = (u128, u8);

impl Prefix for V6 {
    fn net(self) -> IpNet {
        let address = Ipv6Addr::from_bits(self.0);
        Ipv6Net::new(address, self.1).unwrap_or_default().into()
    }

    fn length(self) -> u8 {
        self.1
    }

    fn around(self, length: u8) -> Self {
        let host_bits = u128::MAX.checked_shr(u32::from(length)).unwrap_or(0);
        (self.0 & !host_bits, length)
    }

    fn is_host(self) -> bool {
        self.1 == 128
    }
}

pub(super) fn v4(net: Ipv4Net) -> V4 {
    u64::from(net.addr().to_bits()) << 8 | u64::from(net.prefix_len())
}

pub(super) fn v6(net: Ipv6Net) -> V6 {
    (net.addr().to_bits(), net.prefix_len())
}

/// An occupant of a prefix, as a number that determines its order: an atom, a member by its kind, or an unknown
/// address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Occupant(pub(super) u32);

impl Occupant {
    pub(super) const ATOM: Self = Self(0);
    pub(super) const UNKNOWN: Self = Self(u32::MAX);

    pub(super) fn kind(self) -> Option<MemberKindId> {
        (self != Self::ATOM && self != Self::UNKNOWN).then(|| self.0 - 1)
    }
}

impl From<MemberKindId> for Occupant {
    /// A kind whose number is too large counts as unknown, so its addresses are denied.
    fn from(kind: MemberKindId) -> Self {
        kind.checked_add(1).map_or(Self::UNKNOWN, Self)
    }
}

/// The occupants of all prefixes that contain an address.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Occupants {
    /// The kinds, which are distinct and ascending.
    pub(crate) kinds: Vec<MemberKindId>,
    pub(crate) atom: Option<IpNet>,
    /// Whether too little is known about the address. Such an address is denied.
    pub(crate) unknown: bool,
}

/// The prefixes of one family.
#[derive(Debug)]
pub(super) struct Prefixes<P> {
    /// The prefixes in ascending order. A prefix occurs once for each of its occupants.
    pub(super) all: Vec<(P, Occupant)>,
    /// Every length that a prefix in `all` has or has had.
    lengths: BTreeSet<u8>,
}

/// An edit of one occupant of one prefix: true adds it, false removes it. In ascending order, the removals of an
/// occupant come before its additions.
pub(super) type OccupantEdit<P> = ((P, Occupant), bool);

impl<P: Prefix> Prefixes<P> {
    /// `all` must be in ascending order.
    pub(super) fn new(all: Vec<(P, Occupant)>) -> Self {
        let mut lengths = [false; 129];
        for (prefix, _) in &all {
            lengths[usize::from(prefix.length())] = true;
        }
        let lengths = (0..).zip(lengths).filter(|(_, known)| *known).map(|(length, _)| length);
        Self { all, lengths: lengths.collect() }
    }

    /// The occupants of a prefix and of all larger prefixes around it. If `here` is given and the prefix is a single
    /// address, `here` replaces the kinds of the members at exactly this prefix.
    pub(super) fn occupants(&self, of: P, here: Option<&[MemberKindId]>) -> Occupants {
        let mut occupants = Occupants::default();
        for length in self.lengths.range(..=of.length()) {
            let prefix = of.around(*length);
            for item in self.occupants_of(prefix) {
                match item {
                    Occupant::ATOM => occupants.atom = Some(prefix.net()),
                    Occupant::UNKNOWN => occupants.unknown = true,
                    item if here.is_none() || !prefix.is_host() => {
                        occupants.kinds.extend(item.kind());
                    }
                    _ => {}
                }
            }
        }
        occupants.kinds.extend(here.into_iter().flatten());
        occupants.kinds.sort_unstable();
        occupants.kinds.dedup();
        occupants
    }

    /// The occupants of exactly this prefix.
    pub(super) fn occupants_of(&self, prefix: P) -> impl Iterator<Item = Occupant> {
        self.from(prefix).take_while(move |(other, _)| *other == prefix).map(|(_, item)| *item)
    }

    /// The prefixes inside another one, in ascending order. A prefix with several occupants occurs several times.
    pub(super) fn inside(&self, outer: P) -> impl Iterator<Item = IpNet> {
        let inside = self.from(outer).take_while(move |(other, _)| outer.contains(*other));
        inside.map(|(prefix, _)| prefix.net())
    }

    fn from(&self, prefix: P) -> impl Iterator<Item = &(P, Occupant)> {
        self.all[self.all.partition_point(|(other, _)| *other < prefix)..].iter()
    }

    /// Applies edits. Returns `Err` if an edit removes something that is not there.
    pub(super) fn apply(&mut self, mut edits: Vec<OccupantEdit<P>>) -> Result<(), Rebuild> {
        if edits.is_empty() {
            return Ok(());
        }
        edits.sort_unstable();
        let mut all = Vec::with_capacity(self.all.len() + edits.len());
        let mut rest = self.all.as_slice();
        for (item, comes) in edits {
            let (before, after) = rest.split_at(rest.partition_point(|other| *other < item));
            all.extend_from_slice(before);
            rest = after;
            if comes {
                self.lengths.insert(item.0.length());
                all.push(item);
            } else {
                rest = rest.strip_prefix(&[item]).ok_or(Rebuild)?;
            }
        }
        all.extend_from_slice(rest);
        self.all = all;
        Ok(())
    }
}
