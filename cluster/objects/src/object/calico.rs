//! Calico's kinds, of `projectcalico.org/v3` and `crd.projectcalico.org/v1`, in one form.
//!
//! Selectors are texts that are known to parse and are never empty. Protocols are IANA's numbers. Everything else is as
//! written; absent fields are `None` or empty.

use std::net::{IpAddr, Ipv4Addr};

use ipnet::IpNet;

pub use manx_policy_compiler::model::{Action, IcmpMatch, Order};

use super::pairs::Pairs;
use super::policy_type::PolicyType;

/// `NetworkPolicy`, `GlobalNetworkPolicy` and their staged kinds.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Policy {
    /// `spec.tier`; `default` if absent.
    pub tier: Option<String>,
    /// `spec.order`; the policy comes last if it is absent.
    pub order: Option<Order>,
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
    /// `spec.stagedAction` of a staged policy; Set if absent.
    pub staged_action: Option<StagedAction>,
}

/// The endpoints that a Calico policy selects: all three selectors must match.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Subject {
    /// `spec.selector`; all endpoints if it is absent or was empty.
    pub selector: Option<String>,
    /// `spec.namespaceSelector`; global policies only.
    pub namespace_selector: Option<String>,
    /// `spec.serviceAccountSelector`, over the service account's labels.
    pub service_account_selector: Option<String>,
}

/// `spec.stagedAction`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StagedAction {
    /// The policy would be enforced as it is.
    Set,
    /// The policy of this name would be deleted.
    Delete,
    /// The policy is still being learnt and is not evaluated.
    Learn,
    /// The policy is not evaluated.
    Ignore,
}

/// A rule of a policy or a profile.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rule {
    /// `action`, in upper or lower case; `next-tier` is Pass.
    pub action: Action,
    /// `ipVersion`: 4 or 6.
    pub ip_version: Option<u8>,
    /// `protocol`, as IANA's number.
    pub protocol: Option<u8>,
    pub not_protocol: Option<u8>,
    /// `icmp`. A type is 0-254, and a code comes only with a type.
    pub icmp: Option<IcmpMatch>,
    /// `notICMP`: type and code are negated together.
    pub not_icmp: Option<IcmpMatch>,
    pub source: EntityRule,
    pub destination: EntityRule,
    /// Whether there is an `http` match, which Manx cannot evaluate.
    pub http: bool,
}

/// `source` or `destination` of a rule: every field that is present must match.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct EntityRule {
    /// `nets`: the address is in one of them.
    pub nets: Vec<IpNet>,
    /// `notNets`: the address is in none of them.
    pub not_nets: Vec<IpNet>,
    /// `selector`. An empty selector counts as absent, as in Calico's API, so it is not a condition. `all()` selects
    /// all endpoints and sets.
    pub selector: Option<String>,
    pub not_selector: Option<String>,
    pub namespace_selector: Option<String>,
    /// `ports`: the port is one of them.
    pub ports: Vec<Port>,
    /// `notPorts`: the port is none of them.
    pub not_ports: Vec<Port>,
    pub service_accounts: Option<ServiceAccountMatch>,
    pub service: Option<ServiceMatch>,
}

/// `serviceAccounts`: the name is one of `names` (if there are any), and the selector matches (if there is one).
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ServiceAccountMatch {
    pub names: Vec<String>,
    /// `selector`, over the service account's labels.
    pub selector: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServiceMatch {
    pub name: String,
    /// `namespace`; the policy's own if absent.
    pub namespace: Option<String>,
}

/// One entry of `ports`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Port {
    /// A port such as `80`, or a range such as `"80:90"`: it includes both ends, and the first is not greater than the
    /// last.
    Range(u16, u16),
    Name(String),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tier {
    /// `spec.order`; the tier comes last if it is absent.
    pub order: Option<Order>,
    /// `spec.defaultAction`: Deny or Pass; Deny if absent.
    pub default_action: Option<Action>,
}

/// `NetworkSet` and `GlobalNetworkSet`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NetworkSet {
    pub labels: Pairs,
    /// `spec.nets`; a plain address is a net of full prefix length.
    pub nets: Vec<IpNet>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostEndpoint {
    pub labels: Pairs,
    /// `spec.node`.
    pub node: String,
    /// `spec.interfaceName`: a name, or `*` for all. If absent, the endpoint stands for the interfaces that have one of
    /// its addresses.
    pub interface: Option<String>,
    /// `spec.expectedIPs`.
    pub expected_ips: Vec<IpAddr>,
    /// `spec.profiles`.
    pub profiles: Vec<String>,
    /// `spec.ports`: name, protocol number and port number of each.
    pub ports: Vec<(String, u8, u16)>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Profile {
    /// `spec.labelsToApply`.
    pub labels: Pairs,
    /// `spec.ingress`.
    pub ingress: Vec<Rule>,
    /// `spec.egress`.
    pub egress: Vec<Rule>,
}

/// The part of `FelixConfiguration` that changes policy, or how pods reach destinations outside the cluster.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct FelixConfiguration {
    /// `spec.defaultEndpointToHostAction`.
    pub endpoint_to_host: Option<EndpointToHost>,
    /// `spec.failsafeInboundHostPorts`: Calico's default list if absent, no port if empty.
    pub failsafe_inbound: Option<Vec<Failsafe>>,
    /// `spec.failsafeOutboundHostPorts`: Calico's default list if absent, no port if empty.
    pub failsafe_outbound: Option<Vec<Failsafe>>,
    /// `spec.natOutgoingAddress`.
    pub nat_outgoing_address: Option<Ipv4Addr>,
    /// `spec.natOutgoingExclusions`.
    pub nat_outgoing_exclusions: Option<NatOutgoingExclusions>,
}

/// The destinations for which pods of pools with `natOutgoing` keep their own addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NatOutgoingExclusions {
    IpPoolsOnly,
    IpPoolsAndHostIps,
}

/// What happens to a packet from a pod to its own node after the pod's egress policy has allowed it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EndpointToHost {
    Accept,
    Drop,
    /// The host's own rules decide. Manx has no such rules, so it is the same as Accept.
    Return,
}

/// A port that host endpoint policy never closes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Failsafe {
    /// The protocol number.
    pub protocol: u8,
    pub port: u16,
    /// `net`: the port stays open only for peers in this net.
    pub net: Option<IpNet>,
}
