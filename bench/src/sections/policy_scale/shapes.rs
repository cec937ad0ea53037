//! The clusters that are measured. They are the same in every run.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use ipnet::{IpNet, Ipv4Net};
use manx_policy_compiler::model::{
    Action, AddressSet, Endpoint, Entity, Hook, Interner, KUBERNETES, Model, NAMESPACE, NamedPort,
    NetworkSet, ORCHESTRATOR, ObjectName, Order, Policy, PolicyKind, PolicyName, PortMatch,
    Protocol, Rule,
};
use manx_policy_compiler::selector::Selector;

/// A cluster, and one of its nodes.
pub(super) struct Shape {
    pub(super) model: Model,
    /// The endpoints of the node.
    pub(super) local: BTreeSet<ObjectName>,
    /// The addresses to look up.
    pub(super) peers: Vec<u32>,
}

/// A policy of the default tier without egress rules.
pub(super) fn policy(order: Order, selector: Selector, ingress: Option<Vec<Rule>>) -> Policy {
    Policy {
        tier: "default".to_owned(),
        order,
        selector,
        hook: Hook::Endpoint,
        ingress,
        egress: None,
        broken: false,
    }
}

/// A selector of the pods of a namespace, or of one app in it.
fn pods(namespace: &str, app: Option<usize>) -> Selector {
    Selector::and([
        Selector::equals(NAMESPACE, namespace),
        Selector::equals(ORCHESTRATOR, KUBERNETES),
        app.map_or_else(Selector::all, |app| Selector::equals("app", format!("app-{app}"))),
    ])
}

/// The endpoints and sets that a selector matches, as a peer in a rule.
pub(super) fn members(selector: Selector) -> Entity {
    Entity { selector: Some(selector), ..Entity::default() }
}

fn labels(pairs: &[(&str, String)]) -> BTreeMap<String, String> {
    pairs.iter().map(|(key, value)| ((*key).to_owned(), value.clone())).collect()
}

/// 100,000 pods in 1,000 namespaces with 14 Kubernetes policies each. 250 pods are local.
pub(super) fn cluster() -> Shape {
    const NAMESPACES: usize = 1_000;
    const PODS: usize = 100;
    let mut model = Model::default();
    let mut label_sets = Interner::default();
    for namespace in 0..NAMESPACES {
        let name = format!("ns-{namespace}");
        model.namespaces.insert(name.clone(), labels(&[("team", format!("{}", namespace % 40))]));
        for pod in 0..PODS {
            let address = 0x0a00_0000 + (namespace * PODS + pod) as u32;
            let http = NamedPort { name: "http".to_owned(), protocol: Protocol::Tcp, port: 8080 };
            let endpoint = Endpoint {
                labels: label_sets.intern(Cow::Owned(labels(&[
                    ("app", format!("app-{}", pod % 20)),
                    ("pod-template-hash", format!("h{}", pod % 25)),
                    ("tier", format!("t{}", pod % 3)),
                ]))),
                service_account: Some("default".into()),
                addresses: AddressSet::from([IpAddr::V4(Ipv4Addr::from_bits(address))]),
                named_ports: BTreeSet::from([http]),
            };
            let key = ObjectName::new(name.as_str(), format!("pod-{pod}"));
            model.endpoints.insert(key, Arc::new(endpoint));
        }
        for index in 0..14 {
            let key = PolicyName::new(PolicyKind::Kubernetes, name.as_str(), format!("p-{index}"));
            model.policies.insert(key, Arc::new(namespace_policy(&name, namespace, index)));
        }
    }
    let local = (0..250).map(|index| {
        ObjectName::new(format!("ns-{}", index * 4), format!("pod-{}", index * 7 % PODS))
    });
    Shape {
        local: local.collect(),
        model,
        peers: (0..(NAMESPACES * PODS) as u32).map(|pod| 0x0a00_0000 + pod).collect(),
    }
}

/// The policy with this index in a namespace: a deny for all pods, DNS for all pods, or one of twelve for single apps.
fn namespace_policy(name: &str, namespace: usize, index: usize) -> Policy {
    if index == 0 {
        let mut policy = policy(Order::KUBERNETES, pods(name, None), Some(Vec::new()));
        policy.egress = Some(Vec::new());
        return policy;
    }
    let mut allow = Rule::every_packet(0, Action::Allow);
    if index == 1 {
        allow.protocol = Some(17);
        allow.destination.ports = vec![PortMatch::Range { first: 53, last: 53 }];
        let policy = policy(Order::KUBERNETES, pods(name, None), None);
        return Policy { egress: Some(vec![allow]), ..policy };
    }
    allow.protocol = Some(6);
    let mut egress = allow.clone();
    let team = Selector::equals("pcns.team", format!("{}", (namespace + index) % 40));
    let everywhere = Selector::equals(ORCHESTRATOR, KUBERNETES);
    allow.source.entities = Some(vec![
        members(pods(name, Some((index + 1) % 20))),
        members(Selector::and([everywhere, team, Selector::equals("tier", "t1")])),
    ]);
    allow.destination.ports = vec![
        PortMatch::Named("http".to_owned()),
        PortMatch::Range { first: 9000 + index as u16, last: 9100 },
    ];
    let mut block = Rule::every_packet(1, Action::Allow);
    let net = Ipv4Net::new(Ipv4Addr::new(192, 168, ((namespace + index) % 64) as u8, 0), 24);
    let nets = net.into_iter().map(IpNet::V4).collect();
    block.source.entities = Some(vec![Entity { nets, ..Entity::default() }]);
    egress.destination.entities = Some(vec![members(pods(name, Some((index + 3) % 20)))]);
    egress.destination.ports = vec![PortMatch::Named("http".to_owned())];
    let policy = policy(Order::KUBERNETES, pods(name, Some(index)), Some(vec![allow, block]));
    Policy { egress: Some(vec![egress]), ..policy }
}

/// Marsaglia's 32-bit xorshift.
struct Random(u32);

impl Random {
    fn next(&mut self) -> u32 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 17;
        self.0 ^= self.0 << 5;
        self.0
    }
}

/// A shape with one endpoint and global policies. Each of their rules selects a network set.
fn with_sets(policies: usize, rules: usize, sizes: impl Iterator<Item = usize>) -> Shape {
    let mut model = Model::default();
    let name = ObjectName::new("a", "pod");
    let addresses = AddressSet::from([IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1))]);
    model.namespaces.insert("a".to_owned(), BTreeMap::new());
    model.endpoints.insert(name.clone(), Arc::new(Endpoint { addresses, ..Endpoint::default() }));
    let mut random = Random(12_345);
    let mut peers = Vec::new();
    let mut sets = 0;
    for size in sizes {
        let mut nets = BTreeSet::new();
        for _ in 0..size {
            let address = 0x0b00_0000 | random.next() & 0x00ff_ffff;
            let len = if random.next().is_multiple_of(64) { 24 } else { 32 };
            let net = Ipv4Net::new(Ipv4Addr::from_bits(address), len);
            nets.extend(net.map(|net| IpNet::V4(net.trunc())));
            peers.push(address);
        }
        let labels = labels(&[("set", format!("s{sets}"))]);
        let key = ObjectName::new("", format!("set-{sets}"));
        model.network_sets.insert(key, Arc::new(NetworkSet { labels, nets }));
        sets += 1;
    }
    for index in 0..policies {
        let list = (0..rules).map(|at| {
            let action = if at % 5 == 0 { Action::Deny } else { Action::Allow };
            let mut rule = Rule::every_packet(at as u32, action);
            rule.protocol = Some(if at % 3 == 0 { 17 } else { 6 });
            let set = format!("s{}", (index * rules + at) % sets);
            rule.source.entities = Some(vec![members(Selector::equals("set", set))]);
            let first = (8000 + (index * 7 + at * 13) % 1000) as u16;
            rule.destination.ports = vec![PortMatch::Range { first, last: first + 9 }];
            rule
        });
        let order = Order::new(index as f64).unwrap_or(Order::LAST);
        let policy = policy(order, Selector::equals(NAMESPACE, "a"), Some(list.collect()));
        let key = PolicyName::new(PolicyKind::Global, "", format!("p{index}"));
        model.policies.insert(key, Arc::new(policy));
    }
    Shape { model, local: BTreeSet::from([name]), peers }
}

/// The shape of a large Calico site.
pub(super) fn site() -> Shape {
    const SETS: usize = 3_708;
    let rest = (256_000 - 54_566) / (SETS - 1);
    let sizes = std::iter::once(54_566).chain(std::iter::repeat_n(rest, SETS - 1));
    with_sets(294, 68, sizes)
}

/// Many small sets, each selected by one rule.
pub(super) fn sets() -> Shape {
    with_sets(250, 50, std::iter::repeat_n(5, 12_500))
}

/// Selectors that overlap in every way, so that nearly every address has its own class.
pub(super) fn explosion() -> Shape {
    let mut shape = with_sets(0, 0, std::iter::empty());
    let mut random = Random(777);
    for index in 0..8_000 {
        let mut labels = BTreeMap::new();
        for key in 0..16 {
            if random.next().is_multiple_of(2) {
                labels.insert(format!("l{key}"), format!("v{}", random.next() % 4));
            }
        }
        let address = 0x0a10_0000 + index;
        shape.peers.push(address);
        let addresses = AddressSet::from([IpAddr::V4(Ipv4Addr::from_bits(address))]);
        let endpoint = Endpoint { labels: Arc::new(labels), addresses, ..Endpoint::default() };
        shape.model.endpoints.insert(ObjectName::new("a", format!("p{index}")), Arc::new(endpoint));
    }
    let rules = (0..2_000u32).map(|index| {
        let mut rule = Rule::every_packet(index, Action::Allow);
        rule.protocol = Some(6);
        let pinned =
            Selector::equals(format!("l{}", random.next() % 16), format!("v{}", random.next() % 4));
        let present = Selector::has(format!("l{}", random.next() % 16));
        rule.source.entities = Some(vec![members(Selector::and([pinned, present]))]);
        let first = 8000 + index as u16;
        rule.destination.ports = vec![PortMatch::Range { first, last: first + 20 }];
        rule
    });
    let policy = policy(Order::LAST, Selector::equals(NAMESPACE, "a"), Some(rules.collect()));
    shape.model.policies.insert(PolicyName::new(PolicyKind::Global, "", "p"), Arc::new(policy));
    shape
}

/// A pseudo-random number below `below` that is determined by `index`. The factor permutes all 32-bit numbers.
pub(super) fn shuffled(index: u32, below: usize) -> usize {
    ((u64::from(index.wrapping_mul(2_654_435_761)) * below as u64) >> 32) as usize
}
