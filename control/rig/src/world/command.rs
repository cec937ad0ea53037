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
    /// What to do.
    pub task: Task,
}

/// The tasks.
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
    /// How long to wait for an answer, in milliseconds.
    pub timeout_ms: u64,
}

/// A measurement over TCP.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) struct Sample {
    /// The server.
    pub to: SocketAddr,
    /// How long, in milliseconds.
    pub duration_ms: u64,
}

/// What a prober reports.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum ProberEvent {
    /// Its servers listen. It is the first event and is sent once.
    Ready,
    /// A command has ended.
    Done {
        /// The command's number.
        id: u64,
        /// The result.
        result: TaskResult,
    },
}

/// The result of a task.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum TaskResult {
    /// The result of [`Task::Probe`].
    Probed(ProbeResult),
    /// The result of [`Task::Stream`]: how many bytes the server has read, in how many microseconds.
    Streamed {
        /// Bytes.
        bytes: u64,
        /// Microseconds.
        elapsed_us: u64,
    },
    /// The result of [`Task::PingPong`]: the median round trip, and the number of round trips.
    PingPonged {
        /// Nanoseconds.
        median_ns: u64,
        /// Round trips.
        exchanges: u64,
    },
    /// The task could not be done.
    Failed(String),
}

/// What a probe saw.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ProbeResult {
    /// The source address and port of the sent probe; the port is 0 for an echo. `None` if nothing was sent.
    pub from: Option<SocketAddr>,
    /// What came back.
    pub answer: ProbeReply,
}

/// What came back to a probe.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum ProbeReply {
    /// An answer with the name of the prober that gave it (an echo has no name).
    From(Option<String>),
    /// TCP RST, ICMP port unreachable or SCTP ABORT: the probe arrived and nothing listens.
    Refused,
    /// No answer in time.
    Silence,
    /// Anything else, e.g. an ICMP error of another kind, in the kernel's words.
    Error(String),
}
