//! Policy's part of a decision: a pure function of the tables, the two ends and what is asked for.

use std::net::IpAddr;

use manx_policy_compiler::image::{ChainId, Identity};
use manx_policy_compiler::model::{Transport, Verdict};

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
        Via::NoRoute | Via::Unreachable | Via::Node | Via::Host | Via::Tunnel(_) => 0,
    };
    Grounds {
        source_identity: tables.image.identity(ends.source).0,
        destination_identity: tables.image.identity(ends.destination).0,
        source_revision: revision(ends.from),
        destination_revision: revision(ends.to),
    }
}

/// Judges a flow in its original direction: egress of a local source, then ingress of a local destination.
///
/// Two exceptions, both Kubernetes': a pod can always reach itself, and a node can always reach its own pods.
pub fn judge(tables: &Tables, ends: &Ends, grounds: &Grounds, transport: Transport) -> Judgement {
    let mut judgement = Judgement::without_rules(None);
    if matches!(ends.from, Via::Endpoint(_)) && ends.from == ends.to {
        return judgement;
    }
    let ask = |chain: ChainId, own: u32, peer: u32| {
        let (own, peer) = (Identity(own), Identity(peer));
        let path = tables.image.path(tables.image.classify(chain, own, peer, transport));
        (path.verdict == Verdict::Deny, path.slot)
    };
    if let Via::Endpoint(index) = ends.from {
        let Some(source) = tables.endpoint(index) else {
            return Judgement { denied: Some(DropReason::NoTables), ..judgement };
        };
        let (deny, slot) =
            ask(source.egress, grounds.source_identity, grounds.destination_identity);
        judgement.rules.egress = slot;
        if deny {
            return Judgement { denied: Some(DropReason::PolicyEgress), ..judgement };
        }
    }
    if let (Via::Endpoint(index), false) = (ends.to, ends.from == Via::Node) {
        let Some(destination) = tables.endpoint(index) else {
            return Judgement { denied: Some(DropReason::NoTables), ..judgement };
        };
        let (deny, slot) =
            ask(destination.ingress, grounds.destination_identity, grounds.source_identity);
        judgement.rules.ingress = slot;
        if deny {
            return Judgement { denied: Some(DropReason::PolicyIngress), ..judgement };
        }
    }
    judgement
}
