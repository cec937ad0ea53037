//! The sources of routes, and their precedence if several have a route for one prefix.

use std::collections::BTreeMap;

use ipnet::IpNet;

/// A source of routes. If several sources have a route for one prefix, the last source in this order is used. A longer
/// prefix always takes precedence over a shorter one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum RouteSource {
    /// The default route, for every address that no other source names.
    World,
    /// An IPPool. Addresses of the pool that belong to no node cannot be reached.
    Pool,
    /// An address of a node that is in a pool.
    NodeInPool,
    /// The block of another node.
    NodeBlock,
    /// A block that two nodes claim.
    ContestedBlock,
    /// A block of this node.
    OwnBlock,
    /// An address that another node's tunnel has outside of that node's blocks.
    TunnelAddress,
    /// An address that a pod has outside of its node's blocks.
    BorrowedAddress,
    /// An address in a block by which this node masquerades other addresses.
    MasqueradeAddress,
    /// An address of this node from its Node object, or an address of one of its tunnels.
    NodeAddress,
    /// An address of the node's kernel.
    KernelAddress,
    /// A translated service address, or a range of such addresses.
    Service,
    /// The node's own address on the link of a pod that another plugin has connected.
    Gateway,
    /// The address of a pod that is attached to this node.
    Pod,
}

impl RouteSource {
    /// The last source that comes from objects, so that all nodes agree about it. The later sources are known only to
    /// the node itself.
    pub const LAST_OF_CLUSTER: Self = Self::NodeAddress;

    /// All sources, in order.
    pub const ALL: [Self; 14] = [
        Self::World,
        Self::Pool,
        Self::NodeInPool,
        Self::NodeBlock,
        Self::ContestedBlock,
        Self::OwnBlock,
        Self::TunnelAddress,
        Self::BorrowedAddress,
        Self::MasqueradeAddress,
        Self::NodeAddress,
        Self::KernelAddress,
        Self::Service,
        Self::Gateway,
        Self::Pod,
    ];

    /// Returns the name of the source, as users see it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::World => "world",
            Self::Pool => "pool",
            Self::NodeInPool => "node in a pool",
            Self::NodeBlock => "block of a node",
            Self::ContestedBlock => "block of two nodes",
            Self::OwnBlock => "own block",
            Self::TunnelAddress => "tunnel address of a node",
            Self::BorrowedAddress => "borrowed address",
            Self::MasqueradeAddress => "masquerade address",
            Self::NodeAddress => "address of this node",
            Self::KernelAddress => "address of an interface",
            Self::Service => "service",
            Self::Gateway => "gateway of a pod",
            Self::Pod => "attached pod",
        }
    }
}

/// Returns the route that is used for each prefix. This is the route of the last source or, if this source has several
/// routes for the prefix, the last of these.
pub fn routes<R>(of: impl IntoIterator<Item = (IpNet, RouteSource, R)>) -> BTreeMap<IpNet, R> {
    let mut all: Vec<_> =
        of.into_iter().map(|(prefix, source, route)| (prefix.trunc(), source, route)).collect();
    all.sort_by_key(|(prefix, source, _)| (*prefix, *source));
    // The last route of each prefix remains.
    all.into_iter().map(|(prefix, _, route)| (prefix, route)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_source_counts_in_whatever_order_they_come() {
        let net = |text: &str| text.parse::<IpNet>().unwrap();
        let all = [
            (net("10.1.2.3/24"), RouteSource::OwnBlock, 1),
            (net("10.1.2.0/24"), RouteSource::Pool, 2),
            (net("10.1.0.0/16"), RouteSource::Pool, 3),
            (net("10.1.0.0/16"), RouteSource::Pool, 4),
        ];
        let expected = BTreeMap::from([(net("10.1.2.0/24"), 1), (net("10.1.0.0/16"), 4)]);
        assert_eq!(routes(all), expected);
        let [own, pool, first, second] = all;
        assert_eq!(routes([first, second, pool, own]), expected);
    }
}
