//! Decides whether an agent that has just started reports itself as not ready until its BGP peers know its routes
//! again.
//!
//! Calico's rule decides first: in the first seconds all peers must have a session, and later one is enough. Manx limits
//! the rule, because the node cannot repair its peers, and a node without any peer still attaches pods and judges packets:
//! - it applies only to the start: an agent that has been ready once never waits again;
//! - after a few minutes the agent is ready, whatever its peers do.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use manx_objects::few;

/// The time from the start for which all sessions are required (the threshold of Calico's probe).
const EVERY: Duration = Duration::from_secs(30);
/// The time from the start for which at least one session is required.
const ONE: Duration = Duration::from_mins(5);
/// The most peers that a message names.
const NAMED: usize = 3;

/// The state of the sessions that decides about readiness.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Sessions {
    /// The number of established sessions.
    pub(super) established: usize,
    /// The peers without an established session.
    pub(super) others: Vec<IpAddr>,
    /// Whether the last agent's routes are still in force, until peers have announced theirs again (graceful restart).
    pub(super) restarts: bool,
}

/// The gate for readiness: closed at the start, and never closed again after it has opened.
#[derive(Debug, Default)]
pub(super) struct Gate {
    /// The time of the first check, when tables of all objects are in force and sessions are possible.
    began: Option<Instant>,
    is_open: bool,
}

impl Gate {
    /// The reason why the agent is not ready. `sessions` is not called once the agent has been ready.
    pub(super) fn waits(
        &mut self,
        now: Instant,
        sessions: impl FnOnce() -> Sessions,
    ) -> Option<String> {
        if self.is_open {
            return None;
        }
        let age = now.saturating_duration_since(*self.began.get_or_insert(now));
        let waits = reason(age, &sessions());
        self.is_open = waits.is_none();
        waits
    }
}

/// The reason why an agent of this age waits, if it does.
fn reason(age: Duration, Sessions { established, others, restarts }: &Sessions) -> Option<String> {
    let (what, time) = match others.len() {
        0 if *restarts && age < EVERY => {
            ("BGP graceful restart is not over: its end is".to_owned(), EVERY)
        }
        0 => return None,
        _ if age < EVERY => {
            (format!("BGP not established with {}: every peer is", few(others, NAMED)), EVERY)
        }
        _ if *established == 0 && age < ONE => {
            (format!("BGP not established with {}: one peer is", few(others, NAMED)), ONE)
        }
        _ => return None,
    };
    let seconds = time.as_secs();
    Some(format!(
        "{what} waited for until {seconds} s after the start; `manx node status` tells why"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sessions(established: usize, others: usize, restarts: bool) -> Sessions {
        let address = |last: usize| IpAddr::from([10, 0, 0, u8::try_from(last).unwrap()]);
        Sessions { established, others: (1..=others).map(address).collect(), restarts }
    }

    fn waits(age: u64, sessions: &Sessions) -> bool {
        reason(Duration::from_secs(age), sessions).is_some()
    }

    #[test]
    fn in_the_first_seconds_every_peer_counts_and_later_one_is_enough() {
        for age in 0..1000 {
            let (is_first, is_early) = (age < EVERY.as_secs(), age < ONE.as_secs());
            assert!(!waits(age, &sessions(0, 0, false)), "no peers: {age}");
            assert!(!waits(age, &sessions(3, 0, false)), "all: {age}");
            assert_eq!(waits(age, &sessions(3, 0, true)), is_first, "a restart: {age}");
            for others in 1..5 {
                assert_eq!(waits(age, &sessions(2, others, false)), is_first, "some: {age}");
                assert_eq!(waits(age, &sessions(0, others, true)), is_early, "none: {age}");
            }
        }
    }

    /// Whatever the sessions do, a ready agent stays ready, and no peer delays readiness for longer than the limit.
    #[test]
    fn no_peer_makes_an_agent_not_ready_again_nor_for_long() {
        let start = Instant::now();
        for seed in 0..200_u64 {
            let (mut gate, mut was_ready, mut state) = (Gate::default(), false, seed);
            for age in 0..=ONE.as_secs() {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(seed);
                let bits = (state >> 40) as usize;
                let of = sessions(bits % 3, 1 + bits / 4 % 4, (bits / 16).is_multiple_of(2));
                // Some peers never have a session.
                let of =
                    if seed.is_multiple_of(2) { Sessions { established: 0, ..of } } else { of };
                let is_ready = gate.waits(start + Duration::from_secs(age), || of).is_none();
                assert!(is_ready || !was_ready, "seed {seed}, {age} s");
                was_ready = is_ready;
            }
            assert!(was_ready, "seed {seed}");
        }
    }

    #[test]
    fn what_is_waited_for_is_told() {
        let at = |age, sessions| reason(Duration::from_secs(age), &sessions).unwrap_or_default();
        let told = [
            at(1, sessions(4, 5, true)),
            at(1, sessions(4, 0, true)),
            at(60, sessions(0, 1, false)),
        ];
        insta::assert_snapshot!(told.join("\n"), @r"
        BGP not established with 10.0.0.1, 10.0.0.2, 10.0.0.3 and 2 more: every peer is waited for until 30 s after the start; `manx node status` tells why
        BGP graceful restart is not over: its end is waited for until 30 s after the start; `manx node status` tells why
        BGP not established with 10.0.0.1: one peer is waited for until 300 s after the start; `manx node status` tells why
        ");
    }
}
