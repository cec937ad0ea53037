//! Writes an Event about an object.

use kube::api::{GetParams, PostParams};
use kube::core::Request;
use serde_json::Value;

use super::connection::Connection;
use super::fault::code;

/// Writes the Event that `event` makes from an object. `path` and `name` say which object. If the object is gone, no
/// Event is written.
///
/// # Errors
/// Returns an error if the server does not answer or refuses the request.
pub(super) async fn write(
    connection: &Connection,
    (path, name): (&str, &str),
    event: impl FnOnce(&Value) -> Value,
) -> kube::Result<()> {
    let get = Request::new(path).get(name, &GetParams::default());
    let object: Value = match connection.ask(get.map_err(kube::Error::BuildRequest)?).await {
        Err(error) if code(&error) == Some(404) => return Ok(()),
        object => object?,
    };
    let event = event(&object);
    let namespace = event["metadata"]["namespace"].as_str().unwrap_or_default();
    let request = Request::new(format!("/apis/events.k8s.io/v1/namespaces/{namespace}/events"));
    let request = request.create(&PostParams::default(), event.to_string().into_bytes());
    match connection.ask::<Value>(request.map_err(kube::Error::BuildRequest)?).await {
        // The Event exists: another agent wrote it, or this agent did before a restart or in a request whose answer was
        // lost.
        Err(error) if code(&error) == Some(409) => Ok(()),
        written => written.map(drop),
    }
}
