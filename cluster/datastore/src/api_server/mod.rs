//! The API server as a source of objects.
//!
//! The layers, in order:
//! - `access`: the server's URL, and the client's identity.
//! - `connection`: requests, and answers of bounded size.
//! - `fault`: the reasons why a request failed.
//! - `resource`: the resource of the API that contains the objects of a kind.
//! - `reading`: an object as the server sends it.
//! - `follow`: lists and watches the objects of one kind.
//! - `secrets`: Secrets that are requested by name.
//! - `node_status`: the `CalicoNodeStatus` objects of the agent's node, and their status.
//! - `attempt`: Events, which are written one after the other.
//! - `kept`: a value that is written once for each change.
//! - `annotate`, `condition`, `own_addresses`, `notice`, `happening`: what agents write. These are pods' addresses,
//!   whether their node has a network, the node's own addresses, Events about invalid objects, and Events about the
//!   node.
//! - `writer`: reads and writes single objects.
//! - `once`: work that a program does once before it ends.
//! - `pool`: the first `IPPool` of a cluster without pools, which the installation writes.
//!
//! `followed` processes the objects.
//!
//! One thread communicates with the server, and the agent receives events. While the server does not answer, the known
//! objects stay in force and are reported as stale. A kind whose CRD is not installed has no objects, until it is
//! installed. If a kind may not be read, or if a starting server does not serve it yet, this is a fault. The known
//! objects of the kind stay in force; if there are none, the agent is not in sync.

mod access;
mod annotate;
mod attempt;
mod condition;
mod connection;
mod event;
#[cfg(test)]
pub(crate) mod fake;
mod fault;
mod follow;
mod happening;
mod kept;
mod node_status;
mod notice;
mod once;
mod own_addresses;
mod pool;
mod reading;
mod resource;
mod secrets;
#[cfg(test)]
mod served_tests;
mod writer;

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Arc, LazyLock};
use std::thread;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use kube::api::ListParams;
use kube::core::Request;
use manx_objects::contents::{Changes, Contents};
use manx_objects::object::{Kind, ObjectKey};
use manx_objects::problem::Problem;
use serde_json::Value;
use tokio::sync::watch;
use tokio::time::timeout;

pub use self::access::Access;
use self::attempt::Attempt;
use self::condition::Condition;
use self::connection::{ANSWER, Connection};
use self::follow::{Definitions, Position};
use self::happening::Happenings;
use self::notice::{AbandonedEvents, Notice, Notices};
pub use self::once::{read_kinds, run_with_writer};
use self::own_addresses::OwnAddresses;
pub use self::pool::make_first_pools;
pub use self::writer::Writer;
use crate::error::SourceError;
use crate::followed::{
    Event, Events, Followed, Follower, Objects, Pause, Server, Stale, Waiting, Waits,
};
use crate::happening::Happening;
use crate::node_status::NodeStatuses;
use crate::secrets::Secrets;

/// The kinds that are followed.
static FOLLOWED: LazyLock<Vec<Kind>> =
    LazyLock::new(|| Kind::ALL.into_iter().filter(|kind| kind.is_followed()).collect());
static SERVER: LazyLock<Server> =
    LazyLock::new(|| Server { name: "the API server", kinds: &FOLLOWED });

/// The time between two checks whether the server answers.
const PROBE: Duration = Duration::from_secs(5);

/// The objects of an API server. See the module.
#[derive(Debug)]
pub struct ApiServer {
    followed: Followed,
    /// The host in the server's URL.
    host: Option<String>,
    notices: Notices,
    to_write: PendingWrites,
}

/// The writes to the server and their results, and the Secrets that are requested from it.
#[derive(Debug, Clone)]
struct PendingWrites {
    /// The name of the agent's node.
    node: String,
    secrets: Arc<Secrets>,
    /// The addresses of this node's pods. An empty list means that they are released.
    addresses: Arc<Waiting<Vec<IpAddr>>>,
    condition: Arc<Condition>,
    /// The addresses of the node itself.
    own_addresses: Arc<OwnAddresses>,
    /// The Events to write about objects.
    noticed: Arc<Waiting<Attempt<Notice>>>,
    abandoned: AbandonedEvents,
    /// The Events to write about the node.
    happenings: Arc<Happenings>,
    node_statuses: Arc<NodeStatuses>,
}

impl ApiServer {
    /// Starts to follow the server, and waits until all objects are known. While the server does not answer, the last
    /// state in the file `state` is used, if it is complete. Without such a state, this waits for the server. `told` is
    /// called with the reason for the wait.
    ///
    /// # Errors
    /// Returns an error if `access` and the kubeconfig name no server. It is not an error if the server does not
    /// answer.
    pub async fn open(
        access: Access,
        follower: Follower,
        told: impl Fn(&Waits),
    ) -> Result<Self, SourceError> {
        let Follower { node, namespace, state } = follower;
        // A mistake in the settings is an error now. Later it would look like a temporary fault.
        let url = access.config().await?.cluster_url;
        let (server, host): (Arc<str>, _) = (url.to_string().into(), url.host().map(str::to_owned));
        let (mut followed, events) = Followed::new(*SERVER, state.as_deref());
        let to_write = PendingWrites {
            node,
            secrets: Arc::new(Secrets::new(&namespace)),
            addresses: Arc::default(),
            condition: Arc::default(),
            own_addresses: Arc::default(),
            noticed: Arc::default(),
            abandoned: AbandonedEvents::default(),
            happenings: Arc::default(),
            node_statuses: Arc::default(),
        };
        let (speaks_with, of_thread) = (Arc::clone(&server), to_write.clone());
        let thread = thread::Builder::new().name("api-server".to_owned());
        thread.spawn(move || speak(&access, &speaks_with, &events, &of_thread)).map_err(
            |error| SourceError::Client { server: server.to_string(), reason: error.to_string() },
        )?;
        followed.start(&server, told).await;
        Ok(Self { followed, host, notices: Notices::default(), to_write })
    }

    /// Returns all objects, as of the last event.
    pub fn contents(&self) -> &Contents {
        self.followed.contents()
    }

    /// Returns all objects as a shared value.
    pub fn shared(&self) -> Arc<Contents> {
        self.followed.shared()
    }

    /// Returns the host in the server's URL.
    pub(crate) fn host(&self) -> Option<&str> {
        self.host.as_deref()
    }

    /// Returns the reason why objects may be out of date, or `None` if they are up to date.
    pub fn stale(&self) -> Option<Stale> {
        self.followed.stale()
    }

    /// Returns whether changes of a kind may be missed now.
    pub(crate) fn is_behind(&self, kind: Kind) -> bool {
        self.followed.is_behind(kind)
    }

    /// Returns further warnings for users; see [`Source::warnings`](crate::Source::warnings).
    pub(crate) fn warnings(&self) -> Vec<String> {
        let PendingWrites { node, condition, own_addresses, abandoned, .. } = &self.to_write;
        let trouble = self.followed.trouble().into_iter().chain(abandoned.text());
        let writes = condition.text(node).into_iter().chain(own_addresses.text(node));
        trouble.chain(writes).chain(self.to_write.node_statuses.problems()).collect()
    }

    /// See [`Source::tell_network_up`](crate::Source).
    pub(crate) fn tell_network_up(&self) {
        self.to_write.condition.up();
    }

    /// See [`Source::tell_network_down`](crate::Source).
    pub(crate) async fn tell_network_down(&self) {
        self.to_write.condition.down().await;
    }

    /// Queues a write of annotations of the Node; see [`Source::annotate_node`](crate::Source).
    pub(crate) fn annotate_node(&self, annotations: BTreeMap<&'static str, String>) {
        self.to_write.own_addresses.put(annotations);
    }

    /// Assigns addresses on this node to a pod, or withdraws them; see [`Source::assign`](crate::Source). The addresses
    /// are also written to the pod's object.
    pub(crate) fn assign(
        &mut self,
        pod: ObjectKey,
        addresses: Option<Vec<IpAddr>>,
    ) -> Option<Changes> {
        self.to_write.addresses.put(pod.clone(), addresses.clone().unwrap_or_default());
        self.followed.objects().assign(pod, addresses)
    }

    /// Returns the node's status objects.
    pub(crate) fn node_statuses(&self) -> &NodeStatuses {
        &self.to_write.node_statuses
    }

    /// Returns the requested Secrets.
    pub(crate) fn secrets(&self) -> &Secrets {
        &self.to_write.secrets
    }

    /// Queues Kubernetes Events about objects with problems; see [`Source::report`](crate::Source).
    pub(crate) fn report(&mut self, problems: &[Problem]) {
        let Self { followed, notices, to_write: PendingWrites { node, noticed, .. }, .. } = self;
        let objects = followed.objects();
        let nodes = objects.contents.of_kind(Kind::Node).map(|(key, _)| key.name.as_str());
        let nodes: Vec<&str> = nodes.collect();
        notices.report(problems, (node, &nodes), |own| objects.known_as(own), noticed);
    }

    /// Queues an Event about the node; see [`Source::tell`](crate::Source).
    pub(crate) fn tell(&self, subject: String, happening: Happening) {
        happening::put(&self.to_write.happenings, subject, happening);
    }

    /// Returns the time when the first event of the last change was received.
    pub(crate) const fn changed(&self) -> Option<Instant> {
        self.followed.changed()
    }

    /// Waits for the next change, and returns it. If the future is dropped, nothing is lost.
    pub async fn next(&mut self) -> Changes {
        self.followed.next().await
    }
}

/// Reads all objects once: those that agents follow, and others that describe a cluster.
///
/// # Errors
/// Returns an error if the server cannot be reached or does not allow reading a kind.
pub fn read(access: &Access) -> Result<Contents, SourceError> {
    match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime.block_on(read_all(access)),
        Err(error) => {
            let server = "the API server".to_owned();
            Err(SourceError::Client { server, reason: error.to_string() })
        }
    }
}

async fn read_all(access: &Access) -> Result<Contents, SourceError> {
    let server: Arc<str> = access.config().await?.cluster_url.to_string().into();
    let failed = |kind: Option<Kind>| {
        let server = server.to_string();
        move |error: kube::Error| {
            let reason = fault::words(&error);
            SourceError::Unreadable { server, kind: kind.map_or("objects", Kind::name), reason }
        }
    };
    let connection = access.connect().await?;
    // All kinds are read, including workloads, which agents do not follow. Only Endpoints are not read, because the
    // cluster copies them to slices.
    let kinds: Vec<Kind> = Kind::ALL.into_iter().filter(|it| *it != Kind::Endpoints).collect();
    let mut objects = Objects::new(SERVER.name, &kinds);
    for kind in kinds {
        let found = resource::find(&connection, kind.into()).await;
        let readings = match found.map_err(failed(Some(kind)))? {
            Some(resource) => {
                let read = |object| reading::read(&server, kind, &resource, object);
                let read = follow::read_pages(&connection, &resource, "", read).await;
                read.map_err(failed(Some(kind)))?.0
            }
            None => Vec::new(),
        };
        objects.apply([Event::Listed { kind, readings }]);
    }
    Ok(Arc::unwrap_or_clone(objects.contents))
}

/// Communicates with the server as long as events are received.
fn speak(access: &Access, server: &Arc<str>, events: &Events, to_write: &PendingWrites) {
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return tracing::error!(%error, "the API server cannot be followed"),
    };
    runtime.block_on(async {
        let mut positions: Vec<_> = FOLLOWED.iter().copied().map(Position::new).collect();
        let mut pause = Pause::default();
        // A connection ends when the server does not answer. The next one reads certificates and tokens again.
        while let Err(reason) =
            Box::pin(connect(access, server, events, &mut positions, to_write, &mut pause)).await
        {
            if events.fail(None, reason.into()).await.is_err() {
                return;
            }
            pause.wait().await;
        }
    });
}

/// Follows all kinds over one connection until it fails. Returns `Ok` if the receiver of the events is gone.
async fn connect(
    access: &Access,
    server: &Arc<str>,
    events: &Events,
    positions: &mut [Position],
    to_write: &PendingWrites,
    pause: &mut Pause,
) -> Result<(), String> {
    let connection = access.connect().await.map_err(|error| error.to_string())?;
    probe(&connection).await?;
    *pause = Pause::default();
    events.confirm();
    if events.recover(None).await.is_err() {
        return Ok(());
    }
    let (installed, signs) = watch::channel(Definitions::new());
    let follow = positions
        .iter_mut()
        .map(|position| position.follow(&connection, server, events, signs.clone()));
    tokio::select! {
        _ = join_all(follow) => Ok(()),
        reason = keep_probing(&connection, events) => Err(reason),
        () = follow::watch_installed(&connection, &FOLLOWED, &installed) => Ok(()),
        () = secrets::keep_following(&connection, &to_write.secrets) => Ok(()),
        () = annotate::keep_writing(&connection, &to_write.node, &to_write.addresses) => Ok(()),
        () = condition::keep_writing(&connection, &to_write.node, &to_write.condition) => Ok(()),
        () = own_addresses::keep_writing(&connection, &to_write.node, &to_write.own_addresses) => Ok(()),
        () = node_status::keep_following(&connection, &to_write.node, &to_write.node_statuses) => Ok(()),
        () = node_status::keep_writing(&connection, &to_write.node_statuses) => Ok(()),
        () = notice::keep_writing(&connection, &to_write.node, &to_write.noticed, &to_write.abandoned) => Ok(()),
        () = happening::keep_writing(&connection, &to_write.node, &to_write.happenings, &to_write.abandoned) => Ok(()),
    }
}

/// Checks the server at regular intervals. Returns the reason when the server does not answer.
async fn keep_probing(connection: &Connection, events: &Events) -> String {
    loop {
        tokio::time::sleep(PROBE).await;
        if let Err(reason) = probe(connection).await {
            return reason;
        }
        events.confirm();
    }
}

async fn probe(connection: &Connection) -> Result<(), String> {
    let request = Request::new("/version").list(&ListParams::default());
    let request = request.map_err(|error| error.to_string())?;
    match timeout(ANSWER, connection.ask::<Value>(request)).await {
        Ok(Ok(_version)) => Ok(()),
        Ok(Err(error)) => Err(fault::words(&error)),
        Err(_elapsed) => Err(format!("no answer for {} s", ANSWER.as_secs())),
    }
}
