//! The request to explain a connection, and the explanation.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::trace::Trace;

/// A request: does a connection pass, and why?
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExplainRequest {
    /// The source: `NAMESPACE/POD`, `POD`, `node/NAME` or an address.
    pub from: String,
    /// The destination, in the same form.
    pub to: String,
    /// The packet.
    pub packet: PacketSpec,
    /// The source port.
    pub source_port: u16,
    /// Whether parties with addresses of both families use IPv6.
    pub ipv6: bool,
    /// The name of the nodes' uplink, by which host endpoints find it. If absent, it is the agent's own uplink, or `eth0`.
    pub uplink: Option<String>,
    /// Whether a packet without a route counts as denied. If not, the trace contains the verdict of policy, and the
    /// missing route only as a remark.
    pub routes: bool,
}

/// The reply to an [`ExplainRequest`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Explanation {
    /// The verdict and the steps to it.
    #[serde(flatten)]
    pub story: Trace,
    /// The parties whose address is assumed because the manifests give them none.
    pub assumed: Vec<String>,
    /// The parties in whose place another one is judged. A pod on the host's network is judged as its node, and a
    /// service's port as one of its endpoints.
    pub stand_ins: Vec<String>,
}

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.story.fmt(f)?;
        if !self.stand_ins.is_empty() {
            writeln!(f)?;
        }
        for stand_in in &self.stand_ins {
            writeln!(f, "{stand_in}")?;
        }
        if self.assumed.is_empty() {
            return Ok(());
        }
        writeln!(f, "\nno address in the manifests, assumed: {}", self.assumed.join(", "))
    }
}

/// A packet whose family is not known yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum PacketSpec {
    /// A protocol by number, and the destination port if there is one.
    Protocol(u8, Option<u16>),
    /// ICMP, or `ICMPv6` in IPv6: with this type and code, or an echo request.
    Icmp(Option<(u8, u8)>),
}

impl PacketSpec {
    /// Parses `tcp/80`, `icmp`, `icmp/3/1`, `protocol/47`. A number alone is refused, because it could be meant as a
    /// port.
    pub fn parse(text: &str) -> Result<Self, String> {
        let expected = || {
            format!(
                "{text:?} is no packet: expected tcp/80, udp/53, sctp/9, icmp, icmp/TYPE/CODE or protocol/NUMBER"
            )
        };
        let byte = |text: &str| text.parse::<u8>().map_err(|_| expected());
        let lower = text.to_ascii_lowercase();
        let (name, numbers) = match lower.split_once('/') {
            Some((name, numbers)) => (name, Some(numbers)),
            None => (lower.as_str(), None),
        };
        let number = match (name, numbers) {
            ("tcp", _) => 6,
            ("udp", _) => 17,
            ("sctp", _) => 132,
            ("protocol", Some(number)) => return Ok(Self::Protocol(byte(number)?, None)),
            ("icmp" | "icmpv6", None) => return Ok(Self::Icmp(None)),
            ("icmp" | "icmpv6", Some(numbers)) => {
                let (kind, code) = numbers.split_once('/').unwrap_or((numbers, "0"));
                return Ok(Self::Icmp(Some((byte(kind)?, byte(code)?))));
            }
            _ => return Err(expected()),
        };
        let port = numbers.map(str::parse).transpose().map_err(|_| expected())?;
        Ok(Self::Protocol(number, port))
    }
}
