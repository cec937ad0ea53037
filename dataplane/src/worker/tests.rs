//! What a worker makes of what its ports say beside their packets.

use std::cell::Cell;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};

use crossbeam::channel::unbounded;

use super::*;
use crate::port::{Capabilities, Received, Transmitted};

/// A port of a device that brings only what is dropped, and whose descriptor epoll does not know when it is let go of.
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
    let (commands, receiver) = unbounded();
    let (sender, reports) = unbounded();
    let sizes = Sizes { flows: 64, buffers: 4, fragments: 4 };
    let settings = Settings { sizes, polling: Polling::Busy, core: None };
    let counters = Arc::new(WorkerCounters::default());
    (
        Worker::new(settings, Share::nothing(), receiver, sender, counters).unwrap(),
        commands,
        reports,
    )
}

#[test]
fn what_a_port_drops_itself_is_counted_by_reason() {
    let (mut worker, commands, _reports) = worker();
    let counters = Arc::new(PortCounters::default());
    commands.send(Command::Attach(PortId(0), noise(), Arc::clone(&counters))).unwrap();
    assert!(worker.obey());
    assert_eq!(worker.turn(Duration::from_secs(1)), 0);
    assert_eq!(counters.dropped(DropReason::Malformed).read(), 2);
    assert_eq!(counters.dropped(DropReason::NotOurs).read(), 3);
    assert_eq!(counters.received_packets.read(), 5, "what was answered is nobody's packet");
}

#[test]
fn trouble_with_epoll_is_reported_once_a_second() {
    let (mut worker, commands, reports) = worker();
    let mut troubled = |second| {
        worker.turn(Duration::from_secs(second));
        for _ in 0..50 {
            let counters = Arc::new(PortCounters::default());
            commands.send(Command::Attach(PortId(0), noise(), counters)).unwrap();
            commands.send(Command::Detach(PortId(0))).unwrap();
        }
        assert!(worker.obey());
        reports.try_iter().filter(|report| matches!(report, Report::PollFailed(_))).count()
    };
    assert_eq!([troubled(1), troubled(1), troubled(2)], [1, 0, 1]);
}
