//! The service to which a probe is sent: a protocol and a port, or an echo.

use manx_policy_compiler::model::{ICMP, ICMPV6, Transport};
use serde::{Deserialize, Serialize};

use crate::plan::port::Port;

/// A source port in the ephemeral range.
const SOME_SOURCE_PORT: u16 = 49_152;

/// The service to which a probe is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Service {
    /// A connection or datagram to a port.
    Port(Port),
    /// ICMP or ICMPv6 echo.
    Echo,
}

impl Service {
    /// The probe's packet as policy sees it. Its source port does not matter.
    pub fn transport(self, v4: bool) -> Transport {
        match self {
            Self::Port(port) => Transport::ports(port.protocol, SOME_SOURCE_PORT, port.number),
            Self::Echo if v4 => Transport::icmp(ICMP, 8, 0),
            Self::Echo => Transport::icmp(ICMPV6, 128, 0),
        }
    }
}

impl std::fmt::Display for Service {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Port(port) => port.fmt(f),
            Self::Echo => f.write_str("ICMP echo"),
        }
    }
}
