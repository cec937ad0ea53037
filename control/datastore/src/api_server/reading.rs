//! An object of the API server, read by the reader that reads files.

use std::sync::Arc;

use manx_objects::contents::fingerprint;
use manx_objects::object::{Kind, ObjectKey};
use manx_objects::problem::{Place, Problem};
use manx_objects::{Entry, read};
use serde_json::Value;

use super::resource::Resource;

/// What was read of one object.
#[derive(Debug, Clone)]
pub(super) struct Reading {
    /// The object, by the name that the server knows it by.
    pub(super) key: ObjectKey,
    /// What it is. Calico's objects may have another name of their own.
    pub(super) entry: Option<Entry>,
    /// What is wrong with it.
    pub(super) problems: Vec<Problem>,
    /// Identifies its content.
    pub(super) fingerprint: u64,
    /// What was read, as JSON.
    pub(super) text: String,
}

/// The name by which the server knows an object.
pub(super) fn key(kind: Kind, object: &Value) -> ObjectKey {
    let text = |field| object["metadata"][field].as_str().unwrap_or_default().to_owned();
    ObjectKey { kind, namespace: text("namespace"), name: text("name") }
}

/// Reads an object that the server has sent. The items of a list do not say what they are: the resource does.
pub(super) fn of_server(server: &Arc<str>, resource: &Resource, mut object: Value) -> Reading {
    prune(resource.kind, &mut object);
    if let Value::Object(fields) = &mut object {
        fields.insert("apiVersion".to_owned(), resource.api_version.into());
        fields.insert("kind".to_owned(), resource.kind.name().into());
    }
    let key = key(resource.kind, &object);
    of_text(server, key, object.to_string())
}

/// Reads an object from its text.
pub(super) fn of_text(server: &Arc<str>, key: ObjectKey, text: String) -> Reading {
    // The text is one line that nobody has written: a position in it says nothing, the object's name and field do.
    let place = || Place { file: Arc::clone(server), document: 0, at: None };
    let (mut entries, mut problems) = match read(server, &text) {
        Ok(manifest) => (manifest.entries, manifest.problems),
        Err(problem) => (Vec::new(), vec![*problem]),
    };
    for problem in &mut problems {
        (problem.place, problem.line) = (place(), None);
        problem.object.get_or_insert_with(|| key.clone());
    }
    let entry = (!entries.is_empty()).then(|| entries.swap_remove(0));
    let entry = entry.map(|entry| Entry { place: Arc::new(place()), ..entry });
    let fingerprint = fingerprint((&key, &text));
    Reading { key, entry, problems, fingerprint, text }
}

/// Drops what is not used of objects that are many, large or change often for other reasons. The reader would skip it.
fn prune(kind: Kind, object: &mut Value) {
    if let Some(Value::Object(metadata)) = object.get_mut("metadata") {
        metadata.remove("managedFields");
        metadata.remove("resourceVersion");
    }
    match kind {
        Kind::Pod => {
            keep(object, "spec", POD_SPEC);
            keep(object, "status", POD_STATUS);
            for list in ["containers", "initContainers"] {
                let containers = object.get_mut("spec").and_then(|spec| spec.get_mut(list));
                for container in containers.and_then(Value::as_array_mut).into_iter().flatten() {
                    keep_of(container, CONTAINER);
                }
            }
        }
        Kind::Node => {
            keep(object, "spec", &["podCIDR", "podCIDRs"]);
            keep(object, "status", &["addresses"]);
        }
        _ => {}
    }
}

const POD_SPEC: &[&str] =
    &["nodeName", "serviceAccountName", "hostNetwork", "containers", "initContainers"];
const POD_STATUS: &[&str] = &["phase", "hostIP", "podIP", "podIPs"];
const CONTAINER: &[&str] = &["name", "ports"];

fn keep(object: &mut Value, field: &str, fields: &[&str]) {
    if let Some(value) = object.get_mut(field) {
        keep_of(value, fields);
    }
}

fn keep_of(value: &mut Value, fields: &[&str]) {
    if let Value::Object(map) = value {
        map.retain(|key, _| fields.contains(&key.as_str()));
    }
}
