//! The table's state of a peer, and of its session.

use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use super::bits::Bits;
use super::values::{Counts, Opened};

/// The table's state of a peer.
#[derive(Debug)]
pub(super) struct State {
    pub(super) address: IpAddr,
    /// Whether the peer is of this autonomous system.
    pub(super) is_internal: bool,
    /// The identifier that it had last.
    pub(super) identifier: Ipv4Addr,
    /// The numbers of the prefixes that have a path of it, and of some that had one. A number may stand here twice.
    pub(super) received: Vec<u32>,
    /// How many prefixes have a path of it.
    pub(super) count: usize,
    /// How many of these paths are stale.
    pub(super) stale: usize,
    /// The sum of its paths' weights.
    pub(super) weight: usize,
    pub(super) refused: u64,
    pub(super) session: Option<Session>,
    /// The time when its stale paths end.
    pub(super) stale_until: Option<Duration>,
    /// Whether it was named to those who tell.
    pub(super) is_woken: bool,
}

/// The established session of a peer.
#[derive(Debug)]
pub(super) struct Session {
    pub(super) opened: Opened,
    /// The peers that are told alike. `None`: this one has filters, and is alone.
    pub(super) group: Option<u64>,
    /// The prefixes that it has been told and that were not withdrawn.
    pub(super) told: Bits,
    /// How far it has read the log of changes.
    pub(super) reader: u64,
    /// Whether it was said that everything was told.
    pub(super) has_ended: bool,
    /// Whether it is among those that have been told everything and wait for changes.
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
        let told = self.session.as_ref().map_or(0, |it| it.told.len());
        Counts { received: self.count, refused: self.refused, told }
    }
}
