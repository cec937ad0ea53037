//! Follows the `CalicoNodeStatus` objects of the agent's node, and writes their status.
//!
//! Only the objects of this node are requested from the server (`spec.node`, a selectable field of the definition in
//! `deploy/manx.yaml`, from Kubernetes 1.31 on). Calico's own definition has no such field. In that case all objects
//! are followed, and those of other nodes are dropped on arrival.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use kube::api::{ListParams, Patch, PatchParams, WatchEvent, WatchParams};
use kube::core::Request;
use serde_json::{Value, json};
use tokio::time::timeout;

use super::connection::Connection;
use super::fault::{code, is_passing, own, words};
use super::follow::{SILENCE, WATCH};
use super::resource::{Resource, find_served};
use crate::followed::Pause;
use crate::node_status::{NodeStatuses, StatusRequest};
use crate::served::ServedKind;

/// The time after which a kind that is not served is looked up again.
const MISSING: Duration = Duration::from_mins(1);
/// The maximum number of objects in one answer. Each may have some hundred kilobytes of routes.
const PAGE: u32 = 20;

type Requests = BTreeMap<String, StatusRequest>;

/// Follows the objects of a node as long as the connection lasts.
pub(super) async fn keep_following(connection: &Connection, node: &str, statuses: &NodeStatuses) {
    statuses.wanted().await;
    let mut pause = Pause::default();
    loop {
        match turn(connection, node, statuses).await {
            Ok(true) => pause = Pause::default(),
            Ok(false) => {
                statuses.note(Requests::new());
                tokio::time::sleep(MISSING).await;
            }
            Err(error) => statuses.note_fault(words(&error)),
        }
        pause.wait().await;
    }
}

/// Lists the objects, and then watches them until the watch ends. Returns `false` if the server does not serve the
/// kind.
async fn turn(connection: &Connection, node: &str, statuses: &NodeStatuses) -> kube::Result<bool> {
    let Some(Resource { path, .. }) = find_served(connection, ServedKind::NodeStatus).await? else {
        return Ok(false);
    };
    let mut selector = format!("spec.node={node}");
    let listed = match list(connection, &path, node, &selector).await {
        Err(error) if code(&error) == Some(400) => {
            selector = String::new();
            list(connection, &path, node, &selector).await
        }
        listed => listed,
    };
    let (mut requests, version) = listed?;
    statuses.note(requests.clone());
    let params = WatchParams { field_selector: selects(&selector), ..WatchParams::default() };
    let watch = Request::new(&path).watch(&params.timeout(WATCH), &version);
    let mut lines = connection.watch(watch.map_err(kube::Error::BuildRequest)?).await?;
    loop {
        let event = timeout(SILENCE, lines.next()).await;
        match event.map_err(|_| own("the watch of them has stalled".to_owned()))?? {
            None => return Ok(true),
            Some(WatchEvent::Error(status)) if status.code == 410 => return Ok(true),
            Some(WatchEvent::Error(status)) => return Err(kube::Error::Api(status)),
            Some(WatchEvent::Added(object) | WatchEvent::Modified(object)) => {
                change(statuses, &mut requests, &object, StatusRequest::read(&object, node));
            }
            Some(WatchEvent::Deleted(object)) => change(statuses, &mut requests, &object, None),
            Some(WatchEvent::Bookmark(_)) => {}
        }
    }
}

/// Records an object that has changed or is gone. If only the status has changed, nothing is recorded.
fn change(
    statuses: &NodeStatuses,
    requests: &mut Requests,
    object: &Value,
    now: Option<(String, StatusRequest)>,
) {
    let name = object["metadata"]["name"].as_str().unwrap_or_default();
    let before = requests.remove(name);
    let is_same = before == now.as_ref().map(|(_, request)| request.clone());
    requests.extend(now);
    if !is_same {
        statuses.note(requests.clone());
    }
}

/// Returns the objects of a node, and the version from which they can be watched.
async fn list(
    connection: &Connection,
    path: &str,
    node: &str,
    selector: &str,
) -> kube::Result<(Requests, String)> {
    let mut params = ListParams { field_selector: selects(selector), ..ListParams::default() };
    params = params.limit(PAGE);
    let mut requests = Requests::new();
    loop {
        let page = Request::new(path).list(&params).map_err(kube::Error::BuildRequest)?;
        let page: Value = connection.ask(page).await?;
        let items = page["items"].as_array().into_iter().flatten();
        requests.extend(items.filter_map(|it| StatusRequest::read(it, node)));
        let text = |field: &str| page["metadata"][field].as_str().unwrap_or_default().to_owned();
        let next = text("continue");
        if next.is_empty() {
            return Ok((requests, text("resourceVersion")));
        }
        params = params.continue_token(&next);
    }
}

fn selects(selector: &str) -> Option<String> {
    (!selector.is_empty()).then(|| selector.to_owned())
}

/// Writes the queued statuses as long as the connection lasts. If the server refuses a status, it is given up until it
/// changes or is due again. After every other failure it is tried again.
pub(super) async fn keep_writing(connection: &Connection, statuses: &NodeStatuses) {
    let (mut pause, mut last) = (Pause::default(), None);
    loop {
        let (name, status) = statuses.waiting.next(last.as_ref()).await;
        last = Some(name.clone());
        let written = write(connection, &name, &status).await;
        let outcome = written.as_ref().map(drop).map_err(words);
        statuses.note_written(&name, status.clone(), outcome);
        if written.is_err_and(|error| is_passing(&error)) {
            pause.wait().await;
            continue;
        }
        pause = Pause::default();
        statuses.waiting.done(&name, &status);
    }
}

/// Writes a status. If the object is gone, nothing is written.
async fn write(connection: &Connection, name: &str, status: &Value) -> kube::Result<()> {
    let Some(Resource { path, .. }) = find_served(connection, ServedKind::NodeStatus).await? else {
        return Ok(());
    };
    let mut status = status.clone();
    status["lastUpdated"] = humantime::format_rfc3339_seconds(SystemTime::now()).to_string().into();
    let patch = Patch::Merge(json!({ "status": status }));
    let (request, params) = (Request::new(&path), PatchParams::default());
    let of_status = request.patch_subresource("status", name, &params, &patch);
    match connection.ask::<Value>(of_status.map_err(kube::Error::BuildRequest)?).await {
        // In Calico's definition, the status is not a subresource.
        Err(error) if code(&error) == Some(404) => {
            let whole = request.patch(name, &params, &patch).map_err(kube::Error::BuildRequest)?;
            match connection.ask::<Value>(whole).await {
                Err(error) if code(&error) == Some(404) => Ok(()),
                written => written.map(drop),
            }
        }
        written => written.map(drop),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::super::fake::{self, Answer, Fake, status};
    use super::super::{Access, ApiServer, Follower};
    use super::*;

    const ALL: &str = "/apis/projectcalico.org/v3/caliconodestatuses";

    fn object(name: &str, node: &str, period: u64) -> Value {
        json!({
            "metadata": { "name": name, "uid": format!("u-{name}") },
            "spec": { "node": node, "classes": ["Agent"], "updatePeriodSeconds": period },
        })
    }

    async fn open(server: &Fake) -> ApiServer {
        let endpoint = Some(format!("http://{}", server.address));
        let (node, namespace) = ("n1".to_owned(), "kube-system".to_owned());
        let follower = Follower { node, namespace, state: None };
        let access = Access { endpoint, ..Access::default() };
        let opened = ApiServer::open(access, follower, |_| ()).await.unwrap();
        opened.node_statuses().want();
        opened
    }

    fn run(test: impl Future<Output = ()>) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.unwrap().block_on(test);
    }

    async fn until(holds: impl Fn() -> bool) {
        let start = Instant::now();
        while !holds() {
            assert!(start.elapsed().as_secs() < 20, "it does not come");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    fn names(opened: &ApiServer) -> String {
        let names: Vec<String> = opened.node_statuses().requests().into_keys().collect();
        names.join(" ")
    }

    /// Returns the patches: the path of each, and its status without the time. The time must be present.
    fn patches(server: &Fake) -> Vec<(String, Value)> {
        let world = server.world();
        let patches = world.asked.iter().filter(|it| it.method == "PATCH");
        let one = |it: &fake::Request| {
            let mut status = it.body["status"].clone();
            let updated = status.as_object_mut().unwrap().remove("lastUpdated");
            assert!(updated.is_some_and(|it| it.as_str().unwrap().ends_with('Z')), "{}", it.body);
            (it.path.clone(), status)
        };
        patches.map(one).collect()
    }

    #[test]
    fn objects_of_the_own_node_are_asked_for_alone_and_each_change_is_known() {
        run(async {
            let server = Fake::start();
            server.world().define("CalicoNodeStatus", "caliconodestatuses", true);
            server.world().tell("ADDED", ALL, &object("a", "n1", 10));
            let opened = open(&server).await;
            until(|| names(&opened) == "a").await;
            server.world().tell("ADDED", ALL, &object("b", "n1", 10));
            server.world().tell("ADDED", ALL, &object("other", "n2", 10));
            until(|| names(&opened) == "a b").await;
            server.world().tell("MODIFIED", ALL, &object("a", "n2", 10));
            until(|| names(&opened) == "b").await;
            server.world().tell("MODIFIED", ALL, &object("b", "n1", 0));
            until(|| opened.node_statuses().requests()["b"].period.is_none()).await;
            server.world().tell("DELETED", ALL, &object("b", "n1", 0));
            until(|| names(&opened).is_empty()).await;
            let asked = server.world().asked.clone();
            let mut asked = asked.iter().filter(|it| it.path == ALL);
            assert!(asked.all(|it| it.query.contains("fieldSelector=spec.node%3Dn1")));
        });
    }

    #[test]
    fn a_server_that_cannot_select_sends_all_and_others_are_dropped() {
        run(async {
            let server = Fake::start();
            server.world().define("CalicoNodeStatus", "caliconodestatuses", true);
            server.world().rule = Box::new(|asked| {
                let selects = asked.path == ALL && asked.query.contains("fieldSelector");
                let text = "field label not supported: spec.node";
                selects.then(|| Answer::Json(400, status(400, text)))
            });
            for at in 0..50 {
                server.world().put(ALL, object(&format!("s{at}"), "n2", 10));
            }
            server.world().put(ALL, object("mine", "n1", 10));
            let opened = open(&server).await;
            until(|| names(&opened) == "mine").await;
        });
    }

    #[test]
    fn a_kind_that_is_not_served_is_no_fault() {
        run(async {
            let server = Fake::start();
            let opened = open(&server).await;
            tokio::time::sleep(Duration::from_millis(500)).await;
            assert_eq!(opened.warnings(), [""; 0]);
            assert_eq!(names(&opened), "");
        });
    }

    /// With Calico's definition, the status is a part of the object. A status that is refused is reported.
    #[test]
    fn a_status_is_written_where_the_server_has_it() {
        run(async {
            let server = Fake::start();
            server.world().define("CalicoNodeStatus", "caliconodestatuses", true);
            server.world().put(ALL, object("a", "n1", 10));
            server.world().rule =
                Box::new(|asked| (asked.method == "PATCH").then(|| Answer::Json(200, json!({}))));
            let opened = open(&server).await;
            until(|| names(&opened) == "a").await;
            opened.node_statuses().put("a", json!({ "bgp": { "numberEstablishedV4": 1 } }));
            until(|| patches(&server).len() == 1).await;
            let first = json!({ "bgp": { "numberEstablishedV4": 1 } });
            assert_eq!(patches(&server), [(format!("{ALL}/a/status"), first)]);
            server.world().rule = Box::new(|asked| {
                let is_patch = asked.method == "PATCH";
                let is_status = asked.path.ends_with("/status");
                let missing = || Answer::Json(404, status(404, "there is none"));
                let refused = || Answer::Json(403, status(403, "forbidden here"));
                is_patch.then(|| if is_status { missing() } else { refused() })
            });
            opened.node_statuses().put("a", json!({ "bgp": null }));
            until(|| !opened.warnings().is_empty()).await;
            insta::assert_snapshot!(opened.warnings().join("\n"), @"CalicoNodeStatus a: its status could not be written: forbidden here");
            let paths: Vec<String> = patches(&server).into_iter().map(|(path, _)| path).collect();
            assert_eq!(paths[1..], [format!("{ALL}/a/status"), format!("{ALL}/a")]);
            server.world().rule = Box::new(|asked| {
                let is_status = asked.path.ends_with("/status");
                let missing = Answer::Json(404, status(404, "there is none"));
                (asked.method == "PATCH")
                    .then(|| if is_status { missing } else { Answer::Json(200, json!({})) })
            });
            // A refused status is written again when it is due.
            opened.node_statuses().put("a", json!({ "bgp": null }));
            until(|| opened.warnings().is_empty()).await;
        });
    }
}
