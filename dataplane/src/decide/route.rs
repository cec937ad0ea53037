//! Routing: which next hops Manx connects, and how a packet that policy allows is forwarded.

use super::metadata::PacketMetadata;
use crate::drop_reason::DropReason;
use crate::fate::{Fate, Forwarding};
use crate::icmp::ErrorKind;
use crate::rewrite::Rewrite;
use crate::tables::{NextHop, NextHopPair, Tables};

/// Whether Manx carries packets between two next hops. It connects its endpoints with everything, visitors with its
/// endpoints, and this node and the clients that it masquerades with pods of other nodes. Where it owns the uplink, it
/// also connects this node with the world. It does not carry packets from one other node to another. A service address
/// opens no flow. A destination without a route counts as connected, so that the sender gets an ICMP error.
#[inline]
pub(super) fn connects(tables: &Tables, from: NextHop, to: NextHop) -> bool {
    match (from, to) {
        (NextHop::Service | NextHop::Translated | NextHop::ManxPorts | NextHop::HostSide(_), _) => {
            false
        }
        (NextHop::Endpoint(_), _)
        | (_, NextHop::Endpoint(_) | NextHop::Unreachable | NextHop::NoRoute)
        | (NextHop::Node | NextHop::Forwarded, NextHop::Tunnel(_))
        | (NextHop::Tunnel(_), NextHop::Node) => true,
        (NextHop::Node, NextHop::World) | (NextHop::World, NextHop::Node) => {
            tables.uplink.is_some()
        }
        (
            NextHop::Node
            | NextHop::World
            | NextHop::Forwarded
            | NextHop::Tunnel(_)
            | NextHop::Visitor(_)
            | NextHop::NoRoute
            | NextHop::Unreachable,
            NextHop::Node
            | NextHop::World
            | NextHop::Forwarded
            | NextHop::Tunnel(_)
            | NextHop::Visitor(_)
            | NextHop::Service
            | NextHop::Translated
            | NextHop::ManxPorts
            | NextHop::HostSide(_),
        ) => false,
    }
}

/// Checks the link and the hop limit: the last part of routing, except for the packet size.
pub(super) fn route<'a>(
    tables: &'a Tables,
    metadata: &PacketMetadata,
    pair: NextHopPair,
) -> Result<Forwarding<'a>, Fate<'a>> {
    let answer = |reason, error| Err(Fate::Answer { reason, error });
    let rewrite = Rewrite::between(pair);
    let Some(link) = tables.link(NextHop::decode(pair.to)) else {
        return match NextHop::decode(pair.to) {
            NextHop::NoRoute => answer(DropReason::NoRoute, ErrorKind::HostUnreachable),
            _ => answer(DropReason::HostUnreachable, ErrorKind::HostUnreachable),
        };
    };
    if expires(metadata, rewrite) {
        return answer(DropReason::TtlExceeded, ErrorKind::TimeExceeded);
    }
    Ok(Forwarding { link, rewrite })
}

/// Forwards a packet that the rules allow. `None`: the packet must be answered by an ICMP error, or does not fit the
/// link's MTU.
#[inline(always)]
#[expect(clippy::inline_always, reason = "nearly every packet")]
pub(super) fn forward_if_fits<'a>(
    tables: &'a Tables,
    metadata: &PacketMetadata,
    pair: NextHopPair,
) -> Option<Forwarding<'a>> {
    let rewrite = Rewrite::between(pair);
    let link = tables.link(NextHop::decode(pair.to))?;
    let fits = metadata.unit <= link.mtu && !expires(metadata, rewrite);
    fits.then_some(Forwarding { link, rewrite })
}

/// Whether the hop limit of a packet runs out here.
#[inline]
fn expires(metadata: &PacketMetadata, rewrite: Rewrite) -> bool {
    rewrite.decrements_ttl && metadata.ttl <= 1
}
