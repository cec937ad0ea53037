//! The result of the proof of tables, if the tables are wrong.

use std::fmt;
use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use crate::trace::SideTrace;

/// A packet about which tables and objects disagree.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Refutation {
    /// The endpoint whose tables are wrong.
    pub endpoint: String,
    /// For a host endpoint, the place on the packet's path.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stage: Option<String>,
    /// The direction, `ingress` or `egress`.
    pub direction: String,
    /// The source address.
    pub from: IpAddr,
    /// The destination address.
    pub to: IpAddr,
    /// The pods that have the peer's address.
    pub peer: Vec<String>,
    /// IP protocol number.
    pub protocol: u8,
    /// Source and destination port, if the packet has them.
    pub ports: Option<(u16, u16)>,
    /// ICMP type and code, if the packet has them.
    pub icmp: Option<(u8, u8)>,
    /// Whether the packet is a later fragment: its protocol has ports, but the fragment does not contain them.
    pub fragment: bool,
    /// The packet as text.
    pub packet: String,
    /// The verdict of the tables.
    pub tables: Judged,
    /// The verdict that follows from the objects.
    pub objects: Judged,
    /// The steps to the objects' verdict, if the endpoint is a pod.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub steps: Option<SideTrace>,
}

/// A verdict and its reason.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Judged {
    /// Whether it passes.
    pub allowed: bool,
    /// The reason.
    pub why: String,
}

impl fmt::Display for Refutation {
    /// Writes the packet with its endpoint, then the verdict by the tables and the verdict by the
    /// objects, then the steps to the objects' verdict.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { from, to, packet, endpoint, direction, .. } = self;
        let family = if from.is_ipv4() { "IPv4" } else { "IPv6" };
        let fragment = if self.fragment { " (a later fragment)" } else { "" };
        writeln!(f, "{from} -> {to}, {family}, {packet}{fragment}")?;
        if !self.peer.is_empty() {
            writeln!(f, "  the peer is {}", self.peer.join(" or "))?;
        }
        let stage = self.stage.as_ref().map(|stage| format!(" ({stage})")).unwrap_or_default();
        writeln!(f, "  {direction} of {endpoint}{stage}")?;
        for (who, answer) in [("tables", &self.tables), ("objects", &self.objects)] {
            let verdict = if answer.allowed { "ALLOWED" } else { "DENIED" };
            writeln!(f, "  {who}: {verdict}: {}", answer.why)?;
        }
        self.steps.iter().try_for_each(|steps| steps.write(f, direction))
    }
}
