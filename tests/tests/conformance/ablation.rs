//! Which features of policy affect a verdict: the test removes a feature, and checks whether any
//! verdict changes.

use std::collections::BTreeMap;
use std::sync::Arc;

use manx_objects::State;
use manx_objects::contents::Stored;
use manx_objects::object::{
    Kind, LabelSelector, Namespace, NetworkPolicy, Object, ObjectKey, Operator, Pairs, Peer, Phase,
    Pod, PolicyType, Port, PortNumber, Protocol, Rule,
};

/// A port that no generated object or packet uses.
const UNUSED: u16 = 9999;

/// A feature of a policy, or of an object that it names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Feature {
    MatchLabels,
    In,
    NotIn,
    Exists,
    DoesNotExist,
    PodSelectorOfPolicy,
    PodSelectorOfPeer,
    NamespaceSelector,
    BothSelectors,
    Block,
    Except,
    NoPeers,
    NamedPort,
    NumericPort,
    EndPort,
    Udp,
    Sctp,
    NoPort,
    NoProtocol,
    NoPorts,
    PolicyTypesAbsent,
    PolicyTypesGiven,
    Ingress,
    Egress,
    NoRules,
    InvalidPolicy,
    InvalidPolicyWithSelector,
    InitContainerPorts,
    HostNetwork,
    Finished,
    Released,
    InvalidNamespace,
    NamespaceNameLabel,
    SecondAddress,
}

impl Feature {
    pub const ALL: [Self; 34] = [
        Self::MatchLabels,
        Self::In,
        Self::NotIn,
        Self::Exists,
        Self::DoesNotExist,
        Self::PodSelectorOfPolicy,
        Self::PodSelectorOfPeer,
        Self::NamespaceSelector,
        Self::BothSelectors,
        Self::Block,
        Self::Except,
        Self::NoPeers,
        Self::NamedPort,
        Self::NumericPort,
        Self::EndPort,
        Self::Udp,
        Self::Sctp,
        Self::NoPort,
        Self::NoProtocol,
        Self::NoPorts,
        Self::PolicyTypesAbsent,
        Self::PolicyTypesGiven,
        Self::Ingress,
        Self::Egress,
        Self::NoRules,
        Self::InvalidPolicy,
        Self::InvalidPolicyWithSelector,
        Self::InitContainerPorts,
        Self::HostNetwork,
        Self::Finished,
        Self::Released,
        Self::InvalidNamespace,
        Self::NamespaceNameLabel,
        Self::SecondAddress,
    ];

    /// The number of clusters, out of this many, in which the feature must decide something: about
    /// a quarter of the measured number.
    pub fn at_least(self, cases: u32) -> u32 {
        let one_in = match self {
            Self::NotIn
            | Self::NamedPort
            | Self::EndPort
            | Self::InvalidPolicy
            | Self::InvalidPolicyWithSelector
            | Self::InitContainerPorts
            | Self::HostNetwork
            | Self::Finished
            | Self::Released
            | Self::InvalidNamespace
            | Self::NamespaceNameLabel
            | Self::SecondAddress => 200,
            _ => 50,
        };
        cases.div_ceil(one_in)
    }

    /// The objects without the feature: everything that has it is removed, or replaced by the
    /// simplest allowed thing. `None` if no object has it.
    pub fn ablate(
        self,
        before: &BTreeMap<ObjectKey, Stored>,
    ) -> Option<BTreeMap<ObjectKey, Stored>> {
        let mut objects = before.clone();
        match self {
            Self::InvalidPolicy | Self::InvalidPolicyWithSelector => {
                let readable = self == Self::InvalidPolicyWithSelector;
                objects.retain(|key, stored| !is_invalid_policy(key, stored, readable));
            }
            _ => objects.iter_mut().for_each(|(key, stored)| self.ablate_object(key, stored)),
        }
        let states = |objects: &BTreeMap<ObjectKey, Stored>| -> Vec<State> {
            objects.values().map(|stored| stored.state.clone()).collect()
        };
        (states(&objects) != states(before)).then_some(objects)
    }

    fn ablate_object(self, key: &ObjectKey, stored: &mut Stored) {
        let object = match &mut stored.state {
            State::Valid(object) => Arc::make_mut(object),
            State::Invalid(_) => {
                if self == Self::InvalidNamespace && key.kind == Kind::Namespace {
                    let name = ("kubernetes.io/metadata.name".to_owned(), key.name.clone());
                    let labels = [name].into();
                    stored.state = State::Valid(Arc::new(Object::Namespace(Namespace { labels })));
                }
                return;
            }
        };
        match object {
            Object::Namespace(namespace) if self == Self::NamespaceNameLabel => {
                namespace.labels = namespace
                    .clone()
                    .labels
                    .into_iter()
                    .filter(|(key, _)| key != "kubernetes.io/metadata.name")
                    .collect();
            }
            Object::Pod(pod) => self.ablate_pod(pod),
            Object::NetworkPolicy(policy) => self.ablate_policy(policy),
            // No other kinds are evaluated yet.
            _ => {}
        }
    }

    fn ablate_pod(self, pod: &mut Pod) {
        match self {
            Self::InitContainerPorts => pod.init_containers.clear(),
            Self::HostNetwork => pod.host_network = false,
            Self::Finished => {
                if matches!(pod.phase, Some(Phase::Succeeded | Phase::Failed)) {
                    pod.phase = None;
                }
            }
            Self::Released => pod.deleting = false,
            Self::SecondAddress => pod.pod_ips.truncate(1),
            _ => {}
        }
    }

    fn ablate_policy(self, policy: &mut NetworkPolicy) {
        match self {
            Self::PodSelectorOfPolicy => policy.pod_selector = LabelSelector::default(),
            Self::PolicyTypesAbsent if policy.policy_types.as_ref().is_none_or(Vec::is_empty) => {
                policy.policy_types = Some(vec![PolicyType::Ingress, PolicyType::Egress]);
            }
            Self::PolicyTypesGiven => policy.policy_types = None,
            Self::Ingress => policy.ingress = None,
            Self::Egress => policy.egress = None,
            Self::NoRules => {
                for rules in [&mut policy.ingress, &mut policy.egress] {
                    if rules.as_ref().is_none_or(Vec::is_empty) {
                        *rules = Some(vec![Rule { peers: None, ports: None }]);
                    }
                }
            }
            _ => {}
        }
        self.ablate_selector(&mut policy.pod_selector);
        for rule in [&mut policy.ingress, &mut policy.egress].into_iter().flatten().flatten() {
            self.ablate_rule(rule);
        }
    }

    fn ablate_selector(self, selector: &mut LabelSelector) {
        let operator = match self {
            Self::MatchLabels => {
                selector.match_labels = Pairs::new();
                return;
            }
            Self::In => Operator::In,
            Self::NotIn => Operator::NotIn,
            Self::Exists => Operator::Exists,
            Self::DoesNotExist => Operator::DoesNotExist,
            _ => return,
        };
        selector.match_expressions.retain(|expression| expression.operator != operator);
    }

    fn ablate_rule(self, rule: &mut Rule) {
        if self == Self::NoPeers && rule.peers.as_ref().is_none_or(Vec::is_empty) {
            rule.peers = Some(vec![Peer::Selectors { pods: None, namespaces: Some(no_match()) }]);
        }
        if self == Self::NoPorts && rule.ports.as_ref().is_none_or(Vec::is_empty) {
            rule.ports = Some(vec![unused()]);
        }
        for peer in rule.peers.iter_mut().flatten() {
            self.ablate_peer(peer);
        }
        for port in rule.ports.iter_mut().flatten() {
            self.ablate_port(port);
        }
    }

    fn ablate_peer(self, peer: &mut Peer) {
        match peer {
            Peer::IpBlock(block) => match self {
                Self::Block => *peer = Peer::Selectors { pods: Some(no_match()), namespaces: None },
                Self::Except => block.except.clear(),
                _ => {}
            },
            Peer::Selectors { pods, namespaces } => {
                pods.iter_mut().chain(&mut *namespaces).for_each(|s| self.ablate_selector(s));
                match (self, &pods, &namespaces) {
                    (Self::PodSelectorOfPeer, Some(_), None) => {
                        *pods = Some(LabelSelector::default());
                    }
                    (Self::NamespaceSelector, None, Some(_)) => {
                        *namespaces = Some(LabelSelector::default());
                    }
                    (Self::BothSelectors, Some(_), Some(_)) => *namespaces = None,
                    _ => {}
                }
            }
        }
    }

    fn ablate_port(self, port: &mut Port) {
        match (self, &mut port.port) {
            (Self::NamedPort, Some(PortNumber::Name(_)))
            | (Self::NumericPort, Some(PortNumber::Number { end: None, .. }))
            | (Self::NoPort, None) => *port = unused(),
            (Self::EndPort, Some(PortNumber::Number { end, .. })) => *end = None,
            (Self::Udp, _) if port.protocol == Some(Protocol::Udp) => port.protocol = None,
            (Self::Sctp, _) if port.protocol == Some(Protocol::Sctp) => port.protocol = None,
            (Self::NoProtocol, _) if port.protocol.is_none() => *port = unused(),
            _ => {}
        }
    }
}

/// Whether it is an invalid policy whose selector could be read (`readable`), or could not.
fn is_invalid_policy(key: &ObjectKey, stored: &Stored, readable: bool) -> bool {
    let State::Invalid(invalid) = &stored.state else { return false };
    key.kind == Kind::NetworkPolicy && invalid.subject.is_some() == readable
}

/// A selector that matches nothing.
fn no_match() -> LabelSelector {
    LabelSelector {
        match_labels: [("no".to_owned(), "body".to_owned())].into(),
        ..LabelSelector::default()
    }
}

fn unused() -> Port {
    Port { protocol: None, port: Some(PortNumber::Number { port: UNUSED, end: None }) }
}
