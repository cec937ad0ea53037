//! Where the ends of a packet are, and what policy can ask of them.

use manx_policy_compiler::image::Identity;

use super::Way;
use crate::flow::AsOf;
use crate::judge::Ends;
use crate::tables::{Hop, Tables, Via};
use crate::wire::address::Address;

/// One end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct End {
    hop: Hop,
    identity: Identity,
}

impl End {
    #[inline(always)]
    #[expect(clippy::inline_always, reason = "as LastSource::ends")]
    fn of(tables: &Tables, address: Address) -> Self {
        Self { hop: tables.hop(address), identity: tables.identity(address) }
    }
}

/// The two ends of a packet from `source`, looked up, and the way between them.
pub(super) fn ends(tables: &Tables, source: Address, destination: Address) -> (Way, Ends) {
    ends_of(End::of(tables, source), End::of(tables, destination))
}

#[inline]
fn ends_of(source: End, destination: End) -> (Way, Ends) {
    let way = Way { from: source.hop, to: destination.hop };
    let (from, to) = (Via::decode(way.from), Via::decode(way.to));
    (way, Ends { from, to, identities: [source.identity, destination.identity] })
}

/// The state of the world for what rests on these two addresses. It is to be taken before anything is looked up, so that what
/// changes meanwhile is looked at again.
#[inline]
pub(super) fn as_of(tables: &Tables, addresses: [u32; 2]) -> AsOf {
    AsOf { version: tables.version as u32, changes: tables.changes(addresses) }
}

/// The source that was looked up last: packets that come together often have one. It is good while nothing has changed that
/// stands at its address.
#[derive(Debug, Clone, Copy)]
pub struct LastSource {
    address: Address,
    as_of: AsOf,
    end: End,
}

impl Default for LastSource {
    /// Nobody's.
    fn default() -> Self {
        let end = End { hop: Via::NoRoute.encode(), identity: Identity::UNKNOWN };
        Self { address: Address::UNSPECIFIED, as_of: AsOf::default(), end }
    }
}

impl LastSource {
    /// As [`ends`].
    #[inline(always)]
    #[expect(clippy::inline_always, reason = "who asks may know the addresses' family")]
    pub(super) fn ends(
        &mut self,
        tables: &Tables,
        source: Address,
        destination: Address,
    ) -> (Way, Ends) {
        let as_of = as_of(tables, [source.to_bits() as u32; 2]);
        if self.address != source || self.as_of != as_of {
            *self = Self { address: source, as_of, end: End::of(tables, source) };
        }
        ends_of(self.end, End::of(tables, destination))
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;
    use std::sync::Arc;

    use manx_policy_compiler::prefix_map::PrefixMap;

    use super::*;

    #[test]
    fn the_last_source_is_where_these_tables_have_it() {
        let [one, other, to] = [1, 2, 3].map(|n| Address::from(Ipv4Addr::new(10, 0, 0, n)));
        let mut last = LastSource::default();
        for (version, via) in [(0, Via::NoRoute), (1, Via::Endpoint(7)), (2, Via::Node)] {
            let routes = PrefixMap::build(0, [("10.0.0.1/32".parse().unwrap(), via.encode().0)]);
            let tables = Tables { version, routes: Arc::new(routes), ..Tables::closed() };
            for source in [one, one, other, one, Address::UNSPECIFIED] {
                let (way, found) = last.ends(&tables, source, to);
                assert_eq!((way, found), ends(&tables, source, to));
                assert_eq!([way.from, way.to].map(Via::decode), [found.from, found.to]);
            }
        }
    }
}
