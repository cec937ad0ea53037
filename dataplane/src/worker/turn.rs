//! The turn loop: decides which ports are served in a turn, when epoll is polled, and when the worker sleeps.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crossbeam::channel::{Receiver, Sender};

use super::clock::{Clock, POLL_EVERY};
use super::closer::Closer;
use super::commands::Command;
use super::idle::Idle;
use super::settings::{Polling, Settings, SharedState};
use crate::counters::WorkerCounters;
use crate::packet::{Packet, Pool};
use crate::pipeline::Pipeline;
use crate::pipeline::handoff::WorkerMesh;
use crate::pipeline::output::Outbox;
use crate::port_table::fairness::{Account, VirtualTime};
use crate::port_table::poller::Poller;
use crate::port_table::ports::{BATCH, Ports};
use crate::port_table::rate_limit::RateLimit;
use crate::report::Report;
use crate::stopwatch::Stopwatch;
use crate::sys;
use crate::sys::shared_file::SharedFile;
use crate::tables::{PortId, Tables};

/// The largest number of silent ports that are polled while no other port has packets. Polling more ports costs more
/// than one poll of epoll for all.
pub(super) const MAX_AWAITED: usize = 4;
/// The shortest time between two polls of epoll while packets flow: a poll costs as much as several packets.
pub(super) const POLL_AFTER: Duration = Duration::from_micros(5);
/// After this time, any turn polls epoll: a port that has become ready must not wait for [`POLL_EVERY`] long turns.
pub(super) const POLL_BEFORE: Duration = Duration::from_micros(40);

/// The time between two checks of quiet mapped ports: epoll may not report that their memory fails, or that their
/// device is gone.
const MAPPED_CHECK: Duration = Duration::from_millis(100);
/// The longest sleep: a worker does not age flows while it sleeps.
const LONGEST_SLEEP: Duration = Duration::from_secs(1);
/// The number of handed-off packets that a turn decides, besides those in its own batches: the worker's own ports must
/// not wait longer.
const HANDOFFS_A_TURN: usize = 4 * BATCH;
/// A turn that has taken this many ticks serves no further port, so that ports that have become ready in the meantime
/// come first.
pub(super) const LONG_TURN: u64 = 250_000;

/// The result of serving a port.
pub(super) struct Served {
    /// The number of packets that were decided.
    pub(super) found: usize,
    /// The number of packets whose handling is still to be charged to the port, including frames that the port dropped
    /// or answered itself.
    pub(super) timed: usize,
    /// Whether the port delivered anything, even only frames that it dropped or answered itself: those take time, too.
    pub(super) brought: bool,
    /// Whether it may have more packets.
    pub(super) stays_hot: bool,
}

impl Served {
    /// The result for a port that is not due.
    pub(super) const NOT: Self = Self { found: 0, timed: 0, brought: false, stays_hot: true };
    /// The result for a port that is gone.
    pub(super) const GONE: Self = Self { found: 0, timed: 0, brought: false, stays_hot: false };
}

/// The worker. A thread runs it, or a test calls its turns directly.
pub struct Worker {
    pub(super) ports: Ports,
    pub(super) hot: Vec<PortId>,
    /// The ports that delivered something a short time ago, but nothing when they were last polled.
    pub(super) awaited: Vec<PortId>,
    pub(super) tables: Arc<Tables>,
    pub(super) pipeline: Pipeline,
    pub(super) outbox: Outbox,
    pub(super) pool: Pool,
    pub(super) poller: Poller,
    pub(super) mesh: WorkerMesh,
    pub(super) batch: Vec<Packet>,
    pub(super) lost: Vec<(PortId, io::Error)>,
    pub(super) polling: Polling,
    pub(super) commands: Receiver<Command>,
    pub(super) reports: Sender<Report>,
    pub(super) counters: Arc<WorkerCounters>,
    pub(super) watch: Stopwatch,
    pub(super) turns: u32,
    pub(super) time: VirtualTime,
    /// The tick up to which ports have been charged for the worker's time.
    pub(super) charged: u64,
    /// The ticks of each charge, if they are fixed instead of measured.
    pub(super) fixed_charge: Option<u64>,
    /// The port that was served last and is not charged yet, and the number of packets that it is to be charged for.
    pub(super) uncharged: Option<(PortId, usize)>,
    /// The time when epoll was last polled while packets flowed.
    pub(super) polled: Duration,
    /// The time when the mapped ports were last checked.
    pub(super) mapped_checked: Duration,
    /// The time when the last turn began.
    pub(super) now: Duration,
    pub(super) poll_errors: RateLimit,
    pub(super) closer: Closer,
}

impl Drop for Worker {
    fn drop(&mut self) {
        let ports = std::mem::take(&mut self.ports);
        ports.into_all().for_each(|port| self.closer.close(port, None));
    }
}

impl Worker {
    /// Creates a worker without ports, which forwards nothing.
    pub fn new(
        settings: Settings,
        share: SharedState,
        commands: Receiver<Command>,
        reports: Sender<Report>,
        counters: Arc<WorkerCounters>,
    ) -> io::Result<Self> {
        let SharedState { seed, mesh, shards, affinities, closer } = share;
        let poller = Poller::new()?;
        mesh.set_waker(poller.waker());
        Ok(Self {
            ports: Ports::default(),
            hot: Vec::new(),
            awaited: Vec::new(),
            tables: Arc::new(Tables::closed()),
            pipeline: Pipeline::new(
                settings.sizes,
                (shards, affinities),
                seed,
                &mesh,
                reports.clone(),
                Arc::clone(&counters),
            )?,
            outbox: Outbox::default(),
            pool: Pool::new(settings.sizes.buffers),
            poller,
            mesh,
            batch: Vec::with_capacity(BATCH),
            lost: Vec::new(),
            polling: settings.polling,
            commands,
            reports,
            watch: Stopwatch::new(Arc::clone(&counters)),
            counters,
            turns: 0,
            time: VirtualTime::default(),
            charged: sys::clock::ticks(),
            fixed_charge: None,
            uncharged: None,
            polled: Duration::ZERO,
            mapped_checked: Duration::ZERO,
            now: Duration::ZERO,
            poll_errors: RateLimit::new(1, 1),
            closer,
        })
    }

    /// Sets the largest number of [ticks](crate::sys::clock::ticks) of a port's batch, from its next full batch on.
    /// This is for tests, which run in slow builds and are often interrupted. They set a number so high that their
    /// batches do not depend on the machine.
    pub fn set_batch_ticks(&mut self, ticks: u64) {
        self.ports.set_batch_ticks(ticks);
    }

    /// Charges this many ticks each time, instead of the measured ticks. Tests set this, so that the order in which
    /// ports are served does not depend on the machine.
    pub fn fix_charge(&mut self, ticks: u64) {
        self.fixed_charge = Some(ticks);
    }

    /// The records of its flows, for the next process ([`crate::flow::FlowRecordFile`]).
    pub fn flow_records(&self) -> &Arc<SharedFile> {
        &self.pipeline.flow_records
    }

    /// Runs turns until a command ends the worker.
    pub fn run(&mut self) {
        let mut clock = Clock::start();
        self.pipeline.begin(clock.begin_turn(false));
        let mut idle = Idle::new(Instant::now());
        let mut found = 0;
        loop {
            match self.step(clock.begin_turn(found > 0)) {
                Some(packets) => found = packets,
                None => return,
            }
            if found > 0 {
                idle.found_packets();
                continue;
            }
            // A port that delivered only frames to drop is charged now, because it must not pay for the silence that
            // follows.
            if self.uncharged.is_some() {
                self.charge();
            }
            let is_silent = self.polling == Polling::Adaptive && idle.should_sleep(Instant::now());
            // A port may have delivered only frames that were dropped, and may still have packets.
            let rests = self.polling == Polling::Adaptive && self.hot.is_empty();
            if rests && is_silent && self.mesh.prepare_sleep() {
                self.counters.parks.add(1);
                self.poll(LONGEST_SLEEP);
                self.mesh.end_sleep();
                continue;
            }
            if rests {
                idle.yield_core();
            }
            if self.hot.is_empty() {
                self.poll_quiet_ports();
            }
        }
    }

    /// One round of [`Worker::run`]: runs commands, ages flows, serves ports. Returns the number of packets that it
    /// found, or `None` if the control loop has ended the worker. `now` is the time since the machine's start.
    #[inline]
    pub fn step(&mut self, now: Duration) -> Option<usize> {
        if !self.run_commands(now) {
            return None;
        }
        self.pipeline.age(&self.tables, now);
        let found = self.turn(now);
        if found > 0 {
            self.counters.busy_turns.add(1);
        }
        Some(found)
    }

    /// Runs one turn: takes a batch from each hot port that is due. Returns the number of packets. `now` is the same as
    /// for [`Worker::step`].
    pub fn turn(&mut self, now: Duration) -> usize {
        self.now = now;
        self.turns = self.turns.wrapping_add(1);
        self.counters.turns.add(1);
        let began = self.charge();
        let is_round = self.turns.is_multiple_of(POLL_EVERY);
        let unasked = now.saturating_sub(self.polled);
        if unasked >= POLL_BEFORE || is_round && unasked >= POLL_AFTER {
            self.polled = now;
            self.poll(Duration::ZERO);
        }
        if is_round && now.saturating_sub(self.mapped_checked) >= MAPPED_CHECK {
            self.mapped_checked = now;
            let (hot, time) = (&mut self.hot, &self.time);
            self.ports.wake_mapped(|id, account| {
                time.join(account);
                hot.push(id);
            });
        }
        let ports = &mut self.ports;
        self.mesh.reclaim_buffers(&mut self.pool, |port| {
            if let Some(slot) = ports.slot(port) {
                // The packet may belong to another port that had this number before.
                slot.handed_off = slot.handed_off.saturating_sub(1);
            }
        });
        let mut found = match self.hot[..] {
            [only] => self.serve_alone(only),
            _ => self.serve_fairly(began),
        };
        // These are handed-off packets for which the batches of this worker's ports had no room.
        found += self.process_handoffs(HANDOFFS_A_TURN, LONG_TURN);
        while let Some((id, error)) = self.lost.pop() {
            // A port may have failed more than once in the turn.
            if self.detach(id, None) {
                self.report(Report::PortLost(id, error));
            }
        }
        if found > 0 {
            self.counters.packets.add(found as u64);
        }
        found
    }

    /// Serves the only hot port, even if it is not due, because no other port waits.
    #[inline]
    pub(super) fn serve_alone(&mut self, id: PortId) -> usize {
        if let Some(slot) = self.ports.slot(id) {
            self.time.advance(slot.account);
        }
        let Served { found, timed, brought, stays_hot } = self.serve(id);
        self.uncharged = brought.then_some((id, timed));
        if !stays_hot {
            self.hot.clear();
            self.await_more(id);
        }
        found
    }

    /// Serves each hot port that is due. If they have no packets, virtual time advances to the ports that are not due.
    /// `began` is the tick at which the turn began. Returns the number of packets.
    #[inline(never)]
    pub(super) fn serve_fairly(&mut self, began: u64) -> usize {
        loop {
            let (found, lowest, owing) = self.serve_due(began);
            if let Some(lowest) = lowest {
                self.time.advance(lowest);
            }
            // If ports were not due, virtual time has advanced until one of them is due, so the loop ends.
            if found > 0 || !owing {
                return found;
            }
        }
    }

    /// Serves each hot port that is due. Returns the number of packets that it found; the lowest account of the ports
    /// that delivered something, were not due, or were not reached; and whether any port was not due.
    pub(super) fn serve_due(&mut self, began: u64) -> (usize, Option<Account>, bool) {
        let (mut found, mut lowest, mut owing) = (0, None, false);
        let mut at = 0;
        while at < self.hot.len() {
            if self.uncharged.is_some() && self.charge().wrapping_sub(began) >= LONG_TURN {
                break;
            }
            let id = self.hot[at];
            let account = self.ports.slot(id).map_or_else(Account::default, |slot| slot.account);
            let is_due = self.time.is_due(account);
            let served = if is_due { self.serve(id) } else { Served::NOT };
            self.uncharged = served.brought.then_some((id, served.timed));
            found += served.found;
            owing |= !is_due;
            if served.brought || !is_due {
                lowest = Some(lowest.map_or(account, |lowest: Account| lowest.min(account)));
            }
            if served.stays_hot {
                at += 1;
            } else {
                self.hot.swap_remove(at);
                self.await_more(id);
            }
        }
        // Virtual time waits for ports that a long turn has not reached, because the next turn starts again with the
        // first port.
        let ports = &mut self.ports;
        let missed = self.hot[at..].iter().filter_map(|id| Some(ports.slot(*id)?.account));
        (found, missed.chain(lowest).min(), owing)
    }

    /// Continues to poll a port for a while after it is no longer hot, because a reply to its last packets may come
    /// soon.
    #[inline]
    pub(super) fn await_more(&mut self, id: PortId) {
        if self.awaited.len() < MAX_AWAITED
            && !self.awaited.contains(&id)
            && self.ports.slot(id).is_some_and(|slot| slot.is_active(self.now))
        {
            self.awaited.push(id);
        }
    }

    /// Searches for packets while no port is hot: polls the awaited ports in the next turn or, if there are none,
    /// epoll.
    pub(super) fn poll_quiet_ports(&mut self) {
        for id in self.awaited.drain(..) {
            make_hot(&mut self.ports, &mut self.hot, &self.time, id);
        }
        if self.hot.is_empty() {
            self.poll(Duration::ZERO);
        }
    }

    /// Polls epoll, or waits for it up to `timeout`. Ports that have become readable are served in the next turns.
    pub fn poll(&mut self, timeout: Duration) {
        let (ports, hot, time) = (&mut self.ports, &mut self.hot, &self.time);
        let before = hot.len();
        let mut polled = self.poller.wait(timeout, |id| make_hot(ports, hot, time, id));
        for id in &self.hot[before..] {
            if let Some(slot) = self.ports.slot(*id).filter(|slot| slot.io.is_mapped()) {
                polled = polled.and(slot.unwatch(&self.poller));
            }
        }
        if let Err(error) = polled {
            self.report_poll_error(error);
        }
    }

    /// Reports an error of epoll, which may occur in every turn.
    pub(super) fn report_poll_error(&mut self, error: io::Error) {
        if self.poll_errors.allow(self.now) {
            self.report(Report::PollFailed(error));
        }
    }

    pub(super) fn report(&self, report: Report) {
        let _ = self.reports.send(report);
    }
}

/// Makes a port that may hold packets hot, so that the next turns poll it. If it was not hot before, its account moves
/// up to virtual time.
fn make_hot(ports: &mut Ports, hot: &mut Vec<PortId>, time: &VirtualTime, id: PortId) {
    if let Some(slot) = ports.slot(id)
        && slot.wake()
    {
        time.join(&mut slot.account);
        hot.push(id);
    }
}
