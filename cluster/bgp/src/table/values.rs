//! The inputs and outputs of the table.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use crate::export::Exports;
use crate::filter::Filters;
use crate::path::Update;
use crate::peer::Peer;

/// The configuration of the table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Configuration {
    /// This node's identifier.
    pub identifier: Ipv4Addr,
    /// The cluster in which this node reflects routes (RFC 4456).
    pub cluster: Option<Ipv4Addr>,
    /// This node's addresses. A path is refused if its next hop is one of them.
    pub addresses: BTreeSet<IpAddr>,
    /// The peers, by their addresses.
    pub peers: BTreeMap<IpAddr, Peer>,
    /// The filters of each peer that has filters.
    pub filters: BTreeMap<IpAddr, Filters>,
    /// The rules for announcing routes.
    pub exports: Exports,
    /// The maximum number of prefixes of a peer that is not a node.
    pub prefixes: usize,
    /// The maximum number of prefixes of a peer that is a node.
    pub prefixes_of_node: usize,
}

impl Configuration {
    /// The configuration of a node without peers.
    pub(super) const fn none() -> Self {
        Self {
            identifier: Ipv4Addr::UNSPECIFIED,
            cluster: None,
            addresses: BTreeSet::new(),
            peers: BTreeMap::new(),
            filters: BTreeMap::new(),
            exports: Exports::NONE,
            prefixes: 0,
            prefixes_of_node: 0,
        }
    }

    pub(super) const fn limit(&self, peer: &Peer) -> usize {
        if peer.is_node { self.prefixes_of_node } else { self.prefixes }
    }

    /// Whether another configuration also has this peer, with the same parameters and filters.
    pub fn asks_same_of(&self, peer: IpAddr, other: &Self) -> bool {
        self.peers.get(&peer) == other.peers.get(&peer)
            && self.filters.get(&peer) == other.filters.get(&peer)
    }
}

/// A session that was established.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Opened {
    /// The peer's identifier.
    pub identifier: Ipv4Addr,
    /// This node's address in the session. It is the next hop of this node's own routes.
    pub here: IpAddr,
    /// Whether the peer has kept its forwarding state over a restart. If it has, its earlier paths stay valid until it
    /// has sent all routes (RFC 4724, 4.2).
    pub keeps_routes: bool,
    /// The current time.
    pub now: Duration,
}

/// A message for a peer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Message {
    /// Changed routes.
    Update(Update),
    /// End-of-RIB: all routes were sent (RFC 4724, 2).
    EndOfRib,
}

/// A peer has announced more prefixes than allowed, or more bytes of attributes than are allowed for that many
/// prefixes. The session must be closed (RFC 4486).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TooManyPrefixes {
    /// The greatest allowed number of prefixes.
    pub limit: usize,
}

/// The numbers of prefixes in both directions of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counts {
    /// The number of prefixes that were accepted from the peer.
    pub received: usize,
    /// The number of prefixes that were refused since the session began: loops, unusable next hops, and prefixes that
    /// an import filter rejects.
    pub refused: u64,
    /// The number of prefixes that are announced to the peer.
    pub announced: usize,
}

/// A route that a peer has announced.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Learned {
    /// The address to which packets are sent.
    pub next_hop: IpAddr,
    /// The peer.
    pub peer: IpAddr,
}
