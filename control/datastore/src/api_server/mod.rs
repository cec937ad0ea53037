//! The API server as a source of objects.
//!
//! The layers, in order:
//! - `access`: where the server is, and as whom it is asked.
//! - `connection`: how it is asked, and how long an answer may be.
//! - `fault`: why the server does not do what it is asked for.
//! - `resource`: which resource holds the objects of a kind.
//! - `reading`: an object, read by the reader that reads files.
//! - `follow`: the objects of one kind, listed and watched.
//! - `event`, `events`, `snapshot`: what has happened, and its way to the agent and to the state on disk.
//! - `waiting`: what is to be written, one value for each object.
//! - `annotate`, `condition`, `notice`: what agents write: pods' addresses, whether their node has a network, and Events
//!   about objects that are not valid.
//! - `pool`: the first `IPPool` of a cluster that has none, which the installation writes.
//! - `objects`: all objects, and how they differ from those before.
//!
//! One thread speaks with the server; the agent gets events. While the server does not answer, what is known stays in
//! force and is said to be stale. A kind whose CRD is not installed has no objects, until it is installed. A kind that
//! may not be read, or that a server that starts does not serve yet, is a fault: what was known of it stays in force, and
//! if that is nothing, the agent is not in sync.

mod access;
mod annotate;
mod condition;
mod connection;
mod event;
mod events;
#[cfg(test)]
mod fake;
mod fault;
mod follow;
mod notice;
mod objects;
mod pool;
mod reading;
mod resource;
#[cfg(test)]
mod served_tests;
mod snapshot;
#[cfg(test)]
mod tests;
mod waiting;

use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use futures_util::future::join_all;
use kube::api::ListParams;
use kube::core::Request;
use manx_objects::contents::{Changes, Contents};
use manx_objects::object::{Kind, ObjectKey};
use manx_objects::problem::Problem;
use serde_json::Value;
use tokio::sync::{mpsc, watch};
use tokio::time::timeout;

pub use self::access::{Access, AccessError};
use self::condition::Condition;
use self::connection::{ANSWER, Connection};
use self::event::Event;
use self::events::{Events, Received};
use self::follow::{Definitions, Pause, Position};
use self::notice::{GivenUp, Notice, Notices};
use self::objects::Objects;
pub use self::pool::{DefaultPool, make_first_pool};
use self::snapshot::{Loaded, Snapshot, Trouble};
use self::waiting::Waiting;

/// The kinds that policy, routes and addresses are made of.
const FOLLOWED: [Kind; 22] = [
    Kind::Namespace,
    Kind::Node,
    Kind::Pod,
    Kind::ServiceAccount,
    Kind::Service,
    Kind::EndpointSlice,
    Kind::NetworkPolicy,
    Kind::ClusterNetworkPolicy,
    Kind::AdminNetworkPolicy,
    Kind::BaselineAdminNetworkPolicy,
    Kind::IpPool,
    Kind::CalicoNetworkPolicy,
    Kind::GlobalNetworkPolicy,
    Kind::StagedNetworkPolicy,
    Kind::StagedGlobalNetworkPolicy,
    Kind::StagedKubernetesNetworkPolicy,
    Kind::Tier,
    Kind::NetworkSet,
    Kind::GlobalNetworkSet,
    Kind::HostEndpoint,
    Kind::Profile,
    Kind::FelixConfiguration,
];

/// Events that wait for the agent. When there are so many, the thread that reads them waits, and so does the server.
const WAITING: usize = 4096;
/// How often the server is asked whether it is there.
const PROBE: Duration = Duration::from_secs(5);
/// How long a start waits for the server before the state on disk counts.
const START: Duration = Duration::from_secs(10);

/// Who follows a server, and what else it wants there.
#[derive(Debug, Clone)]
pub struct Follower {
    /// The name of its node. It writes to the objects of pods on this node.
    pub node: String,
    /// The file of the last state.
    pub state: Option<PathBuf>,
}

/// Since when objects may be out of date, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stale {
    /// When they were last known to be up to date.
    pub since: SystemTime,
    /// Why they are not.
    pub reason: String,
}

/// What a start waits for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Waits {
    /// The server.
    pub server: String,
    /// When the start began to wait.
    pub since: SystemTime,
    /// Why objects are missing, if that is known.
    pub reason: Option<String>,
    /// The longest time until the next attempt.
    pub at_most: Duration,
}

/// The objects of an API server. See the module.
#[derive(Debug)]
pub struct ApiServer {
    objects: Objects,
    /// The addresses of this node's pods that are to be written; none: they are released.
    addresses: Arc<Waiting<Vec<IpAddr>>>,
    condition: Arc<Condition>,
    node: String,
    /// The server's, as its URL names it.
    host: Option<String>,
    notices: Notices,
    /// What is to be written about objects.
    noticed: Arc<Waiting<Notice>>,
    given_up: GivenUp,
    trouble: Trouble,
    events: mpsc::Receiver<Received>,
    received: Vec<Received>,
    /// When the first event of the last change was received.
    changed: Option<Instant>,
}

impl ApiServer {
    /// Starts to follow the server, and waits until all objects are known. While the server does not answer, the last
    /// state in the file `state` counts instead, if it is complete; without one this waits for the server. `told` gets
    /// what is waited for, and why.
    ///
    /// # Errors
    /// `access` does not say how to reach a server. A server that does not answer is no error.
    pub async fn open(
        access: Access,
        follower: Follower,
        told: impl Fn(&Waits),
    ) -> Result<Self, AccessError> {
        let Follower { node, state } = follower;
        // What is wrong now is the user's to know at once; later it is a fault that may pass.
        let url = access.config().await?.cluster_url;
        let (server, host): (Arc<str>, _) = (url.to_string().into(), url.host().map(str::to_owned));
        let (given_up, trouble) = (GivenUp::default(), Trouble::default());
        let open = |file| Snapshot::open(file, &FOLLOWED, &trouble);
        let (snapshot, loaded) = state.as_deref().map_or((None, None), open);
        let (sender, events) = mpsc::channel(WAITING);
        let addresses = Arc::<Waiting<Vec<IpAddr>>>::default();
        let condition = Arc::<Condition>::default();
        let noticed = Arc::<Waiting<Notice>>::default();
        let writes = Writes {
            node: node.clone(),
            addresses: Arc::clone(&addresses),
            condition: Arc::clone(&condition),
            noticed: Arc::clone(&noticed),
            given_up: given_up.clone(),
        };
        let speaks_with = Arc::clone(&server);
        let thread = thread::Builder::new().name("api-server".to_owned());
        thread
            .spawn(move || {
                let events = Events::new(sender, snapshot, &FOLLOWED);
                speak(&access, &speaks_with, &events, &writes);
            })
            .map_err(|error| AccessError::Client {
                server: server.to_string(),
                reason: error.to_string(),
            })?;
        let objects = Objects::followed(&FOLLOWED);
        let (notices, received, changed) = (Notices::default(), Vec::new(), None);
        let mut this = Self {
            objects,
            addresses,
            condition,
            node,
            host,
            notices,
            noticed,
            given_up,
            trouble,
            events,
            received,
            changed,
        };
        let waits = Waits {
            server: server.to_string(),
            since: SystemTime::now(),
            reason: None,
            at_most: follow::LONGEST_PAUSE,
        };
        told(&waits);
        let told = |reason| told(&Waits { reason, ..waits.clone() });
        match loaded {
            Some(loaded) => {
                if timeout(START, this.synced(&told)).await.is_err()
                    && !this.restore(&server, loaded)
                {
                    tracing::error!(
                        "the last state holds an object that cannot be read: it is not used, and nothing passes until the \
                         API server answers"
                    );
                    this.synced(&told).await;
                }
            }
            None => this.synced(&told).await,
        }
        Ok(this)
    }

    /// All objects, as of the last event.
    pub fn contents(&self) -> &Contents {
        &self.objects.contents
    }

    /// The same, shared.
    pub fn shared(&self) -> Arc<Contents> {
        Arc::clone(&self.objects.contents)
    }

    /// The host that the server's URL names.
    pub(crate) fn host(&self) -> Option<&str> {
        self.host.as_deref()
    }

    /// Since when the objects may be out of date; `None`: they are not.
    pub fn stale(&self) -> Option<Stale> {
        self.objects.stale().map(|(since, reason)| Stale { since, reason })
    }

    /// Whether nothing is learned of a kind now.
    pub(crate) fn is_behind(&self, kind: Kind) -> bool {
        self.objects.is_behind(kind)
    }

    /// What else its users have to know; see [`Source::warnings`](crate::Source::warnings).
    pub(crate) fn warnings(&self) -> Vec<String> {
        let condition = self.condition.text(&self.node);
        self.trouble.text().into_iter().chain(self.given_up.text()).chain(condition).collect()
    }

    /// See [`Source::tell_network_up`](crate::Source).
    pub(crate) fn tell_network_up(&self) {
        self.condition.up();
    }

    /// See [`Source::tell_network_down`](crate::Source).
    pub(crate) async fn tell_network_down(&self) {
        self.condition.down().await;
    }

    /// Gives a pod the addresses that it has on this node, or takes them away; see [`Source::assign`](crate::Source).
    /// They are written to its object, too, when the server takes them.
    pub(crate) fn assign(
        &mut self,
        pod: ObjectKey,
        addresses: Option<Vec<IpAddr>>,
    ) -> Option<Changes> {
        self.addresses.put(pod.clone(), addresses.clone().unwrap_or_default());
        self.objects.assign(pod, addresses)
    }

    /// Has Kubernetes Events written about objects with problems; see [`Source::report`](crate::Source).
    pub(crate) fn report(&mut self, problems: &[Problem]) {
        let Self { objects, node, notices, noticed, .. } = self;
        let nodes = objects.contents.of_kind(Kind::Node).map(|(key, _)| key.name.as_str());
        let nodes: Vec<&str> = nodes.collect();
        notices.report(problems, (node, &nodes), |own| objects.known_as(own), noticed);
    }

    /// When the first event of the last change was received.
    pub(crate) const fn changed(&self) -> Option<Instant> {
        self.changed
    }

    /// Waits for the next change, and returns it. Dropping the future loses nothing.
    pub async fn next(&mut self) -> Changes {
        loop {
            if let Some(changes) = self.receive().await {
                return changes;
            }
        }
    }

    /// Waits for events, and takes them.
    async fn receive(&mut self) -> Option<Changes> {
        if self.events.recv_many(&mut self.received, WAITING).await == 0 {
            // The thread has ended, which it does not while anybody listens: it has panicked.
            let reason = "the thread that follows the API server has ended".to_owned();
            self.objects.mark_stale(reason);
            std::future::pending::<()>().await;
        }
        self.changed = self.received.first().map(|(at, _)| *at);
        let events = self.received.drain(..).map(|(_, event)| event);
        self.objects.apply(events)
    }

    /// Waits until all objects are known. `told` gets why some are not.
    async fn synced(&mut self, told: &impl Fn(Option<String>)) {
        while !self.contents().in_sync {
            self.receive().await;
            told(self.stale().map(|stale| stale.reason));
        }
    }

    /// The state on disk counts for as long as not all objects were listed. `false`: not all of it can be read, so none
    /// of it counts; what cannot be read may be a policy.
    fn restore(&mut self, server: &Arc<str>, Loaded { texts, complete }: Loaded) -> bool {
        let reading = |text: String| {
            let object: Value = serde_json::from_str(&text).ok()?;
            let kind = Kind::ALL.into_iter().find(|kind| {
                kind.name() == object["kind"]
                    && kind.api_versions().iter().any(|version| *version == object["apiVersion"])
            })?;
            Some(reading::of_text(server, reading::key(kind, &object), text))
        };
        let readings: Option<Vec<_>> = texts.into_iter().map(reading).collect();
        let is_whole = readings.is_some();
        if let Some(readings) = readings {
            self.objects.restore(complete, readings);
        }
        is_whole
    }
}

/// Reads all objects once: those that agents follow, and what else tells of a cluster.
///
/// # Errors
/// The server cannot be reached, or may not be asked for objects of some kind.
pub fn read(access: &Access) -> Result<Contents, AccessError> {
    match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime.block_on(read_all(access)),
        Err(error) => {
            let server = "the API server".to_owned();
            Err(AccessError::Client { server, reason: error.to_string() })
        }
    }
}

async fn read_all(access: &Access) -> Result<Contents, AccessError> {
    let server: Arc<str> = access.config().await?.cluster_url.to_string().into();
    let failed = |kind: Option<Kind>| {
        let server = server.to_string();
        move |error: kube::Error| {
            let reason = fault::words(&error);
            AccessError::Unreadable { server, kind: kind.map_or("objects", Kind::name), reason }
        }
    };
    let connection = access.connect().await?;
    // Workloads, too. Endpoints are in slices there.
    let kinds: Vec<Kind> = Kind::ALL.into_iter().filter(|it| *it != Kind::Endpoints).collect();
    let mut objects = Objects::new(&kinds);
    for kind in kinds {
        let readings = match resource::find(&connection, kind).await.map_err(failed(Some(kind)))? {
            Some(resource) => {
                let read = follow::read_pages(&connection, &server, &resource).await;
                read.map_err(failed(Some(kind)))?.0
            }
            None => Vec::new(),
        };
        objects.apply([Event::Listed { kind, readings }]);
    }
    Ok(Arc::unwrap_or_clone(objects.contents))
}

/// What is written at the server.
struct Writes {
    node: String,
    addresses: Arc<Waiting<Vec<IpAddr>>>,
    condition: Arc<Condition>,
    noticed: Arc<Waiting<Notice>>,
    given_up: GivenUp,
}

/// Speaks with the server until nobody listens.
fn speak(access: &Access, server: &Arc<str>, events: &Events, writes: &Writes) {
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return tracing::error!(%error, "the API server cannot be followed"),
    };
    runtime.block_on(async {
        let mut positions = FOLLOWED.map(Position::new);
        let mut pause = Pause::default();
        // Each connection ends when the server does not answer; the next one reads certificates and tokens anew.
        while let Err(reason) =
            Box::pin(connect(access, server, events, &mut positions, writes, &mut pause)).await
        {
            if events.fail(None, reason).await.is_err() {
                return;
            }
            pause.wait().await;
        }
    });
}

/// Follows all kinds over one connection until it fails. `Ok`: nobody listens.
async fn connect(
    access: &Access,
    server: &Arc<str>,
    events: &Events,
    positions: &mut [Position],
    writes: &Writes,
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
        () = annotate::keep_writing(&connection, &writes.node, &writes.addresses) => Ok(()),
        () = condition::keep_writing(&connection, &writes.node, &writes.condition) => Ok(()),
        () = notice::keep_writing(&connection, &writes.node, &writes.noticed, &writes.given_up) => Ok(()),
    }
}

/// Asks the server again and again, and returns why it does not answer.
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
