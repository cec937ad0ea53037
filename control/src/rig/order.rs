//! What the cluster's process and a party's process say to each other: a JSON object a line.

use std::net::{IpAddr, SocketAddr};

use serde::{Deserialize, Serialize};

use super::service::Service;

/// What a party is told to do, with a number under which it answers.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Order {
    /// Comes back with the answer.
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

/// What a party says.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Word {
    /// Its servers listen. Said once, first.
    Ready,
    /// The end of an order.
    Done {
        /// The order's.
        id: u64,
        /// What came of it.
        result: Done,
    },
}

/// What came of an order.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Done {
    /// Of [`Task::Probe`].
    Probed(Seen),
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
pub struct Seen {
    /// The source address and port of the probe as they were sent; the port is 0 for an echo. Absent where nothing was sent.
    pub from: Option<SocketAddr>,
    /// What came back.
    pub answer: Answer,
}

/// What came back to a probe.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Answer {
    /// An answer, with the name of who gave it (an echo does not say).
    From(Option<String>),
    /// TCP RST, ICMP port unreachable or SCTP ABORT: it got there and nobody listens.
    Refused,
    /// Nothing in time.
    Silence,
    /// Anything else, e.g. an ICMP error of another kind: the kernel's words.
    Error(String),
}
