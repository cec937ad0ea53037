//! A peer of a node, with the parameters of a session.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

pub use manx_objects::object::bgp::SecretKey;

/// The type of a peer: the configuration that makes a host a peer. The order is Calico's: if two peers have one address,
/// the first type counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PeerType {
    /// A `BGPPeer` of all nodes.
    Global,
    /// A `BGPPeer` of some nodes.
    Node,
    /// A node of the mesh of all nodes.
    Mesh,
}

impl fmt::Display for PeerType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Global => "global",
            Self::Node => "node specific",
            Self::Mesh => "node-to-node mesh",
        })
    }
}

/// The next hop of routes that are announced to a peer (`nextHopMode` of `BGPPeer`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum NextHopMode {
    /// The next hop of the node's own routes is this node. Other routes keep the next hop that was received. A route is
    /// not announced to a peer of another autonomous system that does not reach this next hop directly.
    #[default]
    Auto,
    /// Always this node.
    Own,
    /// Always the received next hop.
    Keep,
}

/// A peer.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Peer {
    /// The peer's address. No two peers have the same address.
    pub address: IpAddr,
    /// The peer's TCP port.
    pub port: u16,
    /// The type of the peer.
    pub kind: PeerType,
    /// The peer's name for people: the name of the object or of the node that makes it a peer.
    pub name: String,
    /// The peer's autonomous system.
    pub system: u32,
    /// This node's autonomous system in the session with the peer.
    pub own_system: u32,
    /// This node's address in sessions with the peer. `None`: the kernel chooses.
    pub source: Option<IpAddr>,
    /// Whether the peer is a node of the cluster. A node is trusted less than a router, because root on that node can
    /// announce anything.
    pub is_node: bool,
    /// Whether this node only waits for the peer to connect.
    pub is_passive: bool,
    /// This node's cluster ID, if this node is a route reflector and the peer is its client (RFC 4456).
    pub reflected_as: Option<Ipv4Addr>,
    /// The next hop of routes that are announced to the peer.
    pub next_hop: NextHopMode,
    /// How often this node's own autonomous system may occur in the AS path of the peer's routes.
    pub own_system_allowed: u8,
    /// The names of the `BGPFilter`s, in order.
    pub filters: Vec<String>,
    /// The Secret's key that contains the password (RFC 2385). `None`: there is no password.
    pub password: Option<SecretKey>,
    /// The greatest number of hops to the peer (RFC 5082); a peer on the same link is one hop away. `None`: there is no
    /// limit.
    pub hops: Option<u8>,
    /// The time for which the peer should keep this node's routes after the session has ended (RFC 4724).
    pub restart_time: Duration,
    /// The hold time, after which a silent peer counts as down.
    pub hold_time: Duration,
}

impl Peer {
    /// Whether the peer is in the same autonomous system.
    pub const fn is_internal(&self) -> bool {
        self.system == self.own_system
    }
}
