//! A source of objects: their present state, and an event for each change.

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

/// A source of objects, the same to its reader for every kind of source.
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
    /// The time when the last change was seen.
    changed: Option<Instant>,
}

impl Source {
    /// Reads a directory. Call within a tokio runtime.
    ///
    /// # Errors
    /// There is no such directory.
    pub fn open_directory(directory: &Path) -> Result<Self, SourceError> {
        if !directory.is_dir() {
            return Err(SourceError::NoDirectory(directory.to_owned()));
        }
        // Before the first reading, which then misses no change.
        let watcher = Watcher::new(directory);
        let mut store = Store::new(directory);
        store.refresh();
        let secrets = Secrets::new(NAMESPACE);
        Ok(Self::Directory(Box::new(Directory { store, watcher, secrets, changed: None })))
    }

    /// Follows an API server; see [`ApiServer::open`].
    ///
    /// # Errors
    /// `access` and the kubeconfig name no server.
    pub async fn open_api_server(
        access: Access,
        follower: Follower,
        told: impl Fn(&Waits),
    ) -> Result<Self, SourceError> {
        Ok(Self::ApiServer(Box::new(ApiServer::open(access, follower, told).await?)))
    }

    /// All objects, as of the last event.
    pub fn contents(&self) -> &Contents {
        match self {
            Self::Directory(directory) => directory.store.contents(),
            Self::ApiServer(server) => server.contents(),
        }
    }

    /// All objects, shared: the caller may read them while the source continues.
    pub fn shared(&self) -> Arc<Contents> {
        match self {
            Self::Directory(directory) => directory.store.shared(),
            Self::ApiServer(server) => server.shared(),
        }
    }

    /// Gives a pod its addresses on this node, or takes them away. They are in force until the pod's object names its
    /// addresses: without an address it is no endpoint and has no policy, and kubelet reports addresses only after the
    /// pod is attached. Returns the differences. A directory's objects have their addresses already.
    pub fn assign(&mut self, pod: ObjectKey, addresses: Option<Vec<IpAddr>>) -> Option<Changes> {
        match self {
            Self::Directory(_) => None,
            Self::ApiServer(server) => server.assign(pod, addresses),
        }
    }

    /// Reports the problems of objects to their authors: an API server gets Kubernetes Events; a directory has no place
    /// for them. `problems`: all present problems.
    pub fn report(&mut self, problems: &[Problem]) {
        match self {
            Self::Directory(_) => {}
            Self::ApiServer(server) => server.report(problems),
        }
    }

    /// Tells people of something that has happened at the node: an API server gets a Kubernetes Event about the Node. One
    /// waits for each subject: a later one takes the place of an earlier one that is not written yet. A directory has no
    /// place for them.
    pub fn tell(&self, subject: String, happening: Happening) {
        if let Self::ApiServer(server) = self {
            server.tell(subject, happening);
        }
    }

    /// Queues a write to the Node: the network of its pods works. A directory is not written to.
    pub fn tell_network_up(&self) {
        if let Self::ApiServer(server) = self {
            server.tell_network_up();
        }
    }

    /// Writes to the Node that the network of its pods ends; waits for that at most a second.
    pub async fn tell_network_down(&self) {
        if let Self::ApiServer(server) = self {
            server.tell_network_down().await;
        }
    }

    /// Queues a write of annotations of the Node, which is tried until the server has them. A directory is not written to.
    pub fn annotate_node(&self, annotations: BTreeMap<&'static str, String>) {
        if let Self::ApiServer(server) = self {
            server.annotate_node(annotations);
        }
    }

    /// The host of the API server, a name or an address.
    pub fn server_host(&self) -> Option<&str> {
        match self {
            Self::Directory(_) => None,
            Self::ApiServer(server) => server.host(),
        }
    }

    /// Since when objects may be out of date, and why; `None`: they are not.
    pub fn stale(&self) -> Option<Stale> {
        match self {
            Self::Directory(_) => None,
            Self::ApiServer(server) => server.stale(),
        }
    }

    /// Whether changes of a kind are missed now, so that an object of it may exist and not be known.
    pub fn is_behind(&self, kind: Kind) -> bool {
        match self {
            Self::Directory(_) => false,
            Self::ApiServer(server) => server.is_behind(kind),
        }
    }

    /// Values of Secrets, which are apart from the objects: what is known of those that are wanted.
    pub fn secrets(&self) -> &Secrets {
        match self {
            Self::Directory(directory) => &directory.secrets,
            Self::ApiServer(server) => server.secrets(),
        }
    }

    /// Replaces the values of Secrets that are wanted.
    pub fn want_secrets(&self, keys: BTreeSet<SecretKey>) {
        self.secrets().want(keys);
        if let Self::Directory(directory) = self {
            directory.read_secrets();
        }
    }

    /// What people want to know of the node at the API server; `None`: a directory is not written to.
    pub fn node_statuses(&self) -> Option<&NodeStatuses> {
        match self {
            Self::Directory(_) => None,
            Self::ApiServer(server) => Some(server.node_statuses()),
        }
    }

    /// Further warnings to users: about state that is not kept, or that could not be written.
    pub fn warnings(&self) -> Vec<String> {
        match self {
            Self::Directory(_) => Vec::new(),
            Self::ApiServer(server) => server.warnings(),
        }
    }

    /// The time when the last change was received, before it was read.
    pub fn changed(&self) -> Option<Instant> {
        match self {
            Self::Directory(directory) => directory.changed,
            Self::ApiServer(server) => server.changed(),
        }
    }

    /// Reads a directory at once, and does not wait for its watcher. Returns the differences.
    #[cfg(feature = "testing")]
    pub fn refresh(&mut self) -> Option<Changes> {
        match self {
            Self::Directory(directory) => directory.store.refresh(),
            Self::ApiServer(_) => None,
        }
    }

    /// Waits for the next change, and returns it. [`Source::contents`] has it then. Dropping the future loses nothing.
    pub async fn next(&mut self) -> Changes {
        match self {
            Self::Directory(directory) => directory.next().await,
            Self::ApiServer(server) => server.next().await,
        }
    }
}

impl Directory {
    /// Reads the Secrets that are wanted.
    fn read_secrets(&self) {
        read_secrets(self.store.directory(), &self.secrets);
    }

    async fn next(&mut self) -> Changes {
        loop {
            self.watcher.changed().await;
            self.changed = Some(Instant::now());
            // Nothing is awaited from here on: a change that is read is returned.
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
