//! Writes Kubernetes Events about objects that are invalid or only partly effective.
//!
//! Every agent of a cluster reads the same objects and finds the same problems. Two rules prevent the same Event from
//! being written many times:
//! - For each object, the nodes have an order (rendezvous hashing). The agent of the first node writes the Event. The
//!   agents of the next few nodes write it later, in case the first one does not. All other agents never write it.
//! - The name of an Event is derived from the object's uid and generation and from the text. The server refuses a
//!   second Event with the same name.
//!
//! An agent writes about an object again when the text changes. If an Event is given up, `manx status` still shows its
//! text.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use manx_objects::contents::fingerprint;
use manx_objects::object::ObjectKey;
use manx_objects::problem::{Problem, Severity};
use serde_json::Value;

use super::attempt::{Attempt, keep_trying};
use super::connection::Connection;
use super::event;
use super::resource::{Resource, Resources};
use crate::followed::Waiting;
use crate::object_event::{NOTE, ObjectEvent, prefix};

/// The maximum number of objects about which Events are written. `manx status` and the log show the others.
const MOST: usize = 1000;
/// The number of agents that may write about the same object.
const SPEAKERS: usize = 3;
/// The delay of each of these agents after the one before it.
const LATER: Duration = Duration::from_secs(20);

/// The problems of an object, for its Event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Notice {
    /// The text of the problems, as in `manx status`.
    text: String,
    /// The severity of the worst problem.
    severity: Severity,
}

/// The number of Events that could not be written, and the reason for the last one.
#[derive(Debug, Clone, Default)]
pub(super) struct AbandonedEvents(Arc<Mutex<(u64, String)>>);

impl AbandonedEvents {
    /// Returns the warning for users, or `None` if all Events were written.
    pub(super) fn text(&self) -> Option<String> {
        let abandoned = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (count, last) = &*abandoned;
        (*count > 0).then(|| {
            format!("{count} Events about objects could not be written; the last one {last}")
        })
    }

    /// Counts an Event that was given up. Only the first one is logged.
    pub(super) fn add(&self, object: &ObjectKey, reason: &str) {
        let mut abandoned = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if abandoned.0 == 0 {
            tracing::warn!(%object, reason, "an Event is given up; `manx status` counts further ones");
        }
        *abandoned = (abandoned.0 + 1, format!("about {object}: {reason}"));
    }
}

/// The notices, by object.
#[derive(Debug, Default)]
pub(super) struct Notices {
    /// The text of each object. An entry stays as long as the object has these problems.
    said: BTreeMap<ObjectKey, String>,
}

impl Notices {
    /// Queues Events about the objects whose problems have changed, if this node reports about them. `known_as` returns
    /// the names by which the server knows an object.
    pub(super) fn report(
        &mut self,
        problems: &[Problem],
        (node, nodes): (&str, &[&str]),
        known_as: impl Fn(&ObjectKey) -> Vec<ObjectKey>,
        waiting: &Waiting<Attempt<Notice>>,
    ) {
        let now = Instant::now();
        let mut said = BTreeMap::new();
        for (own, (severity, text)) in texts(problems) {
            for key in known_as(&own) {
                if self.said.get(&key) != Some(&text)
                    && let Some(rank) = rank(&key, node, nodes)
                {
                    let due = now + LATER * rank as u32;
                    let notice = Notice { text: text.clone(), severity };
                    waiting.put(key.clone(), Attempt::new(notice, due));
                }
                said.insert(key, text.clone());
            }
        }
        for key in self.said.keys().filter(|key| !said.contains_key(*key)) {
            waiting.withdraw(key);
        }
        self.said = said;
    }
}

/// Returns the texts about the first objects that have problems.
fn texts(problems: &[Problem]) -> BTreeMap<ObjectKey, (Severity, String)> {
    let mut by_object = BTreeMap::<&ObjectKey, Vec<&Problem>>::new();
    for problem in problems {
        if let Some(object) = &problem.object
            && (by_object.len() < MOST || by_object.contains_key(object))
        {
            by_object.entry(object).or_default().push(problem);
        }
    }
    let text = |(object, problems): (&ObjectKey, Vec<&Problem>)| {
        let severity = problems.iter().map(|it| it.severity).min().unwrap_or(Severity::Warning);
        (object.clone(), (severity, text(&problems)))
    };
    by_object.into_iter().map(text).collect()
}

/// Joins as many problems as fit into an Event.
fn text(problems: &[&Problem]) -> String {
    let mut text = String::new();
    for (at, problem) in problems.iter().enumerate() {
        let sentence = problem.finding();
        let rest = format!("; {} more in `manx status`", problems.len() - at);
        let separator = if at == 0 { "" } else { "; " };
        let room = NOTE.saturating_sub(text.len() + separator.len() + rest.len());
        if sentence.len() > room {
            if at == 0 {
                text.push_str(prefix(&sentence, room));
            }
            return if problems.len() > at + 1 || at > 0 { text + &rest } else { text };
        }
        text = text + separator + &sentence;
    }
    text
}

/// Returns the position of `node` among the nodes that report about an object, or `None` if it does not report.
fn rank(key: &ObjectKey, node: &str, nodes: &[&str]) -> Option<usize> {
    let weight = |node: &str| fingerprint((key, node));
    let own = (weight(node), node);
    let before = nodes.iter().filter(|other| (weight(other), **other) < own).take(SPEAKERS).count();
    (before < SPEAKERS).then_some(before)
}

/// Writes the Events that are due, as long as the connection lasts.
pub(super) async fn keep_writing(
    connection: &Connection,
    node: &str,
    waiting: &Waiting<Attempt<Notice>>,
    abandoned: &AbandonedEvents,
) {
    let resources = Resources::default();
    let write = async |key: &ObjectKey, notice: &Notice| {
        write(connection, &resources, node, key, notice).await
    };
    keep_trying(waiting, write, |key, reason| abandoned.add(key, reason)).await;
}

async fn write(
    connection: &Connection,
    resources: &Resources,
    node: &str,
    key: &ObjectKey,
    notice: &Notice,
) -> kube::Result<()> {
    let Some(resource) = resources.find(connection, key.kind.into()).await? else { return Ok(()) };
    let event = |object: &Value| event(&resource, object, node, notice, SystemTime::now());
    event::write(connection, (&resource.path_in(&key.namespace), &key.name), event).await
}

/// Returns the Event.
fn event(
    resource: &Resource,
    object: &Value,
    node: &str,
    notice: &Notice,
    now: SystemTime,
) -> Value {
    let event = ObjectEvent {
        of: (resource.api_version, resource.kind),
        metadata: &object["metadata"],
        by: node,
        action: "Read",
        reason: match notice.severity {
            Severity::Error => "Invalid",
            Severity::Warning | Severity::Note => "PartlyIgnored",
        },
        note: &notice.text,
        is_warning: true,
        occurrence: 0,
    };
    event.value(now)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use manx_objects::object::Kind;
    use manx_objects::problem::{Cause, Place};
    use serde_json::json;

    use super::super::reading;
    use super::*;

    fn key(name: &str) -> ObjectKey {
        ObjectKey { kind: Kind::NetworkPolicy, namespace: "shop".to_owned(), name: name.to_owned() }
    }

    fn problem(name: &str, message: &str) -> Problem {
        Problem {
            severity: Severity::Error,
            place: Place { file: Arc::from("https://192.0.2.1:6443/"), document: 0, at: None },
            object: Some(key(name)),
            field: "spec".to_owned(),
            cause: Cause::Syntax(message.to_owned()),
            line: None,
        }
    }

    const NODES: [&str; 6] = ["n1", "n2", "n3", "n4", "n5", "n6"];

    fn itself(key: &ObjectKey) -> Vec<ObjectKey> {
        vec![key.clone()]
    }

    #[test]
    fn three_nodes_speak_of_an_object_one_after_the_other_and_all_agree_on_the_order() {
        for object in ["a", "b", "c", "d"] {
            let ranks = NODES.map(|node| rank(&key(object), node, &NODES));
            let mut speakers: Vec<usize> = ranks.into_iter().flatten().collect();
            speakers.sort_unstable();
            assert_eq!(speakers, [0, 1, 2], "{object}");
        }
        assert_eq!(rank(&key("a"), "only", &["only"]), Some(0));
    }

    #[test]
    fn an_unchanged_problem_is_said_once_and_a_former_one_not_any_more() {
        let (mut notices, waiting) = (Notices::default(), Waiting::default());
        let mut report = |problems: &[Problem]| {
            notices.report(problems, ("n1", &["n1"]), itself, &waiting);
            waiting.first_by(|it| it.due).map(|(key, notice): (ObjectKey, Attempt<Notice>)| {
                waiting.done(&key, &notice);
                notice.value.text
            })
        };
        assert_eq!(report(&[problem("p", "one")]).as_deref(), Some("spec: one"));
        assert_eq!(report(&[problem("p", "one")]), None);
        assert_eq!(report(&[problem("p", "two")]).as_deref(), Some("spec: two"));
        assert_eq!(report(&[]), None);
        assert_eq!(report(&[problem("p", "two")]).as_deref(), Some("spec: two"));
    }

    #[test]
    fn what_is_corrected_before_it_is_said_is_not_said() {
        let (mut notices, waiting) = (Notices::default(), Waiting::default());
        let nodes = || ("n1", ["n1"].as_slice());
        notices.report(&[problem("p", "one")], nodes(), itself, &waiting);
        notices.report(&[], nodes(), itself, &waiting);
        assert_eq!(waiting.first_by(|it| it.due), None);
    }

    #[test]
    fn many_objects_and_long_texts_stay_within_bounds() {
        let problems: Vec<Problem> =
            (0..MOST + 50).map(|at| problem(&format!("p{at}"), "wrong")).collect();
        assert_eq!(texts(&problems).len(), MOST);
        for (count, len) in [(1, 5000), (3, 500), (100, 30), (2, 1010), (1, 1024)] {
            let problems: Vec<Problem> =
                (0..count).map(|_| problem("p", &"\u{e4}".repeat(len / 2))).collect();
            let text = text(&problems.iter().collect::<Vec<_>>());
            assert!(text.len() <= NOTE && text.starts_with("spec: \u{e4}"), "{}", text.len());
            assert_eq!(text.ends_with("more in `manx status`"), count > 1, "{text}");
        }
    }

    #[test]
    fn a_setting_that_is_not_done_is_an_event_of_its_object() {
        let server = Arc::from("https://192.0.2.1:6443/");
        let said = |kind: Kind, object: Value| {
            let api_version = kind.api_versions()[0];
            let resource = Resource { kind: kind.name(), api_version, path: String::new() };
            let reading = reading::read(&server, kind, &resource, object.clone());
            let mut texts = texts(&reading.problems).into_values();
            let (severity, text) = texts.next()?;
            let notice = Notice { text, severity };
            let event = event(&resource, &object, "n1", &notice, SystemTime::UNIX_EPOCH);
            Some(format!("{}: {}", event["reason"].as_str()?, event["note"].as_str()?))
        };
        let felix = |truth: bool| json!({ "metadata": { "name": "default" }, "spec": { "wireguardEnabled": truth } });
        let told = said(Kind::FelixConfiguration, felix(true)).unwrap();
        assert!(told.starts_with("PartlyIgnored: spec.wireguardEnabled: is NOT DONE: "), "{told}");
        assert_eq!(said(Kind::FelixConfiguration, felix(false)), None);
    }

    #[test]
    fn an_event_reads_like_this() {
        let resource = Resource {
            kind: "NetworkPolicy",
            api_version: "networking.k8s.io/v1",
            path: "/apis/networking.k8s.io/v1/networkpolicies".to_owned(),
        };
        let metadata = json!({ "name": "p", "namespace": "shop", "uid": "u-1", "generation": 3 });
        let notice = Notice {
            text: text(&[&problem("p", "found a, expected b")]),
            severity: Severity::Error,
        };
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1_700_000_000);
        let mut event = event(&resource, &json!({ "metadata": metadata }), "n1", &notice, now);
        let name = event["metadata"]["name"].take();
        assert!(name.as_str().unwrap().starts_with("p."), "{name}");
        insta::assert_snapshot!(event, @r#"{"action":"Read","apiVersion":"events.k8s.io/v1","eventTime":"2023-11-14T22:13:20.000000Z","kind":"Event","metadata":{"name":null,"namespace":"shop"},"note":"spec: found a, expected b","reason":"Invalid","regarding":{"apiVersion":"networking.k8s.io/v1","kind":"NetworkPolicy","name":"p","namespace":"shop","uid":"u-1"},"reportingController":"manx","reportingInstance":"n1","type":"Warning"}"#);
    }
}
