//! The start of an agent until it has read the objects: it takes the socket, and answers requests with the reason why it
//! waits.

use std::time::{Duration, Instant, SystemTime};

use tokio::sync::{mpsc, watch};

use manx_api::{ErrorKind, Failure};
use manx_datastore::Waits;
use manx_linux::autodetect;
use manx_linux::netlink::Netlink;
use manx_linux::socket::{self, SocketLock};
use manx_observe::health::Health;

use crate::error::Error;
use crate::node::{Inputs, View};
use crate::node_address::{NodeAddresses, WAITING};
use crate::server::{Outcome, PendingRequest, Server};
use crate::settings::Settings;

/// The time between two attempts to take the socket of an agent that is still there.
const RETRY: Duration = Duration::from_millis(10);

/// Takes the socket, which only one agent of a node has at a time. With `standby` this waits until the other agent ends.
/// Otherwise it waits only as long as a killed agent takes to end.
pub(crate) async fn listen(settings: &Settings) -> Result<Server, Error> {
    let start = Instant::now();
    let mut waits = false;
    loop {
        match SocketLock::take(&settings.socket).and_then(Server::listen) {
            Err(socket::Error::InUse(path))
                if settings.standby || start.elapsed() < socket::patience(&path) =>
            {
                if !waits && settings.standby {
                    tracing::info!(
                        socket = %path.display(),
                        "another agent listens there: this one takes its place when it ends"
                    );
                }
                waits = true;
                tokio::time::sleep(RETRY).await;
            }
            taken => return Ok(taken?),
        }
    }
}

/// Reads the objects, and finds the node's address. Until that is done, requests and probes are answered with the reason
/// why the agent waits.
pub(crate) async fn open(
    settings: &Settings,
    inbox: &mut mpsc::Receiver<PendingRequest>,
    health: &watch::Sender<Health>,
) -> Result<(Inputs, View, NodeAddresses), Error> {
    let report = |waits: String| {
        health.send_replace(Health::Starting(Some(waits)));
    };
    let opened = async {
        let mut inputs = Inputs::open(settings, |waits| report(sentence(waits))).await?;
        let addresses = find_addresses(settings, &mut inputs, report).await?;
        let view = View::open(settings, &mut inputs)?;
        Ok((inputs, view, addresses))
    };
    tokio::pin!(opened);
    loop {
        tokio::select! {
            biased;
            opened = &mut opened => return opened,
            Some(PendingRequest { answer, .. }) = inbox.recv() => {
                let waits = match &*health.borrow() {
                    Health::Starting(Some(waits)) => waits.clone(),
                    _ => "it reads the objects for the first time".to_owned(),
                };
                let message = format!("the agent has just started, and nothing passes: {waits}");
                let failure = Failure { kind: ErrorKind::Starting, message };
                // This fails if the caller has disconnected.
                let _ = answer.send(Outcome::Reply(Err(failure)));
            }
        }
    }
}

/// Finds the node's address, and waits until the Node's object has it. `reports` gets the reason for waiting.
async fn find_addresses(
    settings: &Settings,
    inputs: &mut Inputs,
    reports: impl Fn(String),
) -> Result<NodeAddresses, Error> {
    let mut addresses = NodeAddresses::new(settings);
    let netlink = Netlink::open()?;
    let mut told = String::new();
    loop {
        let facts = autodetect::read(&netlink, autodetect::methods(addresses.wanted())).await?;
        let annotations = addresses.look(facts, inputs.contents(), Instant::now());
        let warnings = inputs.source.warnings();
        let Some(waits) = addresses.waits(inputs.contents(), &warnings) else { break };
        if waits != told {
            if annotations.is_some() {
                tracing::info!(waits, "the node has another address than its object says");
            } else {
                tracing::warn!(waits, "the agent does not start yet");
            }
            told.clone_from(&waits);
        }
        reports(waits);
        if let Some(annotations) = annotations {
            inputs.source.annotate_node(annotations);
        }
        tokio::select! {
            changes = inputs.source.next() => inputs.add_changes(changes),
            () = tokio::time::sleep(WAITING) => {}
        }
    }
    addresses.start(inputs.contents());
    Ok(addresses)
}

fn sentence(Waits { server, since, reason, at_most }: &Waits) -> String {
    let (since, at_most) = (clock(*since), at_most.as_millis().div_ceil(1000));
    let reason = reason.as_deref().unwrap_or("it has not answered yet");
    format!(
        "it waits for the API server at {server} since {since}: {reason}; it tries again within {at_most} s"
    )
}

fn clock(time: SystemTime) -> humantime::Rfc3339Timestamp {
    humantime::format_rfc3339_seconds(time)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_waited_for_is_told_with_the_reason() {
        let mut waits = Waits {
            server: "https://10.0.0.1:6443/".to_owned(),
            since: SystemTime::UNIX_EPOCH + Duration::from_secs(1_700_000_000),
            reason: None,
            at_most: Duration::from_secs(15),
        };
        insta::assert_snapshot!(sentence(&waits), @"it waits for the API server at https://10.0.0.1:6443/ since 2023-11-14T22:13:20Z: it has not answered yet; it tries again within 15 s");
        waits.reason = Some("connection refused".to_owned());
        insta::assert_snapshot!(sentence(&waits), @"it waits for the API server at https://10.0.0.1:6443/ since 2023-11-14T22:13:20Z: connection refused; it tries again within 15 s");
    }
}
