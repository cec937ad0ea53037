//! The entrance of a packet, and the sources that may enter there.

use crate::drop_reason::DropReason;
use crate::flow::FlowDirection;
use crate::tables::{EncodedNextHop, NextHop, NextHopPair, ReturnPath};
use crate::wire::address::Address;

/// The entrance of a packet: a port's role, or a tunnel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entrance {
    /// The next hop back to the senders.
    pub(super) back: EncodedNextHop,
    /// The bits that are compared: a packet may enter here if the next hop of its source equals `back` in these bits.
    significant_bits: u32,
}

impl Entrance {
    /// The entrance that no packet may use, because no next hop equals it in all bits.
    pub const NOWHERE: Self = Self { back: EncodedNextHop(u32::MAX), significant_bits: u32::MAX };
    /// The host port. Its sources are the node, the world, and service addresses at which processes of the node answer.
    pub const HOST: Self = Self {
        back: NextHop::World.encode(),
        significant_bits: !(EncodedNextHop::NODE_OR_WORLD | EncodedNextHop::WORLD_OR_SERVICE),
    };
    /// The port of packets that the node forwards. It admits the world's sources. It also admits the node's addresses,
    /// which masqueraded senders have. Replies from the node's own addresses come in here, too, after the kernel has
    /// undone their translation; their flow shows that they are replies.
    pub const FORWARDED: Self = Self {
        back: EncodedNextHop::FORWARDED,
        significant_bits: !EncodedNextHop::WORLD_OR_FORWARDED,
    };
    /// The service port. Its sources are translated packets of this node's endpoints, and replies from service
    /// addresses.
    pub const SERVICE: Self = Self {
        back: EncodedNextHop::SERVICE,
        significant_bits: !EncodedNextHop::SERVICE_OR_TRANSLATED,
    };
    /// The port for the port ranges of the node's addresses that belong to Manx. Its sources are the node and the
    /// world, as [`NextHop::ManxPorts`].
    pub const MANX_PORTS: Self =
        Self { back: EncodedNextHop::MANX_PORTS, significant_bits: u32::MAX };
    /// The host port of a node whose uplink Manx owns. Its only source is the node, because the world is behind the
    /// uplink.
    pub const NODE: Self = Self { back: NextHop::Node.encode(), significant_bits: u32::MAX };
    /// The uplink. Its source is the world.
    pub const UPLINK: Self = Self { back: NextHop::World.encode(), significant_bits: u32::MAX };

    /// An endpoint's port.
    #[inline]
    pub const fn endpoint(index: u32) -> Self {
        Self { back: NextHop::Endpoint(index).encode(), significant_bits: u32::MAX }
    }

    /// The host side of an endpoint that another CNI plugin has connected. It admits what the host port admits, and
    /// packets that the node forwards from its other endpoints.
    #[inline]
    pub const fn host_side(index: u32) -> Self {
        Self { back: NextHop::HostSide(index).encode(), significant_bits: u32::MAX }
    }

    /// The tunnel of a known peer. The pool of a packet's destination determines its encapsulation. So the two
    /// directions of a flow may have different encapsulations, and the peer may use either tunnel. Visitors come in
    /// here, too, if the module `visitor` admits them.
    #[inline]
    pub const fn tunnel(index: u32) -> Self {
        Self {
            back: NextHop::Tunnel(index).encode(),
            significant_bits: !(EncodedNextHop::TUNNEL_KIND_BITS
                | EncodedNextHop::TUNNEL_OR_VISITOR),
        }
    }

    /// The component that packets have passed before they enter here.
    #[inline]
    pub(super) const fn return_path(self) -> ReturnPath {
        match self.back() {
            NextHop::Service => ReturnPath::Service,
            NextHop::HostSide(_) => ReturnPath::Node,
            NextHop::Forwarded => ReturnPath::Forwarded,
            NextHop::ManxPorts => ReturnPath::ManxPorts,
            NextHop::Tunnel(index) => ReturnPath::Tunnel(index),
            _ => ReturnPath::None,
        }
    }

    /// Whether Manx decides packets between these addresses that come in by this entrance. Other packets are dropped as
    /// not forwardable. Processes of the node reach the port ranges that belong to Manx at IPv4's loopback addresses,
    /// too; no other entrance accepts those addresses.
    #[inline(always)]
    #[expect(clippy::inline_always, reason = "every new flow")]
    pub(super) fn takes(self, [source, destination]: [Address; 2]) -> bool {
        let is_taken = destination.is_forwardable()
            || (self == Self::MANX_PORTS && destination.is_v4_loopback());
        source.is_forwardable() && is_taken
    }

    /// Whether packets from an address with this next hop may enter here: the strict reverse path (RFC 3704, section
    /// 2.2).
    #[inline]
    pub(super) fn admits(self, hop: EncodedNextHop) -> bool {
        (self.back.0 ^ hop.0) & self.significant_bits == 0
    }

    /// Like [`Self::admits`], for a packet of a flow on the slow path. Two more kinds of packets may enter. A process
    /// of the node may answer an endpoint from a service address, by the host side of that endpoint. A reply may come
    /// from one of the node's own addresses by the port of forwarded packets.
    pub(super) fn admits_flow(
        self,
        NextHopPair { from, to }: NextHopPair,
        direction: FlowDirection,
    ) -> bool {
        let is_answer = || {
            let own = match self.back() {
                NextHop::HostSide(index) => Some(NextHop::Endpoint(index).encode()),
                _ => None,
            };
            from == EncodedNextHop::SERVICE && own == Some(to)
        };
        let is_untranslated = direction == FlowDirection::Reply
            && self == Self::FORWARDED
            && from == EncodedNextHop::NODE;
        self.admits(from) || is_untranslated || is_answer()
    }

    /// Whether a packet that entered here has another sender than a known flow with the same addresses and ports. `hop`
    /// is the next hop of the flow's source. A packet of the node itself may look like a packet that the node forwards,
    /// and each needs its own verdict.
    pub(super) fn is_other_sender(self, hop: EncodedNextHop) -> bool {
        (self == Self::FORWARDED && hop == EncodedNextHop::NODE)
            || (self == Self::HOST && hop == EncodedNextHop::FORWARDED)
    }

    /// The next hops of an ICMP error about a packet of a flow. The node is a hop on the way to the clients that it
    /// masquerades, so it sends errors about packets to them. Such an error is the node's own packet.
    pub(super) fn next_hops_of_error(self, pair: NextHopPair) -> NextHopPair {
        if self == Self::HOST && pair.from == EncodedNextHop::FORWARDED {
            NextHopPair { from: EncodedNextHop::NODE, ..pair }
        } else {
            pair
        }
    }

    /// The next hop by which senders that enter here are reached.
    #[inline]
    pub const fn back(self) -> NextHop {
        NextHop::decode(self.back)
    }

    /// The drop reason for a packet to `to` whose source may not enter here.
    pub(super) fn refusal(self, to: EncodedNextHop) -> DropReason {
        match self.back() {
            NextHop::Service if to == EncodedNextHop::SERVICE => DropReason::ServiceUntranslated,
            NextHop::Tunnel(_) => DropReason::TunnelSourceMismatch,
            NextHop::Service => DropReason::ServiceSource,
            _ => DropReason::SourceSpoofed,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_port_of_the_node_admits_what_may_come_there_and_nothing_else() {
        use NextHop::{
            Endpoint, Forwarded, HostSide, ManxPorts, NoRoute, Node, Service, Translated, Tunnel,
            Unreachable, World,
        };
        let all = [
            NoRoute,
            Unreachable,
            Node,
            World,
            Forwarded,
            Service,
            Translated,
            ManxPorts,
            Endpoint(0),
            Endpoint(2),
            Tunnel(0),
            Tunnel(2),
            HostSide(2),
        ];
        for (entrance, wanted) in [
            (Entrance::HOST, &[Node, World, Service][..]),
            (Entrance::FORWARDED, &[World, Forwarded]),
            (Entrance::SERVICE, &[Service, Translated]),
            (Entrance::MANX_PORTS, &[ManxPorts]),
            (Entrance::NODE, &[Node]),
            (Entrance::UPLINK, &[World]),
            (Entrance::NOWHERE, &[]),
        ] {
            let admitted: Vec<_> =
                all.into_iter().filter(|hop| entrance.admits(hop.encode())).collect();
            assert_eq!(admitted, wanted, "{entrance:?}");
        }
    }
}
