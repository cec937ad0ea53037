//! Leader election: the process that has the Lease acts, and stops at once when it cannot renew it.
//!
//! Its work is then dropped in the middle. That has the same effect as a crash, and any other
//! process may continue: each write is complete by itself, and names the revision that it replaces.

use std::cell::Cell;
use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher as _, Hasher as _};
use std::io;
use std::time::{Duration, Instant};

use manx_block_ipam::garbage::Settings;
use manx_datastore::api_server::{Access, Writer};
use manx_datastore::{Candidate, Terms};
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::{sleep, sleep_until, timeout};

use super::{rounds, services};
use crate::Error;

/// The name of the Lease.
const LEASE: &str = "manx-controllers";
/// The longest time to give the Lease back. kubelet waits longer before it kills the process.
const LAST: Duration = Duration::from_secs(3);

/// The work of the leader.
#[derive(Debug, Clone, Copy)]
pub(super) struct Work {
    pub(super) garbage: Settings,
    pub(super) balancing: services::Balancing,
}

/// Takes the Lease whenever it is free and does the work, until a signal comes.
pub(super) async fn serve(access: &Access, namespace: &str, work: Work) -> Result<(), Error> {
    let failed = |error: io::Error| Error::Failed(format!("no signals: {error}"));
    let mut terminate = signal(SignalKind::terminate()).map_err(failed)?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(failed)?;
    // Wrong settings end the command at once.
    open(access).await.map_err(Error::Environment)?;
    let identity = identity();
    tracing::info!(
        identity,
        "waits for the Lease {namespace}/{LEASE}; grace time {}, {} steps a round",
        humantime::format_duration(work.garbage.grace),
        work.garbage.limit
    );
    let mut candidate = Candidate::new(namespace, LEASE, identity.clone(), Terms::default());
    tokio::select! {
        biased;
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
        () = lead_for_ever(access, &mut candidate, &identity, work) => {}
    }
    if candidate.until().is_some() {
        let given_back = timeout(LAST, async {
            let writer = open(access).await?;
            candidate.give_back(&writer).await.map_err(|error| error.to_string())
        });
        match given_back.await {
            Ok(Ok(())) => tracing::info!("ends, and has given the Lease back"),
            Ok(Err(reason)) => {
                tracing::warn!(reason, "ends; the Lease is free when its time is over");
            }
            Err(_elapsed) => tracing::warn!("ends; the Lease is free when its time is over"),
        }
    }
    Ok(())
}

/// A name that is unique to this process: the host's name, which is the pod's or the node's, and a
/// random number.
fn identity() -> String {
    let host = nix::unistd::gethostname().ok().and_then(|name| name.into_string().ok());
    let random = RandomState::new().build_hasher().finish();
    format!("{}_{random:016x}", host.unwrap_or_default())
}

async fn open(access: &Access) -> Result<Writer, String> {
    Writer::open(access).await.map_err(|error| error.to_string())
}

async fn lead_for_ever(access: &Access, candidate: &mut Candidate, identity: &str, work: Work) {
    let mut lease = Lease { access, writer: None, told: String::new() };
    loop {
        while !lease.attempt(candidate).await {
            sleep(Terms::default().retry).await;
        }
        tracing::info!("leads");
        let until = Cell::new(candidate.until());
        let leads = || until.get().is_some_and(|until| Instant::now() < until);
        tokio::select! {
            biased;
            () = keep(&mut lease, candidate, &until) => {}
            () = rounds::make(access, work.garbage, &leads) => {}
            () = services::serve(access, work.balancing, identity, &leads) => {}
        }
        tracing::warn!("leads no longer: the Lease was not renewed in time");
    }
}

/// Renews the Lease until the term of the last renewal is over.
async fn keep(lease: &mut Lease<'_>, candidate: &mut Candidate, until: &Cell<Option<Instant>>) {
    while let Some(end) = until.get().filter(|end| Instant::now() < *end) {
        sleep(Terms::default().retry).await;
        tokio::select! {
            biased;
            () = sleep_until(end.into()) => return,
            _renewed = lease.attempt(candidate) => {}
        }
        until.set(candidate.until());
    }
}

/// The Lease at the server.
struct Lease<'a> {
    access: &'a Access,
    /// The connection. `None`: the last attempt has failed. A new connection reads certificates and
    /// tokens again.
    writer: Option<Writer>,
    /// The last failure that was logged.
    told: String,
}

impl Lease<'_> {
    async fn attempt(&mut self, candidate: &mut Candidate) -> bool {
        let attempted = async {
            let writer = match self.writer.take() {
                Some(writer) => writer,
                None => open(self.access).await?,
            };
            let has_it = candidate.attempt(&writer).await.map_err(|error| error.to_string())?;
            Ok::<_, String>((has_it, writer))
        };
        match attempted.await {
            Ok((has_it, writer)) => {
                self.writer = Some(writer);
                self.told.clear();
                has_it
            }
            Err(reason) => {
                if reason != self.told {
                    tracing::warn!(reason, "the Lease cannot be read or written: trying again");
                    self.told = reason;
                }
                false
            }
        }
    }
}
