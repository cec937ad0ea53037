//! Selectors that match nothing, and named ports that no container has.
//!
//! Nothing is reported of a selector without conditions: a policy for all pods of a namespace may be meant for later
//! ones. Nor is anything if the input has no pods, or labels that are not known.

use std::collections::{BTreeSet, HashMap};

use manx_objects::code::Code;
use manx_objects::object::calico::{self, EntityRule};
use manx_objects::object::cluster::{ClusterMatch, ClusterPeer, ClusterProtocol};
use manx_objects::object::{Kind, Object, ObjectKey, Port, PortNumber, Protocol};
use manx_policy_compiler::model::{
    Direction, KUBERNETES, NAMESPACE, NAMESPACE_PREFIX, ORCHESTRATOR, Policy, PortMatch, Rule,
    RuleEnd, SERVICE_ACCOUNT,
};
use manx_policy_compiler::selector::{LabelSource, Selector};

use super::report::Report;
use super::scene::{Member, Role, Scene};

/// The number of values, or names, that a message lists.
const LISTED: usize = 5;

/// Reports them, of each policy whose own namespace and names are defined.
pub(super) fn check<'a>(scene: &Scene<'a>, report: &mut Report<'a>) {
    let members = scene.members();
    if scene.in_doubt || members.iter().all(|member| member.role == Role::Set) {
        return;
    }
    let mut found = Found { members: &members, of: HashMap::new() };
    for (key, object, policy) in scene.policies() {
        if report.has_told(key, "metadata.namespace") {
            continue;
        }
        if let Some(message) = subject(key, &policy.selector, &mut found) {
            report.tell(key, subject_field(object), Code::SelectorMatchesNothing, message);
            continue;
        }
        for direction in [Direction::Ingress, Direction::Egress] {
            let mut last = None;
            for rule in policy.rules(direction).unwrap_or_default() {
                let at = Place { key, object, policy, direction, rule };
                // A rule for several protocols is several rules with the same peers.
                if last.replace(rule.index) != Some(rule.index) {
                    at.peers(&mut found, report);
                }
                at.ports(&members, report);
            }
        }
    }
}

/// What selectors match; each is looked up once.
struct Found<'m> {
    members: &'m [Member<'m>],
    of: HashMap<Selector, (bool, bool)>,
}

impl Found<'_> {
    /// Whether a selector matches an endpoint or set, and whether it matches a pod on its node's network.
    fn find(&mut self, selector: &Selector) -> (bool, bool) {
        if let Some(found) = self.of.get(selector) {
            return *found;
        }
        let mut found = self.search(|member| selector.matches(&member.labels));
        if !found.0 {
            found = self.search(|member| member.fits(selector));
        }
        self.of.insert(selector.clone(), found);
        found
    }

    fn search(&self, fits: impl Fn(&Member<'_>) -> bool) -> (bool, bool) {
        let mut matching = self.members.iter().filter(|it| fits(it)).map(|it| it.role);
        match matching.next() {
            Some(Role::OnHost) => (!matching.all(|role| role == Role::OnHost), true),
            Some(_) => (true, false),
            None => (false, false),
        }
    }
}

/// A pod without labels of its own, in a namespace: a selector that matches it has no conditions.
struct Bare<'a>(&'a str);

impl LabelSource for Bare<'_> {
    fn label(&self, key: &str) -> Option<&str> {
        match key {
            NAMESPACE => Some(self.0),
            ORCHESTRATOR => Some(KUBERNETES),
            SERVICE_ACCOUNT => Some("default"),
            _ => None,
        }
    }
}

/// What to say of a policy's own selector.
fn subject(key: &ObjectKey, selector: &Selector, found: &mut Found<'_>) -> Option<String> {
    match found.find(selector) {
        (true, _) => None,
        (false, true) => Some(
            "selects only pods on their nodes' network (hostNetwork), to which no policy applies"
                .to_owned(),
        ),
        (false, false) if selector.matches(&Bare(&key.namespace)) => None,
        (false, false) => {
            let why = why(selector, found.members);
            Some(format!("selects nothing, so the policy has no effect: {why}"))
        }
    }
}

/// Why a selector matches nothing: the first label that it requires and that no member has.
fn why(selector: &Selector, members: &[Member<'_>]) -> String {
    let within = selector.required_values(NAMESPACE);
    let scope: Vec<&Member<'_>> = members
        .iter()
        .filter(|member| {
            let namespace = member.labels.label(NAMESPACE).unwrap_or_default();
            within.as_ref().is_none_or(|within| within.contains(&namespace))
        })
        .collect();
    let whose = match &within {
        Some(within) => format!("in namespace {}", within.join(" or ")),
        None => "in the input".to_owned(),
    };
    if scope.is_empty() {
        return format!("there is no pod {whose}");
    }
    for (label, values) in selector.required_labels() {
        let has: BTreeSet<&str> =
            scope.iter().filter_map(|member| member.labels.label(label)).collect();
        let fits = values.as_ref().is_none_or(|values| values.iter().any(|it| has.contains(it)));
        if fits && !has.is_empty() {
            continue;
        }
        let (of, label) = match label.strip_prefix(NAMESPACE_PREFIX) {
            Some(label) => ("namespace with a pod", label),
            None => ("pod", label),
        };
        let wanted = values.map(|values| format!("={}", values.join("|"))).unwrap_or_default();
        let there = if has.is_empty() {
            String::new()
        } else {
            format!(" (its values there: {})", listed(has.into_iter().map(str::to_owned)))
        };
        return format!("no {of} {whose} has the label {label}{wanted}{there}");
    }
    format!("no pod {whose} fits all of it")
}

fn listed(all: impl ExactSizeIterator<Item = String>) -> String {
    let more = if all.len() > LISTED { ", ..." } else { "" };
    all.take(LISTED).collect::<Vec<_>>().join(", ") + more
}

fn subject_field(object: &Object) -> &'static str {
    match object {
        Object::NetworkPolicy(_) => "spec.podSelector",
        Object::ClusterNetworkPolicy(_) => "spec.subject",
        Object::CalicoPolicy(policy) => match &policy.subject {
            calico::Subject { selector: Some(_), .. } => "spec.selector",
            calico::Subject { namespace_selector: Some(_), .. } => "spec.namespaceSelector",
            calico::Subject { service_account_selector: Some(_), .. } => {
                "spec.serviceAccountSelector"
            }
            calico::Subject { .. } => "spec",
        },
        _ => "",
    }
}

/// A rule of a policy.
#[derive(Clone, Copy)]
struct Place<'p, 'a> {
    key: &'a ObjectKey,
    object: &'p Object,
    policy: &'p Policy,
    direction: Direction,
    rule: &'p Rule,
}

impl<'a> Place<'_, 'a> {
    /// The rule's field.
    fn field(&self) -> String {
        let list = match self.direction {
            Direction::Ingress => "ingress",
            Direction::Egress => "egress",
        };
        format!("spec.{list}[{}]", self.rule.index)
    }

    /// The rule's ends, each with the field that Calico calls it.
    fn ends(&self) -> [(&'static str, &RuleEnd); 2] {
        [("source", &self.rule.source), ("destination", &self.rule.destination)]
    }

    fn peers(&self, found: &mut Found<'_>, report: &mut Report<'a>) {
        for (side, end) in self.ends() {
            for (index, entity) in end.entities.iter().flatten().enumerate() {
                let Some(selector) = &entity.selector else { continue };
                let field = self.peer_field(side, self.written_at(end, index));
                let matches = found.find(selector).0;
                let without_conditions = selector.matches(&Bare(&self.key.namespace));
                if matches || without_conditions || report.has_told(self.key, &field) {
                    continue;
                }
                let message = format!("matches nothing: {}", why(selector, found.members));
                report.tell(self.key, &field, Code::SelectorMatchesNothing, message);
            }
        }
    }

    /// The index in the policy of a peer with a selector. In cluster-wide policies it may be another one than in the
    /// model, where `nodes` that fit no Node are left out.
    fn written_at(&self, end: &RuleEnd, index: usize) -> usize {
        let Object::ClusterNetworkPolicy(wire) = self.object else { return index };
        let rules = if self.direction == Direction::Ingress { &wire.ingress } else { &wire.egress };
        let rule = rules.get(self.rule.index as usize).map(|rule| &rule.matches);
        let Some(ClusterMatch::Of { peers, .. }) = rule else { return index };
        let before = end.entities.iter().flatten().take(index);
        let before = before.filter(|entity| entity.selector.is_some()).count();
        let pods = (0..).zip(peers).filter(|(_, peer)| matches!(peer, ClusterPeer::Pods(_)));
        pods.map(|(at, _)| at).nth(before).unwrap_or(index)
    }

    fn peer_field(&self, side: &str, index: usize) -> String {
        let rule = self.field();
        match (self.object, self.direction) {
            (Object::CalicoPolicy(_), _) => format!("{rule}.{side}"),
            (_, Direction::Ingress) => format!("{rule}.from[{index}]"),
            (_, Direction::Egress) => format!("{rule}.to[{index}]"),
        }
    }

    fn ports(&self, members: &[Member<'_>], report: &mut Report<'a>) {
        for (side, end) in self.ends() {
            for port in &end.ports {
                let PortMatch::Named(name) = port else { continue };
                let Some(there) = self.other_names(side, end, name, members) else { continue };
                let field = self.port_field(side, name);
                if report.has_told(self.key, &field) {
                    continue;
                }
                let there = if there.is_empty() {
                    "they have no named ports".to_owned()
                } else {
                    format!("they have {}", listed(there.into_iter()))
                };
                let message = format!(
                    "no container of the pods that this rule is about has a port named {name}{}, so it matches nothing by it: {there}",
                    self.rule
                        .protocol
                        .map(|it| format!(" of {}", protocol(it)))
                        .unwrap_or_default()
                );
                report.tell(self.key, &field, Code::NoSuchPort, message);
            }
        }
    }

    /// The names of the ports at one end of the rule, if `wanted` is not one of them and there is something at that
    /// end.
    fn other_names(
        &self,
        side: &str,
        end: &RuleEnd,
        wanted: &str,
        members: &[Member<'_>],
    ) -> Option<BTreeSet<String>> {
        let local = (side == "destination") == (self.direction == Direction::Ingress);
        let mut is_empty = true;
        let mut names = BTreeSet::new();
        for member in members.iter().filter(|member| member.role == Role::Endpoint) {
            if (local && !member.fits(&self.policy.selector)) || !may_be(member, end) {
                continue;
            }
            is_empty = false;
            for port in &member.ports {
                let number = port.protocol.number();
                if port.name == wanted && self.rule.protocol.is_none_or(|it| it == number) {
                    return None;
                }
                names.insert(format!("{} ({})", port.name, protocol(number)));
            }
        }
        (!is_empty).then_some(names)
    }

    fn port_field(&self, side: &str, name: &str) -> String {
        let rule = self.field();
        let index = self.rule.index as usize;
        let ingress = self.direction == Direction::Ingress;
        let (list, at) = match self.object {
            Object::NetworkPolicy(wire) => {
                let rules = if ingress { &wire.ingress } else { &wire.egress };
                let ports = rules.as_deref().and_then(|rules| rules.get(index)?.ports.as_deref());
                let is_it = |port: &Port| {
                    let protocol = match port.protocol {
                        None | Some(Protocol::Tcp) => 6,
                        Some(Protocol::Udp) => 17,
                        Some(Protocol::Sctp) => 132,
                    };
                    self.rule.protocol == Some(protocol)
                        && matches!(&port.port, Some(PortNumber::Name(of)) if of == name)
                };
                ("ports".to_owned(), ports.and_then(|ports| ports.iter().position(is_it)))
            }
            Object::ClusterNetworkPolicy(wire) => {
                let rules = if ingress { &wire.ingress } else { &wire.egress };
                let protocols = rules.get(index).and_then(|rule| match &rule.matches {
                    ClusterMatch::Of { protocols, .. } => protocols.as_deref(),
                    ClusterMatch::Unsupported => None,
                });
                let is_it =
                    |it: &ClusterProtocol| matches!(it, ClusterProtocol::Named(of) if of == name);
                let list =
                    if self.key.kind == Kind::ClusterNetworkPolicy { "protocols" } else { "ports" };
                (list.to_owned(), protocols.and_then(|all| all.iter().position(is_it)))
            }
            Object::CalicoPolicy(wire) => {
                let rules = if ingress { &wire.ingress } else { &wire.egress };
                let end = |rule: &calico::Rule| -> EntityRule {
                    if side == "source" { rule.source.clone() } else { rule.destination.clone() }
                };
                let ports = rules.get(index).map(|rule| end(rule).ports).unwrap_or_default();
                let at = ports.iter().position(|it| *it == calico::Port::Name(name.to_owned()));
                (format!("{side}.ports"), at)
            }
            _ => (String::new(), None),
        };
        match at {
            Some(at) => format!("{rule}.{list}[{at}]"),
            None => rule,
        }
    }
}

/// Whether an end of a rule may mean a member. Nets and services are not asked: addresses may be unknown.
fn may_be(member: &Member<'_>, end: &RuleEnd) -> bool {
    end.entities.as_ref().is_none_or(|entities| {
        entities.iter().any(|entity| {
            entity.selector.as_ref().is_none_or(|selector| member.fits(selector))
                && !entity.not_selector.as_ref().is_some_and(|it| it.matches(&member.labels))
        })
    })
}

fn protocol(number: u8) -> String {
    match number {
        6 => "TCP".to_owned(),
        17 => "UDP".to_owned(),
        132 => "SCTP".to_owned(),
        number => format!("protocol {number}"),
    }
}
