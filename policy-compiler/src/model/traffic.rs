//! The fields of a packet that policy reads, except its two addresses.

use std::fmt;

/// The protocol number of a family's ICMP. The ICMP of the other family is treated like any other protocol, without
/// types and codes.
pub(crate) const fn icmp_of(family: Family) -> u8 {
    match family {
        Family::V4 => ICMP,
        Family::V6 => ICMPV6,
    }
}

/// The protocols that have ports in policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Protocol {
    /// IP protocol 6.
    Tcp,
    /// IP protocol 17.
    Udp,
    /// IP protocol 132.
    Sctp,
}

impl Protocol {
    /// All three protocols.
    pub const ALL: [Self; 3] = [Self::Tcp, Self::Udp, Self::Sctp];

    /// The IP protocol number.
    pub const fn number(self) -> u8 {
        match self {
            Self::Tcp => 6,
            Self::Udp => 17,
            Self::Sctp => 132,
        }
    }

    /// The protocol with this IP protocol number, if it has ports.
    pub const fn from_number(number: u8) -> Option<Self> {
        match number {
            6 => Some(Self::Tcp),
            17 => Some(Self::Udp),
            132 => Some(Self::Sctp),
            _ => None,
        }
    }

    /// The name as Kubernetes spells it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Tcp => "TCP",
            Self::Udp => "UDP",
            Self::Sctp => "SCTP",
        }
    }
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The IP protocol number of ICMP.
pub const ICMP: u8 = 1;

/// The IP protocol number of `ICMPv6`.
pub const ICMPV6: u8 = 58;

/// Traffic into or out of the endpoint that a policy selects.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Direction {
    /// Into the endpoint; the peer is the source.
    Ingress,
    /// Out of the endpoint; the peer is the destination.
    Egress,
}

impl Direction {
    /// Both directions.
    pub const ALL: [Self; 2] = [Self::Ingress, Self::Egress];

    /// `ingress` or `egress`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ingress => "ingress",
            Self::Egress => "egress",
        }
    }
}

impl fmt::Display for Direction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The version of the Internet Protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Family {
    /// Version 4.
    V4,
    /// Version 6.
    V6,
}

impl Family {
    /// Both families.
    pub const ALL: [Self; 2] = [Self::V4, Self::V6];

    /// The family of an address.
    pub const fn from_address(address: std::net::IpAddr) -> Self {
        match address {
            std::net::IpAddr::V4(_) => Self::V4,
            std::net::IpAddr::V6(_) => Self::V6,
        }
    }

    /// The prefix that contains every address of the family.
    pub fn everything(self) -> ipnet::IpNet {
        match self {
            Self::V4 => ipnet::IpNet::V4(ipnet::Ipv4Net::default()),
            Self::V6 => ipnet::IpNet::V6(ipnet::Ipv6Net::default()),
        }
    }
}

/// The part of a packet's L4 header that policy depends on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum L4Header {
    /// Neither ports nor an ICMP type: another protocol, or a fragment that is not the first.
    Nothing,
    /// The ports of TCP, UDP or SCTP.
    Ports {
        /// The source port.
        source: u16,
        /// The destination port.
        destination: u16,
    },
    /// The type and code of ICMP or `ICMPv6`.
    Icmp {
        /// The type.
        kind: u8,
        /// The code.
        code: u8,
    },
}

/// The protocol and the L4 header.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Transport {
    /// IP protocol number.
    pub protocol: u8,
    /// The ports, or the type and code. If they do not fit the protocol, they count as [`L4Header::Nothing`].
    pub l4: L4Header,
}

impl Transport {
    /// A packet with ports.
    pub const fn ports(protocol: Protocol, source: u16, destination: u16) -> Self {
        Self { protocol: protocol.number(), l4: L4Header::Ports { source, destination } }
    }

    /// A packet without an L4 header that policy can read.
    pub const fn bare(protocol: u8) -> Self {
        Self { protocol, l4: L4Header::Nothing }
    }

    /// The destination port, if the packet has one.
    pub const fn destination_port(&self) -> Option<u16> {
        match self.l4 {
            L4Header::Ports { destination, .. } => Some(destination),
            L4Header::Nothing | L4Header::Icmp { .. } => None,
        }
    }

    /// An ICMP or `ICMPv6` packet.
    pub const fn icmp(protocol: u8, kind: u8, code: u8) -> Self {
        Self { protocol, l4: L4Header::Icmp { kind, code } }
    }
}

impl fmt::Display for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (Protocol::from_number(self.protocol), self.l4) {
            (Some(protocol), L4Header::Ports { source, destination }) => {
                write!(f, "{protocol} {source} -> {destination}")
            }
            (Some(protocol), _) => write!(f, "{protocol} without ports"),
            (None, L4Header::Icmp { kind, code }) if self.protocol == ICMP => {
                write!(f, "ICMP type {kind} code {code}")
            }
            (None, L4Header::Icmp { kind, code }) if self.protocol == ICMPV6 => {
                write!(f, "ICMPv6 type {kind} code {code}")
            }
            (None, _) => write!(f, "protocol {}", self.protocol),
        }
    }
}
