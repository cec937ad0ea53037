//! Secrets that are requested by name. Each is read and watched separately. So the server sends no other Secret, and
//! access rights for these names are enough.

use std::future::pending;
use std::time::Duration;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use futures_util::future::join_all;
use kube::api::{ListParams, WatchEvent, WatchParams};
use kube::core::Request;
use serde_json::Value;
use tokio::time::timeout;

use super::connection::Connection;
use super::fault::{own, words};
use crate::followed::Pause;
use crate::secrets::{Found, Secrets};

/// The server ends a watch after this time, in seconds.
const WATCH: u32 = 290;
/// A watch without any event for this time is dead, because the server would have ended it.
const SILENCE: Duration = Duration::from_secs(WATCH as u64 + 30);

/// Follows the requested Secrets as long as the connection lasts. If none is requested, nothing is sent to the server.
pub(super) async fn keep_following(connection: &Connection, secrets: &Secrets) {
    let mut wanted = secrets.wanted();
    loop {
        let mut names: Vec<String> =
            wanted.borrow_and_update().iter().map(|it| it.name.clone()).collect();
        names.dedup();
        let all = join_all(names.iter().map(|name| follow(connection, secrets, name)));
        tokio::select! {
            _ = all, if !names.is_empty() => {}
            changed = wanted.changed() => if changed.is_err() {
                // The sender exists as long as `secrets`, so this does not happen.
                pending::<()>().await;
            },
        }
    }
}

/// Follows one Secret.
async fn follow(connection: &Connection, secrets: &Secrets, name: &str) {
    let mut pause = Pause::default();
    loop {
        match turn(connection, secrets, name).await {
            Ok(()) => pause = Pause::default(),
            Err(error) => secrets.note_fault(name, &words(&error)),
        }
        pause.wait().await;
    }
}

/// Reads the Secret, and then watches it until the watch ends.
async fn turn(connection: &Connection, secrets: &Secrets, name: &str) -> kube::Result<()> {
    let path = format!("/api/v1/namespaces/{}/secrets", secrets.namespace());
    let only = format!("metadata.name={name}");
    let list = Request::new(&path).list(&ListParams::default().fields(&only));
    let list: Value = connection.ask(list.map_err(kube::Error::BuildRequest)?).await?;
    let is_named = |it: &&Value| it["metadata"]["name"] == name;
    note(secrets, name, list["items"].as_array().and_then(|all| all.iter().find(is_named)));
    let version = list["metadata"]["resourceVersion"].as_str().unwrap_or_default();
    let params = WatchParams::default().fields(&only).timeout(WATCH);
    let watch = Request::new(&path).watch(&params, version).map_err(kube::Error::BuildRequest)?;
    let mut lines = connection.watch(watch).await?;
    loop {
        let event = timeout(SILENCE, lines.next()).await;
        match event.map_err(|_| own("the watch of it has stalled".to_owned()))?? {
            None => return Ok(()),
            Some(WatchEvent::Error(status)) if status.code == 410 => return Ok(()),
            Some(WatchEvent::Error(status)) => return Err(kube::Error::Api(status)),
            Some(WatchEvent::Added(object) | WatchEvent::Modified(object)) => {
                note(secrets, name, Some(&object).filter(is_named));
            }
            Some(WatchEvent::Deleted(_)) => note(secrets, name, None),
            Some(WatchEvent::Bookmark(_)) => {}
        }
    }
}

fn note(secrets: &Secrets, name: &str, object: Option<&Value>) {
    secrets.note(name, |key| match object.map(|it| &it["data"][key]) {
        None => Found::NoSecret,
        Some(Value::String(text)) => match BASE64_STANDARD.decode(text) {
            Ok(bytes) => Found::Value(bytes.into()),
            // The library's error message would contain a character of the value.
            Err(_) => Found::Unreadable(format!("the value of {key} is not base64")),
        },
        Some(_) => Found::NoKey,
    });
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::time::Instant;

    use manx_objects::object::bgp::SecretKey;
    use serde_json::json;

    use super::super::fake::{Answer, Fake, status};
    use super::super::{Access, ApiServer, Follower};
    use super::*;
    use crate::secrets::FoundSecrets;

    const ALL: &str = "/api/v1/namespaces/kube-system/secrets";

    fn secret(name: &str, data: &Value) -> Value {
        json!({ "metadata": { "namespace": "kube-system", "name": name }, "data": data })
    }

    fn key(name: &str, key: &str) -> SecretKey {
        SecretKey { name: name.to_owned(), key: key.to_owned() }
    }

    fn value(text: &str) -> Found {
        Found::Value(text.as_bytes().to_vec().into())
    }

    async fn open(server: &Fake) -> ApiServer {
        server.world().serve_in("v1", "Secret", "secrets");
        let endpoint = Some(format!("http://{}", server.address));
        let (node, namespace) = ("n1".to_owned(), "kube-system".to_owned());
        let follower = Follower { node, namespace, state: None };
        let access = Access { endpoint, ..Access::default() };
        ApiServer::open(access, follower, |_| ()).await.unwrap()
    }

    /// Waits until exactly these values are known.
    async fn until(secrets: &Secrets, expected: &[(SecretKey, Found)]) {
        let expected: FoundSecrets = expected.iter().cloned().collect();
        let start = Instant::now();
        while secrets.found() != expected {
            assert!(start.elapsed().as_secs() < 20, "{:?}", secrets.found());
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    fn run(test: impl Future<Output = ()>) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.unwrap().block_on(test);
    }

    /// Returns the queries about Secrets.
    fn asked(server: &Fake) -> Vec<String> {
        let asked = server.world().asked.clone();
        asked.into_iter().filter(|it| it.path.contains("secrets")).map(|it| it.query).collect()
    }

    #[test]
    fn only_secrets_that_are_wanted_are_asked_for_and_each_change_is_known() {
        run(async {
            let server = Fake::start();
            let opened = open(&server).await;
            let secrets = opened.secrets();
            let other = secret("other", &json!({ "a": "aGlkZGVu" }));
            server.world().tell("ADDED", ALL, &other);
            assert_eq!(asked(&server), [""; 0]);
            secrets.want(BTreeSet::from([key("bgp", "a"), key("bgp", "b")]));
            let all = |a, b| [(key("bgp", "a"), a), (key("bgp", "b"), b)];
            until(secrets, &all(Found::NoSecret, Found::NoSecret)).await;
            let first = secret("bgp", &json!({ "a": "b25l", "c": "aGlkZGVu" }));
            server.world().tell("ADDED", ALL, &first);
            until(secrets, &all(value("one"), Found::NoKey)).await;
            let changed = secret("bgp", &json!({ "a": "dHdv", "b": "?" }));
            server.world().tell("MODIFIED", ALL, &changed);
            let wrong = Found::Unreadable("the value of b is not base64".to_owned());
            until(secrets, &all(value("two"), wrong)).await;
            server.world().tell("DELETED", ALL, &changed);
            until(secrets, &all(Found::NoSecret, Found::NoSecret)).await;
            let asked = asked(&server);
            let is_by_name = |it: &String| it.contains("fieldSelector=metadata.name%3Dbgp");
            assert!(asked.len() >= 2 && asked.iter().all(is_by_name), "{asked:?}");
            secrets.want(BTreeSet::from([key("other", "a")]));
            until(secrets, &[(key("other", "a"), value("hidden"))]).await;
            secrets.want(BTreeSet::new());
            until(secrets, &[]).await;
        });
    }

    #[test]
    fn a_refusal_is_told_with_the_servers_words_and_costs_no_value_that_is_known() {
        run(async {
            let server = Fake::start();
            let opened = open(&server).await;
            let secrets = opened.secrets();
            let known = secret("bgp", &json!({ "a": "b25l" }));
            server.world().tell("ADDED", ALL, &known);
            secrets.want(BTreeSet::from([key("bgp", "a")]));
            until(secrets, &[(key("bgp", "a"), value("one"))]).await;
            let refuses = |asked: &super::super::fake::Request| {
                let refusal = || Answer::Json(403, status(403, "secrets is forbidden"));
                (asked.path == ALL).then(refusal)
            };
            server.world().rule = Box::new(refuses);
            // Both Secrets are requested again.
            secrets.want(BTreeSet::from([key("bgp", "a"), key("new", "a")]));
            let forbidden = Found::Unreadable("secrets is forbidden".to_owned());
            let both = [(key("bgp", "a"), value("one")), (key("new", "a"), forbidden)];
            until(secrets, &both).await;
        });
    }
}
