//! An Event of Kubernetes (`events.k8s.io/v1`): a sentence about an object, for people. The server forgets it after an hour.
//!
//! Its name is made of the object's identity, of the text, and of the occurrence, so that the server refuses the same Event a second time.

use std::time::SystemTime;

use manx_objects::contents::fingerprint;
use serde_json::{Value, json};

use crate::served::{ServedKey, ServedKind};
use crate::writes::{WriteError, Writes};

/// The most bytes of an Event's text (Kubernetes, `note`).
pub(crate) const NOTE: usize = 1024;
/// The most bytes of an object's name in the name of an Event, which has 253.
const NAME: usize = 200;
/// The most bytes of a writer's name in an Event.
const INSTANCE: usize = 128;

/// See the module.
#[derive(Debug, Clone, Copy)]
pub struct ObjectEvent<'a> {
    /// API version and kind of the object that it is about.
    pub of: (&'a str, &'a str),
    /// The object's `metadata`.
    pub metadata: &'a Value,
    /// The name of the process that writes it.
    pub by: &'a str,
    /// What it did, as one word.
    pub action: &'a str,
    /// Why it says this, as one word.
    pub reason: &'a str,
    /// The sentence. What is more than 1024 bytes is cut off.
    pub note: &'a str,
    /// Whether something is wrong.
    pub is_warning: bool,
    /// What makes it another Event than one with the same sentence: 0 for a state, and a sum over subject and time for what
    /// happens more than once.
    pub occurrence: u64,
}

impl ObjectEvent<'_> {
    /// Writes the Event, unless it is there already.
    ///
    /// # Errors
    /// The server does not answer, or refuses.
    pub async fn write(self, writes: &impl Writes, now: SystemTime) -> Result<(), WriteError> {
        let value = self.value(now);
        let text = |field: &str| value["metadata"][field].as_str().unwrap_or_default();
        let key = ServedKey::new(ServedKind::Event, text("namespace"), text("name"));
        match writes.create(&key, value).await {
            Ok(_) | Err(WriteError::Conflict) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// The object. That about an object without namespace stands in `default`.
    pub(crate) fn value(self, now: SystemTime) -> Value {
        let Self { of: (api_version, kind), metadata, note, .. } = self;
        let text = |field: &str| metadata[field].as_str().unwrap_or_default();
        let (name, namespace, uid) = (text("name"), text("namespace"), text("uid"));
        let note = prefix(note, NOTE);
        let same = fingerprint((uid, metadata["generation"].as_u64(), note, self.occurrence));
        let stem = prefix(name, NAME).trim_end_matches(['.', '-']);
        let mut regarding = json!({
            "apiVersion": api_version, "kind": kind, "name": name, "uid": uid,
        });
        if !namespace.is_empty() {
            regarding["namespace"] = namespace.into();
        }
        json!({
            "apiVersion": "events.k8s.io/v1",
            "kind": "Event",
            "metadata": {
                "name": format!("{stem}.{same:016x}"),
                "namespace": if namespace.is_empty() { "default" } else { namespace },
            },
            "eventTime": humantime::format_rfc3339_micros(now).to_string(),
            "reportingController": "manx",
            "reportingInstance": prefix(self.by, INSTANCE),
            "action": self.action,
            "type": if self.is_warning { "Warning" } else { "Normal" },
            "reason": self.reason,
            "regarding": regarding,
            "note": note,
        })
    }
}

/// The start of a text, up to this many bytes.
pub(crate) fn prefix(text: &str, bytes: usize) -> &str {
    let end = (0..=bytes.min(text.len())).rev().find(|at| text.is_char_boundary(*at));
    &text[..end.unwrap_or(0)]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::MemoryWrites;

    #[test]
    fn the_same_sentence_is_written_once_and_another_one_beside_it() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let server = MemoryWrites::new("projectcalico.org/v3");
        let metadata = json!({ "name": "web", "namespace": "shop", "uid": "u-1" });
        let long = "x".repeat(2000);
        for note in ["one", "one", "two", &long] {
            let of = ("v1", "Service");
            let event = ObjectEvent {
                of,
                metadata: &metadata,
                by: "n1",
                action: "Assign",
                reason: "NoAddress",
                note,
                is_warning: true,
                occurrence: 0,
            };
            runtime.block_on(event.write(&server, SystemTime::UNIX_EPOCH)).unwrap();
        }
        let all = server.objects();
        let mut notes: Vec<&str> = all.values().filter_map(|it| it["note"].as_str()).collect();
        notes.sort_unstable();
        assert_eq!(notes, ["one", "two", &long[..NOTE]]);
        assert!(all.keys().all(|key| key.namespace == "shop" && key.name.starts_with("web.")));
        assert!(all.values().all(|it| it["regarding"]["uid"] == "u-1"));
    }
}
