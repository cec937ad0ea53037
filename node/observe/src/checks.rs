//! The health checks of services (`healthCheckNodePort`): the wanted ones, and the addresses where they are served.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;

/// The check of a Service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Check {
    /// The Service's namespace. The API server ensures that it is a DNS label.
    pub namespace: String,
    /// The Service's name, also a DNS label.
    pub name: String,
    /// The Service's endpoints on this node that are ready.
    pub endpoints: usize,
}

/// The checks, each at its address and port of the node.
pub type Checks = BTreeMap<SocketAddr, Check>;

/// The agent's end of the channel. All copies share it.
#[derive(Debug, Clone, Default)]
pub struct ServiceChecks {
    wanted: watch::Sender<Checks>,
    listening: Listening,
}

/// The addresses at which the thread of the pages listens for checks.
#[derive(Debug, Clone, Default)]
pub(crate) struct Listening(Arc<Mutex<BTreeSet<SocketAddr>>>);

impl Listening {
    pub(crate) fn all(&self) -> MutexGuard<'_, BTreeSet<SocketAddr>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ServiceChecks {
    /// Serves exactly these checks, each as soon as no other process uses its port.
    pub fn serve(&self, checks: Checks) {
        self.wanted.send_if_modified(|wanted| {
            let differs = *wanted != checks;
            *wanted = checks;
            differs
        });
    }

    /// The addresses where checks are served now, including checks that are about to end.
    pub fn served(&self) -> BTreeSet<SocketAddr> {
        self.listening.all().clone()
    }

    /// The thread's end of the channel.
    pub(crate) fn ends(&self) -> (watch::Receiver<Checks>, Listening) {
        (self.wanted.subscribe(), self.listening.clone())
    }
}
