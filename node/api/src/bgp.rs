//! The status of a node's BGP.

use std::net::{IpAddr, Ipv4Addr};

use serde::{Deserialize, Serialize};

/// The BGP status of a node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BgpStatus {
    /// The node's autonomous system.
    pub system: u32,
    /// The router identifier; absent until the objects have been read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub identifier: Option<Ipv4Addr>,
    /// The addresses by which other nodes have this node as a peer, at most one of each family.
    #[serde(default)]
    pub addresses: Vec<BgpAddress>,
    /// The TCP port at which the node listens.
    pub listening: u16,
    /// The connections that were closed at once, because their source is no configured peer.
    pub refused_connections: u64,
    /// Settings of the objects that the node does not apply, each with the reason and the remedy.
    pub problems: Vec<String>,
    /// The sessions, in the order of the peers' addresses.
    pub sessions: Vec<BgpSession>,
}

/// An address of the node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BgpAddress {
    /// The address.
    pub address: IpAddr,
    /// The field or method that gives the address, as in the Node's object.
    pub source: String,
}

/// A session with a peer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BgpSession {
    /// The peer's address.
    pub peer: IpAddr,
    /// The peer's name: that of the object, or of the node.
    pub name: String,
    /// The object or setting that configures the peer, in Calico's terms.
    pub kind: String,
    /// The peer's autonomous system.
    pub system: u32,
    /// The state (RFC 4271, 8.2.2).
    pub state: String,
    /// The seconds for which the session has been in this state.
    pub since_s: u64,
    /// The reason why there is no session, or why the last one ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_error: Option<String>,
    /// The negotiated hold time in seconds, after which a silent peer counts as down; absent unless the session is
    /// established.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hold_time_s: Option<u64>,
    /// The seconds for which the peer's routes are kept if the connection is lost. If absent, they are removed with the
    /// connection.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub restart_time_s: Option<u64>,
    /// The numbers of prefixes.
    pub prefixes: BgpPrefixes,
}

/// The numbers of prefixes of a session.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct BgpPrefixes {
    /// The prefixes that the peer announces now and this node has accepted.
    pub received: usize,
    /// The prefixes refused since the session began: loops, unusable next hops, and prefixes that an import filter rejects.
    pub refused: u64,
    /// The prefixes that are announced to the peer now.
    pub announced: usize,
    /// The malformed UPDATEs of the peer that did not end the session (RFC 7606).
    pub malformed: u64,
    /// The prefixes that could not be announced, because their attributes fit into no message.
    pub unannounced: u64,
}
