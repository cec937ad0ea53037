//! Tests of a worker with ports that report more than packets.

use std::cell::Cell;
use std::io::{self, Write as _};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crossbeam::channel::{Receiver, Sender, unbounded};

use super::clock::POLL_EVERY;
use super::serve::FIRST_BATCH;
use super::turn::{LONG_TURN, MAX_AWAITED, POLL_AFTER, POLL_BEFORE};
use super::*;
use crate::counters::{PortCounters, WorkerCounters};
use crate::drop_reason::DropReason;
use crate::flow::WorkerId;
use crate::packet::{Capabilities, Packet, Pool};
use crate::pipeline::Sizes;
use crate::pipeline::handoff::Handoff;
use crate::port::{PacketIo, Received, Transmitted};
use crate::port_table::fairness::Account;
use crate::port_table::ports::BATCH;
use crate::report::Report;
use crate::stage::Stage;
use crate::sys;
use crate::tables::PortId;

/// A device's port that delivers only packets that are dropped. Epoll does not know its descriptor when the port is
/// detached.
struct Noise {
    watched: OwnedFd,
    asked: Cell<u32>,
}

impl PacketIo for Noise {
    fn receive(&mut self, _: &mut Pool, _: &mut Vec<Packet>, _: usize) -> io::Result<Received> {
        Ok(Received { drained: true, malformed: 2, not_ours: 3, answered: 1 })
    }

    fn transmit(&mut self, _: &mut Pool, _: &mut Vec<Packet>) -> io::Result<Transmitted> {
        Ok(Transmitted::default())
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::ALL
    }

    fn descriptor(&self) -> Option<RawFd> {
        let first = self.asked.replace(self.asked.get() + 1) == 0;
        Some(if first { self.watched.as_raw_fd() } else { -1 })
    }

    fn unwrapped(self: Box<Self>) -> Box<dyn PacketIo> {
        self
    }
}

fn noise() -> Box<dyn PacketIo> {
    let (reader, _) = io::pipe().unwrap();
    Box::new(Noise { watched: reader.into(), asked: Cell::new(0) })
}

fn worker() -> (Worker, Sender<Command>, Receiver<Report>) {
    worker_with(SharedState::alone().unwrap())
}

fn worker_with(share: SharedState) -> (Worker, Sender<Command>, Receiver<Report>) {
    let (commands, receiver) = unbounded();
    let (sender, reports) = unbounded();
    let sizes = Sizes { flows: 64, translates: false, buffers: 4, fragments: 4 };
    let settings = Settings { sizes, polling: Polling::Busy, core: None };
    let counters = Arc::new(WorkerCounters::default());
    let mut worker = Worker::new(settings, share, receiver, sender, counters).unwrap();
    worker.set_batch_ticks(100_000_000);
    (worker, commands, reports)
}

#[test]
fn packets_that_a_port_drops_are_counted_by_reason() {
    let (mut worker, commands, _reports) = worker();
    let counters = Arc::new(PortCounters::default());
    commands.send(Command::Attach(PortId(0), noise(), Arc::clone(&counters))).unwrap();
    assert!(worker.run_commands(Duration::ZERO));
    assert_eq!(worker.turn(Duration::from_secs(1)), 0);
    assert_eq!(counters.dropped(DropReason::Malformed).read(), 2);
    assert_eq!(counters.dropped(DropReason::NotOurs).read(), 3);
    assert_eq!(counters.received_packets.read(), 5, "packets that the port answered do not count");
}

#[test]
fn trouble_with_epoll_is_reported_once_a_second() {
    let (mut worker, commands, reports) = worker();
    let mut troubled = |second| {
        worker.turn(Duration::from_secs(second));
        for _ in 0..50 {
            let counters = Arc::new(PortCounters::default());
            commands.send(Command::Attach(PortId(0), noise(), counters)).unwrap();
            commands.send(Command::Detach(PortId(0), None)).unwrap();
        }
        assert!(worker.run_commands(Duration::from_secs(second)));
        reports.try_iter().filter(|report| matches!(report, Report::PollFailed(_))).count()
    };
    assert_eq!([troubled(1), troubled(1), troubled(2)], [1, 0, 1]);
}

/// A device that is polled only when its descriptor is readable.
struct Watched<F> {
    descriptor: OwnedFd,
    mapped: bool,
    received: F,
}

impl<F> PacketIo for Watched<F>
where
    F: FnMut(&mut Pool, &mut Vec<Packet>, usize) -> io::Result<Received> + Send + 'static,
{
    fn receive(
        &mut self,
        pool: &mut Pool,
        into: &mut Vec<Packet>,
        limit: usize,
    ) -> io::Result<Received> {
        (self.received)(pool, into, limit)
    }

    fn transmit(&mut self, _: &mut Pool, _: &mut Vec<Packet>) -> io::Result<Transmitted> {
        Ok(Transmitted::default())
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::ALL
    }

    fn descriptor(&self) -> Option<RawFd> {
        Some(self.descriptor.as_raw_fd())
    }

    fn is_mapped(&self) -> bool {
        self.mapped
    }

    fn unwrapped(self: Box<Self>) -> Box<dyn PacketIo> {
        self
    }
}

/// A port that delivers nothing, and the count of its polls.
fn quiet(descriptor: impl Into<OwnedFd>, mapped: bool) -> (Box<dyn PacketIo>, Arc<AtomicU32>) {
    let asked = Arc::new(AtomicU32::new(0));
    let counted = Arc::clone(&asked);
    let received = move |_: &mut Pool, _: &mut Vec<Packet>, _: usize| {
        counted.fetch_add(1, Relaxed);
        Ok(Received { drained: true, ..Received::default() })
    };
    (Box::new(Watched { descriptor: descriptor.into(), mapped, received }), asked)
}

#[test]
fn a_worker_that_is_handed_packets_all_the_time_still_serves_its_ports() {
    let sizes = Sizes { flows: 64, translates: false, buffers: 4, fragments: 4 };
    let mut shares = SharedState::for_workers(2, sizes).unwrap();
    let colleague = shares.pop().unwrap().mesh;
    let (mut worker, commands, _reports) = worker_with(shares.pop().unwrap());
    let (reader, mut writer) = io::pipe().unwrap();
    let (port, asked) = quiet(reader, false);
    commands.send(Command::Attach(PortId(0), port, Arc::default())).unwrap();
    assert!(worker.run_commands(Duration::ZERO));
    let mut pool = Pool::new(4);
    let mut now = Duration::from_secs(1);
    let mut turn = |worker: &mut Worker| {
        now += Duration::from_micros(1);
        let packet = Handoff {
            packet: pool.take().unwrap(),
            segments: 1,
            port: PortId(9),
            peer: None,
            handoffs: 1,
        };
        assert!(colleague.send(WorkerId(0), packet).is_none());
        assert_eq!(worker.turn(now), 1);
        colleague.reclaim_buffers(&mut pool, |_| ());
    };
    (0..100).for_each(|_| turn(&mut worker));
    let before = asked.load(Relaxed);
    writer.write_all(b"!").unwrap();
    (0..=POLL_EVERY).for_each(|_| turn(&mut worker));
    assert!(asked.load(Relaxed) > before, "the port was not asked");
    let portless = worker.counters.portless.read();
    assert_eq!(portless, u64::from(100 + POLL_EVERY + 1), "of a port that is not there");
}

fn spin(ticks: u64) {
    let start = sys::clock::ticks();
    while sys::clock::ticks().wrapping_sub(start) < ticks {
        std::hint::spin_loop();
    }
}

/// A port that always has one more packet, and the count of its packets. Each packet costs this many ticks.
fn costly(ticks: u64) -> (Box<dyn PacketIo>, Arc<AtomicU32>) {
    let brought = Arc::new(AtomicU32::new(0));
    let counted = Arc::clone(&brought);
    let received = move |pool: &mut Pool, into: &mut Vec<Packet>, _: usize| {
        spin(ticks);
        counted.fetch_add(1, Relaxed);
        into.extend(pool.take_filled(&[0x45; 40]));
        Ok(Received::default())
    };
    let (reader, _) = io::pipe().unwrap();
    (Box::new(Watched { descriptor: reader.into(), mapped: false, received }), brought)
}

/// The time-stamp counter measures a packet's cost, so the bounds are wide. If each port had one batch per turn, both
/// would deliver equally many packets.
#[test]
fn ports_get_equal_shares_of_a_workers_time_and_not_of_its_packets() {
    let (mut worker, commands, _reports) = worker();
    let [(dear, dear_brought), (cheap, cheap_brought)] = [500_000, 5_000].map(costly);
    for (id, port) in [(0, dear), (1, cheap)] {
        commands.send(Command::Attach(PortId(id), port, Arc::default())).unwrap();
    }
    assert!(worker.run_commands(Duration::ZERO));
    let mut now = Duration::from_secs(1);
    while dear_brought.load(Relaxed) < 50 {
        now += Duration::from_micros(1);
        assert!(worker.turn(now) > 0, "a turn in which ports have packets serves one");
    }
    let (dear, cheap) = (dear_brought.load(Relaxed), cheap_brought.load(Relaxed));
    assert!(cheap > 10 * dear, "{cheap} cheap packets beside {dear} dear ones");
}

#[test]
fn a_turn_ends_when_it_has_taken_long() {
    let (mut worker, commands, _reports) = worker();
    let ports: Vec<_> = (0..10).map(|_| costly(LONG_TURN)).collect();
    let brought: Vec<_> = ports.iter().map(|(_, brought)| Arc::clone(brought)).collect();
    for (id, (port, _)) in (0..).zip(ports) {
        commands.send(Command::Attach(PortId(id), port, Arc::default())).unwrap();
    }
    assert!(worker.run_commands(Duration::ZERO));
    for turn in 1..=20 {
        assert_eq!(worker.turn(Duration::from_secs(turn)), 1);
    }
    let brought: Vec<u32> = brought.iter().map(|it| it.load(Relaxed)).collect();
    assert!(brought.iter().all(|it| (1..=3).contains(it)), "each has had its turns: {brought:?}");
}

/// A port that always has frames to drop, which take this many ticks, and the count of its polls.
fn rubbish(ticks: u64) -> (Box<dyn PacketIo>, Arc<AtomicU32>) {
    let asked = Arc::new(AtomicU32::new(0));
    let counted = Arc::clone(&asked);
    let received = move |_: &mut Pool, _: &mut Vec<Packet>, _: usize| {
        spin(ticks);
        counted.fetch_add(1, Relaxed);
        Ok(Received { not_ours: 1, ..Received::default() })
    };
    let (reader, _) = io::pipe().unwrap();
    (Box::new(Watched { descriptor: reader.into(), mapped: false, received }), asked)
}

/// A port that answers as many requests as it is asked for packets, and takes this many ticks for each. Also the size
/// of its last batch.
fn answering(ticks: u64) -> (Box<dyn PacketIo>, Arc<AtomicU32>) {
    let last = Arc::new(AtomicU32::new(0));
    let counted = Arc::clone(&last);
    let received = move |_: &mut Pool, _: &mut Vec<Packet>, limit: usize| {
        spin(ticks * limit as u64);
        counted.store(limit as u32, Relaxed);
        Ok(Received { answered: limit, ..Received::default() })
    };
    let (reader, _) = io::pipe().unwrap();
    (Box::new(Watched { descriptor: reader.into(), mapped: false, received }), last)
}

#[test]
fn requests_that_take_long_to_answer_come_in_small_batches() {
    let (mut worker, commands, _reports) = worker();
    worker.set_batch_ticks(100_000);
    let (port, last) = answering(20_000);
    commands.send(Command::Attach(PortId(0), port, Arc::default())).unwrap();
    assert!(worker.run_commands(Duration::ZERO));
    for turn in 1..=50 {
        worker.turn(Duration::from_secs(turn));
    }
    let last = last.load(Relaxed);
    assert!((1..=8).contains(&last), "{last} at once");
}

#[test]
fn a_port_pays_for_what_it_answers_also_beside_packets_of_other_workers() {
    let sizes = Sizes { flows: 64, translates: false, buffers: 4, fragments: 4 };
    let mut shares = SharedState::for_workers(2, sizes).unwrap();
    let colleague = shares.pop().unwrap().mesh;
    let (mut worker, commands, _reports) = worker_with(shares.pop().unwrap());
    let received = |pool: &mut Pool, into: &mut Vec<Packet>, _: usize| {
        spin(1_000_000);
        into.extend(pool.take_filled(&[0x45; 40]));
        Ok(Received { answered: 31, ..Received::default() })
    };
    let [(busy, _), (silent, _)] = [io::pipe().unwrap(), io::pipe().unwrap()];
    let busy = Box::new(Watched { descriptor: busy.into(), mapped: false, received });
    commands.send(Command::Attach(PortId(0), busy, Arc::default())).unwrap();
    let (other, _) = quiet(silent, false);
    commands.send(Command::Attach(PortId(1), other, Arc::default())).unwrap();
    assert!(worker.run_commands(Duration::ZERO));
    let packet = Handoff {
        packet: Pool::new(4).take().unwrap(),
        segments: 1,
        port: PortId(1),
        peer: None,
        handoffs: 1,
    };
    assert!(colleague.send(WorkerId(0), packet).is_none());
    assert_eq!(worker.turn(Duration::from_secs(1)), 2, "its own packet, and the other worker's");
    let [busy, other] = [0, 1].map(|id| worker.ports.slot(PortId(id)).unwrap().account);
    let mut much_more = other;
    much_more.charge(700_000);
    assert!(busy > much_more, "{busy:?} beside {other:?}");
}

/// The bounds are wide, as above. If dropped frames were free, both ports would be polled equally often, and the other
/// port would pay for the frames.
#[test]
fn packets_that_a_port_drops_cost_the_port_time() {
    let (mut worker, commands, _reports) = worker();
    let (dear, asked) = rubbish(500_000);
    let (cheap, brought) = costly(5_000);
    for (id, port) in [(0, dear), (1, cheap)] {
        commands.send(Command::Attach(PortId(id), port, Arc::default())).unwrap();
    }
    assert!(worker.run_commands(Duration::ZERO));
    let mut now = Duration::from_secs(1);
    while asked.load(Relaxed) < 50 {
        now += Duration::from_micros(1);
        worker.turn(now);
    }
    let (asked, brought) = (asked.load(Relaxed), brought.load(Relaxed));
    assert!(brought > 10 * asked, "{brought} packets beside {asked} times rubbish");
}

#[test]
fn time_does_not_pass_by_ports_that_a_long_turn_does_not_reach() {
    let (mut worker, commands, _reports) = worker();
    let mut all = Vec::new();
    for id in 0..2 {
        let (port, brought) = costly(LONG_TURN);
        all.push(brought);
        commands.send(Command::Attach(PortId(id), port, Arc::default())).unwrap();
    }
    assert!(worker.run_commands(Duration::ZERO));
    // The first port is ahead, but still due.
    worker.ports.slot(PortId(0)).unwrap().account.charge(40_000);
    assert_eq!(worker.turn(Duration::from_secs(1)), 1);
    assert_eq!([1, 0], [0, 1].map(|at: usize| all[at].load(Relaxed)), "the first one's was long");
    let mut ahead = Account::default();
    ahead.charge(60_000);
    assert!(!worker.time.is_due(ahead), "time is where the second one waits");
}

/// Each sleep takes a second, and 50 us lie between two sleeps, so a worker that sleeps would not finish within a
/// minute.
#[test]
fn a_worker_does_not_sleep_while_a_port_has_more_packets() {
    let sizes = Sizes { flows: 64, translates: false, buffers: 4, fragments: 4 };
    let settings = Settings { sizes, polling: Polling::Adaptive, core: None };
    let (sender, _reports) = unbounded();
    let mut worker = spawn("rubbish", settings, SharedState::alone().unwrap(), sender).unwrap();
    worker.begin();
    let (reader, _writer) = io::pipe().unwrap();
    let (done, is_done) = unbounded();
    let mut left = 100_000;
    let received = move |_: &mut Pool, _: &mut Vec<Packet>, _: usize| {
        if left == 0 {
            let _ = done.send(());
            return Ok(Received { drained: true, ..Received::default() });
        }
        left -= 1;
        Ok(Received { malformed: 1, ..Received::default() })
    };
    let port = Box::new(Watched { descriptor: reader.into(), mapped: false, received });
    assert!(worker.commands().send(Command::Attach(PortId(0), port, Arc::default())));
    is_done.recv_timeout(Duration::from_mins(1)).unwrap();
}

#[test]
fn packets_of_a_failed_port_are_not_those_of_the_next_port() {
    let (mut worker, commands, reports) = worker();
    let failing = |pool: &mut Pool, into: &mut Vec<Packet>, _: usize| {
        into.extend(pool.take_filled(&[0x45; 40]));
        Err(io::ErrorKind::NotConnected.into())
    };
    let (reader, _writer) = io::pipe().unwrap();
    let port = Box::new(Watched { descriptor: reader.into(), mapped: false, received: failing });
    let (brought, counters) = (Arc::new(AtomicU32::new(0)), Arc::new(PortCounters::default()));
    let seen = Arc::clone(&brought);
    let received = move |_: &mut Pool, into: &mut Vec<Packet>, _: usize| {
        seen.fetch_max(into.len() as u32, Relaxed);
        Ok(Received { drained: true, ..Received::default() })
    };
    let (reader, _other_writer) = io::pipe().unwrap();
    let next = Box::new(Watched { descriptor: reader.into(), mapped: false, received });
    commands.send(Command::Attach(PortId(0), port, Arc::default())).unwrap();
    commands.send(Command::Attach(PortId(1), next, Arc::clone(&counters))).unwrap();
    assert!(worker.run_commands(Duration::ZERO));
    assert_eq!(worker.turn(Duration::from_secs(1)), 0);
    assert!(matches!(reports.try_recv(), Ok(Report::PortLost(PortId(0), _))));
    assert_eq!((brought.load(Relaxed), counters.received_packets.read()), (0, 0));
    assert_eq!((worker.batch.len(), worker.pool.available()), (0, 4));
}

#[test]
fn a_mapped_port_is_polled_while_it_talks_and_watched_while_it_is_quiet() {
    let (mut worker, commands, reports) = worker();
    let (reader, mut writer) = io::pipe().unwrap();
    let (asked, talks) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicBool::new(true)));
    let (counted, talking) = (Arc::clone(&asked), Arc::clone(&talks));
    let received = move |pool: &mut Pool, into: &mut Vec<Packet>, _: usize| {
        counted.fetch_add(1, Relaxed);
        into.extend(talking.load(Relaxed).then(|| pool.take_filled(&[0x45; 40])).flatten());
        Ok(Received { drained: true, ..Received::default() })
    };
    let port = Box::new(Watched { descriptor: reader.into(), mapped: true, received });
    commands.send(Command::Attach(PortId(0), port, Arc::default())).unwrap();
    assert!(worker.run_commands(Duration::ZERO));
    let mut hundred_turns = |milliseconds| {
        let before = asked.load(Relaxed);
        for at in 0..100 {
            worker.turn(Duration::from_millis(milliseconds) + Duration::from_micros(at));
        }
        asked.load(Relaxed) - before
    };
    assert_eq!(hundred_turns(1000), 100, "it talks");
    writer.write_all(b"!").unwrap();
    talks.store(false, Relaxed);
    assert_eq!(hundred_turns(1001), 100, "it has talked within a millisecond");
    let told = hundred_turns(1002);
    assert!((10..=20).contains(&told), "epoll says that it is readable: {told}");
    talks.store(true, Relaxed);
    assert!(hundred_turns(1003) > 90, "it talks again");
    commands.send(Command::Detach(PortId(0), None)).unwrap();
    assert!(worker.run_commands(Duration::ZERO));
    assert!(reports.try_recv().is_err(), "epoll knew what it was to forget");
}

#[test]
fn while_packets_flow_epoll_is_asked_by_turns_but_not_all_the_time() {
    let (mut worker, commands, _reports) = worker();
    let (reader, mut writer) = io::pipe().unwrap();
    let (port, asked) = quiet(reader, false);
    commands.send(Command::Attach(PortId(0), port, Arc::default())).unwrap();
    assert!(worker.run_commands(Duration::ZERO));
    let mut now = Duration::from_secs(1);
    worker.turn(now);
    let mut told = |step: Duration| {
        let before = asked.load(Relaxed);
        for _ in 0..10 * POLL_EVERY {
            writer.write_all(b"!").unwrap();
            now += step;
            worker.turn(now);
        }
        asked.load(Relaxed) - before
    };
    assert_eq!(
        told(POLL_BEFORE),
        10 * POLL_EVERY,
        "turns so long that no packet may wait for several"
    );
    assert_eq!(told(POLL_AFTER), 10, "large turns");
    assert_eq!(told(POLL_AFTER / POLL_EVERY), 10, "turns as small as it is worth");
    assert_eq!(told(POLL_AFTER * 2 / 3 / POLL_EVERY), 5, "smaller ones");
    assert_eq!(told(Duration::ZERO), 0, "no time has passed");
}

#[test]
fn a_quiet_mapped_port_is_looked_at_now_and_then() {
    let (mut worker, commands, _reports) = worker();
    let (reader, _writer) = io::pipe().unwrap();
    let (port, asked) = quiet(reader, true);
    commands.send(Command::Attach(PortId(0), port, Arc::default())).unwrap();
    assert!(worker.run_commands(Duration::ZERO));
    worker.turn(Duration::from_secs(1));
    let before = asked.load(Relaxed);
    for millisecond in 0..1000 {
        (0..POLL_EVERY).for_each(|_| {
            worker.turn(Duration::from_millis(2000 + millisecond));
        });
    }
    assert_eq!(asked.load(Relaxed) - before, 10, "in a second");
}

/// Wraps a mapped port so that it looks like a port without memory that is shared with the kernel.
struct Opaque(Box<dyn PacketIo>);

impl PacketIo for Opaque {
    fn receive(
        &mut self,
        pool: &mut Pool,
        into: &mut Vec<Packet>,
        limit: usize,
    ) -> io::Result<Received> {
        self.0.receive(pool, into, limit)
    }

    fn transmit(&mut self, pool: &mut Pool, packets: &mut Vec<Packet>) -> io::Result<Transmitted> {
        self.0.transmit(pool, packets)
    }

    fn capabilities(&self) -> Capabilities {
        self.0.capabilities()
    }

    fn descriptor(&self) -> Option<RawFd> {
        self.0.descriptor()
    }

    fn unwrapped(self: Box<Self>) -> Box<dyn PacketIo> {
        self.0
    }
}

#[test]
fn epoll_tells_of_a_wrapped_port_whether_it_was_mapped_or_not() {
    for mapped in [false, true] {
        let (mut worker, commands, reports) = worker();
        let (reader, mut writer) = io::pipe().unwrap();
        let asked = Arc::new(AtomicU32::new(0));
        let counted = Arc::clone(&asked);
        let received = move |_: &mut Pool, _: &mut Vec<Packet>, _: usize| {
            counted.fetch_add(1, Relaxed);
            Ok(Received { drained: true, ..Received::default() })
        };
        let port = Box::new(Watched { descriptor: reader.into(), mapped, received });
        commands.send(Command::Attach(PortId(0), port, Arc::default())).unwrap();
        commands.send(Command::Wrap(PortId(0), Box::new(|io| Box::new(Opaque(io))))).unwrap();
        assert!(worker.run_commands(Duration::ZERO));
        let mut now = Duration::from_secs(1);
        let mut turns = || {
            for _ in 0..=POLL_EVERY {
                now += Duration::from_micros(1);
                worker.turn(now);
            }
        };
        turns();
        let before = asked.load(Relaxed);
        turns();
        assert_eq!(asked.load(Relaxed), before, "quiet");
        writer.write_all(b"!").unwrap();
        turns();
        assert!(asked.load(Relaxed) > before, "epoll did not tell, mapped: {mapped}");
        commands.send(Command::Detach(PortId(0), None)).unwrap();
        assert!(worker.run_commands(Duration::ZERO));
        assert!(reports.try_recv().is_err(), "epoll knew what it was to forget");
    }
}

#[test]
fn packets_handed_off_join_the_batch_and_are_counted_for_the_port_that_brought_them() {
    let sizes = Sizes { flows: 64, translates: false, buffers: 4, fragments: 4 };
    let mut shares = SharedState::for_workers(2, sizes).unwrap();
    let colleague = shares.pop().unwrap().mesh;
    let (mut worker, commands, _reports) = worker_with(shares.pop().unwrap());
    let counters: [Arc<PortCounters>; 2] = Default::default();
    let pipes = [(); 2].map(|()| io::pipe().unwrap());
    for ((port, counters), (reader, _)) in (0..).zip(&counters).zip(&pipes) {
        let mut brings = port == 0;
        let received = move |pool: &mut Pool, into: &mut Vec<Packet>, _: usize| {
            if std::mem::take(&mut brings) {
                into.extend(pool.take_filled(&[0x45; 40]));
            }
            Ok(Received { drained: true, ..Received::default() })
        };
        let io = Box::new(Watched {
            descriptor: reader.try_clone().unwrap().into(),
            mapped: false,
            received,
        });
        commands.send(Command::Attach(PortId(port), io, Arc::clone(counters))).unwrap();
    }
    assert!(worker.run_commands(Duration::ZERO));
    let mut pool = Pool::new(1);
    let packet = pool.take_filled(&[0x45; 40]).unwrap();
    let handed_off = Handoff { packet, segments: 3, port: PortId(1), peer: None, handoffs: 1 };
    assert!(colleague.send(WorkerId(0), handed_off).is_none());
    assert_eq!(worker.turn(Duration::from_secs(1)), 2);
    let dropped = counters.each_ref().map(|port| port.dropped(DropReason::NoTables).read());
    assert_eq!(dropped, [1, 3]);
    // The worker that received the packet has counted it already.
    assert_eq!(counters.each_ref().map(|port| port.received_packets.read()), [1, 0]);
}

#[test]
fn cycles_are_counted_by_stage_only_while_a_reader_asks() {
    let (mut worker, commands, _reports) = worker();
    commands.send(Command::Attach(PortId(0), costly(0).0, Arc::default())).unwrap();
    assert!(worker.run_commands(Duration::ZERO));
    let mut after = |is_asked| {
        worker.counters.stages.enable(is_asked);
        assert_eq!(worker.turn(Duration::from_secs(1)), 1);
        Stage::ALL.map(|stage| worker.counters.stages.read(stage))
    };
    assert_eq!(after(false), [0; Stage::ALL.len()]);
    let measured = after(true);
    let stages = Stage::ALL.iter().zip(measured).filter(|(_, ticks)| *ticks > 0);
    let stages: Vec<&str> = stages.map(|(stage, _)| stage.name()).collect();
    assert_eq!(stages, ["read", "guess", "forward", "send"], "nothing came out of a tunnel");
    assert_eq!(after(false), measured);
}

#[test]
fn a_step_obeys_control_lets_flows_age_and_counts_its_cycles() {
    let (mut worker, commands, _reports) = worker();
    commands.send(Command::Attach(PortId(0), costly(0).0, Arc::default())).unwrap();
    // Ageing sets it to the number of flows in the table.
    worker.counters.flows.set(7);
    assert_eq!(worker.step(Duration::from_secs(1)), Some(1));
    assert_eq!((worker.counters.flows.read(), worker.counters.busy_turns.read()), (0, 1));
    // The time of a port is known when the next port is served.
    assert_eq!(worker.step(Duration::from_secs(2)), Some(1));
    assert!(worker.counters.busy_cycles.read() > 0);
    commands.send(Command::Stop).unwrap();
    assert_eq!(worker.step(Duration::from_secs(1)), None);
}

/// A device's port whose packets epoll never reports while the writer exists. It holds this many packets and records
/// the limit of each receive.
fn untold(
    packets: Arc<AtomicU32>,
    asked: Arc<Mutex<Vec<usize>>>,
) -> (Box<dyn PacketIo>, io::PipeWriter) {
    let received = move |pool: &mut Pool, into: &mut Vec<Packet>, limit: usize| {
        asked.lock().unwrap().push(limit);
        let held = packets.load(Relaxed);
        let given = held.min(limit as u32);
        into.extend((0..given).filter_map(|_| pool.take_filled(&[0x45; 40])));
        packets.store(held - given, Relaxed);
        Ok(Received { drained: (given as usize) < limit, ..Received::default() })
    };
    let (reader, writer) = io::pipe().unwrap();
    (Box::new(Watched { descriptor: reader.into(), mapped: false, received }), writer)
}

#[test]
fn a_port_that_talks_is_asked_without_epoll_and_its_first_packet_does_not_wait() {
    let (mut worker, commands, _reports) = worker();
    let (packets, asked) = (Arc::new(AtomicU32::new(1)), Arc::new(Mutex::new(Vec::new())));
    let mut writers = Vec::new();
    for id in 0..2 * MAX_AWAITED as u16 {
        let (port, writer) = untold(Arc::clone(&packets), Arc::clone(&asked));
        writers.push(writer);
        commands.send(Command::Attach(PortId(id), port, Arc::default())).unwrap();
    }
    let was_asked = || std::mem::take(&mut *asked.lock().unwrap());
    assert!(worker.run_commands(Duration::ZERO));
    let start = Duration::from_secs(1);
    assert_eq!((0..2 * MAX_AWAITED).map(|_| worker.turn(start)).sum::<usize>(), 1);
    assert_eq!(was_asked(), [BATCH; 2 * MAX_AWAITED]);
    // A port that delivered something a short time ago is polled again while no port has packets.
    worker.poll_quiet_ports();
    assert_eq!(worker.turn(start), 0);
    assert_eq!(was_asked(), [FIRST_BATCH]);
    packets.store(3, Relaxed);
    worker.poll_quiet_ports();
    assert_eq!((worker.turn(start), worker.turn(start)), (1, 2));
    assert_eq!(was_asked(), [FIRST_BATCH, BATCH]);
    worker.poll_quiet_ports();
    assert_eq!(worker.turn(start + Duration::from_millis(2)), 0, "it talks no more");
    worker.poll_quiet_ports();
    assert_eq!(worker.turn(start + Duration::from_millis(2)), 0);
    assert_eq!(was_asked(), [FIRST_BATCH]);
}

#[test]
fn no_more_ports_are_awaited_than_epoll_costs() {
    let (mut worker, commands, _reports) = worker();
    let asked = Arc::new(Mutex::new(Vec::new()));
    let mut writers = Vec::new();
    for id in 0..2 * MAX_AWAITED as u16 {
        let (port, writer) = untold(Arc::new(AtomicU32::new(1)), Arc::clone(&asked));
        writers.push(writer);
        commands.send(Command::Attach(PortId(id), port, Arc::default())).unwrap();
    }
    assert!(worker.run_commands(Duration::ZERO));
    let start = Duration::from_secs(1);
    // A turn that takes long serves only some of the ports.
    assert_eq!((0..2 * MAX_AWAITED).map(|_| worker.turn(start)).sum::<usize>(), 2 * MAX_AWAITED);
    asked.lock().unwrap().clear();
    worker.poll_quiet_ports();
    assert_eq!(worker.turn(Duration::from_secs(1)), 0);
    assert_eq!(*asked.lock().unwrap(), [FIRST_BATCH; MAX_AWAITED]);
}

/// The kernel takes some time to close a packet socket.
struct SlowToClose {
    may_close: Receiver<()>,
    closed: Sender<()>,
}

impl Drop for SlowToClose {
    fn drop(&mut self) {
        let _ = self.may_close.recv();
        let _ = self.closed.send(());
    }
}

#[test]
fn a_port_that_is_slow_to_close_holds_up_no_other_and_is_closed_in_the_end() {
    let sizes = Sizes { flows: 64, translates: false, buffers: 4, fragments: 4 };
    let settings = Settings { sizes, polling: Polling::Adaptive, core: None };
    let mut workers = Workers::spawn(settings, &[None], &unbounded().0).unwrap();
    workers.begin();
    let ((lets_close, may_close), (closed, is_closed)) = (unbounded(), unbounded());
    let slow = || {
        let slow = SlowToClose { may_close: may_close.clone(), closed: closed.clone() };
        let received = move |_: &mut Pool, _: &mut Vec<Packet>, _: usize| {
            let _open = &slow;
            Ok(Received { drained: true, ..Received::default() })
        };
        let (reader, writer) = io::pipe().unwrap();
        let port = Watched { descriptor: reader.into(), mapped: false, received };
        (Box::new(port) as Box<dyn PacketIo>, writer)
    };
    let mut pipes = Vec::new();
    // Two are detached, and two stay to the end.
    for id in 0..4 {
        let (port, pipe) = slow();
        workers.attach(PortId(id), vec![port]).unwrap();
        pipes.push(pipe);
    }
    for id in 0..2 {
        assert!(workers.send_all(|| Command::Detach(PortId(id), None)));
    }
    let (asks, is_asked) = unbounded();
    let received = move |_: &mut Pool, _: &mut Vec<Packet>, _: usize| {
        let _ = asks.send(());
        Ok(Received { drained: true, ..Received::default() })
    };
    let (reader, mut writer) = io::pipe().unwrap();
    let port = Watched { descriptor: reader.into(), mapped: false, received };
    workers.attach(PortId(7), vec![Box::new(port)]).unwrap();
    writer.write_all(b"a packet").unwrap();
    is_asked.recv_timeout(Duration::from_mins(1)).expect("the worker serves the next port");
    assert!(is_closed.is_empty(), "none is closed yet");
    let dropping = std::thread::spawn(move || drop(workers));
    for _ in 0..4 {
        lets_close.send(()).unwrap();
    }
    dropping.join().unwrap();
    assert_eq!(is_closed.len(), 4, "who ends the workers has waited for all");
}
