//! Follows the objects of one kind: lists them, and then watches from the version of the list.
//!
//! If the server supports it, the list is streamed as the first events of the watch (Kubernetes, "Streaming lists").
//! Otherwise the list is read in pages. When a watch ends, the next one continues from the last version, which
//! bookmarks advance. If the server has forgotten that version (410), the objects are listed again. Known objects stay
//! until a complete list replaces them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use kube::api::{ListParams, WatchEvent, WatchParams};
use kube::core::Request;
use manx_objects::object::{Kind, ObjectKey};
use serde::Deserialize;
use serde_json::Value;
use tokio::sync::watch;
use tokio::time::timeout;

use super::connection::Connection;
use super::fault::{self, code, is_too_long, words};
use super::reading;
use super::resource::{self, Resource};
use crate::followed::{self, Closed, Event, Events, Pause, Reading};

/// The maximum number of objects in a page.
const PAGE: u32 = 500;
/// The factor by which the number of objects is reduced if a page is too long.
const FEWER: u32 = 8;
/// The server ends a watch after this number of seconds (kube's own choice).
pub(super) const WATCH: u32 = 290;
/// A watch without any event for this time is dead, because the server would have ended it.
pub(super) const SILENCE: Duration = Duration::from_secs(WATCH as u64 + 30);
/// A watch that is not refused within this time counts as working.
const REFUSAL: Duration = Duration::from_secs(1);
/// The time after which a missing kind is looked up again, if the server reports no new or changed CRD of the kind.
const NOT_SERVED: Duration = Duration::from_mins(1);
/// The delays of the look-ups after a CRD of the kind has changed. There are several because the server needs some time
/// before it serves a new resource.
const LOOKS: [Duration; 4] =
    [Duration::ZERO, Duration::from_millis(300), Duration::from_secs(1), Duration::from_secs(3)];
/// The annotation of the bookmark after the last object of a streamed list.
const END_OF_LIST: &str = "k8s.io/initial-events-end";

/// The progress of following the objects of a kind. It is kept when a connection ends.
#[derive(Debug)]
pub(super) struct Position {
    kind: Kind,
    resource: Option<Resource>,
    /// The version up to which all changes are known.
    version: Option<String>,
    /// Whether lists are streamed: true until the server refuses a streamed list.
    streams: bool,
    /// Whether the last attempt failed, and was reported.
    faulty: bool,
    /// Whether the kind counts as missing after all checks of `resource::find` at the server of this connection.
    absent: bool,
    /// The versions of the kind's CRDs at the last look-up of the kind.
    told: Vec<String>,
}

/// The CRDs of the followed kinds by name, each with the last version that the server has sent.
pub(super) type Definitions = BTreeMap<String, String>;

/// The reason why a list or a watch ended early.
enum End {
    /// The server has forgotten the version.
    Forgotten,
    /// The server answers that it has no such resource. The server's discovery must confirm this.
    NotServed,
    /// The turn failed.
    Failed(String),
    /// The receiver of the events is gone.
    Closed,
}

impl From<Closed> for End {
    fn from(Closed: Closed) -> Self {
        Self::Closed
    }
}

impl From<kube::Error> for End {
    fn from(error: kube::Error) -> Self {
        match code(&error) {
            Some(404) => Self::NotServed,
            Some(410) => Self::Forgotten,
            _ => Self::Failed(words(&error)),
        }
    }
}

impl Position {
    /// Returns the position at which nothing is known of `kind` yet.
    pub(super) fn new(kind: Kind) -> Self {
        Self {
            kind,
            resource: None,
            version: None,
            streams: true,
            faulty: false,
            absent: false,
            told: Vec::new(),
        }
    }

    /// Follows the objects as long as events are received. If the future is dropped, nothing is lost: the next call
    /// continues.
    pub(super) async fn follow(
        &mut self,
        connection: &Connection,
        server: &Arc<str>,
        events: &Events,
        mut installed: watch::Receiver<Definitions>,
    ) {
        let mut pause = Pause::default();
        self.absent = false;
        self.told.clear();
        loop {
            match self.turn(connection, server, events, &mut installed).await {
                Ok(()) => pause = Pause::default(),
                Err(End::Closed) => return,
                Err(End::Forgotten) => self.version = None,
                Err(End::NotServed) => {
                    (self.resource, self.version) = (None, None);
                    pause.wait().await;
                }
                Err(End::Failed(reason)) => {
                    self.faulty = true;
                    if events.fail(Some(self.kind), fault::reason(reason)).await.is_err() {
                        return;
                    }
                    pause.wait().await;
                }
            }
        }
    }

    /// Lists the objects once, or watches them until the watch ends. If the server does not have the kind, waits for
    /// some time or until a CRD of the kind changes.
    async fn turn(
        &mut self,
        connection: &Connection,
        server: &Arc<str>,
        events: &Events,
        installed: &mut watch::Receiver<Definitions>,
    ) -> Result<(), End> {
        let Some(resource) = self.find(connection, installed).await? else {
            if !resource::may_be_missing(self.kind.into()) {
                let reason = format!("the server serves no {}", self.kind);
                return Err(End::Failed(reason));
            }
            self.list(Vec::new(), events).await?;
            let sign = installed.wait_for(|all| versions(self.kind, all) != self.told);
            // If the channel is closed, no change of a CRD is reported any more, so this waits for the whole time.
            if let Ok(Err(_)) = timeout(NOT_SERVED, sign).await {
                tokio::time::sleep(NOT_SERVED).await;
            }
            return Ok(());
        };
        if self.version.is_none() && !self.streams {
            let read = |object| reading::read(server, self.kind, &resource, object);
            let (readings, version) = read_pages(connection, &resource, "", read).await?;
            self.list(readings, events).await?;
            self.version = Some(version);
            return Ok(());
        }
        self.watch(connection, server, &resource, events).await
    }

    async fn find(
        &mut self,
        connection: &Connection,
        installed: &watch::Receiver<Definitions>,
    ) -> Result<Option<Resource>, End> {
        if self.resource.is_none() {
            let told = versions(self.kind, &installed.borrow());
            let changed = told != self.told;
            // A kind that was missing still counts as missing, unless one of its CRDs has changed or the server's lists
            // contain the kind.
            self.absent &= !changed;
            self.told = told;
            let mut found = Ok(None);
            for pause in &LOOKS[..if changed { LOOKS.len() } else { 1 }] {
                tokio::time::sleep(*pause).await;
                found = if self.absent {
                    resource::find_served(connection, self.kind.into()).await
                } else {
                    resource::find(connection, self.kind.into()).await
                };
                if matches!(found, Ok(Some(_))) {
                    break;
                }
            }
            self.resource = found.map_err(|error| End::Failed(words(&error)))?;
            self.absent = self.resource.is_none();
        }
        Ok(self.resource.clone())
    }

    /// Reports all objects.
    async fn list(&mut self, readings: Vec<Reading>, events: &Events) -> Result<(), End> {
        self.succeed(events).await?;
        Ok(events.send(Event::Listed { kind: self.kind, readings }).await?)
    }

    async fn succeed(&mut self, events: &Events) -> Result<(), Closed> {
        if std::mem::take(&mut self.faulty) {
            events.recover(Some(self.kind)).await?;
        }
        Ok(())
    }

    /// Watches from the known version. If there is none, the watch begins with the list.
    async fn watch(
        &mut self,
        connection: &Connection,
        server: &Arc<str>,
        resource: &Resource,
        events: &Events,
    ) -> Result<(), End> {
        let mut params = WatchParams::default().timeout(WATCH);
        if self.version.is_none() {
            params = params.initial_events();
        }
        let version = self.version.as_deref().unwrap_or_default();
        let request = Request::new(resource.path.clone()).watch(&params, version);
        let request = request.map_err(kube::Error::BuildRequest)?;
        let mut lines = match connection.watch(request).await {
            Err(error) if self.version.is_none() && refuses_streams(&error) => {
                self.streams = false;
                return Ok(());
            }
            lines => lines?,
        };
        let mut listed = self.version.is_none().then(BTreeMap::<ObjectKey, Reading>::new);
        let mut goes_well = false;
        loop {
            let patience = if goes_well { SILENCE } else { REFUSAL };
            let event = match timeout(patience, lines.next()).await {
                Err(_elapsed) if goes_well => {
                    return Err(End::Failed(format!(
                        "nothing came for {} s, neither an event nor the watch's end",
                        SILENCE.as_secs()
                    )));
                }
                Err(_elapsed) => {
                    goes_well = true;
                    if listed.is_none() && !lines.is_inside() {
                        self.succeed(events).await?;
                    }
                    continue;
                }
                Ok(Err(error)) if listed.is_some() && refuses_streams(&error) => {
                    self.streams = false;
                    return Ok(());
                }
                Ok(event) => event?,
            };
            goes_well = true;
            let Some(event) = event else { return Ok(()) };
            self.take(event, server, resource, &mut listed, events).await?;
            if listed.is_none() {
                self.succeed(events).await?;
            }
        }
    }

    /// Processes one event of a watch. While the list is streamed, `listed` contains the objects that have arrived so
    /// far.
    async fn take(
        &mut self,
        event: WatchEvent<Value>,
        server: &Arc<str>,
        resource: &Resource,
        listed: &mut Option<BTreeMap<ObjectKey, Reading>>,
        events: &Events,
    ) -> Result<(), End> {
        let version = match event {
            WatchEvent::Error(status) => return Err(kube::Error::Api(status).into()),
            WatchEvent::Bookmark(bookmark) => {
                let ends = bookmark.metadata.annotations.contains_key(END_OF_LIST);
                if let Some(all) = listed.take_if(|_| ends) {
                    self.list(all.into_values().collect(), events).await?;
                }
                Some(bookmark.metadata.resource_version)
            }
            WatchEvent::Added(object) | WatchEvent::Modified(object) => {
                let version = version_of(&object);
                let reading = reading::read(server, self.kind, resource, object);
                if let Some(listed) = listed {
                    listed.insert(reading.key.clone(), reading);
                } else {
                    events.send(Event::Changed(Box::new(reading))).await?;
                }
                version
            }
            WatchEvent::Deleted(object) => {
                let key = followed::key(self.kind, &object);
                if let Some(listed) = listed {
                    listed.remove(&key);
                } else {
                    events.send(Event::Gone(key)).await?;
                }
                version_of(&object)
            }
        };
        // A watch cannot continue from an incomplete list.
        if listed.is_none() {
            self.version = version;
        }
        Ok(())
    }
}

/// Reads the objects of a resource that a label selector matches, page by page. Returns them with the version of the
/// list. An empty selector matches all objects. Only the results of `read` are stored, not the pages.
pub(super) async fn read_pages<T>(
    connection: &Connection,
    resource: &Resource,
    labels: &str,
    read: impl Fn(Value) -> T,
) -> kube::Result<(Vec<T>, String)> {
    let mut all = Vec::new();
    let mut params = ListParams::default().limit(PAGE);
    params.label_selector = Some(labels.to_owned()).filter(|labels| !labels.is_empty());
    loop {
        let request = Request::new(resource.path.clone()).list(&params);
        let page = connection.ask(request.map_err(kube::Error::BuildRequest)?).await;
        let page: Page = match page {
            Err(error) if is_too_long(&error) && params.limit > Some(1) => {
                params.limit = params.limit.map(|limit| (limit / FEWER).max(1));
                continue;
            }
            page => page?,
        };
        let items = page.items.unwrap_or_default().into_iter();
        all.extend(items.map(&read));
        match page.metadata.continues.filter(|next| !next.is_empty()) {
            Some(next) => params.continue_token = Some(next),
            None => return Ok((all, page.metadata.resource_version)),
        }
    }
}

/// Returns whether the server does not stream lists: it reports an invalid or forbidden field of the request
/// (Kubernetes, feature gate `WatchList`).
fn refuses_streams(error: &kube::Error) -> bool {
    matches!(code(error), Some(400 | 422))
}

fn version_of(object: &Value) -> Option<String> {
    object["metadata"]["resourceVersion"].as_str().map(ToOwned::to_owned)
}

/// A page of a list.
#[derive(Deserialize)]
struct Page {
    metadata: PageMetadata,
    items: Option<Vec<Value>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct PageMetadata {
    resource_version: String,
    #[serde(rename = "continue")]
    continues: Option<String>,
}

/// Returns the versions of a kind's CRDs.
fn versions(kind: Kind, all: &Definitions) -> Vec<String> {
    resource::definitions(kind.into()).filter_map(|(_, name)| all.get(&name).cloned()).collect()
}

/// Tracks the server's CRDs of `kinds`, as long as the future is polled.
pub(super) async fn watch_installed(
    connection: &Connection,
    kinds: &[Kind],
    installed: &watch::Sender<Definitions>,
) {
    let mut pause = Pause::default();
    loop {
        // The watch begins at any version, so the server first sends the existing CRDs.
        let params = WatchParams::default().timeout(WATCH);
        let request = Request::new(resource::DEFINITIONS).watch_metadata(&params, "0");
        if let Ok(request) = request
            && let Ok(mut lines) = connection.watch(request).await
        {
            while let Ok(Ok(Some(event))) = timeout(SILENCE, lines.next()).await {
                let (object, is_there) = match event {
                    WatchEvent::Added(object) | WatchEvent::Modified(object) => (object, true),
                    WatchEvent::Deleted(object) => (object, false),
                    WatchEvent::Bookmark(_) | WatchEvent::Error(_) => continue,
                };
                pause = Pause::default();
                let name = object["metadata"]["name"].as_str().unwrap_or_default();
                let mut names = kinds.iter().flat_map(|kind| resource::definitions((*kind).into()));
                if !names.any(|(_, it)| it == name) {
                    continue;
                }
                let version = version_of(&object).filter(|_| is_there);
                installed.send_if_modified(|all| {
                    let before = match version.clone() {
                        Some(version) => all.insert(name.to_owned(), version),
                        None => all.remove(name),
                    };
                    before != version
                });
            }
        }
        pause.wait().await;
    }
}
