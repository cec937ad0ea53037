//! Selectors that match nothing, and named ports that no container has.
//!
//! - `found`: the members that selectors match, and facts about the input.
//! - `why`: the requirement that no member meets, and the nearest member.
//! - `elsewhere`: places where an object meets the requirement, and selectors that reach it there.
//! - `skipped`: the kinds that are not read. An operator may make pods of them, and the selector may match these.
//! - `ports`: named ports.
//!
//! A selector without conditions is not reported, because a policy for all pods of a namespace may be meant for later
//! pods. Nothing is reported if the input has no pods, or has labels that are not known. A part of a cluster, such as a
//! chart's output, names pods of namespaces that it does not contain (DNS, monitoring): these are reported only if an
//! object of the input nearly matches.

mod elsewhere;
mod found;
mod ports;
mod skipped;
mod why;

use manx_objects::NAMESPACE_NAME;
use manx_objects::code::Code;
use manx_objects::object::{Object, ObjectKey, calico};
use manx_policy_compiler::model::{
    Direction, KUBERNETES, NAMESPACE, ORCHESTRATOR, Policy, Rule, SERVICE_ACCOUNT,
};
use manx_policy_compiler::selector::{LabelSource, Selector};

use self::found::Found;
use super::fields::{RuleFields, Side};
use super::parts::Part;
use super::report::Report;
use super::scene::{Role, Scene};
use super::selected::Selected;

/// Reports selectors that match nothing, for each policy whose own namespace and names are defined.
pub(super) fn check<'a, 'm>(
    scene: &'m Scene<'a>,
    selected: &mut Selected<'m>,
    report: &mut Report<'a>,
) {
    let mut found = Found::new(scene, selected);
    for (key, object, policy) in scene.policies() {
        if report.has_told(key, "metadata.namespace") {
            continue;
        }
        let asked = Asked::new(key, object, &policy.selector, true);
        if let Some((code, message)) = asked.of_subject(&mut found) {
            report.tell(key, subject_field(object), code, message);
            continue;
        }
        for direction in [Direction::Ingress, Direction::Egress] {
            let mut last = None;
            for rule in policy.rules(direction).unwrap_or_default() {
                let fields = RuleFields { key, object, direction, index: rule.index };
                let at = Place { fields, policy, rule };
                // A rule for several protocols is several rules with the same peers.
                if last.replace(rule.index) != Some(rule.index) {
                    at.peers(&mut found, report);
                }
                at.ports(found.selected, report);
            }
        }
    }
}

/// The API of a policy, which determines the names of its fields.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Language {
    Kubernetes,
    /// `ClusterNetworkPolicy` and its older kinds.
    Cluster,
    Calico,
}

impl Language {
    /// The selector of a namespace by its name.
    fn by_name(self, namespace: &str) -> String {
        match self {
            Self::Calico => format!("projectcalico.org/name == \"{namespace}\""),
            Self::Kubernetes | Self::Cluster => format!("{NAMESPACE_NAME}: {namespace}"),
        }
    }

    /// The field that selects pods by their own labels.
    const fn of_pods(self) -> &'static str {
        match self {
            Self::Calico => "selector",
            Self::Kubernetes | Self::Cluster => "podSelector",
        }
    }

    /// The field that lists addresses.
    const fn of_addresses(self) -> &'static str {
        match self {
            Self::Kubernetes => "an ipBlock",
            Self::Cluster => "networks",
            Self::Calico => "nets",
        }
    }
}

/// A selector of a policy.
#[derive(Clone, Copy)]
struct Asked<'s> {
    selector: &'s Selector,
    language: Language,
    /// The policy's namespace, if it has one.
    namespace: &'s str,
    /// Whether this is the policy's own selector. Otherwise it is a peer's.
    subject: bool,
}

impl<'s> Asked<'s> {
    fn new(key: &'s ObjectKey, object: &Object, selector: &'s Selector, subject: bool) -> Self {
        let language = match object {
            Object::NetworkPolicy(_) => Language::Kubernetes,
            Object::ClusterNetworkPolicy(_) => Language::Cluster,
            _ => Language::Calico,
        };
        Self { selector, language, namespace: &key.namespace, subject }
    }

    /// Whether the selector can match a member of this role. No policy applies to a network set.
    fn may_mean(self, role: Role) -> bool {
        !self.subject || role != Role::Set
    }

    /// Whether a peer's selector is for namespaces that the input may lack: the input is a part of a cluster, and the
    /// selector is neither for namespaces of that part nor for members without a namespace.
    fn looks_beyond(self, found: &Found<'_, '_>) -> bool {
        let has = |name: &&str| found.scene.namespaces().contains_key(*name);
        found.is_piece
            && !self.subject
            && match self.selector.required_values(NAMESPACE) {
                Some(names) => !names.iter().any(has),
                None => !self.selector.conjuncts().contains(&&Selector::not_has(NAMESPACE)),
            }
    }

    /// Whether the selector has no conditions.
    fn is_bare(self) -> bool {
        self.selector.matches(&Bare(self.namespace))
    }

    /// The problem of a policy's own selector, if there is one.
    fn of_subject(self, found: &mut Found<'_, '_>) -> Option<(Code, String)> {
        let matches = found.find(self.selector)?;
        if matches.endpoint {
            return None;
        }
        if let Some(pod) = matches.on_host {
            let message = format!(
                "selects only pods on their nodes' network (hostNetwork), such as {}, to which no policy applies",
                pod.title()
            );
            return Some((Code::OnlyHostNetwork, message));
        }
        if self.is_bare() {
            return None;
        }
        let told = |(code, why)| {
            let follows = match code {
                Code::SelectorMayMatchSkipped => "selects nothing of the input",
                _ => "selects nothing, so the policy has no effect",
            };
            (code, format!("{follows}: {why}"))
        };
        if let Some(set) = matches.set {
            // A selector that requires no label of the set, such as `!has(app)`, may be meant for host endpoints
            // elsewhere, and its namespace may have pods elsewhere.
            let parts = Part::all(self.selector);
            let is_sure = parts.iter().any(|part| part.is_of_own_label())
                || (parts.iter().any(|part| part.asks_for_label())
                    && found.has_what_is_meant(self.selector));
            let reason = format!(
                "it fits only network sets (such as {}), to which no policy applies; a rule's source or destination selects them",
                set.title()
            );
            return is_sure.then(|| told((Code::SelectorMatchesNothing, reason)));
        }
        found.has_what_is_meant(self.selector).then(|| found.why(self)).flatten().map(told)
    }

    /// The problem of the selector of a rule's peer, if there is one.
    fn of_peer(self, found: &mut Found<'_, '_>) -> Option<(Code, String)> {
        let matches = found.find(self.selector)?;
        if matches.endpoint || matches.set.is_some() || self.is_bare() {
            return None;
        }
        if let Some(pod) = matches.on_host {
            let message = format!(
                "matches only pods on their nodes' network (hostNetwork), such as {}: policy knows them by their nodes' addresses only, which can be named in {}",
                pod.title(),
                self.language.of_addresses()
            );
            return Some((Code::OnlyHostNetwork, message));
        }
        if !found.has_what_is_meant(self.selector) {
            return None;
        }
        let (code, why) = found.why(self)?;
        let of_input = if code == Code::SelectorMayMatchSkipped { " of the input" } else { "" };
        Some((code, format!("matches nothing{of_input}: {why}")))
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
    fields: RuleFields<'a>,
    policy: &'p Policy,
    rule: &'p Rule,
}

impl<'a> Place<'_, 'a> {
    fn peers(&self, found: &mut Found<'_, '_>, report: &mut Report<'a>) {
        let RuleFields { key, object, .. } = self.fields;
        for side in Side::ALL {
            let end = side.of(self.rule);
            for (index, entity) in end.entities.iter().flatten().enumerate() {
                let Some(selector) = &entity.selector else { continue };
                let field = self.fields.peer(side, end, index);
                let asked = Asked::new(key, object, selector, false);
                if !report.has_told(key, &field)
                    && let Some((code, message)) = asked.of_peer(found)
                {
                    report.tell(key, &field, code, message);
                }
            }
        }
    }
}
