//! Writes the addresses of the agent's own Node as annotations, as in Calico. All nodes use these annotations.
//!
//! The annotations are written with a patch of `nodes/status`, which may change annotations but not the spec. The patch
//! contains only these annotations.

use std::collections::BTreeMap;

use kube::api::{Patch, PatchParams};
use kube::core::{Request, request};
use serde::Serialize;
use serde_json::{Value, json};

use super::connection::Connection;
use super::kept::Kept;

/// The annotations to write, by name, and the result of the last write.
#[derive(Debug, Default)]
pub(super) struct OwnAddresses(Kept<BTreeMap<&'static str, String>>);

impl OwnAddresses {
    /// Queues the write.
    pub(super) fn put(&self, annotations: BTreeMap<&'static str, String>) {
        self.0.want_again(annotations);
    }

    /// Returns the warning for users, if the annotations could not be written.
    pub(super) fn text(&self, node: &str) -> Option<String> {
        let reason = self.0.failure()?;
        Some(format!(
            "the annotations with the addresses of Node {node:?} could not be written: {reason}"
        ))
    }
}

/// Writes the wanted annotations as long as the connection lasts. A failed write is tried again.
pub(super) async fn keep_writing(connection: &Connection, node: &str, addresses: &OwnAddresses) {
    let what = format!("the address of Node {node}");
    addresses.0.keep_writing(&what, async |wanted| write(connection, node, &wanted).await).await;
}

async fn write(
    connection: &Connection,
    node: &str,
    annotations: &BTreeMap<&'static str, String>,
) -> kube::Result<()> {
    let patched = patch(node, annotations).map_err(kube::Error::BuildRequest)?;
    connection.ask::<Value>(patched).await.map(drop)
}

/// Returns the request that writes annotations of a Node and does not change any others. A null value removes an
/// annotation.
pub(super) fn patch(
    node: &str,
    annotations: &impl Serialize,
) -> Result<hyper::Request<Vec<u8>>, request::Error> {
    let patch = Patch::Merge(json!({ "metadata": { "annotations": annotations } }));
    let request = Request::new("/api/v1/nodes");
    request.patch_subresource("status", node, &PatchParams::default(), &patch)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;
    use std::sync::atomic::Ordering::Relaxed;
    use std::time::{Duration, Instant};

    use super::super::fake::{Answer, Fake, status};
    use super::super::{Access, ApiServer, Follower};
    use super::*;

    /// The time for which the test waits to be sure that no request is sent.
    const NEVER: Duration = Duration::from_millis(1500);

    /// Starts a server that gives this answer to each write of the Node's status.
    fn server(written: impl Fn(usize) -> Answer + Send + 'static) -> Fake {
        let (server, times) = (Fake::start(), AtomicUsize::new(0));
        server.world().rule = Box::new(move |asked| {
            (asked.method == "PATCH").then(|| written(times.fetch_add(1, Relaxed)))
        });
        server
    }

    async fn open(server: &Fake) -> ApiServer {
        let endpoint = Some(format!("http://{}", server.address));
        let (node, namespace) = ("n1".to_owned(), "kube-system".to_owned());
        let follower = Follower { node, namespace, state: None };
        let access = Access { endpoint, ..Access::default() };
        ApiServer::open(access, follower, |_| ()).await.unwrap()
    }

    async fn until(opened: &mut ApiServer, holds: impl Fn(&ApiServer) -> bool) {
        let start = Instant::now();
        while !holds(opened) {
            assert!(start.elapsed().as_secs() < 20, "{:?}", opened.warnings());
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    fn run(test: impl Future<Output = ()>) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.unwrap().block_on(test);
    }

    #[test]
    fn a_nodes_address_is_written_until_the_server_has_it_and_again_when_it_is_asked_for() {
        run(async {
            let server = server(|at| match at {
                0 => Answer::Json(403, status(403, "forbidden here")),
                1 => Answer::Close,
                _ => Answer::Json(200, json!({})),
            });
            let mut opened = open(&server).await;
            let patches = || {
                let world = server.world();
                let patches = world.asked.iter().filter(|it| it.method == "PATCH");
                patches.map(|it| (it.path.clone(), it.body.clone())).collect::<Vec<_>>()
            };
            let annotations = |address: &str| {
                BTreeMap::from([("projectcalico.org/IPv4Address", address.to_owned())])
            };
            opened.annotate_node(annotations("10.0.0.5/24"));
            until(&mut opened, |it| !it.warnings().is_empty()).await;
            let told = "the annotations with the addresses of Node \"n1\" could not be written: ";
            assert!(opened.warnings()[0].starts_with(told), "{:?}", opened.warnings());
            until(&mut opened, |it| patches().len() == 3 && it.warnings().is_empty()).await;
            opened.annotate_node(annotations("10.0.0.5/24"));
            until(&mut opened, |_| patches().len() == 4).await;
            for (path, body) in patches() {
                assert_eq!(path, "/api/v1/nodes/n1/status");
                let wanted = json!({ "projectcalico.org/IPv4Address": "10.0.0.5/24" });
                assert_eq!(body, json!({ "metadata": { "annotations": wanted } }));
            }
            opened.annotate_node(annotations("10.0.0.6/24"));
            until(&mut opened, |_| patches().len() == 5).await;
            tokio::time::sleep(NEVER).await;
            assert_eq!(patches().len(), 5, "what is written is not written again by itself");
        });
    }
}
