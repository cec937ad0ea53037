//! Finds selectors that match nothing, and named ports that no container has.
//!
//! - `asked`: a selector to check.
//! - `found`: the members that selectors match, and facts about the input.
//! - `why`: the requirement that no member meets, and the member that comes nearest.
//! - `elsewhere`: other places where an object meets the requirement, and selectors that reach it there.
//! - `skipped`: the kinds that Manx does not read. An operator may make pods from their objects, and the selector may
//!   match these pods.
//! - `ports`: named ports.
//!
//! A selector without conditions is not reported, because a policy for all pods of a namespace may be meant for future
//! pods. Nothing is reported if the input has no pods, or has labels that are not known. A part of a cluster, such as a
//! chart's output, often names pods of namespaces that it does not contain (DNS, monitoring). Such selectors are
//! reported only if an object of the input nearly matches.

mod asked;
mod elsewhere;
mod found;
mod ports;
mod skipped;
mod why;

use manx_objects::code::Code;
use manx_objects::object::{Object, calico};
use manx_policy_compiler::model::{Direction, Policy, Rule};

use self::asked::Asked;
use self::found::Found;
use self::why::Reasons;
use super::fields::{RuleFields, Side};
use super::parts::Part;
use super::report::Report;
use super::scene::Scene;
use super::selected::Selected;

/// Reports selectors that match nothing, for each policy whose namespace and names are all defined.
pub(super) fn check<'a, 'm>(
    scene: &'m Scene<'a>,
    selected: &mut Selected<'m>,
    report: &mut Report<'a>,
) {
    let mut reasons = Reasons::new(Found::new(scene, selected));
    for (key, object, policy) in scene.policies() {
        if report.has_told(key, "metadata.namespace") {
            continue;
        }
        let asked = Asked::new(key, object, &policy.selector, true);
        if let Some((code, message)) = asked.of_subject(&mut reasons) {
            report.tell(key, subject_field(object), code, message);
            continue;
        }
        for direction in [Direction::Ingress, Direction::Egress] {
            let mut last = None;
            for rule in policy.rules(direction).unwrap_or_default() {
                let fields = RuleFields { key, object, direction, index: rule.index };
                let at = Place { fields, policy, rule };
                // In the model, a rule for several protocols becomes several rules with the same peers.
                if last.replace(rule.index) != Some(rule.index) {
                    at.peers(&mut reasons, report);
                }
                at.ports(reasons.found.selected, report);
            }
        }
    }
}

impl Asked<'_> {
    /// Returns the problem of a policy's own selector, if there is one.
    fn of_subject(self, reasons: &mut Reasons<'_, '_>) -> Option<(Code, String)> {
        let matches = reasons.found.find(self.selector)?;
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
            // outside the input. A selector of a namespace may be meant for pods outside the input.
            let parts = Part::all(self.selector);
            let is_sure = parts.iter().any(|part| part.is_of_own_label())
                || (parts.iter().any(|part| part.asks_for_label())
                    && reasons.found.has_what_is_meant(self.selector));
            let reason = format!(
                "it fits only network sets (such as {}), to which no policy applies; a rule's source or destination selects them",
                set.title()
            );
            return is_sure.then(|| told((Code::SelectorMatchesNothing, reason)));
        }
        reasons
            .found
            .has_what_is_meant(self.selector)
            .then(|| reasons.why(self))
            .flatten()
            .map(told)
    }

    /// Returns the problem of the selector of a rule's peer, if there is one.
    fn of_peer(self, reasons: &mut Reasons<'_, '_>) -> Option<(Code, String)> {
        let matches = reasons.found.find(self.selector)?;
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
        if !reasons.found.has_what_is_meant(self.selector) {
            return None;
        }
        let (code, why) = reasons.why(self)?;
        let of_input = if code == Code::SelectorMayMatchSkipped { " of the input" } else { "" };
        Some((code, format!("matches nothing{of_input}: {why}")))
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
    fn peers(&self, reasons: &mut Reasons<'_, '_>, report: &mut Report<'a>) {
        let RuleFields { key, object, .. } = self.fields;
        for side in Side::ALL {
            let end = side.of(self.rule);
            for (index, entity) in end.entities.iter().flatten().enumerate() {
                let Some(selector) = &entity.selector else { continue };
                let field = self.fields.peer(side, end, index);
                let asked = Asked::new(key, object, selector, false);
                if !report.has_told(key, &field)
                    && let Some((code, message)) = asked.of_peer(reasons)
                {
                    report.tell(key, &field, code, message);
                }
            }
        }
    }
}
