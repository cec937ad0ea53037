//! The slow obvious judge: straight over the model, policy by policy, rule by rule, no tables.
//!
//! It shares nothing with resolution and compilation but the model's own matching of one selector and one block.
//! Kubernetes' NetworkPolicy reference (networking.k8s.io/v1) gives the semantics.

use std::collections::BTreeMap;
use std::net::IpAddr;

use crate::model::{
    Direction, Endpoint, Model, ObjectName, Peer, Policy, PolicyState, PortMatch, Protocol, Reason,
    Rule, RuleName, Service, Transport,
};

/// Whoever may have the peer's address: a pod by its name, or nobody that the cluster knows.
type Candidate<'m> = Option<(&'m ObjectName, &'m Endpoint)>;

/// What decides a packet between `local` and `peer` (the source of ingress, the destination of egress). For a `local` that
/// the model does not have, [`Reason::Unknown`].
pub fn judge(
    model: &Model,
    local: &ObjectName,
    direction: Direction,
    peer: IpAddr,
    transport: Transport,
) -> Reason {
    let pods = model.endpoints.iter().filter(|(_, pod)| pod.addresses.contains(&peer));
    let pods: Vec<_> = pods.map(|(name, pod)| (name, pod.as_ref())).collect();
    judge_holders(model, local, direction, peer, &pods, transport)
}

/// The pods that have each address.
pub(crate) fn holders(model: &Model) -> BTreeMap<IpAddr, Vec<(&ObjectName, &Endpoint)>> {
    let mut holders: BTreeMap<IpAddr, Vec<_>> = BTreeMap::new();
    for (name, pod) in &model.endpoints {
        for address in &pod.addresses {
            holders.entry(*address).or_default().push((name, pod.as_ref()));
        }
    }
    holders
}

/// [`judge`] for a peer whose pods are already known.
pub(crate) fn judge_holders(
    model: &Model,
    local: &ObjectName,
    direction: Direction,
    peer: IpAddr,
    pods: &[(&ObjectName, &Endpoint)],
    transport: Transport,
) -> Reason {
    let Some(endpoint) = model.endpoints.get(local) else { return Reason::Unknown(direction) };
    let mut isolated_by = None;
    for (name, state) in model.policies_in(&local.namespace) {
        let policy: &Policy = match state {
            PolicyState::Valid(policy) => policy,
            PolicyState::Invalid(selector) => {
                if selector.matches(&endpoint.labels) {
                    isolated_by.get_or_insert(name);
                }
                continue;
            }
        };
        let Some(rules) = policy.rules(direction) else { continue };
        if !policy.selector.matches(&endpoint.labels) {
            continue;
        }
        isolated_by.get_or_insert(name);
        for (index, rule) in rules.iter().enumerate() {
            let allows = |candidate: Candidate| {
                peers_match(model, rule, name, peer, candidate)
                    && services_match(rule, direction, endpoint, candidate, transport)
            };
            // Where pods have the address, one of them must satisfy the whole rule.
            let allowed = match pods {
                [] => allows(None),
                pods => pods.iter().any(|pod| allows(Some(*pod))),
            };
            if allowed {
                let rule = RuleName { policy: name.clone(), direction, index: index as u32 };
                return Reason::Rule(rule);
            }
        }
    }
    match isolated_by {
        Some(policy) => Reason::Isolated(direction, policy.clone()),
        None => Reason::NotIsolated(direction),
    }
}

fn peers_match(
    model: &Model,
    rule: &Rule,
    policy: &ObjectName,
    address: IpAddr,
    candidate: Candidate,
) -> bool {
    let Some(peers) = &rule.peers else { return true };
    peers.iter().any(|peer| match (peer, candidate) {
        (Peer::Block(block), _) => block.contains(address),
        (Peer::PodsHere(_) | Peer::PodsIn { .. }, None) => false,
        (Peer::PodsHere(pods), Some((name, pod))) => {
            name.namespace == policy.namespace && pods.matches(&pod.labels)
        }
        (Peer::PodsIn { namespaces, pods }, Some((name, pod))) => {
            let labels = model.namespaces.get(&name.namespace).cloned().unwrap_or_default();
            namespaces.matches(&labels) && pods.matches(&pod.labels)
        }
    })
}

fn services_match(
    rule: &Rule,
    direction: Direction,
    local: &Endpoint,
    candidate: Candidate,
    transport: Transport,
) -> bool {
    let Some(services) = &rule.services else { return true };
    // A name means what the pod at the destination says.
    let destination = match direction {
        Direction::Ingress => Some(local),
        Direction::Egress => candidate.map(|(_, pod)| pod),
    };
    services.iter().any(|service| service_matches(service, destination, transport))
}

fn service_matches(
    service: &Service,
    destination: Option<&Endpoint>,
    transport: Transport,
) -> bool {
    if Protocol::from_number(transport.protocol) != Some(service.protocol) {
        return false;
    }
    match (&service.port, transport.port) {
        (PortMatch::All, _) => true,
        (PortMatch::Range { .. } | PortMatch::Named(_), None) => false,
        (PortMatch::Range { first, last }, Some(port)) => (*first..=*last).contains(&port),
        (PortMatch::Named(name), Some(port)) => destination.is_some_and(|pod| {
            pod.named_ports.iter().any(|named| {
                named.name == *name && named.protocol == service.protocol && named.port == port
            })
        }),
    }
}
