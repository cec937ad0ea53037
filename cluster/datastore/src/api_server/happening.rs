//! Writes Kubernetes Events about what happens at the agent's own node.
//!
//! For each subject, only the latest Event waits. An Event that is replaced before it is written is never written.

use std::time::{Duration, Instant, SystemTime};

use manx_objects::contents::fingerprint;
use manx_objects::object::{Kind, ObjectKey};
use serde_json::Value;

use super::attempt::{Attempt, keep_trying};
use super::connection::Connection;
use super::event;
use super::notice::AbandonedEvents;
use crate::followed::Waiting;
use crate::happening::Happening;
use crate::object_event::ObjectEvent;

/// The Events that are still to be written, by subject.
pub(super) type Happenings = Waiting<Attempt<Dated>, String>;

/// A happening and its time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Dated {
    happening: Happening,
    at: SystemTime,
}

/// Queues an Event about a subject. It replaces an earlier Event about the subject that is not written yet.
pub(super) fn put(waiting: &Happenings, subject: String, happening: Happening) {
    let dated = Dated { happening, at: SystemTime::now() };
    waiting.put(subject, Attempt::new(dated, Instant::now()));
}

/// Writes the Events that are due, as long as the connection lasts.
pub(super) async fn keep_writing(
    connection: &Connection,
    node: &str,
    waiting: &Happenings,
    abandoned: &AbandonedEvents,
) {
    let of_node = ObjectKey { kind: Kind::Node, namespace: String::new(), name: node.to_owned() };
    let write =
        async |subject: &String, dated: &Dated| write(connection, node, subject, dated).await;
    keep_trying(waiting, write, |_, reason| abandoned.add(&of_node, reason)).await;
}

async fn write(
    connection: &Connection,
    node: &str,
    subject: &str,
    dated: &Dated,
) -> kube::Result<()> {
    let event = |object: &Value| event(&object["metadata"], node, subject, dated);
    event::write(connection, ("/api/v1/nodes", node), event).await
}

/// Returns the Event. Its occurrence is a hash of the happening and its time, so that a second try does not write the
/// Event twice.
fn event(metadata: &Value, node: &str, subject: &str, Dated { happening, at }: &Dated) -> Value {
    let since = at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or(Duration::ZERO);
    let event = ObjectEvent {
        of: ("v1", "Node"),
        metadata,
        by: node,
        action: happening.action,
        reason: happening.reason,
        note: &happening.text,
        is_warning: happening.is_warning,
        occurrence: fingerprint((subject, since)),
    };
    event.value(*at)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::object_event::NOTE;

    fn happening(text: &str) -> Happening {
        let (reason, action) = ("BgpSessionDown", "Speak");
        Happening { reason, action, is_warning: true, text: text.to_owned() }
    }

    #[test]
    fn of_each_subject_the_latest_waits() {
        let waiting = Happenings::default();
        put(&waiting, "10.0.0.1".to_owned(), happening("down"));
        put(&waiting, "10.0.0.2".to_owned(), happening("down"));
        put(&waiting, "10.0.0.1".to_owned(), happening("up"));
        let mut told = Vec::new();
        while let Some((subject, due)) = waiting.first_by(|it| it.due) {
            waiting.done(&subject, &due);
            told.push((subject, due.value.happening.text));
        }
        let expected = [("10.0.0.2", "down"), ("10.0.0.1", "up")];
        assert_eq!(told, expected.map(|(a, b)| (a.to_owned(), b.to_owned())));
    }

    #[test]
    fn an_event_of_a_node_reads_like_this_and_has_a_name_of_its_own() {
        let at = |seconds| Dated {
            happening: happening(&"x".repeat(2 * NOTE)),
            at: SystemTime::UNIX_EPOCH + Duration::from_secs(seconds),
        };
        let node = json!({ "name": "n1", "uid": "u-1" });
        let of = |seconds| event(&node, "n1", "10.0.0.1", &at(seconds));
        let mut first = of(1_700_000_000);
        assert_eq!(first, of(1_700_000_000), "a second try");
        assert_ne!(first["metadata"]["name"], of(1_700_000_001)["metadata"]["name"]);
        assert_eq!(first["note"].as_str().unwrap().len(), NOTE);
        let name = first["metadata"]["name"].take();
        assert!(name.as_str().unwrap().starts_with("n1."), "{name}");
        first["note"].take();
        insta::assert_snapshot!(first, @r#"{"action":"Speak","apiVersion":"events.k8s.io/v1","eventTime":"2023-11-14T22:13:20.000000Z","kind":"Event","metadata":{"name":null,"namespace":"default"},"note":null,"reason":"BgpSessionDown","regarding":{"apiVersion":"v1","kind":"Node","name":"n1","uid":"u-1"},"reportingController":"manx","reportingInstance":"n1","type":"Warning"}"#);
    }
}
