//! The cluster-wide policies of `policy.networking.k8s.io`.
//!
//! A rule with anything that Manx cannot evaluate (domain names, or any field newer than this reader) becomes
//! [`ClusterMatch::Unsupported`] and causes a warning. The rule can then fail closed, as the API requires of
//! implementations. Anything that no version of the API accepts is an error and makes the whole policy invalid.
//!
//! Source: network-policy-api, ClusterNetworkPolicy `v1alpha2` and `v1beta1`, AdminNetworkPolicy and
//! BaselineAdminNetworkPolicy `v1alpha1`. Limits on the length of lists, which differ between versions, are not
//! checked.

mod peer;
mod protocol;
mod support;
#[cfg(test)]
mod tests;
mod version;

use self::peer::{peer, subject};
use self::support::Support;
use self::version::{ADMIN, BASELINE, V1ALPHA2, Version};
use super::cursor::{Cursor, Findings};
use super::object::cluster::{
    ClusterAction, ClusterMatch, ClusterPeer, ClusterProtocol, ClusterRule, ClusterTier, Pods,
};
use super::object::{ClusterNetworkPolicy, Kind, LabelSelector, PolicyType};
use super::tree::Value;

/// Reads `spec`. If there are errors in `out`, only the result's subject may be used. The subject is `None` if it could
/// not be read completely.
pub(super) fn decode(
    root: &Cursor<'_>,
    kind: Kind,
    out: &mut Findings,
) -> (ClusterNetworkPolicy, Option<Pods>) {
    root.mapping(out, &["apiVersion", "kind", "metadata", "spec"], &["status"]);
    let version = match kind {
        Kind::AdminNetworkPolicy => &ADMIN,
        Kind::BaselineAdminNetworkPolicy => &BASELINE,
        _ => &V1ALPHA2,
    };
    let mut policy = ClusterNetworkPolicy {
        tier: version.tier.unwrap_or(ClusterTier::Admin),
        priority: 0,
        subject: Pods { namespaces: LabelSelector::default(), pods: LabelSelector::default() },
        ingress: Vec::new(),
        egress: Vec::new(),
    };
    let Some(spec) = root.required(out, "spec", "a mapping with subject") else {
        return (policy, None);
    };
    let known: &[&str] = match kind {
        Kind::AdminNetworkPolicy => &["priority", "subject", "ingress", "egress"],
        Kind::BaselineAdminNetworkPolicy => &["subject", "ingress", "egress"],
        _ => &["tier", "priority", "subject", "ingress", "egress"],
    };
    if !spec.exact(out, known) {
        return (policy, None);
    }
    if version.tier.is_none()
        && let Some(tier) = tier(&spec, out)
    {
        policy.tier = tier;
    }
    if known.contains(&"priority") {
        let expected = "a whole number from 0 to 1000";
        let priority = spec.required(out, "priority", expected);
        let number = priority.and_then(|field| field.integer(out, expected, 0..=1000));
        policy.priority = number.unwrap_or(0);
    }
    let before = out.error_count();
    let pods = spec
        .required(out, "subject", "namespaces or pods")
        .and_then(|field| subject(&field, version, out))
        .filter(|_| out.error_count() == before);
    if let Some(pods) = &pods {
        policy.subject = pods.clone();
    }
    policy.ingress = rules(&spec, "ingress", PolicyType::Ingress, version, out);
    policy.egress = rules(&spec, "egress", PolicyType::Egress, version, out);
    (policy, pods)
}

fn tier(spec: &Cursor<'_>, out: &mut Findings) -> Option<ClusterTier> {
    let expected = "Admin or Baseline";
    spec.required(out, "tier", expected)?.parsed(out, expected, |text| match text {
        "Admin" => Some(ClusterTier::Admin),
        "Baseline" => Some(ClusterTier::Baseline),
        _ => None,
    })
}

fn rules(
    spec: &Cursor<'_>,
    key: &str,
    direction: PolicyType,
    version: &Version,
    out: &mut Findings,
) -> Vec<ClusterRule> {
    let Some(field) = spec.field(key) else { return Vec::new() };
    field.items(out, |item, out| rule(item, direction, version, out))
}

fn rule(
    cursor: &Cursor<'_>,
    direction: PolicyType,
    version: &Version,
    out: &mut Findings,
) -> Option<ClusterRule> {
    if !matches!(cursor.node.value, Value::Mapping(_)) {
        cursor.expected(out, "a mapping");
        return None;
    }
    let names: Vec<_> = version.actions.iter().map(|(name, _)| *name).collect();
    let expected = names.join(", ");
    let action = cursor.required(out, "action", &expected).and_then(|field| {
        field.parsed(out, &expected, |text| {
            version.actions.iter().find(|(name, _)| *name == text).map(|(_, action)| *action)
        })
    });
    let name = cursor.field("name").and_then(|field| {
        field.parsed(out, "a name of at most 100 characters", |text| {
            (text.chars().count() <= 100).then(|| text.to_owned())
        })
    });
    let mut support = Support {
        effect: match action {
            Some(ClusterAction::Accept) => "accepts nothing",
            _ => "denies everything",
        },
        lacking: false,
    };
    let peers_key = if direction == PolicyType::Ingress { "from" } else { "to" };
    let (protocols_key, read_protocol) = version.protocols;
    support.fields(cursor, &["name", "action", peers_key, protocols_key], out);
    let peers = filled_list(cursor, peers_key, true, out).map(|field| {
        field.items(out, |item, out| peer(item, direction, version, &mut support, out))
    });
    let protocols = filled_list(cursor, protocols_key, protocols_key == "protocols", out)
        .map(|field| field.items(out, |item, out| read_protocol(item, &mut support, out)));
    if peers.is_none() && cursor.field(peers_key).is_none() {
        cursor.missing(out, peers_key, "at least one peer");
    }
    let peers = peers.unwrap_or_default();
    check_names(cursor, protocols_key, &peers, protocols.as_deref(), out);
    let matches = if support.lacking {
        ClusterMatch::Unsupported
    } else {
        ClusterMatch::Of { peers, protocols: protocols.filter(|list| !list.is_empty()) }
    };
    Some(ClusterRule { name, action: action?, matches })
}

/// Returns the items of a list. An empty list is an error if `filled` is set.
fn filled_list<'a>(
    cursor: &'a Cursor<'_>,
    key: &'a str,
    filled: bool,
    out: &mut Findings,
) -> Option<Cursor<'a>> {
    let field = cursor.field(key)?;
    if filled && field.node.value == Value::Sequence(Vec::new()) {
        field.expected(out, "at least one entry");
    }
    Some(field)
}

/// Checks that a rule with networks or nodes names no ports by name, because networks and nodes have no named ports.
fn check_names(
    rule: &Cursor<'_>,
    protocols_key: &str,
    peers: &[ClusterPeer],
    protocols: Option<&[ClusterProtocol]>,
    out: &mut Findings,
) {
    let nameless = |peer: &ClusterPeer| match peer {
        ClusterPeer::Networks(_) => Some("networks"),
        ClusterPeer::Nodes(_) => Some("nodes"),
        ClusterPeer::Pods(_) => None,
    };
    let names = protocols
        .is_some_and(|list| list.iter().any(|one| matches!(one, ClusterProtocol::Named(_))));
    if let Some(nameless) = peers.iter().find_map(nameless)
        && names
        && let Some(field) = rule.field(protocols_key)
    {
        let message =
            format!("named ports may not be used together with {nameless}: these have none");
        field.conflict(out, &message);
    }
}
