//! Who sends and receives in a rig, and the process that does it for each.

use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::io;
use std::net::IpAddr;
use std::path::Path;
use std::process::{Child, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use manx_policy_compiler::model::Protocol;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::net::UnixStream;
use tokio::net::unix::OwnedReadHalf;
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;

use super::order::{Done, Order, Task, Word};
use super::plan::Port;
use super::supervisor::this_program;
use crate::api::PodName;

/// What a node and the outside host listen on.
pub const HOST_PORTS: [Port; 2] = [
    Port { protocol: Protocol::Tcp, number: 8080 },
    Port { protocol: Protocol::Udp, number: 8080 },
];

/// How long a party's servers may take to listen.
const START: Duration = Duration::from_secs(20);

/// Somebody in the rig.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(into = "String")]
#[serde(from = "String")]
pub enum Party {
    /// A pod.
    Pod(PodName),
    /// A node.
    Node(String),
    /// The host that is no part of the cluster.
    Outside,
}

impl fmt::Display for Party {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pod(pod) => pod.fmt(f),
            Self::Node(node) => write!(f, "node/{node}"),
            Self::Outside => f.write_str("outside"),
        }
    }
}

impl From<Party> for String {
    fn from(party: Party) -> Self {
        party.to_string()
    }
}

impl From<String> for Party {
    /// `outside`, `node/NAME`, `NAMESPACE/NAME`, or `NAME` in the namespace `default`. Hence a namespace named `node` cannot
    /// be meant.
    fn from(text: String) -> Self {
        match text.split_once('/') {
            Some(("node", node)) => Self::Node(node.to_owned()),
            Some((namespace, name)) => {
                Self::Pod(PodName { namespace: namespace.to_owned(), name: name.to_owned() })
            }
            None if text == "outside" => Self::Outside,
            None => Self::Pod(PodName { namespace: "default".to_owned(), name: text }),
        }
    }
}

type Waiting = Arc<Mutex<HashMap<u64, oneshot::Sender<Done>>>>;

/// A party's process.
#[derive(Debug)]
pub struct Process {
    #[expect(dead_code, reason = "held, so that nobody else waits for it; it ends with the rig")]
    child: Child,
    orders: mpsc::UnboundedSender<Vec<u8>>,
    waiting: Waiting,
    next: AtomicU64,
}

impl Process {
    /// Starts the process in its network namespace and waits until its servers listen: on every address, unless some are
    /// given.
    pub async fn start(
        party: &Party,
        netns: &Path,
        (ports, at): (&BTreeSet<Port>, &[IpAddr]),
        log: &Path,
    ) -> io::Result<Self> {
        let (ours, theirs) = std::os::unix::net::UnixStream::pair()?;
        ours.set_nonblocking(true)?;
        let log = std::fs::File::options().create(true).append(true).open(log)?;
        let mut command = this_program();
        command.args(["internal", "rig-pod", "--netns"]).arg(netns);
        command.args(["--name", &party.to_string()]);
        for port in ports {
            command.args(["--serve", &format!("{}:{}", port.protocol, port.number)]);
        }
        for address in at {
            command.args(["--at", &address.to_string()]);
        }
        let child = command
            .stdin(std::os::fd::OwnedFd::from(theirs))
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()?;
        let (heard, mut speak) = UnixStream::from_std(ours)?.into_split();
        let (orders, mut queue) = mpsc::unbounded_channel::<Vec<u8>>();
        tokio::spawn(async move {
            while let Some(line) = queue.recv().await {
                if speak.write_all(&line).await.is_err() {
                    return;
                }
            }
        });
        let mut words = BufReader::new(heard).lines();
        match timeout(START, next_word(&mut words)).await {
            Ok(Ok(Some(Word::Ready))) => {}
            Ok(Err(error)) => return Err(error),
            Ok(Ok(_)) | Err(_) => {
                return Err(io::Error::other(format!("the process of {party} does not come up")));
            }
        }
        let waiting = Waiting::default();
        tokio::spawn(deliver(words, waiting.clone()));
        Ok(Self { child, orders, waiting, next: AtomicU64::new(0) })
    }

    /// Has the party do something and waits for what comes of it. A process that is gone fails it.
    pub async fn carry_out(&self, task: Task) -> Done {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let (sender, done) = oneshot::channel();
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner).insert(id, sender);
        let sent = match serde_json::to_vec(&Order { id, task }) {
            Ok(mut line) => {
                line.push(b'\n');
                self.orders.send(line).is_ok()
            }
            Err(_) => false,
        };
        let gone = || Done::Failed("its process is gone".to_owned());
        if sent { done.await.unwrap_or_else(|_| gone()) } else { gone() }
    }
}

async fn next_word(words: &mut Lines<BufReader<OwnedReadHalf>>) -> io::Result<Option<Word>> {
    Ok(match words.next_line().await? {
        Some(line) => Some(serde_json::from_str(&line)?),
        None => None,
    })
}

async fn deliver(mut words: Lines<BufReader<OwnedReadHalf>>, waiting: Waiting) {
    while let Ok(Some(word)) = next_word(&mut words).await {
        if let Word::Done { id, result } = word {
            let sender = waiting.lock().unwrap_or_else(PoisonError::into_inner).remove(&id);
            if let Some(sender) = sender {
                // Who asked may have given up.
                let _ = sender.send(result);
            }
        }
    }
    // Dropping the senders fails whatever still waits.
    waiting.lock().unwrap_or_else(PoisonError::into_inner).clear();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_party_is_named_as_it_is_shown() {
        for text in ["shop/web", "node/worker-1", "outside"] {
            assert_eq!(Party::from(text.to_owned()).to_string(), text);
        }
        assert_eq!(Party::from("web".to_owned()).to_string(), "default/web");
    }
}
