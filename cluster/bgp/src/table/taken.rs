//! Decides which paths of a peer are accepted, and with which attributes.

use std::borrow::Cow;
use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;

use crate::filter::{self, Direction, FilterAction, Filters};
use crate::path::Attributes;

/// The weight of a path's attributes: the number of bytes of those parts whose size the peer can choose. If paths share
/// attributes, each path counts them.
pub(super) fn weight(attributes: &Attributes) -> usize {
    let Attributes { communities, large_communities, clusters, opaque, .. } = attributes;
    let opaque: usize = opaque.iter().map(|it| it.value.len()).sum();
    4 * (attributes.systems().count() + communities.len() + clusters.len())
        + 12 * large_communities.len()
        + opaque
}

/// The attributes of a path after a peer's import filters. Returns `None` if the filters reject it.
pub(super) fn imported(
    filters: &Filters,
    prefix: IpNet,
    attributes: &Arc<Attributes>,
    is_internal: bool,
) -> Option<Arc<Attributes>> {
    let route = filter::Route { prefix, attributes, is_from_peer: true, interface: None };
    match filters.judge(Direction::Import, &route, is_internal) {
        FilterAction::Accept(Cow::Owned(changed)) => Some(Arc::new(changed)),
        FilterAction::Accept(Cow::Borrowed(_)) | FilterAction::Unmatched => {
            Some(Arc::clone(attributes))
        }
        FilterAction::Reject => None,
    }
}

/// Removes the attributes that must be ignored if they come from another autonomous system (RFC 4271, 5.1.5; RFC 4456,
/// 8).
pub(super) fn received(mut attributes: Arc<Attributes>, is_internal: bool) -> Arc<Attributes> {
    let Attributes { local_pref, originator, clusters, .. } = &*attributes;
    if !is_internal && (local_pref.is_some() || originator.is_some() || !clusters.is_empty()) {
        let it = Arc::make_mut(&mut attributes);
        (it.local_pref, it.originator) = (None, None);
        it.clusters.clear();
    }
    attributes
}

/// Whether a prefix and a next hop can be used for a route: both are of one family, and are addresses of hosts beyond this
/// host's link.
pub(super) fn is_routable(prefix: IpNet, next_hop: Option<IpAddr>) -> bool {
    let is_of_hosts = |address: IpAddr| match address {
        IpAddr::V4(it) => !it.is_multicast() && !it.is_loopback() && !it.is_link_local(),
        IpAddr::V6(it) => !it.is_multicast() && !it.is_loopback() && !it.is_unicast_link_local(),
    };
    let is_default = prefix.prefix_len() == 0;
    next_hop.is_some_and(|next_hop| {
        next_hop.is_ipv4() == prefix.addr().is_ipv4()
            && is_of_hosts(next_hop)
            && !next_hop.is_unspecified()
            && (is_default || is_of_hosts(prefix.addr()) && !prefix.addr().is_unspecified())
    })
}
