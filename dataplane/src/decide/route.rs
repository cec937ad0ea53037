//! Routing: the next hops that Manx connects, and the forwarding of a packet that policy allows.

use super::metadata::PacketMetadata;
use crate::drop_reason::DropReason;
use crate::fate::{Fate, Forwarding};
use crate::icmp::ErrorKind;
use crate::rewrite::Rewrite;
use crate::tables::{NextHop, NextHopPair, Tables};

/// Whether Manx carries packets between two next hops. It connects its endpoints with everything; this node, and the
/// clients that it masquerades, with pods of other nodes; visitors with its endpoints; and, where it owns the uplink, this node with the world. It
/// carries no transit. Nothing is opened from a service address. A destination without a route is let through, to be
/// answered.
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
        (NextHop::Node, NextHop::Host) | (NextHop::Host, NextHop::Node) => tables.uplink.is_some(),
        (
            NextHop::Node
            | NextHop::Host
            | NextHop::Forwarded
            | NextHop::Tunnel(_)
            | NextHop::Visitor(_)
            | NextHop::NoRoute
            | NextHop::Unreachable,
            NextHop::Node
            | NextHop::Host
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

/// The rest of routing, except for the packet size: checks the link and the hop limit.
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

/// Forwards a packet that rules allow. `None`: it must be answered, or does not fit.
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

/// Whether the hop limit of a packet ends here.
#[inline]
fn expires(metadata: &PacketMetadata, rewrite: Rewrite) -> bool {
    rewrite.decrements_ttl && metadata.ttl <= 1
}
