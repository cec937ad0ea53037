//! The table's state of a peer, and of its session.

use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use super::bits::Bits;
use super::values::{Counts, Opened};

/// The table's state of a peer.
#[derive(Debug)]
pub(super) struct State {
    pub(super) address: IpAddr,
    /// Whether the peer is in this autonomous system.
    pub(super) is_internal: bool,
    /// The peer's last identifier.
    pub(super) identifier: Ipv4Addr,
    /// The numbers of the prefixes with a path of this peer. Prefixes that had such a path earlier may be included, and
    /// a number may occur twice.
    pub(super) received: Vec<u32>,
    /// The number of prefixes with a path of this peer.
    pub(super) count: usize,
    /// The number of these prefixes whose path is stale.
    pub(super) stale: usize,
    /// The total weight of the peer's paths.
    pub(super) weight: usize,
    pub(super) refused: u64,
    pub(super) session: Option<Session>,
    /// The time when the peer's stale paths are removed.
    pub(super) stale_until: Option<Duration>,
    /// Whether the peer is already in the list of peers with pending announcements.
    pub(super) is_woken: bool,
}

/// The established session of a peer.
#[derive(Debug)]
pub(super) struct Session {
    pub(super) opened: Opened,
    /// The group of peers that get equal announcements. `None` if this peer has filters, because it is then in no
    /// group.
    pub(super) group: Option<u64>,
    /// The prefixes that were announced to the peer and not withdrawn.
    pub(super) announced: Bits,
    /// The position up to which the session has read the log of changes.
    pub(super) reader: u64,
    /// Whether End-of-RIB was sent.
    pub(super) has_ended: bool,
    /// Whether all routes were sent to the peer, so that it waits for changes.
    pub(super) rests: bool,
}

impl State {
    pub(super) const fn new(address: IpAddr, is_internal: bool) -> Self {
        Self {
            address,
            is_internal,
            identifier: Ipv4Addr::UNSPECIFIED,
            received: Vec::new(),
            count: 0,
            stale: 0,
            weight: 0,
            refused: 0,
            session: None,
            stale_until: None,
            is_woken: false,
        }
    }

    pub(super) fn counts(&self) -> Counts {
        let announced = self.session.as_ref().map_or(0, |it| it.announced.len());
        Counts { received: self.count, refused: self.refused, announced }
    }
}
