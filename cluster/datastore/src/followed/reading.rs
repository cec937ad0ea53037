//! Reads an object of a server with the reader of files.

use std::sync::Arc;

use manx_objects::Entry;
use manx_objects::contents::fingerprint;
use manx_objects::object::{Kind, ObjectKey};
use manx_objects::problem::{Place, Problem};
use serde_json::Value;

/// The result of reading one object.
#[derive(Debug, Clone)]
pub(crate) struct Reading {
    /// The key of the object, with the name that the server uses.
    pub(crate) key: ObjectKey,
    /// The content of the object. An object of Calico may have another name of its own.
    pub(crate) entry: Option<Entry>,
    pub(crate) problems: Vec<Problem>,
    /// The fingerprint of the content.
    pub(crate) fingerprint: u64,
    /// The JSON text.
    pub(crate) text: String,
}

/// Returns the key of an object, with the name that the server uses.
pub(crate) fn key(kind: Kind, object: &Value) -> ObjectKey {
    let text = |field| object["metadata"][field].as_str().unwrap_or_default().to_owned();
    ObjectKey { kind, namespace: text("namespace"), name: text("name") }
}

/// Reads an object from its text.
pub(crate) fn read(server: &Arc<str>, key: ObjectKey, text: String) -> Reading {
    // The text is one line that the server has made. A position in it does not help users, but the object's name and
    // field do.
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
