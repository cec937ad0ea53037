//! Looks up the two addresses of a packet: their next hops, and the identities by which policy knows them.

use manx_policy_compiler::image::Identity;

use crate::flow::Epoch;
use crate::policy::FlowEnds;
use crate::tables::{EncodedNextHop, NextHop, NextHopPair, ReturnPath, Tables};
use crate::wire::address::Address;

/// The result of the look-up of one address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct ResolvedAddress {
    next_hop: EncodedNextHop,
    identity: Identity,
}

impl ResolvedAddress {
    #[inline(always)]
    #[expect(clippy::inline_always, reason = "as SourceCache::lookup_ends")]
    fn lookup(tables: &Tables, address: Address) -> Self {
        Self { next_hop: tables.encoded_next_hop(address), identity: tables.identity(address) }
    }
}

/// Looks up the source and the destination of a packet. Returns the next hops to both, as routes hold them, and both
/// ends as policy sees them.
pub(super) fn lookup_ends(
    tables: &Tables,
    source: Address,
    destination: Address,
) -> (NextHopPair, FlowEnds) {
    pair(ResolvedAddress::lookup(tables, source), ResolvedAddress::lookup(tables, destination))
}

#[inline]
fn pair(source: ResolvedAddress, destination: ResolvedAddress) -> (NextHopPair, FlowEnds) {
    let pair = NextHopPair { from: source.next_hop, to: destination.next_hop };
    let (from, to) = (NextHop::decode(pair.from), NextHop::decode(pair.to));
    (pair, FlowEnds { from, to, identities: [source.identity, destination.identity] })
}

/// Adapts the result of [`lookup_ends`] to packets that have this return path. Policy judges a masqueraded sender as
/// [`NextHop::Forwarded`], because it is not the node itself. Policy judges a visitor as [`NextHop::Visitor`], because
/// it does not come in by the node's own interface.
#[inline]
pub(super) fn by_return_path(
    tables: &Tables,
    return_path: ReturnPath,
    (pair, ends): (NextHopPair, FlowEnds),
) -> (NextHopPair, FlowEnds) {
    let pair = return_path.next_hops(tables, pair);
    let from = match NextHop::decode(pair.from) {
        from @ (NextHop::Forwarded | NextHop::Visitor(_)) => from,
        _ => ends.from,
    };
    (pair, FlowEnds { from, ..ends })
}

/// The epoch of a decision that depends on these two addresses. The caller must read the epoch before it looks up the
/// addresses, so that a change during the look-ups is noticed.
#[inline]
pub(super) fn current_epoch(tables: &Tables, addresses: [u32; 2]) -> Epoch {
    Epoch { version: tables.version as u32, changes: tables.changes(addresses) }
}

/// The source that was looked up last. Packets that arrive together often have the same source. The result is used only
/// while the epoch is the same, so while nothing has changed at the address.
#[derive(Debug, Clone, Copy)]
pub struct SourceCache {
    address: Address,
    epoch: Epoch,
    end: ResolvedAddress,
}

impl Default for SourceCache {
    /// The unspecified address, which has no next hop.
    fn default() -> Self {
        let end =
            ResolvedAddress { next_hop: NextHop::NoRoute.encode(), identity: Identity::UNKNOWN };
        Self { address: Address::UNSPECIFIED, epoch: Epoch::default(), end }
    }
}

impl SourceCache {
    /// Returns the same as the function [`lookup_ends`]. The source is looked up only if it differs from the last
    /// packet's source, or if the epoch has changed.
    #[inline(always)]
    #[expect(clippy::inline_always, reason = "the caller may know the family of the addresses")]
    pub(super) fn lookup_ends(
        &mut self,
        tables: &Tables,
        source: Address,
        destination: Address,
    ) -> (NextHopPair, FlowEnds) {
        let epoch = current_epoch(tables, [source.to_bits() as u32; 2]);
        if self.address != source || self.epoch != epoch {
            *self = Self { address: source, epoch, end: ResolvedAddress::lookup(tables, source) };
        }
        pair(self.end, ResolvedAddress::lookup(tables, destination))
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;
    use std::sync::Arc;

    use manx_policy_compiler::prefix_map::PrefixMap;

    use super::*;

    #[test]
    fn the_cached_source_equals_a_lookup_in_the_same_tables() {
        let [one, other, to] = [1, 2, 3].map(|n| Address::from(Ipv4Addr::new(10, 0, 0, n)));
        let mut last = SourceCache::default();
        for (version, next_hop) in
            [(0, NextHop::NoRoute), (1, NextHop::Endpoint(7)), (2, NextHop::Node)]
        {
            let routes =
                PrefixMap::build(0, [("10.0.0.1/32".parse().unwrap(), next_hop.encode().0)]);
            let tables = Tables { version, routes: Arc::new(routes), ..Tables::closed() };
            for source in [one, one, other, one, Address::UNSPECIFIED] {
                let (pair, found) = last.lookup_ends(&tables, source, to);
                assert_eq!((pair, found), lookup_ends(&tables, source, to));
                assert_eq!([pair.from, pair.to].map(NextHop::decode), [found.from, found.to]);
            }
        }
    }
}
