//! What the table is told, and what it says.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use crate::export::Exports;
use crate::filter::Filters;
use crate::path::Update;
use crate::peer::Peer;

/// What the table is to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Configuration {
    /// This node's identifier.
    pub identifier: Ipv4Addr,
    /// The cluster that this node reflects routes in (RFC 4456).
    pub cluster: Option<Ipv4Addr>,
    /// This node's addresses. A path whose next hop is one of them is not taken.
    pub addresses: BTreeSet<IpAddr>,
    /// The peers, by their addresses.
    pub peers: BTreeMap<IpAddr, Peer>,
    /// The filters of those peers that have some.
    pub filters: BTreeMap<IpAddr, Filters>,
    /// What leaves the node.
    pub exports: Exports,
    /// The most prefixes of one peer that is no node.
    pub prefixes: usize,
    /// The most prefixes of one that is.
    pub prefixes_of_node: usize,
}

impl Configuration {
    /// That of a node without peers.
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

    /// Whether another configuration has this peer, too, and asks the same of it.
    pub fn asks_same_of(&self, peer: IpAddr, other: &Self) -> bool {
        self.peers.get(&peer) == other.peers.get(&peer)
            && self.filters.get(&peer) == other.filters.get(&peer)
    }
}

/// A session that has been established.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Opened {
    /// The peer's identifier.
    pub identifier: Ipv4Addr,
    /// This node's address in the session. Routes of this node lead to it.
    pub here: IpAddr,
    /// Whether the peer has kept its forwarding state over a restart, so that its paths of before hold until it has told
    /// all (RFC 4724, 4.2).
    pub keeps_routes: bool,
    /// The time.
    pub now: Duration,
}

/// A message for a peer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Message {
    /// Routes that have changed.
    Update(Update),
    /// Everything has been told (RFC 4724, 2).
    EndOfRib,
}

/// A peer has told more prefixes than it may, or more bytes of attributes than so many prefixes need. The session has to
/// be closed (RFC 4486).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TooManyPrefixes {
    /// The most that it may tell.
    pub limit: usize,
}

/// How many prefixes a peer has told, and has been told.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counts {
    /// The prefixes that are taken from it.
    pub received: usize,
    /// The prefixes that were refused since the session began: loops, and next hops that lead back.
    pub refused: u64,
    /// The prefixes that it has been told.
    pub told: usize,
}

/// A route that peers have told.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Learned {
    /// The address to which packets go.
    pub next_hop: IpAddr,
    /// The peer.
    pub peer: IpAddr,
}
