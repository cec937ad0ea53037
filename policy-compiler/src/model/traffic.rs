//! What policy looks at in a packet, apart from its two ends.

use std::fmt;

/// The protocol number of a family's ICMP. The other family's ICMP is a protocol like any other, without types and
/// codes.
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
    /// All three.
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

/// ICMP's IP protocol number.
pub const ICMP: u8 = 1;

/// `ICMPv6`'s IP protocol number.
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
    /// Both.
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
    /// Both.
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

/// What a packet shows after its IP header.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Shown {
    /// Nothing that policy looks at: another protocol, or a fragment that is not the first.
    Nothing,
    /// The ports of TCP, UDP or SCTP.
    Ports {
        /// The source port.
        source: u16,
        /// The destination port.
        destination: u16,
    },
    /// Type and code of ICMP or `ICMPv6`.
    Icmp {
        /// The type.
        kind: u8,
        /// The code.
        code: u8,
    },
}

/// Protocol and what the packet shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Transport {
    /// IP protocol number.
    pub protocol: u8,
    /// Ports, or type and code. If they do not fit the protocol, they count as [`Shown::Nothing`].
    pub shown: Shown,
}

impl Transport {
    /// A packet that shows its ports.
    pub const fn ports(protocol: Protocol, source: u16, destination: u16) -> Self {
        Self { protocol: protocol.number(), shown: Shown::Ports { source, destination } }
    }

    /// A packet that shows nothing.
    pub const fn bare(protocol: u8) -> Self {
        Self { protocol, shown: Shown::Nothing }
    }

    /// The destination port, if the packet shows one.
    pub const fn destination_port(&self) -> Option<u16> {
        match self.shown {
            Shown::Ports { destination, .. } => Some(destination),
            Shown::Nothing | Shown::Icmp { .. } => None,
        }
    }

    /// An ICMP or `ICMPv6` packet.
    pub const fn icmp(protocol: u8, kind: u8, code: u8) -> Self {
        Self { protocol, shown: Shown::Icmp { kind, code } }
    }
}

impl fmt::Display for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (Protocol::from_number(self.protocol), self.shown) {
            (Some(protocol), Shown::Ports { source, destination }) => {
                write!(f, "{protocol} {source} -> {destination}")
            }
            (Some(protocol), _) => write!(f, "{protocol} without ports"),
            (None, Shown::Icmp { kind, code }) if self.protocol == ICMP => {
                write!(f, "ICMP type {kind} code {code}")
            }
            (None, Shown::Icmp { kind, code }) if self.protocol == ICMPV6 => {
                write!(f, "ICMPv6 type {kind} code {code}")
            }
            (None, _) => write!(f, "protocol {}", self.protocol),
        }
    }
}
