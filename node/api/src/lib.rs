//! The protocol of the agent's socket: the calls of CNI and the rig, the status for `manx status`, and a client.
//!
//! The layers, in order:
//! - [`trace`]: the steps by which a connection passes or not.
//! - [`explain`], [`proof`]: the request and the replies that carry traces.
//! - this file: [`Request`], [`Response`], and the framing of messages.
//! - [`descriptors`]: messages that carry descriptors.
//! - [`client`]: a blocking client.
//! - [`health`]: a client for the socket of an agent's health.
//!
//! This crate depends on no other crate of Manx: a program that talks to an agent needs nothing else.
//!
//! A message is a 4-byte little-endian length followed by that many bytes of JSON, at most [`MAX_MESSAGE`]. On a
//! connection, each request is followed by its reply. The socket has mode 0600.

#![warn(missing_docs)]

pub mod bgp;
pub mod client;
pub mod descriptors;
pub mod explain;
pub mod health;
pub mod node_address;
pub mod proof;
pub mod trace;

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::bgp::BgpStatus;
use crate::explain::{ExplainRequest, Explanation};
use crate::node_address::NodeAddress;
use crate::proof::Refutation;

/// The version of the protocol; a request with another version is refused with an [`ErrorKind::Version`].
pub const VERSION: u32 = 3;
/// The most flows of a worker in a status.
pub const MAX_FLOWS: usize = 1024;
/// The most pods in a status that are not simply attached.
pub const MAX_OTHER_PODS: usize = 20;
/// The most settings of the node's kernel that a status names.
pub const MAX_NODE_SETTINGS: usize = 64;
/// The most bytes of a message.
pub const MAX_MESSAGE: usize = 64 << 20;

/// The reason why bytes are not a message.
#[derive(Debug, thiserror::Error)]
pub enum FrameError {
    /// The message is longer than [`MAX_MESSAGE`].
    #[error("a message of {0} bytes is too long: at most {MAX_MESSAGE} are allowed")]
    TooLong(usize),
    /// The message is not JSON, or not of the expected form.
    #[error("a message that does not parse: {0}")]
    Json(#[from] serde_json::Error),
}

/// Encodes a message: its length, then its bytes.
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

/// Decodes the length of a message, and checks it.
pub fn message_len(header: [u8; 4]) -> Result<usize, FrameError> {
    let len = u32::from_le_bytes(header) as usize;
    if len > MAX_MESSAGE { Err(FrameError::TooLong(len)) } else { Ok(len) }
}

/// A request.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Request {
    /// The protocol version, [`VERSION`].
    pub version: u32,
    /// The call.
    pub call: Call,
}

/// The calls of the protocol.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Call {
    /// Attach a pod: give it its interface and addresses. Repeating the call for the same pod and namespace gives the
    /// same reply.
    Attach(Attach),
    /// Attach a pod, for a caller that can make TUN and TAP devices. The descriptor of the pod's namespace comes with the
    /// message. If the pod needs such a device and has none yet, the reply describes it. The caller's next message on the
    /// connection is [`Call::HandOver`]. If it does not come in time, the reservation ends.
    Reserve(Attach),
    /// Hand over the queues of the reserved device, as descriptors with the message. For a [`MadeLink`] the descriptor is
    /// the network namespace that now holds the link's ends. The reply is that of [`Call::Attach`].
    HandOver,
    /// Detach a pod: take its interface and addresses away. It is no error if the pod is not attached, or has another
    /// attachment than the call names.
    Detach(Detach),
    /// List the pods that have addresses of this node, and all other attachments that [`Call::Detach`] would end.
    Attachments,
    /// Check whether a pod could be attached now.
    Ready,
    /// Check whether Manx was removed from the cluster, so that no agent starts on this node again.
    Removed,
    /// Read everything that `manx status` shows.
    Status,
    /// List the routes of all sources, and which of them are used. With an address: only those of the longest prefix that
    /// contains it.
    Routes(Option<IpAddr>),
    /// Explain whether a connection passes by the objects that the agent has loaded, and what decides.
    Explain(ExplainRequest),
    /// List the last denied flows, oldest first (a bounded buffer).
    Denials,
    /// List the flows of the workers' tables, and the flows denied since a point that an earlier reply names
    /// ([`Flows::denied`]). Without a point the reply has no denied flows.
    Flows(Option<u64>),
    /// Capture a port's packets: after the reply the connection carries a pcapng file until either side closes it.
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

/// A sandbox of a container runtime in a network. A pod that starts again has another sandbox, under the same name.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Sandbox {
    /// The network's name in the runtime's configuration.
    pub network: String,
    /// The runtime's id of the container (`CNI_CONTAINERID`).
    pub container: String,
}

/// The identification of an attachment by a container runtime (CNI specification, section 2, "Parameters").
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct AttachmentId {
    /// The sandbox.
    #[serde(flatten)]
    pub sandbox: Sandbox,
    /// Its interface (`CNI_IFNAME`).
    pub interface: String,
}

impl fmt::Display for AttachmentId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { sandbox: Sandbox { network, container }, interface } = self;
        write!(f, "{interface} of container {container} in network {network}")
    }
}

/// The next hop of a pod's IPv4 routes on a veth or TAP device, the same as Calico's. The agent answers for it on the
/// link.
pub const GATEWAY_V4: Ipv4Addr = Ipv4Addr::new(169, 254, 1, 1);
/// The next hop of a pod's IPv6 routes on a veth or TAP device.
pub const GATEWAY_V6: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 1);

/// The next hop of routes of this address's family.
pub const fn gateway(of: IpAddr) -> IpAddr {
    match of {
        IpAddr::V4(_) => IpAddr::V4(GATEWAY_V4),
        IpAddr::V6(_) => IpAddr::V6(GATEWAY_V6),
    }
}

/// The request of [`Call::Attach`] and [`Call::Reserve`].
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Attach {
    /// The pod.
    pub pod: PodName,
    /// The path of the pod's network namespace (as `CNI_NETNS`).
    pub netns: PathBuf,
    /// The name of the interface to make (as `CNI_IFNAME`).
    pub interface: String,
    /// The exact addresses that the pod gets, at most one of a family (as CNI's `ips` capability and Calico's annotation
    /// `cni.projectcalico.org/ipAddrs`). If empty, the agent takes one from each of the node's blocks.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub addresses: Vec<IpAddr>,
    /// The sandbox, which has the addresses until it is detached. Absent: the caller is no container runtime.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<Sandbox>,
    /// The kind of device; if absent, the kind of the agent's settings.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device: Option<Device>,
    /// The pod's link, if another CNI plugin has made it. Then `addresses` are those that the pod already has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub made: Option<MadeLink>,
}

/// A veth pair that another CNI plugin has made. An agent between its two ends judges the packets.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MadeLink {
    /// The index of the end that was on the node. The stand-in that replaces it on the node has the same index.
    pub index: u32,
    /// The hardware address of the pod's end.
    pub pod: [u8; 6],
    /// The hardware address of the end that was on the node.
    pub node: [u8; 6],
    /// The MTU in bytes.
    pub mtu: u32,
    /// The node's own addresses on the link: those of the end that was on the node, or of its bridge.
    pub gateways: Vec<IpAddr>,
}

impl Attach {
    /// A request for this pod. The agent chooses everything else.
    pub fn new(pod: PodName, netns: impl Into<PathBuf>, interface: impl Into<String>) -> Self {
        let (netns, interface) = (netns.into(), interface.into());
        Self {
            pod,
            netns,
            interface,
            addresses: Vec::new(),
            sandbox: None,
            device: None,
            made: None,
        }
    }

    /// The runtime's identification of the attachment, if a runtime attaches.
    pub fn id(&self) -> Option<AttachmentId> {
        let sandbox = self.sandbox.clone()?;
        Some(AttachmentId { sandbox, interface: self.interface.clone() })
    }
}

/// The request of [`Call::Detach`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Detach {
    /// The pod.
    #[serde(flatten)]
    pub pod: PodName,
    /// The attachment to detach. Nothing happens if the pod has another attachment. If absent, whatever attachment the pod
    /// has is removed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<AttachmentId>,
}

impl From<PodName> for Detach {
    fn from(pod: PodName) -> Self {
        Self { pod, id: None }
    }
}

/// The request of [`Call::Capture`].
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Capture {
    /// The name of a pod (`namespace/name`) or of a port.
    pub port: String,
}

/// The response to a request: the reply, or the reason for its refusal.
pub type Response = Result<Reply, Failure>;

/// The replies, one for each [`Call`].
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Reply {
    /// The reply to [`Call::Attach`] and [`Call::HandOver`], and to [`Call::Reserve`] if nothing is left to make.
    Attached(Attached),
    /// The reply to [`Call::Reserve`].
    Reserved(Reservation),
    /// The reply to [`Call::Detach`].
    Detached,
    /// The reply to [`Call::Attachments`].
    Attachments(Vec<Attachment>),
    /// The reply to [`Call::Ready`].
    Ready,
    /// The reply to [`Call::Removed`].
    Removed(bool),
    /// The reply to [`Call::Status`].
    Status(Box<Status>),
    /// The reply to [`Call::Routes`].
    Routes(Box<Routes>),
    /// The reply to [`Call::Explain`].
    Explained(Box<Explanation>),
    /// The reply to [`Call::Denials`].
    Denials(Vec<Denial>),
    /// The reply to [`Call::Flows`].
    Flows(Box<Flows>),
    /// The reply to [`Call::Capture`]: the pcapng file follows.
    Capturing,
}

/// The kind of device by which a pod is attached.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Device {
    /// A TUN device inside the pod; the agent holds its queues. It carries IP packets.
    #[default]
    Tun,
    /// A TAP device inside the pod; the agent holds its queues. It carries Ethernet frames.
    Tap,
    /// A veth whose host end is in the agent's own network namespace.
    Veth,
}

impl Device {
    /// All kinds of device.
    pub const ALL: [Self; 3] = [Self::Tun, Self::Tap, Self::Veth];

    /// The kind's name in configurations and tables.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Tun => "tun",
            Self::Tap => "tap",
            Self::Veth => "veth",
        }
    }

    /// The kind's line in the help of commands.
    pub const fn description(self) -> &'static str {
        match self {
            Self::Tun => "A TUN device inside the pod, which carries IP packets",
            Self::Tap => "A TAP device inside the pod, which carries Ethernet frames",
            Self::Veth => "A veth pair that the agent takes over",
        }
    }

    /// The kind of this name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|device| device.name() == name)
    }

    /// Whether another process can make such a device and hand it over to the agent, because its queues are
    /// descriptors.
    pub const fn can_be_handed_over(self) -> bool {
        match self {
            Self::Tun | Self::Tap => true,
            Self::Veth => false,
        }
    }

    /// Whether such a device exists as long as a process has one of its queues, and no longer.
    pub const fn ends_with_queues(self) -> bool {
        match self {
            Self::Tun | Self::Tap => true,
            Self::Veth => false,
        }
    }

    /// Whether such a device has a hardware address, so that its routes name a next hop.
    pub const fn is_ethernet(self) -> bool {
        match self {
            Self::Tap | Self::Veth => true,
            Self::Tun => false,
        }
    }
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Tun => "TUN",
            Self::Tap => "TAP",
            Self::Veth => "veth",
        })
    }
}

/// The result of [`Call::Attach`].
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Attached {
    /// The pod's addresses.
    pub addresses: Vec<IpAddr>,
    /// The kind of device.
    pub device: Device,
    /// The interface's MTU.
    pub mtu: u32,
    /// The interface's hardware address; absent: it has none, or the agent does not report it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mac: Option<[u8; 6]>,
}

/// A TUN or TAP device to make.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reservation {
    /// The kind of device, TUN or TAP; absent: TUN.
    #[serde(default)]
    pub device: Device,
    /// Its addresses. Each is alone on the link (/32, /128).
    pub addresses: Vec<IpAddr>,
    /// Its MTU in bytes.
    pub mtu: u32,
    /// The number of its queues.
    pub queues: usize,
    /// The most segments of a super-packet; if absent, the kernel's own limit.
    pub segments: Option<u32>,
}

/// A pod that has addresses of this node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attachment {
    /// The pod.
    pub pod: PodName,
    /// The runtime's identification of the attachment, if a runtime made it.
    pub id: Option<AttachmentId>,
    /// The addresses.
    pub addresses: Vec<IpAddr>,
    /// The device, if the agent has it. After a restart an agent may have a pod's addresses without its device.
    pub device: Option<Device>,
    /// The hardware address to which packets for the pod are sent, if its device has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mac: Option<[u8; 6]>,
    /// Whether the published tables contain the pod. Until then no packets pass it.
    pub enforced: bool,
}

/// The refusal of a call.
#[derive(Debug, Clone, Serialize, Deserialize, thiserror::Error)]
#[error("{message}")]
pub struct Failure {
    /// The kind, for programs.
    pub kind: ErrorKind,
    /// The text, for people: what was found, what was expected, and what to do.
    pub message: String,
}

/// The kinds of failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ErrorKind {
    /// The request has another protocol version.
    Version,
    /// The request cannot be parsed, or names something that does not exist or that belongs to another pod.
    Invalid,
    /// The pod has no object yet, so no policy is known for it. A later attempt may succeed.
    Unknown,
    /// The agent has not read the objects yet. The text names what it waits for.
    Starting,
    /// No address is left in the node's blocks, or in the cluster's pools.
    Exhausted,
    /// A server that the agent depends on does not answer. A later attempt may succeed.
    Unavailable,
    /// The environment does not allow the call.
    Environment,
    /// Any other failure.
    Internal,
}

/// The status that `manx status` shows.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Status {
    /// The product's version.
    pub version: String,
    /// The node.
    pub node: String,
    /// Seconds since the agent started.
    pub uptime_s: u64,
    /// Whether the datastore has been read completely at least once.
    pub in_sync: bool,
    /// Present if objects may be out of date: the API server does not answer, or cannot report changes of some kind.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stale: Option<Stale>,
    /// The fingerprint of the manifests, equal on all nodes that have read the same ones.
    pub datastore: String,
    /// The number of published tables.
    pub tables: u64,
    /// The number of times that a pod of another node was changed in tables in use.
    pub changed_in_place: u64,
    /// The number of times that routes were changed in tables in use.
    #[serde(default)]
    pub routes_changed_in_place: u64,
    /// Objects that are not valid, each with its place and the reason. They fail closed.
    pub invalid: Vec<String>,
    /// Objects and settings that are valid, but have less effect than their author may believe.
    #[serde(default)]
    pub warnings: Vec<String>,
    /// The number of endpoints of the whole cluster in the tables.
    pub known_endpoints: usize,
    /// The number of policies in the tables.
    pub known_policies: usize,
    /// The number of services' addresses with a port that Manx translates; absent if it translates none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub frontends: Option<usize>,
    /// The endpoints of this node.
    pub endpoints: Vec<EndpointStatus>,
    /// The pods of this node that are not simply attached.
    #[serde(default)]
    pub other_pods: OtherPods,
    /// The agent's settings in the node's kernel, at most [`MAX_NODE_SETTINGS`]; those that the kernel lacks come first.
    #[serde(default)]
    pub node_settings: Vec<NodeSetting>,
    /// The number of all settings, listed or not.
    #[serde(default)]
    pub node_setting_count: usize,
    /// The routes in use.
    pub routes: Vec<RouteStatus>,
    /// The worker's ports.
    pub ports: Vec<PortStatus>,
    /// The workers.
    pub workers: Vec<WorkerStatus>,
    /// Flows, at most [`MAX_FLOWS`] of each worker, in no order.
    pub flows: Vec<FlowStatus>,
    /// Allowed and denied packets, by the rule (or reason) that decided.
    pub rules: Vec<RuleCount>,
    /// Packets that matched a rule before the decision, by rule: `Pass` and `Log` rules, and the rules of staged
    /// policies.
    pub noted: Vec<NotedCount>,
    /// The size of the policy tables.
    pub policy: PolicyStatus,
    /// Whether the last tables were proved before they were published.
    pub verification: Verification,
    /// The addresses by which other nodes reach this one, one of each family that the node has or should have.
    #[serde(default)]
    pub node_addresses: Vec<NodeAddress>,
    /// The state of BGP on the node; absent if the node does not speak BGP.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bgp: Option<BgpStatus>,
}

/// Pods that are not simply attached: the agent is working on them, or they have no device.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OtherPods {
    /// The number of such pods.
    pub count: usize,
    /// The pods that have been longest in their state, at most [`MAX_OTHER_PODS`].
    pub longest: Vec<PodState>,
}

/// A pod and its state.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PodState {
    /// The pod.
    pub pod: PodName,
    /// The agent's work on the pod, or what the pod lacks, for people.
    pub state: String,
    /// The time when the state began, in seconds since 1970.
    pub since: u64,
    /// The time since then, in seconds.
    pub for_s: u64,
}

/// Objects that may be out of date. They stay in force.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stale {
    /// The time since which objects may be out of date, in seconds since 1970.
    pub since: u64,
    /// The time since then, in seconds.
    pub for_s: u64,
    /// The reason why objects may be out of date.
    pub reason: String,
}

/// The size of the policy tables.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PolicyStatus {
    /// Chains of policies.
    pub chains: usize,
    /// The chains that are evaluated rule by rule, which is slower: their rows would exceed the memory budget, or their
    /// predicates differ between the addresses of the local end.
    pub linear: usize,
    /// Classes of peers.
    pub classes: usize,
    /// Distinct rows.
    pub rows: usize,
    /// The bytes of the tables that lookups read.
    pub bytes: usize,
}

/// The result of the proof of the last tables (`manx node --verify-tables`).
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verification {
    /// The tables are not proved.
    #[default]
    Off,
    /// The tables were proved and published.
    Proved(Verified),
    /// The tables give a wrong result for a packet, and were not published.
    Refuted(Box<Refutation>),
}

/// The size of a proof.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Verified {
    /// The cells of the tables.
    pub cells: u64,
    /// The distinct comparisons among them.
    pub questions: u64,
    /// The time that the proof took, in milliseconds.
    pub milliseconds: u64,
}

/// The packets that matched one rule which did not decide them. The end of a staged policy's tier counts as a rule.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NotedCount {
    /// The rule; `StagedNetworkPolicy default/p ingress[end of tier]` if no rule of a staged policy would have decided.
    pub rule: String,
    /// The action of the rule, or the action that a staged rule would have had: `allow`, `deny`, `pass` or `log`.
    pub action: String,
    /// Whether its policy is staged.
    pub staged: bool,
    /// Packets, super-packets counted in segments.
    pub packets: u64,
}

/// An endpoint of this node.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct EndpointStatus {
    /// The pod.
    pub pod: PodName,
    /// Its addresses.
    pub addresses: Vec<IpAddr>,
    /// The name of its port.
    pub port: String,
    /// The kind of device.
    pub device: Device,
    /// Whether the published tables contain the endpoint. Until then no packets pass it.
    pub enforced: bool,
    /// The policies that select the endpoint for ingress.
    pub ingress: Vec<String>,
    /// The policies that select the endpoint for egress.
    pub egress: Vec<String>,
}

/// A routing rule, route, address, sysctl or list of reserved ports in the node's kernel.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeSetting {
    /// The setting, in the words of `ip` or `sysctl`.
    pub what: String,
    /// Whether the kernel has the setting now.
    pub stands: bool,
}

/// A route in use.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct RouteStatus {
    /// The destination prefix.
    pub prefix: String,
    /// The next hop in words, e.g. `pod default/web`, `IPIP to 172.18.0.3 by uplink-raw`, `host`, `unreachable`.
    pub via: String,
}

/// The routes of all sources.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Routes {
    /// The node.
    pub node: String,
    /// The routes in the order of their prefixes, and for one prefix in the order of their sources. The last route of
    /// each prefix is used.
    pub routes: Vec<SourceRoute>,
}

/// The route of one source for a prefix.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SourceRoute {
    /// The prefix.
    pub prefix: String,
    /// The source, e.g. `own block`, `block of a node`, `attached pod`.
    pub source: String,
    /// The object from which the route follows, e.g. `node n2`, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub object: Option<String>,
    /// The next hop in words, e.g. `pod default/web`, `IPIP to 172.18.0.3 by uplink-raw`, `host`, `nowhere`.
    pub via: String,
    /// The reason why the route leads nowhere, or why its tunnel does not work.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Whether this route is used: it is the last of the list for its prefix.
    pub used: bool,
}

/// A port and its traffic.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct PortStatus {
    /// The name: `pod:namespace/name`, `host`, `forwarded`, `service`, or a name that begins with `uplink-`.
    pub name: String,
    /// Packets received, super-packets counted in segments.
    pub received_packets: u64,
    /// Bytes received.
    pub received_bytes: u64,
    /// Packets sent, super-packets counted in segments.
    pub sent_packets: u64,
    /// Bytes sent.
    pub sent_bytes: u64,
    /// Packets that came in by this port and were dropped, by reason. Reasons without packets are left out.
    pub drops: std::collections::BTreeMap<String, u64>,
}

/// A worker and its counters.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct WorkerStatus {
    /// The core that the worker is pinned to, if any.
    pub core: Option<usize>,
    /// Turns that found packets.
    pub busy_turns: u64,
    /// The number of times that the worker went to sleep.
    pub parks: u64,
    /// Packets handled.
    pub packets: u64,
    /// Time-stamp counter cycles spent in turns (rounds over the ports) that found packets.
    pub busy_cycles: u64,
    /// Packets that this worker read and handed off to the worker of their flow.
    pub handed_off: u64,
    /// Packets that other workers handed off to this worker for a port that it no longer has. They were dropped.
    pub portless: u64,
    /// Flows in its table.
    pub flows: u64,
    /// Flows evicted to make room.
    pub evictions: u64,
}

/// A flow, in the direction of its first packet.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct FlowStatus {
    /// IP protocol number.
    pub protocol: u8,
    /// The address that opened it.
    pub source: IpAddr,
    /// Source port, or 0.
    pub source_port: u16,
    /// The destination address of its first packet.
    pub destination: IpAddr,
    /// Destination port, or 0.
    pub destination_port: u16,
    /// The state of the connection, e.g. `established`.
    pub state: String,
    /// `allow` or `deny`.
    pub verdict: String,
    /// Packets in the original direction and in the reply direction, super-packets counted in segments.
    pub packets: [u64; 2],
    /// Seconds since the last packet.
    pub idle_s: u64,
    /// The rule, or the reason, by which the source's egress policy decided, if the source is on this node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub egress: Option<String>,
    /// The rule, or the reason, by which the destination's ingress policy decided, if the destination is on this node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ingress: Option<String>,
}

/// The reply to [`Call::Flows`].
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Flows {
    /// Flows in the tables, at most [`MAX_FLOWS`] of each worker, in no order.
    pub flows: Vec<FlowStatus>,
    /// The number of flows in the tables that are not in `flows`.
    pub more: u64,
    /// The flows denied since the point of the request, oldest first.
    pub denials: Vec<Denial>,
    /// The number of flows that have been denied: the point for the next request.
    pub denied: u64,
    /// The number of denied flows since the point of the request that are no longer kept.
    pub forgotten: u64,
    /// The number of denied flows since the agent started that the workers did not report, because there were too many.
    pub unreported: u64,
    /// The number of live flows that were evicted from the tables since the agent started.
    pub evicted: u64,
}

/// The packets that one rule (or the lack of one) decided.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct RuleCount {
    /// The rule, or the reason.
    pub rule: String,
    /// `allow` or `deny`.
    pub verdict: String,
    /// Packets, super-packets counted in segments.
    pub packets: u64,
}

/// The first packet of a denied flow.
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
    /// The rule, or the reason, that decided.
    pub rule: String,
}
