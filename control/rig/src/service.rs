//! What is probed: a protocol and a port, or an echo.

use manx_policy_compiler::model::{ICMP, ICMPV6, Protocol, Transport};

/// A source port in the ephemeral range.
const SOME_SOURCE_PORT: u16 = 49_152;
use serde::{Deserialize, Serialize};

use super::plan::Port;

/// The kind of a probe.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Service {
    /// A connection or datagram to a port.
    Port(Port),
    /// ICMP or ICMPv6 echo.
    Echo,
}

impl Service {
    /// What a probe shows; its source port does not matter.
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

impl std::fmt::Display for Port {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {}", self.protocol, self.number)
    }
}

/// A [`Protocol`] in JSON: its name.
pub mod protocol_name {
    use super::Protocol;
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    /// Writes the name.
    pub fn serialize<S: Serializer>(protocol: &Protocol, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(protocol.name())
    }

    /// Reads the name.
    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Protocol, D::Error> {
        let name = String::deserialize(from)?;
        Protocol::ALL
            .into_iter()
            .find(|protocol| protocol.name() == name)
            .ok_or_else(|| D::Error::custom(format!("{name:?} is not TCP, UDP or SCTP")))
    }
}
