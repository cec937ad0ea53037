//! The agent's health, and the answers to `/liveness` and `/readiness` that follow from it. Also the node's health for load
//! balancers, in kube-proxy's form.

use std::time::{Duration, Instant, SystemTime};

/// The time without a turn after which the agent's control loop, or a worker, counts as dead. The longest work of the
/// control loop, new tables of a very large cluster, takes seconds.
const DEAD: Duration = Duration::from_secs(30);

#[derive(Debug, Clone)]
pub enum Health {
    /// The agent waits until it has read all objects for the first time. If it waits for something, the text names it.
    Starting(Option<String>),
    /// Its control loop turns.
    Running(Running),
}

impl Default for Health {
    fn default() -> Self {
        Self::Starting(None)
    }
}

/// The last report of the control loop.
#[derive(Debug, Clone)]
pub struct Running {
    /// The time of the last turn.
    turned: Instant,
    /// The same time, for people and load balancers.
    turned_at: SystemTime,
    workers: Vec<Turned>,
    /// Whether tables made from all objects are in force.
    pub published: bool,
    /// The time since which objects may be out of date, and the reason.
    pub stale: Option<(SystemTime, String)>,
    /// Whether the last tables were refuted. Then the earlier ones stay in force.
    pub refuted: bool,
    /// The reason why the agent waits for its BGP peers. Only an agent that has just started waits.
    pub awaits_peers: Option<String>,
    /// Whether the node is about to be removed, so that load balancers should use others.
    pub is_leaving: bool,
}

/// The number of a worker's turns, and the time of its last increase.
#[derive(Debug, Clone, Copy)]
struct Turned {
    turns: u64,
    at: Instant,
}

/// The answer to a probe.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HealthAnswer {
    pub well: bool,
    /// The answer as a sentence.
    pub text: String,
}

impl Running {
    /// The health after the first turn of the control loop.
    pub fn new(now: Instant) -> Self {
        Self {
            turned: now,
            turned_at: SystemTime::now(),
            workers: Vec::new(),
            published: false,
            stale: None,
            refuted: false,
            awaits_peers: None,
            is_leaving: false,
        }
    }

    /// Records a turn of the control loop, and the number of turns of each worker.
    pub fn turn(&mut self, now: Instant, turns: impl Iterator<Item = u64>) {
        (self.turned, self.turned_at) = (now, SystemTime::now());
        for (number, turns) in turns.enumerate() {
            match self.workers.get_mut(number) {
                Some(worker) if worker.turns == turns => {}
                Some(worker) => *worker = Turned { turns, at: now },
                None => self.workers.push(Turned { turns, at: now }),
            }
        }
    }

    /// The control loop or the worker that no longer turns, if there is one.
    fn stands_still(&self, now: Instant) -> Option<String> {
        let since = |at| now.saturating_duration_since(at);
        let told = |what: String, for_| {
            let (seconds, most) = (Duration::as_secs(&for_), DEAD.as_secs());
            format!("{what} has not turned for {seconds} s: expected at most {most} s")
        };
        if since(self.turned) > DEAD {
            return Some(told("the control loop".to_owned(), since(self.turned)));
        }
        // The age is relative to the control loop's last turn, because the control loop reads the workers' turns.
        let still = self
            .workers
            .iter()
            .position(|it| self.turned.saturating_duration_since(it.at) > DEAD)?;
        Some(told(format!("worker {still}"), since(self.workers[still].at)))
    }
}

impl Health {
    /// Whether the process should be left running.
    pub fn liveness(&self, now: Instant) -> HealthAnswer {
        match self {
            Self::Starting(_) => {
                HealthAnswer::well("alive: the objects are read for the first time")
            }
            Self::Running(running) => match running.stands_still(now) {
                Some(still) => HealthAnswer::ill(still),
                None => HealthAnswer::well("alive: the control loop and every worker turn"),
            },
        }
    }

    /// Whether pods can be attached and their packets pass. An agent that has just started is not ready while it waits
    /// for its BGP peers (`awaits_peers`).
    pub fn readiness(&self, now: Instant) -> HealthAnswer {
        let answer = self.carries_packets(now);
        match self {
            Self::Running(Running { awaits_peers: Some(peers), .. }) if answer.well => {
                HealthAnswer::ill(format!("not ready: {peers}"))
            }
            _ => answer,
        }
    }

    /// Whether pods can be attached and their packets pass. Objects that may be out of date do not change that, but are
    /// mentioned.
    fn carries_packets(&self, now: Instant) -> HealthAnswer {
        let running = match self {
            Self::Starting(waits) => {
                let waits = waits.as_ref().map(|it| format!(": {it}")).unwrap_or_default();
                return HealthAnswer::ill(format!(
                    "not ready: the objects have not been read, so nothing passes{waits}"
                ));
            }
            Self::Running(running) => running,
        };
        if let Some(still) = running.stands_still(now) {
            return HealthAnswer::ill(still);
        }
        if !running.published {
            return HealthAnswer::ill(
                "not ready: no tables are made of all objects yet, so nothing passes; `manx status` tells what is missing",
            );
        }
        let mut text = "ready".to_owned();
        if let Some((since, reason)) = &running.stale {
            let since = humantime::format_rfc3339_seconds(*since);
            text = format!("{text}; STALE since {since}: what was known stays in force: {reason}");
        }
        if running.refuted {
            text.push_str(
                "; the last tables were refuted, those before stay in force: see `manx status`",
            );
        }
        HealthAnswer::well(text)
    }

    /// The node's health for load balancers (kube-proxy's `ProxyHealth`).
    pub(crate) fn proxy(&self, now: Instant) -> ProxyHealth {
        let (turned_at, is_leaving) = match self {
            Self::Starting(_) => (None, false),
            Self::Running(running) => (Some(running.turned_at), running.is_leaving),
        };
        let is_healthy = self.carries_packets(now).well;
        let current_time = SystemTime::now();
        let last_updated = if is_healthy { Some(current_time) } else { turned_at };
        ProxyHealth { is_healthy, is_eligible: !is_leaving, last_updated, current_time }
    }
}

/// The health of a node's translation of services.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ProxyHealth {
    /// Whether the agent translates services by current objects. BGP peers do not matter here.
    pub(crate) is_healthy: bool,
    /// Whether the node stays. A load balancer sends no new connections to a node that is about to be removed.
    pub(crate) is_eligible: bool,
    /// The current time if the agent is healthy; otherwise the time when it last worked, if it ever did.
    last_updated: Option<SystemTime>,
    current_time: SystemTime,
}

impl ProxyHealth {
    /// The JSON of `/healthz`, or, without the node's state, of `/livez`.
    pub(crate) fn json(&self, with_node: bool) -> String {
        /// Go's text for a time that was never set.
        const NEVER: &str = "0001-01-01T00:00:00Z";
        let Self { is_healthy, is_eligible, last_updated, current_time } = self;
        let time = |at| humantime::format_rfc3339_micros(at).to_string();
        let last_updated = last_updated.map_or_else(|| NEVER.to_owned(), time);
        let current_time = time(*current_time);
        let node =
            if with_node { format!("\"nodeEligible\":{is_eligible},") } else { String::new() };
        format!(
            "{{\"lastUpdated\":\"{last_updated}\",\"currentTime\":\"{current_time}\",{node}\"healthy\":{is_healthy}}}"
        )
    }
}

impl HealthAnswer {
    fn well(text: impl Into<String>) -> Self {
        Self { well: true, text: text.into() }
    }

    fn ill(text: impl Into<String>) -> Self {
        Self { well: false, text: text.into() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(start: Instant, seconds: u64) -> Instant {
        start + Duration::from_secs(seconds)
    }

    #[test]
    fn an_agent_that_waits_for_its_datastore_is_alive_and_not_ready() {
        let now = Instant::now();
        assert!(Health::default().liveness(at(now, 100_000)).well);
        let ready = Health::Starting(Some("waits for x".to_owned())).readiness(now);
        assert!(!ready.well);
        let expected = "not ready: the objects have not been read, so nothing passes: waits for x";
        assert_eq!(ready.text, expected);
    }

    #[test]
    fn it_is_ready_when_tables_are_published_and_stays_so_while_they_are_stale() {
        let now = Instant::now();
        let mut running = Running::new(now);
        running.turn(now, [1].into_iter());
        assert!(!Health::Running(running.clone()).readiness(now).well);
        running.published = true;
        assert_eq!(Health::Running(running.clone()).readiness(now), HealthAnswer::well("ready"));
        let since = SystemTime::UNIX_EPOCH + Duration::from_secs(1_700_000_000);
        running.stale = Some((since, "no answer for 4 s".to_owned()));
        running.refuted = true;
        let answer = Health::Running(running).readiness(now);
        assert!(answer.well);
        insta::assert_snapshot!(answer.text, @"ready; STALE since 2023-11-14T22:13:20Z: what was known stays in force: no answer for 4 s; the last tables were refuted, those before stay in force: see `manx status`");
    }

    #[test]
    fn peers_hold_back_readiness_and_neither_liveness_nor_what_balancers_are_told() {
        let now = Instant::now();
        let mut running = Running { published: true, ..Running::new(now) };
        running.awaits_peers = Some("BGP not established with 10.0.0.1".to_owned());
        let waits = Health::Running(running.clone());
        assert_eq!(waits.readiness(now).text, "not ready: BGP not established with 10.0.0.1");
        assert!(!waits.readiness(now).well && waits.liveness(now).well);
        assert!(waits.proxy(now).is_healthy);
        // The condition that keeps packets from passing comes first.
        running.published = false;
        let closed = Health::Running(running);
        assert!(closed.readiness(now).text.contains("so nothing passes"));
        assert!(!closed.proxy(now).is_healthy);
    }

    #[test]
    fn a_control_loop_or_a_worker_that_stands_still_is_dead() {
        let start = Instant::now();
        let mut running = Running { published: true, ..Running::new(start) };
        running.turn(start, [7, 7].into_iter());
        running.turn(at(start, 29), [8, 7].into_iter());
        assert!(Health::Running(running.clone()).liveness(at(start, 30)).well);
        running.turn(at(start, 31), [9, 7].into_iter());
        let health = Health::Running(running.clone());
        for answer in [health.liveness(at(start, 31)), health.readiness(at(start, 31))] {
            assert!(!answer.well);
            assert_eq!(answer.text, "worker 1 has not turned for 31 s: expected at most 30 s");
        }
        running.turn(at(start, 32), [9, 8].into_iter());
        assert!(Health::Running(running.clone()).liveness(at(start, 62)).well);
        let dead = Health::Running(running).liveness(at(start, 63));
        assert_eq!(dead.text, "the control loop has not turned for 31 s: expected at most 30 s");
    }
}
