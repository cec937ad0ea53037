//! The protocol between the cluster's process and a prober's process: commands in one direction, events in the other,
//! one JSON object per line.

use std::net::{IpAddr, SocketAddr};

use serde::{Deserialize, Serialize};

use super::service::Service;

/// A task for a prober. The prober's result has the same number.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Command {
    /// The number, which the result repeats.
    pub id: u64,
    pub task: Task,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Task {
    /// One packet exchange.
    Probe(Probe),
    /// One TCP stream at full speed.
    Stream(Sample),
    /// Many small TCP exchanges, one after another.
    PingPong(Sample),
}

/// One packet exchange.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) struct Probe {
    /// The destination.
    pub to: IpAddr,
    /// The service to which the probe is sent.
    pub service: Service,
    /// The time to wait for an answer, in milliseconds.
    pub timeout_ms: u64,
}

/// A measurement over TCP.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) struct Sample {
    /// The server's address and port.
    pub to: SocketAddr,
    /// The duration in milliseconds.
    pub duration_ms: u64,
}

/// An event of a prober.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum ProberEvent {
    /// Its servers listen. It is the first event and is sent once.
    Ready,
    /// A command has ended.
    Done { id: u64, result: TaskResult },
}

/// The result of a task.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum TaskResult {
    /// The result of [`Task::Probe`].
    Probed(ProbeResult),
    /// The result of [`Task::Stream`]: the number of bytes that the server has read, and the time in microseconds.
    Streamed { bytes: u64, elapsed_us: u64 },
    /// The result of [`Task::PingPong`]: the median round trip, and the number of round trips.
    PingPonged { median_ns: u64, exchanges: u64 },
    /// The task could not be done.
    Failed(String),
}

/// The result of a probe.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ProbeResult {
    /// The source address and port of the sent probe; the port is 0 for an echo. `None` if nothing was sent.
    pub from: Option<SocketAddr>,
    /// The reply to the probe.
    pub answer: ProbeReply,
}

/// The reply to a probe.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum ProbeReply {
    /// An answer by a server, with its name and the address that it sees as the client's.
    From { name: String, client: Option<IpAddr> },
    /// An answer to an echo, which contains no name.
    Echo,
    /// TCP RST, ICMP port unreachable or SCTP ABORT: the probe arrived and nothing listens.
    Refused,
    /// There was no answer in time.
    Silence,
    /// Another reply, such as an ICMP error of another kind, in the kernel's words.
    Error(String),
}
