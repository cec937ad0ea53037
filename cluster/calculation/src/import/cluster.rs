//! Imports a `ClusterNetworkPolicy`, or an object of the older kinds that it replaces.
//!
//! Source: network-policy-api, `ClusterNetworkPolicySpec`.

use std::collections::{BTreeMap, BTreeSet};

use ipnet::IpNet;
use manx_policy_compiler::model::{
    Action, Entity, Hook, KUBERNETES, ORCHESTRATOR, Order, Policy, PortMatch, Protocol, Rule,
    RuleEnd,
};
use manx_policy_compiler::selector::Selector;

use super::Node;
use super::kubernetes::{label_selector, pods_in};
use manx_objects::object::ClusterNetworkPolicy;
use manx_objects::object::cluster::{
    ClusterAction, ClusterMatch, ClusterPeer, ClusterProtocol, ClusterRule, ClusterTier, Pods,
};

/// The nodes from which the field `nodes` of a rule selects. `None` if a Node is invalid, because it is then not known
/// which nodes match.
pub(super) type Nodes<'a> = Option<&'a BTreeMap<String, Node>>;

/// Returns whether a rule of the policy names nodes.
pub(super) fn names_nodes(wire: &ClusterNetworkPolicy) -> bool {
    wire.egress.iter().any(|rule| match &rule.matches {
        ClusterMatch::Of { peers, .. } => {
            peers.iter().any(|peer| matches!(peer, ClusterPeer::Nodes(_)))
        }
        ClusterMatch::Unsupported => false,
    })
}

/// Imports a policy. It applies to the directions in which it has rules.
pub(super) fn import(wire: &ClusterNetworkPolicy, nodes: Nodes<'_>) -> Policy {
    let tier = match wire.tier {
        ClusterTier::Admin => "kube-admin",
        ClusterTier::Baseline => "kube-baseline",
    };
    let rules = |wire: &[ClusterRule], end: fn(&mut Rule) -> &mut RuleEnd| {
        let rules = (0..).zip(wire).flat_map(|(index, it)| rule(index, it, nodes, end));
        (!wire.is_empty()).then(|| rules.collect())
    };
    Policy {
        tier: tier.to_owned(),
        order: Order::new(f64::from(wire.priority)).unwrap_or(Order::LAST),
        selector: subject(Some(&wire.subject)),
        hook: Hook::Endpoint,
        ingress: rules(&wire.ingress, |rule| &mut rule.source),
        egress: rules(&wire.egress, |rule| &mut rule.destination),
        broken: false,
    }
}

/// Returns a selector of pods in all namespaces. It selects every pod if the subject is not known.
pub(super) fn subject(wire: Option<&Pods>) -> Selector {
    match wire {
        Some(pods) => pods_in(&pods.namespaces, Some(&pods.pods)),
        None => Selector::equals(ORCHESTRATOR, KUBERNETES),
    }
}

/// Returns the model's rules for one rule, one for each protocol. If the rule cannot be decided here, an Accept gives
/// no rule, and a Deny or Pass gives a rule that denies everything.
fn rule(
    index: u32,
    wire: &ClusterRule,
    nodes: Nodes<'_>,
    end: fn(&mut Rule) -> &mut RuleEnd,
) -> Vec<Rule> {
    let action = match wire.action {
        ClusterAction::Accept => Action::Allow,
        ClusterAction::Deny => Action::Deny,
        ClusterAction::Pass => Action::Pass,
    };
    let decided = match &wire.matches {
        ClusterMatch::Of { peers, protocols } => {
            entities(peers, nodes).map(|entities| (entities, protocols))
        }
        ClusterMatch::Unsupported => None,
    };
    let Some((entities, protocols)) = decided else {
        return match action {
            Action::Allow => Vec::new(),
            _ => vec![Rule::every_packet(index, Action::Deny)],
        };
    };
    let mut rule = Rule::every_packet(index, action);
    end(&mut rule).entities = Some(entities);
    match protocols {
        Some(protocols) => by_protocol(&rule, protocols),
        None => vec![rule],
    }
}

/// Returns the entities for the peers. Returns `None` if the import does not know what a peer means.
fn entities(wire: &[ClusterPeer], nodes: Nodes<'_>) -> Option<Vec<Entity>> {
    let mut entities = Vec::new();
    for peer in wire {
        entities.push(match peer {
            ClusterPeer::Pods(pods) => {
                Entity { selector: Some(subject(Some(pods))), ..Entity::default() }
            }
            ClusterPeer::Networks(nets) => {
                Entity { nets: nets.iter().map(IpNet::trunc).collect(), ..Entity::default() }
            }
            ClusterPeer::Nodes(labels) => {
                let selector = label_selector(labels);
                let fits = |node: &&Node| selector.matches(&node.labels);
                let addresses = nodes?.values().filter(fits).flat_map(|node| &node.addresses);
                let nets: BTreeSet<IpNet> = addresses.copied().map(IpNet::from).collect();
                if nets.is_empty() {
                    // An entity without nets would match every address.
                    continue;
                }
                Entity { nets, ..Entity::default() }
            }
        });
    }
    Some(entities)
}

/// Returns one rule for each protocol that is listed with ports, and one rule for the named ports, because each named
/// port has its own protocol. An entry without ports covers all ports of its protocol.
fn by_protocol(rule: &Rule, listed: &[ClusterProtocol]) -> Vec<Rule> {
    let mut rules = Vec::new();
    for protocol in Protocol::ALL {
        let of_protocol = listed.iter().filter_map(|entry| match entry {
            ClusterProtocol::Ports { protocol: of, ports } if *of == protocol => {
                Some(ports.map(|(first, last)| PortMatch::Range { first, last }))
            }
            _ => None,
        });
        let of_protocol: Vec<Option<PortMatch>> = of_protocol.collect();
        if !of_protocol.is_empty() {
            let mut rule = Rule { protocol: Some(protocol.number()), ..rule.clone() };
            // This is `None` if one entry has no ports.
            let ports: Option<Vec<PortMatch>> = of_protocol.into_iter().collect();
            rule.destination.ports = ports.unwrap_or_default();
            rules.push(rule);
        }
    }
    let named = listed.iter().filter_map(|entry| match entry {
        ClusterProtocol::Named(name) => Some(PortMatch::Named(name.clone())),
        ClusterProtocol::Ports { .. } => None,
    });
    let named: Vec<PortMatch> = named.collect();
    if !named.is_empty() {
        let mut rule = rule.clone();
        rule.destination.ports = named;
        rules.push(rule);
    }
    rules
}
