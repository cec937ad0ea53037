//! How each session is.

use std::collections::{BTreeMap, BTreeSet};
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

impl SessionState {
    /// All of them, in the order in which a session passes them.
    pub const ALL: [Self; 6] = [
        Self::Idle,
        Self::Connect,
        Self::Active,
        Self::OpenSent,
        Self::OpenConfirm,
        Self::Established,
    ];
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

/// What has happened in all sessions with peers of one type, since the speaker began. Nothing of it ever decreases, whatever
/// becomes of the peers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Totals {
    /// The sessions that were established.
    pub established: u64,
    /// Those of them that have ended.
    pub ended: u64,
    /// The prefixes that peers told and that were refused.
    pub refused: u64,
    /// The UPDATEs of peers that were wrong and cost no session.
    pub malformed: u64,
    /// The routes that peers could not be told.
    pub untold: u64,
}

/// The states of all sessions, and what has happened in them.
#[derive(Debug, Default)]
pub(crate) struct Board(Mutex<Sessions>);

#[derive(Debug, Default)]
struct Sessions {
    /// By the peers' addresses.
    all: BTreeMap<IpAddr, SessionStatus>,
    totals: BTreeMap<PeerType, Totals>,
}

impl Sessions {
    /// Counts what differs between two states of a session.
    fn count(&mut self, before: &SessionStatus, after: &SessionStatus) {
        let totals = self.totals.entry(after.kind).or_default();
        let is_up = |it: &SessionStatus| it.state == SessionState::Established;
        totals.established += u64::from(is_up(after) && !is_up(before));
        totals.ended += u64::from(is_up(before) && !is_up(after));
        totals.malformed += after.malformed - before.malformed;
        totals.untold += after.untold - before.untold;
    }
}

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
        lock(&self.0).all.insert(*address, status);
    }

    /// Ends it, and with it the session.
    pub(crate) fn leave(&self, peer: IpAddr) {
        let mut sessions = lock(&self.0);
        if let Some(last) = sessions.all.remove(&peer) {
            let ended = SessionStatus { state: SessionState::Idle, ..last.clone() };
            sessions.count(&last, &ended);
        }
    }

    /// Counts prefixes of a peer that were refused.
    pub(crate) fn count_refused(&self, of: PeerType, prefixes: u64) {
        if prefixes > 0 {
            lock(&self.0).totals.entry(of).or_default().refused += prefixes;
        }
    }

    /// Changes the status of a peer. Returns whether it differs now.
    pub(crate) fn change(&self, peer: IpAddr, change: impl FnOnce(&mut SessionStatus)) -> bool {
        let mut sessions = lock(&self.0);
        let Some(status) = sessions.all.get_mut(&peer) else { return false };
        let before = status.clone();
        change(status);
        if status.state != before.state {
            status.since = SystemTime::now();
        }
        if *status == before {
            return false;
        }
        let after = status.clone();
        sessions.count(&before, &after);
        true
    }

    /// All of them, by the peers' addresses.
    pub(crate) fn all(&self) -> Vec<SessionStatus> {
        lock(&self.0).all.values().cloned().collect()
    }

    /// What has happened, by the type of the peers.
    pub(crate) fn totals(&self) -> BTreeMap<PeerType, Totals> {
        lock(&self.0).totals.clone()
    }

    /// The peers with an established session.
    pub(crate) fn established(&self) -> BTreeSet<IpAddr> {
        let sessions = lock(&self.0);
        let up = sessions.all.values().filter(|it| it.state == SessionState::Established);
        up.map(|it| it.peer).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::net::{A, B, address, peer};

    /// A peer's task changes the status in any order, and peers come and go.
    #[test]
    fn totals_never_decrease_and_count_each_session_once() {
        let (board, states) = (
            Board::default(),
            [SessionState::Established, SessionState::Idle, SessionState::OpenSent],
        );
        let (mut last, mut ups, mut downs) = (Totals::default(), 0, 0);
        let mut seed = 7_u64;
        let mut is_up = false;
        for step in 0..10_000 {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let choice = usize::try_from(seed >> 33).unwrap();
            if choice.is_multiple_of(11) || step == 0 {
                board.leave(address(B));
                downs += u64::from(is_up);
                board.join(&peer(A, B));
                is_up = false;
            } else {
                let state = states[choice % states.len()];
                board.change(address(B), |it| {
                    it.state = state;
                    it.malformed += (choice % 2) as u64;
                });
                let now = state == SessionState::Established;
                ups += u64::from(now && !is_up);
                downs += u64::from(is_up && !now);
                is_up = now;
            }
            board.count_refused(PeerType::Mesh, (choice % 3) as u64);
            let now = board.totals()[&PeerType::Mesh];
            assert_eq!((now.established, now.ended), (ups, downs));
            assert_eq!(now.established - now.ended, u64::from(is_up));
            assert!(now.refused >= last.refused && now.malformed >= last.malformed);
            assert_eq!(board.established().contains(&address(B)), is_up);
            last = now;
        }
        assert!(last.established > 1000 && last.malformed > 1000 && last.refused > 1000);
    }
}
