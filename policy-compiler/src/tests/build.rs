//! Short forms for writing clusters.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use crate::compile::Compiler;
use crate::image::Image;
use crate::model::*;
use crate::reference::prove;
use crate::resolve::LocalName;
use crate::selector::Selector;

/// Labels from `app=web team=a`.
pub(super) fn labels(text: &str) -> Labels {
    let pairs = text.split_whitespace().map(|pair| pair.split_once('=').unwrap());
    pairs.map(|(key, value)| (key.to_owned(), value.to_owned())).collect()
}

/// A name from `namespace/name`, or from `name` alone for an object without a namespace.
pub(super) fn name(text: &str) -> ObjectName {
    let (namespace, name) = text.split_once('/').unwrap_or(("", text));
    ObjectName::new(namespace, name)
}

pub(super) fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

pub(super) fn words<T: std::str::FromStr<Err: std::fmt::Debug> + Ord>(text: &str) -> BTreeSet<T> {
    text.split_whitespace().map(|word| word.parse().unwrap()).collect()
}

pub(super) fn protocol(text: &str) -> Option<Protocol> {
    Protocol::ALL.into_iter().find(|protocol| protocol.name().eq_ignore_ascii_case(text))
}

/// Named ports from `http=tcp/80 dns=udp/53`.
fn named_ports(text: &str) -> BTreeSet<NamedPort> {
    let one = |word: &str| {
        let (name, at) = word.split_once('=').unwrap();
        let (of, port) = at.split_once('/').unwrap();
        let (protocol, port) = (protocol(of).unwrap(), port.parse().unwrap());
        NamedPort { name: name.to_owned(), protocol, port }
    };
    text.split_whitespace().map(one).collect()
}

/// Ports from `80 100-200 http`.
fn ports(text: &str) -> Vec<PortMatch> {
    let one = |word: &str| {
        if !word.starts_with(|first: char| first.is_ascii_digit()) {
            return PortMatch::Named(word.to_owned());
        }
        let (first, last) = word.split_once('-').unwrap_or((word, word));
        PortMatch::Range { first: first.parse().unwrap(), last: last.parse().unwrap() }
    };
    text.split_whitespace().map(one).collect()
}

/// The addresses that a selector matches.
pub(super) fn who(selector: &str) -> Entity {
    Entity { selector: Some(Selector::parse(selector).unwrap()), ..Entity::default() }
}

/// The addresses that a selector does not match.
pub(super) fn not_who(selector: &str) -> Entity {
    Entity { not_selector: Some(Selector::parse(selector).unwrap()), ..Entity::default() }
}

/// The addresses of some nets.
pub(super) fn nets(nets: &str) -> Entity {
    Entity { nets: words(nets), ..Entity::default() }
}

/// The endpoints of a service.
pub(super) fn serving(service: &str) -> Entity {
    Entity { service: Some(name(service)), ..Entity::default() }
}

impl Entity {
    /// The same addresses except those of these nets.
    pub(super) fn but(mut self, nets: &str) -> Self {
        self.not_nets = words(nets);
        self
    }

    /// Only those of the addresses that are in these nets.
    pub(super) fn within(mut self, nets: &str) -> Self {
        self.nets = words(nets);
        self
    }
}

pub(super) fn allow() -> Rule {
    Rule::every_packet(0, Action::Allow)
}

pub(super) fn deny() -> Rule {
    Rule::every_packet(0, Action::Deny)
}

pub(super) fn pass() -> Rule {
    Rule::every_packet(0, Action::Pass)
}

pub(super) fn log() -> Rule {
    Rule::every_packet(0, Action::Log)
}

impl Rule {
    pub(super) fn from<const N: usize>(mut self, entities: [Entity; N]) -> Self {
        self.source.entities = Some(entities.into());
        self
    }

    pub(super) fn to<const N: usize>(mut self, entities: [Entity; N]) -> Self {
        self.destination.entities = Some(entities.into());
        self
    }

    pub(super) fn of(mut self, protocol: u8) -> Self {
        self.protocol = Some(protocol);
        self
    }

    pub(super) fn not_of(mut self, protocol: u8) -> Self {
        self.not_protocol = Some(protocol);
        self
    }

    pub(super) fn tcp(self, text: &str) -> Self {
        self.of(6).ports(text)
    }

    pub(super) fn udp(self, text: &str) -> Self {
        self.of(17).ports(text)
    }

    pub(super) fn ports(mut self, text: &str) -> Self {
        self.destination.ports = ports(text);
        self
    }

    pub(super) fn not_ports(mut self, text: &str) -> Self {
        self.destination.not_ports = ports(text);
        self
    }

    pub(super) fn source_ports(mut self, text: &str) -> Self {
        self.source.ports = ports(text);
        self
    }

    pub(super) fn not_source_ports(mut self, text: &str) -> Self {
        self.source.not_ports = ports(text);
        self
    }

    pub(super) fn family(mut self, family: Family) -> Self {
        self.family = Some(family);
        self
    }

    pub(super) fn icmp(mut self, protocol: u8, kind: Option<u8>, code: Option<u8>) -> Self {
        self.protocol = Some(protocol);
        self.icmp = Some(IcmpMatch { kind, code });
        self
    }

    pub(super) fn not_icmp(mut self, kind: u8, code: Option<u8>) -> Self {
        self.not_icmp = Some(IcmpMatch { kind: Some(kind), code });
        self
    }
}

fn numbered<const N: usize>(rules: [Rule; N]) -> Vec<Rule> {
    (0..).zip(rules).map(|(index, rule)| Rule { index, ..rule }).collect()
}

/// A policy that selects every endpoint (of its namespace), in the tier `default`, without an order or rules.
pub(super) fn policy(kind: PolicyKind, text: &str) -> (PolicyName, Policy) {
    let ObjectName { namespace, name } = name(text);
    let selector = match namespace.as_str() {
        "" => Selector::all(),
        namespace => Selector::equals(NAMESPACE, namespace),
    };
    let policy = Policy {
        tier: "default".to_owned(),
        order: Order::LAST,
        selector,
        hook: Hook::Endpoint,
        ingress: None,
        egress: None,
        broken: false,
    };
    (PolicyName::new(kind, namespace, name), policy)
}

/// A policy as its author writes it.
pub(super) struct Draft(pub(super) PolicyName, pub(super) Policy);

/// A `NetworkPolicy` of Kubernetes.
pub(super) fn kubernetes(name: &str) -> Draft {
    draft(PolicyKind::Kubernetes, name).order(1000.0)
}

/// A `GlobalNetworkPolicy`.
pub(super) fn global(name: &str) -> Draft {
    draft(PolicyKind::Global, name)
}

/// A staged `GlobalNetworkPolicy`.
pub(super) fn staged(name: &str) -> Draft {
    draft(PolicyKind::StagedGlobal, name)
}

pub(super) fn draft(kind: PolicyKind, name: &str) -> Draft {
    let (name, policy) = policy(kind, name);
    Draft(name, policy)
}

impl Draft {
    pub(super) fn tier(mut self, tier: &str) -> Self {
        tier.clone_into(&mut self.1.tier);
        self
    }

    pub(super) fn order(mut self, order: f64) -> Self {
        self.1.order = Order::new(order).unwrap();
        self
    }

    pub(super) fn selects(mut self, selector: &str) -> Self {
        let selector = Selector::parse(selector).unwrap();
        self.1.selector = Selector::and([self.1.selector, selector]);
        self
    }

    pub(super) fn hook(mut self, hook: Hook) -> Self {
        self.1.hook = hook;
        self
    }

    pub(super) fn ingress<const N: usize>(mut self, rules: [Rule; N]) -> Self {
        self.1.ingress = Some(numbered(rules));
        self
    }

    pub(super) fn egress<const N: usize>(mut self, rules: [Rule; N]) -> Self {
        self.1.egress = Some(numbered(rules));
        self
    }

    pub(super) fn broken(mut self) -> Self {
        self.1.broken = true;
        self
    }
}

/// A cluster for tests.
#[derive(Clone)]
pub(super) struct Cluster {
    pub(super) model: Model,
    profile_labels: BTreeMap<String, Arc<Labels>>,
}

impl Cluster {
    /// Creates a cluster without objects and failsafe ports.
    pub(super) fn new() -> Self {
        let failsafe = Failsafe { ports: [BTreeSet::new(), BTreeSet::new()] };
        Self { model: Model { failsafe, ..Model::default() }, profile_labels: BTreeMap::new() }
    }

    pub(super) fn namespace(mut self, name: &str, text: &str) -> Self {
        self.model.namespaces.insert(name.to_owned(), labels(text));
        self
    }

    pub(super) fn pod(self, pod: &str, text: &str, addresses: &str) -> Self {
        self.pod_with(pod, text, addresses, "")
    }

    /// Adds a pod with named ports.
    pub(super) fn pod_with(mut self, pod: &str, text: &str, addresses: &str, ports: &str) -> Self {
        let endpoint = Endpoint {
            labels: labels(text).into(),
            service_account: None,
            addresses: words(addresses).into(),
            named_ports: named_ports(ports),
        };
        self.model.endpoints.insert(name(pod), Arc::new(endpoint));
        self
    }

    /// Sets a pod's service account and the labels of that account.
    pub(super) fn account(mut self, pod: &str, account: &str, text: &str) -> Self {
        let pod = name(pod);
        let key = ObjectName::new(pod.namespace.as_str(), account);
        self.model.service_accounts.insert(key, labels(text));
        let endpoint = self.model.endpoints.get_mut(&pod).unwrap();
        Arc::make_mut(endpoint).service_account = Some(account.into());
        self
    }

    /// Adds a host endpoint with some profiles.
    pub(super) fn host(mut self, host: &str, text: &str, addresses: &str, profiles: &str) -> Self {
        let inherited = profiles.split_whitespace();
        let inherited = inherited.filter_map(|name| self.profile_labels.get(name).cloned());
        let host_endpoint = HostEndpoint {
            labels: labels(text),
            node: "node".to_owned(),
            interface: Interface::All,
            addresses: words(addresses).into(),
            named_ports: BTreeSet::new(),
            profiles: profiles.split_whitespace().map(str::to_owned).collect(),
            inherited: inherited.collect(),
            broken: false,
        };
        self.model.host_endpoints.insert(host.to_owned(), Arc::new(host_endpoint));
        self
    }

    /// Adds a host endpoint that is not valid.
    pub(super) fn broken_host(mut self, host: &str) -> Self {
        self.model.host_endpoints.insert(host.to_owned(), Arc::new(HostEndpoint::broken()));
        self
    }

    /// Adds a profile. Host endpoints that are added after it inherit its labels.
    pub(super) fn profile<const N: usize, const M: usize>(
        mut self,
        name: &str,
        text: &str,
        ingress: [Rule; N],
        egress: [Rule; M],
    ) -> Self {
        let (ingress, egress) = (numbered(ingress), numbered(egress));
        let profile = Profile { ingress, egress };
        self.profile_labels.insert(name.to_owned(), Arc::new(labels(text)));
        self.model.profiles.insert(name.to_owned(), Arc::new(profile));
        self
    }

    pub(super) fn network_set(mut self, set: &str, text: &str, nets: &str) -> Self {
        let network_set = NetworkSet { labels: labels(text), nets: words(nets) };
        self.model.network_sets.insert(name(set), Arc::new(network_set));
        self
    }

    /// Adds endpoints to a service: addresses, and ports like `tcp/80`.
    pub(super) fn service(mut self, service: &str, addresses: &str, ports: &str) -> Self {
        let port = |word: &str| {
            let (of, port) = word.split_once('/').unwrap();
            (protocol(of).unwrap(), port.parse().unwrap())
        };
        let ports = ports.split_whitespace().map(port).collect();
        let some = ServiceEndpoints { addresses: words(addresses), ports };
        Arc::make_mut(self.model.services.entry(name(service)).or_default()).insert(some);
        self
    }

    pub(super) fn tier(mut self, name: &str, order: f64, default_action: DefaultAction) -> Self {
        let tier = Tier { order: Order::new(order).unwrap(), default_action };
        self.model.tiers.insert(name.to_owned(), tier);
        self
    }

    pub(super) fn policy(mut self, Draft(name, policy): Draft) -> Self {
        self.model.policies.insert(name, Arc::new(policy));
        self
    }

    pub(super) fn failsafe(mut self, ingress: &str, egress: &str) -> Self {
        let list = |text: &str| {
            let one = |word: &str| {
                let (of, at) = word.split_once('/').unwrap();
                let (port, net) = at.split_once('@').unwrap_or((at, ""));
                let net = (!net.is_empty()).then(|| net.parse().unwrap());
                (protocol(of).unwrap(), port.parse().unwrap(), net)
            };
            text.split_whitespace().map(one).collect()
        };
        self.model.failsafe.ports = [list(ingress), list(egress)];
        self
    }

    pub(super) fn unknown(mut self, addresses: &str) -> Self {
        self.model.unknown = words(addresses).into();
        self
    }

    /// Every pod and every host endpoint.
    pub(super) fn all(&self) -> BTreeSet<LocalName> {
        let hosts = self.model.host_endpoints.keys().map(|name| ObjectName::new("", name.as_str()));
        self.model.endpoints.keys().cloned().chain(hosts).collect()
    }

    /// The image of every endpoint, which is proved first.
    pub(super) fn image(&self) -> Image {
        let image = Compiler::new().compile(&self.model, &self.all());
        prove(&self.model, &self.all(), &image).unwrap();
        image
    }
}
