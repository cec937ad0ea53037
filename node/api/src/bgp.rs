//! The status of a node's BGP.

use std::net::{IpAddr, Ipv4Addr};

use serde::{Deserialize, Serialize};

/// A node's part in BGP.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BgpStatus {
    /// The node's autonomous system.
    pub system: u32,
    /// Its identifier; absent until the objects have been read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub identifier: Option<Ipv4Addr>,
    /// The addresses by which other nodes have it as a peer, one of each family at most.
    #[serde(default)]
    pub addresses: Vec<BgpAddress>,
    /// The TCP port at which it listens.
    pub listening: u16,
    /// The connections that were closed at once, because they came from nobody who is a peer.
    pub refused_connections: u64,
    /// What the objects ask and the node does not do, each with what to do.
    pub problems: Vec<String>,
    /// The sessions, by the peers' addresses.
    pub sessions: Vec<BgpSession>,
}

/// An address of the node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BgpAddress {
    /// The address.
    pub address: IpAddr,
    /// What says so, as the Node's object has it.
    pub source: String,
}

/// A session with a peer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BgpSession {
    /// The peer's address.
    pub peer: IpAddr,
    /// The peer's name: that of the object, or of the node.
    pub name: String,
    /// What makes it a peer, in Calico's words.
    pub kind: String,
    /// Its autonomous system.
    pub system: u32,
    /// The state (RFC 4271, 8.2.2).
    pub state: String,
    /// The seconds since it has this state.
    pub since_s: u64,
    /// Why there is no session, or why the last one ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_error: Option<String>,
    /// The seconds after which a silent peer is gone, while the session is established.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hold_time_s: Option<u64>,
    /// The seconds for which the peer's routes are kept if the connection is lost. Absent: they go with it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub restart_time_s: Option<u64>,
    /// The numbers of prefixes.
    pub prefixes: BgpPrefixes,
}

/// The numbers of prefixes of a session.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct BgpPrefixes {
    /// Those that the peer has told and that are taken.
    pub received: usize,
    /// Those that it has told since the session began and that lead back, or nowhere.
    pub refused: u64,
    /// Those that it has been told.
    pub told: usize,
    /// Its updates that were wrong and cost no session.
    pub malformed: u64,
    /// Those that it could not be told.
    pub untold: u64,
}
