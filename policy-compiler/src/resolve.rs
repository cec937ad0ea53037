//! Which policies speak for a local endpoint, and what they ask of the two ends of a packet.
//!
//! A *list* is the policies that select an endpoint at one [`Stage`] and in one direction, tier by tier, with what happens
//! where no rule decides: [`Steps`] in the order in which they are judged. All that a list asks of an address is a
//! [`Predicate`] or, where the answer is a set of ports, a [`PortSet`]. Lists are interned: endpoints that the same policies
//! select share one. Resolution looks at no address, of the local end or of a peer; see [`compile`](crate::compile).

mod differing;
mod kept;
mod ordered;
mod resolver;
mod revision;
mod vocabulary;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::ops::Range;
use std::sync::{Arc, OnceLock, Weak};

use ipnet::IpNet;

use crate::few::SmallList;
use crate::model::{
    Decision, Direction, Family, Hook, IcmpMatch, Noted, ObjectName, PolicyName, Protocol,
};
use crate::selector::Selector;

pub(crate) use differing::StepIndex;
pub(crate) use kept::ResolveCache;
pub(crate) use ordered::PolicyOrder;
pub(crate) use resolver::resolve;
pub(crate) use vocabulary::Vocabulary;

/// Where on a packet's way an endpoint's policies are asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Stage {
    /// At a pod.
    Pod,
    /// At a host endpoint, traffic of the host's own processes.
    Host,
    /// At a host endpoint, forwarded traffic.
    Forward,
    /// At a host endpoint, before destination NAT.
    PreDnat,
    /// At a host endpoint, before connection tracking.
    Untracked,
}

impl Stage {
    /// Those of a host endpoint, in the order in which a packet that arrives meets them.
    pub const OF_HOST: [Self; 4] = [Self::Untracked, Self::PreDnat, Self::Forward, Self::Host];

    fn includes(self, hook: Hook, direction: Direction) -> bool {
        match self {
            Self::Pod | Self::Host => matches!(hook, Hook::Endpoint | Hook::Forward),
            Self::Forward => hook == Hook::Forward,
            Self::PreDnat => hook == Hook::PreDnat && direction == Direction::Ingress,
            Self::Untracked => hook == Hook::Untracked,
        }
    }

    /// Whether a tier's default action ends the search (Calico: not before connection tracking and NAT).
    fn ends_tiers(self) -> bool {
        matches!(self, Self::Pod | Self::Host | Self::Forward)
    }

    /// Whether Calico's failsafe ports come first.
    fn failsafe(self) -> bool {
        matches!(self, Self::Host | Self::PreDnat | Self::Untracked)
    }
}

/// Something that is true or false of an address.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Predicate {
    /// It is of this family.
    Family(Family),
    /// Some member that has it matches.
    Members(Selector),
    /// It is in one of these.
    Nets(BTreeSet<IpNet>),
    /// It is an endpoint of the service.
    Service(ObjectName),
    /// Some member that has it matches (without a selector: whichever) and gives a port name this number.
    NamesPort {
        /// Which members.
        selector: Option<Selector>,
        /// The name.
        name: String,
        /// The protocol.
        protocol: Protocol,
        /// The number.
        port: u16,
    },
    /// It is an endpoint of the service with this port.
    ServicePort {
        /// The service.
        service: ObjectName,
        /// The protocol.
        protocol: Protocol,
        /// The number.
        port: u16,
    },
}

impl fmt::Display for Predicate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Family(Family::V4) => f.write_str("IPv4"),
            Self::Family(Family::V6) => f.write_str("IPv6"),
            Self::Members(selector) => write!(f, "members {selector}"),
            Self::Nets(nets) => {
                let nets: Vec<String> = nets.iter().map(ToString::to_string).collect();
                write!(f, "in {}", nets.join(", "))
            }
            Self::Service(service) => write!(f, "endpoints of service {service}"),
            Self::NamesPort { selector: None, name, protocol, port } => {
                write!(f, "members whose {name} is {protocol} {port}")
            }
            Self::NamesPort { selector: Some(selector), name, protocol, port } => {
                write!(f, "members {selector} whose {name} is {protocol} {port}")
            }
            Self::ServicePort { service, protocol, port } => {
                write!(f, "endpoints of service {service} with {protocol} {port}")
            }
        }
    }
}

/// Index of a predicate; the two families are the first.
pub type PredicateId = u32;

/// What is asked of an address whose answer is a set of protocols and ports.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PortSet {
    /// Which numbers do the members that match give this name?
    Named {
        /// Which members; `None` is whichever.
        selector: Option<Selector>,
        /// The name.
        name: String,
    },
    /// Which ports has the address as an endpoint of this service?
    Service(ObjectName),
}

/// Index of a question.
pub type PortSetId = u32;

/// Ports as a rule names them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Ports {
    /// Both ends included.
    Range(u16, u16),
    /// Those that answer a question about the end's address.
    Set(PortSetId),
}

/// An [`Entity`](crate::model::Entity) as predicates: all of `wanted` hold, none of `unwanted`, and the port, where `ports` is not empty, is one
/// of these.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct ResolvedEntity {
    /// True of the address.
    pub wanted: SmallList<PredicateId>,
    /// False of it.
    pub unwanted: SmallList<PredicateId>,
    /// The end's port is one of these; `None` is every packet.
    pub ports: Option<SmallList<Ports>>,
}

/// A [`RuleEnd`](crate::model::RuleEnd) as predicates.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ResolvedEnd {
    /// Any of these.
    pub entities: SmallList<ResolvedEntity>,
    /// The end's port is none of these.
    pub not_ports: SmallList<Ports>,
}

/// A rule as predicates.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ResolvedRule {
    /// See [`Rule::protocol`](crate::model::Rule::protocol).
    pub protocol: Option<u8>,
    /// See [`Rule::not_protocol`](crate::model::Rule::not_protocol).
    pub not_protocol: Option<u8>,
    /// See [`Rule::icmp`](crate::model::Rule::icmp).
    pub icmp: Option<IcmpMatch>,
    /// See [`Rule::not_icmp`](crate::model::Rule::not_icmp).
    pub not_icmp: Option<IcmpMatch>,
    /// The families that it can match; entities narrow them by predicates.
    pub families: [bool; 2],
    /// The local end.
    pub local: ResolvedEnd,
    /// The peer.
    pub peer: ResolvedEnd,
}

/// What a rule that matches does.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// Ends the search.
    Decide(Arc<Decision>),
    /// Goes on behind the tier.
    Pass(Arc<Noted>),
    /// Goes on with the next rule.
    Log(Arc<Noted>),
    /// Goes on with the next rule; of one staged policy only the first that matches is noted, besides those before it that log.
    /// Behind its rules one may stand that matches every packet: what the end of its tier would do.
    Staged(Arc<Noted>),
}

/// A rule of a list.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Step {
    /// Index of its tier in [`Steps::ends`].
    pub tier: u32,
    /// When it matches.
    pub rule: Arc<ResolvedRule>,
    /// What it does then.
    pub outcome: Outcome,
}

/// The rules of a list in order.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct Steps {
    /// The rules, ascending by tier.
    pub steps: Vec<Step>,
    /// For each tier what happens behind its last rule: a decision, or `None`: the next tier. The last is a decision.
    pub ends: Vec<Option<Arc<Decision>>>,
}

impl Steps {
    /// Where the first decision stands, given the indexes of the rules that match, ascending; rules noted on the way are
    /// handed to `note`. `None` for steps that do not end in a decision, which are never made.
    pub fn walk<'s>(
        &'s self,
        matching: impl IntoIterator<Item = usize>,
        mut note: impl FnMut(&'s Noted),
    ) -> Option<Decided> {
        let mut tier = 0;
        let mut staged: Option<&Arc<PolicyName>> = None;
        for index in matching {
            let Some(step) = self.steps.get(index) else { continue };
            if step.tier < tier {
                continue;
            }
            if let Some(end) = self.end(tier, step.tier) {
                return Some(end);
            }
            tier = step.tier;
            match &step.outcome {
                Outcome::Decide(_) => return Some(Decided::Step(index)),
                Outcome::Pass(noted) => {
                    note(noted);
                    tier += 1;
                }
                // Behind the rule that matches a staged policy says no more.
                Outcome::Log(noted) | Outcome::Staged(noted) if staged == Some(noted.policy()) => {}
                Outcome::Log(noted) => note(noted),
                Outcome::Staged(noted) => {
                    staged = Some(noted.policy());
                    note(noted);
                }
            }
        }
        self.end(tier, self.ends.len() as u32)
    }

    /// The first decision at the ends of the tiers from `tier` up to, but not with, `to`.
    fn end(&self, tier: u32, to: u32) -> Option<Decided> {
        let ends = self.ends.get(tier as usize..to as usize)?;
        let at = ends.iter().position(Option::is_some)?;
        Some(Decided::End(tier as usize + at))
    }

    /// The decision that stands there, with nothing noted.
    pub fn decision(&self, decided: Decided) -> Option<&Arc<Decision>> {
        match decided {
            Decided::Step(index) => match &self.steps.get(index)?.outcome {
                Outcome::Decide(decision) => Some(decision),
                Outcome::Pass(_) | Outcome::Log(_) | Outcome::Staged(_) => None,
            },
            Decided::End(tier) => self.ends.get(tier)?.as_ref(),
        }
    }
}

/// Where a decision stands in [`Steps`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decided {
    /// At the step of this index.
    Step(usize),
    /// At the end of the tier of this index.
    End(usize),
}

/// What decides for one endpoint, stage and direction.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct List {
    /// The stage.
    pub stage: Stage,
    /// The direction.
    pub direction: Direction,
    /// The policies that select the endpoint, in order, the staged ones among them.
    pub policies: Vec<Arc<PolicyName>>,
    /// The profiles behind them.
    pub profiles: Vec<String>,
    /// The host endpoint, if it is not valid: its policies are then those that it may have, and their rules are not asked.
    pub broken_host: Option<String>,
}

/// What rules ask of one end of a packet, ascending.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Terms {
    /// What is true of it.
    pub predicates: Vec<PredicateId>,
    /// Which ports it names so.
    pub port_sets: Vec<PortSetId>,
}

/// A list, its rules, and what they ask.
#[derive(Debug, Clone)]
pub struct ResolvedList {
    /// What it is.
    pub list: Arc<List>,
    /// Its rules.
    pub steps: Arc<Steps>,
    /// What they ask of the local end.
    pub local: Terms,
    /// What they ask of the peer.
    pub peer: Terms,
    /// A hash of all that its policies say but their rules.
    pub(crate) context_hash: u64,
    /// Made when first needed.
    pub(crate) revision: OnceLock<u64>,
    /// The rules of each of its policies, in order; other lists of the same policies share them. What else it says is in `around`.
    pub(crate) policy_rules: Vec<Arc<kept::PolicyRules>>,
    /// Where they stand among `steps`.
    pub(crate) policy_steps: Range<usize>,
    /// The names of the policies' tiers.
    pub(crate) tiers: Vec<String>,
    /// The list in whose place it came.
    pub(crate) predecessor: Weak<ResolvedList>,
    /// Made when first needed.
    pub(crate) index: OnceLock<StepIndex>,
}

/// A local endpoint: a pod, or, without a namespace, a host endpoint.
pub type LocalName = ObjectName;

/// Something of an endpoint's for each stage and direction.
pub type Lists<T> = BTreeMap<(Stage, Direction), T>;

/// What a set of local endpoints needs of the policies.
#[derive(Debug, Clone, Default)]
pub struct Resolved {
    /// For each local endpoint that the model has, in order, the index of its list for each stage and direction.
    pub endpoints: Vec<(Arc<LocalName>, Lists<usize>)>,
    /// The distinct lists, in order of first use.
    pub lists: Vec<Arc<ResolvedList>>,
}
