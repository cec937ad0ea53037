//! A peer of a node, with all that a session with it follows from.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

pub use manx_objects::object::bgp::SecretKey;

/// What makes somebody a peer. The order is Calico's: of two with one address the first counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PeerType {
    /// A `BGPPeer` of all nodes.
    Global,
    /// A `BGPPeer` of some nodes.
    Node,
    /// The mesh of all nodes.
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

/// The next hop of routes that a peer is told of (`nextHopMode` of `BGPPeer`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum NextHopMode {
    /// This node for what begins here; else as it came. A peer of another autonomous system that does not reach that is not
    /// told.
    #[default]
    Auto,
    /// Always this node.
    Own,
    /// Always as it came.
    Keep,
}

/// A peer.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Peer {
    /// Its address. No two peers have the same.
    pub address: IpAddr,
    /// Its TCP port.
    pub port: u16,
    /// What makes it a peer.
    pub kind: PeerType,
    /// What a person knows it by: the object's name, or the node's.
    pub name: String,
    /// Its autonomous system.
    pub system: u32,
    /// This node's autonomous system, as the peer sees it.
    pub own_system: u32,
    /// The address of this node by which it speaks with the peer. `None`: the kernel chooses.
    pub source: Option<IpAddr>,
    /// Whether it is a node of the cluster. A node is believed less than a router: root of that node can tell anything.
    pub is_node: bool,
    /// Whether this node only listens.
    pub is_passive: bool,
    /// This node's cluster, if the peer is a client of its reflector (RFC 4456).
    pub reflected_as: Option<Ipv4Addr>,
    /// The next hop of what the peer is told.
    pub next_hop: NextHopMode,
    /// How often this node's own autonomous system may be in a path of the peer.
    pub own_system_allowed: u8,
    /// The names of the `BGPFilter`s, in order.
    pub filters: Vec<String>,
    /// Where the password of RFC 2385 is. `None`: there is none.
    pub password: Option<SecretKey>,
    /// How many hops away the peer may be at most (RFC 5082); a peer on a link is one away. `None`: anywhere.
    pub hops: Option<u8>,
    /// How long the peer is to keep this node's routes when the session is gone (RFC 4724).
    pub restart_time: Duration,
    /// The time after which a silent peer is gone.
    pub hold_time: Duration,
}

impl Peer {
    /// Whether the peer is of the same autonomous system.
    pub const fn is_internal(&self) -> bool {
        self.system == self.own_system
    }
}
