//! `metadata`, of every kind.

use super::cursor::{Cursor, Findings};
use super::object::{Kind, ObjectKey, Pairs};
use super::problem::Cause;
use super::syntax::{
    DNS_LABEL, DNS_SUBDOMAIN, LABEL_VALUE, QUALIFIED_NAME, is_dns_label, is_dns_subdomain,
    is_label_value, is_qualified_name,
};
use super::tree::Value;

const READ: &[&str] = &["name", "namespace", "labels", "annotations", "deletionTimestamp"];
const IGNORED: &[&str] = &[
    "creationTimestamp",
    "deletionGracePeriodSeconds",
    "finalizers",
    "generateName",
    "generation",
    "managedFields",
    "ownerReferences",
    "resourceVersion",
    "selfLink",
    "uid",
];

/// What of `metadata` anybody needs besides the identity.
#[derive(Debug, Default)]
pub(super) struct Metadata {
    pub(super) labels: Pairs,
    pub(super) annotations: Pairs,
    pub(super) deleting: bool,
}

/// The object's identity, if it can be read, legal or not: an illegal name still tells which object it is that fails.
pub(super) fn identity(root: &Cursor<'_>, kind: Kind) -> Option<ObjectKey> {
    let namespace = if kind.namespaced() { namespace(root) } else { String::new() };
    Some(ObjectKey { kind, namespace, name: text(root, "name")? })
}

/// The namespace of a namespaced object: `default` where there is none, as with kubectl.
pub(super) fn namespace(root: &Cursor<'_>) -> String {
    text(root, "namespace").unwrap_or_else(|| "default".to_owned())
}

fn text(root: &Cursor<'_>, key: &str) -> Option<String> {
    match &root.node.get("metadata")?.get(key)?.value {
        Value::String(text) => Some(text.clone()),
        Value::Integer(number) => Some(number.to_string()),
        Value::Boolean(truth) => Some(truth.to_string()),
        _ => None,
    }
}

/// Reads and checks `metadata`.
pub(super) fn metadata(root: &Cursor<'_>, kind: Kind, out: &mut Findings) -> Metadata {
    let mut metadata = Metadata::default();
    let Some(cursor) = root.required(out, "metadata", "a mapping with a name") else {
        return metadata;
    };
    if !cursor.mapping(out, READ, IGNORED) {
        return metadata;
    }
    if let Some(name) = cursor.required(out, "name", "the object's name") {
        // A namespace's name is a label of DNS, the others may have dots.
        if kind == Kind::Namespace {
            name.parsed(out, DNS_LABEL, |text| is_dns_label(text).then_some(()));
        } else {
            name.parsed(out, DNS_SUBDOMAIN, |text| is_dns_subdomain(text).then_some(()));
        }
    }
    if let Some(namespace) = cursor.field("namespace") {
        if kind.namespaced() {
            namespace.parsed(out, DNS_LABEL, |text| is_dns_label(text).then_some(()));
        } else {
            let cause = Cause::Conflict(format!("a {kind} lives in no namespace"));
            namespace.error(out, cause);
        }
    }
    if let Some(labels) = cursor.field("labels") {
        metadata.labels = pairs(&labels, out, true);
    }
    if let Some(annotations) = cursor.field("annotations") {
        metadata.annotations = pairs(&annotations, out, false);
    }
    metadata.deleting = cursor.field("deletionTimestamp").is_some();
    metadata
}

/// Labels (whose values have a syntax) or annotations (whose values are any text, and whose keys may have capitals in
/// their DNS part).
pub(super) fn pairs(cursor: &Cursor<'_>, out: &mut Findings, labels: bool) -> Pairs {
    let mut pairs = Pairs::new();
    cursor.entries(out, |key, at, value, out| {
        let lower = key.to_ascii_lowercase();
        if !is_qualified_name(if labels { key } else { &lower }) {
            value.error_at(out, at, &format!("the key {key:?}"), QUALIFIED_NAME);
        }
        let text = if labels {
            value.parsed(out, LABEL_VALUE, |text| is_label_value(text).then(|| text.to_owned()))
        } else if value.node.value == Value::Null {
            Some(String::new())
        } else {
            value.string(out, "any text").map(str::to_owned)
        };
        if let Some(text) = text {
            pairs.insert(key.to_owned(), text);
        }
    });
    pairs
}
