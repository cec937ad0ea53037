//! Finds ports of rules that only a Service has. When policy sees a packet to a Service, the packet already has the
//! port of a pod behind the Service (`targetPort`). So the Service's port matches nothing.
//!
//! A port is reported if three conditions hold: each pod that the rule selects is behind such a Service, none of these
//! pods has the port itself, and no other rule names the pods' own port.

use std::collections::{BTreeMap, BTreeSet};

use manx_objects::code::Code;
use manx_objects::contents::Contents;
use manx_objects::object::{ContainerPort, ObjectKey, Pod, PortNumber, ServicePort};
use manx_policy_compiler::model::{Direction, Entity, Hook, Policy, PortMatch, Rule};

use super::fields::{RuleFields, Side};
use super::report::Report;
use super::scene::Scene;
use super::selected::Selected;
use crate::explain::{number, services};

/// A protocol number and a port number.
type Port = (u8, u16);

/// The Service that has a port, and the port that its pods have instead.
type Target<'a> = (&'a ObjectKey, u16);

/// The ports that only Services have, each with the pods behind these Services.
type Translated<'a> = BTreeMap<Port, BTreeMap<usize, Target<'a>>>;

/// Reports each port that only a Service has.
pub(super) fn check<'a>(scene: &Scene<'a>, selected: &mut Selected<'_>, report: &mut Report<'a>) {
    let Some(translated) = translated(scene.contents(), selected) else { return };
    for (key, object, policy) in scene.policies() {
        // Policies with these hooks see the port to which the client sent the packet.
        if matches!(policy.hook, Hook::PreDnat | Hook::Untracked) {
            continue;
        }
        for direction in Direction::ALL {
            for rule in policy.rules(direction).unwrap_or_default() {
                let Some(protocol) = rule.protocol else { continue };
                for written in &rule.destination.ports {
                    let Some(port) = single(written) else { continue };
                    let Some(behind) = translated.get(&(protocol, port)) else { continue };
                    let Some(pods) = pods(policy, direction, rule, selected) else { continue };
                    let targets: Option<BTreeMap<_, _>> = pods
                        .iter()
                        .map(|it| behind.get(it).map(|(of, target)| (*target, (*it, *of))))
                        .collect();
                    let targets = targets.unwrap_or_default();
                    let Some((target, (_, service))) = targets.first_key_value() else { continue };
                    let others = policy.rules(direction).unwrap_or_default();
                    if is_reached(others, rule, &targets, selected) != Some(false) {
                        continue;
                    }
                    let fields = RuleFields { key, object, direction, index: rule.index };
                    let field = fields.port(Side::Destination, rule.protocol, written);
                    let message = format!(
                        "matches nothing: only {service} has port {port}, and policy sees the port of the pods behind it: {target}"
                    );
                    report.tell(key, &field, Code::ServicePort, message);
                }
            }
        }
    }
}

/// Returns the number of a port that is neither a range nor a name.
fn single(port: &PortMatch) -> Option<u16> {
    match port {
        PortMatch::Range { first, last } if first == last => Some(*first),
        _ => None,
    }
}

/// See [`Translated`]. Clients reach a headless service at the ports of its pods. Such a service translates no port,
/// and its ports count as ports of its pods.
fn translated<'a>(contents: &'a Contents, selected: &mut Selected<'_>) -> Option<Translated<'a>> {
    let mut translated = Translated::new();
    let mut reached = BTreeSet::new();
    for (key, service) in services(contents) {
        let pods = selected.behind(&key.namespace, &service.selector)?;
        selected.spend(pods.len() * service.ports.len())?;
        for (member, port) in pods.iter().flat_map(|it| service.ports.iter().map(move |p| (*it, p)))
        {
            let Some(pod) = selected.members[member].pod else { continue };
            let Some(target) = target(port, pod) else { continue };
            let protocol = number(port.protocol);
            reached.insert((member, (protocol, target)));
            if service.headless {
                continue;
            }
            for number in [port.port].into_iter().chain(port.node_port) {
                if number != target && ports(pod).all(|it| it.port != number) {
                    let of_port = translated.entry((protocol, number)).or_default();
                    of_port.insert(member, (key, target));
                }
            }
        }
    }
    for (port, members) in &mut translated {
        members.retain(|member, _| !reached.contains(&(*member, *port)));
    }
    Some(translated)
}

fn ports(pod: &Pod) -> impl Iterator<Item = &ContainerPort> {
    pod.containers.iter().chain(&pod.init_containers).flatten()
}

/// Returns the port of a pod to which a port of a Service leads.
fn target(port: &ServicePort, pod: &Pod) -> Option<u16> {
    match &port.target {
        None => Some(port.port),
        Some(PortNumber::Number { port, .. }) => Some(*port),
        Some(PortNumber::Name(name)) => ports(pod)
            .find(|it| {
                it.name.as_ref() == Some(name) && number(it.protocol) == number(port.protocol)
            })
            .map(|it| it.port),
    }
}

/// Returns the pods to which the ports of a rule belong. Returns `None` if the ports do not belong to pods only, or if
/// the pods are not known.
fn pods(
    policy: &Policy,
    direction: Direction,
    rule: &Rule,
    selected: &mut Selected<'_>,
) -> Option<BTreeSet<usize>> {
    let only_selects = |entity: &Entity| {
        entity.selector.is_some() && entity.nets.is_empty() && entity.service.is_none()
    };
    match &rule.destination.entities {
        None if direction == Direction::Egress => return None,
        Some(entities) if !entities.iter().all(only_selects) => return None,
        _ => {}
    }
    selected.at_side(policy, direction, rule, Side::Destination)
}

/// Returns whether a rule with the same action also names one of the pods' own ports. `targets` has, for each of these
/// own ports, one pod and the Service.
fn is_reached(
    rules: &[Rule],
    rule: &Rule,
    targets: &BTreeMap<u16, (usize, &ObjectKey)>,
    selected: &mut Selected<'_>,
) -> Option<bool> {
    let ports_of_all = rules.iter().map(|it| it.destination.ports.len() + 1).sum::<usize>();
    selected.spend(ports_of_all * targets.len())?;
    let is_target = |port: &PortMatch| match port {
        PortMatch::Range { first, last } => targets.range(first..=last).next().is_some(),
        PortMatch::Named(name) => targets.iter().any(|(target, (member, _))| {
            let mut ports = selected.members[*member].pod.into_iter().flat_map(ports);
            ports.any(|it| it.name.as_ref() == Some(name) && it.port == *target)
        }),
    };
    Some(rules.iter().any(|other| {
        other.action == rule.action
            && other.protocol.is_none_or(|protocol| Some(protocol) == rule.protocol)
            && other.destination.ports.iter().any(is_target)
    }))
}
