//! The attributes of a route, and an update of routes.

use std::collections::BTreeMap;
use std::iter;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use ipnet::IpNet;

/// The maximum number of autonomous systems in one segment of a path. The count is one byte (RFC 4271, 4.3).
const MOST_OF_SEGMENT: usize = 255;

/// The origin of a path (RFC 4271, 4.3). A lower value is better.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Origin {
    /// The route is from a protocol inside the autonomous system.
    Igp,
    /// The route is from EGP.
    Egp,
    /// The route is from another source.
    Incomplete,
}

/// A segment of a path's autonomous systems (RFC 4271, 4.3).
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Segment {
    /// The systems that the path has passed, the most recent one first.
    Sequence(Vec<u32>),
    /// The systems of aggregated paths, in no order. They count as one.
    Set(Vec<u32>),
}

/// An attribute that is passed on without interpretation: it is optional and transitive (RFC 4271, 5).
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Opaque {
    /// Its flags, as received.
    pub flags: u8,
    /// Its type.
    pub code: u8,
    /// Its value.
    pub value: Vec<u8>,
}

/// The attributes of a path.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Attributes {
    /// The origin of the path.
    pub origin: Origin,
    /// The autonomous systems that the route has passed.
    pub as_path: Vec<Segment>,
    /// The address to which packets are sent.
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
    /// The clusters that have reflected the path, the most recent one first (RFC 4456).
    pub clusters: Vec<Ipv4Addr>,
    /// Whether the path has the attribute `ATOMIC_AGGREGATE`.
    pub is_aggregate: bool,
    /// All other attributes that are passed on.
    pub opaque: Vec<Opaque>,
}

impl Attributes {
    /// The attributes of a route of this node itself.
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

    /// The length of the AS path (RFC 4271, 9.1.2.2 a): a set counts as one.
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

    /// Returns the neighbouring autonomous system that announced the path. Returns `None` if the path began in this
    /// autonomous system.
    pub fn neighbour_system(&self) -> Option<u32> {
        match self.as_path.first()? {
            Segment::Sequence(systems) => systems.first().copied(),
            Segment::Set(_) => None,
        }
    }
}

/// Prepends autonomous systems to a path, in the given order.
pub fn prepend(path: &mut Vec<Segment>, systems: &[u32]) {
    match path.first_mut() {
        Some(Segment::Sequence(first)) if first.len() + systems.len() <= MOST_OF_SEGMENT => {
            first.splice(0..0, systems.iter().copied());
        }
        _ => path.insert(0, Segment::Sequence(systems.to_vec())),
    }
}

/// A prefix without host bits and all prefixes that contain it, the longest first.
pub fn around(prefix: IpNet) -> impl Iterator<Item = IpNet> {
    iter::successors(Some(prefix.trunc()), IpNet::supernet)
}

/// The values of a map for all prefixes that contain this one, in no order.
pub fn values_around<T>(map: &BTreeMap<IpNet, T>, prefix: IpNet) -> impl Iterator<Item = &T> {
    // For a small map it is cheaper to scan all entries than to look up each prefix.
    let is_small = map.len() <= 16;
    let few = is_small.then(|| map.iter().filter(move |(net, _)| net.contains(&prefix)));
    let many = (!is_small).then(|| around(prefix).filter_map(|net| map.get(&net)));
    few.into_iter().flatten().map(|(_, value)| value).chain(many.into_iter().flatten())
}

/// A change of routes, received from a peer or sent to it. All prefixes are of one family.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Update {
    /// The prefixes that no longer have a path.
    pub withdrawn: Vec<IpNet>,
    /// The prefixes that now have a path with `attributes`.
    pub announced: Vec<IpNet>,
    /// The attributes of the announced prefixes. `None` if no prefix is announced.
    pub attributes: Option<Arc<Attributes>>,
}
