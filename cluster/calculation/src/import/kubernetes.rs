//! Imports a Kubernetes NetworkPolicy, with the API server's defaults applied.
//!
//! Source: Kubernetes API reference, `NetworkPolicySpec`.

use std::collections::BTreeSet;

use ipnet::IpNet;

use manx_policy_compiler::model::{
    Action, Entity, Hook, KUBERNETES, NAMESPACE, NAMESPACE_PREFIX, ORCHESTRATOR, Order, Policy,
    PortMatch, Protocol, Rule,
};
use manx_policy_compiler::selector::Selector;

use manx_objects::object::{self, NetworkPolicy, Operator, PolicyType, PortNumber};

/// Without `policyTypes`, or with an empty list, a policy applies to ingress. It also applies to egress if it has
/// egress rules. Rules of a direction that is not in the list have no effect.
pub(super) fn import(namespace: &str, wire: &NetworkPolicy) -> Policy {
    let egress_rules = wire.egress.as_deref().unwrap_or_default();
    let (ingress, egress) = match wire.policy_types.as_deref() {
        None | Some([]) => (true, !egress_rules.is_empty()),
        Some(types) => (types.contains(&PolicyType::Ingress), types.contains(&PolicyType::Egress)),
    };
    let ingress_rules = wire.ingress.as_deref().unwrap_or_default();
    let rules = |wire: &[object::Rule], ends: fn(&mut Rule) -> &mut Option<Vec<Entity>>| {
        (0..).zip(wire).flat_map(|(index, it)| rule(namespace, index, it, ends)).collect()
    };
    Policy {
        ingress: ingress.then(|| rules(ingress_rules, |rule| &mut rule.source.entities)),
        egress: egress.then(|| rules(egress_rules, |rule| &mut rule.destination.entities)),
        ..isolating(namespace, Some(&wire.pod_selector))
    }
}

/// Returns the replacement of an invalid policy: it isolates the pods that the policy may select in both directions,
/// and allows nothing. If the policy's selector could not be read, these are all pods of the namespace.
pub(super) fn isolating(namespace: &str, pods: Option<&object::LabelSelector>) -> Policy {
    Policy {
        tier: super::DEFAULT_TIER.to_owned(),
        order: Order::KUBERNETES,
        selector: pods_of(namespace, pods),
        hook: Hook::Endpoint,
        ingress: Some(Vec::new()),
        egress: Some(Vec::new()),
        broken: false,
    }
}

/// Returns a selector of pods in one namespace.
pub(super) fn pods_of(namespace: &str, pods: Option<&object::LabelSelector>) -> Selector {
    Selector::and([
        Selector::equals(NAMESPACE, namespace),
        Selector::equals(ORCHESTRATOR, KUBERNETES),
        pods.map_or_else(Selector::all, |pods| labels("", pods)),
    ])
}

/// Returns a selector of pods, by the labels of their namespaces and their own labels.
pub(super) fn pods_in(
    namespaces: &object::LabelSelector,
    pods: Option<&object::LabelSelector>,
) -> Selector {
    Selector::and([
        Selector::equals(ORCHESTRATOR, KUBERNETES),
        labels(NAMESPACE_PREFIX, namespaces),
        pods.map_or_else(Selector::all, |pods| labels("", pods)),
    ])
}

/// Returns the selector for a label selector, without any limit to pods or namespaces.
pub fn label_selector(wire: &object::LabelSelector) -> Selector {
    labels("", wire)
}

/// Returns the selector for a label selector whose keys get a prefix.
fn labels(prefix: &str, wire: &object::LabelSelector) -> Selector {
    let key = |key: &str| format!("{prefix}{key}");
    let equal = wire.match_labels.iter();
    let equal = equal.map(|(name, value)| Selector::equals(key(name), value.as_str()));
    let expressions = wire.match_expressions.iter().map(|expression| {
        let values = expression.values.iter().cloned();
        let key = key(&expression.key);
        match expression.operator {
            Operator::In => Selector::is_in(key, values),
            Operator::NotIn => Selector::not_in(key, values),
            Operator::Exists => Selector::has(key),
            Operator::DoesNotExist => Selector::not_has(key),
        }
    });
    Selector::and(equal.chain(expressions))
}

/// Absent or empty peers mean every address. Absent or empty ports mean every port. A rule for several protocols
/// becomes one rule for each protocol.
fn rule(
    namespace: &str,
    index: u32,
    wire: &object::Rule,
    entities: fn(&mut Rule) -> &mut Option<Vec<Entity>>,
) -> Vec<Rule> {
    let mut rule = Rule::every_packet(index, Action::Allow);
    if let Some(peers) = wire.peers.as_deref().filter(|peers| !peers.is_empty()) {
        *entities(&mut rule) = Some(peers.iter().map(|it| peer(namespace, it)).collect());
    }
    match wire.ports.as_deref() {
        None | Some([]) => vec![rule],
        Some(ports) => by_protocol(&rule, ports),
    }
}

/// Returns one rule for each protocol in `ports`, with its ports. An entry without a port covers all ports of its
/// protocol.
fn by_protocol(rule: &Rule, ports: &[object::Port]) -> Vec<Rule> {
    let its = |port: &object::Port| port.protocol.unwrap_or(Protocol::Tcp);
    let protocols: BTreeSet<Protocol> = ports.iter().map(its).collect();
    let of_protocol = |protocol: Protocol| {
        let mut rule = Rule { protocol: Some(protocol.number()), ..rule.clone() };
        let ports = ports.iter().filter(|port| its(port) == protocol);
        // This is `None` if one entry has no port.
        let matches: Option<Vec<PortMatch>> =
            ports.map(|port| port.port.as_ref().map(port_match)).collect();
        rule.destination.ports = matches.unwrap_or_default();
        rule
    };
    protocols.into_iter().map(of_protocol).collect()
}

fn port_match(wire: &PortNumber) -> PortMatch {
    match wire {
        PortNumber::Number { port, end } => {
            PortMatch::Range { first: *port, last: end.unwrap_or(*port) }
        }
        PortNumber::Name(name) => PortMatch::Named(name.clone()),
    }
}

fn peer(namespace: &str, wire: &object::Peer) -> Entity {
    match wire {
        object::Peer::IpBlock(block) => Entity {
            nets: BTreeSet::from([block.cidr.trunc()]),
            not_nets: block.except.iter().map(IpNet::trunc).collect(),
            ..Entity::default()
        },
        object::Peer::Selectors { pods, namespaces: None } => {
            Entity { selector: Some(pods_of(namespace, pods.as_ref())), ..Entity::default() }
        }
        object::Peer::Selectors { pods, namespaces: Some(namespaces) } => {
            Entity { selector: Some(pods_in(namespaces, pods.as_ref())), ..Entity::default() }
        }
    }
}
