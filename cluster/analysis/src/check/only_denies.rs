//! Finds Calico policies that only deny or log, in a tier whose end denies. The end of the tier denies all other
//! packets of the endpoints that such a policy selects.
//!
//! A policy is not reported if this is probably intended: a rule denies everything, or another policy of the tier
//! decides about the same endpoints. That policy either allows or passes something, or has no rules and so exists to
//! deny.

use std::collections::{BTreeMap, HashSet};

use manx_objects::State;
use manx_objects::code::Code;
use manx_objects::object::calico::{Action, Rule};
use manx_objects::object::{Object, ObjectKey};
use manx_policy_compiler::model::{self, DefaultAction, Direction, Entity, Hook, Policy, RuleEnd};

use super::report::Report;
use super::scene::{Role, Scene};
use super::selected::Selected;

/// Reports each policy that only denies or logs, for each direction. Nothing is reported while any enforced policy is
/// invalid, because it is not known what that policy would allow.
pub(super) fn check<'a>(scene: &Scene<'a>, selected: &mut Selected<'_>, report: &mut Report<'a>) {
    let mut objects = scene.contents().objects.iter();
    if objects.any(|(key, it)| key.kind.enforced_policy() && matches!(it.state, State::Invalid(_)))
    {
        return;
    }
    for direction in Direction::ALL {
        let mut tiers: BTreeMap<&str, Tier<'_, 'a>> = BTreeMap::new();
        for (key, object, policy) in scene.policies() {
            let Some(rules) = policy.rules(direction) else { continue };
            let dropped = matches!(policy.hook, Hook::PreDnat | Hook::Untracked);
            if key.kind.staged() || dropped {
                continue;
            }
            let tier = tiers.entry(policy.tier.as_str()).or_default();
            match only(object, direction).filter(|_| !denies_everything(rules)) {
                Some(does) => tier.deniers.push((key, policy, does)),
                None => tier.others.push((key, policy)),
            }
        }
        for (name, tier) in tiers {
            let denies = scene.model().tier(name).default_action == DefaultAction::Deny;
            if denies && !tier.deniers.is_empty() {
                tier.tell(name, direction, selected, report);
            }
        }
    }
}

/// The policies of a tier that have rules for a direction.
#[derive(Default)]
struct Tier<'p, 'a> {
    /// The policies that only deny or log, each with the verb for its message.
    deniers: Vec<(&'a ObjectKey, &'p Policy, &'static str)>,
    others: Vec<(&'a ObjectKey, &'p Policy)>,
}

impl<'a> Tier<'_, 'a> {
    fn tell(
        &self,
        name: &str,
        direction: Direction,
        selected: &mut Selected<'_>,
        report: &mut Report<'a>,
    ) {
        let mut decided = HashSet::new();
        for (_, other) in &self.others {
            let Some(found) = selected.find(&other.selector) else { return };
            decided.extend(found.iter().copied());
        }
        for (key, policy, does) in &self.deniers {
            if ["metadata.namespace", "spec.tier"].iter().any(|field| report.has_told(key, field)) {
                continue;
            }
            let whose = if selected.has_endpoints() {
                let Some(found) = selected.find(&policy.selector) else { return };
                let endpoint = |it: &&usize| selected.members[**it].role == Role::Endpoint;
                let all: Vec<&usize> = found.iter().filter(endpoint).collect();
                match (all.iter().filter(|it| !decided.contains(**it)).count(), all.len()) {
                    (0, _) => continue,
                    (closed, all) if closed == all => "the endpoints that it selects".to_owned(),
                    (closed, all) => format!("{closed} of the {all} endpoints that it selects"),
                }
            } else if self.others.iter().any(|(other, _)| may_share(key, other)) {
                continue;
            } else {
                "the endpoints that it selects".to_owned()
            };
            let to = if direction == Direction::Ingress { "to" } else { "from" };
            let message = format!(
                "only {does}: everything else {to} {whose} is denied at the end of tier {name}, where nothing allows or passes it"
            );
            report.tell(key, &format!("spec.{direction}"), Code::OnlyDenies, message);
        }
    }
}

/// Returns whether two policies may select the same endpoints, if the endpoints are not known.
fn may_share(one: &ObjectKey, other: &ObjectKey) -> bool {
    [one, other].iter().any(|key| !key.kind.namespaced()) || one.namespace == other.namespace
}

/// Returns the effect of a Calico policy's rules as a verb, such as `denies`. Returns `None` if they allow or pass
/// packets, or if there are none.
fn only(object: &Object, direction: Direction) -> Option<&'static str> {
    let Object::CalicoPolicy(policy) = object else { return None };
    let rules = match direction {
        Direction::Ingress => &policy.ingress,
        Direction::Egress => &policy.egress,
    };
    let any = |action| rules.iter().any(|rule: &Rule| rule.action == action);
    if any(Action::Allow) || any(Action::Pass) {
        return None;
    }
    match (any(Action::Log), any(Action::Deny)) {
        (true, true) => Some("logs and denies"),
        (true, false) => Some("logs"),
        (false, true) => Some("denies"),
        (false, false) => None,
    }
}

/// Returns whether the rules deny every packet of a family, or every TCP and UDP packet. Such a policy is meant to
/// deny.
fn denies_everything(rules: &[model::Rule]) -> bool {
    let whole = |rule: &&model::Rule| {
        let conditions = (rule.not_protocol, rule.icmp, rule.not_icmp);
        rule.action == Action::Deny
            && conditions == (None, None, None)
            && [&rule.source, &rule.destination].into_iter().all(is_everything)
    };
    let protocols: HashSet<Option<u8>> =
        rules.iter().filter(whole).map(|rule| rule.protocol).collect();
    protocols.contains(&None) || [6, 17].iter().all(|it| protocols.contains(&Some(*it)))
}

/// Returns whether an end of a rule matches every address of a family and every port.
fn is_everything(end: &RuleEnd) -> bool {
    let every_address = |entity: &Entity| {
        let bare = Entity { nets: entity.nets.clone(), ..Entity::default() };
        *entity == bare && entity.nets.iter().any(|net| net.prefix_len() == 0)
    };
    end.ports.is_empty()
        && end.not_ports.is_empty()
        && end.entities.as_ref().is_none_or(|entities| entities.iter().any(every_address))
}
