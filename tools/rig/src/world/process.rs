//! The process of a prober, as the cluster's process sees it.

use std::collections::{BTreeSet, HashMap};
use std::io;
use std::net::IpAddr;
use std::path::Path;
use std::process::{Child, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::net::UnixStream;
use tokio::net::unix::OwnedReadHalf;
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;

use super::command::{Command, ProberEvent, Task, TaskResult};
use super::supervisor::this_program;
use crate::plan::port::Port;
use crate::plan::prober::Prober;

/// The time in which a prober's servers must listen.
const START: Duration = Duration::from_secs(20);

type Waiting = Arc<Mutex<HashMap<u64, oneshot::Sender<TaskResult>>>>;

/// A prober's process.
#[derive(Debug)]
pub(crate) struct Process {
    name: String,
    #[expect(dead_code, reason = "held, so that no other code waits for it; it ends with the rig")]
    child: Child,
    commands: mpsc::UnboundedSender<Vec<u8>>,
    waiting: Waiting,
    next: AtomicU64,
}

impl Process {
    /// Starts the process in its network namespace and waits until its servers listen, on the given addresses or, if
    /// there are none, on all.
    pub(crate) async fn start(
        prober: &Prober,
        netns: &Path,
        (ports, at): (&BTreeSet<Port>, &[IpAddr]),
        log: &Path,
    ) -> io::Result<Self> {
        let (ours, theirs) = std::os::unix::net::UnixStream::pair()?;
        ours.set_nonblocking(true)?;
        let log = std::fs::File::options().create(true).append(true).open(log)?;
        let mut command = this_program();
        command.args(["internal", "rig-pod", "--netns"]).arg(netns);
        command.args(["--name", &prober.to_string()]);
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
        let (read_half, mut write_half) = UnixStream::from_std(ours)?.into_split();
        let (commands, mut queue) = mpsc::unbounded_channel::<Vec<u8>>();
        tokio::spawn(async move {
            while let Some(line) = queue.recv().await {
                if write_half.write_all(&line).await.is_err() {
                    return;
                }
            }
        });
        let mut events = BufReader::new(read_half).lines();
        match timeout(START, next_event(&mut events)).await {
            Ok(Ok(Some(ProberEvent::Ready))) => {}
            Ok(Err(error)) => return Err(error),
            Ok(Ok(_)) | Err(_) => {
                return Err(io::Error::other(format!("the process of {prober} does not come up")));
            }
        }
        let waiting = Waiting::default();
        tokio::spawn(deliver_results(events, waiting.clone()));
        let name = prober.to_string();
        Ok(Self { name, child, commands, waiting, next: AtomicU64::new(0) })
    }

    /// The name with which its servers answer.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Sends the prober a task and waits for its result. If the process has ended, the task has failed.
    pub(crate) async fn run_task(&self, task: Task) -> TaskResult {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let (sender, done) = oneshot::channel();
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner).insert(id, sender);
        let sent = match serde_json::to_vec(&Command { id, task }) {
            Ok(mut line) => {
                line.push(b'\n');
                self.commands.send(line).is_ok()
            }
            Err(_) => false,
        };
        let gone = || TaskResult::Failed("its process is gone".to_owned());
        if sent { done.await.unwrap_or_else(|_| gone()) } else { gone() }
    }
}

async fn next_event(
    events: &mut Lines<BufReader<OwnedReadHalf>>,
) -> io::Result<Option<ProberEvent>> {
    Ok(match events.next_line().await? {
        Some(line) => Some(serde_json::from_str(&line)?),
        None => None,
    })
}

async fn deliver_results(mut events: Lines<BufReader<OwnedReadHalf>>, waiting: Waiting) {
    while let Ok(Some(event)) = next_event(&mut events).await {
        if let ProberEvent::Done { id, result } = event {
            let sender = waiting.lock().unwrap_or_else(PoisonError::into_inner).remove(&id);
            if let Some(sender) = sender {
                // The caller may no longer wait.
                let _ = sender.send(result);
            }
        }
    }
    // Dropping the senders makes every waiting task fail.
    waiting.lock().unwrap_or_else(PoisonError::into_inner).clear();
}
