//! Where it is measured: a node with an attacker, a neighbour and the pod that the neighbour speaks with.

use std::collections::BTreeMap;
use std::thread;
use std::time::{Duration, Instant};

use manx_api::Status;

use super::Row;
use super::attack::{self, Place};
use super::packets::Kind;
use crate::agents::{self, ATTACKER, Cluster, Shape};
use crate::cores::Cores;
use crate::error::Error;
use crate::path::{Between, Path};
use crate::run::Settings;
use crate::statistics::percentile;
use crate::traffic::{self, PingPong, Streams, WARM_UP};

/// How long an attacker may live beyond a measurement.
const MARGIN: Duration = Duration::from_secs(10);
/// How long what an attacker has left behind may take to be handled: the buffers of veths hold millions of segments.
const SETTLE: Duration = Duration::from_secs(5);
/// After so long without a packet of the attacker's there are no more.
pub(super) const QUIET: Duration = Duration::from_millis(100);
/// How long the neighbour's packets may take to get through again.
const CATCH_UP: Duration = Duration::from_secs(5);

/// See the module. It lasts for a row.
pub(super) struct Field<'a> {
    row: &'a Row,
    length: Duration,
    shape: Shape,
    path: Path,
    /// Of the ends of a stream.
    stream: Cores,
    /// Of the ends of a ping-pong: they leave one worker alone on its core. Two may have to share theirs.
    ping: Cores,
    workers: Vec<usize>,
    attacker: usize,
    attacks: Attacks,
}

/// What was seen of all attacks.
#[derive(Default)]
struct Attacks {
    /// Packets that came in while they lasted, and the time.
    received: u64,
    seconds: f64,
    dropped: BTreeMap<String, u64>,
    pings: usize,
    lost: usize,
    /// How often the node was made anew, because it did not get through with what was left.
    anew: usize,
}

/// Whom a measurement is made beside.
#[derive(Clone, Copy)]
pub(super) enum Beside {
    /// A process that computes, as the control.
    Loop,
    /// The row's attacker.
    Attack,
}

/// What the agent has counted of the attacker's port.
#[derive(Clone, PartialEq)]
struct Counted {
    received: u64,
    dropped: BTreeMap<String, u64>,
}

impl Attacks {
    /// One more; what was counted before it, and at its end.
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

impl<'a> Field<'a> {
    /// A node of its own.
    pub(super) fn build(row: &'a Row, settings: &Settings) -> Result<Self, Error> {
        let stream = settings.cores;
        let ping = if row.workers == 1 { stream.apart() } else { stream };
        let workers = ping.of_workers(true, row.workers);
        let attacker = stream.of_another(&workers);
        let alone = Shape::one_node(settings.rules, ping);
        let shape = Shape { device: row.device, workers: row.workers, attack: true, ..alone };
        let path = agents::path(shape)?;
        let (length, attacks) = (settings.length, Attacks::default());
        Ok(Self { row, length, shape, path, stream, ping, workers, attacker, attacks })
    }

    fn cluster(&self) -> Result<&Cluster, Error> {
        match &self.path.between {
            Between::Manx(cluster) => Ok(cluster),
            _ => Err(Error::Failed("the path is not Manx's".to_owned())),
        }
    }

    /// Gigabits per second of the neighbour's stream, which asks for `pace` if it does not ask for all.
    pub(super) fn stream(&mut self, beside: Beside, pace: Option<f64>) -> Result<f64, Error> {
        traffic::wait_until_carried(&self.path, CATCH_UP)?;
        // It is connected before there is an attack: what it carries is asked, not whether it comes about.
        let streams = Streams::connect(&self.path, 1)?;
        let (length, cores) = (self.length, self.stream);
        let rate = self.beside(beside, &[], false, || streams.carry(pace, length, cores))??;
        match beside {
            Beside::Loop if rate == 0.0 => Err(Error::Nothing("TCP beside a loop".to_owned())),
            _ => Ok(rate),
        }
    }

    /// The p99 of the neighbour's round trips in microseconds. A packet without an answer took as long as the answer was waited for.
    ///
    /// The ends mostly sleep. How soon they run when they wake up is the kernel's affair, and is to be the same in both. So the
    /// attacker and the loop give way to them; and where an end shares a worker's core, which that worker keeps busy with the attack,
    /// a loop keeps it busy in the control.
    pub(super) fn ping(&mut self, beside: Beside) -> Result<f64, Error> {
        traffic::wait_until_carried(&self.path, CATCH_UP)?;
        let ping_pong = PingPong::open(&self.path)?;
        let (length, cores) = (self.length, self.ping);
        let mut shared = self.workers.clone();
        shared.retain(|core| [cores.sender, cores.receiver].contains(core));
        let alone = shared.is_empty();
        let trips = self.beside(beside, &shared, alone, || ping_pong.trips(length, cores))?;
        if matches!(beside, Beside::Attack) {
            self.attacks.pings += trips.answered.len() + trips.lost.len();
            self.attacks.lost += trips.lost.len();
        }
        let waits = [trips.answered, trips.lost].concat();
        percentile(&waits, 99).ok_or_else(|| Error::Nothing("no ping in the time".to_owned()))
    }

    /// Measures beside an attacker, and gets rid of what it has left; or beside a loop, with one more on each of the cores `busy`.
    fn beside<T>(
        &mut self,
        beside: Beside,
        busy: &[usize],
        gives_way: bool,
        measure: impl FnOnce() -> T,
    ) -> Result<T, Error> {
        let attack = self.cluster()?.attack()?;
        let (device, limit) = (self.row.device, WARM_UP + self.length + MARGIN);
        let start =
            |kind, core| attack::start(kind, &attack, Place { device, core, gives_way, limit });
        match beside {
            Beside::Loop => {
                let cores = busy.iter().copied().chain([self.attacker]);
                let loops = cores.map(|core| start(Kind::Loop, core));
                let loops = loops.collect::<Result<Vec<_>, _>>()?;
                let found = measure();
                drop(loops);
                Ok(found)
            }
            Beside::Attack => {
                let before = self.counted()?;
                let began = Instant::now();
                let attacker = start(self.row.kind, self.attacker)?;
                let found = measure();
                let after = self.counted()?;
                drop(attacker);
                self.attacks.add(&before, &after, began.elapsed());
                if after.received == before.received {
                    return Err(Error::Nothing(format!(
                        "of the attack: {}",
                        self.row.kind.words()
                    )));
                }
                if !self.is_quiet()? {
                    self.path = agents::path(self.shape)?;
                    self.attacks.anew += 1;
                }
                Ok(found)
            }
        }
    }

    fn counted(&self) -> Result<Counted, Error> {
        let of = |status: &Status| {
            let port = status.ports.iter().find(|port| port.name.ends_with(ATTACKER))?;
            Some(Counted { received: port.received_packets, dropped: port.drops.clone() })
        };
        let statuses = self.cluster()?.statuses()?;
        let nothing = || Error::Nothing("no agent has the attacker's port".to_owned());
        statuses.iter().find_map(of).ok_or_else(nothing)
    }

    /// Waits until nothing comes from the attacker any more, or for [`SETTLE`].
    fn is_quiet(&self) -> Result<bool, Error> {
        let start = Instant::now();
        let mut seen = self.counted()?;
        while start.elapsed() < SETTLE {
            thread::sleep(QUIET);
            let now = self.counted()?;
            if now == seen {
                return Ok(true);
            }
            seen = now;
        }
        Ok(false)
    }

    /// Who was on which core, and what came of the attacks.
    pub(super) fn account(&self) -> String {
        let ends = |it: Cores| format!("{} and {}", it.sender, it.receiver);
        let workers = match &self.workers[..] {
            [] => "wherever the scheduler put them".to_owned(),
            cores => cores.iter().map(ToString::to_string).collect::<Vec<_>>().join(" and "),
        };
        let Attacks { received, seconds, dropped, pings, lost, anew } = &self.attacks;
        let anew = match anew {
            0 => String::new(),
            times => format!(
                "; {times} times the node was made anew, after {SETTLE:?} with what was left"
            ),
        };
        format!(
            "{}: cores: {} the attacker, {} the stream's ends, {} the ping-pong's, {workers} the workers; {:.0} of its packets a \
             second came in (segments counted), dropped: {dropped:?}; {lost} of {pings} pings lost beside it{anew}",
            self.row.name,
            self.attacker,
            ends(self.stream),
            ends(self.ping),
            *received as f64 / seconds,
        )
    }
}
