//! Calico's `CalicoNodeStatus` objects. Users request the status of a node with such an object at the API server, and
//! the node's agent writes the status.
//!
//! These objects are kept separately from all others, because no policy and no route depends on them, and their status
//! changes all the time.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde_json::Value;
use tokio::sync::watch;

use crate::followed::Waiting;

/// The maximum number of objects that one node fills in. The first ones by name are used.
pub(crate) const MOST_OBJECTS: usize = 16;
/// The minimum period. There is a minimum because each object is written once in each period, and the server stores
/// each version for minutes.
pub(crate) const LEAST_PERIOD: Duration = Duration::from_secs(10);
/// The maximum period: one day, as in Calico.
const LONGEST_PERIOD: Duration = Duration::from_hours(24);

/// The request of an object that names this node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StatusRequest {
    /// The uid of the object, which distinguishes objects with the same name.
    pub uid: String,
    /// Whether `classes` contains `Agent`.
    pub agent: bool,
    /// Whether `classes` contains `BGP`.
    pub bgp: bool,
    /// Whether `classes` contains `Routes`.
    pub routes: bool,
    /// The time between two updates. `None` means that the status is not updated (`updatePeriodSeconds: 0`).
    pub period: Option<Duration>,
}

impl StatusRequest {
    /// Reads an object. Returns `None` if it is for another node.
    pub(crate) fn read(object: &Value, node: &str) -> Option<(String, Self)> {
        let (metadata, spec) = (&object["metadata"], &object["spec"]);
        if spec["node"] != node {
            return None;
        }
        let has = |class: &str| {
            let classes = spec["classes"].as_array().into_iter().flatten();
            classes.filter_map(Value::as_str).any(|it| it == class)
        };
        // Without a period, the minimum period is used, which is also Calico's default.
        let seconds = spec["updatePeriodSeconds"].as_u64().unwrap_or(LEAST_PERIOD.as_secs());
        let period = Duration::from_secs(seconds).clamp(LEAST_PERIOD, LONGEST_PERIOD);
        let request = Self {
            uid: metadata["uid"].as_str().unwrap_or_default().to_owned(),
            agent: has("Agent"),
            bgp: has("BGP"),
            routes: has("Routes"),
            period: (seconds > 0).then_some(period),
        };
        Some((metadata["name"].as_str()?.to_owned(), request))
    }
}

/// The requests of objects, and the statuses that must be written to them.
#[derive(Debug, Default)]
pub struct NodeStatuses {
    is_wanted: watch::Sender<bool>,
    requests: watch::Sender<BTreeMap<String, StatusRequest>>,
    pub(crate) waiting: Waiting<Value, String>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// The status that was last written, with the object's uid.
    written: BTreeMap<String, (String, Value)>,
    /// The reason why objects cannot be followed.
    fault: Option<String>,
    /// The reason why the last write failed, with the object's name.
    failure: Option<(String, String)>,
    /// The number of objects beyond [`MOST_OBJECTS`].
    left_out: usize,
}

impl NodeStatuses {
    /// Begins to follow the objects. The agent needs the right to read them only from this call on.
    pub fn want(&self) {
        self.is_wanted.send_replace(true);
    }

    /// Waits until [`NodeStatuses::want`] is called.
    pub(crate) async fn wanted(&self) {
        // The sender exists as long as `self`, so this cannot fail.
        _ = self.is_wanted.subscribe().wait_for(|it| *it).await;
    }

    /// Returns the requests, by the objects' names.
    pub fn requests(&self) -> BTreeMap<String, StatusRequest> {
        self.requests.borrow().clone()
    }

    /// Queues a status. If the status is the one that was last written, it is not written again.
    pub fn put(&self, name: &str, status: Value) {
        let uid = self.requests.borrow().get(name).map(|it| it.uid.clone());
        let is_written = self
            .state()
            .written
            .get(name)
            .is_some_and(|(of, written)| Some(of) == uid.as_ref() && *written == status);
        if uid.is_some() && !is_written {
            self.waiting.put(name.to_owned(), status);
        }
    }

    /// Returns warnings for users.
    pub(crate) fn problems(&self) -> Vec<String> {
        let State { fault, failure, left_out, .. } = &*self.state();
        let fault = fault.iter().map(|reason| {
            format!("CalicoNodeStatus objects cannot be followed, so nobody fills in their status here: {reason}")
        });
        let failure = failure.iter().map(|(name, reason)| {
            format!("CalicoNodeStatus {name}: its status could not be written: {reason}")
        });
        let left_out = (*left_out > 0).then(|| {
            format!(
                "found {left_out} CalicoNodeStatus objects of this node more than it fills in, expected {MOST_OBJECTS} at most: those \
                 with the last names are left out; delete some"
            )
        });
        fault.chain(failure).chain(left_out).collect()
    }

    /// Replaces the requests.
    pub(crate) fn note(&self, mut requests: BTreeMap<String, StatusRequest>) {
        let behind = requests.keys().nth(MOST_OBJECTS).cloned();
        let left_out = behind.map_or(0, |behind| requests.split_off(&behind).len());
        let mut state = self.state();
        state.written.retain(|name, _| requests.contains_key(name));
        if state.failure.as_ref().is_some_and(|(name, _)| !requests.contains_key(name)) {
            state.failure = None;
        }
        (state.fault, state.left_out) = (None, left_out);
        drop(state);
        self.requests.send_replace(requests);
    }

    /// Records the reason why objects cannot be followed. The known requests are kept.
    pub(crate) fn note_fault(&self, reason: String) {
        self.state().fault = Some(reason);
    }

    /// Records the result of a write.
    pub(crate) fn note_written(&self, name: &str, status: Value, outcome: Result<(), String>) {
        let uid = self.requests.borrow().get(name).map(|it| it.uid.clone());
        let mut state = self.state();
        match outcome {
            Ok(()) => {
                if let Some(uid) = uid {
                    state.written.insert(name.to_owned(), (uid, status));
                }
                state.failure = None;
            }
            Err(reason) => {
                let failure = Some((name.to_owned(), reason));
                if state.failure != failure {
                    tracing::warn!(?failure, "the status of a CalicoNodeStatus is not written");
                }
                state.failure = failure;
            }
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // A poisoned lock is not a problem, because each change leaves the state valid.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn object(name: &str, spec: &Value) -> Value {
        json!({ "metadata": { "name": name, "uid": format!("u-{name}") }, "spec": spec })
    }

    #[test]
    fn an_object_of_this_node_says_what_and_how_often() {
        let read = |spec: Value| StatusRequest::read(&object("a", &spec), "n1");
        assert_eq!(read(json!({ "node": "n2", "classes": ["BGP"] })), None);
        assert_eq!(read(json!({})), None);
        let all = json!({ "node": "n1", "classes": ["Agent", "BGP", "Routes"], "updatePeriodSeconds": 30 });
        let (name, all) = read(all).unwrap();
        assert_eq!((name.as_str(), all.uid.as_str()), ("a", "u-a"));
        assert!(all.agent && all.bgp && all.routes);
        assert_eq!(all.period, Some(Duration::from_secs(30)));
        for (given, expected) in [
            (json!(0), None),
            (json!(1), Some(10)),
            (json!(10), Some(10)),
            (json!(1_000_000), Some(86_400)),
            (Value::Null, Some(10)),
        ] {
            let spec = json!({ "node": "n1", "classes": ["bgp"], "updatePeriodSeconds": given });
            let (_, request) = read(spec).unwrap();
            assert_eq!(request.period, expected.map(Duration::from_secs), "{given}");
            assert!(!request.bgp, "a class has its own letters");
        }
    }

    #[test]
    fn of_many_objects_the_first_count_and_one_that_is_made_anew_is_written_anew() {
        let statuses = NodeStatuses::default();
        let requests = |count: usize, of: &str| -> BTreeMap<String, StatusRequest> {
            let all = (0..count).map(|at| object(&format!("s{at:02}"), &json!({ "node": "n1" })));
            let mut all: BTreeMap<_, _> =
                all.filter_map(|it| StatusRequest::read(&it, "n1")).collect();
            for request in all.values_mut() {
                request.uid.push_str(of);
            }
            all
        };
        statuses.note(requests(MOST_OBJECTS + 4, ""));
        assert_eq!(statuses.requests().len(), MOST_OBJECTS);
        assert!(statuses.problems()[0].starts_with("found 4 CalicoNodeStatus objects"));
        let waits = |name: &str| statuses.waiting.first_by(|_| 0).is_some_and(|(it, _)| it == name);
        statuses.put("s19", json!({}));
        assert!(!waits("s19"), "it is left out");
        let write = || {
            let (name, value) = statuses.waiting.first_by(|_| 0).unwrap();
            statuses.note_written(&name, value.clone(), Ok(()));
            statuses.waiting.done(&name, &value);
        };
        statuses.put("s00", json!({ "a": 1 }));
        write();
        statuses.put("s00", json!({ "a": 1 }));
        assert!(!waits("s00"), "it is the same");
        statuses.note(requests(1, "-anew"));
        assert_eq!(statuses.problems(), [""; 0]);
        statuses.put("s00", json!({ "a": 1 }));
        assert!(waits("s00"), "it is another object");
        write();
        statuses.put("s00", json!({ "a": 2 }));
        statuses.note_written("s00", json!({ "a": 2 }), Err("forbidden".to_owned()));
        insta::assert_snapshot!(statuses.problems().join("\n"), @"CalicoNodeStatus s00: its status could not be written: forbidden");
        statuses.note(BTreeMap::new());
        assert_eq!(statuses.problems(), [""; 0]);
    }
}
