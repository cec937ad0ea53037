//! The start of an agent until it has read the objects: it takes the socket, and answers requests with what it waits for.

use std::time::{Duration, Instant, SystemTime};

use tokio::sync::{mpsc, watch};

use manx_api::{ErrorKind, Failure};
use manx_datastore::Waits;
use manx_linux::socket::{self, SocketLock};
use manx_observe::health::Health;

use crate::error::Error;
use crate::node::{Inputs, View};
use crate::server::{Outcome, PendingRequest, Server};
use crate::settings::Settings;

/// The time between two attempts to take the socket of an agent that is still there.
const RETRY: Duration = Duration::from_millis(10);

/// Takes the socket; one agent of a node has it at a time. With `standby` this waits until the other agent ends, otherwise
/// only as long as a killed one takes to end.
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

/// Reads the objects. Until that is done, requests and probes are answered with what the agent waits for.
pub(crate) async fn open(
    settings: &Settings,
    inbox: &mut mpsc::Receiver<PendingRequest>,
    health: &watch::Sender<Health>,
) -> Result<(Inputs, View), Error> {
    let report_wait = |waits: &Waits| {
        health.send_replace(Health::Starting(Some(sentence(waits))));
    };
    let opened = async {
        let mut inputs = Inputs::open(settings, report_wait).await?;
        let view = View::open(settings, &mut inputs)?;
        Ok((inputs, view))
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
                // This fails if the caller has gone, and then nobody waits for the answer.
                let _ = answer.send(Outcome::Reply(Err(failure)));
            }
        }
    }
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
