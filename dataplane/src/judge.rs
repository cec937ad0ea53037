//! Policy's part of a decision: a pure function of the tables, the two ends and what is asked for.

use std::net::IpAddr;

use manx_policy_compiler::image::{ChainId, Identity};
use manx_policy_compiler::model::{Direction, Transport, Verdict};

use crate::fate::DropReason;
use crate::flow::RuleCounters;
use crate::tables::{Tables, Via};

/// No rule was asked.
pub const NO_SLOT: u32 = u32::MAX;

/// The two ends of a flow in its original direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ends {
    /// The initiator's address.
    pub source: IpAddr,
    /// The responder's address.
    pub destination: IpAddr,
    /// Where the source is.
    pub from: Via,
    /// Where the destination is.
    pub to: Via,
}

/// What a verdict rests on; a flow keeps it, and while all of it is as it was, so is the verdict.
pub use crate::flow::RestsOn as Grounds;

/// A verdict and the counter slots of what gave it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub struct Judgement {
    /// `None`: allowed.
    pub denied: Option<DropReason>,
    /// Slots of what decided at the source's egress and the destination's ingress ([`NO_SLOT`]: nothing was asked).
    pub rules: RuleCounters,
}

impl Judgement {
    /// No rule was asked.
    pub const fn without_rules(denied: Option<DropReason>) -> Self {
        Self { denied, rules: RuleCounters { egress: NO_SLOT, ingress: NO_SLOT } }
    }
}

/// What a verdict on `ends` would rest on now.
#[inline]
pub fn grounds(tables: &Tables, ends: &Ends) -> Grounds {
    let revision = |via| match via {
        Via::Endpoint(index) => tables.endpoint(index).map_or(0, |endpoint| endpoint.revision),
        Via::Node | Via::Host | Via::Tunnel(_) => tables.host_policy.revision,
        Via::NoRoute | Via::Unreachable => 0,
    };
    Grounds {
        source_identity: tables.image.identity(ends.source).0,
        destination_identity: tables.image.identity(ends.destination).0,
        source_revision: revision(ends.from),
        destination_revision: revision(ends.to),
    }
}

/// Judges a flow in its original direction, asking everybody on its way: egress of a local source, the node's interface where
/// it leaves, the node's interface where it arrives, ingress of a local destination.
///
/// Two exceptions, both Kubernetes': a pod can always reach itself, and a node can always reach its own pods.
pub fn judge(tables: &Tables, ends: &Ends, grounds: &Grounds, transport: Transport) -> Judgement {
    if matches!(ends.from, Via::Endpoint(_)) && ends.from == ends.to {
        return Judgement::without_rules(None);
    }
    let mut asked = Asked { tables, grounds, transport, judgement: Judgement::without_rules(None) };
    let pod = |via| match via {
        Via::Endpoint(index) => Some(tables.endpoint(index)),
        _ => None,
    };
    let interface = |via, direction| {
        let chains = match via {
            Via::Host => tables.host_policy.native,
            Via::Tunnel(_) => tables.host_policy.tunnelled,
            Via::Endpoint(_) | Via::Node | Via::NoRoute | Via::Unreachable => None,
        };
        chains.map(|chains: [ChainId; 2]| chains[direction as usize])
    };
    if let Some(source) = pod(ends.from) {
        let Some(source) = source else { return asked.refused(DropReason::NoTables) };
        let leaves = interface(ends.to, Direction::Egress);
        for chain in [Some(source.egress), leaves].into_iter().flatten() {
            if asked.denies(chain, Direction::Egress) {
                return asked.refused(DropReason::PolicyEgress);
            }
        }
        if ends.to == Via::Node && tables.host_policy.drops_to_node {
            return asked.refused(DropReason::EndpointToHost);
        }
    }
    if let (Some(destination), false) = (pod(ends.to), ends.from == Via::Node) {
        let Some(destination) = destination else { return asked.refused(DropReason::NoTables) };
        let arrives = interface(ends.from, Direction::Ingress);
        for chain in [arrives, Some(destination.ingress)].into_iter().flatten() {
            if asked.denies(chain, Direction::Ingress) {
                return asked.refused(DropReason::PolicyIngress);
            }
        }
    }
    asked.judgement
}

/// A flow on its way past everybody who is asked about it.
struct Asked<'a> {
    tables: &'a Tables,
    grounds: &'a Grounds,
    transport: Transport,
    judgement: Judgement,
}

impl Asked<'_> {
    /// Whether a chain denies the flow. What it decided by is kept; of an interface and a pod in one direction the one that
    /// was asked last.
    fn denies(&mut self, chain: ChainId, direction: Direction) -> bool {
        let source = Identity(self.grounds.source_identity);
        let destination = Identity(self.grounds.destination_identity);
        let (own, peer, slot) = match direction {
            Direction::Egress => (source, destination, &mut self.judgement.rules.egress),
            Direction::Ingress => (destination, source, &mut self.judgement.rules.ingress),
        };
        let image = &self.tables.image;
        let path = image.path(image.classify(chain, own, peer, self.transport));
        *slot = path.slot;
        path.verdict == Verdict::Deny
    }

    fn refused(self, reason: DropReason) -> Judgement {
        Judgement { denied: Some(reason), ..self.judgement }
    }
}
