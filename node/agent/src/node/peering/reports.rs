//! Decides which changes of sessions are reported by Events: lasting changes of sessions with routers.
//!
//! Sessions with other nodes are not reported: when a node ends, all other nodes would write at once. For one router, each
//! of 5,000 nodes writes at most one Event in a minute.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::{Duration, Instant};

/// A change is reported after it has lasted this long. A session is usually established within some seconds after a
/// restart.
const LASTS: Duration = Duration::from_secs(30);
/// The shortest time between two Events about one peer.
const QUIET: Duration = Duration::from_mins(1);
/// The most peers that are reported, the first in the order of their addresses.
const MOST: usize = 64;
/// The interval at which the sessions are checked.
const LOOKS: Duration = Duration::from_secs(1);

/// The last report about each peer.
#[derive(Debug, Default)]
pub(super) struct Reports {
    reported: BTreeMap<IpAddr, PeerReport>,
    next_look: Option<Instant>,
}

/// The last report about a peer.
#[derive(Debug)]
struct PeerReport {
    /// Whether the report said that a session exists. A peer without a report yet counts as one with a session.
    is_up: bool,
    /// The time since which the session's state differs from the report.
    differs: Option<Instant>,
    /// The time until which the peer is not reported.
    quiet: Option<Instant>,
}

impl Reports {
    /// Whether it is time to check again.
    pub(super) fn is_due(&mut self, now: Instant) -> bool {
        let is_due = self.next_look.is_none_or(|at| now >= at);
        if is_due {
            self.next_look = Some(now + LOOKS);
        }
        is_due
    }

    /// Checks the sessions; each item is a peer, and whether its session is established. Returns the peers to report, with
    /// the new state.
    pub(super) fn look(
        &mut self,
        now: Instant,
        sessions: impl IntoIterator<Item = (IpAddr, bool)>,
    ) -> Vec<(IpAddr, bool)> {
        let sessions: BTreeMap<IpAddr, bool> = sessions.into_iter().take(MOST).collect();
        self.reported.retain(|peer, _| sessions.contains_key(peer));
        let mut news = Vec::new();
        for (peer, is_up) in sessions {
            let reported = self.reported.entry(peer).or_insert(PeerReport {
                is_up: true,
                differs: None,
                quiet: None,
            });
            if reported.is_up == is_up {
                reported.differs = None;
                continue;
            }
            let since = *reported.differs.get_or_insert(now);
            let has_lasted = now.saturating_duration_since(since) >= LASTS;
            if has_lasted && reported.quiet.is_none_or(|until| now >= until) {
                *reported = PeerReport { is_up, differs: None, quiet: Some(now + QUIET) };
                news.push((peer, is_up));
            }
        }
        news
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(last: u8) -> IpAddr {
        IpAddr::from([10, 0, 0, last])
    }

    #[test]
    fn what_lasts_is_told_once_and_what_does_not_is_not() {
        let (start, mut reports) = (Instant::now(), Reports::default());
        let mut at =
            |seconds, is_up| reports.look(start + Duration::from_secs(seconds), [(peer(1), is_up)]);
        assert_eq!(at(0, true), []);
        assert_eq!(at(1, false), []);
        assert_eq!(at(20, true), []);
        assert_eq!(at(21, false), []);
        assert_eq!(at(50, false), []);
        assert_eq!(at(51, false), [(peer(1), false)]);
        assert_eq!(at(100, false), []);
        assert_eq!(at(101, true), []);
        assert_eq!(at(131, true), [(peer(1), true)]);
    }

    #[test]
    fn a_peer_that_never_had_a_session_is_told_and_one_that_is_gone_is_not() {
        let (start, mut reports) = (Instant::now(), Reports::default());
        assert_eq!(reports.look(start, [(peer(1), false), (peer(2), false)]), []);
        let later = start + LASTS;
        assert_eq!(reports.look(later, [(peer(1), false)]), [(peer(1), false)]);
        assert_eq!(reports.look(later, [(peer(1), false), (peer(2), false)]), [], "it is new");
    }

    /// Whatever the sessions do, there are few Events, and each one about a peer reports the opposite of the one before.
    #[test]
    fn of_each_peer_one_is_told_in_a_minute_at_most() {
        let start = Instant::now();
        for seed in 1..50_u64 {
            let (mut reports, mut state) = (Reports::default(), seed);
            let mut last: BTreeMap<IpAddr, (u64, bool)> = BTreeMap::new();
            let mut up = [true; 200];
            let mut reported = 0;
            for second in 0..2000 {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                let at = (state >> 33) as usize;
                if at.is_multiple_of(3) {
                    up[at % 200] = !up[at % 200];
                }
                let now = start + Duration::from_secs(second);
                let all = up
                    .iter()
                    .enumerate()
                    .map(|(at, is_up)| (peer(u8::try_from(at).unwrap()), *is_up));
                for (peer, is_up) in reports.look(now, all) {
                    reported += 1;
                    match last.insert(peer, (second, is_up)) {
                        Some((before, was_up)) => {
                            assert!(second - before >= QUIET.as_secs() && was_up != is_up);
                        }
                        None => assert!(!is_up),
                    }
                }
            }
            assert!(reported > 20 && last.len() <= MOST, "{reported} {}", last.len());
        }
    }
}
