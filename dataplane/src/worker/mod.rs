//! A worker: one core, its queue of every port, its flows. It shares with others: its counters; and with the other workers of its
//! node whose flow is whose ([`Shards`]), and the mailboxes by which they hand packets over.
//!
//! A turn takes a batch from each hot port whose share of the worker's time allows it (`fairness`), decides every packet
//! and sends what was queued; the tables are looked at once a batch, so a batch boundary is where new tables take effect.
//! A worker that finds nothing for a while sleeps in epoll.

mod clock;
mod control;
mod idle;
mod workers;

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crossbeam::channel::{Receiver, Sender, TryRecvError};

use crate::counters::{PortCounters, WorkerCounters};
use crate::fairness::{Account, VirtualTime};
use crate::fate::DropReason;
use crate::flow::{MAX_WORKERS, Shards};
use crate::handoff::WorkerMesh;
use crate::outbox::Outbox;
use crate::packet::{Packet, Pool};
use crate::pipeline::{Context, Pipeline, Sizes};
use crate::poller::Poller;
use crate::port::PacketIo;
use crate::ports::{BATCH, Ports, Slot};
use crate::rate_limit::RateLimit;
use crate::report::Report;
use crate::stage::{Stage, Stopwatch};
use crate::sys;
use crate::tables::{PortId, Tables};

pub use clock::Clock;
pub use control::{Command, Commands, Handle, Wrap, spawn};
pub use idle::Idle;
pub use workers::Workers;

/// Packets taken from a port that was silent: the first one is not to wait until the second has been asked for.
const FIRST_BATCH: usize = 1;
/// Ports that are polled for packets while they are silent and nobody else has any: more cost more than to ask epoll of all.
const MAX_AWAITED: usize = 4;
/// Packets of other workers in a turn beyond those that go along with its own batches: its own ports are not to wait longer.
const HANDOFFS_A_TURN: usize = 4 * BATCH;
/// Longest sleep: flows age meanwhile.
const LONGEST_SLEEP: Duration = Duration::from_secs(1);
/// Turns between two questions to epoll while packets flow, and to the clock.
const POLL_EVERY: u32 = 8;
/// The least time between two questions to epoll while packets flow: each costs as much as several packets.
const POLL_AFTER: Duration = Duration::from_micros(5);
/// After so long it is polled in any turn: a port that has become ready is not to wait for [`POLL_EVERY`] long turns.
const POLL_BEFORE: Duration = Duration::from_micros(40);
/// A turn that has taken so many ticks serves no further port: whoever has become ready meanwhile is looked for first.
const LONG_TURN: u64 = 250_000;

/// Whether an idle worker sleeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Polling {
    /// Sleeps in epoll when nothing has come for a while.
    #[default]
    Adaptive,
    /// Never sleeps.
    Busy,
}

/// Between two looks at the mapped ports that are quiet: of what goes wrong with their memory, or of their device's end, epoll may not tell.
const MAPPED_CHECK: Duration = Duration::from_millis(100);

/// What came of serving a port.
struct Served {
    /// Packets that were decided.
    found: usize,
    /// Those that took the time that is still to be charged.
    timed: usize,
    /// It brought something, if only what it dropped or answered itself: that takes time, too.
    brought: bool,
    /// It may have more.
    stays_hot: bool,
}

impl Served {
    /// It owes, and waits.
    const NOT: Self = Self { found: 0, timed: 0, brought: false, stays_hot: true };
    /// It is there no more.
    const GONE: Self = Self { found: 0, timed: 0, brought: false, stays_hot: false };
}

/// How a worker is made.
#[derive(Debug, Clone, Copy)]
pub struct Settings {
    /// Its table and buffer sizes.
    pub sizes: Sizes,
    /// Whether it sleeps.
    pub polling: Polling,
    /// The core it is pinned to.
    pub core: Option<usize>,
}

/// What a worker shares with the others of its node.
pub struct SharedState {
    mesh: WorkerMesh,
    shards: Option<Arc<Shards>>,
}

impl SharedState {
    /// Of each of `workers` workers (at least one, at most [`MAX_WORKERS`]), in their order. `sizes` are what each may remember.
    /// Errors: no address space.
    pub fn for_workers(workers: usize, sizes: Sizes) -> io::Result<Vec<Self>> {
        let workers = workers.clamp(1, MAX_WORKERS);
        if workers == 1 {
            return Ok(vec![Self::alone()]);
        }
        let shards = Arc::new(Shards::new(sizes.flows * workers)?);
        let share = |mesh| Self { mesh, shards: Some(Arc::clone(&shards)) };
        Ok(WorkerMesh::new(workers, sizes.buffers).into_iter().map(share).collect())
    }

    /// Of a worker that is alone: nothing.
    pub fn alone() -> Self {
        Self { mesh: WorkerMesh::alone(), shards: None }
    }
}

/// The worker itself; a thread runs it, or a test turns it by hand.
pub struct Worker {
    ports: Ports,
    hot: Vec<PortId>,
    /// Those that have brought something not long ago, and nothing when they were last polled.
    awaited: Vec<PortId>,
    tables: Arc<Tables>,
    pipeline: Pipeline,
    outbox: Outbox,
    pool: Pool,
    poller: Poller,
    mesh: WorkerMesh,
    batch: Vec<Packet>,
    lost: Vec<(PortId, io::Error)>,
    polling: Polling,
    commands: Receiver<Command>,
    reports: Sender<Report>,
    counters: Arc<WorkerCounters>,
    watch: Stopwatch,
    turns: u32,
    time: VirtualTime,
    /// The tick up to which ports have been charged for the worker's time.
    charged: u64,
    /// The port that was served last, while it has not been charged for it, and how many packets took that time.
    uncharged: Option<(PortId, usize)>,
    /// When it last polled epoll while packets flowed.
    polled: Duration,
    /// When it last looked at the mapped ports.
    mapped_checked: Duration,
    /// When the last turn began.
    now: Duration,
    poll_errors: RateLimit,
}

impl Worker {
    /// A worker without ports that passes nothing.
    pub fn new(
        settings: Settings,
        share: SharedState,
        commands: Receiver<Command>,
        reports: Sender<Report>,
        counters: Arc<WorkerCounters>,
    ) -> io::Result<Self> {
        let SharedState { mesh, shards } = share;
        let poller = Poller::new()?;
        mesh.set_waker(poller.waker());
        Ok(Self {
            ports: Ports::default(),
            hot: Vec::new(),
            awaited: Vec::new(),
            tables: Arc::new(Tables::closed()),
            pipeline: Pipeline::new(
                settings.sizes,
                shards,
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
            uncharged: None,
            polled: Duration::ZERO,
            mapped_checked: Duration::ZERO,
            now: Duration::ZERO,
            poll_errors: RateLimit::new(1, 1),
        })
    }

    /// Turns until it is told to stop.
    pub fn run(&mut self) {
        let mut clock = Clock::start();
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
            // A port that brought only what it dropped is charged now: the silence that follows is nobody's time.
            if self.uncharged.is_some() {
                self.charge();
            }
            let is_silent = self.polling == Polling::Adaptive && idle.should_sleep(Instant::now());
            // A port may have brought only what was dropped, and still have packets.
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

    /// What [`Worker::run`] repeats: control is obeyed, flows age, the ports have their turn. Returns how many packets it found; `None`:
    /// control has ended the worker. `now` counts from the worker's start.
    #[inline]
    pub fn step(&mut self, now: Duration) -> Option<usize> {
        if !self.run_commands(now) {
            return None;
        }
        self.pipeline.age(now);
        let found = self.turn(now);
        if found > 0 {
            self.counters.busy_turns.add(1);
        }
        Some(found)
    }

    /// Does what control has asked for. False: end. `now` is as for [`Worker::turn`]: a port that comes has packets judged that
    /// others have handed over before.
    #[inline]
    pub fn run_commands(&mut self, now: Duration) -> bool {
        // A look costs less than a question; only the question tells that control has gone.
        let is_asked = !self.commands.is_empty() || self.turns.is_multiple_of(POLL_EVERY);
        !is_asked || self.run_queued_commands(now)
    }

    #[inline(never)]
    fn run_queued_commands(&mut self, now: Duration) -> bool {
        self.now = now;
        loop {
            match self.commands.try_recv() {
                Err(TryRecvError::Empty) => return true,
                Err(TryRecvError::Disconnected) | Ok(Command::Stop) => return false,
                Ok(Command::Publish(tables)) => {
                    let old = std::mem::replace(&mut self.tables, tables);
                    self.report(Report::Retired(old));
                }
                Ok(Command::Attach(id, io, counters)) => self.attach(id, io, counters),
                Ok(Command::Detach(id)) => {
                    self.detach(id);
                }
                Ok(Command::Wrap(id, wrap)) => self.wrap(id, wrap),
                Ok(Command::Flows(limit, reply)) => {
                    let _ = reply.send(self.pipeline.flows().take(limit).collect());
                }
            }
        }
    }

    /// One turn: a batch from each hot port whose turn it is. Returns how many packets were found. `now` counts from the worker's
    /// start.
    pub fn turn(&mut self, now: Duration) -> usize {
        self.now = now;
        self.turns = self.turns.wrapping_add(1);
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
                // The number may have been another port's.
                slot.handed_off = slot.handed_off.saturating_sub(1);
            }
        });
        let mut found = match self.hot[..] {
            [only] => self.serve_alone(only),
            _ => self.serve_fairly(began),
        };
        // Where ports have brought less, or nothing.
        found += self.process_handoffs(HANDOFFS_A_TURN, LONG_TURN);
        while let Some((id, error)) = self.lost.pop() {
            // A port may have failed more than once in the turn.
            if self.detach(id) {
                self.report(Report::PortLost(id, error));
            }
        }
        if found > 0 {
            self.counters.packets.add(found as u64);
        }
        found
    }

    /// Serves the only hot port: whatever it owes, nobody waits for.
    #[inline]
    fn serve_alone(&mut self, id: PortId) -> usize {
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

    /// Serves each hot port whose turn it is; if none of those has packets, time goes on to the ones that owe. `began`: the tick
    /// at which the turn began. Returns how many packets were found.
    #[inline(never)]
    fn serve_fairly(&mut self, began: u64) -> usize {
        loop {
            let (found, lowest, owing) = self.serve_due(began);
            if let Some(lowest) = lowest {
                self.time.advance(lowest);
            }
            // Somebody who owed is due now, so this ends.
            if found > 0 || !owing {
                return found;
            }
        }
    }

    /// Serves each hot port whose turn it is. Returns how many packets were found, the lowest account of the ports that brought
    /// something, owe, or were not reached, and whether any port owes.
    fn serve_due(&mut self, began: u64) -> (usize, Option<Account>, bool) {
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
        // Time does not pass by those that a long turn has not reached: the next one begins with the first again.
        let ports = &mut self.ports;
        let missed = self.hot[at..].iter().filter_map(|id| Some(ports.slot(*id)?.account));
        (found, missed.chain(lowest).min(), owing)
    }

    /// A port is hot no longer. What it brought last may be answered soon.
    #[inline]
    fn await_more(&mut self, id: PortId) {
        if self.awaited.len() < MAX_AWAITED
            && !self.awaited.contains(&id)
            && self.ports.slot(id).is_some_and(|slot| slot.is_active(self.now))
        {
            self.awaited.push(id);
        }
    }

    /// Looks for packets while no port is known to have any: in the next turn at the ports that talk, or else by epoll at all.
    /// While some are looked at, the others are polled for by turns.
    fn poll_quiet_ports(&mut self) {
        for id in self.awaited.drain(..) {
            make_hot(&mut self.ports, &mut self.hot, &self.time, id);
        }
        if self.hot.is_empty() {
            self.poll(Duration::ZERO);
        }
    }

    /// Charges the port that was served last for the time since the last charge. Returns the tick until when it was charged.
    #[inline]
    fn charge(&mut self) -> u64 {
        let spent = self.take_ticks();
        if let Some((id, packets)) = self.uncharged.take() {
            self.counters.busy_cycles.add(spent);
            if let Some(slot) = self.ports.slot(id) {
                slot.account.charge(spent);
                slot.adapt_batch(packets, spent);
            }
        }
        self.charged
    }

    /// The ticks since this was last asked.
    #[inline]
    fn take_ticks(&mut self) -> u64 {
        let now = sys::clock::ticks();
        now.wrapping_sub(std::mem::replace(&mut self.charged, now))
    }

    /// Serves one port: receive, decide, send; what other workers have handed over goes along.
    #[inline(always)]
    #[expect(
        clippy::inline_always,
        reason = "a turn with one packet is to cost little more than the packet"
    )]
    fn serve(&mut self, id: PortId) -> Served {
        let Some(slot) = self.ports.slot(id) else { return Served::GONE };
        let most = if std::mem::take(&mut slot.awoken) { FIRST_BATCH } else { slot.batch };
        let received = match slot.io.receive(&mut self.pool, &mut self.batch, most) {
            Ok(received) => received,
            Err(error) => {
                slot.hot = false;
                self.lost.push((id, error));
                // What it had brought is nobody else's to be judged as.
                self.batch.drain(..).for_each(|packet| self.pool.put(packet));
                return Served::GONE;
            }
        };
        let stays_hot = slot.stays_hot(received, self.batch.len(), self.now);
        if !stays_hot && let Err(error) = slot.watch(&self.poller) {
            self.lost.push((id, error));
        }
        for (packets, reason) in
            [(received.malformed, DropReason::Malformed), (received.not_ours, DropReason::NotOurs)]
        {
            if packets > 0 {
                slot.counters.received_packets.add(packets as u64);
                slot.counters.dropped(reason).add(packets as u64);
            }
        }
        if self.batch.is_empty() {
            let brought = received.malformed + received.not_ours + received.answered > 0;
            if !brought {
                self.time.join(&mut slot.account);
            }
            return Served { found: 0, timed: 0, brought, stays_hot };
        }
        let own = self.batch.len();
        let found = self.process_batch(Some(id), BATCH);
        // Beside others' packets it has been charged already.
        Served { found, timed: if found == own { own } else { 0 }, brought: true, stays_hot }
    }

    /// Decides up to `limit` packets that other workers have handed over, until it has taken so many ticks. Returns how many they
    /// were.
    fn process_handoffs(&mut self, limit: usize, ticks: u64) -> usize {
        if self.mesh.pending() == 0 {
            return 0;
        }
        let began = self.charge();
        let mut found = 0;
        while found < limit && self.charged.wrapping_sub(began) < ticks {
            match self.process_batch(None, (limit - found).min(BATCH)) {
                0 => break,
                taken => found += taken,
            }
        }
        found
    }

    /// Takes the batch through the pipeline, all of it from one port, and behind it up to `limit` packets that other workers
    /// have handed over: a batch costs little more for a few more. Returns how many packets they were.
    fn process_batch(&mut self, from: Option<PortId>, limit: usize) -> usize {
        self.watch.start();
        let mut context = Context {
            tables: &self.tables,
            ports: &mut self.ports,
            outbox: &mut self.outbox,
            pool: &mut self.pool,
            mesh: &self.mesh,
            lost: &mut self.lost,
            watch: &mut self.watch,
            now: self.now,
        };
        let own = self.batch.len();
        self.pipeline.fetch_handoffs(&mut context, limit);
        if let Some(port) = from {
            let role = context.tables.role(port);
            self.pipeline.input(&mut context, &mut self.batch, port, role);
        }
        let handed_over = self.pipeline.accept_handoffs(&mut context, &mut self.batch);
        let found = own + handed_over;
        if found > 0 {
            self.pipeline.process(&mut context, &mut self.batch);
            self.outbox.send(&mut self.ports, &mut self.pool, &mut self.lost);
            self.watch.lap(Stage::Send);
        }
        if handed_over > 0 {
            self.charge_each(from, found);
        }
        found
    }

    /// Charges the ports of a batch, part of which other workers have handed over, by what of it came by each: packets on a wire.
    #[inline(never)]
    fn charge_each(&mut self, from: Option<PortId>, found: usize) {
        let spent = self.take_ticks();
        self.counters.busy_cycles.add(spent);
        if let Some(slot) = from.and_then(|port| self.ports.slot(port)) {
            slot.adapt_batch(found, spent);
        }
        // What was refused before it was read is most likely its own.
        let refused = found.saturating_sub(self.pipeline.packets_by_port().count()) as u64;
        let refused = from.map(|port| (port, refused));
        let brought = self.pipeline.packets_by_port().chain(refused);
        let all = brought.clone().map(|(_, packets)| packets).sum::<u64>().max(1);
        for (port, packets) in brought {
            if let Some(slot) = self.ports.slot(port) {
                self.time.join(&mut slot.account);
                slot.account.charge(spent * packets / all);
            }
        }
    }

    /// Asks epoll, or waits for it as long as `timeout`, which ports have become readable: they are served in the next turns.
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

    fn attach(&mut self, id: PortId, io: Box<dyn PacketIo>, counters: Arc<PortCounters>) {
        // The number may have been another port's, and packets of that one may have been handed over.
        self.process_handoffs(self.mesh.pending(), u64::MAX);
        self.start_serving(id, io, counters);
    }

    /// Serves a port from now on.
    fn start_serving(&mut self, id: PortId, io: Box<dyn PacketIo>, counters: Arc<PortCounters>) {
        let slot = self.ports.attach(id, io, counters);
        if !slot.io.is_mapped()
            && let Err(error) = slot.watch(&self.poller)
        {
            self.ports.detach(id, &mut self.pool);
            self.report(Report::PortLost(id, error));
            return;
        }
        self.time.join(&mut slot.account);
        self.hot.push(id);
    }

    /// Serves a port no longer.
    fn stop_serving(&mut self, id: PortId) -> Option<Slot> {
        self.hot.retain(|hot| *hot != id);
        self.awaited.retain(|awaited| *awaited != id);
        let mut slot = self.ports.detach(id, &mut self.pool)?;
        if let Err(error) = slot.unwatch(&self.poller) {
            self.report_poll_error(error);
        }
        Some(slot)
    }

    /// Lets go of a port. False: there is none.
    fn detach(&mut self, id: PortId) -> bool {
        self.lost.retain(|(lost, _)| *lost != id);
        self.stop_serving(id).is_some()
    }

    fn wrap(&mut self, id: PortId, wrap: Wrap) {
        if let Some(slot) = self.stop_serving(id) {
            self.start_serving(id, wrap(slot.io), slot.counters);
        }
    }

    /// Reports trouble with epoll, which may come back every turn.
    fn report_poll_error(&mut self, error: io::Error) {
        if self.poll_errors.allow(self.now) {
            self.report(Report::PollFailed(error));
        }
    }

    fn report(&self, report: Report) {
        let _ = self.reports.send(report);
    }
}

/// A port may hold packets: it is hot from now on, if it was not, and starts at virtual time.
fn make_hot(ports: &mut Ports, hot: &mut Vec<PortId>, time: &VirtualTime, id: PortId) {
    if let Some(slot) = ports.slot(id)
        && slot.wake()
    {
        time.join(&mut slot.account);
        hot.push(id);
    }
}

#[cfg(test)]
mod tests;
