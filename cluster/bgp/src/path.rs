//! The attributes of a route, and an update of routes.

use std::collections::BTreeMap;
use std::iter;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use ipnet::IpNet;

/// The most systems of a segment of a path (RFC 4271, 4.3): their number is one byte.
const MOST_OF_SEGMENT: usize = 255;

/// The origin of a path (RFC 4271, 4.3). The lower one is better.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Origin {
    /// Of a protocol inside of the autonomous system.
    Igp,
    /// Of EGP.
    Egp,
    /// Of something else.
    Incomplete,
}

/// A part of a path's autonomous systems (RFC 4271, 4.3).
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Segment {
    /// The systems that the path has passed, the last one first.
    Sequence(Vec<u32>),
    /// Systems of aggregated paths. They count as one.
    Set(Vec<u32>),
}

/// An attribute that is not interpreted, and is passed on (RFC 4271, 5): an optional transitive one.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Opaque {
    /// Its flags, as they came.
    pub flags: u8,
    /// Its type.
    pub code: u8,
    /// Its value.
    pub value: Vec<u8>,
}

/// The attributes of a path.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Attributes {
    /// Where the path comes from.
    pub origin: Origin,
    /// The autonomous systems that it has passed.
    pub as_path: Vec<Segment>,
    /// The address to which packets go.
    pub next_hop: IpAddr,
    /// The `MULTI_EXIT_DISC`.
    pub med: Option<u32>,
    /// The `LOCAL_PREF`.
    pub local_pref: Option<u32>,
    /// The communities (RFC 1997), in order.
    pub communities: Vec<u32>,
    /// The large communities (RFC 8092), in order.
    pub large_communities: Vec<[u32; 3]>,
    /// The router that brought the path into the autonomous system (RFC 4456).
    pub originator: Option<Ipv4Addr>,
    /// The clusters that have reflected it, the last one first (RFC 4456).
    pub clusters: Vec<Ipv4Addr>,
    /// Whether the path is of `ATOMIC_AGGREGATE`.
    pub is_aggregate: bool,
    /// All others that are passed on.
    pub opaque: Vec<Opaque>,
}

impl Attributes {
    /// Those of a route that begins here.
    pub const fn of_own(next_hop: IpAddr) -> Self {
        Self {
            origin: Origin::Igp,
            as_path: Vec::new(),
            next_hop,
            med: None,
            local_pref: None,
            communities: Vec::new(),
            large_communities: Vec::new(),
            originator: None,
            clusters: Vec::new(),
            is_aggregate: false,
            opaque: Vec::new(),
        }
    }

    /// The length of the path (RFC 4271, 9.1.2.2 a): a set counts as one.
    pub fn path_length(&self) -> usize {
        let lengths = self.as_path.iter().map(|it| match it {
            Segment::Sequence(systems) => systems.len(),
            Segment::Set(_) => 1,
        });
        lengths.sum()
    }

    /// The autonomous systems of the path, in order.
    pub fn systems(&self) -> impl Iterator<Item = u32> + '_ {
        self.as_path.iter().flat_map(|it| match it {
            Segment::Sequence(systems) | Segment::Set(systems) => systems.iter().copied(),
        })
    }

    /// The autonomous system by which the path came here. `None`: it is of this one.
    pub fn neighbour_system(&self) -> Option<u32> {
        match self.as_path.first()? {
            Segment::Sequence(systems) => systems.first().copied(),
            Segment::Set(_) => None,
        }
    }
}

/// Puts autonomous systems in front of a path, in their order.
pub fn prepend(path: &mut Vec<Segment>, systems: &[u32]) {
    match path.first_mut() {
        Some(Segment::Sequence(first)) if first.len() + systems.len() <= MOST_OF_SEGMENT => {
            first.splice(0..0, systems.iter().copied());
        }
        _ => path.insert(0, Segment::Sequence(systems.to_vec())),
    }
}

/// A prefix without host bits and all that contain it, the longest first.
pub fn around(prefix: IpNet) -> impl Iterator<Item = IpNet> {
    iter::successors(Some(prefix.trunc()), IpNet::supernet)
}

/// What a map has for the prefixes that contain one, in no order.
pub fn values_around<T>(map: &BTreeMap<IpNet, T>, prefix: IpNet) -> impl Iterator<Item = &T> {
    // To look at a few costs less than to look each prefix up.
    let is_small = map.len() <= 16;
    let few = is_small.then(|| map.iter().filter(move |(net, _)| net.contains(&prefix)));
    let many = (!is_small).then(|| around(prefix).filter_map(|net| map.get(&net)));
    few.into_iter().flatten().map(|(_, value)| value).chain(many.into_iter().flatten())
}

/// A change of routes that a peer tells, or is told. All prefixes are of one family.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Update {
    /// The prefixes that have no path any more.
    pub withdrawn: Vec<IpNet>,
    /// The prefixes that have a path with `attributes` now.
    pub announced: Vec<IpNet>,
    /// The attributes of those that are announced. Without any that are, there are none.
    pub attributes: Option<Arc<Attributes>>,
}
