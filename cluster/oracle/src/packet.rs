//! The parts of a packet that policy depends on, apart from its addresses.

use std::fmt;

const TCP: u8 = 6;
const UDP: u8 = 17;
const SCTP: u8 = 132;
const ICMP: u8 = 1;
const ICMPV6: u8 = 58;

/// A packet's protocol and L4 header.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Packet {
    /// IANA's number of the protocol.
    pub protocol: u8,
    /// The L4 header. A header that does not fit the protocol counts as absent.
    pub l4: L4Header,
}

/// The part of a packet's L4 header that policy depends on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum L4Header {
    /// Neither ports nor an ICMP type: another protocol, or a fragment that is not the first.
    Nothing,
    /// The ports of TCP, UDP or SCTP.
    Ports { source: u16, destination: u16 },
    /// Type and code of ICMP or `ICMPv6`.
    Icmp { kind: u8, code: u8 },
}

impl Packet {
    /// A source port that rules rarely name: the first of the ephemeral ports (RFC 6335).
    pub const EPHEMERAL: u16 = 49152;

    /// Returns a packet to a port from an ephemeral port. If no port is given, the packet has no L4 header.
    pub const fn to_port(protocol: u8, port: Option<u16>) -> Self {
        let l4 = match port {
            Some(destination) => L4Header::Ports { source: Self::EPHEMERAL, destination },
            None => L4Header::Nothing,
        };
        Self { protocol, l4 }
    }

    /// Returns a packet without an L4 header that policy can read.
    pub const fn bare(protocol: u8) -> Self {
        Self { protocol, l4: L4Header::Nothing }
    }

    /// Returns an echo request of ICMP or of `ICMPv6`.
    pub const fn echo(v4: bool) -> Self {
        if v4 { Self::icmp(ICMP, 8, 0) } else { Self::icmp(ICMPV6, 128, 0) }
    }

    /// Returns a packet of ICMP or `ICMPv6`.
    pub const fn icmp(protocol: u8, kind: u8, code: u8) -> Self {
        Self { protocol, l4: L4Header::Icmp { kind, code } }
    }

    /// Returns the source and the destination port, if the protocol has ports in policy.
    pub(super) const fn ports(self) -> Option<(u16, u16)> {
        match self.l4 {
            L4Header::Ports { source, destination } if has_ports(self.protocol) => {
                Some((source, destination))
            }
            _ => None,
        }
    }

    /// Returns whether this is ICMP in IPv4 or `ICMPv6` in IPv6.
    pub(super) const fn is_icmp(self, v4: bool) -> bool {
        self.protocol == icmp_of(v4)
    }

    /// Returns type and code, if the packet is the ICMP of its address family.
    pub(super) const fn type_and_code(self, v4: bool) -> Option<(u8, u8)> {
        match self.l4 {
            L4Header::Icmp { kind, code } if self.is_icmp(v4) => Some((kind, code)),
            _ => None,
        }
    }
}

/// Returns whether a protocol has ports in policy.
pub(super) const fn has_ports(protocol: u8) -> bool {
    matches!(protocol, TCP | UDP | SCTP)
}

/// Returns whether a rule for this protocol can match a packet of the family. ICMP exists only in IPv4, and `ICMPv6`
/// only in IPv6.
pub(super) const fn is_of_family(protocol: u8, v4: bool) -> bool {
    match protocol {
        ICMP => v4,
        ICMPV6 => !v4,
        _ => true,
    }
}

const fn icmp_of(v4: bool) -> u8 {
    if v4 { ICMP } else { ICMPV6 }
}

impl fmt::Display for Packet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match self.protocol {
            TCP => "TCP".to_owned(),
            UDP => "UDP".to_owned(),
            SCTP => "SCTP".to_owned(),
            ICMP => "ICMP".to_owned(),
            ICMPV6 => "ICMPv6".to_owned(),
            other => format!("protocol {other}"),
        };
        match self.l4 {
            L4Header::Ports { source, destination } => {
                write!(f, "{name} from port {source} to port {destination}")
            }
            L4Header::Icmp { kind, code } => write!(f, "{name} type {kind} code {code}"),
            L4Header::Nothing if has_ports(self.protocol) => write!(f, "{name} without ports"),
            L4Header::Nothing => f.write_str(&name),
        }
    }
}
