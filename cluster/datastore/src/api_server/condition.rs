//! The condition `NetworkUnavailable` of the agent's own Node, which says whether the node's pods have a network.
//!
//! The condition is set as in Calico (`node/pkg/lifecycle`): to `False` when an agent has started, and to `True` when
//! an agent is stopped. While it is `True`, Kubernetes' node controller keeps a taint on the Node
//! (`node.kubernetes.io/network-unavailable`, `NoSchedule`), so that no new pods are scheduled to it.
//!
//! Each change is written once. If another writer sets another value later, that value stays. A patch contains the
//! version that the Node had when it was read. So the server refuses (409) a late patch that arrives after the patch of
//! the next agent.

use std::time::{Duration, SystemTime};

use kube::api::{GetParams, Patch, PatchParams};
use kube::core::Request;
use serde_json::{Value, json};
use tokio::time::timeout;

use super::connection::Connection;
use super::kept::Kept;

/// The condition's type (Kubernetes, `NodeConditionType`).
const TYPE: &str = "NetworkUnavailable";
/// The time for which a stopping agent waits until the condition is written.
const LAST: Duration = Duration::from_secs(1);

/// The network of a node's pods.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum NetworkState {
    /// The network works.
    Up,
    /// The network stops together with the agent.
    Down,
}

/// The state to write, and the result of the last write. Nothing is written before the agent sets a state.
#[derive(Debug, Default)]
pub(super) struct Condition(Kept<NetworkState>);

impl Condition {
    /// Queues a write of the state that the network works.
    pub(super) fn up(&self) {
        self.0.want(NetworkState::Up);
    }

    /// Writes that the network stops. Waits for the write for at most one second.
    pub(super) async fn down(&self) {
        self.0.want(NetworkState::Down);
        if timeout(LAST, self.0.written(&NetworkState::Down)).await.is_err() {
            let reason =
                self.0.failure().unwrap_or_else(|| "the API server does not answer".to_owned());
            tracing::warn!(reason, "the node's condition {TYPE} stays as it was");
        }
    }

    /// Returns the warning for users, if the condition could not be written.
    pub(super) fn text(&self, node: &str) -> Option<String> {
        let reason = self.0.failure()?;
        Some(format!("the condition {TYPE} of Node {node:?} could not be written: {reason}"))
    }
}

/// Writes the wanted state as long as the connection lasts. A failed write is tried again.
pub(super) async fn keep_writing(connection: &Connection, node: &str, condition: &Condition) {
    let what = format!("the condition {TYPE} of Node {node}");
    condition.0.keep_writing(&what, async |state| write(connection, node, state).await).await;
}

async fn write(connection: &Connection, node: &str, network: NetworkState) -> kube::Result<()> {
    let request = || Request::new("/api/v1/nodes");
    let get = request().get(node, &GetParams::default()).map_err(kube::Error::BuildRequest)?;
    let found: Value = connection.ask(get).await?;
    let patch = Patch::Strategic(patch(&found, network, SystemTime::now()));
    let patched = request().patch_subresource("status", node, &PatchParams::default(), &patch);
    connection.ask::<Value>(patched.map_err(kube::Error::BuildRequest)?).await.map(drop)
}

/// Returns the patch that sets the condition. A strategic merge patch merges conditions by their type and does not
/// change the others.
fn patch(found: &Value, network: NetworkState, now: SystemTime) -> Value {
    let (status, reason, message) = match network {
        NetworkState::Up => ("False", "ManxIsUp", "Manx is running on this node"),
        NetworkState::Down => ("True", "ManxIsDown", "Manx is shutting down on this node"),
    };
    let now = humantime::format_rfc3339_seconds(now).to_string();
    let mut condition = json!({
        "type": TYPE, "status": status, "reason": reason, "message": message, "lastHeartbeatTime": now,
    });
    let before = found["status"]["conditions"].as_array().into_iter().flatten();
    if !before.filter(|it| it["type"] == TYPE).any(|it| it["status"] == status) {
        condition["lastTransitionTime"] = now.into();
    }
    json!({
        "metadata": { "resourceVersion": found["metadata"]["resourceVersion"] },
        "status": { "conditions": [condition] },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(conditions: &Value) -> Value {
        json!({
            "metadata": { "name": "n1", "resourceVersion": "7", "labels": { "a": "b" } },
            "status": { "capacity": { "pods": "110" }, "conditions": conditions },
        })
    }

    #[test]
    fn the_patch_is_of_this_condition_and_of_the_node_as_it_was_read() {
        let at = SystemTime::UNIX_EPOCH + Duration::from_secs(1_700_000_000);
        let ready = json!([{ "type": "Ready", "status": "False" }]);
        insta::assert_snapshot!(patch(&node(&ready), NetworkState::Up, at), @r#"{"metadata":{"resourceVersion":"7"},"status":{"conditions":[{"lastHeartbeatTime":"2023-11-14T22:13:20Z","lastTransitionTime":"2023-11-14T22:13:20Z","message":"Manx is running on this node","reason":"ManxIsUp","status":"False","type":"NetworkUnavailable"}]}}"#);
        let up =
            json!([{ "type": "NetworkUnavailable", "status": "False", "reason": "OtherIsUp" }]);
        insta::assert_snapshot!(patch(&node(&up), NetworkState::Up, at), @r#"{"metadata":{"resourceVersion":"7"},"status":{"conditions":[{"lastHeartbeatTime":"2023-11-14T22:13:20Z","message":"Manx is running on this node","reason":"ManxIsUp","status":"False","type":"NetworkUnavailable"}]}}"#);
        insta::assert_snapshot!(patch(&node(&up), NetworkState::Down, at), @r#"{"metadata":{"resourceVersion":"7"},"status":{"conditions":[{"lastHeartbeatTime":"2023-11-14T22:13:20Z","lastTransitionTime":"2023-11-14T22:13:20Z","message":"Manx is shutting down on this node","reason":"ManxIsDown","status":"True","type":"NetworkUnavailable"}]}}"#);
        let none = node(&Value::Null);
        assert_eq!(patch(&none, NetworkState::Up, at), patch(&node(&ready), NetworkState::Up, at));
    }
}
