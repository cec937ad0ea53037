//! Every reason why a packet is dropped.

use crate::wire::Malformed;

/// Declares the reasons, each with its name in status, logs and metrics. The list of all reasons and their names come
/// from the same lines, so that a new reason cannot be left out of either.
macro_rules! drop_reasons {
    ($($(#[$doc:meta])* $reason:ident = $name:literal,)*) => {
        /// Why a packet was dropped. The discriminant indexes the drop counters.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        #[repr(u8)]
        pub enum DropReason {
            $($(#[$doc])* $reason,)*
        }

        impl DropReason {
            /// Every reason, in the order of their discriminants.
            pub const ALL: [Self; [$($name),*].len()] = [$(Self::$reason),*];

            /// The name in status, logs and metrics.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$reason => $name,)*
                }
            }
        }
    };
}

drop_reasons! {
    /// A header is cut short, contradicts itself, or has an impossible version or length.
    Malformed = "malformed",
    /// A frame that is not for this port: it has another hardware address, a VLAN tag, no IP inside, or is a link
    /// message.
    NotOurs = "not-ours",
    /// No tables are published yet, or this port is not in them.
    NoTables = "no-tables",
    /// The source address does not belong to the port or tunnel by which the packet entered.
    SourceSpoofed = "source-spoofed",
    /// A packet to a service address that came back from the node unchanged: nothing translates it (is kube-proxy
    /// running?).
    ServiceUntranslated = "service-untranslated",
    /// A packet to a service address from a pod that has opened too many flows to service addresses. A flow counts
    /// until policy allows it when it comes back translated.
    ServiceExcess = "service-excess",
    /// A packet that came back from the node's translation of service addresses with a source that is no pod of this
    /// node. It cannot be judged, because kube-proxy has masqueraded its source.
    ServiceSource = "service-source",
    /// A packet from a service address to which no pod has sent.
    ServiceWithoutFlow = "service-without-flow",
    /// A packet to a service address at a port that the service does not have. The sender gets a RST or an ICMP error.
    ServiceWithoutPort = "service-without-port",
    /// A packet to a service that has no endpoint for new connections. The sender gets a RST or an ICMP error, unless
    /// the service's traffic policy keeps its packets on this node.
    ServiceWithoutBackend = "service-without-backend",
    /// A packet to a load balancer's address from a client that is in none of the service's source ranges.
    ServiceSourceRanges = "service-source-ranges",
    /// A packet of a connection through a service whose endpoint no longer exists. A TCP client gets a RST. A packet from
    /// the endpoint gets no answer.
    BackendGone = "backend-gone",
    /// A packet to a port of this node's address that belongs to Manx but to no service and no flow.
    UnknownPort = "unknown-port",
    /// Another translated connection has these addresses and ports.
    ConnectionTaken = "connection-taken",
    /// No source port is free for a translated connection.
    NoFreePort = "no-free-port",
    /// A fragment of an SCTP packet whose port is translated: its checksum covers the whole packet.
    SctpFragment = "sctp-fragment",
    /// A tunnel packet that is not from a node's address, or not addressed to this node.
    UnknownTunnelPeer = "unknown-tunnel-peer",
    /// A tunnel packet whose inner source does not belong to the sending node.
    TunnelSourceMismatch = "tunnel-source-mismatch",
    /// The outer header marks congestion on a flow that does not support ECN (RFC 6040, section 4.2).
    EcnInconsistent = "ecn-inconsistent",
    /// A packet of protocol 4 (or of another tunnel) that a pod sent.
    TunnelFromPod = "tunnel-from-pod",
    /// The source's egress policy denies it.
    PolicyEgress = "policy-egress",
    /// The destination's ingress policy denies it.
    PolicyIngress = "policy-ingress",
    /// A packet from a pod to its own node, which accepts nothing from pods
    /// ([`HostPolicy::drops_to_node`](crate::tables::HostPolicy)).
    EndpointToHost = "endpoint-to-host",
    /// A TCP packet that is no SYN and belongs to no flow, if such packets are forbidden
    /// ([`TrackingSettings::tcp_strict`](crate::tables::TrackingSettings)).
    TcpWithoutFlow = "tcp-without-flow",
    /// There is no route to the destination.
    NoRoute = "no-route",
    /// The destination is in this node's block, but no endpoint has it.
    HostUnreachable = "host-unreachable",
    /// The time to live (hop limit) reached zero here.
    TtlExceeded = "ttl-exceeded",
    /// The packet is larger than the next link's MTU and must not be fragmented.
    TooBig = "too-big",
    /// A fragment whose first fragment has not come.
    FragmentWithoutFirst = "fragment-without-first",
    /// An ICMP error that belongs to no known flow.
    IcmpErrorUnmatched = "icmp-error-unmatched",
    /// A destination that is never forwarded: multicast, broadcast, link-local, loopback, unspecified.
    NotForwardable = "not-forwardable",
    /// A super-packet with more segments than any MTU explains: more than 128 of UDP, more than 512 of TCP, or more
    /// than 64 of TCP that are shorter than 68 bytes.
    TooManySegments = "too-many-segments",
    /// Every buffer is in use.
    NoBuffer = "no-buffer",
    /// The outgoing port is gone, or it refused the packet.
    TransmitRefused = "transmit-refused",
    /// The worker that has the packet's flow does not keep up with the packets that are handed off to it.
    HandoffFull = "handoff-full",
}

impl From<Malformed> for DropReason {
    fn from(Malformed: Malformed) -> Self {
        Self::Malformed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reason_has_its_own_counter_and_name() {
        let mut names = std::collections::BTreeSet::new();
        for (index, reason) in DropReason::ALL.into_iter().enumerate() {
            assert_eq!(reason as usize, index);
            assert!(names.insert(reason.name()));
        }
    }
}
