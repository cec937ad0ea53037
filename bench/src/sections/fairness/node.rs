//! A node with an attacker, a neighbour, and the pod to which the neighbour sends; and its measurements.

use std::collections::BTreeMap;
use std::thread;
use std::time::{Duration, Instant};

use manx_api::Status;

use super::attack::{self, Place};
use super::packets::Kind;
use super::rows::Row;
use crate::error::Error;
use crate::host::cores::Cores;
use crate::path::agents::cluster::Cluster;
use crate::path::agents::shape::Shape;
use crate::path::constants::ATTACKER;
use crate::path::ends::Path as _;
use crate::path::traffic::{self, PingPong, TcpStreams, WARM_UP};
use crate::report::statistics::percentile;
use crate::run::Settings;

/// An attacker that is not stopped ends by itself this long after the measurement should be over.
const MARGIN: Duration = Duration::from_secs(10);
/// The longest time that the agent may take to handle the packets that are still in queues after an attack. The buffers
/// of veths hold millions of segments.
const SETTLE: Duration = Duration::from_secs(5);
/// The attacker's packets count as handled when none has arrived for this long.
pub(super) const QUIET: Duration = Duration::from_millis(100);
/// The longest time after an attack until the neighbour's packets pass again.
const CATCH_UP: Duration = Duration::from_secs(5);

/// A node with an attacker. It is built for one row.
pub(super) struct AttackedNode<'a> {
    row: &'a Row,
    length: Duration,
    shape: Shape,
    cluster: Cluster,
    /// The cores of a stream.
    stream: Cores,
    /// The cores of a ping-pong. A single worker shares its core with neither end. Two workers may share their cores
    /// with the ends.
    ping: Cores,
    workers: Vec<usize>,
    attacker: usize,
    attacks: Attacks,
}

/// The totals of all attacks.
#[derive(Default)]
struct Attacks {
    /// The number of the attacker's packets that arrived during the attacks.
    received: u64,
    /// The duration of the attacks in seconds.
    seconds: f64,
    dropped: BTreeMap<String, u64>,
    pings: usize,
    lost: usize,
    /// The number of times that the node was built again because it did not handle the remaining packets in time.
    rebuilt: usize,
}

/// The load on the attacker's core during a measurement.
#[derive(Clone, Copy)]
pub(super) enum CoreLoad {
    /// The control: a process that only computes.
    Loop,
    /// The row's attacker.
    Attack,
}

/// The agent's counters of the attacker's port.
#[derive(Clone, PartialEq)]
struct Counted {
    received: u64,
    dropped: BTreeMap<String, u64>,
}

impl Attacks {
    /// Adds the totals of an attack. `before` and `after` are the counters before the attack and at its end.
    fn add(&mut self, before: &Counted, after: &Counted, lasted: Duration) {
        self.received += after.received - before.received;
        self.seconds += lasted.as_secs_f64();
        for (reason, count) in &after.dropped {
            let more = count - before.dropped.get(reason).copied().unwrap_or_default();
            if more > 0 {
                *self.dropped.entry(reason.clone()).or_default() += more;
            }
        }
    }
}

impl<'a> AttackedNode<'a> {
    /// Builds the node of a row.
    pub(super) fn build(row: &'a Row, settings: &Settings) -> Result<Self, Error> {
        let stream = settings.cores;
        let ping = if row.workers == 1 { stream.with_separate_worker() } else { stream };
        let workers = ping.worker_cores(true, row.workers);
        let attacker = stream.spare_core(&workers);
        let alone = Shape::one_node(settings.rules, ping);
        let shape = Shape { device: row.device, workers: row.workers, attack: true, ..alone };
        let cluster = Cluster::start(shape)?;
        let (length, attacks) = (settings.length, Attacks::default());
        Ok(Self { row, length, shape, cluster, stream, ping, workers, attacker, attacks })
    }

    /// Measures the gigabits per second of the neighbour's stream, which sends as fast as possible or at `pace`.
    pub(super) fn measure_stream(
        &mut self,
        beside: CoreLoad,
        pace: Option<f64>,
    ) -> Result<f64, Error> {
        traffic::wait_until_carried(self.cluster.ends(), CATCH_UP)?;
        // The stream connects before the attack begins, because only its rate is measured, and connecting may fail
        // during the attack.
        let streams = TcpStreams::connect(self.cluster.ends(), 1)?;
        let (length, cores) = (self.length, self.stream);
        let rate =
            self.measure_beside(beside, &[], false, || streams.send(pace, length, cores))??;
        match beside {
            CoreLoad::Loop if rate == 0.0 => Err(Error::Nothing("TCP beside a loop".to_owned())),
            _ => Ok(rate),
        }
    }

    /// The p99 of the neighbour's round trips in microseconds. A lost packet counts as a round trip of the time for
    /// which the sender waited for the answer.
    ///
    /// The ends mostly sleep, and the kernel decides how soon they run after they wake up. This delay must be the same
    /// with the attacker and with the loop. If no end shares its core with a worker, the attacker and the loop run only
    /// while no other thread wants their core. If an end shares its core with a worker, the attack keeps that core
    /// busy, so the comparison runs a further loop on it.
    pub(super) fn measure_ping(&mut self, beside: CoreLoad) -> Result<f64, Error> {
        traffic::wait_until_carried(self.cluster.ends(), CATCH_UP)?;
        let ping_pong = PingPong::open(self.cluster.ends())?;
        let (length, cores) = (self.length, self.ping);
        let mut shared = self.workers.clone();
        shared.retain(|core| [cores.sender, cores.receiver].contains(core));
        let alone = shared.is_empty();
        let trips =
            self.measure_beside(beside, &shared, alone, || ping_pong.round_trips(length, cores))?;
        if matches!(beside, CoreLoad::Attack) {
            self.attacks.pings += trips.answered.len() + trips.lost.len();
            self.attacks.lost += trips.lost.len();
        }
        let waits = [trips.answered, trips.lost].concat();
        percentile(&waits, 99).ok_or_else(|| Error::Nothing("no ping in the time".to_owned()))
    }

    /// Calls `measure` while an attacker runs, and then waits until the attacker's packets are handled. Or calls
    /// `measure` while loops run: one on the attacker's core, and one on each of the cores `busy`.
    fn measure_beside<T>(
        &mut self,
        beside: CoreLoad,
        busy: &[usize],
        only_when_idle: bool,
        measure: impl FnOnce() -> T,
    ) -> Result<T, Error> {
        let attack = self.cluster.attack()?;
        let (device, limit) = (self.row.device, WARM_UP + self.length + MARGIN);
        let start = |kind, core| {
            attack::start(kind, &attack, Place { device, core, only_when_idle, limit })
        };
        match beside {
            CoreLoad::Loop => {
                let cores = busy.iter().copied().chain([self.attacker]);
                let loops = cores.map(|core| start(Kind::Loop, core));
                let loops = loops.collect::<Result<Vec<_>, _>>()?;
                let found = measure();
                drop(loops);
                Ok(found)
            }
            CoreLoad::Attack => {
                let before = self.read_counters()?;
                let began = Instant::now();
                let attacker = start(self.row.kind, self.attacker)?;
                let found = measure();
                let after = self.read_counters()?;
                drop(attacker);
                self.attacks.add(&before, &after, began.elapsed());
                if after.received == before.received {
                    return Err(Error::Nothing(format!(
                        "of the attack: {}",
                        self.row.kind.description()
                    )));
                }
                if !self.wait_until_quiet()? {
                    self.cluster = Cluster::start(self.shape)?;
                    self.attacks.rebuilt += 1;
                }
                Ok(found)
            }
        }
    }

    fn read_counters(&self) -> Result<Counted, Error> {
        let attacker = |status: &Status| {
            let port = status.ports.iter().find(|port| port.name.ends_with(ATTACKER))?;
            Some(Counted { received: port.received_packets, dropped: port.drops.clone() })
        };
        let statuses = self.cluster.statuses()?;
        let nothing = || Error::Nothing("no agent has the attacker's port".to_owned());
        statuses.iter().find_map(attacker).ok_or_else(nothing)
    }

    /// Waits until no more packets arrive from the attacker. Returns whether this happened within [`SETTLE`].
    fn wait_until_quiet(&self) -> Result<bool, Error> {
        let start = Instant::now();
        let mut seen = self.read_counters()?;
        while start.elapsed() < SETTLE {
            thread::sleep(QUIET);
            let now = self.read_counters()?;
            if now == seen {
                return Ok(true);
            }
            seen = now;
        }
        Ok(false)
    }

    /// A text with the cores and the totals of all attacks.
    pub(super) fn summary(&self) -> String {
        let ends = |it: Cores| format!("{} and {}", it.sender, it.receiver);
        let workers = match &self.workers[..] {
            [] => "wherever the scheduler put them".to_owned(),
            cores => cores.iter().map(ToString::to_string).collect::<Vec<_>>().join(" and "),
        };
        let Attacks { received, seconds, dropped, pings, lost, rebuilt } = &self.attacks;
        let rebuilt = match rebuilt {
            0 => String::new(),
            times => format!(
                "; {times} times the node was made anew, after {SETTLE:?} with what was left"
            ),
        };
        format!(
            "{}: cores: {} the attacker, {} the stream's ends, {} the ping-pong's, {workers} the workers; {:.0} of its packets a \
             second came in (segments counted), dropped: {dropped:?}; {lost} of {pings} pings lost beside it{rebuilt}",
            self.row.name,
            self.attacker,
            ends(self.stream),
            ends(self.ping),
            *received as f64 / seconds,
        )
    }
}
