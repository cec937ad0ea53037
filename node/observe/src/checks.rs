//! The health checks of services (`healthCheckNodePort`): which are to be served where, and where they are.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;

/// The check of a Service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Check {
    /// The Service's namespace, which the API server lets be a DNS label.
    pub namespace: String,
    /// The Service's name, likewise.
    pub name: String,
    /// The Service's endpoints on this node that are ready.
    pub endpoints: usize,
}

/// The checks, each at its address and port of the node.
pub type Checks = BTreeMap<SocketAddr, Check>;

/// The agent's end. All copies share it.
#[derive(Debug, Clone, Default)]
pub struct ServiceChecks {
    wanted: watch::Sender<Checks>,
    listening: Listening,
}

/// Where the thread of the pages listens for checks.
#[derive(Debug, Clone, Default)]
pub(crate) struct Listening(Arc<Mutex<BTreeSet<SocketAddr>>>);

impl Listening {
    pub(crate) fn all(&self) -> MutexGuard<'_, BTreeSet<SocketAddr>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ServiceChecks {
    /// Serves these checks and no others, each as soon as no other process has its port.
    pub fn serve(&self, checks: Checks) {
        self.wanted.send_if_modified(|wanted| {
            let differs = *wanted != checks;
            *wanted = checks;
            differs
        });
    }

    /// Where checks are served now, those that are about to end among them.
    pub fn served(&self) -> BTreeSet<SocketAddr> {
        self.listening.all().clone()
    }

    /// The thread's end.
    pub(crate) fn ends(&self) -> (watch::Receiver<Checks>, Listening) {
        (self.wanted.subscribe(), self.listening.clone())
    }
}
