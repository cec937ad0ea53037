//! The source of a flow's packets after the translation.

use std::net::IpAddr;

use crate::decide::key::key_with_ends;
use crate::flow::DirectedKey;
use crate::policy::FlowEnds;
use crate::services::{HAIRPIN_V4, HAIRPIN_V6};
use crate::tables::{EncodedNextHop, ManxPorts, NextHop, NextHopPair, Tables};
use crate::wire::address::Address;

/// The source of a flow's packets after the translation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SourceBehind {
    /// The client, so that the other end sees the client's own address.
    Client,
    /// Another address. For an endpoint that reaches itself, this is the address of its gateway, because an endpoint
    /// drops packets from outside that have its own address as their source. For a process of the node whose packets
    /// leave by a tunnel, this is an address of this node's block, because the other node admits no other source.
    Address(Address),
    /// The node, with a port of this range. Replies come back to the node.
    Node(Address, (u16, u16)),
}

/// The error that the node has no address of the family that could replace the source.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct NoAddress;

/// The source of a flow after its translation, which depends on the client and the destination. The node's address
/// replaces the source in two cases: the pool of a pod asks for masquerading, or a service leads a client that is no
/// pod to a backend that is no pod. In the second case, the replies must come back to this node.
pub(super) fn source_behind(
    tables: &Tables,
    ends: &FlowEnds,
    [client, destination]: [Address; 2],
    is_service: bool,
) -> Result<SourceBehind, NoAddress> {
    if is_hairpin(ends) {
        let (v4, v6) = (HAIRPIN_V4.into(), IpAddr::V6(HAIRPIN_V6).into());
        return Ok(SourceBehind::Address(if client.is_v4() { v4 } else { v6 }));
    }
    let Some(ports) = &tables.manx_ports else { return Ok(SourceBehind::Client) };
    let of_node = |addresses| {
        let address = ManxPorts::of_family(addresses, client).ok_or(NoAddress)?;
        Ok(SourceBehind::Node(address, ports.egress))
    };
    match (ends.from, ends.to) {
        (NextHop::Endpoint(_), NextHop::World) if ports.masquerades(client, destination) => {
            of_node(&ports.outgoing)
        }
        (NextHop::Node | NextHop::World, NextHop::Node | NextHop::World) if is_service => {
            of_node(&ports.addresses)
        }
        (NextHop::Node, NextHop::Tunnel(_)) if is_service => {
            let router = tables.router_v4.filter(|_| client.is_v4()).ok_or(NoAddress)?;
            Ok(SourceBehind::Address(router.into()))
        }
        _ => Ok(SourceBehind::Client),
    }
}

impl SourceBehind {
    /// The next hops of packets that have this source after the translation. `pair` are the next hops according to the
    /// routes.
    pub(super) fn leave(self, pair: NextHopPair) -> NextHopPair {
        match self {
            Self::Node(..) => NextHopPair { to: EncodedNextHop::MANX_PORTS, ..pair },
            Self::Client | Self::Address(_) => pair,
        }
    }

    /// The second key of a flow with this first key, this source port and this destination.
    pub(super) fn second_key(
        self,
        first: &DirectedKey,
        port: u16,
        to: (Address, u16),
    ) -> DirectedKey {
        let source = match self {
            Self::Client => first.key.source(first.original).0,
            Self::Address(address) | Self::Node(address, _) => address,
        };
        let (key, original) = key_with_ends(&first.key, first.original, (source, port), to);
        DirectedKey { key, original }
    }
}

/// Whether an endpoint reaches itself through a service.
fn is_hairpin(ends: &FlowEnds) -> bool {
    matches!(ends.from, NextHop::Endpoint(_)) && ends.from == ends.to
}
