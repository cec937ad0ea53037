//! The ports of a rig.

use std::fmt;

use manx_policy_compiler::model::Protocol;
use serde::{Deserialize, Serialize};

/// A port on which a prober listens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Port {
    #[serde(with = "protocol_name")]
    pub protocol: Protocol,
    pub number: u16,
}

/// The ports on which a node and the outside host listen.
pub const HOST_PORTS: [Port; 2] = [
    Port { protocol: Protocol::Tcp, number: 8080 },
    Port { protocol: Protocol::Udp, number: 8080 },
];

/// The port on which a node's agent listens (Calico's port for VXLAN).
pub const VXLAN: Port = Port { protocol: Protocol::Udp, number: 4789 };

impl fmt::Display for Port {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.protocol, self.number)
    }
}

/// A [`Protocol`] in JSON, as its name.
pub mod protocol_name {
    use super::Protocol;
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub fn serialize<S: Serializer>(protocol: &Protocol, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(protocol.name())
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Protocol, D::Error> {
        let name = String::deserialize(from)?;
        Protocol::ALL
            .into_iter()
            .find(|protocol| protocol.name() == name)
            .ok_or_else(|| D::Error::custom(format!("{name:?} is not TCP, UDP or SCTP")))
    }
}
