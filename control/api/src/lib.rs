//! The protocol of the agent's socket: the calls that CNI and the rig make, what `manx status` reads, and a client.
//!
//! The layers, in order:
//! - [`trace`]: why a connection passes or not, step by step.
//! - [`explain`], [`proof`]: the request and the answers that carry traces.
//! - this file: [`Request`], [`Response`], and how a message is framed.
//! - [`client`]: a socket that blocks.
//!
//! This crate depends on no other crate of Manx: a program that speaks to an agent needs nothing else.
//!
//! A message is a 4-byte little-endian length and that many bytes of JSON, at most [`MAX_MESSAGE`]. A connection carries
//! requests and their answers in turn. The socket has mode 0600.

pub mod client;
pub mod explain;
pub mod proof;
pub mod trace;

use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::explain::{ExplainRequest, Explanation};
use crate::proof::Refutation;

/// Spoken by this version; a request with another is refused with an [`ErrorKind::Version`].
pub const VERSION: u32 = 1;
/// Flows in a status.
pub const MAX_FLOWS: usize = 1024;
/// Longest message in bytes.
pub const MAX_MESSAGE: usize = 64 << 20;

/// Why bytes are not a message.
#[derive(Debug, thiserror::Error)]
pub enum FrameError {
    /// Longer than [`MAX_MESSAGE`].
    #[error("a message of {0} bytes: at most {MAX_MESSAGE} are spoken")]
    TooLong(usize),
    /// Not JSON, or not of the shape expected.
    #[error("a message that does not parse: {0}")]
    Json(#[from] serde_json::Error),
}

/// The message's bytes, its length in front.
pub fn encode(message: &impl Serialize) -> Result<Vec<u8>, FrameError> {
    let mut bytes = vec![0; 4];
    serde_json::to_writer(&mut bytes, message)?;
    let len = bytes.len() - 4;
    if len > MAX_MESSAGE {
        return Err(FrameError::TooLong(len));
    }
    bytes[..4].copy_from_slice(&(len as u32).to_le_bytes());
    Ok(bytes)
}

/// How many bytes follow the length.
pub fn message_len(header: [u8; 4]) -> Result<usize, FrameError> {
    let len = u32::from_le_bytes(header) as usize;
    if len > MAX_MESSAGE { Err(FrameError::TooLong(len)) } else { Ok(len) }
}

/// One question.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Request {
    /// [`VERSION`].
    pub version: u32,
    /// What is asked.
    pub call: Call,
}

/// What can be asked.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Call {
    /// Give a pod its interface and addresses. Repeating it for the same pod and namespace gives the same answer.
    Attach(Attach),
    /// Take a pod's interface and addresses away. A pod that is not attached is no error.
    Detach(PodName),
    /// Everything `manx status` shows.
    Status,
    /// Whether a connection passes by the objects that the agent has loaded, and what decides.
    Explain(ExplainRequest),
    /// The last denied flows, oldest first (a bounded buffer).
    Denials,
    /// Stream a port's packets: after the answer the connection carries a pcapng file until either side closes it.
    Capture(Capture),
}

/// A pod by namespace and name.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct PodName {
    /// The namespace.
    pub namespace: String,
    /// The name.
    pub name: String,
}

impl fmt::Display for PodName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// See [`Call::Attach`].
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Attach {
    /// The pod.
    pub pod: PodName,
    /// Path of the pod's network namespace (as `CNI_NETNS`).
    pub netns: PathBuf,
    /// Name of the interface to make (as `CNI_IFNAME`).
    pub interface: String,
}

/// See [`Call::Capture`].
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Capture {
    /// A pod (`namespace/name`) or a port's name.
    pub port: String,
}

/// One answer: what was asked for, or why not.
pub type Response = Result<Reply, Failure>;

/// Answers, one for each [`Call`].
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Reply {
    /// To [`Call::Attach`].
    Attached(Attached),
    /// To [`Call::Detach`].
    Detached,
    /// To [`Call::Status`].
    Status(Box<Status>),
    /// To [`Call::Explain`].
    Explained(Box<Explanation>),
    /// To [`Call::Denials`].
    Denials(Vec<Denial>),
    /// To [`Call::Capture`]: the pcapng file follows.
    Capturing,
}

/// How a pod hangs on the agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Device {
    /// A TUN device inside the pod whose queues the agent holds.
    Tun,
    /// A veth whose host end is in the agent's own network namespace.
    Veth,
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Tun => "TUN",
            Self::Veth => "veth",
        })
    }
}

/// What [`Call::Attach`] made.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Attached {
    /// The pod's addresses.
    pub addresses: Vec<IpAddr>,
    /// The kind of device.
    pub device: Device,
    /// The interface's MTU.
    pub mtu: u32,
}

/// Why a call was refused.
#[derive(Debug, Clone, Serialize, Deserialize, thiserror::Error)]
#[error("{message}")]
pub struct Failure {
    /// For programs.
    pub kind: ErrorKind,
    /// For people: what was found, what was expected, and what to do.
    pub message: String,
}

/// The kinds of failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ErrorKind {
    /// Another protocol version.
    Version,
    /// The request does not parse or names something that is not there.
    Invalid,
    /// No address is left in the node's blocks.
    Exhausted,
    /// The environment does not allow it.
    Environment,
    /// Anything else.
    Internal,
}

/// What `manx status` shows.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Status {
    /// The product's version.
    pub version: String,
    /// The node.
    pub node: String,
    /// Seconds since the agent started.
    pub uptime_s: u64,
    /// Whether the datastore has been read whole at least once.
    pub in_sync: bool,
    /// Names the manifests that the tables in use are made of: the same on every node that has read the same.
    pub datastore: String,
    /// Counts up with each published table.
    pub tables: u64,
    /// How often a pod of another node has changed in tables that were in use.
    pub changed_in_place: u64,
    /// Objects that are not valid: where, and why. Each fails closed.
    pub invalid: Vec<String>,
    /// What is valid and means less than its author may believe.
    #[serde(default)]
    pub warnings: Vec<String>,
    /// How many endpoints of the whole cluster the tables know.
    pub known_endpoints: usize,
    /// How many policies the tables know.
    pub known_policies: usize,
    /// The endpoints of this node.
    pub endpoints: Vec<EndpointStatus>,
    /// Destinations and where they lead.
    pub routes: Vec<RouteStatus>,
    /// The worker's ports.
    pub ports: Vec<PortStatus>,
    /// The workers.
    pub workers: Vec<WorkerStatus>,
    /// Flows, at most [`MAX_FLOWS`] of each worker's, in no order.
    pub flows: Vec<FlowStatus>,
    /// Packets by the rule (or reason) that decided, allowed and denied.
    pub rules: Vec<RuleCount>,
    /// Packets by what was met on the way: Pass and Log rules, and what staged policies would have done.
    pub noted: Vec<NotedCount>,
    /// How large the policy tables are.
    pub policy: PolicyStatus,
    /// Whether the last tables were proved before they were published.
    pub verification: Verification,
}

/// The size of the policy tables.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PolicyStatus {
    /// Chains of policies.
    pub chains: usize,
    /// Those of them that are judged rule by rule, which is slower; they do not count what they meet on the way.
    pub linear: usize,
    /// Classes of peers.
    pub classes: usize,
    /// Distinct rows.
    pub rows: usize,
    /// Bytes of memory of what lookups read.
    pub bytes: usize,
}

/// What came of the proof of the last tables (`manx node --verify-tables`).
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verification {
    /// They are not proved.
    #[default]
    Off,
    /// They are, and published.
    Proved(Verified),
    /// They are wrong about a packet, and not published.
    Refuted(Box<Refutation>),
}

/// How much was compared.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Verified {
    /// Cells of the tables.
    pub cells: u64,
    /// The distinct questions among them.
    pub questions: u64,
    /// How long it took.
    pub milliseconds: u64,
}

/// Packets that met one rule, or the end of a staged policy's tier, on the way to what decided.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NotedCount {
    /// The rule; `StagedNetworkPolicy default/p ingress[end of tier]` where none of a staged policy would have decided.
    pub rule: String,
    /// What it did, or, staged, would have done: `allow`, `deny`, `pass` or `log`.
    pub action: String,
    /// Whether its policy is staged.
    pub staged: bool,
    /// Packets, super-packets counted in segments.
    pub packets: u64,
}

/// One endpoint of this node.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct EndpointStatus {
    /// The pod.
    pub pod: PodName,
    /// Its addresses.
    pub addresses: Vec<IpAddr>,
    /// Its port's name.
    pub port: String,
    /// The kind of device.
    pub device: Device,
    /// Whether the published tables hold it; until then nothing passes.
    pub enforced: bool,
    /// The policies that select it for ingress.
    pub ingress: Vec<String>,
    /// The policies that select it for egress.
    pub egress: Vec<String>,
}

/// One route.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct RouteStatus {
    /// The destination prefix.
    pub prefix: String,
    /// Where it leads, e.g. `pod default/web`, `tunnel 172.18.0.3 (node-2)`, `host`, `unreachable`.
    pub via: String,
}

/// One port.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct PortStatus {
    /// The name: `pod:namespace/name`, `host`, `uplink-raw`, `uplink-packet`, `uplink-vxlan`.
    pub name: String,
    /// Packets received, super-packets counted in segments.
    pub received_packets: u64,
    /// Bytes received.
    pub received_bytes: u64,
    /// Packets sent, super-packets counted in segments.
    pub sent_packets: u64,
    /// Bytes sent.
    pub sent_bytes: u64,
    /// Packets that came in by this port and died, by reason; only what is not zero.
    pub drops: std::collections::BTreeMap<String, u64>,
}

/// One worker.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct WorkerStatus {
    /// The core it is pinned to.
    pub core: Option<usize>,
    /// Turns that found packets.
    pub busy_turns: u64,
    /// Times it went to sleep.
    pub parks: u64,
    /// Packets handled.
    pub packets: u64,
    /// Time-stamp counter cycles spent in turns that found packets.
    pub busy_cycles: u64,
    /// Packets that it read and handed over to the worker that has their flow.
    pub handed_over: u64,
    /// Packets that others handed over to it, of a port that it does not have any more: dropped.
    pub portless: u64,
    /// Flows in its table.
    pub flows: u64,
    /// Flows evicted to make room.
    pub evictions: u64,
}

/// One flow, in the direction of its first packet.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct FlowStatus {
    /// IP protocol number.
    pub protocol: u8,
    /// Who opened it.
    pub source: IpAddr,
    /// Source port, or 0.
    pub source_port: u16,
    /// Whom it was opened to.
    pub destination: IpAddr,
    /// Destination port, or 0.
    pub destination_port: u16,
    /// How far the connection has come, e.g. `established`.
    pub state: String,
    /// `allow` or `deny`.
    pub verdict: String,
    /// Packets in the original direction and of replies, super-packets counted in segments.
    pub packets: [u64; 2],
    /// Seconds since the last packet.
    pub idle_s: u64,
}

/// Packets that one rule (or the lack of one) decided.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct RuleCount {
    /// The rule, or the reason.
    pub rule: String,
    /// `allow` or `deny`.
    pub verdict: String,
    /// Packets, super-packets counted in segments.
    pub packets: u64,
}

/// One denied flow: its first packet.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Denial {
    /// Milliseconds since the Unix epoch.
    pub at_ms: u64,
    /// The source address.
    pub source: IpAddr,
    /// The destination address.
    pub destination: IpAddr,
    /// IP protocol number.
    pub protocol: u8,
    /// Source port, or 0.
    pub source_port: u16,
    /// Destination port, or 0.
    pub destination_port: u16,
    /// The drop reason's name.
    pub reason: String,
    /// What decided, in words.
    pub rule: String,
}
