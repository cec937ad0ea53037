//! The independent oracle: judges the objects themselves.
//!
//! It reads wire objects and the Kubernetes documentation, nothing else: its own defaults, its own selectors, its own
//! addresses. It shares no code with the import, the model, resolution or the tables, so that one mistake is not made
//! twice; it is slow and plain on purpose. What it says is what `manx rig` expects of real traffic, and what the
//! conformance tests hold the compiled tables to.
//!
//! A connection passes if the egress side of its source and the ingress side of its destination both let it. Replies are
//! none of its business.

mod matching;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::IpAddr;

use crate::manifest::State;
use crate::manifest::object::{
    Kind, NetworkPolicy, Object, ObjectKey, Pairs, Phase, Pod, PolicyType, Rule, Subject,
};
use crate::store::Stored;

use matching::{covers_port, in_block, selected};

/// One end of a connection.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Party {
    /// A pod, by one of its addresses.
    Pod {
        /// Its namespace.
        namespace: String,
        /// Its name.
        name: String,
        /// The address that it uses.
        address: IpAddr,
    },
    /// A node, by the address that it uses.
    Node {
        /// Its name.
        name: String,
        /// The address that it uses.
        address: IpAddr,
    },
    /// Anybody else.
    Address(IpAddr),
}

impl Party {
    /// The address that packets carry.
    pub fn address(&self) -> IpAddr {
        match self {
            Self::Pod { address, .. } | Self::Node { address, .. } | Self::Address(address) => {
                *address
            }
        }
    }
}

impl fmt::Display for Party {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pod { namespace, name, address } => write!(f, "{namespace}/{name} ({address})"),
            Self::Node { name, address } => write!(f, "node {name} ({address})"),
            Self::Address(address) => address.fmt(f),
        }
    }
}

/// Both sides' say.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Judgement {
    /// The source's side.
    pub egress: Explanation,
    /// The destination's side.
    pub ingress: Explanation,
}

impl Judgement {
    /// Whether the connection passes.
    pub fn allowed(&self) -> bool {
        self.egress.allows() && self.ingress.allows()
    }
}

impl fmt::Display for Judgement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verdict = if self.allowed() { "allowed" } else { "denied" };
        write!(f, "{verdict}: egress: {}; ingress: {}", self.egress, self.ingress)
    }
}

/// Why one side lets a connection pass, or does not.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Explanation {
    /// The party is no pod of the cluster's: no policy speaks for it.
    NoPod,
    /// The pod speaks to itself, which is always allowed.
    Itself,
    /// The node speaks to a pod of its own, which is always allowed.
    OwnNode,
    /// No policy selects the pod in this direction.
    NotIsolated,
    /// This rule allows it: the first, by policy name and index.
    Allowed {
        /// The policy, `namespace/name`.
        policy: String,
        /// The index in its list of rules of this direction.
        rule: usize,
    },
    /// These policies (`namespace/name`) select the pod and none of their rules allows it.
    Denied {
        /// At least one.
        policies: Vec<String>,
    },
    /// The pod is not in the manifests, is not valid, has no such address or is finished: nothing passes.
    NoEndpoint,
}

impl Explanation {
    /// Whether this side lets it pass.
    pub fn allows(&self) -> bool {
        match self {
            Self::NoPod
            | Self::Itself
            | Self::OwnNode
            | Self::NotIsolated
            | Self::Allowed { .. } => true,
            Self::Denied { .. } | Self::NoEndpoint => false,
        }
    }
}

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoPod => f.write_str("no pod, no policy"),
            Self::Itself => f.write_str("a pod always reaches itself"),
            Self::OwnNode => f.write_str("a node always reaches its own pods"),
            Self::NotIsolated => f.write_str("no policy selects the pod"),
            Self::Allowed { policy, rule } => write!(f, "allowed by rule {rule} of {policy}"),
            Self::Denied { policies } => {
                write!(f, "isolated by {}, and no rule allows it", policies.join(", "))
            }
            Self::NoEndpoint => f.write_str("no such endpoint"),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Side {
    Egress,
    Ingress,
}

/// A pod that takes part.
#[derive(Debug)]
struct Member {
    namespace: String,
    name: String,
    node: Option<String>,
    addresses: BTreeSet<IpAddr>,
    labels: Pairs,
    namespace_labels: Pairs,
    /// Name, protocol number and port of every named port.
    named_ports: BTreeSet<(String, u8, u16)>,
}

#[derive(Debug)]
struct PolicyObject {
    namespace: String,
    name: String,
    content: Content,
}

#[derive(Debug)]
enum Content {
    Valid(Box<NetworkPolicy>),
    /// Isolates, in both directions, the pods of its selector; without one, every pod of the namespace.
    Invalid(Option<crate::manifest::object::LabelSelector>),
}

/// The objects of one cluster, ready to be asked.
#[derive(Debug)]
pub struct Oracle {
    members: Vec<Member>,
    /// In order of namespace and name.
    policies: Vec<PolicyObject>,
}

impl Oracle {
    /// An oracle of everything in a store.
    pub fn new(objects: &BTreeMap<ObjectKey, Stored>) -> Self {
        let mut oracle = Self { members: Vec::new(), policies: Vec::new() };
        let mut namespaces = BTreeMap::new();
        let mut broken_namespaces = BTreeSet::new();
        for (key, stored) in objects {
            match (&stored.state, key.kind) {
                (State::Invalid(_), Kind::Namespace) => {
                    broken_namespaces.insert(key.name.clone());
                }
                (State::Invalid(invalid), Kind::NetworkPolicy) => {
                    let selector = match &invalid.subject {
                        Some(Subject::Kubernetes(selector)) => Some(selector.clone()),
                        _ => None,
                    };
                    oracle.add_policy(key, Content::Invalid(selector));
                }
                (State::Invalid(_), _) => {}
                (State::Valid(object), _) => match &**object {
                    Object::Namespace(namespace) => {
                        namespaces.insert(key.name.clone(), namespace.labels.clone());
                    }
                    Object::Pod(pod) => oracle.add_pod(key, pod),
                    Object::NetworkPolicy(policy) if key.kind == Kind::NetworkPolicy => {
                        oracle.add_policy(key, Content::Valid(policy.clone()));
                    }
                    _ => {}
                },
            }
        }
        oracle.members.retain(|member| !broken_namespaces.contains(&member.namespace));
        for member in &mut oracle.members {
            // Without a manifest a namespace has the one label that the API server gives every namespace.
            let name = &member.namespace;
            member.namespace_labels = namespaces.get(name).cloned().unwrap_or_else(|| {
                Pairs::from([("kubernetes.io/metadata.name".to_owned(), name.clone())])
            });
        }
        oracle.policies.sort_by(|a, b| (&a.namespace, &a.name).cmp(&(&b.namespace, &b.name)));
        oracle
    }

    /// Every pod that takes part, once for each of its addresses.
    pub fn pods(&self) -> impl Iterator<Item = Party> + '_ {
        self.members.iter().flat_map(|member| {
            member.addresses.iter().map(|address| Party::Pod {
                namespace: member.namespace.clone(),
                name: member.name.clone(),
                address: *address,
            })
        })
    }

    /// Whether a new connection from `from` to `to` passes. `port` is the destination's; `None` for protocols without
    /// ports. The two addresses should be of one family: otherwise there is no such packet.
    pub fn judge(&self, from: &Party, to: &Party, protocol: u8, port: Option<u16>) -> Judgement {
        if let (
            Party::Pod { namespace, name, .. },
            Party::Pod { namespace: to_namespace, name: to_name, .. },
        ) = (from, to)
            && (namespace, name) == (to_namespace, to_name)
        {
            return Judgement { egress: Explanation::Itself, ingress: Explanation::Itself };
        }
        let egress = self.side(Side::Egress, from, to, protocol, port);
        let ingress = match (from, self.member(to)) {
            (Party::Node { name, .. }, Some(member)) if member.node.as_ref() == Some(name) => {
                Explanation::OwnNode
            }
            _ => self.side(Side::Ingress, to, from, protocol, port),
        };
        Judgement { egress, ingress }
    }

    /// What the policies of `local` say of `peer`.
    fn side(
        &self,
        side: Side,
        local: &Party,
        peer: &Party,
        protocol: u8,
        port: Option<u16>,
    ) -> Explanation {
        if !matches!(local, Party::Pod { .. }) {
            return Explanation::NoPod;
        }
        let Some(member) = self.member(local) else { return Explanation::NoEndpoint };
        let mut policies = Vec::new();
        for policy in &self.policies {
            if policy.namespace != member.namespace || !policy.selects(member) {
                continue;
            }
            let name = || format!("{}/{}", policy.namespace, policy.name);
            match &policy.content {
                Content::Invalid(_) => policies.push(name()),
                Content::Valid(content) => {
                    let Some(rules) = rules(content, side) else { continue };
                    let allows = |rule: &Rule| {
                        self.rule_allows(
                            rule,
                            side,
                            member,
                            peer.address(),
                            &policy.namespace,
                            (protocol, port),
                        )
                    };
                    if let Some(rule) = rules.iter().position(allows) {
                        return Explanation::Allowed { policy: name(), rule };
                    }
                    policies.push(name());
                }
            }
        }
        if policies.is_empty() {
            Explanation::NotIsolated
        } else {
            Explanation::Denied { policies }
        }
    }

    /// Whether one rule allows a packet between `local` and `address`.
    ///
    /// Several pods may have the peer's address for a moment; each of them may be meant, and a port name counts only if
    /// the pod that is meant has it.
    fn rule_allows(
        &self,
        rule: &Rule,
        side: Side,
        local: &Member,
        address: IpAddr,
        namespace: &str,
        (protocol, number): (u8, Option<u16>),
    ) -> bool {
        let holders: Vec<&Member> =
            self.members.iter().filter(|member| member.addresses.contains(&address)).collect();
        let peers = rule.peers.as_deref().unwrap_or_default();
        let ports = rule.ports.as_deref().unwrap_or_default();
        let port_fits = |owner: Option<&Member>| {
            let none = BTreeSet::new();
            let named = owner.map_or(&none, |member| &member.named_ports);
            ports.is_empty() || ports.iter().any(|port| covers_port(port, named, protocol, number))
        };
        let peer_fits = |holder: Option<&Member>| {
            peers.is_empty()
                || peers.iter().any(|peer| match peer {
                    crate::manifest::object::Peer::IpBlock(block) => in_block(block, address),
                    crate::manifest::object::Peer::Selectors { pods, namespaces } => holder
                        .is_some_and(|holder| {
                            let in_namespace = match namespaces {
                                None => holder.namespace == namespace,
                                Some(selector) => selected(selector, &holder.namespace_labels),
                            };
                            in_namespace
                                && pods
                                    .as_ref()
                                    .is_none_or(|selector| selected(selector, &holder.labels))
                        }),
                })
        };
        // Whoever may stand behind the address: each pod that has it, and nobody in particular.
        let candidates = holders.into_iter().map(Some).chain([None]);
        let mut candidates = candidates.filter(|holder| peer_fits(*holder));
        match side {
            // The port's owner is the destination: here the local pod, there the peer.
            Side::Ingress => candidates.next().is_some() && port_fits(Some(local)),
            Side::Egress => candidates.any(port_fits),
        }
    }

    fn member(&self, party: &Party) -> Option<&Member> {
        let Party::Pod { namespace, name, address } = party else { return None };
        self.members.iter().find(|member| {
            member.namespace == *namespace
                && member.name == *name
                && member.addresses.contains(address)
        })
    }

    fn add_policy(&mut self, key: &ObjectKey, content: Content) {
        let (namespace, name) = (key.namespace.clone(), key.name.clone());
        self.policies.push(PolicyObject { namespace, name, content });
    }

    fn add_pod(&mut self, key: &ObjectKey, pod: &Pod) {
        let finished = pod.phase == Some(Phase::Succeeded) || pod.phase == Some(Phase::Failed);
        let released = pod.deleting && pod.annotated_ips == Some(Vec::new());
        if pod.host_network || finished || released {
            return;
        }
        let mut addresses: BTreeSet<IpAddr> = pod.pod_ips.iter().copied().collect();
        if addresses.is_empty() {
            addresses.extend(pod.pod_ip);
        }
        if addresses.is_empty() {
            addresses.extend(pod.annotated_ips.iter().flatten());
        }
        if addresses.is_empty() {
            return;
        }
        let mut named_ports = BTreeSet::new();
        for port in pod.containers.iter().flatten().chain(pod.init_containers.iter().flatten()) {
            if let Some(name) = &port.name {
                let protocol = matching::protocol_number(port.protocol);
                named_ports.insert((name.clone(), protocol, port.port));
            }
        }
        self.members.push(Member {
            namespace: key.namespace.clone(),
            name: key.name.clone(),
            node: pod.node_name.clone(),
            addresses,
            labels: pod.labels.clone(),
            namespace_labels: Pairs::new(),
            named_ports,
        });
    }
}

impl PolicyObject {
    fn selects(&self, member: &Member) -> bool {
        match &self.content {
            Content::Valid(policy) => selected(&policy.pod_selector, &member.labels),
            Content::Invalid(Some(selector)) => selected(selector, &member.labels),
            Content::Invalid(None) => true,
        }
    }
}

/// The rules of one side, or `None` if the policy does not speak of it. Without `policyTypes` a policy speaks of ingress,
/// and of egress if it has egress rules.
fn rules(policy: &NetworkPolicy, side: Side) -> Option<&[Rule]> {
    let (own, listed) = match side {
        Side::Ingress => (PolicyType::Ingress, &policy.ingress),
        Side::Egress => (PolicyType::Egress, &policy.egress),
    };
    let rules = listed.as_deref().unwrap_or(&[]);
    let named = policy.policy_types.as_deref().unwrap_or(&[]);
    let speaks = if named.is_empty() {
        side == Side::Ingress || !rules.is_empty()
    } else {
        named.contains(&own)
    };
    speaks.then_some(rules)
}
