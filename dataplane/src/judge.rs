//! Policy's part of a decision: a pure function of the tables, the two ends and what is asked for.

use manx_policy_compiler::image::{self, ChainId, Identity, Image};
use manx_policy_compiler::model::{Direction, Transport, Verdict};

use crate::fate::DropReason;
use crate::flow::RuleCounters;
use crate::tables::{Tables, Via};

/// No rule was asked.
pub const NO_SLOT: u32 = u32::MAX;

/// The two ends of a flow in its original direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ends {
    /// Where the source is.
    pub from: Via,
    /// Where the destination is.
    pub to: Via,
    /// What policy can ask of the source and of the destination.
    pub identities: [Identity; 2],
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

    const fn refused(self, reason: DropReason) -> Self {
        Self { denied: Some(reason), ..self }
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
    let [source, destination] = ends.identities;
    Grounds {
        source_identity: source.0,
        destination_identity: destination.0,
        source_revision: revision(ends.from),
        destination_revision: revision(ends.to),
    }
}

/// What the node's interfaces have said of a packet before connection tracking.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Untracked {
    /// It is allowed where it arrives: no other policy of that interface is asked.
    pub arrives: bool,
    /// Likewise where it leaves.
    pub leaves: bool,
    /// The slots of what allowed it.
    pub rules: RuleCounters,
}

impl Untracked {
    /// Nothing was said.
    pub const NONE: Self =
        Self { arrives: false, leaves: false, rules: Judgement::without_rules(None).rules };

    /// Whether the packet goes without connection tracking.
    pub const fn allows(&self) -> bool {
        self.arrives || self.leaves
    }
}

/// Asks the interfaces that a packet, of whichever direction of its flow, passes before connection tracking (`doNotTrack`).
#[inline]
pub fn untracked(
    tables: &Tables,
    ends: &Ends,
    transport: Transport,
) -> Result<Untracked, Judgement> {
    let judgement = Judgement::without_rules(None);
    let mut asked = Asked { tables, identities: ends.identities, transport, judgement };
    let chain = |via, direction| tables.host_policy.untracked(via, direction);
    let mut at = |chain: Option<ChainId>, direction, reason| match chain {
        Some(chain) => match asked.decides(chain, direction) {
            Some(Verdict::Deny) => Err(asked.judgement.refused(reason)),
            decided => Ok(decided.is_some()),
        },
        None => Ok(false),
    };
    let arrives =
        at(chain(ends.from, Direction::Ingress), Direction::Ingress, DropReason::PolicyIngress)?;
    let leaves =
        at(chain(ends.to, Direction::Egress), Direction::Egress, DropReason::PolicyEgress)?;
    Ok(Untracked { arrives, leaves, rules: asked.judgement.rules })
}

/// Judges a flow in its original direction, asking everybody on its way: egress of a local source, the node's interface where
/// it leaves, the node's interface where it arrives, ingress of a local destination.
///
/// Two exceptions, both Kubernetes': a pod can always reach itself, and a node can always reach its own pods.
#[inline(always)]
#[expect(clippy::inline_always, reason = "who asks holds all of it in registers")]
pub fn judge(
    tables: &Tables,
    ends: &Ends,
    transport: Transport,
    untracked: Untracked,
) -> Judgement {
    if matches!(ends.from, Via::Endpoint(_)) && ends.from == ends.to {
        return Judgement::without_rules(None);
    }
    let judgement = Judgement { denied: None, rules: untracked.rules };
    let mut asked = Asked { tables, identities: ends.identities, transport, judgement };
    if let Via::Endpoint(source) = ends.from {
        let Some(source) = tables.endpoint(source) else {
            return asked.judgement.refused(DropReason::NoTables);
        };
        if asked.denies(source.egress, Direction::Egress) {
            return asked.judgement.refused(DropReason::PolicyEgress);
        }
        if ends.to == Via::Node && tables.host_policy.drops_to_node {
            return asked.judgement.refused(DropReason::EndpointToHost);
        }
    }
    if !untracked.leaves
        && asked.interface_denies(ends.to, Direction::Egress, ends.from == Via::Node)
    {
        return asked.judgement.refused(DropReason::PolicyEgress);
    }
    let ingress = match ends.to {
        // A node can always reach its own pods.
        Via::Endpoint(_) if ends.from == Via::Node => return asked.judgement,
        Via::Endpoint(destination) => match tables.endpoint(destination) {
            Some(destination) => Some(destination.ingress),
            None => return asked.judgement.refused(DropReason::NoTables),
        },
        Via::Node => None,
        // It has left, or is nowhere.
        Via::Host | Via::Tunnel(_) | Via::NoRoute | Via::Unreachable => return asked.judgement,
    };
    let arrives = !untracked.arrives
        && asked.interface_denies(ends.from, Direction::Ingress, ends.to == Via::Node);
    if arrives || ingress.is_some_and(|chain| asked.denies(chain, Direction::Ingress)) {
        return asked.judgement.refused(DropReason::PolicyIngress);
    }
    asked.judgement
}

/// A flow on its way past everybody who is asked about it.
struct Asked<'a> {
    tables: &'a Tables,
    identities: [Identity; 2],
    transport: Transport,
    judgement: Judgement,
}

impl<'a> Asked<'a> {
    /// Whether the interface behind which `via` is denies the flow in that direction. `local`: it is of the node's own
    /// processes, which is asked about only where the node's own packets come by.
    fn interface_denies(&mut self, via: Via, direction: Direction, local: bool) -> bool {
        let Some(chains) = self.tables.host_policy.interface(via) else { return false };
        let at = direction as usize;
        let Some(owned) = &chains.owned else {
            return !local && self.denies(chains.forward[at], direction);
        };
        // Without destination NAT the original destination is the destination.
        if direction == Direction::Ingress
            && let Some(chain) = owned.pre_dnat
            && let Some(verdict) = self.decides(chain, direction)
        {
            return verdict == Verdict::Deny;
        }
        self.denies(if local { owned.local[at] } else { chains.forward[at] }, direction)
    }

    /// Whether a chain denies the flow. What it decided by is kept; of an interface and a pod in one direction the one that
    /// was asked last.
    fn denies(&mut self, chain: ChainId, direction: Direction) -> bool {
        let path = self.path(chain, direction);
        self.keep(path.slot, direction);
        path.verdict == Verdict::Deny
    }

    /// What a chain whose tiers do not end in a drop decides; `None`: it leaves that to those that come behind it, as it
    /// does with failsafe ports.
    fn decides(&mut self, chain: ChainId, direction: Direction) -> Option<Verdict> {
        let path = self.path(chain, direction);
        if path.passes_on {
            return None;
        }
        self.keep(path.slot, direction);
        Some(path.verdict)
    }

    fn path(&self, chain: ChainId, direction: Direction) -> &'a image::Path {
        let [source, destination] = self.identities;
        let (own, peer) = match direction {
            Direction::Egress => (source, destination),
            Direction::Ingress => (destination, source),
        };
        path(&self.tables.image, chain, own, peer, self.transport)
    }

    fn keep(&mut self, slot: u32, direction: Direction) {
        match direction {
            Direction::Egress => self.judgement.rules.egress = slot,
            Direction::Ingress => self.judgement.rules.ingress = slot,
        }
    }
}

/// Not inlined: who asks need not have what he knows in memory.
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
