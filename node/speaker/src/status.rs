//! How each session is.

use std::collections::BTreeMap;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Mutex;
use std::time::{Duration, SystemTime};

use manx_bgp::peer::{Peer, PeerType};
use manx_bgp::table::Counts;

use crate::routes::lock;

/// The state of a session (RFC 4271, 8.2.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum SessionState {
    /// Nothing is tried: there cannot be a session, or the last one ended with an error a moment ago.
    #[default]
    Idle,
    /// A connection is begun.
    Connect,
    /// The peer is waited for, or the next attempt to connect.
    Active,
    /// There is a connection, and the peer's OPEN has not come.
    OpenSent,
    /// The peer's OPEN has come, and it has not agreed to this node's.
    OpenConfirm,
    /// Routes are exchanged.
    Established,
}

impl fmt::Display for SessionState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// How a session is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SessionStatus {
    /// The peer's address.
    pub peer: IpAddr,
    /// What a person knows the peer by.
    pub name: String,
    /// What makes it a peer.
    pub kind: PeerType,
    /// Its autonomous system.
    pub system: u32,
    /// The state.
    pub state: SessionState,
    /// The time since which it is in this state.
    pub since: SystemTime,
    /// Why there is no session, or why the last one ended. An established session keeps the words of the one before.
    pub last_error: Option<String>,
    /// What holds while it is established.
    pub established: Option<Established>,
    /// The prefixes of the peer here, and of this node there.
    pub counts: Counts,
    /// The UPDATEs of the peer that were wrong and cost no session (RFC 7606), since this peer was configured.
    pub malformed: u64,
    /// The routes that the peer could not be told, because their attributes fit into no message.
    pub untold: u64,
}

/// What was agreed on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Established {
    /// The peer's identifier.
    pub identifier: Ipv4Addr,
    /// This node's address.
    pub here: IpAddr,
    /// The time after which a silent peer is gone. Zero: never.
    pub hold_time: Duration,
    /// How long the peer's routes are kept if the connection is lost (RFC 4724). `None`: they go with it.
    pub restart_time: Option<Duration>,
}

/// The states of all sessions.
#[derive(Debug, Default)]
pub(crate) struct Board(Mutex<BTreeMap<IpAddr, SessionStatus>>);

impl Board {
    /// Begins the status of a peer.
    pub(crate) fn join(&self, peer: &Peer) {
        let Peer { address, kind, name, system, .. } = peer;
        let status = SessionStatus {
            peer: *address,
            name: name.clone(),
            kind: *kind,
            system: *system,
            state: SessionState::Idle,
            since: SystemTime::now(),
            last_error: None,
            established: None,
            counts: Counts::default(),
            malformed: 0,
            untold: 0,
        };
        lock(&self.0).insert(*address, status);
    }

    /// Ends it.
    pub(crate) fn leave(&self, peer: IpAddr) {
        lock(&self.0).remove(&peer);
    }

    /// Changes the status of a peer. Returns whether it differs now.
    pub(crate) fn change(&self, peer: IpAddr, change: impl FnOnce(&mut SessionStatus)) -> bool {
        let mut all = lock(&self.0);
        let Some(status) = all.get_mut(&peer) else { return false };
        let before = status.clone();
        change(status);
        if status.state != before.state {
            status.since = SystemTime::now();
        }
        *status != before
    }

    /// All of them, by the peers' addresses.
    pub(crate) fn all(&self) -> Vec<SessionStatus> {
        lock(&self.0).values().cloned().collect()
    }
}
