//! An object of a server, read by the reader that reads files.

use std::sync::Arc;

use manx_objects::Entry;
use manx_objects::contents::fingerprint;
use manx_objects::object::{Kind, ObjectKey};
use manx_objects::problem::{Place, Problem};
use serde_json::Value;

/// The result of reading one object.
#[derive(Debug, Clone)]
pub(crate) struct Reading {
    /// The object, by the name that the server knows it by.
    pub(crate) key: ObjectKey,
    /// Its content. Calico's objects may have another name of their own.
    pub(crate) entry: Option<Entry>,
    pub(crate) problems: Vec<Problem>,
    /// Identifies its content.
    pub(crate) fingerprint: u64,
    /// Its JSON.
    pub(crate) text: String,
}

/// The name by which the server knows an object.
pub(crate) fn key(kind: Kind, object: &Value) -> ObjectKey {
    let text = |field| object["metadata"][field].as_str().unwrap_or_default().to_owned();
    ObjectKey { kind, namespace: text("namespace"), name: text("name") }
}

/// Reads an object from its text.
pub(crate) fn read(server: &Arc<str>, key: ObjectKey, text: String) -> Reading {
    // The text is one line made by the server: a position in it does not help the user, the object's name and field do.
    let place = || Place { file: Arc::clone(server), document: 0, at: None };
    let (mut entries, mut problems) = match manx_objects::read(server, &text) {
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
