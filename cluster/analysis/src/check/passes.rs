//! Finds `Pass` rules of Calico policies in the tier `default`, which Kubernetes policies share. A
//! passed packet continues after the tier, so the Kubernetes policies are not evaluated for it.

use manx_objects::code::Code;
use manx_objects::object::{Kind, Object, ObjectKey, calico};
use manx_policy_compiler::model::{Direction, Policy, compare_policies};

use manx_calculation::import::policy_name;

use super::report::Report;
use super::scene::Scene;

/// Reports each rule with `Pass` that comes before a Kubernetes NetworkPolicy.
pub(super) fn check<'a>(scene: &Scene<'a>, report: &mut Report<'a>) {
    let kubernetes: Vec<(&ObjectKey, &Policy)> = scene
        .policies()
        .filter(|(key, ..)| key.kind == Kind::NetworkPolicy)
        .map(|(key, _, policy)| (key, policy))
        .collect();
    for (key, object, policy) in scene.policies() {
        let Object::CalicoPolicy(wire) = object else { continue };
        if key.kind.staged() || policy.tier != "default" {
            continue;
        }
        for (direction, path, rules) in [
            (Direction::Ingress, "spec.ingress", &wire.ingress),
            (Direction::Egress, "spec.egress", &wire.egress),
        ] {
            let is_skipped = |(of, other): &&(&ObjectKey, &Policy)| {
                (!key.kind.namespaced() || of.namespace == key.namespace)
                    && other.rules(direction).is_some()
                    && comes_first((key, policy), (of, other))
            };
            let passes = rules.iter().enumerate();
            let mut passes =
                passes.filter(|(_, rule)| rule.action == calico::Action::Pass).peekable();
            if policy.rules(direction).is_none() || passes.peek().is_none() {
                continue;
            }
            let Some((skipped, _)) = kubernetes.iter().find(is_skipped) else { continue };
            for (index, _) in passes {
                let message = format!(
                    "Pass goes on after tier default, so {skipped}, which is in this tier, too, is not asked: what no later tier denies, the namespace's profile allows"
                );
                let field = format!("{path}[{index}].action");
                report.tell(key, &field, Code::PassSkipsPolicies, message);
            }
        }
    }
}

fn comes_first(one: (&ObjectKey, &Policy), other: (&ObjectKey, &Policy)) -> bool {
    let (Some(first), Some(second)) = (policy_name(one.0), policy_name(other.0)) else {
        return false;
    };
    compare_policies((&first, one.1), (&second, other.1)).is_lt()
}
