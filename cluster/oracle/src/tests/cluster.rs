//! A test cluster. Pods and namespaces come from text, and everything else from wire objects.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use crate::{Oracle, Packet, Party};
use manx_objects::contents::{Contents, Stored};
use manx_objects::object::calico::{
    self, Action, EntityRule, HostEndpoint, NetworkSet, Order, Rule, Subject, Tier,
};
use manx_objects::object::{Kind, Object, ObjectKey, Pairs, ServiceAccount};
use manx_objects::problem::Place;
use manx_objects::{Invalid, State};

pub(super) const TCP: u8 = 6;
pub(super) const UDP: u8 = 17;
pub(super) const SCTP: u8 = 132;
pub(super) const ICMP: u8 = 1;

/// `web` and `db` in shop (team a), `web` in lab. Pod addresses are 10.0.<namespace>.<pod>; shop/web has a second one.
pub(super) const CLUSTER: &str = "
apiVersion: v1
kind: Namespace
metadata: {name: shop, labels: {team: a}}
---
apiVersion: v1
kind: Pod
metadata: {name: web, namespace: shop, labels: {app: web}}
spec:
  nodeName: node-1
  serviceAccountName: runner
  containers: [{name: c, ports: [{name: http, containerPort: 80}]}]
  initContainers: [{name: i, ports: [{name: dns, containerPort: 53, protocol: UDP}]}]
status: {podIPs: [{ip: 10.0.1.1}, {ip: 'fd00::1'}]}
---
apiVersion: v1
kind: Pod
metadata: {name: db, namespace: shop, labels: {app: db, tier: back}}
spec: {nodeName: node-2, containers: [{name: c, ports: [{name: http, containerPort: 8080}]}]}
status: {podIPs: [{ip: 10.0.1.2}, {ip: 'fd00::2'}]}
---
apiVersion: v1
kind: Pod
metadata: {name: web, namespace: lab, labels: {app: web}}
spec: {nodeName: node-1}
status: {podIP: 10.0.2.1}
";

/// The objects of a cluster. Tests add more objects.
#[derive(Clone)]
pub(super) struct Cluster(pub(super) BTreeMap<ObjectKey, Stored>);

impl Cluster {
    pub(super) fn new() -> Self {
        Self::of(&[CLUSTER])
    }

    pub(super) fn of(texts: &[&str]) -> Self {
        let names: Vec<String> = (0..texts.len()).map(|index| format!("{index}.yaml")).collect();
        let contents =
            Contents::from_texts(names.iter().map(String::as_str).zip(texts.iter().copied()));
        Self(contents.objects)
    }

    /// Adds Kubernetes objects from text.
    pub(super) fn text(mut self, text: &str) -> Self {
        self.0.append(&mut Self::of(&[text]).0);
        self
    }

    fn put(mut self, kind: Kind, name: &str, state: State) -> Self {
        let (namespace, name) = name.split_once('/').unwrap_or(("", name));
        let key = ObjectKey { kind, namespace: namespace.to_owned(), name: name.to_owned() };
        let place = Place { file: "test".into(), document: 0, at: None };
        self.0.insert(key, Stored { state, place: Arc::new(place) });
        self
    }

    /// Adds an object. The name of a namespaced object is `namespace/name`.
    pub(super) fn with(self, kind: Kind, name: &str, object: Object) -> Self {
        self.put(kind, name, State::Valid(Arc::new(object)))
    }

    pub(super) fn invalid(self, kind: Kind, name: &str, invalid: Invalid) -> Self {
        self.put(kind, name, State::Invalid(Box::new(invalid)))
    }

    /// Adds a Calico policy. It is global unless its name contains a namespace.
    pub(super) fn policy(self, name: &str, policy: calico::Policy) -> Self {
        let kind =
            if name.contains('/') { Kind::CalicoNetworkPolicy } else { Kind::GlobalNetworkPolicy };
        self.with(kind, name, Object::CalicoPolicy(Box::new(policy)))
    }

    pub(super) fn tier(self, name: &str, order: Option<f64>, default_action: Action) -> Self {
        let order = order.and_then(Order::new);
        let tier = Tier { order, default_action: Some(default_action) };
        self.with(Kind::Tier, name, Object::Tier(tier))
    }

    pub(super) fn set(self, name: &str, labels: &[(&str, &str)], nets: &[&str]) -> Self {
        let kind = if name.contains('/') { Kind::NetworkSet } else { Kind::GlobalNetworkSet };
        let nets = nets.iter().map(|net| net.parse().unwrap()).collect();
        let set = NetworkSet { labels: pairs(labels), nets };
        self.with(kind, name, Object::NetworkSet(Box::new(set)))
    }

    pub(super) fn account(self, name: &str, labels: &[(&str, &str)]) -> Self {
        let account = ServiceAccount { labels: pairs(labels) };
        self.with(Kind::ServiceAccount, name, Object::ServiceAccount(account))
    }

    pub(super) fn host(self, name: &str, host: HostEndpoint) -> Self {
        self.with(Kind::HostEndpoint, name, Object::HostEndpoint(Box::new(host)))
    }

    pub(super) fn oracle(&self) -> Oracle {
        Oracle::new(&self.0)
    }

    /// Returns whether a packet to a TCP port passes.
    pub(super) fn allows(&self, from: &Party, to: &Party, port: u16) -> bool {
        self.passes(from, to, Packet::to_port(TCP, Some(port)))
    }

    pub(super) fn passes(&self, from: &Party, to: &Party, packet: Packet) -> bool {
        self.oracle().judge(from, to, packet).allowed()
    }

    /// Returns the verdicts of both sides on a packet to a TCP port.
    pub(super) fn says(&self, from: &Party, to: &Party, port: u16) -> String {
        self.oracle().judge(from, to, Packet::to_port(TCP, Some(port))).to_string()
    }
}

pub(super) fn pairs(pairs: &[(&str, &str)]) -> Pairs {
    pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}

/// Returns a policy with ingress rules for the endpoints that a selector matches.
pub(super) fn ingress(selector: &str, rules: Vec<Rule>) -> calico::Policy {
    calico::Policy { subject: selecting(selector), ingress: rules, ..calico::Policy::default() }
}

/// Returns a policy with egress rules for the endpoints that a selector matches.
pub(super) fn egress(selector: &str, rules: Vec<Rule>) -> calico::Policy {
    calico::Policy { subject: selecting(selector), egress: rules, ..calico::Policy::default() }
}

pub(super) fn selecting(selector: &str) -> Subject {
    Subject { selector: Some(selector.to_owned()), ..Subject::default() }
}

pub(super) fn in_tier(tier: &str, order: f64, policy: calico::Policy) -> calico::Policy {
    calico::Policy { tier: Some(tier.to_owned()), order: Order::new(order), ..policy }
}

pub(super) fn at_order(order: f64, policy: calico::Policy) -> calico::Policy {
    calico::Policy { order: Order::new(order), ..policy }
}

/// Returns a rule for every packet.
pub(super) fn rule(action: Action) -> Rule {
    Rule {
        action,
        ip_version: None,
        protocol: None,
        not_protocol: None,
        icmp: None,
        not_icmp: None,
        source: EntityRule::default(),
        destination: EntityRule::default(),
        http: false,
    }
}

pub(super) fn from(action: Action, source: EntityRule) -> Rule {
    Rule { source, ..rule(action) }
}

pub(super) fn to(action: Action, destination: EntityRule) -> Rule {
    Rule { destination, ..rule(action) }
}

/// Returns the entity that a selector matches.
pub(super) fn matching(selector: &str) -> EntityRule {
    EntityRule { selector: Some(selector.to_owned()), ..EntityRule::default() }
}

pub(super) fn pod(namespace: &str, name: &str) -> Party {
    let address = match (namespace, name) {
        ("shop", "web") => "10.0.1.1",
        ("shop", "db") => "10.0.1.2",
        _ => "10.0.2.1",
    };
    pod_at(namespace, name, address)
}

pub(super) fn pod_at(namespace: &str, name: &str, address: &str) -> Party {
    let address = ip(address);
    Party::Pod { namespace: namespace.to_owned(), name: name.to_owned(), address }
}

pub(super) fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

pub(super) fn address(text: &str) -> Party {
    Party::Address(ip(text))
}

pub(super) fn node(name: &str) -> Party {
    Party::Node { name: name.to_owned(), address: ip("172.18.0.2") }
}

pub(super) fn web() -> Party {
    pod("shop", "web")
}

pub(super) fn db() -> Party {
    pod("shop", "db")
}

pub(super) fn lab() -> Party {
    pod("lab", "web")
}

pub(super) fn stranger() -> Party {
    address("192.0.2.1")
}
