//! The validated model: what the compiler, the reference and the proof all start from.
//!
//! Everything here is already checked; a value that could be illegal has a constructor that refuses it. Nothing is
//! resolved yet: selectors are still selectors, named ports still names.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;

/// Label keys and values of one object.
pub type Labels = BTreeMap<String, String>;

/// The namespace and name of a namespaced object.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectName {
    /// The namespace.
    pub namespace: String,
    /// The name.
    pub name: String,
}

impl ObjectName {
    /// `namespace/name`.
    pub fn new(namespace: impl Into<String>, name: impl Into<String>) -> Self {
        Self { namespace: namespace.into(), name: name.into() }
    }
}

impl fmt::Display for ObjectName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// The protocols that have ports in Kubernetes policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Protocol {
    /// IP protocol 6.
    Tcp,
    /// IP protocol 17.
    Udp,
    /// IP protocol 132.
    Sctp,
}

impl Protocol {
    /// All three.
    pub const ALL: [Self; 3] = [Self::Tcp, Self::Udp, Self::Sctp];

    /// The IP protocol number.
    pub const fn number(self) -> u8 {
        match self {
            Self::Tcp => 6,
            Self::Udp => 17,
            Self::Sctp => 132,
        }
    }

    /// The protocol with this IP protocol number, if it has ports.
    pub const fn from_number(number: u8) -> Option<Self> {
        match number {
            6 => Some(Self::Tcp),
            17 => Some(Self::Udp),
            132 => Some(Self::Sctp),
            _ => None,
        }
    }

    /// The name as Kubernetes spells it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Tcp => "TCP",
            Self::Udp => "UDP",
            Self::Sctp => "SCTP",
        }
    }
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Traffic into or out of the endpoint that a policy selects.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Direction {
    /// Into the endpoint; the peer is the source.
    Ingress,
    /// Out of the endpoint; the peer is the destination.
    Egress,
}

impl Direction {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Ingress, Self::Egress];

    /// `ingress` or `egress`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ingress => "ingress",
            Self::Egress => "egress",
        }
    }
}

impl fmt::Display for Direction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A container port that has a name.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NamedPort {
    /// The name, an IANA service name.
    pub name: String,
    /// A name resolves only among ports of its own protocol.
    pub protocol: Protocol,
    /// The number, 1-65535.
    pub port: u16,
}

/// A pod that has addresses of its own (not on the host's network) and is not finished.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Endpoint {
    /// The pod's labels.
    pub labels: Labels,
    /// Its addresses, either family.
    pub addresses: BTreeSet<IpAddr>,
    /// The named ports of all its containers, init containers too.
    pub named_ports: BTreeSet<NamedPort>,
}

impl Endpoint {
    /// The numbers that it gives to `name`; a name resolves only among ports of its own protocol.
    pub fn ports_named(&self, name: &str, protocol: Protocol) -> impl Iterator<Item = u16> {
        let named = self.named_ports.iter();
        named.filter(move |port| port.protocol == protocol && port.name == name).map(|p| p.port)
    }
}

/// One requirement of a Kubernetes label selector (`matchLabels` are `In` with one value).
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Requirement {
    /// The key is present with one of the values.
    In(String, BTreeSet<String>),
    /// The key is absent, or present with none of the values.
    NotIn(String, BTreeSet<String>),
    /// The key is present.
    Exists(String),
    /// The key is absent.
    DoesNotExist(String),
}

impl Requirement {
    /// Whether `labels` satisfy it.
    pub fn matches(&self, labels: &Labels) -> bool {
        match self {
            Self::In(key, values) => labels.get(key).is_some_and(|value| values.contains(value)),
            Self::NotIn(key, values) => labels.get(key).is_none_or(|value| !values.contains(value)),
            Self::Exists(key) => labels.contains_key(key),
            Self::DoesNotExist(key) => !labels.contains_key(key),
        }
    }
}

/// A Kubernetes label selector: all requirements hold. Without any it selects everything.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct LabelSelector(pub BTreeSet<Requirement>);

impl LabelSelector {
    /// Whether `labels` satisfy every requirement.
    pub fn matches(&self, labels: &Labels) -> bool {
        self.0.iter().all(|requirement| requirement.matches(labels))
    }
}

impl fmt::Display for Requirement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let set = |values: &BTreeSet<String>| {
            values.iter().map(String::as_str).collect::<Vec<_>>().join(",")
        };
        match self {
            Self::In(key, values) => write!(f, "{key} in ({})", set(values)),
            Self::NotIn(key, values) => write!(f, "{key} notin ({})", set(values)),
            Self::Exists(key) => f.write_str(key),
            Self::DoesNotExist(key) => write!(f, "!{key}"),
        }
    }
}

impl fmt::Display for LabelSelector {
    /// As kubectl writes selectors, in braces.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let requirements: Vec<String> = self.0.iter().map(ToString::to_string).collect();
        write!(f, "{{{}}}", requirements.join(", "))
    }
}

/// A CIDR without some parts of it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct IpBlock {
    cidr: IpNet,
    except: BTreeSet<IpNet>,
}

/// An exception that is not inside its block.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{except} is not inside {cidr}")]
pub struct ExceptOutside {
    /// The block.
    pub cidr: IpNet,
    /// The exception.
    pub except: IpNet,
}

impl IpBlock {
    /// A block; host bits are cut off. Each exception must be strictly inside `cidr` (Kubernetes' validation).
    pub fn new(
        cidr: IpNet,
        except: impl IntoIterator<Item = IpNet>,
    ) -> Result<Self, ExceptOutside> {
        let cidr = cidr.trunc();
        let except: BTreeSet<IpNet> = except.into_iter().map(|net| net.trunc()).collect();
        match except.iter().find(|net| !cidr.contains(*net) || **net == cidr) {
            Some(net) => Err(ExceptOutside { cidr, except: *net }),
            None => Ok(Self { cidr, except }),
        }
    }

    /// The block itself.
    pub fn cidr(&self) -> IpNet {
        self.cidr
    }

    /// What is taken out of it.
    pub fn except(&self) -> impl Iterator<Item = IpNet> + '_ {
        self.except.iter().copied()
    }

    /// Whether `address` is in the block and in no exception; never across families.
    pub fn contains(&self, address: IpAddr) -> bool {
        self.cidr.contains(&address) && !self.except.iter().any(|net| net.contains(&address))
    }
}

impl fmt::Display for IpBlock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.cidr.fmt(f)?;
        self.except.iter().try_for_each(|net| write!(f, " except {net}"))
    }
}

/// Whom a rule speaks of.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Peer {
    /// Pods by labels, in the policy's own namespace.
    PodsHere(LabelSelector),
    /// Pods by labels, in the namespaces that a selector picks.
    PodsIn {
        /// Over the namespace's labels.
        namespaces: LabelSelector,
        /// Over the pod's labels.
        pods: LabelSelector,
    },
    /// Addresses, whoever has them: pods inside the block match too.
    Block(IpBlock),
}

/// Which destination ports of a protocol.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PortMatch {
    /// Every packet of the protocol, fragments included.
    All,
    /// Numbers, both ends included; `first <= last`.
    Range {
        /// Lowest.
        first: u16,
        /// Highest.
        last: u16,
    },
    /// The number that the pod at the *destination* gives this name: for ingress the selected pod, for egress the peer.
    Named(String),
}

/// A protocol and its ports.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Service {
    /// The protocol.
    pub protocol: Protocol,
    /// Its ports.
    pub port: PortMatch,
}

/// An allow rule: any of the peers AND any of the services.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Rule {
    /// `None`: every source or destination. `Some` of nothing matches nobody (the import never makes it).
    pub peers: Option<Vec<Peer>>,
    /// `None`: every protocol and port, ICMP and fragments too.
    pub services: Option<Vec<Service>>,
}

/// A Kubernetes NetworkPolicy.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Policy {
    /// The pods it selects, in its own namespace.
    pub selector: LabelSelector,
    /// Ingress rules; `None` where `policyTypes` leaves ingress alone, empty where it isolates and allows nothing.
    pub ingress: Option<Vec<Rule>>,
    /// Egress rules, likewise.
    pub egress: Option<Vec<Rule>>,
}

impl Policy {
    /// The rules of one direction; `None` where the policy does not speak of it.
    pub fn rules(&self, direction: Direction) -> Option<&[Rule]> {
        match direction {
            Direction::Ingress => self.ingress.as_deref(),
            Direction::Egress => self.egress.as_deref(),
        }
    }
}

/// What stands at a policy's name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PolicyState {
    /// A valid policy.
    Valid(Arc<Policy>),
    /// An object that did not validate. It isolates the pods that may be meant, in both directions, and allows nothing:
    /// those of its selector if that much could be read, else every pod of its namespace.
    Invalid(LabelSelector),
}

impl PolicyState {
    /// The pods that it selects or isolates, in its own namespace.
    pub fn selector(&self) -> &LabelSelector {
        match self {
            Self::Valid(policy) => &policy.selector,
            Self::Invalid(selector) => selector,
        }
    }

    /// The rules of one direction; `None` where it does not speak of it. An invalid one speaks of both and allows nothing.
    pub fn rules(&self, direction: Direction) -> Option<&[Rule]> {
        match self {
            Self::Valid(policy) => policy.rules(direction),
            Self::Invalid(_) => Some(&[]),
        }
    }
}

/// A cluster as policy sees it. Ordered maps: the same objects in any order are the same value.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Model {
    /// Labels of every namespace. A pod whose namespace is missing here is treated as if the namespace had no labels.
    pub namespaces: BTreeMap<String, Labels>,
    /// Every endpoint of the cluster.
    pub endpoints: BTreeMap<ObjectName, Arc<Endpoint>>,
    /// Every policy of the cluster.
    pub policies: BTreeMap<ObjectName, PolicyState>,
}

impl Model {
    /// The policies of one namespace, in order of their names.
    pub fn policies_in<'m>(
        &'m self,
        namespace: &'m str,
    ) -> impl Iterator<Item = (&'m ObjectName, &'m PolicyState)> {
        let from = ObjectName::new(namespace, "");
        self.policies.range(from..).take_while(move |(name, _)| name.namespace == namespace)
    }

    /// The labels of a namespace; none if it is missing.
    pub fn namespace_labels(&self, namespace: &str) -> &Labels {
        static NONE: Labels = Labels::new();
        self.namespaces.get(namespace).unwrap_or(&NONE)
    }
}

/// Names a rule for counters, logs and `explain`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RuleName {
    /// The policy.
    pub policy: ObjectName,
    /// The direction.
    pub direction: Direction,
    /// The index in the policy's list of that direction.
    pub index: u32,
}

impl fmt::Display for RuleName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}[{}]", self.policy, self.direction, self.index)
    }
}

/// What decided, in one direction.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Reason {
    /// No policy selects the endpoint in this direction: everything is allowed.
    NotIsolated(Direction),
    /// The first rule that allows, in the order of policy names and rule indexes.
    Rule(RuleName),
    /// Policies isolate the endpoint in this direction and no rule allows. Carries the first of them.
    Isolated(Direction, ObjectName),
    /// The peer's identity is not known to these tables: denied.
    Unknown(Direction),
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotIsolated(direction) => write!(f, "no policy selects it for {direction}"),
            Self::Rule(rule) => rule.fmt(f),
            Self::Isolated(direction, policy) => {
                write!(f, "isolated by {policy} for {direction}, no rule allows")
            }
            Self::Unknown(direction) => write!(f, "unknown peer, {direction}"),
        }
    }
}

/// Allow or deny.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Verdict {
    /// Let it pass.
    Allow,
    /// Drop it.
    Deny,
}

impl Reason {
    /// The verdict that follows from it.
    pub const fn verdict(&self) -> Verdict {
        match self {
            Self::NotIsolated(_) | Self::Rule(_) => Verdict::Allow,
            Self::Isolated(..) | Self::Unknown(_) => Verdict::Deny,
        }
    }
}

/// What of a packet policy looks at, besides the peer: protocol and destination port.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Transport {
    /// IP protocol number.
    pub protocol: u8,
    /// Destination port; `None` for protocols without ports and for packets that do not show theirs.
    pub port: Option<u16>,
}

impl fmt::Display for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (Protocol::from_number(self.protocol), self.port) {
            (Some(protocol), Some(port)) => write!(f, "{protocol} {port}"),
            (Some(protocol), None) => write!(f, "{protocol} without port"),
            (None, _) => write!(f, "protocol {}", self.protocol),
        }
    }
}
