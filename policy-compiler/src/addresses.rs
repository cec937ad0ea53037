//! The addresses of a cluster, each with its identity.

use std::net::{Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;

use crate::identity::{Holders, Interner, Key};
use crate::image::Identity;
use crate::members::{MemberId, Members, Position};
use crate::model::Model;
use crate::predicates::{AtomTruths, Truth};

/// The addresses of the cluster and their identities.
pub(crate) struct Addresses {
    /// Every prefix with an identity of its own, ascending; hosts' addresses are prefixes of full length. Together they
    /// hold every address.
    pub(crate) entries: Vec<(IpNet, Identity)>,
    /// The distinct identities in order of first appearance, each with the positions of those who have its addresses.
    pub(crate) keys: Vec<(Identity, Key, Held)>,
}

/// The positions of those who have an address, ascending. Nearly always one.
#[derive(Debug, Clone)]
pub(crate) enum Held {
    One(Position),
    Several(Box<[Position]>),
}

impl Held {
    fn of(positions: &[Position]) -> Self {
        match positions {
            [one] => Self::One(*one),
            several => Self::Several(several.into()),
        }
    }

    pub(crate) fn positions(&self) -> &[Position] {
        match self {
            Self::One(one) => std::slice::from_ref(one),
            Self::Several(several) => several,
        }
    }
}

/// A prefix as numbers that sort as prefixes do: address, then length.
trait Prefix: Copy + Ord {
    fn net(self) -> IpNet;
    fn contains(self, other: Self) -> bool;
    fn is_host(self) -> bool;
}

/// The address in the upper 32 bits of 40, the length in the lower 8.
impl Prefix for u64 {
    fn net(self) -> IpNet {
        let address = Ipv4Addr::from_bits((self >> 8) as u32);
        ipnet::Ipv4Net::new(address, self as u8).unwrap_or_default().into()
    }

    fn contains(self, other: Self) -> bool {
        let shift = 32 - (self & 0x3f);
        self & 0xff <= other & 0xff && self >> 8 >> shift == other >> 8 >> shift
    }

    fn is_host(self) -> bool {
        self & 0xff == 32
    }
}

impl Prefix for (u128, u8) {
    fn net(self) -> IpNet {
        let address = Ipv6Addr::from_bits(self.0);
        ipnet::Ipv6Net::new(address, self.1).unwrap_or_default().into()
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

/// What stands at a prefix, as a number that sorts: an atom, members by position, an address that is unknown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Item(u32);

impl Item {
    const ATOM: Self = Self(0);
    const UNKNOWN: Self = Self(u32::MAX);

    fn member(position: Position) -> Self {
        Self(position as u32 + 1)
    }

    fn position(self) -> Option<Position> {
        (self != Self::ATOM && self != Self::UNKNOWN).then(|| self.0 as usize - 1)
    }
}

impl Addresses {
    pub(crate) fn assign(
        interner: &mut Interner,
        model: &Model,
        members: &Members,
        truths: &[Truth],
        atoms: &AtomTruths,
    ) -> Self {
        let mut v4: Vec<(u64, Item)> = Vec::with_capacity(members.all.len());
        let mut v6: Vec<((u128, u8), Item)> = Vec::new();
        let mut add = |net: IpNet, item: Item| match net {
            IpNet::V4(net) => {
                v4.push((u64::from(net.addr().to_bits()) << 8 | u64::from(net.prefix_len()), item));
            }
            IpNet::V6(net) => v6.push(((net.addr().to_bits(), net.prefix_len()), item)),
        };
        for net in atoms.prefixes() {
            add(net, Item::ATOM);
        }
        for (position, member) in members.all.iter().enumerate() {
            // Those who are no endpoints and whom no policy here can tell from nobody have no part.
            if member.is_endpoint() || !truths[position].is_empty() {
                member.for_each_net(|net| add(net, Item::member(position)));
            }
        }
        for address in &model.unknown {
            add(IpNet::from(*address), Item::UNKNOWN);
        }
        let mut addresses =
            Self { entries: Vec::with_capacity(v4.len() + v6.len()), keys: Vec::new() };
        let mut seen = Vec::new();
        addresses.assign_family(interner, members, &mut seen, v4);
        addresses.assign_family(interner, members, &mut seen, v6);
        addresses
    }

    fn assign_family<P: Prefix>(
        &mut self,
        interner: &mut Interner,
        members: &Members,
        seen: &mut Vec<bool>,
        mut items: Vec<(P, Item)>,
    ) {
        items.sort_unstable();
        items.dedup();
        interner.expect(items.len());
        // The prefixes around, innermost last: whoever has them and the atom.
        let mut around: Vec<(P, Vec<Position>, Option<IpNet>)> = Vec::new();
        let (mut held, mut ids): (Vec<Position>, Vec<MemberId>) = (Vec::new(), Vec::new());
        for same in items.chunk_by(|a, b| a.0 == b.0) {
            let [(prefix, first), ..] = same else { continue };
            while around.last().is_some_and(|(outer, _, _)| !outer.contains(*prefix)) {
                around.pop();
            }
            if same.last().is_some_and(|(_, item)| *item == Item::UNKNOWN) {
                self.entries.push((prefix.net(), Identity::UNKNOWN));
                continue;
            }
            held.clear();
            let mut atom = None;
            if let Some((_, outer, outer_atom)) = around.last() {
                held.extend_from_slice(outer);
                atom = *outer_atom;
            }
            held.extend(same.iter().filter_map(|(_, item)| item.position()));
            if *first == Item::ATOM {
                atom = Some(prefix.net());
            }
            held.sort_unstable();
            held.dedup();
            ids.clear();
            ids.extend(held.iter().map(|position| members.all[*position].id));
            ids.sort_unstable();
            let key = Key { holders: Holders::of(&ids), atom };
            let identity = interner.identity(&key);
            self.entries.push((prefix.net(), identity));
            let at = identity.0.wrapping_sub(interner.first) as usize;
            if seen.len() <= at {
                seen.resize(at + 1, false);
            }
            if !std::mem::replace(&mut seen[at], true) {
                self.keys.push((identity, key, Held::of(&held)));
            }
            if !prefix.is_host() {
                around.push((*prefix, held.clone(), atom));
            }
        }
    }

    /// Whoever has an address of an identity.
    pub(crate) fn by_identity(&self) -> ahash::AHashMap<Identity, usize> {
        self.keys.iter().enumerate().map(|(at, (identity, ..))| (*identity, at)).collect()
    }
}
