//! Decides whether a route is announced to a peer, and with which attributes.
//!
//! The order is that of Calico's export rules: first the node's own routes, then routes in an exported pool. All others are
//! not announced. RFC 4271 (5.1, 9.2) and RFC 4456 (8) define which peers may get a route at all.

use std::collections::BTreeMap;
use std::net::IpAddr;

use ipnet::IpNet;
use manx_objects::object::bgp::Advertisement;

use crate::decision::Path;
use crate::filter::{self, Direction, FilterAction, Filters, add_community, local_pref};
use crate::path::{Attributes, prepend, values_around};
use crate::peer::{NextHopMode, Peer};

#[cfg(test)]
mod tests;

/// The well-known communities that restrict announcement (RFC 1997). A route with `NO_ADVERTISE` is announced to no
/// peer. A route with one of `NO_EXPORT` is announced to no other autonomous system; the second one also excludes other
/// systems of the same confederation.
const NO_ADVERTISE: u32 = 0xffff_ff02;
const NO_EXPORT: [u32; 2] = [0xffff_ff01, 0xffff_ff03];

/// The kind of a route of this node itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum OwnRoute {
    /// A block of pod addresses.
    Block,
    /// A single address of a pod outside of the node's blocks.
    Borrowed,
    /// A service's address, or a range of services' addresses.
    Service,
}

/// The priorities of a node's own routes (`ipv4NormalRoutePriority`, `ipv6NormalRoutePriority`). They are announced to
/// peers of the same autonomous system as `LOCAL_PREF`, from which Calico's nodes compute the metrics of their routes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Priorities {
    /// The priority of IPv4 routes.
    pub v4: u32,
    /// The priority of IPv6 routes.
    pub v6: u32,
}

impl Priorities {
    /// Calico's default priorities.
    pub const NORMAL: Self = Self { v4: 1024, v6: 1024 };
}

/// The rules for what this node announces.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Exports {
    /// The routes of this node itself.
    pub own: BTreeMap<IpNet, OwnRoute>,
    /// The pools. The value says whether routes in the pool are exported.
    pub pools: BTreeMap<IpNet, bool>,
    /// The ranges of services' addresses that this node passes on as a route reflector.
    pub reflected: Vec<IpNet>,
    /// The nets on this node's links. A router in one of them reaches next hops in that net directly.
    pub links: Vec<IpNet>,
    /// The communities that are added to routes in certain nets.
    pub advertisements: Vec<Advertisement>,
    /// The priorities of this node's own routes.
    pub priorities: Priorities,
}

impl Exports {
    /// The rules without any route.
    pub const NONE: Self = Self {
        own: BTreeMap::new(),
        pools: BTreeMap::new(),
        reflected: Vec::new(),
        links: Vec::new(),
        advertisements: Vec::new(),
        priorities: Priorities::NORMAL,
    };

    /// Whether the rules for all peers allow the announcement of a route.
    pub fn allows(&self, prefix: IpNet, own: Option<OwnRoute>) -> bool {
        let pools = || values_around(&self.pools, prefix);
        if pools().any(|exported| !exported) {
            return false;
        }
        match own {
            Some(OwnRoute::Block | OwnRoute::Service) => return true,
            Some(OwnRoute::Borrowed) | None => {}
        }
        if values_around(&self.own, prefix).any(|kind| *kind == OwnRoute::Block) {
            return false;
        }
        self.reflected.iter().any(|it| it.contains(&prefix)) || pools().any(|exported| *exported)
    }

    /// Whether everything except the node's own routes is equal. If it is, earlier announcements of other routes stay
    /// valid.
    pub(crate) fn has_rules_of(&self, other: &Self) -> bool {
        let Self { own: _, pools, reflected, links, advertisements, priorities } = self;
        (pools, reflected, links) == (&other.pools, &other.reflected, &other.links)
            && (advertisements, priorities) == (&other.advertisements, &other.priorities)
    }

    /// The initial attributes of a route of this node itself: the next hop `here`, and the priority of its address
    /// family.
    fn of_own(&self, here: IpAddr) -> Attributes {
        let Priorities { v4, v6 } = self.priorities;
        let priority = if here.is_ipv4() { v4 } else { v6 };
        Attributes { local_pref: Some(local_pref(priority)), ..Attributes::of_own(here) }
    }

    /// Whether one of the nets whose routes get communities contains the prefix.
    pub(crate) fn marks(&self, prefix: IpNet) -> bool {
        self.advertisements.iter().any(|it| it.cidr.contains(&prefix))
    }

    /// Adds the communities of all nets that contain the prefix.
    fn mark(&self, prefix: IpNet, attributes: &mut Attributes) {
        let around = self.advertisements.iter().filter(|it| it.cidr.contains(&prefix));
        for community in around.flat_map(|it| &it.communities) {
            add_community(attributes, *community);
        }
    }
}

/// A route that may be announced.
#[derive(Debug, Clone, Copy)]
pub enum Route<'a> {
    /// A route of this node itself.
    Own(OwnRoute),
    /// The best path, and the peer that announced it.
    Learned(&'a Path, &'a Peer),
}

impl Route<'_> {
    /// The kind of the route, if it is this node's own.
    const fn own(&self) -> Option<OwnRoute> {
        match self {
            Self::Own(own) => Some(*own),
            Self::Learned(..) => None,
        }
    }
}

/// The attributes with which a route is announced to `peer`. Returns `None` if it is not announced. `here` is this node's
/// address in the session with the peer. The peer's `filters` come before all other rules except those of BGP itself, and a
/// route that they accept gets no further communities.
///
/// A learned route is announced to a peer of another autonomous system only if that peer reaches the next hop directly (RFC
/// 4271, 5.1.3): Manx forwards no packets between third parties. (Calico's nodes announce themselves as the next hop.)
pub fn advertised(
    exports: &Exports,
    (prefix, route): (IpNet, Route<'_>),
    (peer, filters): (&Peer, &Filters),
    here: IpAddr,
) -> Option<Attributes> {
    let (own, mut attributes) = (route.own(), unfiltered(exports, route, peer, here)?);
    let seen = filter::Route {
        prefix,
        attributes: &attributes,
        is_from_peer: own.is_none(),
        interface: None,
    };
    match filters.judge(Direction::Export, &seen, peer.is_internal()) {
        FilterAction::Accept(changed) => attributes = changed.into_owned(),
        FilterAction::Unmatched if exports.allows(prefix, own) => {
            exports.mark(prefix, &mut attributes);
        }
        FilterAction::Unmatched | FilterAction::Reject => return None,
    }
    completed(exports, attributes, own.is_some(), peer, here)
}

/// The result of [`advertised`] for a peer without filters, and a route whose prefix [is allowed](Exports::allows) and
/// [gets no communities](Exports::marks). It is the same for all prefixes with the same path.
pub(crate) fn advertised_alike(
    exports: &Exports,
    route: Route<'_>,
    peer: &Peer,
    here: IpAddr,
) -> Option<Attributes> {
    let attributes = unfiltered(exports, route, peer, here)?;
    completed(exports, attributes, route.own().is_some(), peer, here)
}

/// Whether two peers get equal announcements of every path that neither of them has announced. Both must have no
/// filters. Each comes with this node's address in the session with it.
pub(crate) fn are_announced_alike(one: (&Peer, IpAddr), other: (&Peer, IpAddr)) -> bool {
    let parts = |(peer, here): (&Peer, IpAddr)| {
        (peer.is_internal(), peer.own_system, peer.reflected_as, peer.next_hop, here)
    };
    // A peer of another system may get a route only if it reaches the next hop directly, which depends on the peer's
    // address.
    let by_address = !one.0.is_internal() && one.0.next_hop == NextHopMode::Auto;
    parts(one) == parts(other) && (!by_address || one.0.address == other.0.address)
}

/// The attributes of a route before filters. Returns `None` if the peer must not get the route.
fn unfiltered(
    exports: &Exports,
    route: Route<'_>,
    peer: &Peer,
    here: IpAddr,
) -> Option<Attributes> {
    match route {
        Route::Own(_) => Some(exports.of_own(here)),
        Route::Learned(path, from) => passed_on(path, from, peer),
    }
}

/// Sets the attributes that depend on the peer. Returns `None` if the peer does not reach the next hop.
fn completed(
    exports: &Exports,
    mut attributes: Attributes,
    is_own: bool,
    peer: &Peer,
    here: IpAddr,
) -> Option<Attributes> {
    attributes.next_hop = match peer.next_hop {
        NextHopMode::Own => here,
        NextHopMode::Auto if is_own => here,
        NextHopMode::Auto if !peer.is_internal() => {
            let next_hop = attributes.next_hop;
            let joins = |link: &IpNet| link.contains(&peer.address) && link.contains(&next_hop);
            exports.links.iter().any(joins).then_some(next_hop)?
        }
        NextHopMode::Auto | NextHopMode::Keep => attributes.next_hop,
    };
    if !peer.is_internal() {
        prepend(&mut attributes.as_path, &[peer.own_system]);
        attributes.local_pref = None;
        attributes.originator = None;
        attributes.clusters.clear();
        // A `MULTI_EXIT_DISC` that came from one neighbouring system is not passed on to another one (RFC 4271, 5.1.4).
        attributes.med = None;
    }
    Some(attributes)
}

/// The attributes of a learned path for another peer. Returns `None` if that peer must not get the path.
fn passed_on(path: &Path, from: &Peer, to: &Peer) -> Option<Attributes> {
    if from.address == to.address || path.attributes.communities.contains(&NO_ADVERTISE) {
        return None;
    }
    let mut attributes = Attributes::clone(&path.attributes);
    if !to.is_internal() {
        let stays = NO_EXPORT.iter().any(|it| attributes.communities.contains(it));
        return (!stays).then_some(attributes);
    }
    if path.is_internal {
        // A route of an internal peer is passed on only if one of the two peers is a client of this reflector.
        let cluster = from.reflected_as.or(to.reflected_as)?;
        attributes.originator.get_or_insert(path.identifier);
        attributes.clusters.insert(0, cluster);
    }
    attributes.local_pref.get_or_insert(crate::decision::LOCAL_PREFERENCE);
    Some(attributes)
}
