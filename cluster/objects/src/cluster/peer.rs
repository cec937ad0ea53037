//! The pods, networks and nodes that cluster-wide policies name.

use super::super::cursor::{Cursor, Findings};
use super::super::intent;
use super::super::label_selector::{LABEL_SELECTOR, label_selector};
use super::super::object::cluster::{ClusterPeer, Pods};
use super::super::object::{LabelSelector, PolicyType};
use super::super::tree::Value;
use super::support::Support;
use super::version::Version;

/// Reads `subject`. Unlike in a rule, an unknown field makes the whole policy invalid, because it is not known which
/// pods the policy selects.
pub(super) fn subject(cursor: &Cursor<'_>, version: &Version, out: &mut Findings) -> Option<Pods> {
    if !cursor.exact(out, &["namespaces", "pods"]) {
        return None;
    }
    match (cursor.field("namespaces"), cursor.field("pods")) {
        (Some(namespaces), None) => Some(Pods {
            namespaces: label_selector(&namespaces, out),
            pods: LabelSelector::default(),
        }),
        (None, Some(pods)) => {
            if !pods.exact(out, PODS) {
                return None;
            }
            let namespaces = namespace_selector(&pods, version, out);
            Some(Pods {
                namespaces: namespaces.map(|field| label_selector(&field, out)).unwrap_or_default(),
                pods: label_selector(&pods.required(out, "podSelector", POD_SELECTOR)?, out),
            })
        }
        (Some(_), Some(pods)) => {
            pods.conflict(out, "may not be used together with namespaces");
            None
        }
        (None, None) => {
            cursor.expected(out, "namespaces or pods");
            None
        }
    }
}

const PODS: &[&str] = &["namespaceSelector", "podSelector"];
const POD_SELECTOR: &str = "a label selector ({} selects all pods)";

fn namespace_selector<'a>(
    pods: &'a Cursor<'_>,
    version: &Version,
    out: &mut Findings,
) -> Option<Cursor<'a>> {
    if version.namespace_selector {
        let expected = "a label selector ({} selects all namespaces)";
        return pods.required(out, "namespaceSelector", expected);
    }
    pods.field("namespaceSelector")
}

/// Reads one entry of `from` or `to`. Returns `None` if the entry is not valid or not supported.
pub(super) fn peer(
    cursor: &Cursor<'_>,
    direction: PolicyType,
    version: &Version,
    support: &mut Support,
    out: &mut Findings,
) -> Option<ClusterPeer> {
    let Value::Mapping(entries) = &cursor.node.value else {
        cursor.expected(out, "a mapping");
        return None;
    };
    let filled = entries.iter().filter(|entry| entry.node.value != Value::Null).count();
    if filled > 1 {
        cursor.conflict(out, "a peer has exactly one field");
        return None;
    }
    if filled == 0 {
        // By the API's rule, an empty entry means that the entry had a field which was dropped because the reader's
        // version does not know it.
        support.lacks(cursor, cursor.node.at, out);
        return None;
    }
    let known: &[&str] = match direction {
        PolicyType::Ingress => &["namespaces", "pods"],
        PolicyType::Egress => &["namespaces", "pods", "networks", "nodes"],
    };
    if !support.fields(cursor, known, out) {
        return None;
    }
    if let Some(field) = cursor.field("namespaces") {
        let namespaces = namespaces(&field, version, support, out)?;
        return Some(ClusterPeer::Pods(Pods { namespaces, pods: LabelSelector::default() }));
    }
    if let Some(pods) = cursor.field("pods") {
        return peer_pods(&pods, version, support, out).map(ClusterPeer::Pods);
    }
    if let Some(nodes) = cursor.field("nodes") {
        return peer_selector(&nodes, support, out).map(ClusterPeer::Nodes);
    }
    let networks = cursor.field("networks")?;
    if networks.node.value == Value::Sequence(Vec::new()) {
        networks.expected(out, "at least one CIDR");
    }
    let nets = networks.items(out, intent::net);
    Some(ClusterPeer::Networks(nets))
}

fn peer_pods(
    cursor: &Cursor<'_>,
    version: &Version,
    support: &mut Support,
    out: &mut Findings,
) -> Option<Pods> {
    if !matches!(cursor.node.value, Value::Mapping(_)) {
        cursor.expected(out, "a mapping");
        return None;
    }
    if version.nested_namespaces
        && let Some(field) = cursor.field("namespaces")
    {
        if !support.fields(cursor, &["namespaces", "podSelector"], out) {
            return None;
        }
        let namespaces = namespaces(&field, version, support, out)?;
        let pods = cursor.required(out, "podSelector", POD_SELECTOR)?;
        return Some(Pods { namespaces, pods: peer_selector(&pods, support, out)? });
    }
    if !support.fields(cursor, PODS, out) {
        return None;
    }
    let namespaces = match namespace_selector(cursor, version, out) {
        Some(field) => peer_selector(&field, support, out)?,
        None => LabelSelector::default(),
    };
    let pods = cursor.required(out, "podSelector", POD_SELECTOR)?;
    Some(Pods { namespaces, pods: peer_selector(&pods, support, out)? })
}

/// Reads the namespaces of a peer: a label selector, or a `namespaceSelector` as in v0.1.0 of the API. Other fields of
/// that version (`sameLabels`, `notSameLabels`) are not supported.
fn namespaces(
    cursor: &Cursor<'_>,
    version: &Version,
    support: &mut Support,
    out: &mut Findings,
) -> Option<LabelSelector> {
    match cursor.field("namespaceSelector") {
        Some(field) if version.nested_namespaces => {
            support.fields(cursor, &["namespaceSelector"], out).then_some(())?;
            peer_selector(&field, support, out)
        }
        _ => peer_selector(cursor, support, out),
    }
}

fn peer_selector(
    cursor: &Cursor<'_>,
    support: &mut Support,
    out: &mut Findings,
) -> Option<LabelSelector> {
    support.fields(cursor, LABEL_SELECTOR, out).then(|| label_selector(cursor, out))
}
