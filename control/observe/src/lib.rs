//! An agent's health and metrics by HTTP: for kubelet's probes at a socket that only the agent's user can listen at, for
//! people and Prometheus at addresses that anybody may have taken before.
//!
//! The layers, in order:
//! - [`health`]: what is known of the agent, and what follows for `/liveness` and `/readiness`.
//! - [`observation`]: the figures of an agent at one time.
//! - `rules`: the rules that have a series of their own: a bounded number.
//! - [`latency`]: how long changes take.
//! - [`metrics`]: figures as Prometheus' text.
//! - [`served`]: which pages are served where they are to be.
//! - `pages`: which page has which text.
//! - `server`: connections, bounded in number, time and size.
//!
//! The pages are served by a thread of their own, which has no part in the agent's work. The agent tells it its health,
//! and is asked for its figures, once a second at most. Nothing here ends the agent: an address that another process has
//! is tried again and again.

pub mod health;
pub mod latency;
pub mod metrics;
pub mod observation;
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

use self::health::Health;
use self::latency::Latencies;
use self::observation::Question;
use self::pages::{Pages, Site};
use self::served::Served;
use self::server::Place;

/// Where pages are served by TCP. What has no address is off.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Addresses {
    /// `/liveness` and `/readiness`.
    pub health: Option<SocketAddr>,
    /// `/metrics`.
    pub metrics: Option<SocketAddr>,
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
    /// Which pages are served.
    pub served: Served,
}

/// Serves pages from now on: health at `socket`, and what has an address there as soon as the address is free. The
/// thread runs `give_up` first, to have no more rights than it needs.
pub fn start(
    Addresses { health, metrics }: Addresses,
    socket: Option<UnixListener>,
    give_up: impl FnOnce() -> io::Result<()> + Send + 'static,
) -> Observer {
    let health = health.map(|address| (Place::Address(address), Site::Health));
    let metrics = metrics.map(|address| (Place::Address(address), Site::Metrics));
    let socket = socket.map(|socket| (Place::Socket(socket), Site::Health));
    let places: Vec<_> = socket.into_iter().chain(health).chain(metrics).collect();
    let (tell, health) = watch::channel(Health::default());
    let (ask, questions) = mpsc::channel(1);
    let (latencies, served) = (Latencies::default(), Served::default());
    let observer = Observer { health: tell, questions, latencies, served };
    if places.is_empty() {
        return observer;
    }
    let (ended, served) = (health.clone(), observer.served.clone());
    let pages = Arc::new(Pages::new(health, ask, observer.latencies.clone(), served.clone()));
    let run = move || {
        let done = give_up().and_then(|()| server::serve(places, &pages, &served, ended));
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
