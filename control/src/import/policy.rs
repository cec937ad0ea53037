//! A NetworkPolicy with the API server's defaults applied.
//!
//! Source: Kubernetes API reference, `NetworkPolicySpec`.

use std::collections::BTreeSet;

use manx_policy_compiler::model::{
    ExceptOutside, IpBlock, LabelSelector, Peer, Policy, PortMatch, Requirement, Rule, Service,
};

use crate::manifest::object::{self, NetworkPolicy, Operator, PolicyType, PortNumber};

/// `policyTypes` absent or empty: Ingress always, Egress if there are egress rules. Rules of a direction that the types
/// leave out have no effect.
pub(super) fn import(wire: &NetworkPolicy) -> Result<Policy, ExceptOutside> {
    let egress_rules = wire.egress.as_deref().unwrap_or_default();
    let (ingress, egress) = match wire.policy_types.as_deref() {
        None | Some([]) => (true, !egress_rules.is_empty()),
        Some(types) => (types.contains(&PolicyType::Ingress), types.contains(&PolicyType::Egress)),
    };
    let ingress_rules = wire.ingress.as_deref().unwrap_or_default();
    Ok(Policy {
        selector: selector(&wire.pod_selector),
        ingress: ingress.then(|| rules(ingress_rules)).transpose()?,
        egress: egress.then(|| rules(egress_rules)).transpose()?,
    })
}

/// A label selector as requirements.
pub(super) fn selector(wire: &object::LabelSelector) -> LabelSelector {
    let labels = wire
        .match_labels
        .iter()
        .map(|(key, value)| Requirement::In(key.clone(), BTreeSet::from([value.clone()])));
    let expressions = wire.match_expressions.iter().map(|expression| {
        let key = expression.key.clone();
        let values = || expression.values.iter().cloned().collect();
        match expression.operator {
            Operator::In => Requirement::In(key, values()),
            Operator::NotIn => Requirement::NotIn(key, values()),
            Operator::Exists => Requirement::Exists(key),
            Operator::DoesNotExist => Requirement::DoesNotExist(key),
        }
    });
    LabelSelector(labels.chain(expressions).collect())
}

fn rules(wire: &[object::Rule]) -> Result<Vec<Rule>, ExceptOutside> {
    wire.iter().map(rule).collect()
}

/// Absent or empty peers are everybody, absent or empty ports everything.
fn rule(wire: &object::Rule) -> Result<Rule, ExceptOutside> {
    let peers = match wire.peers.as_deref() {
        None | Some([]) => None,
        Some(peers) => Some(peers.iter().map(peer).collect::<Result<_, _>>()?),
    };
    let services = match wire.ports.as_deref() {
        None | Some([]) => None,
        Some(ports) => Some(ports.iter().map(service).collect()),
    };
    Ok(Rule { peers, services })
}

fn peer(wire: &object::Peer) -> Result<Peer, ExceptOutside> {
    Ok(match wire {
        object::Peer::IpBlock(block) => {
            Peer::Block(IpBlock::new(block.cidr, block.except.iter().copied())?)
        }
        object::Peer::Selectors { pods, namespaces: None } => {
            Peer::PodsHere(pods.as_ref().map(selector).unwrap_or_default())
        }
        object::Peer::Selectors { pods, namespaces: Some(namespaces) } => Peer::PodsIn {
            namespaces: selector(namespaces),
            pods: pods.as_ref().map(selector).unwrap_or_default(),
        },
    })
}

fn service(wire: &object::Port) -> Service {
    let port = match &wire.port {
        None => PortMatch::All,
        Some(PortNumber::Number { port, end }) => {
            PortMatch::Range { first: *port, last: end.unwrap_or(*port) }
        }
        Some(PortNumber::Name(name)) => PortMatch::Named(name.clone()),
    };
    Service { protocol: super::protocol(wire.protocol), port }
}
