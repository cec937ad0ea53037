//! Finds Calico rules whose own side matches no endpoint of their policy. The own side is the
//! destination of an ingress rule, and the source of an egress rule.
//!
//! Only selectors are compared, because a pod may get any address.

use manx_objects::code::Code;
use manx_objects::object::Object;
use manx_policy_compiler::model::{Direction, Hook, Policy};

use super::fields::{RuleFields, Side};
use super::report::Report;
use super::scene::{Role, Scene};
use super::selected::Selected;

/// Reports each rule whose own side matches no endpoint of the policy.
pub(super) fn check<'a>(scene: &Scene<'a>, selected: &mut Selected<'_>, report: &mut Report<'a>) {
    for (key, object, policy) in scene.policies() {
        if !matches!(object, Object::CalicoPolicy(_)) {
            continue;
        }
        for direction in Direction::ALL {
            let side = Side::own(direction);
            let [own, peer] = [side, side.other()].map(Side::name);
            for index in never(policy, direction, selected).unwrap_or_default() {
                let field = RuleFields { key, object, direction, index }.side(side);
                if report.has_told(key, &field) {
                    continue;
                }
                let message = format!(
                    "the rule matches nothing: in an {direction} rule the {own} is an endpoint of the policy's own, and none of these fits; the peer is the {peer}"
                );
                report.tell(key, &field, Code::OwnSideMatchesNothing, message);
            }
        }
    }
}

/// Returns the indexes of the rules whose own side matches no endpoint, or `None` if the endpoints
/// are not known.
fn never(policy: &Policy, direction: Direction, selected: &mut Selected<'_>) -> Option<Vec<u32>> {
    let mut rules = Vec::new();
    for rule in policy.rules(direction)? {
        let entities = rule.ends(direction).0.entities.as_deref().unwrap_or_default();
        let [entity] = entities else { continue };
        if entity.selector.is_none() && entity.not_selector.is_none() {
            continue;
        }
        let members = selected.members;
        let own = selected.find(&policy.selector)?;
        let mut endpoints = own.iter().filter(|it| members[**it].role == Role::Endpoint).peekable();
        // At a host endpoint, the own side of forwarded traffic is not the host itself.
        let forwards = |it: &&usize| members[**it].pod.is_none() && policy.hook != Hook::Endpoint;
        if endpoints.peek().is_none() || endpoints.clone().any(|it| forwards(&it)) {
            continue;
        }
        let fitting = selected.of_entity(entity)?;
        if !endpoints.any(|it| fitting.binary_search(it).is_ok()) {
            rules.push(rule.index);
        }
    }
    Some(rules)
}
