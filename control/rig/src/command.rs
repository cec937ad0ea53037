//! The protocol between the cluster's process and a prober's process: commands one way, events the other, a JSON object a
//! line.

use std::net::{IpAddr, SocketAddr};

use serde::{Deserialize, Serialize};

use super::service::Service;

/// A task for a prober. The prober's answer carries the same number.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Command {
    /// The number; the answer carries it.
    pub id: u64,
    /// What to do.
    pub task: Task,
}

/// The tasks.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Task {
    /// One packet exchange.
    Probe(Probe),
    /// One TCP stream as fast as it goes.
    Stream(Sample),
    /// Many small TCP exchanges, one after the other.
    PingPong(Sample),
}

/// One packet exchange.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct Probe {
    /// The destination.
    pub to: IpAddr,
    /// What it is asked.
    pub service: Service,
    /// How long to wait for an answer, in milliseconds.
    pub timeout_ms: u64,
}

/// A measurement over TCP.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct Sample {
    /// The server.
    pub to: SocketAddr,
    /// How long, in milliseconds.
    pub duration_ms: u64,
}

/// What a prober reports.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ProberEvent {
    /// Its servers listen. The first event, sent once.
    Ready,
    /// A command has ended.
    Done {
        /// The command's number.
        id: u64,
        /// What came of it.
        result: TaskResult,
    },
}

/// The result of a task.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum TaskResult {
    /// Of [`Task::Probe`].
    Probed(ProbeResult),
    /// Of [`Task::Stream`]: bytes that the server has read, and in how many microseconds.
    Streamed {
        /// Bytes.
        bytes: u64,
        /// Microseconds.
        elapsed_us: u64,
    },
    /// Of [`Task::PingPong`]: the median round trip, and of how many.
    PingPonged {
        /// Nanoseconds.
        median_ns: u64,
        /// Round trips.
        exchanges: u64,
    },
    /// It could not be done.
    Failed(String),
}

/// What a probe saw.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProbeResult {
    /// The source address and port of the probe as they were sent; the port is 0 for an echo. Absent where nothing was sent.
    pub from: Option<SocketAddr>,
    /// What came back.
    pub answer: ProbeReply,
}

/// What came back to a probe.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ProbeReply {
    /// An answer, with the name of who gave it (an echo does not say).
    From(Option<String>),
    /// TCP RST, ICMP port unreachable or SCTP ABORT: it got there and nobody listens.
    Refused,
    /// Nothing in time.
    Silence,
    /// Anything else, e.g. an ICMP error of another kind: the kernel's words.
    Error(String),
}
