//! NetworkPolicy, GlobalNetworkPolicy and their staged kinds.

use super::super::cursor::{Cursor, Findings};
use super::super::intent;
use super::super::object::calico::{Policy, StagedAction, Subject};
use super::super::object::{Kind, PolicyType};
use super::super::settings::tell;
use super::super::syntax::{DNS_LABEL, is_dns_label};
use super::super::tree::Value;
use super::context::Context;
use super::fixed::{KUBE_ADMIN, KUBE_BASELINE, OBJECT};
use super::rule::rules;
use super::value::{Over, order, selector};

/// Reads `spec`. Errors are in `out`; if there are any, only the result's subject may be used. The subject is `None` if
/// it could not be read completely.
pub(in super::super) fn decode(
    root: &Cursor<'_>,
    kind: Kind,
    out: &mut Findings,
) -> (Policy, Option<Subject>) {
    root.mapping(out, OBJECT, &["status"]);
    let mut policy = Policy::default();
    let global = !kind.namespaced();
    let Some(spec) = root.field("spec") else {
        let selects = if global { "every endpoint" } else { "every endpoint of its namespace" };
        intent::no_spec(root, selects, out);
        return (policy, Some(Subject::default()));
    };
    if !tell(&spec, kind, out) {
        return (policy, None);
    }
    let before = out.error_count();
    policy.subject = subject(&spec, global, out);
    let readable = (out.error_count() == before).then(|| policy.subject.clone());
    policy.tier = spec.field("tier").and_then(|field| tier(&field, out));
    policy.order = spec.field("order").and_then(|field| order(&field, out));
    policy.types = spec.field("types").map(|field| types(&field, out));
    let context = |direction| Context { direction, namespaced: !global };
    if let Some(field) = spec.field("performanceHints") {
        check_hints(&field, out);
    }
    policy.ingress = rules(&spec, "ingress", context(PolicyType::Ingress), out);
    policy.egress = rules(&spec, "egress", context(PolicyType::Egress), out);
    intent::rules_without_type(&spec, "types", policy.types.as_deref(), out);
    // A policy without types covers egress if it has egress rules. It covers ingress unless it has only egress rules.
    let not_covered = if policy.egress.is_empty() { "egress" } else { "ingress" };
    intent::empty_without_type(&spec, ("types", policy.types.as_deref()), not_covered, out);
    if global {
        let mut flag = |key| spec.field(key).and_then(|field| field.boolean(out)).unwrap_or(false);
        policy.apply_on_forward = flag("applyOnForward");
        policy.pre_dnat = flag("preDNAT");
        policy.do_not_track = flag("doNotTrack");
        check_stage(&spec, &policy, out);
    }
    if kind.staged() {
        policy.staged_action =
            spec.field("stagedAction").and_then(|field| staged_action(&field, out));
        if policy.staged_action == Some(StagedAction::Delete) {
            nothing_but(&spec, &["stagedAction", "tier"], out);
        }
    }
    (policy, readable)
}

fn subject(spec: &Cursor<'_>, global: bool, out: &mut Findings) -> Subject {
    let mut of = |key| spec.field(key).and_then(|field| selector(&field, Over::Labels, out));
    Subject {
        selector: of("selector"),
        namespace_selector: if global { of("namespaceSelector") } else { None },
        service_account_selector: of("serviceAccountSelector"),
    }
}

/// Reads the name of a tier in which users may put policies.
fn tier(cursor: &Cursor<'_>, out: &mut Findings) -> Option<String> {
    let name = cursor.filled(out, DNS_LABEL)?;
    if !is_dns_label(name) {
        cursor.expected(out, DNS_LABEL);
    } else if [KUBE_ADMIN.0, KUBE_BASELINE.0].contains(&name) {
        cursor.expected(out, "another tier: this one holds ClusterNetworkPolicies only");
    }
    Some(name.to_owned())
}

fn types(cursor: &Cursor<'_>, out: &mut Findings) -> Vec<PolicyType> {
    cursor.distinct(out, |item, out| {
        item.parsed(out, "Ingress or Egress", |text| match text {
            "Ingress" => Some(PolicyType::Ingress),
            "Egress" => Some(PolicyType::Egress),
            _ => None,
        })
    })
}

/// Checks the hints. Calico has only one, and Manx does not use it.
fn check_hints(cursor: &Cursor<'_>, out: &mut Findings) {
    let hint = "AssumeNeededOnEveryNode";
    cursor.distinct(out, |item, out| item.parsed(out, hint, |text| (text == hint).then_some(())));
}

/// Checks `preDNAT` and `doNotTrack`, which apply the policy earlier on the packet's path.
fn check_stage(spec: &Cursor<'_>, policy: &Policy, out: &mut Findings) {
    for (key, set) in [("preDNAT", policy.pre_dnat), ("doNotTrack", policy.do_not_track)] {
        if set
            && !policy.apply_on_forward
            && let Some(field) = spec.field(key)
        {
            field.conflict(out, "needs applyOnForward: true");
        }
    }
    let Some(field) = spec.field("preDNAT").filter(|_| policy.pre_dnat) else { return };
    if policy.do_not_track {
        field.conflict(out, "may not be used together with doNotTrack");
    }
    let egress = policy.types.as_ref().is_some_and(|types| types.contains(&PolicyType::Egress));
    if egress || !policy.egress.is_empty() {
        field.conflict(out, "may not stand in a policy for egress");
    }
}

/// Reads `stagedAction`.
pub(in super::super) fn staged_action(
    cursor: &Cursor<'_>,
    out: &mut Findings,
) -> Option<StagedAction> {
    let expected = "Set, Delete, Learn or Ignore";
    cursor.filled(out, expected)?;
    cursor.parsed(out, expected, |text| match text {
        "Set" => Some(StagedAction::Set),
        "Delete" => Some(StagedAction::Delete),
        "Learn" => Some(StagedAction::Learn),
        "Ignore" => Some(StagedAction::Ignore),
        _ => None,
    })
}

/// Reports every field that is not in `allowed`. A staged policy that announces a deletion may have no other fields.
pub(in super::super) fn nothing_but(spec: &Cursor<'_>, allowed: &[&str], out: &mut Findings) {
    for (field, _) in spec.others(allowed) {
        if !field.is_empty() && field.node.value != Value::Boolean(false) {
            field.conflict(out, "must be absent where stagedAction is Delete");
        }
    }
}
