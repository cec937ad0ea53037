//! A source of objects. It has their current state, and returns each change.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use manx_objects::contents::{Changes, Contents};
use manx_objects::object::bgp::SecretKey;
use manx_objects::object::{Kind, ObjectKey};
use manx_objects::problem::Problem;

use crate::api_server::{Access, ApiServer};
use crate::directory::{STANDS, Store, read_secrets};
use crate::error::SourceError;
use crate::followed::{Follower, Stale, Waits};
use crate::happening::Happening;
use crate::node_status::NodeStatuses;
use crate::secrets::{NAMESPACE, Secrets};
use crate::watch::Watcher;

/// A source of objects. All types of source look the same to their reader.
#[derive(Debug)]
pub enum Source {
    /// A directory of manifests.
    Directory(Box<Directory>),
    /// An API server.
    ApiServer(Box<ApiServer>),
}

/// A directory that is read again when it changes.
#[derive(Debug)]
pub struct Directory {
    store: Store,
    watcher: Watcher,
    secrets: Secrets,
    /// The time when the last change was noticed.
    changed: Option<Instant>,
}

impl Source {
    /// Reads a directory. This must be called within a tokio runtime.
    ///
    /// # Errors
    /// Returns an error if the directory does not exist.
    pub fn open_directory(directory: &Path) -> Result<Self, SourceError> {
        if !directory.is_dir() {
            return Err(SourceError::NoDirectory(directory.to_owned()));
        }
        // The watcher starts before the first reading, so that no change is missed.
        let watcher = Watcher::new(directory);
        let mut store = Store::new(directory);
        store.refresh();
        let secrets = Secrets::new(NAMESPACE);
        Ok(Self::Directory(Box::new(Directory { store, watcher, secrets, changed: None })))
    }

    /// Follows an API server; see [`ApiServer::open`].
    ///
    /// # Errors
    /// Returns an error if `access` and the kubeconfig name no server.
    pub async fn open_api_server(
        access: Access,
        follower: Follower,
        told: impl Fn(&Waits),
    ) -> Result<Self, SourceError> {
        Ok(Self::ApiServer(Box::new(ApiServer::open(access, follower, told).await?)))
    }

    /// Returns all objects, as of the last event.
    pub fn contents(&self) -> &Contents {
        match self {
            Self::Directory(directory) => directory.store.contents(),
            Self::ApiServer(server) => server.contents(),
        }
    }

    /// Returns all objects as a shared value. The caller may read it while the source continues.
    pub fn shared(&self) -> Arc<Contents> {
        match self {
            Self::Directory(directory) => directory.store.shared(),
            Self::ApiServer(server) => server.shared(),
        }
    }

    /// Assigns addresses on this node to a pod, or withdraws them. They are used until the pod's object contains
    /// addresses. This is needed because a pod without an address is not an endpoint and has no policy, and kubelet
    /// reports addresses only after the pod is attached. Returns the differences. For a directory this does nothing,
    /// because its objects already contain their addresses.
    pub fn assign(&mut self, pod: ObjectKey, addresses: Option<Vec<IpAddr>>) -> Option<Changes> {
        match self {
            Self::Directory(_) => None,
            Self::ApiServer(server) => server.assign(pod, addresses),
        }
    }

    /// Reports the problems of objects to their authors. An API server gets Kubernetes Events; a directory cannot store
    /// them. `problems` contains all current problems.
    pub fn report(&mut self, problems: &[Problem]) {
        match self {
            Self::Directory(_) => {}
            Self::ApiServer(server) => server.report(problems),
        }
    }

    /// Reports something that happened at the node. An API server gets a Kubernetes Event about the Node. Only one
    /// Event waits for each subject: a later one replaces an earlier one that is not written yet. A directory cannot
    /// store Events.
    pub fn tell(&self, subject: String, happening: Happening) {
        if let Self::ApiServer(server) = self {
            server.tell(subject, happening);
        }
    }

    /// Queues a write to the Node that says that the network of its pods works. Nothing is written to a directory.
    pub fn tell_network_up(&self) {
        if let Self::ApiServer(server) = self {
            server.tell_network_up();
        }
    }

    /// Writes to the Node that the network of its pods stops. Waits for the write for at most one second.
    pub async fn tell_network_down(&self) {
        if let Self::ApiServer(server) = self {
            server.tell_network_down().await;
        }
    }

    /// Queues a write of annotations of the Node. It is tried until it succeeds. Nothing is written to a directory.
    pub fn annotate_node(&self, annotations: BTreeMap<&'static str, String>) {
        if let Self::ApiServer(server) = self {
            server.annotate_node(annotations);
        }
    }

    /// Returns the host of the API server, which is a name or an address.
    pub fn server_host(&self) -> Option<&str> {
        match self {
            Self::Directory(_) => None,
            Self::ApiServer(server) => server.host(),
        }
    }

    /// Returns since when and why objects may be out of date, or `None` if they are up to date.
    pub fn stale(&self) -> Option<Stale> {
        match self {
            Self::Directory(_) => None,
            Self::ApiServer(server) => server.stale(),
        }
    }

    /// Returns whether changes of a kind may be missed now, so that an object of the kind may exist but not be known.
    pub fn is_behind(&self, kind: Kind) -> bool {
        match self {
            Self::Directory(_) => false,
            Self::ApiServer(server) => server.is_behind(kind),
        }
    }

    /// Returns the states of the requested Secret values, which are separate from the objects.
    pub fn secrets(&self) -> &Secrets {
        match self {
            Self::Directory(directory) => &directory.secrets,
            Self::ApiServer(server) => server.secrets(),
        }
    }

    /// Replaces the Secret values that are requested.
    pub fn want_secrets(&self, keys: BTreeSet<SecretKey>) {
        self.secrets().want(keys);
        if let Self::Directory(directory) = self {
            directory.read_secrets();
        }
    }

    /// Returns the status objects of the node at the API server, or `None` for a directory, because nothing is written
    /// to it.
    pub fn node_statuses(&self) -> Option<&NodeStatuses> {
        match self {
            Self::Directory(_) => None,
            Self::ApiServer(server) => Some(server.node_statuses()),
        }
    }

    /// Returns further warnings for users: about state that is not stored or could not be written.
    pub fn warnings(&self) -> Vec<String> {
        match self {
            Self::Directory(_) => Vec::new(),
            Self::ApiServer(server) => server.warnings(),
        }
    }

    /// Returns the time when the last change was received, before it was read.
    pub fn changed(&self) -> Option<Instant> {
        match self {
            Self::Directory(directory) => directory.changed,
            Self::ApiServer(server) => server.changed(),
        }
    }

    /// Reads a directory immediately, without waiting for its watcher. Returns the differences.
    #[cfg(feature = "testing")]
    pub fn refresh(&mut self) -> Option<Changes> {
        match self {
            Self::Directory(directory) => directory.store.refresh(),
            Self::ApiServer(_) => None,
        }
    }

    /// Waits for the next change, and returns it. [`Source::contents`] then contains it. If the future is dropped,
    /// nothing is lost.
    pub async fn next(&mut self) -> Changes {
        match self {
            Self::Directory(directory) => directory.next().await,
            Self::ApiServer(server) => server.next().await,
        }
    }
}

impl Directory {
    /// Reads the requested Secrets.
    fn read_secrets(&self) {
        read_secrets(self.store.directory(), &self.secrets);
    }

    async fn next(&mut self) -> Changes {
        loop {
            self.watcher.changed().await;
            self.changed = Some(Instant::now());
            // There is no await from here on, so a change that is read is always returned.
            let changes = self.store.refresh();
            self.read_secrets();
            if self.store.has_unsettled_file() {
                self.watcher.rescan_within(STANDS);
            }
            if let Some(changes) = changes {
                return changes;
            }
        }
    }
}
