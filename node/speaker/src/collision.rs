//! Decides which of two connections with a peer stays (RFC 4271, 6.8; RFC 4724, 4.2).

use std::net::Ipv4Addr;
use std::time::Duration;

/// If a peer with an established session begins a second connection, it may have lost the session. But if the session
/// is younger than this, both ends are assumed to have begun a connection at the same time.
const YOUNG: Duration = Duration::from_secs(5);

/// The progress of the older connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Progress {
    /// The session is not established.
    Opening,
    /// The session is established.
    Established {
        age: Duration,
        /// Whether the peer supports graceful restart.
        restarts: bool,
    },
}

/// The identifier and autonomous system of one end of a connection. Of two connections, the one that was begun by the
/// end with the greater value stays (RFC 6286, 2.3).
pub(crate) type End = (Ipv4Addr, u32);

/// The connection that stays.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Keep {
    /// The older connection.
    Old,
    /// The connection on which an OPEN has just arrived.
    New,
}

/// Decides when the peer's OPEN has arrived on the new connection. `old_is_ours` and `new_is_ours` say whether this node
/// began that connection.
///
/// The OPEN contains the peer's identifier, so the decision need not wait for an OPEN on the old connection. A node
/// answers an OPEN only on the connection that stays, and begins no further connection meanwhile. So neither end
/// establishes a session that the other end closes.
pub(crate) fn decide(
    progress: Progress,
    old_is_ours: bool,
    new_is_ours: bool,
    (here, there): (End, End),
) -> Keep {
    let new_wins = new_is_ours == (here > there);
    let same_direction = old_is_ours == new_is_ours;
    let is_new = match progress {
        // If the same end began both connections, it has given up the older one.
        Progress::Opening => same_direction || new_wins,
        Progress::Established { age, restarts } => {
            let is_collision = age < YOUNG && !same_direction && !new_wins;
            restarts && !new_is_ours && !is_collision
        }
    };
    if is_new { Keep::New } else { Keep::Old }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOW: End = (Ipv4Addr::new(10, 0, 0, 1), 64512);
    const HIGH: End = (Ipv4Addr::new(10, 0, 0, 2), 64512);

    /// The law of RFC 4271, 6.8: whichever OPEN arrives first at either end, both ends keep the same connection.
    #[test]
    fn both_ends_keep_the_connection_that_the_higher_one_began() {
        for (here, there) in
            [(LOW, HIGH), (HIGH, LOW), ((LOW.0, 65000), LOW), (LOW, (LOW.0, 65000))]
        {
            for new_is_ours in [false, true] {
                let at = |progress| decide(progress, !new_is_ours, new_is_ours, (here, there));
                let began_by_higher = new_is_ours == (here > there);
                let expected = if began_by_higher { Keep::New } else { Keep::Old };
                assert_eq!(at(Progress::Opening), expected);
            }
        }
    }

    #[test]
    fn an_established_session_gives_way_only_to_a_peer_that_restarts() {
        let ends = (HIGH, LOW);
        let established = |age, restarts| {
            let age = Duration::from_secs(age);
            Progress::Established { age, restarts }
        };
        let old = |progress| decide(progress, true, false, ends);
        assert_eq!(old(established(60, false)), Keep::Old);
        assert_eq!(old(established(60, true)), Keep::New);
        assert_eq!(old(established(1, true)), Keep::Old, "both began at the same time");
        let same = decide(established(1, true), false, false, ends);
        assert_eq!(same, Keep::New, "the peer began both");
        let ours = decide(established(60, true), false, true, ends);
        assert_eq!(ours, Keep::Old, "this node has not restarted");
    }
}
