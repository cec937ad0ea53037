//! The metrics of an agent at one time.

use std::collections::BTreeMap;
use std::time::SystemTime;

use manx_api::{PolicyStatus, RuleCount, WorkerStatus};
use tokio::sync::oneshot;

/// The channel for the agent's metrics.
pub type MetricsRequest = oneshot::Sender<AgentMetrics>;

/// The metrics of an agent at one time. The node bounds the length of each list except `rules`, for example by its
/// number of workers or blocks.
#[derive(Debug, Clone)]
pub struct AgentMetrics {
    /// The time when the agent started.
    pub started: SystemTime,
    /// Whether all objects have been read.
    pub in_sync: bool,
    /// The time since which objects may be out of date.
    pub stale_since: Option<SystemTime>,
    /// The numbers of objects, by the group and the name of their kind, and by whether they are valid.
    pub objects: BTreeMap<(&'static str, &'static str, bool), u64>,
    /// Problems of objects: each keeps something from taking effect as written.
    pub errors: u64,
    /// Problems of objects: for each, the agent has ignored something.
    pub warnings: u64,
    /// Endpoints of the whole cluster in the tables.
    pub known_endpoints: u64,
    /// Policies in the tables.
    pub known_policies: u64,
    /// Pods of this node that are in the tables.
    pub enforced: u64,
    /// Attached pods of this node that are not in the tables. Their packets do not pass.
    pub unenforced: u64,
    /// Pods of this node that another plugin has connected and whose links this agent does not
    /// have.
    pub not_judged: u64,
    /// Pods that have addresses of this node.
    pub leases: u64,
    pub blocks: Vec<BlockUse>,
    /// Published tables.
    pub tables: u64,
    /// Pods that were changed in tables that workers already use.
    pub pods_in_place: u64,
    /// Routes that were changed in tables that workers already use.
    pub routes_in_place: u64,
    /// Whether the last tables were refuted and therefore not published.
    pub refuted: bool,
    /// The size of the policy tables.
    pub policy: PolicyStatus,
    /// Traffic by kind of port; all pods are one kind.
    pub ports: BTreeMap<&'static str, Traffic>,
    pub workers: Vec<WorkerStatus>,
    /// Flows that a worker can hold.
    pub flow_capacity: u64,
    /// Packets by the rule that decided. A rule may occur more than once.
    pub rules: Vec<RuleCount>,
    /// Packets that former rules decided, allowed and denied.
    pub former: [u64; 2],
    /// Flows that were denied and reported.
    pub denied_flows: u64,
    /// Flows that were denied and not reported, because there were too many.
    pub unreported_flows: u64,
    /// The BGP metrics, if the node speaks BGP.
    pub bgp: Option<BgpMetrics>,
}

/// The BGP metrics of a node.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct BgpMetrics {
    /// The peers by the origin of their configuration: `mesh`, `node` or `global`.
    pub peers: BTreeMap<&'static str, PeerMetrics>,
    /// Connections that were closed at once, because their source is no configured peer.
    pub refused_connections: u64,
    /// Settings of the objects that the node does not apply.
    pub problems: u64,
}

/// The sessions with peers of one type.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PeerMetrics {
    /// The number of sessions in each state, with an entry for every state.
    pub sessions: BTreeMap<&'static str, u64>,
    /// Prefixes that peers announce now and this node has accepted.
    pub received: u64,
    /// Prefixes that are announced to peers now.
    pub announced: u64,
    /// Sessions that were established.
    pub established: u64,
    /// Established sessions that have ended.
    pub ended: u64,
    /// Announced prefixes of peers that were refused.
    pub refused: u64,
    /// Prefixes that could not be announced to peers, because their attributes fit into no message.
    pub unannounced: u64,
    /// Malformed UPDATEs of peers that did not end the session (RFC 7606).
    pub malformed: u64,
}

/// A block of the node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BlockUse {
    pub net: String,
    /// Addresses that pods have.
    pub used: u64,
    /// Addresses that are free for pods.
    pub left: u128,
}

/// The traffic of a port. Super-packets count in segments.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Traffic {
    pub received_packets: u64,
    pub received_bytes: u64,
    pub sent_packets: u64,
    pub sent_bytes: u64,
    /// Packets dropped, by reason, with an entry for every reason.
    pub drops: BTreeMap<&'static str, u64>,
}

impl Traffic {
    /// Adds the traffic of another port.
    pub fn add(&mut self, other: &Self) {
        self.received_packets += other.received_packets;
        self.received_bytes += other.received_bytes;
        self.sent_packets += other.sent_packets;
        self.sent_bytes += other.sent_bytes;
        for (reason, packets) in &other.drops {
            *self.drops.entry(reason).or_default() += packets;
        }
    }
}
