//! Policies of every API in one form.

use std::cmp::Ordering;
use std::collections::BTreeSet;
use std::fmt;
use std::hash::{Hash, Hasher};

use ipnet::IpNet;

use super::name::{ObjectName, PolicyName};
use super::traffic::{Direction, Family, ICMP, ICMPV6};
use crate::selector::Selector;

/// The order of a tier, or of a policy in its tier: lower is earlier. It is never NaN.
#[derive(Debug, Clone, Copy)]
pub struct Order(f64);

impl Order {
    /// The order after every other one, which an absent order means.
    pub const LAST: Self = Self(f64::INFINITY);
    /// The order of Kubernetes' `NetworkPolicies` in the tier `default`.
    pub const KUBERNETES: Self = Self(1000.0);

    /// Returns `None` for NaN. Negative zero becomes zero.
    pub fn new(order: f64) -> Option<Self> {
        (!order.is_nan()).then_some(Self(order + 0.0))
    }

    /// The number.
    pub const fn value(self) -> f64 {
        self.0
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

/// A group of policies that is evaluated before the next group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Tier {
    /// Its place among tiers. Tiers with equal order are sorted by name.
    pub order: Order,
    /// The action on a packet to which a policy of the tier applied but which no rule decided.
    pub default_action: DefaultAction,
}

/// The action at the end of a tier. It is never Allow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum DefaultAction {
    /// The packet is denied.
    Deny,
    /// The next tier is evaluated.
    Pass,
}

impl Tier {
    /// The tiers that exist without an object of their own, and that no object changes. Kubernetes' cluster-wide
    /// policies come before and after all other policies.
    pub const BUILT_IN: [(&'static str, Self); 3] = [
        ("kube-admin", Self { order: Order(1_000.0), default_action: DefaultAction::Pass }),
        ("default", Self { order: Order(1_000_000.0), default_action: DefaultAction::Deny }),
        ("kube-baseline", Self { order: Order(10_000_000.0), default_action: DefaultAction::Pass }),
    ];

    /// A tier that policies name but no object defines.
    pub const MISSING: Self = Self { order: Order::LAST, default_action: DefaultAction::Deny };

    /// The built-in tier of this name.
    pub fn built_in(name: &str) -> Option<Self> {
        Self::BUILT_IN.into_iter().find(|(built_in, _)| *built_in == name).map(|(_, tier)| tier)
    }
}

/// The point on a packet's path at which a policy applies. Only policies for host endpoints have a hook other than
/// [`Hook::Endpoint`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Hook {
    /// At a pod, or at a host endpoint for the traffic of the host's own processes.
    Endpoint,
    /// At a pod, or at a host endpoint for the same traffic and for forwarded traffic (`applyOnForward`).
    Forward,
    /// At a host endpoint before destination NAT (`preDNAT`).
    PreDnat,
    /// At a host endpoint before connection tracking; packets that it allows are not tracked (`doNotTrack`).
    Untracked,
}

/// A policy.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Policy {
    /// The tier's name.
    pub tier: String,
    /// The place in the tier. Policies with equal order are sorted by [`PolicyName::sort_key`].
    pub order: Order,
    /// The endpoints that the policy selects. If the policy has a namespace, the selector includes it.
    pub selector: Selector,
    /// The point on a packet's path.
    pub hook: Hook,
    /// The ingress rules. `None` means that the policy does not apply to ingress. An empty list means that it applies,
    /// so that its tier counts, but decides nothing itself.
    pub ingress: Option<Vec<Rule>>,
    /// The egress rules, in the same way.
    pub egress: Option<Vec<Rule>>,
    /// Whether it could not be imported as it was written, so that it is unknown what it would have allowed or denied.
    /// Such a policy comes before all tiers, and denies all traffic of the endpoints that it selects, in both
    /// directions.
    pub broken: bool,
}

impl Policy {
    /// Whether it may deny forwarded traffic of a host endpoint that it selects.
    pub fn may_deny_forwarded(&self, direction: Direction) -> bool {
        self.broken || (self.hook != Hook::Endpoint && self.rules(direction).is_some())
    }

    /// The rules of one direction, or `None` if the policy does not apply to it. A broken policy applies to both.
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

/// The action of a rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Action {
    /// Allows the packet and ends the evaluation.
    Allow,
    /// Denies the packet and ends the evaluation.
    Deny,
    /// Continues with the next tier, and after the last tier with the profiles. In a profile, it means Deny.
    Pass,
    /// Records the rule and continues with the next rule.
    Log,
}

/// One rule: it matches if all of its conditions hold.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Rule {
    /// The index of the rule in its object's list of rules for this direction. Several rules may come from one entry.
    pub index: u32,
    /// The action on packets that match.
    pub action: Action,
    /// Only packets of this family match.
    pub family: Option<Family>,
    /// Only packets of this IP protocol match.
    pub protocol: Option<u8>,
    /// Only packets of other IP protocols match.
    pub not_protocol: Option<u8>,
    /// Only ICMP (`ICMPv6`) of this type, and of this code if there is one, matches.
    pub icmp: Option<IcmpMatch>,
    /// ICMP of this type and code does not match.
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

    /// The families of packets that the rule can match. If a list of nets, negated or not, has no entry of a family,
    /// the rule does not exist for that family. ICMP belongs to IPv4, `ICMPv6` to IPv6.
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
    /// The type. `None` means every ICMP packet.
    pub kind: Option<u8>,
    /// The code. `None` means every code of the type.
    pub code: Option<u8>,
}

impl IcmpMatch {
    /// Whether this type and code match.
    pub fn covers(self, kind: u8, code: u8) -> bool {
        self.kind.is_none_or(|wanted| wanted == kind)
            && self.code.is_none_or(|wanted| wanted == code)
    }
}

/// One end of a rule.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct RuleEnd {
    /// The address matches any of these. `None` means every address, and an empty list means no address.
    pub entities: Option<Vec<Entity>>,
    /// The port is one of these. An empty list means every packet, even one without ports.
    pub ports: Vec<PortMatch>,
    /// The port is none of these. A packet of a protocol without ports has no port, so it may match. A later fragment
    /// may have any port, so it does not match.
    pub not_ports: Vec<PortMatch>,
}

/// The addresses that an end of a rule matches. All conditions must hold for the *address*.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Entity {
    /// Some member that has the address (a pod, a network set, a host endpoint) matches.
    pub selector: Option<Selector>,
    /// No member that has the address matches.
    pub not_selector: Option<Selector>,
    /// The address is in one of these nets. An empty set means every address.
    pub nets: BTreeSet<IpNet>,
    /// The address is in none of these nets.
    pub not_nets: BTreeSet<IpNet>,
    /// The address is an endpoint of this service. At the destination of egress, the port must also be that endpoint's.
    pub service: Option<ObjectName>,
}

impl Entity {
    /// Whether the lists of nets allow the family. If a list is not empty and has no entry of the family, the rule does
    /// not exist for that family.
    pub fn allows_family(&self, family: Family) -> bool {
        [&self.nets, &self.not_nets].into_iter().all(|nets| {
            nets.is_empty() || nets.iter().any(|net| Family::from_address(net.addr()) == family)
        })
    }
}

/// The ports of a rule's end.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PortMatch {
    /// Port numbers of TCP, UDP or SCTP, both ends included; `first <= last`.
    Range {
        /// The lowest port.
        first: u16,
        /// The highest port.
        last: u16,
    },
    /// The port number to which a member with the end's address gives this name. The protocol is the rule's or, if the
    /// rule has none, that of the member's port. In `ports`, the member must also match the entity's selector.
    Named(String),
}

/// Rules for endpoints about which no policy decides.
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

/// The evaluation order of two policies of one tier.
pub fn compare_policies(a: (&PolicyName, &Policy), b: (&PolicyName, &Policy)) -> Ordering {
    a.1.order.cmp(&b.1.order).then_with(|| a.0.sort_key().cmp(&b.0.sort_key()))
}
