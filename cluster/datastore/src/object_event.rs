//! An Event of Kubernetes (`events.k8s.io/v1`): a text about an object, for people. The server removes it after an
//! hour.
//!
//! The name of an Event is derived from the object's identity, the text and the occurrence. So the server refuses the
//! same Event a second time.

use std::time::SystemTime;

use manx_objects::contents::fingerprint;
use serde_json::{Value, json};

use crate::served::{ServedKey, ServedKind};
use crate::writes::{WriteError, Writes};

/// The maximum length of an Event's text, in bytes (Kubernetes, `note`).
pub(crate) const NOTE: usize = 1024;
/// The maximum number of bytes of an object's name within the name of an Event. The whole name may have 253.
const NAME: usize = 200;
/// The maximum length of a writer's name in an Event, in bytes.
const INSTANCE: usize = 128;

/// See the module.
#[derive(Debug, Clone, Copy)]
pub struct ObjectEvent<'a> {
    /// The API version and the kind of the object.
    pub of: (&'a str, &'a str),
    /// The object's `metadata`.
    pub metadata: &'a Value,
    /// The name of the process that writes the Event.
    pub by: &'a str,
    /// What the process did, as one word.
    pub action: &'a str,
    /// Why the Event is written, as one word.
    pub reason: &'a str,
    /// The text. It is cut after 1024 bytes.
    pub note: &'a str,
    /// Whether something is wrong.
    pub is_warning: bool,
    /// A number that distinguishes Events with the same text. It is 0 for a state, and a hash of subject and time for
    /// something that can happen several times.
    pub occurrence: u64,
}

impl ObjectEvent<'_> {
    /// Writes the Event, unless it already exists.
    ///
    /// # Errors
    /// Returns an error if the server does not answer or refuses the write.
    pub async fn write(self, writes: &impl Writes, now: SystemTime) -> Result<(), WriteError> {
        let value = self.value(now);
        let text = |field: &str| value["metadata"][field].as_str().unwrap_or_default();
        let key = ServedKey::new(ServedKind::Event, text("namespace"), text("name"));
        match writes.create(&key, value).await {
            Ok(_) | Err(WriteError::Conflict) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Returns the Event as an object. An Event about an object without a namespace is in the namespace `default`.
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

/// Returns the start of a text, up to this many bytes.
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
