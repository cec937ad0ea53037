//! Ports of rules that only a Service has. A packet to a Service has the port of a pod behind it (`targetPort`) when policy
//! sees it, so the port of the Service matches nothing.
//!
//! A port is reported if every pod that the rule is about is behind such a Service, has no such port of its own, and
//! gets the pods' own port from no other rule.

use std::collections::{BTreeMap, BTreeSet};

use manx_objects::code::Code;
use manx_objects::contents::Contents;
use manx_objects::object::calico;
use manx_objects::object::cluster::{ClusterMatch, ClusterProtocol};
use manx_objects::object::{ContainerPort, Kind, Object, ObjectKey, Pod, PortNumber, ServicePort};
use manx_policy_compiler::model::{Direction, Entity, Policy, PortMatch, Rule};

use super::report::Report;
use super::scene::{Role, Scene};
use super::selected::Selected;
use crate::explain::{number, services};

/// A protocol's number, and a port.
type Port = (u8, u16);

/// The Service that has a port, and the port that its pods have for it.
type Target<'a> = (&'a ObjectKey, u16);

/// The ports that only Services have: of each the pods behind them.
type Translated<'a> = BTreeMap<Port, BTreeMap<usize, Target<'a>>>;

/// Reports each such port.
pub(super) fn check<'a>(
    contents: &'a Contents,
    scene: &Scene<'a>,
    selected: &mut Selected<'_>,
    report: &mut Report<'a>,
) {
    let Some(translated) = translated(contents, selected) else { return };
    for (key, object, policy) in scene.policies() {
        for direction in Direction::ALL {
            for rule in policy.rules(direction).unwrap_or_default() {
                let Some(protocol) = rule.protocol else { continue };
                for port in rule.destination.ports.iter().filter_map(single) {
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
                    let field = field(key, object, direction, rule.index, (protocol, port));
                    let message = format!(
                        "matches nothing: only {service} has port {port}, and policy sees the port of the pods behind it: {target}"
                    );
                    report.tell(key, &field, Code::ServicePort, message);
                }
            }
        }
    }
}

/// The number of a port that is neither a range nor a name.
fn single(port: &PortMatch) -> Option<u16> {
    match port {
        PortMatch::Range { first, last } if first == last => Some(*first),
        _ => None,
    }
}

/// See [`Translated`]. Clients reach a headless service at its pods' own ports.
fn translated<'a>(contents: &'a Contents, selected: &mut Selected<'_>) -> Option<Translated<'a>> {
    let mut translated = Translated::new();
    let mut reached = BTreeSet::new();
    for (key, service) in services(contents).filter(|(_, service)| !service.headless) {
        let pods = selected.behind(&key.namespace, &service.selector)?;
        selected.spend(pods.len() * service.ports.len())?;
        for (member, port) in pods.iter().flat_map(|it| service.ports.iter().map(move |p| (*it, p)))
        {
            let Some(pod) = selected.members[member].pod else { continue };
            let Some(target) = target(port, pod) else { continue };
            let protocol = number(port.protocol);
            reached.insert((member, (protocol, target)));
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

/// The port that a pod has for a port of a Service.
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

/// The pods that the ports of a rule are of. `None`: not only pods, or it is not known which.
fn pods(
    policy: &Policy,
    direction: Direction,
    rule: &Rule,
    selected: &mut Selected<'_>,
) -> Option<Vec<usize>> {
    let only_selects = |entity: &Entity| entity.nets.is_empty() && entity.service.is_none();
    let entities = rule.destination.entities.as_deref();
    if !entities.unwrap_or_default().iter().all(only_selects) {
        return None;
    }
    let mut pods: Option<BTreeSet<usize>> = None;
    if let Some(entities) = entities {
        let mut those = BTreeSet::new();
        for entity in entities {
            entity.selector.as_ref()?;
            those.extend(selected.of_entity(entity)?);
        }
        pods = Some(those);
    }
    if direction == Direction::Ingress {
        let own = selected.find(&policy.selector)?;
        let own = own.iter().copied().filter(|it| selected.members[*it].role == Role::Endpoint);
        let is_meant = |it: &usize| pods.as_ref().is_none_or(|those| those.contains(it));
        pods = Some(own.filter(is_meant).collect());
    }
    Some(pods?.into_iter().collect())
}

/// Whether a rule with the same action is about one of the pods' own ports, too. Of each port there is one of its pods.
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

/// Where a port is written.
fn field(
    key: &ObjectKey,
    object: &Object,
    direction: Direction,
    index: u32,
    (protocol, wanted): Port,
) -> String {
    let rule = format!("spec.{direction}[{index}]");
    let ingress = direction == Direction::Ingress;
    let index = index as usize;
    let (list, at) = match object {
        Object::NetworkPolicy(policy) => {
            let rules = if ingress { &policy.ingress } else { &policy.egress };
            let ports = rules.as_deref().and_then(|rules| rules.get(index)?.ports.as_deref());
            let is_it = PortNumber::Number { port: wanted, end: None };
            let at = ports.and_then(|ports| {
                ports.iter().position(|it| {
                    number(it.protocol) == protocol && it.port.as_ref() == Some(&is_it)
                })
            });
            ("ports", at)
        }
        Object::CalicoPolicy(policy) => {
            let rules = if ingress { &policy.ingress } else { &policy.egress };
            let is_it = calico::Port::Range(wanted, wanted);
            let ports = rules.get(index).map(|rule| &rule.destination.ports);
            ("destination.ports", ports.and_then(|all| all.iter().position(|it| *it == is_it)))
        }
        Object::ClusterNetworkPolicy(policy) => {
            let rules = if ingress { &policy.ingress } else { &policy.egress };
            let protocols = rules.get(index).and_then(|rule| match &rule.matches {
                ClusterMatch::Of { protocols, .. } => protocols.as_deref(),
                ClusterMatch::Unsupported => None,
            });
            let is_it = |it: &ClusterProtocol| match it {
                ClusterProtocol::Ports { protocol: of, ports } => {
                    number(Some(*of)) == protocol && *ports == Some((wanted, wanted))
                }
                ClusterProtocol::Named(_) => false,
            };
            let list = if key.kind == Kind::ClusterNetworkPolicy { "protocols" } else { "ports" };
            (list, protocols.and_then(|all| all.iter().position(is_it)))
        }
        _ => ("", None),
    };
    match at {
        Some(at) => format!("{rule}.{list}[{at}]"),
        None => rule,
    }
}
