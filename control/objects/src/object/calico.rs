//! Calico's kinds, of `projectcalico.org/v3` and `crd.projectcalico.org/v1`: one shape for both.
//!
//! Selectors are texts here, known to parse, never empty. Protocol names are IANA's numbers. Everything else is as
//! written; what is absent is `None` or empty.

use std::cmp::Ordering;
use std::net::IpAddr;

use ipnet::IpNet;

use super::{Pairs, PolicyType};

/// `order`: a number, never NaN.
#[derive(Debug, Clone, Copy)]
pub struct Order(f64);

impl Order {
    /// `None` for what is no number. Negative zero is zero.
    pub fn new(order: f64) -> Option<Self> {
        (!order.is_nan()).then_some(Self(order + 0.0))
    }

    /// The number.
    pub fn value(self) -> f64 {
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

/// `NetworkPolicy`, `GlobalNetworkPolicy` and their staged kinds.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Policy {
    /// `spec.tier`; `default` where absent.
    pub tier: Option<String>,
    /// `spec.order`; last where absent.
    pub order: Option<Order>,
    /// Whom it is for.
    pub subject: Subject,
    /// `spec.types`.
    pub types: Option<Vec<PolicyType>>,
    /// `spec.ingress`.
    pub ingress: Vec<Rule>,
    /// `spec.egress`.
    pub egress: Vec<Rule>,
    /// `spec.applyOnForward`; global policies only.
    pub apply_on_forward: bool,
    /// `spec.preDNAT`; global policies only.
    pub pre_dnat: bool,
    /// `spec.doNotTrack`; global policies only.
    pub do_not_track: bool,
    /// `spec.stagedAction` of a staged policy; Set where absent.
    pub staged_action: Option<StagedAction>,
}

/// The endpoints that a policy of Calico's selects: all three hold.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Subject {
    /// `spec.selector`; absent (and what was empty) selects all.
    pub selector: Option<String>,
    /// `spec.namespaceSelector`; global policies only.
    pub namespace_selector: Option<String>,
    /// `spec.serviceAccountSelector`, over the service account's labels.
    pub service_account_selector: Option<String>,
}

/// `spec.stagedAction`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StagedAction {
    /// What would be enforced.
    Set,
    /// The policy of this name would be deleted.
    Delete,
    /// Being learnt; not evaluated.
    Learn,
    /// Not evaluated.
    Ignore,
}

/// A rule of a policy or a profile.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rule {
    /// `action`.
    pub action: Action,
    /// `ipVersion`: 4 or 6.
    pub ip_version: Option<u8>,
    /// `protocol`, as IANA's number.
    pub protocol: Option<u8>,
    /// `notProtocol`.
    pub not_protocol: Option<u8>,
    /// `icmp`.
    pub icmp: Option<Icmp>,
    /// `notICMP`: the pair negated as one.
    pub not_icmp: Option<Icmp>,
    /// `source`.
    pub source: EntityRule,
    /// `destination`.
    pub destination: EntityRule,
    /// Whether there is an `http` match, which nobody can decide here.
    pub http: bool,
}

/// What a rule does. Written in any case; `next-tier` is Pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// Ends the search.
    Allow,
    /// Ends the search.
    Deny,
    /// On to the next tier.
    Pass,
    /// Noted; on to the next rule.
    Log,
}

/// `icmp` and `notICMP`. Empty matches every ICMP packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Icmp {
    /// `type`, 0-254.
    pub kind: Option<u8>,
    /// `code`, which needs a type.
    pub code: Option<u8>,
}

/// One side of a rule: everything that is there holds.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct EntityRule {
    /// `nets`: any of them.
    pub nets: Vec<IpNet>,
    /// `notNets`: none of them.
    pub not_nets: Vec<IpNet>,
    /// `selector`. Absent and empty are no criterion, as they are one to Calico's API; `all()` selects all endpoints and
    /// sets.
    pub selector: Option<String>,
    /// `notSelector`.
    pub not_selector: Option<String>,
    /// `namespaceSelector`.
    pub namespace_selector: Option<String>,
    /// `ports`: any of them.
    pub ports: Vec<Port>,
    /// `notPorts`: none of them.
    pub not_ports: Vec<Port>,
    /// `serviceAccounts`.
    pub service_accounts: Option<ServiceAccountMatch>,
    /// `services`.
    pub service: Option<ServiceMatch>,
}

/// `serviceAccounts`: the name is one of those (if there are any) and the selector matches (if there is one).
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ServiceAccountMatch {
    /// `names`.
    pub names: Vec<String>,
    /// `selector`, over the service account's labels.
    pub selector: Option<String>,
}

/// `services`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServiceMatch {
    /// `name`.
    pub name: String,
    /// `namespace`; the policy's own where absent.
    pub namespace: Option<String>,
}

/// One entry of `ports`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Port {
    /// `80` or `"80:90"`: both ends included, not descending.
    Range(u16, u16),
    /// A name.
    Name(String),
}

/// `Tier`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tier {
    /// `spec.order`; last where absent.
    pub order: Option<Order>,
    /// `spec.defaultAction`: Deny or Pass; Deny where absent.
    pub default_action: Option<Action>,
}

/// `NetworkSet` and `GlobalNetworkSet`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NetworkSet {
    /// The labels.
    pub labels: Pairs,
    /// `spec.nets`; a plain address is one of full length.
    pub nets: Vec<IpNet>,
}

/// `HostEndpoint`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostEndpoint {
    /// The labels.
    pub labels: Pairs,
    /// `spec.node`.
    pub node: String,
    /// `spec.interfaceName`: a name, `*` for all, or absent: the interfaces that have one of the addresses.
    pub interface: Option<String>,
    /// `spec.expectedIPs`.
    pub expected_ips: Vec<IpAddr>,
    /// `spec.profiles`.
    pub profiles: Vec<String>,
    /// `spec.ports`: name, protocol number, number.
    pub ports: Vec<(String, u8, u16)>,
}

/// `Profile`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Profile {
    /// `spec.labelsToApply`.
    pub labels: Pairs,
    /// `spec.ingress`.
    pub ingress: Vec<Rule>,
    /// `spec.egress`.
    pub egress: Vec<Rule>,
}

/// `FelixConfiguration`, as far as it changes policy.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct FelixConfiguration {
    /// `spec.defaultEndpointToHostAction`.
    pub endpoint_to_host: Option<EndpointToHost>,
    /// `spec.failsafeInboundHostPorts`; absent: Calico's list, empty: none.
    pub failsafe_inbound: Option<Vec<Failsafe>>,
    /// `spec.failsafeOutboundHostPorts`.
    pub failsafe_outbound: Option<Vec<Failsafe>>,
}

/// What becomes of a pod's packet to its own node after the pod's egress policy allowed it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EndpointToHost {
    /// Accepted.
    Accept,
    /// Dropped.
    Drop,
    /// Left to the host's own rules; there are none here, so it is as Accept.
    Return,
}

/// A port that host endpoint policy never closes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Failsafe {
    /// Protocol number.
    pub protocol: u8,
    /// `port`.
    pub port: u16,
    /// `net`: only with these peers.
    pub net: Option<IpNet>,
}
