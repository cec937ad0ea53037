//! Policies of every API in one shape.

use std::cmp::Ordering;
use std::collections::BTreeSet;
use std::fmt;
use std::hash::{Hash, Hasher};

use ipnet::IpNet;

use super::name::{ObjectName, PolicyName};
use super::traffic::{Direction, Family, ICMP, ICMPV6};
use crate::selector::Selector;

/// The place of a policy in its tier, or of a tier: lower is earlier. Never NaN.
#[derive(Debug, Clone, Copy)]
pub struct Order(f64);

impl Order {
    /// After every other: what an absent order means.
    pub const LAST: Self = Self(f64::INFINITY);
    /// Of Kubernetes' `NetworkPolicies` in the tier `default`.
    pub const KUBERNETES: Self = Self(1000.0);

    /// `None` for what is no number. Negative zero is zero.
    pub fn new(order: f64) -> Option<Self> {
        (!order.is_nan()).then_some(Self(order + 0.0))
    }
}

impl PartialEq for Order {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Order {}

impl PartialOrd for Order {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Order {
    fn cmp(&self, other: &Self) -> Ordering {
        self.0.total_cmp(&other.0)
    }
}

impl Hash for Order {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.to_bits().hash(state);
    }
}

impl fmt::Display for Order {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 == f64::INFINITY { f.write_str("last") } else { self.0.fmt(f) }
    }
}

/// A group of policies that is judged before the next group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Tier {
    /// Its place; ties go by name.
    pub order: Order,
    /// What happens to a packet that a policy of the tier was asked about and no rule decided.
    pub default_action: DefaultAction,
}

/// The end of a tier. Never Allow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum DefaultAction {
    /// Denied.
    Deny,
    /// On to the next tier.
    Pass,
}

impl Tier {
    /// The tiers that exist without an object of their own, and that no object changes: Kubernetes' cluster-wide policies
    /// come before and after everything else.
    pub const BUILT_IN: [(&'static str, Self); 3] = [
        ("kube-admin", Self { order: Order(1_000.0), default_action: DefaultAction::Pass }),
        ("default", Self { order: Order(1_000_000.0), default_action: DefaultAction::Deny }),
        ("kube-baseline", Self { order: Order(10_000_000.0), default_action: DefaultAction::Pass }),
    ];

    /// Of a tier that policies name and nobody defines.
    pub const MISSING: Self = Self { order: Order::LAST, default_action: DefaultAction::Deny };

    /// The built-in tier of this name.
    pub fn built_in(name: &str) -> Option<Self> {
        Self::BUILT_IN.into_iter().find(|(built_in, _)| *built_in == name).map(|(_, tier)| tier)
    }
}

/// Where on a packet's way a policy speaks. Only policies for host endpoints differ from [`Hook::Endpoint`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Hook {
    /// At a pod; at a host endpoint for traffic of the host's own processes.
    Endpoint,
    /// At a pod; at a host endpoint also for forwarded traffic (`applyOnForward`).
    Forward,
    /// At a host endpoint before destination NAT (`preDNAT`).
    PreDnat,
    /// At a host endpoint before and without connection tracking (`doNotTrack`).
    Untracked,
}

/// A policy.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Policy {
    /// The tier's name.
    pub tier: String,
    /// The place in the tier; ties go by [`PolicyName::sort_key`].
    pub order: Order,
    /// The endpoints that it selects; its namespace, if it has one, is part of the selector.
    pub selector: Selector,
    /// Where it speaks.
    pub hook: Hook,
    /// Ingress rules; `None` where it leaves ingress alone, empty where it makes its tier count and decides nothing itself.
    pub ingress: Option<Vec<Rule>>,
    /// Egress rules, likewise.
    pub egress: Option<Vec<Rule>>,
    /// It could not be imported as it was written, and what it would have allowed or denied is not known: ahead of all
    /// tiers it denies everything of what it selects, in both directions.
    pub broken: bool,
}

impl Policy {
    /// Whether it may deny traffic that a host endpoint which it selects forwards.
    pub fn may_deny_forwarded(&self, direction: Direction) -> bool {
        self.broken || (self.hook != Hook::Endpoint && self.rules(direction).is_some())
    }

    /// The rules of one direction; `None` where the policy does not speak of it. A broken one speaks of both.
    pub fn rules(&self, direction: Direction) -> Option<&[Rule]> {
        if self.broken {
            return Some(&[]);
        }
        match direction {
            Direction::Ingress => self.ingress.as_deref(),
            Direction::Egress => self.egress.as_deref(),
        }
    }
}

/// What a rule does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Action {
    /// Ends the search.
    Allow,
    /// Ends the search.
    Deny,
    /// On to the next tier, after the last to the profiles; in a profile it is Deny.
    Pass,
    /// Noted; on to the next rule.
    Log,
}

/// One rule: everything that is there holds.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Rule {
    /// The index in the object's list of this direction; several rules may come from one.
    pub index: u32,
    /// What it does.
    pub action: Action,
    /// Packets of this family only.
    pub family: Option<Family>,
    /// This IP protocol.
    pub protocol: Option<u8>,
    /// Not this IP protocol.
    pub not_protocol: Option<u8>,
    /// ICMP (`ICMPv6`) of this type, and of this code if there is one.
    pub icmp: Option<IcmpMatch>,
    /// Not ICMP of this type and code.
    pub not_icmp: Option<IcmpMatch>,
    /// The packet's source.
    pub source: RuleEnd,
    /// The packet's destination.
    pub destination: RuleEnd,
}

impl Rule {
    /// A rule that matches every packet.
    pub fn every_packet(index: u32, action: Action) -> Self {
        Self {
            index,
            action,
            family: None,
            protocol: None,
            not_protocol: None,
            icmp: None,
            not_icmp: None,
            source: RuleEnd::default(),
            destination: RuleEnd::default(),
        }
    }

    /// The local end and the peer of a rule of this direction.
    pub fn ends(&self, direction: Direction) -> (&RuleEnd, &RuleEnd) {
        match direction {
            Direction::Ingress => (&self.destination, &self.source),
            Direction::Egress => (&self.source, &self.destination),
        }
    }

    /// The families that it can match. A list of nets, negated or not, without an entry of the packet's family makes the
    /// rule vanish for the family; ICMP is IPv4's, `ICMPv6` IPv6's.
    pub fn families(&self) -> impl Iterator<Item = Family> + '_ {
        Family::ALL.into_iter().filter(move |family| {
            let protocol = match self.protocol {
                Some(ICMP) => *family == Family::V4,
                Some(ICMPV6) => *family == Family::V6,
                _ => true,
            };
            protocol && self.family.is_none_or(|only| only == *family)
        })
    }
}

/// ICMP type and code.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct IcmpMatch {
    /// The type; `None` is every ICMP packet.
    pub kind: Option<u8>,
    /// The code; `None` is every code of the type.
    pub code: Option<u8>,
}

impl IcmpMatch {
    /// Whether a packet of this type and code is meant.
    pub fn covers(self, kind: u8, code: u8) -> bool {
        self.kind.is_none_or(|wanted| wanted == kind)
            && self.code.is_none_or(|wanted| wanted == code)
    }
}

/// One end of a rule.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct RuleEnd {
    /// Any of these; `None` is whoever, `Some` of nothing nobody.
    pub entities: Option<Vec<Entity>>,
    /// Any of these; empty is every packet, also those that show no ports.
    pub ports: Vec<PortMatch>,
    /// None of these. A packet of a protocol without ports has none of them; of a later fragment nobody knows.
    pub not_ports: Vec<PortMatch>,
}

/// Whom an end speaks of: everything that is there holds of the *address*.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Entity {
    /// Some member (a pod, a network set, a host endpoint) that has the address matches.
    pub selector: Option<Selector>,
    /// No member that has the address matches.
    pub not_selector: Option<Selector>,
    /// The address is in one of these; empty is every address.
    pub nets: BTreeSet<IpNet>,
    /// The address is in none of these.
    pub not_nets: BTreeSet<IpNet>,
    /// The address is an endpoint of this service; at the destination of egress the port is that endpoint's, too.
    pub service: Option<ObjectName>,
}

impl Entity {
    /// Whether the lists of nets speak of the family at all: a list that is there and has no entry of it makes the rule
    /// vanish for the family.
    pub fn allows_family(&self, family: Family) -> bool {
        [&self.nets, &self.not_nets].into_iter().all(|nets| {
            nets.is_empty() || nets.iter().any(|net| Family::from_address(net.addr()) == family)
        })
    }
}

/// Which ports.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PortMatch {
    /// Numbers of TCP, UDP or SCTP, both ends included; `first <= last`.
    Range {
        /// Lowest.
        first: u16,
        /// Highest.
        last: u16,
    },
    /// The number that a member with the end's address gives this name, of the rule's protocol, or, where the rule has
    /// none, of the protocol that the member's port has. Among `ports` the member has to match the entity's selector, too.
    Named(String),
}

/// Rules for endpoints that no policy decided about.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct Profile {
    /// Ingress rules.
    pub ingress: Vec<Rule>,
    /// Egress rules.
    pub egress: Vec<Rule>,
}

impl Profile {
    /// The rules of one direction.
    pub fn rules(&self, direction: Direction) -> &[Rule] {
        match direction {
            Direction::Ingress => &self.ingress,
            Direction::Egress => &self.egress,
        }
    }
}

/// A policy and its name, in the order in which its tier is judged.
pub fn compare_policies(a: (&PolicyName, &Policy), b: (&PolicyName, &Policy)) -> Ordering {
    a.1.order.cmp(&b.1.order).then_with(|| a.0.sort_key().cmp(&b.0.sort_key()))
}
