//! Evaluates policy. This is a pure function of the tables and of the views of a flow.

use manx_policy_compiler::image::{self, ChainId, Identity, Image};
use manx_policy_compiler::model::{Direction, Transport, Verdict};

use crate::drop_reason::DropReason;
use crate::flow::{PolicyStamp, RuleCounters};
use crate::tables::{NextHop, Tables};

/// The counter slot that means that no rule was evaluated.
pub const NO_SLOT: u32 = u32::MAX;

/// The two ends of a flow in its original direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FlowEnds {
    /// The next hop to the source.
    pub from: NextHop,
    /// The next hop to the destination.
    pub to: NextHop,
    /// The identities of the source and of the destination.
    pub identities: [Identity; 2],
}

/// A flow as a policy sees it, in its original direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PolicyView {
    /// Its ends.
    pub ends: FlowEnds,
    /// Its protocol and ports.
    pub transport: Transport,
}

/// A flow before and after the translation of its destination. Policy before destination NAT sees the original flow,
/// and all other policy sees the translated flow (Calico documentation, "Apply policy to services exposed externally as
/// cluster IPs" and "preDNAT"). Policy sees the source as the client sent it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PolicyViews {
    /// The flow as the packet arrived.
    pub original: PolicyView,
    /// The flow after translation.
    pub translated: PolicyView,
}

impl PolicyViews {
    /// The views of a flow that is not translated.
    #[inline]
    pub const fn untranslated(ends: FlowEnds, transport: Transport) -> Self {
        let view = PolicyView { ends, transport };
        Self { original: view, translated: view }
    }
}

/// A verdict and the counter slots of the rules that gave it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub struct PolicyVerdict {
    /// `None` means that the flow is allowed.
    pub denied: Option<DropReason>,
    /// The slots of the rules that decided at the source's egress and the destination's ingress ([`NO_SLOT`]: no rule
    /// was evaluated).
    pub rules: RuleCounters,
}

impl PolicyVerdict {
    /// A verdict for which no rule was evaluated.
    pub const fn without_rules(denied: Option<DropReason>) -> Self {
        Self { denied, rules: RuleCounters { egress: NO_SLOT, ingress: NO_SLOT } }
    }

    const fn deny(self, reason: DropReason) -> Self {
        Self { denied: Some(reason), ..self }
    }
}

/// The policy stamp of a verdict on `ends` according to these tables.
#[inline]
pub fn policy_stamp(tables: &Tables, ends: &FlowEnds) -> PolicyStamp {
    let revision = |next_hop| match next_hop {
        NextHop::Endpoint(index) => tables.endpoint(index).map_or(0, |endpoint| endpoint.revision),
        NextHop::Node
        | NextHop::World
        | NextHop::Forwarded
        | NextHop::Tunnel(_)
        | NextHop::Visitor(_) => tables.host_policy.revision,
        NextHop::Service
        | NextHop::Translated
        | NextHop::ManxPorts
        | NextHop::HostSide(_)
        | NextHop::NoRoute
        | NextHop::Unreachable => 0,
    };
    let [source, destination] = ends.identities;
    PolicyStamp {
        source_identity: source.0,
        destination_identity: destination.0,
        source_revision: revision(ends.from),
        destination_revision: revision(ends.to),
    }
}

/// What untracked policy of the node's interfaces allows for a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UntrackedAllows {
    /// The packet is allowed at the interface by which it enters: no other policy of that interface is evaluated.
    pub ingress: bool,
    /// The same for the interface by which it leaves.
    pub egress: bool,
    /// The slots of the rules that allowed it.
    pub rules: RuleCounters,
}

impl UntrackedAllows {
    /// The value for untracked policy that has allowed nothing.
    pub const NONE: Self =
        Self { ingress: false, egress: false, rules: PolicyVerdict::without_rules(None).rules };

    /// Whether the packet is forwarded without connection tracking.
    pub const fn allows(&self) -> bool {
        self.ingress || self.egress
    }
}

/// Evaluates untracked policy (`doNotTrack`) of the interfaces that a packet passes. The packet may have either
/// direction of its flow.
#[inline]
pub fn evaluate_untracked(
    tables: &Tables,
    ends: &FlowEnds,
    transport: Transport,
) -> Result<UntrackedAllows, PolicyVerdict> {
    let verdict = PolicyVerdict::without_rules(None);
    let views = PolicyViews::untranslated(*ends, transport);
    let mut evaluation = Evaluation { tables, views, verdict };
    let chain = |next_hop, direction| tables.host_policy.untracked(next_hop, direction);
    let mut at = |chain: Option<ChainId>, direction, reason| match chain {
        Some(chain) => match evaluation.decides(&views.original, chain, direction) {
            Some(Verdict::Deny) => Err(evaluation.verdict.deny(reason)),
            decided => Ok(decided.is_some()),
        },
        None => Ok(false),
    };
    let arrives =
        at(chain(ends.from, Direction::Ingress), Direction::Ingress, DropReason::PolicyIngress)?;
    let leaves =
        at(chain(ends.to, Direction::Egress), Direction::Egress, DropReason::PolicyEgress)?;
    Ok(UntrackedAllows { ingress: arrives, egress: leaves, rules: evaluation.verdict.rules })
}

/// Evaluates policy for a flow in its original direction, in this order: egress of a local source, the node's interface
/// where the packet leaves, the node's interface where it arrives, ingress of a local destination.
///
/// Kubernetes requires two exceptions: a pod can always reach itself, and a node can always reach its own pods. Packets
/// that the node only forwards are not its own, even if it has masqueraded them ([`NextHop::Forwarded`]).
#[inline(always)]
#[expect(clippy::inline_always, reason = "the caller holds all of it in registers")]
pub fn evaluate_policy(
    tables: &Tables,
    views: PolicyViews,
    untracked: UntrackedAllows,
) -> PolicyVerdict {
    let ends = &views.translated.ends;
    if matches!(ends.from, NextHop::Endpoint(_)) && ends.from == ends.to {
        return PolicyVerdict::without_rules(None);
    }
    let verdict = PolicyVerdict { denied: None, rules: untracked.rules };
    let mut evaluation = Evaluation { tables, views, verdict };
    if let NextHop::Endpoint(source) = ends.from {
        let Some(source) = tables.endpoint(source) else {
            return evaluation.verdict.deny(DropReason::NoTables);
        };
        if evaluation.denies(source.egress, Direction::Egress) {
            return evaluation.verdict.deny(DropReason::PolicyEgress);
        }
        if ends.to == NextHop::Node && tables.host_policy.drops_to_node {
            return evaluation.verdict.deny(DropReason::EndpointToHost);
        }
    }
    if !untracked.egress
        && evaluation.interface_denies(ends.to, Direction::Egress, ends.from == NextHop::Node)
    {
        return evaluation.verdict.deny(DropReason::PolicyEgress);
    }
    let ingress = match ends.to {
        // A node can always reach its own pods.
        NextHop::Endpoint(_) if ends.from == NextHop::Node => return evaluation.verdict,
        NextHop::Endpoint(destination) => match tables.endpoint(destination) {
            Some(destination) => Some(destination.ingress),
            None => return evaluation.verdict.deny(DropReason::NoTables),
        },
        NextHop::Node => None,
        // The flow leaves the node, or its destination has no route.
        NextHop::World
        | NextHop::Forwarded
        | NextHop::Tunnel(_)
        | NextHop::Visitor(_)
        | NextHop::Service
        | NextHop::Translated
        | NextHop::ManxPorts
        | NextHop::HostSide(_)
        | NextHop::NoRoute
        | NextHop::Unreachable => return evaluation.verdict,
    };
    let arrives = !untracked.ingress
        && evaluation.interface_denies(ends.from, Direction::Ingress, ends.to == NextHop::Node);
    if arrives || ingress.is_some_and(|chain| evaluation.denies(chain, Direction::Ingress)) {
        return evaluation.verdict.deny(DropReason::PolicyIngress);
    }
    evaluation.verdict
}

/// The evaluation of the chains that apply to a flow, and the verdict so far.
struct Evaluation<'a> {
    tables: &'a Tables,
    views: PolicyViews,
    verdict: PolicyVerdict,
}

impl<'a> Evaluation<'a> {
    /// Whether policy of the interface towards `next_hop` denies the flow in that direction. `local` says whether the
    /// other end is a process of the node. Chains for such flows exist only if the node's own packets pass through
    /// Manx.
    #[inline]
    fn interface_denies(&mut self, next_hop: NextHop, direction: Direction, local: bool) -> bool {
        let Some(chains) = self.tables.host_policy.interface(next_hop) else { return false };
        let at = direction as usize;
        let Some(owned) = &chains.owned else {
            return !local && self.denies(chains.forward[at], direction);
        };
        let original = self.views.original;
        if direction == Direction::Ingress
            && let Some(chain) = owned.pre_dnat
            && let Some(verdict) = self.decides(&original, chain, direction)
        {
            return verdict == Verdict::Deny;
        }
        self.denies(if local { owned.local[at] } else { chains.forward[at] }, direction)
    }

    /// Whether a chain denies the flow. Records the slot of its rule. If a chain of an interface and a chain of a pod
    /// are evaluated in one direction, the slot of the last one is recorded.
    fn denies(&mut self, chain: ChainId, direction: Direction) -> bool {
        let path = self.path(&self.views.translated, chain, direction);
        self.record_slot(path.slot, direction);
        path.verdict == Verdict::Deny
    }

    /// The verdict of a chain that need not decide every flow. `None`: the chain leaves the decision to the chains
    /// after it, as it does for failsafe ports.
    fn decides(
        &mut self,
        view: &PolicyView,
        chain: ChainId,
        direction: Direction,
    ) -> Option<Verdict> {
        let path = self.path(view, chain, direction);
        if path.passes_on {
            return None;
        }
        self.record_slot(path.slot, direction);
        Some(path.verdict)
    }

    fn path(&self, view: &PolicyView, chain: ChainId, direction: Direction) -> &'a image::Path {
        let [source, destination] = view.ends.identities;
        let (own, peer) = match direction {
            Direction::Egress => (source, destination),
            Direction::Ingress => (destination, source),
        };
        path(&self.tables.image, chain, own, peer, view.transport)
    }

    fn record_slot(&mut self, slot: u32, direction: Direction) {
        match direction {
            Direction::Egress => self.verdict.rules.egress = slot,
            Direction::Ingress => self.verdict.rules.ingress = slot,
        }
    }
}

/// This is not inlined, so that the caller can keep its values in registers.
#[inline(never)]
fn path(
    image: &Image,
    chain: ChainId,
    own: Identity,
    peer: Identity,
    transport: Transport,
) -> &image::Path {
    image.path(image.classify(chain, own, peer, transport))
}

#[cfg(test)]
mod tests;
