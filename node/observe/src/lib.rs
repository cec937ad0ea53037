//! An agent's health and metrics by HTTP. Kubelet's probes use a socket at which only the agent's user can listen. People,
//! Prometheus and load balancers use addresses that other processes may already have.
//!
//! The layers, in order:
//! - [`health`]: the agent's health, and the answers to `/liveness` and `/readiness`.
//! - [`agent_metrics`]: the metrics of an agent at one time.
//! - `rules`: the rules that have their own series: a bounded number.
//! - [`latency`]: the latencies of changes.
//! - [`metrics`]: metrics in Prometheus' text format.
//! - [`served`]: whether each page is served at its address.
//! - [`checks`]: the health checks of services, which are added and removed with the services.
//! - `pages`: the text of each page.
//! - `check_server`: the listening sockets of these checks.
//! - `server`: connections, bounded in number, time and size.
//!
//! A separate thread serves the pages and does none of the agent's work. The agent reports its health to it, and the thread
//! asks for the agent's metrics once a second at most. No error here ends the agent. If another process uses an address,
//! the thread tries again and again.

pub mod agent_metrics;
mod check_server;
pub mod checks;
mod connections;
pub mod health;
pub mod latency;
pub mod metrics;
mod pages;
mod rules;
pub mod served;
mod server;
#[cfg(test)]
mod tests;

use std::io;
use std::net::SocketAddr;
use std::os::unix::net::UnixListener;
use std::sync::Arc;
use std::thread;

use tokio::sync::{mpsc, watch};

use self::agent_metrics::MetricsRequest;
use self::checks::ServiceChecks;
use self::health::Health;
use self::latency::Latencies;
use self::pages::{Pages, Site};
use self::served::Served;
use self::server::Place;

/// The TCP addresses of pages. Pages without an address are off.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Addresses {
    /// `/liveness` and `/readiness`.
    pub health: Option<SocketAddr>,
    pub metrics: Option<SocketAddr>,
    /// `/healthz` and `/livez`, as kube-proxy serves them.
    pub proxy: Option<SocketAddr>,
}

/// The agent's end of the connection to the pages. Dropping it ends the pages.
#[derive(Debug)]
pub struct Observer {
    /// The channel for the agent's health.
    pub health: watch::Sender<Health>,
    /// The requests for the agent's metrics. There are none if metrics are off.
    pub metrics_requests: mpsc::Receiver<MetricsRequest>,
    /// The latencies that the agent records.
    pub latencies: Latencies,
    /// The state of each page.
    pub served: Served,
    /// The health checks of services.
    pub checks: ServiceChecks,
}

/// Serves the pages: health at `socket`, the pages with an address at that address as soon as it is free, and the health
/// checks of services. The thread first runs `drop_privileges`, to drop rights that it does not need.
pub fn start(
    Addresses { health, metrics, proxy }: Addresses,
    socket: Option<UnixListener>,
    drop_privileges: impl FnOnce() -> io::Result<()> + Send + 'static,
) -> Observer {
    let health = health.map(|address| (Place::Address(address), Site::Health));
    let metrics = metrics.map(|address| (Place::Address(address), Site::Metrics));
    let socket = socket.map(|socket| (Place::Socket(socket), Site::Health));
    let proxy = proxy.map(|address| (Place::Address(address), Site::Proxy));
    let places = socket.into_iter().chain(health).chain(metrics).chain(proxy).collect();
    let (tell, health) = watch::channel(Health::default());
    let (ask, metrics_requests) = mpsc::channel(1);
    let (latencies, served) = (Latencies::default(), Served::default());
    let checks = ServiceChecks::default();
    let observer = Observer { health: tell, metrics_requests, latencies, served, checks };
    let (ended, served) = (health.clone(), observer.served.clone());
    let (checks, latencies) = (observer.checks.ends(), observer.latencies.clone());
    let pages = Arc::new(Pages::new(health, ask, latencies, served.clone(), checks.0.clone()));
    let checks = check_server::follow(checks, Arc::clone(&pages), served.clone());
    let run = move || {
        let done =
            drop_privileges().and_then(|()| server::serve(places, &pages, &served, checks, ended));
        if let Err(error) = done {
            served.fail("health and metrics", &format!("not served: {error}"));
        }
    };
    let thread = thread::Builder::new().name("observe".to_owned()).spawn(run);
    if let Err(error) = thread {
        let reason = format!("not served, because there is no thread for them: {error}");
        observer.served.fail("health and metrics", &reason);
    }
    observer
}
