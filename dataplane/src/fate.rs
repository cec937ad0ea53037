//! What becomes of a packet, and every reason why one dies.

use crate::flow::WorkerId;
use crate::icmp::ErrorKind;
use crate::tables::Link;

/// What becomes of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub enum Fate<'a> {
    /// It goes on.
    Forward {
        /// Where to.
        link: &'a Link,
        /// This is a hop: the hop limit goes down by one.
        decrements_ttl: bool,
    },
    /// It dies silently.
    Drop(DropReason),
    /// It dies, and its sender is told.
    Answer {
        /// What it is counted as.
        reason: DropReason,
        /// What the sender is told.
        error: ErrorKind,
    },
    /// It is another worker's to decide.
    Handoff(WorkerId),
}

/// Why a packet was dropped. The discriminant indexes the drop counters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum DropReason {
    /// A header is cut short, contradicts itself or has a version or length that cannot be.
    Malformed,
    /// A frame that is not for this port: another's hardware address, a VLAN tag, no IP inside, talk of the link.
    NotOurs,
    /// No tables are published yet, or this port is not in them.
    NoTables,
    /// The source address does not belong to where the packet came from.
    SourceSpoofed,
    /// A tunnel packet from an address that is no node's, or not addressed to this node.
    UnknownTunnelPeer,
    /// A tunnel packet whose inner source does not belong to the sending node.
    TunnelSourceMismatch,
    /// The outer header says congestion on a flow that cannot hear it (RFC 6040, section 4.2).
    EcnInconsistent,
    /// Protocol 4 (or another tunnel) sent by a pod.
    TunnelFromPod,
    /// The source's egress policy denies it.
    PolicyEgress,
    /// The destination's ingress policy denies it.
    PolicyIngress,
    /// From a pod to its own node, which takes nothing from pods
    /// ([`HostPolicy::drops_to_node`](crate::tables::HostPolicy)).
    EndpointToHost,
    /// A TCP packet that is no SYN and belongs to no flow, where that is forbidden
    /// ([`Connections::tcp_strict`](crate::tables::Connections)).
    TcpWithoutFlow,
    /// No route to the destination.
    NoRoute,
    /// The destination is in this node's block and no endpoint has it.
    HostUnreachable,
    /// The time to live (hop limit) ran out here.
    TtlExceeded,
    /// Larger than the next link's MTU and not to be fragmented.
    TooBig,
    /// A fragment whose first fragment has not come.
    FragmentWithoutFirst,
    /// An ICMP error that belongs to no flow of ours.
    IcmpErrorUnmatched,
    /// A destination that is never forwarded: multicast, broadcast, link-local, loopback, unspecified.
    NotForwardable,
    /// A super-packet that falls into more segments than any MTU explains: of UDP more than 128, of TCP more than 512, or of
    /// TCP more than 64 that are shorter than 68 bytes.
    TooManySegments,
    /// Every buffer is in flight.
    NoBuffer,
    /// The outgoing port is gone or refused the packet.
    TransmitRefused,
    /// The worker that has its flow does not keep up with what it is handed over.
    HandoffFull,
}

impl DropReason {
    /// Every reason, in the order of their discriminants.
    pub const ALL: [Self; 23] = [
        Self::Malformed,
        Self::NotOurs,
        Self::NoTables,
        Self::SourceSpoofed,
        Self::UnknownTunnelPeer,
        Self::TunnelSourceMismatch,
        Self::EcnInconsistent,
        Self::TunnelFromPod,
        Self::PolicyEgress,
        Self::PolicyIngress,
        Self::EndpointToHost,
        Self::TcpWithoutFlow,
        Self::NoRoute,
        Self::HostUnreachable,
        Self::TtlExceeded,
        Self::TooBig,
        Self::FragmentWithoutFirst,
        Self::IcmpErrorUnmatched,
        Self::NotForwardable,
        Self::TooManySegments,
        Self::NoBuffer,
        Self::TransmitRefused,
        Self::HandoffFull,
    ];

    /// The name in status, logs and metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Malformed => "malformed",
            Self::NotOurs => "not-ours",
            Self::NoTables => "no-tables",
            Self::SourceSpoofed => "source-spoofed",
            Self::UnknownTunnelPeer => "unknown-tunnel-peer",
            Self::TunnelSourceMismatch => "tunnel-source-mismatch",
            Self::EcnInconsistent => "ecn-inconsistent",
            Self::TunnelFromPod => "tunnel-from-pod",
            Self::PolicyEgress => "policy-egress",
            Self::PolicyIngress => "policy-ingress",
            Self::EndpointToHost => "endpoint-to-host",
            Self::TcpWithoutFlow => "tcp-without-flow",
            Self::NoRoute => "no-route",
            Self::HostUnreachable => "host-unreachable",
            Self::TtlExceeded => "ttl-exceeded",
            Self::TooBig => "too-big",
            Self::FragmentWithoutFirst => "fragment-without-first",
            Self::IcmpErrorUnmatched => "icmp-error-unmatched",
            Self::NotForwardable => "not-forwardable",
            Self::TooManySegments => "too-many-segments",
            Self::NoBuffer => "no-buffer",
            Self::TransmitRefused => "transmit-refused",
            Self::HandoffFull => "hand-over-full",
        }
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
