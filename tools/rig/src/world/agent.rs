//! A node's agent: a separate process in the node's namespace, and its socket.

use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, ExitStatus, Stdio};
use std::sync::{Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::bounded_log;
use super::supervisor::{SELF, this_program};
use super::underlay::UPLINK;
use manx_api::client::{Client, Error};
use manx_api::{Attach, Attached, Denial, PodName, Status};

/// The time in which an agent must listen.
const START: Duration = Duration::from_secs(20);
/// The interval at which a condition is checked.
pub const LOOK: Duration = Duration::from_millis(20);
/// The number of lines of an ended agent's log that are shown.
const LAST_LINES: usize = 8;
/// The time that an ended agent's last lines may take to reach its log.
const LAST_WORDS: Duration = Duration::from_millis(200);

/// The reason why an agent does not do what it should.
#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    /// The agent cannot be started.
    #[error("the agent of node {node} cannot be started: {source}")]
    Start { node: String, source: io::Error },
    #[error("the agent of node {node} has ended ({status}); the last lines of its log:\n{log}")]
    Ended {
        node: String,
        status: ExitStatus,
        /// The last lines of the agent's log.
        log: String,
    },
    /// The agent does not listen in time.
    #[error("the agent of node {0} does not listen after {START:?}")]
    NotUp(String),
    /// A call failed.
    #[error("the agent of node {node}: {source}")]
    Call { node: String, source: Error },
}

/// The parameters of an agent's start.
#[derive(Debug, Clone)]
pub struct Start<'a> {
    pub node: &'a str,
    /// The node's network namespace.
    pub netns: &'a Path,
    pub manifests: &'a Path,
    /// The socket on which the agent listens.
    pub socket: PathBuf,
    /// The file to which the agent logs.
    pub log: PathBuf,
    /// Additional arguments of `manx node`.
    pub extra: &'a [String],
}

/// The state of a node's agent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AgentState {
    pub node: String,
    /// The end of the agent, if it has ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended: Option<AgentEnd>,
}

/// The end of an agent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AgentEnd {
    /// The exit status or signal, as text.
    pub status: String,
    /// The last lines of the agent's log.
    pub log: Vec<String>,
}

/// A running agent.
#[derive(Debug)]
pub struct Agent {
    node: String,
    socket: PathBuf,
    log: PathBuf,
    child: Mutex<Child>,
    /// The thread that copies the agent's output into its log.
    copier: JoinHandle<()>,
}

impl Agent {
    /// Starts an agent in its node's namespace, under the node's name.
    pub fn start(start: &Start<'_>) -> Result<Self, AgentError> {
        let failed = |source| AgentError::Start { node: start.node.to_owned(), source };
        let (from_agent, log) = io::pipe().map_err(failed)?;
        let path = start.log.clone();
        let child = this_program()
            .args(["internal", "enter", "--uts-name", start.node])
            .arg(start.netns)
            .args(["--", SELF, "node", "--name", start.node, "--datastore"])
            .arg(start.manifests)
            .arg("--socket")
            .arg(&start.socket)
            .args(["--uplink", UPLINK, "--log", "json"])
            .args(start.extra)
            .stdin(Stdio::null())
            .stdout(log.try_clone().map_err(failed)?)
            .stderr(log)
            .spawn()
            .map_err(failed)?;
        let copier =
            thread::spawn(move || bounded_log::copy(from_agent, &path, bounded_log::FILE_SIZE));
        Ok(Self {
            node: start.node.to_owned(),
            socket: start.socket.clone(),
            log: start.log.clone(),
            child: Mutex::new(child),
            copier,
        })
    }

    pub fn node(&self) -> &str {
        &self.node
    }

    pub fn log(&self) -> &Path {
        &self.log
    }

    /// Returns an error if the agent has ended.
    pub fn check_alive(&self) -> Result<(), AgentError> {
        let Some((status, lines)) = self.ended() else { return Ok(()) };
        Err(AgentError::Ended { node: self.node.clone(), status, log: lines.join("\n") })
    }

    /// The state of the agent.
    pub fn state(&self) -> AgentState {
        let ended = self.ended().map(|(status, log)| AgentEnd { status: status.to_string(), log });
        AgentState { node: self.node.clone(), ended }
    }

    /// The exit status and the last lines of the log, if the agent has ended.
    fn ended(&self) -> Option<(ExitStatus, Vec<String>)> {
        let ended = self.child.lock().unwrap_or_else(PoisonError::into_inner).try_wait();
        let status = ended.ok().flatten()?;
        let asked = Instant::now();
        while !self.copier.is_finished() && asked.elapsed() < LAST_WORDS {
            thread::sleep(LOOK);
        }
        let mut lines = bounded_log::lines(&self.log).unwrap_or_default();
        lines.drain(..lines.len().saturating_sub(LAST_LINES));
        Some((status, lines))
    }

    /// Waits until the agent listens.
    pub async fn wait_up(&self) -> Result<(), AgentError> {
        let deadline = tokio::time::Instant::now() + START;
        loop {
            self.check_alive()?;
            if self.status().await.is_ok() {
                return Ok(());
            }
            if tokio::time::Instant::now() > deadline {
                return Err(AgentError::NotUp(self.node.clone()));
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    /// Attaches a pod, which gets these addresses.
    pub async fn attach(
        &self,
        pod: &PodName,
        netns: &Path,
        addresses: &[IpAddr],
    ) -> Result<Attached, AgentError> {
        let addresses = addresses.to_vec();
        let attach = Attach { addresses, ..Attach::new(pod.clone(), netns, "eth0") };
        self.call(move |mut client| client.attach(attach)).await
    }

    /// The agent's status, as in `manx status`.
    pub async fn status(&self) -> Result<Status, AgentError> {
        self.call(|mut client| client.status()).await
    }

    /// The last denied flows.
    pub async fn denials(&self) -> Result<Vec<Denial>, AgentError> {
        self.call(|mut client| client.denials()).await
    }

    /// The stream of a capture at a port.
    pub async fn capture(
        &self,
        port: String,
    ) -> Result<std::os::unix::net::UnixStream, AgentError> {
        self.call(move |client| client.capture(port)).await
    }

    async fn call<T: Send + 'static>(
        &self,
        ask: impl FnOnce(Client) -> Result<T, Error> + Send + 'static,
    ) -> Result<T, AgentError> {
        let socket = self.socket.clone();
        let answered = tokio::task::spawn_blocking(move || ask(Client::connect(&socket)?)).await;
        let node = self.node.clone();
        match answered {
            Ok(result) => result.map_err(|source| AgentError::Call { node, source }),
            Err(error) => Err(AgentError::Start { node, source: error.into() }),
        }
    }
}
