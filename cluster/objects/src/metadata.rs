//! The `metadata` of every kind.

use std::collections::BTreeMap;

use super::cursor::{Cursor, Findings};
use super::object::{Created, Kind, ObjectKey, Owner, Pairs};
use super::problem::{Cause, Severity};
use super::settings::tell_annotations;
use super::syntax::{
    DNS_LABEL, DNS_SUBDOMAIN, LABEL_VALUE, POLICY_NAME, QUALIFIED_NAME, is_dns_label,
    is_dns_subdomain, is_label_value, is_policy_name, is_qualified_name,
};
use super::tree::{Node, Value, shown};
use super::yaml;

const READ: &[&str] = &[
    "name",
    "namespace",
    "labels",
    "annotations",
    "creationTimestamp",
    "deletionTimestamp",
    "ownerReferences",
];
const IGNORED: &[&str] = &[
    "deletionGracePeriodSeconds",
    "finalizers",
    "generateName",
    "generation",
    "managedFields",
    "resourceVersion",
    "selfLink",
    "uid",
];

/// The annotation in which Calico's client stores, as JSON, the metadata of objects of `crd.projectcalico.org/v1`.
const STORED: &str = "projectcalico.org/metadata";
const STORED_VERSION: &str = "crd.projectcalico.org/v1";

/// The maximum size of an object's annotations, keys and values together, in bytes (apimachinery,
/// `TotalAnnotationSizeLimitB`; Calico's validation has the same limit).
const MAX_ANNOTATIONS: usize = 256 << 10;

/// The parts of `metadata` that decoders need, apart from the identity.
#[derive(Debug, Default)]
pub(super) struct Metadata {
    pub(super) labels: Pairs,
    /// Whether all labels were read and are legal.
    pub(super) labels_readable: bool,
    pub(super) annotations: Pairs,
    pub(super) created: Option<Created>,
    pub(super) deleting: bool,
    pub(super) owner: Option<Owner>,
}

/// Returns the object's identity, if it can be read. The name may be illegal, because it still identifies the object
/// that fails.
pub(super) fn identity(root: &Cursor<'_>, kind: Kind) -> Option<ObjectKey> {
    let namespace = if kind.namespaced() { namespace(root)? } else { String::new() };
    let stored = match stored(root) {
        Stored::Metadata(node) => match node.get("name").map(|name| &name.value) {
            Some(Value::String(name)) => Some(shown(name).into_owned()),
            _ => None,
        },
        Stored::Nothing | Stored::Unreadable => None,
    };
    Some(ObjectKey { kind, namespace, name: stored.or_else(|| text(root, "name"))? })
}

/// The metadata that Calico's client has stored in an annotation.
enum Stored<'a> {
    Nothing,
    Unreadable,
    Metadata(Node<'a>),
}

fn stored<'a>(root: &Cursor<'a>) -> Stored<'a> {
    let version = root.node.get("apiVersion").map(|version| &version.value);
    if !matches!(version, Some(Value::String(version)) if version == STORED_VERSION) {
        return Stored::Nothing;
    }
    let annotations = root.node.get("metadata").and_then(|metadata| metadata.get("annotations"));
    let Some(node) = annotations.and_then(|annotations| annotations.get(STORED)) else {
        return Stored::Nothing;
    };
    let Value::String(text) = &node.value else { return Stored::Unreadable };
    match <[_; 1]>::try_from(yaml::parse_json(text).unwrap_or_default()) {
        Ok([document])
            if document.flaws.is_empty() && matches!(document.root.value, Value::Mapping(_)) =>
        {
            Stored::Metadata(document.root)
        }
        _ => Stored::Unreadable,
    }
}

/// Returns the namespace of a namespaced object. It is `default` if the object names none, as with kubectl. `None` if
/// it cannot be read.
pub(super) fn namespace(root: &Cursor<'_>) -> Option<String> {
    let metadata = root.node.get("metadata")?;
    if !matches!(metadata.value, Value::Mapping(_)) {
        return None;
    }
    match metadata.get("namespace").map(|namespace| &namespace.value) {
        None | Some(Value::Null) => Some("default".to_owned()),
        Some(_) => text(root, "namespace"),
    }
}

/// Returns the namespace that an object of any kind names, or an empty text if it names none.
pub(super) fn written_namespace(node: &Node) -> String {
    text(&Cursor::root(node), "namespace").unwrap_or_default()
}

/// Returns a text field of `metadata`. A text longer than any legal name is cut, because every message about the object
/// repeats it. The cut text is still too long to be a legal name.
fn text(root: &Cursor<'_>, key: &str) -> Option<String> {
    match &root.node.get("metadata")?.get(key)?.value {
        Value::String(text) => Some(shown(text).into_owned()),
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
        check_name(&name, kind, out);
    }
    if let Some(namespace) = cursor.field("namespace") {
        if kind.namespaced() {
            namespace.parsed(out, DNS_LABEL, |text| is_dns_label(text).then_some(()));
        } else {
            let cause = Cause::Conflict(format!("a {kind} has no namespace"));
            namespace.error(out, cause);
        }
    }
    let before = out.error_count();
    if let Some(labels) = cursor.field("labels") {
        metadata.labels = pairs(&labels, out, true);
    }
    stored_labels(root, &cursor, &mut metadata, out);
    metadata.labels_readable = out.error_count() == before;
    if let Some(annotations) = cursor.field("annotations") {
        metadata.annotations = pairs(&annotations, out, false);
        let pairs = metadata.annotations.iter();
        let bytes: usize = pairs.map(|(key, text)| key.len() + text.len()).sum();
        if bytes > MAX_ANNOTATIONS {
            let found = format!("{bytes} bytes of keys and values");
            let expected = format!(
                "at most {MAX_ANNOTATIONS}, the API server's limit: keep long ones elsewhere"
            );
            annotations.error(out, Cause::Unexpected { found, expected });
        }
    }
    tell_annotations(&cursor, kind, out);
    metadata.created = text(root, "creationTimestamp").as_deref().and_then(Created::parse);
    metadata.deleting = cursor.field("deletionTimestamp").is_some();
    metadata.owner = owner(&cursor);
    metadata
}

/// Checks that a name is legal for its kind of object.
fn check_name(name: &Cursor<'_>, kind: Kind, out: &mut Findings) {
    match kind {
        // Names that become part of other names have no dots.
        Kind::Namespace | Kind::Service | Kind::Tier => {
            name.parsed(out, DNS_LABEL, |text| is_dns_label(text).then_some(()));
        }
        Kind::CalicoNetworkPolicy
        | Kind::GlobalNetworkPolicy
        | Kind::StagedNetworkPolicy
        | Kind::StagedGlobalNetworkPolicy => {
            let legal = |text: &str| is_policy_name(text, kind.namespaced()).then_some(());
            name.parsed(out, POLICY_NAME, legal);
        }
        Kind::BaselineAdminNetworkPolicy => {
            let expected = "default: there is one such policy at most";
            name.parsed(out, expected, |text| (text == "default").then_some(()));
        }
        _ => {
            name.parsed(out, DNS_SUBDOMAIN, |text| is_dns_subdomain(text).then_some(()));
        }
    }
}

/// Reads the `metadata` of a pod template, which consists of labels and annotations without a name.
pub(super) fn of_template(cursor: &Cursor<'_>, out: &mut Findings) -> Metadata {
    let mut metadata = Metadata::default();
    if !cursor.mapping(out, READ, IGNORED) {
        return metadata;
    }
    if let Some(labels) = cursor.field("labels") {
        metadata.labels = pairs(&labels, out, true);
    }
    metadata
}

/// Returns the owner that controls the object (`controller: true`). Errors are not reported, because the owner matters
/// only for pods that workloads make.
fn owner(metadata: &Cursor<'_>) -> Option<Owner> {
    let Value::Sequence(references) = &metadata.node.get("ownerReferences")?.value else {
        return None;
    };
    references.iter().find_map(|reference| {
        let text = |key| match &reference.get(key)?.value {
            Value::String(text) => Some(shown(text).into_owned()),
            _ => None,
        };
        let controls = reference.get("controller").map(|field| &field.value);
        let owner = Owner { kind: text("kind")?, name: text("name")? };
        (controls == Some(&Value::Boolean(true))).then_some(owner)
    })
}

/// Adds the labels that Calico's client has stored in its annotation to the object's own labels. If both have a key,
/// the stored value is used.
fn stored_labels(
    root: &Cursor<'_>,
    cursor: &Cursor<'_>,
    metadata: &mut Metadata,
    out: &mut Findings,
) {
    let stored = stored(root);
    let Some(annotations) = cursor.field("annotations") else { return };
    let Some(field) = annotations.field(STORED) else { return };
    // Positions inside the annotation's text would mislead, so the annotation itself is reported.
    let mut inner = Findings::default();
    match &stored {
        Stored::Nothing => return,
        Stored::Unreadable => {}
        Stored::Metadata(node) => {
            if let Some(labels) = Cursor::root(node).field("labels") {
                metadata.labels.extend(pairs(&labels, &mut inner, true));
            }
        }
    }
    if matches!(stored, Stored::Unreadable) || inner.errors() {
        field.expected(out, "the metadata of Calico's own object as JSON, with legal labels");
    }
}

/// Reports that an annotation does not have the form that it should have.
pub(super) fn annotation(
    root: &Cursor<'_>,
    name: &str,
    expected: &str,
    severity: Severity,
    out: &mut Findings,
) {
    if let Some(metadata) = root.field("metadata")
        && let Some(annotations) = metadata.field("annotations")
        && let Some(field) = annotations.field(name)
    {
        let found = field.node.value.describe();
        let cause = Cause::Unexpected { found, expected: expected.to_owned() };
        match severity {
            Severity::Error => field.error(out, cause),
            Severity::Warning | Severity::Note => field.warning(out, cause),
        }
    }
}

/// Reads labels or annotations. The values of labels have a syntax. The values of annotations are any text, and their
/// keys may have capitals in the DNS part.
pub(super) fn pairs(cursor: &Cursor<'_>, out: &mut Findings, labels: bool) -> Pairs {
    let mut pairs = BTreeMap::new();
    cursor.entries(out, |key, at, value, out| {
        let lower = key.to_ascii_lowercase();
        if !is_qualified_name(if labels { key } else { &lower }) {
            value.error_at(out, at, &format!("the key {:?}", shown(key)), QUALIFIED_NAME);
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
    pairs.into()
}
