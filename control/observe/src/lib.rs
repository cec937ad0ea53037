//! An agent's health and metrics by HTTP, for kubelet's probes and for Prometheus.
//!
//! The layers, in order:
//! - [`health`]: what is known of the agent, and what follows for `/liveness` and `/readiness`.
//! - [`observation`]: the figures of an agent at one time.
//! - `rules`: the rules that have a series of their own: a bounded number.
//! - [`latency`]: how long changes take.
//! - [`metrics`]: figures as Prometheus' text.
//! - `pages`: which page has which text.
//! - `server`: connections, bounded in number, time and size.
//!
//! The pages are served by a thread of their own, which has no part in the agent's work. The agent tells it its health,
//! and is asked for its figures, once a second at most.

pub mod health;
pub mod latency;
pub mod metrics;
pub mod observation;
mod pages;
mod rules;
mod server;
#[cfg(test)]
mod tests;

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::thread;

use tokio::sync::{mpsc, watch};

use self::health::Health;
use self::latency::Latencies;
use self::observation::Question;
use self::pages::{Pages, Site};

/// Where pages are served. What has no address is off.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Addresses {
    /// `/liveness` and `/readiness`.
    pub health: Option<SocketAddr>,
    /// `/metrics`.
    pub metrics: Option<SocketAddr>,
}

/// Why there are no pages.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The address cannot be listened at.
    #[error("the agent cannot listen at {address}: {source}; name another address by {flag}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// The setting.
        flag: &'static str,
        /// Why.
        source: io::Error,
    },
    /// The thread cannot be started.
    #[error("the thread that serves health and metrics cannot be started: {0}")]
    Thread(io::Error),
}

/// The agent's end. Dropping it ends the pages.
#[derive(Debug)]
pub struct Observer {
    /// Takes the agent's health.
    pub health: watch::Sender<Health>,
    /// Asks for the agent's figures. Nothing comes if metrics are off.
    pub questions: mpsc::Receiver<Question>,
    /// Takes times.
    pub latencies: Latencies,
}

/// Listens, and serves pages from now on. The thread runs `give_up` first, to have no more rights than it needs.
///
/// # Errors
/// An address cannot be listened at, or there is no thread.
pub fn start(
    addresses: Addresses,
    give_up: impl FnOnce() -> io::Result<()> + Send + 'static,
) -> Result<Observer, Error> {
    let Addresses { health, metrics } = addresses;
    let sites = [
        (health, Site::Health, "--health-address (FELIX_HEALTHPORT)"),
        (metrics, Site::Metrics, "--metrics-address (FELIX_PROMETHEUSMETRICSPORT)"),
    ];
    let mut listeners = Vec::new();
    for (address, site, flag) in sites {
        let Some(address) = address else { continue };
        let failed = |source| Error::Listen { address, flag, source };
        let listener = TcpListener::bind(address).map_err(failed)?;
        listener.set_nonblocking(true).map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        tracing::info!(%address, pages = site.paths().join(" "), "serves");
        listeners.push((listener, site));
    }
    let (tell, health) = watch::channel(Health::default());
    let (ask, questions) = mpsc::channel(1);
    let latencies = Latencies::default();
    let observer = Observer { health: tell, questions, latencies: latencies.clone() };
    if listeners.is_empty() {
        return Ok(observer);
    }
    let ended = health.clone();
    let pages = Arc::new(Pages::new(health, ask, latencies));
    let run = move || {
        let served = give_up().and_then(|()| server::serve(listeners, &pages, ended));
        if let Err(error) = served {
            tracing::error!(%error, "health and metrics are not served");
        }
    };
    let thread = thread::Builder::new().name("observe".to_owned()).spawn(run);
    thread.map(|_| observer).map_err(Error::Thread)
}
