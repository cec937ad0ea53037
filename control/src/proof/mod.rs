//! Proves compiled tables equal to the oracle, which reads the objects themselves.
//!
//! Between objects and tables stand the import, the resolution and the compiler; the oracle shares no code with any of
//! them. What is asked: for each endpoint, direction and address of its own, every peer and every packet at either side of
//! every boundary that the oracle or the tables draw, fragments that show no ports among them, in both families. What is
//! compared: the verdict, what decides, the Pass and Log rules on the way there, and what staged policies would have done.
//! Not compared: what is decided outside of the tables (that a node always reaches its own pods, and a pod itself).
//!
//! Equal questions are asked once: equal to the oracle by what its rules look at ([`crate::oracle::AddressClass`]), and looked up
//! by the tables in the same row.

mod judge;
pub mod node;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::fmt;
use std::net::IpAddr;

use manx_policy_compiler::image::Image;
use manx_policy_compiler::model::{Direction, Protocol, Shown, Verdict};
use manx_policy_compiler::prove::{Counterexample, Expected, prove_by};
use manx_policy_compiler::resolve::{LocalName, Stage};
use serde::{Deserialize, Serialize};

use self::judge::{ByObjects, packet, side};
use crate::oracle::explain::SideTrace;
use crate::oracle::{Oracle, Party};

pub use manx_policy_compiler::prove::{Depth, Proof};

/// A packet about which tables and objects disagree.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Refutation {
    /// The endpoint whose tables are wrong.
    pub endpoint: String,
    /// At a host endpoint the place on the packet's way.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stage: Option<String>,
    /// The direction, `ingress` or `egress`.
    pub direction: String,
    /// The source address.
    pub from: IpAddr,
    /// The destination address.
    pub to: IpAddr,
    /// Who has the peer's address.
    pub peer: Vec<String>,
    /// IP protocol number.
    pub protocol: u8,
    /// Source and destination port, if it shows them.
    pub ports: Option<(u16, u16)>,
    /// ICMP type and code, if it shows them.
    pub icmp: Option<(u8, u8)>,
    /// A later fragment: of a protocol with ports, and without them.
    pub fragment: bool,
    /// The packet in words.
    pub packet: String,
    /// What the tables say.
    pub tables: Judged,
    /// What the objects say.
    pub objects: Judged,
    /// How the objects come to it, at a pod.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub steps: Option<SideTrace>,
}

/// A verdict and what it comes from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Judged {
    /// Whether it passes.
    pub allowed: bool,
    /// Why.
    pub why: String,
}

/// Compares the tables of these endpoints, pods and host endpoints, with what the oracle says of them. At
/// [`Depth::Every`] equal questions are asked again. `progress` is told how many of how many ends are done.
pub fn prove(
    oracle: &Oracle,
    local: &BTreeSet<LocalName>,
    image: &Image,
    depth: Depth,
    progress: impl FnMut(usize, usize),
) -> Result<Proof, Box<Refutation>> {
    let judge = ByObjects::new(oracle, depth);
    prove_by(&judge, local, image, depth, progress)
        .map_err(|found| Box::new(Refutation::new(oracle, &found)))
}

impl Refutation {
    fn new(oracle: &Oracle, found: &Counterexample) -> Self {
        let Counterexample { endpoint, stage, direction, local, peer, transport, .. } = found;
        let (from, to) = match direction {
            Direction::Ingress => (*peer, *local),
            Direction::Egress => (*local, *peer),
        };
        let holders = oracle.pods().filter(|pod| pod.address() == *peer);
        let asked = packet(*transport);
        let pod = Party::Pod {
            namespace: endpoint.namespace.clone(),
            name: endpoint.name.clone(),
            address: *local,
        };
        let steps = (*stage == Stage::Pod)
            .then(|| oracle.explain_side(side(*direction), &pod, &Party::Address(*peer), asked));
        let answer = |expected: &Expected| Judged {
            allowed: expected.verdict() == Some(Verdict::Allow),
            why: match expected.verdict() {
                Some(_) => expected.to_string(),
                None => "nothing that tables could say".to_owned(),
            },
        };
        let has_ports = Protocol::from_number(transport.protocol).is_some();
        Self {
            endpoint: endpoint.to_string(),
            stage: (*stage != Stage::Pod).then(|| format!("{stage:?}").to_lowercase()),
            direction: direction.to_string(),
            from,
            to,
            peer: holders.map(|pod| pod.to_string()).collect(),
            protocol: transport.protocol,
            ports: match transport.shown {
                Shown::Ports { source, destination } => Some((source, destination)),
                Shown::Nothing | Shown::Icmp { .. } => None,
            },
            icmp: match transport.shown {
                Shown::Icmp { kind, code } => Some((kind, code)),
                Shown::Nothing | Shown::Ports { .. } => None,
            },
            fragment: has_ports && transport.shown == Shown::Nothing,
            packet: asked.to_string(),
            tables: Judged { allowed: found.verdict == Verdict::Allow, ..answer(&found.found) },
            objects: answer(&found.expected),
            steps,
        }
    }
}

impl fmt::Display for Refutation {
    /// The packet in a line, then what either side says, then how the objects come to it.
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
