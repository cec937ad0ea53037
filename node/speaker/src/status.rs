//! The status of each session.

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
    /// This node does not try to connect: there can be no session, or the last one ended with an error a moment ago.
    #[default]
    Idle,
    /// This node is connecting.
    Connect,
    /// This node waits for the peer to connect, or for its next own attempt.
    Active,
    /// There is a connection, but the peer's OPEN has not arrived.
    OpenSent,
    /// The peer's OPEN has arrived, but the peer has not yet confirmed this node's.
    OpenConfirm,
    /// Routes are exchanged.
    Established,
}

impl SessionState {
    /// All states, in the order in which a session passes through them.
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

/// The status of a session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SessionStatus {
    /// The peer's address.
    pub peer: IpAddr,
    /// The peer's name for people.
    pub name: String,
    /// The type of the peer.
    pub kind: PeerType,
    /// The peer's autonomous system.
    pub system: u32,
    /// The state.
    pub state: SessionState,
    /// The time when this state began.
    pub since: SystemTime,
    /// The reason why there is no session, or why the last one ended. An established session keeps the text of its
    /// predecessor.
    pub last_error: Option<String>,
    /// The negotiated parameters, while the session is established.
    pub established: Option<Established>,
    /// The numbers of prefixes in both directions.
    pub counts: Counts,
    /// The number of the peer's malformed UPDATEs that did not end the session (RFC 7606), since this peer was configured.
    pub malformed: u64,
    /// The number of routes that could not be sent to the peer, because their attributes fit into no message.
    pub unannounced: u64,
}

/// The negotiated parameters of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Established {
    /// The peer's identifier.
    pub identifier: Ipv4Addr,
    /// This node's address.
    pub here: IpAddr,
    /// The hold time, after which a silent peer counts as down. Zero means never.
    pub hold_time: Duration,
    /// The time for which the peer's routes are kept if the connection is lost (RFC 4724). `None` means that they are
    /// removed at once.
    pub restart_time: Option<Duration>,
}

/// The counters of all sessions with peers of one type, since the speaker began. They never decrease, even if peers are
/// removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Totals {
    /// The number of sessions that were established.
    pub established: u64,
    /// The number of established sessions that have ended.
    pub ended: u64,
    /// The number of announced prefixes of peers that were refused.
    pub refused: u64,
    /// The number of malformed UPDATEs of peers that did not end the session.
    pub malformed: u64,
    /// The number of routes that could not be sent to peers.
    pub unannounced: u64,
}

/// The statuses of all sessions, and their counters.
#[derive(Debug, Default)]
pub(crate) struct Board(Mutex<Sessions>);

#[derive(Debug, Default)]
struct Sessions {
    /// The statuses, by the peers' addresses.
    all: BTreeMap<IpAddr, SessionStatus>,
    totals: BTreeMap<PeerType, Totals>,
}

impl Sessions {
    /// Counts the differences between two statuses of a session.
    fn count(&mut self, before: &SessionStatus, after: &SessionStatus) {
        let totals = self.totals.entry(after.kind).or_default();
        let is_up = |it: &SessionStatus| it.state == SessionState::Established;
        totals.established += u64::from(is_up(after) && !is_up(before));
        totals.ended += u64::from(is_up(before) && !is_up(after));
        totals.malformed += after.malformed - before.malformed;
        totals.unannounced += after.unannounced - before.unannounced;
    }
}

impl Board {
    /// Adds the status of a peer.
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
            unannounced: 0,
        };
        lock(&self.0).all.insert(*address, status);
    }

    /// Removes the status of a peer, and counts its session as ended.
    pub(crate) fn leave(&self, peer: IpAddr) {
        let mut sessions = lock(&self.0);
        if let Some(last) = sessions.all.remove(&peer) {
            let ended = SessionStatus { state: SessionState::Idle, ..last.clone() };
            sessions.count(&last, &ended);
        }
    }

    /// Counts refused prefixes of a peer.
    pub(crate) fn count_refused(&self, of: PeerType, prefixes: u64) {
        if prefixes > 0 {
            lock(&self.0).totals.entry(of).or_default().refused += prefixes;
        }
    }

    /// Changes the status of a peer. Returns whether the change made a difference.
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

    /// All statuses, in the order of the peers' addresses.
    pub(crate) fn all(&self) -> Vec<SessionStatus> {
        lock(&self.0).all.values().cloned().collect()
    }

    /// The counters, by the type of the peers.
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

    /// A peer's task changes the status in any order, and peers are added and removed.
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
