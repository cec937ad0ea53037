//! Listens at the addresses of the wanted health checks of services.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;

use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::checks::{Check, Checks, Listening};
use crate::pages::{Pages, Subject};
use crate::served::Served;
use crate::server::{Listener, RETRY, accept, reason};

/// The name of these pages in sentences, and in the label of a metric.
const NAME: &str = "service-checks";
/// The most connections to one address and port at one time. The node may have hundreds of such addresses, and a check is
/// short.
pub(crate) const CONNECTIONS: usize = 8;
/// A warning names at most this many addresses that are not served.
const NAMED: usize = 3;

/// Listens at the addresses of the wanted checks, until the agent has ended.
pub(crate) async fn follow(
    (mut wanted, listening): (watch::Receiver<Checks>, Listening),
    pages: Arc<Pages>,
    served: Served,
) {
    let mut tasks = BTreeMap::<SocketAddr, JoinHandle<()>>::new();
    loop {
        let now = wanted.borrow_and_update().clone();
        let gone: Vec<_> = tasks.keys().filter(|it| !now.contains_key(it)).copied().collect();
        for address in gone {
            let Some(task) = tasks.remove(&address) else { continue };
            task.abort();
            // The socket is closed when this returns. The result is always the error of an aborted task.
            let _ = task.await;
            listening.all().remove(&address);
        }
        let mut failed = Vec::new();
        for (address, Check { namespace, name, .. }) in &now {
            if tasks.contains_key(address) {
                continue;
            }
            match TcpListener::bind(address).await {
                Ok(listener) => {
                    let (subject, pages) = (Subject::ServiceCheck(*address), Arc::clone(&pages));
                    let listener = Listener::Tcp(listener);
                    let task = tokio::spawn(accept(listener, CONNECTIONS, subject, pages));
                    tasks.insert(*address, task);
                    listening.all().insert(*address);
                }
                Err(error) => failed.push(format!(
                    "not served at {address} for Service {namespace}/{name}: {}, or give the Service another healthCheckNodePort",
                    reason(&error)
                )),
            }
        }
        tell(&failed, now.is_empty(), &served);
        let changed = wanted.changed();
        let has_ended = if failed.is_empty() {
            changed.await.is_err()
        } else {
            matches!(timeout(RETRY, changed).await, Ok(Err(_)))
        };
        if has_ended {
            return;
        }
    }
}

/// Records whether all checks are served. It records nothing for an agent that has never had a check.
fn tell(failed: &[String], has_none: bool, served: &Served) {
    if failed.is_empty() {
        if !has_none || served.has_failed(NAME) {
            served.succeed(NAME);
        }
        return;
    }
    let named = failed.iter().take(NAMED).map(String::as_str).collect::<Vec<_>>().join("; ");
    let more = match failed.len().saturating_sub(NAMED) {
        0 => String::new(),
        more => format!("; {more} more are not served"),
    };
    served.fail(NAME, &format!("{named}{more}; this agent tries again each second"));
}
